// Order between the blocks of one kernel. Blocks are unordered but for fences and atomics: writes, a fence, an atomic
// write of a location; in another block an atomic read of that location, then reads. Known per block: of each other
// block, up to which barrier interval (and which warps within it) its accesses come before.
#pragma once
#include "monitor.h"

#include <unordered_map>
#include <vector>

namespace gpusim {

class BlockOrder {
public:
    void fence(const Place &place);
    // What is fenced in between counts for the accesses in between only: a release is no fence for what comes after it.
    void hold(const Place &place);
    void drop(const Place &place);
    void atomic(const Place &place, uintptr_t address, unsigned flags);
    bool before(uint32_t epoch, unsigned thread, const Place &now);

    // Which block an epoch of this kernel belongs to.
    void note(const Place &place);
    uint32_t block_of(uint32_t epoch) const;
    void forget_blocks(); // the kernel has ended: only epochs are asked for from now on

private:
    struct Mark {
        uint32_t epoch = 0; // all earlier ones
        uint32_t warps = 0; // of this one
    };
    using Knowledge = std::unordered_map<uint32_t, Mark>; // by block
    struct Block {
        Knowledge known;
        Mark fenced;          // in the latest interval with a fence: by which warps
        Mark fenced_before;   // in the one before
        uint64_t version = 0; // of all three
        uintptr_t last_address = 0; // acquired, in which version
        uint64_t last_version = 0;
    };
    struct Location {
        Knowledge released;
        uint64_t version = 0;
        uint64_t last_release = 0, last_version = 0; // by which warp, with which version of its block
    };
    static Mark fenced_for(const Block &block, const Place &place);
    static bool join(Knowledge &into, uint32_t block, const Mark &mark);
    static bool join(Knowledge &into, const Knowledge &from);

    Mark held_, held_before_;
    uint32_t first_epoch_ = 0;
    uint32_t noted_ = 0;
    std::vector<uint32_t> blocks_; // 1 + block, by epoch - first_epoch_
    std::unordered_map<uint32_t, Block> block_;
    std::unordered_map<uintptr_t, Location> location_;
};

} // namespace gpusim
