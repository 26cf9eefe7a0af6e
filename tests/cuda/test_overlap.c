/* Every overlap algorithm on GPUs gives the bits of one rank without any: forward and backward, two and four ranks, on
 * one device and on several. */
#include <criterion/criterion.h>
#include <stdio.h>

#include <tp/auto.h>

#include "cuda/gpus.h"
#include "cuda/layer_check.h"

/* A machine with a link worth hiding, so that more than `none` is chosen. */
static const tp_machine slow_link = {
    .device = TP_DEVICE_CUDA,
    .gemm = {[TP_DTYPE_F32] = {.points = 1, .rows = {64}, .flops = {1e9}}},
    .copy_bytes_per_second = 1e10,
    .reduce_bytes_per_second = 1e10,
    .link = {.bytes_per_second = 5e7},
};

static void compare(const tpt_case *c, const tpt_result *one, const tpt_layout *layout, unsigned number)
{
    char name[160];
    snprintf(name, sizeof name, "%s: %s with %d chunks, %d ranks on %d devices, sequence parallelism %s", c->name,
             tp_overlap_name(layout->overlap), layout->chunks, layout->tp, layout->devices,
             layout->sequence_parallel ? "on" : "off");
    tpt_result other;
    tpt_gpus_turn(number);
    tpt_case_run(c, layout, &other);
    tpt_gpus_clean(name);
    cr_assert(tpt_result_same(c, name, one, &other), "%s differs from one rank", name);
    tpt_result_free(&other);
}

static void same_with_every_algorithm(const tpt_case *c)
{
    static const tpt_layout layouts[] = {
        {.tp = 2, .devices = 1, .sequence_parallel = true, .chunks = 2},
        {.tp = 2, .devices = 2, .chunks = 3, .split_backward = true},
        {.tp = 4, .devices = 4, .sequence_parallel = true, .chunks = 2, .split_backward = true},
        {.tp = 4, .devices = 2, .chunks = 1},
    };
    tpt_result one;
    tpt_layout layout = tpt_gpus_layout((tpt_layout){.tp = 1});
    unsigned number = 0;
    tpt_gpus_turn(0);
    tpt_case_run(c, &layout, &one);
    for (int overlap = TP_OVERLAP_NONE; overlap < TP_OVERLAP_COUNT; overlap++)
        for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
            layout = tpt_gpus_layout(layouts[i]);
            layout.overlap = (tp_overlap)overlap;
            layout.machine = overlap == TP_OVERLAP_AUTO ? &slow_link : NULL;
            compare(c, &one, &layout, number++);
        }
    tpt_result_free(&one);
}

static void check_linear(tp_linear_kind kind, tp_dtype dtype, int64_t tokens)
{
    tp_linear_desc desc = {.name = kind == TP_LINEAR_ROW ? "row" : "column",
                           .kind = kind,
                           .in_features = 21,
                           .out_features = 24,
                           .dtype = dtype,
                           .bias = true,
                           .dropout = kind == TP_LINEAR_ROW ? 0.25f : 0,
                           .site = 3};
    tpt_case c = {.name = desc.name,
                  .table = &tpt_linear_table,
                  .desc = &desc,
                  .dtype = dtype,
                  .cut = kind == TP_LINEAR_COLUMN ? TPT_CUT_OUTPUT : TPT_CUT_INPUT,
                  .in = desc.in_features,
                  .out = desc.out_features,
                  .pass = {.tokens = tokens, .step = 2, .first_token = 7},
                  .residual = kind == TP_LINEAR_ROW,
                  .seed = 31};
    same_with_every_algorithm(&c);
}

Test(cuda_overlap, column, .timeout = 100)
{
    check_linear(TP_LINEAR_COLUMN, TP_DTYPE_F32, 19);
    check_linear(TP_LINEAR_COLUMN, TP_DTYPE_BF16, 5);
}

Test(cuda_overlap, row, .timeout = 100)
{
    check_linear(TP_LINEAR_ROW, TP_DTYPE_BF16, 19);
    check_linear(TP_LINEAR_ROW, TP_DTYPE_F32, 5);
}

static tpt_case wide_case(const char *name, const tpt_layer_table *table, const void *desc, tp_dtype dtype,
                          int64_t tokens)
{
    return (tpt_case){.name = name,
                      .table = table,
                      .desc = desc,
                      .dtype = dtype,
                      .in = 24,
                      .out = 24,
                      .pass = {.tokens = tokens, .step = 2, .first_token = 7},
                      .residual = true,
                      .seed = 31};
}

Test(cuda_overlap, mlp, .timeout = 100)
{
    tp_mlp_desc desc = {.name = "mlp",
                        .hidden = 24,
                        .ffn = 35,
                        .activation = TP_ACTIVATION_SWIGLU,
                        .dtype = TP_DTYPE_BF16,
                        .bias = true,
                        .output_dropout = 0.25f};
    tpt_case c = wide_case("mlp", &tpt_mlp_table, &desc, desc.dtype, 13);
    same_with_every_algorithm(&c);
}

Test(cuda_overlap, attention, .timeout = 100)
{
    tp_attention_desc desc = {.name = "attention",
                              .hidden = 24,
                              .heads = 8,
                              .kv_heads = 2,
                              .head_dim = 4,
                              .dtype = TP_DTYPE_F32,
                              .bias = true,
                              .rope_theta = 10000,
                              .output_dropout = 0.1f};
    tpt_case c = wide_case("attention", &tpt_attention_table, &desc, desc.dtype, 11);
    same_with_every_algorithm(&c);
}

Test(cuda_overlap, block, .timeout = 100)
{
    tp_block_desc desc = {.name = "block",
                          .hidden = 24,
                          .dtype = TP_DTYPE_BF16,
                          .layer = 1,
                          .norm = TP_NORM_RMS,
                          .attention = {.heads = 4, .bias = true, .rope_theta = 10000},
                          .mlp = {.ffn = 40, .activation = TP_ACTIVATION_SWIGLU, .bias = true, .output_dropout = 0.1f}};
    tpt_case c = wide_case("block", &tpt_block_table, &desc, desc.dtype, 9);
    same_with_every_algorithm(&c);
}
