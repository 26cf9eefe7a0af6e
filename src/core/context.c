/* Contexts: checking a description, making and unmaking a rank. */
#include <sched.h>
#include <string.h>
#include <tp/auto.h>
#include <tp/device.h>
#include <time.h>
#include <unistd.h>

#include "comm/graph.h"
#include "comm/table.h"
#include "core/context.h"
#include "core/plugin.h"
#include "core/stream.h"
#include "plan/auto.h"

#define MAX_THREADS 1024
#define DEFAULT_TIMEOUT_MS ((int64_t)600000)

double tpi_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int tpi_usable_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 && online <= MAX_THREADS ? (int)online : 1;
}

static tp_status check_range(const char *field, int64_t value, int64_t low, int64_t high)
{
    if (value >= low && value <= high)
        return TP_OK;
    return tpi_message(TP_ERR_ARGUMENT, "tp_ctx_desc.%s is %lld, not within %lld and %lld", field, (long long)value,
                       (long long)low, (long long)high);
}

static tp_status check_version(int version)
{
    if (version == 0 || version / 100 == TP_VERSION / 100)
        return TP_OK;
    return tpi_message(TP_ERR_VERSION, "tp_ctx_desc.version is %d.%d of the caller's headers, the library is %d.%d",
                       version / 10000, version / 100 % 100, TP_VERSION_MAJOR, TP_VERSION_MINOR);
}

static tp_status check_device(const tp_ctx_desc *desc)
{
    TPI_TRY(check_range("device", (int)desc->device, TP_DEVICE_CPU, TP_DEVICE_CUDA));
    if (desc->device != TP_DEVICE_CPU)
        return TP_OK; /* its plugin is asked */
    TPI_TRY(check_range("device_index", desc->device_index, 0, 0));
    TPI_TRY(check_range("isa", (int)desc->isa, TP_ISA_AUTO, TP_ISA_COUNT - 1));
    if (!tp_isa_available(desc->isa))
        return tpi_message(TP_ERR_BACKEND, "tp_ctx_desc.isa is %s, which this machine does not have",
                           tp_isa_name(desc->isa));
    return TP_OK;
}

/* Precision is given up where it was asked for and brings something, and nowhere else. */
static tp_status check_tf32(const tp_ctx_desc *desc)
{
    if (!desc->tf32)
        return TP_OK;
    if (desc->device != TP_DEVICE_CUDA)
        return tpi_message(TP_ERR_ARGUMENT, "tp_ctx_desc.tf32 is set, which needs device TP_DEVICE_CUDA (%d), not %d",
                           TP_DEVICE_CUDA, (int)desc->device);
    if (desc->sum_order != TP_SUM_FAST)
        return tpi_message(TP_ERR_ARGUMENT, "tp_ctx_desc.tf32 is set, which needs sum_order TP_SUM_FAST (%d), not %d",
                           TP_SUM_FAST, (int)desc->sum_order);
    return TP_OK;
}

/* A dry run needs the backend and no device. */
static tp_status find_backend(const tp_ctx_desc *desc, const tpi_backend **out)
{
    *out = &tpi_backend_cpu;
    if (desc->device == TP_DEVICE_CPU)
        return TP_OK;
    tpi_plugin plugin;
    TPI_TRY(tpi_plugin_load(desc->plugin, &plugin));
    tp_device_info info = {.usable = desc->dry_run};
    if (!desc->dry_run)
        plugin.describe(desc->device_index, &info);
    *out = plugin.backend;
    return info.usable ? TP_OK : tpi_message(TP_ERR_BACKEND, "%s", info.reason);
}

/* The ranks that a dry run stands for. */
static tp_status count_dry_ranks(const tp_ctx_desc *desc, int *ranks)
{
    if (desc->world)
        return tpi_message(TP_ERR_ARGUMENT,
                           "tp_ctx_desc.dry_run stands for all ranks of its mesh, but there is a world of %d",
                           tpi_world_ranks(desc->world));
    const int sizes[TP_AXIS_COUNT] = {desc->mesh.tp, desc->mesh.cp, desc->mesh.dp, desc->mesh.pp};
    int64_t product = 1;
    for (int axis = 0; axis < TP_AXIS_COUNT; axis++) {
        TPI_TRY(check_range("mesh", sizes[axis], 0, INT32_MAX));
        product *= sizes[axis] > 0 ? sizes[axis] : 1;
        TPI_TRY(check_range("mesh", product, 1, INT32_MAX));
    }
    *ranks = (int)product;
    return TP_OK;
}

/* What one kind of device takes says nothing of another. */
static tp_status check_machine(const tp_ctx_desc *desc)
{
    if (desc->machine == NULL)
        return TP_OK;
    if (desc->machine->device == desc->device)
        return tpi_machine_check("tp_ctx_desc.machine", desc->machine);
    return tpi_message(TP_ERR_ARGUMENT, "tp_ctx_desc.machine '%.95s' has times of %s, the context is of %s",
                       desc->machine->name, tp_device_name(desc->machine->device), tp_device_name(desc->device));
}

/* Checks everything and fills in defaults; nothing was allocated yet. */
static tp_status resolve(tp_ctx_desc *desc)
{
    TPI_TRY(check_version(desc->version));
    TPI_TRY(check_device(desc));
    TPI_TRY(check_machine(desc));
    TPI_TRY(check_range("threads", desc->threads, 0, MAX_THREADS));
    TPI_TRY(check_range("sum_order", (int)desc->sum_order, TP_SUM_TREE, TP_SUM_FAST));
    TPI_TRY(check_tf32(desc));
    TPI_TRY(check_range("timeout_ms", desc->timeout_ms, 0, INT64_MAX / 1000000));
    TPI_TRY(check_range("dry_transport", (int)desc->dry_transport, TP_TRANSPORT_AUTO, TP_TRANSPORT_NCCL));
    int ranks = desc->world ? tpi_world_ranks(desc->world) : 1;
    if (desc->dry_run)
        TPI_TRY(count_dry_ranks(desc, &ranks));
    TPI_TRY(check_range("rank", desc->rank, 0, ranks - 1));
    TPI_TRY(tp_mesh_resolve(&desc->mesh, ranks));
    if (!desc->allocator.allocate != !desc->allocator.release)
        return tpi_message(TP_ERR_ARGUMENT, "tp_ctx_desc.allocator has only one of its functions allocate and release");
    if (desc->threads == 0) {
        desc->threads = tpi_world_cores(desc->world) / ranks;
        desc->threads = desc->threads < 1 ? 1 : desc->threads > MAX_THREADS ? MAX_THREADS : desc->threads;
    }
    if (desc->timeout_ms == 0)
        desc->timeout_ms = DEFAULT_TIMEOUT_MS;
    return TP_OK;
}

/* This rank's group along an axis: the ranks that differ in that coordinate only. */
static tp_status create_group(tp_ctx *ctx, tp_axis axis)
{
    if (tp_mesh_size(&ctx->mesh, axis) == 1)
        return tpi_comm_create_self(ctx, &ctx->group[axis]);
    if (ctx->desc.dry_run)
        return tpi_comm_create_dry(ctx, tp_mesh_coordinate(&ctx->mesh, ctx->desc.rank, axis),
                                   tp_mesh_size(&ctx->mesh, axis), &ctx->group[axis]);
    int coordinate[TP_AXIS_COUNT];
    for (int i = 0; i < TP_AXIS_COUNT; i++)
        coordinate[i] = tp_mesh_coordinate(&ctx->mesh, ctx->desc.rank, (tp_axis)i);
    int key = coordinate[axis];
    coordinate[axis] = 0;
    int color = tp_mesh_rank(&ctx->mesh, coordinate);
    return ctx->world->table->split(ctx, ctx->world, color, key, &ctx->group[axis]);
}

static tp_status prepare(tp_ctx *ctx)
{
    TPI_TRY(ctx->backend->open(ctx));
    TPI_TRY(ctx->backend->stream_create(ctx, "compute", true, &ctx->compute));
    int ranks = (int)tpi_ctx_ranks(ctx); /* resolve saw that they fit */
    if (ctx->desc.dry_run && ranks > 1)
        TPI_TRY(tpi_comm_create_dry(ctx, ctx->desc.rank, ranks, &ctx->world));
    else if (ctx->desc.world)
        TPI_TRY(tpi_comm_create_world(ctx, ctx->desc.world, ctx->desc.rank, &ctx->world));
    else
        TPI_TRY(tpi_comm_create_self(ctx, &ctx->world));
    for (int axis = 0; axis < TP_AXIS_COUNT; axis++)
        TPI_TRY(create_group(ctx, (tp_axis)axis));
    return TP_OK;
}

static void unmake(tp_ctx *ctx)
{
    if (ctx->compute)
        ctx->backend->stream_synchronize(ctx->compute);
    if (ctx->executor_free)
        ctx->executor_free(ctx);
    for (int axis = TP_AXIS_COUNT - 1; axis >= 0; axis--) {
        if (ctx->group[axis])
            ctx->group[axis]->table->destroy(ctx, ctx->group[axis]);
    }
    /* Out of reach first: whatever fails from here on has nobody to tell. */
    tp_comm *world = ctx->world;
    ctx->world = NULL;
    if (world)
        world->table->destroy(ctx, world);
    tpi_arena_free(&ctx->scratch);
    if (ctx->compute)
        ctx->backend->stream_destroy(ctx->compute);
    ctx->backend->close(ctx);
    pthread_mutex_destroy(&ctx->memory_lock);
    pthread_mutex_destroy(&ctx->failure.lock);
    tp_allocator allocator = ctx->desc.allocator;
    tpi_raw_release(ctx->desc.device == TP_DEVICE_CPU ? &allocator : NULL, ctx, sizeof *ctx);
}

tp_status tp_ctx_create(const tp_ctx_desc *desc, tp_ctx **out)
{
    if (out)
        *out = NULL;
    if (!desc || !out)
        return tpi_message(TP_ERR_ARGUMENT, "tp_ctx_create: %s is NULL", desc ? "out" : "desc");
    tp_ctx_desc resolved = *desc;
    TPI_TRY(resolve(&resolved));
    const tpi_backend *backend;
    TPI_TRY(find_backend(&resolved, &backend));
    resolved.plugin = NULL;
    tp_ctx *ctx = tpi_raw_allocate(resolved.device == TP_DEVICE_CPU ? &resolved.allocator : NULL, sizeof *ctx);
    if (!ctx) {
        tpi_message(TP_ERR_MEMORY, "out of memory: %zu bytes for a context", sizeof *ctx);
        if (resolved.world)
            tpi_world_abort(resolved.world, resolved.rank, TP_ERR_MEMORY, tp_last_message());
        return TP_ERR_MEMORY;
    }
    memset(ctx, 0, sizeof *ctx);
    ctx->desc = resolved;
    ctx->mesh = resolved.mesh;
    ctx->backend = backend;
    ctx->behind = backend->behind;
    ctx->host = &tpi_host;
    pthread_mutex_init(&ctx->failure.lock, NULL);
    pthread_mutex_init(&ctx->memory_lock, NULL);
    ctx->memory[TP_MEMORY_OTHER] = (tp_memory_count){sizeof *ctx, sizeof *ctx};
    tpi_arena_init(&ctx->scratch, ctx, TP_MEMORY_SCRATCH);

    tp_status status = prepare(ctx);
    if (status != TP_OK) {
        /* Peers may be waiting in the splits. */
        if (resolved.world)
            tpi_world_abort(resolved.world, resolved.rank, status, tp_last_message());
        unmake(ctx);
        return status;
    }
    *out = ctx;
    return TP_OK;
}

void tp_ctx_destroy(tp_ctx *ctx)
{
    if (!ctx)
        return;
    tpi_graph_drop(ctx);
    tp_ctx_synchronize(ctx);
    unmake(ctx);
}

void tpi_stream_enter(tp_ctx *ctx, tpi_stream *stream)
{
    stream->next = ctx->streams;
    ctx->streams = stream;
}

void tpi_stream_leave(tpi_stream *stream)
{
    for (tpi_stream **link = &stream->ctx->streams; *link; link = &(*link)->next) {
        if (*link == stream) {
            *link = stream->next;
            return;
        }
    }
}

tp_status tp_ctx_synchronize(tp_ctx *ctx)
{
    if (!ctx)
        return tpi_ctx_usable(ctx);
    if (tp_ctx_failure(ctx) == TP_OK)
        TPI_TRY(tpi_not_capturing(ctx, "tp_ctx_synchronize"));
    for (tpi_stream *stream = ctx->streams; stream; stream = stream->next)
        ctx->backend->stream_synchronize(stream);
    return tpi_ctx_usable(ctx);
}

tp_status tpi_not_capturing(tp_ctx *ctx, const char *call)
{
    return ctx->capturing == NULL
               ? TP_OK
               : tpi_refuse(ctx, TP_ERR_STATE, "%s: not between tp_graph_begin and tp_graph_end", call);
}

void tpi_ctx_issue_ahead(tp_ctx *ctx)
{
    ctx->behind = true;
}

tp_status tp_ctx_upload(tp_ctx *ctx, void *to, const void *host, size_t bytes)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_not_capturing(ctx, "tp_ctx_upload"));
    if (bytes > 0 && (!to || !host))
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_ctx_upload: %s is NULL, bytes %zu", to ? "host" : "to", bytes);
    return bytes > 0 ? ctx->backend->copy(ctx->compute, to, host, bytes, TPI_COPY_UP) : TP_OK;
}

tp_status tp_ctx_download(tp_ctx *ctx, void *host, const void *from, size_t bytes)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_not_capturing(ctx, "tp_ctx_download"));
    if (bytes > 0 && (!from || !host))
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_ctx_download: %s is NULL, bytes %zu", from ? "host" : "from",
                          bytes);
    if (!ctx->backend->host_memory) /* a copy to memory that is not pinned waits without a bound */
        TPI_TRY(ctx->backend->stream_synchronize(ctx->compute));
    if (bytes > 0)
        TPI_TRY(ctx->backend->copy(ctx->compute, host, from, bytes, TPI_COPY_DOWN));
    return ctx->backend->stream_synchronize(ctx->compute);
}

int tp_ctx_rank(const tp_ctx *ctx)
{
    return ctx ? ctx->desc.rank : 0;
}

int tp_ctx_threads(const tp_ctx *ctx)
{
    return ctx ? ctx->desc.threads : 0;
}

tp_isa tp_ctx_isa(const tp_ctx *ctx)
{
    return ctx ? ctx->desc.isa : TP_ISA_AUTO;
}

uint64_t tp_ctx_seed(const tp_ctx *ctx)
{
    return ctx ? ctx->desc.seed : 0;
}

const tp_mesh *tp_ctx_mesh(const tp_ctx *ctx)
{
    return ctx ? &ctx->mesh : NULL;
}

tp_comm *tp_ctx_group(const tp_ctx *ctx, tp_axis axis)
{
    return ctx && (int)axis >= 0 && axis < TP_AXIS_COUNT ? ctx->group[axis] : NULL;
}

tp_comm *tp_ctx_world(const tp_ctx *ctx)
{
    return ctx ? ctx->world : NULL;
}
