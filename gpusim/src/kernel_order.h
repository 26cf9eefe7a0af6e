// Order that kernels make for each other while they run: a release (a fence and a strong write, or st.release, atom.release) of a location, and in
// another kernel an acquire (ld.acquire, atom.acquire, or a strong read and a fence). What the releasing thread's block had done before, and all that
// it had come to know itself, comes before what the acquiring warp does next, and after a block barrier all warps of its block.
#pragma once
#include "block_order.h"
#include "operation.h"
#include "shadow.h"

#include <map>
#include <unordered_map>

namespace gpusim {

class KernelOrder {
public:
    BlockOrder &blocks(uint32_t operation); // of one kernel among themselves
    void fence(const Operation &operation, const Place &place, bool system);
    void hold(const Operation &operation, const Place &place); // as in BlockOrder
    void drop(const Operation &operation, const Place &place);
    void strong(const Operation &operation, const Place &place, uintptr_t address, unsigned flags);
    // Whether an access of another operation is known, through releases, to come before this one. place NULL: not of a kernel.
    bool before(const Access &old, const Operation &now, const Place *place);
    // What its blocks have acquired is known to whatever follows the kernel.
    void end(Operation &operation);
    void clear();

private:
    struct Pending { // read, and not acquired yet
        VectorClock device, system;
    };
    struct Warp {
        VectorClock acquired; // since the latest block barrier
        Pending pending;
        Part fenced, fenced_for_all; // by its latest fence; the latest of system scope
    };
    struct Block {
        uint32_t epoch = 0;
        VectorClock known;
        Pending pending;
        std::unordered_map<uint32_t, Warp> warps;
    };
    struct Kernel {
        BlockOrder order;
        VectorClock past; // what comes before the kernel as a whole
        std::unordered_map<uint32_t, Block> blocks;
        bool has_past = false;
        bool released = false;
    };
    struct Location {
        std::map<int, VectorClock> device; // released for readers of this device
        VectorClock system;
    };

    Kernel &kernel(uint32_t operation);
    Block &block_at(Kernel &kernel, const Place &place);
    void release(Kernel &kernel, Block &block, const Operation &operation, const Place &place, Location &location, unsigned flags);
    void publish(Kernel &kernel, Block &block, const Place &place, bool system, VectorClock &into);
    bool knows(const VectorClock &clock, const Access &old);

    Part held_, held_for_all_;
    std::unordered_map<uint32_t, Kernel> kernels_;
    uint32_t recent_ = 0;
    Kernel *recent_kernel_ = nullptr;
    std::unordered_map<uintptr_t, Location> locations_;
};

KernelOrder &kernel_order();

} // namespace gpusim
