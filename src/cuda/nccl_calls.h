/* NCCL's functions. The plugin doesn't link to NCCL: it is looked for when it is first needed, and only then. */
#ifndef TPI_CUDA_NCCL_CALLS_H
#define TPI_CUDA_NCCL_CALLS_H

#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>

#define TPI_NCCL_CALLS(CALL)   \
    CALL(ncclGetVersion)         \
    CALL(ncclGetUniqueId)        \
    CALL(ncclGetErrorString)     \
    CALL(ncclGetLastError)       \
    CALL(ncclCommInitRankConfig) \
    CALL(ncclCommSplit)          \
    CALL(ncclCommFinalize)       \
    CALL(ncclCommDestroy)        \
    CALL(ncclCommAbort)          \
    CALL(ncclCommGetAsyncError)  \
    CALL(ncclGroupStart)         \
    CALL(ncclGroupEnd)           \
    CALL(ncclSend)               \
    CALL(ncclRecv)               \
    CALL(ncclBroadcast)          \
    CALL(ncclAllGather)          \
    CALL(ncclAllReduce)          \
    CALL(ncclReduceScatter)

/* NULL, all of them, before NCCL 2.27.1. Its headers are needed. */
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 1)
#error "the CUDA backend is built with the headers of NCCL 2.27.1 or later; it runs with 2.18 or later"
#endif
#define TPI_NCCL_WINDOW_CALLS(CALL) \
    CALL(ncclMemAlloc)                \
    CALL(ncclMemFree)                 \
    CALL(ncclCommWindowRegister)      \
    CALL(ncclCommWindowDeregister)

/* NULL before NCCL 2.29.2. For the host; but nccl_device.h, which declares it, is C++. */
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **out);
#define TPI_NCCL_ADDRESS_CALLS(CALL) CALL(ncclGetPeerDevicePointer)

#define TPI_NCCL_MEMBER(name) __typeof__(name) *name;
typedef struct tpi_nccl_calls {
    TPI_NCCL_CALLS(TPI_NCCL_MEMBER)
    TPI_NCCL_WINDOW_CALLS(TPI_NCCL_MEMBER)
    TPI_NCCL_ADDRESS_CALLS(TPI_NCCL_MEMBER)
    int version; /* of the library that is loaded, as ncclGetVersion gives it */
} tpi_nccl_calls;
#undef TPI_NCCL_MEMBER

/* Those of a plugin that NCCL, or a stand-in for it, is linked to (linked/nccl.c); false: there is none. */
bool tpi_nccl_linked(tpi_nccl_calls *out);

/* Fills in all calls that there are; false, with one line, if there is no NCCL or it is too old. */
bool tpi_nccl_load(tpi_nccl_calls *out, char *reason, size_t bytes);

#define TPI_NCCL_VERSION_FORMAT "%d.%d.%d"
#define TPI_NCCL_VERSION_PARTS(version) (version) / 10000, (version) / 100 % 100, (version) % 100

#endif
