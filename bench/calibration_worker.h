/* What the parts of a calibration share: a rank at work, and how it is timed. */
#ifndef BENCH_CALIBRATION_WORKER_H
#define BENCH_CALIBRATION_WORKER_H

#include "calibration.h"
#include "gemm_case.h"
#include "plan/execute.h"
#include "team.h"

/* Bytes of large and small messages. */
enum { LARGE = 4 << 20, SMALL = 64 };

/* A link whose transfers are waited for asleep: bytes of a chunk, and seconds that it takes. */
enum { LINK_COLS = 64, LINK_ROWS = 16 };
#define LINK_SECONDS 2e-4
#define LINK_CHUNK_BYTES ((double)LINK_COLS * LINK_ROWS * sizeof(float))

/* Measured more than once, since a slow moment falls on one of the two: most differences whose median counts. */
enum { BENCH_CALIBRATION_REPEATS = 7 };

typedef struct bench_calibration {
    bench_team team;
    bench_team_plan plan; /* of each measurement */
    int repeats;          /* of each difference */
    tp_machine machine;   /* rank 0 fills them */
    bench_figure samples; /* of all measurements together */
} bench_calibration;

/* One rank at work: what a device's own worker begins with. */
typedef struct bench_worker {
    bench_calibration *all;
    tp_ctx *ctx;
    int rank, ranks;
    void *in, *out; /* of collectives */
    int64_t count;  /* of their floats, in all */
} bench_worker;

/* Seconds of one call of fn, whose argument is the worker, of all ranks together; samples are counted. */
tp_status bench_calibration_measure(bench_worker *w, tp_status (*fn)(void *arg), double *seconds);
/* What one function takes longer than another: the median, at least 0. */
tp_status bench_calibration_more(bench_worker *w, tp_status (*with)(void *arg), tp_status (*without)(void *arg),
                                 double *seconds);
/* Enters point i. The faster of all measurements counts: other work makes a product slower, never faster. More rows are
 * not slower either, since they could be cut. */
void bench_calibration_point(tp_machine_curve *curve, int i, int64_t rows, double flops);
/* An all-gather of the worker's count of floats. */
tp_status bench_calibration_run_gather(void *arg);

/* The parts of a device; what is alike on all is filled in. */
tp_status bench_calibrate_cpu(const bench_call *call, bench_calibration *all);
tp_status bench_calibrate_gpu(const bench_call *call, bench_calibration *all);

/* ---- on the CPU -------------------------------------------------------------------------------------------------- */

/* in and out have LARGE bytes each. */
typedef struct bench_cpu_worker {
    bench_worker base;
    bench_gemm gemm;
    bench_gemm *cold; /* [COLD_PRODUCTS] */
    int turn;         /* of them */
    tp_symmetric inputs;
    int reads; /* whose input the product reads */
    int chunks;
    int64_t cols; /* of a chunk, on a link */
    tpi_prepared *plan; /* that is run: */
    tpi_prepared *pull, *direct, *pipeline;
} bench_cpu_worker;

/* The worker's open product. */
tp_status bench_calibration_run_gemm(void *arg);

/* What lanes cost on shared cores, on a link (calibration_lanes.c). */
tp_status bench_calibration_of_lanes(bench_cpu_worker *w);

#endif
