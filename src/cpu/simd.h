/* Sixteen f32 lanes that mean the same on every instruction set.
 *
 * vf: 16 floats, vi: 16 32-bit integers, vm: 16 truth values. Each operation gives the same bits on each set: they are
 * IEEE operations with the same operand order and explicit FMA. Only NaN payloads may differ. The build defines
 * TPI_ISA_LEVEL: 0 portable C, 1 AVX2 + FMA + F16C, 2 AVX-512 F BW DQ VL, 3 the same and AVX512-BF16.
 *
 * Primitives, in simd_portable.h (their meaning, lane by lane), simd_avx2.h and simd_avx512.h:
 *   vf_load vf_load_n vf_store vf_store_n vf_set1 vf_zero vf_add vf_sub vf_mul vf_div vf_sqrt vf_min vf_max vf_abs
 * vf_neg vf_fma (a*b+c) vf_fnma (c-a*b) vf_scale2 vf_bits vf_from_bits vf_from_vi vf_to_vi vf_select vf_lt vf_le vf_eq
 * vf_sum vf_load_bf16(_n) vf_store_bf16(_n) vf_load_f16(_n) vf_store_f16(_n) vi_load(_n) vi_store(_n) vi_set1 vi_iota
 * vi_add vi_sub vi_mul vi_mul_wide vi_and vi_or vi_xor vi_shift_left vi_shift_right vi_shift_right_signed vi_eq vi_lt
 * vi_lt_unsigned vi_select vi_transpose4 vm_and vm_or vm_not vm_first vm_bits
 *
 * The _n forms touch the first n lanes only (n <= 0: none, n >= 16: all), and load 0 in the others. Pointers need no
 * alignment beyond their element's. vf_min(a, b) = a < b ? a : b and vf_max(a, b) = a > b ? a : b: a NaN on either
 * side, and equal zeros, give b. vf_lt, vf_le and vf_eq are false for NaN. vf_to_vi truncates; values beyond i32 give
 * INT32_MIN. vf_scale2(x, n) = x * 2^n for whole n in [-250, 250] and |x| in [0.5, 2], rounded once. vf_sum adds by the
 * fixed lane tree: lanes i and i+8, then i+4, i+2, i+1. Stores to bf16 and f16 round to nearest, ties to even; NaN
 * stays a quiet NaN. */
#ifndef TPI_CPU_SIMD_H
#define TPI_CPU_SIMD_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <tp/dtype.h>

#define TPI_LANES 16

#ifndef TPI_ISA_LEVEL
#error "TPI_ISA_LEVEL must be defined: 0 portable, 1 avx2, 2 avx512, 3 avx512_bf16"
#endif

#if TPI_ISA_LEVEL >= 2
#include "cpu/simd_avx512.h"
#elif TPI_ISA_LEVEL == 1
#include "cpu/simd_avx2.h"
#else
#include "cpu/simd_portable.h"
#endif

/* Lanes of the next step of a row with `left` elements to go. */
static inline int tpi_lanes_of(int64_t left)
{
    return left < TPI_LANES ? (int)left : TPI_LANES;
}

static inline bool tpi_is_float(tp_dtype dtype)
{
    return dtype == TP_DTYPE_F32 || dtype == TP_DTYPE_BF16 || dtype == TP_DTYPE_F16;
}

/* n elements of an f32, bf16 or f16 array, widened exactly; the other lanes are 0. */
static inline vf vf_load_any(const void *data, tp_dtype dtype, int n)
{
    switch (dtype) {
    case TP_DTYPE_BF16: return n >= TPI_LANES ? vf_load_bf16(data) : vf_load_bf16_n(data, n);
    case TP_DTYPE_F16: return n >= TPI_LANES ? vf_load_f16(data) : vf_load_f16_n(data, n);
    default: return n >= TPI_LANES ? vf_load(data) : vf_load_n(data, n);
    }
}

/* The first n lanes, rounded to the dtype. */
static inline void vf_store_any(void *data, tp_dtype dtype, vf x, int n)
{
    switch (dtype) {
    case TP_DTYPE_BF16:
        if (n >= TPI_LANES)
            vf_store_bf16(data, x);
        else
            vf_store_bf16_n(data, x, n);
        return;
    case TP_DTYPE_F16:
        if (n >= TPI_LANES)
            vf_store_f16(data, x);
        else
            vf_store_f16_n(data, x, n);
        return;
    default:
        if (n >= TPI_LANES)
            vf_store(data, x);
        else
            vf_store_n(data, x, n);
    }
}

/* Element `index` of an f32, bf16 or f16 array, as an address. */
static inline const void *tpi_element(const void *data, tp_dtype dtype, int64_t index)
{
    return (const char *)data + index * (dtype == TP_DTYPE_F32 ? 4 : 2);
}

static inline void *tpi_element_of(void *data, tp_dtype dtype, int64_t index)
{
    return (char *)data + index * (dtype == TP_DTYPE_F32 ? 4 : 2);
}

/* The larger, and NaN if either is one. Of two zeros b. */
static inline vf vf_max_nan(vf a, vf b)
{
    return vf_select(vf_eq(a, a), vf_max(a, b), a);
}

static inline vf vf_min_nan(vf a, vf b)
{
    return vf_select(vf_eq(a, a), vf_min(a, b), a);
}

/* Lanes below n kept, the others replaced by `other`. */
static inline vf vf_keep_first(vf x, int n, vf other)
{
    return vf_select(vm_first(n), x, other);
}

/* Largest lane; NaN if a lane is NaN. */
static inline float vf_max_lane(vf x)
{
    float lane[TPI_LANES];

    vf_store(lane, x);
    for (int width = TPI_LANES / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; i++) {
            if (!(lane[i] > lane[i + width] || lane[i] != lane[i]))
                lane[i] = lane[i + width];
        }
    }
    return lane[0];
}

#endif
