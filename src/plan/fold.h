/* Plans of one lane. Where lanes have no core of their own, each PULL beside compute interrupts it, there and back, and
 * wakes up for that. Only its own rank waits for it before the end, and on a modelled link its time runs from when its
 * data was there: so compute can pull itself, right before the first of its ops that needs the chunk. */
#ifndef TPI_FOLD_H
#define TPI_FOLD_H

#include "core/context.h"

#include <tp/plan.h>

/* Whether so many ranks leave no core to a lane each. Their numbers of threads may differ, what they run may not. */
bool tpi_lanes_share_cores(int cores, int64_t ranks);

/* The same of a context's ranks, all of its mesh. */
bool tpi_ctx_lanes_share_cores(const tp_ctx *ctx);

/* Whether plans that the context makes for PULL are of one lane. */
bool tpi_pulls_inline(const tp_ctx *ctx);

/* Moves each rank's pulls to its compute lane. The order of its other ops, and that of its pulls, stays.
 * TP_ERR_UNSUPPORTED, and nothing is changed: the plan has other ops beside compute. */
tp_status tpi_plan_fold(tp_plan *plan);

#endif
