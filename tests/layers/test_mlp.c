/* The feed-forward layer with every activation: double precision, finite differences, the same bits on every layout. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../support/data.h"
#include "../support/layer_tables.h"
#include "../support/reference.h"

static tpt_case mlp_case(const tp_mlp_desc *desc, int64_t tokens)
{
    return (tpt_case){.name = desc->name,
                      .table = &tpt_mlp_table,
                      .desc = desc,
                      .dtype = desc->dtype,
                      .in = desc->hidden,
                      .out = desc->hidden,
                      .pass = {.tokens = tokens, .step = 2, .first_token = 7},
                      .residual = true,
                      .residual_gradient = tokens % 2 == 1,
                      .seed = 31};
}

static bool gated(tp_activation activation)
{
    return activation == TP_ACTIVATION_SWIGLU || activation == TP_ACTIVATION_GEGLU;
}

static void reference(const tpt_case *c, const double *x, double *const *param, double *y)
{
    const tp_mlp_desc *desc = c->desc;
    int64_t tokens = c->pass.tokens, ffn = desc->ffn, width = gated(desc->activation) ? 2 * ffn : ffn;
    double *pre = tpt_allocate((size_t)(tokens * width) * sizeof(double)),
           *act = tpt_allocate((size_t)(tokens * ffn) * sizeof(double));
    tpt_ref_linear(x, tokens, desc->hidden, param[0], param[1], width, pre);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t f = 0; f < ffn; f++) {
            double value = tpt_ref_activation(desc->activation, pre[t * width + f]);
            act[t * ffn + f] = gated(desc->activation) ? value * pre[t * width + ffn + f] : value;
        }
    tpt_ref_linear(act, tokens, ffn, param[2], param[3], desc->hidden, y);
    free(pre), free(act);
}

static void check(tp_activation activation, tp_dtype dtype, int tp, bool sequence_parallel)
{
    tp_mlp_desc desc = {.name = "mlp", .hidden = 10, .ffn = 17, .activation = activation, .dtype = dtype, .bias = true};
    tpt_case c = mlp_case(&desc, 9);
    tpt_result result;
    tpt_case_run(&c, &(tpt_layout){.tp = tp, .threads = 1, .sequence_parallel = sequence_parallel}, &result);
    tpt_result_check(&c, &result, reference, 4);
    tpt_result_free(&result);
}

Test(mlp, every_activation_agrees_with_double_precision)
{
    for (int activation = 0; activation < TP_ACTIVATION_COUNT; activation++) {
        check((tp_activation)activation, TP_DTYPE_F32, 1, false);
        check((tp_activation)activation, TP_DTYPE_F32, 3, true);
        check((tp_activation)activation, TP_DTYPE_F32, 8, false);
    }
    check(TP_ACTIVATION_SWIGLU, TP_DTYPE_F32, 5, true);
    check(TP_ACTIVATION_GELU, TP_DTYPE_F32, 7, true);
}

Test(mlp, half_precision_agrees_with_double_precision)
{
    check(TP_ACTIVATION_GELU_TANH, TP_DTYPE_BF16, 2, true);
    check(TP_ACTIVATION_SWIGLU, TP_DTYPE_BF16, 4, false);
    check(TP_ACTIVATION_RELU2, TP_DTYPE_F16, 2, true);
}

Test(mlp, has_the_same_bits_on_every_layout, .timeout = 120)
{
    for (int activation = 0; activation < TP_ACTIVATION_COUNT; activation++) {
        tp_mlp_desc desc = {.name = "mlp",
                            .hidden = 40,
                            .ffn = 51,
                            .activation = (tp_activation)activation,
                            .dtype = activation % 2 ? TP_DTYPE_BF16 : TP_DTYPE_F32,
                            .bias = true,
                            .output_dropout = 0.25f,
                            .layer = 3};
        tpt_case c = mlp_case(&desc, 29);
        c.microbatches = 2;
        tpt_same_on_all_layouts(&c);
    }
}

/* O23: a shard of the fused gate/up matrix is [gate_r; up_r], and gathering gives back what was loaded. */
static tp_status fused_shards(tp_ctx *ctx, void *arg)
{
    enum { F = 128, H = 3 };
    (void)arg;
    tp_mlp_desc desc = {
        .name = "mlp", .hidden = H, .ffn = F, .activation = TP_ACTIVATION_SWIGLU, .dtype = TP_DTYPE_F32};
    tp_mlp *layer;
    if (tp_mlp_create(ctx, &desc, &layer) != TP_OK)
        return TP_ERR_INTERNAL;
    tp_param *params[4];
    tp_mlp_params(layer, params, 4);
    float full[2 * F * H], back[2 * F * H];
    for (int row = 0; row < 2 * F; row++)
        for (int h = 0; h < H; h++)
            full[row * H + h] = row < F ? (float)(1 + row) : (float)(1001 + row - F);
    tp_status status = tp_param_load(ctx, params[0], full, TP_DTYPE_F32, NULL);
    int ranks = tp_comm_size(tp_ctx_world(ctx)), rank = tp_ctx_rank(ctx);
    const float *shard = params[0]->value.data;
    bool right = params[0]->value.shape[0] == 2 * F / ranks;
    for (int row = 0; right && row < F / ranks; row++) {
        right = shard[row * H] == (float)(1 + rank * F / ranks + row);
        right = right && shard[(F / ranks + row) * H] == (float)(1001 + rank * F / ranks + row);
    }
    if (status == TP_OK)
        status = tp_param_gather(ctx, params[0], 0, back);
    right = right && memcmp(full, back, sizeof full) == 0;
    tp_mlp_destroy(layer);
    return status == TP_OK && !right ? TP_ERR_NUMERIC : status;
}

Test(mlp, gate_and_up_are_cut_separately)
{
    for (int tp = 1; tp <= 8; tp *= 2)
        cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = tp}, fused_shards, NULL), TP_OK, "tp %d: %s", tp,
                     tp_last_message());
}
