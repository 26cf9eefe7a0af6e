/* How much was hidden: the figures' definitions. */
#include <criterion/criterion.h>
#include <math.h>

#include "overlap.h"

Test(overlap, hidden)
{
    cr_assert_eq(bench_hidden(10, 10, 20), 0, "one after the other");
    cr_assert_eq(bench_hidden(10, 10, 10), 1, "all of it");
    cr_assert_eq(bench_hidden(10, 4, 12), 0.5, "of the shorter one");
    cr_assert_eq(bench_hidden(4, 10, 16), -0.5, "slower than one after the other");
    cr_assert(isnan(bench_hidden(10, 0, 10)), "nothing to hide");
    cr_assert(isnan(bench_hidden(10, 0.099, 10)), "next to nothing");
    cr_assert_eq(bench_hidden(10, 0.125, 10), 1, "little");
    cr_assert(isnan(bench_hidden(1e-6, 0.9e-6, 2e-6)), "less than a microsecond");
}

Test(overlap, bound)
{
    cr_assert_eq(bench_hidden_bound(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 2), 0.75);
    cr_assert_eq(bench_hidden_bound(TP_OVERLAP_RING, TP_PATTERN_GEMM_SCATTER, 8), 0.9375);
    cr_assert_eq(bench_hidden_bound(TP_OVERLAP_PIPELINE, TP_PATTERN_GATHER_GEMM, 8), 0.875);
    cr_assert_eq(bench_hidden_bound(TP_OVERLAP_PULL, TP_PATTERN_ROW_BACKWARD, 16), 0.953125);
    cr_assert_eq(bench_hidden_bound(TP_OVERLAP_PULL, TP_PATTERN_CHAIN, 4), 1);
    cr_assert(isnan(bench_hidden_bound(TP_OVERLAP_NONE, TP_PATTERN_CHAIN, 8)));
    cr_assert(isnan(bench_hidden_bound(TP_OVERLAP_DIRECT, TP_PATTERN_GATHER_GEMM, 8)));
    cr_assert(isnan(bench_hidden_bound(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 0)));
}

Test(overlap, chunks_are_those_of_the_plan)
{
    cr_assert_eq(bench_chunks_of(TP_OVERLAP_PULL, 2, 7), 7);
    cr_assert_gt(bench_chunks_of(TP_OVERLAP_PIPELINE, 2, 0), 0);
}
