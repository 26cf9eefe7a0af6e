/* a*b + c with one rounding, where the target has no such instruction and the C library's fmaf takes it one value at a
 * time.
 *
 * The product of two floats has 48 bits at most and is exact in double. Its sum with c is rounded to 53 bits and then
 * to the 24 of a float. Two roundings differ from one only if the first lands just on the middle between two floats and
 * was not exact: rounding is monotone, and middles have 25 bits, so a sum on one side of a middle never crosses it, it
 * can only reach it. Three ways follow; all give the bits of fmaf.
 *
 * - Any operands: the sum is rounded to odd. An inexact sum gets a last bit of 1, which no middle between floats has,
 *   normal or subnormal (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008). The error of the
 *   sum is Knuth's, exact as nothing here comes near double's own limits.
 * - Operands of at most 12 bits each (bf16 has 8, f16 11): the product is itself a number of 24 bits, and for a sum of
 *   two such, 53 >= 2 * 24 + 2 bits in between never matter (Figueroa, "When is double rounding innocuous?", 1995). A
 *   subnormal sum beside a middle differs from it by 2^-174 at least, and is exact.
 * - Operands whose products are zero or multiples of the smallest float, 2^-149, so that subnormal sums need no
 *   rounding, and sums that do not overflow: half of a float's last place is added and what is below it cleared. That
 *   is right where the sum is not on a middle. Middles are noticed: the bits cleared are zeros then. Such sums are done
 *   again in the first way. */
#ifndef TPI_EXACT_FMA_H
#define TPI_EXACT_FMA_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Whether it is worth it: double must be rounded as its type says. */
#if !defined(__FP_FAST_FMAF) && !defined(__FMA__) && FLT_EVAL_METHOD == 0
#define TPI_EXACT_FMA 1
#else
#define TPI_EXACT_FMA 0
#endif

/* Tiles of exact_chain.h. */
#define TPI_EXACT_ROWS 12
#define TPI_EXACT_COLS 16
#define TPI_EXACT_PAIRS (TPI_EXACT_COLS / 2)
#define TPI_EXACT_TILE (TPI_EXACT_ROWS * TPI_EXACT_COLS)

#if TPI_EXACT_FMA

/* Two doubles: what the narrowest vectors of today's processors hold; wider ones gain little, others take them
 * apart. */
typedef double tpi_pair __attribute__((vector_size(16), may_alias));
typedef int64_t tpi_pair_bits __attribute__((vector_size(16), may_alias));
typedef int32_t tpi_pair_words __attribute__((vector_size(16), may_alias));
typedef float tpi_pair_float __attribute__((vector_size(8), may_alias));

#define TPI_EXACT_LIMIT 0x58800000 /* bits of 2^50 */
#define TPI_EXACT_LEAST 151        /* of two exponents: values end 23 below theirs, and 2 * 127 + 2 * 23 - 149 = 151 */
#define TPI_EXACT_SUM_LIMIT 0x1p126

static inline tpi_pair tpi_pair_of(const float *two)
{
    tpi_pair_float x;

    memcpy(&x, two, sizeof x);
    return __builtin_convertvector(x, tpi_pair);
}

static inline tpi_pair_float tpi_pair_rounded(tpi_pair x)
{
    return __builtin_convertvector(x, tpi_pair_float);
}

/* product + c, rounded to odd. Truncation is where the sum lies, or, if that is beyond the exact one, just before.
 * Where the sum is infinite or NaN both comparisons are false, and it stays. */
static inline tpi_pair tpi_pair_sum_to_odd(tpi_pair product, tpi_pair c)
{
    tpi_pair sum = product + c, other = sum - product, error = (product - (sum - other)) + (c - other);
    tpi_pair side = error * sum;
    tpi_pair_bits beyond = (tpi_pair_bits)(side < (tpi_pair){0, 0}),
                  short_of = (tpi_pair_bits)(side > (tpi_pair){0, 0});

    return (tpi_pair)(((tpi_pair_bits)sum + beyond) | ((beyond | short_of) & (tpi_pair_bits){1, 1}));
}

/* One step of a chain of floats kept as doubles, in each of the three ways. */
static inline tpi_pair tpi_pair_odd_step(tpi_pair a, tpi_pair b, tpi_pair sum)
{
    return __builtin_convertvector(tpi_pair_rounded(tpi_pair_sum_to_odd(a * b, sum)), tpi_pair);
}

static inline tpi_pair tpi_pair_narrow_step(tpi_pair a, tpi_pair b, tpi_pair sum)
{
    return __builtin_convertvector(tpi_pair_rounded(a * b + sum), tpi_pair);
}

/* `middles` counts in the low word of each double; its high words mean nothing. */
static inline tpi_pair tpi_pair_middle_step(tpi_pair a, tpi_pair b, tpi_pair sum, tpi_pair_words *middles)
{
    const tpi_pair_bits half = {0x10000000, 0x10000000}, kept = {~0x1fffffffLL, ~0x1fffffffLL};
    tpi_pair_bits raised = (tpi_pair_bits)(a * b + sum) + half, rounded = raised & kept;

    *middles += (tpi_pair_words)((tpi_pair_words)raised == (tpi_pair_words)rounded);
    return (tpi_pair)rounded;
}

static inline bool tpi_pair_any_middle(tpi_pair_words middles)
{
    const tpi_pair_bits both = (tpi_pair_bits)middles;

    return (uint32_t)both[0] != 0 || (uint32_t)both[1] != 0;
}

/* For the middle way: the least exponent of values that are not zero, 255 if all are; 0 if one is subnormal or too
 * large. */
static inline int tpi_exact_least(const float *value, int count)
{
    int32_t least = INT32_MAX, largest = 0;

    for (int i = 0; i < count; i++) {
        int32_t size;
        memcpy(&size, value + i, sizeof size);
        size &= INT32_MAX;
        int32_t or_none = (size - 1) & INT32_MAX;
        least = or_none < least ? or_none : least;
        largest = size > largest ? size : largest;
    }
    const int exponent = (int)(((uint32_t)least + 1) >> 23);
    return largest >= TPI_EXACT_LIMIT ? 0 : exponent < 255 ? exponent : 255;
}

/* Whether products of two such sets are fit for the middle way, and sums of 2^20 of them too. */
static inline bool tpi_exact_fits(int least_a, int least_b)
{
    return least_a > 0 && least_b > 0 && least_a + least_b >= TPI_EXACT_LEAST;
}

/* a[i] * b[i] + c[i] for sixteen floats; out may be an operand. */
static inline void tpi_exact_fma16(const float *a, const float *b, const float *c, float *out)
{
    for (int i = 0; i < 16; i += 2) {
        tpi_pair product = tpi_pair_of(a + i) * tpi_pair_of(b + i);
        tpi_pair_float x = tpi_pair_rounded(tpi_pair_sum_to_odd(product, tpi_pair_of(c + i)));
        memcpy(out + i, &x, sizeof x);
    }
}

#else

static inline void tpi_exact_fma16(const float *a, const float *b, const float *c, float *out)
{
    for (int i = 0; i < 16; i++)
        out[i] = fmaf(a[i], b[i], c[i]);
}
#endif

#endif
