/* The mark/release stack. Chunks are searched in order and appended at the end only, so that the same sequence of calls
 * finds the same places again and a second run of it allocates nothing. */
#include "core/arena.h"

#include "core/context.h"

#define ALIGNMENT ((size_t)64)
#define CHUNK_BYTES ((size_t)256 << 10) /* smallest chunk */

struct tpi_arena_chunk {
    tpi_arena_chunk *next;
    char *memory;
    size_t bytes;
};

/* SIZE_MAX when it does not fit. */
size_t tpi_bytes_aligned(size_t bytes)
{
    return bytes > SIZE_MAX - ALIGNMENT ? SIZE_MAX : (bytes + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
}

size_t tpi_bytes_sum(size_t a, size_t b)
{
    return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

void tpi_arena_init(tpi_arena *arena, tp_ctx *ctx, tp_memory_kind kind)
{
    *arena = (tpi_arena){.ctx = ctx, .kind = kind};
}

void tpi_arena_free(tpi_arena *arena)
{
    while (arena->first) {
        tpi_arena_chunk *chunk = arena->first;
        arena->first = chunk->next;
        tp_ctx_release(arena->ctx, arena->kind, chunk->memory, chunk->bytes);
        tpi_host_release(arena->ctx, chunk, sizeof *chunk);
    }
    arena->current = NULL;
    arena->used = 0;
}

tpi_arena_mark tpi_arena_get_mark(const tpi_arena *arena)
{
    return (tpi_arena_mark){arena->current, arena->used};
}

void tpi_arena_release(tpi_arena *arena, tpi_arena_mark mark)
{
    arena->current = mark.chunk;
    arena->used = mark.used;
}

static tp_status append_chunk(tpi_arena *arena, size_t bytes)
{
    tpi_arena_chunk *chunk = tpi_host_allocate(arena->ctx, sizeof *chunk);
    if (!chunk)
        return tpi_fail(arena->ctx, TP_ERR_MEMORY, "out of host memory for a scratch chunk");
    chunk->bytes = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
    void *memory;
    tp_status status = tp_ctx_allocate(arena->ctx, arena->kind, chunk->bytes, &memory);
    if (status != TP_OK) {
        tpi_host_release(arena->ctx, chunk, sizeof *chunk);
        return tpi_fail(arena->ctx, status, "out of scratch memory: %zu bytes asked for", bytes);
    }
    chunk->memory = memory;
    tpi_arena_chunk **end = &arena->first;
    while (*end)
        end = &(*end)->next;
    *end = chunk;
    return TP_OK;
}

tp_status tpi_arena_take(tpi_arena *arena, size_t bytes, void **out)
{
    *out = NULL;
    size_t size = tpi_bytes_aligned(bytes);
    if (size == SIZE_MAX)
        return tpi_fail(arena->ctx, TP_ERR_MEMORY, "out of scratch memory: %zu bytes asked for", bytes);
    tpi_arena_chunk *chunk = arena->current ? arena->current : arena->first;
    size_t used = arena->current ? arena->used : 0;
    while (chunk && chunk->bytes - used < size) {
        chunk = chunk->next;
        used = 0;
    }
    if (!chunk) {
        TPI_TRY(append_chunk(arena, size));
        chunk = arena->first;
        while (chunk->next)
            chunk = chunk->next;
    }
    *out = chunk->memory + used;
    arena->current = chunk;
    arena->used = used + size;
    return TP_OK;
}

tp_status tpi_scratch(tp_ctx *ctx, size_t bytes, void **out)
{
    return tpi_arena_take(&ctx->scratch, bytes, out);
}

tp_status tpi_scratch_tensor(tp_ctx *ctx, tp_dtype dtype, int64_t rows, int64_t cols, tp_tensor *out)
{
    *out = tp_tensor_2d(NULL, dtype, rows, cols);
    return tpi_arena_take(&ctx->scratch, tp_tensor_bytes(*out), &out->data);
}

void *tpi_carve_take(tpi_carve *carve, size_t bytes)
{
    void *piece = carve->memory ? carve->memory + carve->used : NULL;
    carve->used = tpi_bytes_sum(carve->used, tpi_bytes_aligned(bytes));
    return piece;
}
