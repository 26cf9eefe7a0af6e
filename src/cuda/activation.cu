/* Activations and gated activations, forward and backward. */
#include "cuda/lane.cuh"
#include "cuda/vec.cuh"

namespace tpi
{

/* The loops stand inside the switch, so that a kernel branches once a vector. */
template <int N, tpi_activation Kind> __device__ __forceinline__ void values_of(float (&y)[N], const float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        y[i] = tpi_activation_value(Kind, x[i]);
}

template <int N, tpi_activation Kind> __device__ __forceinline__ void slopes_of(float (&y)[N], const float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        y[i] = tpi_activation_slope(Kind, x[i]);
}

template <int N> __device__ __forceinline__ void values(tpi_activation kind, float (&y)[N], const float (&x)[N])
{
    switch (kind) {
    case TPI_ACT_GELU: values_of<N, TPI_ACT_GELU>(y, x); return;
    case TPI_ACT_GELU_TANH: values_of<N, TPI_ACT_GELU_TANH>(y, x); return;
    case TPI_ACT_RELU: values_of<N, TPI_ACT_RELU>(y, x); return;
    case TPI_ACT_RELU2: values_of<N, TPI_ACT_RELU2>(y, x); return;
    case TPI_ACT_SILU: values_of<N, TPI_ACT_SILU>(y, x); return;
    default: values_of<N, TPI_ACT_NONE>(y, x);
    }
}

template <int N> __device__ __forceinline__ void slopes(tpi_activation kind, float (&y)[N], const float (&x)[N])
{
    switch (kind) {
    case TPI_ACT_GELU: slopes_of<N, TPI_ACT_GELU>(y, x); return;
    case TPI_ACT_GELU_TANH: slopes_of<N, TPI_ACT_GELU_TANH>(y, x); return;
    case TPI_ACT_RELU: slopes_of<N, TPI_ACT_RELU>(y, x); return;
    case TPI_ACT_RELU2: slopes_of<N, TPI_ACT_RELU2>(y, x); return;
    case TPI_ACT_SILU: slopes_of<N, TPI_ACT_SILU>(y, x); return;
    default: slopes_of<N, TPI_ACT_NONE>(y, x);
    }
}

/* Each thread reads all that it needs of its columns before it writes, so that dx may be dy, or x where gated. */
template <bool Aligned, typename T>
__global__ void __launch_bounds__(256) activation(const __grid_constant__ tpi_activation_args args, Tiles tiles)
{
    constexpr int N = thread_width<Aligned, T>;

    for_each_group(tiles, [&](int64_t row, int64_t group) {
        int64_t col = group * N, n = args.cols - col;
        const T *from = static_cast<const T *>(args.x) + row * args.x_stride + col;
        float x[N], y[N], up[N], dy[N], slope[N];

        load<Aligned>(x, from, n);
        if (args.gated)
            load<Aligned>(up, from + args.cols, n);
        if (args.dy)
            load<Aligned>(dy, static_cast<const T *>(args.dy) + row * args.dy_stride + col, n);
        if (args.y || args.gated)
            values(args.activation, y, x);
        if (args.dy) {
            T *to = static_cast<T *>(args.dx) + row * args.dx_stride + col;

            slopes(args.activation, slope, x);
            if (args.gated) {
                float dup[N];

#pragma unroll
                for (int i = 0; i < N; i++) {
                    dup[i] = __fmul_rn(dy[i], y[i]);
                    dy[i] = __fmul_rn(dy[i], up[i]);
                }
                store<Aligned>(to + args.cols, dup, n);
            }
#pragma unroll
            for (int i = 0; i < N; i++)
                dy[i] = __fmul_rn(dy[i], slope[i]);
            store<Aligned>(to, dy, n);
        }
        if (args.y) {
#pragma unroll
            for (int i = 0; i < N; i++)
                y[i] = args.gated ? __fmul_rn(y[i], up[i]) : y[i];
            store<Aligned>(static_cast<T *>(args.y) + row * args.y_stride + col, y, n);
        }
    });
}

} // namespace tpi

tp_status tpi_cuda_activation(tpi_stream *stream, const tpi_activation_args *original)
{
    tpi_activation_args args = *original;
    cudaStream_t handle = tpi_cuda_handle(stream);

    if (args.rows <= 0 || args.cols <= 0)
        return TP_OK;
    if (args.rows == 1)
        args.x_stride = args.y_stride = args.dy_stride = args.dx_stride = 0; /* says nothing about alignment */
    tpi::with_dtype(args.dtype, [&](auto zero) {
        using T = decltype(zero);
        bool aligned = tpi::is_aligned(args.x, sizeof(T), args.x_stride) &&
                       tpi::is_aligned(nullptr, sizeof(T), args.gated ? args.cols : 0);

        if (args.y)
            aligned = aligned && tpi::is_aligned(args.y, sizeof(T), args.y_stride);
        if (args.dy)
            aligned = aligned && tpi::is_aligned(args.dy, sizeof(T), args.dy_stride) &&
                      tpi::is_aligned(args.dx, sizeof(T), args.dx_stride);
        tpi::with_flag(aligned, [&](auto flag) {
            constexpr bool ALIGNED = decltype(flag)::value;
            tpi::Tiles tiles = tpi::tiles_of(args.rows, args.cols, tpi::thread_width<ALIGNED, T>);

            tpi::activation<ALIGNED, T><<<tiles.grid, tiles.block, 0, handle>>>(args, tiles);
        });
    });
    return tpi_cuda_check(stream, cudaGetLastError(), "activation");
}
