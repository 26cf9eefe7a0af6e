/* Chains of exact_fma.h on a tile of sums, from widened panels: A has every value twice, step by step, B a row a
 * step. */
#ifndef TPI_EXACT_CHAIN_H
#define TPI_EXACT_CHAIN_H

#include "cpu/exact_fma.h"

#if TPI_EXACT_FMA

/* Blocks of a tile whose sums stay in sixteen registers: the middle way needs several for itself. */
#define TPI_MIDDLE_ROWS 6
#define TPI_MIDDLE_PAIRS 1
#define TPI_NARROW_ROWS 4
#define TPI_NARROW_PAIRS 2

_Static_assert(TPI_EXACT_ROWS % TPI_MIDDLE_ROWS == 0 && TPI_EXACT_ROWS % TPI_NARROW_ROWS == 0,
               "tiles are whole blocks");
_Static_assert(TPI_EXACT_PAIRS % TPI_MIDDLE_PAIRS == 0 && TPI_EXACT_PAIRS % TPI_NARROW_PAIRS == 0,
               "tiles are whole blocks");

typedef enum tpi_exact_way {
    TPI_EXACT_ODD,    /* any operands */
    TPI_EXACT_NARROW, /* products of 24 bits */
    TPI_EXACT_MIDDLE  /* operands and sums fit for it */
} tpi_exact_way;

typedef struct tpi_exact_stretch {
    int64_t steps;
    const tpi_pair *a, *b;
} tpi_exact_stretch;

static __attribute__((noinline)) void tpi_exact_sum_to_odd(const tpi_exact_stretch *s, double *sum)
{
    tpi_pair x[TPI_MIDDLE_ROWS][TPI_MIDDLE_PAIRS];
    for (int i = 0; i < TPI_MIDDLE_ROWS; i++)
        memcpy(x[i], sum + i * TPI_EXACT_COLS, sizeof x[i]);
    for (int64_t k = 0; k < s->steps; k++) {
#pragma GCC unroll 8
        for (int i = 0; i < TPI_MIDDLE_ROWS; i++)
#pragma GCC unroll 8
            for (int j = 0; j < TPI_MIDDLE_PAIRS; j++)
                x[i][j] = tpi_pair_odd_step(s->a[k * TPI_EXACT_ROWS + i], s->b[k * TPI_EXACT_PAIRS + j], x[i][j]);
    }
    for (int i = 0; i < TPI_MIDDLE_ROWS; i++)
        memcpy(sum + i * TPI_EXACT_COLS, x[i], sizeof x[i]);
}

static __attribute__((noinline)) void tpi_exact_sum_narrow(const tpi_exact_stretch *s, double *sum)
{
    const tpi_pair *a = s->a, *b = s->b;
    tpi_pair x[TPI_NARROW_ROWS][TPI_NARROW_PAIRS];
#pragma GCC unroll 8
    for (int i = 0; i < TPI_NARROW_ROWS; i++)
        memcpy(x[i], sum + i * TPI_EXACT_COLS, sizeof x[i]);
    for (int64_t k = 0; k < s->steps; k++, a += TPI_EXACT_ROWS, b += TPI_EXACT_PAIRS) {
#pragma GCC unroll 8
        for (int i = 0; i < TPI_NARROW_ROWS; i++)
#pragma GCC unroll 8
            for (int j = 0; j < TPI_NARROW_PAIRS; j++)
                x[i][j] = tpi_pair_narrow_step(a[i], b[j], x[i][j]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < TPI_NARROW_ROWS; i++)
        memcpy(sum + i * TPI_EXACT_COLS, x[i], sizeof x[i]);
}

/* False, and nothing changed, if a sum was on a middle. */
static __attribute__((noinline)) bool tpi_exact_sum_middle(const tpi_exact_stretch *s, double *sum)
{
    const tpi_pair *a = s->a, *b = s->b;
    tpi_pair_words middles = {0};
    tpi_pair x[TPI_MIDDLE_ROWS][TPI_MIDDLE_PAIRS];
#pragma GCC unroll 8
    for (int i = 0; i < TPI_MIDDLE_ROWS; i++)
        memcpy(x[i], sum + i * TPI_EXACT_COLS, sizeof x[i]);
    for (int64_t k = 0; k < s->steps; k++, a += TPI_EXACT_ROWS, b += TPI_EXACT_PAIRS) {
#pragma GCC unroll 8
        for (int i = 0; i < TPI_MIDDLE_ROWS; i++)
#pragma GCC unroll 8
            for (int j = 0; j < TPI_MIDDLE_PAIRS; j++)
                x[i][j] = tpi_pair_middle_step(a[i], b[j], x[i][j], &middles);
    }
    if (tpi_pair_any_middle(middles))
        return false;
#pragma GCC unroll 8
    for (int i = 0; i < TPI_MIDDLE_ROWS; i++)
        memcpy(sum + i * TPI_EXACT_COLS, x[i], sizeof x[i]);
    return true;
}

static bool tpi_exact_sums_fit(const double *sum)
{
    const tpi_pair limit = {TPI_EXACT_SUM_LIMIT, TPI_EXACT_SUM_LIMIT};
    tpi_pair_bits small = {-1, -1};
    for (int i = 0; i < TPI_EXACT_TILE; i += 2) {
        const tpi_pair two = {sum[i], sum[i + 1]};
        small &= (tpi_pair_bits)(two < limit) & (tpi_pair_bits)(two > -limit);
    }
    return small[0] != 0 && small[1] != 0;
}

/* The first `rows` rows of a tile, perhaps more. */
static void tpi_exact_run(const tpi_exact_stretch *panels, tpi_exact_way way, int rows, double *tile)
{
    const int block_rows = way == TPI_EXACT_NARROW ? TPI_NARROW_ROWS : TPI_MIDDLE_ROWS;
    const int block_pairs = way == TPI_EXACT_NARROW ? TPI_NARROW_PAIRS : TPI_MIDDLE_PAIRS;
    for (int i = 0; i < rows; i += block_rows) {
        for (int j = 0; j < TPI_EXACT_PAIRS; j += block_pairs) {
            const tpi_exact_stretch s = {.steps = panels->steps, .a = panels->a + i, .b = panels->b + j};
            double *sum = tile + i * TPI_EXACT_COLS + 2 * j;
            if (way == TPI_EXACT_NARROW)
                tpi_exact_sum_narrow(&s, sum);
            else if (way == TPI_EXACT_ODD || !tpi_exact_sum_middle(&s, sum))
                tpi_exact_sum_to_odd(&s, sum);
        }
    }
}

/* count floats to doubles, or each to two. */
static inline void tpi_exact_widen(const float *from, int count, double *to)
{
    for (int i = 0; i < count; i++)
        to[i] = (double)from[i];
}

static inline void tpi_exact_widen_twice(const float *from, int count, double *to)
{
    for (int i = 0; i < count; i++)
        to[2 * i] = to[2 * i + 1] = (double)from[i];
}
#endif

#endif
