/* The primitives of simd.h on two AVX2 registers (with FMA and F16C). Included by simd.h only. */
#ifndef TPI_CPU_SIMD_AVX2_H
#define TPI_CPU_SIMD_AVX2_H

#include "cpu/simd_sum8.h"

typedef struct vf {
    __m256 lo, hi;
} vf;

typedef struct vi {
    __m256i lo, hi;
} vi;

typedef struct vm {
    __m256i lo, hi; /* 0 or all ones */
} vm;

static inline vf tpi_vf(__m256 lo, __m256 hi)
{
    return (vf){lo, hi};
}
static inline vi tpi_vi(__m256i lo, __m256i hi)
{
    return (vi){lo, hi};
}
static inline vm tpi_vm(__m256i lo, __m256i hi)
{
    return (vm){lo, hi};
}
static inline vm tpi_vm_ps(__m256 lo, __m256 hi)
{
    return (vm){_mm256_castps_si256(lo), _mm256_castps_si256(hi)};
}

static inline vm vm_first(int n)
{
    __m256i count = _mm256_set1_epi32(n), lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i upper = _mm256_add_epi32(lane, _mm256_set1_epi32(8));

    return tpi_vm(_mm256_cmpgt_epi32(count, lane), _mm256_cmpgt_epi32(count, upper));
}

/* ---- load, store, set ---- */

static inline vf vf_load(const void *data)
{
    return tpi_vf(_mm256_loadu_ps(data), _mm256_loadu_ps((const float *)data + 8));
}

static inline void vf_store(void *data, vf x)
{
    _mm256_storeu_ps(data, x.lo);
    _mm256_storeu_ps((float *)data + 8, x.hi);
}

static inline vi vi_load(const void *data)
{
    return tpi_vi(_mm256_loadu_si256(data), _mm256_loadu_si256((const __m256i *)data + 1));
}

static inline void vi_store(void *data, vi x)
{
    _mm256_storeu_si256(data, x.lo);
    _mm256_storeu_si256((__m256i *)data + 1, x.hi);
}

static inline vi vi_load_n(const void *data, int n)
{
    vm m = vm_first(n);

    return tpi_vi(_mm256_maskload_epi32(data, m.lo), _mm256_maskload_epi32((const int *)data + 8, m.hi));
}

static inline void vi_store_n(void *data, vi x, int n)
{
    vm m = vm_first(n);

    _mm256_maskstore_epi32(data, m.lo, x.lo);
    _mm256_maskstore_epi32((int *)data + 8, m.hi, x.hi);
}

static inline vf vf_load_n(const void *data, int n)
{
    vm m = vm_first(n);

    return tpi_vf(_mm256_maskload_ps(data, m.lo), _mm256_maskload_ps((const float *)data + 8, m.hi));
}

static inline void vf_store_n(void *data, vf x, int n)
{
    vm m = vm_first(n);

    _mm256_maskstore_ps(data, m.lo, x.lo);
    _mm256_maskstore_ps((float *)data + 8, m.hi, x.hi);
}

static inline vf vf_set1(float value)
{
    return tpi_vf(_mm256_set1_ps(value), _mm256_set1_ps(value));
}
static inline vf vf_zero(void)
{
    return tpi_vf(_mm256_setzero_ps(), _mm256_setzero_ps());
}

static inline vi vi_set1(uint32_t value)
{
    return tpi_vi(_mm256_set1_epi32((int)value), _mm256_set1_epi32((int)value));
}

static inline vi vi_iota(void)
{
    return tpi_vi(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15));
}

/* ---- arithmetic ---- */

static inline vf vf_add(vf a, vf b)
{
    return tpi_vf(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi));
}
static inline vf vf_sub(vf a, vf b)
{
    return tpi_vf(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi));
}
static inline vf vf_mul(vf a, vf b)
{
    return tpi_vf(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi));
}
static inline vf vf_div(vf a, vf b)
{
    return tpi_vf(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi));
}
static inline vf vf_min(vf a, vf b)
{
    return tpi_vf(_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi));
}
static inline vf vf_max(vf a, vf b)
{
    return tpi_vf(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi));
}
static inline vf vf_sqrt(vf a)
{
    return tpi_vf(_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi));
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return tpi_vf(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}

static inline vf vf_fnma(vf a, vf b, vf c)
{
    return tpi_vf(_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi));
}

static inline vi vi_add(vi a, vi b)
{
    return tpi_vi(_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi));
}
static inline vi vi_sub(vi a, vi b)
{
    return tpi_vi(_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi));
}
static inline vi vi_mul(vi a, vi b)
{
    return tpi_vi(_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi));
}
static inline vi vi_and(vi a, vi b)
{
    return tpi_vi(_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi));
}
static inline vi vi_or(vi a, vi b)
{
    return tpi_vi(_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi));
}
static inline vi vi_xor(vi a, vi b)
{
    return tpi_vi(_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi));
}

static inline vi vi_shift_left(vi a, int bits)
{
    __m256i count = _mm256_set1_epi32(bits);

    return tpi_vi(_mm256_sllv_epi32(a.lo, count), _mm256_sllv_epi32(a.hi, count));
}

static inline vi vi_shift_right(vi a, int bits)
{
    __m256i count = _mm256_set1_epi32(bits);

    return tpi_vi(_mm256_srlv_epi32(a.lo, count), _mm256_srlv_epi32(a.hi, count));
}

static inline vi vi_shift_right_signed(vi a, int bits)
{
    __m256i count = _mm256_set1_epi32(bits);

    return tpi_vi(_mm256_srav_epi32(a.lo, count), _mm256_srav_epi32(a.hi, count));
}

static inline void tpi_mul_wide_half(__m256i a, __m256i b, __m256i *low, __m256i *high)
{
    __m256i even = _mm256_mul_epu32(a, b);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));

    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

static inline void vi_mul_wide(vi a, vi b, vi *low, vi *high)
{
    tpi_mul_wide_half(a.lo, b.lo, &low->lo, &high->lo);
    tpi_mul_wide_half(a.hi, b.hi, &low->hi, &high->hi);
}

/* ---- bits and conversions ---- */

static inline vi vf_bits(vf a)
{
    return tpi_vi(_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi));
}
static inline vf vf_from_bits(vi a)
{
    return tpi_vf(_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi));
}
static inline vf vf_abs(vf a)
{
    return vf_from_bits(vi_and(vf_bits(a), vi_set1(0x7fffffffu)));
}
static inline vf vf_neg(vf a)
{
    return vf_from_bits(vi_xor(vf_bits(a), vi_set1(0x80000000u)));
}
static inline vf vf_from_vi(vi a)
{
    return tpi_vf(_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi));
}
static inline vi vf_to_vi(vf a)
{
    return tpi_vi(_mm256_cvttps_epi32(a.lo), _mm256_cvttps_epi32(a.hi));
}

/* Two factors, since 2^n alone may not be a float; the first product is exact. */
static inline vf vf_scale2(vf x, vf n)
{
    vi power = vf_to_vi(n), half = vi_shift_right_signed(power, 1), bias = vi_set1(127);
    vf first = vf_from_bits(vi_shift_left(vi_add(half, bias), 23));
    vf second = vf_from_bits(vi_shift_left(vi_add(vi_sub(power, half), bias), 23));

    return vf_mul(vf_mul(x, first), second);
}

/* ---- truth values ---- */

static inline vm vf_lt(vf a, vf b)
{
    return tpi_vm_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ));
}

static inline vm vf_le(vf a, vf b)
{
    return tpi_vm_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_LE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LE_OQ));
}

static inline vm vf_eq(vf a, vf b)
{
    return tpi_vm_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ));
}

static inline vm vi_eq(vi a, vi b)
{
    return tpi_vm(_mm256_cmpeq_epi32(a.lo, b.lo), _mm256_cmpeq_epi32(a.hi, b.hi));
}
static inline vm vi_lt(vi a, vi b)
{
    return tpi_vm(_mm256_cmpgt_epi32(b.lo, a.lo), _mm256_cmpgt_epi32(b.hi, a.hi));
}

static inline vm vi_lt_unsigned(vi a, vi b)
{
    vi top = vi_set1(0x80000000u);

    return vi_lt(vi_xor(a, top), vi_xor(b, top));
}

static inline vi vi_select(vm m, vi yes, vi no)
{
    return tpi_vi(_mm256_blendv_epi8(no.lo, yes.lo, m.lo), _mm256_blendv_epi8(no.hi, yes.hi, m.hi));
}

static inline vf vf_select(vm m, vf yes, vf no)
{
    return vf_from_bits(vi_select(m, vf_bits(yes), vf_bits(no)));
}

static inline vm vm_and(vm a, vm b)
{
    return tpi_vm(_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi));
}
static inline vm vm_or(vm a, vm b)
{
    return tpi_vm(_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi));
}

static inline vm vm_not(vm a)
{
    __m256i ones = _mm256_set1_epi32(-1);

    return tpi_vm(_mm256_xor_si256(a.lo, ones), _mm256_xor_si256(a.hi, ones));
}

static inline uint32_t vm_bits(vm a)
{
    uint32_t lo = (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(a.lo));

    return lo | (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(a.hi)) << 8;
}

static inline void tpi_transpose4_half(__m256i *w0, __m256i *w1, __m256i *w2, __m256i *w3)
{
    __m256i a = _mm256_unpacklo_epi32(*w0, *w1), b = _mm256_unpackhi_epi32(*w0, *w1);
    __m256i c = _mm256_unpacklo_epi32(*w2, *w3), d = _mm256_unpackhi_epi32(*w2, *w3);

    *w0 = _mm256_unpacklo_epi64(a, c);
    *w1 = _mm256_unpackhi_epi64(a, c);
    *w2 = _mm256_unpacklo_epi64(b, d);
    *w3 = _mm256_unpackhi_epi64(b, d);
}

static inline void vi_transpose4(vi word[4])
{
    tpi_transpose4_half(&word[0].lo, &word[1].lo, &word[2].lo, &word[3].lo);
    tpi_transpose4_half(&word[0].hi, &word[1].hi, &word[2].hi, &word[3].hi);
}

/* ---- 16-bit floats ---- */

static inline vf vf_load_bf16(const void *data)
{
    __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128(data));
    __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)data + 1));

    return vf_from_bits(tpi_vi(_mm256_slli_epi32(lo, 16), _mm256_slli_epi32(hi, 16)));
}

static inline void vf_store_bf16(void *data, vf x)
{
    vi bits = vf_bits(x), high = vi_shift_right(bits, 16);
    vi rounded = vi_shift_right(vi_add(vi_add(bits, vi_set1(0x7fffu)), vi_and(high, vi_set1(1))), 16);
    vi half = vi_select(vf_eq(x, x), rounded, vi_or(high, vi_set1(0x40u)));

    /* Packing works inside 128-bit halves; the permutation puts the quarters in order. */
    _mm256_storeu_si256(data, _mm256_permute4x64_epi64(_mm256_packus_epi32(half.lo, half.hi), 0xd8));
}

static inline vf vf_load_f16(const void *data)
{
    return tpi_vf(_mm256_cvtph_ps(_mm_loadu_si128(data)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)data + 1)));
}

static inline void vf_store_f16(void *data, vf x)
{
    _mm_storeu_si128(data, _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)data + 1, _mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* AVX2 has no masked 16-bit moves: partial ones go through a copy. */
static inline void tpi_copy_halves(void *to, const void *from, int n)
{
    if (n > 0)
        memcpy(to, from, (n < 16 ? (size_t)n : 16) * sizeof(uint16_t));
}

static inline vf vf_load_bf16_n(const void *data, int n)
{
    uint16_t half[16] = {0};

    tpi_copy_halves(half, data, n);
    return vf_load_bf16(half);
}

static inline void vf_store_bf16_n(void *data, vf x, int n)
{
    uint16_t half[16];

    vf_store_bf16(half, x);
    tpi_copy_halves(data, half, n);
}

static inline vf vf_load_f16_n(const void *data, int n)
{
    uint16_t half[16] = {0};

    tpi_copy_halves(half, data, n);
    return vf_load_f16(half);
}

static inline void vf_store_f16_n(void *data, vf x, int n)
{
    uint16_t half[16];

    vf_store_f16(half, x);
    tpi_copy_halves(data, half, n);
}

/* ---- sums ---- */

static inline float vf_sum(vf x)
{
    return tpi_sum8(_mm256_add_ps(x.lo, x.hi));
}

#endif
