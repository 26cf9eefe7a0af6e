/* What the tensor-core kernels of attention share: rows on their way to shared memory, masks by ranges, and powers of
 * 2. */
#ifndef TPI_CUDA_ATTENTION_TILE_CUH
#define TPI_CUDA_ATTENTION_TILE_CUH

#include "cuda/attention.cuh"
#include "cuda/attention.h"

namespace tpi {

#ifdef __CUDACC__

/* x, of which the compiler knows nothing: what depends on it is computed where it is needed, and takes no registers
 * before. For paths that are seldom taken. */
static __device__ __forceinline__ int late(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

static __device__ __forceinline__ tp_random_key late(tp_random_key key)
{
    asm volatile("" : "+l"(key.seed));
    return key;
}

/* ---- where a block works ---- */

/* A block's head (or slot) and tile; neighbouring blocks have different heads, so that tiles begin in the order of
 * their cost. */
struct AttentionBlock {
    int head;
    AttentionPlace place;
};

/* descending: the last tiles first: under a causal mask these have the most keys, and tiles of keys the fewest queries.
 * Each call computes it again, so that it needn't be kept. */
static __device__ __forceinline__ AttentionBlock attention_block(const Attention &at, int64_t heads, int tile,
                                                                 bool descending)
{
    const int block = late(blockIdx.x), index = block / static_cast<int>(heads);

    return {block % static_cast<int>(heads), attention_place(at, descending ? at.places - 1 - index : index, tile)};
}

/* ---- masks ---- */

/* Keys that each of the queries [begin, end) sees. */
static __device__ __forceinline__ AttentionRange attention_common_keys(const Attention &at, int begin, int end,
                                                                       int length)
{
    const int64_t window = at.args.window > 0 ? at.args.window : length, ahead = at.args.causal ? 1 : window;

    return attention_clip(end - window, begin + ahead, length);
}

/* Queries that see each of the keys [begin, end). */
static __device__ __forceinline__ AttentionRange attention_common_queries(const Attention &at, int begin, int end,
                                                                          int length)
{
    const int64_t window = at.args.window > 0 ? at.args.window : length, before = at.args.causal ? 1 : window;

    return attention_clip(end - before, begin + window, length);
}

static __device__ __forceinline__ bool is_within(AttentionRange range, int index)
{
    return index >= range.begin && index < range.end;
}

/* Whether the range has one of the indices begin .. begin + count - 1; whether it has all of them. */
static __device__ __forceinline__ bool is_touched(AttentionRange range, int begin, int count)
{
    return begin < range.end && begin + count > range.begin;
}

static __device__ __forceinline__ bool is_covered(AttentionRange range, int begin, int count)
{
    return begin >= range.begin && begin + count <= range.end;
}

/* ---- rows ---- */

/* A thread's part of tiles of Rows rows that follow each other: always the same eight columns of every Apart-th row.
 * What depends on the thread is computed once. Tiles have lines of Dim + 8 elements, zeros where there is no row or no
 * such element. */
template <int Rows, int Dim, int Threads> struct AttentionRows {
    static constexpr int Chunks = Dim / 8, Apart = Threads / Chunks, Count = Rows / Apart, Line = Dim + 8;
    static_assert(Threads % Chunks == 0 && Rows % Apart == 0, "each thread has as much");
    static_assert(Apart <= TPI_CUDA_ROWS_APART, "their distance fits in 32 bits");
    const uint16_t *from; /* this thread's first chunk of the next tile; where it has no columns: an address of which
                           * nothing is read */
};

/* data: row 0 of the first tile. */
template <int Rows, int Dim, int Threads>
__device__ __forceinline__ void attention_begin(AttentionRows<Rows, Dim, Threads> &rows, const Attention &at,
                                                const void *data, int64_t stride)
{
    typedef AttentionRows<Rows, Dim, Threads> Part;
    const int line = static_cast<int>(threadIdx.x) / Part::Chunks, d = static_cast<int>(threadIdx.x) % Part::Chunks * 8;

    rows.from = static_cast<const uint16_t *>(data) + (d < at.args.head_dim ? line * stride + d : 0);
}

/* The next tile begins `rows_back` rows before where it would, in the head after this one. */
template <int Rows, int Dim, int Threads>
__device__ __forceinline__ void attention_next_head(AttentionRows<Rows, Dim, Threads> &rows, const Attention &at,
                                                    int64_t stride, int rows_back)
{
    const bool exists = late(threadIdx.x) % (Dim / 8) * 8 < at.args.head_dim;

    rows.from += exists ? at.args.head_dim - rows_back * stride : 0;
}

/* load_eight in few registers. */
static __device__ __forceinline__ void attention_load_eight(uint16_t *to, const uint16_t *from, const void *any,
                                                            int exist, bool vector)
{
    if (vector) {
        copy_async_16(to, exist > 0 ? from : any, exist > 0 ? 16 : 0);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < 8; i++)
        to[i] = i < exist ? from[i] : 0;
}

/* Begins to copy the next tile, whose first `count` rows exist. any: an address to give where nothing is read. */
template <int Rows, int Dim, int Threads>
__device__ __forceinline__ void attention_next(AttentionRows<Rows, Dim, Threads> &rows, const Attention &at,
                                               const void *any, int64_t stride, int count, uint16_t *tile)
{
    typedef AttentionRows<Rows, Dim, Threads> Part;
    const int me = late(threadIdx.x), exist = static_cast<int>(at.args.head_dim) - me % Part::Chunks * 8;
    const int step = exist > 0 ? late(static_cast<int>(stride)) * Part::Apart : 0;
    const uint16_t *from = rows.from;

    if (at.vector && count >= Rows) {
        uint16_t *to = tile + me / Part::Chunks * Part::Line + me % Part::Chunks * 8;

#pragma unroll
        for (int i = 0; i < Part::Count; i++, from += step)
            copy_async_16(to + i * Part::Apart * Part::Line, from, exist > 0 ? 16 : 0);
    } else {
        const int line = me / Part::Chunks, d = me % Part::Chunks * 8;

#pragma unroll 1
        for (int i = 0; i < Part::Count; i++, from += step)
            attention_load_eight(tile + (line + i * Part::Apart) * Part::Line + d, from, any,
                                 line + i * Part::Apart < count ? exist : 0, at.vector);
    }
    rows.from = from;
}

/* ---- dropout ---- */

/* Which of a thread's pairs of neighbouring elements are kept, of a row of 8 Pairs keys as it lies in accumulators: bit
 * 2 n + i of column 8 n + 2 (lane mod 4) + i. Two lanes need the same random numbers: each computes half of them. All
 * lanes of the warp call. */
template <int Pairs>
__device__ __forceinline__ uint32_t attention_kept_bits(const Attention &at, int64_t row, int64_t head, int first_key)
{
    const int lane = late(threadIdx.x & 31);
    const bool odd = lane & 1;
    const uint64_t mask_row = attention_mask_row(at, row, head);
    uint32_t own = 0;

#pragma unroll 1
    for (int n = 0; n < Pairs; n += 2) {
        const int key = first_key + (n + odd) * 8 + lane % 4 / 2 * 4;
        const uint4 word = random_block(at.dropout.key, (mask_row + static_cast<uint64_t>(key)) / 4);
        const uint32_t threshold = at.dropout.threshold;

        own |= ((word.x >= threshold) | (word.y >= threshold) << 1 | (word.z >= threshold) << 2 |
                (word.w >= threshold) << 3)
               << 2 * n;
    }
    const uint32_t other = __shfl_xor_sync(ALL_LANES, own, 1), low = 0x33333333;

    return odd ? (own & ~low) | (other & ~low) >> 2 : (own & low) | (other & low) << 2;
}

/* ---- numbers ---- */

/* 2^x within two units in the last place; 0 below 2^-126. */
static __device__ __forceinline__ float power_of_2(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 8 bytes, or zeros. */
static __device__ __forceinline__ void copy_async_8(void *to, const void *from, bool exists)
{
    const int bytes = exists ? 8 : 0;

    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;\n" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
}

#endif

} // namespace tpi

#endif
