// Barriers of blocks and warps, and fences.
#include "access.h"
#include "opcodes.h"
#include "pick.h"

#include <algorithm>

namespace gpusim::ptx
{

namespace
{

enum BarrierMode : uint8_t { kSync, kArrive, kPopulation, kAnd, kOr };

const uint8_t no_fence = 255;

// What bar.red gives to every thread.
void store_result(Warp &warp, const Instruction &in, uint32_t lanes, const NamedBarrier &barrier)
{
    if (in.mode == kPopulation) {
        uint32_t *d = words<uint32_t>(warp, in.d);
        for (; lanes != 0; lanes &= lanes - 1) {
            d[__builtin_ctz(lanes)] = barrier.count;
        }
    } else if (in.mode == kAnd || in.mode == kOr) {
        bool result = in.mode == kAnd ? barrier.all : barrier.any;
        uint32_t &d = predicate(warp, in.d);
        d = (d & ~lanes) | (result ? lanes : 0);
    }
}

// The lanes of a warp come to an aligned barrier (bar, not barrier) as one: at one instruction.
bool all_aligned(Block &block, const NamedBarrier &barrier)
{
    const std::vector<Instruction> &code = block.grid->program->code;
    for (Warp &warp : block.warps) {
        uint32_t lanes = barrier.waiting[warp.index];
        int first = lanes ? warp.pc[__builtin_ctz(lanes)] : 0;
        for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
            int lane = __builtin_ctz(rest);
            const Instruction &in = code[static_cast<size_t>(warp.pc[lane])];
            if (warp.pc[lane] != first && !(in.meets_anywhere && code[static_cast<size_t>(first)].meets_anywhere)) {
                fault(warp, in, lane, cudaErrorLaunchFailure, GPUSIM_DEADLOCK,
                      "lanes of a warp wait at different bar.sync, the first of them at PTX line %d",
                      code[static_cast<size_t>(first)].site->ptx_line);
                return false;
            }
        }
    }
    return true;
}

// Everything before it is ordered before everything after it, for the threads that took part.
void complete(Block &block, NamedBarrier &barrier)
{
    if (!all_aligned(block, barrier)) {
        return;
    }
    uint32_t epoch = block.grid->next_epoch++;
    for (Warp &warp : block.warps) {
        uint32_t lanes = barrier.waiting[warp.index];
        if (lanes == 0) {
            continue;
        }
        barrier.waiting[warp.index] = 0;
        warp.at_barrier &= ~lanes;
        warp.epoch = epoch;
        memset(warp.seen, 0, sizeof warp.seen);
        std::fill(std::begin(warp.clock), std::end(warp.clock), static_cast<uint16_t>(1));
        for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
            int lane = __builtin_ctz(rest);
            const Instruction &in = block.grid->program->code[static_cast<size_t>(warp.pc[lane])];
            store_result(warp, in, 1u << lane, barrier);
            warp.pc[lane]++;
        }
    }
    barrier.arrived = 0;
    barrier.count = 0;
    barrier.all = true;
    barrier.any = false;
}

void report_left_threads(Warp &warp, const NamedBarrier &barrier)
{
    Block &block = *warp.block;
    for (Warp &waiting : block.warps) {
        uint32_t lanes = barrier.waiting[waiting.index];
        if (lanes != 0) {
            int lane = __builtin_ctz(lanes);
            const Instruction &in = block.grid->program->code[static_cast<size_t>(waiting.pc[lane])];
            fault(waiting, in, lane, cudaErrorLaunchTimeout, GPUSIM_DEADLOCK,
                  "a barrier that not all threads reach: %u wait, %u of %u have exited", barrier.arrived,
                  block.threads - block.live, block.threads);
            return;
        }
    }
}

void check_complete(Warp &warp, NamedBarrier &barrier)
{
    Block &block = *warp.block;
    if (barrier.arrived == 0) {
        return;
    }
    if (barrier.expected != 0) {
        if (barrier.arrived >= barrier.expected) {
            complete(block, barrier);
        }
    } else if (barrier.arrived == block.threads) {
        complete(block, barrier);
    } else if (barrier.arrived == block.live) {
        report_left_threads(warp, barrier);
    }
}

// a: number, b: threads, c: predicate of bar.red
void do_barrier(Warp &warp, const Instruction &in, uint32_t lanes)
{
    if (skips(*warp.block->grid, in)) {
        NamedBarrier alone;
        uint32_t truth = in.mode >= kPopulation ? predicate(warp, in.c) & lanes : 0;
        alone.count = static_cast<uint32_t>(__builtin_popcount(truth));
        alone.all = truth == lanes;
        alone.any = truth != 0;
        store_result(warp, in, lanes, alone);
        return;
    }
    uint32_t truths = in.mode >= kPopulation ? predicate(warp, in.c) : 0;
    while (lanes != 0 && warp.block->grid->fault == cudaSuccess) { // lanes may name different barriers
        int lane = __builtin_ctz(lanes);
        uint32_t number = words<uint32_t>(warp, in.a)[lane], group = 0;
        for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
            int other = __builtin_ctz(rest);
            group |= static_cast<uint32_t>(words<uint32_t>(warp, in.a)[other] == number) << other;
        }
        uint32_t expected = in.count ? words<uint32_t>(warp, in.b)[lane] : 0;
        arrive_at_barrier(warp, in, group, static_cast<int>(number), expected, in.mode != kArrive, truths);
        lanes &= ~group;
    }
}

// Orders the memory accesses of the lanes: each has seen what the others had.
void do_warp_barrier(Warp &warp, const Instruction &, uint32_t lanes)
{
    uint16_t seen[32] = {};
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        warp.seen[lane][lane] = warp.clock[lane]++;
        for (int other = 0; other < 32; other++) {
            seen[other] = std::max(seen[other], warp.seen[lane][other]);
        }
    }
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        memcpy(warp.seen[__builtin_ctz(rest)], seen, sizeof seen);
    }
}

// Memory here is sequentially consistent: only the monitor wants to know. in.mode: its Scope, or no_fence.
void do_fence(Warp &warp, const Instruction &in, uint32_t lanes)
{
    bool tells = !skips(*warp.block->grid, in) && in.mode != no_fence && warp.block->grid->check;
    for (; tells && lanes != 0; lanes &= lanes - 1) {
        tell_fence(warp, __builtin_ctz(lanes), static_cast<Scope>(in.mode));
    }
}

} // namespace

void arrive_at_barrier(Warp &warp, const Instruction &in, uint32_t lanes, int number, uint32_t expected, bool waits,
                       uint32_t truths)
{
    Block &block = *warp.block;
    int lane = __builtin_ctz(lanes);
    if (number < 0 || number >= kBarriers) {
        fault(warp, in, lane, cudaErrorLaunchFailure, GPUSIM_DEADLOCK, "there is no barrier %d", number);
        return;
    }
    if (expected % 32 != 0) {
        fault(warp, in, lane, cudaErrorLaunchFailure, GPUSIM_DEADLOCK,
              "barrier %d for %u threads, which is no multiple of 32", number, expected);
        return;
    }
    NamedBarrier &barrier = block.barriers[number];
    if (barrier.arrived == 0) {
        barrier.expected = expected;
    } else if (barrier.expected != expected) {
        fault(warp, in, lane, cudaErrorLaunchFailure, GPUSIM_DEADLOCK,
              "threads expect %u and %u at barrier %d (0: all)", barrier.expected, expected, number);
        return;
    }
    uint32_t arrived = static_cast<uint32_t>(__builtin_popcount(lanes));
    const uint32_t last = 1u << (31 - __builtin_clz(warp.present));
    if (expected != 0 && (lanes & last)) { // a warp counts as 32 threads, the block's last one too
        arrived += 32 - static_cast<uint32_t>(__builtin_popcount(warp.present));
    }
    uint32_t truth = truths & lanes;
    barrier.arrived += arrived;
    barrier.count += static_cast<uint32_t>(__builtin_popcount(truth));
    barrier.all = barrier.all && truth == lanes;
    barrier.any = barrier.any || truth != 0;
    if (waits) {
        barrier.waiting[warp.index] |= lanes;
        warp.at_barrier |= lanes;
        for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
            warp.pc[__builtin_ctz(rest)] = static_cast<int>(&in - block.grid->program->code.data());
        }
    }
    check_complete(warp, barrier);
}

void check_barriers_after_exit(Warp &warp)
{
    for (NamedBarrier &barrier : warp.block->barriers) {
        check_complete(warp, barrier);
    }
}

void decode_barrier(Decoder &decoder, const Statement &statement)
{
    Instruction in;
    in.sync_site = statement.sync_site;
    const std::vector<Operand> &operands = statement.operands;
    if (statement.has("warp")) {
        in.handler = do_warp_barrier;
        in.flow = Flow::rendezvous;
        in.meets_anywhere = true;
        in.lane_mask = decoder.source(operands[0], 4);
        decoder.emit(in);
        return;
    }
    if (statement.has("cluster")) { // a cluster is one block here
        in.handler = do_fence;
        in.mode = no_fence;
        if (statement.has("wait")) {
            in.handler = do_barrier;
            in.mode = kSync;
            in.flow = Flow::control;
            in.a = decoder.constant(0, 4);
        }
        decoder.emit(in);
        return;
    }
    in.handler = do_barrier;
    in.flow = Flow::control;
    in.meets_anywhere = statement.words[0] == "barrier" && !statement.has("aligned");
    bool reduces = statement.has("red");
    in.mode = statement.has("arrive") ? kArrive
              : !reduces              ? kSync
              : statement.has("popc") ? kPopulation
              : statement.has("and")  ? kAnd
                                      : kOr;
    size_t first = reduces ? 1 : 0, last = operands.size() - (reduces ? 1 : 0);
    in.a = decoder.source(operands[first], 4);
    if (last > first + 1) {
        in.count = 1;
        in.b = decoder.source(operands[first + 1], 4);
    }
    if (reduces) {
        in.c = decoder.source_predicate(operands.back());
        in.d =
            in.mode == kPopulation ? decoder.destination(operands[0], 4) : decoder.destination_predicate(operands[0]);
    }
    decoder.emit(in);
}

void decode_fence(Decoder &decoder, const Statement &statement)
{
    Instruction in;
    in.handler = do_fence;
    in.mode = no_fence; // of another proxy
    if (statement.has("sys")) {
        in.mode = static_cast<uint8_t>(Scope::system);
    } else if (statement.has("gl") || statement.has("gpu")) {
        in.mode = static_cast<uint8_t>(Scope::device);
    } else if (statement.has("cta")) {
        in.mode = static_cast<uint8_t>(Scope::block);
    }
    in.sync_site = statement.sync_site;
    decoder.emit(in);
}

} // namespace gpusim::ptx
