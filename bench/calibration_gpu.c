/* A calibration of ranks on GPUs, timed by the GPUs' events. */
#include "calibration_worker.h"
#include "parallel.h"

#include "core/context.h"

#include <math.h>

#define SAMPLE_SECONDS 0.03
#define REPEATS 3

enum { MOST_POINTS = 10 };

/* Products with weights of features x features, of which `weights` take turns, so that none is in a cache; bytes of
 * large and small messages. */
typedef struct gpu_sizes {
    int64_t features, direct_rows;
    int points, weights;
    int64_t rows[MOST_POINTS]; /* rising */
    size_t large, small;
} gpu_sizes;

static const gpu_sizes real_sizes = {
    BENCH_CALIBRATION_GPU_FEATURES, 1024, MOST_POINTS, 4, {1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192},
    (size_t)64 << 20, 64,
};
/* Its times are not kept, only whether all of it runs. */
static const gpu_sizes simulated_sizes = {BENCH_CALIBRATION_SIMULATED_FEATURES, 9, 2, 2, {1, 9}, 4096, 64};

typedef struct gpu_calibration {
    bench_calibration *all;
    const gpu_sizes *sizes;
    bool linked; /* neighbours are on devices of their own */
} gpu_calibration;

enum { X, Y, WEIGHTS, LARGE_IN, LARGE_OUT, BUFFERS };

/* One rank at work. */
typedef struct gpu_worker {
    bench_worker base;
    const gpu_sizes *sizes;
    bool linked;
    void *buffer[BUFFERS];
    size_t bytes[BUFFERS];
    tpi_gemm_args gemm;
    size_t weight_bytes; /* of one, as the product has it */
    int turn;
    const void *from; /* what is copied */
    tpi_stream *lane;
    tpi_event *there, *back;
} gpu_worker;

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* A layer's product with its weight, or a weight gradient that is added to, over so many rows. */
static void set_product(gpu_worker *w, bool gradient, tp_dtype dtype, int64_t rows)
{
    int64_t features = w->sizes->features;
    w->weight_bytes = (size_t)(features * features) * tp_dtype_size(gradient ? TP_DTYPE_F32 : dtype);
    if (gradient)
        w->gemm = (tpi_gemm_args){.rows = features,
                                  .cols = features,
                                  .inner = rows,
                                  .a = {w->buffer[Y], dtype, 1, features},
                                  .b = {w->buffer[X], dtype, 1, features},
                                  .c_dtype = TP_DTYPE_F32,
                                  .c_stride = features,
                                  .accumulate = true};
    else
        w->gemm = (tpi_gemm_args){.rows = rows,
                                  .cols = features,
                                  .inner = features,
                                  .a = {w->buffer[X], dtype, features, 1},
                                  .b = {NULL, dtype, features, 1},
                                  .c = w->buffer[Y],
                                  .c_dtype = dtype,
                                  .c_stride = features};
}

static tp_status run_product(void *arg)
{
    gpu_worker *w = arg;
    void *weight = (char *)w->buffer[WEIGHTS] + (size_t)(w->turn++ % w->sizes->weights) * w->weight_bytes;
    if (w->gemm.accumulate)
        w->gemm.c = weight;
    else
        w->gemm.b.data = weight;
    return tpi_gemm(w->base.ctx->compute, &w->gemm);
}

static tp_status calibrate_curve(gpu_worker *w, bool gradient, tp_dtype dtype, tp_machine_curve *curve)
{
    const gpu_sizes *sizes = w->sizes;
    for (int i = 0; i < sizes->points; i++) {
        double seconds, flops = 2.0 * (double)sizes->rows[i] * (double)sizes->features * (double)sizes->features;
        set_product(w, gradient, dtype, sizes->rows[i]);
        TPI_TRY(bench_calibration_measure(&w->base, run_product, &seconds));
        if (w->base.rank == 0)
            bench_calibration_point(curve, i, sizes->rows[i], flops / seconds);
    }
    return TP_OK;
}

static tp_status calibrate_products(gpu_worker *w)
{
    static const tp_dtype dtypes[] = {TP_DTYPE_F32, TP_DTYPE_BF16, TP_DTYPE_F16};
    tp_machine *machine = &w->base.all->machine;
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        if (w->base.rank == 0)
            bench_progress("calibrate: products of %s", tp_dtype_name(dtypes[d]));
        TPI_TRY(calibrate_curve(w, false, dtypes[d], &machine->gemm[dtypes[d]]));
        TPI_TRY(calibrate_curve(w, true, dtypes[d], &machine->weight[dtypes[d]]));
    }
    double seconds;
    w->gemm = (tpi_gemm_args){.rows = 1, .cols = 8, .inner = 8, .a = {w->buffer[X], TP_DTYPE_F32, 8, 1},
                              .b = {NULL, TP_DTYPE_F32, 8, 1},
                              .c = w->buffer[Y], .c_dtype = TP_DTYPE_F32, .c_stride = 8};
    TPI_TRY(bench_calibration_measure(&w->base, run_product, &seconds));
    if (w->base.rank == 0)
        machine->call_seconds = seconds;
    return TP_OK;
}

static tp_status run_activated(void *arg)
{
    gpu_worker *w = arg;
    w->gemm.activation = TPI_ACT_GELU_TANH;
    return run_product(w);
}

static tp_status run_plain(void *arg)
{
    gpu_worker *w = arg;
    w->gemm.activation = TPI_ACT_NONE;
    return run_product(w);
}

/* What a product takes longer for the activation of what it makes. */
static tp_status calibrate_activation(gpu_worker *w)
{
    double more, elements = (double)w->sizes->direct_rows * (double)w->sizes->features;
    set_product(w, false, TP_DTYPE_BF16, w->sizes->direct_rows);
    TPI_TRY(bench_calibration_more(&w->base, run_activated, run_plain, &more));
    if (w->base.rank == 0)
        w->base.all->machine.activation_seconds = more / elements;
    return TP_OK;
}

/* ---- transfers --------------------------------------------------------------------------------------------------- */

/* Out of the rank's own memory, or a peer's. */
static tp_status run_copy(void *arg)
{
    gpu_worker *w = arg;
    const tp_ctx *ctx = w->base.ctx;
    return ctx->backend->copy(ctx->compute, w->buffer[LARGE_OUT], w->from, w->sizes->large, TPI_COPY_WITHIN);
}

static tp_status run_adds(void *arg)
{
    gpu_worker *w = arg;
    const tpi_reduce_args args = {.op = TP_REDUCE_SUM, .inputs = 2, .leaf = {w->buffer[LARGE_IN], w->buffer[LARGE_OUT]},
                                  .single = w->buffer[LARGE_OUT],
                                  .in_dtype = TP_DTYPE_F32, .outputs = 1, .out_dtype = TP_DTYPE_F32, .rows = 1,
                                  .cols = (int64_t)(w->sizes->large / sizeof(float))};
    return tpi_reduce(w->base.ctx->compute, &args);
}

/* Over to a lane and back: a stream waits for an event of another one twice. */
static tp_status run_waits(void *arg)
{
    gpu_worker *w = arg;
    const tpi_backend *backend = w->base.ctx->backend;
    TPI_TRY(backend->event_record(w->there, w->base.ctx->compute));
    TPI_TRY(backend->event_wait(w->there, w->lane));
    TPI_TRY(backend->event_record(w->back, w->lane));
    return backend->event_wait(w->back, w->base.ctx->compute);
}

static tp_status calibrate_own(gpu_worker *w)
{
    double gather = 0, copy = 0, adds = 0, waits = 0, bytes = (double)w->sizes->large;
    w->base.count = (int64_t)(w->sizes->small / sizeof(float)) * w->base.ranks;
    w->from = w->buffer[LARGE_IN];
    TPI_TRY(bench_calibration_measure(&w->base, bench_calibration_run_gather, &gather));
    TPI_TRY(bench_calibration_measure(&w->base, run_copy, &copy));
    TPI_TRY(bench_calibration_measure(&w->base, run_adds, &adds));
    TPI_TRY(bench_calibration_measure(&w->base, run_waits, &waits));
    tp_machine *machine = &w->base.all->machine;
    if (w->base.rank > 0)
        return TP_OK;
    machine->copy_bytes_per_second = bytes / fmax(copy, 1e-9);
    machine->reduce_bytes_per_second = 3 * bytes / fmax(adds, 1e-9);
    machine->transfer_seconds = gather;
    machine->wait_seconds = waits / 2;
    return TP_OK;
}

/* What a product takes longer when its rows are a peer's. */
static tp_status time_direct(gpu_worker *w, const tp_symmetric *rows, double *slowdown)
{
    const gpu_sizes *sizes = w->sizes;
    double own, peer, slower[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        set_product(w, false, TP_DTYPE_BF16, sizes->direct_rows);
        w->gemm.a.data = rows->local;
        TPI_TRY(bench_calibration_measure(&w->base, run_product, &own));
        w->gemm.a.data = rows->peer[(w->base.rank + 1) % w->base.ranks];
        TPI_TRY(bench_calibration_measure(&w->base, run_product, &peer));
        slower[i] = peer / own;
    }
    *slowdown = fmax(bench_median(slower, REPEATS), 1);
    return TP_OK;
}

/* Every rank reads from the next one, so that its way in and its way out are both busy. */
static tp_status time_peer(gpu_worker *w, const tp_symmetric *memory, size_t bytes)
{
    const int64_t count = (int64_t)(bytes / tp_dtype_size(TP_DTYPE_BF16));
    const tpi_random_fill_args fill = {.rows = 1, .cols = count, .out = memory->local, .dtype = TP_DTYPE_BF16,
                                       .stride = count, .std = 0.1f, .total_cols = count};
    double copy = 0, slowdown = 1;
    TPI_TRY(tpi_random_fill(w->base.ctx->compute, &fill));
    TPI_TRY(tp_barrier(w->base.ctx, tp_ctx_world(w->base.ctx)));
    w->from = memory->peer[(w->base.rank + 1) % w->base.ranks];
    TPI_TRY(bench_calibration_measure(&w->base, run_copy, &copy));
    TPI_TRY(time_direct(w, memory, &slowdown));
    if (w->base.rank > 0)
        return TP_OK;
    tp_machine *machine = &w->base.all->machine;
    double rate = (double)w->sizes->large / fmax(copy, 1e-9);
    machine->direct_slowdown = slowdown;
    if (w->linked) /* a link between devices; on one of them there is nothing but copying */
        machine->link.bytes_per_second = rate;
    else
        machine->copy_bytes_per_second = fmin(machine->copy_bytes_per_second, rate);
    return TP_OK;
}

/* Ranks that don't reach each other's memory have collectives only: what these move is the link. */
static tp_status time_collectives(gpu_worker *w)
{
    double large;
    w->base.count = (int64_t)(w->sizes->large / sizeof(float));
    TPI_TRY(bench_calibration_measure(&w->base, bench_calibration_run_gather, &large));
    tp_machine *machine = &w->base.all->machine;
    double received = (double)w->sizes->large * (w->base.ranks - 1) / w->base.ranks;
    if (w->base.rank == 0)
        machine->link.bytes_per_second = received / fmax(large - machine->transfer_seconds, 1e-9);
    return TP_OK;
}

static tp_status calibrate_peers(gpu_worker *w)
{
    const gpu_sizes *sizes = w->sizes;
    size_t rows = (size_t)(sizes->direct_rows * sizes->features) * tp_dtype_size(TP_DTYPE_BF16),
           bytes = rows > sizes->large ? rows : sizes->large;
    tp_comm *world = tp_ctx_world(w->base.ctx);
    tp_symmetric memory;
    tp_status status = tp_symmetric_create(w->base.ctx, world, bytes, &memory);
    if (status == TP_ERR_UNSUPPORTED)
        return time_collectives(w);
    TPI_TRY(status);
    status = time_peer(w, &memory, bytes);
    tp_symmetric_destroy(w->base.ctx, world, &memory);
    return status;
}

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

static tp_status open_worker(gpu_worker *w)
{
    const gpu_sizes *sizes = w->sizes;
    const tpi_backend *backend = w->base.ctx->backend;
    size_t side = (size_t)sizes->features * sizeof(float), most = (size_t)sizes->rows[sizes->points - 1];
    w->bytes[X] = w->bytes[Y] = most * side;
    w->bytes[WEIGHTS] = (size_t)sizes->weights * (size_t)sizes->features * side;
    w->bytes[LARGE_IN] = w->bytes[LARGE_OUT] = sizes->large;
    for (int i = 0; i < BUFFERS; i++) {
        TPI_TRY(tp_ctx_allocate(w->base.ctx, TP_MEMORY_OTHER, w->bytes[i], &w->buffer[i]));
        /* Bits of zeros cost less power than random ones. In pairs they are floats. */
        int64_t count = (int64_t)(w->bytes[i] / tp_dtype_size(TP_DTYPE_BF16));
        const tpi_random_fill_args fill = {.rows = 1, .cols = count, .out = w->buffer[i], .dtype = TP_DTYPE_BF16,
                                           .stride = count, .std = 0.1f,
                                           .total_cols = count};
        TPI_TRY(tpi_random_fill(w->base.ctx->compute, &fill));
    }
    w->base.in = w->buffer[LARGE_IN];
    w->base.out = w->buffer[LARGE_OUT];
    TPI_TRY(backend->stream_create(w->base.ctx, "calibrate", false, &w->lane));
    TPI_TRY(backend->event_create(w->base.ctx, &w->there));
    return backend->event_create(w->base.ctx, &w->back);
}

static void close_worker(gpu_worker *w)
{
    const tpi_backend *backend = w->base.ctx->backend;
    if (w->back != NULL)
        backend->event_destroy(w->back);
    if (w->there != NULL)
        backend->event_destroy(w->there);
    if (w->lane != NULL)
        backend->stream_destroy(w->lane);
    for (int i = 0; i < BUFFERS; i++)
        if (w->buffer[i] != NULL)
            tp_ctx_release(w->base.ctx, TP_MEMORY_OTHER, w->buffer[i], w->bytes[i]);
}

static tp_status calibrate_all(gpu_worker *w)
{
    TPI_TRY(open_worker(w));
    TPI_TRY(calibrate_products(w));
    TPI_TRY(calibrate_activation(w));
    if (w->base.rank == 0)
        bench_progress("calibrate: transfers");
    TPI_TRY(calibrate_own(w));
    return calibrate_peers(w);
}

static tp_status rank_main(tp_ctx *ctx, void *arg)
{
    const gpu_calibration *job = arg;
    gpu_worker w = {.base = {.all = job->all, .ctx = ctx, .rank = tp_ctx_rank(ctx), .ranks = job->all->team.ranks},
                    .sizes = job->sizes,
                    .linked = job->linked};
    tp_status status = calibrate_all(&w);
    tp_ctx_synchronize(ctx);
    close_worker(&w);
    return status;
}

tp_status bench_calibrate_gpu(const bench_call *call, bench_calibration *all)
{
    gpu_calibration job = {
        .all = all, .sizes = call->gpu.simulated ? &simulated_sizes : &real_sizes, .linked = call->options.devices > 1};
    all->plan = (bench_team_plan){.warmup = 3, .least = 5, .most = 256, .seconds = SAMPLE_SECONDS};
    all->repeats = REPEATS;
    tp_run_options start = bench_run_options(call, all->team.ranks, 1);
    return tp_run_ranks(&start, rank_main, &job);
}
