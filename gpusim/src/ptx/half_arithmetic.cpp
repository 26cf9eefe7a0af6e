// Arithmetic of f16, bf16 and their packed pairs.
#include "half.h"
#include "opcodes.h"
#include "pick.h"

namespace gpusim::ptx
{

uint16_t encode_small(double value, int exponent_bits, int mantissa_bits, Rounding rounding)
{
    const int bias = (1 << (exponent_bits - 1)) - 1, hidden = 1 << mantissa_bits;
    const uint16_t infinity = static_cast<uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
    const bool negative = std::signbit(value);
    const uint16_t sign = negative ? 0x8000 : 0;
    if (value != value) {
        return 0x7FFF;
    }
    if (value == 0) {
        return sign;
    }
    if (std::isinf(value)) {
        return static_cast<uint16_t>(sign | infinity);
    }
    double magnitude = std::fabs(value);
    int exponent = std::max(std::ilogb(magnitude), 1 - bias);
    double scaled = std::ldexp(magnitude, mantissa_bits - exponent);
    bool up = (rounding == Rounding::up && !negative) || (rounding == Rounding::down && negative);
    double rounded = rounding == Rounding::nearest ? std::nearbyint(scaled)
                     : up                          ? std::ceil(scaled)
                                                   : std::floor(scaled);
    int mantissa = static_cast<int>(rounded);
    if (mantissa >= 2 * hidden) {
        mantissa /= 2;
        exponent++;
    }
    if (exponent > bias) {
        bool to_infinity = rounding == Rounding::nearest || up;
        return static_cast<uint16_t>(sign | (to_infinity ? infinity : infinity - 1));
    }
    int field = mantissa < hidden ? 0 : exponent + bias;
    return static_cast<uint16_t>(sign | field << mantissa_bits | (mantissa & (hidden - 1)));
}

namespace
{

template <class H> H small_nan()
{
    return {0x7FFF};
}

template <class H> H flush_half(H value)
{
    uint16_t exponent = std::is_same_v<H, Half> ? 0x7C00 : 0x7F80;
    return (value.bits & exponent) == 0 ? H{static_cast<uint16_t>(value.bits & 0x8000)} : value;
}

struct Add {
    template <class H> H operator()(H a, H b) const
    {
        return to_half<H>(to_float(a) + to_float(b));
    }
};
struct Subtract {
    template <class H> H operator()(H a, H b) const
    {
        return to_half<H>(to_float(a) - to_float(b));
    }
};
struct Multiply {
    template <class H> H operator()(H a, H b) const
    {
        float product = to_float(a) * to_float(b);
        if (std::is_same_v<H, Bfloat> && std::fabs(product) < 0x1p-120f) { // it may have been rounded already
            return to_half<H>(static_cast<double>(to_float(a)) * to_float(b), Rounding::nearest);
        }
        return to_half<H>(product);
    }
};
struct Fma {
    template <class H> H operator()(H a, H b, H c) const
    {
        return to_half<H>(fma_to_odd(to_float(a), to_float(b), to_float(c)), Rounding::nearest);
    }
};
template <bool Nan, bool Larger> struct Extreme {
    template <class H> H operator()(H a, H b) const
    {
        float x = to_float(a), y = to_float(b);
        if (x != x || y != y) {
            return Nan || (x != x && y != y) ? small_nan<H>() : x != x ? b : a;
        }
        bool first = Larger ? x > y || (x == y && !std::signbit(x)) : x < y || (x == y && std::signbit(x));
        return first ? a : b;
    }
};
struct Absolute {
    template <class H> H operator()(H a) const
    {
        return {static_cast<uint16_t>(a.bits & 0x7FFF)};
    }
};
struct Negate {
    template <class H> H operator()(H a) const
    {
        return {static_cast<uint16_t>(a.bits ^ 0x8000)};
    }
};

enum HalfMode : uint8_t { kFlush = 1, kSaturate = 2, kRelu = 4 };

template <class H> H modify(H value, uint8_t mode)
{
    if (mode & kFlush) {
        value = flush_half(value);
    }
    if (mode & kSaturate) {
        float x = to_float(value);
        value = to_half<H>(x > 1 ? 1.0f : x > 0 ? x : 0.0f);
    }
    if (mode & kRelu) {
        value = value.bits >> 15 && to_float(value) == to_float(value) ? H{0} : value;
    }
    return value;
}

template <class H, int Arguments, class F> uint16_t compute(uint16_t a, uint16_t b, uint16_t c, uint8_t mode)
{
    H x{a}, y{b}, z{c};
    if (mode & kFlush) {
        x = flush_half(x);
        y = flush_half(y);
        z = flush_half(z);
    }
    if constexpr (Arguments == 1) {
        return modify(F()(x), mode).bits;
    } else if constexpr (Arguments == 2) {
        return modify(F()(x, y), mode).bits;
    } else {
        return modify(F()(x, y, z), mode).bits;
    }
}

template <class H, int Arguments, class F, bool Packed, uint8_t Mode>
void do_half(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const uint32_t *a = words<uint32_t>(warp, in.a), *b = words<uint32_t>(warp, in.b), *c = words<uint32_t>(warp, in.c);
    uint32_t *d = words<uint32_t>(warp, in.d);
    for (; lanes != 0; lanes &= lanes - 1) {
        int lane = __builtin_ctz(lanes);
        uint32_t x = a[lane], y = Arguments > 1 ? b[lane] : 0, z = Arguments > 2 ? c[lane] : 0;
        auto low = [](uint32_t value) { return static_cast<uint16_t>(value); };
        auto high = [](uint32_t value) { return static_cast<uint16_t>(value >> 16); };
        uint32_t result = compute<H, Arguments, F>(low(x), low(y), low(z), Mode);
        if (Packed) {
            result |= static_cast<uint32_t>(compute<H, Arguments, F>(high(x), high(y), high(z), Mode)) << 16;
        }
        d[lane] = result;
    }
}

template <int Arguments, class F, uint8_t Mode> Handler pick_type(Type type)
{
    switch (type) {
    case Type::f16: return do_half<Half, Arguments, F, false, Mode>;
    case Type::bf16: return do_half<Bfloat, Arguments, F, false, Mode>;
    case Type::f16x2: return do_half<Half, Arguments, F, true, Mode>;
    case Type::bf16x2: return do_half<Bfloat, Arguments, F, true, Mode>;
    default: return nullptr;
    }
}

template <int Arguments, class F> Handler pick_half(Type type, uint8_t mode)
{
    switch (mode) {
    case 0: return pick_type<Arguments, F, 0>(type);
    case kFlush: return pick_type<Arguments, F, kFlush>(type);
    case kSaturate: return pick_type<Arguments, F, kSaturate>(type);
    case kRelu: return pick_type<Arguments, F, kRelu>(type);
    case kFlush | kSaturate: return pick_type<Arguments, F, kFlush | kSaturate>(type);
    default: return nullptr;
    }
}

} // namespace

Handler half_handler(const Statement &statement, Type type)
{
    std::string_view name = statement.words[0];
    uint8_t mode = static_cast<uint8_t>((statement.has("ftz") ? kFlush : 0) | (statement.has("sat") ? kSaturate : 0) |
                                        (statement.has("relu") ? kRelu : 0));
    bool nan = statement.has("NaN");
    if (statement.has("xorsign") || statement.has("oob") || statement.operands.size() > (name == "fma" ? 4 : 3)) {
        return nullptr;
    }
    if (name == "add") {
        return pick_half<2, Add>(type, mode);
    }
    if (name == "sub") {
        return pick_half<2, Subtract>(type, mode);
    }
    if (name == "mul") {
        return pick_half<2, Multiply>(type, mode);
    }
    if (name == "fma") {
        return pick_half<3, Fma>(type, mode);
    }
    if (name == "min") {
        return nan ? pick_half<2, Extreme<true, false>>(type, mode) : pick_half<2, Extreme<false, false>>(type, mode);
    }
    if (name == "max") {
        return nan ? pick_half<2, Extreme<true, true>>(type, mode) : pick_half<2, Extreme<false, true>>(type, mode);
    }
    if (name == "abs") {
        return pick_half<1, Absolute>(type, mode);
    }
    return name == "neg" ? pick_half<1, Negate>(type, mode) : nullptr;
}

} // namespace gpusim::ptx
