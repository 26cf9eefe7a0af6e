/* Stopwatches: a task in the stream reads the clock. */
#include <time.h>

#include "core/context.h"
#include "cpu/state.h"

struct tpi_timer {
    tp_ctx *ctx;
    double at[2];
};

tp_status tpi_cpu_timer_create(tp_ctx *ctx, tpi_timer **out)
{
    *out = tpi_host_allocate(ctx, sizeof **out);
    if (!*out)
        return TP_ERR_MEMORY;
    **out = (tpi_timer){.ctx = ctx};
    return TP_OK;
}

void tpi_cpu_timer_destroy(tpi_timer *timer)
{
    if (timer)
        tpi_host_release(timer->ctx, timer, sizeof *timer);
}

static tp_status read_clock(tp_ctx *ctx, const void *args)
{
    double *const *at = args;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    **at = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    (void)ctx;
    return TP_OK;
}

tp_status tpi_cpu_timer_mark(tpi_timer *timer, tpi_stream *stream, int mark)
{
    double *at = &timer->at[mark];
    return tpi_cpu_run(stream, read_clock, &at, sizeof at);
}

tp_status tpi_cpu_timer_read(tpi_timer *timer, double *seconds)
{
    *seconds = timer->at[1] - timer->at[0];
    return tpi_ctx_usable(timer->ctx);
}
