/* Self-attention, cut by query heads over the tensor-parallel group: QKV projection (column) -> RoPE -> flash attention
 * -> output projection (row). */
#ifndef TP_ATTENTION_H
#define TP_ATTENTION_H

#include <tp/linear.h>

typedef struct tp_attention tp_attention;

typedef enum tp_attention_mask { TP_MASK_CAUSAL = 0, TP_MASK_FULL } tp_attention_mask;

typedef struct tp_attention_desc {
    const char *name; /* "<name>.qkv.weight", ".qkv.bias", ".proj.weight", ".proj.bias" */
    int64_t hidden;
    int64_t heads;
    int64_t kv_heads; /* 0: heads. Must divide heads; query head i reads kv head i / (heads / kv_heads) */
    int64_t head_dim; /* 0: hidden / heads, which must divide */
    tp_dtype dtype;
    bool bias;
    tp_attention_mask mask;
    int64_t window;    /* 0: none; else query i sees keys j with i - j < window (and j - i < window under
                        * TP_MASK_FULL) */
    double rope_theta; /* 0: no rotary embedding */
    int64_t rope_dim;  /* rotated part of a head; 0: all of it */
    float probability_dropout;
    float output_dropout;
    bool sequence_parallel;
    tp_overlap overlap; /* of collectives with GEMMs; the same bits with any */
    int chunks;         /* that a rank's tokens are cut into; 0: the algorithm's default */
    float init_std;      /* 0: 0.02 */
    float proj_init_std; /* 0: init_std */
    uint32_t layer;      /* tells layers' dropout masks apart; below 2^24 */
} tp_attention_desc;

typedef struct tp_attention_saved {
    void *memory;
    size_t bytes;
    tp_linear_saved qkv_input, proj_input;
    tp_tensor qkv;  /* [T, (heads + 2 kv heads) here * head_dim], rotated */
    tp_tensor core; /* [T, heads here * head_dim]: input of the projection */
    tp_tensor lse;  /* f32 [heads here, T] */
} tp_attention_saved;

typedef struct tp_attention_delayed {
    void *memory;
    size_t bytes;
    tp_linear_delayed proj, qkv;
    tp_tensor dqkv;
} tp_attention_delayed;

TP_BEGIN_DECLS

/* Errors: TP_ERR_ARGUMENT naming both numbers: heads not a multiple of kv_heads, hidden not a multiple of heads
 * (head_dim 0), heads < ranks, odd rope_dim or > head_dim, dropout outside [0, 1), init_std or proj_init_std that is
 * negative or NaN. TP_ERR_UNSUPPORTED: a head_dim above 256 on a GPU. */
TP_API tp_status tp_attention_create(tp_ctx *ctx, const tp_attention_desc *desc, tp_attention **out);
TP_API void tp_attention_destroy(tp_attention *layer);
TP_API int tp_attention_params(tp_attention *layer, tp_param **out, int capacity);

/* Computes    y = dropout(proj(softmax(q k^T / sqrt(head_dim) + mask) v)) + residual, each sequence of the pass for
 *             itself.
 * Shapes      x, y, residual [T, hidden]; this rank's tokens under sequence parallelism. A rank computes its query
 *             heads, tp_shard_range(heads, ranks, rank), and holds every kv head that these read.
 * Collectives those of the two linear layers (tp/linear.h). Backward: where neighbours share a kv head, one all-reduce
 *             of its partial dK, dV.
 * Saved       qkv, core, lse: tp_attention_saved_bytes. Until the last backward call.
 * Aliasing    io->out may be io->residual.
 * Errors      TP_ERR_SHAPE, TP_ERR_DTYPE before anything is changed, in backward also where saved or delayed is not
 *             what the calls before fill for this number of tokens; those of collectives. */
TP_API tp_status tp_attention_forward(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass, const tp_io *io,
                                      tp_attention_saved *saved);
TP_API tp_status tp_attention_backward_input(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass,
                                             const tp_io *io, const tp_attention_saved *saved,
                                             tp_attention_delayed *delayed);
TP_API tp_status tp_attention_backward_weight(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass,
                                              const tp_attention_saved *saved, const tp_attention_delayed *delayed);
TP_API tp_status tp_attention_backward(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass, const tp_io *io,
                                       const tp_attention_saved *saved);

TP_API size_t tp_attention_saved_bytes(const tp_attention *layer, const tp_pass *pass);
TP_API size_t tp_attention_delayed_bytes(const tp_attention *layer, const tp_pass *pass);

TP_END_DECLS
#endif
