/* Stopwatches of the CPU's streams: what runs between the two marks is what is timed. */
#include <criterion/criterion.h>
#include <time.h>

#include "core/stream.h"

#define NAP_NS 3000000

static tp_status nap(tp_ctx *ctx, const void *args)
{
    (void)ctx;
    nanosleep(args, NULL);
    return TP_OK;
}

/* Inline, and on a lane of its own, which the caller is ahead of. */
Test(timer, times_what_is_between_its_marks)
{
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    const tpi_backend *backend = ctx->backend;
    const struct timespec time = {0, NAP_NS};
    tpi_timer *timer;
    tpi_stream *lane;
    cr_assert_eq(backend->timer_create(ctx, &timer), TP_OK);
    cr_assert_eq(backend->stream_create(ctx, "lane", false, &lane), TP_OK);
    tpi_stream *const streams[] = {ctx->compute, lane};
    for (int i = 0; i < 2; i++) {
        double seconds = -1;
        cr_assert_eq(backend->run(streams[i], nap, &time, sizeof time), TP_OK);
        cr_assert_eq(backend->timer_mark(timer, streams[i], 0), TP_OK);
        cr_assert_eq(backend->run(streams[i], nap, &time, sizeof time), TP_OK);
        cr_assert_eq(backend->run(streams[i], nap, &time, sizeof time), TP_OK);
        cr_assert_eq(backend->timer_mark(timer, streams[i], 1), TP_OK);
        cr_assert_eq(backend->run(streams[i], nap, &time, sizeof time), TP_OK);
        cr_assert_eq(backend->stream_synchronize(streams[i]), TP_OK);
        cr_assert_eq(backend->timer_read(timer, &seconds), TP_OK);
        cr_expect_geq(seconds, 2e-9 * NAP_NS, "%g s", seconds);
        cr_expect_lt(seconds, 60, "%g s", seconds);
    }
    backend->stream_destroy(lane);
    backend->timer_destroy(timer);
    tp_ctx_destroy(ctx);
}
