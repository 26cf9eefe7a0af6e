/* When the ops of one call ran on all ranks, as a file that Chrome and Perfetto show. */
#ifndef BENCH_TRACE_FILE_H
#define BENCH_TRACE_FILE_H

#include "options.h"

#include <stdio.h>

#define BENCH_TRACE_SPANS 4096

typedef struct bench_trace_event {
    tp_op_kind kind;
    tp_lane lane;
    int part, piece, pieces, peer;
    double begin, end;
} bench_trace_event;

typedef struct bench_trace {
    struct {
        int64_t count;
        bench_trace_event event[BENCH_TRACE_SPANS];
    } rank[TP_PLAN_MAX_RANKS];
    int ranks;
} bench_trace;

/* Runs fn(arg) with the context's ops recorded into this rank's events. */
tp_status bench_trace_run(bench_trace *trace, tp_ctx *ctx, tp_status (*fn)(void *arg), void *arg);

/* Chrome's trace event format: a process a rank, a thread a lane, times from the first op on. */
void bench_trace_write(const bench_trace *trace, FILE *file);

#endif
