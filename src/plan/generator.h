/* What plan generators are made with. A generator is a pure function in a file of its own. */
#ifndef TPI_GENERATOR_H
#define TPI_GENERATOR_H

#include <tp/overlap.h>

/* Appends an op and returns its index; the caller keeps within TP_PLAN_MAX_OPS. */
int tpi_plan_add(tp_plan *plan, tp_plan_op op);

void tpi_overlap_none(tp_pattern pattern, int pieces, tp_plan *plan);

#endif
