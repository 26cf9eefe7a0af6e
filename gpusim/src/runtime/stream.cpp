// Streams.
#include "../handles.h"
#include "capture.h"
#include "runtime.h"

namespace gpusim {
namespace {

Stream *&implicit_streams(int device)
{
    static Stream *all[16];
    return all[device];
}

cudaError_t create(cudaStream_t *made, unsigned flags, int priority)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    if (!made || (flags & ~unsigned(cudaStreamNonBlocking)))
        return fail(cudaErrorInvalidValue);
    CUstream_st *stream = stream_new(current_device());
    stream->flags = flags;
    stream->priority = priority;
    handle_made(stream, Handle::stream, stream->device);
    *made = stream;
    return cudaSuccess;
}

} // namespace

Stream *implicit_stream()
{
    Stream *&stream = implicit_streams(current_device());
    if (!stream) {
        stream = stream_new(current_device());
        stream->legacy = true;
    }
    return stream;
}

Stream *stream_of(cudaStream_t handle, const char *call)
{
    if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
        report(GPUSIM_UNSUPPORTED,
               "%s on a default stream: its order against other streams is not simulated; create streams with "
               "cudaStreamNonBlocking",
               call);
        return implicit_stream();
    }
    if (handle->destroyed)
        report(GPUSIM_API, "%s on a stream that was destroyed", call);
    return handle;
}

bool stream_belongs(const Stream &stream, const char *call)
{
    if (stream.device == current_device())
        return true;
    report(GPUSIM_WRONG_DEVICE, "%s: the stream is of device %d, and device %d is current", call, stream.device,
           current_device());
    return false;
}

void wait_for_blocking_streams(int device)
{
    for (size_t i = 0; i < streams().size(); i++) {
        Stream &stream = *streams()[i];
        if (stream.device == device && !(stream.flags & cudaStreamNonBlocking) && !stream.legacy)
            wait_for_stream(stream, stream.issued);
    }
}

} // namespace gpusim

using namespace gpusim;

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return create(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return create(stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    return create(stream, flags, priority < -5 ? -5 : priority > 0 ? 0 : priority);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority)
{
    Locked lock(machine_lock());
    *priority = stream_of(handle, "cudaStreamGetPriority")->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned *flags)
{
    Locked lock(machine_lock());
    *flags = stream_of(handle, "cudaStreamGetFlags")->flags;
    return cudaSuccess;
}

cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long *id)
{
    Locked lock(machine_lock());
    *id = 1 + unsigned(stream_of(handle, "cudaStreamGetId")->number);
    return cudaSuccess;
}

cudaError_t cudaStreamGetDevice(cudaStream_t handle, int *device)
{
    Locked lock(machine_lock());
    *device = stream_of(handle, "cudaStreamGetDevice")->device;
    return cudaSuccess;
}

// What is queued still runs.
cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    Locked lock(machine_lock());
    if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread)
        return fail(cudaErrorInvalidResourceHandle);
    Stream *stream = stream_of(handle, "cudaStreamDestroy");
    if (stream->capture)
        return fail(cudaErrorStreamCaptureUnsupported);
    stream->destroyed = true;
    handle_gone(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    Stream *stream = stream_of(handle, "cudaStreamSynchronize");
    if (stream->capture)
        return capture_forbids(*stream->capture, "cudaStreamSynchronize");
    if (waits_for_own_group(*stream))
        report(GPUSIM_NCCL, "cudaStreamSynchronize between ncclGroupStart and ncclGroupEnd, of a stream with calls of "
                            "the group: it doesn't wait for them");
    return fail(wait_for_stream(*stream, stream->issued));
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    counts().host_queries++;
    Stream *stream = stream_of(handle, "cudaStreamQuery");
    if (stream->capture)
        return capture_forbids(*stream->capture, "cudaStreamQuery");
    poll(*stream, stream->issued);
    if (stream->done < stream->issued)
        return fail(cudaErrorNotReady);
    host_has_seen(stream->clock);
    return fail(device_fault(stream->device));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *data)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    Task task;
    task.kind = TaskKind::host_function;
    task.name = "host function";
    task.run = [=] {
        function(data);
        return cudaSuccess;
    };
    push(*stream_of(handle, "cudaLaunchHostFunc"), std::move(task));
    return fail(device_fault(current_device()));
}

cudaError_t cudaStreamSetAttribute(cudaStream_t, cudaStreamAttrID, const cudaStreamAttrValue *)
{
    return cudaSuccess; // hints
}
}
