// cvt: between all scalar types, with rounding, saturation and packing.
#include "half.h"
#include "opcodes.h"
#include "pick.h"

#include <cmath>
#include <limits>

namespace gpusim::ptx
{

namespace
{

enum class Integral : uint8_t { none, zero, nearest, down, up };

struct Conversion {
    Rounding rounding = Rounding::nearest;
    Integral integral = Integral::none;
    bool saturates = false, flushes = false, relu = false, finite = false;
};

inline double to_integral(double x, Integral how)
{
    switch (how) {
    case Integral::zero: return std::trunc(x);
    case Integral::nearest: return std::nearbyint(x);
    case Integral::down: return std::floor(x);
    case Integral::up: return std::ceil(x);
    default: return x;
    }
}

template <class T> double flushed(T x)
{
    bool subnormal = sizeof(T) == 4 && std::fpclassify(x) == FP_SUBNORMAL;
    return subnormal ? std::copysign(0.0, static_cast<double>(x)) : static_cast<double>(x);
}

// Out of range: the nearest value there is. NaN: zero, or for 64-bit types the top bit.
template <class R> R to_integer(double x, bool from_double)
{
    if (x != x) {
        return from_double || sizeof(R) == 8 ? static_cast<R>(std::make_unsigned_t<R>(1) << (8 * sizeof(R) - 1)) : R(0);
    }
    const double low = static_cast<double>(std::numeric_limits<R>::min());
    const double high = std::ldexp(1.0, static_cast<int>(8 * sizeof(R)) - std::is_signed_v<R>);
    return x < low ? std::numeric_limits<R>::min() : x >= high ? std::numeric_limits<R>::max() : static_cast<R>(x);
}

template <class R, class T> R integer_to_integer(T x, const Conversion &conversion)
{
    if (!conversion.saturates) {
        return static_cast<R>(x);
    }
    Int128 value = x, low = std::numeric_limits<R>::min(), high = std::numeric_limits<R>::max();
    return static_cast<R>(value < low ? low : value > high ? high : value);
}

template <class T> constexpr bool is_small = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat>;

template <class T> double widen(T x, const Conversion &conversion)
{
    if constexpr (is_small<T>) {
        return static_cast<double>(to_float(x));
    } else if constexpr (std::is_same_v<T, float>) {
        return conversion.flushes ? flushed(x) : static_cast<double>(x);
    } else {
        return static_cast<double>(x);
    }
}

// Instead of an infinity: the largest number.
template <class R> R largest_finite(R value)
{
    constexpr uint16_t infinity = std::is_same_v<R, Half> ? 0x7C00 : 0x7F80;
    return (value.bits & 0x7FFF) == infinity ? R{static_cast<uint16_t>(value.bits - 1)} : value;
}

// A double (exact) or an integer to a floating point type in the current rounding mode.
template <class R, class X> R to_floating(X x, const Conversion &conversion)
{
    if constexpr (is_small<R>) {
        double value = static_cast<double>(x);
        if (conversion.saturates) {
            value = value > 1 ? 1 : value > 0 ? value : 0;
        }
        if (conversion.relu && !(value > 0)) {
            value = value == value ? 0 : value;
        }
        R result = to_half<R>(value, conversion.rounding);
        return conversion.finite ? largest_finite(result) : result;
    } else {
        R value = static_cast<R>(x);
        if (conversion.flushes && std::fpclassify(value) == FP_SUBNORMAL) {
            value = std::copysign(R(0), value);
        }
        return conversion.saturates ? value > 1 ? R(1) : value > 0 ? value : R(0) : value;
    }
}

template <class R, class T> R convert(T x, const Conversion &conversion)
{
    constexpr bool from_integer = std::is_integral_v<T>, to_integer_type = std::is_integral_v<R>;
    if constexpr (from_integer && to_integer_type) {
        return integer_to_integer<R>(x, conversion);
    } else if constexpr (from_integer) {
        return to_floating<R>(x, conversion);
    } else if constexpr (to_integer_type) {
        return to_integer<R>(to_integral(widen(x, conversion), conversion.integral), std::is_same_v<T, double>);
    } else {
        double value = widen(x, conversion);
        return to_floating<R>(to_integral(value, conversion.integral), conversion);
    }
}

template <class R, class T> void do_convert(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const Conversion conversion = *static_cast<const Conversion *>(in.extra);
    map1<R, T>(warp, in, lanes, [conversion](T x) { return convert<R, T>(x, conversion); });
}

template <class R, class T> void do_convert_rounded(Warp &warp, const Instruction &in, uint32_t lanes)
{
    ScopedRounding rounding(static_cast<const Conversion *>(in.extra)->rounding);
    do_convert<R, T>(warp, in, lanes);
}

// The conversions that programs are full of, without looking at modifiers.
template <class R, class T> void do_plain(Warp &warp, const Instruction &in, uint32_t lanes)
{
    map1<R, T>(warp, in, lanes, [](T x) {
        if constexpr (is_small<T>) {
            return static_cast<R>(to_float(x));
        } else if constexpr (is_small<R>) {
            return to_half<R>(x);
        } else {
            return static_cast<R>(x);
        }
    });
}

template <class R, class T> Handler pick_pair(const Conversion &conversion)
{
    bool plain = conversion.rounding == Rounding::nearest && conversion.integral == Integral::none &&
                 !conversion.saturates && !conversion.flushes && !conversion.relu && !conversion.finite;
    constexpr bool simple = (is_small<T> && std::is_same_v<R, float>) || (is_small<R> && std::is_same_v<T, float>) ||
                            (std::is_integral_v<T> && !is_small<R>) ||
                            (std::is_floating_point_v<T> && std::is_floating_point_v<R>);
    if constexpr (simple) {
        if (plain) {
            return do_plain<R, T>;
        }
    }
    bool rounds = conversion.rounding != Rounding::nearest && !is_small<R>;
    return rounds ? do_convert_rounded<R, T> : do_convert<R, T>;
}

template <class R> Handler pick_source(Type source, const Conversion &conversion)
{
    switch (source) {
    case Type::u8:
    case Type::b8: return pick_pair<R, uint8_t>(conversion);
    case Type::u16:
    case Type::b16: return pick_pair<R, uint16_t>(conversion);
    case Type::u32:
    case Type::b32: return pick_pair<R, uint32_t>(conversion);
    case Type::u64:
    case Type::b64: return pick_pair<R, uint64_t>(conversion);
    case Type::s8: return pick_pair<R, int8_t>(conversion);
    case Type::s16: return pick_pair<R, int16_t>(conversion);
    case Type::s32: return pick_pair<R, int32_t>(conversion);
    case Type::s64: return pick_pair<R, int64_t>(conversion);
    case Type::f16: return pick_pair<R, Half>(conversion);
    case Type::bf16: return pick_pair<R, Bfloat>(conversion);
    case Type::f32: return pick_pair<R, float>(conversion);
    case Type::f64: return pick_pair<R, double>(conversion);
    default: return nullptr;
    }
}

Handler pick_conversion(Type result, Type source, const Conversion &conversion)
{
    switch (result) {
    case Type::u8: return pick_source<uint8_t>(source, conversion);
    case Type::u16: return pick_source<uint16_t>(source, conversion);
    case Type::u32: return pick_source<uint32_t>(source, conversion);
    case Type::u64: return pick_source<uint64_t>(source, conversion);
    case Type::s8: return pick_source<int8_t>(source, conversion);
    case Type::s16: return pick_source<int16_t>(source, conversion);
    case Type::s32: return pick_source<int32_t>(source, conversion);
    case Type::s64: return pick_source<int64_t>(source, conversion);
    case Type::f16: return pick_source<Half>(source, conversion);
    case Type::bf16: return pick_source<Bfloat>(source, conversion);
    case Type::f32: return pick_source<float>(source, conversion);
    case Type::f64: return pick_source<double>(source, conversion);
    default: return nullptr;
    }
}

// d = { high = a, low = b }
template <class H> void do_pack(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const Conversion conversion = *static_cast<const Conversion *>(in.extra);
    map2<uint32_t, float>(warp, in, lanes, [conversion](float a, float b) {
        uint32_t high = to_floating<H>(static_cast<double>(a), conversion).bits;
        uint32_t low = to_floating<H>(static_cast<double>(b), conversion).bits;
        return low | high << 16;
    });
}

template <class H> void do_plain_pack(Warp &warp, const Instruction &in, uint32_t lanes)
{
    map2<uint32_t, float>(warp, in, lanes, [](float a, float b) {
        return to_half<H>(b).bits | static_cast<uint32_t>(to_half<H>(a).bits) << 16;
    });
}

enum class ToTf32 : uint8_t { ties_away, ties_even, toward_zero };

// 19 bits: an eight-bit exponent and ten bits of mantissa.
uint32_t to_tf32(uint32_t bits, ToTf32 how, const Conversion &conversion)
{
    bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u, negative = bits >> 31;
    if (is_nan) {
        return 0x7FFFFFFFu;
    }
    if (conversion.relu && negative) {
        return 0;
    }
    bool infinite = (bits & 0x7FFFFFFFu) == 0x7F800000u;
    uint32_t half = how == ToTf32::ties_away ? 0x1000u : how == ToTf32::ties_even ? 0xFFFu + (bits >> 13 & 1) : 0u;
    uint32_t result = infinite ? bits : (bits + half) & 0xFFFFE000u;
    return conversion.finite && (result & 0x7FFFFFFFu) == 0x7F800000u ? result - 0x2000u : result;
}

void do_tf32(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const Conversion conversion = *static_cast<const Conversion *>(in.extra);
    ToTf32 how = static_cast<ToTf32>(in.mode);
    map1<uint32_t, uint32_t>(warp, in, lanes, [=](uint32_t bits) { return to_tf32(bits, how, conversion); });
}

Integral integral_of(const Statement &statement, bool needed)
{
    return statement.has("rzi")   ? Integral::zero
           : statement.has("rni") ? Integral::nearest
           : statement.has("rmi") ? Integral::down
           : statement.has("rpi") ? Integral::up
           : needed               ? Integral::zero
                                  : Integral::none;
}

} // namespace

void decode_cvt(Decoder &decoder, const Statement &statement)
{
    Type result = first_type(statement), source = last_type(statement);
    bool float_to_integer = traits(source).is_float && !traits(result).is_float;
    Conversion conversion;
    conversion.rounding = rounding_of(statement);
    conversion.integral = integral_of(statement, float_to_integer);
    conversion.saturates = statement.has("sat");
    conversion.flushes = statement.has("ftz");
    conversion.relu = statement.has("relu");
    conversion.finite = statement.has("satfinite");
    Handler handler = nullptr;
    if (source == Type::f32 && !statement.has("rs") && (result == Type::f16x2 || result == Type::bf16x2)) {
        bool plain = conversion.rounding == Rounding::nearest && !conversion.relu && !conversion.finite;
        handler = result == Type::f16x2 ? plain ? do_plain_pack<Half> : do_pack<Half>
                  : plain ? do_plain_pack<Bfloat>
                                        : do_pack<Bfloat>;
    } else if (result == Type::tf32) {
        handler = do_tf32;
    } else if (statement.words[1] != "pack" && !statement.has("rs")) {
        handler = pick_conversion(result, source, conversion);
    }
    if (!handler) {
        decoder.unsupported(statement);
        return;
    }
    Instruction in;
    in.handler = handler;
    in.extra = decoder.extra(conversion);
    in.mode = static_cast<uint8_t>(statement.has("rn")   ? ToTf32::ties_even
                                   : statement.has("rz") ? ToTf32::toward_zero
                                                         : ToTf32::ties_away);
    in.a = decoder.source(statement.operands[1], register_width(source));
    if (statement.operands.size() > 2) {
        in.b = decoder.source(statement.operands[2], register_width(source));
    }
    in.d = decoder.destination(statement.operands[0], register_width(result), traits(result).is_signed);
    decoder.emit(in);
}

} // namespace gpusim::ptx
