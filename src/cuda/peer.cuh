/* An all-reduce in one kernel a rank, over memory that peers reach. Each rank copies its input to its staging, tells
 * all peers so by a flag in their memory, waits for theirs, and adds what lies in all staging by the fixed tree
 * (one-shot); or adds its part of that, puts it into its staging, meets the others again, and copies theirs (two-shot).
 *
 * A block meets only the blocks with its number, which have the same elements. Flags count meetings and are never
 * reset. Staging is used in turn: who comes to a call's first meeting has ended the call before, so whoever is past
 * that meeting, and only then ends its call and begins the next but one, may write again what was read in the call
 * before. */
#ifndef TPI_CUDA_PEER_CUH
#define TPI_CUDA_PEER_CUH

#include "cuda/norm_row.cuh"
#include "cuda/reduce.cuh"

namespace tpi
{

constexpr int PEER_THREADS = 256, PEER_GROUP = 8; /* elements of a thread at a time */
constexpr int64_t PEER_UNIT = 64;                 /* blocks' elements begin at multiples of it, or at rows */
constexpr int64_t ELEMENTS_OF_BLOCK = 2048;       /* that make another block worth it */
constexpr unsigned LOOKS_BEFORE_CLOCK = 32;

struct PeerView {
    tpi_peer_reduce_args args;
    ReduceFinish last;
    tpi_norm_args norm;
    tpi_cuda_fault *fault;
    int64_t units, unit; /* shared by blocks; elements of one */
};

/* ---- flags ---- */

static __device__ __forceinline__ void store_release(unsigned *flag, unsigned value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

static __device__ __forceinline__ unsigned load_acquire(const unsigned *flag)
{
    unsigned value;

    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

static __device__ __forceinline__ unsigned load_relaxed(const unsigned *flag)
{
    unsigned value;

    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

static __device__ __forceinline__ void store_relaxed(unsigned *flag, unsigned value)
{
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

/* What the block has done before comes before what the last one to count does after it. */
static __device__ __forceinline__ unsigned count_one(unsigned *counter)
{
    unsigned before;

    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}

static __device__ __forceinline__ unsigned long long nanoseconds()
{
    unsigned long long now;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

static __device__ __forceinline__ void give_up(const PeerView &view, tpi_cuda_fault_kind why, int peer,
                                               unsigned meeting)
{
    store_relaxed(&view.args.memory[view.args.rank]->broken, 1);
    report_fault(view.fault, why, peer, meeting, view.args.timeout_ms);
}

/* Until the peer has come to the meeting; false: not any more. */
static __device__ bool wait_for_peer(const PeerView &view, int peer, unsigned meeting)
{
    const unsigned *flag = &view.args.memory[view.args.rank]->flag[blockIdx.x][peer];
    unsigned long long begin = 0, limit = static_cast<unsigned long long>(view.args.timeout_ms) * 1000000;

    for (unsigned look = 1; static_cast<int>(load_acquire(flag) - meeting) < 0; look++) {
        if (look % LOOKS_BEFORE_CLOCK != 0)
            continue;
        if (load_relaxed(view.args.halt) != 0) {
            give_up(view, TPI_CUDA_FAULT_HALT, peer, meeting);
            return false;
        }
        unsigned long long now = nanoseconds();

        begin = begin == 0 ? now : begin;
        if (now - begin > limit) {
            give_up(view, TPI_CUDA_FAULT_PEER, peer, meeting);
            return false;
        }
    }
    return true;
}

/* What this block has written before is there for the same block of all ranks afterwards; false: a rank did not come,
 * now or before. */
static __device__ __forceinline__ bool meet(const PeerView &view, unsigned meeting)
{
    int peer = static_cast<int>(threadIdx.x);
    bool came = load_relaxed(&view.args.memory[view.args.rank]->broken) == 0;

    __syncthreads();
    if (came && peer < view.args.size && peer != view.args.rank) {
        store_release(&view.args.memory[peer]->flag[blockIdx.x][view.args.rank], meeting);
        came = wait_for_peer(view, peer, meeting);
    }
    return __syncthreads_and(came);
}

/* ---- elements ---- */

struct Stretch {
    int64_t begin, end;
};

/* The share `index` of so many units of a stretch. */
static __device__ __forceinline__ Stretch share_of(Stretch whole, int64_t unit, int parts, int index)
{
    int64_t units = (whole.end - whole.begin + unit - 1) / unit;
    int64_t begin = whole.begin + units * index / parts * unit, end = whole.begin + units * (index + 1) / parts * unit;

    return {begin < whole.end ? begin : whole.end, end < whole.end ? end : whole.end};
}

/* Groups of PEER_GROUP elements, dealt out to the threads of a block. */
template <typename F> __device__ __forceinline__ void each_group(Stretch stretch, F fn)
{
    for (int64_t at = stretch.begin + threadIdx.x * PEER_GROUP; at < stretch.end; at += PEER_THREADS * PEER_GROUP)
        fn(at, stretch.end - at < PEER_GROUP ? stretch.end - at : PEER_GROUP);
}

template <bool Aligned, typename T> __device__ __forceinline__ void move_group(T *to, const T *from, int64_t n)
{
    if (Aligned && n == PEER_GROUP) {
#pragma unroll
        for (int i = 0; i < static_cast<int>(PEER_GROUP * sizeof(T) / 16); i++)
            reinterpret_cast<uint4 *>(to)[i] = reinterpret_cast<const uint4 *>(from)[i];
        return;
    }
    for (int i = 0; i < n; i++)
        to[i] = from[i];
}

static __device__ __forceinline__ char *staging_of(const PeerView &view, int rank, unsigned call)
{
    return view.args.memory[rank]->staging[call % 2];
}

/* The finished sums of elements at .. at + n - 1. Without alignment a group may lie in two rows. */
template <bool Aligned, bool Sum, typename In, typename Out>
__device__ __forceinline__ void sum_group(float (&x)[PEER_GROUP], const PeerView &view, unsigned call, int64_t at,
                                          int64_t n)
{
    const tpi_peer_reduce_args &args = view.args;

    if constexpr (Aligned) {
        int64_t row = at / args.cols;

        subtree<true, Sum>(x, args.op, args.size, n,
                           [&](int i) { return reinterpret_cast<const In *>(staging_of(view, i, call)) + at; });
        finish<true, Out>(x, view.last, row, at - row * args.cols, args.cols);
    } else {
#pragma unroll
        for (int64_t i = 0; i < PEER_GROUP; i++) {
            int64_t row = (at + i) / args.cols;
            float one[1] = {0.0f};

            if (i < n) {
                subtree<false, Sum>(one, args.op, args.size, 1, [&](int rank) {
                    return reinterpret_cast<const In *>(staging_of(view, rank, call)) + at + i;
                });
                finish<false, Out>(one, view.last, row, at + i - row * args.cols, args.cols);
            }
            x[i] = one[0];
        }
    }
}

/* Where the sums of a group wait for peers: over this rank's own input of it, which nobody else reads. */
template <typename In, typename Out> __device__ __forceinline__ Out *sums_at(char *staging, int64_t at)
{
    return reinterpret_cast<Out *>(staging + at * static_cast<int64_t>(sizeof(In)));
}

template <bool Aligned, typename In, typename Out>
__device__ __forceinline__ void copy_sums(const PeerView &view, unsigned call, Stretch own)
{
    for (int i = 0; i < view.args.size; i++) { /* everyone begins at its own, so that not all read the same rank at
                                                * once */
        int owner = (view.args.rank + i) % view.args.size;

        each_group(share_of(own, PEER_GROUP, view.args.size, owner), [&](int64_t at, int64_t n) {
            move_group<Aligned>(static_cast<Out *>(view.args.out) + at,
                                sums_at<In, Out>(staging_of(view, owner, call), at), n);
        });
    }
}

/* The norm of a block's rows, which it has just written and its multiprocessor still has. */
template <bool Aligned, typename T> __device__ __forceinline__ void norm_rows(const PeerView &view, Stretch own)
{
    constexpr int ROWS = RowPlace<T>::ROWS, WARPS = PEER_THREADS / 32;
    tpi_norm_args args = view.norm;

    args.x = static_cast<const T *>(args.x) + own.begin;
    args.y = static_cast<T *>(args.y) + own.begin;
    args.rows = (own.end - own.begin) / args.cols;
    if (args.stats)
        args.stats += 2 * (own.begin / args.cols);
    for (int64_t set = threadIdx.x / 32; set * ROWS < args.rows; set += WARPS) {
        RowPlace<T> place(set, args.rows, args.cols);
        RowReader<Aligned, false, T> x(args.x, args.cols, place, nullptr);

        norm_row(args, x, place);
    }
}

/* ---- the kernel ---- */

/* The last block of a call counts it. All threads read the counts before the block's first meeting. */
static __device__ __forceinline__ void end_call(tpi_peer_memory *mine, unsigned meetings, unsigned calls)
{
    if (threadIdx.x != 0)
        return;
    if (count_one(&mine->blocks_done) + 1 < gridDim.x)
        return;
    mine->blocks_done = 0;
    mine->meetings = meetings;
    mine->calls = calls;
}

template <bool Aligned, bool Sum, bool Norm, typename In, typename Out>
__global__ void __launch_bounds__(PEER_THREADS) peer_reduce(const __grid_constant__ PeerView view)
{
    const tpi_peer_reduce_args &args = view.args;
    tpi_peer_memory *mine = args.memory[args.rank];
    unsigned meeting = mine->meetings + 1, call = mine->calls + 1;
    Stretch own =
        share_of({0, args.rows * args.cols}, view.unit, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x));
    char *staging = staging_of(view, args.rank, call);

    if (load_relaxed(&mine->broken) == 0) /* else peers may still read what the call that failed has left there, and the
                                           * meeting fails */
        each_group(own, [&](int64_t at, int64_t n) {
            move_group<Aligned>(reinterpret_cast<In *>(staging) + at, static_cast<const In *>(args.in) + at, n);
        });
    if (!meet(view, meeting))
        return;
    each_group(args.two_shot ? share_of(own, PEER_GROUP, args.size, args.rank) : own, [&](int64_t at, int64_t n) {
        float x[PEER_GROUP];

        sum_group<Aligned, Sum, In, Out>(x, view, call, at, n);
        store<Aligned>(args.two_shot ? sums_at<In, Out>(staging, at) : static_cast<Out *>(args.out) + at, x, n);
    });
    if (args.two_shot) {
        if (!meet(view, ++meeting))
            return;
        copy_sums<Aligned, In, Out>(view, call, own);
    }
    if (Norm) {
        __syncthreads();
        norm_rows<Aligned, Out>(view, own);
    }
    end_call(mine, meeting, call);
}

/* ---- launches ---- */

inline bool peer_aligned(const tpi_peer_reduce_args *args)
{
    bool rows = args->rows > 1 && (args->bias || args->dropout > 0 || args->norm);

    return is_aligned(args->in, 1, 0) && is_aligned(args->out, 1, 0) && is_aligned(args->residual, 1, 0) &&
           is_aligned(args->bias, 1, 0) && (!rows || args->cols % PEER_GROUP == 0) &&
           (!args->norm || (is_aligned(args->norm->y, 1, 0) && is_aligned(args->norm->gain, 1, 0) &&
                            is_aligned(args->norm->bias, 1, 0)));
}

/* The same on all ranks: by what they have in common. */
inline unsigned peer_grid(const PeerView &view)
{
    int64_t blocks = divided_up(view.args.rows * view.args.cols, ELEMENTS_OF_BLOCK);

    blocks = blocks < view.args.most_blocks ? blocks : view.args.most_blocks;
    return static_cast<unsigned>(blocks < view.units ? blocks : view.units);
}

template <bool Sum, bool Norm, typename In, typename Out>
static tp_status launch_peer(tpi_stream *stream, PeerView view)
{
    with_flag(peer_aligned(&view.args), [&](auto flag) {
        auto kernel = peer_reduce<decltype(flag)::value, Sum, Norm, In, Out>;
        view.args.norm = nullptr; /* by value from here on */
        kernel<<<peer_grid(view), PEER_THREADS, 0, tpi_cuda_handle(stream)>>>(view);
    });
    return tpi_cuda_check(stream, cudaGetLastError(), "peer_reduce");
}

/* Kernels that are loaded when they are first launched may wait for those that run, which wait for them. */
template <bool Sum, bool Norm, typename In, typename Out> static tp_status load_peer(tpi_stream *stream)
{
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, peer_reduce<true, Sum, Norm, In, Out>);

    if (error == cudaSuccess)
        error = cudaFuncGetAttributes(&attributes, peer_reduce<false, Sum, Norm, In, Out>);
    return tpi_cuda_check(stream, error, "peer_reduce");
}

template <bool Norm> static tp_status load_peers(tpi_stream *stream)
{
    tp_status status = load_peer<true, Norm, float, float>(stream);

    status = status == TP_OK ? load_peer<true, Norm, float, __nv_bfloat16>(stream) : status;
    status = status == TP_OK ? load_peer<true, Norm, float, __half>(stream) : status;
    status = status == TP_OK ? load_peer<true, Norm, __nv_bfloat16, __nv_bfloat16>(stream) : status;
    return status == TP_OK ? load_peer<true, Norm, __half, __half>(stream) : status;
}

inline PeerView peer_view(tpi_stream *stream, const tpi_peer_reduce_args *args)
{
    PeerView view = {};

    view.args = *args;
    view.last = {
        args->bias, args->bias_dtype, args->residual, dropout_of(args->dropout, args->dropout_key), args->first_row,
        0,          args->cols};
    view.fault = tpi_cuda_device_of(stream)->fault;
    view.unit = args->norm ? args->cols : PEER_UNIT;
    view.units = divided_up(args->rows * args->cols, view.unit);
    if (args->norm)
        view.norm = *args->norm;
    else if (!args->bias && args->dropout == 0) { /* one long row */
        view.args.cols = args->rows * args->cols;
        view.args.rows = 1;
    }
    return view;
}

/* Calls fn with zeros of the two storage types. */
template <typename F> tp_status with_peer_dtypes(const tpi_peer_reduce_args *args, F fn)
{
    if (args->in_dtype == TP_DTYPE_F32)
        return with_dtype(args->out_dtype, [&](auto out_zero) { return fn(0.0f, out_zero); });
    return with_dtype(args->in_dtype, [&](auto in_zero) { return fn(in_zero, in_zero); });
}

} // namespace tpi

#endif
