/* A batch of sends and receives in device order. Ranks hand each other parcels as in threads_p2p.c, at once, while they
 * issue: a parcel says when its data is ready, the receiver's stream waits for that and copies, and the parcel then
 * says when it was taken, for which the sender's stream waits. */
#include "comm/threads.h"

typedef struct batch {
    tpi_batch common; /* first */
    tpi_device_comm *device;
    bool waited[TPI_MAX_RANKS]; /* the stream waits for this sender's data already */
} batch;

static const tpi_backend *backend_of(const batch *b)
{
    return b->common.call->ctx->backend;
}

static tp_status take(tpi_batch *common, int peer, tpi_parcel *parcel)
{
    batch *b = (batch *)common;
    tpi_call *call = common->call;
    tpi_event **taken = &b->device->taken[peer];
    if (!*taken)
        TPI_TRY(backend_of(b)->event_create(call->ctx, taken));
    if (parcel->first || !b->waited[peer]) /* all of a sender's batch is ready at once */
        TPI_TRY(backend_of(b)->event_wait(parcel->ready, call->stream));
    b->waited[peer] = true;
    if (parcel->bytes > 0)
        TPI_TRY(backend_of(b)->copy(call->stream, common->ops[common->receive[peer]].tensor.data, parcel->data,
                                    parcel->bytes, TPI_COPY_WITHIN));
    TPI_TRY(backend_of(b)->event_record(*taken, call->stream));
    parcel->taken = *taken;
    return TP_OK;
}

/* What was taken last from this rank is not used by its receiver any more: for the stream, or, after a failure, for the
 * host. */
static tp_status settle_sends(batch *b, bool failed)
{
    tp_status status = TP_OK;
    for (int peer = 0; peer < b->common.call->size; peer++) {
        tpi_channel *channel = tpi_batch_channel(&b->common, b->common.call->rank, peer);
        unsigned taken = atomic_load(&channel->taken);
        if (taken == atomic_load(&channel->settled))
            continue;
        tpi_event *event = channel->parcel[(taken - 1) % TPI_CHANNEL_DEPTH].taken;
        if (failed)
            backend_of(b)->event_synchronize(b->common.call->ctx, event);
        else if (status == TP_OK)
            status = backend_of(b)->event_wait(event, b->common.call->stream);
        if (failed || status == TP_OK)
            atomic_store(&channel->settled, taken);
    }
    return status;
}

static tp_status run(batch *b)
{
    TPI_TRY(backend_of(b)->event_record(b->device->ready[0], b->common.call->stream));
    const tpi_batch_way way = {.parcel = {.ready = b->device->ready[0]}, .take = take};
    TPI_TRY(tpi_batch_progress(&b->common, &way));
    return settle_sends(b, false);
}

tp_status tpi_device_p2p(tpi_stream *stream, const tpi_p2p_args *args)
{
    double begin = tpi_seconds();
    tpi_call call = tpi_call_begin(args->comm, "p2p_batch", 0);
    call.stream = stream;
    TPI_TRY(tpi_ctx_usable(call.ctx));
    batch b = {.common = tpi_batch_begin(&call, args->ops, args->count)};
    tp_status status = tpi_device_comm_get(&call, &b.device);
    if (status != TP_OK)
        return tpi_call_op_failed(&call, status);
    status = run(&b);
    if (status != TP_OK) {
        status = tpi_call_op_failed(&call, status);
        settle_sends(&b, true);
    }
    if (stream == call.ctx->compute)
        tpi_add_seconds(call.ctx, 0, tpi_seconds() - begin);
    return status;
}
