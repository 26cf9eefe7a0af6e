/* Between the C and CUDA files of GEMM. Compiles as C and C++. */
#ifndef TPI_CUDA_GEMM_H
#define TPI_CUDA_GEMM_H

#include "cuda/stream.h"

TP_BEGIN_DECLS

/* The product by cuBLASLt, if it can be told to do it; `done` says whether it was. Row sums are made too. Sums are in
 * the library's order. */
tp_status tpi_cuda_gemm_library(tpi_stream *stream, const tpi_gemm_args *args, bool *done);

/* Finished C from f32 sums, dense [rows, cols]. */
tp_status tpi_cuda_gemm_finish(tpi_stream *stream, const tpi_gemm_args *args, const float *sums);

tp_status tpi_cuda_gemm_row_sums(tpi_stream *stream, const tpi_gemm_args *args);

/* What was learnt about shapes, of one context. NULL is an empty one. */
typedef struct tpi_cuda_gemm_cache tpi_cuda_gemm_cache;
void tpi_cuda_gemm_cache_free(tp_ctx *ctx, tpi_cuda_gemm_cache *cache);

TP_END_DECLS
#endif
