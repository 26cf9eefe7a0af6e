/* Sums of up to 64 equal arrays by the fixed tree, with the epilogue of a row-parallel layer. */
#include "cuda/reduce.cuh"

namespace tpi
{

constexpr int MAX_REDUCED = 64;

struct ReduceView {
    tp_reduce_op op;
    int inputs, outputs;
    int64_t cols;
    const void *in[MAX_REDUCED];
    void *out[MAX_REDUCED];
};

template <bool Sum, int N>
__device__ __forceinline__ void combine_into(tp_reduce_op op, float (&x)[N], const float (&left)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = combine<Sum>(op, left[i], x[i]);
}

/* That over inputs first .. first + 7. */
template <bool Aligned, bool Sum, typename In, int N>
__device__ __forceinline__ void subtree_at(float (&x)[N], const ReduceView &view, int first, int64_t at, int64_t n)
{
    subtree<Aligned, Sum>(x, view.op, view.inputs - first, n,
                          [&](int i) { return static_cast<const In *>(view.in[first + i]) + at; });
}

/* The tree over all inputs: that over the sums of eight, whose whole nodes wait for their right neighbour. */
template <bool Aligned, bool Sum, typename In, int N>
__device__ __forceinline__ void whole_tree(float (&x)[N], const ReduceView &view, int64_t at, int64_t n)
{
    float one[N], two[N], four[N];
    int groups = (view.inputs + SUBTREE - 1) / SUBTREE;

    for (int g = 0; g < groups; g++) {
        subtree_at<Aligned, Sum, In>(x, view, g * SUBTREE, at, n);
        if (g & 1)
            combine_into<Sum>(view.op, x, one);
        if ((g & 3) == 3)
            combine_into<Sum>(view.op, x, two);
        if ((g & 7) == 7)
            combine_into<Sum>(view.op, x, four);
#pragma unroll
        for (int i = 0; i < N; i++) {
            if ((g & 1) == 0)
                one[i] = x[i];
            else if ((g & 3) == 1)
                two[i] = x[i];
            else if ((g & 7) == 3)
                four[i] = x[i];
        }
    }
    /* What is left of an incomplete tree: from the right end leftwards. x is the last whole node. */
    if ((groups & 1) && (groups & 2))
        combine_into<Sum>(view.op, x, two);
    if ((groups & 3) && (groups & 4))
        combine_into<Sum>(view.op, x, four);
}

/* All inputs of a thread's elements are read before an output is written: an input may be an output. */
template <bool Aligned, bool Sum, typename In, typename Out>
__global__ void __launch_bounds__(256)
    reduce(const __grid_constant__ ReduceView view, const __grid_constant__ ReduceFinish last, Tiles tiles)
{
    constexpr int N = thread_width<Aligned, In, Out>;

    for_each_group(tiles, [&](int64_t row, int64_t group) {
        int64_t col = group * N, n = view.cols - col, at = row * view.cols + col;
        float x[N];

        if (view.inputs <= SUBTREE)
            subtree_at<Aligned, Sum, In>(x, view, 0, at, n);
        else
            whole_tree<Aligned, Sum, In>(x, view, at, n);
        finish<Aligned, Out>(x, last, row, col, view.cols);
        for (int o = 0; o < view.outputs; o++)
            store<Aligned>(static_cast<Out *>(view.out[o]) + at, x, n);
    });
}

/* Integers: sums wrap, and their order doesn't matter. */
template <typename T> __global__ void __launch_bounds__(256) reduce_integers(const __grid_constant__ ReduceView view)
{
    for (int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < view.cols;
         at += static_cast<int64_t>(gridDim.x) * blockDim.x) {
        T result = static_cast<const T *>(view.in[0])[at];

        for (int i = 1; i < view.inputs; i++) {
            T x = static_cast<const T *>(view.in[i])[at];

            if (view.op == TP_REDUCE_SUM)
                result = static_cast<T>(static_cast<uint64_t>(result) + static_cast<uint64_t>(x));
            else if ((view.op == TP_REDUCE_MAX) == (x > result))
                result = x;
        }
        for (int o = 0; o < view.outputs; o++)
            static_cast<T *>(view.out[o])[at] = result;
    }
}

static bool all_aligned(const ReduceView &view, const ReduceFinish &last, int64_t rows)
{
    bool aligned = is_aligned(last.residual, 1, 0) && is_aligned(last.bias, 1, 0);

    for (int i = 0; i < view.inputs; i++)
        aligned = aligned && is_aligned(view.in[i], 1, 0);
    for (int o = 0; o < view.outputs; o++)
        aligned = aligned && is_aligned(view.out[o], 1, 0);
    return aligned && (rows <= 1 || view.cols % 8 == 0);
}

template <bool Sum>
static void launch_floats(cudaStream_t stream, const tpi_reduce_args *args, const ReduceView &view,
                          const ReduceFinish &last, int64_t rows)
{
    bool aligned = all_aligned(view, last, rows);
    auto launch = [&](auto in_zero, auto out_zero) {
        using In = decltype(in_zero);
        using Out = decltype(out_zero);

        with_flag(aligned, [&](auto flag) {
            constexpr bool ALIGNED = decltype(flag)::value;
            Tiles tiles = tiles_of(rows, view.cols, thread_width<ALIGNED, In, Out>);

            reduce<ALIGNED, Sum, In, Out><<<tiles.grid, tiles.block, 0, stream>>>(view, last, tiles);
        });
    };

    if (args->in_dtype == TP_DTYPE_F32)
        with_dtype(args->out_dtype, [&](auto out_zero) { launch(0.0f, out_zero); });
    else if (args->out_dtype == TP_DTYPE_F32)
        with_dtype(args->in_dtype, [&](auto in_zero) { launch(in_zero, 0.0f); });
    else
        with_dtype(args->in_dtype, [&](auto in_zero) { launch(in_zero, in_zero); });
}

static void launch_integers(cudaStream_t stream, const tpi_reduce_args *args, const ReduceView &view)
{
    unsigned grid = grid_of(view.cols, 256);

    switch (args->in_dtype) {
    case TP_DTYPE_I64: reduce_integers<int64_t><<<grid, 256, 0, stream>>>(view); return;
    case TP_DTYPE_I32: reduce_integers<int32_t><<<grid, 256, 0, stream>>>(view); return;
    default: reduce_integers<uint8_t><<<grid, 256, 0, stream>>>(view);
    }
}

} // namespace tpi

tp_status tpi_cuda_reduce(tpi_stream *stream, const tpi_reduce_args *args)
{
    tpi::ReduceView view = {args->op, args->inputs, args->outputs, args->cols, {}, {}};
    tpi::ReduceFinish last = {};
    cudaStream_t handle = tpi_cuda_handle(stream);
    int64_t rows = args->rows;
    bool floats = args->in_dtype <= TP_DTYPE_F16;

    if (args->rows <= 0 || args->cols <= 0)
        return TP_OK;
    for (int i = 0; i < view.inputs; i++)
        view.in[i] = args->in ? args->in[i] : args->leaf[i];
    for (int o = 0; o < view.outputs; o++)
        view.out[o] = args->out ? args->out[o] : args->single;
    last.bias = args->bias;
    last.bias_dtype = args->bias_dtype;
    last.residual = args->residual;
    last.dropout = tpi::dropout_of(args->dropout, args->dropout_key);
    last.first_row = args->first_row;
    last.first_col = args->first_col;
    last.total_cols = args->total_cols ? args->total_cols : args->cols;
    if (!last.bias && !last.residual && !last.dropout.on) { /* one long row */
        view.cols *= rows;
        rows = 1;
    }
    if (!floats) {
        view.cols = args->rows * args->cols;
        tpi::launch_integers(handle, args, view);
    } else {
        tpi::with_flag(args->op == TP_REDUCE_SUM,
                       [&](auto sum) { tpi::launch_floats<decltype(sum)::value>(handle, args, view, last, rows); });
    }
    return tpi_cuda_check(stream, cudaGetLastError(), "reduce");
}
