// The scalar types of PTX, and the C++ types that stand for them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpusim::ptx
{

enum class Type : uint8_t {
    none,
    pred,
    b8,
    b16,
    b32,
    b64,
    b128,
    u8,
    u16,
    u32,
    u64,
    s8,
    s16,
    s32,
    s64,
    f16,
    bf16,
    f16x2,
    bf16x2,
    f32,
    f64,
    tf32,
    u16x2,
    s16x2,
    e4m3x2,
    e5m2x2
};

struct TypeTraits {
    const char *name;
    uint8_t bytes;
    bool is_signed, is_float, is_half; // half: 16-bit floating point, single or packed
};

const TypeTraits &traits(Type type);
Type parse_type(std::string_view name); // Type::none for anything else

inline size_t bytes_of(Type type)
{
    return traits(type).bytes;
}

// 16-bit floating point, kept as bits.
struct Half {
    uint16_t bits;
};
struct Bfloat {
    uint16_t bits;
};

} // namespace gpusim::ptx
