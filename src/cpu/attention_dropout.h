/* Dropout of probabilities, sixteen queries at a time: element ((token * total_heads + head) << 24) + key of the mask
 * is word key % 4 of counter (token * total_heads + head) << 22) + key / 4, so one block of Philox gives a query the
 * words of four neighbouring keys. */
#ifndef TPI_ATTENTION_DROPOUT_H
#define TPI_ATTENTION_DROPOUT_H

#include "cpu/attention_tile.h"

/* The counters of one vector of queries at the tile's first key, which is a multiple of 64: adding a key of the tile /
 * 4 never carries. */
typedef struct tpi_drop {
    vi low, high;
    tp_random_key key;
    vi threshold;
} tpi_drop;

static inline tpi_drop tpi_drop_at(const tpi_attention_args *args, int64_t head, const tpi_score_tile *tile,
                                   int64_t vector)
{
    uint32_t low[TPI_LANES], high[TPI_LANES];
    const int64_t token = args->first_token + tile->sequence->first_row + tile->first_query + vector * TPI_LANES;
    for (int64_t lane = 0; lane < TPI_LANES; lane++) {
        const uint64_t row = (uint64_t)((token + lane) * args->total_heads + args->first_head + head);
        const uint64_t counter = ((row << 24) + (uint64_t)tile->first_key) / 4;
        low[lane] = (uint32_t)counter;
        high[lane] = (uint32_t)(counter >> 32);
    }
    return (tpi_drop){.low = vi_load(low),
                      .high = vi_load(high),
                      .key = args->dropout_key,
                      .threshold = vi_set1(tp_random_threshold(args->dropout))};
}

/* dropped[i]: whether key `key` + i of the tile is dropped, for key % 4 == 0. */
static inline void tpi_drop_keys(const tpi_drop *drop, int64_t key, vm dropped[4])
{
    const vi offset = vi_set1((uint32_t)(key / 4));
    vi word[4] = {vi_add(drop->low, offset), drop->high, vi_set1((uint32_t)drop->key.stream),
                  vi_set1((uint32_t)(drop->key.stream >> 32))};
    uint32_t key0 = (uint32_t)drop->key.seed, key1 = (uint32_t)(drop->key.seed >> 32);
    for (int round = 0; round < 10; round++) {
        vi low0, high0, low1, high1;
        vi_mul_wide(word[0], vi_set1(0xD2511F53u), &low0, &high0);
        vi_mul_wide(word[2], vi_set1(0xCD9E8D57u), &low1, &high1);
        word[0] = vi_xor(vi_xor(high1, word[1]), vi_set1(key0));
        word[1] = low1;
        word[2] = vi_xor(vi_xor(high0, word[3]), vi_set1(key1));
        word[3] = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; i++) {
        dropped[i] = vi_lt_unsigned(word[i], drop->threshold);
    }
}

/* What kept probabilities are multiplied by. */
static inline float tpi_dropout_factor(float probability)
{
    return probability > 0 ? 1.0f / (1.0f - probability) : 1.0f;
}

/* Dropped probabilities become 0. */
static inline void tpi_tile_drop(const tpi_attention_args *args, int64_t head, const tpi_score_tile *tile,
                                 float *probabilities)
{
    for (int64_t vector = 0; vector < tile->vectors; vector++) {
        const tpi_drop drop = tpi_drop_at(args, head, tile, vector);
        const tp_range keys = tpi_vector_keys(tile, vector);
        for (int64_t k = keys.begin; k < keys.end; k += 4) {
            vm dropped[4];
            tpi_drop_keys(&drop, k, dropped);
            for (int64_t i = 0; i < 4 && k + i < keys.end; i++) {
                float *row = probabilities + (k + i) * TPI_TILE + vector * TPI_LANES;
                vf_store(row, vf_select(dropped[i], vf_zero(), vf_load(row)));
            }
        }
    }
}

#endif
