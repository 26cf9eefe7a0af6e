#include "memory.h"

#include "backing.h"
#include "guard.h"
#include "monitor.h"
#include "options.h"
#include "report.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

namespace gpusim {
namespace {

constexpr size_t page = 4096;
constexpr size_t most_region_bytes = size_t(256) << 30; // of addresses, not of memory: given out once each
constexpr size_t least_region_bytes = size_t(16) << 30;
constexpr size_t pattern_bytes = size_t(16) << 20;
constexpr int device_regions = 16, regions = device_regions + 1; // and pinned memory

struct Region {
    uintptr_t base = 0, next = 0;
    size_t used = 0;
};

struct Arena {
    Region region[regions];
    size_t region_bytes = 0;
    std::map<uintptr_t, std::unique_ptr<Allocation>> allocations;
    Allocation *recent[2] = {};                                  // found last: kernels ask for every access
    int pattern_file = -1; // 16 MiB of 0xFF, mapped copy-on-write under large allocations so that they cost nothing
                           // untouched
};

Arena &arena()
{
    static Arena *one = [] {
        atexit([] { gpusim_report_leaks(); });
        return new Arena;
    }();
    return *one;
}

int pattern_file()
{
    Arena &all = arena();
    if (all.pattern_file >= 0)
        return all.pattern_file;
    int file = memfd_create("gpusim poison", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, off_t(pattern_bytes)) != 0)
        return -1;
    void *view = mmap(nullptr, pattern_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (view == MAP_FAILED) {
        close(file);
        return -1;
    }
    memset(view, 0xFF, pattern_bytes);
    munmap(view, pattern_bytes);
    return all.pattern_file = file;
}

bool map_poisoned(uintptr_t base, size_t bytes)
{
    constexpr int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
    const int file = bytes >= pattern_bytes / 8 ? pattern_file() : -1;
    if (file < 0) {
        void *memory =
            mmap(reinterpret_cast<void *>(base), bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            return false;
        memset(memory, 0xFF, bytes);
        return true;
    }
    for (size_t done = 0; done < bytes; done += pattern_bytes) {
        const size_t piece = bytes - done < pattern_bytes ? bytes - done : pattern_bytes;
        if (mmap(reinterpret_cast<void *>(base + done), piece, PROT_READ | PROT_WRITE, flags, file, 0) == MAP_FAILED)
            return false;
    }
    return true;
}

uintptr_t reserve_addresses(size_t bytes)
{
    void *addresses = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return addresses == MAP_FAILED ? 0 : reinterpret_cast<uintptr_t>(addresses);
}

// All devices' addresses as programs know them, then as the simulator does; and those of pinned memory.
bool reserve_regions()
{
    Arena &all = arena();
    DeviceWindow &window = device_window();
    for (size_t each = most_region_bytes; all.region_bytes == 0 && each >= least_region_bytes; each /= 2) {
        window.base = reserve_addresses((2 * device_regions + 1) * each);
        all.region_bytes = window.base ? each : 0;
    }
    if (all.region_bytes == 0)
        return false;
    window.bytes = device_regions * all.region_bytes;
    window.distance = guard_install() ? window.bytes : 0;
    for (size_t i = 0; i < device_regions; i++)
        all.region[i].base = window.base + i * all.region_bytes;
    all.region[device_regions].base = window.base + 2 * window.bytes;
    for (Region &region : all.region)
        region.next = region.base + page;
    return true;
}

Region *region_of(int device, Space space)
{
    if (arena().region_bytes == 0 && !reserve_regions())
        return nullptr;
    return &arena().region[space == Space::device ? device : device_regions];
}

// Pages around it stay without access; the bytes between its end and the next page are outside, by the map of
// allocations.
size_t pages_of(size_t bytes)
{
    return (bytes + page - 1) / page * page;
}

} // namespace

Allocation *memory_allocate(size_t bytes, int device, Space space)
{
    Region *region = region_of(device, space);
    const size_t limit = space == Space::device ? options().device_bytes : most_region_bytes;
    if (!region || bytes > limit || region->used > limit - bytes)
        return nullptr;
    if (region->next + pages_of(bytes) + page > region->base + arena().region_bytes) {
        report(GPUSIM_UNSUPPORTED,
               "the addresses of device %d are used up: more than %zu GiB were allocated in one process", device,
               arena().region_bytes >> 30);
        return nullptr;
    }
    if (!map_poisoned(backing(region->next), pages_of(bytes)))
        return nullptr;
    auto made = std::make_unique<Allocation>();
    made->base = region->next;
    made->bytes = bytes;
    made->device = device;
    made->space = space;
    made->written_unseen = space != Space::device;
    region->next += pages_of(bytes) + page;
    region->used += bytes;
    Allocation *result = made.get();
    arena().allocations[result->base] = std::move(made);
    return result;
}

Allocation *memory_register(void *memory, size_t bytes)
{
    const uintptr_t base = reinterpret_cast<uintptr_t>(memory);
    auto next = arena().allocations.lower_bound(base);
    if ((next != arena().allocations.end() && next->first < base + bytes) || memory_find(base))
        return nullptr;
    auto made = std::make_unique<Allocation>();
    made->base = base;
    made->bytes = bytes;
    made->space = Space::registered;
    made->written_unseen = true;
    Allocation *result = made.get();
    arena().allocations[base] = std::move(made);
    return result;
}

void memory_free(Allocation *allocation, const char *freed_by)
{
    allocation->shadow.clear();
    if (allocation->space == Space::registered) {
        arena().recent[0] = arena().recent[1] = nullptr;
        arena().allocations.erase(allocation->base);
        return;
    }
    allocation->live = false;
    allocation->freed_by = freed_by;
    region_of(allocation->device, allocation->space)->used -= allocation->bytes;
    guard_forget(allocation->base, allocation->bytes);
    mmap(reinterpret_cast<void *>(backing(allocation->base)), pages_of(allocation->bytes), PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

Allocation *memory_find(uintptr_t address)
{
    Allocation **recent = arena().recent;
    if (recent[0] && recent[0]->contains(address))
        return recent[0];
    if (recent[1] && recent[1]->contains(address)) {
        std::swap(recent[0], recent[1]);
        return recent[0];
    }
    auto next = arena().allocations.upper_bound(address);
    if (next == arena().allocations.begin())
        return nullptr;
    Allocation *below = std::prev(next)->second.get();
    if (!below->contains(address))
        return nullptr;
    recent[1] = recent[0];
    return recent[0] = below;
}

// Beside which allocation an address outside of all lies.
std::string memory_near(uintptr_t address)
{
    static const char *const names[] = {"device memory", "pinned memory", "registered host memory"};
    auto text = [](size_t distance, const char *side, const Allocation &near) {
        return format_text("%zu bytes %s an allocation of %zu bytes of %s%s", distance, side, near.bytes,
                           names[int(near.space)], near.live ? "" : ", which was freed");
    };
    auto next = arena().allocations.upper_bound(address);
    const Allocation *above = next == arena().allocations.end() ? nullptr : next->second.get();
    const Allocation *below = next == arena().allocations.begin() ? nullptr : std::prev(next)->second.get();
    const size_t beyond = below ? address - (below->base + below->bytes) : SIZE_MAX;
    const size_t ahead = above ? above->base - address : SIZE_MAX;
    if (ahead < beyond && ahead <= most_region_bytes)
        return text(ahead, "before", *above);
    if (beyond > most_region_bytes)
        return "in no memory of any device";
    return text(beyond, "past the end of", *below);
}

size_t memory_used(int device)
{
    return arena().region[device].used;
}

void memory_each_live(const std::function<void(Allocation &)> &visit)
{
    for (auto &entry : arena().allocations)
        if (entry.second->live)
            visit(*entry.second);
}

MemoryPool *memory_default_pool(int device)
{
    static auto *pools = new MemoryPool[regions];
    pools[device].device = device;
    return &pools[device];
}

void *monitor_variable(int device, size_t bytes, const void *image)
{
    Locked lock(machine_lock());
    Allocation *made = memory_allocate(bytes ? bytes : 1, device, Space::device);
    if (!made)
        return nullptr;
    made->written_unseen = true; // by the module's loading
    made->permanent = true;
    void *memory = reinterpret_cast<void *>(made->base);
    image ? memcpy(backing(memory), image, bytes) : memset(backing(memory), 0, bytes);
    return memory;
}

} // namespace gpusim
