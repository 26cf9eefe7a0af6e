// Short forms for tests: buffers, streams and events of simulated devices.
#pragma once
#include "check.h"

#include <cuda_runtime_api.h>

inline cudaStream_t new_stream(int device = 0)
{
    cudaStream_t stream = nullptr;
    cudaSetDevice(device);
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    return stream;
}

inline cudaEvent_t new_event(int device = 0)
{
    cudaEvent_t event = nullptr;
    cudaSetDevice(device);
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
    return event;
}

template <class T> T *device_array(size_t count, int device = 0)
{
    void *memory = nullptr;
    cudaSetDevice(device);
    CHECK(cudaMalloc(&memory, count * sizeof(T)) == cudaSuccess);
    return static_cast<T *>(memory);
}

template <class T> T *pinned_array(size_t count)
{
    void *memory = nullptr;
    CHECK(cudaMallocHost(&memory, count * sizeof(T)) == cudaSuccess);
    return static_cast<T *>(memory);
}

template <class T> void upload(T *target, const std::vector<T> &values, cudaStream_t stream)
{
    CHECK(cudaMemcpyAsync(target, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream) ==
          cudaSuccess);
}

template <class T> std::vector<T> download(const T *source, size_t count, cudaStream_t stream)
{
    std::vector<T> values(count);
    CHECK(cudaMemcpyAsync(values.data(), source, count * sizeof(T), cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    return values;
}

// `waiter` goes on only after what `recorder` has been given so far.
inline void order(cudaStream_t recorder, cudaStream_t waiter, int device = 0)
{
    cudaEvent_t event = new_event(device);
    CHECK(cudaEventRecord(event, recorder) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(waiter, event, 0) == cudaSuccess);
    CHECK(cudaEventDestroy(event) == cudaSuccess);
}
