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

typedef struct bench_calibration {
    bench_team team;
    tp_machine machine; /* rank 0 fills them */
    bench_figure samples; /* of all measurements together */
} bench_calibration;

/* One rank at work. */
typedef struct bench_worker {
    bench_calibration *all;
    tp_ctx *ctx;
    int rank, ranks;
    float *in, *out; /* LARGE bytes each */
    int64_t count;   /* of floats, in all */
    bench_gemm gemm;
    bench_gemm *cold; /* [COLD_PRODUCTS] */
    int turn;         /* of them */
    tp_symmetric inputs;
    int reads; /* whose input the product reads */
    int chunks;
    int64_t cols; /* of a chunk, on a link */
    tpi_prepared *plan; /* that is run: */
    tpi_prepared *pull, *direct, *pipeline;
} bench_worker;

/* Seconds of one call, of all ranks together; samples are counted. */
tp_status bench_calibration_measure(bench_worker *w, tp_status (*fn)(void *arg), double *seconds);
/* The worker's open product, and an all-gather of its count of floats. */
tp_status bench_calibration_run_gemm(void *arg);
tp_status bench_calibration_run_gather(void *arg);

/* What lanes cost on shared cores, on a link (calibration_lanes.c). */
tp_status bench_calibration_of_lanes(bench_worker *w);

#endif
