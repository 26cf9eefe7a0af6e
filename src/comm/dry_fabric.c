/* The fabric of a dry run: nothing travels. So the transport over it asks for the staging that it would use, and that is counted. */
#include "comm/dry.h"

struct tpi_fabric_comm {
    tp_ctx *ctx;
};

static bool available(char reason[TPI_FABRIC_TEXT])
{
    reason[0] = '\0';
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

const tpi_fabric tpi_fabric_dry = {
    .name = "dry",
    .available = available,
    .make_id = make_id,
    .create = create,
    .split = split,
    .destroy = release,
    .abort = release,
    .health = nothing,
    .group_begin = nothing,
    .group_end = nothing,
    .send = skip,
    .receive = skip,
    .broadcast = skip,
    .all_gather = skip,
    .all_reduce = skip,
    .reduce_scatter = skip,
};
