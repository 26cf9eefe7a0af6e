#include "cuda/attention.h"

#include "core/context.h"
#include "core/stream.h"

static tp_status check_stride(tpi_stream *stream, tp_dtype dtype, const char *name, int64_t stride)
{
    const int64_t most = INT32_MAX / TPI_CUDA_ROWS_APART;
    if (dtype == TP_DTYPE_F32 || stride <= most)
        return TP_OK;
    return tpi_refuse(stream->ctx, TP_ERR_UNSUPPORTED, "attention on CUDA: %s is %lld, at most %lld", name,
                      (long long)stride, (long long)most);
}

tp_status tpi_cuda_attention_check(tpi_stream *stream, const tpi_attention_args *args)
{
    if (args->head_dim > TPI_CUDA_HEAD_DIM)
        return tpi_refuse(stream->ctx, TP_ERR_UNSUPPORTED, "attention on CUDA: head_dim is %lld, at most %d",
                          (long long)args->head_dim, TPI_CUDA_HEAD_DIM);
    TPI_TRY(check_stride(stream, args->dtype, "q_stride", args->q_stride));
    TPI_TRY(check_stride(stream, args->dtype, "k_stride", args->k_stride));
    return check_stride(stream, args->dtype, "v_stride", args->v_stride);
}

tp_status tpi_cuda_attention_grad_check(tpi_stream *stream, const tpi_attention_grad_args *args)
{
    TPI_TRY(tpi_cuda_attention_check(stream, &args->forward));
    return check_stride(stream, args->forward.dtype, "dout_stride", args->dout_stride);
}
