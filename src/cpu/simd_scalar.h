/* One-lane forms of what simd.h does, for plain C code. */
#ifndef TPI_CPU_SIMD_SCALAR_H
#define TPI_CPU_SIMD_SCALAR_H

#include <stdint.h>
#include <string.h>

static inline uint32_t tpi_bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float tpi_float_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* 2^n for n in [-126, 127]. */
static inline float tpi_power_of_2(int n)
{
    return tpi_float_of((uint32_t)(n + 127) << 23);
}

/* Truncated to i32; INT32_MIN where that does not fit. */
static inline uint32_t tpi_i32_bits_of(float x)
{
    return x >= -2147483648.0f && x < 2147483648.0f ? (uint32_t)(int32_t)x : 0x80000000u;
}

static inline uint16_t tpi_bf16_of(float x)
{
    uint32_t bits = tpi_bits_of(x);

    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float tpi_float_of_bf16(uint16_t half)
{
    return tpi_float_of((uint32_t)half << 16);
}

static inline uint16_t tpi_f16_of(float x)
{
    uint32_t bits = tpi_bits_of(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;

    if (size > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (size >> 13 & 0x3ffu));
    if (size >= 0x477ff000u) /* 65520 rounds to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (size >= 0x38800000u) {
        size += 0xfffu + (size >> 13 & 1u);
        return (uint16_t)(sign | ((size - 0x38000000u) >> 13));
    }
    /* Subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits. */
    return (uint16_t)(sign | (tpi_bits_of(tpi_float_of(size) + 0.5f) - 0x3f000000u));
}

static inline float tpi_float_of_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 31u, fraction = half & 0x3ffu;

    if (exponent == 31)
        return tpi_float_of(sign | 0x7f800000u | fraction << 13 | (fraction ? 0x400000u : 0));
    if (exponent == 0)
        return tpi_float_of(sign | tpi_bits_of((float)fraction * 0x1p-24f));
    return tpi_float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

#endif
