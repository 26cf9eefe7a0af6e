/* Dropout of probabilities, sixteen queries at a time: the mask's element ((token * total_heads + head) << 24) + key
 * is word key % 4 of a block of Philox, so one block gives a query the words of four neighbouring keys. */
#ifndef TPI_ATTENTION_DROPOUT_H
#define TPI_ATTENTION_DROPOUT_H

#include "cpu/attention_tile.h"
#include "cpu/random_math.h"

/* The blocks of one vector of queries at the tile's first key. That key is a multiple of 64, so the tile's other blocks
 * are reached without a carry. */
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
        const uint64_t block = ((row << 24) + (uint64_t)tile->first_key) / 4;
        low[lane] = (uint32_t)block;
        high[lane] = (uint32_t)(block >> 32);
    }
    return (tpi_drop){.low = vi_load(low),
                      .high = vi_load(high),
                      .key = args->dropout_key,
                      .threshold = vi_set1(tp_random_threshold(args->dropout))};
}

/* dropped[i]: whether key `key` + i of the tile is dropped, for key % 4 == 0. */
static inline void tpi_drop_keys(const tpi_drop *drop, int64_t key, vm dropped[4])
{
    vi word[4];
    tpi_random_blocks(drop->key, vi_add(drop->low, vi_set1((uint32_t)(key / 4))), drop->high, word);
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
