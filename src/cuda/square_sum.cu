/* Sum of squares by virtual ranks, for gradient norms, in the CPU's order: sixteen lanes a row, rows added in double
 * one after the other. */
#include "cuda/lane.cuh"
#include "cuda/vec.cuh"

namespace tpi
{

/* A stretch of a matrix along its order's dimension: one segment, or what no segment has. Its rows' sums are at rows_at
 * of the workspace, and the next piece's follow. */
struct SquarePiece {
    unsigned begin, length, rows_at;
    unsigned short item;
    unsigned short block; /* TPI_MAX_BLOCKS: counted by others; only whether it is finite matters */
};

/* One matrix. */
struct SquareItem {
    const float *x;
    int64_t stride, across; /* across: columns where rows are dealt out, rows where columns are */
    float *result;
    int dim, blocks, first_piece, pieces;
};

constexpr int PIECES_OF_ITEM = 2 * TPI_MAX_SEGMENTS + 1, SQUARE_PIECES = 1024, SQUARE_ITEMS = 128;
constexpr int SQUARE_THREADS = 256, ROW_LANES = 16, ROWS_OF_BLOCK = SQUARE_THREADS / ROW_LANES;
constexpr int64_t MOST_ROWS = INT64_C(1) << 31; /* of a launch */

/* Everything is in the kernels' arguments, so a graph may replay them. */
struct SquareList {
    float *sums;
    unsigned rows; /* of all pieces */
    int pieces, items;
    SquarePiece piece[SQUARE_PIECES];
    SquareItem item[SQUARE_ITEMS];
};

static __host__ __device__ __forceinline__ int64_t rows_of(const SquareItem &item, const SquarePiece &piece)
{
    return item.dim == 0 ? piece.length : item.across;
}

/* Sixteen threads a row, of whichever piece. */
__global__ void __launch_bounds__(SQUARE_THREADS) square_rows(const __grid_constant__ SquareList list)
{
    unsigned lane = threadIdx.x % ROW_LANES;

    for (int64_t first = static_cast<int64_t>(blockIdx.x) * ROWS_OF_BLOCK; first < list.rows;
         first += static_cast<int64_t>(gridDim.x) * ROWS_OF_BLOCK) {
        int64_t place = first + threadIdx.x / ROW_LANES;
        int low = 0, high = list.pieces;

        while (high - low > 1) { /* the last piece that begins at or before the row: those before it are full or
                                  * empty */
            int middle = (low + high) / 2;

            if (list.piece[middle].rows_at <= place)
                low = middle;
            else
                high = middle;
        }
        const SquarePiece &piece = list.piece[low];
        const SquareItem &item = list.item[piece.item];
        bool by_rows = item.dim == 0, counted = piece.block < TPI_MAX_BLOCKS;
        int64_t row = place - piece.rows_at, cols = by_rows ? item.across : piece.length;
        const float *x = item.x + (by_rows ? (piece.begin + row) * item.stride : row * item.stride + piece.begin);
        float sum = 0;

        if (place >= list.rows)
            cols = 0; /* all lanes stay for the sum */
#pragma unroll 8
        for (int64_t col = lane; col < cols; col += ROW_LANES)
            sum = vf_fma(x[col], counted ? x[col] : 0.0f, sum);
        sum = lanes_sum<ROW_LANES>(sum);
        if (lane == 0 && place < list.rows)
            list.sums[place] = sum;
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

/* A block an item: a warp for each virtual rank, and one for the rest. */
__global__ void __launch_bounds__(32 * (TPI_MAX_BLOCKS + 1)) square_total(const __grid_constant__ SquareList list)
{
    __shared__ float sums[TPI_MAX_BLOCKS + 1];
    const SquareItem &item = list.item[blockIdx.x];
    int block = static_cast<int>(threadIdx.x / 32);
    double total = 0;

    for (int i = item.first_piece; i < item.first_piece + item.pieces; i++)
        if (list.piece[i].block == block)
            total = add_rows(total, list.sums + list.piece[i].rows_at, rows_of(item, list.piece[i]));
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
            if (i + distance < item.blocks)
                node[i] = vf_add(node[i], node[i + distance]);
    item.result[0] = sums[TPI_MAX_BLOCKS] == 0 ? node[0] : NAN;
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

/* Adds a stretch along the item's dimension. */
static void add_piece(SquareList *list, int64_t begin, int64_t length, int block)
{
    SquareItem *item = &list->item[list->items - 1];
    SquarePiece *piece = &list->piece[list->pieces++];

    *piece = {static_cast<unsigned>(begin), static_cast<unsigned>(length), list->rows,
              static_cast<unsigned short>(list->items - 1), static_cast<unsigned short>(block)};
    list->rows += static_cast<unsigned>(rows_of(*item, *piece));
    item->pieces++;
}

static void add_item(SquareList *list, const tpi_square_sum_args &args)
{
    int64_t end = args.dim == 0 ? args.rows : args.cols, begin = 0, length = 0;
    tpi_inner order = {};

    order.blocks = order.segments = 1;
    order.segment[0].length = end;
    if (args.order)
        order = *args.order;
    list->item[list->items++] = {args.x,   args.stride,  args.dim == 0 ? args.cols : args.rows, args.result,
                                 args.dim, order.blocks, list->pieces,                          0};
    for (int s = 0; s < order.segments; s++)
        add_piece(list, order.segment[s].begin, order.segment[s].length, order.segment[s].block);
    for (; next_rest(order, begin, end, &begin, &length); begin += length)
        add_piece(list, begin, length, TPI_MAX_BLOCKS);
}

/* Most rows that the item can add to a list. */
static int64_t most_rows(const tpi_square_sum_args &args)
{
    return args.dim == 0 ? args.rows : args.rows * PIECES_OF_ITEM;
}

static bool has_room(const SquareList &list, const tpi_square_sum_args &args)
{
    return list.items < SQUARE_ITEMS && list.pieces + PIECES_OF_ITEM <= SQUARE_PIECES &&
           list.rows + most_rows(args) <= MOST_ROWS;
}

static tp_status issue(tpi_stream *stream, SquareList *list)
{
    void *memory;
    tp_status status = tpi_cuda_workspace(stream, static_cast<size_t>(list->rows) * sizeof(float), &memory);

    if (status != TP_OK || tpi_cuda_dry(stream))
        return status;
    list->sums = static_cast<float *>(memory);
    if (list->rows > 0)
        square_rows<<<grid_of(list->rows, ROWS_OF_BLOCK), SQUARE_THREADS, 0, tpi_cuda_handle(stream)>>>(*list);
    square_total<<<static_cast<unsigned>(list->items), 32 * (TPI_MAX_BLOCKS + 1), 0, tpi_cuda_handle(stream)>>>(*list);
    return tpi_cuda_check(stream, cudaGetLastError(), "square_sum");
}

} // namespace tpi

/* Each two launches take as many matrices as fit in their arguments. */
tp_status tpi_cuda_square_sum_list(tpi_stream *stream, const tpi_square_sum_args *args, int count)
{
    for (int i = 0; i < count; i++)
        if (tpi::most_rows(args[i]) > tpi::MOST_ROWS || (args[i].dim == 1 && args[i].cols >= tpi::MOST_ROWS))
            return tpi_cuda_refuse(stream, TP_ERR_UNSUPPORTED,
                                   "CUDA: square_sum of [%lld, %lld]: at most %lld sums of rows are kept",
                                   static_cast<long long>(args[i].rows), static_cast<long long>(args[i].cols),
                                   static_cast<long long>(tpi::MOST_ROWS));
    for (int i = 0; i < count;) {
        tpi::SquareList list = {};

        for (; i < count && tpi::has_room(list, args[i]); i++)
            tpi::add_item(&list, args[i]);

        tp_status status = tpi::issue(stream, &list);
        if (status != TP_OK)
            return status;
    }
    return TP_OK;
}

tp_status tpi_cuda_square_sum(tpi_stream *stream, const tpi_square_sum_args *args)
{
    return tpi_cuda_square_sum_list(stream, args, 1);
}
