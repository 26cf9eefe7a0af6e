/* Gradient of an embedding: each row of the table adds its tokens' gradients in token order, whatever the launch.
 * Tokens are sorted by id, which keeps the order of equal ones; then one block has all tokens of one id. An id of many
 * tokens is one long chain: its rows come through shared memory, many ahead. Positions need no sorting: sequence by
 * sequence is their order. */
#include "cuda/embedding.cuh"
#include "cuda/lane.cuh"
#include "cuda/mma.cuh"
#include "cuda/sort.cuh"
#include "cuda/vec.cuh"

namespace tpi
{

constexpr int GRAD_THREADS = 128;
constexpr int LONG_RUN = 64; /* tokens */

struct EmbeddingGradView {
    int64_t rows, cols, first_id, table_rows;
    const int32_t *ids;
    const void *dy;
    float *grad;
};

/* What tokens are sorted by: the row of the table, or table_rows for ids of other ranks. keys NULL: ids are only looked
 * at. */
__global__ void __launch_bounds__(256)
    embedding_keys(EmbeddingGradView view, const __grid_constant__ IdCheck check, uint32_t *keys, uint32_t *tokens)
{
    int64_t token = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;

    for (; token < view.rows; token += static_cast<int64_t>(gridDim.x) * blockDim.x) {
        int64_t id = view.ids[token] - view.first_id;

        check_id(check, view.ids[token], token);
        if (keys == nullptr)
            continue;
        keys[token] = static_cast<uint32_t>(id >= 0 && id < view.table_rows ? id : view.table_rows);
        tokens[token] = static_cast<uint32_t>(token);
    }
}

struct SortedTokens {
    const uint32_t *keys, *tokens;
};

/* ---- ids of few tokens ---- */

/* The block at the first place of an id adds all its tokens; the others have nothing to do. */
template <bool Aligned, typename T>
__global__ void __launch_bounds__(GRAD_THREADS) embedding_grad_short(EmbeddingGradView view, SortedTokens sorted)
{
    constexpr int N = thread_width<Aligned, T>;
    const int64_t group = (static_cast<int64_t>(blockIdx.y) * GRAD_THREADS + threadIdx.x) * N;

    for (int64_t first = blockIdx.x; first < view.rows; first += gridDim.x) {
        const uint32_t id = sorted.keys[first];

        if (id >= view.table_rows || (first > 0 && sorted.keys[first - 1] == id))
            continue;

        int64_t mine = first + threadIdx.x;
        bool same = threadIdx.x < LONG_RUN && mine < view.rows && sorted.keys[mine] == id;
        int count = __syncthreads_count(same);
        if (count == LONG_RUN)
            continue;
        for (int64_t col = group; col < view.cols; col += static_cast<int64_t>(gridDim.y) * GRAD_THREADS * N) {
            float *grad = view.grad + static_cast<int64_t>(id) * view.cols + col, sum[N], dy[N];
            int64_t n = view.cols - col;

            load<Aligned>(sum, grad, n);
#pragma unroll 4
            for (int i = 0; i < count; i++) {
                load<Aligned>(dy, static_cast<const T *>(view.dy) + sorted.tokens[first + i] * view.cols + col, n);
#pragma unroll
                for (int j = 0; j < N; j++)
                    sum[j] = vf_add(sum[j], dy[j]);
            }
            store<Aligned>(grad, sum, n);
        }
    }
}

/* ---- ids of many tokens ---- */

constexpr int RUN_STAGES = 4, RUN_COLS = GRAD_THREADS;

template <typename T> struct __align__(16) RunTile {
    static constexpr int TOKENS = 8192 / (RUN_COLS * static_cast<int>(sizeof(T)));
    static constexpr int N = 16 / sizeof(T), VECTORS = RUN_COLS / N;
    static constexpr int OF_THREAD = TOKENS * VECTORS / GRAD_THREADS; /* vectors that a thread copies */

    T dy[TOKENS][RUN_COLS];
};

/* Places of one id. */
struct Run {
    int64_t first, end;
};

/* The run with place `place` in it, if it is long and no earlier multiple of LONG_RUN is in it, which another block
 * has; else an empty one. Keys are sorted: the block looks at as many of them at a time as it has threads. */
static __device__ __forceinline__ Run long_run(const uint32_t *keys, int64_t place, int64_t count)
{
    const uint32_t id = keys[place];
    const int thread = static_cast<int>(threadIdx.x);

    if (place >= LONG_RUN && keys[place - LONG_RUN] == id)
        return {0, 0};
    bool same = thread > 0 && thread < LONG_RUN && thread <= place && keys[place - thread] == id;
    int64_t first = place - __syncthreads_count(same), last = place, end = count;
    while (end - last > 1) { /* keys[last] is the id, keys[end] is beyond it */
        int64_t step = (end - last + GRAD_THREADS - 1) / GRAD_THREADS, at = last + (thread + 1) * step;

        last += step * __syncthreads_count(at < end && keys[at] == id);
        end = last + step < end ? last + step : end;
    }
    return end - first >= LONG_RUN ? Run{first, end} : Run{0, 0};
}

/* The tokens whose rows a thread copies parts of, for the tile at `place`. */
template <typename T>
__device__ __forceinline__ void next_tokens(const SortedTokens &sorted, const Run &run, int64_t place,
                                            uint32_t (&token)[RunTile<T>::OF_THREAD])
{
#pragma unroll
    for (int i = 0; i < RunTile<T>::OF_THREAD; i++) {
        int64_t at = place + (i * GRAD_THREADS + static_cast<int>(threadIdx.x)) / RunTile<T>::VECTORS;

        token[i] = at < run.end ? sorted.tokens[at] : 0;
    }
}

/* Begins to copy a tile. tokens: how many it has; col: the block's first column. */
template <bool Aligned, typename T>
__device__ __forceinline__ void fetch_tile(const EmbeddingGradView &view, int64_t tokens, int64_t col,
                                           const uint32_t (&token)[RunTile<T>::OF_THREAD], RunTile<T> &tile)
{
    constexpr int N = RunTile<T>::N, VECTORS = RunTile<T>::VECTORS;

#pragma unroll
    for (int i = 0; i < RunTile<T>::OF_THREAD; i++) {
        int vector = i * GRAD_THREADS + static_cast<int>(threadIdx.x), r = vector / VECTORS, c = vector % VECTORS * N;
        int64_t exist = view.cols - col - c;
        const T *from = static_cast<const T *>(view.dy) + token[i] * view.cols + col + c;

        if (r >= tokens || exist <= 0)
            continue;
        if (Aligned)
            copy_async_16(&tile.dy[r][c], from,
                          static_cast<int>((exist < N ? exist : N) * static_cast<int64_t>(sizeof(T))));
        for (int j = 0; j < N && j < exist && !Aligned; j++)
            tile.dy[r][c + j] = from[j];
    }
}

/* A thread has one column's chain. A stage is filled again after the barrier behind its last use. */
template <bool Aligned, typename T>
__device__ __forceinline__ float add_run(const EmbeddingGradView &view, const SortedTokens &sorted, const Run &run,
                                         int64_t col, float sum, RunTile<T> (&tiles)[RUN_STAGES])
{
    constexpr int TOKENS = RunTile<T>::TOKENS;
    const bool there = col + threadIdx.x < view.cols;
    uint32_t token[RunTile<T>::OF_THREAD];
    int64_t fetched = run.first;
    auto fetch = [&](RunTile<T> &tile) {
        fetch_tile<Aligned>(view, run.end - fetched, col, token, tile);
        if (Aligned)
            copies_commit();
        fetched += TOKENS;
        next_tokens<T>(sorted, run, fetched, token);
    };

    next_tokens<T>(sorted, run, fetched, token);
    for (int stage = 0; stage < RUN_STAGES - 1; stage++)
        fetch(tiles[stage]);
    for (int64_t place = run.first, stage = 0; place < run.end; place += TOKENS, stage = (stage + 1) % RUN_STAGES) {
        int rows = !there ? 0 : static_cast<int>(run.end - place < TOKENS ? run.end - place : TOKENS);

        if (Aligned)
            copies_wait<RUN_STAGES - 2>();
        __syncthreads();
        fetch(tiles[(stage + RUN_STAGES - 1) % RUN_STAGES]);
#pragma unroll 8
        for (int r = 0; r < rows; r++)
            sum = vf_add(sum, to_float(tiles[stage].dy[r][threadIdx.x]));
    }
    return sum;
}

template <bool Aligned, typename T>
__global__ void __launch_bounds__(GRAD_THREADS) embedding_grad_long(EmbeddingGradView view, SortedTokens sorted)
{
    __shared__ RunTile<T> tiles[RUN_STAGES];
    const int64_t place = static_cast<int64_t>(blockIdx.x) * LONG_RUN,
                  col = static_cast<int64_t>(blockIdx.y) * RUN_COLS;
    const uint32_t id = sorted.keys[place];
    const bool there = col + threadIdx.x < view.cols;

    if (id >= view.table_rows)
        return;

    const Run run = long_run(sorted.keys, place, view.rows);
    float *grad = view.grad + static_cast<int64_t>(id) * view.cols + col + threadIdx.x;
    if (run.first == run.end)
        return;
    float sum = add_run<Aligned>(view, sorted, run, col, there ? *grad : 0.0f, tiles);
    if (there)
        *grad = sum;
}

/* ---- positions ---- */

/* Adds one token's gradient in a block's columns; a column belongs to one thread. */
template <typename T>
__device__ __forceinline__ float add_token(const EmbeddingGradView &view, float sum, int64_t token, int64_t col)
{
    return vf_add(sum, to_float(static_cast<const T *>(view.dy)[token * view.cols + col]));
}

/* One block a position: all sequences that have it. */
template <typename T>
__global__ void __launch_bounds__(GRAD_THREADS, 4)
    embedding_grad_positions(EmbeddingGradView view, const __grid_constant__ Sequences sequences, int64_t positions)
{
    int64_t col = static_cast<int64_t>(blockIdx.y) * GRAD_THREADS + threadIdx.x;

    for (int64_t position = blockIdx.x; position < positions; position += gridDim.x) {
        int64_t id = position - view.first_id;

        if (id < 0 || id >= view.table_rows)
            continue;
        for (int64_t c = col; c < view.cols; c += static_cast<int64_t>(gridDim.y) * GRAD_THREADS) {
            float *grad = view.grad + id * view.cols + c, sum = *grad;

            for (int64_t s = 0; s < sequences.count; s++) {
                int64_t begin = sequence_begin(sequences, s), end = sequence_begin(sequences, s + 1);

                if (position < end - begin)
                    sum = add_token<T>(view, sum, begin + position, c);
            }
            *grad = sum;
        }
    }
}

/* cols_of_thread: of one thread at a time. */
static dim3 grad_grid(int64_t places, int64_t cols, int cols_of_thread)
{
    int64_t across = divided_up(cols, static_cast<int64_t>(GRAD_THREADS) * cols_of_thread);

    return dim3(grid_of(places, 1), static_cast<unsigned>(across < 1024 ? across : 1024));
}

/* Bits that keys 0 .. table_rows have. */
static int key_bits(int64_t table_rows)
{
    int bits = 1;

    while (table_rows >> bits)
        bits++;
    return bits;
}

template <typename T>
static void add_sorted(cudaStream_t stream, const EmbeddingGradView &view, const SortedTokens &sorted)
{
    bool aligned = is_aligned(view.dy, sizeof(T), view.cols) && is_aligned(view.grad, sizeof(float), view.cols);
    dim3 places(static_cast<unsigned>(divided_up(view.rows, LONG_RUN)),
                static_cast<unsigned>(divided_up(view.cols, RUN_COLS)));

    with_flag(aligned, [&](auto flag) {
        constexpr bool ALIGNED = decltype(flag)::value;
        dim3 grid = grad_grid(view.rows, view.cols, thread_width<ALIGNED, T>);

        embedding_grad_short<ALIGNED, T><<<grid, GRAD_THREADS, 0, stream>>>(view, sorted);
        if (view.rows >= LONG_RUN)
            embedding_grad_long<ALIGNED, T><<<places, GRAD_THREADS, 0, stream>>>(view, sorted);
    });
}

/* Device memory: keys and tokens, each twice, then what the sort counts. */
template <typename T>
static tp_status grad_by_ids(tpi_stream *stream, const EmbeddingGradView &view, const IdCheck &check)
{
    cudaStream_t handle = tpi_cuda_handle(stream);
    size_t array = (static_cast<size_t>(view.rows) * sizeof(uint32_t) + 255) / 256 * 256;
    uint32_t *part[5];
    void *memory;
    tp_status status = tpi_cuda_workspace(stream, 4 * array + sort_count_bytes(view.rows), &memory);

    if (status != TP_OK || tpi_cuda_dry(stream))
        return status;
    for (int i = 0; i < 5; i++)
        part[i] = reinterpret_cast<uint32_t *>(static_cast<char *>(memory) + static_cast<size_t>(i) * array);
    embedding_keys<<<grid_of(view.rows, 256), 256, 0, handle>>>(view, check, part[0], part[2]);
    int sorted = sort_pairs(handle, &part[0], &part[2], part[4], view.rows, key_bits(view.table_rows));
    add_sorted<T>(handle, view, {part[sorted], part[2 + sorted]});
    return TP_OK;
}

/* One chain a position, over sequences. */
static tp_status grad_by_positions(tpi_stream *stream, const EmbeddingGradView &view,
                                   const tpi_embedding_grad_args *args)
{
    Sequences sequences;
    tp_status status = sequences_of(stream, args->offsets, args->sequences, args->rows, &sequences);

    if (status == TP_OK)
        status = check_positions(stream, args->offsets, sequences, args->vocabulary);
    if (status != TP_OK || tpi_cuda_dry(stream) || args->cols <= 0 || args->table_rows <= 0)
        return status;

    int64_t positions = longest_sequence(sequences, args->offsets);
    dim3 grid = grad_grid(positions, args->cols, 1);
    with_dtype(args->dy_dtype, [&](auto zero) {
        embedding_grad_positions<decltype(zero)>
            <<<grid, GRAD_THREADS, 0, tpi_cuda_handle(stream)>>>(view, sequences, positions);
    });
    return tpi_cuda_check(stream, cudaGetLastError(), "embedding_grad");
}

} // namespace tpi

tp_status tpi_cuda_embedding_grad(tpi_stream *stream, const tpi_embedding_grad_args *args)
{
    tpi::EmbeddingGradView view = {args->rows, args->cols, args->first_id, args->table_rows,
                                   args->ids,  args->dy,   args->grad};
    tp_status status = TP_OK;

    if (args->rows <= 0)
        return TP_OK;
    if (!args->ids)
        return tpi::grad_by_positions(stream, view, args);

    const tpi::IdCheck check = tpi::id_check_of(stream, args->positions, 0, args->vocabulary);
    const bool adds = args->cols > 0 && args->table_rows > 0, dry = tpi_cuda_dry(stream);
    if (adds && args->rows > UINT32_MAX) /* the sort numbers tokens in 32 bits */
        return tpi_cuda_refuse(stream, TP_ERR_UNSUPPORTED, "embedding_grad: rows is %lld, the most on a GPU is %lld",
                          static_cast<long long>(args->rows), static_cast<long long>(UINT32_MAX));
    if (adds)
        tpi::with_dtype(args->dy_dtype,
                        [&](auto zero) { status = tpi::grad_by_ids<decltype(zero)>(stream, view, check); });
    else if (!dry)
        tpi::embedding_keys<<<tpi::grid_of(args->rows, 256), 256, 0, tpi_cuda_handle(stream)>>>(view, check, nullptr,
                                                                                                nullptr);
    return status == TP_OK && !dry ? tpi_cuda_check(stream, cudaGetLastError(), "embedding_grad") : status;
}
