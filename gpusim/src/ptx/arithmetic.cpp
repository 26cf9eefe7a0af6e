// Integer arithmetic, carry chains and dot products.
#include "opcodes.h"
#include "pick.h"
#include "scoped_rounding.h"

namespace gpusim::ptx
{

namespace
{

struct Add {
    template <class T> T operator()(T a, T b) const
    {
        return static_cast<T>(static_cast<Raw<T>>(a) + static_cast<Raw<T>>(b));
    }
};
struct Subtract {
    template <class T> T operator()(T a, T b) const
    {
        return static_cast<T>(static_cast<Raw<T>>(a) - static_cast<Raw<T>>(b));
    }
};
struct MultiplyLow {
    template <class T> T operator()(T a, T b) const
    {
        return static_cast<T>(static_cast<Raw<T>>(a) * static_cast<Raw<T>>(b));
    }
};
struct MultiplyHigh {
    template <class T> T operator()(T a, T b) const
    {
        using Twice = std::conditional_t<std::is_signed_v<T>, Int128, Uint128>;
        return static_cast<T>(static_cast<Twice>(a) * static_cast<Twice>(b) >> (8 * sizeof(T)));
    }
};
struct MadLow {
    template <class T> T operator()(T a, T b, T c) const
    {
        return Add()(MultiplyLow()(a, b), c);
    }
};
struct MadHigh {
    template <class T> T operator()(T a, T b, T c) const
    {
        return Add()(MultiplyHigh()(a, b), c);
    }
};
// The low 24 bits count, the uppermost of them as the sign.
template <class T> T low_24_bits(T a)
{
    if constexpr (sizeof(T) == 4) {
        return static_cast<T>(static_cast<T>(static_cast<uint32_t>(a) << 8) >> 8);
    }
    return a;
}
struct Multiply24 {
    template <class T> T operator()(T a, T b) const
    {
        return MultiplyLow()(low_24_bits(a), low_24_bits(b));
    }
};
struct Mad24 {
    template <class T> T operator()(T a, T b, T c) const
    {
        return Add()(Multiply24()(a, b), c);
    }
};
struct Divide { // by zero: all ones, as the hardware does
    template <class T> T operator()(T a, T b) const
    {
        if (b == 0) {
            return static_cast<T>(~T(0));
        }
        return std::is_signed_v<T> && b == T(-1) ? Subtract()(T(0), a) : static_cast<T>(a / b);
    }
};
struct Remainder {
    template <class T> T operator()(T a, T b) const
    {
        if (b == 0) {
            return a;
        }
        return std::is_signed_v<T> && b == T(-1) ? T(0) : static_cast<T>(a % b);
    }
};
struct Absolute {
    template <class T> T operator()(T a) const
    {
        return a < 0 ? Subtract()(T(0), a) : a;
    }
};
struct Negate {
    template <class T> T operator()(T a) const
    {
        return Subtract()(T(0), a);
    }
};
struct Minimum {
    template <class T> T operator()(T a, T b) const
    {
        return a < b ? a : b;
    }
};
struct Maximum {
    template <class T> T operator()(T a, T b) const
    {
        return a > b ? a : b;
    }
};
struct SumOfDifferences {
    template <class T> T operator()(T a, T b, T c) const
    {
        return Add()(a < b ? Subtract()(b, a) : Subtract()(a, b), c);
    }
};

const struct {
    const char *name, *variant;
    Handler (*pick)(Type);
} kIntegerOperations[] = {
    {"add", "", pick_integer<2, Add>},
    {"sub", "", pick_integer<2, Subtract>},
    {"mul", "lo", pick_integer<2, MultiplyLow>},
    {"mul", "hi", pick_integer<2, MultiplyHigh>},
    {"mad", "lo", pick_integer<3, MadLow>},
    {"mad", "hi", pick_integer<3, MadHigh>},
    {"div", "", pick_integer<2, Divide>},
    {"rem", "", pick_integer<2, Remainder>},
    {"abs", "", pick_integer<1, Absolute>},
    {"neg", "", pick_integer<1, Negate>},
    {"min", "", pick_integer<2, Minimum>},
    {"max", "", pick_integer<2, Maximum>},
    {"sad", "", pick_integer<3, SumOfDifferences>},
    {"mul24", "lo", pick_integer<2, Multiply24>},
    {"mad24", "lo", pick_integer<3, Mad24>},
};

Handler integer_handler(const Statement &statement, Type type)
{
    for (const auto &operation : kIntegerOperations) {
        if (statement.words[0] == operation.name && (*operation.variant == 0 || statement.has(operation.variant))) {
            return operation.pick(type);
        }
    }
    return nullptr;
}

// ------------------------------------------------------------------ wide products

template <class W, class T> void do_multiply_wide(Warp &warp, const Instruction &in, uint32_t lanes)
{
    map2<W, T>(warp, in, lanes, [](T a, T b) { return static_cast<W>(static_cast<W>(a) * static_cast<W>(b)); });
}

template <class W, class T> void do_mad_wide(Warp &warp, const Instruction &in, uint32_t lanes)
{
    Word<W> *d = words<W>(warp, in.d);
    const Word<W> *c = words<W>(warp, in.c);
    const Word<T> *a = words<T>(warp, in.a), *b = words<T>(warp, in.b);
    each_lane(lanes, [=](int lane) {
        W product = static_cast<W>(static_cast<W>(from_word<T>(a[lane])) * static_cast<W>(from_word<T>(b[lane])));
        d[lane] = to_word<W>(Add()(product, from_word<W>(c[lane])));
    });
}

void decode_wide(Decoder &decoder, const Statement &statement, Type type)
{
    bool mad = statement.words[0] == "mad";
    Instruction in;
    switch (type) {
    case Type::u16: in.handler = mad ? do_mad_wide<uint32_t, uint16_t> : do_multiply_wide<uint32_t, uint16_t>; break;
    case Type::s16: in.handler = mad ? do_mad_wide<int32_t, int16_t> : do_multiply_wide<int32_t, int16_t>; break;
    case Type::u32: in.handler = mad ? do_mad_wide<uint64_t, uint32_t> : do_multiply_wide<uint64_t, uint32_t>; break;
    case Type::s32: in.handler = mad ? do_mad_wide<int64_t, int32_t> : do_multiply_wide<int64_t, int32_t>; break;
    default: decoder.unsupported(statement); return;
    }
    size_t width = bytes_of(type) == 4 ? 8 : 4;
    in.a = decoder.source(statement.operands[1], 4);
    in.b = decoder.source(statement.operands[2], 4);
    if (mad) {
        in.c = decoder.source(statement.operands[3], width);
    }
    in.d = decoder.destination(statement.operands[0], width);
    decoder.emit(in);
}

// ------------------------------------------------------------------ carry chains

enum CarryMode : uint8_t { kCarryIn = 1, kCarryOut = 2, kSubtract = 4, kMultiplyLow = 8, kMultiplyHigh = 16 };

template <class T> void do_carry(Warp &warp, const Instruction &in, uint32_t lanes)
{
    using U = std::make_unsigned_t<T>;
    const Word<T> *a = words<T>(warp, in.a), *b = words<T>(warp, in.b), *c = words<T>(warp, in.c);
    Word<T> *d = words<T>(warp, in.d);
    uint32_t carry_out = warp.carry;
    each_lane(lanes, [&](int lane) {
        T first = from_word<T>(a[lane]), second = from_word<T>(b[lane]);
        if (in.mode & (kMultiplyLow | kMultiplyHigh)) {
            first = in.mode & kMultiplyLow ? MultiplyLow()(first, second) : MultiplyHigh()(first, second);
            second = from_word<T>(c[lane]);
        }
        Uint128 x = static_cast<U>(first), y = static_cast<U>(second);
        Uint128 carry = in.mode & kCarryIn ? warp.carry >> lane & 1 : 0;
        Uint128 sum = in.mode & kSubtract ? x - y - carry : x + y + carry;
        uint32_t out = (sum >> (8 * sizeof(T)) & 1) != 0;
        d[lane] = to_word<T>(static_cast<T>(static_cast<U>(sum)));
        carry_out = (carry_out & ~(1u << lane)) | out << lane;
    });
    if (in.mode & kCarryOut) {
        warp.carry = carry_out;
    }
}

// ------------------------------------------------------------------ packed and dot products

template <class T, class F> void do_packed(Warp &warp, const Instruction &in, uint32_t lanes)
{
    map2<uint32_t, uint32_t>(warp, in, lanes, [](uint32_t a, uint32_t b) {
        uint32_t low = static_cast<uint16_t>(F()(static_cast<T>(a), static_cast<T>(b)));
        uint32_t high = static_cast<uint16_t>(F()(static_cast<T>(a >> 16), static_cast<T>(b >> 16)));
        return low | high << 16;
    });
}

Handler packed_handler(const Statement &statement, Type type)
{
    std::string_view name = statement.words[0];
    if (name == "add") {
        return do_packed<uint16_t, Add>;
    }
    if (name == "min") {
        return type == Type::u16x2 ? do_packed<uint16_t, Minimum> : do_packed<int16_t, Minimum>;
    }
    if (name == "max") {
        return type == Type::u16x2 ? do_packed<uint16_t, Maximum> : do_packed<int16_t, Maximum>;
    }
    return nullptr;
}

enum DotMode : uint8_t { kSignedA = 1, kSignedB = 2, kTwo = 4, kHigh = 8 };

int32_t part(uint32_t value, int index, int bits, bool is_signed)
{
    uint32_t field = value >> (index * bits) & ((1u << bits) - 1);
    return is_signed && field >> (bits - 1) ? static_cast<int32_t>(field) - (1 << bits) : static_cast<int32_t>(field);
}

void do_dot_product(Warp &warp, const Instruction &in, uint32_t lanes)
{
    uint8_t mode = in.mode;
    map3<uint32_t, uint32_t>(warp, in, lanes, [mode](uint32_t a, uint32_t b, uint32_t c) {
        for (int i = 0; i < (mode & kTwo ? 2 : 4); i++) {
            int32_t x = part(a, i, mode & kTwo ? 16 : 8, mode & kSignedA);
            int32_t y = part(b, mode & kHigh ? i + 2 : i, 8, mode & kSignedB);
            c += static_cast<uint32_t>(x * y);
        }
        return c;
    });
}

} // namespace

void decode_arithmetic(Decoder &decoder, const Statement &statement)
{
    Type type = first_type(statement);
    if (statement.has("cc")) {
        decode_carry(decoder, statement);
        return;
    }
    if (statement.has("wide")) {
        decode_wide(decoder, statement, type);
        return;
    }
    Handler handler = nullptr;
    if (traits(type).is_half) {
        handler = half_handler(statement, type);
    } else if (traits(type).is_float) {
        handler = float_handler(statement, type);
    } else if (type == Type::u16x2 || type == Type::s16x2) {
        handler = packed_handler(statement, type);
    } else {
        handler = integer_handler(statement, type);
        if (handler && statement.has("sat") && type == Type::s32) {
            handler = nullptr;
        }
    }
    if (!handler) {
        decoder.unsupported(statement);
        return;
    }
    emit_simple(decoder, statement, handler, register_width(type), register_width(type)).mode =
        static_cast<uint8_t>(rounding_of(statement));
}

void decode_carry(Decoder &decoder, const Statement &statement)
{
    Type type = first_type(statement);
    std::string_view name = statement.words[0];
    bool mad = name.substr(0, 3) == "mad";
    Handler handler = type == Type::u32 || type == Type::b32 ? do_carry<uint32_t>
                      : type == Type::s32                    ? do_carry<int32_t>
                      : type == Type::s64                    ? do_carry<int64_t>
                                                             : do_carry<uint64_t>;
    Instruction &in = emit_simple(decoder, statement, handler, register_width(type), register_width(type));
    in.mode = static_cast<uint8_t>((name.back() == 'c' ? kCarryIn : 0) | (statement.has("cc") ? kCarryOut : 0) |
                                   (name.substr(0, 3) == "sub" ? kSubtract : 0) |
                                   (mad ? statement.has("hi") ? kMultiplyHigh : kMultiplyLow : 0));
}

void decode_dot_product(Decoder &decoder, const Statement &statement)
{
    Instruction &in = emit_simple(decoder, statement, do_dot_product, 4, 4);
    in.mode = static_cast<uint8_t>((first_type(statement) == Type::s32 ? kSignedA : 0) |
                                   (last_type(statement) == Type::s32 ? kSignedB : 0) |
                                   (statement.words[0] == "dp2a" ? kTwo : 0) | (statement.has("hi") ? kHigh : 0));
}

} // namespace gpusim::ptx
