// How a warp executes: lanes have program counters of their own; those at the lowest one go first, and the furthest
// ones get a turn now and then so that spin locks within a warp make progress.
#include "gpusim/gpusim.h"
#include "lanes.h"
#include "program.h"
#include "report.h"

#include <climits>
#include <cstdarg>
#include <cstdio>

namespace gpusim::ptx
{

namespace
{

const uint32_t kStepsBeforeTurn = 64; // of the lowest lanes, before the furthest get
const uint32_t kTurnSteps = 4;
const uint32_t kPollsBeforeYield = 16;
// Who has begun to look goes on for so long, until it is known whether it polls: blocks of which none could do anything
// else would seldom be found to poll all at once otherwise, the more seldom the more they are.
const uint64_t kStepsOfLooking = 1000;

struct Group {
    int pc = 0;
    uint32_t lanes = 0;
    int limit = INT_MAX; // where the next lanes wait
    uint32_t steps = 0;
    bool diverged = false;
};

void collect(const Warp &warp, uint32_t runnable, int pc, Group *group)
{
    group->pc = pc;
    group->lanes = 0;
    group->limit = INT_MAX;
    for (uint32_t rest = runnable; rest != 0; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        if (warp.pc[lane] == pc) {
            group->lanes |= 1u << lane;
        } else if (warp.pc[lane] > pc && warp.pc[lane] < group->limit) {
            group->limit = warp.pc[lane];
        }
    }
    group->diverged = group->lanes != runnable;
}

Group pick_group(Warp &warp, uint32_t runnable, uint32_t budget)
{
    int lowest = INT_MAX, furthest = -1;
    for (uint32_t rest = runnable; rest != 0; rest &= rest - 1) {
        int pc = warp.pc[__builtin_ctz(rest)];
        lowest = pc < lowest ? pc : lowest;
        furthest = pc > furthest ? pc : furthest;
    }
    Group group;
    if (lowest == furthest) {
        group.pc = lowest;
        group.lanes = runnable;
        group.steps = budget;
        return group;
    }
    bool turn = (warp.turn & 0xff) >= kStepsBeforeTurn;
    if (!turn) {
        collect(warp, runnable, lowest, &group);
        group.steps = kStepsBeforeTurn - (warp.turn & 0xff);
    } else { // the furthest, and every other time any
        uint32_t turns = (warp.turn >> 8) + 1;
        int pc = furthest;
        if (turns % 2 == 0) {
            int start = static_cast<int>(turns / 2 % 32);
            uint32_t rotated = start ? runnable >> start | runnable << (32 - start) : runnable;
            pc = warp.pc[(__builtin_ctz(rotated) + start) % 32];
        }
        warp.turn = turns << 8;
        collect(warp, runnable, pc, &group);
        group.limit = INT_MAX;
        group.steps = kTurnSteps;
    }
    group.steps = group.steps < budget ? group.steps : budget;
    return group;
}

void set_pc(Warp &warp, uint32_t lanes, int pc)
{
    for (; lanes != 0; lanes &= lanes - 1) {
        warp.pc[__builtin_ctz(lanes)] = pc;
    }
}

// All waiting lanes that named this mask at this instruction, or at another that they may meet at.
uint32_t waiting_group(const Warp &warp, int pc, uint32_t mask)
{
    const std::vector<Instruction> &code = warp.block->grid->program->code;
    bool anywhere = code[static_cast<size_t>(pc)].meets_anywhere;
    uint32_t group = 0;
    for (uint32_t rest = warp.at_rendezvous; rest != 0; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        bool meets = warp.pc[lane] == pc || (anywhere && code[static_cast<size_t>(warp.pc[lane])].meets_anywhere);
        group |= static_cast<uint32_t>(meets && warp.rendezvous_mask[lane] == mask) << lane;
    }
    return group;
}

// Completes every group whose lanes are all here.
void complete_rendezvous(Warp &warp)
{
    for (uint32_t rest = warp.at_rendezvous; rest != 0;) {
        int lane = __builtin_ctz(rest);
        int pc = warp.pc[lane];
        uint32_t mask = warp.rendezvous_mask[lane];
        uint32_t group = waiting_group(warp, pc, mask);
        rest &= ~group;
        if ((mask & warp.live & ~group) == 0) {
            warp.at_rendezvous &= ~group;
            for (uint32_t lanes = group; lanes != 0; lanes &= lanes - 1) {
                warp.pc[__builtin_ctz(lanes)]++;
            }
            const Instruction &in = warp.block->grid->program->code[static_cast<size_t>(pc)];
            in.handler(warp, in, group);
        }
    }
}

// Lanes at one instruction may name different masks, and masks that overlap may wait at once.
void arrive_at_rendezvous(Warp &warp, const Instruction &in, int pc, uint32_t active)
{
    const uint32_t *masks = in.lane_mask == kNoGuard ? nullptr : words<uint32_t>(warp, in.lane_mask);
    for (uint32_t rest = active; rest != 0; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        uint32_t mask = masks ? masks[lane] : kAllLanes;
        if (!(mask >> lane & 1)) {
            fault(warp, in, lane, cudaErrorLaunchFailure, GPUSIM_DEADLOCK,
                  "a warp operation with mask %08x, which doesn't name lane %d that calls it", mask, lane);
            return;
        }
        warp.pc[lane] = pc;
        warp.rendezvous_mask[lane] = mask;
    }
    warp.at_rendezvous |= active;
    complete_rendezvous(warp);
}

// The usual case: all lanes that the mask names are here, converged.
bool meets_at_once(Warp &warp, const Instruction &in, uint32_t active)
{
    if (in.lane_mask == kNoGuard) {
        return active == warp.live;
    }
    const uint32_t *masks = words<uint32_t>(warp, in.lane_mask);
    uint32_t mask = masks[__builtin_ctz(active)];
    if ((mask & warp.live) != active) {
        return false;
    }
    uint32_t differs = 0;
    for (uint32_t rest = active; rest != 0; rest &= rest - 1) {
        differs |= masks[__builtin_ctz(rest)] ^ mask;
    }
    return differs == 0;
}

// Runs until the group splits, meets others, ends or has had its steps; returns the steps taken.
uint32_t run_group(Warp &warp, Group group)
{
    Grid &grid = *warp.block->grid;
    const Instruction *code = grid.program->code.data();
    const uint32_t lanes = group.lanes;
    int pc = group.pc;
    uint32_t steps = 0;
    while (steps < group.steps && pc < group.limit) {
        const Instruction &in = code[pc];
        steps++;
        uint32_t active = in.guard == kNoGuard ? lanes : lanes & (predicate(warp, in.guard) ^ in.guard_flip);
        if (active == 0) {
            pc++;
            continue;
        }
        switch (in.flow) {
        case Flow::next:
            in.handler(warp, in, active);
            pc++;
            break;
        case Flow::memory:
            in.handler(warp, in, active);
            pc++;
            if (grid.fault != cudaSuccess) {
                return steps;
            }
            warp.polls += in.polls;
            if (warp.polls >= kPollsBeforeYield) {
                warp.yields = true;
                set_pc(warp, lanes, pc);
                return steps;
            }
            break;
        case Flow::branch:
            if (active != lanes) {
                set_pc(warp, active, in.target);
                set_pc(warp, lanes & ~active, pc + 1);
                return steps;
            }
            pc = in.target;
            break;
        case Flow::rendezvous:
            if (skips(grid, in)) {
                pc++;
            } else if (meets_at_once(warp, in, active)) {
                in.handler(warp, in, active);
                pc++;
            } else {
                set_pc(warp, lanes, pc + 1);
                arrive_at_rendezvous(warp, in, pc, active);
                return steps;
            }
            if (grid.fault != cudaSuccess) {
                return steps;
            }
            break;
        case Flow::control:
            set_pc(warp, lanes, pc + 1);
            in.handler(warp, in, active);
            return steps;
        }
    }
    set_pc(warp, lanes, pc);
    return steps;
}

} // namespace

bool run_warp(Warp &warp, uint32_t budget)
{
    Grid &grid = *warp.block->grid;
    warp.yields = false;
    warp.polls = 0;
    bool any = false;
    uint64_t looking_until = grid.steps + budget + kStepsOfLooking;
    while ((budget > 0 || (warp.polls > 0 && grid.steps < looking_until)) && !warp.yields &&
           grid.fault == cudaSuccess) {
        uint32_t runnable = runnable_lanes(warp);
        if (runnable == 0) {
            break;
        }
        Group group = pick_group(warp, runnable, budget > 0 ? budget : kTurnSteps);
        uint32_t steps = run_group(warp, group);
        if (group.diverged) {
            warp.turn += steps;
        }
        grid.steps += steps;
        budget -= steps < budget ? steps : budget;
        any = true;
    }
    return any;
}

void exit_lanes(Warp &warp, uint32_t lanes)
{
    warp.live &= ~lanes;
    warp.block->live -= static_cast<uint32_t>(__builtin_popcount(lanes));
    complete_rendezvous(warp);
    check_barriers_after_exit(warp);
}

void fault(Warp &warp, const Instruction &in, int lane, cudaError_t error, int kind, const char *format, ...)
{
    Grid &grid = *warp.block->grid;
    if (grid.fault != cudaSuccess) {
        return;
    }
    grid.fault = error;
    char what[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    report(static_cast<gpusim_report_kind>(kind), "%s: %s, at %s:%d (PTX line %d), block %u thread %u",
           grid.program->name.c_str(), what, in.site ? in.site->file : "?", in.site ? in.site->line : 0,
           in.site ? in.site->ptx_line : 0, warp.block->index, warp.index * 32 + static_cast<uint32_t>(lane));
}

} // namespace gpusim::ptx
