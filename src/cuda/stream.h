/* What op files see of a stream and its device. Compiles as C and C++; op files never include core/context.h (C11
 * atomics). */
#ifndef TPI_CUDA_STREAM_H
#define TPI_CUDA_STREAM_H

#include <cuda_runtime_api.h>

#include "cuda/ops.h"

/* What the first wrong input of a kernel was; in pinned memory that kernels write. kind 0: nothing. Claimed by
 * compare-and-swap on kind, with system scope; read by the host after a synchronisation. */
typedef enum tpi_cuda_fault_kind {
    TPI_CUDA_FAULT_NONE = 0,
    TPI_CUDA_FAULT_ID,
    TPI_CUDA_FAULT_POSITION,
    TPI_CUDA_FAULT_TARGET,
    TPI_CUDA_FAULT_PEER, /* a rank did not come to a meeting in time */
    TPI_CUDA_FAULT_HALT  /* a kernel that waited for peers was told to give up */
} tpi_cuda_fault_kind;

typedef struct tpi_cuda_fault {
    unsigned kind;
    int value;            /* the id; the rank that did not come */
    long long place;      /* its row; the meeting */
    long long vocabulary; /* milliseconds waited */
} tpi_cuda_fault;

typedef struct tpi_cuda_device {
    int index, major, minor;
    int multiprocessors;
    size_t shared_bytes; /* dynamic shared memory that a block may ask for */
    bool fast_sums;      /* TP_SUM_FAST: library GEMMs */
    bool tf32;           /* those of f32 may be TF32 */
    void *blaslt;        /* cublasLtHandle_t; NULL: without the library */
    tpi_cuda_fault *fault; /* as kernels address it */
} tpi_cuda_device;

TP_BEGIN_DECLS

const tpi_cuda_device *tpi_cuda_device_of(const tpi_stream *stream);
cudaStream_t tpi_cuda_handle(const tpi_stream *stream);

/* TP_OK, or breaks the context with the op's name and CUDA's words: after each launch, with cudaGetLastError(). */
tp_status tpi_cuda_check(tpi_stream *stream, cudaError_t error, const char *what);

/* Refuses an op before anything was issued: tpi_refuse of the stream's context. */
tp_status tpi_cuda_refuse(tpi_stream *stream, tp_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Device memory for one op: valid until the next op on this stream asks. Grows during warm-up only. */
tp_status tpi_cuda_workspace(tpi_stream *stream, size_t bytes, void **out);

/* A dry run: what an op needs was counted when it asked for it, and nothing is launched. */
bool tpi_cuda_dry(const tpi_stream *stream);

/* A host array as device memory for one op; copied at once, so the host may reuse it. For arrays too long for kernel
 * arguments. */
tp_status tpi_cuda_stage(tpi_stream *stream, const void *host, size_t bytes, const void **out);

TP_END_DECLS
#endif
