/* tp_bench linear, mlp, attention --overlap: how much of a layer's communication its GEMMs hide. */
#ifndef BENCH_OVERLAP_H
#define BENCH_OVERLAP_H

#include "layer_case.h"
#include "parallel.h"
#include "trace_file.h"

#include "plan/execute_state.h"

/* (compute + comm - fused) / min(compute, comm); NaN where one of them is 0, or communication is under 1 us or 1 % of
 * `fused`. */
double bench_hidden(double compute, double comm, double fused);

/* The most that two ranks can hide with `chunks` chunks of the remote part of a transfer as long as the GEMMs. One
 * collective and its GEMM: half a chunk's transfer has nothing to hide under. Where other GEMMs are there for the first
 * and the last chunk: all. NaN where the algorithm has no chunks, or no form is known. */
double bench_hidden_bound(tp_overlap overlap, tp_pattern pattern, int chunks);

/* Chunks that a plan gets that is asked for `chunks` (0: the default). */
int bench_chunks_of(tp_overlap overlap, int ranks, int chunks);

/* What one algorithm reached in one pass. */
typedef struct bench_overlap_figures {
    bench_team_figure compute, comm, none, fused;
    double moved;        /* bytes over one rank's link */
    double different;    /* values that differ from those of `none` */
    double from_first;   /* values of `none` that differ from those of one rank */
    double simulated;    /* seconds of `fused` by the simulator; NaN: not simulated */
} bench_overlap_figures;

/* Plans that one pass of a layer runs, at most. */
#define BENCH_OVERLAP_NOTES 32

typedef struct bench_overlap_job {
    bench_call *call;
    bench_layer_shape shape; /* overlap and chunks are what is measured */
    int ranks;
    bool backward;
    tp_link link;
    bool compute_only; /* only figures->compute and moved */
    bench_layer_reference *reference; /* one rank's results, or what becomes it; NULL: nothing is checked */
    bench_layer_reference plain;      /* of `none` */
    bench_team team;
    bench_overlap_figures *figures;
    bench_trace *trace; /* NULL: none */
    tp_machine machine; /* costs for the simulator; no points of a curve: it is not asked */
    tpi_run_note notes[BENCH_OVERLAP_NOTES]; /* what rank 0 ran */
    int noted;
} bench_overlap_job;

/* Runs a world of ranks. On failure tp_last_message() says why. */
tp_status bench_overlap_run(bench_overlap_job *job);

/* Seconds of the pass whose plans were noted, its GEMMs taking together what they took alone. */
tp_status bench_overlap_simulate(const bench_overlap_job *job, double *seconds);

/* Prints the table and the reason of every choice that AUTO made in this rank's layers. */
tp_status bench_overlap_explain(const bench_overlap_job *job, tp_ctx *ctx);

/* Fills call->table; the call's options and the shape have been checked. */
int bench_command_overlap(bench_call *call, const bench_layer_shape *shape);

#endif
