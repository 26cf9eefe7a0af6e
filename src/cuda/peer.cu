/* All-reduces over peers' memory without a norm. */
#include "cuda/peer.cuh"

namespace tpi
{

template <typename T> static tp_status launch_extreme(tpi_stream *stream, const PeerView &view)
{
    return launch_peer<false, false, T, T>(stream, view);
}

} // namespace tpi

tp_status tpi_cuda_peer_load(tpi_stream *stream)
{
    tp_status status = tpi::load_peers<false>(stream);

    status = status == TP_OK ? tpi::load_peer<false, false, float, float>(stream) : status;
    status = status == TP_OK ? tpi::load_peer<false, false, __nv_bfloat16, __nv_bfloat16>(stream) : status;
    return status == TP_OK ? tpi::load_peer<false, false, __half, __half>(stream) : status;
}

tp_status tpi_cuda_peer_sum(tpi_stream *stream, const tpi_peer_reduce_args *args)
{
    tpi::PeerView view = tpi::peer_view(stream, args);

    if (args->op != TP_REDUCE_SUM)
        return tpi::with_dtype(args->in_dtype,
                               [&](auto zero) { return tpi::launch_extreme<decltype(zero)>(stream, view); });
    return tpi::with_peer_dtypes(args, [&](auto in_zero, auto out_zero) {
        return tpi::launch_peer<true, false, decltype(in_zero), decltype(out_zero)>(stream, view);
    });
}
