/* Linear layers, norms and the feed-forward layer on GPUs: near the CPU, and the same bits on every layout. */
#include <criterion/criterion.h>

#include "cuda/layer_check.h"

static void check_linear(tp_linear_kind kind, tp_dtype dtype, int64_t tokens, unsigned number)
{
    static const char *const names[] = {"column", "row", "replicated"};
    tp_linear_desc desc = {.name = names[kind],
                           .kind = kind,
                           .in_features = 27,
                           .out_features = 22,
                           .dtype = dtype,
                           .bias = true,
                           .dropout = kind == TP_LINEAR_COLUMN ? 0 : 0.25f,
                           .site = 0x304};
    tpt_case c = {.name = desc.name,
                  .table = &tpt_linear_table,
                  .desc = &desc,
                  .cut = kind == TP_LINEAR_COLUMN ? TPT_CUT_OUTPUT
                         : kind == TP_LINEAR_ROW  ? TPT_CUT_INPUT
                                                  : TPT_CUT_NONE,
                  .dtype = dtype,
                  .in = desc.in_features,
                  .out = desc.out_features,
                  .pass = {.tokens = tokens, .step = 2, .first_token = 7},
                  .residual = kind == TP_LINEAR_ROW,
                  .sees_all_tokens = kind == TP_LINEAR_REPLICATED,
                  .microbatches = 2,
                  .seed = 31};
    tpt_gpus_check_layer(&c, 1, false, number);
}

Test(cuda_layers, column, .timeout = 100)
{
    check_linear(TP_LINEAR_COLUMN, TP_DTYPE_F32, 19, 0);
    check_linear(TP_LINEAR_COLUMN, TP_DTYPE_BF16, 19, 1);
    check_linear(TP_LINEAR_COLUMN, TP_DTYPE_F32, 3, 2);
}

Test(cuda_layers, row, .timeout = 100)
{
    check_linear(TP_LINEAR_ROW, TP_DTYPE_F32, 19, 3);
    check_linear(TP_LINEAR_ROW, TP_DTYPE_BF16, 19, 4);
    check_linear(TP_LINEAR_ROW, TP_DTYPE_BF16, 1, 5);
    check_linear(TP_LINEAR_ROW, TP_DTYPE_F32, 0, 6);
}

Test(cuda_layers, replicated, .timeout = 100)
{
    check_linear(TP_LINEAR_REPLICATED, TP_DTYPE_F32, 19, 7);
    check_linear(TP_LINEAR_REPLICATED, TP_DTYPE_BF16, 5, 8);
}

static void check_norm(tp_norm_kind kind, tp_dtype dtype, unsigned number)
{
    tp_norm_desc desc = {.name = kind == TP_NORM_RMS ? "rms" : "layer", .kind = kind, .features = 83, .dtype = dtype};
    tpt_case c = {.name = desc.name,
                  .table = &tpt_norm_table,
                  .desc = &desc,
                  .dtype = dtype,
                  .in = desc.features,
                  .out = desc.features,
                  .pass = {.tokens = 21},
                  .microbatches = 2,
                  .seed = 21};
    tpt_gpus_check_layer(&c, 2, true, number);
}

Test(cuda_layers, norm, .timeout = 100)
{
    check_norm(TP_NORM_LAYER, TP_DTYPE_F32, 0);
    check_norm(TP_NORM_LAYER, TP_DTYPE_BF16, 1);
    check_norm(TP_NORM_RMS, TP_DTYPE_F32, 2);
    check_norm(TP_NORM_RMS, TP_DTYPE_BF16, 3);
}

static void check_mlp(tp_activation activation, tp_dtype dtype)
{
    tp_mlp_desc desc = {.name = "mlp",
                        .hidden = 24,
                        .ffn = 35,
                        .activation = activation,
                        .dtype = dtype,
                        .bias = true,
                        .output_dropout = 0.25f,
                        .layer = 3};
    tpt_case c = {.name = "mlp",
                  .table = &tpt_mlp_table,
                  .desc = &desc,
                  .dtype = dtype,
                  .in = desc.hidden,
                  .out = desc.hidden,
                  .pass = {.tokens = 13, .step = 2, .first_token = 7},
                  .residual = true,
                  .seed = 31};
    tpt_gpus_check_layer(&c, 4, false, (unsigned)activation);
}

Test(cuda_layers, mlp_f32, .timeout = 100)
{
    for (int activation = 0; activation < TP_ACTIVATION_COUNT; activation++)
        check_mlp((tp_activation)activation, TP_DTYPE_F32);
}

Test(cuda_layers, mlp_bf16, .timeout = 100)
{
    for (int activation = 0; activation < TP_ACTIVATION_COUNT; activation++)
        check_mlp((tp_activation)activation, TP_DTYPE_BF16);
}
