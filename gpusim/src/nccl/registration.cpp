// Memory for NCCL, and windows: memory that all ranks of a communicator register together, and then reach.
#include "group.h"

#include <set>

// `all` is empty where there is no symmetric memory: the window stands for a registration of this rank alone.
struct ncclWindow_vidmem {
    ncclComm_t comm;
    void *memory;
    size_t bytes;
    int flags;
    std::shared_ptr<gpusim::Registration> all;
    bool aborted = false; // kernels that were queued go on with it, until the rank frees its memory
};

namespace gpusim {
namespace {

constexpr int newest = NCCL_VERSION(2, 30, 7);
constexpr int first_with_windows = NCCL_VERSION(2, 27, 1);
constexpr int first_with_null = NCCL_VERSION(2, 29, 2); // for no window, and with the peers' addresses for the host
constexpr double patience = 60;                         // seconds that ranks wait for each other to come

int simulated_version = newest;
bool has_symmetric = true;

std::set<ncclWindow_t> &windows()
{
    static auto &all = *new std::set<ncclWindow_t>;
    return all;
}

std::set<void *> &memories()
{
    static auto &all = *new std::set<void *>;
    return all;
}

ncclResult_t refuse(const char *call, const std::string &why)
{
    report(GPUSIM_NCCL, "%s: %s", call, why.c_str());
    return group_error(nccl_fail(ncclInvalidArgument, std::string(call) + ": " + why));
}

bool lacks(const char *call, int first)
{
    if (simulated_version < first)
        report(GPUSIM_UNSUPPORTED, "%s: NCCL %d doesn't have it", call, simulated_version);
    return simulated_version < first;
}

bool lies_in(const void *memory, const ncclWindow_vidmem &window)
{
    const uintptr_t place = reinterpret_cast<uintptr_t>(memory), begin = reinterpret_cast<uintptr_t>(window.memory);
    return place >= begin && place - begin < window.bytes;
}

// Devices on which the memory is mapped by a window.
uint32_t mapped_on(const Allocation &allocation)
{
    uint32_t devices = 0;
    for (const ncclWindow_t window : windows())
        if (window->all)
            for (const Registration::Wish &wish : window->all->wishes)
                if (allocation.contains(reinterpret_cast<uintptr_t>(wish.memory)))
                    devices |= 1u << window->comm->device;
    return devices;
}

// Whoever holds a window may use the memory of all, also of those that have ended theirs.
void open_memory(const Registration &registration)
{
    for (const Registration::Wish &wish : registration.wishes) {
        Allocation *allocation = memory_find(reinterpret_cast<uintptr_t>(wish.memory));
        if (allocation && allocation->live)
            allocation->open_to = mapped_on(*allocation);
    }
}

// Freed by its owner, and mapped by others.
std::set<void *> &orphans()
{
    static auto &all = *new std::set<void *>;
    return all;
}

void free_orphans()
{
    for (auto place = orphans().begin(); place != orphans().end();) {
        const Allocation *allocation = memory_find(reinterpret_cast<uintptr_t>(*place));
        if (allocation && mapped_on(*allocation)) {
            ++place;
            continue;
        }
        cudaFree(*place);
        place = orphans().erase(place);
    }
}

bool wishes_agree(const Registration &registration)
{
    const Registration::Wish &first = registration.wishes.front();
    for (const Registration::Wish &wish : registration.wishes)
        if (wish.bytes != first.bytes || wish.flags != first.flags) {
            report(GPUSIM_NCCL,
                   "ncclCommWindowRegister: rank %d registers %zu bytes with flags %d, rank %d %zu with %d",
                   first.comm->rank, first.bytes, first.flags, wish.comm->rank, wish.bytes, wish.flags);
            return false;
        }
    return true;
}

void finish(const std::shared_ptr<Registration> &registration)
{
    registration->windows.resize(registration->wishes.size());
    registration->done = true;
    if (!wishes_agree(*registration)) {
        registration->result = nccl_fail(ncclInvalidArgument, "ncclCommWindowRegister: ranks differ");
    } else {
        for (const Registration::Wish &wish : registration->wishes) {
            *wish.made = new ncclWindow_vidmem{wish.comm, wish.memory, wish.bytes, wish.flags, registration, false};
            registration->windows[size_t(wish.comm->rank)] = *wish.made;
            windows().insert(*wish.made);
        }
        open_memory(*registration);
    }
    machine_changed();
}

void close_window(ncclWindow_t window)
{
    windows().erase(window);
    if (const std::shared_ptr<Registration> all = window->all) {
        all->windows[size_t(window->comm->rank)] = nullptr;
        open_memory(*all);
    }
    delete window;
    free_orphans();
}

// What the real one demands of the memory: cuMem's, from a multiple of 4096 on.
ncclResult_t check_memory(void *memory, size_t bytes, int device)
{
    const char *call = "ncclCommWindowRegister";
    const Allocation *allocation = memory_find(reinterpret_cast<uintptr_t>(memory));
    if (!allocation || !allocation->live || memories().count(reinterpret_cast<void *>(allocation->base)) == 0)
        return refuse(call, "memory that is not from ncclMemAlloc");
    const size_t offset = reinterpret_cast<uintptr_t>(memory) - allocation->base;
    if (offset % NCCL_WIN_REQUIRED_ALIGNMENT != 0)
        return refuse(call, format_text("a window from byte %zu of its memory on: no multiple of %d", offset,
                                        NCCL_WIN_REQUIRED_ALIGNMENT));
    if (bytes > allocation->bytes - offset)
        return refuse(call, format_text("%zu bytes from byte %zu on of %zu", bytes, offset, allocation->bytes));
    return allocation->device == device ? ncclSuccess
                                        : refuse(call, format_text("memory of device %d", allocation->device));
}

ncclResult_t join(const Registration::Wish &wish)
{
    ncclComm_t comm = wish.comm;
    std::shared_ptr<Registration> &slot = comm->team->registrations[comm->registrations++];
    if (!slot)
        slot = std::make_shared<Registration>();
    const std::shared_ptr<Registration> registration = slot;
    comm->registering = registration;
    registration->wishes.push_back(wish);
    if (registration->wishes.size() == comm->team->ranks.size())
        finish(registration);
    if (in_group()) {
        add_registration_wait(registration);
        return ncclSuccess;
    }
    if (!comm->blocking)
        return registration->done ? registration->result : ncclInProgress;
    return registration_wait(*registration);
}

} // namespace

ncclResult_t registration_wait(Registration &registration)
{
    if (wait_for_condition(patience, [&] { return registration.done; }))
        return registration.result;
    report(GPUSIM_NCCL, "ncclCommWindowRegister: not all ranks called it");
    return nccl_fail(ncclSystemError, "ncclCommWindowRegister: not all ranks called it");
}

void windows_close(ncclComm_t comm, bool leaked)
{
    std::vector<ncclWindow_t> left;
    for (const ncclWindow_t window : windows())
        if (window->comm == comm)
            left.push_back(window);
    for (const ncclWindow_t window : left) {
        if (leaked)
            report(GPUSIM_LEAK, "ncclCommDestroy with a window of %zu bytes on rank %d", window->bytes, comm->rank);
        window->aborted = true;
    }
    if (comm->registering && !comm->registering->done) { // it will never come
        auto &wishes = comm->registering->wishes;
        for (size_t i = 0; i < wishes.size(); i++)
            if (wishes[i].comm == comm)
                wishes.erase(wishes.begin() + ptrdiff_t(i--));
    }
}

SymmetricPlace symmetric_place(ncclComm_t comm, const CollectiveArguments &arguments)
{
    SymmetricPlace place;
    for (const ncclWindow_t window : windows()) {
        if (window->comm != comm || !window->all || !(window->flags & NCCL_WIN_COLL_SYMMETRIC))
            continue;
        const char *begin = static_cast<const char *>(window->memory);
        if (lies_in(arguments.send, *window)) {
            place.send = window->all.get();
            place.send_offset = size_t(static_cast<const char *>(arguments.send) - begin);
        }
        if (lies_in(arguments.receive, *window)) {
            place.receive = window->all.get();
            place.receive_offset = size_t(static_cast<const char *>(arguments.receive) - begin);
        }
    }
    place.symmetric = place.send && place.receive;
    return place;
}

bool in_window(ncclComm_t comm, const void *address)
{
    for (const ncclWindow_t window : windows())
        if (window->comm == comm && lies_in(address, *window))
            return true;
    return false;
}

} // namespace gpusim

using namespace gpusim;

extern "C" {

void gpusim_nccl(int version, bool symmetric)
{
    Locked lock(machine_lock());
    simulated_version = version ? version : newest;
    has_symmetric = symmetric;
}

ncclResult_t ncclGetVersion(int *version)
{
    if (!version)
        return ncclInvalidArgument;
    *version = simulated_version;
    return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void **memory, size_t bytes)
{
    Locked lock(machine_lock());
    if (!memory || bytes == 0)
        return refuse("ncclMemAlloc", format_text("%zu bytes", bytes));
    if (planted_failure(current_device()) != Planted::nothing)
        return nccl_fail(ncclSystemError, "ncclMemAlloc: a planted failure");
    if (cudaMalloc(memory, bytes) != cudaSuccess)
        return nccl_fail(ncclUnhandledCudaError, "ncclMemAlloc: no memory");
    memories().insert(*memory);
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *memory)
{
    Locked lock(machine_lock());
    if (!memory)
        return ncclSuccess;
    if (!memories().erase(memory))
        return refuse("ncclMemFree", "memory that is not from ncclMemAlloc");
    const std::set<ncclWindow_t> all = windows();
    for (const ncclWindow_t window : all) {
        if (window->memory != memory)
            continue;
        if (!window->aborted)
            report(GPUSIM_NCCL, "ncclMemFree of memory that rank %d still has a window of", window->comm->rank);
        close_window(window);
    }
    orphans().insert(memory);
    free_orphans();
    return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *memory, size_t bytes, void **handle)
{
    if (!comm || !memory || !handle)
        return ncclInvalidArgument;
    *handle = new ncclWindow_vidmem{comm, memory, bytes, 0, nullptr, false};
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t, void *handle)
{
    delete static_cast<ncclWindow_vidmem *>(handle);
    return ncclSuccess;
}

// Without symmetric memory it is a success, too: with a handle of this rank's own, or, in later versions, with none.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes, ncclWindow_t *window, int flags)
{
    Locked lock(machine_lock());
    const char *call = "ncclCommWindowRegister";
    if (lacks(call, first_with_windows))
        return ncclInvalidUsage;
    if (!comm || comm->dead || !comm->team->complete || !memory || bytes == 0 || !window)
        return refuse(call, "no communicator that is ready, or no memory");
    *window = nullptr;
    const Planted planted = planted_failure(comm->device);
    if (planted == Planted::at_call)
        return group_error(nccl_fail(ncclSystemError, "ncclCommWindowRegister: a planted failure"));
    if (planted == Planted::later) {
        comm->failed = ncclRemoteError;
        return comm->blocking ? ncclRemoteError : ncclInProgress;
    }
    if (!has_symmetric) {
        if (simulated_version < first_with_null)
            windows().insert(*window = new ncclWindow_vidmem{comm, memory, bytes, flags, nullptr, false});
        return ncclSuccess;
    }
    if (const ncclResult_t wrong = check_memory(memory, bytes, comm->device))
        return wrong;
    return join({comm, memory, bytes, flags, window});
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    Locked lock(machine_lock());
    if (!window)
        return ncclSuccess;
    if (!comm || comm->dead || !windows().count(window) || window->comm != comm)
        return refuse("ncclCommWindowDeregister", "no window of this communicator");
    close_window(window);
    return ncclSuccess;
}

ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **memory)
{
    Locked lock(machine_lock());
    const char *call = "ncclGetPeerDevicePointer";
    if (lacks(call, first_with_null))
        return ncclInvalidUsage;
    if (!memory || !windows().count(window) || !window->all)
        return refuse(call, "not a window");
    if (offset >= window->bytes || peer < 0 || size_t(peer) >= window->all->windows.size())
        return refuse(call, format_text("byte %zu of rank %d, in a window of %zu bytes on %zu ranks", offset, peer,
                                        window->bytes, window->all->windows.size()));
    if (planted_failure(window->comm->device) != Planted::nothing)
        return nccl_fail(ncclSystemError, "ncclGetPeerDevicePointer: a planted failure");
    const ncclWindow_t other = window->all->windows[size_t(peer)];
    *memory = other ? static_cast<char *>(other->memory) + offset : nullptr;
    return ncclSuccess;
}

// Device code can't use windows here: handles are not device memory, which the monitor says of kernels that read them.
#pragma GCC visibility push(default)
ncclResult_t ncclDevCommCreate(ncclComm_t, const void *, void *)
{
    return nccl_fail(ncclInvalidUsage, "device communicators are not simulated");
}

ncclResult_t ncclDevCommDestroy(ncclComm_t, const void *)
{
    return ncclSuccess;
}
#pragma GCC visibility pop
}
