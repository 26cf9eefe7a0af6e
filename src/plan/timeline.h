/* A timeline's memory and its sums, simulated or measured. */
#ifndef TPI_TIMELINE_H
#define TPI_TIMELINE_H

#include <tp/simulate.h>

/* One with empty spans. */
tp_status tpi_timeline_allocate(const tp_plan *plan, tp_timeline **out);

/* From its spans: seconds, the slowest rank and its figures; comm_seconds is the sum of its comm spans in
 * the busier direction. */
tp_status tpi_timeline_sum(tp_timeline *timeline);

/* Another gemm_seconds and comm_seconds, and what follows from them. */
void tpi_timeline_set_alone(tp_timeline *timeline, double gemm, double comm);

#endif
