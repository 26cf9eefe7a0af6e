/* Ops whose kernels are not there yet: each says so. A kernel file's own function takes the place of its stand-in here. */
#include "core/context.h"
#include "core/stream.h"
#include "cuda/stream.h"

static tp_status missing(tpi_stream *stream, const char *name)
{
    return tpi_fail(stream->ctx, TP_ERR_UNSUPPORTED, "CUDA: %s is not there yet", name);
}

__attribute__((weak)) tp_status tpi_cuda_reduce(tpi_stream *stream, const tpi_reduce_args *args)
{
    (void)args;
    return missing(stream, "reduce");
}

__attribute__((weak)) tp_status tpi_cuda_map(tpi_stream *stream, const tpi_map_args *args)
{
    (void)args;
    return missing(stream, "map");
}

__attribute__((weak)) tp_status tpi_cuda_activation(tpi_stream *stream, const tpi_activation_args *args)
{
    (void)args;
    return missing(stream, "activation");
}

__attribute__((weak)) tp_status tpi_cuda_rope(tpi_stream *stream, const tpi_rope_args *args)
{
    (void)args;
    return missing(stream, "rope");
}

__attribute__((weak)) tp_status tpi_cuda_norm(tpi_stream *stream, const tpi_norm_args *args)
{
    (void)args;
    return missing(stream, "norm");
}

__attribute__((weak)) tp_status tpi_cuda_norm_grad(tpi_stream *stream, const tpi_norm_grad_args *args)
{
    (void)args;
    return missing(stream, "norm_grad");
}

__attribute__((weak)) tp_status tpi_cuda_embedding(tpi_stream *stream, const tpi_embedding_args *args)
{
    (void)args;
    return missing(stream, "embedding");
}

__attribute__((weak)) tp_status tpi_cuda_embedding_grad(tpi_stream *stream, const tpi_embedding_grad_args *args)
{
    (void)args;
    return missing(stream, "embedding_grad");
}

__attribute__((weak)) tp_status tpi_cuda_xent(tpi_stream *stream, const tpi_xent_args *args)
{
    (void)args;
    return missing(stream, "xent");
}

__attribute__((weak)) tp_status tpi_cuda_square_sum(tpi_stream *stream, const tpi_square_sum_args *args)
{
    (void)args;
    return missing(stream, "square_sum");
}

__attribute__((weak)) tp_status tpi_cuda_optimizer(tpi_stream *stream, const tpi_optimizer_args *args)
{
    (void)args;
    return missing(stream, "optimizer");
}

__attribute__((weak)) tp_status tpi_cuda_random_fill(tpi_stream *stream, const tpi_random_fill_args *args)
{
    (void)args;
    return missing(stream, "random_fill");
}
