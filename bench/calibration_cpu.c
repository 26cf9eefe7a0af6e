/* A calibration of ranks that are threads on the CPU. */
#include "calibration_worker.h"

#include "plan/fold.h"

#include <math.h>
#include <stdlib.h>

/* Points of a curve; rows of a product that reads a peer. */
enum { OUT = BENCH_CALIBRATION_OUT, IN = BENCH_CALIBRATION_IN, POINTS = 13, DIRECT_ROWS = 384 };
/* Products in turns, so that none finds in a cache what it works on: each rank's are 64 MB. */
enum { COLD_ROWS = 96, COLD_PRODUCTS = 22 };
enum { GRADIENT_TOKENS = 8 }; /* of a weight gradient that takes as long as it is to be read and written */
/* Up to two of the largest tiles all sizes that tiles come in. */
static const int64_t curve_rows[POINTS] = {1, 2, 4, 6, 8, 10, 12, 24, 48, 96, 192, 384, 768};
static const tp_dtype curve_dtypes[] = {TP_DTYPE_F32, TP_DTYPE_BF16};

#ifdef BENCH_SANITIZED /* its times mean nothing */
#define SAMPLE_SECONDS 0.001
#define REPEATS 1
enum { WARMUP = 0, LEAST = 1 };
#else
#define SAMPLE_SECONDS 0.04
#define REPEATS BENCH_CALIBRATION_REPEATS
enum { WARMUP = 2, LEAST = 5 };
#endif
#define ROUNDS 2            /* of the curves, some seconds apart */
#define FASTEST_MEMORY 1e12 /* more bytes a second is noise */

tp_status bench_calibration_run_gemm(void *arg)
{
    bench_cpu_worker *w = arg;
    bench_gemm_run(&w->gemm);
    return w->gemm.status;
}

static tp_status time_gemm(bench_cpu_worker *w, const bench_product *product, tp_dtype dtype, double *seconds)
{
    tp_status status = bench_gemm_open(&w->gemm, w->base.ctx, product, dtype, false);
    if (status == TP_OK)
        status = bench_calibration_measure(&w->base, bench_calibration_run_gemm, seconds);
    bench_gemm_close(&w->gemm);
    return status;
}

static tp_status calibrate_curve(bench_cpu_worker *w, bench_variant variant, tp_dtype dtype, tp_machine_curve *curve)
{
    for (int i = 0; i < POINTS; i++) {
        bench_product product = {
            .layer = "calibrate", .tokens = curve_rows[i], .out = OUT, .in = IN, .variant = variant};
        double seconds;
        tp_status status = time_gemm(w, &product, dtype, &seconds);
        if (status != TP_OK)
            return status;
        if (w->base.rank == 0)
            bench_calibration_point(curve, i, curve_rows[i], bench_product_flops(&product) / seconds);
    }
    return TP_OK;
}

static tp_status calibrate_gemm(bench_cpu_worker *w)
{
    tp_machine *machine = &w->base.all->machine;
    for (int round = 0; round < ROUNDS; round++)
        for (size_t d = 0; d < sizeof curve_dtypes / sizeof *curve_dtypes; d++) {
            tp_dtype dtype = curve_dtypes[d];
            tp_status status = calibrate_curve(w, BENCH_NT, dtype, &machine->gemm[dtype]);
            if (status == TP_OK)
                status = calibrate_curve(w, BENCH_TN, dtype, &machine->weight[dtype]);
            if (status != TP_OK)
                return status;
        }
    bench_product tiny = {.layer = "calibrate", .tokens = 1, .out = 8, .in = 8, .variant = BENCH_NT};
    double seconds;
    tp_status status = time_gemm(w, &tiny, TP_DTYPE_F32, &seconds);
    if (status == TP_OK && w->base.rank == 0)
        w->base.all->machine.call_seconds = seconds;
    return status;
}

static tp_status run_activated(void *arg)
{
    bench_cpu_worker *w = arg;
    w->gemm.args.activation = TPI_ACT_GELU_TANH;
    return bench_calibration_run_gemm(w);
}

static tp_status run_plain(void *arg)
{
    bench_cpu_worker *w = arg;
    w->gemm.args.activation = TPI_ACT_NONE;
    return bench_calibration_run_gemm(w);
}

/* What a product takes longer for the activation of what it makes. */
static tp_status calibrate_activation(bench_cpu_worker *w)
{
    const bench_product product = {
        .layer = "calibrate", .tokens = COLD_ROWS, .out = OUT, .in = IN, .variant = BENCH_NT};
    double more;
    tp_status status = bench_gemm_open(&w->gemm, w->base.ctx, &product, TP_DTYPE_F32, false);
    if (status == TP_OK)
        status = bench_calibration_more(&w->base, run_activated, run_plain, &more);
    bench_gemm_close(&w->gemm);
    if (status == TP_OK && w->base.rank == 0)
        w->base.all->machine.activation_seconds = more / ((double)COLD_ROWS * OUT);
    return status;
}

static tp_status run_cold(void *arg)
{
    bench_cpu_worker *w = arg;
    bench_gemm *gemm = &w->cold[w->turn++ % COLD_PRODUCTS];
    bench_gemm_run(gemm);
    return gemm->status;
}

static tp_status run_warm(void *arg)
{
    bench_cpu_worker *w = arg;
    bench_gemm_run(w->cold);
    return w->cold->status;
}

static void close_cold(bench_cpu_worker *w)
{
    for (int i = 0; i < COLD_PRODUCTS; i++)
        if (w->cold[i].ctx != NULL)
            bench_gemm_close(&w->cold[i]);
}

static tp_status open_cold(bench_cpu_worker *w, const bench_product *product)
{
    tp_status status = TP_OK;
    for (int i = 0; i < COLD_PRODUCTS && status == TP_OK; i++)
        status = bench_gemm_open(&w->cold[i], w->base.ctx, product, TP_DTYPE_F32, false);
    return status;
}

/* What a product takes longer when its weights and rows come out of memory. What it writes is fetched first. */
static tp_status time_cold(bench_cpu_worker *w)
{
    const bench_product product = {
        .layer = "calibrate", .tokens = COLD_ROWS, .out = OUT, .in = IN, .variant = BENCH_NT};
    double more, bytes = sizeof(float) * ((double)OUT * IN + COLD_ROWS * (IN + 2.0 * OUT));
    tp_status status = open_cold(w, &product);
    if (status == TP_OK)
        status = bench_calibration_more(&w->base, run_cold, run_warm, &more);
    close_cold(w);
    if (status == TP_OK && w->base.rank == 0)
        w->base.all->machine.memory_bytes_per_second = bytes / fmax(more, bytes / FASTEST_MEMORY);
    return status;
}

/* The fastest counts, as with the curves. */
static tp_status time_gradients(bench_cpu_worker *w)
{
    const bench_product product = {
        .layer = "calibrate", .tokens = GRADIENT_TOKENS, .out = OUT, .in = IN, .variant = BENCH_TN};
    double best = INFINITY, cold = 0;
    tp_status status = open_cold(w, &product);
    for (int i = 0; i < REPEATS && status == TP_OK; i++) {
        status = bench_calibration_measure(&w->base, run_cold, &cold);
        best = fmin(best, cold);
    }
    close_cold(w);
    if (status == TP_OK && w->base.rank == 0)
        w->base.all->machine.gradient_bytes_per_second = sizeof(float) * (double)OUT * IN / best;
    return status;
}

static tp_status calibrate_memory(bench_cpu_worker *w)
{
    w->cold = calloc(COLD_PRODUCTS, sizeof *w->cold);
    tp_status status = w->cold != NULL ? time_cold(w) : TP_ERR_MEMORY;
    if (status == TP_OK)
        status = time_gradients(w);
    free(w->cold);
    return status;
}

static tp_status run_scatter(void *arg)
{
    bench_worker *w = arg;
    tp_range mine = tp_shard_range(w->count, w->ranks, w->rank);
    return tp_reduce_scatter(w->ctx, tp_ctx_world(w->ctx), tp_tensor_1d(w->in, TP_DTYPE_F32, w->count),
                             tp_tensor_1d(w->out, TP_DTYPE_F32, mine.end - mine.begin), NULL, NULL);
}

static tp_status run_barrier(void *arg)
{
    bench_worker *w = arg;
    return tp_barrier(w->ctx, tp_ctx_world(w->ctx));
}

/* Seconds of a large and a small message. */
static tp_status time_sizes(bench_cpu_worker *w, tp_status (*fn)(void *arg), double *large, double *small)
{
    w->base.count = SMALL / (int64_t)sizeof(float) * w->base.ranks;
    tp_status status = bench_calibration_measure(&w->base, fn, small);
    w->base.count = LARGE / (int64_t)sizeof(float);
    return status == TP_OK ? bench_calibration_measure(&w->base, fn, large) : status;
}

static tp_status calibrate_transfers(bench_cpu_worker *w)
{
    double large = 0, small = 0, added = 0, added_small = 0, barrier = 0;
    tp_status status = time_sizes(w, bench_calibration_run_gather, &large, &small);
    if (status == TP_OK)
        status = time_sizes(w, run_scatter, &added, &added_small);
    if (status == TP_OK)
        status = bench_calibration_measure(&w->base, run_barrier, &barrier);
    if (status != TP_OK || w->base.rank > 0)
        return status;
    tp_machine *machine = &w->base.all->machine;
    machine->copy_bytes_per_second = LARGE / fmax(large - small, 1e-9);
    machine->reduce_bytes_per_second = LARGE * (1 + 1.0 / w->base.ranks) / fmax(added - added_small, 1e-9);
    machine->transfer_seconds = small;
    machine->wait_seconds = barrier / 2;
    return TP_OK;
}

/* Every rank writes its input anew, then multiplies the one that `reads` says. */
static tp_status run_fresh(void *arg)
{
    bench_cpu_worker *w = arg;
    float *own = w->inputs.local;
    for (int64_t i = 0; i < (int64_t)DIRECT_ROWS * IN; i++)
        own[i] += 1;
    tp_status status = tp_barrier(w->base.ctx, tp_ctx_world(w->base.ctx));
    if (status != TP_OK)
        return status;
    w->gemm.args.a.data = w->inputs.peer[w->reads];
    bench_gemm_run(&w->gemm);
    return w->gemm.status == TP_OK ? tp_barrier(w->base.ctx, tp_ctx_world(w->base.ctx)) : w->gemm.status;
}

static tp_status calibrate_direct(bench_cpu_worker *w)
{
    bench_product product = {.layer = "calibrate", .tokens = DIRECT_ROWS, .out = OUT, .in = IN, .variant = BENCH_NT};
    double own = 0, peer = 0, alone = 0, slower[REPEATS] = {0};
    tp_ctx *ctx = w->base.ctx;
    tp_status status = tp_symmetric_create(ctx, tp_ctx_world(ctx), sizeof(float) * DIRECT_ROWS * IN, &w->inputs);
    if (status != TP_OK)
        return status;
    status = bench_gemm_open(&w->gemm, ctx, &product, TP_DTYPE_F32, false);
    const void *data = w->gemm.args.a.data;
    for (int i = 0; i < REPEATS && status == TP_OK; i++) {
        w->reads = w->base.rank;
        status = bench_calibration_measure(&w->base, run_fresh, &own);
        w->reads = (w->base.rank + 1) % w->base.ranks;
        if (status == TP_OK)
            status = bench_calibration_measure(&w->base, run_fresh, &peer);
        w->gemm.args.a.data = data;
        if (status == TP_OK)
            status = bench_calibration_measure(&w->base, bench_calibration_run_gemm, &alone);
        slower[i] = (peer - own) / alone;
    }
    bench_gemm_close(&w->gemm);
    if (status == TP_OK && w->base.rank == 0)
        w->base.all->machine.direct_slowdown = fmax(1 + bench_median(slower, REPEATS), 1);
    tp_symmetric_destroy(ctx, tp_ctx_world(ctx), &w->inputs);
    return status;
}

static tp_status with_worker(tp_ctx *ctx, bench_calibration *all, tp_status (*fn)(bench_cpu_worker *w))
{
    bench_cpu_worker w = {.base = {.all = all, .ctx = ctx, .rank = tp_ctx_rank(ctx), .ranks = all->team.ranks}};
    w.base.in = calloc(1, LARGE);
    w.base.out = calloc(1, LARGE);
    tp_status status = w.base.in != NULL && w.base.out != NULL ? fn(&w) : TP_ERR_MEMORY;
    free(w.base.in);
    free(w.base.out);
    return status;
}

static tp_status calibrate_all(bench_cpu_worker *w)
{
    static tp_status (*const all[])(bench_cpu_worker * w) = {calibrate_gemm, calibrate_activation, calibrate_memory,
                                                             calibrate_transfers, calibrate_direct};
    tp_status status = TP_OK;
    for (size_t i = 0; i < sizeof all / sizeof *all && status == TP_OK; i++) {
        if (w->base.rank == 0)
            bench_progress("calibrate: %s", i == 0 ? "products" : "transfers");
        status = all[i](w);
    }
    return status;
}

static tp_status plain_main(tp_ctx *ctx, void *arg)
{
    return with_worker(ctx, arg, calibrate_all);
}

static tp_status link_main(tp_ctx *ctx, void *arg)
{
    return with_worker(ctx, arg, bench_calibration_of_lanes);
}

tp_status bench_calibrate_cpu(const bench_call *call, bench_calibration *all)
{
    all->plan = (bench_team_plan){.warmup = WARMUP, .least = LEAST, .most = 256, .seconds = SAMPLE_SECONDS};
    all->repeats = REPEATS;
    all->machine.lanes_share_cores = tpi_lanes_share_cores(call->machine.cores, all->team.ranks);
    tp_run_options start = {
        .ranks = all->team.ranks,
        .bind_cores = true,
        .ctx = {.version = TP_VERSION, .threads = 1, .sum_order = (tp_sum_order)call->options.sums}};
    TPI_TRY(tp_run_ranks(&start, plain_main, all));
    start.link = (tp_link){0, LINK_CHUNK_BYTES / LINK_SECONDS};
    return tp_run_ranks(&start, link_main, all);
}
