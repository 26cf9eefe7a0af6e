/* Costs for tests of plans: round numbers, nothing fixed a call. */
#ifndef TPT_PLAN_COSTS_H
#define TPT_PLAN_COSTS_H

#include <criterion/criterion.h>
#include <math.h>
#include <tp/simulate.h>

#define TPT_BYTES 1048576.0

/* Every buffer has TPT_BYTES; each GEMM takes `gemm` seconds; the whole of a buffer crosses a link in `link`
 * seconds. */
static inline tp_plan_costs tpt_costs(double gemm, double link)
{
    tp_plan_costs costs = {.gemm_seconds = {gemm, gemm, gemm, gemm},
                           .link = {.bytes_per_second = link > 0 ? TPT_BYTES / link : 0}};
    for (int i = 0; i < TP_BUFFERS; i++)
        costs.bytes[i] = TPT_BYTES;
    return costs;
}

static inline tp_plan *tpt_plan(tp_overlap algorithm, tp_pattern pattern, int ranks, int chunks)
{
    tp_plan *plan = NULL;
    tp_plan_desc desc = {.algorithm = algorithm, .pattern = pattern, .ranks = ranks, .chunks = chunks};
    cr_assert_eq(tp_plan_create(&desc, &plan), TP_OK, "%s", tp_last_message());
    return plan;
}

static inline tp_timeline *tpt_simulate(const tp_plan *plan, const tp_plan_costs *costs)
{
    tp_timeline *timeline = NULL;
    cr_assert_eq(tp_plan_simulate(plan, costs, &timeline), TP_OK, "%s %s: %s",
                 tp_overlap_name((tp_overlap)plan->algorithm), tp_pattern_name((tp_pattern)plan->pattern),
                 tp_last_message());
    return timeline;
}

/* Sums of the same numbers in another order: a few roundings apart. */
static inline void tpt_same(double got, double expected, const char *what)
{
    cr_assert(fabs(got - expected) <= 1e-12 * fmax(fabs(expected), 1), "%s: got %.17g, expected %.17g", what, got,
              expected);
}

#endif
