/* The thread transport's table: handles, and issuing operations on a stream. */
#include <stdio.h>
#include <tp/device.h>

#include "comm/threads.h"
#include "core/stream.h"

#define LONGEST_LEAVE_MS 10000

/* An operation: its name, and how it is done in a stream and in device order. */
typedef struct thread_op {
    const char *name;
    tp_status (*body)(tpi_call *call, const tpi_collective_args *args);
    tpi_device_body device;
    bool moves; /* moves data and computes nothing: needs no float mode */
} thread_op;

/* What a stream gets that runs at once; and one that runs later, with a copy of the arguments. */
typedef struct op_task {
    const thread_op *op;
    const tpi_collective_args *args;
    int64_t stamp;
    bool timed; /* on the compute stream: its time counts */
} op_task;

typedef struct late_task {
    op_task common;
    tpi_collective_args args;
} late_task;

typedef struct thread_p2p_task {
    tpi_p2p_args args;
    int64_t stamp;
    bool timed;
} thread_p2p_task;

/* When an operation was issued; only the link model asks. */
static int64_t stamp_of(const tp_comm *comm)
{
    const tpi_thread_comm *own = comm->state;
    return own->group->world->desc.link.bytes_per_second > 0 ? tpi_nanoseconds() : 0;
}

/* Up to here an operation passes flags in less time than asking for the time takes: only real waits are counted. */
static bool is_quick(const tpi_call *call, const tpi_collective_args *args)
{
    return call->group->flagged && tpi_comm_bytes(args->rows * args->cols, args->in_dtype) <= TPI_STAGING_BYTES;
}

/* Where more is staged, a peer that waits already takes the flag's line away again. */
#define FETCHED_BYTES 3072

/* This rank raises its flag soon: the line, which a peer has read, comes back while staging is filled. */
static void fetch_flag(const tpi_call *call, const thread_op *op, const tpi_collective_args *args)
{
    size_t bytes = tpi_comm_bytes(args->rows * args->cols, args->in_dtype);
    if (call->size == 2 && op->device != TPI_DEVICE_ALL_REDUCE && op->device != TPI_DEVICE_BROADCAST)
        bytes /= 2;
    if (!call->group->flagged || bytes > FETCHED_BYTES)
        return;
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(call->group->flags[call->rank].round));
#else
    __builtin_prefetch(&call->group->flags[call->rank].round, 1);
#endif
}

static tp_status run_op(tp_ctx *ctx, const op_task *task, const tpi_collective_args *args)
{
    tpi_call call = tpi_call_begin(args->comm, task->op->name, task->stamp);
    fetch_flag(&call, task->op, args);
    call.counts = task->timed && is_quick(&call, args);
    bool timed = task->timed && !call.counts;
    double begin = timed ? tpi_seconds() : 0;
    tp_status status = task->op->body(&call, args);
    double seconds = timed ? tpi_seconds() - begin : call.waited;
    if (seconds > 0)
        tpi_add_seconds(ctx, 0, seconds);
    return status;
}

static tp_status run_at_once(tp_ctx *ctx, const void *pointer)
{
    const op_task *task = pointer;
    return run_op(ctx, task, task->args);
}

/* What the backend's stream does with a task that runs at once, but for the float mode: reading it is a tenth of a
 * small operation's way. */
static tp_status run_here(tp_ctx *ctx, const op_task *task)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    tp_status status = run_op(ctx, task, task->args);
    if (status != TP_OK && tp_ctx_failure(ctx) == TP_OK)
        tpi_fail(ctx, status, "%s", tp_last_message()[0] ? tp_last_message() : tp_status_text(status));
    return status;
}

static tp_status run_later(tp_ctx *ctx, const void *pointer)
{
    const late_task *task = pointer;
    return run_op(ctx, &task->common, &task->args);
}

static tp_status issue(tpi_stream *stream, const thread_op *op, const tpi_collective_args *args)
{
    tp_ctx *ctx = args->comm->ctx;
    if (ctx->behind)
        return tpi_device_collective(stream, op->name, op->device, args);
    const op_task task = {.op = op, .args = args, .stamp = stamp_of(args->comm), .timed = stream == ctx->compute};
    if (stream->at_once && op->moves)
        return run_here(ctx, &task);
    if (stream->at_once)
        return ctx->backend->run(stream, run_at_once, &task, sizeof task);
    const late_task late = {.common = task, .args = *args};
    return ctx->backend->run(stream, run_later, &late, sizeof late);
}

static tp_status all_reduce(tpi_stream *stream, const tpi_collective_args *args)
{
    static const thread_op op = {"all_reduce", tpi_threads_all_reduce, TPI_DEVICE_ALL_REDUCE, false};
    return issue(stream, &op, args);
}

static bool norms(const tpi_collective_args *args)
{
    const tpi_call call = tpi_call_begin(args->comm, "all_reduce", 0);
    return args->comm->ctx->behind && tpi_peers_reduce(&call, args);
}

static tp_status reduce_scatter(tpi_stream *stream, const tpi_collective_args *args)
{
    static const thread_op op = {"reduce_scatter", tpi_threads_reduce_scatter, TPI_DEVICE_REDUCE_SCATTER, false};
    return issue(stream, &op, args);
}

static tp_status all_gather(tpi_stream *stream, const tpi_collective_args *args)
{
    static const thread_op op = {"all_gather", tpi_threads_all_gather, TPI_DEVICE_ALL_GATHER, true};
    return issue(stream, &op, args);
}

static tp_status broadcast(tpi_stream *stream, const tpi_collective_args *args)
{
    static const thread_op op = {"broadcast", tpi_threads_broadcast, TPI_DEVICE_BROADCAST, true};
    return issue(stream, &op, args);
}

static tp_status all_to_all(tpi_stream *stream, const tpi_collective_args *args)
{
    static const thread_op op = {"all_to_all", tpi_threads_all_to_all, TPI_DEVICE_ALL_TO_ALL, true};
    return issue(stream, &op, args);
}

static tp_status run_barrier(tpi_call *call, const tpi_collective_args *args)
{
    tpi_call_next(call);
    TPI_TRY(tpi_call_post_args(call, args, false));
    tpi_link_collective(call, 0, 0, 1);
    return TP_OK;
}

static tp_status barrier(tpi_stream *stream, tp_comm *comm)
{
    static const thread_op op = {"barrier", run_barrier, TPI_DEVICE_BARRIER, true};
    const tpi_collective_args args = {.comm = comm};
    return issue(stream, &op, &args);
}

static tp_status run_p2p(tp_ctx *ctx, const void *pointer)
{
    const thread_p2p_task *task = pointer;
    double begin = task->timed ? tpi_seconds() : 0;
    tpi_call call = tpi_call_begin(task->args.comm, "p2p_batch", task->stamp);
    tp_status status = tpi_threads_p2p(&call, task->args.ops, task->args.count);
    if (task->timed)
        tpi_add_seconds(ctx, 0, tpi_seconds() - begin);
    return status;
}

static tp_status p2p(tpi_stream *stream, const tpi_p2p_args *args)
{
    tp_ctx *ctx = args->comm->ctx;
    if (ctx->behind)
        return tpi_device_p2p(stream, args);
    thread_p2p_task task = {.args = *args, .stamp = stamp_of(args->comm), .timed = stream == ctx->compute};
    return ctx->backend->run(stream, run_p2p, &task, sizeof task);
}

tpi_thread_comm *tpi_threads_handle(tp_ctx *ctx, int rank, int size)
{
    tpi_thread_comm *own = tpi_host_allocate(ctx, sizeof *own);
    if (!own)
        return NULL;
    own->comm = (tp_comm){.table = &tpi_comm_threads, .ctx = ctx, .rank = rank, .size = size, .state = own};
    return own;
}

void tpi_threads_handle_join(tpi_thread_comm *own, tpi_group *group)
{
    own->group = group;
    own->spin = (tpi_spin){.limit = group->world->spin_limit, .turns = group->world->spin_limit};
    atomic_store(&group->seats[own->comm.rank].left, 0);
}

void tpi_threads_handle_free(tp_ctx *ctx, tpi_thread_comm *own)
{
    if (own)
        tpi_host_release(ctx, own, sizeof *own);
}

/* Whether anybody stands at a gate that this rank did not come to. */
static bool awaited(const tpi_group *group, int rank)
{
    bool waiting = (uint32_t)atomic_load(&group->waiting) > 0;
    unsigned own = atomic_load(&group->seats[rank].arrived);
    for (int peer = 0; peer < group->size && group->flagged; peer++)
        waiting = waiting || tpi_flag_reached(&group->flags[peer], own + 1);
    return waiting;
}

/* Whoever waits for this rank, now or later, is told instead of waiting for its bound. */
static void go_for_good(tpi_group *group, int rank)
{
    atomic_fetch_add(&group->gone, 1);
    if (awaited(group, rank)) {
        char message[TPI_MESSAGE_BYTES];
        snprintf(message, sizeof message, "destroyed its communicator of %d ranks while others wait there",
                 group->size);
        tpi_world_abort(group->world, group->seats[rank].world_rank, TP_ERR_STATE, message);
    }
    for (int peer = 0; peer < group->size; peer++)
        tpi_word_advance(&group->seats[peer].bell);
}

static void destroy(tp_ctx *ctx, tp_comm *comm)
{
    tpi_thread_comm *own = comm->state;
    tpi_group *group = own->group;
    if (comm->issued > 0)
        atomic_store(&group->seats[comm->rank].passed, comm->issued);
    atomic_store(&group->seats[comm->rank].left, 1);
    if (!own->owns_rank || group->world->single_use)
        go_for_good(group, comm->rank);
    tpi_device_comm_free(ctx, own);
    if (own->owns_rank) {
        tp_world *world = group->world;
        pthread_mutex_lock(&world->lock);
        world->taken[comm->rank] = false;
        pthread_mutex_unlock(&world->lock);
    }
    tpi_group_release(group);
    tpi_threads_handle_free(ctx, own);
}

static void abort_world(tp_comm *comm, int rank, tp_status status, const char *message)
{
    tpi_thread_comm *own = comm->state;
    tpi_world_abort(own->group->world, own->group->seats[rank].world_rank, status, message);
}

/* A rank that went before it came to what this one has issued elsewhere, or -1. */
static int missing_rank(const tp_comm *comm, tpi_group *group)
{
    for (int rank = 0; rank < comm->size; rank++)
        if (atomic_load(&group->seats[rank].left) && atomic_load(&group->seats[rank].passed) < comm->issued)
            return rank;
    return -1;
}

static tp_status health(tp_comm *comm)
{
    tpi_call call = tpi_call_begin(comm, "an operation", 0);
    if (atomic_load(&call.group->world->failed) != TP_OK)
        return tpi_call_peer_failed(&call);
    int missing = comm->issued > 0 && atomic_load(&call.group->gone) > 0 ? missing_rank(comm, call.group) : -1;
    return missing < 0 ? TP_OK : tpi_call_peer_gone(&call, missing);
}

static bool all_left(const tpi_group *group)
{
    for (int rank = 0; rank < group->size; rank++)
        if (!atomic_load(&group->seats[rank].left))
            return false;
    return true;
}

static void leave(tp_comm *comm)
{
    tpi_thread_comm *own = comm->state;
    tpi_call call = tpi_call_begin(comm, "leave", 0);
    int64_t bound = tpi_call_timeout_ms(&call) < LONGEST_LEAVE_MS ? tpi_call_timeout_ms(&call) : LONGEST_LEAVE_MS;
    int64_t deadline = tpi_nanoseconds() + bound * 1000000;
    atomic_store(&call.seat->left, 1);
    while (!all_left(own->group) && tpi_nanoseconds() < deadline)
        tpi_sleep_until(tpi_nanoseconds() + 200000);
}

/* A rank whose context is on another kind of device, or -1: all of a world's are of one. */
static int other_device(const tp_world *world, const tp_ctx *ctx)
{
    for (int rank = 0; rank < world->desc.ranks; rank++)
        if (world->taken[rank] && world->device[rank].kind != ctx->desc.device)
            return rank;
    return -1;
}

tp_status tpi_comm_create_threads(tp_ctx *ctx, tp_world *world, int rank, tp_comm **out)
{
    *out = NULL;
    int ranks = world->desc.ranks;
    if (rank < 0 || rank >= ranks)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "rank is %d, must be 0 to %d in a world of %d", rank, ranks - 1, ranks);
    pthread_mutex_lock(&world->lock);
    bool taken = world->taken[rank];
    int other = other_device(world, ctx);
    if (other < 0 && !taken) {
        world->taken[rank] = true;
        world->device[rank] = (tpi_rank_device){ctx->desc.device, ctx->desc.device_index};
    }
    pthread_mutex_unlock(&world->lock);
    if (other >= 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_ctx_desc.device of rank %d is %s, rank %d of the world has another",
                          rank, tp_device_name(ctx->desc.device), other);
    if (taken)
        return tpi_refuse(ctx, TP_ERR_STATE, "rank %d of the world of %d has a context already", rank, ranks);
    tpi_thread_comm *own = tpi_threads_handle(ctx, rank, ranks);
    if (!own) {
        pthread_mutex_lock(&world->lock);
        world->taken[rank] = false;
        pthread_mutex_unlock(&world->lock);
        return tpi_refuse(ctx, TP_ERR_MEMORY, "no memory for the communicator of rank %d", rank);
    }
    atomic_fetch_add(&world->all->holders, 1);
    tpi_threads_handle_join(own, world->all);
    own->owns_rank = true;
    *out = &own->comm;
    return TP_OK;
}

const tpi_comm_table tpi_comm_threads = {
    .name = "threads",
    .all_reduce = all_reduce,
    .norms = norms,
    .reduce_scatter = reduce_scatter,
    .all_gather = all_gather,
    .broadcast = broadcast,
    .all_to_all = all_to_all,
    .p2p = p2p,
    .barrier = barrier,
    .split = tpi_threads_split,
    .exchange = tpi_threads_exchange,
    .destroy = destroy,
    .abort = abort_world,
    .health = health,
    .symmetric_create = tpi_symmetric_allocate,
    .symmetric_release = tpi_symmetric_release,
    .leave = leave,
    .board = &tpi_board_threads,
};
