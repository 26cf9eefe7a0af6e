/* cuBLASLt's algorithms for shapes that a context has seen: asked for once, and kept. */
#ifndef TPI_CUDA_GEMM_LIBRARY_H
#define TPI_CUDA_GEMM_LIBRARY_H

#include <cublasLt.h>

#include "core/context.h"
#include "cuda/gemm.h"

#define TPI_CUDA_GEMM_SHAPES 256
#define TPI_CUDA_GEMM_WORKSPACE ((size_t)32 << 20) /* the most that an algorithm may ask for */

/* A product as the library sees it, in columns: D[m, n] = op(A) op(B). All that an algorithm depends on; compared byte
 * by byte, so made from zeros. */
typedef struct tpi_cuda_gemm_shape {
    int64_t m, n, k;
    int64_t a_rows, a_cols, a_line, b_rows, b_cols, b_line; /* as stored */
    int64_t c_line, d_line, aux_line;
    int32_t transpose_a, transpose_b;
    int32_t type, d_type;
    int32_t compute; /* cublasComputeType_t */
    int32_t epilogue;
    uint32_t a_alignment, b_alignment, c_alignment, d_alignment; /* bytes, at most 256 */
} tpi_cuda_gemm_shape;

typedef struct tpi_cuda_gemm_algorithm {
    tpi_cuda_gemm_shape shape;
    bool supported;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c, d;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
} tpi_cuda_gemm_algorithm;

struct tpi_cuda_gemm_cache {
    pthread_mutex_t lock; /* a product's description holds pointers while it is issued */
    int count, next;      /* when it is full the oldest makes room */
    tpi_cuda_gemm_algorithm at[TPI_CUDA_GEMM_SHAPES];
};

/* The algorithm for a shape, with the cache's lock held; it stays until the next call. */
tpi_cuda_gemm_algorithm *tpi_cuda_gemm_find(tpi_cuda_gemm_cache *cache, cublasLtHandle_t handle,
                                            const tpi_cuda_gemm_shape *shape);

#endif
