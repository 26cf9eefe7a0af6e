/* The micro-kernel: a tile of C stays in registers while the inner dimension runs, and goes up the tree of blocks as it
 * does. */
#include "cpu/gemm_vector.h"

#if !TPI_GEMM_WIDENS

#include <string.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#define MXCSR_FLUSH 0x8040u /* results and operands */
#endif

#define VECTORS (TPI_GEMM_COLS / GEMM_LANES)
#define PREFETCH_STEPS 8

typedef gemm_vector accumulators[TPI_GEMM_ROWS][VECTORS];

TPI_INLINE void prefetch_step(const float *b)
{
#pragma GCC unroll 8
    for (int i = 0; i < TPI_GEMM_COLS; i += 16)
        __builtin_prefetch(b + PREFETCH_STEPS * TPI_GEMM_COLS + i, 0, 3);
}

/* ---- fetches ---- */

typedef struct fetch_cursor {
    const tpi_gemm_fetch *fetch;
    const char *lines;
    int64_t next, after, left;
    bool writing;
} fetch_cursor;

TPI_INLINE void fetch_begin(fetch_cursor *at, const tpi_gemm_fetch *fetch)
{
    *at = (fetch_cursor){fetch, fetch->lines, fetch->next[0], fetch->next[1], fetch->pairs, fetch->writing};
}

TPI_INLINE void fetch_pair(fetch_cursor *at)
{
    const int64_t next = at->next;
    if (at->writing) {
        __builtin_prefetch(at->lines, 1, 3);
        __builtin_prefetch(at->lines + 64, 1, 3);
    } else {
        __builtin_prefetch(at->lines, 0, 2);
        __builtin_prefetch(at->lines + 64, 0, 2);
    }
    at->lines += next;
    at->next = at->after;
    at->after = next;
    if (__builtin_expect(--at->left == 0, 0))
        fetch_begin(at, at->fetch + 1);
}

/* Narrow tiles are a line wide at most. */
TPI_INLINE void fetch_all(const tpi_gemm_fetch *fetch)
{
    for (; fetch->pairs != INT64_MAX; fetch++)
        for (int64_t i = 0; i < fetch->pairs; i++)
            __builtin_prefetch(fetch->lines + i * fetch->next[0], 1, 3);
}

/* ---- steps ---- */

TPI_INLINE void run_steps(accumulators x, const int rows, const bool dot, int64_t steps, const float *a, const float *b,
                          fetch_cursor *fetch)
{
    for (int64_t k = 0; k < steps; k++) {
        gemm_vector right[VECTORS];
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++)
            right[j] = gemm_load(b + j * GEMM_LANES);
        prefetch_step(b);
        if (TPI_GEMM_FETCH_IN_STEPS)
            fetch_pair(fetch);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            gemm_vector left = gemm_broadcast(a + i);
#pragma GCC unroll 8
            for (int j = 0; j < VECTORS; j++)
                x[i][j] = gemm_step(left, right[j], x[i][j], dot);
        }
        a += TPI_GEMM_ROWS;
        b += TPI_GEMM_COLS;
    }
}

/* Steps that begin a block while the one before is stored: a store takes as long as two multiplications. */
#define CROSS_STEPS (TPI_ISA_LEVEL >= 1 ? 2 : 1)

/* Between two blocks: row by row, the finished sums take `adds` waiting left neighbours and wait themselves, and the
 * next block's first `steps` steps are issued at once, so that the multipliers don't idle. */
TPI_INLINE void cross_blocks(accumulators x, const int rows, const bool dot, const int adds, const int steps,
                             const tpi_gemm_tile *tile, const float *a, const float *b)
{
    float *wait = tile->levels + adds * TPI_GEMM_TILE;
    gemm_vector right[VECTORS];
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; j++)
        right[j] = gemm_load(b + j * GEMM_LANES);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        gemm_vector left = gemm_broadcast(a + i),
                    left_after = steps > 1 ? gemm_broadcast(a + TPI_GEMM_ROWS + i) : gemm_zero();
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++) {
            int at = i * TPI_GEMM_COLS + j * GEMM_LANES;
            gemm_vector sum = x[i][j];
#pragma GCC unroll 8
            for (int level = 0; level < adds; level++)
                sum = gemm_add(gemm_load(tile->levels + level * TPI_GEMM_TILE + at), sum);
            gemm_store(wait + at, sum);
            x[i][j] = gemm_step(left, right[j], gemm_zero(), dot);
            if (steps > 1)
                x[i][j] = gemm_step(left_after, gemm_load(b + TPI_GEMM_COLS + j * GEMM_LANES), x[i][j], dot);
        }
    }
}

/* What the block's place in the tree makes constant. */
TPI_INLINE void cross_after(accumulators x, const int rows, const bool dot, const int steps, int block,
                            const tpi_gemm_tile *tile, const float *a, const float *b)
{
    if (!(block & 1))
        cross_blocks(x, rows, dot, 0, steps, tile, a, b);
    else if (!(block & 2))
        cross_blocks(x, rows, dot, 1, steps, tile, a, b);
    else
        cross_blocks(x, rows, dot, 2, steps, tile, a, b);
}

/* After the last block its sums meet all that wait. */
TPI_INLINE void close_tree(accumulators x, const int rows, const tpi_gemm_tile *tile)
{
    for (int level = 0; level < TPI_GEMM_LEVELS; level++) {
        if (!((tile->blocks - 1) >> level & 1))
            continue;
        const float *wait = tile->levels + level * TPI_GEMM_TILE;
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
            for (int j = 0; j < VECTORS; j++)
                x[i][j] = gemm_add(gemm_load(wait + i * TPI_GEMM_COLS + j * GEMM_LANES), x[i][j]);
    }
}

TPI_INLINE void store_sums(accumulators x, const int rows, const tpi_gemm_tile *tile,
                           void (*const store)(float *p, gemm_vector x))
{
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++)
            store(tile->out + i * tile->out_stride + j * GEMM_LANES, x[i][j]);
}

TPI_INLINE void kernel(const tpi_gemm_tile *tile, const int rows, const bool dot)
{
    const tpi_gemm_chunk *chunk = tile->chunk;
    const float *a = tile->a, *b = tile->b;
    accumulators x;
    fetch_cursor fetch;
    fetch_begin(&fetch, tile->fetch);
    if (!TPI_GEMM_FETCH_IN_STEPS)
        fetch_all(tile->fetch);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++)
            x[i][j] = tile->in == NULL ? gemm_zero() : gemm_load(tile->in + i * tile->in_stride + j * GEMM_LANES);

    int64_t steps = chunk->piece_steps[0];
    for (int piece = 0;; piece++) {
        run_steps(x, rows, dot, steps, a, b, &fetch);
        if (piece + 1 == chunk->pieces)
            break;
        a += steps * TPI_GEMM_ROWS;
        b += steps * TPI_GEMM_COLS;
        steps = chunk->piece_steps[piece + 1];
        const int crossed = steps < CROSS_STEPS ? 1 : CROSS_STEPS;
        if (crossed == CROSS_STEPS)
            cross_after(x, rows, dot, CROSS_STEPS, chunk->first_block + piece, tile, a, b);
        else
            cross_after(x, rows, dot, 1, chunk->first_block + piece, tile, a, b);
        a += crossed * TPI_GEMM_ROWS;
        b += crossed * TPI_GEMM_COLS;
        steps -= crossed;
    }

    if (chunk->last)
        close_tree(x, rows, tile);
    if (tile->streaming)
        store_sums(x, rows, tile, gemm_stream);
    else
        store_sums(x, rows, tile, gemm_store);
}

/* One copy of the kernel for each number of rows that is worth one. */
TPI_INLINE void kernel_of_rows(const tpi_gemm_tile *tile, int rows, const bool dot)
{
    if (rows > 4 || rows == TPI_GEMM_ROWS)
        kernel(tile, TPI_GEMM_ROWS, dot);
    else if (rows > 2)
        kernel(tile, 4, dot);
    else if (rows == 2)
        kernel(tile, 2, dot);
    else
        kernel(tile, 1, dot);
}

__attribute__((noinline)) void CPU(gemm_kernel)(const tpi_gemm_tile *tile, int rows)
{
    if (tile->dot)
        kernel_of_rows(tile, rows, true);
    else
        kernel_of_rows(tile, rows, false);
}

static void add_level(float *sum, const float *wait)
{
    for (int i = 0; i < TPI_GEMM_TILE; i++)
        sum[i] = wait[i] + sum[i];
}

/* The chain alone, in flush mode. Other architectures than x86 keep subnormals. */
static void chain_flushed(const tpi_gemm_tile *tile, int rows)
{
#if defined(__SSE__)
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | MXCSR_FLUSH);
    CPU(gemm_kernel)(tile, rows);
    _mm_setcsr(mode);
#else
    CPU(gemm_kernel)(tile, rows);
#endif
}

void CPU(gemm_kernel_flushed)(const tpi_gemm_tile *tile, int rows)
{
    const tpi_gemm_chunk *chunk = tile->chunk;
    float sum[TPI_GEMM_TILE] = {0};
    const tpi_gemm_fetch nothing = {.lines = (const char *)sum, .pairs = INT64_MAX};
    tpi_gemm_chunk piece = {.pieces = 1};
    tpi_gemm_tile part = *tile;
    part.chunk = &piece;
    part.out = sum;
    part.out_stride = TPI_GEMM_COLS;
    for (int i = 0; i < chunk->pieces; i++) {
        piece.piece_steps[0] = chunk->piece_steps[i];
        chain_flushed(&part, rows);
        part.a += piece.piece_steps[0] * TPI_GEMM_ROWS;
        part.b += piece.piece_steps[0] * TPI_GEMM_COLS;
        part.in = NULL;
        part.fetch = &nothing;
        if (i + 1 == chunk->pieces)
            break;
        int block = chunk->first_block + i, level = 0;
        for (; block >> level & 1; level++)
            add_level(sum, tile->levels + level * TPI_GEMM_TILE);
        memcpy(tile->levels + level * TPI_GEMM_TILE, sum, sizeof sum);
    }
    for (int level = 0; chunk->last && level < TPI_GEMM_LEVELS; level++)
        if ((tile->blocks - 1) >> level & 1)
            add_level(sum, tile->levels + level * TPI_GEMM_TILE);
    for (int i = 0; i < rows; i++)
        memcpy(tile->out + i * tile->out_stride, sum + i * TPI_GEMM_COLS, TPI_GEMM_COLS * sizeof(float));
}

#endif
