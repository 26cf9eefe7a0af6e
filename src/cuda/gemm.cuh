/* What all GEMM kernels share: the walk over the inner dimension, the tree of blocks and the epilogue.
 *
 * A block of threads makes one tile of C after the other. Of each it runs the chains of ops.h in their order: a chain
 * walks its segments in steps of TPI_GEMM_STEP inner indices counted from the segment's begin, the last one filled with
 * zeros. A chain of f32 is one fused multiply-add an index; one of bf16 or f16 is one mma.sync an STEP/2 = 16 indices,
 * always into the same accumulator. So an element's bits depend on the order and on the kind of GPU, and on nothing
 * else: not on rows, columns, tile or the rank that holds them. The zeros don't change a sum, for x + 0 is x (the one
 * exception, a sum of -0 becoming +0, is the same for all layouts, since padding follows from the segments alone).
 *
 * A weight gradient goes on from the stored sum: in f32 it may be cut anywhere, in bf16 and f16 at multiples of 16
 * tokens without a change. */
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
constexpr int GEMM_NO_TREE = 4; /* more than levels */
constexpr int GEMM_BAND = 8;    /* rows of tiles that are walked together: their operands stay in L2 */

/* What kernels get. */
struct Gemm {
    tpi_gemm_args args; /* pointers to host memory in it are not used */
    Dropout dropout;
    bool a_vector, b_vector; /* operands can be read 16 bytes at a time */
    bool pairs;              /* so can pairs of C */
    int blocks, steps;
    int block_steps[TPI_MAX_BLOCKS];
    int segments; /* none of them empty */
    struct {
        int64_t begin, length;
    } segment[TPI_MAX_SEGMENTS];
    int64_t row_tiles, col_tiles;
    float *waiting; /* [grid][levels][tile]: sums on their way up the tree; NULL: in shared memory, or one block */
};

/* One kernel and how to launch it. */
struct GemmKernel {
    void (*function)(Gemm);
    int rows, cols; /* of a tile */
    int threads;
    size_t shared_bytes; /* without a tree's */
    int resident;        /* blocks a multiprocessor */
    int kept;            /* levels of the tree in registers, or GEMM_NO_TREE */
    bool vectors;        /* only for operands that can be read 16 bytes at a time */

    size_t tree_bytes() const
    {
        return kept < GEMM_LEVELS ? sizeof(float) * static_cast<size_t>(rows) * static_cast<size_t>(cols) *
                                        static_cast<size_t>(GEMM_LEVELS - kept)
                                  : 0;
    }
};

enum GemmSize { GEMM_WIDE, GEMM_LARGE, GEMM_SMALL, GEMM_SIZES };

/* a_inner, b_inner: the inner stride is 1. */
GemmKernel gemm_kernel_bf16(bool a_inner, bool b_inner, GemmSize size);
GemmKernel gemm_kernel_f16(bool a_inner, bool b_inner, GemmSize size);
GemmKernel gemm_kernel_f32(bool a_inner, bool b_inner, GemmSize size);

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

/* Brings both operands of one tile of C, step after step, ahead of the products. A loader is one thread's part of one
 * operand: enter() goes to an inner index, load() brings a step, of which some indices exist, and moves on. */
template <typename Element, int Stages, class ALoader, class BLoader> struct GemmFeed {
    static constexpr int A = ALoader::Elements, Stage = A + BLoader::Elements;

    const Gemm &gemm;
    ALoader a;
    BLoader b;
    Element *const stages;
    int stage, segment;
    int64_t left; /* indices of the segment that are still to be loaded */

    __device__ __forceinline__ GemmFeed(const Gemm &gemm_, int64_t first_row, int64_t first_col, Element *stages_)
        : gemm(gemm_), a(gemm_.args.a, first_row, gemm_.args.rows, gemm_.a_vector),
          b(gemm_.args.b, first_col, gemm_.args.cols, gemm_.b_vector), stages(stages_), stage(0)
    {
        enter(0);
    }

    __device__ __forceinline__ void load()
    {
        Element *to = stages + stage * Stage;

        if (left > 0) {
            const int indices = left < GEMM_STEP ? static_cast<int>(left) : GEMM_STEP;

            a.load(to, indices);
            b.load(to + A, indices);
            left -= GEMM_STEP;
            if (left <= 0)
                enter(segment + 1);
        }
        copies_commit(); /* also an empty group: waits count groups */
        stage = stage + 1 == Stages ? 0 : stage + 1;
    }

  private:
    __device__ __forceinline__ void enter(int index)
    {
        segment = index;
        left = index < gemm.segments ? gemm.segment[index].length : 0;
        if (left > 0) {
            a.enter(gemm.args.a, gemm.segment[index].begin);
            b.enter(gemm.args.b, gemm.segment[index].begin);
        }
    }
};

/* ---- the tree of blocks ---- */

/* Keeps the compiler from moving loads up across it: a thread has no registers for many loads in flight beside its
 * sums. */
static __device__ __forceinline__ void gemm_hold_loads(int i)
{
    if (i % 16 == 0)
        asm volatile("" ::: "memory");
}

/* Finished chains on their way up. Each thread keeps its own sums: of the lowest levels, which change most often, in
 * registers, of the others in shared memory where there is room, else in global memory. */
template <int Threads, int Kept, int N> struct GemmTree {
    float kept[Kept > 0 ? Kept : 1][N];
    float *own;

    __device__ __forceinline__ GemmTree(const Gemm &gemm, void *shared)
    {
        constexpr int64_t block = static_cast<int64_t>(GEMM_LEVELS - Kept) * N * Threads;

        own =
            (gemm.waiting != nullptr ? gemm.waiting + blockIdx.x * block : static_cast<float *>(shared)) + threadIdx.x;
    }

    /* A finished chain adds what waits to its left, and waits itself, the sum of the last block excepted. */
    __device__ __forceinline__ void fold(int block, bool last, float (&sum)[N])
    {
        bool rises = true;

#pragma unroll
        for (int level = 0; level < GEMM_LEVELS; level++) {
            const bool waits = block >> level & 1;

            if (rises && waits) {
#pragma unroll
                for (int i = 0; i < N; i++) {
                    gemm_hold_loads(i);
                    sum[i] = __fadd_rn(at(level, i), sum[i]);
                }
            } else if (rises && !last) {
#pragma unroll
                for (int i = 0; i < N; i++) {
                    at(level, i) = sum[i];
                    sum[i] = 0.0f;
                }
                rises = false;
            }
        }
    }

  private:
    __device__ __forceinline__ float &at(int level, int i)
    {
        return level < Kept ? kept[level < Kept ? level : 0][i] : own[((level - Kept) * N + i) * Threads];
    }
};

/* ---- beginning ---- */

/* What the chain of block 0 starts from: C, or 0. Part says where a thread's sums are from (row, col) on. */
template <class Part, int N>
__device__ __forceinline__ void gemm_start(const Gemm &gemm, float (&sum)[N], int64_t row, int64_t col)
{
    const tpi_gemm_args &args = gemm.args;
    const float *c = static_cast<const float *>(args.c) + row * args.c_stride + col;

#pragma unroll
    for (int i = 0; i < N; i++)
        sum[i] = 0.0f;
    if (!args.accumulate)
        return;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int r = Part::row(i), k = Part::col(i);

        gemm_hold_loads(i);
        if (row + r < args.rows && col + k < args.cols)
            sum[i] = c[r * args.c_stride + k];
    }
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
        uint32_t bits =
            dtype == TP_DTYPE_BF16 ? packed_pair<__nv_bfloat16>(x[0], x[1]) : packed_pair<__half>(x[0], x[1]);

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

/* Finishes a tile of sums that all threads have put into shared memory, lines of Cols + 4, behind a barrier.
 * Neighbouring lanes have neighbouring pairs. */
template <int Rows, int Cols, int Threads>
__device__ __forceinline__ void gemm_finish_tile(const Gemm &gemm, const float *sums, int64_t first_row,
                                                 int64_t first_col)
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
