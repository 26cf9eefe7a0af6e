/* The transport of one rank: the template of a transport. Nothing travels, but reductions are finished and results
 * copied. */
#include "comm/collective.h"

typedef tp_status (*self_body)(tp_ctx *ctx, const tpi_collective_args *args);

typedef struct self_task {
    self_body body;
    tpi_collective_args args;
    bool timed; /* on the compute stream: its time counts */
} self_task;

static tp_status run_task(tp_ctx *ctx, const void *pointer)
{
    const self_task *task = pointer;
    double begin = task->timed ? tpi_seconds() : 0;
    tp_status status = task->body(ctx, &task->args);
    if (task->timed)
        tpi_add_seconds(ctx, 0, tpi_seconds() - begin);
    return status;
}

static tp_status issue(tpi_stream *stream, self_body body, const tpi_collective_args *args)
{
    tp_ctx *ctx = args->comm->ctx;
    self_task task = {.body = body, .args = *args, .timed = stream == ctx->compute};
    return ctx->backend->run(stream, run_task, &task, sizeof task);
}

static tpi_span span_of(const tpi_collective_args *args)
{
    return (tpi_span){
        .in = &args->in,
        .inputs = 1,
        .in_dtype = args->in_dtype,
        .out = &args->out,
        .outputs = 1,
        .out_dtype = args->out_dtype,
        .end = args->rows * args->cols,
        .cols = args->cols,
        .reduce = &args->reduce,
    };
}

static tp_status finish(tp_ctx *ctx, const tpi_collective_args *args)
{
    const tpi_span span = span_of(args);
    return tpi_comm_reduce_span(ctx, &span);
}

static tp_status copy(tp_ctx *ctx, const tpi_collective_args *args)
{
    (void)ctx;
    tpi_comm_copy(args->out, args->in, tpi_comm_bytes(args->rows * args->cols, args->in_dtype));
    return TP_OK;
}

static tp_status self_reduce(tpi_stream *stream, const tpi_collective_args *args)
{
    tp_ctx *ctx = args->comm->ctx;
    if (!ctx->behind)
        return issue(stream, finish, args);
    tpi_span span = span_of(args);
    span.stream = stream;
    return tpi_comm_reduce_span(ctx, &span);
}

static tp_status self_copy(tpi_stream *stream, const tpi_collective_args *args)
{
    tp_ctx *ctx = args->comm->ctx;
    if (!ctx->behind)
        return issue(stream, copy, args);
    size_t bytes = tpi_comm_bytes(args->rows * args->cols, args->in_dtype);
    return bytes > 0 ? ctx->backend->copy(stream, args->out, args->in, bytes, TPI_COPY_WITHIN) : TP_OK;
}

static tp_status self_broadcast(tpi_stream *stream, const tpi_collective_args *args)
{
    (void)stream;
    (void)args;
    return TP_OK;
}

/* The receive that a send meets: the checks made sure that they pair up. */
static const tp_tensor *receive_of(const tpi_p2p_args *args, int *receive)
{
    while (args->ops[*receive].send)
        ++*receive;
    return &args->ops[(*receive)++].tensor;
}

static tp_status run_p2p(tp_ctx *ctx, const void *pointer)
{
    (void)ctx;
    const tpi_p2p_args *args = pointer;
    int receive = 0;
    for (int send = 0; send < args->count; send++)
        if (args->ops[send].send)
            tpi_comm_copy(receive_of(args, &receive)->data, args->ops[send].tensor.data,
                          tp_tensor_bytes(args->ops[send].tensor));
    return TP_OK;
}

static tp_status self_p2p(tpi_stream *stream, const tpi_p2p_args *args)
{
    tp_ctx *ctx = args->comm->ctx;
    if (!ctx->behind)
        return ctx->backend->run(stream, run_p2p, args, sizeof *args);
    int receive = 0;
    for (int send = 0; send < args->count; send++) {
        const tp_p2p *op = &args->ops[send];
        if (op->send)
            TPI_TRY(ctx->backend->copy(stream, receive_of(args, &receive)->data, op->tensor.data,
                                       tp_tensor_bytes(op->tensor), TPI_COPY_WITHIN));
    }
    return TP_OK;
}

static tp_status self_barrier(tpi_stream *stream, tp_comm *comm)
{
    (void)stream;
    (void)comm;
    return TP_OK;
}

static tp_status self_split(tp_ctx *ctx, tp_comm *comm, int color, int key, tp_comm **out)
{
    (void)comm;
    (void)key;
    *out = NULL;
    return color < 0 ? TP_OK : tpi_comm_create_self(ctx, out);
}

static tp_status self_exchange(tp_ctx *ctx, tp_comm *comm, const void *mine, void *all, size_t bytes)
{
    (void)ctx;
    (void)comm;
    tpi_comm_copy(all, mine, bytes);
    return TP_OK;
}

static void self_destroy(tp_ctx *ctx, tp_comm *comm)
{
    tpi_host_release(ctx, comm, sizeof *comm);
}

/* A group of one can lie in a larger world. */
static void self_abort(tp_comm *comm, int rank, tp_status status, const char *message)
{
    (void)rank;
    tp_comm *world = comm->ctx->world;
    if (world && world->table != &tpi_comm_self)
        world->table->abort(world, world->rank, status, message);
}

static tp_status self_health(tp_comm *comm)
{
    (void)comm;
    return TP_OK;
}

static void self_leave(tp_comm *comm)
{
    (void)comm;
}

tp_status tpi_comm_create_self(tp_ctx *ctx, tp_comm **out)
{
    tp_comm *comm = tpi_host_allocate(ctx, sizeof *comm);
    *out = comm;
    if (!comm)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "no memory for a communicator of one rank");
    *comm = (tp_comm){.table = &tpi_comm_self, .ctx = ctx, .rank = 0, .size = 1, .state = NULL};
    return TP_OK;
}

const tpi_comm_table tpi_comm_self = {
    .name = "self",
    .all_reduce = self_reduce,
    .norms = tpi_norms_never,
    .reduce_scatter = self_reduce,
    .all_gather = self_copy,
    .broadcast = self_broadcast,
    .all_to_all = self_copy,
    .p2p = self_p2p,
    .barrier = self_barrier,
    .split = self_split,
    .exchange = self_exchange,
    .destroy = self_destroy,
    .abort = self_abort,
    .health = self_health,
    .symmetric_create = tpi_symmetric_allocate,
    .symmetric_release = tpi_symmetric_release,
    .leave = self_leave,
    .board = &tpi_board_alone,
};
