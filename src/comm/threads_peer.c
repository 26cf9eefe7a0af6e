/* A small all-reduce in one kernel a rank: the kernels wait for each other over peer memory (tpi_peer_reduce_args).
 * Ranks meet at the gate as they do for any other operation, so that calls that differ and ranks that have gone are
 * found before a kernel waits for them; streams wait for no event. */
#include "comm/threads.h"

/* With three ranks or more: from here on it costs less to hand each rank's part of the sum round than that all add
 * everything. */
#define TWO_SHOT_BYTES ((size_t)65536)

static int device_of(const tpi_group *group, int rank)
{
    return group->world->device[group->seats[rank].world_rank].index;
}

/* Most ranks that share a device. */
static int most_on_a_device(const tpi_group *group)
{
    int most = 1;
    for (int rank = 0; rank < group->size; rank++) {
        int same = 0;
        for (int other = 0; other < group->size; other++)
            same += device_of(group, other) == device_of(group, rank);
        most = same > most ? same : most;
    }
    return most;
}

static bool kernel_adds(const tpi_collective_args *args)
{
    bool floats = tp_dtype_epsilon(args->in_dtype) > 0;
    return floats && (args->reduce.op == TP_REDUCE_SUM || args->in_dtype == args->out_dtype) &&
           args->reduce.algorithm != TP_ALL_REDUCE_RING;
}

bool tpi_peers_suit(int size, const tpi_collective_args *args)
{
    size_t bytes = tpi_comm_bytes(args->rows * args->cols, args->in_dtype);
    return size >= 2 && size <= TPI_PEER_RANKS && bytes > 0 && bytes <= TPI_PEER_STAGING_BYTES && kernel_adds(args);
}

bool tpi_peers_reduce(const tpi_call *call, const tpi_collective_args *args)
{
    const tpi_group *group = call->group;
    tp_peer_kernels when = group->world->desc.peer_kernels;
    bool made = call->own->device && call->own->device->memory;
    if (call->ctx->capturing && !made) /* the host can't wait until it is made; later calls find it */
        return false;
    if (!call->ctx->backend->peer_reduce || when == TP_PEER_KERNELS_NEVER || call->ctx->desc.dry_run)
        return false;
    if (!tpi_peers_suit(call->size, args))
        return false;
    return when == TP_PEER_KERNELS_ALWAYS || most_on_a_device(group) == 1;
}

/* ---- what a rank keeps for it ------------------------------------------------------------------------------------ */

static void show_halt(tpi_thread_comm *own, atomic_uint *halt)
{
    tp_world *world = own->group->world;
    pthread_mutex_lock(&world->lock);
    own->group->seats[own->comm.rank].halt = halt;
    if (halt && atomic_load(&world->failed) != TP_OK)
        atomic_store(halt, 1);
    pthread_mutex_unlock(&world->lock);
}

void tpi_peers_halt(tpi_group *group)
{
    for (int rank = 0; rank < group->size; rank++)
        if (group->seats[rank].halt)
            atomic_store(group->seats[rank].halt, 1);
}

/* While the host waits for a stream whose kernels wait for peers. */
static void watch(tp_ctx *ctx)
{
    if (ctx->world)
        ctx->world->table->health(ctx->world);
}

/* All zero before any peer can reach it. */
static tp_status make_memory(tpi_call *call, tpi_device_comm *device)
{
    tp_ctx *ctx = call->ctx;
    if (device->memory)
        return TP_OK;
    void *memory;
    device->halt = ctx->backend->allocate_shared(ctx, sizeof *device->halt);
    if (!device->halt)
        return TP_ERR_MEMORY;
    show_halt(call->own, device->halt);
    TPI_TRY(tp_ctx_allocate(ctx, TP_MEMORY_COMM, sizeof *device->memory, &memory));
    device->memory = memory;
    int64_t words = (int64_t)(sizeof *device->memory / sizeof(float));
    const tpi_map_args zero = {.rows = 1,
                               .cols = words,
                               .in_dtype = TP_DTYPE_F32,
                               .out = memory,
                               .out_dtype = TP_DTYPE_F32,
                               .out_stride = words};
    TPI_TRY(ctx->backend->map(call->stream, &zero));
    TPI_TRY(ctx->backend->peer_reduce(call->stream, &(tpi_peer_reduce_args){0}));
    if (!ctx->watch)
        ctx->watch = watch;
    return ctx->backend->stream_synchronize(call->stream);
}

void tpi_peers_free(tp_ctx *ctx, tpi_thread_comm *own)
{
    tpi_device_comm *device = own->device;
    if (device->memory)
        tp_ctx_release(ctx, TP_MEMORY_COMM, device->memory, sizeof *device->memory);
    if (device->halt) {
        show_halt(own, NULL);
        ctx->backend->release_shared(ctx, device->halt, sizeof *device->halt);
    }
    device->memory = NULL;
    device->halt = NULL;
}

/* ---- the operation ----------------------------------------------------------------------------------------------- */

static tpi_peer_reduce_args args_of(const tpi_call *call, const tpi_device_comm *device,
                                    const tpi_collective_args *args)
{
    const tp_reduce_desc *desc = &args->reduce;
    size_t bytes = tpi_comm_bytes(args->rows * args->cols, args->in_dtype);
    bool large = call->size > 2 && bytes > TWO_SHOT_BYTES;
    tpi_peer_reduce_args peer = {
        .rank = call->rank,
        .size = call->size,
        .halt = (const unsigned *)(const void *)device->halt,
        .timeout_ms = tpi_call_timeout_ms(call),
        .most_blocks = TPI_PEER_BLOCKS / most_on_a_device(call->group),
        .two_shot = desc->algorithm == TP_ALL_REDUCE_TWO_SHOT || (desc->algorithm == TP_ALL_REDUCE_AUTO && large),
        .op = desc->op,
        .in_dtype = args->in_dtype,
        .out_dtype = args->out_dtype,
        .rows = args->rows,
        .cols = args->cols,
        .in = args->in,
        .out = args->out,
        .bias = desc->bias.data,
        .bias_dtype = desc->bias.dtype,
        .residual = desc->residual.data,
        .dropout = desc->dropout,
        .dropout_key = desc->dropout_key,
        .first_row = desc->first_row,
        .norm = args->norm,
        .done = device->done,
    };
    for (int rank = 0; rank < call->size; rank++)
        peer.memory[rank] = tpi_call_peer(call, rank)->memory;
    return peer;
}

tp_status tpi_peers_all_reduce(tpi_call *call, tpi_device_comm *device, const tpi_collective_args *args)
{
    TPI_TRY(make_memory(call, device));
    if (args->norm)
        call->name = "all_reduce_norm"; /* deals its elements out by rows: all ranks must */
    tpi_post post = tpi_post_of_reduction(args);
    post.memory = device->memory;
    tpi_call_next(call);
    TPI_TRY(tpi_call_post(call, &post));
    device->shared = device->ops;
    if (!tpi_touch_begin(call))
        return tpi_call_peer_failed(call);
    const tpi_peer_reduce_args peer = args_of(call, device, args);
    TPI_TRY(call->ctx->backend->peer_reduce(call->stream, &peer));
    tpi_touch_end(call); /* what peers read stays until the communicator goes, which looks at `done` */
    return TP_OK;
}
