/* LayerNorm and RMSNorm, in the CPU's order and arithmetic. The mean in `stats` is the row's mean rounded to f32; what
 * rounding left over (`rest`) is computed again from the row where it matters. */
#include "cuda/norm_row.cuh"

namespace tpi
{

/* ---- forward ---- */

template <bool Aligned, bool Kept, typename T>
__global__ void __launch_bounds__(32) norm_forward(const __grid_constant__ tpi_norm_args args)
{
    extern __shared__ uint4 slots[];
    constexpr int ROWS = RowPlace<T>::ROWS;

    for (int64_t set = blockIdx.x; set * ROWS < args.rows; set += gridDim.x) {
        RowPlace<T> place(set, args.rows, args.cols);
        RowReader<Aligned, Kept, T> x(args.x, args.x_stride, place, slots + threadIdx.x);

        x.fetch(place, args.cols);
        x.template wait<0>();
        norm_row(args, x, place);
    }
}

/* ---- backward: dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * gain; RMSNorm has no mean(g) ---- */

struct GradSums {
    float rest, mean_g, mean_gx;
};

template <bool Aligned, bool Kept, typename T>
__device__ __forceinline__ GradSums grad_sums(const tpi_norm_grad_args &args, const RowReader<Aligned, Kept, T> &x,
                                              const RowReader<Aligned, Kept, T> &dy, const RowPlace<T> &place)
{
    constexpr int N = RowPlace<T>::N;
    float cols = static_cast<float>(args.cols), rstd = args.stats[2 * place.row + 1];
    float mean = args.rms ? 0.0f : args.stats[2 * place.row];
    float sum_d[N] = {}, sum_g[N] = {}, sum_gd[N] = {};
    GradSums sums;

    for_each_step<16 / N>(place, args.cols, [&](int64_t step, int64_t n) {
        int64_t col = place.col + step * ROW_CHAINS;
        float d[N], g[N], gain[N];

        x.get(d, step);
        dy.get(g, step);
        load_weights<Aligned, N, T>(gain, args.gain, col, n);
#pragma unroll
        for (int i = 0; i < N; i++) {
            d[i] = i < n ? vf_sub(d[i], mean) : 0.0f;
            g[i] = vf_mul(g[i], gain[i]);
            sum_d[i] = vf_add(sum_d[i], d[i]);
            sum_g[i] = vf_add(sum_g[i], g[i]);
            sum_gd[i] = vf_fma(g[i], d[i], sum_gd[i]);
        }
    });
    float total_d = row_total(sum_d), total_g = row_total(sum_g), total_gd = row_total(sum_gd);
    sums.rest = args.rms ? 0.0f : vf_div(total_d, cols);
    sums.mean_g = args.rms ? 0.0f : vf_div(total_g, cols);
    sums.mean_gx = vf_div(vf_mul(vf_fma(-sums.rest, total_g, total_gd), rstd), cols);
    return sums;
}

template <bool Aligned, bool Kept, typename T> struct GradReaders {
    RowReader<Aligned, Kept, T> x, dy, residual;
};

template <bool Aligned, bool Kept, typename T>
__device__ __forceinline__ void grad_dx(const tpi_norm_grad_args &args, const GradSums &sums,
                                        const GradReaders<Aligned, Kept, T> &from, const RowPlace<T> &place)
{
    constexpr int N = RowPlace<T>::N;
    float rstd = args.stats[2 * place.row + 1], mean = args.rms ? 0.0f : args.stats[2 * place.row];

    for_each_step<16 / N>(place, args.cols, [&](int64_t step, int64_t n) {
        int64_t col = place.col + step * ROW_CHAINS;
        float value[N], g[N], gain[N], residual[N];

        from.x.get(value, step);
        from.dy.get(g, step);
        load_weights<Aligned, N, T>(gain, args.gain, col, n);
        if (args.residual)
            from.residual.get(residual, step);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float xhat = normalized(value[i], mean, sums.rest, rstd);

            value[i] = vf_fnma(xhat, sums.mean_gx, vf_sub(vf_mul(g[i], gain[i]), sums.mean_g));
            value[i] = vf_mul(value[i], rstd);
            if (args.residual)
                value[i] = vf_add(value[i], residual[i]);
        }
        store<Aligned>(static_cast<T *>(args.dx) + place.row * args.dx_stride + col, value, n);
    });
}

template <bool Aligned, bool Kept, typename T>
__global__ void __launch_bounds__(32) norm_backward(const __grid_constant__ tpi_norm_grad_args args)
{
    extern __shared__ uint4 slots[];
    constexpr int ROWS = RowPlace<T>::ROWS;

    for (int64_t set = blockIdx.x; set * ROWS < args.rows; set += gridDim.x) {
        RowPlace<T> place(set, args.rows, args.cols);
        uint4 *first = slots + threadIdx.x;
        int64_t array = place.steps * 32;
        GradReaders<Aligned, Kept, T> from = {{args.x, args.x_stride, place, first},
                                              {args.dy, args.dy_stride, place, first + array},
                                              {args.residual, args.residual_stride, place, first + 2 * array}};

        from.x.fetch(place, args.cols);
        from.dy.fetch(place, args.cols);
        if (args.residual) {
            from.residual.fetch(place, args.cols);
            from.dy.template wait<1>();
        } else {
            from.dy.template wait<0>();
        }
        GradSums sums = grad_sums(args, from.x, from.dy, place);

        from.residual.template wait<0>();
        if (place.there)
            grad_dx(args, sums, from, place);
    }
}

/* ---- launches ---- */

template <typename T> static tp_status launch_norm(tpi_stream *stream, const tpi_norm_args *args)
{
    cudaStream_t handle = tpi_cuda_handle(stream);
    bool aligned = is_aligned(args->x, sizeof(T), args->x_stride) && is_aligned(args->y, sizeof(T), args->y_stride) &&
                   is_aligned(args->gain, 1, 0) && is_aligned(args->bias, 1, 0);
    unsigned grid = grid_of(args->rows, RowPlace<T>::ROWS);

    with_flag(aligned, [&](auto flag) {
        constexpr bool ALIGNED = decltype(flag)::value;
        size_t bytes;

        if (shared_for_rows(stream, norm_forward<ALIGNED, true, T>, args->cols, 1, &bytes))
            norm_forward<ALIGNED, true, T><<<grid, 32, bytes, handle>>>(*args);
        else
            norm_forward<ALIGNED, false, T><<<grid, 32, 0, handle>>>(*args);
    });
    return tpi_cuda_check(stream, cudaGetLastError(), "norm");
}

template <typename T> static tp_status launch_norm_grad(tpi_stream *stream, const tpi_norm_grad_args *args)
{
    cudaStream_t handle = tpi_cuda_handle(stream);
    bool aligned = is_aligned(args->x, sizeof(T), args->x_stride) && is_aligned(args->dy, sizeof(T), args->dy_stride) &&
                   is_aligned(args->gain, 1, 0) && is_aligned(args->dx, sizeof(T), args->dx_stride) &&
                   is_aligned(args->residual, sizeof(T), args->residual ? args->residual_stride : 0);
    unsigned grid = grid_of(args->rows, RowPlace<T>::ROWS);

    with_flag(aligned, [&](auto flag) {
        constexpr bool ALIGNED = decltype(flag)::value;
        size_t bytes;

        if (shared_for_rows(stream, norm_backward<ALIGNED, true, T>, args->cols, args->residual ? 3 : 2, &bytes))
            norm_backward<ALIGNED, true, T><<<grid, 32, bytes, handle>>>(*args);
        else
            norm_backward<ALIGNED, false, T><<<grid, 32, 0, handle>>>(*args);
    });
    return tpi_cuda_check(stream, cudaGetLastError(), "norm_grad");
}

} // namespace tpi

tp_status tpi_cuda_norm(tpi_stream *stream, const tpi_norm_args *args)
{
    if (args->rows <= 0 || args->cols <= 0)
        return TP_OK;
    return tpi::with_dtype(args->dtype, [&](auto zero) { return tpi::launch_norm<decltype(zero)>(stream, args); });
}

/* dx may be dy: the gain's sums read dy before dx is written. */
tp_status tpi_cuda_norm_grad(tpi_stream *stream, const tpi_norm_grad_args *original)
{
    tpi_norm_grad_args args = *original;
    void *rest = nullptr;
    tp_status status = TP_OK;

    if (args.rows <= 0 || args.cols <= 0)
        return TP_OK;
    if (args.virtual_count < 1)
        args.virtual_count = 1;
    if (args.gain_grad || args.bias_grad) {
        if (!args.rms)
            status = tpi_cuda_workspace(stream, static_cast<size_t>(args.rows) * sizeof(float), &rest);
        if (tpi_cuda_dry(stream))
            return status;
        if (status == TP_OK)
            status = tpi::gain_gradients(stream, &args, static_cast<float *>(rest));
    }
    if (status != TP_OK || !args.dx || tpi_cuda_dry(stream))
        return status;
    return tpi::with_dtype(args.dtype,
                           [&](auto zero) { return tpi::launch_norm_grad<decltype(zero)>(stream, &args); });
}
