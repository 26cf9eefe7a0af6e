/* GEMM of f32 operands: one chain of fused multiply-adds an element, each thread a rectangle of elements. */
#include "cuda/gemm.cuh"

namespace tpi {

/* A thread has 4 x 4 elements of each Rows/64 x Cols/64 quarter (or whole) of the tile. */
template <int Rows_, int Cols_> struct F32Shape {
    static constexpr int Rows = Rows_, Cols = Cols_, Threads = 256;
    static constexpr int RowParts = Rows / 64, ColParts = Cols / 64;
    static constexpr int Sums = 16 * RowParts * ColParts;
    static constexpr int Resident = 1;
};

typedef F32Shape<128, 128> F32Large;
typedef F32Shape<64, 64> F32Small;

constexpr int F32_STAGES = 2;

/* Operands lie in lines of rows, one line an inner index; 4 floats are added to a line against bank conflicts. */
template <class Shape> struct F32Stage {
    static constexpr int B = GEMM_STEP * (Shape::Rows + 4), Floats = B + GEMM_STEP * (Shape::Cols + 4);
};

template <class Shape> constexpr size_t f32_shared_bytes()
{
    constexpr size_t stages = F32_STAGES * sizeof(float) * F32Stage<Shape>::Floats;
    constexpr size_t sums = sizeof(float) * Shape::Rows * (Shape::Cols + 4);

    return stages > sums ? stages : sums;
}

template <int Rows, bool Inner, int Threads>
__device__ __forceinline__ void f32_load_operand(float *tile, const tpi_operand &operand, bool vector, int64_t first,
                                                 int64_t rows, GemmStep step)
{
    const float *data = static_cast<const float *>(operand.data);
    constexpr int Line = Rows + 4;

    if (Inner || !vector) {
#pragma unroll 4
        for (int i = threadIdx.x; i < Rows * GEMM_STEP; i += Threads) {
            int row = Inner ? i / GEMM_STEP : i % Rows, k = Inner ? i % GEMM_STEP : i / Rows;
            bool exists = first + row < rows && k < step.count;
            int64_t at = (first + row) * operand.outer_stride + (step.begin + k) * operand.inner_stride;

            copy_async_4(tile + k * Line + row, exists ? data + at : data, exists);
        }
    } else {
#pragma unroll
        for (int i = threadIdx.x; i < Rows * GEMM_STEP / 4; i += Threads) {
            int row = i % (Rows / 4) * 4, k = i / (Rows / 4);
            int64_t left = k < step.count ? rows - first - row : 0, at = (step.begin + k) * operand.inner_stride + first + row;
            int exist = left < 0 ? 0 : left < 4 ? static_cast<int>(left) : 4;

            copy_async_16(tile + k * Line + row, exist > 0 ? data + at : data, exist * 4);
        }
    }
}

/* One step: inner indices in order. */
template <class Shape>
__device__ __forceinline__ void f32_step(const float *a, const float *b, float (&sum)[Shape::Sums])
{
#pragma unroll 2
    for (int k = 0; k < GEMM_STEP; k++) {
        float left[4 * Shape::RowParts], right[4 * Shape::ColParts];

#pragma unroll
        for (int p = 0; p < Shape::RowParts; p++) {
            float4 four = *reinterpret_cast<const float4 *>(a + k * (Shape::Rows + 4) + p * 64);

            left[4 * p] = four.x, left[4 * p + 1] = four.y, left[4 * p + 2] = four.z, left[4 * p + 3] = four.w;
        }
#pragma unroll
        for (int p = 0; p < Shape::ColParts; p++) {
            float4 four = *reinterpret_cast<const float4 *>(b + k * (Shape::Cols + 4) + p * 64);

            right[4 * p] = four.x, right[4 * p + 1] = four.y, right[4 * p + 2] = four.z, right[4 * p + 3] = four.w;
        }
#pragma unroll
        for (int i = 0; i < Shape::Sums; i++)
            sum[i] = __fmaf_rn(left[i / (4 * Shape::ColParts)], right[i % (4 * Shape::ColParts)], sum[i]);
    }
}

/* Where this thread's sum i is in the tile. */
template <class Shape> __device__ __forceinline__ int f32_row(int i)
{
    int r = i / (4 * Shape::ColParts);

    return r / 4 * 64 + threadIdx.x / 16 * 4 + r % 4;
}

template <class Shape> __device__ __forceinline__ int f32_col(int i)
{
    int c = i % (4 * Shape::ColParts);

    return c / 4 * 64 + threadIdx.x % 16 * 4 + c % 4;
}

template <class Shape>
__device__ __forceinline__ void f32_start(const Gemm &gemm, float (&sum)[Shape::Sums], int64_t row, int64_t col)
{
    const tpi_gemm_args &args = gemm.args;
    const float *c = static_cast<const float *>(args.c) + row * args.c_stride + col;

#pragma unroll
    for (int i = 0; i < Shape::Sums; i++) {
        int r = f32_row<Shape>(i), k = f32_col<Shape>(i);

        gemm_hold_loads(i);
        sum[i] = args.accumulate && row + r < args.rows && col + k < args.cols ? c[r * args.c_stride + k] : 0.0f;
    }
}

template <class Shape, bool AInner, bool BInner>
__global__ void __launch_bounds__(Shape::Threads, Shape::Resident) gemm_f32_kernel(const __grid_constant__ Gemm gemm)
{
    extern __shared__ __align__(128) unsigned char shared[];
    float *stages = reinterpret_cast<float *>(shared);
    constexpr int BAt = F32Stage<Shape>::B, Stage = F32Stage<Shape>::Floats;
    const int a_at = threadIdx.x / 16 * 4, b_at = BAt + threadIdx.x % 16 * 4;

    for (int64_t index = blockIdx.x; index < gemm.row_tiles * gemm.col_tiles; index += gridDim.x) {
        const GemmTile tile = gemm_tile(gemm, index);
        const int64_t first_row = tile.row * Shape::Rows, first_col = tile.col * Shape::Cols;
        GemmWalk walk = {0, 0};
        int stage = 0;
        auto load_stage = [&](int to) {
            const GemmStep step = gemm_next_step(gemm, walk);

            if (step.count > 0) {
                f32_load_operand<Shape::Rows, AInner, Shape::Threads>(stages + to * Stage, gemm.args.a, gemm.a_vector,
                                                                      first_row, gemm.args.rows, step);
                f32_load_operand<Shape::Cols, BInner, Shape::Threads>(stages + to * Stage + BAt, gemm.args.b,
                                                                      gemm.b_vector, first_col, gemm.args.cols, step);
            }
            copies_commit();
        };
        load_stage(0);

        float sum[Shape::Sums];
        f32_start<Shape>(gemm, sum, first_row, first_col);
        for (int block = 0; block < gemm.blocks; block++) {
            for (int i = 0; i < gemm.block_steps[block]; i++) {
                copies_wait<0>();
                __syncthreads(); /* the step is here, and all are done with the one before it */
                load_stage(stage ^ 1);
                f32_step<Shape>(stages + stage * Stage + a_at, stages + stage * Stage + b_at, sum);
                stage ^= 1;
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
        for (int i = 0; i < Shape::Sums; i += 4)
            *reinterpret_cast<float4 *>(stages + f32_row<Shape>(i) * (Shape::Cols + 4) + f32_col<Shape>(i)) =
                make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
        __syncthreads();
        gemm_finish_tile<Shape::Rows, Shape::Cols, Shape::Threads>(gemm, stages, first_row, first_col);
        __syncthreads(); /* the sums are read before the next tile's stages take their place */
    }
}

template <class Shape> static GemmKernel f32_kernel(bool a_inner, bool b_inner)
{
    return with_flag(a_inner, [&](auto a) {
        return with_flag(b_inner, [&](auto b) {
            return GemmKernel{gemm_f32_kernel<Shape, decltype(a)::value, decltype(b)::value>, Shape::Rows, Shape::Cols,
                              Shape::Threads, f32_shared_bytes<Shape>(), Shape::Resident};
        });
    });
}

GemmKernel gemm_kernel_f32(bool a_inner, bool b_inner, bool small)
{
    return small ? f32_kernel<F32Small>(a_inner, b_inner) : f32_kernel<F32Large>(a_inner, b_inner);
}

} // namespace tpi
