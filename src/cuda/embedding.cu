/* Rows of a table by id, and their gradient. */
#include "cuda/lane.cuh"
#include "cuda/sequences.cuh"
#include "cuda/vec.cuh"

namespace tpi
{

struct EmbeddingView {
    tpi_embedding_args args;
    tpi_cuda_fault *fault;
};

/* The sum with +0 is what the tree over ranks gives too: the ranks without this id add it. */
template <bool Aligned, typename In, typename Out>
__global__ void __launch_bounds__(256)
    embedding(const __grid_constant__ EmbeddingView view, const __grid_constant__ Sequences sequences, Tiles tiles)
{
    constexpr int N = thread_width<Aligned, In, Out>;
    const tpi_embedding_args &args = view.args;

    for_each_group(tiles, [&](int64_t row, int64_t group) {
        int64_t id = args.ids ? args.ids[row] : sequence_place(sequences, row), local = id - args.first_id;
        int64_t col = group * N, n = args.cols - col;
        float x[N] = {};

        if (group == 0 && (id < 0 || id >= args.vocabulary))
            report_fault(view.fault, TPI_CUDA_FAULT_ID, static_cast<int>(id), row, args.vocabulary);
        if (local >= 0 && local < args.table_rows) {
            load<Aligned>(x, static_cast<const In *>(args.table) + local * args.cols + col, n);
#pragma unroll
            for (int i = 0; i < N; i++)
                x[i] = vf_add(x[i], 0.0f);
        }
        store<Aligned>(static_cast<Out *>(args.out) + row * args.cols + col, x, n);
    });
}

template <typename In, typename Out>
static void launch_embedding(cudaStream_t stream, const EmbeddingView &view, const Sequences &sequences)
{
    const tpi_embedding_args *args = &view.args;
    bool aligned = is_aligned(args->table, sizeof(In), args->cols) && is_aligned(args->out, sizeof(Out), args->cols);

    with_flag(aligned, [&](auto flag) {
        constexpr bool ALIGNED = decltype(flag)::value;
        Tiles tiles = tiles_of(args->rows, args->cols, thread_width<ALIGNED, In, Out>);

        embedding<ALIGNED, In, Out><<<tiles.grid, tiles.block, 0, stream>>>(view, sequences, tiles);
    });
}

/* Positions are known here: the first that the table doesn't have is refused. */
static tp_status check_positions(tpi_stream *stream, const tpi_embedding_args *args, const Sequences &sequences)
{
    int64_t begin = 0;

    for (int64_t s = 0; s < sequences.count; s++) {
        int64_t length = args->offsets ? args->offsets[s + 1] - args->offsets[s] : sequences.length;

        if (length > args->vocabulary)
            return tpi_cuda_refuse(stream, TP_ERR_ARGUMENT, "position %lld of row %lld is outside [0, %lld)",
                                   static_cast<long long>(args->vocabulary),
                                   static_cast<long long>(begin + args->vocabulary),
                                   static_cast<long long>(args->vocabulary));
        begin += length;
    }
    return TP_OK;
}

} // namespace tpi

tp_status tpi_cuda_embedding(tpi_stream *stream, const tpi_embedding_args *args)
{
    tpi::EmbeddingView view = {*args, tpi_cuda_device_of(stream)->fault};
    tpi::Sequences sequences;
    cudaStream_t handle = tpi_cuda_handle(stream);
    tp_status status;

    if (args->rows <= 0)
        return TP_OK;
    status = tpi::sequences_of(stream, args->ids ? nullptr : args->offsets, args->sequences, args->rows, &sequences);
    if (status == TP_OK && !args->ids)
        status = tpi::check_positions(stream, args, sequences);
    if (status != TP_OK || args->cols <= 0 || tpi_cuda_dry(stream))
        return status;
    tpi::with_dtype(args->table_dtype, [&](auto zero) {
        using In = decltype(zero);

        if (args->out_dtype == TP_DTYPE_F32)
            tpi::launch_embedding<In, float>(handle, view, sequences);
        else
            tpi::launch_embedding<In, In>(handle, view, sequences);
    });
    return tpi_cuda_check(stream, cudaGetLastError(), "embedding");
}
