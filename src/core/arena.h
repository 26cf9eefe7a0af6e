/* A mark/release stack of device memory. It grows by whole chunks from the context's allocator and never shrinks, so
 * that after the first step of a loop nothing is allocated any more. Memory taken between mark and release may be
 * reused by later ops of the same stream at once (they are ordered); other lanes that were given some must have been
 * waited for before release. */
#ifndef TPI_ARENA_H
#define TPI_ARENA_H

#include <tp/context.h>

typedef struct tpi_arena_chunk tpi_arena_chunk;

typedef struct tpi_arena {
    tp_ctx *ctx;
    tp_memory_kind kind;
    tpi_arena_chunk *first, *current;
    size_t used; /* in current */
} tpi_arena;

typedef struct tpi_arena_mark {
    tpi_arena_chunk *chunk;
    size_t used;
} tpi_arena_mark;

void tpi_arena_init(tpi_arena *arena, tp_ctx *ctx, tp_memory_kind kind);
void tpi_arena_free(tpi_arena *arena);
tpi_arena_mark tpi_arena_get_mark(const tpi_arena *arena);
void tpi_arena_release(tpi_arena *arena, tpi_arena_mark mark);
/* 64-byte aligned; a failure is recorded in the context (TP_ERR_MEMORY). */
tp_status tpi_arena_take(tpi_arena *arena, size_t bytes, void **out);

/* Rounded up to 64, and a sum; SIZE_MAX where that is passed. */
size_t tpi_bytes_aligned(size_t bytes);
size_t tpi_bytes_sum(size_t a, size_t b);

/* Short cuts for the context's scratch. */
tp_status tpi_scratch(tp_ctx *ctx, size_t bytes, void **out);
tp_status tpi_scratch_tensor(tp_ctx *ctx, tp_dtype dtype, int64_t rows, int64_t cols, tp_tensor *out);

/* Carves 64-byte aligned pieces out of memory that the caller gave (saved activations). First pass with memory NULL
 * only counts. */
typedef struct tpi_carve {
    char *memory;
    size_t used;
} tpi_carve;
/* used stays SIZE_MAX once a sum has passed it, so that sizes which cannot be are refused and not wrapped. */
void *tpi_carve_take(tpi_carve *carve, size_t bytes);

#endif
