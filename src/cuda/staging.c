/* Copies between the host and the GPU. What goes up passes through pinned pieces that are used in turn, so that the
 * caller may reuse its memory at once and no stream is waited for unless all pieces are under way. */
#include <string.h>

#include "core/context.h"
#include "cuda/state.h"

#define ALL_BYTES (TPI_CUDA_STAGES * TPI_CUDA_STAGE_BYTES)

static tp_status make(tpi_cuda_stream *stream)
{
    tp_ctx *ctx = stream->base.ctx;
    tpi_cuda_staging *staging = &stream->staging;
    if (staging->pinned)
        return TP_OK;
    void *pinned, *device;
    TPI_TRY(tpi_cuda_enter(ctx));
    for (int i = 0; i < TPI_CUDA_STAGES && !ctx->desc.dry_run; i++)
        if (!staging->event[i])
            TPI_TRY(tpi_cuda_call(ctx, cudaEventCreateWithFlags(&staging->event[i], cudaEventDisableTiming),
                                  "cudaEventCreateWithFlags"));
    if (!staging->device) {
        TPI_TRY(tp_ctx_allocate(ctx, TP_MEMORY_SCRATCH, ALL_BYTES, &device));
        staging->device = device;
    }
    if (ctx->desc.dry_run) /* which counts device memory */
        return TP_OK;
    TPI_TRY(tpi_cuda_call(ctx, cudaHostAlloc(&pinned, ALL_BYTES, cudaHostAllocDefault), "cudaHostAlloc"));
    staging->pinned = pinned;
    return TP_OK;
}

void tpi_cuda_staging_free(tpi_cuda_stream *stream)
{
    tpi_cuda_staging *staging = &stream->staging;
    for (int i = 0; i < TPI_CUDA_STAGES; i++)
        if (staging->event[i])
            cudaEventDestroy(staging->event[i]);
    tp_ctx_release(stream->base.ctx, TP_MEMORY_SCRATCH, staging->device, ALL_BYTES);
    tp_ctx_release(stream->base.ctx, TP_MEMORY_SCRATCH, staging->array, staging->array_bytes);
    if (staging->pinned)
        cudaFreeHost(staging->pinned);
}

static cudaError_t query_event(void *object)
{
    return cudaEventQuery(*(cudaEvent_t *)object);
}

/* The pieces handed out last are free again when everything issued since is done. */
static tp_status close_open(tpi_cuda_stream *stream)
{
    tpi_cuda_staging *staging = &stream->staging;
    for (int i = 0; i < staging->open_pieces; i++) {
        int piece = staging->open + i;
        TPI_TRY(tpi_cuda_call(stream->base.ctx, cudaEventRecord(staging->event[piece], tpi_cuda_handle(&stream->base)),
                              "cudaEventRecord"));
        staging->recorded[piece] = true;
    }
    staging->open_pieces = 0;
    return TP_OK;
}

/* A graph of the caller's own would copy again from pieces that hold something else by then. */
static tp_status refuse_capture(tpi_cuda_stream *stream)
{
    tp_ctx *ctx = stream->base.ctx;
    enum cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    TPI_TRY(
        tpi_cuda_call(ctx, cudaStreamIsCapturing(tpi_cuda_handle(&stream->base), &capturing), "cudaStreamIsCapturing"));
    if (capturing == cudaStreamCaptureStatusNone)
        return TP_OK;
    return tpi_fail(ctx, TP_ERR_UNSUPPORTED,
                    "CUDA: a copy from the host in a capture that tp_graph_begin did not begin");
}

/* Takes consecutive free pieces; the first one's number. */
static tp_status take(tpi_cuda_stream *stream, int pieces, int *first)
{
    tpi_cuda_staging *staging = &stream->staging;
    TPI_TRY(refuse_capture(stream));
    TPI_TRY(make(stream));
    TPI_TRY(close_open(stream));
    if (staging->next + pieces > TPI_CUDA_STAGES)
        staging->next = 0;
    *first = staging->next;
    for (int i = 0; i < pieces; i++)
        if (staging->recorded[*first + i]) {
            TPI_TRY(tpi_cuda_poll(stream->base.ctx, query_event, &staging->event[*first + i], "staging"));
            staging->recorded[*first + i] = false;
        }
    staging->next = (*first + pieces) % TPI_CUDA_STAGES;
    staging->open = *first;
    staging->open_pieces = pieces;
    return TP_OK;
}

static tp_status send_up(tpi_cuda_stream *stream, void *to, const void *from, size_t bytes)
{
    tp_ctx *ctx = stream->base.ctx;
    for (size_t begin = 0; begin < bytes; begin += TPI_CUDA_STAGE_BYTES) {
        size_t part = bytes - begin < TPI_CUDA_STAGE_BYTES ? bytes - begin : TPI_CUDA_STAGE_BYTES;
        int piece;
        TPI_TRY(take(stream, 1, &piece));
        char *pinned = stream->staging.pinned + (size_t)piece * TPI_CUDA_STAGE_BYTES;
        memcpy(pinned, (const char *)from + begin, part);
        TPI_TRY(tpi_cuda_call(
            ctx,
            cudaMemcpyAsync((char *)to + begin, pinned, part, cudaMemcpyHostToDevice, tpi_cuda_handle(&stream->base)),
            "cudaMemcpyAsync"));
    }
    return TP_OK;
}

tp_status tpi_cuda_copy(tpi_stream *base, void *to, const void *from, size_t bytes, tpi_copy_kind kind)
{
    static const enum cudaMemcpyKind kinds[] = {[TPI_COPY_WITHIN] = cudaMemcpyDeviceToDevice,
                                                [TPI_COPY_SHARED] = cudaMemcpyHostToDevice,
                                                [TPI_COPY_DOWN] = cudaMemcpyDeviceToHost};
    tp_ctx *ctx = base->ctx;
    TPI_TRY(tpi_ctx_usable(ctx));
    if (bytes == 0 || to == from)
        return TP_OK;
    if (ctx->desc.dry_run)
        return kind == TPI_COPY_UP ? make((tpi_cuda_stream *)base) : TP_OK;
    if (kind == TPI_COPY_UP) {
        TPI_TRY(send_up((tpi_cuda_stream *)base, to, from, bytes));
    } else {
        TPI_TRY(tpi_cuda_issue_begin(ctx));
        cudaError_t error = cudaMemcpyAsync(to, from, bytes, kinds[kind], tpi_cuda_handle(base));
        tpi_cuda_issue_end(ctx);
        TPI_TRY(tpi_cuda_call(ctx, error, "cudaMemcpyAsync"));
    }
    return ctx->desc.synchronous ? tpi_cuda_stream_synchronize(base) : TP_OK;
}

static cudaError_t query_side(void *object)
{
    return cudaStreamQuery(*(cudaStream_t *)object);
}

/* A copy that is done when the call returns, past the streams that are being captured. */
static tp_status copy_aside(tp_ctx *ctx, void *to, const void *from, size_t bytes)
{
    cudaStream_t side;
    TPI_TRY(tpi_cuda_call(ctx, cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
    tp_status status =
        tpi_cuda_call(ctx, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, side), "cudaMemcpyAsync");
    if (status == TP_OK)
        status = tpi_cuda_poll(ctx, query_side, &side, "a copy for a graph");
    cudaStreamDestroy(side);
    return status;
}

/* A graph has the array as it is now, in memory that stays as long as there are graphs. */
static tp_status keep(tpi_cuda_stream *stream, const void *host, size_t bytes, const void **out)
{
    tp_ctx *ctx = stream->base.ctx;
    size_t size = (bytes + 255) / 256 * 256;
    TPI_TRY(tpi_cuda_enter(ctx));
    if (stream->kept_bytes < size) {
        size_t all = size > TPI_CUDA_STAGE_BYTES ? size : TPI_CUDA_STAGE_BYTES;
        void *memory;
        tp_status status = tp_ctx_allocate(ctx, TP_MEMORY_SCRATCH, all, &memory);
        if (status != TP_OK)
            return tpi_fail(ctx, status, "stream %s: no memory for %zu bytes that a graph keeps", stream->name, all);
        status = tpi_cuda_stream_retire(stream, memory, all);
        if (status != TP_OK) {
            tp_ctx_release(ctx, TP_MEMORY_SCRATCH, memory, all);
            return status;
        }
        stream->kept = memory;
        stream->kept_bytes = all;
    }
    *out = stream->kept;
    TPI_TRY(copy_aside(ctx, stream->kept, host, bytes));
    stream->kept += size;
    stream->kept_bytes -= size;
    return TP_OK;
}

/* Longer than all pieces: piece by piece to memory of its own, behind the op that may read it still. An op has one such
 * array at most: offsets; heads are never as many. */
static tp_status stage_long(tpi_cuda_stream *stream, const void *host, size_t bytes, const void **out)
{
    tpi_cuda_staging *staging = &stream->staging;
    TPI_TRY(tpi_cuda_stream_grow(stream, &staging->array, &staging->array_bytes, bytes, "a host array"));
    *out = staging->array;
    return stream->base.ctx->desc.dry_run ? make(stream) : send_up(stream, staging->array, host, bytes);
}

tp_status tpi_cuda_stage(tpi_stream *base, const void *host, size_t bytes, const void **out)
{
    tpi_cuda_stream *stream = (tpi_cuda_stream *)base;
    tp_ctx *ctx = base->ctx;
    *out = NULL;
    int pieces = (int)((bytes + TPI_CUDA_STAGE_BYTES - 1) / TPI_CUDA_STAGE_BYTES), first;
    if (!ctx->desc.dry_run && tpi_cuda_state_of(ctx)->capture)
        return keep(stream, host, bytes, out);
    if (bytes > ALL_BYTES)
        return stage_long(stream, host, bytes, out);
    if (ctx->desc.dry_run) {
        *out = host; /* nobody reads it */
        return make(stream);
    }
    TPI_TRY(take(stream, pieces > 0 ? pieces : 1, &first));
    size_t place = (size_t)first * TPI_CUDA_STAGE_BYTES;
    memcpy(stream->staging.pinned + place, host, bytes);
    *out = stream->staging.device + place;
    return tpi_cuda_call(ctx,
                         cudaMemcpyAsync(stream->staging.device + place, stream->staging.pinned + place, bytes,
                                         cudaMemcpyHostToDevice, tpi_cuda_handle(base)),
                         "cudaMemcpyAsync");
}
