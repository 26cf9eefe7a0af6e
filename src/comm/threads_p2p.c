/* A batch of sends and receives between thread ranks. Senders put parcels (addresses) into the channel to their peer,
 * receivers copy. A rank does whatever its channels allow, in any order among peers, and sleeps on its bell only when
 * nothing was possible: so no order of the array can deadlock. */
#include "comm/threads.h"

typedef struct batch {
    tpi_batch common; /* first */
    int64_t done; /* when the modelled link has delivered everything */
} batch;

static void see_done(batch *b, int64_t done)
{
    b->done = done > b->done ? done : b->done;
}

static tp_status take(tpi_batch *common, int peer, tpi_parcel *parcel)
{
    batch *b = (batch *)common;
    tpi_call *call = common->call;
    int sender = call->group->seats[peer].world_rank, receiver = call->seat->world_rank;
    tpi_comm_copy(common->ops[common->receive[peer]].tensor.data, parcel->data, parcel->bytes);
    int64_t stamp = parcel->stamp > call->stamp ? parcel->stamp : call->stamp;
    /* The sender reads here when its message was through. */
    parcel->stamp = tpi_link_message(call->group->world, sender, receiver, parcel->bytes, stamp);
    see_done(b, parcel->stamp);
    return TP_OK;
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
    const tpi_batch_way way = {.parcel = {.stamp = call->stamp}, .take = take};
    TPI_TRY(tpi_batch_progress(&b.common, &way));
    see_sent(&b);
    if (b.done > 0)
        tpi_link_complete(call, b.done);
    return TP_OK;
}
