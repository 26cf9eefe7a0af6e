// Devices: number, properties, peers, synchronisation.
#include "../guard.h"
#include "runtime.h"

#include <cstring>
#include <set>

namespace gpusim {
namespace {

constexpr int shared_per_multiprocessor = 228 << 10;

thread_local int chosen_device;

std::set<std::pair<int, int>> &peers()
{
    static auto &enabled = *new std::set<std::pair<int, int>>;
    return enabled;
}

bool device_exists(int device)
{
    return device >= 0 && device < options().devices;
}

// 80: 163 KiB; 86 and 89: 99 KiB; 90 and up: 227 KiB. 12.x: 99 KiB.
int shared_opt_in()
{
    const int capability = options().compute_capability;
    if (capability == 86 || capability == 89 || capability >= 120)
        return 99 << 10;
    return (capability >= 90 ? 227 : 163) << 10;
}

} // namespace

int current_device()
{
    return chosen_device < 16 ? chosen_device : 0;
}

bool peer_enabled(int from, int to)
{
    return peers().count({from, to}) > 0;
}

cudaError_t wait_for_device(int device)
{
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < streams().size(); i++) {
        Stream &stream = *streams()[i];
        if (stream.device == device && error == cudaSuccess)
            error = wait_for_stream(stream, stream.issued);
    }
    return error;
}

void runtime_reset()
{
    scheduler_reset();
    guard_reset();
    event_reset();
    peers().clear();
    for (int device = 0; device < 16; device++)
        memory_default_pool(device)->access.clear();
}

} // namespace gpusim

using namespace gpusim;

extern "C" {

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = no_device())
        return fail(error); // the real one leaves *count unwritten too
    *count = options().devices;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = no_device())
        return fail(error);
    if (!device_exists(device))
        return fail(cudaErrorInvalidDevice);
    chosen_device = device;
    return fail(device_fault(device));
}

cudaError_t cudaInitDevice(int device, unsigned, unsigned)
{
    Locked lock(machine_lock());
    return device_exists(device) ? cudaSuccess : fail(cudaErrorInvalidDevice);
}

cudaError_t cudaGetDevice(int *device)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = no_device())
        return fail(error);
    *device = current_device();
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
    Locked lock(machine_lock());
    if (!device_exists(device))
        return fail(cudaErrorInvalidDevice);
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "gpusim %d", device);
    properties->major = options().compute_capability / 10;
    properties->minor = options().compute_capability % 10;
    properties->totalGlobalMem = options().device_bytes;
    properties->multiProcessorCount = options().multiprocessors;
    properties->warpSize = 32;
    properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->maxBlocksPerMultiProcessor = 32;
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = size_t(shared_opt_in());
    properties->sharedMemPerMultiprocessor = shared_per_multiprocessor;
    properties->reservedSharedMemPerBlock = 1 << 10;
    properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
    properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = 2147483647;
    properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
    properties->totalConstMem = 64 << 10;
    properties->memoryBusWidth = 4096;
    properties->l2CacheSize = 32 << 20;
    properties->asyncEngineCount = 2;
    properties->unifiedAddressing = properties->canMapHostMemory = properties->concurrentKernels = 1;
    properties->streamPrioritiesSupported = properties->memoryPoolsSupported = properties->cooperativeLaunch = 1;
    properties->hostRegisterSupported = properties->canUseHostPointerForRegisteredMem = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    cudaDeviceProp properties;
    const cudaError_t error = cudaGetDeviceProperties(&properties, device);
    if (error != cudaSuccess)
        return error;
    const struct {
        cudaDeviceAttr attribute;
        size_t value;
    } values[] = {
        {cudaDevAttrMultiProcessorCount, size_t(properties.multiProcessorCount)},
        {cudaDevAttrComputeCapabilityMajor, size_t(properties.major)},
        {cudaDevAttrComputeCapabilityMinor, size_t(properties.minor)},
        {cudaDevAttrWarpSize, 32},
        {cudaDevAttrMaxThreadsPerBlock, 1024},
        {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
        {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
        {cudaDevAttrMaxBlockDimX, 1024},
        {cudaDevAttrMaxBlockDimY, 1024},
        {cudaDevAttrMaxBlockDimZ, 64},
        {cudaDevAttrMaxGridDimX, 2147483647},
        {cudaDevAttrMaxGridDimY, 65535},
        {cudaDevAttrMaxGridDimZ, 65535},
        {cudaDevAttrMaxSharedMemoryPerBlock, properties.sharedMemPerBlock},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, properties.sharedMemPerBlockOptin},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, properties.sharedMemPerMultiprocessor},
        {cudaDevAttrReservedSharedMemoryPerBlock, properties.reservedSharedMemPerBlock},
        {cudaDevAttrMaxRegistersPerBlock, 65536},
        {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
        {cudaDevAttrTotalConstantMemory, properties.totalConstMem},
        {cudaDevAttrL2CacheSize, size_t(properties.l2CacheSize)},
        {cudaDevAttrClockRate, 1410000},
        {cudaDevAttrMemoryClockRate, 1215000},
        {cudaDevAttrGlobalMemoryBusWidth, 4096},
        {cudaDevAttrAsyncEngineCount, 2},
        {cudaDevAttrUnifiedAddressing, 1},
        {cudaDevAttrCanMapHostMemory, 1},
        {cudaDevAttrConcurrentKernels, 1},
        {cudaDevAttrStreamPrioritiesSupported, 1},
        {cudaDevAttrMemoryPoolsSupported, 1},
        {cudaDevAttrCooperativeLaunch, 1},
        {cudaDevAttrHostRegisterSupported, 1},
        {cudaDevAttrCanUseHostPointerForRegisteredMem, 1},
    };
    *value = 0; // what it can't do
    for (const auto &one : values)
        if (one.attribute == attribute)
            *value = int(one.value);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device)
{
    if (length < 13)
        return fail(cudaErrorInvalidValue);
    snprintf(text, size_t(length), "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    Locked lock(machine_lock());
    cudaError_t error = enter();
    if (error == cudaSuccess)
        error = refuse_in_capture("cudaDeviceSynchronize");
    return error != cudaSuccess ? error : fail(wait_for_device(current_device()));
}

cudaError_t cudaDeviceReset(void)
{
    Locked lock(machine_lock());
    report(GPUSIM_UNSUPPORTED, "cudaDeviceReset");
    return fail(cudaErrorNotSupported);
}

cudaError_t cudaDeviceSetLimit(cudaLimit, size_t)
{
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    Locked lock(machine_lock());
    if (!device_exists(device) || !device_exists(peer))
        return fail(cudaErrorInvalidDevice);
    *can = device != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    if (!device_exists(peer) || peer == current_device())
        return fail(cudaErrorInvalidDevice);
    if (flags != 0)
        return fail(cudaErrorInvalidValue);
    return peers().insert({current_device(), peer}).second ? cudaSuccess : fail(cudaErrorPeerAccessAlreadyEnabled);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    Locked lock(machine_lock());
    return peers().erase({current_device(), peer}) ? cudaSuccess : fail(cudaErrorPeerAccessNotEnabled);
}

cudaError_t cudaDeviceGetP2PAttribute(int *value, cudaDeviceP2PAttr attribute, int source, int target)
{
    Locked lock(machine_lock());
    if (!device_exists(source) || !device_exists(target) || source == target)
        return fail(cudaErrorInvalidDevice);
    *value = attribute == cudaDevP2PAttrAccessSupported || attribute == cudaDevP2PAttrNativeAtomicSupported;
    return cudaSuccess;
}
}
