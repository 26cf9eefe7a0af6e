/* Linear layers, cut by columns or rows over the tensor-parallel group (Shoeybi et al. 2019, "Megatron-LM"; sequence
 * parallelism: Korthikanti et al. 2022). */
#ifndef TP_LINEAR_H
#define TP_LINEAR_H

#include <tp/io.h>
#include <tp/overlap.h>

typedef struct tp_linear tp_linear;

typedef enum tp_linear_kind {
    TP_LINEAR_COLUMN = 0, /* out features are cut: each rank makes its columns of the output */
    TP_LINEAR_ROW,        /* in features are cut: each rank makes a partial sum of the whole output */
    TP_LINEAR_REPLICATED  /* not cut */
} tp_linear_kind;

typedef struct tp_linear_desc {
    const char *name; /* parameters are "<name>.weight" and "<name>.bias" */
    tp_linear_kind kind;
    int64_t in_features, out_features;
    tp_dtype dtype; /* f32, bf16 or f16: of activations and parameters */
    bool bias;
    bool sequence_parallel; /* the uncut side's tokens are sharded; COLUMN and ROW only */
    int parts;              /* of the cut dimension; 0: one part of single features */
    tp_shard_part part[TP_PARAM_PARTS];
    float init_std;     /* 0: 0.02 */
    float dropout;      /* ROW, REPLICATED: on the output, before the residual */
    uint32_t site;      /* tells this layer's dropout masks from others': layer << 8 | place */
    tp_overlap overlap; /* of its collectives with its GEMMs; the same bits with any */
    int chunks;         /* that a rank's tokens are cut into; 0: the algorithm's default */
    tp_param *weight;   /* borrowed: another layer's (tied head) or the caller's own, or NULL. It must be of the same
                         * context, shape and parts. Frozen from the start: the bias learns alone */
} tp_linear_desc;

/* Views only: needs no memory. */
typedef struct tp_linear_saved {
    tp_tensor x; /* the input as given: this rank's tokens under sequence parallelism */
} tp_linear_saved;

typedef struct tp_linear_delayed {
    void *memory;
    size_t bytes;
    tp_tensor dy; /* all tokens; ROW under sequence parallelism and TP_OVERLAP_DIRECT: this rank's */
} tp_linear_delayed;

TP_BEGIN_DECLS

/* Errors: TP_ERR_ARGUMENT (sizes < 1, in or out units < ranks, a borrowed weight of another shape
 * or context), TP_ERR_DTYPE,
 * TP_ERR_UNSUPPORTED (REPLICATED with sequence_parallel on 2 or more ranks), TP_ERR_MEMORY. On failure *out is NULL. */
TP_API tp_status tp_linear_create(tp_ctx *ctx, const tp_linear_desc *desc, tp_linear **out);
TP_API void tp_linear_destroy(tp_linear *layer);

/* Writes up to `capacity` parameters, a borrowed weight not among them, and returns how many there are. out NULL: none
 * is written. */
TP_API int tp_linear_params(tp_linear *layer, tp_param **out, int capacity);

/* Features of this rank's side: out features of COLUMN, in features of ROW, that this rank holds. */
TP_API int64_t tp_linear_local_features(const tp_linear *layer);

/* Computes    y = dropout(x W^T + b) + residual.
 * Shapes      COLUMN: x [T, in], y [T, out_local]. ROW: x [T, in_local], y [T, out]. T = pass->tokens; under sequence
 *             parallelism the uncut side (COLUMN x, ROW y and residual) has this rank's tokens, tp_pass_rows. W [out,
 *             in] and b [out], or this rank's shard. pass NULL: T is the input's rows (not with sequence parallelism or
 *             dropout).
 * Collectives COLUMN under sequence parallelism: all-gather of x before the GEMM. ROW: all-reduce, under sequence
 *             parallelism reduce-scatter, of f32 partial sums after it, with bias, dropout and residual applied to the
 *             sum.
 * Saved       a view of x: no bytes. Until backward_weight.
 * Aliasing    io->out may be io->residual.
 * Errors      TP_ERR_SHAPE, TP_ERR_DTYPE before anything is changed; those of collectives. */
TP_API tp_status tp_linear_forward(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass, const tp_io *io,
                                   tp_linear_saved *saved);

/* Computes    dx = dy' W (dy' = dy after dropout); io->in is dy, io->out is dx. delayed may be NULL if backward_weight
 *             won't be called.
 * Collectives COLUMN: all-reduce, under sequence parallelism reduce-scatter, of f32 partial sums. ROW under sequence
 *             parallelism: all-gather of dy.
 * Delayed     dy' of all tokens, where it is not dy itself: tp_linear_delayed_bytes. */
TP_API tp_status tp_linear_backward_input(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass, const tp_io *io,
                                          tp_linear_delayed *delayed);

/* Computes    dW += dy'^T x, db += sum over tokens of dy'.
 * Collectives COLUMN under sequence parallelism: all-gather of x.
 * Errors      TP_ERR_SHAPE, TP_ERR_DTYPE, TP_ERR_ARGUMENT before anything is changed: saved or delayed is not what a
 *             call with this number of tokens fills; those of collectives. */
TP_API tp_status tp_linear_backward_weight(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass,
                                           const tp_linear_saved *saved, const tp_linear_delayed *delayed);

/* Both. io->out may be none: the input's gradient is not wanted. */
TP_API tp_status tp_linear_backward(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass, const tp_io *io,
                                    const tp_linear_saved *saved);

TP_API size_t tp_linear_delayed_bytes(const tp_linear *layer, const tp_pass *pass);

TP_END_DECLS
#endif
