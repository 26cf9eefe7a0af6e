/* Between the C and CUDA files of attention. Compiles as C and C++. */
#ifndef TPI_CUDA_ATTENTION_H
#define TPI_CUDA_ATTENTION_H

#include "cuda/stream.h"

#define TPI_CUDA_HEAD_DIM 256 /* the largest that there are kernels for */
/* Of the rows of 16-bit elements that one thread reads, each is at most so many after the one before: their distance in
 * elements must fit in 32 bits. */
#define TPI_CUDA_ROWS_APART 32

TP_BEGIN_DECLS

/* TP_OK, or refuses a larger head dimension, or rows too far apart. */
tp_status tpi_cuda_attention_check(tpi_stream *stream, const tpi_attention_args *args);
tp_status tpi_cuda_attention_grad_check(tpi_stream *stream, const tpi_attention_grad_args *args);

TP_END_DECLS
#endif
