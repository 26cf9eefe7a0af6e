/* A batch of sends and receives between thread ranks. Senders put parcels (addresses) into the channel to their peer,
 * receivers copy. A rank does whatever its channels allow, in any order among peers, and sleeps on its bell only when
 * nothing was possible: so no order of the array can deadlock. */
#include <inttypes.h>
#include <stdio.h>

#include "comm/threads.h"

typedef struct batch {
    tpi_batch common;
    int64_t done; /* when the modelled link has delivered everything */
} batch;

static void see_done(batch *b, int64_t done)
{
    b->done = done > b->done ? done : b->done;
}

static tp_status take_parcel(batch *b, int peer, tpi_parcel *parcel)
{
    tpi_call *call = b->common.call;
    const tp_tensor *tensor = &b->common.ops[b->common.receive[peer]].tensor;
    int sender = call->group->seats[peer].world_rank, receiver = call->seat->world_rank;
    size_t bytes = tp_tensor_bytes(*tensor);
    TPI_TRY(tpi_batch_check(&b->common, peer, parcel));
    if (!tpi_touch_begin(call))
        return tpi_call_peer_failed(call);
    tpi_comm_copy(tensor->data, parcel->data, bytes);
    tpi_touch_end(call);
    int64_t stamp = parcel->stamp > call->stamp ? parcel->stamp : call->stamp;
    /* The sender reads here when its message was through. */
    parcel->stamp = tpi_link_message(call->group->world, sender, receiver, bytes, stamp);
    see_done(b, parcel->stamp);
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
        b->common.receive[peer] = tpi_batch_next(&b->common, false, peer, b->common.receive[peer] + 1);
        any = true;
    }
    if (any)
        tpi_word_advance(&b->common.call->group->seats[peer].bell);
    *moved = *moved || any;
    return TP_OK;
}

static bool finished(const batch *b)
{
    for (int peer = 0; peer < b->common.call->size; peer++)
        if (tpi_batch_needs(&b->common, peer))
            return false;
    return true;
}

static tp_status timed_out(const batch *b)
{
    char detail[96] = "a peer did not come";
    for (int peer = 0; peer < b->common.call->size; peer++) {
        int world_rank = b->common.call->group->seats[peer].world_rank;
        if (b->common.receive[peer] < b->common.count) {
            snprintf(detail, sizeof detail, "op %d: rank %d did not send", b->common.receive[peer], world_rank);
            break;
        }
        if (tpi_batch_needs(&b->common, peer)) {
            snprintf(detail, sizeof detail, "rank %d did not receive", world_rank);
            break;
        }
    }
    return tpi_call_timed_out(b->common.call, detail);
}

static tp_status progress(batch *b)
{
    tpi_call *call = b->common.call;
    tpi_word *bell = &call->seat->bell;
    for (;;) {
        unsigned seen = atomic_load_explicit(&bell->value, memory_order_acquire);
        if (seen & 1)
            return tpi_call_peer_failed(call);
        bool moved = false;
        for (int peer = 0; peer < call->size; peer++) {
            moved = tpi_batch_post(&b->common, peer, (tpi_parcel){.stamp = call->stamp}) || moved;
            TPI_TRY(take_receives(b, peer, &moved));
        }
        if (finished(b))
            return TP_OK;
        int gone = !moved && atomic_load(&call->group->gone) > 0 ? tpi_batch_gone(&b->common) : -1;
        if (gone >= 0)
            return tpi_call_peer_gone(call, gone);
        int64_t timeout = tpi_call_timeout_ms(call) * 1000000;
        if (!moved && !tpi_word_wait(bell, seen, &call->own->spin, timeout))
            return timed_out(b);
    }
}

/* A sender's part of the link model: its last message to each peer is its latest. */
static void see_sent(batch *b)
{
    for (int peer = 0; peer < b->common.call->size; peer++) {
        if (tpi_batch_next(&b->common, true, peer, 0) == b->common.count)
            continue;
        const tpi_channel *channel = tpi_batch_channel(&b->common, b->common.call->rank, peer);
        unsigned posted = atomic_load_explicit(&channel->posted, memory_order_relaxed);
        see_done(b, channel->parcel[(posted - 1) % TPI_CHANNEL_DEPTH].stamp);
    }
}

tp_status tpi_threads_p2p(tpi_call *call, const tp_p2p *ops, int count)
{
    batch b = {.common = tpi_batch_begin(call, ops, count)};
    TPI_TRY(progress(&b));
    see_sent(&b);
    if (b.done > 0)
        tpi_link_complete(call, b.done);
    return TP_OK;
}
