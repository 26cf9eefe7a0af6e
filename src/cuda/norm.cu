/* LayerNorm and RMSNorm, in the CPU's order and arithmetic. The mean in `stats` is the row's mean rounded to f32; what
 * rounding left over (`rest`) is computed again from the row where it matters.
 *
 * A row has 64/N neighbouring threads of a warp, each with N of the 64 chains of row_total (vec.cuh). A thread reads
 * the same columns in every pass over its row, so what it read first waits in shared memory, in slots that no other
 * thread touches. */
#include "cuda/lane.cuh"
#include "cuda/vec.cuh"

namespace tpi
{

constexpr size_t SLOT_BYTES = 32 * 16; /* one vector of each thread of a warp */

/* N elements of a row's step: columns step * 64 + lane * N and on. */
template <bool Aligned, typename T> struct RowReader {
    static constexpr int N = 16 / sizeof(T);

    const T *data; /* at the thread's first column */
    uint4 *slots;  /* NULL: read again */
    int64_t left;  /* columns from there on */

    __device__ __forceinline__ void first(float (&x)[N], int64_t step) const
    {
        Vector<T> vector;

        read(vector, step);
        if (slots)
            slots[step * 32] = vector.words;
        widen(x, vector);
    }

    __device__ __forceinline__ void again(float (&x)[N], int64_t step) const
    {
        Vector<T> vector;

        if (slots)
            vector.words = slots[step * 32];
        else
            read(vector, step);
        widen(x, vector);
    }

  private:
    __device__ __forceinline__ void read(Vector<T> &vector, int64_t step) const
    {
        const T *from = data + step * ROW_CHAINS;
        int64_t n = left - step * ROW_CHAINS;

        if (Aligned && n >= N) {
            vector.words = *reinterpret_cast<const uint4 *>(from);
            return;
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            vector.at[i] = i < n ? from[i] : from_float<T>(0.0f);
    }

    static __device__ __forceinline__ void widen(float (&x)[N], const Vector<T> &vector)
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = to_float(vector.at[i]);
    }
};

/* Where a thread is in its block of one warp. */
template <typename T> struct RowPlace {
    static constexpr int N = 16 / sizeof(T), LANES = ROW_CHAINS / N, ROWS = 32 / LANES;

    int64_t row, col, steps;
    int64_t left; /* columns from `col` on */
    bool there;

    /* Threads beyond the last row read nothing (left is 0) and stay: sums need all lanes. */
    __device__ __forceinline__ RowPlace(int64_t set, int64_t rows, int64_t cols)
    {
        row = set * ROWS + threadIdx.x / LANES;
        there = row < rows;
        row = there ? row : rows - 1;
        col = threadIdx.x % LANES * N;
        left = there ? cols - col : 0;
        steps = (cols + ROW_CHAINS - 1) / ROW_CHAINS;
    }
};

/* ---- forward ---- */

struct NormView {
    tpi_norm_args args;
    bool keep; /* rows wait in shared memory */
};

template <bool Aligned, typename T>
__device__ __forceinline__ void norm_row(const tpi_norm_args &args, const RowReader<Aligned, T> &x,
                                         const RowPlace<T> &place)
{
    constexpr int N = RowPlace<T>::N;
    float cols = static_cast<float>(args.cols), mean = 0, rest = 0, variance, rstd, value[N];
    float sum[N] = {}, squares[N] = {};

    if (!args.rms) {
#pragma unroll 4
        for (int64_t step = 0; step < place.steps; step++) {
            x.first(value, step);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] = vf_add(sum[i], value[i]);
        }
        mean = vf_div(row_total(sum), cols);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[i] = 0;
#pragma unroll 4
    for (int64_t step = 0; step < place.steps; step++) {
        int64_t n = x.left - step * ROW_CHAINS;

        if (args.rms)
            x.first(value, step);
        else
            x.again(value, step);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float d = i < n ? vf_sub(value[i], mean) : 0.0f;

            sum[i] = vf_add(sum[i], d);
            squares[i] = vf_fma(d, d, squares[i]);
        }
    }
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
#pragma unroll 2
    for (int64_t step = 0; step < place.steps; step++) {
        int64_t col = place.col + step * ROW_CHAINS, n = args.cols - col;
        float gain[N], bias[N];

        x.again(value, step);
        load<Aligned>(gain, static_cast<const T *>(args.gain) + col, n);
        if (args.bias)
            load<Aligned>(bias, static_cast<const T *>(args.bias) + col, n);
#pragma unroll
        for (int i = 0; i < N; i++) {
            value[i] = vf_mul(vf_sub(vf_sub(value[i], mean), rest), rstd);
            value[i] = args.bias ? vf_fma(value[i], gain[i], bias[i]) : vf_mul(value[i], gain[i]);
        }
        store<Aligned>(static_cast<T *>(args.y) + place.row * args.y_stride + col, value, n);
    }
}

template <bool Aligned, typename T>
__global__ void __launch_bounds__(32) norm_forward(const __grid_constant__ NormView view)
{
    extern __shared__ uint4 slots[];
    constexpr int ROWS = RowPlace<T>::ROWS;
    const tpi_norm_args &args = view.args;

    for (int64_t set = blockIdx.x; set * ROWS < args.rows; set += gridDim.x) {
        RowPlace<T> place(set, args.rows, args.cols);
        RowReader<Aligned, T> x = {static_cast<const T *>(args.x) + place.row * args.x_stride + place.col,
                                   view.keep ? slots + threadIdx.x : nullptr, place.left};

        norm_row(args, x, place);
    }
}

/* ---- backward: dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * gain; RMSNorm has no mean(g) ---- */

struct NormGradView {
    tpi_norm_grad_args args;
    float *rest; /* [rows]; NULL: not wanted */
    bool keep;
};

struct GradSums {
    float rest, mean_g, mean_gx;
};

template <bool Aligned, typename T>
__device__ __forceinline__ GradSums grad_sums(const tpi_norm_grad_args &args, const RowReader<Aligned, T> &x,
                                              const RowReader<Aligned, T> &dy, const RowPlace<T> &place)
{
    constexpr int N = RowPlace<T>::N;
    float cols = static_cast<float>(args.cols), rstd = args.stats[2 * place.row + 1];
    float mean = args.rms ? 0.0f : args.stats[2 * place.row];
    float sum_d[N] = {}, sum_g[N] = {}, sum_gd[N] = {};
    GradSums sums;

#pragma unroll 2
    for (int64_t step = 0; step < place.steps; step++) {
        int64_t col = place.col + step * ROW_CHAINS, n = args.cols - col;
        float d[N], g[N], gain[N];

        x.first(d, step);
        dy.first(g, step);
        if (args.gain) /* NULL is allowed where dx isn't wanted, whose sums these are */
            load<Aligned>(gain, static_cast<const T *>(args.gain) + col, n);
#pragma unroll
        for (int i = 0; i < N; i++) {
            d[i] = i < n ? vf_sub(d[i], mean) : 0.0f;
            g[i] = args.gain ? vf_mul(g[i], gain[i]) : g[i];
            sum_d[i] = vf_add(sum_d[i], d[i]);
            sum_g[i] = vf_add(sum_g[i], g[i]);
            sum_gd[i] = vf_fma(g[i], d[i], sum_gd[i]);
        }
    }
    float total_d = row_total(sum_d), total_g = row_total(sum_g), total_gd = row_total(sum_gd);
    sums.rest = args.rms ? 0.0f : vf_div(total_d, cols);
    sums.mean_g = args.rms ? 0.0f : vf_div(total_g, cols);
    sums.mean_gx = vf_div(vf_mul(vf_fma(-sums.rest, total_g, total_gd), rstd), cols);
    return sums;
}

/* (x - mean - rest) * rstd, the same wherever it is needed. */
static __device__ __forceinline__ float normalized(float x, float mean, float rest, float rstd)
{
    return vf_mul(vf_sub(vf_sub(x, mean), rest), rstd);
}

template <bool Aligned, typename T>
__device__ __forceinline__ void grad_dx(const tpi_norm_grad_args &args, const GradSums &sums,
                                        const RowReader<Aligned, T> &x, const RowReader<Aligned, T> &dy,
                                        const RowPlace<T> &place)
{
    constexpr int N = RowPlace<T>::N;
    float rstd = args.stats[2 * place.row + 1], mean = args.rms ? 0.0f : args.stats[2 * place.row];

#pragma unroll 2
    for (int64_t step = 0; step < place.steps; step++) {
        int64_t col = place.col + step * ROW_CHAINS, n = args.cols - col;
        float value[N], g[N], gain[N], residual[N];

        x.again(value, step);
        dy.again(g, step);
        load<Aligned>(gain, static_cast<const T *>(args.gain) + col, n);
        if (args.residual)
            load<Aligned>(residual, static_cast<const T *>(args.residual) + place.row * args.residual_stride + col, n);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float xhat = normalized(value[i], mean, sums.rest, rstd);

            value[i] = vf_fnma(xhat, sums.mean_gx, vf_sub(vf_mul(g[i], gain[i]), sums.mean_g));
            value[i] = vf_mul(value[i], rstd);
            if (args.residual)
                value[i] = vf_add(value[i], residual[i]);
        }
        store<Aligned>(static_cast<T *>(args.dx) + place.row * args.dx_stride + col, value, n);
    }
}

template <bool Aligned, typename T>
__global__ void __launch_bounds__(32) norm_backward(const __grid_constant__ NormGradView view)
{
    extern __shared__ uint4 slots[];
    constexpr int ROWS = RowPlace<T>::ROWS;
    const tpi_norm_grad_args &args = view.args;

    for (int64_t set = blockIdx.x; set * ROWS < args.rows; set += gridDim.x) {
        RowPlace<T> place(set, args.rows, args.cols);
        uint4 *x_slots = view.keep ? slots + threadIdx.x : nullptr;
        uint4 *dy_slots = view.keep ? x_slots + place.steps * 32 : nullptr;
        RowReader<Aligned, T> x = {static_cast<const T *>(args.x) + place.row * args.x_stride + place.col, x_slots,
                                   place.left};
        RowReader<Aligned, T> dy = {static_cast<const T *>(args.dy) + place.row * args.dy_stride + place.col, dy_slots,
                                    place.left};
        GradSums sums = grad_sums(args, x, dy, place);

        if (!place.there)
            continue;
        if (view.rest && place.col == 0)
            view.rest[place.row] = sums.rest;
        if (args.dx)
            grad_dx(args, sums, x, dy, place);
    }
}

static __device__ __forceinline__ int64_t shard_begin(int64_t total, int64_t parts, int64_t index)
{
    return total / parts * index + total % parts * index / parts; /* tp_shard_range */
}

/* The gain's and bias's gradients of one column and virtual rank: chains over its rows, continued from what is stored.
 */
template <typename T> __global__ void __launch_bounds__(64) norm_gain_grad(const __grid_constant__ NormGradView view)
{
    const tpi_norm_grad_args &args = view.args;
    int64_t col = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;

    if (col >= args.cols)
        return;
    for (int64_t v = blockIdx.y; v < args.virtual_count; v += gridDim.y) {
        int64_t row = shard_begin(args.total_rows, args.virtual_count, v) - args.first_row;
        int64_t end = shard_begin(args.total_rows, args.virtual_count, v + 1) - args.first_row;
        int64_t at = (v - args.virtual_first) * args.cols + col;
        float gain = 0, bias = 0;

        row = row > 0 ? row : 0;
        end = end < args.rows ? end : args.rows;
        if (row >= end)
            continue;
        gain = args.gain_grad ? args.gain_grad[at] : 0.0f;
        bias = args.bias_grad ? args.bias_grad[at] : 0.0f;
#pragma unroll 8
        for (; row < end; row++) {
            float dy = to_float(static_cast<const T *>(args.dy)[row * args.dy_stride + col]);
            float x = to_float(static_cast<const T *>(args.x)[row * args.x_stride + col]);
            float mean = args.rms ? 0.0f : args.stats[2 * row];

            gain = vf_fma(dy, normalized(x, mean, view.rest[row], args.stats[2 * row + 1]), gain);
            bias = vf_add(bias, dy);
        }
        if (args.gain_grad)
            args.gain_grad[at] = gain;
        if (args.bias_grad)
            args.bias_grad[at] = bias;
    }
}

/* ---- launches ---- */

/* Shared memory of a block, if the device lets a block have as much; above 48 KiB the kernel must be told. */
template <typename Kernel>
static bool shared_for_rows(tpi_stream *stream, Kernel kernel, int64_t cols, int arrays, size_t *bytes)
{
    *bytes = static_cast<size_t>(divided_up(cols, ROW_CHAINS)) * SLOT_BYTES * static_cast<size_t>(arrays);
    if (*bytes <= 48 * 1024)
        return true;
    if (*bytes <= tpi_cuda_device_of(stream)->shared_bytes &&
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(*bytes)) ==
            cudaSuccess)
        return true;
    *bytes = 0;
    return false;
}

template <typename T> static tp_status launch_norm(tpi_stream *stream, const tpi_norm_args *args)
{
    NormView view = {*args, false};
    bool aligned = is_aligned(args->x, sizeof(T), args->x_stride) && is_aligned(args->y, sizeof(T), args->y_stride) &&
                   is_aligned(args->gain, 1, 0) && is_aligned(args->bias, 1, 0);
    unsigned grid = grid_of(args->rows, RowPlace<T>::ROWS);

    with_flag(aligned, [&](auto flag) {
        auto kernel = norm_forward<decltype(flag)::value, T>;
        size_t bytes;

        view.keep = shared_for_rows(stream, kernel, args->cols, 1, &bytes);
        kernel<<<grid, 32, bytes, tpi_cuda_handle(stream)>>>(view);
    });
    return tpi_cuda_check(stream, cudaGetLastError(), "norm");
}

template <typename T> static void launch_norm_rows(tpi_stream *stream, NormGradView view)
{
    const tpi_norm_grad_args *args = &view.args;
    bool aligned = is_aligned(args->x, sizeof(T), args->x_stride) && is_aligned(args->dy, sizeof(T), args->dy_stride) &&
                   is_aligned(args->gain, 1, 0);
    unsigned grid = grid_of(args->rows, RowPlace<T>::ROWS);

    if (args->dx)
        aligned = aligned && is_aligned(args->dx, sizeof(T), args->dx_stride) &&
                  is_aligned(args->residual, sizeof(T), args->residual ? args->residual_stride : 0);
    with_flag(aligned, [&](auto flag) {
        auto kernel = norm_backward<decltype(flag)::value, T>;
        size_t bytes = 0;

        view.keep = args->dx && shared_for_rows(stream, kernel, args->cols, 2, &bytes);
        kernel<<<grid, 32, bytes, tpi_cuda_handle(stream)>>>(view);
    });
}

template <typename T> static tp_status launch_norm_grad(tpi_stream *stream, NormGradView view)
{
    bool gains = view.args.gain_grad || view.args.bias_grad;
    void *dx = view.args.dx;
    int64_t ranks = view.args.virtual_count;
    dim3 grid(static_cast<unsigned>(divided_up(view.args.cols, 64)),
              static_cast<unsigned>(ranks < 4096 ? ranks : 4096));

    /* dx may be dy: the gain's sums read dy before dx is written. */
    if (gains && dx == view.args.dy)
        view.args.dx = nullptr;
    launch_norm_rows<T>(stream, view);
    if (gains)
        norm_gain_grad<T><<<grid, 64, 0, tpi_cuda_handle(stream)>>>(view);
    if (dx != view.args.dx) {
        view.args.dx = dx;
        launch_norm_rows<T>(stream, view);
    }
    return tpi_cuda_check(stream, cudaGetLastError(), "norm_grad");
}

} // namespace tpi

tp_status tpi_cuda_norm(tpi_stream *stream, const tpi_norm_args *args)
{
    if (args->rows <= 0 || args->cols <= 0)
        return TP_OK;
    return tpi::with_dtype(args->dtype, [&](auto zero) { return tpi::launch_norm<decltype(zero)>(stream, args); });
}

tp_status tpi_cuda_norm_grad(tpi_stream *stream, const tpi_norm_grad_args *args)
{
    tpi::NormGradView view = {*args, nullptr, false};

    if (args->rows <= 0 || args->cols <= 0)
        return TP_OK;
    if (view.args.virtual_count < 1)
        view.args.virtual_count = 1;
    if (args->gain_grad || args->bias_grad) {
        void *rest;
        tp_status status = tpi_cuda_workspace(stream, static_cast<size_t>(args->rows) * sizeof(float), &rest);

        if (status != TP_OK)
            return status;
        view.rest = static_cast<float *>(rest);
    }
    return tpi::with_dtype(args->dtype, [&](auto zero) { return tpi::launch_norm_grad<decltype(zero)>(stream, view); });
}
