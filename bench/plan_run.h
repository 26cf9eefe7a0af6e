/* Running one plan for real, by the layer that has its pattern, with every op's times. */
#ifndef BENCH_PLAN_RUN_H
#define BENCH_PLAN_RUN_H

#include "options.h"

typedef struct bench_plan_case {
    tp_plan_desc desc;
    tp_dtype dtype;
    int64_t rows, cols, inner; /* as in tp_overlap_shape: GEMM 0 on one rank is rows x cols x inner */
    tp_link link;
    int runs;
} bench_plan_case;

/* Whether a layer runs such a plan here: linear and feed-forward layers forward and backward. With `none` a layer runs
 * backward and chains as several plans. */
bool bench_plan_has_layer(tp_overlap algorithm, tp_pattern pattern);

/* The run whose time is the median of c->runs, after two more to warm up. `plan` is that of c->desc; the timeline
 * borrows it. On failure false with a message. */
bool bench_plan_run(const bench_plan_case *c, const tp_plan *plan, tp_timeline **out, char message[BENCH_MESSAGE]);

#endif
