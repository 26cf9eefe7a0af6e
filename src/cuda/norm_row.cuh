/* LayerNorm or RMSNorm of a row. */
#ifndef TPI_CUDA_NORM_ROW_CUH
#define TPI_CUDA_NORM_ROW_CUH

#include "cuda/norm.cuh"

namespace tpi
{

template <bool Aligned, bool Kept, typename T>
__device__ __forceinline__ void norm_row(const tpi_norm_args &args, const RowReader<Aligned, Kept, T> &x,
                                         const RowPlace<T> &place)
{
    constexpr int N = RowPlace<T>::N;
    float cols = static_cast<float>(args.cols), mean = 0, rest = 0, variance, rstd, value[N];
    float sum[N] = {}, squares[N] = {};

    if (!args.rms) {
        for_each_step<4>(place, args.cols, [&](int64_t step, int64_t) {
            x.get(value, step);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] = vf_add(sum[i], value[i]);
        });
        mean = vf_div(row_total(sum), cols);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[i] = 0;
    for_each_step<4>(place, args.cols, [&](int64_t step, int64_t n) {
        x.get(value, step);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float d = i < n ? vf_sub(value[i], mean) : 0.0f;

            sum[i] = vf_add(sum[i], d);
            squares[i] = vf_fma(d, d, squares[i]);
        }
    });
    float total = row_total(sum), total_squares = row_total(squares);
    rest = args.rms ? 0.0f : vf_div(total, cols);
    variance = vf_div(vf_fma(-rest, total, total_squares), cols);
    rstd = vf_div(1.0f, vf_sqrt(vf_add(variance < 0 ? 0.0f : variance, args.epsilon)));
    if (!place.there)
        return;
    if (args.stats && place.col == 0) {
        args.stats[2 * place.row] = mean;
        args.stats[2 * place.row + 1] = rstd;
    }
    for_each_step<2>(place, args.cols, [&](int64_t step, int64_t n) {
        int64_t col = place.col + step * ROW_CHAINS;
        float gain[N], bias[N];

        x.get(value, step);
        load_weights<Aligned, N, T>(gain, args.gain, col, n);
        if (args.bias)
            load_weights<Aligned, N, T>(bias, args.bias, col, n);
#pragma unroll
        for (int i = 0; i < N; i++) {
            value[i] = vf_mul(vf_sub(vf_sub(value[i], mean), rest), rstd);
            value[i] = args.bias ? vf_fma(value[i], gain[i], bias[i]) : vf_mul(value[i], gain[i]);
        }
        store<Aligned>(static_cast<T *>(args.y) + place.row * args.y_stride + col, value, n);
    });
}

} // namespace tpi

#endif
