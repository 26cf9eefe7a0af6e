/* GEMM of 16-bit operands: tiles on their way through shared memory in GEMM_STAGES stages, products on tensor cores. */
#ifndef TPI_CUDA_GEMM_MMA_CUH
#define TPI_CUDA_GEMM_MMA_CUH

#include "cuda/gemm.cuh"

namespace tpi {

/* Tile sizes. A warp makes WarpRows x WarpCols of the tile. Kept: levels of the tree that wait in registers,
 * GEMM_NO_TREE: one chain only. */
template <int Rows_, int Cols_, int WarpRows_, int WarpCols_, int Resident_, int Kept_, bool Vectors_> struct MmaShape {
    static constexpr int Rows = Rows_, Cols = Cols_, WarpRows = WarpRows_, WarpCols = WarpCols_;
    static constexpr int Threads = Rows / WarpRows * (Cols / WarpCols) * 32;
    static constexpr int Sums = WarpRows * WarpCols / 32; /* a thread's */
    static constexpr int Resident = Resident_, Kept = Kept_;
    static constexpr bool Vectors = Vectors_; /* operands are read 16 bytes at a time */
};

typedef MmaShape<128, 256, 64, 64, 1, GEMM_NO_TREE, true> MmaWide;
typedef MmaShape<128, 128, 64, 32, 1, 1, true> MmaLarge;
typedef MmaShape<64, 64, 32, 32, 3, 1, false> MmaSmall;

/* One operand's tile in shared memory: lines of inner indices, or lines of rows; 8 elements are added to a line so that
 * the eight addresses of a matrix fall into different banks. */
template <int Rows, bool Inner> struct MmaOperand {
    static constexpr int Line = Inner ? GEMM_STEP + 8 : Rows + 8;
    static constexpr int Elements = (Inner ? Rows : GEMM_STEP) * Line;
};

template <class Shape, bool AInner, bool BInner> constexpr size_t mma_shared_bytes()
{
    constexpr size_t stages = GEMM_STAGES * sizeof(uint16_t) *
                              (MmaOperand<Shape::Rows, AInner>::Elements + MmaOperand<Shape::Cols, BInner>::Elements);
    constexpr size_t sums = sizeof(float) * Shape::Rows * (Shape::Cols + 4);

    return stages > sums ? stages : sums;
}

/* This thread's part in bringing one operand's tiles: eight neighbours of a line, then the same Lines further down.
 * Addresses are made once a segment and then moved on: made anew for each step they cost more than the products. */
template <class Shape, int Rows, bool Inner> struct MmaLoader {
    static constexpr int Line = MmaOperand<Rows, Inner>::Line, Eights = (Inner ? GEMM_STEP : Rows) / 8;
    static constexpr int Lines = Shape::Threads / Eights, Passes = (Inner ? Rows : GEMM_STEP) / Lines;
    static constexpr int Elements = MmaOperand<Rows, Inner>::Elements;

    const uint16_t *begin; /* the first eight of inner index 0 */
    const uint16_t *next;  /* of the next step */
    int64_t pass_stride, step_stride;
    int line, place; /* in the tile, of the first eight */
    unsigned exists; /* lines are rows: bit p tells that of pass p */
    int count;       /* rows are along lines: how many of the eight exist */
    bool vector;

    __device__ __forceinline__ MmaLoader(const tpi_operand &operand, int64_t first, int64_t rows, bool vector_)
    {
        const uint16_t *data = static_cast<const uint16_t *>(operand.data);

        line = threadIdx.x / Eights;
        place = threadIdx.x % Eights * 8;
        exists = 0;
        count = 0;
        vector = Shape::Vectors || vector_;
        if (Inner) {
            begin = data + (first + line) * operand.outer_stride + place;
            pass_stride = Lines * operand.outer_stride;
            step_stride = GEMM_STEP;
#pragma unroll
            for (int p = 0; p < Passes; p++)
                exists |= (first + line + p * Lines < rows ? 1u : 0u) << p;
        } else {
            const int64_t left = rows - first - place;

            begin = data + first + place + line * operand.inner_stride;
            pass_stride = Lines * operand.inner_stride;
            step_stride = GEMM_STEP * operand.inner_stride;
            count = left < 0 ? 0 : left < 8 ? static_cast<int>(left) : 8;
        }
        next = begin;
    }

    __device__ __forceinline__ void enter(const tpi_operand &operand, int64_t inner)
    {
        next = begin + (Inner ? inner : inner * operand.inner_stride);
    }

    /* A step of which `indices` exist. */
    __device__ __forceinline__ void load(uint16_t *tile, int indices)
    {
        int exist = Inner ? indices - place : count;

        exist = exist < 0 ? 0 : exist < 8 ? exist : 8;
#pragma unroll
        for (int p = 0; p < Passes; p++) {
            const bool there = Inner ? exists >> p & 1 : line + p * Lines < indices;

            if (vector)
                copy_async_16(tile + (line + p * Lines) * Line + place, next + p * pass_stride, there ? exist * 2 : 0);
            else
                load_eight(tile + (line + p * Lines) * Line + place, next + p * pass_stride, there ? exist : 0);
        }
        next += step_stride;
    }
};

/* What a warp multiplies at a time: 16 inner indices of its part. */
template <class Shape> struct MmaFragments {
    static constexpr int RowParts = Shape::WarpRows / 16, ColParts = Shape::WarpCols / 8;
    uint32_t left[RowParts][4], right[ColParts / 2][4];
};

template <class Shape, bool AInner, bool BInner>
__device__ __forceinline__ void mma_load(MmaFragments<Shape> &to, const uint16_t *a, const uint16_t *b, int k)
{
    constexpr int ALine = MmaOperand<Shape::Rows, AInner>::Line, BLine = MmaOperand<Shape::Cols, BInner>::Line;

#pragma unroll
    for (int r = 0; r < to.RowParts; r++) {
        if (AInner)
            load_left(to.left[r], a + r * 16 * ALine + k, ALine);
        else
            load_left_transposed(to.left[r], a + k * ALine + r * 16, ALine);
    }
#pragma unroll
    for (int c = 0; c < to.ColParts / 2; c++) {
        if (BInner)
            load_right(to.right[c], b + c * 16 * BLine + k, BLine);
        else
            load_right_transposed(to.right[c], b + k * BLine + c * 16, BLine);
    }
}

template <typename T, class Shape>
__device__ __forceinline__ void mma_multiply(const MmaFragments<Shape> &from, float (&sum)[Shape::Sums])
{
    constexpr int RowParts = Shape::WarpRows / 16, ColParts = Shape::WarpCols / 8;
    float(&part)[RowParts][ColParts][4] = reinterpret_cast<float(&)[RowParts][ColParts][4]>(sum);

#pragma unroll
    for (int c = 0; c < ColParts; c += 2) {
#pragma unroll
        for (int r = 0; r < RowParts; r++) {
            multiply_add<T>(part[r][c], from.left[r], from.right[c / 2][0], from.right[c / 2][1]);
            multiply_add<T>(part[r][c + 1], from.left[r], from.right[c / 2][2], from.right[c / 2][3]);
        }
    }
}

/* Where this thread's sum i is, in its warp's part. */
template <class Shape> struct MmaPart {
    static __device__ __forceinline__ int row(int i)
    {
        return i / 4 / (Shape::WarpCols / 8) * 16 + (i & 2) * 4 + (threadIdx.x & 31) / 4;
    }

    static __device__ __forceinline__ int col(int i)
    {
        return i / 4 % (Shape::WarpCols / 8) * 8 + (threadIdx.x & 3) * 2 + (i & 1);
    }
};

/* The next step's first fragments are fetched before this step's last products, so that tensor cores don't wait for
 * shared memory. */
template <typename T, class Shape, bool AInner, bool BInner>
__global__ void __launch_bounds__(Shape::Threads, Shape::Resident) gemm_mma_kernel(const __grid_constant__ Gemm gemm)
{
    typedef GemmFeed<uint16_t, GEMM_STAGES, MmaLoader<Shape, Shape::Rows, AInner>,
                     MmaLoader<Shape, Shape::Cols, BInner>>
        Feed;
    extern __shared__ __align__(128) unsigned char shared[];
    uint16_t *stages = reinterpret_cast<uint16_t *>(shared);
    float *sums = reinterpret_cast<float *>(shared);
    const int warp = threadIdx.x / 32, warp_row = warp % (Shape::Rows / Shape::WarpRows) * Shape::WarpRows,
              warp_col = warp / (Shape::Rows / Shape::WarpRows) * Shape::WarpCols;
    const int a_at = warp_row * (AInner ? MmaOperand<Shape::Rows, AInner>::Line : 1),
              b_at = Feed::A + warp_col * (BInner ? MmaOperand<Shape::Cols, BInner>::Line : 1);

    for (int64_t index = blockIdx.x; index < gemm.row_tiles * gemm.col_tiles; index += gridDim.x) {
        const GemmTile tile = gemm_tile(gemm, index);
        const int64_t first_row = tile.row * Shape::Rows, first_col = tile.col * Shape::Cols;
        Feed feed(gemm, first_row, first_col, stages);
        MmaFragments<Shape> fragments[2];
        GemmTree<Shape::Threads, Shape::Kept, Shape::Sums> tree(gemm,
                                                                shared + mma_shared_bytes<Shape, AInner, BInner>());
        const uint16_t *from = stages;
        float sum[Shape::Sums];
        int steps = gemm.steps;

#pragma unroll
        for (int i = 0; i < GEMM_STAGES - 1; i++)
            feed.load();
        gemm_start<MmaPart<Shape>>(gemm, sum, first_row + warp_row, first_col + warp_col);
        copies_wait<GEMM_STAGES - 2>();
        __syncthreads();
        if (steps > 0)
            mma_load<Shape, AInner, BInner>(fragments[0], from + a_at, from + b_at, 0);
        for (int block = 0; block < gemm.blocks; block++) {
            for (int i = 0; i < gemm.block_steps[block]; i++) {
                mma_load<Shape, AInner, BInner>(fragments[1], from + a_at, from + b_at, 16);
                feed.load(); /* where the step before this one was */
                mma_multiply<T, Shape>(fragments[0], sum);
                copies_wait<GEMM_STAGES - 2>();
                __syncthreads(); /* the next step is here, and all have read this one */
                from = from == stages + (GEMM_STAGES - 1) * Feed::Stage ? stages : from + Feed::Stage;
                if (--steps > 0)
                    mma_load<Shape, AInner, BInner>(fragments[0], from + a_at, from + b_at, 0);
                mma_multiply<T, Shape>(fragments[1], sum);
            }
            if (Shape::Kept == GEMM_NO_TREE || gemm.blocks == 1)
                break;
            tree.fold(block, block == gemm.blocks - 1, sum);
        }
        /* All have read the last step, and the groups behind it are empty: stages are free. */
#pragma unroll
        for (int i = 0; i < Shape::Sums; i += 2)
            *reinterpret_cast<float2 *>(sums + (warp_row + MmaPart<Shape>::row(i)) * (Shape::Cols + 4) + warp_col +
                                        MmaPart<Shape>::col(i)) = make_float2(sum[i], sum[i + 1]);
        __syncthreads();
        gemm_finish_tile<Shape::Rows, Shape::Cols, Shape::Threads>(gemm, sums, first_row, first_col);
        __syncthreads(); /* the sums are read before the next tile's stages take their place */
    }
}

template <typename T, class Shape, bool AInner, bool BInner> GemmKernel mma_kernel()
{
    return {gemm_mma_kernel<T, Shape, AInner, BInner>, Shape::Rows, Shape::Cols, Shape::Threads,
            mma_shared_bytes<Shape, AInner, BInner>(), Shape::Resident, Shape::Kept, Shape::Vectors};
}

template <typename T> GemmKernel mma_kernel_of(bool a_inner, bool b_inner, GemmSize size)
{
    return with_flag(a_inner, [&](auto a) {
        return with_flag(b_inner, [&](auto b) {
            constexpr bool A = decltype(a)::value, B = decltype(b)::value;

            return size == GEMM_WIDE    ? mma_kernel<T, MmaWide, A, B>()
                   : size == GEMM_LARGE ? mma_kernel<T, MmaLarge, A, B>()
                                        : mma_kernel<T, MmaSmall, A, B>();
        });
    });
}

} // namespace tpi

#endif
