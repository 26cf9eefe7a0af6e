// Order that threads of kernels make by fences and atomics, within a kernel and between kernels that run: a release (a
// fence and a strong write, or st.release, atom.release) of a location, and in another thread an acquire (ld.acquire,
// atom.acquire, or a strong read and a fence). What the releasing thread's block had done before, and all that it had
// come to know itself, comes before what the acquiring warp does next, and after a block barrier all warps of its
// block.
#pragma once
#include "block_order.h"
#include "operation.h"
#include "shadow.h"

#include <functional>
#include <map>
#include <unordered_map>

namespace gpusim {

class KernelOrder {
public:
    BlockOrder &blocks(uint32_t operation); // of one kernel among themselves
    void fence(const Operation &operation, const Place &place, Scope scope);
    void hold(const Operation &operation, const Place &place); // as in BlockOrder
    void drop(const Operation &operation, const Place &place);
    // whether the location is remembered
    bool strong(const Operation &operation, const Place &place, uintptr_t address, unsigned flags);
    void forget(uintptr_t address);
    // Whether an access of another operation is known, through releases, to come before this one. place NULL: not of a
    // kernel.
    bool before(const Access &old, const Operation &now, const Place *place);
    // Whether one of the same kernel is. A strong read needs no fence after the one that saw the flag.
    bool before_in_kernel(const Access &old, const Operation &now, const Place &place, bool strong_read);
    // Adds what was released for the whole system at locations that `wanted` chooses.
    void join_released(VectorClock &into, const std::function<bool(uintptr_t)> &wanted) const;
    // What its blocks have acquired is known to whatever follows the kernel.
    void end(Operation &operation);
    void clear();

private:
    struct Pending { // read, and not acquired yet; by the scope of the fence that would
        VectorClock known[scopes];
        void join(const Pending &other);
    };
    struct Look { // a lane's latest strong read
        uintptr_t address = 0;
        uint64_t version = 0;
        unsigned flags = 0;
    };
    struct Warp {
        VectorClock acquired; // since the latest block barrier
        Pending pending;
        Look looks[32]; // in that time
        Part fenced[scopes]; // by its latest fence that reaches so far
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
        std::map<std::pair<uint32_t, uint32_t>, VectorClock> block; // released for readers of this block of this kernel
        std::map<int, VectorClock> device;                          // of this device
        VectorClock system;
        uint64_t version = 0; // of what was released here
    };
    enum class Answer { no, coarse, yes }; // coarse: so many blocks that they aren't told apart

    Kernel &kernel(uint32_t operation);
    Block &block_at(Kernel &kernel, const Place &place);
    void release(Kernel &kernel, Block &block, const Operation &operation, const Place &place, Location &location,
                 unsigned flags);
    void publish(Kernel &kernel, Block &block, const Place &place, Scope scope, VectorClock &into);
    void publish_in_block(Block &block, const Operation &operation, const Place &place, Location &location);
    void acquire(Warp &warp, uintptr_t address, const Location &location, const Operation &operation,
                 const Place &place, unsigned flags);
    Answer knows(const VectorClock &clock, const Access &old);

    Part held_[scopes];
    std::unordered_map<uint32_t, Kernel> kernels_;
    uint32_t recent_ = 0;
    Kernel *recent_kernel_ = nullptr;
    std::unordered_map<uintptr_t, Location> locations_;
    uint64_t releases_ = 0;
};

KernelOrder &kernel_order();

} // namespace gpusim
