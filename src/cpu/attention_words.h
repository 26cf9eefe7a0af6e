/* Tiles of attention as the words that its products read (attention_product.h): f32 values, or pairs of bf16
 * neighbours, along a row or along a column. Of an odd number of neighbours the last pair's other half is -0 in the
 * broadcast operand and +0 in the vector operand: that product, -0, changes no sum. */
#ifndef TPI_ATTENTION_WORDS_H
#define TPI_ATTENTION_WORDS_H

#include "cpu/attention_tile.h"

typedef enum tpi_side { TPI_BROADCAST, TPI_VECTOR } tpi_side;

static inline uint32_t tpi_pad_half(tpi_side side)
{
    return side == TPI_BROADCAST ? 0x8000u : 0;
}

/* Rounded to bf16: the bits of that value as an f32. NaN stays a quiet NaN. */
static inline vi tpi_bf16_bits(vf x)
{
    const vi bits = vf_bits(x), high = vi_set1(0xffff0000u);
    const vi odd = vi_and(vi_shift_right(bits, 16), vi_set1(1));
    const vi rounded = vi_and(vi_add(vi_add(bits, vi_set1(0x7fffu)), odd), high);
    return vi_select(vf_eq(x, x), rounded, vi_or(vi_and(bits, high), vi_set1(0x00400000u)));
}

/* Two vectors, rounded, as pairs. */
static inline vi tpi_pairs_of(vf first, vf second)
{
#if TPI_ISA_LEVEL >= 3
    const vi high = _mm512_cvtepu16_epi32(tpi_narrow_bf16(first)), low = _mm512_cvtepu16_epi32(tpi_narrow_bf16(second));
    return vi_or(vi_shift_left(high, 16), low);
#else
    return vi_or(tpi_bf16_bits(first), vi_shift_right(tpi_bf16_bits(second), 16));
#endif
}

/* Sixteen values, rounded, as eight pairs of neighbours. */
static inline void tpi_store_neighbours(float *to, vf x)
{
#if TPI_ISA_LEVEL >= 3
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_rol_epi32(tpi_narrow_bf16(x), 16));
#else
    uint32_t bits[TPI_LANES];
    vi_store(bits, tpi_bf16_bits(x));
    for (int i = 0; i < TPI_LANES / 2; i++) {
        const uint32_t word = bits[2 * i] | bits[2 * i + 1] >> 16;
        memcpy(to + i, &word, sizeof word);
    }
#endif
}

/* Rows of bf16 elements as pairs along the row: to[r][w], w < tpi_words_width. Rows up to a multiple of 16 are
 * zeros. */
static void tpi_pairs_in_rows(const uint16_t *from, int64_t stride, const int64_t shape[2], tpi_side side, float *to)
{
    const int64_t rows = shape[0], cols = shape[1], width = tpi_words_width(TPI_WORDS_PAIRS, cols);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t w = 0; w < width; w += TPI_LANES) {
            const int64_t left = cols / 2 - w;
            const vi word = vi_load_n(from + r * stride + 2 * w, left > 0 ? tpi_lanes_of(left) : 0);
            vi_store(to + r * width + w, vi_or(vi_shift_left(word, 16), vi_shift_right(word, 16)));
        }
        if (cols % 2 != 0) {
            uint32_t word = (uint32_t)from[r * stride + cols - 1] << 16 | tpi_pad_half(side);
            memcpy(to + r * width + cols / 2, &word, sizeof word);
        }
    }
    memset(to + rows * width, 0, (size_t)(tpi_tile_width(rows) - rows) * (size_t)width * sizeof(float));
}

/* The same elements as pairs of two rows: to[r / 2][c], c < tpi_tile_width(cols). */
static void tpi_pairs_of_rows(const uint16_t *from, int64_t stride, const int64_t shape[2], tpi_side side, float *to)
{
    const int64_t rows = shape[0], cols = shape[1], width = tpi_tile_width(cols);
    for (int64_t r = 0; r < rows; r += 2) {
        const uint16_t *row = from + r * stride;
        for (int64_t c = 0; c < width; c += TPI_LANES) {
            const int n = (int)(cols - c < TPI_LANES ? cols - c : TPI_LANES);
            const vi first = vf_bits(vf_load_bf16_n(row + c, n));
            const vi second = r + 1 < rows ? vi_shift_right(vf_bits(vf_load_bf16_n(row + stride + c, n)), 16)
                                           : vi_set1(tpi_pad_half(side));
            vi_store(to + r / 2 * width + c, vi_or(first, second));
        }
    }
}

/* Weights as products read them where pairs are not: times the factor and rounded, in place. */
static void tpi_round_keys(const tpi_score_tile *tile, int64_t vector, float factor, float *weights)
{
    const tp_range keys = tpi_vector_keys(tile, vector);
    const vf scale = vf_set1(factor);
    for (int64_t k = keys.begin; k < keys.end; k++) {
        float *weight = weights + k * TPI_TILE + vector * TPI_LANES;
        vi_store(weight, tpi_bf16_bits(vf_mul(vf_load(weight), scale)));
    }
}

/* One vector of queries' weights [keys][64], times the factor and rounded, as pairs of two keys: to[key / 2][64]. */
static void tpi_pairs_of_keys(const tpi_score_tile *tile, int64_t vector, const float *weights, float factor, float *to)
{
    const tp_range keys = tpi_vector_keys(tile, vector);
    const float *from = weights + vector * TPI_LANES;
    const vf scale = vf_set1(factor);
    for (int64_t k = keys.begin; k < keys.end; k += 2) {
        const vf second = k + 1 < keys.end ? vf_mul(vf_load(from + (k + 1) * TPI_TILE), scale) : vf_zero();
        vi_store(to + k / 2 * TPI_TILE + vector * TPI_LANES,
                 tpi_pairs_of(vf_mul(vf_load(from + k * TPI_TILE), scale), second));
    }
}

/* The same as pairs of two queries: to[key][32]. */
static inline void tpi_pairs_of_queries(const tpi_score_tile *tile, int64_t vector, const float *weights, float factor,
                                        float *to)
{
    const tp_range keys = tpi_vector_keys(tile, vector);
    const int64_t last = tile->queries - 1 - vector * TPI_LANES;
    const vf scale = vf_set1(factor);
    for (int64_t k = keys.begin; k < keys.end; k++) {
        float *words = to + k * (TPI_TILE / 2) + vector * (TPI_LANES / 2);
        tpi_store_neighbours(words, vf_mul(vf_load(weights + k * TPI_TILE + vector * TPI_LANES), scale));
        if (last % 2 == 0 && last >= 0 && last < TPI_LANES) {
            uint32_t word;
            memcpy(&word, words + last / 2, sizeof word);
            word = (word & 0xffff0000u) | tpi_pad_half(TPI_BROADCAST);
            memcpy(words + last / 2, &word, sizeof word);
        }
    }
}

#endif
