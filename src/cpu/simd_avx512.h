/* The primitives of simd.h on one AVX-512 register. Included by simd.h only. */
#ifndef TPI_CPU_SIMD_AVX512_H
#define TPI_CPU_SIMD_AVX512_H

#include "cpu/simd_sum8.h"

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

static inline __mmask16 tpi_first_mask(int n)
{
    return n >= 16 ? (__mmask16)0xffff : n <= 0 ? (__mmask16)0 : (__mmask16)((1u << n) - 1);
}

/* ---- load, store, set ---- */

static inline vf vf_load(const void *data)
{
    return _mm512_loadu_ps(data);
}
static inline void vf_store(void *data, vf x)
{
    _mm512_storeu_ps(data, x);
}
static inline vf vf_load_n(const void *data, int n)
{
    return _mm512_maskz_loadu_ps(tpi_first_mask(n), data);
}
static inline void vf_store_n(void *data, vf x, int n)
{
    _mm512_mask_storeu_ps(data, tpi_first_mask(n), x);
}
static inline vi vi_load(const void *data)
{
    return _mm512_loadu_si512(data);
}
static inline void vi_store(void *data, vi x)
{
    _mm512_storeu_si512(data, x);
}
static inline vi vi_load_n(const void *data, int n)
{
    return _mm512_maskz_loadu_epi32(tpi_first_mask(n), data);
}
static inline void vi_store_n(void *data, vi x, int n)
{
    _mm512_mask_storeu_epi32(data, tpi_first_mask(n), x);
}
static inline vf vf_set1(float value)
{
    return _mm512_set1_ps(value);
}
static inline vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
static inline vi vi_set1(uint32_t value)
{
    return _mm512_set1_epi32((int)value);
}
static inline vi vi_iota(void)
{
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

/* ---- arithmetic ---- */

static inline vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
static inline vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
static inline vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
static inline vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
static inline vf vf_sqrt(vf a)
{
    return _mm512_sqrt_ps(a);
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
static inline vf vf_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}
static inline vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
static inline vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
static inline vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
static inline vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
static inline vi vi_mul(vi a, vi b)
{
    return _mm512_mullo_epi32(a, b);
}
static inline vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
static inline vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
static inline vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}
static inline vi vi_shift_left(vi a, int bits)
{
    return _mm512_sllv_epi32(a, _mm512_set1_epi32(bits));
}
static inline vi vi_shift_right(vi a, int bits)
{
    return _mm512_srlv_epi32(a, _mm512_set1_epi32(bits));
}
static inline vi vi_shift_right_signed(vi a, int bits)
{
    return _mm512_srav_epi32(a, _mm512_set1_epi32(bits));
}

static inline void vi_mul_wide(vi a, vi b, vi *low, vi *high)
{
    vi even = _mm512_mul_epu32(a, b);
    vi odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), _mm512_srli_epi64(b, 32));

    *low = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
    *high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
}

/* ---- bits and conversions ---- */

static inline vi vf_bits(vf a)
{
    return _mm512_castps_si512(a);
}
static inline vf vf_from_bits(vi a)
{
    return _mm512_castsi512_ps(a);
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
    return _mm512_cvtepi32_ps(a);
}
static inline vi vf_to_vi(vf a)
{
    return _mm512_cvttps_epi32(a);
}
static inline vf vf_scale2(vf x, vf n)
{
    return _mm512_scalef_ps(x, n);
}

/* ---- truth values ---- */

static inline vm vf_lt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
static inline vm vf_le(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ);
}
static inline vm vf_eq(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
static inline vm vi_eq(vi a, vi b)
{
    return _mm512_cmpeq_epi32_mask(a, b);
}
static inline vm vi_lt(vi a, vi b)
{
    return _mm512_cmplt_epi32_mask(a, b);
}
static inline vm vi_lt_unsigned(vi a, vi b)
{
    return _mm512_cmplt_epu32_mask(a, b);
}
static inline vf vf_select(vm m, vf yes, vf no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}
static inline vi vi_select(vm m, vi yes, vi no)
{
    return _mm512_mask_blend_epi32(m, no, yes);
}
static inline vm vm_and(vm a, vm b)
{
    return (vm)(a & b);
}
static inline vm vm_or(vm a, vm b)
{
    return (vm)(a | b);
}
static inline vm vm_not(vm a)
{
    return (vm)~a;
}
static inline vm vm_first(int n)
{
    return tpi_first_mask(n);
}
static inline uint32_t vm_bits(vm a)
{
    return a;
}

static inline void vi_transpose4(vi word[4])
{
    vi a = _mm512_unpacklo_epi32(word[0], word[1]), b = _mm512_unpackhi_epi32(word[0], word[1]);
    vi c = _mm512_unpacklo_epi32(word[2], word[3]), d = _mm512_unpackhi_epi32(word[2], word[3]);

    word[0] = _mm512_unpacklo_epi64(a, c);
    word[1] = _mm512_unpackhi_epi64(a, c);
    word[2] = _mm512_unpacklo_epi64(b, d);
    word[3] = _mm512_unpackhi_epi64(b, d);
}

/* ---- 16-bit floats ---- */

static inline vf tpi_widen_bf16(__m256i half)
{
    return vf_from_bits(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

static inline __m256i tpi_narrow_bf16_integer(vf x)
{
    vi bits = vf_bits(x), high = _mm512_srli_epi32(bits, 16);
    vi rounded = _mm512_srli_epi32(vi_add(vi_add(bits, vi_set1(0x7fffu)), vi_and(high, vi_set1(1))), 16);

    return _mm512_cvtepi32_epi16(vi_select(vf_eq(x, x), rounded, vi_or(high, vi_set1(0x40u))));
}

/* The processor's own instruction flushes subnormals. */
static inline __m256i tpi_narrow_bf16(vf x)
{
#if TPI_ISA_LEVEL >= 3
    if (__builtin_expect(_mm512_fpclass_ps_mask(x, 0x20) == 0, 1))
        return (__m256i)_mm512_cvtneps_pbh(x);
#endif
    return tpi_narrow_bf16_integer(x);
}

static inline __m256i tpi_narrow_f16(vf x)
{
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vf vf_load_bf16(const void *data)
{
    return tpi_widen_bf16(_mm256_loadu_si256(data));
}
static inline void vf_store_bf16(void *data, vf x)
{
    _mm256_storeu_si256(data, tpi_narrow_bf16(x));
}
static inline vf vf_load_f16(const void *data)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(data));
}
static inline void vf_store_f16(void *data, vf x)
{
    _mm256_storeu_si256(data, tpi_narrow_f16(x));
}

static inline vf vf_load_bf16_n(const void *data, int n)
{
    return tpi_widen_bf16(_mm256_maskz_loadu_epi16(tpi_first_mask(n), data));
}

static inline void vf_store_bf16_n(void *data, vf x, int n)
{
    _mm256_mask_storeu_epi16(data, tpi_first_mask(n), tpi_narrow_bf16(x));
}

static inline vf vf_load_f16_n(const void *data, int n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(tpi_first_mask(n), data));
}

static inline void vf_store_f16_n(void *data, vf x, int n)
{
    _mm256_mask_storeu_epi16(data, tpi_first_mask(n), tpi_narrow_f16(x));
}

/* ---- sums ---- */

static inline float vf_sum(vf x)
{
    return tpi_sum8(_mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}

#endif
