// Branches, calls and the end of threads.
#include "builtin.h"
#include "gpusim/gpusim.h"
#include "opcodes.h"
#include "pick.h"

namespace gpusim::ptx
{

namespace
{

void do_indexed_branch(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const std::vector<int> &table = *static_cast<const std::vector<int> *>(in.extra);
    const uint32_t *index = words<uint32_t>(warp, in.a);
    for (; lanes != 0; lanes &= lanes - 1) {
        int lane = __builtin_ctz(lanes);
        if (index[lane] >= table.size()) {
            fault(warp, in, lane, cudaErrorLaunchFailure, GPUSIM_OUT_OF_BOUNDS, "brx.idx with index %u of %zu",
                  index[lane], table.size());
            return;
        }
        warp.pc[lane] = table[index[lane]];
    }
}

// in.extra: the function's own local memory, which is new at each call.
void do_call(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const Frame &frame = *static_cast<const Frame *>(in.extra);
    for (; lanes != 0; lanes &= lanes - 1) {
        int lane = __builtin_ctz(lanes);
        unsigned char *own = local_memory(warp, lane) + frame.own_begin;
        memset(own, 0xFF, frame.own_end - frame.own_begin);
        if (Block &block = *warp.block; block.local_written) {
            memset(block.local_written + (own - block.local), 0, frame.own_end - frame.own_begin);
        }
        warp.calls[lane].push_back(warp.pc[lane]);
        warp.pc[lane] = in.target;
    }
}

void do_return(Warp &warp, const Instruction &, uint32_t lanes)
{
    for (; lanes != 0; lanes &= lanes - 1) {
        int lane = __builtin_ctz(lanes);
        warp.pc[lane] = warp.calls[lane].back();
        warp.calls[lane].pop_back();
    }
}

void do_exit(Warp &warp, const Instruction &, uint32_t lanes)
{
    exit_lanes(warp, lanes);
}

void do_trap(Warp &warp, const Instruction &in, uint32_t lanes)
{
    fault(warp, in, __builtin_ctz(lanes), cudaErrorLaunchFailure, GPUSIM_TRAP, "trap");
}

void do_pause(Warp &warp, const Instruction &, uint32_t)
{
    warp.polls += 64; // let others go first
}

struct ParameterCopy {
    size_t from, to, bytes; // in local memory
};

void do_copy_parameters(Warp &warp, const Instruction &in, uint32_t lanes)
{
    for (; lanes != 0; lanes &= lanes - 1) {
        unsigned char *local = local_memory(warp, __builtin_ctz(lanes));
        const Block &block = *warp.block;
        unsigned char *written = block.local_written ? block.local_written + (local - block.local) : nullptr;
        for (const ParameterCopy &copy : *static_cast<const std::vector<ParameterCopy> *>(in.extra)) {
            memcpy(local + copy.to, local + copy.from, copy.bytes);
            if (written) {
                memcpy(written + copy.to, written + copy.from, copy.bytes);
            }
        }
    }
}

void emit_copies(Decoder &decoder, const std::vector<Operand> &names, const std::vector<Symbol> &formal, bool to_formal)
{
    std::vector<ParameterCopy> copies;
    for (size_t i = 0; i < names.size() && i < formal.size(); i++) {
        const Symbol *actual = decoder.find_symbol(names[i].name);
        if (actual) {
            copies.push_back(to_formal ? ParameterCopy{actual->offset, formal[i].offset, formal[i].size}
                                       : ParameterCopy{formal[i].offset, actual->offset, formal[i].size});
        }
    }
    if (!copies.empty()) {
        Instruction in;
        in.handler = do_copy_parameters;
        in.extra = decoder.extra(copies);
        decoder.emit(in);
    }
}

} // namespace

void decode_branch(Decoder &decoder, const Statement &statement)
{
    Instruction in;
    in.flow = Flow::branch;
    decoder.branch_to(statement.operands[0].name, in);
}

void decode_indexed_branch(Decoder &decoder, const Statement &statement)
{
    const std::vector<Operand> *targets = decoder.branch_targets(statement.operands[1].name);
    if (!targets) {
        decoder.unsupported(statement);
        return;
    }
    Instruction in;
    in.handler = do_indexed_branch;
    in.flow = Flow::control;
    in.a = decoder.source(statement.operands[0], 4);
    decoder.emit_branch_table(*targets, in);
}

// "call (results), function, (parameters)": results and parameters may be missing
void decode_call(Decoder &decoder, const Statement &statement)
{
    const std::vector<Operand> &operands = statement.operands;
    size_t at = operands[0].kind == Operand::Kind::list ? 1 : 0;
    static const std::vector<Operand> kNone;
    const std::vector<Operand> &results = at == 1 ? operands[0].parts : kNone;
    const std::vector<Operand> &parameters = operands.size() > at + 1 ? operands[at + 1].parts : kNone;
    std::string_view name = operands[at].name;
    const Frame *frame = decoder.frame_of(name);
    if (!frame) {
        if (!decode_builtin(decoder, name, results, parameters)) {
            decoder.unsupported(statement, "only direct calls of functions that don't call themselves are");
        }
        return;
    }
    emit_copies(decoder, parameters, frame->parameters, true);
    Instruction in;
    in.handler = do_call;
    in.flow = Flow::control;
    in.target = frame->start;
    in.extra = decoder.extra(*frame);
    decoder.emit(in);
    emit_copies(decoder, results, frame->results, false);
}

void decode_return(Decoder &decoder, const Statement &statement)
{
    Instruction in;
    in.handler = decoder.in_entry() || statement.words[0] == "exit" ? do_exit : do_return;
    in.flow = Flow::control;
    decoder.emit(in);
}

void decode_trap(Decoder &decoder, const Statement &)
{
    Instruction in;
    in.handler = do_trap;
    in.flow = Flow::memory;
    decoder.emit(in);
}

void decode_pause(Decoder &decoder, const Statement &)
{
    Instruction in;
    in.handler = do_pause;
    in.flow = Flow::memory;
    in.polls = true;
    decoder.emit(in);
}

} // namespace gpusim::ptx
