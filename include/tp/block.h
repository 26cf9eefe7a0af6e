/* A transformer block: attention and feed-forward, each with a norm, dropout and a residual connection. */
#ifndef TP_BLOCK_H
#define TP_BLOCK_H

#include <tp/attention.h>
#include <tp/mlp.h>
#include <tp/norm.h>

typedef struct tp_block tp_block;

typedef enum tp_norm_place {
    TP_NORM_PRE = 0, /* h = x + attention(norm(x)); y = h + mlp(norm(h)) */
    TP_NORM_POST     /* h = norm(x + attention(x)); y = norm(h + mlp(h)) */
} tp_norm_place;

/* hidden, dtype, sequence_parallel, overlap, chunks and layer of the parts come from here; what is set in them must
 * agree or be 0. */
typedef struct tp_block_desc {
    const char *name; /* "<name>.norm1.…", ".attention.…", ".norm2.…", ".mlp.…" */
    int64_t hidden;
    tp_dtype dtype;
    bool sequence_parallel;
    tp_overlap overlap; /* of collectives with GEMMs; the same bits with any */
    int chunks;         /* that a rank's tokens are cut into; 0: the algorithm's default */
    uint32_t layer;
    tp_norm_place place;
    tp_norm_kind norm;
    float norm_epsilon;
    tp_attention_desc attention;
    tp_mlp_desc mlp;
} tp_block_desc;

typedef struct tp_block_saved {
    void *memory;
    size_t bytes;
    tp_norm_saved norm1, norm2;
    tp_attention_saved attention;
    tp_mlp_saved mlp;
    tp_tensor norm1_out, middle, norm2_out; /* [tokens here, hidden] each */
} tp_block_saved;

typedef struct tp_block_delayed {
    void *memory;
    size_t bytes;
    tp_norm_delayed norm1, norm2;
    tp_attention_delayed attention;
    tp_mlp_delayed mlp;
    tp_tensor gradient[4]; /* gradients between the parts that weight gradients read */
} tp_block_delayed;

TP_BEGIN_DECLS

TP_API tp_status tp_block_create(tp_ctx *ctx, const tp_block_desc *desc, tp_block **out);
TP_API void tp_block_destroy(tp_block *layer);
TP_API int tp_block_params(tp_block *layer, tp_param **out, int capacity);

/* Computes    see tp_norm_place.
 * Shapes      x, y [tokens here, hidden]; this rank's tokens under sequence parallelism.
 * Collectives those of attention and mlp: two forward, two backward.
 * Saved       tp_block_saved_bytes. x must stay too. Until the last backward call.
 * Aliasing    none; io->residual is not used.
 * Errors      TP_ERR_SHAPE, TP_ERR_DTYPE; those of collectives. */
TP_API tp_status tp_block_forward(tp_ctx *ctx, const tp_block *layer, const tp_pass *pass, const tp_io *io,
                                  tp_block_saved *saved);
TP_API tp_status tp_block_backward_input(tp_ctx *ctx, const tp_block *layer, const tp_pass *pass, const tp_io *io,
                                         const tp_block_saved *saved, tp_block_delayed *delayed);
TP_API tp_status tp_block_backward_weight(tp_ctx *ctx, const tp_block *layer, const tp_pass *pass,
                                          const tp_block_saved *saved, const tp_block_delayed *delayed);
TP_API tp_status tp_block_backward(tp_ctx *ctx, const tp_block *layer, const tp_pass *pass, const tp_io *io,
                                   const tp_block_saved *saved);

TP_API size_t tp_block_saved_bytes(const tp_block *layer, const tp_pass *pass);
TP_API size_t tp_block_delayed_bytes(const tp_block *layer, const tp_pass *pass);

TP_END_DECLS
#endif
