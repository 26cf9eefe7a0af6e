/* Row sums that norm.c's forward and backward share. One row is summed in one fixed order: four accumulators of 16
 * lanes, vector i into accumulator i mod 4, then (0+1)+(2+3) and the lane tree. */
#ifndef TPI_CPU_NORM_MATH_H
#define TPI_CPU_NORM_MATH_H

#include "cpu/simd.h"

#define TPI_ROW_WAYS 4

typedef struct tpi_row_sum {
    vf way[TPI_ROW_WAYS];
} tpi_row_sum;

static inline tpi_row_sum tpi_row_sum_zero(void)
{
    return (tpi_row_sum){{vf_zero(), vf_zero(), vf_zero(), vf_zero()}};
}

static inline float tpi_row_sum_total(const tpi_row_sum *sum)
{
    return vf_sum(vf_add(vf_add(sum->way[0], sum->way[1]), vf_add(sum->way[2], sum->way[3])));
}

#define TPI_ROW_INLINE static inline __attribute__((always_inline))

/* Four vectors of a row from `c` on; full: the row has them all, else up to its end. `dtype` and `full` are constants
 * in each copy. */
TPI_ROW_INLINE void tpi_row_total_step(tpi_row_sum *sum, const void *x, const tp_dtype dtype, int64_t c, int64_t cols,
                                       const bool full)
{
#pragma GCC unroll 4
    for (int way = 0; way < TPI_ROW_WAYS; way++) {
        int64_t at = c + way * TPI_LANES;

        if (full || at < cols)
            sum->way[way] = vf_add(sum->way[way], vf_load_any(tpi_element(x, dtype, at), dtype,
                                                              full ? TPI_LANES : tpi_lanes_of(cols - at)));
    }
}

/* Sum of x[0..cols). */
TPI_ROW_INLINE float tpi_row_total(const void *x, const tp_dtype dtype, int64_t cols)
{
    tpi_row_sum sum = tpi_row_sum_zero();
    int64_t c = 0;

    for (; c + TPI_ROW_WAYS * TPI_LANES <= cols; c += TPI_ROW_WAYS * TPI_LANES)
        tpi_row_total_step(&sum, x, dtype, c, cols, true);
    tpi_row_total_step(&sum, x, dtype, c, cols, false);
    return tpi_row_sum_total(&sum);
}

/* Sum and sum of squares of x - shift. */
typedef struct tpi_row_moments {
    float sum, squares;
} tpi_row_moments;

typedef struct tpi_row_moment_sums {
    tpi_row_sum sum, squares;
} tpi_row_moment_sums;

TPI_ROW_INLINE void tpi_row_moments_step(tpi_row_moment_sums *sums, const void *x, const tp_dtype dtype, int64_t c,
                                         int64_t cols, vf shifts, const bool full)
{
#pragma GCC unroll 4
    for (int way = 0; way < TPI_ROW_WAYS; way++) {
        int64_t at = c + way * TPI_LANES;
        int n = full ? TPI_LANES : tpi_lanes_of(cols - at);
        vf d;

        if (n <= 0)
            continue;
        d = vf_sub(vf_load_any(tpi_element(x, dtype, at), dtype, n), shifts);
        if (n < TPI_LANES)
            d = vf_keep_first(d, n, vf_zero());
        sums->sum.way[way] = vf_add(sums->sum.way[way], d);
        sums->squares.way[way] = vf_fma(d, d, sums->squares.way[way]);
    }
}

TPI_ROW_INLINE tpi_row_moments tpi_row_moments_about(const void *x, const tp_dtype dtype, int64_t cols, float shift)
{
    tpi_row_moment_sums sums = {tpi_row_sum_zero(), tpi_row_sum_zero()};
    vf shifts = vf_set1(shift);
    int64_t c = 0;

    for (; c + TPI_ROW_WAYS * TPI_LANES <= cols; c += TPI_ROW_WAYS * TPI_LANES)
        tpi_row_moments_step(&sums, x, dtype, c, cols, shifts, true);
    tpi_row_moments_step(&sums, x, dtype, c, cols, shifts, false);
    return (tpi_row_moments){tpi_row_sum_total(&sums.sum), tpi_row_sum_total(&sums.squares)};
}

#endif
