/* What is measured: products of layers, collectives and their formulas, and that the checks see wrong results. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "collective_case.h"
#include "collective_peer.h"
#include "core/context.h"
#include "gemm_case.h"
#include "layer_case.h"
#include "team.h"
#include "values.h"

Test(gemm, preset_has_the_thirty_products)
{
    bench_product products[BENCH_PRODUCTS];
    int count = bench_products_preset(products), trees = 0, variants[BENCH_VARIANTS] = {0};
    cr_assert_eq(count, 30);
    for (int i = 0; i < count; i++) {
        trees += products[i].tree;
        variants[products[i].variant]++;
        cr_assert(products[i].variant != BENCH_TN || !products[i].tree, "weight gradients are one chain");
    }
    cr_assert_eq(variants[BENCH_NT], 10);
    cr_assert_eq(variants[BENCH_NN], 10);
    cr_assert_eq(variants[BENCH_TN], 10);
    /* Forward of proj, fcproj and 4k1k, input gradient of qkv, fc and 1k4k; the GPT-2 ones at two token counts. */
    cr_assert_eq(trees, 5 + 5);
    char shape[48];
    bench_product_shape(&products[0], shape);
    cr_assert_str_eq(shape, "512x2304x768");
    cr_assert_eq(bench_product_flops(&products[0]), 2.0 * 512 * 2304 * 768);
}

Test(gemm, shapes_are_parsed)
{
    bench_product products[BENCH_PRODUCTS];
    char message[BENCH_MESSAGE];
    cr_assert_eq(bench_products_parse("1x2x3,4x5x6", 5, products, message), 4);
    char shape[48];
    bench_product_shape(&products[3], shape);
    cr_assert_str_eq(shape, "5x6x4", "TN: out x in x tokens");
    cr_assert_eq(bench_products_parse("1x2", 1, products, message), 0);
    cr_assert_eq(bench_products_parse("1x2x3,", 1, products, message), 0);
    cr_assert_eq(bench_products_parse("0x2x3", 1, products, message), 0);
    cr_assert_not_null(strstr(message, "[1, 1048576]"), "%s", message);
}

/* Every variant, order, dtype and way of packing gives the exact sums; a changed operand is seen. */
Test(gemm, check_passes_and_can_fail)
{
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    for (int i = 0; i < BENCH_VARIANTS * 3 * 4; i++) {
        bench_variant variant = (bench_variant)(i % BENCH_VARIANTS);
        tp_dtype dtype = (tp_dtype)(TP_DTYPE_F32 + i / BENCH_VARIANTS % 3);
        bool packed = i / 9 % 2 == 1, tree = i / 18 == 1 && variant != BENCH_TN;
        bench_product product = {.tokens = 33, .out = 48, .in = 40, .variant = variant, .tree = tree, .parts = 1};
        product.part[0] = (tp_shard_part){variant == BENCH_NN ? 48 : 40, 1, 0};
        bench_gemm gemm;
        cr_assert_eq(bench_gemm_open(&gemm, ctx, &product, dtype, packed), TP_OK, "%s", tp_last_message());
        cr_assert_eq(bench_gemm_wrong(&gemm, 100000), 0, "case %d", i);
        bench_store(gemm.a, dtype, 0, 3);
        cr_assert_gt(bench_gemm_wrong(&gemm, 100000), 0, "case %d", i);
        bench_gemm_close(&gemm);
    }
    for (int kind = 0; kind < TP_MEMORY_KINDS; kind++)
        cr_assert(kind == TP_MEMORY_OTHER || kind == TP_MEMORY_SCRATCH ||
                  tp_ctx_memory(ctx, (tp_memory_kind)kind).bytes == 0);
    tp_ctx_destroy(ctx);
}

Test(collective, formulas_of_nccl_tests)
{
    cr_assert_eq(bench_collective_factor(BENCH_ALL_REDUCE, 4), 1.5);
    cr_assert_eq(bench_collective_factor(BENCH_REDUCE_SCATTER, 4), 0.75);
    cr_assert_eq(bench_collective_factor(BENCH_ALL_GATHER, 8), 0.875);
    cr_assert_eq(bench_collective_factor(BENCH_ALL_TO_ALL, 2), 0.5);
    cr_assert_eq(bench_collective_factor(BENCH_BROADCAST, 8), 1);
    cr_assert_eq(bench_collective_factor(BENCH_SENDRECV, 8), 1);
    cr_assert_eq(bench_collective_count(BENCH_ALL_REDUCE, 1001, TP_DTYPE_F32, 3), 250);
    cr_assert_eq(bench_collective_count(BENCH_ALL_TO_ALL, 1001, TP_DTYPE_U8, 3), 999);
}

typedef struct collective_job {
    int ranks;
    bool spoil;
    int64_t wrong[8];
} collective_job;

static tp_status check_all(tp_ctx *ctx, void *arg)
{
    collective_job *job = arg;
    static const int64_t counts[] = {0, 1, 7, 1009};
    int rank = tp_ctx_rank(ctx);
    int64_t in[1016], out[1016];
    for (int i = 0; i < BENCH_OPERATIONS * 2 * 6 * 4; i++) {
        bench_collective c = {.operation = (bench_operation)(i % BENCH_OPERATIONS),
                              .in_place = i / BENCH_OPERATIONS % 2 == 1,
                              .dtype = (tp_dtype)(TP_DTYPE_F32 + i / BENCH_OPERATIONS / 2 % 6),
                              .ctx = ctx,
                              .in = in,
                              .out = out,
                              .reduce = (tp_reduce_op)(i % 3),
                              .ranks = job->ranks,
                              .rank = rank};
        if (!bench_collective_has(c.operation, c.in_place))
            continue;
        int64_t bytes = counts[i / BENCH_OPERATIONS / 12] * (int64_t)tp_dtype_size(c.dtype), wrong;
        c.count = bench_collective_count(c.operation, bytes, c.dtype, c.ranks);
        bench_collective_prepare(&c);
        TPI_TRY(bench_collective_check(&c, &wrong));
        job->wrong[rank] += wrong;
    }
    return TP_OK;
}

Test(collective, all_operations_are_exact)
{
    for (int ranks = 1; ranks <= 8; ranks = ranks < 3 ? ranks + 1 : ranks + 5) {
        collective_job job = {.ranks = ranks};
        cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = ranks, .ctx = {.threads = 1}, .check_calls = true},
                                  check_all, &job),
                     TP_OK, "%s", tp_last_message());
        for (int rank = 0; rank < ranks; rank++)
            cr_assert_eq(job.wrong[rank], 0, "%d ranks: rank %d has %lld wrong", ranks, rank,
                         (long long)job.wrong[rank]);
    }
}

/* What a collective takes beside MPI's: net of what is written before and read after, against the better peer. */
Test(collective, ratio_is_to_the_better_peer)
{
    const bench_team_figure side[BENCH_MPI_KINDS] = {[BENCH_MPI_ALONE] = {.figure = {.seconds = 3}},
                                                     [BENCH_MPI_CYCLE] = {.figure = {.seconds = 7}},
                                                     [BENCH_MPI_FRAME] = {.figure = {.seconds = 5}}};
    cr_assert_eq(bench_collective_seconds(side, false), 3);
    cr_assert_eq(bench_collective_seconds(side, true), 2);
    const double both[] = {8, 6}, one[] = {NAN, 9}, none[] = {NAN, NAN}, less[] = {-1, 6};
    cr_assert_eq(bench_collective_ratio(2, both, 2, 1), 3);
    cr_assert_eq(bench_collective_ratio(2, one, 2, 1), 4.5);
    cr_assert(isnan(bench_collective_ratio(2, none, 2, 1)), "no peer");
    cr_assert(isnan(bench_collective_ratio(2, both, 2, 0)), "no clean sample");
    cr_assert(isnan(bench_collective_ratio(-1, both, 2, 1)) && isnan(bench_collective_ratio(2, less, 2, 1)),
              "a frame longer than its cycle");
}

/* Two passes of one comparison: what each call takes is told, not measured. */
typedef struct pass_job {
    bench_team team;
    bench_team_notes *notes;
    bench_team_figure figure;
    bench_figure alone;
    double seconds[2];
} pass_job;

typedef struct told_call {
    bench_team_sample sample;
    double seconds;
} told_call;

static tp_status tell(void *arg)
{
    told_call *call = arg;
    call->sample.seconds = call->seconds;
    call->sample.switched = false;
    return TP_OK;
}

static tp_status compare_twice(tp_ctx *ctx, void *arg)
{
    pass_job *job = arg;
    for (int pass = 0; pass < 2; pass++) {
        told_call call = {.seconds = job->seconds[pass]};
        const bench_team_plan plan = {.least = 3 + 2 * pass, .most = 3 + 2 * pass, .seconds = 1e9, .repeats = 1,
                                      .notes = job->notes, .alone = &job->alone, .whole = true,
                                      .together = true};
        const bench_team_part part = {.fn = tell, .arg = &call, .figure = &job->figure};
        TPI_TRY(bench_team_compare(&job->team, ctx, &plan, &part, 1));
    }
    return TP_OK;
}

Test(team, passes_are_pooled_and_told_apart)
{
    pass_job job = {.seconds = {1, 4}, .notes = calloc(1, sizeof *job.notes)};
    cr_assert_not_null(job.notes);
    bench_team_init(&job.team, 2, 1); /* no core each: near and far are not told apart */
    cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = 2, .ctx = {.threads = 1}}, compare_twice, &job), TP_OK, "%s",
                 tp_last_message());
    free(job.notes);
    cr_expect_eq(job.figure.figure.total, 5);
    cr_expect_eq(job.figure.figure.seconds, 1, "three of five");
    cr_expect_eq(job.alone.total, 2);
    cr_expect_eq(job.alone.seconds, 4);
}

Test(values, rounding_is_the_dtypes)
{
    cr_assert_eq(bench_rounded(TP_DTYPE_BF16, 257), 256);
    cr_assert_eq(bench_rounded(TP_DTYPE_BF16, 259), 260);
    cr_assert_eq(bench_rounded(TP_DTYPE_F16, 2049), 2048);
    cr_assert_eq(bench_rounded(TP_DTYPE_F32, 16777217), 16777216);
    cr_assert_eq(bench_rounded(TP_DTYPE_U8, 260), 4);
    cr_assert_eq(bench_rounded(TP_DTYPE_I32, -5), -5);
    union {
        uint16_t half[4];
        float single[4];
        uint8_t byte[4];
    } memory;
    bench_store(memory.half, TP_DTYPE_F16, 1, -3);
    cr_assert_eq(bench_load(memory.half, TP_DTYPE_F16, 1), -3);
    bench_store_real(memory.single, TP_DTYPE_F32, 2, 0.5f);
    cr_assert_eq(bench_load(memory.single, TP_DTYPE_F32, 2), 0.5);
    bench_store(memory.byte, TP_DTYPE_U8, 3, 255);
    cr_assert_eq(bench_load(memory.byte, TP_DTYPE_U8, 3), 255);
}

Test(layer, operations)
{
    bench_layer_shape s = {.command = BENCH_LINEAR, .hidden = 4, .ffn = 6, .heads = 2, .kv_heads = 1, .head_dim = 2,
                           .batch = 3, .sequence = 5};
    cr_assert_eq(bench_layer_flops(&s), 2.0 * 15 * 4 * 6);
    s.command = BENCH_MLP;
    s.activation = TP_ACTIVATION_SWIGLU;
    cr_assert_eq(bench_layer_flops(&s), 2.0 * 15 * 4 * 6 * 3);
    s.command = BENCH_ATTENTION;
    /* q, k and v; projection; scores and values of (5 + 1) / 2 keys a query */
    double full = 2.0 * 15 * 4 * (4 + 2 * 2) + 2.0 * 15 * 4 * 4 + 4.0 * 15 * 3 * 4;
    cr_assert_eq(bench_layer_flops(&s), full);
    s.window = 2; /* keys seen: 1, 2, 2, 2, 2 */
    cr_assert_float_eq(bench_layer_flops(&s), full - 4.0 * 15 * 3 * 4 + 4.0 * 15 * 1.8 * 4, 1e-9);
}
