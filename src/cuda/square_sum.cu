/* Sum of squares by virtual ranks, for gradient norms, in the CPU's order: sixteen lanes a row, rows added in double
 * one after the other. */
#include "cuda/lane.cuh"
#include "cuda/vec.cuh"

namespace tpi
{

/* A rectangle of x: one segment of the order, or a stretch that no segment has. Its rows' sums are at rows_at of the
 * workspace. */
struct SquarePiece {
    int64_t row, col, rows, cols, rows_at;
    int block; /* TPI_MAX_BLOCKS: counted by others; only whether it is finite matters */
};

constexpr int MAX_PIECES = 2 * TPI_MAX_SEGMENTS + 1, SQUARE_THREADS = 256, ROW_LANES = 16;

struct SquareView {
    const float *x;
    int64_t stride;
    float *sums, *result;
    int blocks, pieces;
    SquarePiece piece[MAX_PIECES];
};

/* Sixteen threads a row; blockIdx.y is the piece. */
__global__ void __launch_bounds__(SQUARE_THREADS) square_rows(const __grid_constant__ SquareView view)
{
    const SquarePiece &piece = view.piece[blockIdx.y];
    constexpr int ROWS = SQUARE_THREADS / ROW_LANES;
    bool counted = piece.block < TPI_MAX_BLOCKS;

    for (int64_t first = static_cast<int64_t>(blockIdx.x) * ROWS; first < piece.rows;
         first += static_cast<int64_t>(gridDim.x) * ROWS) {
        int64_t row = first + threadIdx.x / ROW_LANES;
        int64_t cols = row < piece.rows ? piece.cols : 0; /* all lanes stay for the sum */
        const float *x = view.x + (piece.row + row) * view.stride + piece.col;
        float sum = 0;

#pragma unroll 8
        for (int64_t col = threadIdx.x % ROW_LANES; col < cols; col += ROW_LANES)
            sum = vf_fma(x[col], counted ? x[col] : 0.0f, sum);
        sum = lanes_sum<ROW_LANES>(sum);
        if (threadIdx.x % ROW_LANES == 0 && row < piece.rows)
            view.sums[piece.rows_at + row] = sum;
    }
}

/* Continues a chain over a piece's rows. Each lane of the warp reads some sums, and all add all of them. */
static __device__ __forceinline__ double add_rows(double total, const float *sums, int64_t rows)
{
    for (int64_t first = 0; first < rows; first += 32) {
        int64_t row = first + threadIdx.x % 32;
        float mine = row < rows ? sums[row] : 0.0f;

#pragma unroll
        for (int i = 0; i < 32; i++) {
            double sum = static_cast<double>(__shfl_sync(ALL_LANES, mine, i));

            total = first + i < rows ? __dadd_rn(total, sum) : total;
        }
    }
    return total;
}

/* One block: a warp for each virtual rank, and one for the rest. */
__global__ void __launch_bounds__(32 * (TPI_MAX_BLOCKS + 1)) square_total(const __grid_constant__ SquareView view)
{
    __shared__ float sums[TPI_MAX_BLOCKS + 1];
    int block = static_cast<int>(threadIdx.x / 32);
    double total = 0;

    for (int i = 0; i < view.pieces; i++)
        if (view.piece[i].block == block)
            total = add_rows(total, view.sums + view.piece[i].rows_at, view.piece[i].rows);
    if (threadIdx.x % 32 == 0)
        sums[block] = static_cast<float>(total);
    __syncthreads();
    if (threadIdx.x > 0)
        return;

    float node[TPI_MAX_BLOCKS];
#pragma unroll
    for (int i = 0; i < TPI_MAX_BLOCKS; i++)
        node[i] = sums[i];
#pragma unroll
    for (int distance = 1; distance < TPI_MAX_BLOCKS; distance *= 2)
#pragma unroll
        for (int i = 0; i + distance < TPI_MAX_BLOCKS; i += 2 * distance)
            if (i + distance < view.blocks)
                node[i] = vf_add(node[i], node[i + distance]);
    view.result[0] = sums[TPI_MAX_BLOCKS] == 0 ? node[0] : NAN;
}

/* The first stretch at or after `from` that no segment has; false if there is none below `end`. */
static bool next_rest(const tpi_inner &order, int64_t from, int64_t end, int64_t *begin, int64_t *length)
{
    for (int s = 0; s < order.segments; s++) /* a segment over `from` moves it, which others may be over then */
        if (order.segment[s].begin <= from && from < order.segment[s].begin + order.segment[s].length) {
            from = order.segment[s].begin + order.segment[s].length;
            s = -1;
        }
    if (from >= end)
        return false;
    for (int s = 0; s < order.segments; s++)
        if (order.segment[s].length > 0 && order.segment[s].begin > from && order.segment[s].begin < end)
            end = order.segment[s].begin;
    *begin = from;
    *length = end - from;
    return true;
}

/* Adds a stretch along `dim`; returns where the next one's row sums begin. */
static int64_t add_piece(SquareView *view, const tpi_square_sum_args *args, int64_t begin, int64_t length, int block)
{
    SquarePiece *piece = &view->piece[view->pieces];
    int64_t rows_at = view->pieces > 0 ? piece[-1].rows_at + piece[-1].rows : 0;

    *piece = {0, 0, args->rows, args->cols, rows_at, block};
    if (args->dim == 0) {
        piece->row = begin;
        piece->rows = length;
    } else {
        piece->col = begin;
        piece->cols = length;
    }
    view->pieces++;
    return rows_at + piece->rows;
}

} // namespace tpi

tp_status tpi_cuda_square_sum(tpi_stream *stream, const tpi_square_sum_args *args)
{
    int64_t end = args->dim == 0 ? args->rows : args->cols, begin = 0, length = 0, sums = 0, most = 1;
    tpi::SquareView view = {args->x, args->stride, nullptr, args->result, 1, 0, {}};
    tpi_inner order = {};
    void *memory;
    tp_status status;

    order.blocks = order.segments = 1;
    order.segment[0].length = end;
    if (args->order)
        order = *args->order;
    view.blocks = order.blocks;
    for (int s = 0; s < order.segments; s++)
        sums = tpi::add_piece(&view, args, order.segment[s].begin, order.segment[s].length, order.segment[s].block);
    for (; tpi::next_rest(order, begin, end, &begin, &length); begin += length)
        sums = tpi::add_piece(&view, args, begin, length, TPI_MAX_BLOCKS);
    status = tpi_cuda_workspace(stream, static_cast<size_t>(sums) * sizeof(float), &memory);
    if (status != TP_OK)
        return status;
    view.sums = static_cast<float *>(memory);
    for (int i = 0; i < view.pieces; i++)
        most = view.piece[i].rows > most ? view.piece[i].rows : most;
    if (view.pieces > 0) {
        dim3 grid(tpi::grid_of(most, tpi::SQUARE_THREADS / tpi::ROW_LANES), static_cast<unsigned>(view.pieces));

        tpi::square_rows<<<grid, tpi::SQUARE_THREADS, 0, tpi_cuda_handle(stream)>>>(view);
    }
    tpi::square_total<<<1, 32 * (TPI_MAX_BLOCKS + 1), 0, tpi_cuda_handle(stream)>>>(view);
    return tpi_cuda_check(stream, cudaGetLastError(), "square_sum");
}
