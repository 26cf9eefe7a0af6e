/* GEMM of 16-bit operands: tiles on their way through shared memory in GEMM_STAGES stages, products on tensor cores. */
#ifndef TPI_CUDA_GEMM_MMA_CUH
#define TPI_CUDA_GEMM_MMA_CUH

#include "cuda/gemm.cuh"

namespace tpi {

/* Tile sizes. A warp makes WarpRows x WarpCols of the tile. */
template <int Rows_, int Cols_, int WarpRows_, int WarpCols_> struct MmaShape {
    static constexpr int Rows = Rows_, Cols = Cols_, WarpRows = WarpRows_, WarpCols = WarpCols_;
    static constexpr int Threads = Rows / WarpRows * (Cols / WarpCols) * 32;
    static constexpr int Sums = WarpRows * WarpCols / 32; /* a thread's */
    static constexpr int Resident = Threads > 128 ? 1 : 3;
};

typedef MmaShape<128, 128, 64, 32> MmaLarge;
typedef MmaShape<64, 64, 32, 32> MmaSmall;

/* One operand's tile in shared memory: lines of inner indices, or lines of rows; 8 elements are added to a line so that the eight addresses of a
 * matrix fall into different banks. */
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

/* Rows first..first + Rows of one step. */
template <int Rows, bool Inner, int Threads>
__device__ __forceinline__ void mma_load_operand(uint16_t *tile, const tpi_operand &operand, bool vector, int64_t first,
                                                 int64_t rows, GemmStep step)
{
    const uint16_t *data = static_cast<const uint16_t *>(operand.data);
    constexpr int Line = MmaOperand<Rows, Inner>::Line;
    constexpr int Eights = Inner ? GEMM_STEP / 8 : Rows / 8; /* a line */

#pragma unroll
    for (int i = threadIdx.x; i < Rows * GEMM_STEP / 8; i += Threads) {
        int line = i / Eights, at = i % Eights * 8;

        if (Inner) {
            int exist = first + line < rows ? step.count - at : 0;

            load_eight(tile + line * Line + at, data + (first + line) * operand.outer_stride + step.begin + at, data, exist,
                       vector);
        } else {
            int64_t left = line < step.count ? rows - first - at : 0;

            load_eight(tile + line * Line + at, data + (step.begin + line) * operand.inner_stride + first + at, data,
                       left < 8 ? static_cast<int>(left) : 8, vector);
        }
    }
}

/* One step's products of this warp's part. */
template <typename T, class Shape, bool AInner, bool BInner>
__device__ __forceinline__ void mma_step(const uint16_t *a, const uint16_t *b, float (&sum)[Shape::Sums])
{
    constexpr int ALine = MmaOperand<Shape::Rows, AInner>::Line, BLine = MmaOperand<Shape::Cols, BInner>::Line;
    constexpr int RowParts = Shape::WarpRows / 16, ColParts = Shape::WarpCols / 8;
    float(&part)[RowParts][ColParts][4] = reinterpret_cast<float(&)[RowParts][ColParts][4]>(sum);

#pragma unroll
    for (int k = 0; k < GEMM_STEP; k += 16) {
        uint32_t left[RowParts][4];

#pragma unroll
        for (int r = 0; r < RowParts; r++) {
            if (AInner)
                load_left(left[r], a + r * 16 * ALine + k, ALine);
            else
                load_left_transposed(left[r], a + k * ALine + r * 16, ALine);
        }
#pragma unroll
        for (int c = 0; c < ColParts; c += 2) {
            uint32_t right[4];

            if (BInner)
                load_right(right, b + c * 8 * BLine + k, BLine);
            else
                load_right_transposed(right, b + k * BLine + c * 8, BLine);
#pragma unroll
            for (int r = 0; r < RowParts; r++) {
                multiply_add<T>(part[r][c], left[r], right[0], right[1]);
                multiply_add<T>(part[r][c + 1], left[r], right[2], right[3]);
            }
        }
    }
}

/* Where this thread's sum i is, in its warp's part. */
template <class Shape> __device__ __forceinline__ int mma_row(int i)
{
    int part = i / 4 / (Shape::WarpCols / 8), lane = threadIdx.x & 31;

    return part * 16 + (i & 2) * 4 + lane / 4;
}

template <class Shape> __device__ __forceinline__ int mma_col(int i)
{
    int part = i / 4 % (Shape::WarpCols / 8), lane = threadIdx.x & 31;

    return part * 8 + lane % 4 * 2 + (i & 1);
}

/* What the chain of block 0 starts from: C. */
template <class Shape>
__device__ __forceinline__ void mma_start(const Gemm &gemm, float (&sum)[Shape::Sums], int64_t row, int64_t col)
{
    const tpi_gemm_args &args = gemm.args;
    const float *c = static_cast<const float *>(args.c) + row * args.c_stride + col;

#pragma unroll
    for (int i = 0; i < Shape::Sums; i++) {
        int r = mma_row<Shape>(i), k = mma_col<Shape>(i);

        gemm_hold_loads(i);
        sum[i] = args.accumulate && row + r < args.rows && col + k < args.cols ? c[r * args.c_stride + k] : 0.0f;
    }
}

template <typename T, class Shape, bool AInner, bool BInner>
__global__ void __launch_bounds__(Shape::Threads, Shape::Resident) gemm_mma_kernel(const __grid_constant__ Gemm gemm)
{
    typedef MmaOperand<Shape::Rows, AInner> A;
    typedef MmaOperand<Shape::Cols, BInner> B;
    extern __shared__ __align__(128) unsigned char shared[];
    uint16_t *stages = reinterpret_cast<uint16_t *>(shared);
    float *sums = reinterpret_cast<float *>(shared);
    const int warp = threadIdx.x / 32, warp_row = warp % (Shape::Rows / Shape::WarpRows) * Shape::WarpRows,
              warp_col = warp / (Shape::Rows / Shape::WarpRows) * Shape::WarpCols;
    const int a_at = warp_row * (AInner ? A::Line : 1), b_at = A::Elements + warp_col * (BInner ? B::Line : 1);

    for (int64_t index = blockIdx.x; index < gemm.row_tiles * gemm.col_tiles; index += gridDim.x) {
        const GemmTile tile = gemm_tile(gemm, index);
        const int64_t first_row = tile.row * Shape::Rows, first_col = tile.col * Shape::Cols;
        GemmWalk walk = {0, 0};
        int loading = 0, reading = 0;
        auto load_stage = [&] {
            const GemmStep step = gemm_next_step(gemm, walk);
            uint16_t *to = stages + loading * (A::Elements + B::Elements);

            if (step.count > 0) {
                mma_load_operand<Shape::Rows, AInner, Shape::Threads>(to, gemm.args.a, gemm.a_vector, first_row,
                                                                      gemm.args.rows, step);
                mma_load_operand<Shape::Cols, BInner, Shape::Threads>(to + A::Elements, gemm.args.b, gemm.b_vector,
                                                                      first_col, gemm.args.cols, step);
            }
            copies_commit(); /* also an empty group: waits count groups */
            loading = loading + 1 == GEMM_STAGES ? 0 : loading + 1;
        };
        for (int i = 0; i < GEMM_STAGES - 1; i++)
            load_stage();

        float sum[Shape::Sums];
        mma_start<Shape>(gemm, sum, first_row + warp_row, first_col + warp_col);
        for (int block = 0; block < gemm.blocks; block++) {
            for (int i = 0; i < gemm.block_steps[block]; i++) {
                copies_wait<GEMM_STAGES - 2>();
                __syncthreads(); /* the step is here, and all are done with the one that makes room */
                load_stage();
                const uint16_t *from = stages + reading * (A::Elements + B::Elements);
                mma_step<T, Shape, AInner, BInner>(from + a_at, from + b_at, sum);
                reading = reading + 1 == GEMM_STAGES ? 0 : reading + 1;
            }
            if (gemm.blocks == 1)
                break;
            gemm_fold<Shape::Threads>(gemm, block, sum);
#pragma unroll
            for (int i = 0; i < Shape::Sums; i++)
                sum[i] = block == gemm.blocks - 1 ? sum[i] : 0.0f;
        }
        copies_wait<0>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < Shape::Sums; i += 2)
            *reinterpret_cast<float2 *>(sums + (warp_row + mma_row<Shape>(i)) * (Shape::Cols + 4) + warp_col +
                                        mma_col<Shape>(i)) = make_float2(sum[i], sum[i + 1]);
        __syncthreads();
        gemm_finish_tile<Shape::Rows, Shape::Cols, Shape::Threads>(gemm, sums, first_row, first_col);
        __syncthreads(); /* the sums are read before the next tile's stages take their place */
    }
}

template <typename T, class Shape, bool AInner, bool BInner> GemmKernel mma_kernel()
{
    return {gemm_mma_kernel<T, Shape, AInner, BInner>, Shape::Rows, Shape::Cols, Shape::Threads,
            mma_shared_bytes<Shape, AInner, BInner>(), Shape::Resident};
}

template <typename T> GemmKernel mma_kernel_of(bool a_inner, bool b_inner, bool small)
{
    return with_flag(a_inner, [&](auto a) {
        return with_flag(b_inner, [&](auto b) {
            return small ? mma_kernel<T, MmaSmall, decltype(a)::value, decltype(b)::value>()
                         : mma_kernel<T, MmaLarge, decltype(a)::value, decltype(b)::value>();
        });
    });
}

} // namespace tpi

#endif
