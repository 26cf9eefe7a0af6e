/* Recording when the ops of plans ran, on one rank. tp_timeline_* draw what was recorded on all ranks. */
#ifndef TP_TRACE_H
#define TP_TRACE_H

#include <tp/context.h>
#include <tp/plan.h>

/* One op of one execution of a plan. */
typedef struct tp_trace_span {
    const tp_plan *plan; /* this rank's copy; it lives as long as the context */
    int64_t execution;   /* of this plan since its creation, from 0: the same number on all ranks */
    int op;              /* of plan->rank[this rank] */
    double begin, end;   /* seconds of the monotonic clock, which all ranks of a machine share: from when its waits were
                          * over to when it was done */
} tp_trace_span;

TP_BEGIN_DECLS

/* Records the ops of plans issued from now on into span[0 .. capacity), in the order in which they end on any lane. The
 * memory is the caller's, and must stay until tp_trace_end. Costs two readings of the clock an op. Errors:
 * TP_ERR_ARGUMENT, TP_ERR_STATE (it is on already). */
TP_API tp_status tp_trace_begin(tp_ctx *ctx, tp_trace_span *span, int64_t capacity);

/* Waits for this rank's work. Writes how many spans there were: those past the capacity were dropped. Errors:
 * TP_ERR_ARGUMENT (ctx or count is NULL), TP_ERR_STATE (it is not on). */
TP_API tp_status tp_trace_end(tp_ctx *ctx, int64_t *count);

TP_END_DECLS
#endif
