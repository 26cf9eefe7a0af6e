// Floating point of all widths: arithmetic and conversions against the host's, on random bit patterns with NaN,
// infinities and subnormals.
#include "ptx_values.h"

#include <cfenv>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s64 = int64_t;
using ptx_values::from_bits;

template <class Function> float rounded(int mode, Function function)
{
    const int before = fegetround();
    fesetround(mode);
    volatile float result = function();
    fesetround(before);
    return result;
}

float flush(float x)
{
    return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

PTX_OPERATION(add_f32, float, float, "add.f32 %0, %1, %2;", "f", "f", return a + b;);
PTX_OPERATION(add_ftz, float, float, "add.ftz.f32 %0, %1, %2;", "f", "f", return flush(flush(a) + flush(b)););
PTX_OPERATION(add_rz, float, float, "add.rz.f32 %0, %1, %2;", "f", "f", volatile float x = a; volatile float y = b;
              return rounded(FE_TOWARDZERO, [&] { return x + y; }););
PTX_OPERATION(mul_sat, float, float, "mul.sat.f32 %0, %1, %2;", "f", "f", float p = a * b; return p > 1   ? 1
                                                                                                  : p > 0 ? p
                                                                                                          : 0;);
PTX_OPERATION(fma_f32, float, float, "fma.rn.f32 %0, %1, %2, %3;", "f", "f", return std::fma(a, b, c););
PTX_OPERATION(fma_down, float, float, "fma.rm.f32 %0, %1, %2, %3;", "f", "f", volatile float x = a;
              volatile float y = b; volatile float z = c;
              return rounded(FE_DOWNWARD, [&] { return std::fma(x, y, z); }););
PTX_OPERATION(div_f32, float, float, "div.rn.f32 %0, %1, %2;", "f", "f", return a / b;);
PTX_OPERATION(sqrt_f32, float, float, "sqrt.rn.f32 %0, %1;", "f", "f", return std::sqrt(a););
PTX_OPERATION(rcp_f32, float, float, "rcp.rn.f32 %0, %1;", "f", "f", return 1 / a;);
PTX_OPERATION(exp2_f32, float, float, "ex2.approx.f32 %0, %1;", "f", "f", return std::exp2(a););
PTX_OPERATION(log2_f32, float, float, "lg2.approx.f32 %0, %1;", "f", "f", return std::log2(a););
PTX_OPERATION(min_f32, float, float, "min.f32 %0, %1, %2;", "f", "f",
              return a != a ? b : b != b ? a : a < b || (a == b && std::signbit(a)) ? a : b;);
PTX_OPERATION(max_nan, float, float, "max.NaN.f32 %0, %1, %2;", "f", "f",
              return a != a || b != b ? NAN : a > b || (a == b && !std::signbit(a)) ? a : b;);
PTX_OPERATION(copysign_f32, float, float, "copysign.f32 %0, %1, %2;", "f", "f", return std::copysign(b, a););
PTX_OPERATION(fma_f64, double, double, "fma.rn.f64 %0, %1, %2, %3;", "d", "d", return std::fma(a, b, c););
PTX_OPERATION(div_f64, double, double, "div.rn.f64 %0, %1, %2;", "d", "d", return a / b;);
PTX_OPERATION(compare_unordered, float, u32, "{ .reg .pred p; setp.ltu.f32 p, %1, %2; selp.u32 %0, 1, 0, p; }", "r",
              "f", return !(a >= b););
PTX_OPERATION(compare_ordered, float, u32, "{ .reg .pred p; setp.ne.f32 p, %1, %2; selp.u32 %0, 1, 0, p; }", "r", "f",
              return a == a && b == b && a != b;);
PTX_OPERATION(testp_normal, float, u32, "{ .reg .pred p; testp.normal.f32 p, %1; selp.u32 %0, 1, 0, p; }", "r", "f",
              return std::isnormal(a););

template <class Out> Out clamp(double x, double low, double high, Out nan)
{
    return x != x ? nan : x <= low ? Out(low) : x >= high ? std::numeric_limits<Out>::max() : Out(x);
}

PTX_OPERATION(to_s32, float, int32_t, "cvt.rzi.s32.f32 %0, %1;", "r", "f",
              return clamp<int32_t>(std::trunc(a), -0x1p31, 0x1p31, 0););
PTX_OPERATION(to_s32_nearest, float, int32_t, "cvt.rni.s32.f32 %0, %1;", "r", "f",
              return clamp<int32_t>(std::nearbyint(a), -0x1p31, 0x1p31, 0););
PTX_OPERATION(to_u32, float, u32, "cvt.rmi.u32.f32 %0, %1;", "r", "f", return clamp<u32>(std::floor(a), 0, 0x1p32, 0););
PTX_OPERATION(to_u64, double, u64, "cvt.rzi.u64.f64 %0, %1;", "l", "d",
              return clamp<u64>(std::trunc(a), 0, 0x1p64, 1ull << 63););
PTX_OPERATION(from_s32, int32_t, float, "cvt.rn.f32.s32 %0, %1;", "f", "r", return float(a););
PTX_OPERATION(from_u64, u64, double, "cvt.rn.f64.u64 %0, %1;", "d", "l", return double(a););
PTX_OPERATION(from_u32_up, u32, float, "cvt.rp.f32.u32 %0, %1;", "f", "r", volatile u32 x = a;
              return rounded(FE_UPWARD, [&] { return float(x); }););
PTX_OPERATION(narrow, double, float, "cvt.rn.f32.f64 %0, %1;", "f", "d", return float(a););
PTX_OPERATION(round_f32, float, float, "cvt.rni.f32.f32 %0, %1;", "f", "f", return std::nearbyint(a););
PTX_OPERATION(ceiling, float, float, "cvt.rpi.f32.f32 %0, %1;", "f", "f", return std::ceil(a););
PTX_OPERATION(truncated, double, double, "cvt.rzi.f64.f64 %0, %1;", "d", "d", return std::trunc(a););
PTX_OPERATION(saturate_f32, float, float, "cvt.sat.f32.f32 %0, %1;", "f", "f", return a > 1 ? 1 : a > 0 ? a : 0;);
PTX_OPERATION(sign_extend, u32, s64, "{ .reg .s64 t; cvt.s64.s8 %0, %1; }", "l", "r", return int8_t(a););
PTX_OPERATION(saturate_s16, int32_t, int32_t, "{ .reg .s16 t; cvt.sat.s16.s32 t, %1; cvt.s32.s16 %0, t; }", "r", "r",
              return a < -32768 ? -32768 : a > 32767 ? 32767 : a;);
PTX_OPERATION(to_tf32, float, float, "{ .reg .b32 t; cvt.rna.tf32.f32 t, %1; mov.b32 %0, t; }", "f", "f", u32 bits;
              memcpy(&bits, &a, 4); bits = std::isfinite(a) ? (bits + 0x1000) & 0xFFFFE000u : bits;
              return from_bits<float>(bits););

// 16-bit results are compared through the host's own conversions (all NaN alike).
u32 half_bits(float x)
{
    u16 bits = __half_as_ushort(__float2half_rn(x));
    return x != x ? 0x7FFF : bits;
}
u32 bfloat_bits(float x)
{
    u16 bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    return x != x ? 0x7FFF : bits;
}
float half_value(u32 bits)
{
    return __half2float(__ushort_as_half(u16(bits)));
}
float bfloat_value(u32 bits)
{
    return from_bits<float>(u64(bits & 0xFFFF) << 16);
}
// a * b + c rounded to odd in double precision, so that a rounding to 16 bits is the only one that shows.
double fma_to_odd(float a, float b, float c)
{
    __float128 product = __float128(a) * b, sum = product + c;
    double near = double(sum);
    __float128 error = sum == product ? __float128(c) : sum - near; // a small c may vanish even here
    u64 bits;
    memcpy(&bits, &near, 8);
    if (std::isfinite(near) && error != 0 && (bits & 1) == 0) {
        bits = (error > 0) == (near > 0) ? bits + 1 : bits - 1;
    }
    return from_bits<double>(bits);
}
u32 half_fma(float a, float b, float c)
{
    double odd = fma_to_odd(a, b, c);
    return odd != odd ? 0x7FFF : __half_as_ushort(__double2half(odd));
}
u32 bfloat_fma(float a, float b, float c)
{
    double odd = fma_to_odd(a, b, c);
    return odd != odd ? 0x7FFF : __bfloat16_as_ushort(__double2bfloat16(odd));
}

#define HALF_OPERANDS "{ .reg .b16 x, y, z, t; cvt.u16.u32 x, %1; cvt.u16.u32 y, %2; cvt.u16.u32 z, %3; "
PTX_OPERATION(to_half, float, u32, "{ .reg .b16 t; cvt.rn.f16.f32 t, %1; cvt.u32.u16 %0, t; }", "r", "f",
              return half_bits(a););
PTX_OPERATION(to_bfloat, float, u32, "{ .reg .b16 t; cvt.rn.bf16.f32 t, %1; cvt.u32.u16 %0, t; }", "r", "f",
              return bfloat_bits(a););
PTX_OPERATION(to_half_pair, float, u32, "cvt.rn.f16x2.f32 %0, %1, %2;", "r", "f",
              return half_bits(b) | half_bits(a) << 16;);
PTX_OPERATION(to_bfloat_pair, float, u32, "cvt.rn.bf16x2.f32 %0, %1, %2;", "r", "f",
              return bfloat_bits(b) | bfloat_bits(a) << 16;);
PTX_OPERATION(from_half, u32, float, HALF_OPERANDS "cvt.f32.f16 %0, x; }", "f", "r", return half_value(a););
PTX_OPERATION(half_add, u32, u32, HALF_OPERANDS "add.f16 t, x, y; cvt.u32.u16 %0, t; }", "r", "r",
              return half_bits(half_value(a) + half_value(b)););
// The largest f16 that is not above x (or, if `zero`, not larger than it without sign).
u32 half_below(float x, bool zero)
{
    if (x != x || std::isinf(x)) {
        return half_bits(x);
    }
    u32 bits = half_bits(x);
    const bool negative = std::signbit(x),
               outward = std::isinf(half_value(bits)) || std::fabs(half_value(bits)) > std::fabs(x);
    if (negative && !zero) {
        return std::fabs(half_value(bits)) < std::fabs(x) ? bits + 1 : bits;
    }
    return outward ? bits - 1 : bits;
}
PTX_OPERATION(half_down, float, u32, "{ .reg .b16 t; cvt.rm.f16.f32 t, %1; cvt.u32.u16 %0, t; }", "r", "f",
              return half_below(a, false););
PTX_OPERATION(half_up, float, u32, "{ .reg .b16 t; cvt.rp.f16.f32 t, %1; cvt.u32.u16 %0, t; }", "r", "f",
              return a != a ? 0x7FFF : half_below(-a, false) ^ 0x8000;);
PTX_OPERATION(half_zero_pair, float, u32, "cvt.rz.f16x2.f32 %0, %1, %2;", "r", "f",
              return half_below(b, true) | half_below(a, true) << 16;);
PTX_OPERATION(half_add_sat, u32, u32, HALF_OPERANDS "add.sat.f16 t, x, y; cvt.u32.u16 %0, t; }", "r", "r",
              const float sum = half_value(a) + half_value(b);
              return half_bits(sum > 1   ? 1
                               : sum > 0 ? sum
                                         : 0););
PTX_OPERATION(half_fused, u32, u32, HALF_OPERANDS "fma.rn.f16 t, x, y, z; cvt.u32.u16 %0, t; }", "r", "r",
              return half_fma(half_value(a), half_value(b), half_value(c)););
PTX_OPERATION(half_multiply_pair, u32, u32, "mul.f16x2 %0, %1, %2;", "r", "r",
              return half_bits(half_value(a) * half_value(b)) | half_bits(half_value(a >> 16) * half_value(b >> 16))
                                                                    << 16;);
PTX_OPERATION(bfloat_fused_pair, u32, u32, "fma.rn.bf16x2 %0, %1, %2, %3;", "r", "r",
              return bfloat_fma(bfloat_value(a), bfloat_value(b), bfloat_value(c)) |
                     bfloat_fma(bfloat_value(a >> 16), bfloat_value(b >> 16), bfloat_value(c >> 16)) << 16;);
PTX_OPERATION(bfloat_negate, u32, u32, "neg.bf16x2 %0, %1;", "r", "r", return a ^ 0x80008000u;);

} // namespace

GPUSIM_TEST(single_and_double)
{
    CHECK_OPERATION(add_f32);
    CHECK_OPERATION(add_ftz);
    CHECK_OPERATION(add_rz);
    CHECK_OPERATION(mul_sat);
    CHECK_OPERATION(fma_f32);
    CHECK_OPERATION(fma_down);
    CHECK_OPERATION(div_f32);
    CHECK_OPERATION(sqrt_f32);
    CHECK_OPERATION(rcp_f32);
    CHECK_OPERATION(exp2_f32);
    CHECK_OPERATION(log2_f32);
    CHECK_OPERATION(min_f32);
    CHECK_OPERATION(max_nan);
    CHECK_OPERATION(copysign_f32);
    CHECK_OPERATION(fma_f64);
    CHECK_OPERATION(div_f64);
    CHECK_OPERATION(compare_unordered);
    CHECK_OPERATION(compare_ordered);
    CHECK_OPERATION(testp_normal);
}

GPUSIM_TEST(conversions)
{
    CHECK_OPERATION(to_s32);
    CHECK_OPERATION(to_s32_nearest);
    CHECK_OPERATION(to_u32);
    CHECK_OPERATION(to_u64);
    CHECK_OPERATION(from_s32);
    CHECK_OPERATION(from_u64);
    CHECK_OPERATION(from_u32_up);
    CHECK_OPERATION(narrow);
    CHECK_OPERATION(round_f32);
    CHECK_OPERATION(ceiling);
    CHECK_OPERATION(truncated);
    CHECK_OPERATION(saturate_f32);
    CHECK_OPERATION(sign_extend);
    CHECK_OPERATION(saturate_s16);
    CHECK_OPERATION(to_tf32);
}

GPUSIM_TEST(sixteen_bits)
{
    CHECK_OPERATION(to_half);
    CHECK_OPERATION(to_bfloat);
    CHECK_OPERATION(to_half_pair);
    CHECK_OPERATION(to_bfloat_pair);
    CHECK_OPERATION(from_half);
    CHECK_OPERATION(half_add);
    CHECK_OPERATION(half_down);
    CHECK_OPERATION(half_up);
    CHECK_OPERATION(half_zero_pair);
    CHECK_OPERATION(half_add_sat);
    CHECK_OPERATION(half_fused);
    CHECK_OPERATION(half_multiply_pair);
    CHECK_OPERATION(bfloat_fused_pair);
    CHECK_OPERATION(bfloat_negate);
}
