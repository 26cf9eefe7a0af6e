#include "access.h"

namespace gpusim::ptx
{

unsigned char *refuse_shared(Warp &warp, const Instruction &in, int lane, uint64_t offset, size_t bytes)
{
    fault(warp, in, lane, cudaErrorIllegalAddress, GPUSIM_OUT_OF_BOUNDS,
          "an access of %zu bytes at offset %lld of shared memory, of which the block has %zu bytes", bytes,
          static_cast<long long>(in.wide_address ? static_cast<int64_t>(offset) : static_cast<int32_t>(offset)),
          warp.block->shared_bytes);
    return nullptr;
}

unsigned char *refuse_local(Warp &warp, const Instruction &in, int lane, uint64_t address, size_t bytes)
{
    const Program &program = *warp.block->grid->program;
    uint64_t thread = warp.index * 32 + static_cast<uint64_t>(lane);
    uint64_t base = reinterpret_cast<uint64_t>(warp.block->local) + thread * program.local_bytes;
    fault(warp, in, lane, cudaErrorIllegalAddress, GPUSIM_OUT_OF_BOUNDS,
          "an access of %zu bytes at offset %lld of the thread's %zu bytes of local arrays", bytes,
          static_cast<long long>(address - base), program.local_used);
    return nullptr;
}

unsigned char *refuse_misaligned(Warp &warp, const Instruction &in, int lane, uint64_t address, size_t bytes)
{
    fault(warp, in, lane, cudaErrorMisalignedAddress, GPUSIM_OUT_OF_BOUNDS, "a misaligned access of %zu bytes at %#llx",
          bytes, static_cast<unsigned long long>(address));
    return nullptr;
}

bool tell_shared(Warp &warp, const Instruction &in, int lane, uint64_t offset, size_t bytes, unsigned flags)
{
    Place place = place_of(warp, lane);
    if (monitor_shared_access(warp.block->shadow, place, offset, bytes, flags, *in.site)) {
        return true;
    }
    warp.block->grid->fault = cudaErrorIllegalAddress;
    return false;
}

void tell_unwritten(Warp &warp, const Instruction &in, int lane, size_t bytes)
{
    monitor_unwritten_local(place_of(warp, lane), bytes, *in.site);
}

// What the lane does from now on is told apart from what its fence has published.
static void tick(Warp &warp, int lane)
{
    if (warp.clock[lane] < UINT16_MAX) {
        warp.clock[lane]++;
    }
}

void tell_fence(Warp &warp, int lane, Scope scope)
{
    monitor_fence(place_of(warp, lane), scope);
    tick(warp, lane);
}

void tell_release(Warp &warp, int lane, Scope scope)
{
    monitor_release(place_of(warp, lane), scope);
    tick(warp, lane);
}

void tell_release_end(Warp &warp, int lane)
{
    monitor_release_end(place_of(warp, lane));
}

static bool reads_still(const Block &block, uint64_t address, size_t bytes)
{
    for (const Warp &warp : block.warps) {
        for (const LaneCopies &copies : warp.copies) {
            for (const PendingCopy &copy : copies.pending) {
                uint64_t source = reinterpret_cast<uint64_t>(copy.source);
                if (address < source + copy.source_bytes && source < address + bytes) {
                    return true;
                }
            }
        }
    }
    return false;
}

// Parameters and the machine's own workspace are not the monitor's.
bool tell_global(Warp &warp, const Instruction &in, int lane, uint64_t address, size_t bytes, unsigned flags)
{
    const Grid &grid = *warp.block->grid;
    if (address - reinterpret_cast<uint64_t>(grid.workspace) < sizeof grid.workspace) {
        if (flags & kAtomic) {
            monitor_atomic(place_of(warp, lane), address,
                           flags); // how blocks of a cooperative grid wait for each other
        }
        return true;
    }
    if (address - reinterpret_cast<uint64_t>(grid.parameters) < grid.parameter_bytes) {
        return true;
    }
    Place place = place_of(warp, lane);
    if (flags & kWrite && warp.block->pending_copies > 0 && reads_still(*warp.block, backing(address), bytes)) {
        monitor_pending_source(place, bytes, *in.site);
    }
    if (monitor_access(place, address, bytes, flags, *in.site)) {
        return true;
    }
    warp.block->grid->fault = cudaErrorIllegalAddress;
    return false;
}

} // namespace gpusim::ptx
