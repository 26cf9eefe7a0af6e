/* Collectives in device order: streams run behind, so ranks wait for each other when they issue and streams wait for
 * events. An operation is
 *
 *     record `ready`; post, gate; wait for peers' `ready`; own ops on peers' buffers;
 *     record `done`; gate; wait for peers' `done`
 *
 * A small all-reduce between devices is one kernel a rank (threads_peer.c). Where it isn't, it goes through staging,
 * used in turn: the `ready` of the next one that does so says that nobody reads it any more, and its second gate falls
 * away. Between the gates a rank is marked as touching peers' buffers; after a failure it waits for its stream before
 * the mark goes. */
#include "comm/threads.h"

/* Slices begin at multiples of this many elements, so that neighbours don't write into one cache line. */
#define SLICE_ELEMENTS 64

typedef struct device_op {
    tpi_call call;
    tpi_device_comm *device;
    const tpi_collective_args *args;
    int source;  /* the one rank whose input is read; -1: everybody's */
    bool parted; /* passed the second gate: peers' `done` events are recorded */
} device_op;

static const tpi_backend *backend_of(const device_op *op)
{
    return op->call.ctx->backend;
}

/* ---- meeting and parting ----------------------------------------------------------------------------------------- */

/* Publishes this rank's buffers and makes its stream wait until those that it reads are ready. The seat has turned to
 * its next post. */
static tp_status meet(device_op *op, const tpi_post *post)
{
    tpi_call *call = &op->call;
    tpi_post mine = *post;
    mine.ready = op->device->ready[call->seat->posts & 1];
    mine.done = op->device->done;
    TPI_TRY(backend_of(op)->event_record(mine.ready, call->stream));
    TPI_TRY(tpi_call_post(call, &mine));
    op->device->shared = op->device->ops;
    if (!tpi_touch_begin(call))
        return tpi_call_peer_failed(call);
    for (int rank = 0; rank < call->size; rank++)
        if (rank != call->rank && (op->source < 0 || op->source == rank))
            TPI_TRY(backend_of(op)->event_wait(tpi_call_peer(call, rank)->ready, call->stream));
    return TP_OK;
}

static tp_status turn_and_meet(device_op *op, const tpi_post *post)
{
    tpi_call_next(&op->call);
    return meet(op, post);
}

/* Tells peers when this rank is through with their buffers, and makes its stream wait until those that used its own
 * are. */
static tp_status part(device_op *op)
{
    tpi_call *call = &op->call;
    TPI_TRY(backend_of(op)->event_record(op->device->done, call->stream));
    TPI_TRY(tpi_call_gate(call));
    op->parted = true;
    tpi_touch_end(call);
    for (int rank = 0; rank < call->size; rank++)
        if (rank != call->rank && (op->source < 0 || op->source == call->rank))
            TPI_TRY(backend_of(op)->event_wait(tpi_call_peer(call, rank)->done, call->stream));
    return TP_OK;
}

/* After a failure nothing of this operation runs on in anybody's buffers. */
static tp_status break_off(device_op *op, tp_status status)
{
    tpi_call *call = &op->call;
    status = tpi_call_op_failed(call, status);
    for (int rank = 0; op->parted && rank < call->size; rank++)
        if (rank != call->rank)
            backend_of(op)->event_synchronize(call->ctx, tpi_call_peer(call, rank)->done);
    return status;
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

static tpi_span span_of(device_op *op, const void *const *in, void *const *out, int outputs)
{
    return (tpi_span){
        .in = in,
        .inputs = op->call.size,
        .in_dtype = op->args->in_dtype,
        .out = out,
        .outputs = outputs,
        .out_dtype = op->args->out_dtype,
        .cols = op->args->cols,
        .reduce = &op->args->reduce,
        .stream = op->call.stream,
        .arrays = &op->device->arrays,
    };
}

static char *staging_of(const device_op *op)
{
    return op->device->staging + (op->device->stagings & 1) * TPI_DEVICE_STAGING_BYTES;
}

static tp_status make_staging(device_op *op)
{
    if (op->device->staging)
        return TP_OK;
    void *memory;
    TPI_TRY(tp_ctx_allocate(op->call.ctx, TP_MEMORY_COMM, 2 * TPI_DEVICE_STAGING_BYTES, &memory));
    op->device->staging = memory;
    return TP_OK;
}

/* Elements [begin, end): copied to staging, and everybody's added. In place needs no care. */
static tp_status add_stretch(device_op *op, int64_t begin, int64_t end)
{
    const tpi_collective_args *args = op->args;
    tpi_call *call = &op->call;
    tpi_call_next(call);
    op->device->stagings++;
    TPI_TRY(backend_of(op)->copy(call->stream, staging_of(op), tpi_comm_at(args->in, begin, args->in_dtype),
                                 tpi_comm_bytes(end - begin, args->in_dtype), TPI_COPY_WITHIN));
    tpi_post post = tpi_post_of_reduction(args);
    post.staging = staging_of(op);
    TPI_TRY(meet(op, &post));
    const void *in[TPI_MAX_RANKS];
    for (int rank = 0; rank < call->size; rank++)
        in[rank] = tpi_call_peer(call, rank)->staging;
    void *out = tpi_comm_at_out(args->out, begin, args->out_dtype);
    tpi_span span = span_of(op, in, &out, 1);
    span.begin = begin;
    span.end = end;
    return tpi_comm_reduce_span(call->ctx, &span);
}

static tp_status one_shot(device_op *op)
{
    int64_t elements = op->args->rows * op->args->cols;
    int64_t most = (int64_t)(TPI_DEVICE_STAGING_BYTES / tp_dtype_size(op->args->in_dtype)), begin = 0;
    TPI_TRY(make_staging(op));
    do {
        int64_t end = elements - begin < most ? elements : begin + most;
        TPI_TRY(add_stretch(op, begin, end));
        tpi_touch_end(&op->call); /* staging stays until the communicator goes, which looks at `done` */
        begin = end;
    } while (begin < elements);
    return backend_of(op)->event_record(op->device->done, op->call.stream);
}

static tp_range slice_of(const tpi_call *call, int64_t elements)
{
    int64_t blocks = elements / SLICE_ELEMENTS + (elements % SLICE_ELEMENTS != 0);
    tp_range range = tp_shard_range(blocks, call->size, call->rank);
    return (tp_range){range.begin == blocks ? elements : range.begin * SLICE_ELEMENTS,
                      range.end == blocks ? elements : range.end * SLICE_ELEMENTS};
}

/* Every rank adds its slice and writes it to all: nobody else reads that slice of any buffer, so in place is safe. */
static tp_status two_shot(device_op *op)
{
    const tpi_collective_args *args = op->args;
    const tpi_post post = tpi_post_of_reduction(args);
    TPI_TRY(turn_and_meet(op, &post));
    tp_range slice = slice_of(&op->call, args->rows * args->cols);
    const void *in[TPI_MAX_RANKS];
    void *out[TPI_MAX_RANKS];
    for (int rank = 0; rank < op->call.size; rank++) {
        in[rank] = tpi_comm_at(tpi_call_peer(&op->call, rank)->in, slice.begin, args->in_dtype);
        out[rank] = tpi_comm_at_out(tpi_call_peer(&op->call, rank)->out, slice.begin, args->out_dtype);
    }
    tpi_span span = span_of(op, in, out, op->call.size);
    span.begin = slice.begin;
    span.end = slice.end;
    TPI_TRY(tpi_comm_reduce_span(op->call.ctx, &span));
    return part(op);
}

bool tpi_device_stages(const tpi_collective_args *args)
{
    tp_all_reduce_algorithm algorithm = args->reduce.algorithm;
    bool small = tpi_comm_bytes(args->rows * args->cols, args->in_dtype) <= TPI_DEVICE_STAGING_BYTES;
    return algorithm == TP_ALL_REDUCE_ONE_SHOT || (algorithm == TP_ALL_REDUCE_AUTO && small);
}

/* A ring is for links; here it is two-shot, whose sums it may have. */
static tp_status all_reduce(device_op *op)
{
    if (tpi_peers_reduce(&op->call, op->args))
        return tpi_peers_all_reduce(&op->call, op->device, op->args);
    return tpi_device_stages(op->args) ? one_shot(op) : two_shot(op);
}

/* In place: the rows of any input are read by their owner only, who writes the result over them. */
static tp_status reduce_scatter(device_op *op)
{
    const tpi_collective_args *args = op->args;
    const tpi_post post = tpi_post_of_reduction(args);
    TPI_TRY(turn_and_meet(op, &post));
    tp_range rows = tpi_comm_range(args->counts, args->rows, op->call.size, op->call.rank);
    const void *in[TPI_MAX_RANKS];
    for (int rank = 0; rank < op->call.size; rank++)
        in[rank] = tpi_comm_at(tpi_call_peer(&op->call, rank)->in, rows.begin * args->cols, args->in_dtype);
    tpi_span span = span_of(op, in, &args->out, 1);
    span.end = (rows.end - rows.begin) * args->cols;
    TPI_TRY(tpi_comm_reduce_span(op->call.ctx, &span));
    return part(op);
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* Rows of `from`, which begin at element `first` of it, to row `to` of this rank's output. */
static tp_status copy_rows(device_op *op, const void *from, int64_t first, tp_range to)
{
    const tpi_collective_args *args = op->args;
    void *out = tpi_comm_at_out(args->out, to.begin * args->cols, args->out_dtype);
    const void *in = tpi_comm_at(from, first * args->cols, args->in_dtype);
    size_t bytes = tpi_comm_bytes((to.end - to.begin) * args->cols, args->in_dtype);
    return bytes > 0 && out != in ? backend_of(op)->copy(op->call.stream, out, in, bytes, TPI_COPY_WITHIN) : TP_OK;
}

static tp_status all_gather(device_op *op)
{
    const tpi_collective_args *args = op->args;
    const tpi_post post = tpi_post_of(args);
    TPI_TRY(turn_and_meet(op, &post));
    for (int i = 0; i < op->call.size; i++) { /* everyone begins at its own, so that not all read the same rank at
                                               * once */
        int from = (op->call.rank + i) % op->call.size;
        tp_range rows = tpi_comm_range(args->counts, args->rows, op->call.size, from);
        TPI_TRY(copy_rows(op, tpi_call_peer(&op->call, from)->in, 0, rows));
    }
    return part(op);
}

static tp_status broadcast(device_op *op)
{
    tpi_post post = tpi_post_of(op->args);
    post.root = op->source = op->args->root;
    TPI_TRY(turn_and_meet(op, &post));
    if (op->call.rank != op->args->root)
        TPI_TRY(copy_rows(op, tpi_call_peer(&op->call, op->args->root)->in, 0, (tp_range){0, op->args->rows}));
    return part(op);
}

static tp_status all_to_all(device_op *op)
{
    const tpi_collective_args *args = op->args;
    const tpi_call *call = &op->call;
    tpi_post post = tpi_post_of(args);
    post.exchange = true;
    TPI_TRY(turn_and_meet(op, &post));
    for (int from = 0; from < call->size; from++) {
        const tpi_post *peer = tpi_call_peer(call, from);
        tp_range sent = tpi_comm_range(peer->counts, peer->rows, call->size, call->rank);
        tp_range expected = tpi_comm_range(args->recv_counts, args->out_rows, call->size, from);
        if (sent.end - sent.begin != expected.end - expected.begin)
            return tpi_call_fail(call, TP_ERR_MISMATCH,
                                 "all_to_all: rank %d sends %lld rows to rank %d, which expects %lld",
                                 call->group->seats[from].world_rank, (long long)(sent.end - sent.begin),
                                 call->seat->world_rank, (long long)(expected.end - expected.begin));
        TPI_TRY(copy_rows(op, peer->in, sent.begin, expected));
    }
    return part(op);
}

static tp_status barrier(device_op *op)
{
    const tpi_post post = {.op = -1, .root = -1};
    TPI_TRY(turn_and_meet(op, &post));
    tpi_touch_end(&op->call);
    return TP_OK;
}

/* ---- the operations' common way ---------------------------------------------------------------------------------- */

static tp_status run(device_op *op, tpi_device_body body)
{
    static tp_status (*const bodies[])(device_op * op) = {
        [TPI_DEVICE_ALL_REDUCE] = all_reduce, [TPI_DEVICE_REDUCE_SCATTER] = reduce_scatter,
        [TPI_DEVICE_ALL_GATHER] = all_gather, [TPI_DEVICE_BROADCAST] = broadcast,
        [TPI_DEVICE_ALL_TO_ALL] = all_to_all, [TPI_DEVICE_BARRIER] = barrier,
    };
    tp_status status = bodies[body](op);
    return status == TP_OK ? TP_OK : break_off(op, status);
}

tp_status tpi_device_collective(tpi_stream *stream, const char *name, tpi_device_body body,
                                const tpi_collective_args *args)
{
    tp_ctx *ctx = args->comm->ctx;
    double begin = tpi_seconds();
    device_op op = {.call = tpi_call_begin(args->comm, name, 0), .args = args, .source = -1};
    op.call.stream = stream;
    TPI_TRY(tpi_ctx_usable(ctx));
    tp_status status = tpi_device_comm_get(&op.call, &op.device);
    if (status != TP_OK)
        return tpi_call_op_failed(&op.call, status);
    op.device->ops++;
    status = run(&op, body);
    atomic_store(&op.call.seat->done, op.device->done);
    atomic_store(&op.call.seat->passed, op.device->ops);
    if (stream == ctx->compute)
        tpi_add_seconds(ctx, 0, tpi_seconds() - begin);
    return status;
}
