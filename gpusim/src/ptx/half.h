// 16-bit floating point: conversion to and from wider types with one rounding.
#pragma once
#include "lanes.h"
#include "scoped_rounding.h"

#include <cmath>

namespace gpusim::ptx
{

inline float to_float(Bfloat value)
{
    return from_word<float>(static_cast<uint32_t>(value.bits) << 16);
}

inline float to_float(Half value)
{
    uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
    uint32_t exponent = value.bits >> 10 & 31, mantissa = value.bits & 0x3FF;
    if (exponent == 31) {
        return from_word<float>(sign | 0x7F800000u | mantissa << 13);
    }
    if (exponent == 0) {
        float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return from_word<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

// A format with `mantissa_bits` explicit bits, an exponent of `exponent_bits`, infinities and subnormals; NaN is all
// ones without sign.
uint16_t encode_small(double value, int exponent_bits, int mantissa_bits, Rounding rounding);

inline Bfloat to_small(Bfloat *, double value, Rounding rounding = Rounding::nearest)
{
    return {encode_small(value, 8, 7, rounding)};
}
inline Half to_small(Half *, double value, Rounding rounding = Rounding::nearest)
{
    return {encode_small(value, 5, 10, rounding)};
}
inline Bfloat to_small(Bfloat *, float value)
{
    uint32_t bits = to_word<float>(value);
    if (value != value) {
        return {0x7FFF};
    }
    return {static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}
inline Half to_small(Half *, float value)
{
    uint32_t bits = to_word<float>(value);
    uint32_t exponent = bits >> 23 & 255;
    if (exponent < 113 || exponent >= 142) { // subnormal or too large
        return {encode_small(value, 5, 10, Rounding::nearest)};
    }
    uint32_t sign = bits >> 16 & 0x8000, magnitude = (bits & 0x7FFFFFFF) - (112u << 23);
    return {static_cast<uint16_t>(sign | (magnitude + 0xFFF + (magnitude >> 13 & 1)) >> 13)};
}
template <class H> H to_half(float value)
{
    return to_small(static_cast<H *>(nullptr), value);
}
template <class H> H to_half(double value, Rounding rounding)
{
    return to_small(static_cast<H *>(nullptr), value, rounding);
}

// a * b + c rounded to odd in double precision, so that a second rounding to 16 bits is the only one.
inline double fma_to_odd(float a, float b, float c)
{
    double product = static_cast<double>(a) * b, addend = c;
    double sum = product + addend;
    if (!std::isfinite(sum)) {
        return sum;
    }
    double rest = sum - product;
    double error = (product - (sum - rest)) + (addend - rest);
    uint64_t bits = to_word<double>(sum);
    if (error != 0 && (bits & 1) == 0) {
        bool away = (error > 0) == (sum > 0);
        bits = away ? bits + 1 : bits - 1;
    }
    return from_word<double>(bits);
}

} // namespace gpusim::ptx
