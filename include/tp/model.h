/* Decoder-only transformers of the GPT-2 and Llama families, composed of modules. */
#ifndef TP_MODEL_H
#define TP_MODEL_H

#include <tp/module.h>

typedef struct tp_model tp_model;

typedef enum tp_model_family {
    TP_MODEL_GPT2 = 0, /* learned positions, LayerNorm, biases, GELU (tanh form), tied head */
    TP_MODEL_LLAMA     /* RoPE, RMSNorm, SwiGLU, grouped queries, untied head */
} tp_model_family;

typedef struct tp_model_desc {
    tp_model_family family;
    int64_t layers, hidden, heads;
    int64_t kv_heads; /* 0: heads */
    int64_t head_dim; /* 0: hidden / heads */
    int64_t ffn;      /* 0: 4 * hidden (GPT-2); Llama has no default */
    int64_t vocabulary;
    int64_t positions; /* longest sequence */
    double rope_theta; /* Llama; 0: 10000 */
    float norm_epsilon; /* 0: 1e-5 */
    int tied;           /* 0: as the family; 1: tied; -1: untied */
    tp_activation activation; /* 0: as the family (tp_activation's 0 is GELU exact: set activation_set) */
    bool activation_set;
    float dropout;      /* embedding, attention probabilities, outputs */
    float label_smoothing, z_loss;
    tp_dtype dtype;
    bool sequence_parallel;
    tp_overlap overlap; /* of the blocks' and the head's collectives with GEMMs; the same bits with any */
    int chunks;         /* that a rank's tokens are cut into; 0: the algorithm's default */
} tp_model_desc;

/* The first module reads the pass's ids, the last is the head. Activations between modules are [tokens here, features]
 * of one dtype, and have this rank's tokens only under sequence parallelism. */
typedef struct tp_compose_desc {
    const tp_module *modules;
    int count;
    tp_dtype dtype;
    bool sequence_parallel;
    float *total; /* the f32 [2] that the head adds to; borrowed */
} tp_compose_desc;

TP_BEGIN_DECLS

/* Published shapes by name ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "llama3-8b", "llama3-70b", "llama2-7b",
 * ...). TP_ERR_ARGUMENT with the nearest name if unknown. dtype is left for the caller. */
TP_API tp_status tp_model_preset(const char *name, tp_model_desc *out);
/* Name of preset `index`, NULL past the last. */
TP_API const char *tp_model_preset_name(int index);

/* Checks a description for a mesh without allocating anything: heads % kv_heads, hidden % heads, heads < tp, ... with
 * field and both numbers. */
TP_API tp_status tp_model_check(const tp_model_desc *desc, int tp);

/* Parameters are not initialised: tp_params_init or tp_param_load. */
TP_API tp_status tp_model_create(tp_ctx *ctx, const tp_model_desc *desc, tp_model **out);
/* A model of the caller's own modules, which it takes over (also on failure). */
TP_API tp_status tp_model_compose(tp_ctx *ctx, const tp_compose_desc *desc, tp_model **out);
TP_API void tp_model_destroy(tp_model *model);

/* All parameters, in order; the array belongs to the model. */
TP_API tp_param *const *tp_model_params(const tp_model *model, int *count);
TP_API tp_param *tp_model_param(const tp_model *model, const char *name);
TP_API const tp_module *tp_model_modules(const tp_model *model, int *count);

/* Forward over all modules, saving what backward needs in `saved` (tp_model_saved_bytes, 64-byte aligned; NULL: loss
 * only). loss[0] += sum over tokens, loss[1] += valid tokens: read them with tp_model_loss. */
TP_API tp_status tp_model_forward(tp_ctx *ctx, tp_model *model, const tp_pass *pass, void *saved);
TP_API tp_status tp_model_backward(tp_ctx *ctx, tp_model *model, const tp_pass *pass, void *saved);
TP_API size_t tp_model_saved_bytes(const tp_model *model, const tp_pass *pass);

/* Waits, reads the accumulated sum of losses and the number of tokens, and sets them to zero. */
TP_API tp_status tp_model_loss(tp_ctx *ctx, tp_model *model, double *sum, double *tokens);

/* Logits of the last forward with saved != NULL, before backward: this rank's columns [T, vocabulary here], rows
 * stride[0] elements apart. */
TP_API tp_status tp_model_logits(const tp_model *model, const void *saved, const tp_pass *pass, tp_tensor *out);

/* Floating-point operations of forward plus backward for `tokens` tokens in sequences of `sequence` (matrix products;
 * attention halved, because it is causal; recompute not counted), and the number of parameters. Pure functions; numbers
 * of the whole model, not of a rank. */
TP_API double tp_model_flops(const tp_model_desc *desc, int64_t tokens, int64_t sequence);
TP_API int64_t tp_model_parameters(const tp_model_desc *desc);

TP_END_DECLS
#endif
