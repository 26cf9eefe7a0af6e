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

#define TPI_NCCL_MEMBER(name) __typeof__(name) *name;
typedef struct tpi_nccl_calls {
    TPI_NCCL_CALLS(TPI_NCCL_MEMBER)
} tpi_nccl_calls;
#undef TPI_NCCL_MEMBER

/* Those of a plugin that NCCL, or a stand-in for it, is linked to (linked/nccl.c); false: there is none. */
bool tpi_nccl_linked(tpi_nccl_calls *out);

/* Fills in all calls; false, with one line, if there is no NCCL or it is too old. */
bool tpi_nccl_load(tpi_nccl_calls *out, char *reason, size_t bytes);

#endif
