/* Streams and events. Nothing here waits for a GPU without the context's bound. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/context.h"
#include "cuda/state.h"

/* Polls that don't sleep, then naps of this length. */
#define QUICK_POLLS 2000
#define NAP_NS 20000
/* After a failure, what waited for peers has been told to end, and gets so long for it. */
#define DRAIN_MS 10000

/* Other contexts may hold it longer than its own lives, so it doesn't lie in that one's memory. */
struct tpi_event {
    cudaEvent_t handle; /* NULL in a dry run */
    atomic_int holders;
    atomic_bool recorded;
    atomic_ullong capture; /* number of the capture in which it was recorded last; 0: in none */
};

static tpi_cuda_stream *stream_of(const tpi_stream *stream)
{
    return (tpi_cuda_stream *)(void *)(uintptr_t)stream;
}

const tpi_cuda_device *tpi_cuda_device_of(const tpi_stream *stream)
{
    return &tpi_cuda_state_of(stream->ctx)->device;
}

/* Whoever asks for the handle is about to use it. */
cudaStream_t tpi_cuda_handle(const tpi_stream *stream)
{
    tpi_cuda_enter(stream->ctx);
    return stream_of(stream)->handle;
}

bool tpi_cuda_dry(const tpi_stream *stream)
{
    return stream->ctx->desc.dry_run;
}

tp_status tpi_cuda_check(tpi_stream *stream, cudaError_t error, const char *what)
{
    TPI_TRY(tpi_cuda_call(stream->ctx, error, what));
    return stream->ctx->desc.synchronous ? tpi_cuda_stream_synchronize(stream) : TP_OK;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

tp_status tpi_cuda_poll(tp_ctx *ctx, tpi_cuda_query query, void *object, const char *what)
{
    double deadline = now() + (double)ctx->desc.timeout_ms;
    bool late = false;
    for (int64_t poll = 0;; poll++) {
        cudaError_t error = query(object);
        if (error != cudaErrorNotReady) {
            TPI_TRY(tpi_cuda_call(ctx, error, what));
            return late ? tpi_ctx_usable(ctx) : TP_OK;
        }
        (void)cudaGetLastError(); /* "not ready" stays the last error until asked for: the check of the next launch must
                                   * not find it */
        if (poll < QUICK_POLLS)
            continue;
        if (now() > deadline && !late) {
            late = true;
            deadline += ctx->watch ? DRAIN_MS : 0;
            tpi_fail(ctx, TP_ERR_TIMEOUT, "CUDA: %s was not done after %lld ms", what, (long long)ctx->desc.timeout_ms);
        }
        if (late && now() > deadline)
            return tpi_ctx_usable(ctx);
        if (ctx->watch)
            ctx->watch(ctx);
        nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    }
}

static cudaError_t query_stream(void *object)
{
    return cudaStreamQuery(((tpi_cuda_stream *)object)->handle);
}

tp_status tpi_cuda_stream_synchronize(tpi_stream *base)
{
    tp_ctx *ctx = base->ctx;
    if (!ctx->desc.dry_run) {
        TPI_TRY(tpi_cuda_leave_capture(ctx, "waiting for a stream"));
        TPI_TRY(tpi_cuda_enter(ctx));
        TPI_TRY(tpi_cuda_poll(ctx, query_stream, stream_of(base), base->name));
        TPI_TRY(tpi_cuda_see_fault(ctx));
    }
    return tpi_ctx_usable(ctx);
}

static tp_status make_handle(tp_ctx *ctx, tpi_cuda_stream *stream, bool urgent)
{
    if (ctx->desc.dry_run)
        return TP_OK;
    TPI_TRY(tpi_cuda_enter(ctx));
    int least = 0, greatest = 0;
    TPI_TRY(
        tpi_cuda_call(ctx, cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange"));
    return tpi_cuda_call(
        ctx, cudaStreamCreateWithPriority(&stream->handle, cudaStreamNonBlocking, urgent ? greatest : least),
        "cudaStreamCreateWithPriority");
}

/* What other lanes do is what compute waits for, so it goes first. */
tp_status tpi_cuda_stream_create(tp_ctx *ctx, const char *name, bool inline_lane, tpi_stream **out)
{
    *out = NULL;
    tpi_cuda_stream *stream = tpi_host_allocate(ctx, sizeof *stream);
    if (!stream)
        return TP_ERR_MEMORY;
    snprintf(stream->name, sizeof stream->name, "%s", name);
    stream->base = (tpi_stream){.ctx = ctx, .name = stream->name};
    stream->tasks = tpi_host_allocate(ctx, TPI_CUDA_TASKS * sizeof *stream->tasks);
    tp_status status = stream->tasks ? make_handle(ctx, stream, !inline_lane) : TP_ERR_MEMORY;
    if (status != TP_OK) {
        tpi_host_release(ctx, stream->tasks, TPI_CUDA_TASKS * sizeof *stream->tasks);
        tpi_host_release(ctx, stream, sizeof *stream);
        return status;
    }
    tpi_stream_enter(ctx, &stream->base);
    *out = &stream->base;
    return TP_OK;
}

void tpi_cuda_stream_destroy(tpi_stream *base)
{
    if (!base)
        return;
    tpi_cuda_stream *stream = stream_of(base);
    tp_ctx *ctx = base->ctx;
    tpi_cuda_stream_synchronize(base);
    tpi_stream_leave(base);
    tpi_cuda_staging_free(stream);
    tp_ctx_release(ctx, TP_MEMORY_SCRATCH, stream->workspace, stream->workspace_bytes);
    tpi_cuda_stream_forget(stream);
    if (stream->handle)
        cudaStreamDestroy(stream->handle);
    tpi_host_release(ctx, stream->tasks, TPI_CUDA_TASKS * sizeof *stream->tasks);
    tpi_host_release(ctx, stream, sizeof *stream);
}

tp_status tpi_cuda_stream_retire(tpi_cuda_stream *stream, void *memory, size_t bytes)
{
    tp_ctx *ctx = stream->base.ctx;
    tpi_cuda_retired *entry = tpi_host_allocate(ctx, sizeof *entry);
    if (!entry)
        return tpi_fail(ctx, TP_ERR_MEMORY, "stream %s: out of host memory", stream->name);
    *entry = (tpi_cuda_retired){stream->retired, memory, bytes};
    stream->retired = entry;
    return TP_OK;
}

void tpi_cuda_stream_forget(tpi_cuda_stream *stream)
{
    tp_ctx *ctx = stream->base.ctx;
    while (stream->retired) {
        tpi_cuda_retired *first = stream->retired;
        stream->retired = first->next;
        tp_ctx_release(ctx, TP_MEMORY_SCRATCH, first->memory, first->bytes);
        tpi_host_release(ctx, first, sizeof *first);
    }
    stream->kept = NULL;
    stream->kept_bytes = 0;
}

/* What is under way, or a graph, uses it. */
static tp_status put_away(tpi_cuda_stream *stream, void **memory, size_t *held)
{
    tp_ctx *ctx = stream->base.ctx;
    if (tpi_cuda_state_of(ctx)->graphs == 0) {
        TPI_TRY(tpi_cuda_stream_synchronize(&stream->base));
        tp_ctx_release(ctx, TP_MEMORY_SCRATCH, *memory, *held);
    } else if (*memory) {
        TPI_TRY(tpi_cuda_stream_retire(stream, *memory, *held));
    }
    *memory = NULL;
    *held = 0;
    return TP_OK;
}

tp_status tpi_cuda_stream_grow(tpi_cuda_stream *stream, void **memory, size_t *held, size_t bytes, const char *what)
{
    if (bytes <= *held)
        return TP_OK;
    /* Grown to a power of two, so that few steps of a warm-up reach the largest. */
    size_t size = 4096;
    while (size < bytes && size <= SIZE_MAX / 2)
        size *= 2;
    TPI_TRY(put_away(stream, memory, held));
    tp_status status = tp_ctx_allocate(stream->base.ctx, TP_MEMORY_SCRATCH, size, memory);
    if (status != TP_OK)
        return tpi_fail(stream->base.ctx, status, "stream %s: no memory for %s of %zu bytes", stream->name, what, size);
    *held = size;
    return TP_OK;
}

tp_status tpi_cuda_workspace(tpi_stream *base, size_t bytes, void **out)
{
    tpi_cuda_stream *stream = stream_of(base);
    tp_status status = tpi_cuda_stream_grow(stream, &stream->workspace, &stream->workspace_bytes, bytes, "a workspace");
    *out = stream->workspace;
    return status;
}

tp_status tpi_cuda_event_create(tp_ctx *ctx, tpi_event **out)
{
    tpi_event *event = calloc(1, sizeof *event);
    *out = NULL;
    if (!event)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "out of host memory: %zu bytes asked for", sizeof *event);
    atomic_init(&event->holders, 1);
    tp_status status = TP_OK;
    if (!ctx->desc.dry_run) {
        status = tpi_cuda_enter(ctx);
        if (status == TP_OK)
            status = tpi_cuda_call(ctx, cudaEventCreateWithFlags(&event->handle, cudaEventDisableTiming),
                                   "cudaEventCreateWithFlags");
    }
    if (status == TP_OK)
        *out = event;
    else
        free(event);
    return status;
}

void tpi_cuda_event_share(tpi_event *event)
{
    atomic_fetch_add(&event->holders, 1);
}

void tpi_cuda_event_destroy(tpi_event *event)
{
    if (!event || atomic_fetch_sub(&event->holders, 1) != 1)
        return;
    if (event->handle)
        cudaEventDestroy(event->handle);
    free(event);
}

tp_status tpi_cuda_event_record(tpi_event *event, tpi_stream *stream)
{
    tp_ctx *ctx = stream->ctx;
    TPI_TRY(tpi_ctx_usable(ctx));
    if (!event->handle)
        return TP_OK;
    TPI_TRY(tpi_cuda_issue_begin(ctx));
    cudaError_t error = cudaEventRecord(event->handle, tpi_cuda_handle(stream));
    tpi_cuda_issue_end(ctx);
    TPI_TRY(tpi_cuda_call(ctx, error, "cudaEventRecord"));
    atomic_store(&event->capture, tpi_cuda_state_of(ctx)->capture_number);
    atomic_store(&event->recorded, true);
    return TP_OK;
}

/* Events don't lead in or out of a graph, and needn't: its launch comes after all that was issued before, and before
 * all that is issued later. */
static bool leads_to(const tpi_event *event, const tp_ctx *ctx)
{
    return event->handle && atomic_load(&event->recorded) &&
           atomic_load(&event->capture) == tpi_cuda_state_of(ctx)->capture_number;
}

tp_status tpi_cuda_event_wait(tpi_event *event, tpi_stream *stream)
{
    tp_ctx *ctx = stream->ctx;
    TPI_TRY(tpi_ctx_usable(ctx));
    if (!leads_to(event, ctx))
        return TP_OK;
    TPI_TRY(tpi_cuda_issue_begin(ctx));
    cudaError_t error = cudaStreamWaitEvent(tpi_cuda_handle(stream), event->handle, 0);
    tpi_cuda_issue_end(ctx);
    return tpi_cuda_call(ctx, error, "cudaStreamWaitEvent");
}

static cudaError_t query_event(void *object)
{
    return cudaEventQuery(((tpi_event *)object)->handle);
}

tp_status tpi_cuda_event_synchronize(tp_ctx *ctx, tpi_event *event)
{
    TPI_TRY(tpi_cuda_leave_capture(ctx, "waiting for an event"));
    if (leads_to(event, ctx)) {
        TPI_TRY(tpi_cuda_enter(ctx));
        TPI_TRY(tpi_cuda_poll(ctx, query_event, event, "event"));
        TPI_TRY(tpi_cuda_see_fault(ctx));
    }
    return tpi_ctx_usable(ctx);
}
