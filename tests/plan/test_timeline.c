/* Timelines of runs, from what was recorded. */
#include "costs.h"

#include <string.h>
#include <tp/trace.h>

/* In one lane a plan has as many ops, in another order: spans of the one say nothing of the other. */
Test(simulate, timeline_from_another_trace)
{
    const tp_plan_desc desc = {.algorithm = TP_OVERLAP_PULL, .pattern = TP_PATTERN_GATHER_GEMM, .ranks = 2, .chunks = 3,
                               .one_lane = true};
    tp_plan *plan = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 2, 3), *ran = NULL;
    tp_timeline *measured = NULL;
    tp_trace_span spans[2][64];
    int64_t count[2] = {0, 0};
    cr_assert_eq(tp_plan_create(&desc, &ran), TP_OK, "%s", tp_last_message());
    for (int rank = 0; rank < 2; rank++) {
        cr_assert_eq(ran->rank[rank].count, plan->rank[rank].count);
        for (int i = 0; i < ran->rank[rank].count; i++)
            spans[rank][count[rank]++] = (tp_trace_span){.plan = ran, .op = i, .begin = i, .end = i + 1};
    }
    const tp_trace_span *const lists[2] = {spans[0], spans[1]};
    cr_assert_eq(tp_timeline_from_trace(plan, lists, count, 0, &measured), TP_ERR_STATE, "%s", tp_last_message());
    cr_assert_eq(tp_timeline_from_trace(ran, lists, count, 0, &measured), TP_OK, "%s", tp_last_message());
    tp_timeline_destroy(measured);
    tp_plan_destroy(plan);
    tp_plan_destroy(ran);
}

/* Spans of two ranks as they are recorded: in the order of their ends, of several executions, seconds of some clock. */
Test(simulate, timeline_from_trace)
{
    tp_plan *plan = tpt_plan(TP_OVERLAP_RING, TP_PATTERN_GATHER_GEMM, 2, 3),
            *copy = tpt_plan(TP_OVERLAP_RING, TP_PATTERN_GATHER_GEMM, 2, 3);
    tp_plan *other = tpt_plan(TP_OVERLAP_RING, TP_PATTERN_GATHER_GEMM, 2, 4);
    tp_plan_costs costs = tpt_costs(1, 1.7);
    tp_timeline *simulated = tpt_simulate(plan, &costs), *measured = NULL;
    tp_trace_span spans[2][64];
    int64_t count[2] = {0, 0};
    for (int rank = 0; rank < 2; rank++)
        for (int execution = 0; execution < 2; execution++)
            for (int i = plan->rank[rank].count - 1; i >= 0; i--) {
                tp_span at = simulated->span[rank][i];
                spans[rank][count[rank]++] = (tp_trace_span){.plan = copy,
                                                             .execution = execution,
                                                             .op = i,
                                                             .begin = 1000 + 10 * execution + at.begin,
                                                             .end = 1000 + 10 * execution + at.end};
            }
    spans[1][count[1]++] = (tp_trace_span){.plan = other, .execution = 1, .op = 1, .begin = 0, .end = 1};
    const tp_trace_span *const lists[2] = {spans[0], spans[1]};
    cr_assert_eq(tp_timeline_from_trace(plan, lists, count, 1, &measured), TP_OK, "%s", tp_last_message());
    cr_assert(measured->measured);
    cr_assert_float_eq(measured->seconds, simulated->seconds, 1e-9);
    cr_assert_float_eq(measured->exposed_seconds, simulated->exposed_seconds, 1e-9);
    cr_assert_float_eq(measured->hidden, simulated->hidden, 1e-9);
    tp_timeline_destroy(measured);
    cr_assert_eq(tp_timeline_from_trace(plan, lists, count, 2, &measured), TP_ERR_STATE);
    cr_assert_null(measured);
    cr_assert(strstr(tp_last_message(), "rank 0 op 0 of execution 2") != NULL, "%s", tp_last_message());
    tp_timeline_destroy(simulated);
    tp_plan_destroy(plan);
    tp_plan_destroy(copy);
    tp_plan_destroy(other);
}
