/* A machine and a shape of round numbers, for tests of the automatic choice. */
#ifndef TPT_AUTO_CASE_H
#define TPT_AUTO_CASE_H

#include "costs.h"

#include <tp/auto.h>

/* A rate that doesn't fall for few rows, and nothing fixed: then costs are those of the closed forms. */
static inline tp_machine ideal(double link)
{
    tp_machine machine = {.threads = 1, .link = {.bytes_per_second = link}};
    machine.gemm[TP_DTYPE_F32].points = 1;
    machine.gemm[TP_DTYPE_F32].rows[0] = 1;
    machine.gemm[TP_DTYPE_F32].flops[0] = 1e11;
    return machine;
}

static inline tp_overlap_shape linear(tp_pattern pattern, int ranks, int64_t rows)
{
    return (tp_overlap_shape){.pattern = pattern,
                              .dtype = TP_DTYPE_F32,
                              .ranks = ranks,
                              .rows = rows,
                              .cols = {1000, 1000},
                              .inner = {1000, 1000},
                              .compute_bytes = (double)rows * 8000};
}

/* What a plan of the shape costs on the machine. */
static inline tp_plan_costs costs_of(const tp_machine *machine, const tp_overlap_shape *shape, tp_overlap algorithm,
                                     int chunks)
{
    tp_plan *plan = tpt_plan(algorithm, shape->pattern, shape->ranks, chunks);
    tp_plan_costs costs;
    cr_assert_eq(tp_overlap_costs(machine, shape, plan, &costs), TP_OK, "%s", tp_last_message());
    tp_plan_destroy(plan);
    return costs;
}

/* And what it takes. */
static inline tp_overlap_candidate predicted(const tp_machine *machine, const tp_overlap_shape *shape,
                                             tp_overlap algorithm, int chunks)
{
    tp_plan *plan = tpt_plan(algorithm, shape->pattern, shape->ranks, chunks);
    tp_overlap_candidate at;
    cr_assert_eq(tp_overlap_predict(machine, shape, plan, &at), TP_OK, "%s", tp_last_message());
    cr_assert(at.algorithm == algorithm && at.chunks == chunks);
    tp_plan_destroy(plan);
    return at;
}

/* Link time of the remote half = GEMM time: 2 * 1000 * 1000 flops and 4 * 1000 / 2 bytes a row. */
static const double even_link = 2000.0 / (2e6 / 1e11);

#endif
