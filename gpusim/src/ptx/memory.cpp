// Loads and stores.
#include "access.h"
#include "opcodes.h"
#include "pick.h"

namespace gpusim::ptx
{

namespace
{

template <class T, int N> void do_load(Warp &warp, const Instruction &in, uint32_t lanes)
{
    Word<T> *d[N];
    for (int i = 0; i < N; i++) {
        d[i] = words<T>(warp, in.list[i]);
    }
    for (; lanes != 0; lanes &= lanes - 1) {
        int lane = __builtin_ctz(lanes);
        const unsigned char *from = locate(warp, in, lane, N * sizeof(T), kRead | in.flags);
        if (!from) {
            return;
        }
        T values[N];
        memcpy(values, from, sizeof values);
        for (int i = 0; i < N; i++) {
            d[i][lane] = to_word<T>(values[i]);
        }
    }
}

template <class T, int N> void do_store(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const Word<T> *sources[N];
    for (int i = 0; i < N; i++) {
        sources[i] = words<T>(warp, in.list[i]);
    }
    for (; lanes != 0; lanes &= lanes - 1) {
        int lane = __builtin_ctz(lanes);
        Release around(warp, in, lane);
        unsigned char *to = locate(warp, in, lane, N * sizeof(T), kWrite | in.flags);
        if (!to) {
            return;
        }
        T values[N];
        for (int i = 0; i < N; i++) {
            values[i] = from_word<T>(sources[i][lane]);
        }
        memcpy(to, values, sizeof values);
    }
}

// A kernel's parameter: the same for all lanes.
template <class T, int N> void do_load_parameter(Warp &warp, const Instruction &in, uint32_t lanes)
{
    T values[N];
    memcpy(values, warp.block->grid->parameters + in.immediate, sizeof values);
    for (int i = 0; i < N; i++) {
        Word<T> *d = words<T>(warp, in.list[i]), value = to_word<T>(values[i]);
        each_lane(lanes, [=](int lane) { d[lane] = value; });
    }
}

template <class T> Handler pick_load(size_t count, bool parameter)
{
    switch (count) {
    case 1: return parameter ? do_load_parameter<T, 1> : do_load<T, 1>;
    case 2: return parameter ? do_load_parameter<T, 2> : do_load<T, 2>;
    case 4: return parameter ? do_load_parameter<T, 4> : do_load<T, 4>;
    case 8: return parameter ? do_load_parameter<T, 8> : do_load<T, 8>;
    default: return nullptr;
    }
}

template <class T> Handler pick_store(size_t count)
{
    return count == 1   ? do_store<T, 1>
           : count == 2 ? do_store<T, 2>
           : count == 4 ? do_store<T, 4>
           : count == 8 ? do_store<T, 8>
                        : nullptr;
}

Handler load_handler(Type type, size_t count, bool parameter)
{
    switch (bytes_of(type)) {
    case 1: return type == Type::s8 ? pick_load<int8_t>(count, parameter) : pick_load<uint8_t>(count, parameter);
    case 2: return type == Type::s16 ? pick_load<int16_t>(count, parameter) : pick_load<uint16_t>(count, parameter);
    case 4: return pick_load<uint32_t>(count, parameter);
    case 8: return pick_load<uint64_t>(count, parameter);
    default: return nullptr;
    }
}

Handler store_handler(Type type, size_t count)
{
    switch (bytes_of(type)) {
    case 1: return pick_store<uint8_t>(count);
    case 2: return pick_store<uint16_t>(count);
    case 4: return pick_store<uint32_t>(count);
    case 8: return pick_store<uint64_t>(count);
    default: return nullptr;
    }
}

bool is_strong(const Statement &statement)
{
    return statement.has("volatile") || statement.has("relaxed") || statement.has("acquire") ||
           statement.has("release") || statement.has("mmio");
}

// The registers of the operand; 128-bit ones are two.
std::vector<uint32_t> registers_of(Decoder &decoder, const Operand &operand, Type type, bool source)
{
    size_t width = bytes_of(type) == 16 ? 16 : register_width(type);
    std::vector<uint32_t> registers;
    auto add = [&](const Operand &part) {
        uint32_t offset =
            source ? decoder.source(part, width) : decoder.destination(part, width, traits(type).is_signed);
        registers.push_back(offset);
        if (width == 16) {
            registers.push_back(offset + 256);
        }
    };
    if (operand.kind == Operand::Kind::vector) {
        for (const Operand &part : operand.parts) {
            add(part);
        }
    } else {
        add(operand);
    }
    return registers;
}

void decode_access(Decoder &decoder, const Statement &statement, bool load)
{
    Type type = last_type(statement);
    const Operand *memory = nullptr, *value = nullptr;
    for (const Operand &operand : statement.operands) {
        if (operand.kind == Operand::Kind::memory) {
            memory = &operand;
        } else if (!value) { // a cache policy may follow
            value = &operand;
        }
    }
    if (!memory || !value) {
        decoder.unsupported(statement);
        return;
    }
    Instruction in;
    in.space = space_of(statement);
    decoder.address(*memory, &in);
    std::vector<uint32_t> registers = registers_of(decoder, *value, type, !load);
    Type element = bytes_of(type) == 16 ? Type::b64 : type;
    bool parameter = in.space == Space::parameter && decoder.in_entry();
    in.handler = load ? load_handler(element, registers.size(), parameter) : store_handler(element, registers.size());
    if (!in.handler || (parameter && !load)) {
        decoder.unsupported(statement);
        return;
    }
    in.list = decoder.list(registers);
    in.count = static_cast<uint8_t>(registers.size());
    in.flow = Flow::memory;
    in.flags = is_strong(statement)       ? static_cast<uint16_t>(kAtomic | order_flags(statement))
               : load && statement.has("nc") ? uint16_t(kReadOnly)
                                             : uint16_t(0);
    in.polls = load && is_strong(statement);
    in.releases = !load && releases(statement);
    decoder.emit(in);
}

} // namespace

Space space_of(const Statement &statement)
{
    for (std::string_view word : statement.words) {
        std::string_view base = word.substr(0, word.find(':'));
        if (base == "global" || base == "const") {
            return Space::global;
        }
        if (base == "shared") {
            return Space::shared;
        }
        if (base == "local") {
            return Space::local;
        }
        if (base == "param") {
            return Space::generic; // unless the operand names a kernel's parameter
        }
    }
    return Space::generic;
}

void decode_load(Decoder &decoder, const Statement &statement)
{
    decode_access(decoder, statement, true);
}

void decode_store(Decoder &decoder, const Statement &statement)
{
    decode_access(decoder, statement, false);
}

// Nothing to do but to give a policy register a value.
void decode_hint(Decoder &decoder, const Statement &statement)
{
    if (statement.words[0] == "createpolicy") {
        Instruction in;
        in.handler = [](Warp &warp, const Instruction &policy, uint32_t lanes) {
            uint64_t *d = words<uint64_t>(warp, policy.d);
            each_lane(lanes, [=](int lane) { d[lane] = 0; });
        };
        in.d = decoder.destination(statement.operands[0], 8);
        decoder.emit(in);
    }
}

} // namespace gpusim::ptx
