/* Ranks that are processes: what concerns the host goes over the rendezvous; data moves over a fabric only (transport.c
 * puts that on top). */
#include <stdio.h>
#include <string.h>

#include "comm/rendezvous.h"
#include "comm/threads.h"

/* Of the whole world; groups split off have a rank and a count in theirs. */
#define WORLD_GROUP 1

typedef struct process_comm {
    tp_comm comm;
    tp_world *world;
    tpi_rendezvous_group group;
    int world_rank[TPI_MAX_RANKS];
    bool owns_rank;
} process_comm;

static tp_status refuse(tp_comm *comm)
{
    return tpi_refuse(comm->ctx, TP_ERR_UNSUPPORTED, "ranks that are processes move data over a fabric (NCCL) only");
}

static tp_status collective(tpi_stream *stream, const tpi_collective_args *args)
{
    (void)stream;
    return refuse(args->comm);
}

static tp_status p2p(tpi_stream *stream, const tpi_p2p_args *args)
{
    (void)stream;
    return refuse(args->comm);
}

static tp_status barrier(tpi_stream *stream, tp_comm *comm)
{
    (void)stream;
    return refuse(comm);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

static tp_status peer_failed(tp_comm *comm, tp_world *world)
{
    char message[TPI_MESSAGE_BYTES];
    pthread_mutex_lock(&world->lock);
    tp_status status = (tp_status)atomic_load(&world->failed);
    int rank = world->failed_rank;
    snprintf(message, sizeof message, "%s", world->message);
    pthread_mutex_unlock(&world->lock);
    if (status == TP_ERR_MISMATCH)
        return tpi_fail(comm->ctx, TP_ERR_MISMATCH, "%s", message);
    return tpi_fail(comm->ctx, TP_ERR_PEER, "rank %d: %s", rank, message);
}

static tp_status health(tp_comm *comm)
{
    tp_world *world = ((process_comm *)comm->state)->world;
    tpi_rendezvous_failure failure;
    if (atomic_load(&world->failed) == TP_OK) {
        if (!tpi_rendezvous_failed(world->rendezvous, &failure))
            return TP_OK;
        tpi_world_abort(world, failure.rank, failure.status, failure.message);
    }
    return peer_failed(comm, world);
}

static void abort_world(tp_comm *comm, int rank, tp_status status, const char *message)
{
    process_comm *own = comm->state;
    tpi_world_abort(own->world, own->world_rank[rank], status, message);
}

/* Symmetric buffers are a fabric's: whoever still uses a peer's keeps it. */
static void leave(tp_comm *comm)
{
    (void)comm;
}

/* ---- exchange and splitting -------------------------------------------------------------------------------------- */

static tp_status exchange(tp_ctx *ctx, tp_comm *comm, const void *mine, void *all, size_t bytes)
{
    process_comm *own = comm->state;
    TPI_TRY(health(comm));
    tp_status status = tpi_rendezvous_exchange(own->world->rendezvous, &own->group, mine, all, bytes);
    if (status == TP_OK)
        return TP_OK;
    TPI_TRY(health(comm));
    char message[TPI_MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", tp_last_message());
    return tpi_fail(ctx, status, "%s", message);
}

static process_comm *new_comm(tp_ctx *ctx, tp_world *world, int rank, int size)
{
    process_comm *own = tpi_host_allocate(ctx, sizeof *own);
    if (!own)
        return NULL;
    own->comm =
        (tp_comm){.table = &tpi_comm_processes, .ctx = ctx, .rank = rank, .size = size, .apart = true, .state = own};
    own->world = world;
    return own;
}

static tp_status split(tp_ctx *ctx, tp_comm *comm, int color, int key, tp_comm **out)
{
    *out = NULL;
    process_comm *parent = comm->state;
    tp_world *world = parent->world;
    uint64_t id = ((uint64_t)(world->own_rank + 1) << 32) + ++world->splits;
    const tpi_vote mine = {color < 0 ? -1 : color, key, id};
    tpi_vote votes[TPI_MAX_RANKS];
    int members[TPI_MAX_RANKS];
    TPI_TRY(exchange(ctx, comm, &mine, votes, sizeof mine));
    if (color < 0)
        return TP_OK;
    int count = tpi_split_members(votes, comm->size, color, members);
    if (count == 1)
        return tpi_comm_create_self(ctx, out);
    int rank = tpi_split_place(members, count, comm->rank);
    process_comm *own = new_comm(ctx, world, rank, count);
    if (!own)
        return tpi_fail(ctx, TP_ERR_MEMORY, "split: no memory for a communicator of %d ranks", count);
    own->group = (tpi_rendezvous_group){.id = votes[members[0]].id, .rank = rank, .size = count};
    for (int i = 0; i < count; i++)
        own->world_rank[i] = parent->world_rank[members[i]];
    *out = &own->comm;
    return TP_OK;
}

static void destroy(tp_ctx *ctx, tp_comm *comm)
{
    process_comm *own = comm->state;
    if (own->owns_rank)
        own->world->taken[own->world->own_rank] = false;
    tpi_host_release(ctx, own, sizeof *own);
}

tp_status tpi_comm_create_processes(tp_ctx *ctx, tp_world *world, int rank, tp_comm **out)
{
    *out = NULL;
    int ranks = world->desc.ranks;
    if (rank != world->own_rank)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_ctx_desc.rank is %d, this process is rank %d of its world", rank,
                          world->own_rank);
    if (world->taken[rank])
        return tpi_refuse(ctx, TP_ERR_STATE, "rank %d of the world of %d has a context already", rank, ranks);
    process_comm *own = new_comm(ctx, world, rank, ranks);
    if (!own)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "no memory for the communicator of rank %d", rank);
    own->group = (tpi_rendezvous_group){.id = WORLD_GROUP, .rank = rank, .size = ranks};
    own->owns_rank = true;
    for (int i = 0; i < ranks; i++)
        own->world_rank[i] = i;
    world->taken[rank] = true;
    *out = &own->comm;
    return TP_OK;
}

static tp_status create_board(tp_ctx *ctx, tp_comm *comm, const tpi_board_desc *desc, tpi_board **out)
{
    (void)comm;
    (void)desc;
    *out = NULL;
    return tpi_refuse(ctx, TP_ERR_UNSUPPORTED,
                      "a plan whose ranks touch each other's memory: these ranks are processes");
}

static const tpi_board_table board = {.create = create_board};

const tpi_comm_table tpi_comm_processes = {
    .name = "processes",
    .all_reduce = collective,
    .norms = tpi_norms_never,
    .reduce_scatter = collective,
    .all_gather = collective,
    .broadcast = collective,
    .all_to_all = collective,
    .p2p = p2p,
    .barrier = barrier,
    .split = split,
    .exchange = exchange,
    .destroy = destroy,
    .abort = abort_world,
    .health = health,
    .symmetric_create = tpi_symmetric_allocate,
    .symmetric_release = tpi_symmetric_release,
    .leave = leave,
    .board = &board,
};
