// Handlers for an operation given as a function object, by type.
#pragma once
#include "decoder.h"
#include "lanes.h"

namespace gpusim::ptx
{

// d = F(a, ...) on type T, with a result of type R.
template <class R, class T, class F> void apply1(Warp &warp, const Instruction &in, uint32_t lanes)
{
    map1<R, T>(warp, in, lanes, F());
}
template <class R, class T, class F> void apply2(Warp &warp, const Instruction &in, uint32_t lanes)
{
    map2<R, T>(warp, in, lanes, F());
}
template <class R, class T, class F> void apply3(Warp &warp, const Instruction &in, uint32_t lanes)
{
    map3<R, T>(warp, in, lanes, F());
}

template <int Arguments, class R, class T, class F> constexpr Handler apply()
{
    if constexpr (Arguments == 1) {
        return apply1<R, T, F>;
    } else if constexpr (Arguments == 2) {
        return apply2<R, T, F>;
    } else {
        return apply3<R, T, F>;
    }
}

// F for the integer type; NULL for any other. Untyped bits count as unsigned.
template <int Arguments, class F> Handler pick_integer(Type type)
{
    switch (type) {
    case Type::u8:
    case Type::b8: return apply<Arguments, uint8_t, uint8_t, F>();
    case Type::u16:
    case Type::b16: return apply<Arguments, uint16_t, uint16_t, F>();
    case Type::u32:
    case Type::b32: return apply<Arguments, uint32_t, uint32_t, F>();
    case Type::u64:
    case Type::b64: return apply<Arguments, uint64_t, uint64_t, F>();
    case Type::s8: return apply<Arguments, int8_t, int8_t, F>();
    case Type::s16: return apply<Arguments, int16_t, int16_t, F>();
    case Type::s32: return apply<Arguments, int32_t, int32_t, F>();
    case Type::s64: return apply<Arguments, int64_t, int64_t, F>();
    default: return nullptr;
    }
}

template <int Arguments, class F> Handler pick_float(Type type)
{
    return type == Type::f32   ? apply<Arguments, float, float, F>()
           : type == Type::f64 ? apply<Arguments, double, double, F>()
                               : nullptr;
}

// An unsigned type to compute in without overflow being undefined.
template <class T> using Raw = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

__extension__ typedef __int128 Int128;
__extension__ typedef unsigned __int128 Uint128;

inline size_t register_width(Type type)
{
    return bytes_of(type) == 8 ? 8 : 4;
}

// The state space that an opcode names.
Space space_of(const Statement &statement);

// The first type named in an opcode, and the last.
Type first_type(const Statement &statement);
Type last_type(const Statement &statement);

// Emits "op d, a[, b[, c]]" with all operands of one width, d of another.
Instruction &emit_simple(Decoder &decoder, const Statement &statement, Handler handler, size_t result_width,
                         size_t width);

} // namespace gpusim::ptx
