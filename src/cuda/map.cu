/* Copies, casts, scaling, accumulation and dropout of sub-matrices. */
#include "cuda/random.cuh"

namespace tpi
{

struct MapView {
    const void *in;
    void *out;
    int64_t cols, in_stride, out_stride;
};

/* Moves bits; in NULL: zeros. */
template <bool Aligned, typename T> __global__ void __launch_bounds__(256) map_copy(MapView view, Tiles tiles)
{
    constexpr int N = thread_width<Aligned, T>;
    const T *in = static_cast<const T *>(view.in);
    T *out = static_cast<T *>(view.out);

    for_each_group(tiles, [&](int64_t row, int64_t group) {
        int64_t col = group * N, n = view.cols - col;
        const T *from = in + row * view.in_stride + col;
        T *to = out + row * view.out_stride + col;

        if (Aligned && n >= N) {
            *reinterpret_cast<uint4 *>(to) = in ? *reinterpret_cast<const uint4 *>(from) : make_uint4(0, 0, 0, 0);
            return;
        }
        for (int i = 0; i < N && i < n; i++)
            to[i] = in ? from[i] : T(0);
    });
}

struct MapMath {
    float scale;
    bool accumulate;
    Dropout dropout;
    int64_t first_row;
};

template <bool Aligned, typename In, typename Out>
__global__ void __launch_bounds__(256) map_floats(MapView view, MapMath math, Tiles tiles)
{
    constexpr int N = thread_width<Aligned, In, Out>;
    const In *in = static_cast<const In *>(view.in);
    Out *out = static_cast<Out *>(view.out);

    for_each_group(tiles, [&](int64_t row, int64_t group) {
        int64_t col = group * N, n = view.cols - col;
        Out *to = out + row * view.out_stride + col;
        float x[N], before[N];

        load<Aligned>(x, in + row * view.in_stride + col, n);
        if (math.accumulate)
            load<Aligned>(before, to, n);
        if (math.accumulate && !math.dropout.on) {
#pragma unroll
            for (int i = 0; i < N; i++)
                x[i] = __fmaf_rn(x[i], math.scale, before[i]);
        } else {
#pragma unroll
            for (int i = 0; i < N; i++)
                x[i] = __fmul_rn(x[i], math.scale);
            if (math.dropout.on)
                drop(x, math.dropout, static_cast<uint64_t>((math.first_row + row) * view.cols + col));
            if (math.accumulate) {
#pragma unroll
                for (int i = 0; i < N; i++)
                    x[i] = __fadd_rn(before[i], x[i]);
            }
        }
        store<Aligned>(to, x, n);
    });
}

template <typename T> static void launch_copy(cudaStream_t stream, const MapView &view, int64_t rows)
{
    bool aligned = is_aligned(view.in, sizeof(T), view.in_stride) && is_aligned(view.out, sizeof(T), view.out_stride);

    with_flag(aligned, [&](auto flag) {
        constexpr bool ALIGNED = decltype(flag)::value;
        Tiles tiles = tiles_of(rows, view.cols, thread_width<ALIGNED, T>);

        map_copy<ALIGNED, T><<<tiles.grid, tiles.block, 0, stream>>>(view, tiles);
    });
}

static void launch_floats(cudaStream_t stream, const tpi_map_args *args, const MapView &view, const MapMath &math)
{
    with_dtype(args->in_dtype, [&](auto in_zero) {
        with_dtype(args->out_dtype, [&](auto out_zero) {
            using In = decltype(in_zero);
            using Out = decltype(out_zero);
            bool aligned =
                is_aligned(view.in, sizeof(In), view.in_stride) && is_aligned(view.out, sizeof(Out), view.out_stride);

            with_flag(aligned, [&](auto flag) {
                constexpr bool ALIGNED = decltype(flag)::value;
                Tiles tiles = tiles_of(args->rows, view.cols, thread_width<ALIGNED, In, Out>);

                map_floats<ALIGNED, In, Out><<<tiles.grid, tiles.block, 0, stream>>>(view, math, tiles);
            });
        });
    });
}

} // namespace tpi

tp_status tpi_cuda_map(tpi_stream *stream, const tpi_map_args *original)
{
    tpi_map_args args = *original;
    float scale = args.scale == 0 ? 1.0f : args.scale;
    bool plain = !args.in || (args.in_dtype == args.out_dtype && scale == 1 && !args.accumulate && !(args.dropout > 0));
    cudaStream_t handle = tpi_cuda_handle(stream);

    if (args.rows <= 0 || args.cols <= 0 || (!args.in && args.accumulate))
        return TP_OK;
    if (args.out_stride == args.cols && (!args.in || args.in_stride == args.cols) &&
        (!(args.dropout > 0) || args.first_row == 0)) {
        /* Dense: one long row. The mask index is the same. */
        args.cols = args.in_stride = args.out_stride = args.rows * args.cols;
        args.rows = 1;
    }
    if (args.rows == 1)
        args.in_stride = args.out_stride = 0; /* says nothing about alignment */

    tpi::MapView view = {args.in, args.out, args.cols, args.in_stride, args.out_stride};
    if (!plain) {
        tpi::MapMath math = {scale, args.accumulate, tpi::dropout_of(args.dropout, args.dropout_key), args.first_row};

        tpi::launch_floats(handle, &args, view, math);
        return tpi_cuda_check(stream, cudaGetLastError(), "map");
    }
    switch (args.out_dtype) {
    case TP_DTYPE_I64: tpi::launch_copy<uint64_t>(handle, view, args.rows); break;
    case TP_DTYPE_F32:
    case TP_DTYPE_I32: tpi::launch_copy<uint32_t>(handle, view, args.rows); break;
    case TP_DTYPE_U8: tpi::launch_copy<uint8_t>(handle, view, args.rows); break;
    default: tpi::launch_copy<uint16_t>(handle, view, args.rows);
    }
    return tpi_cuda_check(stream, cudaGetLastError(), "map");
}
