/* Sorts keys and the value of each, digit by digit from the lowest on. Every pass keeps the order that it finds among
 * equal digits, so equal keys stay in order. A pass is two kernels: blocks count the digits of their stretch; then each
 * finds where its own go, and moves them. */
#ifndef TPI_CUDA_SORT_CUH
#define TPI_CUDA_SORT_CUH

#include "cuda/launch.cuh"

namespace tpi
{

constexpr int SORT_THREADS = 256, SORT_WARPS = SORT_THREADS / 32;
constexpr int SORT_BITS = 9, SORT_DIGITS = 1 << SORT_BITS; /* two digits a thread */
constexpr int64_t SORT_STRETCH = 1024, SORT_BLOCKS = 256;  /* at least so many items a block; at most so many blocks */

struct SortPass {
    const uint32_t *keys, *values;
    uint32_t *sorted_keys, *sorted_values;
    uint32_t *counts; /* [block][digit] */
    int64_t count, stretch;
    int shift;
};

static __device__ __forceinline__ uint32_t digit_of(const SortPass &pass, uint32_t key)
{
    return key >> pass.shift & (SORT_DIGITS - 1);
}

static __global__ void __launch_bounds__(SORT_THREADS) sort_count(SortPass pass)
{
    __shared__ uint32_t count[SORT_DIGITS];
    const int64_t begin = blockIdx.x * pass.stretch, most = begin + pass.stretch;
    const int64_t end = most < pass.count ? most : pass.count;

    for (int digit = static_cast<int>(threadIdx.x); digit < SORT_DIGITS; digit += SORT_THREADS)
        count[digit] = 0;
    __syncthreads();
    for (int64_t i = begin + threadIdx.x; i < end; i += SORT_THREADS)
        atomicAdd(&count[digit_of(pass, pass.keys[i])], 1u);
    __syncthreads();
    for (int digit = static_cast<int>(threadIdx.x); digit < SORT_DIGITS; digit += SORT_THREADS)
        pass.counts[static_cast<int64_t>(blockIdx.x) * SORT_DIGITS + digit] = count[digit];
}

/* Of two neighbouring digits: how often they are in all blocks, and in those before this one. */
struct DigitCounts {
    uint32_t all[2], before[2];
};

static __device__ __forceinline__ DigitCounts digit_counts(const SortPass &pass)
{
    DigitCounts sum = {};

#pragma unroll 4
    for (unsigned block = 0; block < gridDim.x; block++) {
        const uint2 count = reinterpret_cast<const uint2 *>(pass.counts)[block * (SORT_DIGITS / 2) + threadIdx.x];

        sum.all[0] += count.x;
        sum.all[1] += count.y;
        sum.before[0] += block < blockIdx.x ? count.x : 0;
        sum.before[1] += block < blockIdx.x ? count.y : 0;
    }
    return sum;
}

/* The sum of `value` over this lane and those below. */
static __device__ __forceinline__ uint32_t sum_below(uint32_t value)
{
    const int lane = static_cast<int>(threadIdx.x % 32);

    for (int distance = 1; distance < 32; distance *= 2) {
        uint32_t other = __shfl_up_sync(0xffffffffu, value, static_cast<unsigned>(distance));

        value += lane >= distance ? other : 0;
    }
    return value;
}

/* Moves items [first, first + 32) of a warp's stretch; next: where its next item of each digit goes. Items of one digit
 * go side by side; the first of their lanes takes places for all of them. */
static __device__ __forceinline__ void move_items(const SortPass &pass, int64_t first, int64_t end, uint32_t *next)
{
    const int lane = static_cast<int>(threadIdx.x % 32);
    const bool there = first + lane < end;
    const uint32_t key = there ? pass.keys[first + lane] : 0;
    const uint32_t digit = there ? digit_of(pass, key) : SORT_DIGITS; /* of those beyond the end */
    const unsigned same = __match_any_sync(0xffffffffu, digit);
    const int leader = __ffs(static_cast<int>(same)) - 1;
    uint32_t place = 0;

    if (there && lane == leader) {
        place = next[digit];
        next[digit] = place + __popc(same);
    }
    place = __shfl_sync(0xffffffffu, place, leader) + __popc(same & ((1u << lane) - 1));
    if (there) {
        pass.sorted_keys[place] = key;
        pass.sorted_values[place] = pass.values[first + lane];
    }
}

/* A warp has a part of the block's stretch. */
static __global__ void __launch_bounds__(SORT_THREADS) sort_move(SortPass pass)
{
    __shared__ uint32_t next[SORT_WARPS][SORT_DIGITS], sums[SORT_WARPS];
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int64_t part = pass.stretch / SORT_WARPS, begin = blockIdx.x * pass.stretch + warp * part;
    const int64_t end = begin + part < pass.count ? begin + part : pass.count;

    for (int digit = lane; digit < SORT_DIGITS; digit += 32)
        next[warp][digit] = 0;
    __syncwarp();
    for (int64_t i = begin + lane; i < end; i += 32)
        atomicAdd(&next[warp][digit_of(pass, pass.keys[i])], 1u);

    const DigitCounts counts = digit_counts(pass);
    const uint32_t own = counts.all[0] + counts.all[1], up_to = sum_below(own);
    if (lane == 31)
        sums[warp] = up_to;
    __syncthreads();
    uint32_t place[2] = {up_to - own + counts.before[0], up_to - counts.all[1] + counts.before[1]};
    for (int other = 0; other < warp; other++) {
        place[0] += sums[other];
        place[1] += sums[other];
    }
    for (int other = 0; other < SORT_WARPS; other++)
        for (int i = 0; i < 2; i++) {
            uint32_t count = next[other][2 * threadIdx.x + i];

            next[other][2 * threadIdx.x + i] = place[i];
            place[i] += count;
        }
    __syncthreads();
#pragma unroll 1
    for (int64_t first = begin; first < end; first += 32) {
        move_items(pass, first, end, next[warp]);
        __syncwarp();
    }
}

/* ---- the host's part ---- */

inline int64_t sort_stretch(int64_t count)
{
    int64_t stretch = divided_up(divided_up(count, SORT_BLOCKS), SORT_THREADS) * SORT_THREADS;

    return stretch > SORT_STRETCH ? stretch : SORT_STRETCH;
}

/* Bytes of SortPass::counts. */
inline size_t sort_count_bytes(int64_t count)
{
    return static_cast<size_t>(divided_up(count, sort_stretch(count))) * SORT_DIGITS * sizeof(uint32_t);
}

/* Keys are less than 2^bits; count is less than 2^32. The sorted keys and values end up in keys[out] and values[out],
 * where `out` is what is returned. */
inline int sort_pairs(cudaStream_t stream, uint32_t *const keys[2], uint32_t *const values[2], uint32_t *counts,
                      int64_t count, int bits)
{
    int from = 0;

    for (int shift = 0; shift < bits; shift += SORT_BITS, from = 1 - from) {
        const SortPass pass = {keys[from], values[from], keys[1 - from],       values[1 - from],
                               counts,     count,        sort_stretch(count), shift};
        const unsigned blocks = static_cast<unsigned>(divided_up(count, pass.stretch));

        sort_count<<<blocks, SORT_THREADS, 0, stream>>>(pass);
        sort_move<<<blocks, SORT_THREADS, 0, stream>>>(pass);
    }
    return from;
}

} // namespace tpi

#endif
