/* Rows of a table by id, and their gradient. */
#include "cuda/embedding.cuh"
#include "cuda/lane.cuh"
#include "cuda/vec.cuh"

namespace tpi
{

struct EmbeddingView {
    tpi_embedding_args args;
    IdCheck check;
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

        if (group == 0)
            check_id(view.check, id, row);
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
        /* Without columns ids are looked at all the same. */
        Tiles tiles = tiles_of(args->rows, args->cols > 0 ? args->cols : 1, thread_width<ALIGNED, In, Out>);

        embedding<ALIGNED, In, Out><<<tiles.grid, tiles.block, 0, stream>>>(view, sequences, tiles);
    });
}

} // namespace tpi

tp_status tpi_cuda_embedding(tpi_stream *stream, const tpi_embedding_args *args)
{
    tpi::EmbeddingView view = {*args, tpi::id_check_of(stream, args->positions, args->first_row, args->vocabulary)};
    tpi::Sequences sequences;
    cudaStream_t handle = tpi_cuda_handle(stream);
    tp_status status;

    if (args->rows <= 0)
        return TP_OK;
    status = tpi::sequences_of(stream, args->ids ? nullptr : args->offsets, args->sequences, args->rows, &sequences);
    if (status == TP_OK && !args->ids)
        status = tpi::check_positions(stream, args->offsets, sequences, args->vocabulary);
    if (status != TP_OK || tpi_cuda_dry(stream))
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
