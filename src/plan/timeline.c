#include "plan/timeline.h"

#include <math.h>
#include <stdlib.h>

#include "core/context.h"
#include "plan/price.h"

tp_status tpi_timeline_allocate(const tp_plan *plan, tp_timeline **out)
{
    size_t ops = 0;
    for (int rank = 0; rank < plan->ranks; rank++)
        ops += (size_t)plan->rank[rank].count;
    tp_timeline *timeline = calloc(1, sizeof *timeline);
    tp_span *spans = timeline ? calloc(1, ops * (sizeof(tp_span) + sizeof(bool)) + 1) : NULL;
    if (spans == NULL) {
        free(timeline);
        return tpi_message(TP_ERR_MEMORY, "timeline: out of memory for %zu ops", ops);
    }
    bool *marks = (bool *)(spans + ops);
    timeline->plan = plan;
    timeline->memory = spans;
    for (int rank = 0; rank < plan->ranks; rank++) {
        timeline->span[rank] = spans;
        timeline->critical[rank] = marks;
        spans += plan->rank[rank].count;
        marks += plan->rank[rank].count;
    }
    *out = timeline;
    return TP_OK;
}

void tp_timeline_destroy(tp_timeline *timeline)
{
    if (timeline == NULL)
        return;
    free(timeline->memory);
    free(timeline);
}

/* A moment at which computing or communicating begins (+1) or ends (-1). */
typedef struct moment {
    double time;
    int compute, comm;
} moment;

static int by_time(const void *a, const void *b)
{
    double left = ((const moment *)a)->time, right = ((const moment *)b)->time;
    return (left > right) - (left < right);
}

static int add_moments(const tp_span *span, int count, moment *moments)
{
    int used = 0;
    for (int i = 0; i < count; i++) {
        if (span[i].compute_end > span[i].compute_begin) {
            moments[used++] = (moment){span[i].compute_begin, 1, 0};
            moments[used++] = (moment){span[i].compute_end, -1, 0};
        }
        if (span[i].comm_end > span[i].comm_begin) {
            moments[used++] = (moment){span[i].comm_begin, 0, 1};
            moments[used++] = (moment){span[i].comm_end, 0, -1};
        }
    }
    return used;
}

/* Time in which a rank computes (on any lane), and in which it communicates and does not compute. */
static void sweep(const tp_span *span, int count, moment *moments, tp_timeline *timeline)
{
    int used = add_moments(span, count, moments), computing = 0, communicating = 0;
    if (used > 1)
        qsort(moments, (size_t)used, sizeof *moments, by_time);
    timeline->compute_seconds = timeline->exposed_seconds = 0;
    for (int i = 0; i + 1 < used; i++) {
        double seconds = moments[i + 1].time - moments[i].time;
        computing += moments[i].compute;
        communicating += moments[i].comm;
        timeline->compute_seconds += computing > 0 ? seconds : 0;
        timeline->exposed_seconds += computing == 0 && communicating > 0 ? seconds : 0;
    }
}

static double end_of_rank(const tp_timeline *timeline, int rank)
{
    double end = 0;
    for (int i = 0; i < timeline->plan->rank[rank].count; i++)
        end = fmax(end, timeline->span[rank][i].end);
    return end;
}

void tpi_timeline_set_alone(tp_timeline *timeline, double gemm, double comm)
{
    double least = fmin(gemm, comm);
    timeline->gemm_seconds = gemm;
    timeline->comm_seconds = comm;
    timeline->hidden = least > 0 ? (gemm + comm - timeline->seconds) / least : 0;
}

tp_status tpi_timeline_sum(tp_timeline *timeline)
{
    const tp_plan *plan = timeline->plan;
    timeline->seconds = 0;
    timeline->rank = 0;
    for (int rank = 0; rank < plan->ranks; rank++) {
        double end = end_of_rank(timeline, rank);
        if (end > timeline->seconds) {
            timeline->seconds = end;
            timeline->rank = rank;
        }
    }
    int count = plan->rank[timeline->rank].count;
    const tp_span *span = timeline->span[timeline->rank];
    moment *moments = malloc((4 * (size_t)count + 1) * sizeof *moments);
    if (moments == NULL)
        return tpi_message(TP_ERR_MEMORY, "timeline: out of memory for %d ops", count);
    double sent = 0, received = 0;
    for (int i = 0; i < count; i++) {
        tp_op_kind kind = plan->rank[timeline->rank].op[i].kind;
        double comm = span[i].comm_end - span[i].comm_begin;
        sent += kind == TP_OP_PULL || kind == TP_OP_RECV ? 0 : comm;
        received += kind == TP_OP_PUSH || kind == TP_OP_SEND ? 0 : comm;
    }
    sweep(span, count, moments, timeline);
    free(moments);
    tpi_timeline_set_alone(timeline, timeline->compute_seconds, fmax(sent, received));
    return TP_OK;
}

/* A run tells only when an op began and ended: a transfer communicated all the time, a wait at either end did nothing,
 * anything else computed. */
static tp_span measured_span(tp_op_kind kind, tp_span span)
{
    tp_span whole = {.begin = span.begin, .end = span.end};
    if (tpi_price_is_transfer(kind)) {
        whole.comm_begin = span.begin;
        whole.comm_end = span.end;
    } else if (kind != TP_OP_ENTER && kind != TP_OP_LEAVE) {
        whole.compute_begin = span.begin;
        whole.compute_end = span.end;
    }
    return whole;
}

static tp_status copy_spans(tp_timeline *timeline, const tp_span *const *span)
{
    const tp_plan *plan = timeline->plan;
    for (int rank = 0; rank < plan->ranks; rank++)
        for (int i = 0; i < plan->rank[rank].count; i++) {
            tp_span from = span[rank][i];
            if (!isfinite(from.begin) || !isfinite(from.end) || from.begin < 0 || from.end < from.begin)
                return tpi_message(TP_ERR_ARGUMENT, "tp_timeline_create: rank %d op %d lasts from %g to %g", rank, i,
                                   from.begin, from.end);
            timeline->span[rank][i] = measured_span(plan->rank[rank].op[i].kind, from);
        }
    return tpi_timeline_sum(timeline);
}

tp_status tp_timeline_create(const tp_plan *plan, const tp_span *const *span, tp_timeline **out)
{
    if (plan == NULL || span == NULL || out == NULL)
        return tpi_message(TP_ERR_ARGUMENT, "tp_timeline_create: %s is NULL",
                           plan == NULL   ? "plan"
                           : span == NULL ? "span"
                                          : "out");
    *out = NULL;
    tp_timeline *timeline;
    TPI_TRY(tpi_timeline_allocate(plan, &timeline));
    timeline->measured = true;
    tp_status status = copy_spans(timeline, span);
    if (status == TP_OK)
        *out = timeline;
    else
        tp_timeline_destroy(timeline);
    return status;
}

static bool same_plan(const tp_plan *a, const tp_plan *b)
{
    return a->algorithm == b->algorithm && a->pattern == b->pattern && a->ranks == b->ranks && a->chunks == b->chunks;
}

/* In one lane a plan has the same ops in another order. */
static bool same_op(const tp_plan_op *a, const tp_plan_op *b)
{
    return a->kind == b->kind && a->lane == b->lane && a->part == b->part && a->piece == b->piece &&
           a->pieces == b->pieces;
}

/* Fills one rank's spans, in seconds of the clock; ops that were not recorded stay as they are. */
static void collect(const tp_plan *plan, int rank, const tp_trace_span *from, int64_t count, int64_t execution,
                    tp_span *span)
{
    for (int64_t i = 0; i < count; i++)
        if (from[i].execution == execution && same_plan(from[i].plan, plan) && from[i].op >= 0 &&
            from[i].op < plan->rank[rank].count &&
            same_op(&from[i].plan->rank[rank].op[from[i].op], &plan->rank[rank].op[from[i].op]))
            span[from[i].op] = (tp_span){.begin = from[i].begin, .end = from[i].end};
}

/* Spans from the first beginning of any rank. */
static tp_status shift(tp_timeline *timeline, int64_t execution)
{
    const tp_plan *plan = timeline->plan;
    double first = INFINITY;
    for (int rank = 0; rank < plan->ranks; rank++)
        for (int i = 0; i < plan->rank[rank].count; i++) {
            if (timeline->span[rank][i].end < timeline->span[rank][i].begin)
                return tpi_message(TP_ERR_STATE,
                                   "tp_timeline_from_trace: rank %d op %d of execution %lld was not recorded", rank, i,
                                   (long long)execution);
            first = fmin(first, timeline->span[rank][i].begin);
        }
    for (int rank = 0; rank < plan->ranks; rank++)
        for (int i = 0; i < plan->rank[rank].count; i++) {
            timeline->span[rank][i].begin -= first;
            timeline->span[rank][i].end -= first;
        }
    return copy_spans(timeline, (const tp_span *const *)timeline->span);
}

tp_status tp_timeline_from_trace(const tp_plan *plan, const tp_trace_span *const *span, const int64_t *count,
                                 int64_t execution, tp_timeline **out)
{
    if (plan == NULL || span == NULL || count == NULL || out == NULL)
        return tpi_message(TP_ERR_ARGUMENT, "tp_timeline_from_trace: an argument is NULL");
    *out = NULL;
    tp_timeline *timeline;
    TPI_TRY(tpi_timeline_allocate(plan, &timeline));
    timeline->measured = true;
    for (int rank = 0; rank < plan->ranks; rank++) {
        for (int i = 0; i < plan->rank[rank].count; i++)
            timeline->span[rank][i] = (tp_span){.begin = 0, .end = -1};
        collect(plan, rank, span[rank], count[rank], execution, timeline->span[rank]);
    }
    tp_status status = shift(timeline, execution);
    if (status == TP_OK)
        *out = timeline;
    else
        tp_timeline_destroy(timeline);
    return status;
}
