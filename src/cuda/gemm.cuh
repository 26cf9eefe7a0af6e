/* What all GEMM kernels share: the walk over the inner dimension, the tree of blocks and the epilogue.
 *
 * A block of threads makes one tile of C after the other. Of each it runs the chains of ops.h in their order: a chain walks its segments in steps
 * of TPI_GEMM_STEP inner indices counted from the segment's begin, the last one filled with zeros. A chain of f32 is one fused multiply-add an
 * index; one of bf16 or f16 is one mma.sync an STEP/2 = 16 indices, always into the same accumulator. So an element's bits depend on the order
 * and on the kind of GPU, and on nothing else: not on rows, columns, tile or the rank that holds them. The zeros don't change a sum, for x + 0 is x
 * (the one exception, a sum of -0 becoming +0, is the same for all layouts, since padding follows from the segments alone).
 *
 * A weight gradient goes on from the stored sum: in f32 it may be cut anywhere, in bf16 and f16 at multiples of 16 tokens without a change. */
#ifndef TPI_CUDA_GEMM_CUH
#define TPI_CUDA_GEMM_CUH

#include "cuda/lane.cuh"
#include "cuda/mma.cuh"
#include "cuda/random.cuh"
#include "cuda/vec.cuh"

namespace tpi {

constexpr int GEMM_STEP = 32;   /* inner indices a step */
constexpr int GEMM_STAGES = 4;  /* steps in shared memory at a time */
constexpr int GEMM_LEVELS = 3;  /* of the tree over TP_VIRTUAL_RANKS blocks */
constexpr int GEMM_BAND = 8;    /* rows of tiles that are walked together: their operands stay in L2 */

/* What kernels get. */
struct Gemm {
    tpi_gemm_args args; /* pointers to host memory in it are not used */
    Dropout dropout;
    bool a_vector, b_vector; /* operands can be read 16 bytes at a time */
    bool pairs;              /* so can pairs of C */
    int blocks;
    int block_steps[TPI_MAX_BLOCKS];
    int segments; /* none of them empty */
    struct {
        int64_t begin, length;
    } segment[TPI_MAX_SEGMENTS];
    int64_t row_tiles, col_tiles;
    float *waiting; /* [grid][GEMM_LEVELS][tile]: sums on their way up the tree */
};

/* One kernel and how to launch it. */
struct GemmKernel {
    void (*function)(Gemm);
    int rows, cols; /* of a tile */
    int threads;
    size_t shared_bytes;
    int resident; /* blocks a multiprocessor */
};

/* [0]: large tiles, [1]: small ones. a_inner, b_inner: the inner stride is 1. */
GemmKernel gemm_kernel_bf16(bool a_inner, bool b_inner, bool small);
GemmKernel gemm_kernel_f16(bool a_inner, bool b_inner, bool small);
GemmKernel gemm_kernel_f32(bool a_inner, bool b_inner, bool small);

#ifdef __CUDACC__

/* ---- tiles ---- */

struct GemmTile {
    int64_t row, col; /* in tiles */
};

/* Bands of rows, each walked column by column. */
static __device__ __forceinline__ GemmTile gemm_tile(const Gemm &gemm, int64_t index)
{
    int64_t band = index / (GEMM_BAND * gemm.col_tiles), first = band * GEMM_BAND;
    int64_t rows = gemm.row_tiles - first < GEMM_BAND ? gemm.row_tiles - first : GEMM_BAND;
    int64_t place = index - first * gemm.col_tiles;

    return {first + place % rows, place / rows};
}

/* ---- the walk over the inner dimension ---- */

/* The steps of all segments, for whoever loads: it runs ahead of the products. */
struct GemmWalk {
    int segment;
    int step; /* within the segment */
};

struct GemmStep {
    int64_t begin;
    int count; /* indices that exist; 0: none */
};

static __device__ __forceinline__ GemmStep gemm_next_step(const Gemm &gemm, GemmWalk &walk)
{
    if (walk.segment >= gemm.segments)
        return {0, 0};
    int64_t at = static_cast<int64_t>(walk.step) * GEMM_STEP, left = gemm.segment[walk.segment].length - at;
    GemmStep step = {gemm.segment[walk.segment].begin + at, left < GEMM_STEP ? static_cast<int>(left) : GEMM_STEP};

    walk.step++;
    if (left <= GEMM_STEP) {
        walk.segment++;
        walk.step = 0;
    }
    return step;
}

/* ---- the tree of blocks ---- */

/* Keeps the compiler from moving loads up across it: a thread has no registers for many loads in flight beside its sums. */
static __device__ __forceinline__ void gemm_hold_loads(int i)
{
    if (i % 16 == 0)
        asm volatile("" ::: "memory");
}

/* Puts a finished chain into the tree: it adds what waits to its left. Each thread keeps its own sums in its own memory. */
template <int Threads, int N> __device__ __forceinline__ void gemm_fold(const Gemm &gemm, int block, float (&sum)[N])
{
    float *const own = gemm.waiting + static_cast<int64_t>(blockIdx.x) * (GEMM_LEVELS * N * Threads) + threadIdx.x;
    bool last = block == gemm.blocks - 1;
    int level = 0;

    for (; level < GEMM_LEVELS && (last || block >> level & 1); level++) {
        const float *wait = own + level * (N * Threads);

        if (!(block >> level & 1))
            continue;
#pragma unroll
        for (int i = 0; i < N; i++) {
            gemm_hold_loads(i);
            sum[i] = __fadd_rn(wait[i * Threads], sum[i]);
        }
    }
    if (last)
        return;
    float *wait = own + level * (N * Threads);
#pragma unroll
    for (int i = 0; i < N; i++)
        wait[i * Threads] = sum[i];
}

/* ---- the epilogue ---- */

static __device__ __forceinline__ void gemm_store(void *data, tp_dtype dtype, int64_t at, const float (&x)[2], int n,
                                                  bool pairs)
{
    bool both = pairs && n == 2;

    if (dtype == TP_DTYPE_F32) {
        float *to = static_cast<float *>(data) + at;

        if (both)
            *reinterpret_cast<float2 *>(to) = make_float2(x[0], x[1]);
        else
            store<false>(to, x, n);
    } else {
        uint16_t *to = static_cast<uint16_t *>(data) + at;
        uint32_t bits = dtype == TP_DTYPE_BF16 ? packed_pair<__nv_bfloat16>(x[0], x[1]) : packed_pair<__half>(x[0], x[1]);

        if (both) {
            *reinterpret_cast<uint32_t *>(to) = bits;
        } else {
            to[0] = static_cast<uint16_t>(bits);
            if (n == 2)
                to[1] = static_cast<uint16_t>(bits >> 16);
        }
    }
}

/* n of two neighbouring elements. */
static __device__ __forceinline__ void gemm_finish(const Gemm &gemm, float (&x)[2], int64_t row, int64_t col, int n)
{
    const tpi_gemm_args &args = gemm.args;

    if (args.bias != nullptr) {
        float bias[2];

        load_any<false>(bias, args.bias, args.bias_dtype, col, n);
        x[0] = __fadd_rn(x[0], bias[0]);
        x[1] = __fadd_rn(x[1], bias[1]);
    }
    if (args.pre != nullptr)
        gemm_store(args.pre, args.c_dtype, row * args.pre_stride + col, x, n, gemm.pairs);
    if (args.act_input != nullptr) {
        float input[2];

        load_any<false>(input, args.act_input, args.c_dtype, row * args.act_input_stride + col, n);
        x[0] = __fmul_rn(x[0], tpi_activation_slope(args.activation, input[0]));
        x[1] = __fmul_rn(x[1], tpi_activation_slope(args.activation, input[1]));
    } else if (args.activation != TPI_ACT_NONE) {
        x[0] = tpi_activation_value(args.activation, x[0]);
        x[1] = tpi_activation_value(args.activation, x[1]);
    }
    if (gemm.dropout.on)
        drop(x, gemm.dropout, static_cast<uint64_t>((args.first_row + row) * args.cols + col));
    if (args.residual != nullptr) {
        float residual[2];

        load_any<false>(residual, args.residual, args.c_dtype, row * args.residual_stride + col, n);
        x[0] = __fadd_rn(x[0], residual[0]);
        x[1] = __fadd_rn(x[1], residual[1]);
    }
    gemm_store(args.c, args.c_dtype, row * args.c_stride + col, x, n, gemm.pairs);
}

/* Finishes a tile of sums that all threads have put into shared memory, lines of Cols + 4, behind a barrier. Neighbouring lanes have
 * neighbouring pairs. */
template <int Rows, int Cols, int Threads>
__device__ __forceinline__ void gemm_finish_tile(const Gemm &gemm, const float *sums, int64_t first_row, int64_t first_col)
{
    const tpi_gemm_args &args = gemm.args;

#pragma unroll 1
    for (int i = threadIdx.x; i < Rows * Cols / 2; i += Threads) {
        int r = i / (Cols / 2), c = i % (Cols / 2) * 2;
        int64_t row = first_row + r, col = first_col + c, left = args.cols - col;

        if (row >= args.rows || left <= 0)
            continue;
        float2 sum = *reinterpret_cast<const float2 *>(sums + r * (Cols + 4) + c);
        float x[2] = {sum.x, sum.y};

        gemm_finish(gemm, x, row, col, left < 2 ? 1 : 2);
    }
}

#endif

} // namespace tpi

#endif
