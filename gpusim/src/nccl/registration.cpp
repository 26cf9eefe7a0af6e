// Memory for NCCL. Windows can be registered as anywhere, but symmetric memory is not there: no device communicator is made.
#include "communicator.h"

using namespace gpusim;

struct ncclWindow_vidmem {
    void *memory;
    size_t bytes;
};

extern "C" {

ncclResult_t ncclMemAlloc(void **memory, size_t bytes)
{
    return cudaMalloc(memory, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void *memory)
{
    return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *memory, size_t bytes, void **handle)
{
    if (!comm || !memory || !handle)
        return ncclInvalidArgument;
    *handle = new ncclWindow_vidmem{memory, bytes};
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t, void *handle)
{
    delete static_cast<ncclWindow_vidmem *>(handle);
    return ncclSuccess;
}

// As NCCL does without symmetric memory: success, and a handle that device code must not use.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes, ncclWindow_t *window, int)
{
    if (!comm || !memory || !window)
        return ncclInvalidArgument;
    *window = reinterpret_cast<ncclWindow_t>(new ncclWindow_vidmem{memory, bytes});
    return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t window)
{
    delete reinterpret_cast<ncclWindow_vidmem *>(window);
    return ncclSuccess;
}

#pragma GCC visibility push(default)
ncclResult_t ncclDevCommCreate(ncclComm_t, const void *, void *)
{
    return nccl_fail(ncclInvalidUsage, "symmetric memory is not supported by this communicator");
}

ncclResult_t ncclDevCommDestroy(ncclComm_t, const void *)
{
    return ncclSuccess;
}
#pragma GCC visibility pop
}
