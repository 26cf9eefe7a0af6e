/* Grids, dtypes and faults: what every op file needs around its kernels. Host functions unless marked. */
#ifndef TPI_CUDA_LAUNCH_CUH
#define TPI_CUDA_LAUNCH_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/stream.h"

namespace tpi
{

/* ---- dtypes ---- */

/* Calls fn with a value of the storage type: with_dtype(d, [&](auto zero) { using T = decltype(zero); ... }). */
template <typename F> auto with_dtype(tp_dtype dtype, F fn)
{
    switch (dtype) {
    case TP_DTYPE_BF16: return fn(__nv_bfloat16());
    case TP_DTYPE_F16: return fn(__half());
    default: return fn(0.0f);
    }
}

/* A run-time flag as a compile-time one: with_flag(b, [&](auto flag) { kernel<decltype(flag)::value>... }). */
template <bool Value> struct Flag {
    static constexpr bool value = Value;
};

template <typename F> auto with_flag(bool flag, F fn)
{
    return flag ? fn(Flag<true>()) : fn(Flag<false>());
}

/* Elements of a 16-byte vector of the smallest of the types. */
template <typename T, typename U = T>
constexpr int vector_width = static_cast<int>(16 / (sizeof(T) < sizeof(U) ? sizeof(T) : sizeof(U)));

/* Columns of one thread in element-wise kernels: neighbouring threads take neighbouring elements where vectors can't be
 * used. */
template <bool Aligned, typename T, typename U = T> constexpr int thread_width = Aligned ? vector_width<T, U> : 1;

/* Whether vectors of 16 bytes can be used on rows of `stride` elements. NULL is as good as aligned. */
inline bool is_aligned(const void *data, size_t element, int64_t stride)
{
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && static_cast<size_t>(stride) * element % 16 == 0;
}

/* ---- grids ---- */

constexpr int64_t MAX_GRID = 1 << 20; /* kernels loop beyond it */

inline int64_t divided_up(int64_t value, int64_t divisor)
{
    return value / divisor + (value % divisor != 0);
}

inline unsigned grid_of(int64_t items, int64_t items_of_block)
{
    int64_t blocks = divided_up(items, items_of_block);

    return static_cast<unsigned>(blocks < MAX_GRID ? blocks : MAX_GRID);
}

/* Blocks for work on `rows` rows of which each block loops over some: enough to fill the device, with some to balance
 * it. */
inline unsigned grid_of_rows(const tpi_stream *stream, int64_t rows)
{
    int64_t most = static_cast<int64_t>(tpi_cuda_device_of(stream)->multiprocessors) * 16;

    return static_cast<unsigned>(rows < most ? rows : most);
}

/* A [rows, groups] index space on blocks of 256 threads, each block a tile of it. A group is the columns of one thread.
 */
struct Tiles {
    int64_t rows, groups, col_tiles, count;
    dim3 block;
    unsigned grid;
};

inline Tiles tiles_of(int64_t rows, int64_t cols, int width)
{
    Tiles tiles = {};
    unsigned across = 1;

    tiles.rows = rows;
    tiles.groups = divided_up(cols, width);
    while (across < 256 && across < tiles.groups)
        across *= 2;
    tiles.block = dim3(across, 256 / across);
    tiles.col_tiles = divided_up(tiles.groups, across);
    tiles.count = divided_up(rows, 256 / across) * tiles.col_tiles;
    tiles.grid = grid_of(tiles.count, 1);
    return tiles;
}

#ifdef __CUDACC__

/* Calls fn(row, group) for each of a thread's groups. */
template <typename F> __device__ __forceinline__ void for_each_group(const Tiles &tiles, F fn)
{
    for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
        int64_t row_tile = tile / tiles.col_tiles, row = row_tile * blockDim.y + threadIdx.y;
        int64_t group = (tile - row_tile * tiles.col_tiles) * blockDim.x + threadIdx.x;

        if (row < tiles.rows && group < tiles.groups)
            fn(row, group);
    }
}

/* ---- faults ---- */

/* Records what is wrong with an input; the first one wins. */
static __device__ __forceinline__ void report_fault(tpi_cuda_fault *fault, tpi_cuda_fault_kind kind, int value,
                                                    int64_t place, int64_t vocabulary)
{
    if (atomicCAS_system(&fault->kind, static_cast<unsigned>(TPI_CUDA_FAULT_NONE), static_cast<unsigned>(kind)) !=
        TPI_CUDA_FAULT_NONE)
        return;
    fault->value = value;
    fault->place = place;
    fault->vocabulary = vocabulary;
}

#endif

} // namespace tpi

#endif
