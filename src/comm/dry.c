/* The transport of a dry run: a group of any size in which nothing travels. This rank's part of every operation is
 * sized and counted, none is done. On a GPU, all-reduces take the memory that thread ranks with a device each have for
 * them; or NCCL's transport runs over a fabric that moves nothing (dry_fabric.c). */
#include <string.h>

#include "comm/threads.h"

typedef struct dry_comm {
    tp_comm comm;
    void *peer_memory, *staging; /* as in tpi_device_comm */
} dry_comm;

static tp_status create(tp_ctx *ctx, int rank, int size, tp_comm **out)
{
    dry_comm *own = tpi_host_allocate(ctx, sizeof *own);
    *out = NULL;
    if (!own)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "no memory for a communicator");
    *own = (dry_comm){.comm = {.table = &tpi_comm_dry, .ctx = ctx, .rank = rank, .size = size, .state = own}};
    *out = &own->comm;
    return TP_OK;
}

static tp_status take(tp_ctx *ctx, size_t bytes, void **memory)
{
    return *memory ? TP_OK : tp_ctx_allocate(ctx, TP_MEMORY_COMM, bytes, memory);
}

static tp_status all_reduce(tpi_stream *stream, const tpi_collective_args *args)
{
    dry_comm *own = args->comm->state;
    tp_ctx *ctx = own->comm.ctx;
    (void)stream;
    if (!ctx->behind || own->comm.size < 2)
        return TP_OK;
    if (tpi_peers_suit(own->comm.size, args))
        return take(ctx, sizeof(tpi_peer_memory), &own->peer_memory);
    return tpi_device_stages(args) ? take(ctx, 2 * TPI_DEVICE_STAGING_BYTES, &own->staging) : TP_OK;
}

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
    return color < 0 ? TP_OK : create(ctx, comm->rank, comm->size, out);
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
    dry_comm *own = comm->state;
    if (own->peer_memory)
        tp_ctx_release(ctx, TP_MEMORY_COMM, own->peer_memory, sizeof(tpi_peer_memory));
    if (own->staging)
        tp_ctx_release(ctx, TP_MEMORY_COMM, own->staging, 2 * TPI_DEVICE_STAGING_BYTES);
    tpi_host_release(ctx, own, sizeof *own);
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

/* As ranks with a device each would be connected: the library is taken to be there. */
static bool is_over_fabric(const tp_ctx *ctx, int size)
{
    tp_transport transport = ctx->desc.dry_transport;
    bool fast = transport == TP_TRANSPORT_AUTO && ctx->desc.sum_order == TP_SUM_FAST;
    return size > 1 && ctx->backend->fabric != NULL && (transport == TP_TRANSPORT_NCCL || fast);
}

tp_status tpi_comm_create_dry(tp_ctx *ctx, int rank, int size, tp_comm **out)
{
    tp_comm *control;
    *out = NULL;
    TPI_TRY(create(ctx, rank, size, &control));
    *out = control;
    if (!is_over_fabric(ctx, size))
        return TP_OK;
    tp_status status = tpi_comm_create_nccl(ctx, control, out);
    if (status != TP_OK)
        dry_destroy(ctx, control);
    return status;
}

const tpi_comm_table tpi_comm_dry = {
    .name = "dry",
    .all_reduce = all_reduce,
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
    .symmetric_create = tpi_symmetric_allocate,
    .symmetric_release = tpi_symmetric_release,
    .leave = dry_leave,
    .board = &tpi_board_alone,
};
