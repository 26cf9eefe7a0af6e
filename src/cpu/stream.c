/* Streams of the CPU: the inline one runs tasks in the caller, a worker lane in its own thread, first in, first out.
 * Events order lanes exactly as on CUDA: a wait is for what had been recorded when the wait was issued, and blocks the
 * waiting lane only. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cpu/float_mode.h"
#include "cpu/state.h"

#define RING_ENTRIES 256 /* issued and not done; whoever issues more waits */
#define NAME_BYTES 16
#define MAX_DELAY_US 200

typedef enum entry_kind { ENTRY_TASK, ENTRY_OP, ENTRY_ANYWAY, ENTRY_RECORD, ENTRY_WAIT, ENTRY_STOP } entry_kind;

typedef struct lane_entry {
    entry_kind kind;
    tpi_task task;
    tpi_event *event;
    uint64_t ticket; /* of the event: to raise, or to wait for */
} lane_entry;

typedef struct lane_place {
    lane_entry entry;
    _Alignas(16) unsigned char args[TPI_TASK_BYTES];
} lane_place;

typedef struct cpu_stream {
    tpi_stream base;
    char name[NAME_BYTES];
    bool is_compute; /* the context's compute stream, inline or, in test mode, a lane */
    bool is_lane;
    pthread_t thread;
    pthread_mutex_t issuing;
    tpi_counter issued, done; /* entries */
    tpi_cpu_workspace_slot workspace;
    uint64_t delay_state; /* 0: no delays */
    lane_place *ring;     /* [RING_ENTRIES] */
} cpu_stream;

/* Other contexts' lanes may wait for it, so it doesn't lie in its context's memory and lives until the last of them is
 * through. */
struct tpi_event {
    atomic_uint_fast64_t recorded; /* tickets given out */
    atomic_int holders;            /* the owner, and lane entries that name it */
    tpi_counter done;
};

/* The lane whose thread this is. A task has no other way to learn it, and its workspace depends on it. */
static _Thread_local cpu_stream *current_lane;

tpi_cpu_workspace_slot *tpi_cpu_lane_slot(void)
{
    return current_lane && !current_lane->is_compute ? &current_lane->workspace : NULL;
}

int tpi_cpu_thread_start(pthread_t *thread, void *(*fn)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static tpi_cpu_state *state_of(const tp_ctx *ctx)
{
    return ctx->device_state;
}

/* tp_ctx_failure, in place. */
static inline bool is_broken(const tp_ctx *ctx)
{
    return __builtin_expect(atomic_load_explicit(&ctx->failure.status, memory_order_acquire) != TP_OK, 0);
}

/* A task in this thread, now. */
static inline tp_status run_here(tp_ctx *ctx, tpi_task task, const void *args)
{
    tpi_float_mode caller = tpi_float_mode_default();
    tp_status status = task(ctx, args);
    if (!tpi_float_mode_is_default(caller))
        tpi_float_mode_restore(caller);
    if (__builtin_expect(status != TP_OK, 0) && !is_broken(ctx))
        tpi_fail(ctx, status, "%s", tp_last_message()[0] ? tp_last_message() : tp_status_text(status));
    return status;
}

static tp_status run_task(cpu_stream *stream, const lane_entry *entry, const void *args)
{
    tp_ctx *ctx = stream->base.ctx;
    if (entry->kind != ENTRY_ANYWAY && is_broken(ctx))
        return tpi_ctx_usable(ctx);
    bool timed = entry->kind == ENTRY_OP && stream->is_compute;
    double start = timed ? tpi_seconds() : 0;
    tp_status status = run_here(ctx, entry->task, args);
    if (timed)
        tpi_add_seconds(ctx, tpi_seconds() - start, 0);
    return status;
}

static void hold(tpi_event *event)
{
    atomic_fetch_add(&event->holders, 1);
}

static void let_go(tpi_event *event)
{
    if (atomic_fetch_sub(&event->holders, 1) != 1)
        return;
    tpi_counter_destroy(&event->done);
    tpi_raw_release(NULL, event, sizeof *event);
}

/* The bound of a wait for another lane. What a lane does may wait for a peer, as long as the context's bound says: who
 * waits for the lane waits longer, so that the failure that the context keeps is the lane's, which names the peer. */
#define LEAST_PATIENCE_MS 500
static int64_t patience_ms(const tp_ctx *ctx, int lanes)
{
    int64_t bound = ctx->desc.timeout_ms, more = bound / 8 > LEAST_PATIENCE_MS ? bound / 8 : LEAST_PATIENCE_MS;
    return bound + lanes * more;
}

/* ctx: who waits. lanes: how many may wait for each other, with this wait. */
static tp_status wait_for(tp_ctx *ctx, tpi_event *event, uint64_t ticket, const char *name, int lanes)
{
    int64_t timeout_ms = patience_ms(ctx, lanes);
    if (tpi_counter_wait(&event->done, ticket, state_of(ctx)->lane_spin_ns, timeout_ms))
        return TP_OK;
    return tpi_fail(ctx, TP_ERR_TIMEOUT, "stream %s waited %lld ms for an event: record %llu, reached %llu", name,
                    (long long)timeout_ms, (unsigned long long)ticket,
                    (unsigned long long)tpi_counter_get(&event->done));
}

static tp_status execute(cpu_stream *stream, const lane_entry *entry, const void *args)
{
    tp_ctx *ctx = stream->base.ctx;
    tp_status status;
    switch (entry->kind) {
    case ENTRY_TASK:
    case ENTRY_OP:
    case ENTRY_ANYWAY: return run_task(stream, entry, args);
    case ENTRY_RECORD:
        /* Tickets complete in order, also when one event is recorded on two lanes in turn. */
        status = wait_for(ctx, entry->event, entry->ticket - 1, stream->name, 1);
        tpi_counter_raise(&entry->event->done, entry->ticket);
        let_go(entry->event);
        return status;
    case ENTRY_WAIT:
        status = wait_for(ctx, entry->event, entry->ticket, stream->name, 1);
        let_go(entry->event);
        return status;
    default: return TP_OK;
    }
}

/* Test mode: every fourth entry, on average, starts up to MAX_DELAY_US late. */
static void delay(cpu_stream *stream)
{
    if (stream->delay_state == 0)
        return;
    stream->delay_state = stream->delay_state * 6364136223846793005u + 1442695040888963407u;
    uint32_t number = (uint32_t)(stream->delay_state >> 33);
    if (number % 4 != 0)
        return;
    struct timespec pause = {0, (long)(number / 4 % (MAX_DELAY_US + 1)) * 1000};
    nanosleep(&pause, NULL);
}

static void *lane_main(void *argument)
{
    cpu_stream *stream = argument;
    current_lane = stream;
    tpi_float_mode_default(); /* threads inherit their creator's */
    int64_t spin_ns = state_of(stream->base.ctx)->lane_spin_ns;
    for (uint64_t next = 0;; next++) {
        tpi_counter_wait(&stream->issued, next + 1, spin_ns, TPI_WAIT_FOREVER);
        const lane_place *place = &stream->ring[next % RING_ENTRIES];
        bool stop = place->entry.kind == ENTRY_STOP;
        if (!stop) {
            delay(stream);
            execute(stream, &place->entry, place->args);
        }
        tpi_counter_raise(&stream->done, next + 1);
        if (stop)
            return NULL;
    }
}

static tp_status enqueue(cpu_stream *stream, const lane_entry *entry, const void *args, size_t bytes)
{
    tp_ctx *ctx = stream->base.ctx;
    int64_t timeout_ms = entry->kind == ENTRY_STOP ? TPI_WAIT_FOREVER : patience_ms(ctx, 2);
    pthread_mutex_lock(&stream->issuing);
    uint64_t number = tpi_counter_get(&stream->issued);
    bool room = number < RING_ENTRIES ||
                tpi_counter_wait(&stream->done, number - RING_ENTRIES + 1, state_of(ctx)->lane_spin_ns, timeout_ms);
    if (room) {
        lane_place *place = &stream->ring[number % RING_ENTRIES];
        place->entry = *entry;
        if (bytes > 0)
            memcpy(place->args, args, bytes);
        tpi_counter_raise(&stream->issued, number + 1);
    }
    pthread_mutex_unlock(&stream->issuing);
    if (!room)
        return tpi_fail(ctx, TP_ERR_TIMEOUT, "stream %s had no room for %lld ms: %d tasks wait", stream->name,
                        (long long)timeout_ms, RING_ENTRIES);
    return TP_OK;
}

static tp_status issue(tpi_stream *base, const lane_entry *entry, const void *args, size_t bytes)
{
    cpu_stream *stream = (cpu_stream *)base;
    return stream->is_lane ? enqueue(stream, entry, args, bytes) : execute(stream, entry, args);
}

static tp_status issue_task(tpi_stream *base, entry_kind kind, tpi_task task, const void *args, size_t bytes)
{
    tp_ctx *ctx = base->ctx;
    if (kind != ENTRY_ANYWAY)
        TPI_TRY(tpi_ctx_usable(ctx));
    if (bytes > TPI_TASK_BYTES)
        return tpi_refuse(ctx, TP_ERR_INTERNAL, "task arguments of %zu bytes, at most %d are taken", bytes,
                          TPI_TASK_BYTES);
    TPI_TRY(issue(base, &(lane_entry){.kind = kind, .task = task}, args, bytes));
    return ctx->desc.synchronous ? tpi_cpu_stream_synchronize(base) : TP_OK;
}

tp_status tpi_cpu_run(tpi_stream *base, tpi_task task, const void *args, size_t bytes)
{
    cpu_stream *stream = (cpu_stream *)base;
    /* The short way of what runs at once: a small collective passes here in a quarter of a microsecond. */
    if (!stream->is_lane && bytes <= TPI_TASK_BYTES && !base->ctx->desc.synchronous && !is_broken(base->ctx))
        return run_here(base->ctx, task, args);
    return issue_task(base, ENTRY_TASK, task, args, bytes);
}

tp_status tpi_cpu_run_anyway(tpi_stream *stream, tpi_task task, const void *args, size_t bytes)
{
    return issue_task(stream, ENTRY_ANYWAY, task, args, bytes);
}

tp_status tpi_cpu_launch(tpi_stream *stream, tpi_task task, const void *args, size_t bytes)
{
    return issue_task(stream, ENTRY_OP, task, args, bytes);
}

tp_status tpi_cpu_stream_synchronize(tpi_stream *base)
{
    cpu_stream *stream = (cpu_stream *)base;
    tp_ctx *ctx = base->ctx;
    if (stream->is_lane) {
        uint64_t issued = tpi_counter_get(&stream->issued);
        int64_t timeout_ms = patience_ms(ctx, 2);
        if (!tpi_counter_wait(&stream->done, issued, state_of(ctx)->lane_spin_ns, timeout_ms))
            return tpi_fail(ctx, TP_ERR_TIMEOUT, "stream %s was not done after %lld ms: %llu of %llu tasks",
                            stream->name, (long long)timeout_ms,
                            (unsigned long long)tpi_counter_get(&stream->done), (unsigned long long)issued);
    }
    return tpi_ctx_usable(ctx);
}

static tp_status start_lane(cpu_stream *stream)
{
    tp_ctx *ctx = stream->base.ctx;
    stream->ring = tpi_host_allocate(ctx, RING_ENTRIES * sizeof *stream->ring);
    if (!stream->ring)
        return TP_ERR_MEMORY;
    pthread_mutex_init(&stream->issuing, NULL);
    tpi_counter_init(&stream->issued);
    tpi_counter_init(&stream->done);
    int error = tpi_cpu_thread_start(&stream->thread, lane_main, stream);
    if (error == 0)
        return TP_OK;
    pthread_mutex_destroy(&stream->issuing);
    tpi_counter_destroy(&stream->issued);
    tpi_counter_destroy(&stream->done);
    tpi_host_release(ctx, stream->ring, RING_ENTRIES * sizeof *stream->ring);
    return tpi_refuse(ctx, TP_ERR_BACKEND, "stream %s: no thread could be started: %s", stream->name, strerror(error));
}

tp_status tpi_cpu_stream_create(tp_ctx *ctx, const char *name, bool inline_lane, tpi_stream **out)
{
    *out = NULL;
    cpu_stream *stream = tpi_host_allocate(ctx, sizeof *stream);
    if (!stream)
        return TP_ERR_MEMORY;
    snprintf(stream->name, sizeof stream->name, "%s", name);
    stream->base = (tpi_stream){.ctx = ctx, .name = stream->name};
    stream->is_compute = !ctx->compute; /* the first stream of a context */
    uint64_t seed = ctx->desc.lane_delay_seed;
    stream->is_lane = !inline_lane || seed != 0;
    stream->base.at_once = !stream->is_lane;
    stream->delay_state = seed == 0 ? 0 : (seed + 0x9e3779b97f4a7c15u * ++state_of(ctx)->streams_made) | 1u;
    if (stream->is_lane) {
        tp_status status = start_lane(stream);
        if (status != TP_OK) {
            tpi_host_release(ctx, stream, sizeof *stream);
            return status;
        }
    }
    tpi_stream_enter(ctx, &stream->base);
    *out = &stream->base;
    return TP_OK;
}

void tpi_cpu_stream_destroy(tpi_stream *base)
{
    if (!base)
        return;
    cpu_stream *stream = (cpu_stream *)base;
    tp_ctx *ctx = base->ctx;
    tpi_stream_leave(base);
    if (stream->is_lane) {
        enqueue(stream, &(lane_entry){.kind = ENTRY_STOP}, NULL, 0);
        pthread_join(stream->thread, NULL);
        pthread_mutex_destroy(&stream->issuing);
        tpi_counter_destroy(&stream->issued);
        tpi_counter_destroy(&stream->done);
        tpi_host_release(ctx, stream->ring, RING_ENTRIES * sizeof *stream->ring);
    }
    tpi_cpu_slot_free(ctx, &stream->workspace);
    tpi_host_release(ctx, stream, sizeof *stream);
}

tp_status tpi_cpu_event_create(tp_ctx *ctx, tpi_event **out)
{
    tpi_event *event = tpi_raw_allocate(NULL, sizeof *event);
    *out = event;
    if (!event)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "out of host memory: %zu bytes asked for", sizeof *event);
    atomic_init(&event->recorded, 0);
    atomic_init(&event->holders, 1);
    tpi_counter_init(&event->done);
    return TP_OK;
}

void tpi_cpu_event_destroy(tpi_event *event)
{
    if (event)
        let_go(event);
}

static tp_status issue_event(tpi_stream *stream, const lane_entry *entry)
{
    hold(entry->event);
    tp_status status = issue(stream, entry, NULL, 0);
    if (status == TP_ERR_TIMEOUT && ((cpu_stream *)stream)->is_lane)
        let_go(entry->event); /* it found no room */
    return status;
}

tp_status tpi_cpu_event_record(tpi_event *event, tpi_stream *stream)
{
    TPI_TRY(tpi_ctx_usable(stream->ctx));
    return issue_event(
        stream,
        &(lane_entry){.kind = ENTRY_RECORD, .event = event, .ticket = atomic_fetch_add(&event->recorded, 1) + 1});
}

tp_status tpi_cpu_event_wait(tpi_event *event, tpi_stream *stream)
{
    TPI_TRY(tpi_ctx_usable(stream->ctx));
    uint64_t recorded = atomic_load(&event->recorded);
    if (recorded == 0)
        return TP_OK; /* nothing was recorded: nothing to wait for */
    return issue_event(stream, &(lane_entry){.kind = ENTRY_WAIT, .event = event, .ticket = recorded});
}

tp_status tpi_cpu_event_synchronize(tp_ctx *ctx, tpi_event *event)
{
    TPI_TRY(wait_for(ctx, event, atomic_load(&event->recorded), "of the host", 2));
    return tpi_ctx_usable(ctx);
}

void tpi_cpu_event_share(tpi_event *event)
{
    hold(event);
}

typedef struct copy_task {
    void *to;
    const void *from;
    size_t bytes;
} copy_task;

static tp_status copy(tp_ctx *ctx, const void *pointer)
{
    const copy_task *task = pointer;
    if (task->bytes > 0 && task->to != task->from && !ctx->desc.dry_run)
        memcpy(task->to, task->from, task->bytes);
    return TP_OK;
}

/* The host's end of an upload may be used again when this returns. */
tp_status tpi_cpu_copy(tpi_stream *stream, void *to, const void *from, size_t bytes, tpi_copy_kind kind)
{
    const copy_task task = {to, from, bytes};
    TPI_TRY(issue_task(stream, ENTRY_TASK, copy, &task, sizeof task));
    return kind == TPI_COPY_UP ? tpi_cpu_stream_synchronize(stream) : TP_OK;
}
