/* What the operations over a fabric share: staging, moves, ends. */
#include "comm/nccl.h"

tp_status tpi_nccl_begin(tpi_stream *stream, tp_comm *comm, tpi_nccl_call *out)
{
    tp_ctx *ctx = comm->ctx;
    tpi_nccl_comm *own = comm->state;
    *out = (tpi_nccl_call){.ctx = ctx,
                           .own = own,
                           .fabric = own->fabric,
                           .table = own->table,
                           .stream = stream,
                           .rank = comm->rank,
                           .size = comm->size};
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(own->control->table->health(own->control));
    return !own->aborted ? TP_OK : tpi_fail(ctx, TP_ERR_STATE, "%s: the communicator was aborted", out->table->name);
}

tp_status tpi_nccl_end(const tpi_nccl_call *call, tp_status status)
{
    if (status == TP_OK && call->ctx->desc.synchronous)
        status = call->ctx->backend->stream_synchronize(call->stream);
    return status;
}

/* The old memory is freed when nothing of the last operation uses it any more. */
static tp_status grow(tpi_nccl_comm *own, size_t bytes)
{
    tp_ctx *ctx = own->comm.ctx;
    size_t size = 65536;
    while (size < bytes)
        size *= 2;
    if (own->staging) {
        TPI_TRY(ctx->backend->event_synchronize(ctx, own->staging_used));
        tp_ctx_release(ctx, TP_MEMORY_COMM, own->staging, own->staging_bytes);
        own->staging = NULL;
        own->staging_bytes = 0;
    }
    tp_status status = tp_ctx_allocate(ctx, TP_MEMORY_COMM, size, &own->staging);
    if (status != TP_OK) /* the peers may have issued the operation already */
        return tpi_fail(ctx, status, "NCCL: no memory for %zu bytes of staging", size);
    own->staging_bytes = size;
    return TP_OK;
}

/* A window is a registered buffer for messages too, and NCCL wants both ends of a message to be, or neither: so who
 * sends from anywhere doesn't receive there. */
static tp_status stage(const tpi_nccl_call *call, size_t bytes, bool small, void **out)
{
    tpi_nccl_comm *own = call->own;
    const tpi_backend *backend = call->ctx->backend;
    if (!own->staging_used)
        TPI_TRY(backend->event_create(call->ctx, &own->staging_used));
    if (!small && own->staging_bytes < bytes)
        TPI_TRY(grow(own, bytes));
    if (own->staging_stream && own->staging_stream != call->stream)
        TPI_TRY(backend->event_wait(own->staging_used, call->stream));
    own->staging_stream = call->stream;
    *out = small ? own->window.memory : own->staging;
    return TP_OK;
}

tp_status tpi_nccl_stage(const tpi_nccl_call *call, size_t bytes, void **out)
{
    return stage(call, bytes, call->own->window.memory && bytes <= call->own->window.bytes, out);
}

tp_status tpi_nccl_stage_messages(const tpi_nccl_call *call, size_t bytes, void **out)
{
    return stage(call, bytes, false, out);
}

tp_status tpi_nccl_unstage(const tpi_nccl_call *call)
{
    return call->ctx->backend->event_record(call->own->staging_used, call->stream);
}

tp_status tpi_nccl_send(const tpi_nccl_call *call, const void *from, size_t bytes, int peer)
{
    const tpi_fabric_op op = {.in = from, .count = (int64_t)bytes, .dtype = TP_DTYPE_U8, .peer = peer};
    return bytes > 0 ? call->table->send(call->stream, call->fabric, &op) : TP_OK;
}

tp_status tpi_nccl_receive(const tpi_nccl_call *call, void *to, size_t bytes, int peer)
{
    const tpi_fabric_op op = {.out = to, .count = (int64_t)bytes, .dtype = TP_DTYPE_U8, .peer = peer};
    return bytes > 0 ? call->table->receive(call->stream, call->fabric, &op) : TP_OK;
}

tp_status tpi_nccl_copy(const tpi_nccl_call *call, void *to, const void *from, size_t bytes)
{
    return bytes > 0 && to != from ? call->ctx->backend->copy(call->stream, to, from, bytes, TPI_COPY_WITHIN) : TP_OK;
}

tp_status tpi_nccl_group_end(const tpi_nccl_call *call, tp_status status)
{
    tp_status ended = call->table->group_end(call->fabric);
    return status != TP_OK ? status : ended;
}
