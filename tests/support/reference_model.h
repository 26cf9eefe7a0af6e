/* An independent decoder-only transformer in double precision, plain loops only: what the library's models are compared
 * with. */
#ifndef TPT_REFERENCE_MODEL_H
#define TPT_REFERENCE_MODEL_H

#include <tp/model.h>

enum { TPT_REFERENCE_MOST_LAYERS = 4, TPT_REFERENCE_NAMES = 5 + 12 * TPT_REFERENCE_MOST_LAYERS };

/* One parameter: the library's name for it and its place in one flat array. */
typedef struct tpt_reference_param {
    char name[TP_PARAM_NAME];
    int64_t rows, cols; /* vectors: cols 1 */
    int64_t at;
} tpt_reference_param;

/* desc: everything set that has no default of 0 (kv_heads, ffn, activation too); dropout must be 0. */
typedef struct tpt_reference {
    tp_model_desc desc;
    int64_t head_dim;
    int params;
    tpt_reference_param param[TPT_REFERENCE_NAMES];
    int64_t elements;
} tpt_reference;

void tpt_reference_init(tpt_reference *model, const tp_model_desc *desc);

/* The parameter with that name, NULL if there is none. */
const tpt_reference_param *tpt_reference_find(const tpt_reference *model, const char *name);

/* A batch: sequence s is tokens [offsets[s], offsets[s + 1]). */
typedef struct tpt_reference_batch {
    int64_t tokens, sequences;
    const int64_t *offsets;
    const int32_t *ids, *targets; /* targets < 0: ignored */
} tpt_reference_batch;

/* Sum of losses over valid tokens. values: [elements]. gradient: [elements] of loss_scale * sum, added to, or NULL.
 * logits: [tokens, vocabulary] or NULL. */
double tpt_reference_loss(const tpt_reference *model, const double *values, const tpt_reference_batch *batch,
                          double loss_scale, double *gradient, double *logits);

#endif
