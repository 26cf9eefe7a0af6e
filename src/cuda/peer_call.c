/* Issuing an all-reduce over peers' memory, and the event behind it. */
#include "cuda/state.h"

tp_status tpi_cuda_peer_reduce(tpi_stream *stream, const tpi_peer_reduce_args *args)
{
    if (args->rows <= 0 || args->cols <= 0) {
        TPI_TRY(tpi_cuda_enter(stream->ctx));
        TPI_TRY(tpi_cuda_peer_load(stream));
        return tpi_cuda_peer_load_norm(stream);
    }
    TPI_TRY(args->norm ? tpi_cuda_peer_sum_norm(stream, args) : tpi_cuda_peer_sum(stream, args));
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    TPI_TRY(
        tpi_cuda_call(stream->ctx, cudaStreamIsCapturing(tpi_cuda_handle(stream), &capture), "cudaStreamIsCapturing"));
    /* An event recorded in a capture is the graph's: nobody else may ask for it. */
    return args->done && capture == cudaStreamCaptureStatusNone ? tpi_cuda_event_record(args->done, stream) : TP_OK;
}
