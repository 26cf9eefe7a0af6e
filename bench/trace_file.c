#include "trace_file.h"

#include "core/context.h"

#include <stdlib.h>
#include <tp/trace.h>

static void take_events(bench_trace *trace, int rank, const tp_trace_span *spans, int64_t count)
{
    trace->rank[rank].count = count < BENCH_TRACE_SPANS ? count : BENCH_TRACE_SPANS;
    for (int64_t i = 0; i < trace->rank[rank].count; i++) {
        int place = rank < spans[i].plan->ranks ? rank : 0; /* a plan without peers is of one rank */
        const tp_plan_op *op = &spans[i].plan->rank[place].op[spans[i].op];
        trace->rank[rank].event[i] = (bench_trace_event){.kind = op->kind,
                                                         .lane = op->lane,
                                                         .part = op->part,
                                                         .piece = op->piece,
                                                         .pieces = op->pieces,
                                                         .peer = op->peer,
                                                         .begin = spans[i].begin,
                                                         .end = spans[i].end};
    }
}

tp_status bench_trace_run(bench_trace *trace, tp_ctx *ctx, tp_status (*fn)(void *arg), void *arg)
{
    tp_trace_span *spans = calloc(BENCH_TRACE_SPANS, sizeof *spans);
    if (spans == NULL)
        return TP_ERR_MEMORY;
    int64_t count = 0;
    tp_status status = tp_barrier(ctx, tp_ctx_world(ctx));
    if (status == TP_OK)
        status = tp_trace_begin(ctx, spans, BENCH_TRACE_SPANS);
    if (status == TP_OK) {
        status = fn(arg);
        tp_status ended = tp_trace_end(ctx, &count);
        status = status == TP_OK ? ended : status;
    }
    if (status == TP_OK)
        take_events(trace, tp_ctx_rank(ctx), spans, count);
    free(spans);
    return status;
}

static double first_begin(const bench_trace *trace)
{
    double first = 0;
    bool found = false;
    for (int rank = 0; rank < trace->ranks; rank++) {
        for (int64_t i = 0; i < trace->rank[rank].count; i++) {
            double begin = trace->rank[rank].event[i].begin;
            first = !found || begin < first ? begin : first;
            found = true;
        }
    }
    return first;
}

static void write_event(const bench_trace_event *event, int rank, double zero, FILE *file)
{
    fprintf(file, ",\n{\"name\": \"%s", tp_op_name(event->kind));
    if (event->kind == TP_OP_GEMM || event->kind == TP_OP_COMPUTE)
        fprintf(file, " %d", event->part);
    fprintf(file,
            "\", \"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, \"args\": {\"piece\": %d, "
            "\"pieces\": %d",
            rank, (int)event->lane, (event->begin - zero) * 1e6, (event->end - event->begin) * 1e6, event->piece,
            event->pieces);
    if (event->peer >= 0)
        fprintf(file, ", \"peer\": %d", event->peer);
    fprintf(file, "}}");
}

void bench_trace_write(const bench_trace *trace, FILE *file)
{
    double zero = first_begin(trace);
    fprintf(file, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [");
    for (int rank = 0; rank < trace->ranks; rank++) {
        fprintf(file, "%s\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, \"args\": {\"name\": \"rank %d\"}}",
                rank > 0 ? "," : "", rank, rank);
        for (int lane = 0; lane < TP_LANES; lane++)
            fprintf(
                file,
                ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"args\": {\"name\": \"%s\"}}",
                rank, lane, tp_lane_name((tp_lane)lane));
        for (int64_t i = 0; i < trace->rank[rank].count; i++)
            write_event(&trace->rank[rank].event[i], rank, zero, file);
    }
    fprintf(file, "\n]}\n");
}
