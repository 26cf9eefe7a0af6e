/* A batch of sends and receives between thread ranks. Senders put parcels (addresses) into the channel to their peer,
 * receivers copy. A rank does whatever its channels allow, in any order among peers, and sleeps on its bell only when
 * nothing was possible: so no order of the array can deadlock. */
#include <inttypes.h>
#include <stdio.h>

#include "comm/threads.h"

typedef struct batch {
    tpi_call *call;
    const tp_p2p *ops;
    int count;
    int send[TPI_MAX_RANKS], receive[TPI_MAX_RANKS]; /* next op of the array for this peer; count: none left */
    int64_t done;                                    /* when the modelled link has delivered everything */
} batch;

static int next_op(const batch *b, bool send, int peer, int from)
{
    while (from < b->count && (b->ops[from].send != send || b->ops[from].peer != peer))
        from++;
    return from;
}

static tpi_channel *channel_of(const batch *b, int from, int to)
{
    return &b->call->group->channels[(size_t)from * (size_t)b->call->size + (size_t)to];
}

static void see_done(batch *b, int64_t done)
{
    b->done = done > b->done ? done : b->done;
}

static bool post_sends(batch *b, int peer)
{
    tpi_channel *channel = channel_of(b, b->call->rank, peer);
    unsigned posted = atomic_load_explicit(&channel->posted, memory_order_relaxed);
    bool moved = false;
    while (b->send[peer] < b->count &&
           posted - atomic_load_explicit(&channel->taken, memory_order_acquire) < TPI_CHANNEL_DEPTH) {
        const tp_p2p *op = &b->ops[b->send[peer]];
        channel->parcel[posted % TPI_CHANNEL_DEPTH] =
            (tpi_parcel){.data = op->tensor.data, .bytes = tp_tensor_bytes(op->tensor), .stamp = b->call->stamp};
        atomic_store_explicit(&channel->posted, ++posted, memory_order_release);
        b->send[peer] = next_op(b, true, peer, b->send[peer] + 1);
        moved = true;
    }
    if (moved)
        tpi_word_advance(&b->call->group->seats[peer].bell);
    return moved;
}

static tp_status take_parcel(batch *b, int peer, tpi_parcel *parcel)
{
    tpi_call *call = b->call;
    const tp_tensor *tensor = &b->ops[b->receive[peer]].tensor;
    int sender = call->group->seats[peer].world_rank, receiver = call->seat->world_rank;
    size_t bytes = tp_tensor_bytes(*tensor);
    if (parcel->bytes != bytes)
        return tpi_call_fail(call, TP_ERR_MISMATCH, "p2p_batch: rank %d sends %zu bytes, rank %d receives %zu (op %d)",
                             sender, parcel->bytes, receiver, bytes, b->receive[peer]);
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
    tpi_channel *channel = channel_of(b, peer, b->call->rank);
    unsigned taken = atomic_load_explicit(&channel->taken, memory_order_relaxed);
    bool any = false;
    while (b->receive[peer] < b->count && atomic_load_explicit(&channel->posted, memory_order_acquire) != taken) {
        TPI_TRY(take_parcel(b, peer, &channel->parcel[taken % TPI_CHANNEL_DEPTH]));
        atomic_store_explicit(&channel->taken, ++taken, memory_order_release);
        b->receive[peer] = next_op(b, false, peer, b->receive[peer] + 1);
        any = true;
    }
    if (any)
        tpi_word_advance(&b->call->group->seats[peer].bell);
    *moved = *moved || any;
    return TP_OK;
}

static bool all_taken(const batch *b, int peer)
{
    tpi_channel *channel = channel_of(b, b->call->rank, peer);
    unsigned posted = atomic_load_explicit(&channel->posted, memory_order_relaxed);
    return b->send[peer] == b->count && atomic_load_explicit(&channel->taken, memory_order_acquire) == posted;
}

static bool finished(const batch *b)
{
    for (int peer = 0; peer < b->call->size; peer++)
        if (b->receive[peer] < b->count || !all_taken(b, peer))
            return false;
    return true;
}

static tp_status timed_out(const batch *b)
{
    char detail[96] = "a peer did not come";
    for (int peer = 0; peer < b->call->size; peer++) {
        int world_rank = b->call->group->seats[peer].world_rank;
        if (b->receive[peer] < b->count) {
            snprintf(detail, sizeof detail, "op %d: rank %d did not send", b->receive[peer], world_rank);
            break;
        }
        if (!all_taken(b, peer)) {
            snprintf(detail, sizeof detail, "rank %d did not receive", world_rank);
            break;
        }
    }
    return tpi_call_timed_out(b->call, detail);
}

/* A peer that this batch still needs and that destroyed its communicator, or -1. */
static int needed_but_gone(const batch *b)
{
    for (int peer = 0; peer < b->call->size; peer++)
        if ((b->receive[peer] < b->count || !all_taken(b, peer)) && atomic_load(&b->call->group->seats[peer].left))
            return peer;
    return -1;
}

static tp_status progress(batch *b)
{
    tpi_call *call = b->call;
    tpi_word *bell = &call->seat->bell;
    for (;;) {
        unsigned seen = atomic_load_explicit(&bell->value, memory_order_acquire);
        if (seen & 1)
            return tpi_call_peer_failed(call);
        bool moved = false;
        for (int peer = 0; peer < call->size; peer++) {
            moved = post_sends(b, peer) || moved;
            TPI_TRY(take_receives(b, peer, &moved));
        }
        if (finished(b))
            return TP_OK;
        int gone = !moved && atomic_load(&call->group->gone) > 0 ? needed_but_gone(b) : -1;
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
    for (int peer = 0; peer < b->call->size; peer++) {
        if (next_op(b, true, peer, 0) == b->count)
            continue;
        const tpi_channel *channel = channel_of(b, b->call->rank, peer);
        unsigned posted = atomic_load_explicit(&channel->posted, memory_order_relaxed);
        see_done(b, channel->parcel[(posted - 1) % TPI_CHANNEL_DEPTH].stamp);
    }
}

tp_status tpi_threads_p2p(tpi_call *call, const tp_p2p *ops, int count)
{
    batch b = {.call = call, .ops = ops, .count = count};
    for (int peer = 0; peer < call->size; peer++) {
        b.send[peer] = next_op(&b, true, peer, 0);
        b.receive[peer] = next_op(&b, false, peer, 0);
    }
    TPI_TRY(progress(&b));
    see_sent(&b);
    if (b.done > 0)
        tpi_link_complete(call, b.done);
    return TP_OK;
}
