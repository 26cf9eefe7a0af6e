// mov, packing and unpacking, and addresses between spaces.
#include "opcodes.h"
#include "pick.h"

#include <chrono>

namespace gpusim::ptx
{

namespace
{

template <class T> void do_move(Warp &warp, const Instruction &in, uint32_t lanes)
{
    map1<T, T>(warp, in, lanes, [](T a) { return a; });
}

void do_move_predicate(Warp &warp, const Instruction &in, uint32_t lanes)
{
    uint32_t &d = predicate(warp, in.d);
    d = (d & ~lanes) | (predicate(warp, in.a) & lanes);
}

// d = { list[0], list[1], ... }, the first lowest; each part has in.mode bytes.
template <class T> void do_pack(Warp &warp, const Instruction &in, uint32_t lanes)
{
    T *d = words<T>(warp, in.d);
    each_lane(lanes, [&](int lane) {
        T result = 0;
        for (uint32_t i = 0; i < in.count; i++) {
            T part = words<uint32_t>(warp, in.list[i])[lane];
            part &= in.mode == 4 ? T(0xFFFFFFFFu) : (T(1) << (8 * in.mode)) - 1;
            result |= part << (8 * in.mode * i);
        }
        d[lane] = result;
    });
}

template <class T> void do_unpack(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const T *a = words<T>(warp, in.a);
    each_lane(lanes, [&](int lane) {
        T value = a[lane];
        for (uint32_t i = 0; i < in.count; i++) {
            T part = value >> (8 * in.mode * i);
            part &= in.mode == 4 ? T(0xFFFFFFFFu) : (T(1) << (8 * in.mode)) - 1;
            words<uint32_t>(warp, in.list[i])[lane] = static_cast<uint32_t>(part);
        }
    });
}

// 128-bit registers are two of 64 bits behind each other.
void move_words(Warp &warp, uint32_t to, uint32_t from, uint32_t lanes)
{
    uint64_t *d = words<uint64_t>(warp, to);
    const uint64_t *a = words<uint64_t>(warp, from);
    each_lane(lanes, [=](int lane) { d[lane] = a[lane]; });
}

void do_move_quad(Warp &warp, const Instruction &in, uint32_t lanes)
{
    move_words(warp, in.list[0], in.list[1], lanes);
    move_words(warp, in.list[2], in.list[3], lanes);
}

enum ClockMode : uint8_t { kClock, kClockHigh, kGlobalTimer, kGlobalTimerHigh };

uint64_t nanoseconds()
{
    auto since = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

// Steps of the grid serve as clock: the same in each run. The global timer is the host's: what waits for so long is
// over in time.
template <class T> void do_clock(Warp &warp, const Instruction &in, uint32_t lanes)
{
    bool steps = in.mode == kClock || in.mode == kClockHigh;
    uint64_t now = steps ? warp.block->grid->steps : nanoseconds();
    if (in.mode == kClockHigh || in.mode == kGlobalTimerHigh) {
        now >>= 32;
    }
    T *d = words<T>(warp, in.d);
    each_lane(lanes, [=](int lane) { d[lane] = static_cast<T>(now); });
}

void do_add_shared_base(Warp &warp, const Instruction &in, uint32_t lanes)
{
    map2<uint64_t, uint64_t>(warp, in, lanes, [](uint64_t a, uint64_t b) { return a + b; });
}

void do_subtract_shared_base(Warp &warp, const Instruction &in, uint32_t lanes)
{
    map2<uint64_t, uint64_t>(warp, in, lanes, [](uint64_t a, uint64_t b) { return a - b; });
}

void do_isspacep(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const uint64_t *a = words<uint64_t>(warp, in.a);
    const Block &block = *warp.block;
    uint32_t truth = 0;
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        bool shared = a[lane] - reinterpret_cast<uint64_t>(block.shared) < block.shared_bytes;
        bool local = a[lane] - reinterpret_cast<uint64_t>(block.local) < block.local_bytes;
        bool parameter = a[lane] - reinterpret_cast<uint64_t>(block.grid->parameters) < block.grid->parameter_bytes;
        bool is = in.space == Space::shared      ? shared
                  : in.space == Space::local     ? local
                  : in.space == Space::parameter ? parameter
                                                 : !shared && !local && !parameter;
        truth |= static_cast<uint32_t>(is) << lane;
    }
    uint32_t &d = predicate(warp, in.d);
    d = (d & ~lanes) | truth;
}

bool decode_clock(Decoder &decoder, const Statement &statement, Type type)
{
    static const struct {
        const char *name;
        ClockMode mode;
    } kClocks[] = {{"%clock", kClock},
                   {"%clock64", kClock},
                   {"%clock_hi", kClockHigh},
                   {"%globaltimer", kGlobalTimer},
                   {"%globaltimer_lo", kGlobalTimer},
                   {"%globaltimer_hi", kGlobalTimerHigh}};
    for (const auto &clock : kClocks) {
        if (statement.operands[1].kind == Operand::Kind::name && statement.operands[1].name == clock.name) {
            Instruction in;
            in.handler = register_width(type) == 8 ? do_clock<uint64_t> : do_clock<uint32_t>;
            in.mode = clock.mode;
            in.d = decoder.destination(statement.operands[0], register_width(type));
            decoder.emit(in);
            return true;
        }
    }
    return false;
}

void decode_vector(Decoder &decoder, const Statement &statement, Type type)
{
    bool packs = statement.operands[1].kind == Operand::Kind::vector;
    const std::vector<Operand> &parts = statement.operands[packs ? 1 : 0].parts;
    Instruction in;
    in.count = static_cast<uint8_t>(parts.size());
    in.mode = static_cast<uint8_t>(bytes_of(type) / parts.size());
    bool wide = bytes_of(type) == 8;
    std::vector<uint32_t> registers;
    for (const Operand &part : parts) {
        registers.push_back(packs ? decoder.source(part, 4) : decoder.destination(part, 4));
    }
    in.list = decoder.list(registers);
    if (packs) {
        in.handler = wide ? do_pack<uint64_t> : do_pack<uint32_t>;
        in.d = decoder.destination(statement.operands[0], wide ? 8 : 4);
    } else {
        in.handler = wide ? do_unpack<uint64_t> : do_unpack<uint32_t>;
        in.a = decoder.source(statement.operands[1], wide ? 8 : 4);
    }
    decoder.emit(in);
}

void decode_quad(Decoder &decoder, const Statement &statement)
{
    auto halves = [&](const Operand &operand, bool source) {
        if (operand.kind == Operand::Kind::vector) {
            return source
                       ? std::pair(decoder.source(operand.parts[0], 8), decoder.source(operand.parts[1], 8))
                       : std::pair(decoder.destination(operand.parts[0], 8), decoder.destination(operand.parts[1], 8));
        }
        uint32_t low = source ? decoder.source(operand, 16) : decoder.destination(operand, 16);
        return std::pair(low, low + 256);
    };
    auto [a_low, a_high] = halves(statement.operands[1], true);
    auto [d_low, d_high] = halves(statement.operands[0], false);
    Instruction in;
    in.handler = do_move_quad;
    in.list = decoder.list({d_low, a_low, d_high, a_high});
    decoder.emit(in);
}

} // namespace

void decode_mov(Decoder &decoder, const Statement &statement)
{
    Type type = first_type(statement);
    Instruction in;
    if (type == Type::pred) {
        in.handler = do_move_predicate;
        in.a = decoder.source_predicate(statement.operands[1]);
        in.d = decoder.destination_predicate(statement.operands[0]);
        decoder.emit(in);
    } else if (type == Type::b128) {
        decode_quad(decoder, statement);
    } else if (statement.operands[0].kind == Operand::Kind::vector ||
               statement.operands[1].kind == Operand::Kind::vector) {
        decode_vector(decoder, statement, type);
    } else if (!decode_clock(decoder, statement, type)) {
        size_t width = register_width(type);
        in.handler = width == 8 ? do_move<uint64_t> : do_move<uint32_t>;
        in.a = decoder.source(statement.operands[1], width);
        in.d = decoder.destination(statement.operands[0], width);
        decoder.emit(in);
    }
}

// Only shared memory has addresses of its own.
void decode_cvta(Decoder &decoder, const Statement &statement)
{
    Instruction in;
    in.handler = do_move<uint64_t>;
    if (statement.has("shared") || statement.has("shared::cta")) {
        in.handler = statement.has("to") ? do_subtract_shared_base : do_add_shared_base;
        in.b = decoder.special(Special::shared_base, 8);
    }
    in.a = decoder.source(statement.operands[1], 8);
    in.d = decoder.destination(statement.operands[0], 8);
    decoder.emit(in);
}

void decode_isspacep(Decoder &decoder, const Statement &statement)
{
    Instruction in;
    in.handler = do_isspacep;
    in.space = statement.has("shared") || statement.has("shared::cta") || statement.has("shared::cluster")
                   ? Space::shared
               : statement.has("local")                                  ? Space::local
               : statement.has("param") || statement.has("param::entry") ? Space::parameter
                                                                         : Space::global;
    in.a = decoder.source(statement.operands[1], 8);
    in.d = decoder.destination_predicate(statement.operands[0]);
    decoder.emit(in);
}

} // namespace gpusim::ptx
