/* Public communication: check, dispatch to the transport's table. */
#include "comm/collective.h"
#include "core/ops_check.h"

tp_status tpi_comm_usable(tp_ctx *ctx, const tp_comm *comm)
{
    if (!ctx)
        return tpi_message(TP_ERR_ARGUMENT, "ctx is NULL");
    TPI_TRY(tpi_ctx_usable(ctx));
    if (!comm)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "comm is NULL");
    if (comm->ctx != ctx)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "comm belongs to another context");
    return TP_OK;
}

/* The caller's arrays are free again when a public function returns; on the inline stream the work is done by then
 * anyway, and in device order the arrays are read when the operation is issued. */
static tp_status settle(tp_ctx *ctx, bool borrows)
{
    return borrows && !ctx->behind ? ctx->backend->stream_synchronize(ctx->compute) : TP_OK;
}

int tp_comm_rank(const tp_comm *comm)
{
    return comm ? comm->rank : 0;
}

int tp_comm_size(const tp_comm *comm)
{
    return comm ? comm->size : 0;
}

const char *tp_comm_transport(const tp_comm *comm)
{
    return comm ? comm->table->name : "none";
}

/* Tensors by address: copies of what the caller has just written wait for it. */
static tp_status all_reduce(tpi_stream *stream, tp_comm *comm, const tp_tensor *in, const tp_tensor *out,
                            const tp_reduce_desc *desc)
{
    tpi_collective_args args;
    TPI_TRY(tpi_check_all_reduce(comm, in, out, desc, &args));
    return comm->table->all_reduce(stream, &args);
}

tp_status tpi_comm_all_reduce(tpi_stream *stream, tp_comm *comm, tp_tensor in, tp_tensor out,
                              const tp_reduce_desc *desc)
{
    return all_reduce(stream, comm, &in, &out, desc);
}

tp_status tp_all_reduce(tp_ctx *ctx, tp_comm *comm, tp_tensor in, tp_tensor out, const tp_reduce_desc *desc)
{
    TPI_TRY(tpi_comm_usable(ctx, comm));
    return all_reduce(ctx->compute, comm, &in, &out, desc);
}

tp_status tpi_comm_all_reduce_norm(tpi_stream *stream, tp_comm *comm, tp_tensor in, tp_tensor out,
                                   const tp_reduce_desc *desc, const tpi_norm_args *norm)
{
    tpi_collective_args args;
    TPI_TRY(tpi_check_all_reduce(comm, &in, &out, desc, &args));
    args.norm = norm;
    bool norms = comm->table->norms(&args);
    TPI_TRY(comm->table->all_reduce(stream, &args));
    if (!norms)
        return tpi_norm(stream, norm);
    tpi_norm_count(comm->ctx, norm);
    return TP_OK;
}

tp_status tp_all_reduce_norm(tp_ctx *ctx, tp_comm *comm, tp_tensor in, tp_tensor sum, const tp_reduce_desc *desc,
                             const tp_reduce_norm *norm)
{
    tpi_norm_args args;
    tpi_collective_args reduce;
    TPI_TRY(tpi_comm_usable(ctx, comm));
    TPI_TRY(tpi_check_all_reduce(comm, &in, &sum, desc, &reduce));
    if (reduce.reduce.op != TP_REDUCE_SUM)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "all_reduce_norm: op is %d, must be %d", (int)reduce.reduce.op,
                          (int)TP_REDUCE_SUM);
    TPI_TRY(tpi_check_reduce_norm(ctx, sum, norm, &args));
    return tpi_comm_all_reduce_norm(ctx->compute, comm, in, sum, desc, &args);
}

static tp_status reduce_scatter(tpi_stream *stream, tp_comm *comm, const tp_tensor *in, const tp_tensor *out,
                                const int64_t *counts, const tp_reduce_desc *desc)
{
    tpi_collective_args args;
    TPI_TRY(tpi_check_reduce_scatter(comm, in, out, counts, desc, &args));
    return comm->table->reduce_scatter(stream, &args);
}

tp_status tpi_comm_reduce_scatter(tpi_stream *stream, tp_comm *comm, tp_tensor in, tp_tensor out, const int64_t *counts,
                                  const tp_reduce_desc *desc)
{
    return reduce_scatter(stream, comm, &in, &out, counts, desc);
}

tp_status tp_reduce_scatter(tp_ctx *ctx, tp_comm *comm, tp_tensor in, tp_tensor out, const int64_t *counts,
                            const tp_reduce_desc *desc)
{
    TPI_TRY(tpi_comm_usable(ctx, comm));
    TPI_TRY(reduce_scatter(ctx->compute, comm, &in, &out, counts, desc));
    return settle(ctx, counts != NULL);
}

static tp_status all_gather(tpi_stream *stream, tp_comm *comm, const tp_tensor *in, const tp_tensor *out,
                            const int64_t *counts)
{
    tpi_collective_args args;
    TPI_TRY(tpi_check_all_gather(comm, in, out, counts, &args));
    return comm->table->all_gather(stream, &args);
}

tp_status tpi_comm_all_gather(tpi_stream *stream, tp_comm *comm, tp_tensor in, tp_tensor out, const int64_t *counts)
{
    return all_gather(stream, comm, &in, &out, counts);
}

tp_status tp_all_gather(tp_ctx *ctx, tp_comm *comm, tp_tensor in, tp_tensor out, const int64_t *counts)
{
    TPI_TRY(tpi_comm_usable(ctx, comm));
    TPI_TRY(all_gather(ctx->compute, comm, &in, &out, counts));
    return settle(ctx, counts != NULL);
}

tp_status tpi_comm_broadcast(tpi_stream *stream, tp_comm *comm, tp_tensor tensor, int root)
{
    tpi_collective_args args;
    TPI_TRY(tpi_check_broadcast(comm, tensor, root, &args));
    return comm->table->broadcast(stream, &args);
}

tp_status tp_broadcast(tp_ctx *ctx, tp_comm *comm, tp_tensor tensor, int root)
{
    TPI_TRY(tpi_comm_usable(ctx, comm));
    return tpi_comm_broadcast(ctx->compute, comm, tensor, root);
}

tp_status tpi_comm_all_to_all(tpi_stream *stream, tp_comm *comm, tp_tensor in, const int64_t *send_counts,
                              tp_tensor out, const int64_t *recv_counts)
{
    tpi_collective_args args;
    TPI_TRY(tpi_check_all_to_all(comm, in, send_counts, out, recv_counts, &args));
    return comm->table->all_to_all(stream, &args);
}

tp_status tp_all_to_all(tp_ctx *ctx, tp_comm *comm, tp_tensor in, const int64_t *send_counts, tp_tensor out,
                        const int64_t *recv_counts)
{
    TPI_TRY(tpi_comm_usable(ctx, comm));
    TPI_TRY(tpi_comm_all_to_all(ctx->compute, comm, in, send_counts, out, recv_counts));
    return settle(ctx, send_counts || recv_counts);
}

tp_status tpi_comm_p2p(tpi_stream *stream, tp_comm *comm, const tp_p2p *ops, int count)
{
    TPI_TRY(tpi_check_p2p(comm, ops, count));
    const tpi_p2p_args args = {.comm = comm, .ops = ops, .count = count};
    return count > 0 ? comm->table->p2p(stream, &args) : TP_OK;
}

tp_status tp_p2p_batch(tp_ctx *ctx, tp_comm *comm, const tp_p2p *ops, int count)
{
    TPI_TRY(tpi_comm_usable(ctx, comm));
    TPI_TRY(tpi_comm_p2p(ctx->compute, comm, ops, count));
    return settle(ctx, true);
}

tp_status tpi_comm_barrier(tpi_stream *stream, tp_comm *comm)
{
    return comm->table->barrier(stream, comm);
}

tp_status tp_barrier(tp_ctx *ctx, tp_comm *comm)
{
    TPI_TRY(tpi_comm_usable(ctx, comm));
    return tpi_comm_barrier(ctx->compute, comm);
}

tp_status tp_comm_split(tp_ctx *ctx, tp_comm *comm, int color, int key, tp_comm **out)
{
    TPI_TRY(tpi_comm_usable(ctx, comm));
    if (!out)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "split: out is NULL");
    *out = NULL;
    /* The split runs in this thread: nothing of the stream may be under way on comm. */
    TPI_TRY(ctx->backend->stream_synchronize(ctx->compute));
    return comm->table->split(ctx, comm, color, key, out);
}

void tp_comm_destroy(tp_ctx *ctx, tp_comm *comm)
{
    if (!ctx || !comm)
        return;
    ctx->backend->stream_synchronize(ctx->compute);
    comm->table->destroy(ctx, comm);
}

void tp_comm_abort(tp_ctx *ctx, tp_comm *comm, tp_status status, const char *message)
{
    if (ctx && comm)
        comm->table->abort(comm, comm->rank, status, message);
}
