/* A batch of sends and receives in device order. Ranks hand each other parcels as in threads_p2p.c, at once, while they issue: a parcel says when its data
 * is ready, the receiver's stream waits for that and copies, and the parcel then says when it was taken, for which the sender's stream waits. */
#include <stdio.h>

#include "comm/threads.h"

typedef struct batch {
    tpi_call *call;
    tpi_device_comm *device;
    const tp_p2p *ops;
    int count;
    int send[TPI_MAX_RANKS], receive[TPI_MAX_RANKS]; /* next op of the array for this peer; count: none left */
} batch;

static const tpi_backend *backend_of(const batch *b)
{
    return b->call->ctx->backend;
}

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

static bool post_sends(batch *b, int peer)
{
    tpi_channel *channel = channel_of(b, b->call->rank, peer);
    unsigned posted = atomic_load_explicit(&channel->posted, memory_order_relaxed);
    bool moved = false;
    while (b->send[peer] < b->count && posted - atomic_load_explicit(&channel->taken, memory_order_acquire) < TPI_CHANNEL_DEPTH) {
        const tp_p2p *op = &b->ops[b->send[peer]];
        channel->parcel[posted % TPI_CHANNEL_DEPTH] =
            (tpi_parcel){.data = op->tensor.data, .bytes = tp_tensor_bytes(op->tensor), .ready = b->device->ready[0]};
        atomic_store_explicit(&channel->posted, ++posted, memory_order_release);
        b->send[peer] = next_op(b, true, peer, b->send[peer] + 1);
        moved = true;
    }
    if (moved)
        tpi_word_advance(&b->call->group->seats[peer].bell);
    return moved;
}

static tp_status copy_parcel(batch *b, int peer, tpi_parcel *parcel)
{
    tpi_call *call = b->call;
    tpi_event **taken = &b->device->taken[peer];
    if (!*taken)
        TPI_TRY(backend_of(b)->event_create(call->ctx, taken));
    TPI_TRY(backend_of(b)->event_wait(parcel->ready, call->stream));
    if (parcel->bytes > 0)
        TPI_TRY(backend_of(b)->copy(call->stream, b->ops[b->receive[peer]].tensor.data, parcel->data, parcel->bytes, TPI_COPY_WITHIN));
    TPI_TRY(backend_of(b)->event_record(*taken, call->stream));
    parcel->taken = *taken;
    return TP_OK;
}

static tp_status take_parcel(batch *b, int peer, tpi_parcel *parcel)
{
    tpi_call *call = b->call;
    size_t bytes = tp_tensor_bytes(b->ops[b->receive[peer]].tensor);
    if (parcel->bytes != bytes)
        return tpi_call_fail(call, TP_ERR_MISMATCH, "p2p_batch: rank %d sends %zu bytes, rank %d receives %zu (op %d)",
                             call->group->seats[peer].world_rank, parcel->bytes, call->seat->world_rank, bytes, b->receive[peer]);
    if (!tpi_touch_begin(call))
        return tpi_call_peer_failed(call);
    TPI_TRY(copy_parcel(b, peer, parcel));
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
        tpi_touch_end(b->call); /* the sender knows of the copy now */
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
    const tpi_channel *channel = channel_of(b, b->call->rank, peer);
    return b->send[peer] == b->count &&
           atomic_load_explicit(&channel->taken, memory_order_acquire) == atomic_load_explicit(&channel->posted, memory_order_relaxed);
}

/* Whom this rank still needs; -1: nobody. */
static int needed(const batch *b)
{
    for (int peer = 0; peer < b->call->size; peer++)
        if (b->receive[peer] < b->count || !all_taken(b, peer))
            return peer;
    return -1;
}

static tp_status timed_out(const batch *b)
{
    int peer = needed(b);
    bool receiving = b->receive[peer] < b->count;
    char detail[96];
    snprintf(detail, sizeof detail, "rank %d did not %s", b->call->group->seats[peer].world_rank, receiving ? "send to it" : "receive from it");
    return tpi_call_timed_out(b->call, detail);
}

static int needed_but_gone(const batch *b)
{
    for (int peer = 0; peer < b->call->size; peer++)
        if (peer != b->call->rank && atomic_load(&b->call->group->seats[peer].left) && (b->receive[peer] < b->count || !all_taken(b, peer)))
            return peer;
    return -1;
}

static tp_status progress(batch *b)
{
    tpi_call *call = b->call;
    tpi_word *bell = &call->seat->bell;
    while (needed(b) >= 0) {
        unsigned seen = atomic_load_explicit(&bell->value, memory_order_acquire);
        if (seen & 1)
            return tpi_call_peer_failed(call);
        bool moved = false;
        for (int peer = 0; peer < call->size; peer++) {
            moved = post_sends(b, peer) || moved;
            TPI_TRY(take_receives(b, peer, &moved));
        }
        if (moved || needed(b) < 0)
            continue;
        int gone = atomic_load(&call->group->gone) > 0 ? needed_but_gone(b) : -1;
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
    for (int peer = 0; peer < b->call->size; peer++) {
        tpi_channel *channel = channel_of(b, b->call->rank, peer);
        unsigned taken = atomic_load(&channel->taken);
        if (taken == atomic_load(&channel->settled))
            continue;
        tpi_event *event = channel->parcel[(taken - 1) % TPI_CHANNEL_DEPTH].taken;
        if (failed)
            backend_of(b)->event_synchronize(b->call->ctx, event);
        else if (status == TP_OK)
            status = backend_of(b)->event_wait(event, b->call->stream);
        if (failed || status == TP_OK)
            atomic_store(&channel->settled, taken);
    }
    return status;
}

static tp_status run(batch *b)
{
    TPI_TRY(backend_of(b)->event_record(b->device->ready[0], b->call->stream));
    TPI_TRY(progress(b));
    return settle_sends(b, false);
}

tp_status tpi_device_p2p(tpi_stream *stream, const tpi_p2p_args *args)
{
    double begin = tpi_seconds();
    tpi_call call = tpi_call_begin(args->comm, "p2p_batch", 0);
    call.stream = stream;
    TPI_TRY(tpi_ctx_usable(call.ctx));
    batch b = {.call = &call, .ops = args->ops, .count = args->count};
    tp_status status = tpi_device_comm_get(&call, &b.device);
    if (status != TP_OK)
        return tpi_call_op_failed(&call, status);
    for (int peer = 0; peer < call.size; peer++) {
        b.send[peer] = next_op(&b, true, peer, 0);
        b.receive[peer] = next_op(&b, false, peer, 0);
    }
    status = run(&b);
    if (status != TP_OK) {
        status = tpi_call_op_failed(&call, status);
        settle_sends(&b, true);
    }
    if (stream == call.ctx->compute)
        tpi_add_seconds(call.ctx, 0, tpi_seconds() - begin);
    return status;
}
