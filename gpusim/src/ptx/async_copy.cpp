// cp.async: the data lands only at the wait; until then the destination holds poison.
#include "access.h"
#include "async_copy.h"
#include "opcodes.h"
#include "pick.h"

namespace gpusim::ptx
{

namespace
{

// a: shared address, b: global address; c, if in.mode: bytes to take from the source, the rest is filled with zeros.
void do_copy(Warp &warp, const Instruction &in, uint32_t lanes)
{
    const size_t bytes = in.count;
    for (; lanes != 0; lanes &= lanes - 1) {
        int lane = __builtin_ctz(lanes);
        uint64_t offset = lane_address(warp, in, in.a, in.wide_address, lane);
        uint64_t source = words<uint64_t>(warp, in.b)[lane] + static_cast<uint64_t>(in.target);
        size_t taken = in.mode ? words<uint32_t>(warp, in.c)[lane] : bytes;
        if (taken > bytes) {
            fault(warp, in, lane, cudaErrorLaunchFailure, GPUSIM_OUT_OF_BOUNDS,
                  "cp.async of %zu bytes, of which %zu are to be taken", bytes, taken);
            return;
        }
        unsigned char *to = shared_memory(warp, in, lane, offset, bytes, kWrite | kPending);
        if (!to) {
            return;
        }
        const unsigned char *from = nullptr;
        if (source & (bytes - 1)) {
            refuse_misaligned(warp, in, lane, source, bytes);
            return;
        }
        if (taken > 0) {
            if (warp.block->grid->check && !tell_global(warp, in, lane, source, taken, kRead)) {
                return;
            }
            from = reinterpret_cast<const unsigned char *>(backing(source));
        }
        memset(to, 0xFF, bytes);
        LaneCopies &copies = warp.copies[lane];
        copies.pending.push_back({static_cast<uint32_t>(offset), static_cast<uint8_t>(bytes),
                                  static_cast<uint8_t>(taken), copies.committed, from, &in});
        warp.block->pending_copies++;
    }
}

void do_commit(Warp &warp, const Instruction &, uint32_t lanes)
{
    for (; lanes != 0; lanes &= lanes - 1) {
        warp.copies[__builtin_ctz(lanes)].committed++;
    }
}

// Waits until at most in.immediate groups are pending; in.mode: for everything, committed or not.
void do_wait(Warp &warp, const Instruction &in, uint32_t lanes)
{
    if (skips(*warp.block->grid, in)) {
        return;
    }
    for (; lanes != 0; lanes &= lanes - 1) {
        int lane = __builtin_ctz(lanes);
        uint32_t committed = warp.copies[lane].committed, left = static_cast<uint32_t>(in.immediate);
        uint32_t end = in.mode ? UINT32_MAX : committed > left ? committed - left : 0;
        if (!land_copies(warp, lane, end)) {
            return;
        }
    }
}

void decode_copy(Decoder &decoder, const Statement &statement)
{
    std::vector<const Operand *> operands; // without a cache policy
    for (const Operand &operand : statement.operands) {
        operands.push_back(&operand);
    }
    if (statement.has("cache_hint") || statement.has("L2::cache_hint")) {
        operands.pop_back();
    }
    Instruction in;
    decoder.address(*operands[0], &in);
    Instruction source;
    decoder.address(*operands[1], &source);
    if (!source.wide_address) {
        decoder.unsupported(statement, "a 32-bit global address");
        return;
    }
    in.handler = do_copy;
    in.flow = Flow::memory;
    in.b = source.a;
    in.target = static_cast<int32_t>(source.immediate);
    in.count = static_cast<uint8_t>(operands[2]->bits);
    if (operands.size() > 3) {
        const Symbol *symbol =
            operands[3]->kind == Operand::Kind::name ? decoder.find_symbol(operands[3]->name) : nullptr;
        if (symbol && symbol->bytes == 0) {
            decoder.unsupported(statement, "ignore-src");
            return;
        }
        in.mode = 1;
        in.c = decoder.source(*operands[3], 4);
    }
    decoder.emit(in);
}

} // namespace

bool land_copies(Warp &warp, int lane, uint32_t end)
{
    std::vector<PendingCopy> &pending = warp.copies[lane].pending;
    size_t kept = 0;
    for (const PendingCopy &copy : pending) {
        if (copy.group >= end) {
            pending[kept++] = copy;
            continue;
        }
        unsigned char *to =
            shared_memory(warp, *copy.instruction, lane, copy.shared_offset, copy.bytes, kWrite | kLands);
        if (!to) {
            return false;
        }
        warp.block->pending_copies--;
        if (copy.source_bytes > 0) {
            memcpy(to, copy.source, copy.source_bytes);
        }
        memset(to + copy.source_bytes, 0, static_cast<size_t>(copy.bytes - copy.source_bytes));
    }
    pending.resize(kept);
    return true;
}

void decode_cp(Decoder &decoder, const Statement &statement)
{
    if (statement.words.size() < 3 || statement.words[1] != "async" || statement.has("bulk") ||
        statement.has("mbarrier")) {
        if (statement.has("mbarrier") && statement.has("arrive")) {
            decode_mbarrier(decoder, statement);
            return;
        }
        decoder.unsupported(statement);
        return;
    }
    Instruction in;
    in.flow = Flow::memory;
    if (statement.has("commit_group")) {
        in.handler = do_commit;
        decoder.emit(in);
    } else if (statement.has("wait_group") || statement.has("wait_all")) {
        in.handler = do_wait;
        in.mode = statement.has("wait_all");
        in.immediate = in.mode ? 0 : static_cast<int64_t>(statement.operands[0].bits);
        in.sync_site = statement.sync_site;
        decoder.emit(in);
    } else {
        decode_copy(decoder, statement);
    }
}

} // namespace gpusim::ptx
