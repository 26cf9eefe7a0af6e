#include "kernel_order.h"

#include <algorithm>
#include <cstring>

namespace gpusim {

KernelOrder &kernel_order()
{
    static auto &one = *new KernelOrder;
    return one;
}

KernelOrder::Kernel &KernelOrder::kernel(uint32_t operation)
{
    if (recent_ != operation || !recent_kernel_) {
        recent_ = operation;
        recent_kernel_ = &kernels_[operation];
    }
    return *recent_kernel_;
}

BlockOrder &KernelOrder::blocks(uint32_t operation)
{
    return kernel(operation).order;
}

// After a block barrier all warps know what each had acquired before.
KernelOrder::Block &KernelOrder::block_at(Kernel &kernel, const Place &place)
{
    Block &block = kernel.blocks[place.block];
    if (block.epoch == place.epoch)
        return block;
    block.epoch = place.epoch;
    for (auto &entry : block.warps) {
        Warp &warp = entry.second;
        block.known.join(warp.acquired);
        block.pending.device.join(warp.pending.device);
        block.pending.system.join(warp.pending.system);
        warp.acquired = VectorClock();
        warp.pending = Pending();
    }
    return block;
}

void KernelOrder::fence(const Operation &operation, const Place &place, bool system)
{
    Block &block = block_at(kernel(operation.id), place);
    Warp &warp = block.warps[place.thread / 32];
    Part part;
    part.operation = operation.id;
    part.block = place.block;
    part.warp = place.thread / 32;
    part.epoch = place.epoch;
    memcpy(part.clocks, place.seen, sizeof part.clocks);
    part.clocks[place.thread % 32] = place.lane_clock;
    auto note = [&part](Part &latest) {
        const bool same = latest.operation && latest.epoch == part.epoch;
        for (int lane = 0; same && lane < 32; lane++)
            part.clocks[lane] = std::max(part.clocks[lane], latest.clocks[lane]);
        latest = part;
    };
    if (system)
        note(warp.fenced_for_all);
    note(warp.fenced);
    for (const Pending *pending : {&block.pending, &warp.pending}) {
        warp.acquired.join(pending->device);
        if (system)
            warp.acquired.join(pending->system);
    }
}

void KernelOrder::hold(const Operation &operation, const Place &place)
{
    const Warp &warp = block_at(kernel(operation.id), place).warps[place.thread / 32];
    held_ = warp.fenced;
    held_for_all_ = warp.fenced_for_all;
}

void KernelOrder::drop(const Operation &operation, const Place &place)
{
    Warp &warp = block_at(kernel(operation.id), place).warps[place.thread / 32];
    warp.fenced = held_;
    warp.fenced_for_all = held_for_all_;
}

// What a strong write publishes: fences of this warp in this interval, and of all warps in earlier ones, as long as a barrier lies between.
void KernelOrder::publish(Kernel &kernel, Block &block, const Place &place, bool system, VectorClock &into)
{
    bool any = false;
    for (const auto &entry : block.warps) {
        const Part &part = system ? entry.second.fenced_for_all : entry.second.fenced;
        if (!part.operation || (part.epoch == place.epoch && entry.first != place.thread / 32u))
            continue;
        into.join(part);
        any = true;
    }
    if (!any)
        return;
    into.join(kernel.past);
    into.join(block.known);
    into.join(block.warps[place.thread / 32].acquired);
}

void KernelOrder::release(Kernel &kernel, Block &block, const Operation &operation, const Place &place, Location &location, unsigned flags)
{
    if (!kernel.has_past) {
        kernel.past = operation.clock;
        kernel.past.step_back(operation_record(operation.id).component);
        kernel.has_past = true;
    }
    if (!(flags & kRead)) // a store: whoever reads it reads nothing that was released before
        location = Location();
    publish(kernel, block, place, false, location.device[operation.device]);
    if (flags & kSystem)
        publish(kernel, block, place, true, location.system);
    kernel.released = true;
}

void KernelOrder::strong(const Operation &operation, const Place &place, uintptr_t address, unsigned flags)
{
    const uintptr_t key = address & ~uintptr_t(3);
    auto found = locations_.find(key);
    Kernel &running = kernel(operation.id);
    if (found == locations_.end() && (!(flags & kWrite) || running.blocks.empty()))
        return; // nobody has released or fenced
    Block &block = block_at(running, place);
    Warp &warp = block.warps[place.thread / 32];
    if (flags & kRead && found != locations_.end()) {
        const Location &location = found->second;
        auto near = location.device.find(operation.device);
        VectorClock &device = flags & kAcquire ? warp.acquired : warp.pending.device;
        VectorClock &system = flags & kAcquire ? warp.acquired : warp.pending.system;
        if (near != location.device.end())
            device.join(near->second);
        if (flags & kSystem)
            system.join(location.system);
    }
    if (flags & kWrite)
        release(running, block, operation, place, locations_[key], flags);
}

// An access without a clock may be any of its interval: it counts as known with any part of that.
bool KernelOrder::knows(const VectorClock &clock, const Access &old)
{
    const OperationRecord &record = operation_record(old.operation);
    if (clock.at(record.component) >= record.time)
        return true;
    for (const Part &part : clock.parts()) {
        if (part.operation != old.operation)
            continue;
        if (part.block == all_blocks)
            return true;
        if (old.epoch == 0 || part.epoch < old.epoch)
            continue;
        auto kernel = kernels_.find(old.operation);
        if (kernel == kernels_.end() || kernel->second.order.block_of(old.epoch) != part.block)
            continue;
        const unsigned thread = old.thread & kThreadMask;
        if (part.epoch > old.epoch || old.clock == 0 || (thread / 32 == part.warp && part.clocks[thread % 32] >= old.clock))
            return true;
    }
    return false;
}

bool KernelOrder::before(const Access &old, const Operation &now, const Place *place)
{
    if (!now.clock.parts().empty() && knows(now.clock, old))
        return true;
    if (!place)
        return false;
    Kernel &running = kernel(now.id);
    if (running.blocks.empty())
        return false;
    Block &block = block_at(running, *place);
    return knows(block.known, old) || knows(block.warps[place->thread / 32].acquired, old);
}

void KernelOrder::end(Operation &operation)
{
    auto found = kernels_.find(operation.id);
    if (found == kernels_.end())
        return;
    Kernel &ended = found->second;
    for (const auto &entry : ended.blocks) {
        operation.clock.join(entry.second.known);
        for (const auto &warp : entry.second.warps)
            operation.clock.join(warp.second.acquired);
    }
    recent_kernel_ = nullptr;
    if (!ended.released) {
        kernels_.erase(found);
        return;
    }
    ended.blocks.clear(); // who released is asked for its epochs later
    ended.past = VectorClock();
    ended.order.forget_blocks();
}

void KernelOrder::clear()
{
    kernels_.clear();
    locations_.clear();
    recent_kernel_ = nullptr;
}

} // namespace gpusim
