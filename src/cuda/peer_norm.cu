/* All-reduces over peers' memory, and the norm of the sum's rows in the same kernel. */
#include "cuda/peer.cuh"

tp_status tpi_cuda_peer_load_norm(tpi_stream *stream)
{
    return tpi::load_peers<true>(stream);
}

tp_status tpi_cuda_peer_sum_norm(tpi_stream *stream, const tpi_peer_reduce_args *args)
{
    tpi::PeerView view = tpi::peer_view(stream, args);

    return tpi::with_peer_dtypes(args, [&](auto in_zero, auto out_zero) {
        return tpi::launch_peer<true, true, decltype(in_zero), decltype(out_zero)>(stream, view);
    });
}
