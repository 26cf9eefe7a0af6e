/* The language of cpu/simd.h with one lane, a thread's: so that cpu/vector_math.h and cpu/activation_math.h are
 * compiled for the GPU as they are, and give the CPU's bits. A product and a sum stay two roundings where no fma is
 * written. */
#ifndef TPI_CUDA_LANE_CUH
#define TPI_CUDA_LANE_CUH

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#define TPI_LANE_INLINE static __device__ __forceinline__

typedef float vf;
typedef uint32_t vi;
typedef bool vm;

TPI_LANE_INLINE vf vf_set1(float value)
{
    return value;
}

TPI_LANE_INLINE vf vf_zero()
{
    return 0.0f;
}

TPI_LANE_INLINE vi vi_set1(uint32_t value)
{
    return value;
}

TPI_LANE_INLINE vf vf_add(vf a, vf b)
{
    return __fadd_rn(a, b);
}

TPI_LANE_INLINE vf vf_sub(vf a, vf b)
{
    return __fsub_rn(a, b);
}

TPI_LANE_INLINE vf vf_mul(vf a, vf b)
{
    return __fmul_rn(a, b);
}

TPI_LANE_INLINE vf vf_div(vf a, vf b)
{
    return __fdiv_rn(a, b);
}

TPI_LANE_INLINE vf vf_sqrt(vf a)
{
    return __fsqrt_rn(a);
}

/* a * b + c */
TPI_LANE_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return __fmaf_rn(a, b, c);
}

/* c - a * b */
TPI_LANE_INLINE vf vf_fnma(vf a, vf b, vf c)
{
    return __fmaf_rn(-a, b, c);
}

TPI_LANE_INLINE vf vf_min(vf a, vf b)
{
    return a < b ? a : b;
}

TPI_LANE_INLINE vf vf_max(vf a, vf b)
{
    return a > b ? a : b;
}

/* The larger, and NaN if either is one. Of two zeros b. */
TPI_LANE_INLINE vf vf_max_nan(vf a, vf b)
{
    return a == a ? vf_max(a, b) : a;
}

TPI_LANE_INLINE vf vf_min_nan(vf a, vf b)
{
    return a == a ? vf_min(a, b) : a;
}

TPI_LANE_INLINE vi vf_bits(vf a)
{
    return __float_as_uint(a);
}

TPI_LANE_INLINE vf vf_from_bits(vi a)
{
    return __uint_as_float(a);
}

TPI_LANE_INLINE vf vf_abs(vf a)
{
    return vf_from_bits(vf_bits(a) & 0x7fffffffu);
}

TPI_LANE_INLINE vf vf_neg(vf a)
{
    return vf_from_bits(vf_bits(a) ^ 0x80000000u);
}

TPI_LANE_INLINE vf vf_from_vi(vi a)
{
    return static_cast<float>(static_cast<int32_t>(a));
}

TPI_LANE_INLINE vi vi_add(vi a, vi b)
{
    return a + b;
}

TPI_LANE_INLINE vi vi_sub(vi a, vi b)
{
    return a - b;
}

TPI_LANE_INLINE vi vi_and(vi a, vi b)
{
    return a & b;
}

TPI_LANE_INLINE vi vi_or(vi a, vi b)
{
    return a | b;
}

TPI_LANE_INLINE vi vi_shift_right_signed(vi a, int bits)
{
    return static_cast<uint32_t>(static_cast<int32_t>(a) >> bits);
}

TPI_LANE_INLINE vm vf_lt(vf a, vf b)
{
    return a < b;
}

TPI_LANE_INLINE vm vf_le(vf a, vf b)
{
    return a <= b;
}

TPI_LANE_INLINE vm vf_eq(vf a, vf b)
{
    return a == b;
}

TPI_LANE_INLINE vf vf_select(vm m, vf yes, vf no)
{
    return m ? yes : no;
}

/* x * 2^n for whole n in [-250, 250] and |x| in [0.5, 2], rounded once. n NaN: x is NaN too. */
TPI_LANE_INLINE vf vf_scale2(vf x, vf n)
{
    int power = static_cast<int>(n), half = power / 2; /* a NaN converts to 0 */

    return x * __int_as_float((half + 127) << 23) * __int_as_float((power - half + 127) << 23);
}

#include "cpu/activation_math.h"

/* vf_exp of an x that is not above 0, or NaN, with less work. The exponent, which is in [-151, 0], stays in the low
 * bits of the sum with the magic number; with 64 more it is a normal number's, so that only the last product rounds. */
TPI_LANE_INLINE vf vf_exp_below(vf x)
{
    vf sum, fraction;

    x = vf_max(TPI_EXP_LEAST, x);
    sum = vf_fma(x, TPI_EXP_LOG2E, TPI_EXP_MAGIC);
    fraction = tpi_exp_fraction(x, vf_sub(sum, TPI_EXP_MAGIC));
    return fraction * __uint_as_float((vf_bits(sum) << 23) + ((127u + 64u) << 23)) * 0x1p-64f;
}

#endif
