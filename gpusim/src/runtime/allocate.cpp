// Memory: cudaMalloc and its kin, pools, pinned and registered host memory.
#include "../access.h"
#include "capture.h"
#include "runtime.h"

namespace gpusim {
namespace {

cudaError_t allocate_device(void **made, size_t bytes, const char *call)
{
    if (const cudaError_t error = enter())
        return error;
    if (!made)
        return fail(cudaErrorInvalidValue);
    if (const cudaError_t error = refuse_in_capture(call))
        return error;
    counts().allocations++;
    if (bytes == 0) {
        *made = nullptr;
        return cudaSuccess;
    }
    Allocation *allocation = memory_allocate(bytes, current_device(), Space::device);
    if (!allocation)
        return fail(cudaErrorMemoryAllocation);
    *made = reinterpret_cast<void *>(allocation->base);
    return cudaSuccess;
}

Allocation *live_allocation(void *memory, const char *call, Space space)
{
    static const char *const others[] = {"device memory", "pinned memory", "registered host memory"};
    Allocation *found = memory_find(reinterpret_cast<uintptr_t>(memory));
    if (found && found->base == reinterpret_cast<uintptr_t>(memory) && found->live && found->space == space)
        return found;
    report(GPUSIM_API, "%s of %p: %s", call, memory,
           !found                  ? "no allocation"
           : !found->live          ? "already freed"
           : found->space != space ? others[int(found->space)]
                                   : "not the start of an allocation");
    return nullptr;
}

// Frees at once; the caller has made sure of the order. Work still queued that uses it is found when it runs.
cudaError_t free_now(void *memory, const char *call, bool pinned)
{
    Allocation *found = live_allocation(memory, call, pinned ? Space::pinned : Space::device);
    if (!found)
        return fail(cudaErrorInvalidValue);
    pinned_forget(found->base, found->base + found->bytes);
    memory_free(found, call);
    return cudaSuccess;
}

cudaError_t allocate_async(void **made, size_t bytes, const MemoryPool *pool, Stream &stream)
{
    if (stream.capture) {
        report(GPUSIM_UNSUPPORTED, "cudaMallocAsync in a stream capture");
        return capture_forbids(*stream.capture, "cudaMallocAsync");
    }
    counts().allocations++;
    if (bytes == 0) {
        *made = nullptr;
        return cudaSuccess;
    }
    Allocation *allocation = memory_allocate(bytes, pool->device, Space::device);
    if (!allocation) { // frees that are queued give theirs back
        wait_for_device(pool->device);
        allocation = memory_allocate(bytes, pool->device, Space::device);
    }
    if (!allocation)
        return fail(cudaErrorMemoryAllocation);
    allocation->pool = pool;
    allocation->allocated_by = not_yet_allocated;
    *made = reinterpret_cast<void *>(allocation->base);
    push_work(stream, "cudaMallocAsync", [allocation] {
        allocation->allocated_by = current_operation()->id;
        return cudaSuccess;
    });
    return cudaSuccess;
}

cudaError_t allocate_host(void **made, size_t bytes, unsigned flags)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    if (!made)
        return fail(cudaErrorInvalidValue);
    if (const cudaError_t error = refuse_in_capture("cudaHostAlloc"))
        return error;
    counts().allocations++;
    Allocation *allocation = memory_allocate(bytes ? bytes : 1, current_device(), Space::pinned);
    if (!allocation)
        return fail(cudaErrorMemoryAllocation);
    allocation->host_flags = flags;
    *made = reinterpret_cast<void *>(allocation->base);
    return cudaSuccess;
}

} // namespace
} // namespace gpusim

using namespace gpusim;

extern "C" {

cudaError_t cudaMalloc(void **made, size_t bytes)
{
    Locked lock(machine_lock());
    return allocate_device(made, bytes, "cudaMalloc");
}

cudaError_t cudaMallocPitch(void **made, size_t *pitch, size_t width, size_t height)
{
    Locked lock(machine_lock());
    *pitch = (width + 511) / 512 * 512;
    return allocate_device(made, *pitch * height, "cudaMallocPitch");
}

// Waits for all work of the device, as the real one does.
cudaError_t cudaFree(void *memory)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    if (const cudaError_t error = refuse_in_capture("cudaFree"))
        return error;
    if (!memory)
        return cudaSuccess;
    if (const cudaError_t error = wait_for_device(current_device()))
        return fail(error);
    return free_now(memory, "cudaFree", false);
}

cudaError_t cudaMallocAsync(void **made, size_t bytes, cudaStream_t handle)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    Stream *stream = stream_of(handle, "cudaMallocAsync");
    return allocate_async(made, bytes, memory_default_pool(stream->device), *stream);
}

cudaError_t cudaMallocFromPoolAsync(void **made, size_t bytes, cudaMemPool_t pool, cudaStream_t handle)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    return allocate_async(made, bytes, pool, *stream_of(handle, "cudaMallocFromPoolAsync"));
}

// The free counts as a write: whatever is not ordered before it is a race.
cudaError_t cudaFreeAsync(void *memory, cudaStream_t handle)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    if (!memory)
        return cudaSuccess;
    Stream *stream = stream_of(handle, "cudaFreeAsync");
    if (stream->capture)
        return capture_forbids(*stream->capture, "cudaFreeAsync");
    Allocation *found = live_allocation(memory, "cudaFreeAsync", Space::device);
    if (!found)
        return fail(cudaErrorInvalidValue);
    push_work(*stream, "cudaFreeAsync", [found] {
        const void *base = reinterpret_cast<const void *>(found->base);
        if (found->live && range_access(base, found->bytes, kWrite | kAnyDevice))
            memory_free(found, "cudaFreeAsync");
        else if (!found->live)
            report(GPUSIM_USE_AFTER_FREE, "cudaFreeAsync of memory that %s has freed", found->freed_by);
        return cudaSuccess;
    });
    return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    Locked lock(machine_lock());
    if (device < 0 || device >= options().devices)
        return fail(cudaErrorInvalidDevice);
    *pool = memory_default_pool(device);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device)
{
    return cudaDeviceGetDefaultMemPool(pool, device);
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const cudaMemPoolProps *properties)
{
    Locked lock(machine_lock());
    auto *made = new CUmemPoolHandle_st;
    made->device = properties->location.id;
    *pool = made;
    return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t)
{
    return cudaSuccess; // allocations of it may still live
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *)
{
    return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value)
{
    Locked lock(machine_lock());
    const bool number = attribute == cudaMemPoolReuseFollowEventDependencies ||
                        attribute == cudaMemPoolReuseAllowOpportunistic ||
                        attribute == cudaMemPoolReuseAllowInternalDependencies;
    if (number)
        *static_cast<int *>(value) = 1;
    else
        *static_cast<uint64_t *>(value) = attribute == cudaMemPoolAttrReleaseThreshold ? 0 : memory_used(pool->device);
    return cudaSuccess;
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc *list, size_t count)
{
    Locked lock(machine_lock());
    for (size_t i = 0; i < count; i++) {
        if (list[i].flags == cudaMemAccessFlagsProtReadWrite)
            pool->access.insert(list[i].location.id);
        else
            pool->access.erase(list[i].location.id);
    }
    return cudaSuccess;
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t)
{
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **made, size_t bytes)
{
    return allocate_host(made, bytes, cudaHostAllocDefault);
}

cudaError_t cudaHostAlloc(void **made, size_t bytes, unsigned flags)
{
    return allocate_host(made, bytes, flags);
}

cudaError_t cudaFreeHost(void *memory)
{
    Locked lock(machine_lock());
    if (!memory)
        return cudaSuccess;
    if (const cudaError_t error = refuse_in_capture("cudaFreeHost"))
        return error;
    return free_now(memory, "cudaFreeHost", true);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    if (!memory || bytes == 0)
        return fail(cudaErrorInvalidValue);
    Allocation *allocation = memory_register(memory, bytes);
    if (!allocation)
        return fail(cudaErrorHostMemoryAlreadyRegistered);
    allocation->host_flags = flags;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory)
{
    Locked lock(machine_lock());
    Allocation *found = live_allocation(memory, "cudaHostUnregister", Space::registered);
    if (!found)
        return fail(cudaErrorHostMemoryNotRegistered);
    memory_free(found, "cudaHostUnregister");
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **device_pointer, void *memory, unsigned)
{
    Locked lock(machine_lock());
    const Allocation *found = memory_find(reinterpret_cast<uintptr_t>(memory));
    if (!found || !found->live || found->space == Space::device)
        return fail(cudaErrorInvalidValue);
    *device_pointer = memory;
    return cudaSuccess;
}

cudaError_t cudaHostGetFlags(unsigned *flags, void *memory)
{
    Locked lock(machine_lock());
    const Allocation *found = memory_find(reinterpret_cast<uintptr_t>(memory));
    if (!found || !found->live || found->space == Space::device)
        return fail(cudaErrorInvalidValue);
    *flags = found->host_flags;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *memory)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    *attributes = cudaPointerAttributes{};
    const Allocation *found = memory_find(reinterpret_cast<uintptr_t>(memory));
    attributes->device = -2; // as the real one says of memory it doesn't know
    attributes->hostPointer = const_cast<void *>(memory);
    if (!found || !found->live)
        return cudaSuccess;
    attributes->device = found->device;
    attributes->devicePointer = const_cast<void *>(memory);
    attributes->type = found->space == Space::device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    if (found->space == Space::device)
        attributes->hostPointer = nullptr;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    *total_bytes = options().device_bytes;
    *free_bytes = options().device_bytes - memory_used(current_device());
    return cudaSuccess;
}
}
