/* Philox4x32-10 for many consecutive elements, and dropout. The words are those of tp_random_u32 (tp/random.h). */
#ifndef TPI_CPU_RANDOM_MATH_H
#define TPI_CPU_RANDOM_MATH_H

#include "cpu/simd.h"

#include <tp/random.h>

/* Four words for each lane's block (element / 4) of the key's stream, given as low and high halves. */
static inline void tpi_random_blocks(tp_random_key key, vi low, vi high, vi word[4])
{
    vi c0 = low, c1 = high, c2 = vi_set1((uint32_t)key.stream), c3 = vi_set1((uint32_t)(key.stream >> 32));
    uint32_t k0 = (uint32_t)key.seed, k1 = (uint32_t)(key.seed >> 32);

    for (int round = 0; round < 10; round++) {
        vi low0, high0, low1, high1;

        vi_mul_wide(vi_set1(0xd2511f53u), c0, &low0, &high0);
        vi_mul_wide(vi_set1(0xcd9e8d57u), c2, &low1, &high1);
        c0 = vi_xor(vi_xor(high1, c1), vi_set1(k0));
        c2 = vi_xor(vi_xor(high0, c3), vi_set1(k1));
        c1 = low1;
        c3 = low0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    word[0] = c0;
    word[1] = c1;
    word[2] = c2;
    word[3] = c3;
}

/* Words of elements [first, first + 64); first a multiple of 4. word[k] holds those of first + 16 k onwards. */
static inline void tpi_random_words64(tp_random_key key, uint64_t first, vi word[4])
{
    /* Block 4k + l sits in lane 4l + k, so that the transpose at the end leaves 16 consecutive words in each vector. */
    static const uint32_t place[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    uint64_t block = first / 4;
    vi offset = vi_load(place), low = vi_add(offset, vi_set1((uint32_t)block)), high = vi_set1((uint32_t)(block >> 32));

    high = vi_add(high, vi_select(vi_lt_unsigned(low, offset), vi_set1(1), vi_set1(0))); /* carry */
    tpi_random_blocks(key, low, high, word);
    vi_transpose4(word);
}

/* A window of 64 words that follows the reader: cheapest if it walks along a row. */
typedef struct tpi_random_source {
    tp_random_key key;
    uint64_t first; /* element of word[0] */
    bool filled;
    uint32_t word[64];
} tpi_random_source;

static inline void tpi_random_source_init(tpi_random_source *source, tp_random_key key)
{
    source->key = key;
    source->first = 0;
    source->filled = false;
}

/* Words of elements index .. index + 15, any index. */
static inline vi tpi_random_words16(tpi_random_source *source, uint64_t index)
{
    if (!source->filled || index < source->first || index - source->first > 48) {
        vi word[4];

        source->first = index & ~(uint64_t)3;
        source->filled = true;
        tpi_random_words64(source->key, source->first, word);
        for (int k = 0; k < 4; k++)
            vi_store(source->word + 16 * k, word[k]);
    }
    return vi_load(source->word + (index - source->first));
}

/* Dropout of a tensor: element `index` is kept, scaled by 1/(1-p), if its word reaches the threshold; else it is +0. */
typedef struct tpi_dropout {
    tpi_random_source source;
    uint32_t threshold;
    float scale;
} tpi_dropout;

static inline void tpi_dropout_init(tpi_dropout *dropout, float probability, tp_random_key key)
{
    tpi_random_source_init(&dropout->source, key);
    dropout->threshold = tp_random_threshold(probability);
    dropout->scale = 1.0f / (1.0f - probability);
}

/* Which of the elements index .. index + 15 are kept. */
static inline vm tpi_dropout_kept(tpi_dropout *dropout, uint64_t index)
{
    return vm_not(vi_lt_unsigned(tpi_random_words16(&dropout->source, index), vi_set1(dropout->threshold)));
}

/* x of elements index .. index + 15 with the mask applied. */
static inline vf tpi_dropout_apply(tpi_dropout *dropout, vf x, uint64_t index)
{
    return vf_select(tpi_dropout_kept(dropout, index), vf_mul(x, vf_set1(dropout->scale)), vf_zero());
}

#endif
