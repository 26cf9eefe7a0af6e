// Logic, shifts and bit fields.
#include "opcodes.h"
#include "pick.h"

namespace gpusim::ptx
{

namespace
{

struct And {
    template <class T> T operator()(T a, T b) const
    {
        return a & b;
    }
};
struct Or {
    template <class T> T operator()(T a, T b) const
    {
        return a | b;
    }
};
struct Xor {
    template <class T> T operator()(T a, T b) const
    {
        return a ^ b;
    }
};
struct Not {
    template <class T> T operator()(T a) const
    {
        return static_cast<T>(~a);
    }
};
struct LogicalNot {
    template <class T> T operator()(T a) const
    {
        return a == 0;
    }
};

// On predicates: one operation for all lanes.
template <class F> void do_predicates(Warp &warp, const Instruction &in, uint32_t lanes)
{
    uint32_t result = F()(predicate(warp, in.a), predicate(warp, in.b));
    uint32_t &d = predicate(warp, in.d);
    d = (d & ~lanes) | (result & lanes);
}

void do_predicate_not(Warp &warp, const Instruction &in, uint32_t lanes)
{
    uint32_t &d = predicate(warp, in.d);
    d = (d & ~lanes) | (~predicate(warp, in.a) & lanes);
}

// Shift counts are 32-bit whatever is shifted; larger ones than its width clear it.
template <class T, bool Left> void do_shift(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const Word<T> *a = words<T>(warp, in.a);
    const uint32_t *b = words<uint32_t>(warp, in.b);
    Word<T> *d = words<T>(warp, in.d);
    const uint32_t bits = 8 * sizeof(T);
    each_lane(lanes, [=](int lane) {
        T value = from_word<T>(a[lane]);
        uint32_t count = b[lane];
        T result;
        if (Left) {
            result = count >= bits ? T(0) : static_cast<T>(static_cast<Raw<T>>(value) << count);
        } else {
            result = static_cast<T>(count < bits ? value >> count : value < 0 ? T(-1) : T(0));
        }
        d[lane] = to_word<T>(result);
    });
}

template <bool Left> Handler pick_shift(Type type)
{
    switch (type) {
    case Type::b16:
    case Type::u16: return do_shift<uint16_t, Left>;
    case Type::b32:
    case Type::u32: return do_shift<uint32_t, Left>;
    case Type::b64:
    case Type::u64: return do_shift<uint64_t, Left>;
    case Type::s16: return do_shift<int16_t, Left>;
    case Type::s32: return do_shift<int32_t, Left>;
    case Type::s64: return do_shift<int64_t, Left>;
    default: return nullptr;
    }
}

enum FunnelMode : uint8_t { kLeft = 1, kWrap = 2 };

void do_funnel(Warp &warp, const Instruction &in, uint32_t lanes)
{
    uint8_t mode = in.mode;
    map3<uint32_t, uint32_t>(warp, in, lanes, [mode](uint32_t low, uint32_t high, uint32_t count) {
        uint64_t both = static_cast<uint64_t>(high) << 32 | low;
        count = mode & kWrap ? count & 31 : count > 32 ? 32 : count;
        return static_cast<uint32_t>(mode & kLeft ? both << count >> 32 : both >> count);
    });
}

template <class T> void do_extract(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const Word<T> *a = words<T>(warp, in.a);
    const uint32_t *b = words<uint32_t>(warp, in.b), *c = words<uint32_t>(warp, in.c);
    Word<T> *d = words<T>(warp, in.d);
    const uint32_t bits = 8 * sizeof(T);
    each_lane(lanes, [=](int lane) {
        using U = std::make_unsigned_t<T>;
        U value = static_cast<U>(a[lane]);
        uint32_t position = b[lane] & 255, length = c[lane] & 255;
        uint32_t top = position + length - 1 < bits - 1 ? position + length - 1 : bits - 1;
        bool sign = std::is_signed_v<T> && length != 0 && value >> top & 1;
        U field = position < bits ? value >> position : 0;
        U mask = length >= bits ? ~U(0) : (U(1) << length) - 1;
        U known = position >= bits ? 0 : (bits - position >= bits ? ~U(0) : (U(1) << (bits - position)) - 1);
        field = sign ? (field & mask & known) | ~(mask & known) : field & mask;
        d[lane] = field;
    });
}

template <class T> void do_insert(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const T *a = words<T>(warp, in.a), *b = words<T>(warp, in.b);
    const uint32_t *c = words<uint32_t>(warp, in.c), *e = words<uint32_t>(warp, in.list[0]);
    T *d = words<T>(warp, in.d);
    const uint32_t bits = 8 * sizeof(T);
    each_lane(lanes, [=](int lane) {
        uint32_t position = c[lane] & 255, length = e[lane] & 255;
        T mask = length >= bits ? ~T(0) : (T(1) << length) - 1;
        mask = position >= bits ? 0 : mask << position;
        d[lane] = (b[lane] & ~mask) | (position >= bits ? 0 : a[lane] << position & mask);
    });
}

template <class T> void do_find(Warp &warp, const Instruction &in, uint32_t lanes)
{
    bool shift_amount = in.mode != 0;
    map1<uint32_t, T>(warp, in, lanes, [shift_amount](T value) {
        using U = std::make_unsigned_t<T>;
        U bits = static_cast<U>(value < 0 ? ~value : value);
        if (bits == 0) {
            return UINT32_MAX;
        }
        uint32_t top = 63u - static_cast<uint32_t>(__builtin_clzll(bits));
        return shift_amount ? static_cast<uint32_t>(8 * sizeof(T)) - 1 - top : top;
    });
}

template <class F> void pick_counted(Instruction *in, Type type)
{
    in->handler = bytes_of(type) == 8 ? apply1<uint32_t, uint64_t, F> : apply1<uint32_t, uint32_t, F>;
}
struct LeadingZeros {
    uint32_t operator()(uint32_t a) const
    {
        return a ? static_cast<uint32_t>(__builtin_clz(a)) : 32;
    }
    uint32_t operator()(uint64_t a) const
    {
        return a ? static_cast<uint32_t>(__builtin_clzll(a)) : 64;
    }
};
struct Population {
    template <class T> uint32_t operator()(T a) const
    {
        return static_cast<uint32_t>(__builtin_popcountll(a));
    }
};
struct Reverse {
    template <class T> T operator()(T a) const
    {
        T result = 0;
        for (size_t i = 0; i < 8 * sizeof(T); i++, a >>= 1) {
            result = static_cast<T>(result << 1 | (a & 1));
        }
        return result;
    }
};

// A table of eight bits gives the result for each combination of bits.
void do_lop3(Warp &warp, const Instruction &in, uint32_t lanes)
{
    uint32_t table = static_cast<uint32_t>(in.immediate);
    map3<uint32_t, uint32_t>(warp, in, lanes, [table](uint32_t a, uint32_t b, uint32_t c) {
        uint32_t result = 0;
        for (uint32_t i = 0; i < 8; i++) {
            if (table >> i & 1) {
                result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
            }
        }
        return result;
    });
}

uint32_t permute_selector(uint32_t mode, uint32_t selector)
{
    static const uint16_t kForward[] = {0x3210, 0x4321, 0x5432, 0x6543}, kBackward[] = {0x5670, 0x6701, 0x7012, 0x0123};
    static const uint16_t kLeft[] = {0x3210, 0x3211, 0x3222, 0x3333}, kRight[] = {0x0000, 0x1110, 0x2210, 0x3210};
    selector &= 3;
    switch (mode) {
    case 1: return kForward[selector];
    case 2: return kBackward[selector];
    case 3: return 0x1111 * selector;
    case 4: return kLeft[selector];
    case 5: return kRight[selector];
    default: return selector & 1 ? 0x3232 : 0x1010;
    }
}

void do_permute(Warp &warp, const Instruction &in, uint32_t lanes)
{
    uint32_t mode = in.mode;
    map3<uint32_t, uint32_t>(warp, in, lanes, [mode](uint32_t a, uint32_t b, uint32_t c) {
        uint64_t both = static_cast<uint64_t>(b) << 32 | a;
        uint32_t selector = mode ? permute_selector(mode, c) : c, result = 0;
        for (int i = 0; i < 4; i++) {
            uint32_t pick = selector >> (4 * i) & 15;
            uint32_t byte = both >> (8 * (pick & 7)) & 255;
            if (pick & 8) {
                byte = byte & 128 ? 255 : 0;
            }
            result |= byte << (8 * i);
        }
        return result;
    });
}

void do_mask(Warp &warp, const Instruction &in, uint32_t lanes)
{
    bool wraps = in.mode != 0;
    map2<uint32_t, uint32_t>(warp, in, lanes, [wraps](uint32_t position, uint32_t length) {
        position = wraps ? position & 31 : position;
        length = wraps ? length & 31 : length;
        uint64_t mask = length >= 32 ? UINT32_MAX : (1ull << length) - 1;
        return position >= 32 ? 0u : static_cast<uint32_t>(mask << position);
    });
}

// The nth set bit from a base on, upwards or downwards.
void do_find_nth(Warp &warp, const Instruction &in, uint32_t lanes)
{
    map3<uint32_t, uint32_t>(warp, in, lanes, [](uint32_t mask, uint32_t base, uint32_t offset) {
        int wanted = static_cast<int>(offset);
        if (wanted == 0) {
            return mask >> (base & 31) & 1 ? base : UINT32_MAX;
        }
        int step = wanted > 0 ? 1 : -1, left = wanted > 0 ? wanted : -wanted;
        for (int i = static_cast<int>(base & 31); i >= 0 && i < 32; i += step) {
            if ((mask >> i & 1) && --left == 0) {
                return static_cast<uint32_t>(i);
            }
        }
        return UINT32_MAX;
    });
}

const char *const kPermuteModes[] = {"", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"};

void decode_shift(Decoder &decoder, const Statement &statement, Type type)
{
    Instruction in;
    size_t width = register_width(type);
    in.handler = statement.words[0] == "shl" ? pick_shift<true>(type) : pick_shift<false>(type);
    in.a = decoder.source(statement.operands[1], width);
    in.b = decoder.source(statement.operands[2], 4);
    in.d = decoder.destination(statement.operands[0], width);
    decoder.emit(in);
}

void decode_field(Decoder &decoder, const Statement &statement, Type type)
{
    Instruction in;
    size_t width = register_width(type);
    in.a = decoder.source(statement.operands[1], width);
    if (statement.words[0] == "bfi") {
        in.handler = width == 8 ? do_insert<uint64_t> : do_insert<uint32_t>;
        in.b = decoder.source(statement.operands[2], width);
        in.c = decoder.source(statement.operands[3], 4);
        in.list = decoder.list({decoder.source(statement.operands[4], 4)});
    } else {
        bool is_signed = traits(type).is_signed;
        in.handler = width == 8  ? is_signed ? do_extract<int64_t> : do_extract<uint64_t>
                      : is_signed ? do_extract<int32_t>
                                 : do_extract<uint32_t>;
        in.b = decoder.source(statement.operands[2], 4);
        in.c = decoder.source(statement.operands[3], 4);
    }
    in.d = decoder.destination(statement.operands[0], width);
    decoder.emit(in);
}

} // namespace

void decode_logic(Decoder &decoder, const Statement &statement)
{
    std::string_view name = statement.words[0];
    Type type = first_type(statement);
    if (type == Type::pred) {
        Instruction in;
        in.handler = name == "and"   ? do_predicates<And>
                     : name == "or"  ? do_predicates<Or>
                     : name == "xor" ? do_predicates<Xor>
                                     : do_predicate_not;
        in.a = decoder.source_predicate(statement.operands[1]);
        in.b = statement.operands.size() > 2 ? decoder.source_predicate(statement.operands[2]) : in.a;
        in.d = decoder.destination_predicate(statement.operands[0]);
        decoder.emit(in);
        return;
    }
    Handler handler = name == "and"   ? pick_integer<2, And>(type)
                      : name == "or"  ? pick_integer<2, Or>(type)
                      : name == "xor" ? pick_integer<2, Xor>(type)
                                      : pick_integer<1, Not>(type);
    if (!handler) {
        decoder.unsupported(statement);
        return;
    }
    emit_simple(decoder, statement, handler, register_width(type), register_width(type));
}

void decode_bits(Decoder &decoder, const Statement &statement)
{
    std::string_view name = statement.words[0];
    Type type = first_type(statement);
    size_t width = register_width(type);
    if (name == "shl" || name == "shr") {
        decode_shift(decoder, statement, type);
        return;
    }
    if (name == "bfe" || name == "bfi") {
        decode_field(decoder, statement, type);
        return;
    }
    Instruction in;
    size_t result_width = 4;
    if (name == "lop3" && statement.operands.size() == 5 && statement.operands[4].kind == Operand::Kind::integer) {
        in.handler = do_lop3;
        in.immediate = static_cast<int64_t>(statement.operands[4].bits);
    } else if (name == "shf") {
        in.handler = do_funnel;
        in.mode = static_cast<uint8_t>((statement.has("l") ? kLeft : 0) | (statement.has("wrap") ? kWrap : 0));
    } else if (name == "bfind") {
        in.mode = statement.has("shiftamt");
        bool is_signed = traits(type).is_signed;
        in.handler = width == 8  ? is_signed ? do_find<int64_t> : do_find<uint64_t>
                      : is_signed ? do_find<int32_t>
                                 : do_find<uint32_t>;
    } else if (name == "clz") {
        pick_counted<LeadingZeros>(&in, type);
    } else if (name == "popc") {
        pick_counted<Population>(&in, type);
    } else if (name == "brev") {
        in.handler = width == 8 ? apply1<uint64_t, uint64_t, Reverse> : apply1<uint32_t, uint32_t, Reverse>;
        result_width = width;
    } else if (name == "prmt") {
        in.handler = do_permute;
        for (uint8_t i = 1; i < 7; i++) {
            in.mode = statement.has(kPermuteModes[i]) ? i : in.mode;
        }
    } else if (name == "bmsk") {
        in.handler = do_mask;
        in.mode = statement.has("wrap");
    } else if (name == "fns") {
        in.handler = do_find_nth;
    } else if (name == "cnot") {
        in.handler = pick_integer<1, LogicalNot>(type);
        result_width = width;
    }
    if (!in.handler) {
        decoder.unsupported(statement);
        return;
    }
    Instruction &emitted = emit_simple(decoder, statement, in.handler, result_width, width);
    emitted.mode = in.mode;
    emitted.immediate = in.immediate;
}

} // namespace gpusim::ptx
