/* Streams and events: order within a lane, waits between lanes under random delays, failures and bounds. */
#include <criterion/criterion.h>
#include <string.h>
#include <time.h>

#include "core/context.h"
#include "core/stream.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static tp_ctx *create(tp_ctx_desc desc)
{
    tp_ctx *ctx;
    desc.threads = desc.threads ? desc.threads : 1;
    cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_OK, "%s", tp_last_message());
    return ctx;
}

static tpi_stream *lane(tp_ctx *ctx, const char *name)
{
    tpi_stream *stream;
    cr_assert_eq(ctx->backend->stream_create(ctx, name, false, &stream), TP_OK);
    return stream;
}

typedef struct append_args {
    int *list, *count;
    int value;
} append_args;

static tp_status append(tp_ctx *ctx, const void *args)
{
    (void)ctx;
    const append_args *a = args;
    a->list[(*a->count)++] = a->value;
    return TP_OK;
}

Test(stream, a_lane_is_first_in_first_out)
{
    enum { TASKS = 2000 }; /* more than the ring holds */
    static int list[TASKS];
    int count = 0;
    tp_ctx *ctx = create((tp_ctx_desc){0});
    tpi_stream *stream = lane(ctx, "copy");
    cr_assert_str_eq(stream->name, "copy");
    for (int i = 0; i < TASKS; i++) {
        append_args args = {list, &count, i};
        cr_assert_eq(ctx->backend->run(stream, append, &args, sizeof args), TP_OK);
    }
    cr_assert_eq(ctx->backend->stream_synchronize(stream), TP_OK);
    cr_assert_eq(count, TASKS);
    for (int i = 0; i < TASKS; i++)
        cr_assert_eq(list[i], i);
    ctx->backend->stream_destroy(stream);
    tp_ctx_destroy(ctx);
}

Test(stream, the_compute_stream_is_inline)
{
    int list[1], count = 0;
    tp_ctx *ctx = create((tp_ctx_desc){0});
    append_args args = {list, &count, 3};
    cr_assert_eq(ctx->backend->run(ctx->compute, append, &args, sizeof args), TP_OK);
    cr_assert_eq(count, 1);
    tp_ctx_destroy(ctx);
}

typedef struct add_args {
    int64_t *value;
    int64_t from, factor; /* value = value * factor + from */
} add_args;

static tp_status multiply_add(tp_ctx *ctx, const void *args)
{
    (void)ctx;
    const add_args *a = args;
    *a->value = *a->value * a->factor + a->from;
    return TP_OK;
}

/* One value handed around three lanes, unsynchronised but for events: any missing wait is a race and a wrong result. */
static void relay(tp_ctx *ctx)
{
    tpi_stream *streams[3] = {ctx->compute, lane(ctx, "one"), lane(ctx, "two")};
    tpi_event *event;
    cr_assert_eq(ctx->backend->event_create(ctx, &event), TP_OK);
    int64_t value = 1, want = 1;
    for (int64_t i = 0; i < 300; i++) {
        tpi_stream *stream = streams[i % 3];
        cr_assert_eq(ctx->backend->event_wait(event, stream), TP_OK);
        add_args args = {&value, i, i % 2 + 1};
        cr_assert_eq(ctx->backend->run(stream, multiply_add, &args, sizeof args), TP_OK);
        cr_assert_eq(ctx->backend->event_record(event, stream), TP_OK);
        want = (want * (i % 2 + 1) + i);
        if (i % 40 == 39) { /* keep it in range */
            add_args zero = {&value, 1, 0};
            cr_assert_eq(ctx->backend->run(stream, multiply_add, &zero, sizeof zero), TP_OK);
            cr_assert_eq(ctx->backend->event_record(event, stream), TP_OK);
            want = 1;
        }
    }
    cr_assert_eq(tp_ctx_synchronize(ctx), TP_OK);
    cr_assert_eq(value, want);
    ctx->backend->event_destroy(event);
    ctx->backend->stream_destroy(streams[1]);
    ctx->backend->stream_destroy(streams[2]);
}

Test(stream, events_order_lanes)
{
    for (uint64_t seed = 0; seed < 6; seed++) {
        tp_ctx *ctx = create((tp_ctx_desc){.lane_delay_seed = seed});
        relay(ctx);
        tp_ctx_destroy(ctx);
    }
}

/* A gate that a test opens. */
static tp_status pass_gate(tp_ctx *ctx, const void *args)
{
    (void)ctx;
    atomic_int *gate = *(atomic_int *const *)args;
    while (!atomic_load(gate))
        nanosleep(&(struct timespec){0, 100000}, NULL);
    return TP_OK;
}

Test(stream, a_wait_is_for_what_was_recorded_before_it)
{
    tp_ctx *ctx = create((tp_ctx_desc){0});
    tpi_stream *slow = lane(ctx, "slow"), *quick = lane(ctx, "quick");
    tpi_event *event;
    cr_assert_eq(ctx->backend->event_create(ctx, &event), TP_OK);
    cr_assert_eq(ctx->backend->event_wait(event, quick), TP_OK); /* never recorded: nothing to wait for */
    atomic_int gate = 0, *pointer = &gate;
    cr_assert_eq(ctx->backend->event_record(event, slow), TP_OK);
    cr_assert_eq(ctx->backend->event_wait(event, quick), TP_OK);
    /* What is recorded after the wait was issued does not hold it up. */
    cr_assert_eq(ctx->backend->run(slow, pass_gate, &pointer, sizeof pointer), TP_OK);
    cr_assert_eq(ctx->backend->event_record(event, slow), TP_OK);
    cr_assert_eq(ctx->backend->stream_synchronize(quick), TP_OK);
    /* A wait blocks its own lane only: the issuing thread and the compute stream go on. */
    int list[2], count = 0, after = 0;
    append_args blocked = {list, &after, 1}, free_args = {list, &count, 2};
    cr_assert_eq(ctx->backend->event_wait(event, quick), TP_OK);
    cr_assert_eq(ctx->backend->run(quick, append, &blocked, sizeof blocked), TP_OK);
    cr_assert_eq(ctx->backend->run(ctx->compute, append, &free_args, sizeof free_args), TP_OK);
    cr_assert_eq(count, 1);
    atomic_store(&gate, 1);
    cr_assert_eq(tp_ctx_synchronize(ctx), TP_OK);
    cr_assert_eq(after, 1);
    ctx->backend->event_destroy(event);
    ctx->backend->stream_destroy(slow);
    ctx->backend->stream_destroy(quick);
    tp_ctx_destroy(ctx);
}

/* Recorded on two lanes in turn: who waits comes behind both, also where the second is there first. */
Test(stream, records_of_one_event_complete_in_order)
{
    tp_ctx *ctx = create((tp_ctx_desc){0});
    tpi_stream *slow = lane(ctx, "slow"), *quick = lane(ctx, "quick"), *last = lane(ctx, "last");
    tpi_event *event;
    cr_assert_eq(ctx->backend->event_create(ctx, &event), TP_OK);
    atomic_int gate = 0, *pointer = &gate;
    int list[1], count = 0;
    append_args args = {list, &count, 1};
    cr_assert_eq(ctx->backend->run(slow, pass_gate, &pointer, sizeof pointer), TP_OK);
    cr_assert_eq(ctx->backend->event_record(event, slow), TP_OK);
    cr_assert_eq(ctx->backend->event_record(event, quick), TP_OK);
    cr_assert_eq(ctx->backend->event_wait(event, last), TP_OK);
    cr_assert_eq(ctx->backend->run(last, append, &args, sizeof args), TP_OK);
    nanosleep(&(struct timespec){0, 20000000}, NULL); /* for whoever would go too early */
    cr_expect_eq(count, 0);
    atomic_store(&gate, 1);
    cr_assert_eq(tp_ctx_synchronize(ctx), TP_OK);
    cr_assert_eq(count, 1);
    ctx->backend->event_destroy(event);
    ctx->backend->stream_destroy(slow);
    ctx->backend->stream_destroy(quick);
    ctx->backend->stream_destroy(last);
    tp_ctx_destroy(ctx);
}

Test(stream, waits_are_bounded)
{
    tp_ctx *ctx = create((tp_ctx_desc){.timeout_ms = 30});
    tpi_stream *slow = lane(ctx, "slow");
    tpi_event *event;
    cr_assert_eq(ctx->backend->event_create(ctx, &event), TP_OK);
    atomic_int gate = 0, *pointer = &gate;
    cr_assert_eq(ctx->backend->run(slow, pass_gate, &pointer, sizeof pointer), TP_OK);
    cr_assert_eq(ctx->backend->event_record(event, slow), TP_OK);
    cr_assert_eq(ctx->backend->event_wait(event, ctx->compute), TP_ERR_TIMEOUT);
    cr_assert_not_null(strstr(tp_ctx_message(ctx), "30 ms"), "%s", tp_ctx_message(ctx));
    cr_assert_eq(tp_ctx_failure(ctx), TP_ERR_TIMEOUT);
    atomic_store(&gate, 1);
    ctx->backend->stream_destroy(slow);
    ctx->backend->event_destroy(event);
    tp_ctx_destroy(ctx);
}

static tp_status fail_with_message(tp_ctx *ctx, const void *args)
{
    return tpi_fail(ctx, TP_ERR_NUMERIC, "value %d is not finite", *(const int *)args);
}

static tp_status fail_silently(tp_ctx *ctx, const void *args)
{
    (void)ctx, (void)args;
    return TP_ERR_IO;
}

Test(stream, a_failing_task_breaks_the_context)
{
    tp_ctx *ctx = create((tp_ctx_desc){0});
    tpi_stream *stream = lane(ctx, "comm");
    int value = 12, list[1], count = 0;
    append_args args = {list, &count, 1};
    ctx->backend->run(stream, fail_with_message, &value, sizeof value);
    ctx->backend->run(stream, append, &args, sizeof args);
    cr_assert_eq(tp_ctx_synchronize(ctx), TP_ERR_NUMERIC);
    cr_assert_str_eq(tp_ctx_message(ctx), "value 12 is not finite");
    cr_assert_eq(count, 0, "nothing runs after the failure");
    cr_assert_eq(ctx->backend->run(ctx->compute, append, &args, sizeof args), TP_ERR_NUMERIC);
    ctx->backend->stream_destroy(stream);
    tp_ctx_destroy(ctx);

    ctx = create((tp_ctx_desc){0});
    cr_assert_eq(ctx->backend->run(ctx->compute, fail_silently, NULL, 0), TP_ERR_IO);
    cr_assert_eq(tp_ctx_failure(ctx), TP_ERR_IO);
    cr_assert_str_not_empty(tp_ctx_message(ctx));
    tp_ctx_destroy(ctx);
}

Test(stream, synchronous_contexts_report_at_once)
{
    tp_ctx *ctx = create((tp_ctx_desc){.synchronous = true});
    tpi_stream *stream = lane(ctx, "comm");
    int value = 5;
    cr_assert_eq(ctx->backend->run(stream, fail_with_message, &value, sizeof value), TP_ERR_NUMERIC);
    ctx->backend->stream_destroy(stream);
    tp_ctx_destroy(ctx);
}

Test(stream, arguments_are_copied_up_to_a_bound)
{
    tp_ctx *ctx = create((tp_ctx_desc){0});
    char big[TPI_TASK_BYTES + 1] = {0};
    cr_assert_eq(ctx->backend->run(ctx->compute, fail_silently, big, sizeof big), TP_ERR_INTERNAL);
    cr_assert_eq(tp_ctx_failure(ctx), TP_OK);
    tp_ctx_destroy(ctx);
}

#if defined(__x86_64__)
typedef struct mode_args {
    unsigned *seen;
} mode_args;

static tp_status see_mode(tp_ctx *ctx, const void *args)
{
    (void)ctx;
    *((const mode_args *)args)->seen = _mm_getcsr();
    _mm_setcsr(0x1f80u | 0x8040u); /* a task that leaves another mode behind */
    return TP_OK;
}

Test(stream, tasks_run_in_the_default_float_mode)
{
    for (uint64_t seed = 0; seed < 2; seed++) {
        unsigned host = 0x1f80u | 0x8040u | 0x6000u; /* flush to zero, denormals are zero, round toward zero */
        _mm_setcsr(host);
        tp_ctx *ctx = create((tp_ctx_desc){.lane_delay_seed = seed});
        tpi_stream *stream = lane(ctx, "comm");
        tpi_stream *streams[2] = {ctx->compute, stream};
        for (int i = 0; i < 2; i++) {
            unsigned seen = 0, again = 0;
            cr_assert_eq(ctx->backend->run(streams[i], see_mode, &(mode_args){&seen}, sizeof(mode_args)), TP_OK);
            cr_assert_eq(ctx->backend->run(streams[i], see_mode, &(mode_args){&again}, sizeof(mode_args)), TP_OK);
            cr_assert_eq(tp_ctx_synchronize(ctx), TP_OK);
            cr_assert_eq(seen & ~0x3fu, 0x1f80u);
            cr_assert_eq(again & ~0x3fu, 0x1f80u);
            cr_assert_eq(_mm_getcsr() & ~0x3fu, host, "the caller's mode is back");
        }
        ctx->backend->stream_destroy(stream);
        tp_ctx_destroy(ctx);
        _mm_setcsr(0x1f80u);
    }
}
#endif
