/* GEMM: which kernel, with what. */
#include "cuda/gemm.cuh"
#include "cuda/gemm.h"

namespace tpi {

/* ---- row sums ---- */

constexpr int SUM_ROWS = 32; /* of one warp */

/* One thread a row, a chain over the inner dimension. Operands with the inner dimension along memory pass through
 * shared memory, so that lanes read neighbours. */
template <typename T> __global__ void __launch_bounds__(128) gemm_row_sums(const __grid_constant__ tpi_gemm_args args)
{
    __shared__ float tiles[4][SUM_ROWS][SUM_ROWS + 1];
    float(*tile)[SUM_ROWS + 1] = tiles[threadIdx.x / 32];
    const T *data = static_cast<const T *>(args.a.data);
    const int lane = threadIdx.x % 32;
    const int64_t first = (static_cast<int64_t>(blockIdx.x) * 4 + threadIdx.x / 32) * SUM_ROWS, row = first + lane;
    float sum = row < args.rows ? args.row_sums[row] : 0.0f;

    if (args.a.inner_stride == 1) {
        for (int64_t k = 0; k < args.inner; k += 32) {
            const int count = args.inner - k < 32 ? static_cast<int>(args.inner - k) : 32;

#pragma unroll 8
            for (int r = 0; r < SUM_ROWS; r++)
                tile[r][lane] = first + r < args.rows && lane < count
                                    ? to_float(data[(first + r) * args.a.outer_stride + k + lane])
                                    : 0.0f;
            __syncwarp();
            for (int i = 0; i < count; i++)
                sum = __fadd_rn(sum, tile[lane][i]);
            __syncwarp();
        }
    } else if (row < args.rows) {
#pragma unroll 8
        for (int64_t k = 0; k < args.inner; k++)
            sum = __fadd_rn(sum, to_float(data[row + k * args.a.inner_stride]));
    }
    if (row < args.rows)
        args.row_sums[row] = sum;
}

/* ---- epilogue alone ---- */

__global__ void __launch_bounds__(256) gemm_finish_sums(const __grid_constant__ Gemm gemm, const float *sums)
{
    const int64_t pairs = (gemm.args.cols + 1) / 2;

    for (int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x; i < gemm.args.rows * pairs;
         i += static_cast<int64_t>(gridDim.x) * 256) {
        const int64_t row = i / pairs, col = i % pairs * 2;
        const int n = col + 1 < gemm.args.cols ? 2 : 1;
        const float *sum = sums + row * gemm.args.cols + col;
        float x[2] = {sum[0], n == 2 ? sum[1] : 0.0f};

        gemm_finish(gemm, x, row, col, n);
    }
}

/* ---- products ---- */

/* Whether each line of an operand that is read can be read 16 bytes at a time. */
static bool reads_vectors(const Gemm &gemm, const tpi_operand &operand)
{
    const size_t element = tp_dtype_size(operand.dtype);
    const bool inner = operand.inner_stride == 1;

    if (!is_aligned(operand.data, element, inner ? operand.outer_stride : operand.inner_stride))
        return false;
    for (int i = 0; inner && i < gemm.segments; i++)
        if (static_cast<size_t>(gemm.segment[i].begin) * element % 16 != 0)
            return false;
    return true;
}

static bool stores_pairs(const void *data, tp_dtype dtype, int64_t stride)
{
    return reinterpret_cast<uintptr_t>(data) % (2 * tp_dtype_size(dtype)) == 0 && stride % 2 == 0;
}

static void add_segment(Gemm &gemm, int block, int64_t begin, int64_t length)
{
    if (length == 0)
        return;
    gemm.segment[gemm.segments].begin = begin;
    gemm.segment[gemm.segments].length = length;
    gemm.segments++;
    gemm.block_steps[block] += static_cast<int>(divided_up(length, GEMM_STEP));
    gemm.steps += static_cast<int>(divided_up(length, GEMM_STEP));
}

static Gemm describe(const tpi_gemm_args &args)
{
    Gemm gemm = {};
    const tpi_inner *order = args.order;

    gemm.args = args;
    gemm.dropout = dropout_of(args.dropout, args.dropout_key);
    gemm.blocks = order != nullptr ? order->blocks : 1;
    if (order == nullptr)
        add_segment(gemm, 0, 0, args.inner);
    for (int i = 0; order != nullptr && i < order->segments; i++)
        add_segment(gemm, order->segment[i].block, order->segment[i].begin, order->segment[i].length);
    gemm.a_vector = reads_vectors(gemm, args.a);
    gemm.b_vector = reads_vectors(gemm, args.b);
    gemm.pairs = stores_pairs(args.c, args.c_dtype, args.c_stride) &&
                 (args.pre == nullptr || stores_pairs(args.pre, args.c_dtype, args.pre_stride));
    return gemm;
}

/* The size of tiles that is done first, if a tile's time is its elements' over its size's speed; the bits are the
 * same. */
static GemmKernel choose(const tpi_cuda_device *device, const Gemm &gemm)
{
    static const float speed[GEMM_SIZES] = {1.0f, 0.75f, 0.45f}; /* small tiles read more for each product */
    const tpi_gemm_args &args = gemm.args;
    auto *const kernel_of = args.a.dtype == TP_DTYPE_BF16  ? gemm_kernel_bf16
                            : args.a.dtype == TP_DTYPE_F16 ? gemm_kernel_f16
                                                           : gemm_kernel_f32;
    GemmKernel best = {};
    float least = 0;

    for (int size = 0; size < GEMM_SIZES; size++) {
        const GemmKernel kernel =
            kernel_of(args.a.inner_stride == 1, args.b.inner_stride == 1, static_cast<GemmSize>(size));
        const int64_t tiles = divided_up(args.rows, kernel.rows) * divided_up(args.cols, kernel.cols);
        const float time =
            static_cast<float>(divided_up(tiles, device->multiprocessors) * kernel.rows * kernel.cols) / speed[size];

        if ((kernel.vectors && !(gemm.a_vector && gemm.b_vector)) || kernel.shared_bytes > device->shared_bytes ||
            (kernel.kept == GEMM_NO_TREE && gemm.blocks > 1))
            continue;
        if (best.function == nullptr || time < least) {
            best = kernel;
            least = time;
        }
    }
    return best;
}

static tp_status multiply(tpi_stream *stream, const tpi_gemm_args &args)
{
    const tpi_cuda_device *device = tpi_cuda_device_of(stream);
    Gemm gemm = describe(args);
    const GemmKernel kernel = choose(device, gemm);
    size_t shared_bytes = kernel.shared_bytes;

    gemm.row_tiles = divided_up(args.rows, kernel.rows);
    gemm.col_tiles = divided_up(args.cols, kernel.cols);
    const int64_t tiles = gemm.row_tiles * gemm.col_tiles,
                  resident = static_cast<int64_t>(device->multiprocessors) * kernel.resident;
    const unsigned grid = static_cast<unsigned>(tiles < resident ? tiles : resident);
    if (gemm.blocks > 1 && kernel.resident == 1 && shared_bytes + kernel.tree_bytes() <= device->shared_bytes) {
        shared_bytes += kernel.tree_bytes();
    } else if (gemm.blocks > 1) {
        void *waiting;
        tp_status status = tpi_cuda_workspace(stream, grid * kernel.tree_bytes(), &waiting);

        if (status != TP_OK)
            return status;
        gemm.waiting = static_cast<float *>(waiting);
    }
    if (tpi_cuda_dry(stream))
        return TP_OK;
    tp_status status = tpi_cuda_check(stream,
                                      cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel.function),
                                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                           static_cast<int>(shared_bytes)),
                                      "shared memory of gemm");
    if (status != TP_OK)
        return status;
    kernel.function<<<grid, kernel.threads, shared_bytes, tpi_cuda_handle(stream)>>>(gemm);
    return tpi_cuda_check(stream, cudaGetLastError(), "gemm");
}

} // namespace tpi

/* Kernels read operands as they are: nothing is packed beforehand. */
size_t tpi_cuda_gemm_packed_bytes(tp_ctx *, tp_dtype, int64_t, int64_t, const tpi_inner *)
{
    return 0;
}

tp_status tpi_cuda_gemm_pack(tpi_stream *, const tpi_operand *, int64_t, int64_t, const tpi_inner *, const tpi_packed *)
{
    return TP_OK;
}

tp_status tpi_cuda_gemm_row_sums(tpi_stream *stream, const tpi_gemm_args *args)
{
    if (args->rows == 0 || args->inner == 0 || tpi_cuda_dry(stream))
        return TP_OK;
    tpi::with_dtype(args->a.dtype, [&](auto zero) {
        const unsigned blocks = static_cast<unsigned>(tpi::divided_up(args->rows, 4 * tpi::SUM_ROWS));

        tpi::gemm_row_sums<decltype(zero)><<<blocks, 128, 0, tpi_cuda_handle(stream)>>>(*args);
    });
    return tpi_cuda_check(stream, cudaGetLastError(), "row sums of gemm");
}

tp_status tpi_cuda_gemm_finish(tpi_stream *stream, const tpi_gemm_args *args, const float *sums)
{
    const tpi::Gemm gemm = tpi::describe(*args);
    const unsigned grid = tpi::grid_of(args->rows * ((args->cols + 1) / 2), 256);

    tpi::gemm_finish_sums<<<grid, 256, 0, tpi_cuda_handle(stream)>>>(gemm, sums);
    return tpi_cuda_check(stream, cudaGetLastError(), "epilogue of gemm");
}

tp_status tpi_cuda_gemm(tpi_stream *stream, const tpi_gemm_args *args)
{
    const tpi_cuda_device *device = tpi_cuda_device_of(stream);
    const bool empty = args->rows == 0 || args->cols == 0 || (args->accumulate && args->inner == 0);
    tp_status status = TP_OK;
    bool done = false;

    if (device->fast_sums && (device->blaslt != nullptr || tpi_cuda_dry(stream)))
        status = tpi_cuda_gemm_library(stream, args, &done);
    if (status != TP_OK || done)
        return status;
    if (args->row_sums != nullptr)
        status = tpi_cuda_gemm_row_sums(stream, args);
    return status == TP_OK && !empty ? tpi::multiply(stream, *args) : status;
}
