/* A timeline's memory and its sums, simulated or measured. */
#ifndef TPI_TIMELINE_H
#define TPI_TIMELINE_H

#include <tp/simulate.h>

/* One with empty spans. */
tp_status tpi_timeline_allocate(const tp_plan *plan, tp_timeline **out);

/* From its spans: seconds, the slowest rank and its figures; comm_seconds is the sum of its comm spans in
 * the busier direction. */
tp_status tpi_timeline_sum(tp_timeline *timeline);

/* Another comm_seconds, and what follows from it. */
void tpi_timeline_set_comm(tp_timeline *timeline, double seconds);

#endif
