#include "cuda/attention.h"

#include "core/context.h"
#include "core/stream.h"

tp_status tpi_cuda_attention_check(tpi_stream *stream, const tpi_attention_args *args)
{
    if (args->head_dim <= TPI_CUDA_HEAD_DIM)
        return TP_OK;
    return tpi_refuse(stream->ctx, TP_ERR_UNSUPPORTED, "attention on CUDA: head_dim is %lld, at most %d",
                      (long long)args->head_dim, TPI_CUDA_HEAD_DIM);
}
