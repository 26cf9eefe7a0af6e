// Atomic operations: a whole grid runs on one host thread, so they are plain reads and writes that the monitor knows as
// atomic.
#include "access.h"
#include "half.h"
#include "opcodes.h"
#include "pick.h"

#include <cmath>
#include <iterator>

namespace gpusim::ptx
{

namespace
{

enum class Atomic : uint8_t {
    add,
    minimum,
    maximum,
    with_and,
    with_or,
    with_xor,
    exchange,
    compare_exchange,
    increment,
    decrement
};

template <class T> T update_integer(Atomic operation, T old, T value, T other)
{
    switch (operation) {
    case Atomic::add: return static_cast<T>(static_cast<Raw<T>>(old) + static_cast<Raw<T>>(value));
    case Atomic::minimum: return value < old ? value : old;
    case Atomic::maximum: return value > old ? value : old;
    case Atomic::with_and: return old & value;
    case Atomic::with_or: return old | value;
    case Atomic::with_xor: return old ^ value;
    case Atomic::exchange: return value;
    case Atomic::compare_exchange: return old == value ? other : old;
    case Atomic::increment: return old >= value ? T(0) : static_cast<T>(old + 1);
    case Atomic::decrement: return old == 0 || old > value ? value : static_cast<T>(old - 1);
    }
    return old;
}

template <class T> T update_float(Atomic operation, T old, T value)
{
    return operation == Atomic::add       ? old + value
           : operation == Atomic::minimum ? std::fmin(old, value)
           : operation == Atomic::maximum ? std::fmax(old, value)
                                          : value;
}

template <class H> H update_half(Atomic operation, H old, H value)
{
    return operation == Atomic::exchange ? value : to_half<H>(update_float(operation, to_float(old), to_float(value)));
}

inline float flush(float x)
{
    uint32_t bits = to_word<float>(x);
    return (bits & 0x7F800000u) == 0 ? from_word<float>(bits & 0x80000000u) : x;
}

// Sums of floats in global memory: subnormal operands and results become zeros. Those in shared memory stay what they
// are.
float add_in_global_memory(float old, float value)
{
    return flush(flush(old) + flush(value));
}

template <class H> struct Packed {
    H low, high;
};

template <class T> T update(Atomic operation, T old, T value, T other)
{
    if constexpr (std::is_integral_v<T>) {
        return update_integer(operation, old, value, other);
    } else if constexpr (std::is_floating_point_v<T>) {
        return update_float(operation, old, value);
    } else if constexpr (sizeof(T) == 2) {
        return update_half(operation, old, value);
    } else {
        return {update_half(operation, old.low, value.low), update_half(operation, old.high, value.high)};
    }
}

const uint32_t kNoResult = UINT32_MAX;

// An update that leaves a word as it is, again and again, is a spin loop's look: atomicAdd(flag, 0) and its like. A
// loop that goes through many words, as one over sums of zeros may, is none.
void count_poll(Warp &warp, const Instruction &in, const unsigned char *at)
{
    if (in.polls || in.d == kNoResult) {
        return;
    }
    for (const unsigned char *recent : warp.looked_at) {
        if (recent == at) {
            warp.polls++;
            return;
        }
    }
    warp.looked_at[warp.next_look++ % std::size(warp.looked_at)] = at;
}

// Vectors (red.v4.f32) are one atomic operation for each element.
template <class T> void do_atomic(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const uint32_t count = in.count;
    const unsigned char *first = nullptr;
    bool changes = false;
    for (; lanes != 0; lanes &= lanes - 1) {
        int lane = __builtin_ctz(lanes);
        Release around(warp, in, lane);
        unsigned char *at = locate(warp, in, lane, count * sizeof(T), kRead | kWrite | kAtomic | in.flags);
        if (!at) {
            return;
        }
        first = first ? first : at;
        for (uint32_t i = 0; i < count; i++) {
            T old, other{};
            memcpy(&old, at + i * sizeof(T), sizeof old);
            T value = from_word<T>(words<T>(warp, in.list[i])[lane]);
            if (static_cast<Atomic>(in.mode) == Atomic::compare_exchange) {
                other = from_word<T>(words<T>(warp, in.c)[lane]);
            }
            T result = update(static_cast<Atomic>(in.mode), old, value, other);
            if constexpr (std::is_same_v<T, float>) {
                const Block &block = *warp.block;
                bool shared = static_cast<size_t>(at - block.shared) < block.shared_bytes;
                if (static_cast<Atomic>(in.mode) == Atomic::add && !shared) {
                    result = add_in_global_memory(old, value);
                }
            }
            memcpy(at + i * sizeof(T), &result, sizeof result);
            changes = changes || memcmp(&result, &old, sizeof result) != 0;
            if (in.d != kNoResult) {
                words<T>(warp, in.list[count + i])[lane] = to_word<T>(old);
            }
        }
    }
    if (!changes) {
        count_poll(warp, in, first);
    }
}

// 128 bits: exchange, and compare and exchange.
void do_quad(Warp &warp, const Instruction &in, uint32_t lanes)
{
    auto quad = [&](uint32_t offset, int lane) {
        return std::pair(words<uint64_t>(warp, offset)[lane], words<uint64_t>(warp, offset + 256)[lane]);
    };
    for (; lanes != 0; lanes &= lanes - 1) {
        int lane = __builtin_ctz(lanes);
        Release around(warp, in, lane);
        unsigned char *at = locate(warp, in, lane, 16, kRead | kWrite | kAtomic | in.flags);
        if (!at) {
            return;
        }
        uint64_t old[2];
        memcpy(old, at, sizeof old);
        auto [low, high] = quad(in.b, lane);
        bool exchanges = static_cast<Atomic>(in.mode) == Atomic::exchange;
        if (!exchanges && old[0] == low && old[1] == high) {
            std::tie(low, high) = quad(in.c, lane);
            exchanges = true;
        }
        if (exchanges) {
            uint64_t next[2] = {low, high};
            memcpy(at, next, sizeof next);
        }
        words<uint64_t>(warp, in.d)[lane] = old[0];
        words<uint64_t>(warp, in.d + 256)[lane] = old[1];
    }
}

Handler pick_atomic(Type type)
{
    switch (type) {
    case Type::u16:
    case Type::b16: return do_atomic<uint16_t>;
    case Type::u32:
    case Type::b32: return do_atomic<uint32_t>;
    case Type::u64:
    case Type::b64: return do_atomic<uint64_t>;
    case Type::s32: return do_atomic<int32_t>;
    case Type::s64: return do_atomic<int64_t>;
    case Type::f32: return do_atomic<float>;
    case Type::f64: return do_atomic<double>;
    case Type::f16: return do_atomic<Half>;
    case Type::bf16: return do_atomic<Bfloat>;
    case Type::f16x2: return do_atomic<Packed<Half>>;
    case Type::bf16x2: return do_atomic<Packed<Bfloat>>;
    default: return nullptr;
    }
}

bool parse_operation(const Statement &statement, Atomic *operation)
{
    static const struct {
        const char *name;
        Atomic operation;
    } kNames[] = {{"add", Atomic::add},       {"min", Atomic::minimum},          {"max", Atomic::maximum},
                  {"and", Atomic::with_and},  {"or", Atomic::with_or},           {"xor", Atomic::with_xor},
                  {"exch", Atomic::exchange}, {"cas", Atomic::compare_exchange}, {"inc", Atomic::increment},
                  {"dec", Atomic::decrement}};
    for (const auto &entry : kNames) {
        if (statement.has(entry.name)) {
            *operation = entry.operation;
            return true;
        }
    }
    return false;
}

void decode_quad(Decoder &decoder, const Statement &statement, Instruction in)
{
    in.handler = do_quad;
    in.b = decoder.source(statement.operands[2], 16);
    if (statement.operands.size() > 3) {
        in.c = decoder.source(statement.operands[3], 16);
    }
    in.d = decoder.destination(statement.operands[0], 16);
    decoder.emit(in);
}

} // namespace

void decode_atomic(Decoder &decoder, const Statement &statement)
{
    Type type = last_type(statement);
    Atomic operation;
    size_t at = statement.words[0] == "atom" ? 1 : 0; // of the memory operand
    if (!parse_operation(statement, &operation) || statement.operands.size() < at + 2 ||
        statement.operands[at].kind != Operand::Kind::memory) {
        decoder.unsupported(statement);
        return;
    }
    Instruction in;
    in.space = space_of(statement);
    in.mode = static_cast<uint8_t>(operation);
    in.flow = Flow::memory;
    in.releases = releases(statement);
    in.flags = order_flags(statement);
    in.polls = operation == Atomic::compare_exchange || operation == Atomic::exchange;
    decoder.address(statement.operands[at], &in);
    if (type == Type::b128) {
        decode_quad(decoder, statement, in);
        return;
    }
    in.handler = pick_atomic(type);
    if (!in.handler) {
        decoder.unsupported(statement);
        return;
    }
    size_t width = register_width(type);
    auto parts = [](const Operand &operand) {
        return operand.kind == Operand::Kind::vector ? operand.parts : std::vector<Operand>{operand};
    };
    std::vector<uint32_t> registers;
    for (const Operand &part : parts(statement.operands[at + 1])) {
        registers.push_back(decoder.source(part, width));
    }
    in.count = static_cast<uint8_t>(registers.size());
    if (operation == Atomic::compare_exchange) {
        in.c = decoder.source(statement.operands[at + 2], width);
    }
    in.d = kNoResult;
    if (at == 1) {
        for (const Operand &part : parts(statement.operands[0])) {
            registers.push_back(decoder.destination(part, width));
        }
        in.d = 0;
    }
    in.list = decoder.list(registers);
    decoder.emit(in);
}

} // namespace gpusim::ptx
