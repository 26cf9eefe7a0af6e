/* Bytes that plans move, against what their collectives must move. */
#include "costs.h"

#include <string.h>

static tp_plan_traffic count(tp_overlap algorithm, tp_pattern pattern, int ranks, int chunks)
{
    tp_plan *plan = tpt_plan(algorithm, pattern, ranks, chunks);
    tp_plan_costs costs = tpt_costs(1, 1);
    tp_plan_traffic traffic;
    cr_assert_eq(tp_plan_count_traffic(plan, &costs, &traffic), TP_OK, "%s", tp_last_message());
    tp_plan_destroy(plan);
    return traffic;
}

/* Parts (n - 1) / n of a buffer that each rank must send and receive. */
static int parts_of(tp_overlap algorithm, tp_pattern pattern)
{
    switch (pattern) {
    case TP_PATTERN_GEMM: return 0;
    case TP_PATTERN_GATHER_GEMM:
    case TP_PATTERN_GEMM_SCATTER:
    case TP_PATTERN_GATHER_WEIGHT: return 1;
    case TP_PATTERN_ROW_BACKWARD: return algorithm == TP_OVERLAP_DIRECT ? 2 : 1; /* read twice */
    case TP_PATTERN_CHAIN_CORE_BACKWARD:
    case TP_PATTERN_CHAIN_BACKWARD:
        return algorithm == TP_OVERLAP_DIRECT ? 4 : 3; /* two gathers and a scatter; the first is read twice */
    default: return 2; /* an all-reduce, or a gather and a scatter */
    }
}

Test(traffic, every_algorithm_moves_the_same)
{
    for (int algorithm = 0; algorithm < TP_OVERLAP_AUTO; algorithm++)
        for (int pattern = 0; pattern < TP_PATTERN_COUNT; pattern++)
            for (int n = 1; n <= 8; n++)
                for (int chunks = 1; chunks <= 5; chunks += 2) {
                    tp_plan_traffic t = count((tp_overlap)algorithm, (tp_pattern)pattern, n, chunks);
                    double expected = TPT_BYTES * parts_of((tp_overlap)algorithm, (tp_pattern)pattern) * (n - 1) / n;
                    for (int rank = 0; rank < n; rank++) {
                        cr_assert_float_eq(t.sent[rank], expected, 1e-6,
                                           "%s %s, %d ranks: rank %d sends %.17g, expected %.17g",
                                           tp_overlap_name((tp_overlap)algorithm), tp_pattern_name((tp_pattern)pattern),
                                           n, rank, t.sent[rank], expected);
                        cr_assert_float_eq(t.received[rank], expected, 1e-6);
                        cr_assert_eq(t.link[rank][rank], 0);
                    }
                }
}

Test(traffic, links)
{
    tp_plan_traffic ring = count(TP_OVERLAP_RING, TP_PATTERN_GATHER_GEMM, 4, 2),
                    pull = count(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 4, 2);
    for (int from = 0; from < 4; from++)
        for (int to = 0; to < 4; to++) {
            cr_assert_float_eq(ring.link[from][to], to == (from + 1) % 4 ? TPT_BYTES * 3 / 4 : 0, 1e-6);
            cr_assert_float_eq(pull.link[from][to], to != from ? TPT_BYTES / 4 : 0, 1e-6);
        }
    cr_assert_float_eq(ring.largest_piece, TPT_BYTES / 8, 1e-6);
    cr_assert_float_eq(pull.largest_piece, TPT_BYTES / 8, 1e-6);
    cr_assert_float_eq(count(TP_OVERLAP_NONE, TP_PATTERN_GATHER_GEMM, 4, 1).largest_piece, TPT_BYTES / 4, 1e-6);
    tp_plan *plan = tpt_plan(TP_OVERLAP_NONE, TP_PATTERN_CHAIN, 4, 1);
    for (int i = 1; i <= 2; i++) { /* of the gather, of the scatter behind it */
        const tp_plan_costs costs = {.bytes = {[TP_BUFFER_INPUT] = 3000, [TP_BUFFER_PARTIAL] = 2000.0 * i}};
        tp_plan_traffic traffic;
        cr_assert_eq(tp_plan_count_traffic(plan, &costs, &traffic), TP_OK, "%s", tp_last_message());
        cr_assert_float_eq(traffic.largest_piece, i == 1 ? 750 : 1000, 1e-6);
    }
    tp_plan_destroy(plan);
}

/* What each algorithm needs beside the caller's buffers: all of the gathered input, or peers' part of it, or
 * nothing. */
Test(traffic, workspace)
{
    const int n = 4;
    static const struct {
        tp_overlap algorithm;
        double gather, scatter; /* in buffers */
    } expected[] = {
        {TP_OVERLAP_NONE, 1, 1},
        {TP_OVERLAP_PULL, 0.75, 1.75}, /* peers' partial sums of own rows: n - 1 slots of a quarter */
        {TP_OVERLAP_RING, 0.75, 1.75},
        {TP_OVERLAP_PIPELINE, 1, 1},
        {TP_OVERLAP_DIRECT, 0, 1},
    };
    for (int i = 0; i < 5; i++)
        for (int chunks = 1; chunks <= 4; chunks++) {
            tp_plan_traffic gather = count(expected[i].algorithm, TP_PATTERN_GATHER_GEMM, n, chunks);
            tp_plan_traffic scatter = count(expected[i].algorithm, TP_PATTERN_GEMM_SCATTER, n, chunks);
            tp_plan_traffic backward = count(expected[i].algorithm, TP_PATTERN_CHAIN_BACKWARD, n, chunks);
            double both = 2 * expected[i].gather + expected[i].scatter;
            for (int rank = 0; rank < n; rank++) {
                cr_assert_float_eq(backward.workspace[rank], both * TPT_BYTES, 1e-6);
                cr_assert_float_eq(gather.workspace[rank], expected[i].gather * TPT_BYTES, 1e-6);
                cr_assert_float_eq(scatter.workspace[rank], expected[i].scatter * TPT_BYTES, 1e-6);
            }
        }
}

static double peak(tp_overlap algorithm, tp_pattern pattern, const tp_plan_costs *costs)
{
    tp_plan *plan = tpt_plan(algorithm, pattern, 4, 2);
    double bytes = -1;
    cr_assert_eq(tp_plan_count_peak(plan, costs, &bytes), TP_OK, "%s", tp_last_message());
    tp_plan_destroy(plan);
    return bytes;
}

/* Of the workspace, what is alive at once: eight pieces to a buffer. */
Test(traffic, peak)
{
    tp_plan_costs costs = {.bytes = {[TP_BUFFER_GATHERED] = 8,
                                     [TP_BUFFER_GATHERED_SECOND] = 80,
                                     [TP_BUFFER_PARTIAL] = 800,
                                     [TP_BUFFER_INBOX] = 8000,
                                     [TP_BUFFER_MIDDLE] = 1e9}};
    cr_expect_eq(peak(TP_OVERLAP_NONE, TP_PATTERN_GATHER_GEMM, &costs), 8);
    cr_expect_eq(peak(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, &costs), 6);
    cr_expect_eq(peak(TP_OVERLAP_DIRECT, TP_PATTERN_GATHER_GEMM, &costs), 0);
    cr_expect_eq(peak(TP_OVERLAP_DIRECT, TP_PATTERN_GEMM_SCATTER, &costs), 800);
    cr_expect_eq(peak(TP_OVERLAP_RING, TP_PATTERN_GEMM_SCATTER, &costs), 800 + 6000); /* peers' slots of own pieces */
    cr_expect_eq(peak(TP_OVERLAP_NONE, TP_PATTERN_CHAIN, &costs), 800); /* the gathered rows are not needed any more */
    cr_expect_eq(peak(TP_OVERLAP_NONE, TP_PATTERN_CHAIN_BACKWARD, &costs), 8 + 80 + 800);
    costs.bytes[TP_BUFFER_GATHERED] = 8e6;
    cr_expect_eq(peak(TP_OVERLAP_NONE, TP_PATTERN_CHAIN, &costs), 8e6);
}

Test(traffic, peak_refused)
{
    tp_plan_costs costs = tpt_costs(1, 1);
    double bytes = -1;
    cr_assert_eq(tp_plan_count_peak(NULL, &costs, &bytes), TP_ERR_ARGUMENT);
    tp_plan *plan = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 2, 1);
    cr_assert_eq(tp_plan_count_peak(plan, NULL, &bytes), TP_ERR_ARGUMENT);
    cr_assert_eq(tp_plan_count_peak(plan, &costs, NULL), TP_ERR_ARGUMENT);
    plan->rank[0].op[1].waits = 0; /* the pull does not wait for its peer */
    cr_assert_eq(tp_plan_count_peak(plan, &costs, &bytes), TP_ERR_STATE);
    cr_assert_not_null(strstr(tp_last_message(), "rank 0 op 1: pull does not wait for the enter"), "%s",
                       tp_last_message());
    cr_assert_eq(bytes, 0);
    tp_plan_destroy(plan);
}

Test(traffic, refused)
{
    tp_plan_costs costs = tpt_costs(1, 1);
    tp_plan_traffic traffic;
    cr_assert_eq(tp_plan_count_traffic(NULL, &costs, &traffic), TP_ERR_ARGUMENT);
    tp_plan *plan = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 2, 1);
    cr_assert_eq(tp_plan_count_traffic(plan, &costs, NULL), TP_ERR_ARGUMENT);
    costs.bytes[0] = -1;
    cr_assert_eq(tp_plan_count_traffic(plan, &costs, &traffic), TP_ERR_ARGUMENT);
    costs.bytes[0] = 1;
    plan->rank[0].op[1].read[0].rank = 2;
    cr_assert_eq(tp_plan_count_traffic(plan, &costs, &traffic), TP_ERR_STATE);
    cr_assert(strstr(tp_last_message(), "rank 0 op 1") != NULL, "%s", tp_last_message());
    tp_plan_destroy(plan);
}
