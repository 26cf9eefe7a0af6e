/* The fabric of a dry run: nothing travels. So the transport over it asks for the staging that it would use, and that
 * is counted. */
#include "comm/dry.h"

struct tpi_fabric_comm {
    tp_ctx *ctx;
};

static bool available(char text[TPI_FABRIC_TEXT])
{
    text[0] = '\0';
    return true;
}

static tp_status make_id(tp_ctx *ctx, tpi_fabric_id *out)
{
    (void)ctx;
    *out = (tpi_fabric_id){{0}};
    return TP_OK;
}

static tp_status create(tp_ctx *ctx, const tpi_fabric_id *id, int rank, int size, tpi_fabric_comm **out)
{
    (void)id;
    (void)rank;
    *out = tpi_host_allocate(ctx, sizeof **out);
    if (!*out)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "no memory for a communicator of %d ranks", size);
    (*out)->ctx = ctx;
    return TP_OK;
}

static tp_status split(tpi_fabric_comm *comm, int color, int key, tpi_fabric_comm **out)
{
    (void)key;
    *out = NULL;
    return color < 0 ? TP_OK : create(comm->ctx, NULL, 0, 0, out);
}

static void release(tpi_fabric_comm *comm)
{
    tpi_host_release(comm->ctx, comm, sizeof *comm);
}

static void abort_nothing(tpi_fabric_comm *comm)
{
    (void)comm;
}

static tp_status nothing(tpi_fabric_comm *comm)
{
    (void)comm;
    return TP_OK;
}

static tp_status skip(tpi_stream *stream, tpi_fabric_comm *comm, const tpi_fabric_op *op)
{
    (void)stream;
    (void)comm;
    (void)op;
    return TP_OK;
}

/* The windows are those that NCCL has where it has symmetric memory. */
static tp_status window_allocate(tp_ctx *ctx, size_t bytes, void **out)
{
    *out = ctx->backend->allocate(ctx, bytes);
    return *out ? TP_OK : tpi_refuse(ctx, TP_ERR_MEMORY, "no memory for a window of %zu bytes", bytes);
}

static void window_free(tp_ctx *ctx, void *memory, size_t bytes)
{
    ctx->backend->release(ctx, memory, bytes);
}

static tp_status window_open(tpi_fabric_comm *comm, void *memory, size_t bytes, void **out)
{
    (void)comm;
    (void)bytes;
    *out = memory;
    return TP_OK;
}

static void window_close(tpi_fabric_comm *comm, void *window)
{
    (void)comm;
    (void)window;
}

static tp_status window_address(tpi_fabric_comm *comm, void *window, int rank, void **out)
{
    (void)comm;
    (void)rank;
    *out = window;
    return TP_OK;
}

const tpi_fabric tpi_fabric_dry = {
    .name = "dry",
    .available = available,
    .make_id = make_id,
    .create = create,
    .split = split,
    .destroy = release,
    .abort = abort_nothing,
    .release = release,
    .health = nothing,
    .group_begin = nothing,
    .group_end = nothing,
    .send = skip,
    .receive = skip,
    .broadcast = skip,
    .all_gather = skip,
    .all_reduce = skip,
    .reduce_scatter = skip,
    .window_allocate = window_allocate,
    .window_free = window_free,
    .window_open = window_open,
    .window_close = window_close,
    .window_address = window_address,
};
