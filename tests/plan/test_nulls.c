/* Arguments that are NULL: what has an error to give gives it, the rest does nothing. */
#include "costs.h"

#include <string.h>

#include "tp/auto.h"
#include "tp/tp.h"

Test(nulls, names_and_texts)
{
    char text[64] = "as it was";
    cr_assert_eq(tp_overlap_from_name(NULL), -1);
    cr_assert_eq(tp_pattern_from_name(NULL), -1);
    cr_assert_eq(tp_plan_print(NULL, text, sizeof text), 0);
    cr_assert_str_eq(text, "");
    cr_assert_eq(tp_machine_print(NULL, NULL, 0), 0);
    tp_plan *plan = tpt_plan(TP_OVERLAP_PULL, TP_PATTERN_GATHER_GEMM, 2, 1);
    tp_proof proof;
    cr_assert_eq(tp_plan_verify(plan, &proof), TP_OK);
    cr_assert_eq(tp_plan_explain(NULL, &proof, text, sizeof text), 0);
    cr_assert_eq(tp_plan_explain(plan, NULL, text, sizeof text), 0);
    cr_assert_gt(tp_plan_print(plan, NULL, 1000), 0);
    cr_assert_gt(tp_plan_explain(plan, &proof, NULL, 1000), 0);
    tp_plan_destroy(plan);
    const tp_overlap_shape shape = {.ranks = 2};
    const tp_overlap_choice choice = {.chunks = 1};
    cr_assert_eq(tp_overlap_explain(NULL, &choice, text, sizeof text), 0);
    cr_assert_eq(tp_overlap_explain(&shape, NULL, text, sizeof text), 0);
}

Test(nulls, places_to_write)
{
    tp_overlap algorithm = TP_OVERLAP_RING;
    int chunks = 7;
    tp_machine_default(NULL);
    tp_machine_default_of(TP_DEVICE_CUDA, NULL);
    tp_overlap_table_find(NULL, 5, &algorithm, &chunks);
    cr_assert(algorithm == TP_OVERLAP_NONE && chunks == 1);
    const tp_overlap_table table = {.classes = 0};
    tp_overlap_table_find(&table, 5, NULL, &chunks);
    tp_overlap_table_find(&table, 5, &algorithm, NULL);
}

Test(nulls, contexts)
{
    int64_t count;
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_failure(NULL), TP_ERR_ARGUMENT);
    cr_assert_str_eq(tp_ctx_message(NULL), "");
    cr_assert_eq(tp_trace_end(NULL, &count), TP_ERR_ARGUMENT);
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_trace_end(ctx, NULL), TP_ERR_ARGUMENT);
    cr_assert_not_null(strstr(tp_ctx_message(ctx), "count is NULL"));
    cr_assert_eq(tp_trace_end(ctx, &count), TP_ERR_STATE);
    tp_ctx_destroy(ctx);
}
