/* Host-side operations of thread ranks: exchange of small data, and splitting. */
#include <string.h>

#include "comm/threads.h"

static tp_status exchange_as(tp_comm *comm, const char *name, const void *mine, void *all, size_t bytes)
{
    tpi_call call = tpi_call_begin(comm, name, 0);
    const tpi_post post = {.op = -1,
                           .root = -1,
                           .in_dtype = TP_DTYPE_U8,
                           .out_dtype = TP_DTYPE_U8,
                           .rows = (int64_t)bytes,
                           .cols = 1,
                           .named = comm->what != NULL};
    size_t begin = 0;
    do {
        size_t part = bytes - begin < TPI_STAGING_BYTES ? bytes - begin : TPI_STAGING_BYTES;
        tpi_call_next_staged(&call);
        tpi_comm_copy(tpi_call_staging(&call, call.rank), (const char *)mine + begin, part);
        TPI_TRY(tpi_call_post(&call, &post));
        for (int rank = 0; rank < call.size; rank++)
            tpi_comm_copy((char *)all + (size_t)rank * bytes + begin,
                          rank == call.rank ? (const char *)mine + begin : tpi_call_staging(&call, rank), part);
        begin += part;
    } while (begin < bytes);
    return TP_OK;
}

tp_status tpi_threads_exchange(tp_ctx *ctx, tp_comm *comm, const void *mine, void *all, size_t bytes)
{
    (void)ctx;
    return exchange_as(comm, comm->what != NULL ? comm->what : "exchange", mine, all, bytes);
}

/* What a rank brings to the second round. */
typedef struct offer {
    tpi_group *group; /* of the first member only */
    bool ready;
} offer;

static tpi_group *create_group(const tpi_group *parent, const int *members, int count)
{
    int world_ranks[TPI_MAX_RANKS];
    for (int i = 0; i < count; i++)
        world_ranks[i] = parent->seats[members[i]].world_rank;
    return tpi_group_create(parent->world, world_ranks, count);
}

/* Everything that may fail was tried before this, and all ranks learn of any failure: they take the new communicators,
 * or none does. */
static tp_status agree(tp_ctx *ctx, tp_comm *comm, const offer *mine, offer *offers)
{
    TPI_TRY(exchange_as(comm, "split", mine, offers, sizeof *mine));
    for (int rank = 0; rank < comm->size; rank++)
        if (!offers[rank].ready)
            return tpi_comm_no_memory(ctx, comm, rank, "the communicator that it splits off");
    return TP_OK;
}

static void take_back(tp_ctx *ctx, tpi_thread_comm *own, tp_comm *alone, tpi_group *group, bool failed)
{
    tpi_threads_handle_free(ctx, own);
    if (alone)
        alone->table->destroy(ctx, alone);
    /* After a failure a peer may know the group already: the world frees it. */
    if (group && !failed) {
        atomic_store(&group->holders, 1);
        tpi_group_release(group);
    }
}

tp_status tpi_threads_split(tp_ctx *ctx, tp_comm *comm, int color, int key, tp_comm **out)
{
    *out = NULL;
    tpi_thread_comm *parent = comm->state;
    tpi_vote mine = {.color = color < 0 ? -1 : color, .key = key}, votes[TPI_MAX_RANKS];
    TPI_TRY(exchange_as(comm, "split", &mine, votes, sizeof mine));
    int members[TPI_MAX_RANKS];
    int count = mine.color < 0 ? 0 : tpi_split_members(votes, comm->size, color, members);
    tpi_thread_comm *own = NULL;
    tp_comm *alone = NULL;
    offer offered = {.ready = true}, offers[TPI_MAX_RANKS];
    if (count == 1) {
        offered.ready = tpi_comm_create_self(ctx, &alone) == TP_OK;
    } else if (count > 1) {
        bool first = members[0] == comm->rank;
        own = tpi_threads_handle(ctx, tpi_split_place(members, count, comm->rank), count);
        offered.group = first && own ? create_group(parent->group, members, count) : NULL;
        offered.ready = own && (!first || offered.group);
    }
    tp_status status = agree(ctx, comm, &offered, offers);
    if (status != TP_OK) {
        take_back(ctx, own, alone, offered.group, tp_ctx_failure(ctx) != TP_OK);
        return status;
    }
    if (own)
        tpi_threads_handle_join(own, offers[members[0]].group);
    *out = own ? &own->comm : alone;
    return TP_OK;
}
