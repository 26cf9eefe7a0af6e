/* The transport of a dry run: a group of any size in which nothing travels. This rank's part of every operation is sized and counted, none is done. */
#include <string.h>

#include "comm/collective.h"

static tp_status skip(tpi_stream *stream, const tpi_collective_args *args)
{
    (void)stream;
    (void)args;
    return TP_OK;
}

static tp_status skip_p2p(tpi_stream *stream, const tpi_p2p_args *args)
{
    (void)stream;
    (void)args;
    return TP_OK;
}

static tp_status skip_barrier(tpi_stream *stream, tp_comm *comm)
{
    (void)stream;
    (void)comm;
    return TP_OK;
}

/* Who else has this color can't be known: everybody. */
static tp_status dry_split(tp_ctx *ctx, tp_comm *comm, int color, int key, tp_comm **out)
{
    (void)key;
    *out = NULL;
    return color < 0 ? TP_OK : tpi_comm_create_dry(ctx, comm->rank, comm->size, out);
}

/* Peers offer what this rank does. */
static tp_status dry_exchange(tp_ctx *ctx, tp_comm *comm, const void *mine, void *all, size_t bytes)
{
    (void)ctx;
    for (int rank = 0; rank < comm->size; rank++)
        memcpy((char *)all + (size_t)rank * bytes, mine, bytes);
    return TP_OK;
}

static void dry_destroy(tp_ctx *ctx, tp_comm *comm)
{
    tpi_host_release(ctx, comm, sizeof *comm);
}

static void dry_abort(tp_comm *comm, int rank, tp_status status, const char *message)
{
    (void)comm;
    (void)rank;
    (void)status;
    (void)message;
}

static tp_status dry_health(tp_comm *comm)
{
    (void)comm;
    return TP_OK;
}

static void dry_leave(tp_comm *comm)
{
    (void)comm;
}

tp_status tpi_comm_create_dry(tp_ctx *ctx, int rank, int size, tp_comm **out)
{
    tp_comm *comm = tpi_host_allocate(ctx, sizeof *comm);
    *out = comm;
    if (!comm)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "no memory for a communicator");
    *comm = (tp_comm){.table = &tpi_comm_dry, .ctx = ctx, .rank = rank, .size = size, .state = NULL};
    return TP_OK;
}

const tpi_comm_table tpi_comm_dry = {
    .name = "dry",
    .all_reduce = skip,
    .norms = tpi_norms_never,
    .reduce_scatter = skip,
    .all_gather = skip,
    .broadcast = skip,
    .all_to_all = skip,
    .p2p = skip_p2p,
    .barrier = skip_barrier,
    .split = dry_split,
    .exchange = dry_exchange,
    .destroy = dry_destroy,
    .abort = dry_abort,
    .health = dry_health,
    .leave = dry_leave,
    .board = &tpi_board_alone,
};
