/* A parameter: this rank's shard of a named global tensor, its f32 gradient, and how the shard is cut. Data parallel,
 * optimizer, checkpoint, clipping and counting all walk one list of them, by name. Weights are [out, in], row-major. */
#ifndef TP_PARAM_H
#define TP_PARAM_H

#include <tp/context.h>

#define TP_PARAM_NAME 96
#define TP_PARAM_PARTS 3

typedef enum tp_param_flag {
    TP_PARAM_DECAY = 1,  /* weight decay applies (matrices) */
    TP_PARAM_TIED = 2,   /* read by a second layer too, whose gradient is kept in grad_tied */
    /* No update, and no share in the gradient's norm and clipping. Created so: no gradient either, for good. Set and
     * cleared between steps: the gradient is computed all the same, and the update goes on with the moments it had,
     * corrected for their beginning by the optimizer's count of steps, not by one of the parameter's own. On all ranks
     * alike. */
    TP_PARAM_FROZEN = 4,
    /* The gradient is first gathered by virtual ranks in grad_partial, and summed over tensor-parallel ranks by
     * tp_params_finish: norm gains (their token sum is split by sequence parallelism). */
    TP_PARAM_PARTIAL = 8
} tp_param_flag;

/* How tp_params_init fills a value, on global indices. */
typedef enum tp_init { TP_INIT_ZERO = 0, TP_INIT_ONE, TP_INIT_NORMAL } tp_init;

typedef struct tp_param {
    char name[TP_PARAM_NAME];
    unsigned flags; /* tp_param_flag */
    tp_init init;
    float init_std;
    /* Global shape: 1 or 2 dims, and the dimension that is cut into parts; -1: replicated over tensor parallelism. */
    int dims;
    int64_t shape[2];
    int shard_dim;
    int parts;
    tp_shard_part part[TP_PARAM_PARTS]; /* shard_dim is their concatenation; a shard is the concatenation of the
                                         * shards */
    tp_tensor value;       /* this rank's shard, in the layer's dtype */
    tp_tensor grad;        /* f32, the shard's shape; complete after tp_params_finish */
    tp_tensor grad_tied;   /* f32, only TIED: gradient of the second reader, added to grad once by tp_params_finish */
    tp_tensor grad_partial; /* f32 [virtual ranks of this rank, elements], only PARTIAL */
    void *internal;        /* packed copies; belongs to the library */
} tp_param;

/* A parameter of a module of the caller's own. */
typedef struct tp_param_desc {
    const char *name;
    int dims;         /* 1 or 2 */
    int64_t shape[2]; /* global */
    bool sharded;     /* cut along shard_dim over tensor-parallel ranks; else replicated */
    int shard_dim;
    int parts; /* 0: one part of single indices */
    tp_shard_part part[TP_PARAM_PARTS];
    tp_dtype dtype; /* f32, bf16 or f16 */
    unsigned flags;
    tp_init init;
    float init_std; /* 0: 0.02 */
} tp_param_desc;

TP_BEGIN_DECLS

/* Allocates this rank's value and gradients (zeroed); the value is undefined until tp_params_init, tp_param_load, or a
 * direct write and tp_param_touch. A replicated parameter's gradient must come out equal on all ranks, or be PARTIAL.
 * Errors: TP_ERR_ARGUMENT with the field and both numbers, TP_ERR_DTYPE, TP_ERR_MEMORY; *out is NULL then.
 * tp_param_destroy, which waits for what was issued, is for these only: a layer's belong to the layer. */
TP_API tp_status tp_param_create(tp_ctx *ctx, const tp_param_desc *desc, tp_param **out);
TP_API void tp_param_destroy(tp_ctx *ctx, tp_param *param);

/* Elements of the global tensor; rows or columns of this rank's shard along shard_dim. */
TP_API int64_t tp_param_elements(const tp_param *param);

/* Cuts this rank's shard out of a global tensor in host memory and writes it to value, rounding to its dtype; refreshes
 * packed copies. stride: elements between rows and between columns of `global` (so an [in, out] file loads without a
 * transpose); 1-D: stride[0]; NULL: dense.
 * Errors: TP_ERR_DTYPE (f32, bf16, f16 accepted). */
TP_API tp_status tp_param_load(tp_ctx *ctx, tp_param *param, const void *global, tp_dtype dtype,
                               const int64_t stride[2]);

/* Writes this rank's owned elements of value (or grad: which = 1) into a global f32 tensor, and collects the others' by
 * an all-reduce over the tensor-parallel group, so all ranks get the whole. global: host memory,
 * tp_param_elements(param) floats. */
TP_API tp_status tp_param_gather(tp_ctx *ctx, const tp_param *param, int which, float *global);

/* After writing value directly: refreshes what was derived from it (packed copies). */
TP_API tp_status tp_param_touch(tp_ctx *ctx, tp_param *param);

/* What takes a list wants each parameter once, or refuses it: TP_ERR_ARGUMENT with both places.
 * Fills values by name and global index: the same on every layout. */
TP_API tp_status tp_params_init(tp_ctx *ctx, tp_param *const *params, int count);

/* Sets all gradients to zero: before the first microbatch of a step. */
TP_API tp_status tp_params_zero_grad(tp_ctx *ctx, tp_param *const *params, int count);

/* The same for a step in which only layers of this library add to the gradients of their parameters, without writing
 * zeros over what the step overwrites anyway. Until tp_params_finish, grad and grad_tied of a linear layer's weight or
 * a tied table may hold anything, and are neither to be read nor written; a weight without a gradient has zeros after
 * it. Whatever comes after tp_params_zero_grad has the same values, but -0 stays -0 in rows of a tied table that no
 * token of the step has. On devices it clears everything. */
TP_API tp_status tp_params_begin(tp_ctx *ctx, tp_param *const *params, int count);

/* Completes gradients after the last microbatch: the tree over virtual ranks for PARTIAL ones (one all-reduce over the
 * tensor-parallel group for all of them together), then grad += grad_tied. Call once a step, before norms, optimizer or
 * reading grad. */
TP_API tp_status tp_params_finish(tp_ctx *ctx, tp_param *const *params, int count);

/* L2 norm of all gradients, each element of the global tensors counted once: eight virtual sums and the tree a
 * parameter, parameters added in list order. Collective over the tensor-parallel group. *norm: host memory. */
TP_API tp_status tp_params_grad_norm(tp_ctx *ctx, tp_param *const *params, int count, float *norm);

TP_END_DECLS
#endif
