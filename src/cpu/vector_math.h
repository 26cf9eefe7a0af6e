/* Elementary functions on 16 lanes: fixed FMA polynomials, so that the bits are the same on every instruction set.
 *
 * Largest errors over the whole range, in units of the last place of the exact result (tests/cpu/test_vector_math.c
 * holds them): vf_exp 1, vf_log 1, vf_tanh 2, vf_sigmoid 3, vf_erf 2. NaN gives NaN. The polynomials are minimax fits
 * (Remez exchange) of the functions named beside them. */
#ifndef TPI_CPU_VECTOR_MATH_H
#define TPI_CPU_VECTOR_MATH_H

/* The language is that of simd.h: sixteen lanes on the CPU, and one lane, a thread's, in CUDA code (cuda/lane.cuh),
 * which includes these very functions. */
#ifndef TPI_LANE_INLINE
#include "cpu/simd.h"
#define TPI_LANE_INLINE static inline
#endif

#define TPI_LN2_HIGH 0x1.62e400p-1f /* 14 bits, so that its products with exponents are exact */
#define TPI_LN2_LOW 0x1.7f7d1cp-20f

/* a*x + constant, one step of Horner's rule. */
TPI_LANE_INLINE vf tpi_horner(vf a, vf x, float constant)
{
    return vf_fma(a, x, vf_set1(constant));
}

#define TPI_EXP_MAGIC 0x1.8p23f /* adding it rounds to whole numbers */
#define TPI_EXP_LOG2E 0x1.715476p0f
#define TPI_EXP_LEAST (-105.0f) /* below it e^x is 0 */

/* e^x / 2^n, n the whole number next to x / ln(2). */
TPI_LANE_INLINE vf tpi_exp_fraction(vf x, vf n)
{
    vf r = vf_fnma(n, vf_set1(TPI_LN2_LOW), vf_fnma(n, vf_set1(TPI_LN2_HIGH), x)), p;

    /* (e^r - 1 - r) / r^2 on |r| <= ln(2)/2 */
    p = vf_set1(0x1.6a2404p-10f);
    p = tpi_horner(p, r, 0x1.123ap-7f);
    p = tpi_horner(p, r, 0x1.5558f2p-5f);
    p = tpi_horner(p, r, 0x1.555492p-3f);
    p = tpi_horner(p, r, 0x1.fffffcp-2f);
    p = vf_fma(vf_mul(r, r), p, r);
    return vf_add(p, vf_set1(1.0f));
}

/* e^x. Beyond 88.73 infinity; subnormal results are rounded right; below -103.98 zero. */
TPI_LANE_INLINE vf vf_exp(vf x)
{
    const vf magic = vf_set1(TPI_EXP_MAGIC);
    vf n;

    /* NaN passes: vf_min and vf_max give their second operand then. */
    x = vf_max(vf_set1(TPI_EXP_LEAST), vf_min(vf_set1(89.0f), x));
    n = vf_sub(vf_fma(x, vf_set1(TPI_EXP_LOG2E), magic), magic);
    return vf_scale2(tpi_exp_fraction(x, n), n);
}

/* vf_exp of an x that is not above 88, or NaN: one clamp less. */
TPI_LANE_INLINE vf tpi_exp_falling(vf x)
{
    const vf magic = vf_set1(TPI_EXP_MAGIC);
    vf n;

    x = vf_max(vf_set1(TPI_EXP_LEAST), x);
    n = vf_sub(vf_fma(x, vf_set1(TPI_EXP_LOG2E), magic), magic);
    return vf_scale2(tpi_exp_fraction(x, n), n);
}

/* 2^x of an x that is not above 0, or NaN; 2 units in the last place. Below -150 zero. */
TPI_LANE_INLINE vf tpi_exp2_falling(vf x)
{
    const vf magic = vf_set1(TPI_EXP_MAGIC);
    vf n, f, p;

    x = vf_max(vf_set1(-151.0f), x);
    n = vf_sub(vf_add(x, magic), magic);
    f = vf_sub(x, n);
    /* (2^f - 1) / f on |f| <= 1/2 */
    p = vf_set1(0x1.5bba14p-10f);
    p = tpi_horner(p, f, 0x1.3cea88p-7f);
    p = tpi_horner(p, f, 0x1.c6b752p-5f);
    p = tpi_horner(p, f, 0x1.ebf9bcp-3f);
    p = tpi_horner(p, f, 0x1.62e42ap-1f);
    return vf_scale2(tpi_horner(p, f, 1.0f), n);
}

/* -|x| */
TPI_LANE_INLINE vf tpi_minus_size(vf x)
{
    return vf_from_bits(vi_or(vf_bits(x), vi_set1(0x80000000u)));
}

/* ln x. ln 0 = -inf, ln inf = inf, NaN below 0. */
TPI_LANE_INLINE vf vf_log(vf x)
{
    const vf one = vf_set1(1.0f), infinity = vf_set1(INFINITY);
    vm tiny = vf_lt(x, vf_set1(0x1p-126f));
    vf scaled = vf_select(tiny, vf_mul(x, vf_set1(0x1p24f)), x);
    /* scaled = 2^k * m with m in [sqrt(1/2), sqrt(2)) */
    vi bits = vi_sub(vf_bits(scaled), vi_set1(0x3f3504f3u));
    vf k = vf_sub(vf_from_vi(vi_shift_right_signed(bits, 23)), vf_select(tiny, vf_set1(24.0f), vf_zero()));
    vf m = vf_from_bits(vi_add(vi_and(bits, vi_set1(0x007fffffu)), vi_set1(0x3f3504f3u)));
    vf f = vf_sub(m, one), s = vf_div(f, vf_add(f, vf_set1(2.0f))), z = vf_mul(s, s), p, half_square, result;

    /* (2 atanh(s) / s - 2) / s^2 */
    p = vf_set1(0x1.e2ff0ep-3f);
    p = tpi_horner(p, z, 0x1.2438ap-2f);
    p = tpi_horner(p, z, 0x1.999a7cp-2f);
    p = tpi_horner(p, z, 0x1.555554p-1f);
    p = vf_mul(p, z);
    half_square = vf_mul(vf_mul(f, f), vf_set1(0.5f));
    /* ln(1+f) = f - (f^2/2 - s * (f^2/2 + p)) */
    result = vf_fma(k, vf_set1(TPI_LN2_LOW), vf_mul(s, vf_add(half_square, p)));
    result = vf_fma(k, vf_set1(TPI_LN2_HIGH), vf_add(f, vf_sub(result, half_square)));
    result = vf_select(vf_eq(x, infinity), infinity, result);
    result = vf_select(vf_eq(x, vf_zero()), vf_set1(-INFINITY), result);
    return vf_select(vf_le(vf_zero(), x), result, vf_set1(NAN));
}

/* `size` with the sign of x. */
TPI_LANE_INLINE vf vf_copy_sign(vf size, vf x)
{
    return vf_from_bits(vi_or(vi_and(vf_bits(x), vi_set1(0x80000000u)), vi_and(vf_bits(size), vi_set1(0x7fffffffu))));
}

TPI_LANE_INLINE vf vf_tanh(vf x)
{
    vf size = vf_abs(x), z = vf_mul(x, x), p, small, large;

    /* (tanh(x)/x - 1) / x^2 for |x| <= 0.625 */
    p = vf_set1(-0x1.762d7p-8f);
    p = tpi_horner(p, z, 0x1.523bc6p-6f);
    p = tpi_horner(p, z, -0x1.b8405ap-5f);
    p = tpi_horner(p, z, 0x1.11074cp-3f);
    p = tpi_horner(p, z, -0x1.555534p-2f);
    small = vf_fma(vf_mul(p, z), x, x);
    large = vf_div(vf_set1(2.0f), vf_add(vf_exp(vf_add(size, size)), vf_set1(1.0f)));
    large = vf_copy_sign(vf_sub(vf_set1(1.0f), large), x);
    return vf_select(vf_lt(size, vf_set1(0.625f)), small, large);
}

/* 1 / (1 + e^-x), accurate in both tails. */
TPI_LANE_INLINE vf vf_sigmoid(vf x)
{
    const vf one = vf_set1(1.0f);
    vf t = tpi_exp_falling(tpi_minus_size(x)), s = vf_div(one, vf_add(one, t));

    return vf_select(vf_lt(x, vf_zero()), vf_mul(t, s), s);
}

TPI_LANE_INLINE vf vf_erf(vf x)
{
    vf size = vf_abs(x), z = vf_mul(x, x), t, p, small, large;

    /* erf(x)/x - 1 for |x| <= 1 */
    p = vf_set1(0x1.4ac1bp-14f);
    p = tpi_horner(p, z, -0x1.a479ep-11f);
    p = tpi_horner(p, z, 0x1.54186cp-8f);
    p = tpi_horner(p, z, -0x1.b7fb86p-6f);
    p = tpi_horner(p, z, 0x1.ce2d1ep-4f);
    p = tpi_horner(p, z, -0x1.81273ep-2f);
    p = tpi_horner(p, z, 0x1.06eba8p-3f);
    small = vf_fma(p, x, x);
    /* -ln(1 - erf(t)) for 1 <= t <= 4; beyond, erf is 1 */
    t = vf_min(vf_set1(4.0f), size);
    p = vf_set1(0x1.6bd7dcp-16f);
    p = tpi_horner(p, t, -0x1.cec5fcp-12f);
    p = tpi_horner(p, t, 0x1.138cbap-8f);
    p = tpi_horner(p, t, -0x1.9d0302p-6f);
    p = tpi_horner(p, t, 0x1.bc1516p-4f);
    p = tpi_horner(p, t, 0x1.443566p-1f);
    p = tpi_horner(p, t, 0x1.212c0cp0f);
    p = tpi_horner(p, t, -0x1.8a5746p-13f);
    large = vf_copy_sign(vf_sub(vf_set1(1.0f), vf_exp(vf_neg(p))), x);
    return vf_select(vf_lt(size, vf_set1(1.0f)), small, large);
}

#endif
