/* Gradients of a norm's gain and bias: a column's chain over the rows of a virtual rank, continued from what is stored.
 * A chain is one thread's, and the rows come to it through shared memory: the whole block copies tiles of rows, several
 * of them ahead. */
#include "cuda/norm.cuh"

namespace tpi
{

struct GainView {
    tpi_norm_grad_args args;
    const float *rest; /* [rows]; NULL: 0 */
};

/* ---- the rest of the mean ---- */

template <bool Aligned, bool Kept, typename T>
__global__ void __launch_bounds__(32) norm_rest(const __grid_constant__ tpi_norm_grad_args args, float *rest)
{
    extern __shared__ uint4 slots[];
    constexpr int N = RowPlace<T>::N, ROWS = RowPlace<T>::ROWS;

    for (int64_t set = blockIdx.x; set * ROWS < args.rows; set += gridDim.x) {
        RowPlace<T> place(set, args.rows, args.cols);
        RowReader<Aligned, Kept, T> x(args.x, args.x_stride, place, slots + threadIdx.x);
        float mean = args.stats[2 * place.row], sum[N] = {};

        x.fetch(place, args.cols);
        x.template wait<0>();
        for_each_step<4>(place, args.cols, [&](int64_t step, int64_t n) {
            float value[N];

            x.get(value, step);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] = vf_add(sum[i], i < n ? vf_sub(value[i], mean) : 0.0f);
        });
        float total = row_total(sum);
        if (place.there && place.col == 0)
            rest[place.row] = vf_div(total, static_cast<float>(args.cols));
    }
}

template <typename T> static void launch_rest(tpi_stream *stream, const tpi_norm_grad_args *args, float *rest)
{
    cudaStream_t handle = tpi_cuda_handle(stream);
    unsigned grid = grid_of(args->rows, RowPlace<T>::ROWS);

    with_flag(is_aligned(args->x, sizeof(T), args->x_stride), [&](auto flag) {
        constexpr bool ALIGNED = decltype(flag)::value;
        size_t bytes;

        if (shared_for_rows(stream, norm_rest<ALIGNED, true, T>, args->cols, 1, &bytes))
            norm_rest<ALIGNED, true, T><<<grid, 32, bytes, handle>>>(*args, rest);
        else
            norm_rest<ALIGNED, false, T><<<grid, 32, 0, handle>>>(*args, rest);
    });
}

/* ---- the chains ---- */

constexpr int GAIN_COLS = 32, GAIN_THREADS = 128, GAIN_STAGES = 4;

template <typename T> struct __align__(16) GainTile {
    static constexpr int ROWS = 4096 / (GAIN_COLS * static_cast<int>(sizeof(T)));

    T x[ROWS][GAIN_COLS], dy[ROWS][GAIN_COLS];
    float row[ROWS][4]; /* mean, rest, rstd, 0 */
};

/* The rows of a virtual rank that are here, and a block's columns. */
struct GainPart {
    int64_t row, end, col, cols;
};

static __device__ __forceinline__ int64_t shard_begin(int64_t total, int64_t parts, int64_t index)
{
    return total / parts * index + total % parts * index / parts; /* tp_shard_range */
}

static __device__ __forceinline__ GainPart gain_part(const tpi_norm_grad_args &args, int64_t v)
{
    GainPart part;

    part.row = shard_begin(args.total_rows, args.virtual_count, v) - args.first_row;
    part.end = shard_begin(args.total_rows, args.virtual_count, v + 1) - args.first_row;
    part.row = part.row > 0 ? part.row : 0;
    part.end = part.end < args.rows ? part.end : args.rows;
    part.col = static_cast<int64_t>(blockIdx.x) * GAIN_COLS;
    part.cols = args.cols - part.col;
    return part;
}

/* A vector of a row, if whole vectors can be copied, without waiting for it. `exist` > 0 of its elements exist. */
template <bool Aligned, typename T> __device__ __forceinline__ void copy_vector(T *to, const T *from, int64_t exist)
{
    constexpr int N = 16 / sizeof(T);
    int n = static_cast<int>(exist < N ? exist : N);

    if (Aligned)
        copy_async_16(to, from, n * static_cast<int>(sizeof(T)));
    for (int i = 0; i < n && !Aligned; i++)
        to[i] = from[i];
}

/* Begins to copy the rows from `first` on. */
template <bool Aligned, typename T>
__device__ __forceinline__ void fetch_tile(const GainView &view, const GainPart &part, int64_t first, GainTile<T> &tile)
{
    constexpr int N = 16 / sizeof(T), VECTORS = GAIN_COLS / N, ROWS = GainTile<T>::ROWS;
    const tpi_norm_grad_args &args = view.args;
    const int thread = static_cast<int>(threadIdx.x);

#pragma unroll
    for (int i = 0; i < ROWS * VECTORS / GAIN_THREADS; i++) {
        int vector = i * GAIN_THREADS + thread, r = vector / VECTORS, c = vector % VECTORS * N;
        int64_t row = first + r, col = part.col + c;

        if (row < part.end && c < part.cols) {
            copy_vector<Aligned>(&tile.x[r][c], static_cast<const T *>(args.x) + row * args.x_stride + col,
                                 part.cols - c);
            copy_vector<Aligned>(&tile.dy[r][c], static_cast<const T *>(args.dy) + row * args.dy_stride + col,
                                 part.cols - c);
        }
    }
    if (thread < ROWS && first + thread < part.end) {
        const float *stats = args.stats + 2 * (first + thread);

        copy_async_4(&tile.row[thread][0], stats, !args.rms);
        copy_async_4(&tile.row[thread][1], view.rest ? view.rest + first + thread : stats, view.rest != nullptr);
        copy_async_4(&tile.row[thread][2], stats + 1, true);
        copy_async_4(&tile.row[thread][3], stats, false);
    }
}

/* Adds a tile's rows to a column's chains. */
template <typename T>
__device__ __forceinline__ void add_tile(const GainTile<T> &tile, int rows, float &gain, float &bias)
{
#pragma unroll 8
    for (int r = 0; r < rows; r++) {
        float4 row = *reinterpret_cast<const float4 *>(tile.row[r]);
        float dy = to_float(tile.dy[r][threadIdx.x]), x = to_float(tile.x[r][threadIdx.x]);

        gain = vf_fma(dy, normalized(x, row.x, row.y, row.z), gain);
        bias = vf_add(bias, dy);
    }
}

/* The first warp has the chains. A stage is filled again after the barrier behind its last use. */
template <bool Aligned, typename T>
__global__ void __launch_bounds__(GAIN_THREADS) norm_gain_grad(const __grid_constant__ GainView view)
{
    __shared__ GainTile<T> tiles[GAIN_STAGES];
    constexpr int ROWS = GainTile<T>::ROWS;
    const tpi_norm_grad_args &args = view.args;
    GainPart part = gain_part(args, blockIdx.y);
    int64_t at = (blockIdx.y - args.virtual_first) * args.cols + part.col + threadIdx.x, fetched = part.row;
    bool chains = threadIdx.x < GAIN_COLS && threadIdx.x < part.cols;
    float gain = 0, bias = 0;

    if (part.row >= part.end)
        return;
    for (int stage = 0; stage < GAIN_STAGES - 1; stage++, fetched += ROWS) {
        fetch_tile<Aligned>(view, part, fetched, tiles[stage]);
        copies_commit();
    }
    if (chains) {
        gain = args.gain_grad ? args.gain_grad[at] : 0.0f;
        bias = args.bias_grad ? args.bias_grad[at] : 0.0f;
    }
    for (int stage = 0; part.row < part.end; part.row += ROWS, fetched += ROWS, stage = (stage + 1) % GAIN_STAGES) {
        int64_t rows = part.end - part.row;

        copies_wait<GAIN_STAGES - 2>();
        __syncthreads();
        fetch_tile<Aligned>(view, part, fetched, tiles[(stage + GAIN_STAGES - 1) % GAIN_STAGES]);
        copies_commit();
        if (chains)
            add_tile(tiles[stage], static_cast<int>(rows < ROWS ? rows : ROWS), gain, bias);
    }
    if (chains && args.gain_grad)
        args.gain_grad[at] = gain;
    if (chains && args.bias_grad)
        args.bias_grad[at] = bias;
}

template <typename T> static void launch_gain_gradients(tpi_stream *stream, const GainView &view, float *rest)
{
    const tpi_norm_grad_args *args = &view.args;
    bool aligned = is_aligned(args->x, sizeof(T), args->x_stride) && is_aligned(args->dy, sizeof(T), args->dy_stride);
    dim3 grid(static_cast<unsigned>(divided_up(args->cols, GAIN_COLS)), static_cast<unsigned>(args->virtual_count));

    if (rest)
        launch_rest<T>(stream, args, rest);
    with_flag(aligned, [&](auto flag) {
        norm_gain_grad<decltype(flag)::value, T><<<grid, GAIN_THREADS, 0, tpi_cuda_handle(stream)>>>(view);
    });
}

tp_status gain_gradients(tpi_stream *stream, const tpi_norm_grad_args *args, float *rest)
{
    GainView view = {*args, rest};

    with_dtype(args->dtype, [&](auto zero) { launch_gain_gradients<decltype(zero)>(stream, view, rest); });
    return tpi_cuda_check(stream, cudaGetLastError(), "norm_grad");
}

} // namespace tpi
