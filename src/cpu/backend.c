/* The CPU's backend table. */
#include <sys/mman.h>

#include "comm/table.h"
#include "cpu/state.h"

/* Waits spin this long where every thread has a core of its own; where not, spinning would take the time of the thread
 * that is waited for. */
#define SPIN_NS 30000

static int threads_of_process(const tp_ctx *ctx)
{
    int64_t threads = tpi_ctx_ranks(ctx) * ctx->desc.threads;
    return threads > INT32_MAX ? INT32_MAX : (int)threads;
}

static tp_status cpu_open(tp_ctx *ctx)
{
    tpi_cpu_state *state = tpi_host_allocate(ctx, sizeof *state);
    if (!state)
        return TP_ERR_MEMORY;
    ctx->device_state = state;
    if (ctx->desc.isa == TP_ISA_AUTO)
        ctx->desc.isa = tpi_cpu_best_isa();
    int threads = threads_of_process(ctx), cores = tpi_world_cores(ctx->desc.world);
    state->spin_ns = threads <= cores ? SPIN_NS : 0;
    state->lane_spin_ns = threads < cores ? SPIN_NS : 0;
    size_t slots = (size_t)ctx->desc.threads * sizeof *state->workspace;
    state->workspace = tpi_host_allocate(ctx, slots);
    if (!state->workspace)
        return TP_ERR_MEMORY;
    return tpi_cpu_pool_create(ctx, ctx->desc.threads, &state->pool);
}

static void cpu_close(tp_ctx *ctx)
{
    tpi_cpu_state *state = ctx->device_state;
    if (!state)
        return;
    tpi_cpu_pool_destroy(ctx, state->pool);
    for (int worker = 0; state->workspace && worker < ctx->desc.threads; worker++)
        tpi_cpu_slot_free(ctx, &state->workspace[worker]);
    tpi_host_release(ctx, state->workspace, (size_t)ctx->desc.threads * sizeof *state->workspace);
    tpi_host_release(ctx, state, sizeof *state);
    ctx->device_state = NULL;
}

/* A dry run's memory: address space that nobody has to back until it is written. */
static void *reserve_space(size_t bytes)
{
    void *memory =
        mmap(NULL, bytes > 0 ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void *cpu_allocate(tp_ctx *ctx, size_t bytes)
{
    if (ctx->desc.dry_run)
        return reserve_space(bytes);
    return tpi_raw_allocate(&ctx->desc.allocator, bytes);
}

static void cpu_release(tp_ctx *ctx, void *memory, size_t bytes)
{
    if (ctx->desc.dry_run) {
        munmap(memory, bytes > 0 ? bytes : 1);
        return;
    }
    tpi_raw_release(&ctx->desc.allocator, memory, bytes);
}

static void *cpu_allocate_shared(tp_ctx *ctx, size_t bytes)
{
    return tpi_host_allocate(ctx, bytes);
}

static tp_status cpu_reach(tp_ctx *ctx, int device_index)
{
    (void)ctx;
    (void)device_index;
    return TP_OK;
}

static size_t cpu_gemm_packed_bytes(tp_ctx *ctx, tp_dtype dtype, int64_t cols, int64_t inner, const tpi_inner *order)
{
    return tpi_cpu_table_of(ctx)->gemm_packed_bytes(dtype, cols, inner, order);
}

static tp_status cpu_gemm_pack(tpi_stream *stream, const tpi_operand *b, int64_t cols, int64_t inner,
                               const tpi_inner *order, const tpi_packed *out)
{
    const tpi_cpu_gemm_pack_args args = {.b = *b, .cols = cols, .inner = inner, .order = order, .out = *out};
    return tpi_cpu_launch(stream, tpi_cpu_table_of(stream->ctx)->gemm_pack, &args, sizeof args);
}

/* The caller's description of packed memory need not outlive the call that issues the task. */
typedef struct gemm_task {
    tpi_gemm_args args;
    tpi_packed packed;
} gemm_task;

static tp_status run_gemm(tp_ctx *ctx, const void *pointer)
{
    const gemm_task *task = pointer;
    tpi_gemm_args args = task->args;
    if (args.b_packed != NULL)
        args.b_packed = &task->packed;
    return tpi_cpu_table_of(ctx)->gemm(ctx, &args);
}

static tp_status cpu_gemm(tpi_stream *stream, const tpi_gemm_args *args)
{
    gemm_task task = {.args = *args};
    if (args->b_packed != NULL)
        task.packed = *args->b_packed;
    if (task.packed.data == NULL)
        task.args.b_packed = NULL;
    return tpi_cpu_launch(stream, run_gemm, &task, sizeof task);
}

static tp_status cpu_reduce(tpi_stream *stream, const tpi_reduce_args *args)
{
    return tpi_cpu_launch(stream, tpi_cpu_table_of(stream->ctx)->reduce, args, sizeof *args);
}

static tp_status cpu_map(tpi_stream *stream, const tpi_map_args *args)
{
    return tpi_cpu_launch(stream, tpi_cpu_table_of(stream->ctx)->map, args, sizeof *args);
}

static tp_status cpu_activation(tpi_stream *stream, const tpi_activation_args *args)
{
    return tpi_cpu_launch(stream, tpi_cpu_table_of(stream->ctx)->activation, args, sizeof *args);
}

static tp_status cpu_rope(tpi_stream *stream, const tpi_rope_args *args)
{
    return tpi_cpu_launch(stream, tpi_cpu_table_of(stream->ctx)->rope, args, sizeof *args);
}

static tp_status cpu_norm(tpi_stream *stream, const tpi_norm_args *args)
{
    return tpi_cpu_launch(stream, tpi_cpu_table_of(stream->ctx)->norm, args, sizeof *args);
}

static tp_status cpu_norm_grad(tpi_stream *stream, const tpi_norm_grad_args *args)
{
    return tpi_cpu_launch(stream, tpi_cpu_table_of(stream->ctx)->norm_grad, args, sizeof *args);
}

static tp_status cpu_attention(tpi_stream *stream, const tpi_attention_args *args)
{
    return tpi_cpu_launch(stream, tpi_cpu_table_of(stream->ctx)->attention, args, sizeof *args);
}

static tp_status cpu_attention_grad(tpi_stream *stream, const tpi_attention_grad_args *args)
{
    return tpi_cpu_launch(stream, tpi_cpu_table_of(stream->ctx)->attention_grad, args, sizeof *args);
}

static tp_status cpu_embedding(tpi_stream *stream, const tpi_embedding_args *args)
{
    return tpi_cpu_launch(stream, tpi_cpu_table_of(stream->ctx)->embedding, args, sizeof *args);
}

static tp_status cpu_embedding_grad(tpi_stream *stream, const tpi_embedding_grad_args *args)
{
    return tpi_cpu_launch(stream, tpi_cpu_table_of(stream->ctx)->embedding_grad, args, sizeof *args);
}

static tp_status cpu_xent(tpi_stream *stream, const tpi_xent_args *args)
{
    return tpi_cpu_launch(stream, tpi_cpu_table_of(stream->ctx)->xent, args, sizeof *args);
}

static tp_status cpu_square_sum(tpi_stream *stream, const tpi_square_sum_args *args)
{
    return tpi_cpu_launch(stream, tpi_cpu_table_of(stream->ctx)->square_sum, args, sizeof *args);
}

static tp_status cpu_optimizer(tpi_stream *stream, const tpi_optimizer_args *args)
{
    return tpi_cpu_launch(stream, tpi_cpu_table_of(stream->ctx)->optimizer, args, sizeof *args);
}

static tp_status cpu_random_fill(tpi_stream *stream, const tpi_random_fill_args *args)
{
    return tpi_cpu_launch(stream, tpi_cpu_table_of(stream->ctx)->random_fill, args, sizeof *args);
}

/* No profiler asks for names here. */
static void cpu_range_push(const char *name)
{
    (void)name;
}

static void cpu_range_pop(void)
{
}

const tpi_backend tpi_backend_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .allocate = cpu_allocate,
    .release = cpu_release,
    .allocate_shared = cpu_allocate_shared,
    .release_shared = tpi_host_release,
    .reach = cpu_reach,
    .stream_create = tpi_cpu_stream_create,
    .stream_destroy = tpi_cpu_stream_destroy,
    .stream_synchronize = tpi_cpu_stream_synchronize,
    .event_create = tpi_cpu_event_create,
    .event_destroy = tpi_cpu_event_destroy,
    .event_record = tpi_cpu_event_record,
    .event_wait = tpi_cpu_event_wait,
    .event_synchronize = tpi_cpu_event_synchronize,
    .event_share = tpi_cpu_event_share,
    .copy = tpi_cpu_copy,
    .run = tpi_cpu_run,
    .run_anyway = tpi_cpu_run_anyway,
    .timer_create = tpi_cpu_timer_create,
    .timer_destroy = tpi_cpu_timer_destroy,
    .timer_mark = tpi_cpu_timer_mark,
    .timer_read = tpi_cpu_timer_read,
    .range_push = cpu_range_push,
    .range_pop = cpu_range_pop,
    .gemm_packed_bytes = cpu_gemm_packed_bytes,
    .gemm_pack = cpu_gemm_pack,
    .gemm = cpu_gemm,
    .reduce = cpu_reduce,
    .map = cpu_map,
    .activation = cpu_activation,
    .rope = cpu_rope,
    .norm = cpu_norm,
    .norm_grad = cpu_norm_grad,
    .attention = cpu_attention,
    .attention_grad = cpu_attention_grad,
    .embedding = cpu_embedding,
    .embedding_grad = cpu_embedding_grad,
    .xent = cpu_xent,
    .square_sum = cpu_square_sum,
    .optimizer = cpu_optimizer,
    .random_fill = cpu_random_fill,
    .behind = false,
    .host_memory = true,
};
