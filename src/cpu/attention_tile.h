/* Tiles of attention: 64 queries by 64 keys, both counted from the sequence's first row. A query's result is made of its own row, of the keys it
 * sees and of this fixed grouping; nothing else decides its bits.
 *
 * Scores are kept transposed, one row a key and one lane a query: the maximum, the sum and the rescaling of a query are lane-wise, and the
 * probabilities are the next product's vector operand as they lie. */
#ifndef TPI_ATTENTION_TILE_H
#define TPI_ATTENTION_TILE_H

#include "core/ops.h"
#include "cpu/attention_product.h"
#include "cpu/vector_math.h"

#define TPI_TILE 64
#define TPI_TILE_VECTORS (TPI_TILE / TPI_LANES)

static inline int64_t tpi_tile_count(int64_t rows)
{
    return (rows + TPI_TILE - 1) / TPI_TILE;
}

/* Head dimension padded to whole vectors: the row length of a tile. */
static inline int64_t tpi_tile_width(int64_t head_dim)
{
    return (head_dim + TPI_LANES - 1) / TPI_LANES * TPI_LANES;
}

/* The shape of one sequence's mask; a window that covers the sequence is as good as none. */
typedef struct tpi_sequence {
    int64_t first_row, length;
    int64_t window;
    bool causal;
} tpi_sequence;

static inline int64_t tpi_sequence_count(const tpi_attention_args *args)
{
    return args->sequences > 0 ? args->sequences : 1;
}

static inline tpi_sequence tpi_sequence_at(const tpi_attention_args *args, int64_t index)
{
    tpi_sequence sequence = {.causal = args->causal};
    if (args->offsets != NULL) {
        sequence.first_row = args->offsets[index];
        sequence.length = args->offsets[index + 1] - sequence.first_row;
    } else {
        sequence.length = args->rows / tpi_sequence_count(args);
        sequence.first_row = index * sequence.length;
    }
    const bool windowed = args->window > 0 && args->window < sequence.length;
    sequence.window = windowed ? args->window : sequence.length;
    return sequence;
}

static inline tp_range tpi_clip_range(int64_t begin, int64_t end, int64_t length)
{
    return (tp_range){begin > 0 ? begin : 0, end < length ? end : length};
}

/* Keys seen by at least one of the queries [begin, end). */
static inline tp_range tpi_keys_of_queries(const tpi_sequence *sequence, int64_t begin, int64_t end)
{
    const int64_t ahead = sequence->causal ? 1 : sequence->window;
    return tpi_clip_range(begin - sequence->window + 1, end - 1 + ahead, sequence->length);
}

/* Queries that see at least one of the keys [begin, end). */
static inline tp_range tpi_queries_of_keys(const tpi_sequence *sequence, int64_t begin, int64_t end)
{
    const int64_t before = sequence->causal ? 1 : sequence->window;
    return tpi_clip_range(begin - before + 1, end - 1 + sequence->window, sequence->length);
}

/* The tiles that a range touches. */
static inline tp_range tpi_tiles_of(tp_range range)
{
    return (tp_range){range.begin / TPI_TILE, tpi_tile_count(range.end)};
}

/* ---- parts of the work: one a tile of queries (or of keys) ---- */

static inline size_t tpi_tile_table_bytes(int64_t sequences)
{
    return (((size_t)sequences + 1) * sizeof(int64_t) + 63) / 64 * 64;
}

/* Fills memory with the number of tiles before each sequence, and in all: [sequences + 1]. */
static const int64_t *tpi_tile_table(const tpi_attention_args *args, void *memory)
{
    int64_t *tiles_before = memory;
    tiles_before[0] = 0;
    for (int64_t s = 0; s < tpi_sequence_count(args); s++) {
        tiles_before[s + 1] = tiles_before[s] + tpi_tile_count(tpi_sequence_at(args, s).length);
    }
    return tiles_before;
}

/* The sequence that has tile number `tile`: the last one with at most `tile` before it. */
static int64_t tpi_sequence_of_tile(const int64_t *tiles_before, int64_t sequences, int64_t tile)
{
    int64_t low = 0, high = sequences - 1;
    while (low < high) {
        const int64_t middle = low + (high - low + 1) / 2;
        if (tiles_before[middle] <= tile) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

/* ---- moving tiles ------------------------------------------------------------------------------------------------------------------------ */

/* to[r][c] = from[r][c] * factor, widened, for `rows` rows of `cols` columns; columns up to the width, and rows up to a multiple of 16, become 0. */
static void tpi_tile_read(const void *from, tp_dtype dtype, int64_t stride, const int64_t shape[2], float factor, float *to)
{
    const int64_t rows = shape[0], cols = shape[1], width = tpi_tile_width(cols);
    const vf scale = vf_set1(factor);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < width; c += TPI_LANES) {
            const vf x = vf_load_any(tpi_element(from, dtype, r * stride + c), dtype, tpi_lanes_of(cols - c));
            vf_store(to + r * width + c, vf_mul(x, scale));
        }
    }
    for (int64_t i = rows * width; i < (rows + TPI_LANES - 1) / TPI_LANES * TPI_LANES * width; i += TPI_LANES) {
        vf_store(to + i, vf_zero());
    }
}

/* to = from * factor rounded to the dtype. */
static void tpi_tile_write(const float *from, const int64_t shape[2], float factor, void *to, tp_dtype dtype, int64_t stride)
{
    const int64_t rows = shape[0], cols = shape[1], width = tpi_tile_width(cols);
    const vf scale = vf_set1(factor);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c += TPI_LANES) {
            const vf x = vf_mul(vf_load(from + r * width + c), scale);
            vf_store_any(tpi_element_of(to, dtype, r * stride + c), dtype, x, tpi_lanes_of(cols - c));
        }
    }
}

/* to[c][r] = from[r][c]; rows and cols are multiples of 16. */
static void tpi_tile_transpose(const float *from, int64_t from_stride, const int64_t shape[2], float *to, int64_t to_stride)
{
    for (int64_t c = 0; c < shape[1]; c += TPI_LANES) {
        for (int64_t r = 0; r < shape[0]; r += 4) {
            vi word[4];
            uint32_t quads[4][TPI_LANES];
            for (int i = 0; i < 4; i++) {
                word[i] = vi_load(from + (r + i) * from_stride + c);
            }
            vi_transpose4(word);
            for (int i = 0; i < 4; i++) {
                vi_store(quads[i], word[i]);
            }
            for (int column = 0; column < TPI_LANES; column++) {
                memcpy(to + (c + column) * to_stride + r, quads[column % 4] + column / 4 * 4, 4 * sizeof(float));
            }
        }
    }
}

/* ---- masks ------------------------------------------------------------------------------------------------------------------------------- */

/* One tile of scores or probabilities: rows [0, keys), lanes [0, queries), of which whole vectors are computed. */
typedef struct tpi_tile {
    int64_t first_query, queries, vectors;
    int64_t first_key, keys;
} tpi_tile;

static inline tpi_tile tpi_tile_at(const tpi_sequence *sequence, int64_t query_tile, int64_t key_tile)
{
    tpi_tile tile = {.first_query = query_tile * TPI_TILE, .first_key = key_tile * TPI_TILE};
    const int64_t queries = sequence->length - tile.first_query, keys = sequence->length - tile.first_key;
    tile.queries = queries < TPI_TILE ? queries : TPI_TILE;
    tile.keys = keys < TPI_TILE ? keys : TPI_TILE;
    tile.vectors = (tile.queries + TPI_LANES - 1) / TPI_LANES;
    return tile;
}

/* Scores of keys that a query does not see become -inf. Seen lanes of one key are one interval. */
static void tpi_tile_mask(const tpi_sequence *sequence, const tpi_tile *tile, float *scores)
{
    const int64_t last_query = tile->first_query + tile->queries - 1, last_key = tile->first_key + tile->keys - 1;
    const int64_t ahead = sequence->causal ? 1 : sequence->window;
    const int64_t lanes = tile->vectors * TPI_LANES;
    if (last_key - tile->first_query < ahead && last_query - tile->first_key < sequence->window) {
        return;
    }
    for (int64_t k = 0; k < tile->keys; k++) {
        const int64_t place = tile->first_key + k - tile->first_query;
        const tp_range seen = tpi_clip_range(place - ahead + 1, place + sequence->window, lanes);
        float *row = scores + k * TPI_TILE;
        for (int64_t lane = 0; lane < lanes && lane < seen.begin; lane++) {
            row[lane] = -INFINITY;
        }
        for (int64_t lane = seen.end > 0 ? seen.end : 0; lane < lanes; lane++) {
            row[lane] = -INFINITY;
        }
    }
}

#endif
