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

/* A virtual rank's part of a row has LANES neighbouring threads of a warp, each with N of its 64 chains (row_total in
 * vec.cuh). They read whole vectors at aligned addresses. So a thread's chains are those of its columns there: which
 * they are depends on where the part begins in memory. */
constexpr int SUM_PARTS = TPI_MAX_BLOCKS; /* of a block of threads: of one row, or of several */

template <typename T> struct SumPlace {
    static constexpr int N = 16 / sizeof(T), LANES = ROW_CHAINS / N, THREADS = LANES * SUM_PARTS;

    int lane, part;

    __device__ __forceinline__ SumPlace()
        : lane(static_cast<int>(threadIdx.x) % LANES), part(static_cast<int>(threadIdx.x) / LANES)
    {
    }
};

template <bool Raw, int N> struct SumChains {
    float exps[N], raw[N];

    /* Adds e^(x - shift) and x - shift. */
    __device__ __forceinline__ void add(int i, float x, float shift)
    {
        float d = vf_sub(x, shift);

        exps[i] = vf_add(exps[i], vf_exp_below(d));
        if (Raw)
            raw[i] = vf_add(raw[i], d);
    }
};

/* Adds the columns of one segment that are the thread's. before: elements between an aligned address and the segment's
 * begin. */
template <bool Raw, typename T, int N>
__device__ __forceinline__ void sum_columns(const T *segment, int64_t length, int before, int lane, float shift,
                                            SumChains<Raw, N> &chains)
{
    const int64_t first = lane * N - before, end = (length + before) / ROW_CHAINS;
    auto some = [&](int64_t step) {
        int64_t col = first + step * ROW_CHAINS;

#pragma unroll
        for (int i = 0; i < N; i++)
            if (col + i >= 0 && col + i < length)
                chains.add(i, to_float(segment[col + i]), shift);
    };
    const uint4 *vectors = reinterpret_cast<const uint4 *>(segment + first);
    constexpr int64_t STRIDE = ROW_CHAINS / N;
    int64_t step = before > 0 ? 1 : 0;

    if (before > 0)
        some(0);
    if (step < end) {
        uint4 next = vectors[step * STRIDE]; /* on its way while the one before is added */

#pragma unroll 2
        for (; step < end; step++) {
            Vector<T> vector;

            vector.words = next;
            next = vectors[(step + 1 < end ? step + 1 : step) * STRIDE];
#pragma unroll
            for (int i = 0; i < N; i++)
                chains.add(i, to_float(vector.at[i]), shift);
        }
    }
    if (step == end)
        some(end);
}

/* A virtual rank's chains, in their own order. */
struct StoredChains {
    float exps[ROW_CHAINS], raw[ROW_CHAINS];
};

static __device__ __forceinline__ int next_segment(const tpi_inner &order, int block, int s)
{
    while (s < order.segments && order.segment[s].block != block)
        s++;
    return s;
}

template <bool Raw, typename T>
__device__ __forceinline__ void sum_segment(const T *segment, int64_t length, int lane, float shift,
                                            StoredChains &stored)
{
    constexpr int N = SumPlace<T>::N;
    int before = static_cast<int>(reinterpret_cast<uintptr_t>(segment) % 16 / sizeof(T));
    int chain = lane * N - before + ROW_CHAINS;
    SumChains<Raw, N> chains;

#pragma unroll
    for (int i = 0; i < N; i++) {
        chains.exps[i] = stored.exps[(chain + i) % ROW_CHAINS];
        chains.raw[i] = stored.raw[(chain + i) % ROW_CHAINS];
    }
    sum_columns(segment, length, before, lane, shift, chains);
#pragma unroll
    for (int i = 0; i < N; i++) {
        stored.exps[(chain + i) % ROW_CHAINS] = chains.exps[i];
        stored.raw[(chain + i) % ROW_CHAINS] = chains.raw[i];
    }
}

/* The sums of a virtual rank's segments, of which it may have several, in each of its threads. All threads of the warp
 * take part; those without a virtual rank have a block that no segment is of. */
template <bool Raw, typename T>
__device__ __forceinline__ void sum_part(const tpi_inner &order, const T *logits, int block, int lane, float shift,
                                         StoredChains &stored, float (&total)[2])
{
    constexpr int N = SumPlace<T>::N;
    float *exps = stored.exps + lane * N, *raw = stored.raw + lane * N, chain[N];
    int s = next_segment(order, block, 0);

#pragma unroll
    for (int i = 0; i < N; i++)
        exps[i] = raw[i] = 0;
    __syncwarp();
    while (__any_sync(ALL_LANES, s < order.segments)) {
        if (s < order.segments)
            sum_segment<Raw>(logits + order.segment[s].begin, order.segment[s].length, lane, shift, stored);
        s = next_segment(order, block, s + 1);
        __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        chain[i] = exps[i];
    total[0] = row_total(chain);
#pragma unroll
    for (int i = 0; i < N && Raw; i++)
        chain[i] = raw[i];
    total[1] = Raw ? row_total(chain) : 0.0f;
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

/* A block has one row, or as many as have that many virtual ranks here together. */
template <bool Raw, typename T>
__global__ void __launch_bounds__(SumPlace<T>::THREADS) xent_sums(const __grid_constant__ XentView view)
{
    __shared__ StoredChains stored[SUM_PARTS];
    __shared__ float exps[SUM_PARTS], raw[SUM_PARTS];
    const tpi_xent_args &args = view.args;
    const SumPlace<T> place;
    const int blocks = view.order.blocks, rows = SUM_PARTS / blocks;

    const int64_t first = static_cast<int64_t>(blockIdx.x) * rows;
    int64_t row = first + place.part / blocks;
    const bool there = place.part < rows * blocks && row < args.rows;
    float total[2];

    row = there ? row : first;
    sum_part<Raw>(view.order, static_cast<const T *>(args.logits) + row * args.stride, there ? place.part % blocks : -1,
                  place.lane, shift_of(args.max[row]), stored[place.part], total);
    if (place.lane == 0) {
        exps[place.part] = total[0];
        raw[place.part] = total[1];
    }
    __syncthreads();
    row = first + threadIdx.x;
    if (threadIdx.x < rows && row < args.rows) {
        check_target(view, row);
        args.sums[row] = tree_of(exps + threadIdx.x * blocks, blocks);
        args.sums[args.rows + row] = target_logit<T>(args, row);
        args.sums[2 * args.rows + row] = tree_of(raw + threadIdx.x * blocks, blocks);
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

/* scale * (exp(x - shift) * factor + base); base: `hit` at the target. */
struct XentSlope {
    float shift, factor, other, hit, scale;
};

static __device__ __forceinline__ float slope_at(const XentSlope &slope, float x, float base)
{
    return vf_mul(vf_fma(vf_exp_below(vf_sub(x, slope.shift)), slope.factor, base), slope.scale);
}

template <typename T> __global__ void __launch_bounds__(XENT_THREADS) xent_grad(const __grid_constant__ XentView view)
{
    constexpr int N = 16 / sizeof(T);
    const tpi_xent_args &args = view.args;

    for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
        T *logits = static_cast<T *>(args.logits) + row * args.stride;
        float sum = args.sums[row], smoothing = args.label_smoothing;
        int64_t target = args.targets[row] - args.first_id;
        bool nothing = args.targets[row] < 0 || sum == 0;
        float base = vf_div(-smoothing, static_cast<float>(args.vocabulary));
        XentSlope slope;

        slope.shift = shift_of(args.max[row]);
        slope.factor = vf_div(vf_add(1.0f, vf_mul(vf_mul(2.0f, args.z_loss), args.lse[row])), sum);
        slope.other = vf_add(base, 0.0f);
        slope.hit = vf_add(base, vf_sub(smoothing, 1.0f));
        slope.scale = args.loss_scale;
        if (threadIdx.x == 0)
            check_target(view, row);
        if (nothing)
            for_each_vector(logits, args.cols, [&](int64_t col, int n) {
                const float zeros[N] = {};

                store<true>(logits + col, zeros, n);
            });
        else
            for_each_vector(logits, args.cols, [&](int64_t col, int n) {
                const int at = target - col >= 0 && target - col < n ? static_cast<int>(target - col) : -1;
                float x[N];

                load<true>(x, logits + col, n);
#pragma unroll
                for (int i = 0; i < N; i++)
                    x[i] = slope_at(slope, x[i], i == at ? slope.hit : slope.other);
                store<true>(logits + col, x, n);
            });
    }
}

template <typename T> static void launch_xent(tpi_stream *stream, const XentView &view)
{
    cudaStream_t handle = tpi_cuda_handle(stream);
    unsigned grid = grid_of_rows(stream, view.args.rows);
    int64_t sum_blocks = divided_up(view.args.rows, SUM_PARTS / view.order.blocks);

    switch (view.args.phase) {
    case TPI_XENT_MAX: xent_max<T><<<grid, XENT_THREADS, 0, handle>>>(view); return;
    case TPI_XENT_SUMS:
        with_flag(view.args.label_smoothing > 0, [&](auto flag) {
            xent_sums<decltype(flag)::value, T>
                <<<static_cast<unsigned>(sum_blocks), SumPlace<T>::THREADS, 0, handle>>>(view);
        });
        return;
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
