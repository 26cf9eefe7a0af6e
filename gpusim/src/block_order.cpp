#include "block_order.h"

namespace gpusim {

void BlockOrder::forget_blocks()
{
    block_.clear();
    location_.clear();
}

void BlockOrder::note(const Place &place)
{
    if (place.epoch == noted_)
        return;
    noted_ = place.epoch;
    if (blocks_.empty())
        first_epoch_ = place.epoch;
    if (place.epoch < first_epoch_) {
        blocks_.insert(blocks_.begin(), first_epoch_ - place.epoch, 0);
        first_epoch_ = place.epoch;
    }
    const size_t index = place.epoch - first_epoch_;
    if (index >= blocks_.size())
        blocks_.resize(index + 1);
    blocks_[index] = place.block + 1;
}

uint32_t BlockOrder::block_of(uint32_t epoch) const
{
    const size_t index = epoch - first_epoch_;
    return index < blocks_.size() ? blocks_[index] - 1 : UINT32_MAX;
}

bool BlockOrder::join(Knowledge &into, uint32_t block, const Mark &mark)
{
    Mark &old = into[block];
    if (mark.epoch < old.epoch || (mark.epoch == old.epoch && (mark.warps & ~old.warps) == 0))
        return false;
    old.warps = mark.epoch == old.epoch ? old.warps | mark.warps : mark.warps;
    old.epoch = mark.epoch;
    return true;
}

bool BlockOrder::join(Knowledge &into, const Knowledge &from)
{
    bool changed = false;
    for (const auto &entry : from)
        changed |= join(into, entry.first, entry.second);
    return changed;
}

void BlockOrder::fence(const Place &place)
{
    Block &block = block_[place.block];
    const uint32_t warp = 1u << (place.thread / 32);
    if (block.fenced.epoch != place.epoch) {
        block.fenced_before = block.fenced;
        block.fenced = Mark{place.epoch, 0};
    }
    if (!(block.fenced.warps & warp)) {
        block.fenced.warps |= warp;
        block.version++;
    }
}

void BlockOrder::hold(const Place &place)
{
    const Block &block = block_[place.block];
    held_ = block.fenced;
    held_before_ = block.fenced_before;
}

void BlockOrder::drop(const Place &place)
{
    Block &block = block_[place.block];
    block.fenced = held_;
    block.fenced_before = held_before_;
    block.version++;
}

// What a warp's atomic write publishes of its block: its own accesses before its fence, and everything before a fence
// that a block barrier lies between.
BlockOrder::Mark BlockOrder::fenced_for(const Block &block, const Place &place)
{
    const uint32_t warp = 1u << (place.thread / 32);
    if (block.fenced.epoch != place.epoch)
        return block.fenced;
    return block.fenced.warps & warp ? Mark{place.epoch, warp} : block.fenced_before;
}

void BlockOrder::atomic(const Place &place, uintptr_t address, unsigned flags)
{
    if (block_.empty())
        return; // nobody has fenced: nothing is published
    Location &location = location_[address & ~uintptr_t(3)];
    Block &block = block_[place.block];
    if (flags & kRead && location.version &&
        !(block.last_address == address && block.last_version == location.version)) {
        block.last_address = address;
        block.last_version = location.version;
        if (join(block.known, location.released))
            block.version++;
    }
    const uint64_t release = uint64_t(place.epoch) << 32 | place.thread / 32u;
    if (flags & kWrite && block.fenced.epoch &&
        !(location.last_release == release && location.last_version == block.version)) {
        location.last_release = release;
        location.last_version = block.version;
        bool changed = join(location.released, place.block, fenced_for(block, place));
        changed |= join(location.released, block.known);
        if (changed)
            location.version++;
    }
}

bool BlockOrder::before(uint32_t epoch, unsigned thread, const Place &now)
{
    auto block = block_.find(now.block);
    if (block == block_.end())
        return false;
    auto mark = block->second.known.find(block_of(epoch));
    if (mark == block->second.known.end())
        return false;
    return epoch < mark->second.epoch || (epoch == mark->second.epoch && (mark->second.warps >> (thread / 32) & 1));
}

} // namespace gpusim
