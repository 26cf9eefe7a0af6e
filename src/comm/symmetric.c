/* Symmetric buffers: the same size on every rank, and everyone's addresses. */
#include "comm/collective.h"

typedef struct offer {
    void *memory;
    size_t bytes;
    bool ready;
} offer;

tp_status tpi_symmetric_agree(tp_ctx *ctx, int size, const size_t *bytes)
{
    for (int rank = 0; rank < size; rank++)
        if (bytes[rank] != bytes[0])
            return tpi_refuse(ctx, TP_ERR_MISMATCH, "symmetric_create: bytes is %zu on rank 0 and %zu on rank %d",
                              bytes[0], bytes[rank], rank);
    return TP_OK;
}

static tp_status agree(tp_ctx *ctx, tp_comm *comm, const offer *mine, tp_symmetric *out)
{
    offer offers[TPI_MAX_RANKS];
    size_t bytes[TPI_MAX_RANKS];
    TPI_TRY(comm->table->exchange(ctx, comm, mine, offers, sizeof *mine));
    for (int rank = 0; rank < comm->size; rank++)
        bytes[rank] = offers[rank].bytes;
    TPI_TRY(tpi_symmetric_agree(ctx, comm->size, bytes));
    for (int rank = 0; rank < comm->size; rank++)
        if (!offers[rank].ready)
            return tpi_comm_no_memory(ctx, comm, rank, "a symmetric buffer");
    for (int rank = 0; rank < comm->size; rank++)
        out->peer[rank] = offers[rank].memory;
    return TP_OK;
}

tp_status tpi_symmetric_allocate(tp_ctx *ctx, tp_comm *comm, size_t bytes, tp_symmetric *out)
{
    if (comm->apart)
        return tpi_refuse(ctx, TP_ERR_UNSUPPORTED, "symmetric_create: the ranks do not reach each other's memory");
    bool ready = out->peer && tp_ctx_allocate(ctx, TP_MEMORY_COMM, bytes, &out->local) == TP_OK;
    const offer mine = {.memory = out->local, .bytes = bytes, .ready = ready};
    return agree(ctx, comm, &mine, out);
}

void tpi_symmetric_release(tp_ctx *ctx, tp_comm *comm, tp_symmetric *symmetric)
{
    (void)comm;
    if (symmetric->local)
        tp_ctx_release(ctx, TP_MEMORY_COMM, symmetric->local, symmetric->bytes);
}

static size_t peers_bytes(const tp_comm *comm)
{
    return (size_t)comm->size * sizeof(void *);
}

static void release(tp_ctx *ctx, tp_comm *comm, tp_symmetric *symmetric)
{
    comm->table->symmetric_release(ctx, comm, symmetric);
    if (symmetric->peer)
        tpi_host_release(ctx, symmetric->peer, peers_bytes(comm));
    *symmetric = (tp_symmetric){.bytes = 0};
}

tp_status tp_symmetric_create(tp_ctx *ctx, tp_comm *comm, size_t bytes, tp_symmetric *out)
{
    TPI_TRY(tpi_comm_usable(ctx, comm));
    if (!out)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "symmetric_create: out is NULL");
    *out = (tp_symmetric){.bytes = bytes};
    TPI_TRY(ctx->backend->stream_synchronize(ctx->compute));
    out->peer = tpi_host_allocate(ctx, peers_bytes(comm));
    tp_status status = comm->table->symmetric_create(ctx, comm, bytes, out);
    if (status != TP_OK)
        release(ctx, comm, out);
    return status;
}

void tp_symmetric_destroy(tp_ctx *ctx, tp_comm *comm, tp_symmetric *symmetric)
{
    if (!ctx || !comm || !symmetric || !symmetric->peer)
        return;
    /* Nobody may free it while a peer still reads it. */
    char mine = 0, all[TPI_MAX_RANKS];
    tp_status status = tp_ctx_synchronize(ctx);
    if (status == TP_OK)
        status = comm->table->exchange(ctx, comm, &mine, all, sizeof mine);
    if (status != TP_OK)
        comm->table->leave(comm);
    release(ctx, comm, symmetric);
}
