/* Rotary position embedding: the CPU's bits, from angles, cosines and sines of core/trig.h. */
#include <cmath>
#include <vector>

#include "core/trig.h"
#include "cuda/lane.cuh"
#include "cuda/sequences.cuh"
#include "cuda/vec.cuh"

namespace tpi
{

constexpr int ROPE_THREADS = 128, ROPE_PAIRS = 256; /* pairs whose cosines a block keeps at a time */

struct RopeView {
    void *x;
    int64_t rows, heads, head_dim, half, stride;
    const int32_t *positions;
    bool inverse;
    const double *frequency; /* device memory; NULL: `few` */
    double few[ROPE_PAIRS];
};

/* Pairs [first, first + pairs) of one row's heads. */
template <bool Aligned, typename T>
__device__ __forceinline__ void rotate(const RopeView &view, int64_t row, int64_t first, int pairs, const float *cosine,
                                       const float *sine)
{
    constexpr int N = thread_width<Aligned, T>;

    for (int64_t head = threadIdx.y; head < view.heads; head += blockDim.y) {
        T *x = static_cast<T *>(view.x) + row * view.stride + head * view.head_dim + first;

        for (int i = static_cast<int>(threadIdx.x) * N; i < pairs; i += static_cast<int>(blockDim.x) * N) {
            float a[N], b[N];

            load<Aligned>(a, x + i, N);
            load<Aligned>(b, x + view.half + i, N);
#pragma unroll
            for (int j = 0; j < N; j++) {
                float c = cosine[i + j], s = sine[i + j], turned = vf_fnma(b[j], s, vf_mul(a[j], c));

                b[j] = vf_fma(a[j], s, vf_mul(b[j], c));
                a[j] = turned;
            }
            store<Aligned>(x + i, a, N);
            store<Aligned>(x + view.half + i, b, N);
        }
    }
}

/* One block a row: cosines and sines first, then all heads. */
template <bool Aligned, typename T>
__global__ void __launch_bounds__(ROPE_THREADS, 8)
    rope(const __grid_constant__ RopeView view, const __grid_constant__ Sequences sequences)
{
    __shared__ float cosine[ROPE_PAIRS], sine[ROPE_PAIRS];
    int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);

    for (int64_t row = blockIdx.x; row < view.rows; row += gridDim.x) {
        double position = static_cast<double>(view.positions ? view.positions[row] : sequence_place(sequences, row));

        for (int64_t first = 0; first < view.half; first += ROPE_PAIRS) {
            int pairs = static_cast<int>(view.half - first < ROPE_PAIRS ? view.half - first : ROPE_PAIRS);

            for (int i = thread; i < pairs; i += ROPE_THREADS) {
                double frequency = view.frequency ? view.frequency[first + i] : view.few[i];
                tpi_direction direction = tpi_direction_of_angle(position * frequency);

                cosine[i] = static_cast<float>(direction.cosine);
                sine[i] = static_cast<float>(view.inverse ? -direction.sine : direction.sine);
            }
            __syncthreads();
            rotate<Aligned, T>(view, row, first, pairs, cosine, sine);
            __syncthreads();
        }
    }
}

static tp_status frequencies_of(tpi_stream *stream, const tpi_rope_args *args, RopeView *view)
{
    const void *staged;
    tp_status status;

    if (view->half <= ROPE_PAIRS) {
        for (int64_t i = 0; i < view->half; i++)
            view->few[i] = std::pow(args->theta, -2.0 * static_cast<double>(i) / static_cast<double>(args->dim));
        return TP_OK;
    }

    std::vector<double> frequency(static_cast<size_t>(view->half));
    for (int64_t i = 0; i < view->half; i++)
        frequency[static_cast<size_t>(i)] =
            std::pow(args->theta, -2.0 * static_cast<double>(i) / static_cast<double>(args->dim));
    status = tpi_cuda_stage(stream, frequency.data(), frequency.size() * sizeof(double), &staged);
    view->frequency = static_cast<const double *>(staged);
    return status;
}

template <typename T> static void launch_rope(tpi_stream *stream, const RopeView &view, const Sequences &sequences)
{
    bool aligned = is_aligned(view.x, sizeof(T), view.rows > 1 ? view.stride : 0) &&
                   is_aligned(nullptr, sizeof(T), view.half) && is_aligned(nullptr, sizeof(T), view.head_dim);

    with_flag(aligned, [&](auto flag) {
        constexpr bool ALIGNED = decltype(flag)::value;
        Tiles tiles = tiles_of(1, view.half < ROPE_PAIRS ? view.half : ROPE_PAIRS, thread_width<ALIGNED, T>);
        unsigned across = tiles.block.x < ROPE_THREADS ? tiles.block.x : ROPE_THREADS;

        rope<ALIGNED, T>
            <<<grid_of_rows(stream, view.rows), dim3(across, ROPE_THREADS / across), 0, tpi_cuda_handle(stream)>>>(
                view, sequences);
    });
}

} // namespace tpi

tp_status tpi_cuda_rope(tpi_stream *stream, const tpi_rope_args *args)
{
    tpi::RopeView view = {args->x,      args->rows,      args->heads,   args->head_dim, args->dim / 2,
                          args->stride, args->positions, args->inverse, nullptr,        {}};
    tpi::Sequences sequences;
    tp_status status;

    if (args->rows <= 0 || args->heads <= 0 || view.half <= 0)
        return TP_OK;
    status =
        tpi::sequences_of(stream, args->positions ? nullptr : args->offsets, args->sequences, args->rows, &sequences);
    if (status == TP_OK)
        status = tpi::frequencies_of(stream, args, &view);
    if (status != TP_OK || tpi_cuda_dry(stream))
        return status;
    tpi::with_dtype(args->dtype, [&](auto zero) { tpi::launch_rope<decltype(zero)>(stream, view, sequences); });
    return tpi_cuda_check(stream, cudaGetLastError(), "rope");
}
