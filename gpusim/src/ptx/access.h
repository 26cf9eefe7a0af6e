// Finding and checking the memory that a lane's access means.
#pragma once
#include "backing.h"
#include "gpusim/gpusim.h"
#include "lanes.h"
#include "program.h"

namespace gpusim::ptx
{

inline uint64_t lane_address(Warp &warp, const Instruction &in, uint32_t base, bool wide, int lane)
{
    uint64_t address = wide ? words<uint64_t>(warp, base)[lane] : words<uint32_t>(warp, base)[lane];
    return address + static_cast<uint64_t>(in.immediate);
}

// Outside of shared memory, or misaligned: the grid stops.
unsigned char *refuse_shared(Warp &warp, const Instruction &in, int lane, uint64_t offset, size_t bytes);
unsigned char *refuse_local(Warp &warp, const Instruction &in, int lane, uint64_t address, size_t bytes);
unsigned char *refuse_misaligned(Warp &warp, const Instruction &in, int lane, uint64_t address, size_t bytes);
bool tell_shared(Warp &warp, const Instruction &in, int lane, uint64_t offset, size_t bytes, unsigned flags);
bool tell_global(Warp &warp, const Instruction &in, int lane, uint64_t address, size_t bytes, unsigned flags);
void tell_unwritten(Warp &warp, const Instruction &in, int lane, size_t bytes); // a local array's element is read

void tell_fence(Warp &warp, int lane, Scope scope);
void tell_release(Warp &warp, int lane, Scope scope);
void tell_release_end(Warp &warp, int lane);

inline unsigned char *shared_memory(Warp &warp, const Instruction &in, int lane, uint64_t offset, size_t bytes,
                                    unsigned flags)
{
    Block &block = *warp.block;
    if (offset > block.shared_bytes || bytes > block.shared_bytes - offset) {
        return refuse_shared(warp, in, lane, offset, bytes);
    }
    if (offset & (bytes - 1)) {
        return refuse_misaligned(warp, in, lane, offset, bytes);
    }
    if (block.shadow && !tell_shared(warp, in, lane, offset, bytes, flags)) {
        return nullptr;
    }
    return block.shared + offset;
}

// Only the thread's own, up to the end of its arrays taken together.
inline bool outside_local(const Warp &warp, int lane, uint64_t address, size_t bytes)
{
    const Block &block = *warp.block;
    const Program &program = *block.grid->program;
    uint64_t thread = warp.index * 32 + static_cast<uint64_t>(lane);
    uint64_t offset = address - reinterpret_cast<uint64_t>(block.local) - thread * program.local_bytes;
    return offset > program.local_used || bytes > program.local_used - offset;
}

// An element of which no byte was written is told when it is read; one that is partly written may be padding.
inline void check_local(Warp &warp, const Instruction &in, int lane, uint64_t offset, size_t bytes, unsigned flags)
{
    unsigned char *written = warp.block->local_written + offset;
    const size_t element = bytes / (in.count ? in.count : 1);
    for (size_t at = 0; flags & kRead && at < bytes; at += element) {
        if (!memchr(written + at, 1, element)) {
            tell_unwritten(warp, in, lane, element);
        }
    }
    if (flags & kWrite) {
        memset(written, 1, bytes);
    }
}

inline unsigned char *own_local_memory(Warp &warp, const Instruction &in, int lane, uint64_t address, size_t bytes,
                                       unsigned flags)
{
    if (outside_local(warp, lane, address, bytes)) {
        return refuse_local(warp, in, lane, address, bytes);
    }
    if (address & (bytes - 1)) {
        return refuse_misaligned(warp, in, lane, address, bytes);
    }
    if (warp.block->local_written) {
        check_local(warp, in, lane, address - reinterpret_cast<uint64_t>(warp.block->local), bytes, flags);
    }
    return reinterpret_cast<unsigned char *>(address);
}

// A generic address: any space. `bytes` is a power of two.
inline unsigned char *any_memory(Warp &warp, const Instruction &in, int lane, uint64_t address, size_t bytes,
                                 unsigned flags)
{
    Block &block = *warp.block;
    uint64_t in_shared = address - reinterpret_cast<uint64_t>(block.shared);
    if (in_shared < block.shared_bytes) {
        return shared_memory(warp, in, lane, in_shared, bytes, flags);
    }
    if (address - reinterpret_cast<uint64_t>(block.local) < block.local_bytes) {
        return own_local_memory(warp, in, lane, address, bytes, flags);
    }
    if (address & (bytes - 1)) {
        return refuse_misaligned(warp, in, lane, address, bytes);
    }
    if (block.grid->check && !tell_global(warp, in, lane, address, bytes, flags)) {
        return nullptr;
    }
    return reinterpret_cast<unsigned char *>(backing(address));
}

// Release semantics: a fence before the access, and for it alone.
inline bool releases(const Statement &statement)
{
    return statement.has("release") || statement.has("acq_rel");
}
// What a strong access means for other threads: AccessFlags.
inline uint8_t order_flags(const Statement &statement)
{
    bool reads = statement.words[0] != "st" && statement.words[0] != "red";
    bool acquires = reads && (statement.has("acquire") || statement.has("acq_rel"));
    bool system = statement.has("sys") || statement.has("volatile") || statement.has("mmio");
    return static_cast<uint8_t>((acquires ? kAcquire : 0u) | (system ? kSystem : 0u) |
                                (statement.has("cta") ? kBlock : 0u));
}

class Release {
public:
    Release(Warp &warp, const Instruction &in, int lane)
        : warp_(warp), lane_(lane), told_(in.releases && warp.block->grid->check)
    {
        if (told_) {
            tell_release(warp, lane, in.flags & kSystem  ? Scope::system
                                     : in.flags & kBlock ? Scope::block
                                                         : Scope::device);
        }
    }
    ~Release()
    {
        if (told_) {
            tell_release_end(warp_, lane_);
        }
    }
    Release(const Release &) = delete;
    Release &operator=(const Release &) = delete;

private:
    Warp &warp_;
    int lane_;
    bool told_;
};

// Where an access of a lane goes, or NULL after a fault.
inline unsigned char *locate(Warp &warp, const Instruction &in, int lane, size_t bytes, unsigned flags)
{
    uint64_t address = lane_address(warp, in, in.a, in.wide_address, lane);
    switch (in.space) {
    case Space::shared: return shared_memory(warp, in, lane, address, bytes, flags);
    case Space::local: return own_local_memory(warp, in, lane, address, bytes, flags);
    default: return any_memory(warp, in, lane, address, bytes, flags);
    }
}

} // namespace gpusim::ptx
