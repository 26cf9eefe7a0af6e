/* Cross-entropy over a vocabulary that is cut over the tensor-parallel group; no rank ever holds a whole row of
 * logits. */
#ifndef TP_LOSS_H
#define TP_LOSS_H

#include <tp/io.h>

typedef struct tp_cross_entropy_desc {
    int64_t vocabulary;
    float label_smoothing; /* e in [0, 1) */
    float z_loss;          /* coefficient of lse^2 (Chowdhery et al. 2022); 0: none */
} tp_cross_entropy_desc;

typedef struct tp_cross_entropy_saved {
    void *memory;
    size_t bytes;
    tp_tensor logits; /* view: this rank's columns */
    tp_tensor lse;    /* f32 [T]; beside it in `memory`: maxima and sums */
} tp_cross_entropy_saved;

TP_BEGIN_DECLS

/* Computes    per token: lse - (1-e) logit[target] - e mean(logits) + z lse^2, lse = log(sum(exp(logits))) with the
 *             global maximum taken out; exactly 0 for ignored targets (< 0). total[0] += sum over tokens, total[1] +=
 *             number of valid tokens (f32, device memory, tokens in order). Unscaled.
 * Shapes      logits [T, this rank's tp_shard_range(vocabulary)], f32, bf16 or f16; all tokens (the vocabulary is cut,
 *             not the tokens).
 * Collectives all-reduce max of [T], all-reduce sum of [3, T]. Waits for them.
 * Saved       tp_cross_entropy_saved_bytes; logits are kept by view. NULL: loss only.
 * Errors      TP_ERR_SHAPE: logits' columns are not this rank's share (whole rows on several ranks, say);
 *             TP_ERR_ARGUMENT: smoothing outside [0, 1); a target >= vocabulary: on the CPU before anything is changed,
 *             on a GPU by the next synchronisation, which breaks the context (docs/cuda.md, section 2). */
TP_API tp_status tp_cross_entropy_forward(tp_ctx *ctx, const tp_cross_entropy_desc *desc, const tp_pass *pass,
                                          tp_tensor logits, float *total, tp_cross_entropy_saved *saved);

/* Computes    the gradient of pass->loss_scale * (sum of losses), written over the logits. Ignored rows become 0.
 * Collectives none. */
TP_API tp_status tp_cross_entropy_backward(tp_ctx *ctx, const tp_cross_entropy_desc *desc, const tp_pass *pass,
                                           const tp_cross_entropy_saved *saved);

TP_API size_t tp_cross_entropy_saved_bytes(const tp_pass *pass);

TP_END_DECLS
#endif
