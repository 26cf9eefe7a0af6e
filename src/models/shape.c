/* Checks, sizes and costs of a description. */
#include "models/shape.h"

#include <inttypes.h>
#include <math.h>

#include "core/context.h"
#include "layers/layer.h"
#include "layers/pass_check.h"

bool tpi_model_tied(const tp_model_desc *desc)
{
    return desc->tied != 0 ? desc->tied > 0 : desc->family == TP_MODEL_GPT2;
}

static tp_activation activation_of(const tp_model_desc *desc)
{
    if (desc->activation_set || desc->activation != TP_ACTIVATION_GELU)
        return desc->activation;
    return desc->family == TP_MODEL_GPT2 ? TP_ACTIVATION_GELU_TANH : TP_ACTIVATION_SWIGLU;
}

bool tpi_model_gated(const tp_model_desc *desc)
{
    tp_activation activation = activation_of(desc);
    return activation == TP_ACTIVATION_SWIGLU || activation == TP_ACTIVATION_GEGLU;
}

tp_model_desc tpi_model_resolve(const tp_model_desc *desc)
{
    tp_model_desc out = *desc;
    out.kv_heads = desc->kv_heads != 0 ? desc->kv_heads : desc->heads;
    out.head_dim = desc->head_dim != 0 || desc->heads == 0 ? desc->head_dim : desc->hidden / desc->heads;
    out.ffn = desc->ffn != 0 || desc->family != TP_MODEL_GPT2 ? desc->ffn : 4 * desc->hidden;
    out.rope_theta = desc->family == TP_MODEL_GPT2 ? 0.0 : desc->rope_theta != 0.0 ? desc->rope_theta : 10000.0;
    out.norm_epsilon = desc->norm_epsilon != 0.0f ? desc->norm_epsilon : 1e-5f;
    out.tied = tpi_model_tied(desc) ? 1 : -1;
    out.activation = activation_of(desc);
    out.activation_set = true;
    return out;
}

static tp_status check_count(tp_ctx *ctx, const char *field, int64_t value, int64_t low, int64_t high)
{
    if (value >= low && value <= high)
        return TP_OK;
    return tpi_refuse(ctx, TP_ERR_ARGUMENT, "model: %s is %" PRId64 ", must be in [%" PRId64 ", %" PRId64 "]", field,
                      value, low, high);
}

static tp_status check_sizes(tp_ctx *ctx, const tp_model_desc *desc)
{
    static const int64_t most = INT32_MAX;
    TPI_TRY(check_count(ctx, "family", (int64_t)desc->family, TP_MODEL_GPT2, TP_MODEL_LLAMA));
    TPI_TRY(check_count(ctx, "layers", desc->layers, 1, 1 << 20));
    TPI_TRY(check_count(ctx, "hidden", desc->hidden, 1, most));
    TPI_TRY(check_count(ctx, "heads", desc->heads, 1, most));
    TPI_TRY(check_count(ctx, "kv_heads", desc->kv_heads, 0, desc->heads));
    TPI_TRY(check_count(ctx, "head_dim", desc->head_dim, 0, most));
    TPI_TRY(check_count(ctx, "ffn", desc->ffn, desc->family == TP_MODEL_GPT2 ? 0 : 1, most));
    TPI_TRY(check_count(ctx, "vocabulary", desc->vocabulary, 1, most));
    TPI_TRY(check_count(ctx, "positions", desc->positions, 1, most));
    TPI_TRY(check_count(ctx, "tied", desc->tied, -1, 1));
    return check_count(ctx, "activation", (int64_t)desc->activation, 0, TP_ACTIVATION_COUNT - 1);
}

static tp_status check_reals(tp_ctx *ctx, const tp_model_desc *desc)
{
    TPI_TRY(tpi_layer_check_real(ctx, "model: dropout", desc->dropout, 0.0, 1.0));
    TPI_TRY(tpi_layer_check_real(ctx, "model: label_smoothing", desc->label_smoothing, 0.0, 1.0));
    TPI_TRY(tpi_layer_check_real(ctx, "model: z_loss", desc->z_loss, 0.0, INFINITY));
    TPI_TRY(tpi_layer_check_real(ctx, "model: norm_epsilon", desc->norm_epsilon, 0.0, INFINITY));
    return tpi_layer_check_real(ctx, "model: rope_theta", desc->rope_theta, 0.0, INFINITY);
}

static tp_status check_division(tp_ctx *ctx, const tp_model_desc *desc)
{
    if (desc->kv_heads != 0 && desc->heads % desc->kv_heads != 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "model: heads %" PRId64 " is no multiple of kv_heads %" PRId64,
                          desc->heads, desc->kv_heads);
    if (desc->head_dim == 0 && desc->hidden % desc->heads != 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "model: hidden %" PRId64 " is no multiple of heads %" PRId64,
                          desc->hidden, desc->heads);
    int64_t head_dim = tpi_model_resolve(desc).head_dim;
    if (desc->family == TP_MODEL_LLAMA && head_dim % 2 != 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT,
                          "model: head_dim %" PRId64 " is no multiple of 2, which RoPE rotates together", head_dim);
    return TP_OK;
}

static tp_status check_share(tp_ctx *ctx, const char *field, int64_t value, int tp)
{
    if (value >= tp)
        return TP_OK;
    return tpi_refuse(ctx, TP_ERR_ARGUMENT, "model: %s %" PRId64 " is less than the %d tensor-parallel ranks", field,
                      value, tp);
}

tp_status tpi_model_check(tp_ctx *ctx, const tp_model_desc *desc, int tp)
{
    TPI_TRY(tpi_given(ctx, "model: desc", desc));
    if (tp < 1)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "model: %d tensor-parallel ranks, at least 1 is needed", tp);
    TPI_TRY(check_sizes(ctx, desc));
    TPI_TRY(check_reals(ctx, desc));
    TPI_TRY(check_division(ctx, desc));
    TPI_TRY(tpi_layer_check_dtype(ctx, "model", desc->dtype));
    TPI_TRY(tpi_layer_check_overlap(ctx, "model", desc->overlap, desc->chunks));
    tp_model_desc full = tpi_model_resolve(desc);
    TPI_TRY(check_share(ctx, "heads", full.heads, tp));
    TPI_TRY(check_share(ctx, "ffn", full.ffn, tp));
    return check_share(ctx, "vocabulary", full.vocabulary, tp);
}

tp_status tp_model_check(const tp_model_desc *desc, int tp)
{
    return tpi_model_check(NULL, desc, tp);
}

/* Weights of one block's matrices. */
static int64_t block_weights(const tp_model_desc *full)
{
    int64_t qkv = (full->heads + 2 * full->kv_heads) * full->head_dim * full->hidden;
    int64_t proj = full->heads * full->head_dim * full->hidden;
    int64_t mlp = (tpi_model_gated(full) ? 3 : 2) * full->ffn * full->hidden;
    return qkv + proj + mlp;
}

static int64_t block_biases(const tp_model_desc *full)
{
    if (full->family != TP_MODEL_GPT2)
        return 0;
    int64_t qkv = (full->heads + 2 * full->kv_heads) * full->head_dim;
    int64_t up = (tpi_model_gated(full) ? 2 : 1) * full->ffn;
    return qkv + full->hidden + up + full->hidden;
}

int64_t tp_model_parameters(const tp_model_desc *desc)
{
    tp_model_desc full = tpi_model_resolve(desc);
    bool gpt2 = full.family == TP_MODEL_GPT2;
    int64_t norm = gpt2 ? 2 * full.hidden : full.hidden;
    int64_t tables = (full.vocabulary + (gpt2 ? full.positions : 0)) * full.hidden;
    int64_t head = tpi_model_tied(&full) ? 0 : full.vocabulary * full.hidden;
    return tables + full.layers * (block_weights(&full) + block_biases(&full) + 2 * norm) + norm + head;
}

double tp_model_flops(const tp_model_desc *desc, int64_t tokens, int64_t sequence)
{
    tp_model_desc full = tpi_model_resolve(desc);
    double layers = (double)full.layers;
    double weights = layers * (double)block_weights(&full) + (double)full.vocabulary * (double)full.hidden;
    /* Scores and their product with the values: two multiply-adds for each of the keys seen, half of the sequence on
     * average. */
    double attention = layers * 4.0 * (double)full.heads * (double)full.head_dim * (double)sequence / 2.0;
    return 3.0 * (double)tokens * (2.0 * weights + attention);
}
