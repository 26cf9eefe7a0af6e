/* What can't be simulated or priced is refused, with the rank and op. */
#include "costs.h"

#include <tp/auto.h>

#include <stdio.h>
#include <string.h>

static int find(const tp_plan *plan, int rank, tp_op_kind kind)
{
    for (int i = 0; i < plan->rank[rank].count; i++)
        if (plan->rank[rank].op[i].kind == kind)
            return i;
    cr_assert(false, "no such op");
    return -1;
}

static void refused(const tp_plan *plan, const tp_plan_costs *costs, tp_status expected, const char *words)
{
    tp_timeline *timeline = (tp_timeline *)&timeline;
    cr_assert_eq(tp_plan_simulate(plan, costs, &timeline), expected, "%s", tp_last_message());
    cr_assert_null(timeline);
    cr_assert(strstr(tp_last_message(), words) != NULL, "'%s' has no '%s'", tp_last_message(), words);
}

Test(simulate_refusals, plans_that_cannot_run)
{
    tp_plan_costs costs = tpt_costs(1, 1);
    char words[64];
    tp_plan *plan = tpt_plan(TP_OVERLAP_RING, TP_PATTERN_GATHER_GEMM, 2, 1);
    int send = find(plan, 0, TP_OP_SEND), recv = find(plan, 1, TP_OP_RECV);
    plan->rank[1].op[recv].kind = TP_OP_COPY; /* nobody receives */
    snprintf(words, sizeof words, "rank 0 op %d (send) meets no recv of rank 1", send);
    refused(plan, &costs, TP_ERR_STATE, words);
    plan->rank[1].op[recv].peer = 7;
    plan->rank[1].op[recv].kind = TP_OP_RECV;
    snprintf(words, sizeof words, "rank 1 op %d (recv): its peer", recv);
    refused(plan, &costs, TP_ERR_STATE, words);
    tp_plan_destroy(plan);

    plan = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 2, 1);
    int pull = find(plan, 1, TP_OP_PULL);
    cr_assert_gt(plan->rank[1].op[pull].waits, 0);
    plan->rank[1].op[pull].wait[0] = (tp_wait){1, pull};
    snprintf(words, sizeof words, "rank 1 op %d (pull) waits for rank 1 op %d", pull, pull);
    refused(plan, &costs, TP_ERR_STATE, words);
    plan->rank[1].op[pull].wait[0] = (tp_wait){0, 1000};
    refused(plan, &costs, TP_ERR_STATE, "rank 0 op 1000, which never ends");
    tp_plan_destroy(plan);

    plan = tpt_plan(TP_OVERLAP_NONE, TP_PATTERN_GATHER_GEMM, 3, 1);
    plan->rank[2].op[find(plan, 2, TP_OP_COLLECTIVE)].kind = TP_OP_COPY;
    refused(plan, &costs, TP_ERR_STATE, "not every rank comes");
    plan->rank[0].op[0].kind = TP_OP_FORWARD;
    refused(plan, &costs, TP_ERR_UNSUPPORTED, "rank 0 op 0 (forward)");
    tp_plan_destroy(plan);
}

Test(simulate_refusals, costs_that_are_none)
{
    tp_plan *plan = tpt_plan(TP_OVERLAP_NONE, TP_PATTERN_GEMM, 1, 1);
    tp_plan_costs costs = tpt_costs(1, 1);
    costs.gemm_seconds[1] = -1;
    refused(plan, &costs, TP_ERR_ARGUMENT, "gemm_seconds[1] is -1");
    costs = tpt_costs(1, 1);
    costs.bytes[TP_BUFFER_INBOX] = NAN;
    refused(plan, &costs, TP_ERR_ARGUMENT, "bytes[inbox]");
    costs = tpt_costs(INFINITY, 1);
    refused(plan, &costs, TP_ERR_ARGUMENT, "gemm_seconds[0]");
    refused(NULL, &costs, TP_ERR_ARGUMENT, "plan is NULL");
    refused(plan, NULL, TP_ERR_ARGUMENT, "costs is NULL");
    cr_assert_eq(tp_plan_simulate(plan, &costs, NULL), TP_ERR_ARGUMENT);
    tp_plan_destroy(plan);
}

/* Each cost is a number, but not what they make together. */
Test(simulate_refusals, times_that_are_none)
{
    tp_plan *plan = tpt_plan(TP_OVERLAP_NONE, TP_PATTERN_GATHER_GEMM, 2, 1);
    tp_plan_costs costs = tpt_costs(1, 1);
    costs.bytes[TP_BUFFER_INPUT] = 1e18;
    costs.link.bytes_per_second = 1e-300;
    refused(plan, &costs, TP_ERR_ARGUMENT, "costs.bytes[input] is 1e+18 and costs.link.bytes_per_second is 1e-300");
    costs = tpt_costs(1, 1);
    costs.copy_bytes_per_second = 1e-305;
    refused(plan, &costs, TP_ERR_ARGUMENT, "is 1.04858e+06 and costs.copy_bytes_per_second is 1e-305");
    costs = tpt_costs(1.7e308, 1);
    costs.gemm_overhead[0] = 1e308;
    refused(plan, &costs, TP_ERR_ARGUMENT, "takes inf seconds");
    tp_plan_destroy(plan);

    plan = tpt_plan(TP_OVERLAP_DIRECT, TP_PATTERN_GEMM_SCATTER, 2, 1);
    costs = tpt_costs(1, 1);
    costs.reduce_bytes_per_second = 1e-305;
    refused(plan, &costs, TP_ERR_ARGUMENT, "costs.reduce_bytes_per_second is 1e-305");
    costs = tpt_costs(1, 1);
    costs.copy_bytes_per_second = 1e-305; /* nothing is copied: it does not matter */
    tp_timeline *timeline = tpt_simulate(plan, &costs);
    cr_assert(isfinite(timeline->seconds) && isfinite(timeline->hidden));
    tp_timeline_destroy(timeline);
    tp_plan_destroy(plan);
}

/* A plan as its text may have it, which nobody proved: what prices it looks before it indexes. */
Test(simulate_refusals, unproven_plans_are_not_priced)
{
    static const struct {
        const char *line, *words;
    } cases[] = {{"G9 writes output[0]", "its part"},
                 {"G2000000000 writes output[0]", "its part"},
                 {"G0", "it writes nothing"},
                 {"P 5 ~0 @copy reads 1:input[0] writes gathered[0]", "its peer"},
                 {"P 1 ~0 @copy writes gathered[0]", "it moves nothing"}};
    static const tp_pattern patterns[] = {TP_PATTERN_GATHER_GEMM, TP_PATTERN_ROW_BACKWARD};
    tp_machine machine;
    int reached = 0;
    tp_machine_default(&machine);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int p = 0; p < 2; p++) {
            char text[200];
            tp_plan *plan = NULL;
            tp_overlap_candidate candidate;
            tp_plan_costs costs;
            snprintf(text, sizeof text, "plan pull %s ranks 2 chunks 1\n0: E; %s\n1: E\n", tp_pattern_name(patterns[p]),
                     cases[i].line);
            if (tp_plan_parse(text, &plan) != TP_OK)
                continue; /* refused even earlier */
            const tp_overlap_shape shape = {.pattern = patterns[p], .dtype = TP_DTYPE_F32, .ranks = 2, .rows = 64,
                                            .cols = {32, 32}, .inner = {32, 32}};
            reached++;
            cr_assert_eq(tp_overlap_costs(&machine, &shape, plan, &costs), TP_ERR_STATE, "%s", text);
            cr_assert(strstr(tp_last_message(), cases[i].words) != NULL, "'%s' has no '%s'", tp_last_message(),
                      cases[i].words);
            cr_assert_eq(tp_overlap_predict(&machine, &shape, plan, &candidate), TP_ERR_STATE, "%s", text);
            tp_plan_destroy(plan);
        }
    cr_assert_geq(reached, 6, "%d of 10 got past the parser", reached);
}
