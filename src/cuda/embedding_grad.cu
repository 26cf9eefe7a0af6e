/* Gradient of an embedding: each row of the table adds its tokens' gradients in token order, whatever the launch.
 * Tokens are sorted by id, which keeps the order of equal ones; then one block has all tokens of one id. Positions need
 * no sorting: sequence by sequence is their order. */
#include <cub/device/device_radix_sort.cuh>

#include "cuda/lane.cuh"
#include "cuda/sequences.cuh"
#include "cuda/vec.cuh"

namespace tpi
{

constexpr int GRAD_THREADS = 128;

struct EmbeddingGradView {
    int64_t rows, cols, first_id, table_rows;
    const int32_t *ids;
    const void *dy;
    float *grad;
};

/* What tokens are sorted by: the row of the table, or table_rows for ids of other ranks. */
__global__ void __launch_bounds__(256) embedding_keys(EmbeddingGradView view, uint32_t *keys, uint32_t *tokens)
{
    int64_t token = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;

    for (; token < view.rows; token += static_cast<int64_t>(gridDim.x) * blockDim.x) {
        int64_t id = view.ids[token] - view.first_id;

        keys[token] = static_cast<uint32_t>(id >= 0 && id < view.table_rows ? id : view.table_rows);
        tokens[token] = static_cast<uint32_t>(token);
    }
}

/* Adds one token's gradient in a block's columns; a column belongs to one thread. */
template <typename T>
__device__ __forceinline__ float add_token(const EmbeddingGradView &view, float sum, int64_t token, int64_t col)
{
    return vf_add(sum, to_float(static_cast<const T *>(view.dy)[token * view.cols + col]));
}

/* One past the last place of the id that begins at `first`: looked for in growing steps, then between the last two. */
static __device__ __forceinline__ int64_t run_end(const uint32_t *keys, int64_t first, int64_t count)
{
    uint32_t id = keys[first];
    int64_t step = 1, low, high;

    while (first + step < count && keys[first + step] == id)
        step *= 2;
    low = first + step / 2;
    high = first + step < count ? first + step : count;
    while (high - low > 1) { /* keys[low] is the id, high is beyond it */
        int64_t middle = low + (high - low) / 2;

        if (keys[middle] == id)
            low = middle;
        else
            high = middle;
    }
    return high;
}

/* The block at the first place of an id adds all its tokens; the others have nothing to do. */
template <typename T>
__global__ void __launch_bounds__(GRAD_THREADS)
    embedding_grad_sorted(EmbeddingGradView view, const uint32_t *keys, const uint32_t *tokens)
{
    int64_t col = static_cast<int64_t>(blockIdx.y) * GRAD_THREADS + threadIdx.x;

    for (int64_t first = blockIdx.x; first < view.rows; first += gridDim.x) {
        uint32_t id = keys[first];

        if (id >= view.table_rows || (first > 0 && keys[first - 1] == id))
            continue;

        int64_t end = run_end(keys, first, view.rows);
        for (int64_t c = col; c < view.cols; c += static_cast<int64_t>(gridDim.y) * GRAD_THREADS) {
            float *grad = view.grad + static_cast<int64_t>(id) * view.cols + c, sum = *grad;

#pragma unroll 8
            for (int64_t place = first; place < end; place++)
                sum = add_token<T>(view, sum, tokens[place], c);
            *grad = sum;
        }
    }
}

/* One block a position: all sequences that have it. */
template <typename T>
__global__ void __launch_bounds__(GRAD_THREADS)
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

static dim3 grad_grid(int64_t places, int64_t cols)
{
    int64_t across = divided_up(cols, GRAD_THREADS);

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

/* Device memory: keys, sorted keys, tokens, sorted tokens, then what the sort itself needs. */
template <typename T> static tp_status grad_by_ids(tpi_stream *stream, const EmbeddingGradView &view)
{
    cudaStream_t handle = tpi_cuda_handle(stream);
    size_t array = (static_cast<size_t>(view.rows) * sizeof(uint32_t) + 255) / 256 * 256, sort_bytes = 0;
    int bits = key_bits(view.table_rows);
    uint32_t *none = nullptr, *part[4];
    void *memory;
    tp_status status;

    status = tpi_cuda_check(
        stream,
        cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, none, none, none, none, view.rows, 0, bits, handle),
        "embedding_grad");
    if (status == TP_OK)
        status = tpi_cuda_workspace(stream, 4 * array + sort_bytes, &memory);
    if (status != TP_OK)
        return status;
    for (int i = 0; i < 4; i++)
        part[i] = reinterpret_cast<uint32_t *>(static_cast<char *>(memory) + static_cast<size_t>(i) * array);
    embedding_keys<<<grid_of(view.rows, 256), 256, 0, handle>>>(view, part[0], part[2]);
    status =
        tpi_cuda_check(stream,
                       cub::DeviceRadixSort::SortPairs(static_cast<char *>(memory) + 4 * array, sort_bytes, part[0],
                                                       part[1], part[2], part[3], view.rows, 0, bits, handle),
                       "embedding_grad");
    if (status == TP_OK)
        embedding_grad_sorted<T><<<grad_grid(view.rows, view.cols), GRAD_THREADS, 0, handle>>>(view, part[1], part[3]);
    return status;
}

} // namespace tpi

tp_status tpi_cuda_embedding_grad(tpi_stream *stream, const tpi_embedding_grad_args *args)
{
    tpi::EmbeddingGradView view = {args->rows, args->cols, args->first_id, args->table_rows,
                                   args->ids,  args->dy,   args->grad};
    tp_status status = TP_OK;

    if (args->rows <= 0 || args->cols <= 0 || args->table_rows <= 0)
        return TP_OK;
    tpi::with_dtype(args->dy_dtype, [&](auto zero) {
        using T = decltype(zero);
        tpi::Sequences sequences;

        if (args->ids) {
            status = tpi::grad_by_ids<T>(stream, view);
            return;
        }
        status = tpi::sequences_of(stream, args->offsets, args->sequences, args->rows, &sequences);
        if (status != TP_OK)
            return;

        int64_t positions = tpi::longest_sequence(sequences, args->offsets);
        tpi::embedding_grad_positions<T>
            <<<tpi::grad_grid(positions, args->cols), tpi::GRAD_THREADS, 0, tpi_cuda_handle(stream)>>>(view, sequences,
                                                                                                       positions);
    });
    return status == TP_OK ? tpi_cuda_check(stream, cudaGetLastError(), "embedding_grad") : status;
}
