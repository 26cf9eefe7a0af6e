/* Cross-entropy over a vocabulary shard, in the four phases of ops.h, with the CPU's arithmetic and order. Everything
 * is relative to the row's maximum over the whole vocabulary. A row whose logits are all -inf has no distribution: its
 * loss is +inf and its gradient 0. */
#include "cuda/lane.cuh"
#include "cuda/vec.cuh"

namespace tpi
{

constexpr int XENT_THREADS = 256, LOSS_ROWS = 1024;

struct XentView {
    tpi_xent_args args; /* without `order` */
    tpi_inner order;
    tpi_cuda_fault *fault;
};

/* What logits are taken relative to. */
static __device__ __forceinline__ float shift_of(float max)
{
    return max == -INFINITY ? 0.0f : max;
}

/* One thread of a row asks. */
static __device__ __forceinline__ void check_target(const XentView &view, int64_t row)
{
    if (view.args.targets && view.args.targets[row] >= view.args.vocabulary)
        report_fault(view.fault, TPI_CUDA_FAULT_TARGET, view.args.targets[row], row, view.args.vocabulary);
}

/* Calls fn(col, n) for a thread's columns of one row, in no order that matters: n is a whole vector, at an aligned
 * address, or 1. */
template <typename T, typename F> __device__ __forceinline__ void for_each_vector(const T *row, int64_t cols, F fn)
{
    constexpr int N = 16 / sizeof(T);
    int64_t head = static_cast<int64_t>((16 - reinterpret_cast<uintptr_t>(row) % 16) % 16 / sizeof(T)), tail;

    head = head < cols ? head : cols;
    tail = head + (cols - head) / N * N;
    for (int64_t col = head + static_cast<int64_t>(threadIdx.x) * N; col < tail;
         col += static_cast<int64_t>(blockDim.x) * N)
        fn(col, N);
    if (threadIdx.x < head)
        fn(static_cast<int64_t>(threadIdx.x), 1);
    if (tail + threadIdx.x < cols)
        fn(tail + threadIdx.x, 1);
}

/* ---- phase 1 ---- */

template <typename T> __global__ void __launch_bounds__(XENT_THREADS) xent_max(const __grid_constant__ XentView view)
{
    __shared__ float of_warp[XENT_THREADS / 32];
    const tpi_xent_args &args = view.args;

    for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
        const T *logits = static_cast<const T *>(args.logits) + row * args.stride;
        float max = -INFINITY;

        for_each_vector(logits, args.cols, [&](int64_t col, int n) {
            constexpr int N = 16 / sizeof(T);
            float x[N];

            load<true>(x, logits + col, n);
#pragma unroll
            for (int i = 0; i < N; i++)
                if (i < n)
                    max = vf_max_nan(x[i], max);
        });
        max = lanes_max<32>(max);
        if (threadIdx.x % 32 == 0)
            of_warp[threadIdx.x / 32] = max;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int warp = 1; warp < XENT_THREADS / 32; warp++)
                max = vf_max_nan(of_warp[warp], max);
            args.max[row] = max;
            check_target(view, row);
        }
        __syncthreads();
    }
}

/* ---- phase 2 ---- */

/* The sum of 64 chains in the CPU's order (row_total in vec.cuh); lane l has chains l and l + 32. */
static __device__ __forceinline__ float warp_total(float low, float high)
{
    low = vf_add(low, __shfl_xor_sync(ALL_LANES, low, 16));
    high = vf_add(high, __shfl_xor_sync(ALL_LANES, high, 16));
    return lanes_sum<16>(vf_add(low, high));
}

struct XentChains {
    float exp_low, exp_high, raw_low, raw_high;
};

/* Adds one segment's exp(x - shift) and x - shift; a warp has the segment. */
template <typename T>
__device__ __forceinline__ void sum_segment(const T *logits, int64_t cols, float shift, XentChains &chains)
{
    int64_t col = threadIdx.x % 32;

#pragma unroll 4
    for (; col + 32 < cols; col += ROW_CHAINS) {
        float low = vf_sub(to_float(logits[col]), shift), high = vf_sub(to_float(logits[col + 32]), shift);

        chains.exp_low = vf_add(chains.exp_low, vf_exp(low));
        chains.exp_high = vf_add(chains.exp_high, vf_exp(high));
        chains.raw_low = vf_add(chains.raw_low, low);
        chains.raw_high = vf_add(chains.raw_high, high);
    }
    if (col < cols) {
        float low = vf_sub(to_float(logits[col]), shift);

        chains.exp_low = vf_add(chains.exp_low, vf_exp(low));
        chains.raw_low = vf_add(chains.raw_low, low);
    }
}

/* The tree over the virtual ranks of this shard. */
static __device__ __forceinline__ float tree_of(const float *value, int count)
{
    float node[TPI_MAX_BLOCKS];

#pragma unroll
    for (int i = 0; i < TPI_MAX_BLOCKS; i++)
        node[i] = i < count ? value[i] : 0.0f;
#pragma unroll
    for (int distance = 1; distance < TPI_MAX_BLOCKS; distance *= 2)
#pragma unroll
        for (int i = 0; i + distance < TPI_MAX_BLOCKS; i += 2 * distance)
            if (i + distance < count)
                node[i] = vf_add(node[i], node[i + distance]);
    return node[0];
}

template <typename T> __device__ __forceinline__ float target_logit(const tpi_xent_args &args, int64_t row)
{
    int64_t target = args.targets[row], col = target - args.first_id;

    if (target < 0 || col < 0 || col >= args.cols)
        return 0.0f;
    return vf_add(to_float(static_cast<const T *>(args.logits)[row * args.stride + col]), 0.0f);
}

/* One block a row, one warp a virtual rank. */
template <typename T>
__global__ void __launch_bounds__(32 * TPI_MAX_BLOCKS) xent_sums(const __grid_constant__ XentView view)
{
    __shared__ float exps[TPI_MAX_BLOCKS], raw[TPI_MAX_BLOCKS];
    const tpi_xent_args &args = view.args;
    int block = static_cast<int>(threadIdx.x / 32);

    for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
        const T *logits = static_cast<const T *>(args.logits) + row * args.stride;
        float shift = shift_of(args.max[row]);
        XentChains chains = {};

        for (int s = 0; s < view.order.segments; s++)
            if (view.order.segment[s].block == block)
                sum_segment(logits + view.order.segment[s].begin, view.order.segment[s].length, shift, chains);
        float exp_total = warp_total(chains.exp_low, chains.exp_high);
        float raw_total = warp_total(chains.raw_low, chains.raw_high);
        if (threadIdx.x % 32 == 0) {
            exps[block] = exp_total;
            raw[block] = raw_total;
        }
        if (static_cast<int>(threadIdx.x) >= view.order.blocks && threadIdx.x < TPI_MAX_BLOCKS)
            exps[threadIdx.x] = raw[threadIdx.x] = 0; /* all eight are read */
        __syncthreads();
        if (threadIdx.x == 0) {
            check_target(view, row);
            args.sums[row] = tree_of(exps, view.order.blocks);
            args.sums[args.rows + row] = target_logit<T>(args, row);
            args.sums[2 * args.rows + row] = args.label_smoothing > 0 ? tree_of(raw, view.order.blocks) : 0.0f;
        }
        __syncthreads();
    }
}

/* ---- phase 3 ---- */

static __device__ __forceinline__ float loss_of(const tpi_xent_args &args, int64_t row, float &lse)
{
    float smoothing = args.label_smoothing, shift = shift_of(args.max[row]), sum = args.sums[row];
    float log_sum = vf_log(sum), loss;

    lse = vf_add(shift, log_sum);
    loss = vf_fma(vf_sub(shift, args.sums[args.rows + row]), vf_sub(1.0f, smoothing), log_sum);
    if (smoothing > 0)
        loss = vf_fnma(args.sums[2 * args.rows + row], vf_div(smoothing, static_cast<float>(args.vocabulary)), loss);
    if (args.z_loss != 0)
        loss = vf_fma(vf_mul(lse, lse), args.z_loss, loss);
    if (sum == 0)
        loss = INFINITY;
    return args.targets[row] < 0 ? 0.0f : loss;
}

/* One block: the total is one chain over tokens. */
__global__ void __launch_bounds__(XENT_THREADS) xent_loss(const __grid_constant__ XentView view)
{
    __shared__ float losses[LOSS_ROWS];
    __shared__ int valid[LOSS_ROWS];
    const tpi_xent_args &args = view.args;
    float total = args.total ? args.total[0] : 0.0f, count = args.total ? args.total[1] : 0.0f;

    for (int64_t first = 0; first < args.rows; first += LOSS_ROWS) {
        int rows = static_cast<int>(args.rows - first < LOSS_ROWS ? args.rows - first : LOSS_ROWS);

        for (int i = static_cast<int>(threadIdx.x); i < rows; i += XENT_THREADS) {
            int64_t row = first + i;
            float lse;

            losses[i] = loss_of(args, row, lse);
            valid[i] = args.targets[row] >= 0;
            args.loss[row] = losses[i];
            args.lse[row] = lse;
            check_target(view, row);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
#pragma unroll 8
            for (int i = 0; i < rows; i++) {
                total = valid[i] ? vf_add(total, losses[i]) : total;
                count = valid[i] ? vf_add(count, 1.0f) : count;
            }
        }
        __syncthreads();
    }
    if (threadIdx.x == 0 && args.total) {
        args.total[0] = total;
        args.total[1] = count;
    }
}

/* ---- phase 4 ---- */

/* scale * (exp(x - shift) * factor + base) */
struct XentSlope {
    float shift, factor, base, scale;
};

static __device__ __forceinline__ float slope_at(const XentSlope &slope, float x, float extra)
{
    return vf_mul(vf_fma(vf_exp(vf_sub(x, slope.shift)), slope.factor, vf_add(slope.base, extra)), slope.scale);
}

template <typename T> __global__ void __launch_bounds__(XENT_THREADS) xent_grad(const __grid_constant__ XentView view)
{
    const tpi_xent_args &args = view.args;

    for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
        T *logits = static_cast<T *>(args.logits) + row * args.stride;
        float sum = args.sums[row], smoothing = args.label_smoothing;
        int64_t target = args.targets[row] - args.first_id;
        bool nothing = args.targets[row] < 0 || sum == 0;
        XentSlope slope;

        slope.shift = shift_of(args.max[row]);
        slope.factor = vf_div(vf_add(1.0f, vf_mul(vf_mul(2.0f, args.z_loss), args.lse[row])), sum);
        slope.base = vf_div(-smoothing, static_cast<float>(args.vocabulary));
        slope.scale = args.loss_scale;
        if (threadIdx.x == 0)
            check_target(view, row);
        for_each_vector(logits, args.cols, [&](int64_t col, int n) {
            constexpr int N = 16 / sizeof(T);
            float x[N];

            load<true>(x, logits + col, n);
#pragma unroll
            for (int i = 0; i < N; i++)
                x[i] = nothing ? 0.0f : slope_at(slope, x[i], col + i == target ? vf_sub(smoothing, 1.0f) : 0.0f);
            store<true>(logits + col, x, n);
        });
    }
}

template <typename T> static void launch_xent(tpi_stream *stream, const XentView &view)
{
    cudaStream_t handle = tpi_cuda_handle(stream);
    unsigned grid = grid_of_rows(stream, view.args.rows);

    switch (view.args.phase) {
    case TPI_XENT_MAX: xent_max<T><<<grid, XENT_THREADS, 0, handle>>>(view); return;
    case TPI_XENT_SUMS: xent_sums<T><<<grid, 32 * static_cast<unsigned>(view.order.blocks), 0, handle>>>(view); return;
    default: xent_grad<T><<<grid, XENT_THREADS, 0, handle>>>(view);
    }
}

} // namespace tpi

tp_status tpi_cuda_xent(tpi_stream *stream, const tpi_xent_args *args)
{
    tpi::XentView view = {*args, {}, tpi_cuda_device_of(stream)->fault};

    if (args->rows <= 0)
        return TP_OK;
    view.args.order = nullptr;
    view.order.blocks = view.order.segments = 1;
    view.order.segment[0].length = args->cols;
    if (args->order)
        view.order = *args->order;
    if (args->phase == TPI_XENT_LOSS)
        tpi::xent_loss<<<1, tpi::XENT_THREADS, 0, tpi_cuda_handle(stream)>>>(view);
    else
        tpi::with_dtype(args->dtype, [&](auto zero) { tpi::launch_xent<decltype(zero)>(stream, view); });
    return tpi_cuda_check(stream, cudaGetLastError(), "xent");
}
