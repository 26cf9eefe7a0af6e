// Allocations of the simulated machine. Addresses are never given out twice, so a stale pointer is always known as
// such.
#pragma once
#include "shadow.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

// What cudaMallocAsync takes from: who may touch its memory is a property of the pool, not of the devices.
struct CUmemPoolHandle_st {
    int device = 0;
    std::set<int> access; // other devices
};

namespace gpusim {

enum class Space { device, pinned, registered };

using MemoryPool = ::CUmemPoolHandle_st;

constexpr uint32_t not_yet_allocated = UINT32_MAX; // the cudaMallocAsync is still queued

struct Allocation {
    uintptr_t base = 0;
    size_t bytes = 0;
    int device = 0;
    Space space = Space::device;
    bool live = true;
    bool permanent = false;      // a module's variable: no leak
    bool written_unseen = false; // host code, which we don't see, may have written it: no report of uninitialised reads
    unsigned host_flags = 0;
    const MemoryPool *pool = nullptr; // NULL: cudaMalloc
    uint32_t allocated_by = 0;        // the cudaMallocAsync operation that users must come after; 0: none;
                                      // not_yet_allocated
    uint32_t allocation_known_to = 0; // last operation found to come after it
    const char *freed_by = nullptr;
    uint32_t open_to = 0; // bit d: NCCL has mapped it on device d (nccl/registration.cpp)
    ShadowMap shadow;

    bool contains(uintptr_t address) const { return address - base < bytes; }
};

// All under machine_lock().
Allocation *memory_allocate(size_t bytes, int device, Space space); // filled with 0xFF; NULL: no memory left
Allocation *memory_register(void *memory, size_t bytes);            // the user's own host memory; NULL: overlaps
void memory_free(Allocation *allocation, const char *freed_by);
Allocation *memory_find(uintptr_t address);  // live or freed; NULL outside
std::string memory_near(uintptr_t address);  // in words
size_t memory_used(int device);
void memory_each_live(const std::function<void(Allocation &)> &visit);
MemoryPool *memory_default_pool(int device);

} // namespace gpusim
