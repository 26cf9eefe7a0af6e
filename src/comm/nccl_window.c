/* Windows: memory that NCCL knows on all ranks of a communicator. Small operations are staged in one; and where the
 * ranks don't reach each other's memory by themselves, symmetric buffers are windows. */
#include "comm/nccl.h"
#include "core/memory.h"

typedef struct request {
    size_t bytes;
    bool able;    /* false: this rank lacks host memory for it */
    void **peers; /* where all ranks' memory is; NULL: not asked for */
} request;

typedef struct vote {
    size_t bytes;
    tp_status status;
} vote;

/* TP_OK if all ranks say so, else a refusal on all of them; this rank's own words stay. */
static tp_status agree(tpi_nccl_comm *own, size_t bytes, tp_status status)
{
    tp_ctx *ctx = own->comm.ctx;
    const vote mine = {.bytes = bytes, .status = status};
    vote all[TPI_MAX_RANKS];
    size_t asked[TPI_MAX_RANKS];
    TPI_TRY(own->comm.table->exchange(ctx, &own->comm, &mine, all, sizeof mine));
    for (int rank = 0; rank < own->comm.size; rank++)
        asked[rank] = all[rank].bytes;
    TPI_TRY(tpi_symmetric_agree(ctx, own->comm.size, asked));
    for (int rank = 0; rank < own->comm.size && status == TP_OK; rank++)
        if (all[rank].status == TP_ERR_MEMORY)
            status = tpi_comm_no_memory(ctx, &own->comm, rank, "a symmetric buffer");
        else if (all[rank].status != TP_OK)
            status =
                tpi_refuse(ctx, all[rank].status, "symmetric_create: rank %d does not reach the others' memory", rank);
    return status;
}

static tp_status find_peers(tpi_nccl_comm *own, const tpi_nccl_window *window, void **peers)
{
    for (int rank = 0; peers && rank < own->comm.size; rank++)
        if (rank == own->comm.rank)
            peers[rank] = window->memory;
        else
            TPI_TRY(own->table->window_address(own->fabric, window->handle, rank, &peers[rank]));
    return TP_OK;
}

/* All ranks have the memory. */
static tp_status join(tpi_nccl_comm *own, const request *wanted, tpi_nccl_window *window)
{
    tp_ctx *ctx = own->comm.ctx;
    TPI_TRY(own->table->window_open(own->fabric, window->memory, window->bytes, &window->handle));
    tp_status status = window->handle ? find_peers(own, window, wanted->peers)
                                      : tpi_refuse(ctx, TP_ERR_UNSUPPORTED,
                                                   "symmetric_create: NCCL has no symmetric memory between these GPUs");
    TPI_TRY(tpi_ctx_usable(ctx));
    return agree(own, wanted->bytes, status);
}

/* Deregistered before the memory is freed; in a context that failed the communicator goes first, and its registrations
 * with it. */
static void close_window(tpi_nccl_comm *own, tpi_nccl_window *window)
{
    tp_ctx *ctx = own->comm.ctx;
    if (tp_ctx_failure(ctx) != TP_OK)
        tpi_nccl_abort(own);
    if (!own->aborted && window->handle)
        own->table->window_close(own->fabric, window->handle);
    if (!own->aborted && tp_ctx_failure(ctx) != TP_OK) /* now, perhaps */
        tpi_nccl_abort(own);
    if (window->memory) {
        own->table->window_free(ctx, window->memory, window->bytes);
        tpi_memory_given_back(ctx, TP_MEMORY_COMM, window->bytes);
    }
    *window = (tpi_nccl_window){.memory = NULL};
}

/* Collective. A refusal is one on all ranks, and leaves nothing behind. */
static tp_status open_window(tpi_nccl_comm *own, const request *wanted, tpi_nccl_window *out)
{
    tp_ctx *ctx = own->comm.ctx;
    size_t bytes = wanted->bytes > 0 ? wanted->bytes : 1;
    void *memory = NULL;
    *out = (tpi_nccl_window){.memory = NULL};
    tp_status status = wanted->able ? own->table->window_allocate(ctx, bytes, &memory) : TP_ERR_MEMORY;
    if (status == TP_OK) {
        tpi_memory_taken(ctx, TP_MEMORY_COMM, bytes);
        *out = (tpi_nccl_window){.memory = memory, .bytes = bytes};
    }
    status = agree(own, wanted->bytes, status);
    if (status == TP_OK)
        status = join(own, wanted, out);
    if (status != TP_OK)
        close_window(own, out);
    return status;
}

/* ---- staging ----------------------------------------------------------------------------------------------------- */

tp_status tpi_nccl_window_stage(tpi_nccl_comm *own)
{
    const request wanted = {.bytes = TPI_NCCL_ONE_SHOT_BYTES, .able = true};
    tp_status status = open_window(own, &wanted, &own->window);
    return tp_ctx_failure(own->comm.ctx) != TP_OK ? status : TP_OK; /* all ranks go without it alike */
}

bool tpi_nccl_in_window(const tpi_nccl_call *call, const void *staging)
{
    return call->own->window.memory && staging == call->own->window.memory;
}

void tpi_nccl_windows_close(tpi_nccl_comm *own)
{
    close_window(own, &own->window);
    while (own->symmetric) {
        tpi_nccl_window *window = own->symmetric;
        own->symmetric = window->next;
        close_window(own, window);
        tpi_host_release(own->comm.ctx, window, sizeof *window);
    }
}

/* ---- symmetric buffers ------------------------------------------------------------------------------------------- */

tp_status tpi_nccl_symmetric_create(tp_ctx *ctx, tp_comm *comm, size_t bytes, tp_symmetric *out)
{
    tpi_nccl_comm *own = comm->state;
    tpi_nccl_call call;
    if (!comm->apart)
        return tpi_symmetric_allocate(ctx, comm, bytes, out);
    TPI_TRY(tpi_nccl_begin(ctx->compute, comm, &call));
    tpi_nccl_window *window = tpi_host_allocate(ctx, sizeof *window), none;
    const request wanted = {.bytes = bytes, .able = window && out->peer, .peers = out->peer};
    tp_status status = open_window(own, &wanted, window ? window : &none);
    if (status != TP_OK) {
        tpi_host_release(ctx, window, sizeof *window);
        return status;
    }
    window->next = own->symmetric;
    own->symmetric = window;
    out->local = window->memory;
    return TP_OK;
}

void tpi_nccl_symmetric_release(tp_ctx *ctx, tp_comm *comm, tp_symmetric *symmetric)
{
    tpi_nccl_comm *own = comm->state;
    for (tpi_nccl_window **link = &own->symmetric; *link; link = &(*link)->next)
        if ((*link)->memory == symmetric->local) {
            tpi_nccl_window *window = *link;
            *link = window->next;
            close_window(own, window);
            tpi_host_release(ctx, window, sizeof *window);
            return;
        }
    tpi_symmetric_release(ctx, comm, symmetric);
}
