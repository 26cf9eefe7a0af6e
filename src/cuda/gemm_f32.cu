/* GEMM of f32 operands: one chain of fused multiply-adds an element, each thread a rectangle of elements. */
#include "cuda/gemm.cuh"

namespace tpi {

/* A thread has 4 x 4 elements of each Rows/64 x Cols/64 quarter (or whole) of the tile. */
template <int Rows_, int Cols_, int Resident_, int Kept_> struct F32Shape {
    static constexpr int Rows = Rows_, Cols = Cols_, Threads = 256;
    static constexpr int RowParts = Rows / 64, ColParts = Cols / 64;
    static constexpr int Sums = 16 * RowParts * ColParts;
    static constexpr int Resident = Resident_, Kept = Kept_;
};

typedef F32Shape<128, 128, 1, 1> F32Large;
typedef F32Shape<64, 64, 2, 2> F32Small;

constexpr int F32_STAGES = 2;

/* This thread's part in bringing one operand's tiles: some floats of one line of memory, then the same Lines further
 * down. In shared memory an inner index has a line of rows; 4 floats are added to it against bank conflicts. */
template <class Shape, int Rows, bool Inner> struct F32Loader {
    static constexpr int Line = Rows + 4, Elements = GEMM_STEP * Line;
    static constexpr int Across = Inner ? GEMM_STEP : Rows, Down = Inner ? Rows : GEMM_STEP; /* as memory has it */
    static constexpr int OneLines = Shape::Threads / Across, FourLines = Shape::Threads / (Across / 4);

    const float *begin, *next; /* the first float of inner index 0; of the next step */
    int64_t line_stride, step_stride;
    int line, place, left; /* left: rows of the tile from this thread's first on */
    bool vector; /* four floats at a time, along rows */

    __device__ __forceinline__ F32Loader(const tpi_operand &operand, int64_t first, int64_t rows, bool vector_)
    {
        vector = !Inner && vector_;
        line = threadIdx.x / (vector ? Across / 4 : Across);
        place = vector ? threadIdx.x % (Across / 4) * 4 : threadIdx.x % Across;
        line_stride = Inner ? operand.outer_stride : operand.inner_stride;
        step_stride = GEMM_STEP * (Inner ? 1 : operand.inner_stride);
        begin = static_cast<const float *>(operand.data) + place + line * line_stride +
                (Inner ? first * operand.outer_stride : first);
        left = static_cast<int>(rows - first < Rows ? rows - first : Rows) - (Inner ? line : place);
        next = begin;
    }

    __device__ __forceinline__ void enter(const tpi_operand &operand, int64_t inner)
    {
        next = begin + (Inner ? inner : inner * operand.inner_stride);
    }

    __device__ __forceinline__ void load(float *tile, int indices)
    {
        const float *from = next;

        if (vector) {
            const int exist = left < 0 ? 0 : left < 4 ? left : 4;

#pragma unroll
            for (int p = 0; p < Down / FourLines; p++, from += FourLines * line_stride)
                copy_async_16(tile + (line + p * FourLines) * Line + place, from,
                              line + p * FourLines < indices ? exist * 4 : 0);
        } else {
#pragma unroll 4
            for (int p = 0; p < Down / OneLines; p++, from += OneLines * line_stride) {
                const int at = line + p * OneLines;

                if (Inner)
                    copy_async_4(tile + place * Line + at, from, place < indices && p * OneLines < left);
                else
                    copy_async_4(tile + at * Line + place, from, at < indices && left > 0);
            }
        }
        next += step_stride;
    }
};

template <class Shape> constexpr size_t f32_shared_bytes()
{
    constexpr size_t stages = F32_STAGES * sizeof(float) * GEMM_STEP * (Shape::Rows + 4 + Shape::Cols + 4);
    constexpr size_t sums = sizeof(float) * Shape::Rows * (Shape::Cols + 4);

    return stages > sums ? stages : sums;
}

/* One step: inner indices in order. */
template <class Shape>
__device__ __forceinline__ void f32_step(const float *a, const float *b, float (&sum)[Shape::Sums])
{
#pragma unroll 4
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
template <class Shape> struct F32Part {
    static __device__ __forceinline__ int row(int i)
    {
        int r = i / (4 * Shape::ColParts);

        return r / 4 * 64 + threadIdx.x / 16 * 4 + r % 4;
    }

    static __device__ __forceinline__ int col(int i)
    {
        int c = i % (4 * Shape::ColParts);

        return c / 4 * 64 + threadIdx.x % 16 * 4 + c % 4;
    }
};

template <class Shape, bool AInner, bool BInner>
__global__ void __launch_bounds__(Shape::Threads, Shape::Resident) gemm_f32_kernel(const __grid_constant__ Gemm gemm)
{
    typedef GemmFeed<float, F32_STAGES, F32Loader<Shape, Shape::Rows, AInner>, F32Loader<Shape, Shape::Cols, BInner>>
        Feed;
    extern __shared__ __align__(128) unsigned char shared[];
    float *stages = reinterpret_cast<float *>(shared);
    const int a_at = threadIdx.x / 16 * 4, b_at = Feed::A + threadIdx.x % 16 * 4;

    for (int64_t index = blockIdx.x; index < gemm.row_tiles * gemm.col_tiles; index += gridDim.x) {
        const GemmTile tile = gemm_tile(gemm, index);
        const int64_t first_row = tile.row * Shape::Rows, first_col = tile.col * Shape::Cols;
        Feed feed(gemm, first_row, first_col, stages);
        GemmTree<Shape::Threads, Shape::Kept, Shape::Sums> tree(gemm, shared + f32_shared_bytes<Shape>());
        int stage = 0;

        feed.load();
        float sum[Shape::Sums];
        gemm_start<F32Part<Shape>>(gemm, sum, first_row, first_col);
        for (int block = 0; block < gemm.blocks; block++) {
            for (int i = 0; i < gemm.block_steps[block]; i++) {
                copies_wait<0>();
                __syncthreads(); /* the step is here, and all are done with the one before it */
                feed.load();
                f32_step<Shape>(stages + stage * Feed::Stage + a_at, stages + stage * Feed::Stage + b_at, sum);
                stage ^= 1;
            }
            if (gemm.blocks == 1)
                break;
            tree.fold(block, block == gemm.blocks - 1, sum);
        }
        __syncthreads(); /* all have read the last step, and the group behind it is empty: stages are free */
#pragma unroll
        for (int i = 0; i < Shape::Sums; i += 4)
            *reinterpret_cast<float4 *>(stages + F32Part<Shape>::row(i) * (Shape::Cols + 4) + F32Part<Shape>::col(i)) =
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
                              Shape::Threads, f32_shared_bytes<Shape>(), Shape::Resident, Shape::Kept, false};
        });
    });
}

GemmKernel gemm_kernel_f32(bool a_inner, bool b_inner, GemmSize size)
{
    return size == GEMM_SMALL ? f32_kernel<F32Small>(a_inner, b_inner) : f32_kernel<F32Large>(a_inner, b_inner);
}

} // namespace tpi
