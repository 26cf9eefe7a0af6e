/* Between the C and CUDA files of attention. Compiles as C and C++. */
#ifndef TPI_CUDA_ATTENTION_H
#define TPI_CUDA_ATTENTION_H

#include "cuda/stream.h"

#define TPI_CUDA_HEAD_DIM 256 /* the largest that there are kernels for */

TP_BEGIN_DECLS

/* TP_OK, or refuses a larger head dimension. */
tp_status tpi_cuda_attention_check(tpi_stream *stream, const tpi_attention_args *args);

TP_END_DECLS
#endif
