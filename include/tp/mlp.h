/* The feed-forward layer: up projection (column) -> activation -> down projection (row). */
#ifndef TP_MLP_H
#define TP_MLP_H

#include <tp/linear.h>

typedef struct tp_mlp tp_mlp;

typedef enum tp_activation {
    TP_ACTIVATION_GELU = 0,  /* exact, by erf */
    TP_ACTIVATION_GELU_TANH, /* the tanh form of GPT-2 */
    TP_ACTIVATION_RELU,
    TP_ACTIVATION_RELU2, /* squared ReLU (So et al. 2021) */
    TP_ACTIVATION_SWIGLU, /* silu(gate) * up (Shazeer 2020) */
    TP_ACTIVATION_GEGLU,  /* gelu(gate) * up */
    TP_ACTIVATION_COUNT
} tp_activation;

typedef struct tp_mlp_desc {
    const char *name; /* "<name>.up.weight" (gated: [gate; up]), ".up.bias", ".down.weight", ".down.bias" */
    int64_t hidden;
    int64_t ffn; /* width after the activation */
    tp_activation activation;
    tp_dtype dtype;
    bool bias;
    float output_dropout;
    bool sequence_parallel;
    tp_overlap overlap; /* of collectives with GEMMs; the same bits with any */
    int chunks;         /* that a rank's tokens are cut into; 0: the algorithm's default */
    float init_std;      /* 0: 0.02 */
    float down_init_std; /* 0: init_std */
    uint32_t layer; /* as in attention */
} tp_mlp_desc;

typedef struct tp_mlp_saved {
    void *memory;
    size_t bytes;
    tp_linear_saved up_input, down_input;
    tp_tensor pre; /* [T, ffn here], gated [T, 2 ffn here]: before the activation */
    tp_tensor act; /* [T, ffn here]: input of the down projection */
} tp_mlp_saved;

typedef struct tp_mlp_delayed {
    void *memory;
    size_t bytes;
    tp_linear_delayed down, up;
    tp_tensor dpre;
} tp_mlp_delayed;

TP_BEGIN_DECLS

/* Errors: TP_ERR_ARGUMENT naming both numbers: sizes < 1, ffn < ranks, unknown activation, dropout outside [0, 1), an
 * init_std or down_init_std that is negative or NaN. */
TP_API tp_status tp_mlp_create(tp_ctx *ctx, const tp_mlp_desc *desc, tp_mlp **out);
TP_API void tp_mlp_destroy(tp_mlp *layer);
TP_API int tp_mlp_params(tp_mlp *layer, tp_param **out, int capacity);

/* Computes    y = dropout(down(act(up(x)))) + residual.
 * Shapes      x, y, residual [T, hidden]; this rank's tokens under sequence parallelism. ffn is dealt out by
 *             tp_shard_range.
 * Collectives those of the two linear layers (tp/linear.h).
 * Saved       pre-activation and activation: tp_mlp_saved_bytes. Until the last backward call.
 * Aliasing    io->out may be io->residual.
 * Errors      TP_ERR_SHAPE, TP_ERR_DTYPE before anything is changed, in backward also where saved or delayed is not
 *             what the calls before fill for this number of tokens; those of collectives. */
TP_API tp_status tp_mlp_forward(tp_ctx *ctx, const tp_mlp *layer, const tp_pass *pass, const tp_io *io,
                                tp_mlp_saved *saved);
TP_API tp_status tp_mlp_backward_input(tp_ctx *ctx, const tp_mlp *layer, const tp_pass *pass, const tp_io *io,
                                       const tp_mlp_saved *saved, tp_mlp_delayed *delayed);
TP_API tp_status tp_mlp_backward_weight(tp_ctx *ctx, const tp_mlp *layer, const tp_pass *pass,
                                        const tp_mlp_saved *saved, const tp_mlp_delayed *delayed);
TP_API tp_status tp_mlp_backward(tp_ctx *ctx, const tp_mlp *layer, const tp_pass *pass, const tp_io *io,
                                 const tp_mlp_saved *saved);

TP_API size_t tp_mlp_saved_bytes(const tp_mlp *layer, const tp_pass *pass);
TP_API size_t tp_mlp_delayed_bytes(const tp_mlp *layer, const tp_pass *pass);

TP_END_DECLS
#endif
