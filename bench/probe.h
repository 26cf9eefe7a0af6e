/* A backend in front of a context's own: every op that is issued is timed where it runs: on the CPU by the clock, the
 * compute stream being the caller's own thread, on a GPU by two events in the op's stream. */
#ifndef BENCH_PROBE_H
#define BENCH_PROBE_H

#include "measure.h"

#include "core/backend.h"

#define BENCH_PROBED 96

/* An optimizer that writes the packed copies of a weight too. */
#define BENCH_OPTIMIZER_PACKING "optimizer, packing"
#define BENCH_WEIGHT_COPIES 2

/* One op with one shape in one phase. */
typedef struct bench_probed {
    int phase;
    const char *op; /* "gemm NT" */
    tp_dtype dtype; /* of its operands */
    int64_t size[3]; /* 0: has no such dimension */
    bool matrix; /* products of matrices: done by the units for its dtype; all else is f32 arithmetic */
    double flops, bytes; /* of all calls: some add a residual, say, and others don't */
    bench_samples *samples; /* one a call; samples->calls: all of them */
} bench_probed;

typedef struct bench_probe {
    tpi_backend table; /* first: what the context sees */
    const tpi_backend *real;
    tp_ctx *ctx;
    bool recording, whole_process;
    int phase;
    double flops, bytes; /* issued before this op */
    int count, lost; /* ops without a place */
    bool by_events;  /* then: */
    struct bench_probe_mark *mark; /* ops that are issued and whose times are not read yet, `marks` of them; each keeps
                                    * its timer */
    int marks, mark_capacity;
    bench_probed op[BENCH_PROBED];
} bench_probe;

/* Puts the probe before the context's backend, and takes it away again. */
void bench_probe_begin(bench_probe *probe, tp_ctx *ctx);
/* Enters what was issued since the last call; the context was synchronised. */
tp_status bench_probe_collect(bench_probe *probe);
void bench_probe_end(bench_probe *probe);
void bench_probe_free(bench_probe *probe);

#endif
