/* Memory of a context: counted by purpose, from the caller's allocator or the system. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/memory.h"

#define SMALL_ALIGNMENT ((size_t)64)
#define HUGE_PAGE ((size_t)2 << 20)

static size_t rounded_up(size_t bytes, size_t alignment)
{
    if (bytes > SIZE_MAX - alignment)
        return SIZE_MAX;
    return bytes == 0 ? alignment : (bytes + alignment - 1) / alignment * alignment;
}

static void *system_allocate(size_t bytes)
{
    /* Big blocks live on huge pages: what walks over them misses the TLB less. At most they are quadrupled by it. */
    size_t alignment = bytes >= HUGE_PAGE / 4 ? HUGE_PAGE : SMALL_ALIGNMENT;
    size_t size = rounded_up(bytes, alignment);
    void *memory = NULL;
    if (size == SIZE_MAX || posix_memalign(&memory, alignment, size) != 0)
        return NULL;
    if (alignment == HUGE_PAGE)
        madvise(memory, size, MADV_HUGEPAGE); /* advice: nothing is lost when refused */
    return memory;
}

void *tpi_raw_allocate(const tp_allocator *allocator, size_t bytes)
{
    if (!allocator || !allocator->allocate)
        return system_allocate(bytes);
    size_t size = rounded_up(bytes, SMALL_ALIGNMENT);
    return size == SIZE_MAX ? NULL : allocator->allocate(allocator->user, size, SMALL_ALIGNMENT);
}

void tpi_raw_release(const tp_allocator *allocator, void *memory, size_t bytes)
{
    if (!memory)
        return;
    if (allocator && allocator->release)
        allocator->release(allocator->user, memory, rounded_up(bytes, SMALL_ALIGNMENT));
    else
        free(memory);
}

/* The caller's allocator gives device memory; on the CPU that is host memory too. */
static const tp_allocator *host_allocator(const tp_ctx *ctx)
{
    return ctx->desc.device == TP_DEVICE_CPU ? &ctx->desc.allocator : NULL;
}

static void count(tp_ctx *ctx, tp_memory_kind kind, size_t bytes)
{
    tp_memory_count *memory = &ctx->memory[kind];
    memory->bytes += bytes;
    if (memory->bytes > memory->peak)
        memory->peak = memory->bytes;
}

void *tpi_host_allocate(tp_ctx *ctx, size_t bytes)
{
    pthread_mutex_lock(&ctx->memory_lock);
    void *memory = tpi_raw_allocate(host_allocator(ctx), bytes);
    if (memory)
        count(ctx, TP_MEMORY_OTHER, bytes);
    pthread_mutex_unlock(&ctx->memory_lock);
    if (memory)
        memset(memory, 0, bytes);
    else
        tpi_refuse(ctx, TP_ERR_MEMORY, "out of host memory: %zu bytes asked for", bytes);
    return memory;
}

void tpi_host_release(tp_ctx *ctx, void *memory, size_t bytes)
{
    if (!memory)
        return;
    pthread_mutex_lock(&ctx->memory_lock);
    tpi_raw_release(host_allocator(ctx), memory, bytes);
    ctx->memory[TP_MEMORY_OTHER].bytes -= bytes;
    pthread_mutex_unlock(&ctx->memory_lock);
}

void tpi_memory_taken(tp_ctx *ctx, tp_memory_kind kind, size_t bytes)
{
    pthread_mutex_lock(&ctx->memory_lock);
    count(ctx, kind, bytes);
    pthread_mutex_unlock(&ctx->memory_lock);
}

void tpi_memory_given_back(tp_ctx *ctx, tp_memory_kind kind, size_t bytes)
{
    pthread_mutex_lock(&ctx->memory_lock);
    ctx->memory[kind].bytes -= bytes;
    pthread_mutex_unlock(&ctx->memory_lock);
}

tp_status tp_ctx_allocate(tp_ctx *ctx, tp_memory_kind kind, size_t bytes, void **out)
{
    TPI_TRY(tpi_given(ctx, "tp_ctx_allocate: out", out));
    *out = NULL;
    TPI_TRY(tpi_ctx_usable(ctx));
    if ((int)kind < 0 || (int)kind >= TP_MEMORY_KINDS)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "kind is %d, there are kinds 0 to %d", (int)kind, TP_MEMORY_KINDS - 1);
    pthread_mutex_lock(&ctx->memory_lock);
    *out = ctx->backend->allocate(ctx, bytes);
    if (*out)
        count(ctx, kind, bytes);
    size_t in_use = ctx->memory[kind].bytes;
    pthread_mutex_unlock(&ctx->memory_lock);
    if (!*out)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "out of memory: %zu bytes asked for, %zu of this kind in use", bytes,
                          in_use);
    return TP_OK;
}

void tp_ctx_release(tp_ctx *ctx, tp_memory_kind kind, void *memory, size_t bytes)
{
    if (!ctx || !memory || (int)kind < 0 || (int)kind >= TP_MEMORY_KINDS)
        return;
    pthread_mutex_lock(&ctx->memory_lock);
    ctx->backend->release(ctx, memory, bytes);
    ctx->memory[kind].bytes -= bytes;
    pthread_mutex_unlock(&ctx->memory_lock);
}

/* Reading a count is not a change of the context, but it needs the lock. */
static pthread_mutex_t *lock_of(const tp_ctx *ctx)
{
    return (pthread_mutex_t *)&ctx->memory_lock;
}

tp_memory_count tp_ctx_memory(const tp_ctx *ctx, tp_memory_kind kind)
{
    if (!ctx || (int)kind < 0 || (int)kind >= TP_MEMORY_KINDS)
        return (tp_memory_count){0, 0};
    pthread_mutex_lock(lock_of(ctx));
    tp_memory_count memory = ctx->memory[kind];
    pthread_mutex_unlock(lock_of(ctx));
    return memory;
}

void tp_ctx_memory_reset_peak(tp_ctx *ctx)
{
    if (!ctx)
        return;
    pthread_mutex_lock(&ctx->memory_lock);
    for (int kind = 0; kind < TP_MEMORY_KINDS; kind++)
        ctx->memory[kind].peak = ctx->memory[kind].bytes;
    pthread_mutex_unlock(&ctx->memory_lock);
}

void tpi_add_seconds(tp_ctx *ctx, double compute, double comm)
{
    pthread_mutex_lock(&ctx->memory_lock);
    ctx->compute_seconds += compute;
    ctx->comm_seconds += comm;
    pthread_mutex_unlock(&ctx->memory_lock);
}

void tp_ctx_times(const tp_ctx *ctx, double *compute_seconds, double *comm_seconds)
{
    if (ctx)
        pthread_mutex_lock(lock_of(ctx));
    if (compute_seconds)
        *compute_seconds = ctx ? ctx->compute_seconds : 0;
    if (comm_seconds)
        *comm_seconds = ctx ? ctx->comm_seconds : 0;
    if (ctx)
        pthread_mutex_unlock(lock_of(ctx));
}

void tp_ctx_times_reset(tp_ctx *ctx)
{
    if (!ctx)
        return;
    pthread_mutex_lock(&ctx->memory_lock);
    ctx->compute_seconds = 0;
    ctx->comm_seconds = 0;
    pthread_mutex_unlock(&ctx->memory_lock);
}

void tp_ctx_work(const tp_ctx *ctx, double *flops, double *bytes)
{
    if (flops)
        *flops = ctx ? ctx->issued.flops : 0;
    if (bytes)
        *bytes = ctx ? ctx->issued.bytes : 0;
}
