/* What a batch of sends and receives is in both orders of thread ranks: places in its array, and parcels in
 * channels. */
#include <stdio.h>

#include "comm/threads.h"

int tpi_batch_next(const tpi_batch *batch, bool send, int peer, int from)
{
    while (from < batch->count && (batch->ops[from].send != send || batch->ops[from].peer != peer))
        from++;
    return from;
}

tpi_batch tpi_batch_begin(tpi_call *call, const tp_p2p *ops, int count)
{
    tpi_batch batch = {.call = call, .ops = ops, .count = count};
    for (int peer = 0; peer < call->size; peer++) {
        batch.send[peer] = tpi_batch_next(&batch, true, peer, 0);
        batch.receive[peer] = tpi_batch_next(&batch, false, peer, 0);
    }
    return batch;
}

tpi_channel *tpi_batch_channel(const tpi_batch *batch, int from, int to)
{
    return &batch->call->group->channels[(size_t)from * (size_t)batch->call->size + (size_t)to];
}

bool tpi_batch_post(tpi_batch *batch, int peer, tpi_parcel parcel)
{
    tpi_channel *channel = tpi_batch_channel(batch, batch->call->rank, peer);
    unsigned posted = atomic_load_explicit(&channel->posted, memory_order_relaxed);
    bool moved = false;
    while (batch->send[peer] < batch->count &&
           posted - atomic_load_explicit(&channel->taken, memory_order_acquire) < TPI_CHANNEL_DEPTH) {
        const tp_p2p *op = &batch->ops[batch->send[peer]];
        parcel.data = op->tensor.data;
        parcel.bytes = tp_tensor_bytes(op->tensor);
        parcel.dtype = op->tensor.dtype;
        parcel.first = batch->send[peer] == tpi_batch_next(batch, true, peer, 0);
        channel->parcel[posted % TPI_CHANNEL_DEPTH] = parcel;
        atomic_store_explicit(&channel->posted, ++posted, memory_order_release);
        batch->send[peer] = tpi_batch_next(batch, true, peer, batch->send[peer] + 1);
        moved = true;
    }
    if (moved)
        tpi_word_advance(&batch->call->group->seats[peer].bell);
    return moved;
}

tp_status tpi_batch_check(const tpi_batch *batch, int peer, const tpi_parcel *parcel)
{
    tpi_call *call = batch->call;
    const tp_tensor *tensor = &batch->ops[batch->receive[peer]].tensor;
    size_t bytes = tp_tensor_bytes(*tensor);
    if (parcel->bytes == bytes && parcel->dtype == tensor->dtype)
        return TP_OK;
    return tpi_call_fail(call, TP_ERR_MISMATCH,
                         "p2p_batch: rank %d sends %zu bytes of %s, rank %d receives %zu of %s (op %d)",
                         call->group->seats[peer].world_rank, parcel->bytes, tp_dtype_name(parcel->dtype),
                         call->seat->world_rank, bytes, tp_dtype_name(tensor->dtype), batch->receive[peer]);
}

static bool all_taken(const tpi_batch *batch, int peer)
{
    const tpi_channel *channel = tpi_batch_channel(batch, batch->call->rank, peer);
    unsigned posted = atomic_load_explicit(&channel->posted, memory_order_relaxed);
    return batch->send[peer] == batch->count &&
           atomic_load_explicit(&channel->taken, memory_order_acquire) == posted;
}

bool tpi_batch_needs(const tpi_batch *batch, int peer)
{
    return batch->receive[peer] < batch->count || !all_taken(batch, peer);
}

int tpi_batch_gone(const tpi_batch *batch)
{
    const tpi_call *call = batch->call;
    for (int peer = 0; peer < call->size; peer++)
        if (peer != call->rank && atomic_load(&call->group->seats[peer].left) && tpi_batch_needs(batch, peer))
            return peer;
    return -1;
}

/* The copy, and that it was made, is one stretch: the sender knows of the copy when the stretch ends. */
static tp_status take_parcel(tpi_batch *batch, const tpi_batch_way *way, int peer, tpi_channel *channel)
{
    unsigned taken = atomic_load_explicit(&channel->taken, memory_order_relaxed);
    tpi_parcel *parcel = &channel->parcel[taken % TPI_CHANNEL_DEPTH];
    TPI_TRY(tpi_batch_check(batch, peer, parcel));
    if (!tpi_touch_begin(batch->call))
        return tpi_call_peer_failed(batch->call);
    TPI_TRY(way->take(batch, peer, parcel));
    atomic_store_explicit(&channel->taken, taken + 1, memory_order_release);
    tpi_touch_end(batch->call);
    batch->receive[peer] = tpi_batch_next(batch, false, peer, batch->receive[peer] + 1);
    return TP_OK;
}

static tp_status take_receives(tpi_batch *batch, const tpi_batch_way *way, int peer, bool *moved)
{
    tpi_channel *channel = tpi_batch_channel(batch, peer, batch->call->rank);
    bool any = false;
    while (batch->receive[peer] < batch->count && atomic_load_explicit(&channel->posted, memory_order_acquire) !=
                                                      atomic_load_explicit(&channel->taken, memory_order_relaxed)) {
        TPI_TRY(take_parcel(batch, way, peer, channel));
        any = true;
    }
    if (any)
        tpi_word_advance(&batch->call->group->seats[peer].bell);
    *moved = *moved || any;
    return TP_OK;
}

/* Whom this rank still needs; -1: nobody. */
static int needed(const tpi_batch *batch)
{
    for (int peer = 0; peer < batch->call->size; peer++)
        if (tpi_batch_needs(batch, peer))
            return peer;
    return -1;
}

static tp_status timed_out(const tpi_batch *batch)
{
    char detail[96];
    int peer = needed(batch);
    if (peer < 0) /* the last parcel was taken meanwhile */
        return TP_OK;
    int world_rank = batch->call->group->seats[peer].world_rank;
    if (batch->receive[peer] < batch->count)
        snprintf(detail, sizeof detail, "op %d: rank %d did not send", batch->receive[peer], world_rank);
    else
        snprintf(detail, sizeof detail, "rank %d did not receive", world_rank);
    return tpi_call_timed_out(batch->call, detail);
}

tp_status tpi_batch_progress(tpi_batch *batch, const tpi_batch_way *way)
{
    tpi_call *call = batch->call;
    tpi_word *bell = &call->seat->bell;
    for (;;) {
        unsigned seen = atomic_load_explicit(&bell->value, memory_order_acquire);
        if (seen & 1)
            return tpi_call_peer_failed(call);
        bool moved = false;
        for (int peer = 0; peer < call->size; peer++) {
            moved = tpi_batch_post(batch, peer, way->parcel) || moved;
            TPI_TRY(take_receives(batch, way, peer, &moved));
        }
        if (needed(batch) < 0)
            return TP_OK;
        int gone = !moved && atomic_load(&call->group->gone) > 0 ? tpi_batch_gone(batch) : -1;
        if (gone >= 0)
            return tpi_call_peer_gone(call, gone);
        if (!moved && !tpi_word_wait(bell, seen, tpi_call_spin(call), tpi_call_timeout_ms(call) * 1000000))
            return timed_out(batch);
    }
}
