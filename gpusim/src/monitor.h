// What the PTX machine tells the memory monitor: every access of every thread, with enough of its place to decide
// whether two accesses are ordered. The monitor (monitor.cpp) owns memory, shadow cells and reports.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gpusim {

// Where in the source an access comes from: strings, and best the Site too, live as long as the module.
struct Site {
    const char *kernel;
    const char *file; // the caller's line where code was inlined
    int line;
    int ptx_line;
};

enum AccessFlags : unsigned {
    kRead = 1,
    kWrite = 2,
    kAtomic = 4,   // atomic or volatile/relaxed: ordered with other such accesses of the same location
    kPending = 8,  // the write of a cp.async that was not waited for yet
    // 16: kAnyDevice (access.h)
    kAcquire = 32, // with kAtomic and kRead: what follows comes after what the location's writer has released
    kSystem = 64,  // with kAtomic: at system scope; else that of the device
    kBlock = 128,  // with kAtomic: at the scope of the block
    kReadOnly = 256, // a load of memory that the kernel must not write (ld.global.nc)
    kLands = 512, // the write of a cp.async that was waited for
};

// How far a fence reaches.
enum class Scope { block, device, system };
constexpr size_t scopes = 3;

// A thread within its launch. Two accesses of one block are ordered if a block barrier lies between them (epoch), if
// one thread made both, or if the later thread has seen the earlier lane's clock through warp synchronisation.
struct Place {
    uint32_t block;       // linear index in the grid
    uint16_t thread;      // linear index in the block
    uint16_t lane_clock;  // advanced at each __syncwarp of this lane
    uint32_t epoch;       // block barriers passed; unique over all blocks of a launch that share shadow cells
    uint32_t first_epoch; // of this block
    const uint16_t *seen; // [32] clocks of the lanes of its warp that this thread is ordered after
};

// Global, pinned or peer memory. False: the access is outside any live allocation (reported): the kernel must stop with
// cudaErrorIllegalAddress and nothing may be read or written.
bool monitor_access(const Place &place, uintptr_t address, size_t bytes, unsigned flags, const Site &site);

// A read of an element of the thread's own local memory that it has not written.
void monitor_unwritten_local(const Place &place, size_t bytes, const Site &site);

// A write of memory that a cp.async of the same block, which was not waited for yet, still reads.
void monitor_pending_source(const Place &place, size_t bytes, const Site &site);

// A fence. What a thread had done (and known) before its fence is ordered before what another thread does after it has
// read, by an atomic, volatile or relaxed access and then a fence or with kAcquire, what the first wrote in that way
// after its fence; both fences and both accesses must reach as far as the other thread is. Atomics with release
// semantics call monitor_release just before their access. The lane's clock must advance after each call.
void monitor_fence(const Place &place, Scope scope);
// A release: the accesses of this thread until the end are behind a fence, later ones are not.
void monitor_release(const Place &place, Scope scope);
void monitor_release_end(const Place &place);

// An atomic access of memory that is the machine's own: it only orders blocks, as one of global memory does.
void monitor_atomic(const Place &place, uintptr_t address, unsigned flags);

// The running operation is a kernel, and has ended.
void monitor_kernel_end();

// Storage of a module's variable on one device: `image` (NULL: zeros) is copied to it. Never freed.
void *monitor_variable(int device, size_t bytes, const void *image);

// A block's shared memory: `offset` within it. Cells are the monitor's, one set for each resident block slot.
struct SharedShadow;
SharedShadow *shared_shadow_begin(size_t bytes, uint32_t block);
void shared_shadow_end(SharedShadow *shadow);
bool monitor_shared_access(SharedShadow *shadow, const Place &place, size_t offset, size_t bytes, unsigned flags,
                           const Site &site);

} // namespace gpusim
