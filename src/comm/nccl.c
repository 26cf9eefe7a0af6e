/* The transport over a fabric: its table, making and unmaking communicators, and how a rank learns that peers
 * failed. */
#include "comm/dry.h"
#include "comm/nccl.h"

typedef tp_status (*nccl_body)(const tpi_nccl_call *call, const tpi_collective_args *args);

/* ---- operations -------------------------------------------------------------------------------------------------- */

static tp_status issue(tpi_stream *stream, const char *name, nccl_body body, const tpi_collective_args *args)
{
    tpi_nccl_call call;
    TPI_TRY(tpi_nccl_begin(stream, args->comm, &call));
    TPI_TRY(tpi_nccl_check(&call, name, args));
    call.own->control->issued++;
    return tpi_nccl_end(&call, body(&call, args));
}

static tp_status all_reduce(tpi_stream *stream, const tpi_collective_args *args)
{
    return issue(stream, "all_reduce", tpi_nccl_all_reduce, args);
}

static tp_status reduce_scatter(tpi_stream *stream, const tpi_collective_args *args)
{
    return issue(stream, "reduce_scatter", tpi_nccl_reduce_scatter, args);
}

static tp_status all_gather(tpi_stream *stream, const tpi_collective_args *args)
{
    return issue(stream, "all_gather", tpi_nccl_all_gather, args);
}

static tp_status broadcast(tpi_stream *stream, const tpi_collective_args *args)
{
    return issue(stream, "broadcast", tpi_nccl_broadcast, args);
}

static tp_status all_to_all(tpi_stream *stream, const tpi_collective_args *args)
{
    return issue(stream, "all_to_all", tpi_nccl_all_to_all, args);
}

static tp_status barrier(tpi_stream *stream, tp_comm *comm)
{
    const tpi_collective_args args = {.comm = comm};
    return issue(stream, "barrier", tpi_nccl_barrier, &args);
}

static tp_status post(const tpi_nccl_call *call, const tpi_p2p_args *args)
{
    for (int i = 0; i < args->count; i++) {
        const tp_p2p *op = &args->ops[i];
        size_t bytes = tp_tensor_bytes(op->tensor);
        if (op->peer == call->rank)
            continue;
        TPI_TRY(op->send ? tpi_nccl_send(call, op->tensor.data, bytes, op->peer)
                         : tpi_nccl_receive(call, op->tensor.data, bytes, op->peer));
    }
    return TP_OK;
}

static int next_own(const tpi_p2p_args *args, int rank, bool send, int from)
{
    while (from < args->count && (args->ops[from].send != send || args->ops[from].peer != rank))
        from++;
    return from;
}

/* The checks made sure that they pair up. */
static tp_status copy_own(const tpi_nccl_call *call, const tpi_p2p_args *args)
{
    int send = next_own(args, call->rank, true, 0), receive = next_own(args, call->rank, false, 0);
    while (send < args->count) {
        const tp_tensor *from = &args->ops[send].tensor;
        TPI_TRY(tpi_nccl_copy(call, args->ops[receive].tensor.data, from->data, tp_tensor_bytes(*from)));
        send = next_own(args, call->rank, true, send + 1);
        receive = next_own(args, call->rank, false, receive + 1);
    }
    return TP_OK;
}

static tp_status p2p(tpi_stream *stream, const tpi_p2p_args *args)
{
    tpi_nccl_call call;
    TPI_TRY(tpi_nccl_begin(stream, args->comm, &call));
    TPI_TRY(call.table->group_begin(call.fabric));
    TPI_TRY(tpi_nccl_group_end(&call, post(&call, args)));
    return tpi_nccl_end(&call, copy_own(&call, args));
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

void tpi_nccl_abort(tpi_nccl_comm *own)
{
    if (own->fabric)
        own->table->abort(own->fabric);
    own->aborted = true;
}

static void drop_fabric(tpi_nccl_comm *own)
{
    if (own->fabric)
        own->table->release(own->fabric);
    own->fabric = NULL;
}

/* Called while the host waits for a stream of this context: a peer that failed will never come to what the stream waits
 * for. */
static void watch(tp_ctx *ctx)
{
    for (tpi_nccl_comm *own = ctx->nccl; own && tp_ctx_failure(ctx) == TP_OK; own = own->next) {
        if (own->control->table->health(own->control) == TP_OK && own->fabric && !own->aborted)
            own->table->health(own->fabric);
    }
    if (tp_ctx_failure(ctx) != TP_OK)
        for (tpi_nccl_comm *own = ctx->nccl; own; own = own->next)
            tpi_nccl_abort(own);
}

static tp_status health(tp_comm *comm)
{
    tpi_nccl_comm *own = comm->state;
    return own->control->table->health(own->control);
}

static void abort_world(tp_comm *comm, int rank, tp_status status, const char *message)
{
    tpi_nccl_comm *own = comm->state;
    own->control->table->abort(own->control, rank, status, message);
}

static void leave(tp_comm *comm)
{
    tpi_nccl_comm *own = comm->state;
    own->control->table->leave(own->control);
}

/* ---- communicators ----------------------------------------------------------------------------------------------- */

static void enter(tpi_nccl_comm *own)
{
    tp_ctx *ctx = own->comm.ctx;
    own->next = ctx->nccl;
    ctx->nccl = own;
    ctx->watch = watch;
}

static void remove_from_list(tpi_nccl_comm *own)
{
    for (tpi_nccl_comm **link = &own->comm.ctx->nccl; *link; link = &(*link)->next)
        if (*link == own) {
            *link = own->next;
            return;
        }
}

static void destroy(tp_ctx *ctx, tp_comm *comm)
{
    tpi_nccl_comm *own = comm->state;
    const tpi_backend *backend = ctx->backend;
    if (own->staging_used)
        backend->event_synchronize(ctx, own->staging_used);
    if (tp_ctx_failure(ctx) != TP_OK || health(comm) != TP_OK)
        tpi_nccl_abort(own);
    tpi_nccl_windows_close(own);
    if (own->fabric && !own->aborted)
        own->table->destroy(own->fabric);
    else
        drop_fabric(own);
    own->fabric = NULL;
    remove_from_list(own);
    if (own->staging_used)
        backend->event_destroy(own->staging_used);
    if (own->staging)
        tp_ctx_release(ctx, TP_MEMORY_COMM, own->staging, own->staging_bytes);
    own->control->table->destroy(ctx, own->control);
    tpi_host_release(ctx, own, sizeof *own);
}

static const tpi_fabric *fabric_of(const tp_ctx *ctx)
{
    return ctx->desc.dry_run ? &tpi_fabric_dry : ctx->backend->fabric;
}

static tpi_nccl_comm *new_comm(tp_ctx *ctx, tp_comm *control)
{
    tpi_nccl_comm *own = tpi_host_allocate(ctx, sizeof *own);
    if (!own)
        return NULL;
    own->comm =
        (tp_comm){.table = &tpi_comm_nccl, .ctx = ctx, .rank = control->rank, .size = control->size, .state = own};
    own->control = control;
    own->table = fabric_of(ctx);
    own->checks = ctx->desc.world != NULL && tpi_world_checks(ctx->desc.world);
    return own;
}

/* What a communicator with a fabric, and in the list, needs besides. On failure nothing is left of it. */
static tp_status start(tpi_nccl_comm *own)
{
    tp_status status = tpi_nccl_window_stage(own);
    if (status == TP_OK)
        return TP_OK;
    drop_fabric(own);
    remove_from_list(own);
    tpi_host_release(own->comm.ctx, own, sizeof *own);
    return status;
}

static tp_status split(tp_ctx *ctx, tp_comm *comm, int color, int key, tp_comm **out)
{
    *out = NULL;
    tpi_nccl_comm *parent = comm->state, *own = NULL;
    tpi_nccl_call call;
    tp_comm *control;
    TPI_TRY(tpi_nccl_begin(ctx->compute, comm, &call));
    TPI_TRY(parent->control->table->split(ctx, parent->control, color, key, &control));
    bool shared = control && control->size > 1;
    tpi_fabric_comm *fabric = NULL;
    tp_status status = call.table->split(parent->fabric, shared ? color : -1, key, &fabric);
    if (status == TP_OK && shared) {
        own = new_comm(ctx, control);
        status = own ? TP_OK
                     : tpi_fail(ctx, TP_ERR_MEMORY, "split: no memory for a communicator of %d ranks", control->size);
    }
    if (status != TP_OK) {
        if (fabric)
            call.table->release(fabric);
        if (control)
            control->table->destroy(ctx, control);
        return status;
    }
    if (own) {
        own->fabric = fabric;
        own->comm.apart = comm->apart;
        enter(own);
        status = start(own);
    }
    if (status != TP_OK)
        control->table->destroy(ctx, control);
    else
        *out = own ? &own->comm : control; /* control: of one rank, or none */
    return status;
}

static tp_status exchange(tp_ctx *ctx, tp_comm *comm, const void *mine, void *all, size_t bytes)
{
    tpi_nccl_comm *own = comm->state;
    own->control->what = comm->what;
    tp_status status = own->control->table->exchange(ctx, own->control, mine, all, bytes);
    own->control->what = NULL;
    return status;
}

typedef struct introduction {
    tpi_fabric_id id; /* the first rank's */
    tp_status status;
} introduction;

/* The first rank's id reaches all, or its failure does. */
static tp_status agree_on_id(tp_ctx *ctx, tp_comm *control, tpi_fabric_id *out)
{
    introduction mine = {.status = TP_OK}, all[TPI_MAX_RANKS];
    if (control->rank == 0)
        mine.status = fabric_of(ctx)->make_id(ctx, &mine.id);
    TPI_TRY(control->table->exchange(ctx, control, &mine, all, sizeof mine));
    *out = all[0].id;
    if (control->rank == 0)
        return mine.status;
    return all[0].status == TP_OK
               ? TP_OK
               : tpi_refuse(ctx, TP_ERR_PEER, "%s: rank 0 could not make an id", fabric_of(ctx)->name);
}

tp_status tpi_comm_create_nccl(tp_ctx *ctx, tp_comm *control, tp_comm **out)
{
    *out = NULL;
    tpi_fabric_id id;
    TPI_TRY(agree_on_id(ctx, control, &id));
    tpi_nccl_comm *own = new_comm(ctx, control);
    if (!own)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "no memory for a communicator of %d ranks", control->size);
    enter(own);
    tp_status status = own->table->create(ctx, &id, control->rank, control->size, &own->fabric);
    if (status != TP_OK) {
        remove_from_list(own);
        tpi_host_release(ctx, own, sizeof *own);
        return status;
    }
    TPI_TRY(start(own));
    *out = &own->comm;
    return TP_OK;
}

/* ---- boards ------------------------------------------------------------------------------------------------------ */

/* Thread ranks see each other's memory whatever moves their data; the board made is theirs. */
static tp_status create_board(tp_ctx *ctx, tp_comm *comm, const tpi_board_desc *desc, tpi_board **out)
{
    tpi_nccl_comm *own = comm->state;
    *out = NULL;
    if (comm->apart)
        return tpi_refuse(
            ctx, TP_ERR_UNSUPPORTED,
            "a plan whose ranks touch each other's memory: the ranks of this communicator do not reach it");
    return own->control->table->board->create(ctx, own->control, desc, out);
}

static const tpi_board_table board = {.create = create_board};

const tpi_comm_table tpi_comm_nccl = {
    .name = "nccl",
    .all_reduce = all_reduce,
    .norms = tpi_norms_never,
    .reduce_scatter = reduce_scatter,
    .all_gather = all_gather,
    .broadcast = broadcast,
    .all_to_all = all_to_all,
    .p2p = p2p,
    .barrier = barrier,
    .split = split,
    .exchange = exchange,
    .destroy = destroy,
    .abort = abort_world,
    .health = health,
    .symmetric_create = tpi_nccl_symmetric_create,
    .symmetric_release = tpi_nccl_symmetric_release,
    .leave = leave,
    .board = &board,
};
