/* What options that name plans mean together. */
#ifndef BENCH_PLAN_OPTIONS_H
#define BENCH_PLAN_OPTIONS_H

#include "command.h"

bool bench_list_has(const bench_list *list, int64_t value);

/* Of the others there is only one plan, whatever the chunks. */
bool bench_plan_takes_chunks(int64_t algorithm);

/* Refuses numbers of chunks that no algorithm of the list takes. */
int bench_check_chunks(bench_call *call);

/* Whether plans are priced by a shape on a machine: --machine, --run, --algorithm auto. */
bool bench_plan_shaped(const bench_options *options);

/* Refuses what contradicts itself or would go unheeded, and fills in defaults. */
int bench_plan_check_options(bench_call *call);

#endif
