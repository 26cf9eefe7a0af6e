// Comparisons, and selection by their results.
#include "half.h"
#include "opcodes.h"
#include "pick.h"

#include <cmath>

namespace gpusim::ptx
{

namespace
{

enum class Compare : uint8_t { eq, ne, lt, le, gt, ge, equ, neu, ltu, leu, gtu, geu, num, nan };

// A constant `compare` leaves one comparison.
template <class T> inline bool holds(Compare compare, T a, T b)
{
    bool unordered = a != a || b != b;
    switch (compare) {
    case Compare::eq: return a == b;
    case Compare::ne: return !unordered && a != b;
    case Compare::lt: return a < b;
    case Compare::le: return a <= b;
    case Compare::gt: return a > b;
    case Compare::ge: return a >= b;
    case Compare::equ: return unordered || a == b;
    case Compare::neu: return a != b;
    case Compare::ltu: return unordered || a < b;
    case Compare::leu: return unordered || a <= b;
    case Compare::gtu: return unordered || a > b;
    case Compare::geu: return unordered || a >= b;
    case Compare::num: return !unordered;
    case Compare::nan: return unordered;
    }
    return false;
}

inline float flush_subnormal(float x)
{
    return (to_word<float>(x) & 0x7F800000u) == 0 ? 0.0f : x;
}

struct AsIs {
    template <class T> static T get(Word<T> word)
    {
        return from_word<T>(word);
    }
};
struct FlushedSingle {
    template <class T> static float get(uint32_t word)
    {
        return flush_subnormal(from_word<float>(word));
    }
};
template <class H> struct Widened {
    template <class T> static float get(uint32_t word)
    {
        return to_float(H{static_cast<uint16_t>(word)});
    }
};

// A bit for each lane.
template <Compare C, class T, class Get> uint32_t compare_lanes(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const Word<T> *a = words<T>(warp, in.a), *b = words<T>(warp, in.b);
    uint32_t result = 0;
    if (lanes == kAllLanes) {
        uint32_t truth[32];
        LANES_ARE_INDEPENDENT
        for (int lane = 0; lane < 32; lane++) {
            truth[lane] = holds(C, Get::template get<T>(a[lane]), Get::template get<T>(b[lane]));
        }
        for (int lane = 0; lane < 32; lane++) {
            result |= truth[lane] << lane;
        }
        return result;
    }
    for (; lanes != 0; lanes &= lanes - 1) {
        int lane = __builtin_ctz(lanes);
        result |= static_cast<uint32_t>(holds(C, Get::template get<T>(a[lane]), Get::template get<T>(b[lane]))) << lane;
    }
    return result;
}

using CompareFunction = uint32_t (*)(Warp &, const Instruction &, uint32_t);

template <class T, class Get> CompareFunction pick_comparison(Compare compare)
{
    static const CompareFunction kFunctions[] = {
        compare_lanes<Compare::eq, T, Get>,  compare_lanes<Compare::ne, T, Get>,  compare_lanes<Compare::lt, T, Get>,
        compare_lanes<Compare::le, T, Get>,  compare_lanes<Compare::gt, T, Get>,  compare_lanes<Compare::ge, T, Get>,
        compare_lanes<Compare::equ, T, Get>, compare_lanes<Compare::neu, T, Get>, compare_lanes<Compare::ltu, T, Get>,
        compare_lanes<Compare::leu, T, Get>, compare_lanes<Compare::gtu, T, Get>, compare_lanes<Compare::geu, T, Get>,
        compare_lanes<Compare::num, T, Get>, compare_lanes<Compare::nan, T, Get>};
    return kFunctions[static_cast<size_t>(compare)];
}

CompareFunction pick_by_type(Type type, Compare compare, bool flushes)
{
    switch (type) {
    case Type::b16:
    case Type::u16: return pick_comparison<uint16_t, AsIs>(compare);
    case Type::b32:
    case Type::u32: return pick_comparison<uint32_t, AsIs>(compare);
    case Type::b64:
    case Type::u64: return pick_comparison<uint64_t, AsIs>(compare);
    case Type::s16: return pick_comparison<int16_t, AsIs>(compare);
    case Type::s32: return pick_comparison<int32_t, AsIs>(compare);
    case Type::s64: return pick_comparison<int64_t, AsIs>(compare);
    case Type::f32:
        return flushes ? pick_comparison<float, FlushedSingle>(compare) : pick_comparison<float, AsIs>(compare);
    case Type::f64: return pick_comparison<double, AsIs>(compare);
    case Type::f16: return pick_comparison<uint32_t, Widened<Half>>(compare);
    case Type::bf16: return pick_comparison<uint32_t, Widened<Bfloat>>(compare);
    default: return nullptr;
    }
}

bool parse_compare(const Statement &statement, Compare *compare)
{
    static const struct {
        const char *name;
        Compare compare;
    } kNames[] = {{"eq", Compare::eq},   {"ne", Compare::ne},   {"lt", Compare::lt},   {"le", Compare::le},
                  {"gt", Compare::gt},   {"ge", Compare::ge},   {"lo", Compare::lt},   {"ls", Compare::le},
                  {"hi", Compare::gt},   {"hs", Compare::ge},   {"equ", Compare::equ}, {"neu", Compare::neu},
                  {"ltu", Compare::ltu}, {"leu", Compare::leu}, {"gtu", Compare::gtu}, {"geu", Compare::geu},
                  {"num", Compare::num}, {"nan", Compare::nan}};
    for (const auto &entry : kNames) {
        if (statement.words.size() > 1 && statement.words[1] == entry.name) {
            *compare = entry.compare;
            return true;
        }
    }
    return false;
}

enum class Combine : uint8_t { none, with_and, with_or, with_xor };

uint32_t combine(Combine how, uint32_t truth, uint32_t other)
{
    switch (how) {
    case Combine::with_and: return truth & other;
    case Combine::with_or: return truth | other;
    case Combine::with_xor: return truth ^ other;
    default: return truth;
    }
}

void do_setp(Warp &warp, const Instruction &in, uint32_t lanes)
{
    uint32_t truth = reinterpret_cast<CompareFunction>(reinterpret_cast<uintptr_t>(in.extra))(warp, in, lanes);
    uint32_t &d = predicate(warp, in.d);
    if (in.mode == 0 && in.count == 0) {
        d = (d & ~lanes) | (truth & lanes);
        return;
    }
    Combine how = static_cast<Combine>(in.mode);
    uint32_t other = how == Combine::none ? 0 : predicate(warp, in.c);
    if (in.count > 0) { // the complement goes to a second predicate
        uint32_t &second = predicate(warp, in.list[0]);
        second = (second & ~lanes) | (combine(how, ~truth, other) & lanes);
    }
    d = (d & ~lanes) | (combine(how, truth, other) & lanes);
}

// The result as a number: all ones, or 1.0.
void do_set(Warp &warp, const Instruction &in, uint32_t lanes)
{
    uint32_t truth = reinterpret_cast<CompareFunction>(reinterpret_cast<uintptr_t>(in.extra))(warp, in, lanes);
    truth = combine(static_cast<Combine>(in.mode), truth, in.mode ? predicate(warp, in.c) : 0);
    uint32_t *d = words<uint32_t>(warp, in.d), one = static_cast<uint32_t>(in.immediate);
    each_lane(lanes, [=](int lane) { d[lane] = truth >> lane & 1 ? one : 0; });
}

struct PackedSet {
    Compare compare;
    bool half, masks;
};

void do_packed_set(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const PackedSet *set = static_cast<const PackedSet *>(in.extra);
    const uint32_t *a = words<uint32_t>(warp, in.a), *b = words<uint32_t>(warp, in.b);
    uint32_t *d = words<uint32_t>(warp, in.d);
    uint32_t one = set->masks ? 0xFFFF : set->half ? 0x3C00 : 0x3F80;
    auto widen = [set](uint32_t word) {
        uint16_t bits = static_cast<uint16_t>(word);
        return set->half ? to_float(Half{bits}) : to_float(Bfloat{bits});
    };
    for (; lanes != 0; lanes &= lanes - 1) {
        int lane = __builtin_ctz(lanes);
        uint32_t low = holds(set->compare, widen(a[lane]), widen(b[lane])) ? one : 0;
        uint32_t high = holds(set->compare, widen(a[lane] >> 16), widen(b[lane] >> 16)) ? one : 0;
        if (in.count == 0) {
            d[lane] = low | high << 16;
            continue;
        }
        uint32_t &first = predicate(warp, in.d), &second = predicate(warp, in.list[0]);
        first = (first & ~(1u << lane)) | static_cast<uint32_t>(low != 0) << lane;
        second = (second & ~(1u << lane)) | static_cast<uint32_t>(high != 0) << lane;
    }
}

Combine combine_of(const Statement &statement)
{
    return statement.has("and")   ? Combine::with_and
           : statement.has("or")  ? Combine::with_or
           : statement.has("xor") ? Combine::with_xor
                                  : Combine::none;
}

template <class T> void do_select(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const T *a = words<T>(warp, in.a), *b = words<T>(warp, in.b);
    T *d = words<T>(warp, in.d);
    uint32_t choice = predicate(warp, in.c);
    each_lane(lanes, [=](int lane) { d[lane] = choice >> lane & 1 ? a[lane] : b[lane]; });
}

template <class T, class S> void do_select_by_sign(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const T *a = words<T>(warp, in.a), *b = words<T>(warp, in.b);
    const uint32_t *c = words<uint32_t>(warp, in.c);
    T *d = words<T>(warp, in.d);
    each_lane(lanes, [=](int lane) { d[lane] = from_word<S>(c[lane]) >= 0 ? a[lane] : b[lane]; });
}

template <class T> void do_testp(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const Word<T> *a = words<T>(warp, in.a);
    uint32_t truth = 0;
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        int lane = __builtin_ctz(rest), kind = std::fpclassify(from_word<T>(a[lane]));
        bool is = in.mode == 0   ? kind != FP_NAN && kind != FP_INFINITE
                  : in.mode == 1 ? kind == FP_INFINITE
                  : in.mode == 2 ? kind != FP_NAN
                  : in.mode == 3 ? kind == FP_NAN
                  : in.mode == 4 ? kind == FP_NORMAL
                                 : kind == FP_SUBNORMAL;
        truth |= static_cast<uint32_t>(is) << lane;
    }
    uint32_t &d = predicate(warp, in.d);
    d = (d & ~lanes) | truth;
}

// Packed comparisons give two results.
bool decode_packed(Decoder &decoder, const Statement &statement, Type type, Compare compare)
{
    if (type != Type::f16x2 && type != Type::bf16x2) {
        return false;
    }
    Instruction in;
    in.handler = do_packed_set;
    in.extra = decoder.extra(PackedSet{compare, type == Type::f16x2, !traits(first_type(statement)).is_float});
    in.a = decoder.source(statement.operands[1], 4);
    in.b = decoder.source(statement.operands[2], 4);
    const Operand &result = statement.operands[0];
    if (result.kind == Operand::Kind::pair) {
        in.d = decoder.destination_predicate(result.parts[0]);
        in.list = decoder.list({decoder.destination_predicate(result.parts[1])});
        in.count = 1;
    } else {
        in.d = decoder.destination(result, 4);
    }
    decoder.emit(in);
    return true;
}

// What setp and set have in common: comparison and sources. False where nothing is left to emit.
bool decode_compare(Decoder &decoder, const Statement &statement, Instruction *in)
{
    Compare compare;
    const Type type = last_type(statement);
    if (!parse_compare(statement, &compare) || bytes_of(type) == 0) {
        decoder.unsupported(statement);
        return false;
    }
    if (combine_of(statement) == Combine::none && decode_packed(decoder, statement, type, compare)) {
        return false;
    }
    CompareFunction function = pick_by_type(type, compare, statement.has("ftz"));
    if (!function) {
        decoder.unsupported(statement);
        return false;
    }
    in->extra = reinterpret_cast<const void *>(reinterpret_cast<uintptr_t>(function));
    in->mode = static_cast<uint8_t>(combine_of(statement));
    in->a = decoder.source(statement.operands[1], register_width(type));
    in->b = decoder.source(statement.operands[2], register_width(type));
    if (in->mode != 0) {
        in->c = decoder.source_predicate(statement.operands[3]);
    }
    return true;
}

} // namespace

void decode_setp(Decoder &decoder, const Statement &statement)
{
    Instruction in;
    if (!decode_compare(decoder, statement, &in)) {
        return;
    }
    in.handler = do_setp;
    const Operand &result = statement.operands[0];
    if (result.kind == Operand::Kind::pair) {
        in.d = decoder.destination_predicate(result.parts[0]);
        in.list = decoder.list({decoder.destination_predicate(result.parts[1])});
        in.count = 1;
    } else {
        in.d = decoder.destination_predicate(result);
    }
    decoder.emit(in);
}

void decode_set(Decoder &decoder, const Statement &statement)
{
    Instruction in;
    if (!decode_compare(decoder, statement, &in)) {
        return;
    }
    const Type result = first_type(statement);
    in.handler = do_set;
    in.immediate = result == Type::f32     ? 0x3F800000
                   : result == Type::f16   ? 0x3C00
                   : result == Type::bf16  ? 0x3F80
                   : bytes_of(result) == 2 ? 0xFFFF
                                           : 0xFFFFFFFF;
    in.d = decoder.destination(statement.operands[0], 4);
    decoder.emit(in);
}

void decode_select(Decoder &decoder, const Statement &statement)
{
    Type type = first_type(statement);
    size_t width = register_width(type);
    Instruction in;
    in.a = decoder.source(statement.operands[1], width);
    in.b = decoder.source(statement.operands[2], width);
    if (statement.words[0] == "selp") {
        in.handler = width == 8 ? do_select<uint64_t> : do_select<uint32_t>;
        in.c = decoder.source_predicate(statement.operands[3]);
    } else if (last_type(statement) == Type::f32) {
        in.handler = width == 8 ? do_select_by_sign<uint64_t, float> : do_select_by_sign<uint32_t, float>;
        in.c = decoder.source(statement.operands[3], 4);
    } else {
        in.handler = width == 8 ? do_select_by_sign<uint64_t, int32_t> : do_select_by_sign<uint32_t, int32_t>;
        in.c = decoder.source(statement.operands[3], 4);
    }
    in.d = decoder.destination(statement.operands[0], width);
    decoder.emit(in);
}

void decode_testp(Decoder &decoder, const Statement &statement)
{
    static const char *const kKinds[] = {"finite", "infinite", "number", "notanumber", "normal", "subnormal"};
    Type type = first_type(statement);
    Instruction in;
    for (uint8_t i = 0; i < 6; i++) {
        in.mode = statement.has(kKinds[i]) ? i : in.mode;
    }
    in.handler = type == Type::f64 ? do_testp<double> : do_testp<float>;
    in.a = decoder.source(statement.operands[1], register_width(type));
    in.d = decoder.destination_predicate(statement.operands[0]);
    decoder.emit(in);
}

} // namespace gpusim::ptx
