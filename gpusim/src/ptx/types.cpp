#include "types.h"

namespace gpusim::ptx
{

static const TypeTraits kTraits[] = {
    {"", 0, false, false, false},      {"pred", 4, false, false, false},  {"b8", 1, false, false, false},
    {"b16", 2, false, false, false},   {"b32", 4, false, false, false},   {"b64", 8, false, false, false},
    {"b128", 16, false, false, false}, {"u8", 1, false, false, false},    {"u16", 2, false, false, false},
    {"u32", 4, false, false, false},   {"u64", 8, false, false, false},   {"s8", 1, true, false, false},
    {"s16", 2, true, false, false},    {"s32", 4, true, false, false},    {"s64", 8, true, false, false},
    {"f16", 2, true, true, true},      {"bf16", 2, true, true, true},     {"f16x2", 4, true, true, true},
    {"bf16x2", 4, true, true, true},   {"f32", 4, true, true, false},     {"f64", 8, true, true, false},
    {"tf32", 4, true, true, false},    {"u16x2", 4, false, false, false}, {"s16x2", 4, true, false, false},
    {"e4m3x2", 2, true, true, false},  {"e5m2x2", 2, true, true, false},
};

const TypeTraits &traits(Type type)
{
    return kTraits[static_cast<size_t>(type)];
}

Type parse_type(std::string_view name)
{
    for (size_t i = 1; i < sizeof kTraits / sizeof *kTraits; i++) {
        if (name == kTraits[i].name) {
            return static_cast<Type>(i);
        }
    }
    return Type::none;
}

} // namespace gpusim::ptx
