/* Operations over a fabric that only move data. */
#include "comm/nccl.h"

static size_t bytes_of_rows(const tpi_collective_args *args, tp_range rows)
{
    return tpi_comm_bytes((rows.end - rows.begin) * args->cols, args->in_dtype);
}

static const char *row_of(const void *base, const tpi_collective_args *args, int64_t row)
{
    return tpi_comm_at(base, row * args->cols, args->in_dtype);
}

static char *row_of_out(void *base, const tpi_collective_args *args, int64_t row)
{
    return tpi_comm_at_out(base, row * args->cols, args->in_dtype);
}

/* ---- all_gather -------------------------------------------------------------------------------------------------- */

static bool all_equal(const tpi_collective_args *args, int size)
{
    tp_range first = tpi_comm_range(args->counts, args->rows, size, 0);
    for (int rank = 1; rank < size; rank++) {
        tp_range rows = tpi_comm_range(args->counts, args->rows, size, rank);
        if (rows.end - rows.begin != first.end - first.begin)
            return false;
    }
    return true;
}

/* Every rank's rows are a broadcast of their own. */
static tp_status gather_uneven(const tpi_nccl_call *call, const tpi_collective_args *args)
{
    TPI_TRY(call->table->group_begin(call->fabric));
    tp_status status = TP_OK;
    for (int rank = 0; rank < call->size && status == TP_OK; rank++) {
        tp_range rows = tpi_comm_range(args->counts, args->rows, call->size, rank);
        void *out = row_of_out(args->out, args, rows.begin);
        const tpi_fabric_op op = {.in = rank == call->rank ? args->in : out,
                                  .out = out,
                                  .count = (int64_t)bytes_of_rows(args, rows),
                                  .dtype = TP_DTYPE_U8,
                                  .peer = rank};
        if (op.count > 0)
            status = call->table->broadcast(call->stream, call->fabric, &op);
    }
    return tpi_nccl_group_end(call, status);
}

tp_status tpi_nccl_all_gather(const tpi_nccl_call *call, const tpi_collective_args *args)
{
    if (!all_equal(args, call->size))
        return gather_uneven(call, args);
    tp_range rows = tpi_comm_range(args->counts, args->rows, call->size, call->rank);
    const tpi_fabric_op op = {
        .in = args->in, .out = args->out, .count = (int64_t)bytes_of_rows(args, rows), .dtype = TP_DTYPE_U8};
    return op.count > 0 ? call->table->all_gather(call->stream, call->fabric, &op) : TP_OK;
}

/* ---- broadcast, all_to_all, barrier ------------------------------------------------------------------------------ */

tp_status tpi_nccl_broadcast(const tpi_nccl_call *call, const tpi_collective_args *args)
{
    const tpi_fabric_op op = {.in = args->out,
                              .out = args->out,
                              .count = (int64_t)bytes_of_rows(args, (tp_range){0, args->rows}),
                              .dtype = TP_DTYPE_U8,
                              .peer = args->root};
    return op.count > 0 ? call->table->broadcast(call->stream, call->fabric, &op) : TP_OK;
}

/* Sends before receives, so that both sides match messages alike. */
static tp_status exchange_rows(const tpi_nccl_call *call, const tpi_collective_args *args)
{
    for (int i = 1; i < call->size; i++) { /* everyone begins with the next rank, so that not all send to the same
                                            * one */
        int to = (call->rank + i) % call->size, from = (call->rank + call->size - i) % call->size;
        tp_range sent = tpi_comm_range(args->counts, args->rows, call->size, to);
        tp_range received = tpi_comm_range(args->recv_counts, args->out_rows, call->size, from);
        TPI_TRY(tpi_nccl_send(call, row_of(args->in, args, sent.begin), bytes_of_rows(args, sent), to));
        TPI_TRY(
            tpi_nccl_receive(call, row_of_out(args->out, args, received.begin), bytes_of_rows(args, received), from));
    }
    return TP_OK;
}

tp_status tpi_nccl_all_to_all(const tpi_nccl_call *call, const tpi_collective_args *args)
{
    tp_range sent = tpi_comm_range(args->counts, args->rows, call->size, call->rank);
    tp_range received = tpi_comm_range(args->recv_counts, args->out_rows, call->size, call->rank);
    if (bytes_of_rows(args, sent) != bytes_of_rows(args, received))
        return tpi_fail(call->ctx, TP_ERR_MISMATCH, "all_to_all: rank %d sends %lld rows to itself and expects %lld",
                        call->rank, (long long)(sent.end - sent.begin), (long long)(received.end - received.begin));
    TPI_TRY(call->table->group_begin(call->fabric));
    TPI_TRY(tpi_nccl_group_end(call, exchange_rows(call, args)));
    return tpi_nccl_copy(call, row_of_out(args->out, args, received.begin), row_of(args->in, args, sent.begin),
                         bytes_of_rows(args, sent));
}

/* Nobody has a sum before all came. */
tp_status tpi_nccl_barrier(const tpi_nccl_call *call, const tpi_collective_args *args)
{
    (void)args;
    void *word;
    TPI_TRY(tpi_nccl_stage(call, sizeof(float), &word));
    const float zero = 0;
    TPI_TRY(call->ctx->backend->copy(call->stream, word, &zero, sizeof zero, TPI_COPY_UP));
    const tpi_fabric_op op = {.in = word, .out = word, .count = 1, .dtype = TP_DTYPE_F32, .op = TP_REDUCE_SUM};
    TPI_TRY(call->table->all_reduce(call->stream, call->fabric, &op));
    return tpi_nccl_unstage(call);
}
