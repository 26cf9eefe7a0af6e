/* What a batch of sends and receives is in both orders of thread ranks: places in its array, and parcels in channels. */
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
    size_t bytes = tp_tensor_bytes(batch->ops[batch->receive[peer]].tensor);
    if (parcel->bytes == bytes)
        return TP_OK;
    return tpi_call_fail(call, TP_ERR_MISMATCH, "p2p_batch: rank %d sends %zu bytes, rank %d receives %zu (op %d)",
                         call->group->seats[peer].world_rank, parcel->bytes, call->seat->world_rank, bytes,
                         batch->receive[peer]);
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
