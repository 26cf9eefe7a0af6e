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

void KernelOrder::Pending::join(const Pending &other)
{
    for (size_t i = 0; i < scopes; i++)
        known[i].join(other.known[i]);
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
        block.pending.join(warp.pending);
        warp.acquired = VectorClock();
        warp.pending = Pending();
        std::fill(std::begin(warp.looks), std::end(warp.looks), Look());
    }
    return block;
}

void KernelOrder::fence(const Operation &operation, const Place &place, Scope scope)
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
    for (size_t i = 0; i <= size_t(scope); i++) {
        note(warp.fenced[i]);
        warp.acquired.join(block.pending.known[i]);
        warp.acquired.join(warp.pending.known[i]);
    }
}

void KernelOrder::hold(const Operation &operation, const Place &place)
{
    const Warp &warp = block_at(kernel(operation.id), place).warps[place.thread / 32];
    std::copy(std::begin(warp.fenced), std::end(warp.fenced), held_);
}

void KernelOrder::drop(const Operation &operation, const Place &place)
{
    Warp &warp = block_at(kernel(operation.id), place).warps[place.thread / 32];
    std::copy(std::begin(held_), std::end(held_), warp.fenced);
}

// What a strong write publishes: fences of this warp in this interval, and of all warps in earlier ones, as long as a
// barrier lies between.
void KernelOrder::publish(Kernel &kernel, Block &block, const Place &place, Scope scope, VectorClock &into)
{
    bool any = false;
    for (const auto &entry : block.warps) {
        const Part &part = entry.second.fenced[size_t(scope)];
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

// Within the block the other warps know all but what this warp alone has done and acquired.
void KernelOrder::publish_in_block(Block &block, const Operation &operation, const Place &place, Location &location)
{
    const Warp &warp = block.warps[place.thread / 32];
    const Part &part = warp.fenced[size_t(Scope::block)];
    if (!part.operation)
        return;
    if (location.block.size() > 64) // of many launches
        for (auto at = location.block.begin(); at != location.block.end();) {
            auto launch = kernels_.find(at->first.first);
            at = launch == kernels_.end() || launch->second.blocks.empty() ? location.block.erase(at) : std::next(at);
        }
    VectorClock &into = location.block[{operation.id, place.block}];
    into.join(part);
    into.join(warp.acquired);
}

void KernelOrder::release(Kernel &kernel, Block &block, const Operation &operation, const Place &place,
                          Location &location, unsigned flags)
{
    if (!kernel.has_past) {
        kernel.past = operation.clock;
        kernel.past.step_back(operation_record(operation.id).component);
        kernel.has_past = true;
    }
    if (!(flags & kRead)) // a store: whoever reads it reads nothing that was released before
        location = Location();
    location.version = ++releases_;
    publish_in_block(block, operation, place, location);
    if (!(flags & kBlock))
        publish(kernel, block, place, Scope::device, location.device[operation.device]);
    if (flags & kSystem)
        publish(kernel, block, place, Scope::system, location.system);
    kernel.released = true;
}

// Who polls reads the same release again and again: that was joined already.
void KernelOrder::acquire(Warp &warp, uintptr_t address, const Location &location, const Operation &operation,
                          const Place &place, unsigned flags)
{
    Look &look = warp.looks[place.thread % 32];
    if (look.address == address && look.version == location.version && look.flags == flags)
        return;
    look = {address, location.version, flags};
    auto join = [&](Scope scope, const VectorClock &released) {
        (flags & kAcquire ? warp.acquired : warp.pending.known[size_t(scope)]).join(released);
    };
    auto own = location.block.find({operation.id, place.block});
    if (own != location.block.end())
        join(Scope::block, own->second);
    auto near = location.device.find(operation.device);
    if (near != location.device.end() && !(flags & kBlock))
        join(Scope::device, near->second);
    if (flags & kSystem)
        join(Scope::system, location.system);
}

bool KernelOrder::strong(const Operation &operation, const Place &place, uintptr_t address, unsigned flags)
{
    const uintptr_t key = address & ~uintptr_t(3);
    auto found = locations_.find(key);
    Kernel &running = kernel(operation.id);
    if (found == locations_.end() && (!(flags & kWrite) || running.blocks.empty()))
        return false; // nobody has released or fenced
    Block &block = block_at(running, place);
    if (flags & kRead && found != locations_.end())
        acquire(block.warps[place.thread / 32], key, found->second, operation, place, flags);
    if (flags & kWrite)
        release(running, block, operation, place, locations_[key], flags);
    return true;
}

void KernelOrder::forget(uintptr_t address)
{
    locations_.erase(address & ~uintptr_t(3));
}

// An access without a clock may be any of its interval, one of some lane any lane's: it counts as known with any part
// of that.
KernelOrder::Answer KernelOrder::knows(const VectorClock &clock, const Access &old)
{
    const OperationRecord &record = operation_record(old.operation);
    if (clock.at(record.component) >= record.time)
        return Answer::yes;
    for (const Part &part : clock.parts()) {
        if (part.operation != old.operation)
            continue;
        if (part.block == all_blocks)
            return Answer::coarse;
        if (old.epoch == 0 || part.epoch < old.epoch)
            continue;
        auto kernel = kernels_.find(old.operation);
        if (kernel == kernels_.end() || kernel->second.order.block_of(old.epoch) != part.block)
            continue;
        const unsigned thread = old.thread & kThreadMask;
        if (part.epoch > old.epoch || old.clock == 0)
            return Answer::yes;
        if (thread / 32 != part.warp)
            continue;
        const uint16_t seen = old.thread & kAccessSomeLane
                                  ? *std::max_element(std::begin(part.clocks), std::end(part.clocks))
                                  : part.clocks[thread % 32];
        if (seen >= old.clock)
            return Answer::yes;
    }
    return Answer::no;
}

bool KernelOrder::before(const Access &old, const Operation &now, const Place *place)
{
    if (!now.clock.parts().empty() && knows(now.clock, old) != Answer::no)
        return true;
    if (!place)
        return false;
    Kernel &running = kernel(now.id);
    if (running.blocks.empty())
        return false;
    Block &block = block_at(running, *place);
    return knows(block.known, old) != Answer::no || knows(block.warps[place->thread / 32].acquired, old) != Answer::no;
}

bool KernelOrder::before_in_kernel(const Access &old, const Operation &now, const Place &place, bool strong_read)
{
    Kernel &running = kernel(now.id);
    if (running.blocks.empty())
        return false;
    Block &block = block_at(running, place);
    const Warp &warp = block.warps[place.thread / 32];
    std::vector<const VectorClock *> known = {&block.known, &warp.acquired};
    for (size_t i = 0; strong_read && i < scopes; i++) {
        known.push_back(&block.pending.known[i]);
        known.push_back(&warp.pending.known[i]);
    }
    bool coarse = false;
    for (const VectorClock *clock : known) {
        const Answer answer = knows(*clock, old);
        if (answer == Answer::yes)
            return true;
        coarse = coarse || answer == Answer::coarse;
    }
    return coarse && running.order.before(old.epoch, old.thread & kThreadMask, place);
}

void KernelOrder::join_released(VectorClock &into, const std::function<bool(uintptr_t)> &wanted) const
{
    for (const auto &entry : locations_)
        if (wanted(entry.first))
            into.join(entry.second.system);
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
