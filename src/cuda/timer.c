/* Stopwatches: two events with time in them. */
#include "core/context.h"
#include "cuda/state.h"

struct tpi_timer {
    tp_ctx *ctx;
    cudaEvent_t event[2]; /* NULL in a dry run */
};

void tpi_cuda_timer_destroy(tpi_timer *timer)
{
    if (!timer)
        return;
    for (int mark = 0; mark < 2; mark++)
        if (timer->event[mark])
            cudaEventDestroy(timer->event[mark]);
    tpi_host_release(timer->ctx, timer, sizeof *timer);
}

static tp_status make_events(tpi_timer *timer)
{
    TPI_TRY(tpi_cuda_enter(timer->ctx));
    for (int mark = 0; mark < 2; mark++)
        TPI_TRY(tpi_cuda_call(timer->ctx, cudaEventCreateWithFlags(&timer->event[mark], cudaEventDefault),
                              "cudaEventCreateWithFlags"));
    return TP_OK;
}

tp_status tpi_cuda_timer_create(tp_ctx *ctx, tpi_timer **out)
{
    *out = NULL;
    tpi_timer *timer = tpi_host_allocate(ctx, sizeof *timer);
    if (!timer)
        return TP_ERR_MEMORY;
    *timer = (tpi_timer){.ctx = ctx};
    tp_status status = ctx->desc.dry_run ? TP_OK : make_events(timer);
    if (status != TP_OK) {
        tpi_cuda_timer_destroy(timer);
        return status;
    }
    *out = timer;
    return TP_OK;
}

tp_status tpi_cuda_timer_mark(tpi_timer *timer, tpi_stream *stream, int mark)
{
    TPI_TRY(tpi_ctx_usable(timer->ctx));
    if (!timer->event[mark])
        return TP_OK;
    TPI_TRY(tpi_cuda_leave_capture(timer->ctx, "a mark of a stopwatch"));
    return tpi_cuda_call(timer->ctx, cudaEventRecord(timer->event[mark], tpi_cuda_handle(stream)), "cudaEventRecord");
}

tp_status tpi_cuda_timer_read(tpi_timer *timer, double *seconds)
{
    float milliseconds = 0;
    if (timer->event[0])
        TPI_TRY(tpi_cuda_call(timer->ctx, cudaEventElapsedTime(&milliseconds, timer->event[0], timer->event[1]),
                              "cudaEventElapsedTime"));
    *seconds = 1e-3 * (double)milliseconds;
    return TP_OK;
}
