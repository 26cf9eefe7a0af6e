/* Normal random values on global indices: the numbers of tp_random_normal, bit for bit. */
#include "core/trig.h"
#include "cuda/random.cuh"

namespace tpi
{

struct RandomFillView {
    void *out;
    int64_t cols, stride;
    float std;
    tp_random_key key;
    int64_t first_row, first_col, total_cols;
};

/* A group is one block of four random words: elements 4 k .. 4 k + 3 of the tensor, of which the row may have a part. A
 * row of `cols` columns touches at most (cols + 6) / 4 of them. */
template <typename T> __global__ void __launch_bounds__(256) random_fill(RandomFillView view, Tiles tiles)
{
    for_each_group(tiles, [&](int64_t row, int64_t group) {
        uint64_t first = static_cast<uint64_t>(view.first_row + row) * static_cast<uint64_t>(view.total_cols) +
                         static_cast<uint64_t>(view.first_col);
        int64_t col = 4 * group - static_cast<int64_t>(first % 4);
        T *out = static_cast<T *>(view.out) + row * view.stride + col;
        float value[4];
        uint4 word;

        if (col >= view.cols)
            return;
        word = random_block(view.key, first / 4 + static_cast<uint64_t>(group));
        tpi_normal_pair(word.x, word.y, value);
        tpi_normal_pair(word.z, word.w, value + 2);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (col + i >= 0 && col + i < view.cols)
                out[i] = from_float<T>(__fmul_rn(value[i], view.std));
    });
}

} // namespace tpi

tp_status tpi_cuda_random_fill(tpi_stream *stream, const tpi_random_fill_args *args)
{
    tpi::RandomFillView view = {args->out, args->cols,      args->stride,    args->std,
                                args->key, args->first_row, args->first_col, args->total_cols};
    tpi::Tiles tiles = tpi::tiles_of(args->rows, args->cols + 3, 4);
    cudaStream_t handle = tpi_cuda_handle(stream);

    if (args->rows <= 0 || args->cols <= 0)
        return TP_OK;
    if (view.total_cols == 0)
        view.total_cols = view.cols;
    tpi::with_dtype(args->dtype, [&](auto zero) {
        tpi::random_fill<decltype(zero)><<<tiles.grid, tiles.block, 0, handle>>>(view, tiles);
    });
    return tpi_cuda_check(stream, cudaGetLastError(), "random_fill");
}
