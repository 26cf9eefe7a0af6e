/* The kernel for processors without a fused multiply-add: chains in double, each sum rounded to the float that fmaf
 * gives, in the ways of exact_fma.h. Panels are widened to double once, those of A with every value twice, and followed
 * by the least exponent of each stretch of steps, a byte. */
#include "cpu/exact_chain.h"
#include "cpu/float_mode.h"
#include "cpu/gemm.h"

#if TPI_GEMM_WIDENS

#define STRETCH TPI_GEMM_STRETCH

/* ---- widened panels ---- */

static __attribute__((noinline)) void widen(const float *panel, int width, int64_t steps, float *out)
{
    const int copies = width == TPI_GEMM_ROWS ? 2 : 1;
    double *wide = (double *)out;
    unsigned char *least = (unsigned char *)(wide + steps * width * copies);
    for (int64_t k = 0; k < steps; k += STRETCH) {
        const int count = (int)(steps - k < STRETCH ? steps - k : STRETCH) * width;
        *least++ = (unsigned char)tpi_exact_least(panel, count);
        (copies == 2 ? tpi_exact_widen_twice : tpi_exact_widen)(panel, count, wide);
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

/* ---- chains of a tile ---- */

typedef struct chain {
    const tpi_gemm_tile *tile;
    int rows;
    bool small; /* all sums are below the limit */
} chain;

/* Whether the operands of the steps, which are of two neighbouring stretches of the panels at most, and the sums are
 * fit for the middle way. */
static bool takes_middle_way(chain *c, int64_t begin, int64_t end, const double *x)
{
    const int64_t steps = c->tile->chunk->steps, first = begin / STRETCH, last = (end - 1) / STRETCH;
    const unsigned char *a_least = (const unsigned char *)((const tpi_pair *)c->tile->a + steps * TPI_GEMM_ROWS);
    const unsigned char *b_least = (const unsigned char *)((const tpi_pair *)c->tile->b + steps * TPI_EXACT_PAIRS);
    const bool fits = tpi_exact_fits(a_least[first], b_least[first]) && tpi_exact_fits(a_least[last], b_least[last]);
    c->small = fits && (c->small || tpi_exact_sums_fit(x));
    return c->small;
}

static void run_stretch(chain *c, int64_t begin, int64_t end, double *x)
{
    const tpi_exact_stretch panels = {.steps = end - begin,
                                      .a = (const tpi_pair *)c->tile->a + begin * TPI_GEMM_ROWS,
                                      .b = (const tpi_pair *)c->tile->b + begin * TPI_EXACT_PAIRS};
    const tpi_exact_way way = c->tile->narrow                      ? TPI_EXACT_NARROW
                              : takes_middle_way(c, begin, end, x) ? TPI_EXACT_MIDDLE
                                                                   : TPI_EXACT_ODD;
    tpi_exact_run(&panels, way, c->rows, x);
}

/* Steps [begin, end) of the tile. */
static __attribute__((noinline)) void run_chain(chain c, int64_t begin, int64_t end, float *sum)
{
    const int64_t stretches = (end - begin + STRETCH - 1) / STRETCH, steps = end - begin;
    double x[TPI_GEMM_TILE] __attribute__((aligned(16)));
    for (int i = 0; i < TPI_GEMM_TILE; i++)
        x[i] = (double)sum[i];
    for (int64_t i = 0; i < stretches; i++)
        run_stretch(&c, begin + steps * i / stretches, begin + steps * (i + 1) / stretches, x);
    for (int i = 0; i < TPI_GEMM_TILE; i++)
        sum[i] = (float)x[i];
}

static void run_chain_flushed(chain c, int64_t begin, int64_t end, float *sum)
{
    const tpi_float_mode before = tpi_float_mode_flush();
    run_chain(c, begin, end, sum);
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
    chain c = {.tile = tile, .rows = rows, .small = tile->in == NULL};
    float sum[TPI_GEMM_TILE] = {0};
    int64_t begin = 0;
    for (int i = 0; tile->in != NULL && i < rows; i++)
        memcpy(sum + i * TPI_GEMM_COLS, tile->in + i * tile->in_stride, TPI_GEMM_COLS * sizeof(float));
    for (int piece = 0;; piece++) {
        const int64_t end = begin + chunk->piece_steps[piece];
        if (begin < end)
            (flush ? run_chain_flushed : run_chain)(c, begin, end, sum);
        begin = end;
        if (piece + 1 == chunk->pieces)
            break;
        int block = chunk->first_block + piece, level = 0;
        for (; block >> level & 1; level++)
            add_level(sum, tile->levels + level * TPI_GEMM_TILE);
        memcpy(tile->levels + level * TPI_GEMM_TILE, sum, sizeof sum);
        memset(sum, 0, sizeof sum);
        c.small = true;
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
