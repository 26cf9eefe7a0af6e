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

/* Own rows under the first transfer, then the link or the GEMM; owners' reductions all read rank 0's sums first, and queue for them. */
Test(closed_forms, direct)
{
    static const double links[] = {0.1, 0.7, 1, 4};
    for (int l = 0; l < 4; l++)
        for (int n = 2; n <= 8; n++)
            for (int chunks = 1; chunks <= 4; chunks++) {
                double part = (double)(n - 1) / n, comm = links[l] * part;
                double queued = n == 2 ? 1 : (n + (n - 3) / (double)chunks) / (n - 1);
                tpt_same(seconds(TP_OVERLAP_DIRECT, TP_PATTERN_GATHER_GEMM, n, chunks, tpt_costs(1, links[l])), 1.0 / n + fmax(part, comm), "gather");
                tpt_same(seconds(TP_OVERLAP_DIRECT, TP_PATTERN_GEMM_SCATTER, n, chunks, tpt_costs(1, links[l])), 1 + comm * queued, "scatter");
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

/* Two ranks: half of the own rows under the first chunk, the others under the last. The link never idles unless it is faster than the GEMMs. */
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
