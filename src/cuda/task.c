/* Host tasks in stream order. They never wait and never call CUDA. */
#include <string.h>

#include "core/context.h"
#include "core/plugin.h"
#include "cuda/state.h"

static void do_task(const tpi_cuda_task *place)
{
    tp_ctx *ctx = place->ctx;
    if (!place->anyway && tp_ctx_failure(ctx) != TP_OK)
        return;
    tp_status status = place->task(ctx, place->args);
    if (status != TP_OK && tp_ctx_failure(ctx) == TP_OK) {
        const char *message = ctx->host->last_message();
        tpi_fail(ctx, status, "%s", message[0] ? message : "a host task failed");
    }
}

static void CUDART_CB run_place(void *pointer)
{
    tpi_cuda_task *place = pointer;
    do_task(place);
    atomic_store(&place->busy, false);
}

static cudaError_t query_place(void *object)
{
    return atomic_load(&((tpi_cuda_task *)object)->busy) ? cudaErrorNotReady : cudaSuccess;
}

static tp_status issue(tpi_stream *base, tpi_cuda_task *place)
{
    tp_ctx *ctx = base->ctx;
    if (ctx->desc.dry_run) {
        run_place(place);
        return tpi_ctx_usable(ctx);
    }
    cudaError_t error = cudaLaunchHostFunc(tpi_cuda_handle(base), run_place, place);
    if (error == cudaSuccess)
        return ctx->desc.synchronous ? tpi_cuda_stream_synchronize(base) : TP_OK;
    tp_status status = tpi_cuda_call(ctx, error, "cudaLaunchHostFunc");
    run_place(place); /* the stream is gone: what must be undone is undone now */
    return status;
}

static tp_status run(tpi_stream *base, tpi_cuda_task *filled, const void *args, size_t bytes)
{
    tp_ctx *ctx = base->ctx;
    tpi_cuda_stream *stream = (tpi_cuda_stream *)base;
    TPI_TRY(tpi_cuda_leave_capture(ctx, "a task of the host")); /* its arguments would be others' by the time of a
                                                                 * launch */
    if (bytes > TPI_TASK_BYTES)
        return tpi_refuse(ctx, TP_ERR_INTERNAL, "task arguments of %zu bytes, at most %d are taken", bytes,
                          TPI_TASK_BYTES);
    tpi_cuda_task *place = &stream->tasks[stream->tasks_issued++ % TPI_CUDA_TASKS];
    TPI_TRY(tpi_cuda_poll(ctx, query_place, place, base->name));
    place->ctx = ctx;
    place->task = filled->task;
    place->anyway = filled->anyway;
    if (bytes > 0)
        memcpy(place->args, args, bytes);
    atomic_store(&place->busy, true);
    return issue(base, place);
}

tp_status tpi_cuda_run(tpi_stream *stream, tpi_task task, const void *args, size_t bytes)
{
    TPI_TRY(tpi_ctx_usable(stream->ctx));
    return run(stream, &(tpi_cuda_task){.task = task}, args, bytes);
}

tp_status tpi_cuda_run_anyway(tpi_stream *stream, tpi_task task, const void *args, size_t bytes)
{
    return run(stream, &(tpi_cuda_task){.task = task, .anyway = true}, args, bytes);
}
