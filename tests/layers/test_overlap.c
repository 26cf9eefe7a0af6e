/* Every overlap algorithm gives the bits of one rank without any: linear layers, MLP, attention and block, forward and
 * backward. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tp/auto.h>

#include "../support/data.h"
#include "../support/layer_tables.h"
#include "core/context.h"

#ifdef TPT_SANITIZED
static const int64_t token_counts[] = {37, 1, 0};
#else
static const int64_t token_counts[] = {37, 5, 1, 0, 64};
#endif

static tpt_case linear_case(const tp_linear_desc *desc, int64_t tokens)
{
    return (tpt_case){.name = desc->name,
                      .table = &tpt_linear_table,
                      .desc = desc,
                      .dtype = desc->dtype,
                      .cut = desc->kind == TP_LINEAR_COLUMN ? TPT_CUT_OUTPUT : TPT_CUT_INPUT,
                      .in = desc->in_features,
                      .out = desc->out_features,
                      .pass = {.tokens = tokens, .step = 2, .first_token = 7},
                      .residual = desc->kind == TP_LINEAR_ROW,
                      .residual_gradient = tokens % 2 == 1,
                      .microbatches = 2,
                      .seed = 31};
}

static void compare(const tpt_case *c, const tpt_result *one, const tpt_layout *layout)
{
    char name[128];
    snprintf(name, sizeof name, "%s with %d chunks on %d ranks, sequence parallelism %s, %lld tokens, gradients %s",
             tp_overlap_name(layout->overlap), layout->chunks, layout->tp, layout->sequence_parallel ? "on" : "off",
             (long long)c->pass.tokens, layout->begin ? "begun" : "cleared");
    tpt_result other;
    tpt_case_run(c, layout, &other);
    cr_assert(tpt_result_same(c, name, one, &other), "%s: %s differs from one rank", c->name, name);
    tpt_result_free(&other);
}

/* All algorithms on a few layouts: every rank count, chunks and mode comes up. */
static void same_with_every_algorithm(const tpt_case *c)
{
    static const tpt_layout layouts[] = {
        {.tp = 2, .sequence_parallel = true, .chunks = 1},
        {.tp = 2, .chunks = 3, .split_backward = true},
        {.tp = 4, .sequence_parallel = true, .chunks = 2, .split_backward = true},
        {.tp = 4, .chunks = 5, .lane_delay_seed = 11},
        {.tp = 8, .sequence_parallel = true, .chunks = 3, .lane_delay_seed = 5},
        {.tp = 8, .chunks = 2},
        {.tp = 4, .sequence_parallel = true, .chunks = 2, .lane_delay_seed = 3, .issue_ahead = true},
        {.tp = 8, .chunks = 1, .lane_delay_seed = 17, .issue_ahead = true},
    };
    tpt_result one;
    tpt_case_run(c, &(tpt_layout){.tp = 1, .threads = 1}, &one);
    for (int overlap = TP_OVERLAP_NONE; overlap < TP_OVERLAP_AUTO; overlap++)
        for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
            tpt_layout layout = layouts[i];
            layout.threads = 1;
            layout.overlap = (tp_overlap)overlap;
            layout.begin = ((size_t)overlap + i) % 2 == 0;
            layout.pulling = TPI_PULL_ON_LANE; /* and in one lane, whatever the machine's cores */
            compare(c, &one, &layout);
            layout.pulling = TPI_PULL_INLINE;
            if (overlap == TP_OVERLAP_PULL && layout.lane_delay_seed == 0)
                compare(c, &one, &layout);
            layout.apart = layout.issue_ahead && overlap == TP_OVERLAP_RING;
            if (layout.apart)
                compare(c, &one, &layout);
        }
    tpt_result_free(&one);
}

static void every_token_count(const tp_linear_desc *desc)
{
    for (size_t i = 0; i < sizeof token_counts / sizeof token_counts[0]; i++) {
        tpt_case c = linear_case(desc, token_counts[i]);
        same_with_every_algorithm(&c);
    }
}

Test(overlap, column_f32, .timeout = 120)
{
    every_token_count(&(tp_linear_desc){.name = "column",
                                        .kind = TP_LINEAR_COLUMN,
                                        .in_features = 24,
                                        .out_features = 20,
                                        .dtype = TP_DTYPE_F32,
                                        .bias = true});
}

Test(overlap, column_bf16, .timeout = 120)
{
    every_token_count(&(tp_linear_desc){.name = "column",
                                        .kind = TP_LINEAR_COLUMN,
                                        .in_features = 19,
                                        .out_features = 23,
                                        .dtype = TP_DTYPE_BF16,
                                        .bias = true});
}

Test(overlap, row_f32, .timeout = 120)
{
    every_token_count(&(tp_linear_desc){.name = "row",
                                        .kind = TP_LINEAR_ROW,
                                        .in_features = 21,
                                        .out_features = 24,
                                        .dtype = TP_DTYPE_F32,
                                        .bias = true,
                                        .dropout = 0.25f,
                                        .site = 3});
}

Test(overlap, row_bf16, .timeout = 120)
{
    every_token_count(&(tp_linear_desc){.name = "row",
                                        .kind = TP_LINEAR_ROW,
                                        .in_features = 33,
                                        .out_features = 18,
                                        .dtype = TP_DTYPE_BF16,
                                        .bias = true});
}

/* Where the number of ranks doesn't divide eight the bits are those of the same ranks without overlap. */
Test(overlap, odd_numbers_of_ranks, .timeout = 120)
{
    for (int i = 0; i < 8; i++) {
        tp_linear_desc desc = {.name = i % 2 ? "row" : "column",
                               .kind = i % 2 ? TP_LINEAR_ROW : TP_LINEAR_COLUMN,
                               .in_features = 21,
                               .out_features = 24,
                               .dtype = i % 3 ? TP_DTYPE_F32 : TP_DTYPE_BF16,
                               .bias = true};
        tpt_case c = linear_case(&desc, 37);
        tpt_layout layout = {.tp = i < 4 ? 3 : 5, .threads = 1, .sequence_parallel = i / 2 % 2, .chunks = 2};
        tpt_result none;
        tpt_case_run(&c, &layout, &none);
        for (int overlap = TP_OVERLAP_BULK; overlap < TP_OVERLAP_AUTO; overlap++) {
            layout.overlap = (tp_overlap)overlap;
            compare(&c, &none, &layout);
        }
        tpt_result_free(&none);
    }
}

static tpt_case wide_case(const char *name, const tpt_layer_table *table, const void *desc, tp_dtype dtype,
                          int64_t hidden, int64_t tokens)
{
    return (tpt_case){.name = name,
                      .table = table,
                      .desc = desc,
                      .dtype = dtype,
                      .in = hidden,
                      .out = hidden,
                      .pass = {.tokens = tokens, .step = 2, .first_token = 7},
                      .residual = true,
                      .residual_gradient = tokens % 2 == 1,
                      .seed = 31};
}

Test(overlap, mlp, .timeout = 120)
{
    for (int i = 0; i < 4; i++) {
        tp_mlp_desc desc = {.name = "mlp",
                            .hidden = 24,
                            .ffn = 35,
                            .activation = i % 2 ? TP_ACTIVATION_SWIGLU : TP_ACTIVATION_GELU,
                            .dtype = i / 2 ? TP_DTYPE_BF16 : TP_DTYPE_F32,
                            .bias = true,
                            .output_dropout = 0.25f,
                            .layer = 3};
        for (size_t t = 0; t < sizeof token_counts / sizeof token_counts[0]; t += i % 2 ? 2 : 1) {
            tpt_case c = wide_case("mlp", &tpt_mlp_table, &desc, desc.dtype, desc.hidden, token_counts[t]);
            same_with_every_algorithm(&c);
        }
    }
}

Test(overlap, attention, .timeout = 120)
{
    for (int i = 0; i < 2; i++) {
        tp_attention_desc desc = {.name = "attention",
                                  .hidden = 32,
                                  .heads = 8,
                                  .kv_heads = i ? 2 : 8,
                                  .dtype = i ? TP_DTYPE_BF16 : TP_DTYPE_F32,
                                  .bias = true,
                                  .rope_theta = i ? 10000 : 0,
                                  .output_dropout = 0.1f,
                                  .layer = 2};
        for (size_t t = 0; t < sizeof token_counts / sizeof token_counts[0]; t += 1) {
            tpt_case c = wide_case("attention", &tpt_attention_table, &desc, desc.dtype, desc.hidden, token_counts[t]);
            same_with_every_algorithm(&c);
        }
    }
}

Test(overlap, block, .timeout = 120)
{
    for (int i = 0; i < 2; i++) {
        tp_block_desc desc = {
            .name = "block",
            .hidden = 32,
            .dtype = i ? TP_DTYPE_BF16 : TP_DTYPE_F32,
            .layer = 1,
            .place = i ? TP_NORM_POST : TP_NORM_PRE,
            .norm = i ? TP_NORM_RMS : TP_NORM_LAYER,
            .attention = {.heads = 8, .bias = true, .rope_theta = 10000},
            .mlp = {.ffn = 40, .activation = TP_ACTIVATION_SWIGLU, .bias = true, .output_dropout = 0.1f}};
        tpt_case c = wide_case("block", &tpt_block_table, &desc, desc.dtype, desc.hidden, 37);
        same_with_every_algorithm(&c);
    }
}

/* Frozen weights have no gradients, and nobody may want dx: what is left has the same bits, and nothing else is
 * written. */
static void same_with_less(const tpt_case *c, int linears)
{
    static const tpt_layout layouts[] = {{.tp = 2, .sequence_parallel = true, .chunks = 2}, {.tp = 4, .chunks = 1}};
    for (unsigned frozen = 0; frozen < 1u << linears; frozen++)
        for (int without_dx = frozen == 0; without_dx < 2; without_dx++) {
            tpt_result one;
            tpt_case_run(c, &(tpt_layout){.tp = 1, .threads = 1, .frozen = frozen, .without_dx = without_dx}, &one);
            for (int overlap = TP_OVERLAP_NONE; overlap < TP_OVERLAP_AUTO; overlap++)
                for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
                    tpt_layout layout = layouts[i];
                    layout.threads = 1;
                    layout.overlap = (tp_overlap)overlap;
                    layout.frozen = frozen;
                    layout.without_dx = without_dx;
                    compare(c, &one, &layout);
                }
            tpt_result_free(&one);
        }
}

/* Biases learn beside frozen weights, by the same bits. */
static void same_biases(const tpt_case *c, int linears)
{
    static const tpt_layout layouts[] = {{.tp = 1},
                                         {.tp = 2, .sequence_parallel = true, .chunks = 2, .without_dx = true},
                                         {.tp = 2, .sequence_parallel = true, .chunks = 2, .split_backward = true},
                                         {.tp = 4, .chunks = 1, .begin = true}};
    tpt_result all, some;
    tpt_case_run(c, &(tpt_layout){.tp = 1, .threads = 1}, &all);
    for (int overlap = TP_OVERLAP_NONE; overlap < TP_OVERLAP_AUTO; overlap++)
        for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
            tpt_layout layout = layouts[i];
            layout.threads = 1;
            layout.overlap = (tp_overlap)overlap;
            layout.frozen = (1u << linears) - 1;
            layout.keeps_biases = true;
            tpt_case_run(c, &layout, &some);
            for (int p = 1; p < all.params; p += 2)
                cr_assert(tpt_same_bits(all.name[p], some.grad[p], all.grad[p], TP_DTYPE_F32, all.elements[p]),
                          "%s of %s, layout %zu", all.name[p], tp_overlap_name((tp_overlap)overlap), i);
            tpt_result_free(&some);
        }
    tpt_result_free(&all);
}

Test(overlap, frozen_weights_and_no_dx, .timeout = 120)
{
    tp_linear_desc linear = {
        .name = "linear", .in_features = 21, .out_features = 19, .dtype = TP_DTYPE_F32, .bias = true};
    for (int kind = 0; kind < 2; kind++) {
        linear.kind = kind ? TP_LINEAR_ROW : TP_LINEAR_COLUMN;
        tpt_case c = linear_case(&linear, 13);
        same_with_less(&c, 1);
        same_biases(&c, 1);
    }
    tp_mlp_desc mlp = {
        .name = "mlp", .hidden = 24, .ffn = 35, .activation = TP_ACTIVATION_GELU, .dtype = TP_DTYPE_BF16, .bias = true};
    tpt_case c = wide_case("mlp", &tpt_mlp_table, &mlp, mlp.dtype, mlp.hidden, 13);
    same_with_less(&c, 2);
    same_biases(&c, 2);
    tp_attention_desc attention = {
        .name = "attention", .hidden = 32, .heads = 8, .kv_heads = 8, .dtype = TP_DTYPE_F32, .bias = true};
    c = wide_case("attention", &tpt_attention_table, &attention, attention.dtype, attention.hidden, 13);
    same_with_less(&c, 2);
}

/* A machine with a link worth hiding, so that more than `none` is chosen. */
static const tp_machine slow_link = {
    .gemm = {[TP_DTYPE_F32] = {.points = 1, .rows = {64}, .flops = {1e9}}},
    .copy_bytes_per_second = 1e10,
    .reduce_bytes_per_second = 1e10,
    .link = {.bytes_per_second = 5e7},
};

Test(overlap, automatic_choice, .timeout = 120)
{
    static const tpt_layout layouts[] = {{.tp = 2, .sequence_parallel = true},
                                         {.tp = 2, .split_backward = true},
                                         {.tp = 4, .sequence_parallel = true, .split_backward = true}};
    tp_block_desc desc = {.name = "block",
                          .hidden = 24,
                          .dtype = TP_DTYPE_F32,
                          .attention = {.heads = 6, .bias = true},
                          .mlp = {.ffn = 40, .bias = true, .output_dropout = 0.1f}};
    tp_overlap_table table;
    const tp_overlap_shape shape = {.pattern = TP_PATTERN_CHAIN, .dtype = TP_DTYPE_F32, .ranks = 2, .rows = 64,
                                    .cols = {20, 24}, .inner = {24, 20}};
    cr_assert_eq(tp_overlap_table_fill(&slow_link, &shape, &table), TP_OK);
    cr_assert_neq(table.entry[table.classes - 1].algorithm, TP_OVERLAP_NONE);
#ifdef TPT_SANITIZED
    const size_t stride = 3;
#else
    const size_t stride = 1;
#endif
    for (int m = 0; m < 2; m++)
        for (size_t t = stride > 1 ? (size_t)m : 0; t < sizeof token_counts / sizeof token_counts[0]; t += stride) {
            tpt_case c = wide_case("block", &tpt_block_table, &desc, desc.dtype, desc.hidden, token_counts[t]);
            tpt_result one;
            tpt_case_run(&c, &(tpt_layout){.tp = 1, .threads = 1}, &one);
            for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
                tpt_layout layout = layouts[i];
                layout.threads = 1;
                layout.overlap = TP_OVERLAP_AUTO;
                layout.machine = m ? &slow_link : NULL;
                compare(&c, &one, &layout);
            }
            tpt_result_free(&one);
        }
}
