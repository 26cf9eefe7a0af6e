#include "access.h"

namespace gpusim::ptx
{

unsigned char *refuse_shared(Warp &warp, const Instruction &in, int lane, uint64_t offset, size_t bytes)
{
    fault(warp, in, lane, cudaErrorIllegalAddress, GPUSIM_OUT_OF_BOUNDS,
          "an access of %zu bytes at offset %llu of shared memory, of which the block has %zu bytes", bytes,
          static_cast<unsigned long long>(offset), warp.block->shared_bytes);
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

// What the lane does from now on is told apart from what its fence has published.
static void tick(Warp &warp, int lane)
{
    if (warp.clock[lane] < UINT16_MAX) {
        warp.clock[lane]++;
    }
}

void tell_fence(Warp &warp, int lane, bool system)
{
    monitor_fence(place_of(warp, lane), system);
    tick(warp, lane);
}

void tell_release(Warp &warp, int lane, bool system)
{
    monitor_release(place_of(warp, lane), system);
    tick(warp, lane);
}

void tell_release_end(Warp &warp, int lane)
{
    monitor_release_end(place_of(warp, lane));
}

// Local memory, parameters and the machine's own workspace are not the monitor's.
bool tell_global(Warp &warp, const Instruction &in, int lane, uint64_t address, size_t bytes, unsigned flags)
{
    const Block &block = *warp.block;
    const Grid &grid = *block.grid;
    if (address - reinterpret_cast<uint64_t>(grid.workspace) < sizeof grid.workspace) {
        if (flags & kAtomic) {
            monitor_atomic(place_of(warp, lane), address,
                           flags); // how blocks of a cooperative grid wait for each other
        }
        return true;
    }
    if (address - reinterpret_cast<uint64_t>(block.local) < block.local_bytes ||
        address - reinterpret_cast<uint64_t>(grid.parameters) < grid.parameter_bytes) {
        return true;
    }
    Place place = place_of(warp, lane);
    if (monitor_access(place, address, bytes, flags, *in.site)) {
        return true;
    }
    warp.block->grid->fault = cudaErrorIllegalAddress;
    return false;
}

} // namespace gpusim::ptx
