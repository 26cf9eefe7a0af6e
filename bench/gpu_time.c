#include "gpu_time.h"

#include "core/context.h"
#include "core/ops.h"

#include <math.h>
#include <stdlib.h>

#define SAMPLE_SECONDS 1e-3
#define PEAK_SECONDS 0.3
#define COPY_BYTES ((size_t)256 << 20)
#define COPY_SECONDS 0.2

/* Seconds of one call, of `repeats` together. */
static tp_status take_sample(tp_ctx *ctx, tpi_timer *timer, int repeats, tp_status (*fn)(void *arg), void *arg,
                             double *seconds)
{
    const tpi_backend *backend = ctx->backend;
    TPI_TRY(backend->timer_mark(timer, ctx->compute, 0));
    for (int i = 0; i < repeats; i++)
        TPI_TRY(fn(arg));
    TPI_TRY(backend->timer_mark(timer, ctx->compute, 1));
    TPI_TRY(tp_ctx_synchronize(ctx));
    TPI_TRY(backend->timer_read(timer, seconds));
    *seconds /= repeats;
    return TP_OK;
}

static tp_status take_samples(tp_ctx *ctx, tpi_timer *timer, const bench_plan *plan, tp_status (*fn)(void *arg),
                              void *arg, bench_samples *samples)
{
    double seconds, passed = 0;
    int repeats = 1;
    if (plan->most > 1) {
        for (int i = 0; i < plan->warmup; i++)
            TPI_TRY(fn(arg));
        TPI_TRY(take_sample(ctx, timer, 1, fn, arg, &seconds));
        repeats = seconds > 0 ? (int)fmin(ceil(SAMPLE_SECONDS / seconds), 1000) : 1000;
    }
    while (samples->count < plan->most && (samples->count < plan->least || passed < plan->seconds)) {
        TPI_TRY(take_sample(ctx, timer, repeats, fn, arg, &seconds));
        bench_sample_add(samples, seconds, true);
        passed += seconds * repeats;
    }
    return TP_OK;
}

tp_status bench_gpu_measure(tp_ctx *ctx, const bench_plan *plan, tp_status (*fn)(void *arg), void *arg,
                            bench_samples *samples)
{
    tpi_timer *timer;
    TPI_TRY(ctx->backend->timer_create(ctx, &timer));
    tp_status status = take_samples(ctx, timer, plan, fn, arg, samples);
    ctx->backend->timer_destroy(timer);
    return status;
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */

/* One call of something on up to three buffers. */
typedef struct probe {
    tp_ctx *ctx;
    void *buffer[3];
    size_t bytes;
    bool tf32;
    tpi_gemm_args gemm;
} probe;

static tp_status probe_gemm(void *arg)
{
    const probe *p = arg;
    return tpi_gemm(p->ctx->compute, &p->gemm);
}

static tp_status probe_copy(void *arg)
{
    const probe *p = arg;
    return p->ctx->backend->copy(p->ctx->compute, p->buffer[0], p->buffer[1], p->bytes, TPI_COPY_WITHIN);
}

/* Opens a context of its own, measures, closes it. fill: whether the operands are to be random. */
static tp_status run_probe(const bench_call *call, probe *p, double seconds, tp_status (*fn)(void *arg), double *figure)
{
    bench_samples *samples = calloc(1, sizeof *samples);
    tp_ctx_desc desc = bench_ctx_desc(call, 1);
    desc.sum_order = TP_SUM_FAST;
    desc.tf32 = p->tf32;
    tp_status status = samples != NULL ? tp_ctx_create(&desc, &p->ctx) : TP_ERR_MEMORY;
    for (int i = 0; i < 3 && status == TP_OK; i++) {
        status = tp_ctx_allocate(p->ctx, TP_MEMORY_OTHER, p->bytes, &p->buffer[i]);
        /* Bits of zeros cost less power than random ones, and a clock that power limits shows it. */
        int64_t count = (int64_t)(p->bytes / tp_dtype_size(TP_DTYPE_BF16));
        tpi_random_fill_args fill = {.rows = 1, .cols = count, .out = p->buffer[i], .dtype = TP_DTYPE_BF16,
                                     .stride = count, .std = 0.1f, .total_cols = count};
        if (status == TP_OK)
            status = tpi_random_fill(p->ctx->compute, &fill);
    }
    p->gemm.a.data = p->buffer[0];
    p->gemm.b.data = p->buffer[1];
    p->gemm.c = p->buffer[2];
    if (status == TP_OK)
        status = bench_gpu_measure(
            p->ctx, &(bench_plan){.warmup = 3, .least = 5, .most = BENCH_SAMPLES, .seconds = seconds}, fn, p, samples);
    if (status == TP_OK)
        *figure = bench_sample_figure(samples).seconds;
    for (int i = 0; i < 3 && p->ctx != NULL; i++)
        if (p->buffer[i] != NULL)
            tp_ctx_release(p->ctx, TP_MEMORY_OTHER, p->buffer[i], p->bytes);
    tp_ctx_destroy(p->ctx);
    free(samples);
    return status;
}

/* Side of the probe's largest square matrices. */
static int64_t peak_side(tp_dtype dtype, bool tf32)
{
    return dtype == TP_DTYPE_F32 && !tf32 ? 4096 : 8192;
}

const char *bench_gpu_peak_text(tp_dtype dtype, bool tf32)
{
    return dtype != TP_DTYPE_F32 ? "the best of three products up to 8192 x 8192 x 8192 by cuBLASLt"
           : tf32                ? "the best of three products up to 8192 x 8192 x 8192 by cuBLASLt in TF32"
                                 : "the best of three products up to 4096 x 4096 x 4096 by cuBLASLt in f32 (not TF32)";
}

/* The largest product isn't always the fastest: power can limit the clock. */
tp_status bench_gpu_peak(const bench_call *call, tp_dtype dtype, bool tf32, double *flops)
{
    *flops = NAN;
    if (call->gpu.simulated)
        return TP_OK;
    int64_t n = peak_side(dtype, tf32), shape[3][2] = {{n, n}, {n, n / 2}, {n / 2, n / 2}}; /* side, inner */
    for (int i = 0; i < 3; i++) {
        int64_t side = shape[i][0], inner = shape[i][1];
        probe p = {.bytes = (size_t)(n * n) * tp_dtype_size(dtype), .tf32 = tf32};
        p.gemm = (tpi_gemm_args){.rows = side, .cols = side, .inner = inner, .a = {NULL, dtype, inner, 1},
                                 .b = {NULL, dtype, inner, 1}, .c_dtype = dtype,
                                 .c_stride = side};
        double seconds;
        TPI_TRY(run_probe(call, &p, PEAK_SECONDS, probe_gemm, &seconds));
        *flops = fmax(*flops, 2.0 * (double)side * (double)side * (double)inner / seconds);
    }
    return TP_OK;
}

tp_status bench_gpu_copy_rate(const bench_call *call, double *rate)
{
    *rate = NAN;
    if (call->gpu.simulated)
        return TP_OK;
    probe p = {.bytes = COPY_BYTES};
    double seconds;
    TPI_TRY(run_probe(call, &p, COPY_SECONDS, probe_copy, &seconds));
    *rate = 2.0 * (double)COPY_BYTES / seconds;
    return TP_OK;
}
