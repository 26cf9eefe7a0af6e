/* Optimizers over a list of parameters. State and masters are f32 and sharded as the values are. */
#ifndef TP_OPTIMIZER_H
#define TP_OPTIMIZER_H

#include <tp/param.h>

typedef struct tp_optimizer tp_optimizer;

typedef enum tp_optimizer_kind { TP_OPTIMIZER_SGD = 0, TP_OPTIMIZER_ADAMW } tp_optimizer_kind;

typedef struct tp_optimizer_desc {
    tp_optimizer_kind kind;
    float beta1, beta2; /* AdamW; 0: 0.9, 0.95 */
    float epsilon;      /* AdamW; 0: 1e-8 */
    float decay;        /* weight decay of parameters flagged TP_PARAM_DECAY */
    float momentum;     /* SGD */
    float clip_norm;    /* global-norm clipping; 0: none */
} tp_optimizer_desc;

typedef struct tp_step_report {
    float grad_norm; /* before clipping; each element of the global tensors counted once */
    bool skipped;    /* the norm was not finite: nothing was changed, the step does not count */
    int64_t step;    /* steps that counted so far */
} tp_step_report;

TP_BEGIN_DECLS

/* Borrows the parameters: when one of them was destroyed, all that is left is to destroy the optimizer. Masters of bf16
 * and f16 values are taken from the values now and again by tp_param_load and tp_param_touch.
 * Errors: TP_ERR_ARGUMENT (beta outside [0, 1), negative or NaN epsilon, decay, momentum, clip_norm), TP_ERR_MEMORY. */
TP_API tp_status tp_optimizer_create(tp_ctx *ctx, const tp_optimizer_desc *desc, tp_param *const *params, int count,
                                     tp_optimizer **out);
TP_API void tp_optimizer_destroy(tp_optimizer *optimizer);

/* Computes    AdamW (Loshchilov & Hutter 2019) or SGD with momentum, on gradients clipped to clip_norm / norm, and
 *             refreshes packed copies. Gradients must be complete (tp_params_finish). lr >= 0 and finite.
 * Collectives one all-reduce of the parameters' squared norms over the tensor-parallel group.
 * Errors      TP_ERR_ARGUMENT (lr); a non-finite norm is no error but report->skipped, the same on all ranks. report
 *             may be NULL. */
TP_API tp_status tp_optimizer_step(tp_ctx *ctx, tp_optimizer *optimizer, float lr, tp_step_report *report);

/* The f32 master of a parameter (the value itself if that is f32), its moments (NULL if the kind has none) and its
 * count of steps. Places that are NULL get nothing. */
TP_API tp_status tp_optimizer_state(tp_optimizer *optimizer, const tp_param *param, float **master, float **m,
                                    float **v, int64_t *step);

TP_END_DECLS
#endif
