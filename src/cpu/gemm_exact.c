/* The kernel for processors without a fused multiply-add: sums in double, each rounded to the float that fmaf gives
 * (exact_fma.h has the proofs of the ways). Panels are widened to double once, those of A with every value twice.
 *
 * Sums of f32 products are rounded by adding half of the last place and clearing what is below: right where the sum is
 * no middle between two floats, nor the result subnormal or too large. A middle shows by the bits that are cleared being
 * zeros; the stretch of the chain is done again by sums rounded to odd then. Factors in [2^-51, 2^50) make products that
 * are zero or multiples of 2^-148, so that subnormal results are exact, and with sums below 2^126 nothing overflows.
 * Stretches with other values are rounded to odd at once. */
#include "cpu/exact_fma.h"
#include "cpu/float_mode.h"
#include "cpu/gemm_vector.h"
#include "cpu/simd_scalar.h"

#if TPI_GEMM_WIDENS

#define STRETCH TPI_GEMM_STRETCH
#define PAIRS (TPI_GEMM_COLS / 2)
#define BLOCK_ROWS 3
#define BLOCK_PAIRS 2
#define SUM_LIMIT 0x1p126

_Static_assert(TPI_GEMM_ROWS % BLOCK_ROWS == 0 && PAIRS % BLOCK_PAIRS == 0, "tiles are whole blocks");

typedef tpi_pair block_sums[BLOCK_ROWS][BLOCK_PAIRS];

/* ---- widened panels ---- */

/* Whether all are zero or of the middle range. By the bits without the sign: zero is the only one below the range that may be. */
static bool in_range(const float *value, int count)
{
    uint32_t outside = 0;
    for (int i = 0; i < count; i++) {
        const uint32_t size = tpi_bits_of(value[i]) & 0x7fffffffu;
        outside |= size - 0x26000000u >= 0x58800000u - 0x26000000u && size != 0;
    }
    return outside == 0;
}

static __attribute__((noinline)) void widen(const float *panel, int width, int64_t steps, float *out)
{
    const int copies = width == TPI_GEMM_ROWS ? 2 : 1;
    double *wide = (double *)out;
    unsigned char *fits = (unsigned char *)(wide + steps * width * copies);
    for (int64_t k = 0; k < steps; k += STRETCH) {
        const int count = (int)(steps - k < STRETCH ? steps - k : STRETCH) * width;
        *fits++ = in_range(panel, count);
        if (copies == 2)
            for (int i = 0; i < count; i++)
                wide[2 * i] = wide[2 * i + 1] = (double)panel[i];
        else
            for (int i = 0; i < count; i++)
                wide[i] = (double)panel[i];
        wide += count * copies;
        panel += count;
    }
}

void CPU(gemm_widen)(const tpi_gemm_plan *plan, const float *panel, int width, int64_t steps, float *out)
{
    if (!plan->flush) {
        widen(panel, width, steps, out);
        return;
    }
    const tpi_float_mode before = tpi_float_mode_flush();
    widen(panel, width, steps, out);
    tpi_float_mode_restore(before);
}

/* ---- stretches of a chain, for one block of a tile ---- */

typedef struct stretch {
    int64_t steps;
    const tpi_pair *a, *b;
} stretch;

TPI_INLINE void load_block(block_sums x, const double *from)
{
    for (int i = 0; i < BLOCK_ROWS; i++)
        memcpy(x[i], from + i * TPI_GEMM_COLS, sizeof x[i]);
}

TPI_INLINE void store_block(double *to, block_sums x)
{
    for (int i = 0; i < BLOCK_ROWS; i++)
        memcpy(to + i * TPI_GEMM_COLS, x[i], sizeof x[i]);
}

/* Any operands. */
static __attribute__((noinline)) void sum_to_odd(const stretch *s, double *sum)
{
    block_sums x;
    load_block(x, sum);
    for (int64_t k = 0; k < s->steps; k++)
        for (int i = 0; i < BLOCK_ROWS; i++)
            for (int j = 0; j < BLOCK_PAIRS; j++)
                x[i][j] = tpi_pair_odd_step(s->a[k * TPI_GEMM_ROWS + i], s->b[k * PAIRS + j], x[i][j]);
    store_block(sum, x);
}

/* Products of 24 bits. */
static __attribute__((noinline)) void sum_narrow(const stretch *s, double *sum)
{
    const tpi_pair *a = s->a, *b = s->b;
    block_sums x;
    load_block(x, sum);
    for (int64_t k = 0; k < s->steps; k++, a += TPI_GEMM_ROWS, b += PAIRS) {
#pragma GCC unroll 8
        for (int i = 0; i < BLOCK_ROWS; i++)
#pragma GCC unroll 8
            for (int j = 0; j < BLOCK_PAIRS; j++)
                x[i][j] = tpi_pair_narrow_step(a[i], b[j], x[i][j]);
    }
    store_block(sum, x);
}

/* Operands of the middle range. False, and nothing changed, if a sum was on a middle. */
static __attribute__((noinline)) bool sum_middle(const stretch *s, double *sum)
{
    const tpi_pair *a = s->a, *b = s->b;
    tpi_pair_words middles = {0};
    block_sums x;
    load_block(x, sum);
    for (int64_t k = 0; k < s->steps; k++, a += TPI_GEMM_ROWS, b += PAIRS) {
#pragma GCC unroll 8
        for (int i = 0; i < BLOCK_ROWS; i++)
#pragma GCC unroll 8
            for (int j = 0; j < BLOCK_PAIRS; j++)
                x[i][j] = tpi_pair_middle_step(a[i], b[j], x[i][j], &middles);
    }
    if (tpi_pair_any_middle(middles))
        return false;
    store_block(sum, x);
    return true;
}

/* ---- chains of a tile ---- */

typedef struct chain {
    const tpi_gemm_tile *tile;
    int rows;
    bool small; /* all sums are below the limit */
} chain;

static bool sums_are_small(const double *x)
{
    int large = 0;
    for (int i = 0; i < TPI_GEMM_TILE; i++)
        large |= !(x[i] > -SUM_LIMIT && x[i] < SUM_LIMIT);
    return large == 0;
}

/* Whether both operands of the steps, which are of one stretch, are of the middle range, and the sums small. */
static bool takes_middle_way(chain *c, int64_t step, const double *x)
{
    const int64_t steps = c->tile->chunk->steps;
    const unsigned char *a_fits = (const unsigned char *)((const tpi_pair *)c->tile->a + steps * TPI_GEMM_ROWS);
    const unsigned char *b_fits = (const unsigned char *)((const tpi_pair *)c->tile->b + steps * PAIRS);
    c->small = a_fits[step / STRETCH] && b_fits[step / STRETCH] && (c->small || sums_are_small(x));
    return c->small;
}

static void run_stretch(chain *c, int64_t begin, int64_t end, double *x)
{
    const bool narrow = c->tile->narrow, middle = !narrow && takes_middle_way(c, begin, x);
    for (int i = 0; i < c->rows; i += BLOCK_ROWS) {
        for (int j = 0; j < PAIRS; j += BLOCK_PAIRS) {
            const stretch s = {.steps = end - begin,
                               .a = (const tpi_pair *)c->tile->a + begin * TPI_GEMM_ROWS + i,
                               .b = (const tpi_pair *)c->tile->b + begin * PAIRS + j};
            double *sum = x + i * TPI_GEMM_COLS + 2 * j;
            if (narrow)
                sum_narrow(&s, sum);
            else if (!middle || !sum_middle(&s, sum))
                sum_to_odd(&s, sum);
        }
    }
}

/* Steps [begin, end) of the tile. */
static __attribute__((noinline)) void run_chain(const tpi_gemm_tile *tile, int rows, int64_t begin, int64_t end, float *sum)
{
    chain c = {.tile = tile, .rows = rows};
    double x[TPI_GEMM_TILE];
    for (int i = 0; i < TPI_GEMM_TILE; i++)
        x[i] = (double)sum[i];
    for (int64_t next; begin < end; begin = next) {
        next = (begin / STRETCH + 1) * STRETCH;
        next = next < end ? next : end;
        run_stretch(&c, begin, next, x);
    }
    for (int i = 0; i < TPI_GEMM_TILE; i++)
        sum[i] = (float)x[i];
}

static void run_chain_flushed(const tpi_gemm_tile *tile, int rows, int64_t begin, int64_t end, float *sum)
{
    const tpi_float_mode before = tpi_float_mode_flush();
    run_chain(tile, rows, begin, end, sum);
    tpi_float_mode_restore(before);
}

static void add_level(float *sum, const float *wait)
{
    for (int i = 0; i < TPI_GEMM_TILE; i++)
        sum[i] = wait[i] + sum[i];
}

static void run_tile(const tpi_gemm_tile *tile, int rows, bool flush)
{
    const tpi_gemm_chunk *chunk = tile->chunk;
    float sum[TPI_GEMM_TILE] = {0};
    int64_t begin = 0;
    for (int i = 0; tile->in != NULL && i < rows; i++)
        memcpy(sum + i * TPI_GEMM_COLS, tile->in + i * tile->in_stride, TPI_GEMM_COLS * sizeof(float));
    for (int piece = 0;; piece++) {
        const int64_t end = begin + chunk->piece_steps[piece];
        if (begin < end)
            (flush ? run_chain_flushed : run_chain)(tile, rows, begin, end, sum);
        begin = end;
        if (piece + 1 == chunk->pieces)
            break;
        int block = chunk->first_block + piece, level = 0;
        for (; block >> level & 1; level++)
            add_level(sum, tile->levels + level * TPI_GEMM_TILE);
        memcpy(tile->levels + level * TPI_GEMM_TILE, sum, sizeof sum);
        memset(sum, 0, sizeof sum);
    }
    for (int level = 0; chunk->last && level < TPI_GEMM_LEVELS; level++)
        if ((tile->blocks - 1) >> level & 1)
            add_level(sum, tile->levels + level * TPI_GEMM_TILE);
    for (int i = 0; i < rows; i++)
        memcpy(tile->out + i * tile->out_stride, sum + i * TPI_GEMM_COLS, TPI_GEMM_COLS * sizeof(float));
}

void CPU(gemm_kernel)(const tpi_gemm_tile *tile, int rows)
{
    run_tile(tile, rows, false);
}

void CPU(gemm_kernel_flushed)(const tpi_gemm_tile *tile, int rows)
{
    run_tile(tile, rows, true);
}

#endif
