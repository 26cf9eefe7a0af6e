/* Sums of up to eight arrays by the fixed tree, and what is done to a sum before it is rounded. */
#ifndef TPI_CUDA_REDUCE_CUH
#define TPI_CUDA_REDUCE_CUH

#include "cuda/lane.cuh"
#include "cuda/random.cuh"

namespace tpi
{

constexpr int SUBTREE = 8;

struct ReduceFinish {
    const void *bias;
    tp_dtype bias_dtype;
    const void *residual;
    Dropout dropout;
    int64_t first_row, first_col, total_cols;
};

template <bool Sum> __device__ __forceinline__ float combine(tp_reduce_op op, float left, float right)
{
    if (Sum)
        return vf_add(left, right);
    return op == TP_REDUCE_MAX ? vf_max_nan(left, right) : vf_min_nan(left, right);
}

/* The tree over `count` inputs, those of eight that there are: neighbours, then twice the distance, and so on.
 * source(i): where input i has them. */
template <bool Aligned, bool Sum, int N, typename Source>
__device__ __forceinline__ void subtree(float (&x)[N], tp_reduce_op op, int count, int64_t n, Source source)
{
    float node[SUBTREE][N];

#pragma unroll
    for (int i = 0; i < SUBTREE; i++)
        if (i < count)
            load<Aligned>(node[i], source(i), n);
#pragma unroll
    for (int distance = 1; distance < SUBTREE; distance *= 2) {
#pragma unroll
        for (int i = 0; i + distance < SUBTREE; i += 2 * distance) {
            if (i + distance < count) {
#pragma unroll
                for (int j = 0; j < N; j++)
                    node[i][j] = combine<Sum>(op, node[i][j], node[i + distance][j]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < N; j++)
        x[j] = node[0][j];
}

template <bool Aligned, typename Out, int N>
__device__ __forceinline__ void finish(float (&x)[N], const ReduceFinish &last, int64_t row, int64_t col, int64_t cols)
{
    int64_t n = cols - col;
    float y[N];

    if (last.bias) {
        load_any<Aligned>(y, last.bias, last.bias_dtype, col, n);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = vf_add(x[i], y[i]);
    }
    if (last.dropout.on)
        drop(x, last.dropout, static_cast<uint64_t>((last.first_row + row) * last.total_cols + last.first_col + col));
    if (last.residual) {
        load<Aligned>(y, static_cast<const Out *>(last.residual) + row * cols + col, n);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = vf_add(x[i], y[i]);
    }
}

} // namespace tpi

#endif
