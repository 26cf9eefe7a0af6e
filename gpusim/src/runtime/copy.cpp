// Copies and fills.
#include "../access.h"
#include "../backing.h"
#include "capture.h"
#include "runtime.h"

#include <cstring>

namespace gpusim {
namespace {

// Rows of `width` bytes; one row for plain copies.
struct Copy {
    const char *call;
    void *target;
    const void *source;
    size_t target_pitch, source_pitch, width, height;
    cudaMemcpyKind kind;
};

bool simulated(const void *memory)
{
    return memory_find(reinterpret_cast<uintptr_t>(memory)) != nullptr;
}

bool is_device(const void *memory)
{
    const Allocation *found = memory_find(reinterpret_cast<uintptr_t>(memory));
    return found && found->space == Space::device;
}

bool kind_fits(const Copy &copy)
{
    if (copy.kind == cudaMemcpyDefault)
        return true;
    const bool to_device = copy.kind == cudaMemcpyHostToDevice || copy.kind == cudaMemcpyDeviceToDevice;
    const bool from_device = copy.kind == cudaMemcpyDeviceToHost || copy.kind == cudaMemcpyDeviceToDevice;
    // Device copies may touch pinned memory; a host side must not be device memory.
    const bool target_fits = to_device ? simulated(copy.target) : !is_device(copy.target);
    const bool source_fits = from_device ? simulated(copy.source) : !is_device(copy.source);
    return target_fits && source_fits;
}

bool overlap(const Copy &copy)
{
    const uintptr_t target = reinterpret_cast<uintptr_t>(copy.target),
                    source = reinterpret_cast<uintptr_t>(copy.source);
    return target != source && (target - source < copy.width || source - target < copy.width);
}

bool rows_accessible(const void *memory, size_t pitch, const Copy &copy, unsigned flags)
{
    if (!simulated(memory))
        return true; // pageable host memory
    for (size_t row = 0; row < copy.height; row++)
        if (!range_access(static_cast<const char *>(memory) + row * pitch, copy.width, flags | kAnyDevice))
            return false;
    return true;
}

void move_rows(const Copy &copy)
{
    for (size_t row = 0; row < copy.height; row++)
        memmove(backing(static_cast<char *>(copy.target) + row * copy.target_pitch),
                backing(static_cast<const char *>(copy.source) + row * copy.source_pitch), copy.width);
}

// Pageable host memory is read at the call, as the driver's staging may; written before the call returns.
cudaError_t enqueue_copy(Copy copy, Stream &stream)
{
    if (!kind_fits(copy)) {
        report(GPUSIM_API, "%s: the copy's kind does not fit the pointers", copy.call);
        return fail(cudaErrorInvalidValue);
    }
    if (copy.width == 0 || copy.height == 0)
        return cudaSuccess;
    if (copy.height == 1 && overlap(copy))
        report(GPUSIM_API, "%s: source and target overlap", copy.call);
    counts().copies++;
    std::shared_ptr<std::vector<char>> staged;
    if (!simulated(copy.source)) {
        staged = std::make_shared<std::vector<char>>(copy.width * copy.height);
        Copy staging = copy;
        staging.target = staged->data();
        staging.target_pitch = copy.width;
        move_rows(staging);
        copy.source = staged->data();
        copy.source_pitch = copy.width;
    }
    const bool to_pageable = !simulated(copy.target);
    if (to_pageable && stream.capture)
        return capture_forbids(*stream.capture, "a copy to pageable host memory");
    std::vector<PinnedRange> pinned;
    pinned_add(pinned, copy.source, (copy.height - 1) * copy.source_pitch + copy.width);
    pinned_add(pinned, copy.target, (copy.height - 1) * copy.target_pitch + copy.width);
    const uint64_t sequence = push_work(stream, copy.call, [copy, staged] {
        if (!rows_accessible(copy.source, copy.source_pitch, copy, kRead) ||
            !rows_accessible(copy.target, copy.target_pitch, copy, kWrite))
            return cudaErrorIllegalAddress;
        move_rows(copy);
        return cudaSuccess;
    }, std::move(pinned));
    return to_pageable ? fail(wait_for_stream(stream, sequence)) : fail(device_fault(stream.device));
}

cudaError_t copy_async(const Copy &copy, cudaStream_t handle)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    return enqueue_copy(copy, *stream_of(handle, copy.call));
}

cudaError_t copy_now(const Copy &copy)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    if (const cudaError_t error = refuse_in_capture(copy.call))
        return error;
    wait_for_blocking_streams(current_device());
    Stream &stream = *implicit_stream();
    const cudaError_t error = enqueue_copy(copy, stream);
    return error != cudaSuccess ? error : fail(wait_for_stream(stream, stream.issued));
}

struct Fill {
    const char *call;
    void *target;
    size_t pitch, width, height;
    int value;
};

cudaError_t enqueue_fill(const Fill &fill, Stream &stream)
{
    if (fill.width == 0 || fill.height == 0)
        return cudaSuccess;
    if (!simulated(fill.target)) {
        report(GPUSIM_API, "%s of %p: %s", fill.call, fill.target,
               memory_near(reinterpret_cast<uintptr_t>(fill.target)).c_str());
        return fail(cudaErrorInvalidValue);
    }
    counts().copies++;
    std::vector<PinnedRange> pinned;
    pinned_add(pinned, fill.target, (fill.height - 1) * fill.pitch + fill.width);
    push_work(stream, fill.call, [fill] {
        for (size_t row = 0; row < fill.height; row++) {
            char *start = static_cast<char *>(fill.target) + row * fill.pitch;
            if (!range_access(start, fill.width, kWrite | kAnyDevice))
                return cudaErrorIllegalAddress;
            memset(backing(start), fill.value, fill.width);
        }
        return cudaSuccess;
    }, std::move(pinned));
    return fail(device_fault(stream.device));
}

cudaError_t fill_async(const Fill &fill, cudaStream_t handle)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    return enqueue_fill(fill, *stream_of(handle, fill.call));
}

cudaError_t fill_now(const Fill &fill)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    if (const cudaError_t error = refuse_in_capture(fill.call))
        return error;
    wait_for_blocking_streams(current_device());
    Stream &stream = *implicit_stream();
    const cudaError_t error = enqueue_fill(fill, stream);
    return error != cudaSuccess ? error : fail(wait_for_stream(stream, stream.issued));
}

} // namespace
} // namespace gpusim

using namespace gpusim;

extern "C" {

cudaError_t cudaMemcpy(void *target, const void *source, size_t bytes, cudaMemcpyKind kind)
{
    return copy_now({"cudaMemcpy", target, source, bytes, bytes, bytes, 1, kind});
}

cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream)
{
    return copy_async({"cudaMemcpyAsync", target, source, bytes, bytes, bytes, 1, kind}, stream);
}

cudaError_t cudaMemcpy2D(void *target, size_t target_pitch, const void *source, size_t source_pitch, size_t width,
                         size_t height, cudaMemcpyKind kind)
{
    if (width > target_pitch || width > source_pitch)
        return fail(cudaErrorInvalidPitchValue);
    return copy_now({"cudaMemcpy2D", target, source, target_pitch, source_pitch, width, height, kind});
}

cudaError_t cudaMemcpy2DAsync(void *target, size_t target_pitch, const void *source, size_t source_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream)
{
    if (width > target_pitch || width > source_pitch)
        return fail(cudaErrorInvalidPitchValue);
    return copy_async({"cudaMemcpy2DAsync", target, source, target_pitch, source_pitch, width, height, kind}, stream);
}

cudaError_t cudaMemcpyPeer(void *target, int, const void *source, int, size_t bytes)
{
    return copy_now({"cudaMemcpyPeer", target, source, bytes, bytes, bytes, 1, cudaMemcpyDefault});
}

cudaError_t cudaMemcpyPeerAsync(void *target, int target_device, const void *source, int source_device, size_t bytes,
                                cudaStream_t stream)
{
    {
        Locked lock(machine_lock());
        const Allocation *to = memory_find(reinterpret_cast<uintptr_t>(target));
        const Allocation *from = memory_find(reinterpret_cast<uintptr_t>(source));
        if ((to && to->space == Space::device && to->device != target_device) ||
            (from && from->space == Space::device && from->device != source_device))
            report(GPUSIM_WRONG_DEVICE, "cudaMemcpyPeerAsync: a pointer is not of the device that is named for it");
    }
    return copy_async({"cudaMemcpyPeerAsync", target, source, bytes, bytes, bytes, 1, cudaMemcpyDefault}, stream);
}

cudaError_t cudaMemset(void *target, int value, size_t bytes)
{
    return fill_now({"cudaMemset", target, bytes, bytes, 1, value});
}

cudaError_t cudaMemsetAsync(void *target, int value, size_t bytes, cudaStream_t stream)
{
    return fill_async({"cudaMemsetAsync", target, bytes, bytes, 1, value}, stream);
}

cudaError_t cudaMemset2D(void *target, size_t pitch, int value, size_t width, size_t height)
{
    return fill_now({"cudaMemset2D", target, pitch, width, height, value});
}

cudaError_t cudaMemset2DAsync(void *target, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream)
{
    return fill_async({"cudaMemset2DAsync", target, pitch, width, height, value}, stream);
}
}
