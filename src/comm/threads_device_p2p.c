/* A batch of sends and receives in device order. Ranks hand each other parcels as in threads_p2p.c, at once, while they issue: a parcel says when its data
 * is ready, the receiver's stream waits for that and copies, and the parcel then says when it was taken, for which the sender's stream waits. */
#include <stdio.h>

#include "comm/threads.h"

typedef struct batch {
    tpi_batch common;
    tpi_device_comm *device;
} batch;

static const tpi_backend *backend_of(const batch *b)
{
    return b->common.call->ctx->backend;
}

static tp_status copy_parcel(batch *b, int peer, tpi_parcel *parcel)
{
    tpi_call *call = b->common.call;
    tpi_event **taken = &b->device->taken[peer];
    if (!*taken)
        TPI_TRY(backend_of(b)->event_create(call->ctx, taken));
    TPI_TRY(backend_of(b)->event_wait(parcel->ready, call->stream));
    if (parcel->bytes > 0)
        TPI_TRY(backend_of(b)->copy(call->stream, b->common.ops[b->common.receive[peer]].tensor.data, parcel->data, parcel->bytes, TPI_COPY_WITHIN));
    TPI_TRY(backend_of(b)->event_record(*taken, call->stream));
    parcel->taken = *taken;
    return TP_OK;
}

static tp_status take_parcel(batch *b, int peer, tpi_parcel *parcel)
{
    tpi_call *call = b->common.call;
    TPI_TRY(tpi_batch_check(&b->common, peer, parcel));
    if (!tpi_touch_begin(call))
        return tpi_call_peer_failed(call);
    TPI_TRY(copy_parcel(b, peer, parcel));
    return TP_OK;
}

static tp_status take_receives(batch *b, int peer, bool *moved)
{
    tpi_channel *channel = tpi_batch_channel(&b->common, peer, b->common.call->rank);
    unsigned taken = atomic_load_explicit(&channel->taken, memory_order_relaxed);
    bool any = false;
    while (b->common.receive[peer] < b->common.count && atomic_load_explicit(&channel->posted, memory_order_acquire) != taken) {
        TPI_TRY(take_parcel(b, peer, &channel->parcel[taken % TPI_CHANNEL_DEPTH]));
        atomic_store_explicit(&channel->taken, ++taken, memory_order_release);
        tpi_touch_end(b->common.call); /* the sender knows of the copy now */
        b->common.receive[peer] = tpi_batch_next(&b->common, false, peer, b->common.receive[peer] + 1);
        any = true;
    }
    if (any)
        tpi_word_advance(&b->common.call->group->seats[peer].bell);
    *moved = *moved || any;
    return TP_OK;
}

/* Whom this rank still needs; -1: nobody. */
static int needed(const batch *b)
{
    for (int peer = 0; peer < b->common.call->size; peer++)
        if (tpi_batch_needs(&b->common, peer))
            return peer;
    return -1;
}

static tp_status timed_out(const batch *b)
{
    int peer = needed(b);
    bool receiving = b->common.receive[peer] < b->common.count;
    char detail[96];
    snprintf(detail, sizeof detail, "rank %d did not %s", b->common.call->group->seats[peer].world_rank, receiving ? "send to it" : "receive from it");
    return tpi_call_timed_out(b->common.call, detail);
}

static tp_status progress(batch *b)
{
    tpi_call *call = b->common.call;
    tpi_word *bell = &call->seat->bell;
    while (needed(b) >= 0) {
        unsigned seen = atomic_load_explicit(&bell->value, memory_order_acquire);
        if (seen & 1)
            return tpi_call_peer_failed(call);
        bool moved = false;
        for (int peer = 0; peer < call->size; peer++) {
            moved = tpi_batch_post(&b->common, peer, (tpi_parcel){.ready = b->device->ready[0]}) || moved;
            TPI_TRY(take_receives(b, peer, &moved));
        }
        if (moved || needed(b) < 0)
            continue;
        int gone = atomic_load(&call->group->gone) > 0 ? tpi_batch_gone(&b->common) : -1;
        if (gone >= 0)
            return tpi_call_peer_gone(call, gone);
        if (!tpi_word_wait(bell, seen, &call->own->spin, tpi_call_timeout_ms(call) * 1000000))
            return timed_out(b);
    }
    return TP_OK;
}

/* What was taken last from this rank is not used by its receiver any more: for the stream, or, after a failure, for the host. */
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
    TPI_TRY(progress(b));
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
