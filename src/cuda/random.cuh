/* Philox4x32-10 and dropout on the GPU: the words of tp_random_u32 (tp/random.h), so that masks are the CPU's, bit for
 * bit. */
#ifndef TPI_CUDA_RANDOM_CUH
#define TPI_CUDA_RANDOM_CUH

#include <tp/random.h>

#include "cuda/vec.cuh"

namespace tpi
{

/* The four words of elements 4 * block and on. */
static __device__ __forceinline__ uint4 random_block(tp_random_key key, uint64_t block)
{
    uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32);
    uint32_t c2 = static_cast<uint32_t>(key.stream), c3 = static_cast<uint32_t>(key.stream >> 32);
    uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);

#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint32_t high0 = __umulhi(0xd2511f53u, c0), low0 = 0xd2511f53u * c0;
        uint32_t high1 = __umulhi(0xcd9e8d57u, c2), low1 = 0xcd9e8d57u * c2;

        c0 = high1 ^ c1 ^ k0;
        c2 = high0 ^ c3 ^ k1;
        c1 = low1;
        c3 = low0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

static __device__ __forceinline__ uint32_t random_word(tp_random_key key, uint64_t index)
{
    uint4 words = random_block(key, index / 4);
    uint32_t low = index & 1 ? words.y : words.x, high = index & 1 ? words.w : words.z;

    return index & 2 ? high : low;
}

/* The words of elements index .. index + N - 1, any index. */
template <int N> __device__ __forceinline__ void random_words(uint32_t (&word)[N], tp_random_key key, uint64_t index)
{
    constexpr int BLOCKS = (N + 3) / 4 + 1;
    uint32_t all[4 * BLOCKS];
    bool odd = index & 1, high = index & 2;

#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        uint4 block = make_uint4(0, 0, 0, 0);

        if (b < BLOCKS - 1 || index % 4 != 0)
            block = random_block(key, index / 4 + b);
        all[4 * b] = block.x;
        all[4 * b + 1] = block.y;
        all[4 * b + 2] = block.z;
        all[4 * b + 3] = block.w;
    }
    /* Moved down by index % 4, in two steps with constant indices. */
#pragma unroll
    for (int i = 0; i < 4 * BLOCKS - 1; i++)
        all[i] = odd ? all[i + 1] : all[i];
#pragma unroll
    for (int i = 0; i < N; i++)
        word[i] = high ? all[i + 2] : all[i];
}

/* Dropout of a tensor: element `index` is kept, scaled by 1/(1-p), if its word reaches the threshold; else it is +0. */
struct Dropout {
    tp_random_key key;
    uint32_t threshold;
    float scale;
    bool on;
};

inline Dropout dropout_of(float probability, tp_random_key key)
{
    Dropout dropout = {key, 0, 1.0f, probability > 0};

    if (dropout.on) {
        dropout.threshold = tp_random_threshold(probability);
        dropout.scale = 1.0f / (1.0f - probability);
    }
    return dropout;
}

static __device__ __forceinline__ bool is_kept(const Dropout &dropout, uint64_t index)
{
    return random_word(dropout.key, index) >= dropout.threshold;
}

/* x of elements index .. index + N - 1 with the mask applied. */
template <int N> __device__ __forceinline__ void drop(float (&x)[N], const Dropout &dropout, uint64_t index)
{
    uint32_t word[N];

    random_words(word, dropout.key, index);
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = word[i] >= dropout.threshold ? __fmul_rn(x[i], dropout.scale) : 0.0f;
}

} // namespace tpi

#endif
