/* Simulated times of many ranks and of cut GEMMs against closed forms. */
#include "costs.h"

static double seconds(tp_overlap algorithm, tp_pattern pattern, int ranks, int chunks, tp_plan_costs costs)
{
    tp_plan *plan = tpt_plan(algorithm, pattern, ranks, chunks);
    tp_timeline *timeline = tpt_simulate(plan, &costs);
    double out = timeline->seconds;
    tp_timeline_destroy(timeline);
    tp_plan_destroy(plan);
    return out;
}

/* Own rows under the first transfer, then the link or the GEMM; owners' reductions all read rank 0's sums first, and
 * queue for them. */
Test(closed_forms, direct)
{
    static const double links[] = {0.1, 0.7, 1, 4};
    for (int l = 0; l < 4; l++)
        for (int n = 2; n <= 8; n++)
            for (int chunks = 1; chunks <= 4; chunks++) {
                double part = (double)(n - 1) / n, comm = links[l] * part;
                double queued = n == 2 ? 1 : (n + (n - 3) / (double)chunks) / (n - 1);
                tpt_same(seconds(TP_OVERLAP_DIRECT, TP_PATTERN_GATHER_GEMM, n, chunks, tpt_costs(1, links[l])),
                         1.0 / n + fmax(part, comm), "gather");
                tpt_same(seconds(TP_OVERLAP_DIRECT, TP_PATTERN_GEMM_SCATTER, n, chunks, tpt_costs(1, links[l])),
                         1 + comm * queued, "scatter");
            }
}

/* What small GEMMs and adds cost more is no GEMM time that could hide anything: the share stays under its bound. */
Test(closed_forms, cut_gemms_hide_no_more)
{
    static const tp_overlap algorithms[] = {TP_OVERLAP_PULL, TP_OVERLAP_RING};
    static const tp_pattern patterns[] = {TP_PATTERN_GATHER_GEMM, TP_PATTERN_GEMM_SCATTER, TP_PATTERN_CHAIN};
    for (int a = 0; a < 2; a++)
        for (int p = 0; p < 3; p++)
            for (int chunks = 1; chunks <= 16; chunks++) {
                tp_plan *plan = tpt_plan(algorithms[a], patterns[p], 2, chunks);
                tp_plan_costs costs = tpt_costs(1, 2);
                costs.compute_seconds = p == 2 ? 0.25 : 0;
                costs.gemm_overhead[0] = costs.gemm_overhead[1] = costs.compute_overhead = 0.0625;
                costs.reduce_bytes_per_second = 8 * TPT_BYTES;
                tp_timeline *t = tpt_simulate(plan, &costs);
                tpt_same(t->gemm_seconds, p == 2 ? 2 * 1.0625 + 0.3125 : 1.0625, "GEMMs uncut");
                cr_assert_geq(t->compute_seconds, t->gemm_seconds - 1e-12);
                /* A chain has own rows to multiply under its first chunk and its last. */
                cr_assert_leq(t->hidden, (p == 2 ? 1 : 1 - 0.5 / chunks) + 1e-12, "%d chunks: %g", chunks, t->hidden);
                tp_timeline_destroy(t);
                tp_plan_destroy(plan);
            }
}

/* Two ranks: half of the own rows under the first chunk, the others under the last. The link never idles unless it is
 * faster than the GEMMs. */
Test(closed_forms, chain)
{
    static const tp_overlap algorithms[] = {TP_OVERLAP_PULL, TP_OVERLAP_RING};
    for (int a = 0; a < 2; a++)
        for (int chunks = 2; chunks <= 16; chunks++) {
            tpt_same(seconds(algorithms[a], TP_PATTERN_CHAIN, 2, chunks, tpt_costs(1, 2)), 2, "as long as each other");
            tpt_same(seconds(algorithms[a], TP_PATTERN_CHAIN, 2, chunks, tpt_costs(1, 3)), 3, "a slow link");
            tpt_same(seconds(algorithms[a], TP_PATTERN_CHAIN, 2, chunks, tpt_costs(1, 0.25)), 2, "a fast link");
        }
}

/* Row-parallel backward: slice k of n - 1 peers is there at k / c of the transfer; its part of the input gradient is a
 * piece a peer, its rows of the weight gradient are all tokens'. At n = 2 and a transfer as long as both GEMMs 3/4 of a
 * slice's work stay exposed, on the last rank as on the first. */
Test(closed_forms, row_backward)
{
    static const tp_overlap algorithms[] = {TP_OVERLAP_PULL, TP_OVERLAP_RING};
    static const double links[] = {0.5, 1, 2, 5};
    for (int l = 0; l < 4; l++)
        for (int n = 2; n <= 8; n++)
            for (int chunks = 1; chunks <= 16; chunks++) {
                double part = (double)(n - 1) / n, comm = links[l] * part, end = 1.0 / n, piece = 1.0 / n / chunks;
                for (int k = 0; k < (n - 1) * chunks; k++) {
                    end = fmax(end, comm * (k + 1) / ((n - 1) * chunks)) + piece;
                    end += k % (n - 1) == n - 2 ? 1.0 / chunks : 0;
                }
                for (int a = 0; a < 2 && (a == 0 || n == 2); a++)
                    tpt_same(seconds(algorithms[a], TP_PATTERN_ROW_BACKWARD, n, chunks, tpt_costs(1, links[l])), end,
                             "row backward");
            }
    for (int chunks = 1; chunks <= 16; chunks++)
        tpt_same(seconds(TP_OVERLAP_PULL, TP_PATTERN_ROW_BACKWARD, 2, chunks, tpt_costs(1, 4)), 2 + 2 * 0.75 / chunks,
                 "as long as each other");
}

/* All of a layer's transfers together as long as all its GEMMs, two ranks, 16 chunks of the remote part: nine tenths
 * are hidden. */
Test(closed_forms, nine_tenths_of_every_layer)
{
    static const struct {
        const char *what;
        tp_pattern pattern;
        double gemms, transfers;
    } layers[] = {
        {"column forward", TP_PATTERN_GATHER_GEMM, 1, 1}, {"column backward", TP_PATTERN_BACKWARD, 2, 2},
        {"row forward", TP_PATTERN_GEMM_SCATTER, 1, 1}, {"row backward", TP_PATTERN_ROW_BACKWARD, 2, 1},
        {"MLP forward", TP_PATTERN_CHAIN, 2, 2}, {"MLP backward", TP_PATTERN_CHAIN_BACKWARD, 4, 3},
    };
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        tp_plan *plan = tpt_plan(TP_OVERLAP_PULL, layers[i].pattern, 2, 16);
        tp_plan_costs costs = tpt_costs(0.010, 2 * 0.010 * layers[i].gemms / layers[i].transfers);
        costs.link.latency_seconds = 5e-6;
        tp_timeline *t = tpt_simulate(plan, &costs);
        cr_assert_float_eq(t->comm_seconds, t->gemm_seconds, 0.02 * t->gemm_seconds);
        cr_assert_geq(t->hidden, 0.9, "%s: %g", layers[i].what, t->hidden);
        cr_log_info("%s: %.3f", layers[i].what, t->hidden);
        tp_timeline_destroy(t);
        tp_plan_destroy(plan);
    }
}

/* A pull that compute comes to late has crossed meanwhile: the same times as beside it, between two ranks. Then it is
 * copied, which nothing hides. */
Test(closed_forms, one_lane)
{
    static const tp_pattern patterns[] = {TP_PATTERN_GATHER_GEMM, TP_PATTERN_GEMM_SCATTER, TP_PATTERN_GEMM_REDUCE,
                                          TP_PATTERN_BACKWARD, TP_PATTERN_ROW_BACKWARD, TP_PATTERN_CHAIN,
                                          TP_PATTERN_CHAIN_CORE, TP_PATTERN_CHAIN_BACKWARD};
    static const double links[] = {0.25, 1, 2, 5};
    for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++)
        for (int l = 0; l < 4; l++)
            for (int chunks = 1; chunks <= 16; chunks *= 2) {
                tp_plan *plan = NULL;
                const tp_plan_desc desc = {.algorithm = TP_OVERLAP_PULL, .pattern = patterns[p], .ranks = 2,
                                           .chunks = chunks, .one_lane = true};
                tp_plan_costs costs = tpt_costs(1, links[l]);
                cr_assert_eq(tp_plan_create(&desc, &plan), TP_OK, "%s", tp_last_message());
                tp_timeline *t = tpt_simulate(plan, &costs);
                tpt_same(t->seconds, seconds(TP_OVERLAP_PULL, patterns[p], 2, chunks, costs),
                         tp_pattern_name(patterns[p]));
                tp_timeline_destroy(t);
                if (patterns[p] == TP_PATTERN_GATHER_GEMM) {
                    costs.link.bytes_per_second = 0;
                    costs.copy_bytes_per_second = 2 * TPT_BYTES; /* the remote half: a quarter of a GEMM's time */
                    t = tpt_simulate(plan, &costs);
                    tpt_same(t->seconds, 1.25, "copies");
                    tp_timeline_destroy(t);
                }
                tp_plan_destroy(plan);
            }
}
