// Operations across the lanes of a warp. `lanes` are those that take part: all that the mask names, as far as they
// live.
#include "opcodes.h"
#include "pick.h"

namespace gpusim::ptx
{

namespace
{

enum class Shuffle : uint8_t { up, down, butterfly, index };

void do_shuffle(Warp &warp, const Instruction &in, uint32_t lanes)
{
    uint32_t values[32], truth = 0;
    memcpy(values, words<uint32_t>(warp, in.a), sizeof values);
    const uint32_t *b = words<uint32_t>(warp, in.b), *c = words<uint32_t>(warp, in.c);
    uint32_t *d = words<uint32_t>(warp, in.d);
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        int amount = b[lane] & 31, clamp = c[lane] & 31, segment = c[lane] >> 8 & 31;
        int last = (lane & segment) | (clamp & ~segment & 31), from = 0;
        bool inside = false;
        switch (static_cast<Shuffle>(in.mode)) {
        case Shuffle::up:
            from = lane - amount;
            inside = from >= last;
            break;
        case Shuffle::down:
            from = lane + amount;
            inside = from <= last;
            break;
        case Shuffle::butterfly:
            from = lane ^ amount;
            inside = from <= last;
            break;
        case Shuffle::index:
            from = (lane & segment) | (amount & ~segment & 31);
            inside = from <= last;
            break;
        }
        from = inside ? from : lane;
        d[lane] = lanes >> from & 1 ? values[from] : UINT32_MAX; // a lane that takes no part gives nothing useful
        truth |= static_cast<uint32_t>(inside) << lane;
    }
    if (in.count > 0) {
        uint32_t &inside = predicate(warp, in.list[0]);
        inside = (inside & ~lanes) | truth;
    }
}

enum class Vote : uint8_t { ballot, any, all, uniform };

void do_vote(Warp &warp, const Instruction &in, uint32_t lanes)
{
    uint32_t truth = predicate(warp, in.a) & lanes;
    if (static_cast<Vote>(in.mode) == Vote::ballot) {
        uint32_t *d = words<uint32_t>(warp, in.d);
        each_lane(lanes, [=](int lane) { d[lane] = truth; });
        return;
    }
    bool result = static_cast<Vote>(in.mode) == Vote::any   ? truth != 0
                  : static_cast<Vote>(in.mode) == Vote::all ? truth == lanes
                                                            : truth == 0 || truth == lanes;
    uint32_t &d = predicate(warp, in.d);
    d = (d & ~lanes) | (result ? lanes : 0);
}

template <class T> void do_match(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const T *a = words<T>(warp, in.a);
    uint32_t result[32] = {};
    bool all = true;
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        for (uint32_t others = lanes; others != 0; others &= others - 1) {
            int other = __builtin_ctz(others);
            result[lane] |= static_cast<uint32_t>(a[lane] == a[other]) << other;
        }
        all = all && result[lane] == lanes;
    }
    bool match_all = in.mode != 0;
    uint32_t *d = words<uint32_t>(warp, in.d);
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        d[lane] = match_all ? all ? lanes : 0 : result[lane];
    }
    if (in.count > 0) {
        uint32_t &truth = predicate(warp, in.list[0]);
        truth = (truth & ~lanes) | (all ? lanes : 0);
    }
}

enum class Reduce : uint8_t { add, minimum, maximum, with_and, with_or, with_xor };

template <class T> void do_reduce(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const uint32_t *a = words<uint32_t>(warp, in.a);
    T result = static_cast<T>(a[__builtin_ctz(lanes)]);
    for (uint32_t rest = lanes & (lanes - 1); rest != 0; rest &= rest - 1) {
        T value = static_cast<T>(a[__builtin_ctz(rest)]);
        switch (static_cast<Reduce>(in.mode)) {
        case Reduce::add: result = static_cast<T>(static_cast<uint32_t>(result) + static_cast<uint32_t>(value)); break;
        case Reduce::minimum: result = value < result ? value : result; break;
        case Reduce::maximum: result = value > result ? value : result; break;
        case Reduce::with_and: result &= value; break;
        case Reduce::with_or: result |= value; break;
        case Reduce::with_xor: result ^= value; break;
        }
    }
    uint32_t *d = words<uint32_t>(warp, in.d);
    each_lane(lanes, [=](int lane) { d[lane] = static_cast<uint32_t>(result); });
}

void do_elect(Warp &warp, const Instruction &in, uint32_t lanes)
{
    int leader = __builtin_ctz(lanes);
    uint32_t *d = words<uint32_t>(warp, in.d);
    each_lane(lanes, [=](int lane) { d[lane] = static_cast<uint32_t>(leader); });
    uint32_t &truth = predicate(warp, in.list[0]);
    truth = (truth & ~lanes) | 1u << leader;
}

void do_activemask(Warp &warp, const Instruction &in, uint32_t lanes)
{
    uint32_t *d = words<uint32_t>(warp, in.d);
    each_lane(lanes, [=](int lane) { d[lane] = lanes; });
}

// "d|p" or "d"
void decode_result(Decoder &decoder, const Operand &operand, Instruction *in)
{
    if (operand.kind == Operand::Kind::pair) {
        in->d = decoder.destination(operand.parts[0], 4);
        in->list = decoder.list({decoder.destination_predicate(operand.parts[1])});
        in->count = 1;
    } else {
        in->d = decoder.destination(operand, 4);
    }
}

uint8_t mode_of(const Statement &statement, std::initializer_list<const char *> names)
{
    uint8_t mode = 0;
    for (const char *name : names) {
        if (statement.has(name)) {
            return mode;
        }
        mode++;
    }
    return 0;
}

} // namespace

void decode_shfl(Decoder &decoder, const Statement &statement)
{
    Instruction in;
    in.handler = do_shuffle;
    in.flow = Flow::rendezvous;
    in.mode = mode_of(statement, {"up", "down", "bfly", "idx"});
    in.a = decoder.source(statement.operands[1], 4);
    in.b = decoder.source(statement.operands[2], 4);
    in.c = decoder.source(statement.operands[3], 4);
    in.lane_mask = decoder.source(statement.operands[4], 4);
    decode_result(decoder, statement.operands[0], &in);
    decoder.emit(in);
}

void decode_vote(Decoder &decoder, const Statement &statement)
{
    Instruction in;
    in.handler = do_vote;
    in.mode = mode_of(statement, {"ballot", "any", "all", "uni"});
    in.a = decoder.source_predicate(statement.operands[1]);
    if (statement.has("sync")) {
        in.flow = Flow::rendezvous;
        in.lane_mask = decoder.source(statement.operands[2], 4);
    }
    in.d = statement.has("ballot") ? decoder.destination(statement.operands[0], 4)
                                   : decoder.destination_predicate(statement.operands[0]);
    decoder.emit(in);
}

void decode_match(Decoder &decoder, const Statement &statement)
{
    Type type = first_type(statement);
    Instruction in;
    in.handler = bytes_of(type) == 8 ? do_match<uint64_t> : do_match<uint32_t>;
    in.flow = Flow::rendezvous;
    in.mode = statement.has("all");
    in.a = decoder.source(statement.operands[1], register_width(type));
    in.lane_mask = decoder.source(statement.operands[2], 4);
    decode_result(decoder, statement.operands[0], &in);
    decoder.emit(in);
}

void decode_redux(Decoder &decoder, const Statement &statement)
{
    Type type = first_type(statement);
    if (traits(type).is_float) {
        decoder.unsupported(statement);
        return;
    }
    Instruction in;
    in.handler = type == Type::s32 ? do_reduce<int32_t> : do_reduce<uint32_t>;
    in.flow = Flow::rendezvous;
    in.mode = mode_of(statement, {"add", "min", "max", "and", "or", "xor"});
    in.a = decoder.source(statement.operands[1], 4);
    in.lane_mask = decoder.source(statement.operands[2], 4);
    in.d = decoder.destination(statement.operands[0], 4);
    decoder.emit(in);
}

void decode_elect(Decoder &decoder, const Statement &statement)
{
    Instruction in;
    in.handler = do_elect;
    in.flow = Flow::rendezvous;
    in.lane_mask = decoder.source(statement.operands[1], 4);
    decode_result(decoder, statement.operands[0], &in);
    decoder.emit(in);
}

void decode_activemask(Decoder &decoder, const Statement &statement)
{
    Instruction in;
    in.handler = do_activemask;
    in.d = decoder.destination(statement.operands[0], 4);
    decoder.emit(in);
}

} // namespace gpusim::ptx
