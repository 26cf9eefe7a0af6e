/* The primitives of simd.h in plain C: the meaning of each, lane by lane. Included by simd.h only. */
#ifndef TPI_CPU_SIMD_PORTABLE_H
#define TPI_CPU_SIMD_PORTABLE_H

#include "cpu/exact_fma.h"
#include "cpu/simd_scalar.h"

typedef struct vf {
    float lane[16];
} vf;

typedef struct vi {
    uint32_t lane[16];
} vi;

typedef struct vm {
    uint32_t lane[16]; /* 0 or all ones */
} vm;

static inline void tpi_copy_first(void *to, const void *from, int n, size_t size)
{
    if (n > 0)
        memcpy(to, from, (n < 16 ? (size_t)n : 16) * size);
}

/* ---- load, store, set ---- */

static inline vf vf_load(const void *data)
{
    vf r;

    memcpy(&r, data, sizeof r);
    return r;
}

static inline void vf_store(void *data, vf x)
{
    memcpy(data, &x, sizeof x);
}

static inline vf vf_load_n(const void *data, int n)
{
    vf r = {{0}};

    tpi_copy_first(&r, data, n, sizeof(float));
    return r;
}

static inline void vf_store_n(void *data, vf x, int n)
{
    tpi_copy_first(data, &x, n, sizeof(float));
}

static inline vi vi_load(const void *data)
{
    vi r;

    memcpy(&r, data, sizeof r);
    return r;
}

static inline void vi_store(void *data, vi x)
{
    memcpy(data, &x, sizeof x);
}

static inline vi vi_load_n(const void *data, int n)
{
    vi r = {{0}};

    tpi_copy_first(&r, data, n, sizeof(uint32_t));
    return r;
}

static inline void vi_store_n(void *data, vi x, int n)
{
    tpi_copy_first(data, &x, n, sizeof(uint32_t));
}

static inline vf vf_set1(float value)
{
    vf r;

    for (int i = 0; i < 16; i++)
        r.lane[i] = value;
    return r;
}

static inline vf vf_zero(void)
{
    return (vf){{0}};
}

static inline vi vi_set1(uint32_t value)
{
    vi r;

    for (int i = 0; i < 16; i++)
        r.lane[i] = value;
    return r;
}

static inline vi vi_iota(void)
{
    vi r;

    for (int i = 0; i < 16; i++)
        r.lane[i] = (uint32_t)i;
    return r;
}

/* ---- arithmetic ---- */

static inline vf vf_add(vf a, vf b)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] = a.lane[i] + b.lane[i];
    return a;
}

static inline vf vf_sub(vf a, vf b)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] = a.lane[i] - b.lane[i];
    return a;
}

static inline vf vf_mul(vf a, vf b)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] = a.lane[i] * b.lane[i];
    return a;
}

static inline vf vf_div(vf a, vf b)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] = a.lane[i] / b.lane[i];
    return a;
}

static inline vf vf_sqrt(vf a)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] = sqrtf(a.lane[i]);
    return a;
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    tpi_exact_fma16(a.lane, b.lane, c.lane, a.lane);
    return a;
}

static inline vf vf_fnma(vf a, vf b, vf c)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] = -a.lane[i];
    return vf_fma(a, b, c);
}

static inline vf vf_min(vf a, vf b)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
    return a;
}

static inline vf vf_max(vf a, vf b)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
    return a;
}

static inline vi vi_add(vi a, vi b)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] += b.lane[i];
    return a;
}

static inline vi vi_sub(vi a, vi b)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] -= b.lane[i];
    return a;
}

static inline vi vi_mul(vi a, vi b)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] *= b.lane[i];
    return a;
}

/* Unsigned 64-bit products, as their low and high words. */
static inline void vi_mul_wide(vi a, vi b, vi *low, vi *high)
{
    for (int i = 0; i < 16; i++) {
        uint64_t product = (uint64_t)a.lane[i] * b.lane[i];
        low->lane[i] = (uint32_t)product;
        high->lane[i] = (uint32_t)(product >> 32);
    }
}

static inline vi vi_and(vi a, vi b)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] &= b.lane[i];
    return a;
}

static inline vi vi_or(vi a, vi b)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] |= b.lane[i];
    return a;
}

static inline vi vi_xor(vi a, vi b)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] ^= b.lane[i];
    return a;
}

static inline vi vi_shift_left(vi a, int bits)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] <<= bits;
    return a;
}

static inline vi vi_shift_right(vi a, int bits)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] >>= bits;
    return a;
}

static inline vi vi_shift_right_signed(vi a, int bits)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] = (a.lane[i] >> bits) | (a.lane[i] >> 31 && bits > 0 ? ~0u << (32 - bits) : 0);
    return a;
}

/* ---- bits and conversions ---- */

static inline vi vf_bits(vf a)
{
    vi r;

    memcpy(&r, &a, sizeof r);
    return r;
}

static inline vf vf_from_bits(vi a)
{
    vf r;

    memcpy(&r, &a, sizeof r);
    return r;
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
    vf r;

    for (int i = 0; i < 16; i++)
        r.lane[i] = (float)(int32_t)a.lane[i];
    return r;
}

static inline vi vf_to_vi(vf a)
{
    vi r;

    for (int i = 0; i < 16; i++)
        r.lane[i] = tpi_i32_bits_of(a.lane[i]);
    return r;
}

static inline vf vf_scale2(vf x, vf n)
{
    for (int i = 0; i < 16; i++) {
        int power = n.lane[i] == n.lane[i] ? (int)n.lane[i] : 0;
        int half = power / 2;
        x.lane[i] = x.lane[i] * tpi_power_of_2(half) * tpi_power_of_2(power - half);
    }
    return x;
}

/* ---- truth values ---- */

static inline vm vf_lt(vf a, vf b)
{
    vm r;

    for (int i = 0; i < 16; i++)
        r.lane[i] = a.lane[i] < b.lane[i] ? ~0u : 0;
    return r;
}

static inline vm vf_le(vf a, vf b)
{
    vm r;

    for (int i = 0; i < 16; i++)
        r.lane[i] = a.lane[i] <= b.lane[i] ? ~0u : 0;
    return r;
}

static inline vm vf_eq(vf a, vf b)
{
    vm r;

    for (int i = 0; i < 16; i++)
        r.lane[i] = a.lane[i] == b.lane[i] ? ~0u : 0;
    return r;
}

static inline vm vi_eq(vi a, vi b)
{
    vm r;

    for (int i = 0; i < 16; i++)
        r.lane[i] = a.lane[i] == b.lane[i] ? ~0u : 0;
    return r;
}

static inline vm vi_lt(vi a, vi b)
{
    vm r;

    for (int i = 0; i < 16; i++)
        r.lane[i] = (a.lane[i] ^ 0x80000000u) < (b.lane[i] ^ 0x80000000u) ? ~0u : 0;
    return r;
}

static inline vm vi_lt_unsigned(vi a, vi b)
{
    vm r;

    for (int i = 0; i < 16; i++)
        r.lane[i] = a.lane[i] < b.lane[i] ? ~0u : 0;
    return r;
}

static inline vf vf_select(vm m, vf yes, vf no)
{
    for (int i = 0; i < 16; i++)
        yes.lane[i] = m.lane[i] ? yes.lane[i] : no.lane[i];
    return yes;
}

static inline vi vi_select(vm m, vi yes, vi no)
{
    for (int i = 0; i < 16; i++)
        yes.lane[i] = m.lane[i] ? yes.lane[i] : no.lane[i];
    return yes;
}

static inline vm vm_and(vm a, vm b)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] &= b.lane[i];
    return a;
}

static inline vm vm_or(vm a, vm b)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] |= b.lane[i];
    return a;
}

static inline vm vm_not(vm a)
{
    for (int i = 0; i < 16; i++)
        a.lane[i] = ~a.lane[i];
    return a;
}

static inline vm vm_first(int n)
{
    vm r;

    for (int i = 0; i < 16; i++)
        r.lane[i] = i < n ? ~0u : 0;
    return r;
}

/* Bit i is lane i. */
static inline uint32_t vm_bits(vm a)
{
    uint32_t bits = 0;

    for (int i = 0; i < 16; i++)
        bits |= (a.lane[i] & 1u) << i;
    return bits;
}

/* Word k of lane 4L + j becomes word j of lane 4L + k: a 4x4 transpose inside each group of four lanes. */
static inline void vi_transpose4(vi word[4])
{
    vi result[4];

    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 16; i++)
            result[k].lane[i] = word[i % 4].lane[i / 4 * 4 + k];
    }
    memcpy(word, result, sizeof result);
}

/* ---- 16-bit floats ---- */

static inline vf vf_load_bf16_n(const void *data, int n)
{
    vf r;
    uint16_t half[16] = {0};

    tpi_copy_first(half, data, n, sizeof half[0]);
    for (int i = 0; i < 16; i++)
        r.lane[i] = tpi_float_of_bf16(half[i]);
    return r;
}

static inline void vf_store_bf16_n(void *data, vf x, int n)
{
    uint16_t half[16];

    for (int i = 0; i < 16; i++)
        half[i] = tpi_bf16_of(x.lane[i]);
    tpi_copy_first(data, half, n, sizeof half[0]);
}

static inline vf vf_load_f16_n(const void *data, int n)
{
    vf r;
    uint16_t half[16] = {0};

    tpi_copy_first(half, data, n, sizeof half[0]);
    for (int i = 0; i < 16; i++)
        r.lane[i] = tpi_float_of_f16(half[i]);
    return r;
}

static inline void vf_store_f16_n(void *data, vf x, int n)
{
    uint16_t half[16];

    for (int i = 0; i < 16; i++)
        half[i] = tpi_f16_of(x.lane[i]);
    tpi_copy_first(data, half, n, sizeof half[0]);
}

static inline vf vf_load_bf16(const void *data)
{
    return vf_load_bf16_n(data, 16);
}

static inline void vf_store_bf16(void *data, vf x)
{
    vf_store_bf16_n(data, x, 16);
}

static inline vf vf_load_f16(const void *data)
{
    return vf_load_f16_n(data, 16);
}

static inline void vf_store_f16(void *data, vf x)
{
    vf_store_f16_n(data, x, 16);
}

/* ---- sums ---- */

static inline float vf_sum(vf x)
{
    for (int width = 8; width > 0; width /= 2) {
        for (int i = 0; i < width; i++)
            x.lane[i] += x.lane[i + width];
    }
    return x.lane[0];
}

#endif
