/* LayerNorm (Ba et al. 2016) and RMSNorm (Zhang & Sennrich 2019) over the last dimension. */
#ifndef TP_NORM_H
#define TP_NORM_H

#include <tp/io.h>

typedef struct tp_norm tp_norm;

typedef enum tp_norm_kind { TP_NORM_LAYER = 0, TP_NORM_RMS } tp_norm_kind;

typedef struct tp_norm_desc {
    const char *name; /* parameters are "<name>.weight" and, LayerNorm, "<name>.bias" */
    tp_norm_kind kind;
    int64_t features;
    tp_dtype dtype;
    float epsilon; /* 0: 1e-5 */
    bool no_bias;  /* LayerNorm without bias */
    bool sequence_parallel;
} tp_norm_desc;

typedef struct tp_norm_saved {
    void *memory;
    size_t bytes;
    tp_tensor x;     /* view of the input */
    tp_tensor stats; /* f32 [rows, 2]: mean, 1/sqrt(variance + epsilon) */
} tp_norm_saved;

typedef struct tp_norm_delayed {
    tp_tensor dy; /* view: needs no memory, dy must stay */
} tp_norm_delayed;

TP_BEGIN_DECLS

TP_API tp_status tp_norm_create(tp_ctx *ctx, const tp_norm_desc *desc, tp_norm **out);
TP_API void tp_norm_destroy(tp_norm *layer);
TP_API int tp_norm_params(tp_norm *layer, tp_param **out, int capacity);

/* Computes    y = (x - mean) / sqrt(var + eps) * gain + bias, or y = x / sqrt(mean(x^2) + eps) * gain; statistics in
 *             f32, two passes.
 * Shapes      x, y [rows, features]; rows: this rank's tokens (tp_pass_rows). pass NULL: as in tp_linear_forward.
 * Collectives none. The gradients of gain and bias are sums over tokens, which sequence parallelism splits: they are
 *             completed by tp_params_finish.
 * Saved       statistics and a view of x. Until backward_weight.
 * Errors      TP_ERR_SHAPE, TP_ERR_DTYPE. */
TP_API tp_status tp_norm_forward(tp_ctx *ctx, const tp_norm *layer, const tp_pass *pass, const tp_io *io,
                                 tp_norm_saved *saved);

/* io->in dy, io->out dx, io->residual: added to dx (the gradient that went around the norm). */
TP_API tp_status tp_norm_backward_input(tp_ctx *ctx, const tp_norm *layer, const tp_pass *pass, const tp_io *io,
                                        const tp_norm_saved *saved, tp_norm_delayed *delayed);
TP_API tp_status tp_norm_backward_weight(tp_ctx *ctx, const tp_norm *layer, const tp_pass *pass,
                                         const tp_norm_saved *saved, const tp_norm_delayed *delayed);
TP_API tp_status tp_norm_backward(tp_ctx *ctx, const tp_norm *layer, const tp_pass *pass, const tp_io *io,
                                  const tp_norm_saved *saved);

TP_API size_t tp_norm_saved_bytes(const tp_norm *layer, const tp_pass *pass);

TP_END_DECLS
#endif
