/* Tiles of attention: 64 queries by 64 keys, both counted from the sequence's first row. A query's result is made of
 * its own row, of the keys it sees and of this fixed grouping; nothing else decides its bits.
 *
 * Scores are kept transposed, one row a key and one lane a query: the maximum, the sum and the rescaling of a query are
 * lane-wise, and the probabilities are the next product's vector operand as they lie. */
#ifndef TPI_ATTENTION_TILE_H
#define TPI_ATTENTION_TILE_H

#include "core/ops.h"
#include "cpu/attention_product.h"
#include "cpu/vector_math.h"

#define TPI_TILE 64

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
    tpi_words words; /* of its tiles */
} tpi_sequence;

static inline int64_t tpi_sequence_count(const tpi_attention_args *args)
{
    return args->sequences > 0 ? args->sequences : 1;
}

static inline tpi_sequence tpi_sequence_at(const tpi_attention_args *args, int64_t index)
{
    tpi_sequence sequence = {.causal = args->causal, .words = tpi_words_of(args->dtype)};
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

/* Tiles of keys that a tile of queries needs, and of queries that a tile of keys needs. */
static inline tp_range tpi_key_tiles_of(const tpi_sequence *sequence, int64_t query_tile)
{
    const tp_range queries = tpi_clip_range(query_tile * TPI_TILE, (query_tile + 1) * TPI_TILE, sequence->length);
    const tp_range keys = tpi_keys_of_queries(sequence, queries.begin, queries.end);
    return (tp_range){keys.begin / TPI_TILE, tpi_tile_count(keys.end)};
}

static inline tp_range tpi_query_tiles_of(const tpi_sequence *sequence, int64_t key_tile)
{
    const tp_range keys = tpi_clip_range(key_tile * TPI_TILE, (key_tile + 1) * TPI_TILE, sequence->length);
    const tp_range queries = tpi_queries_of_keys(sequence, keys.begin, keys.end);
    return (tp_range){queries.begin / TPI_TILE, tpi_tile_count(queries.end)};
}

/* ---- parts of the work: a group of neighbouring tiles of queries (or of keys) of one sequence ---- */

#define TPI_GROUP 4

/* Tiles a group: the other operand's tiles are read once for all of them. Fewer where a group's memory would not stay
 * in the second-level cache, or where there would be too few parts for the workers. */
static int64_t tpi_group_size(const tpi_attention_args *args, int64_t workers)
{
    int64_t size = TPI_GROUP;
    while (size > 1 &&
           (size * args->head_dim > 64 * TPI_GROUP || args->rows * args->heads < 4 * workers * size * TPI_TILE)) {
        size /= 2;
    }
    return size;
}

static inline size_t tpi_group_table_bytes(int64_t sequences)
{
    return (((size_t)sequences + 1) * sizeof(int64_t) + 63) / 64 * 64;
}

/* Fills memory with the number of groups before each sequence, and in all: [sequences + 1]. */
static const int64_t *tpi_group_table(const tpi_attention_args *args, int64_t group_size, void *memory)
{
    int64_t *groups_before = memory;
    groups_before[0] = 0;
    for (int64_t s = 0; s < tpi_sequence_count(args); s++) {
        const int64_t tiles = tpi_tile_count(tpi_sequence_at(args, s).length);
        groups_before[s + 1] = groups_before[s] + (tiles + group_size - 1) / group_size;
    }
    return groups_before;
}

/* The sequence that has group number `group`: the last one with at most `group` before it. */
static int64_t tpi_sequence_of_group(const int64_t *groups_before, int64_t sequences, int64_t group)
{
    int64_t low = 0, high = sequences - 1;
    while (low < high) {
        const int64_t middle = low + (high - low + 1) / 2;
        if (groups_before[middle] <= group) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

/* The tiles of group number `group` of the sequence. */
static inline tp_range tpi_group_tiles(const tpi_sequence *sequence, int64_t group_size, int64_t group)
{
    return tpi_clip_range(group * group_size, (group + 1) * group_size, tpi_tile_count(sequence->length));
}

/* ---- moving tiles ----------------------------------------------------------------------------------------------- */

/* Asks for `rows` rows of one head, from place (row, column) on, that are read soon: they lie too far apart for the
 * processor to ask for them by itself. */
static inline void tpi_tile_fetch(const tpi_attention_args *args, const void *data, int64_t stride,
                                  const int64_t place[2], int64_t rows)
{
    const int64_t size = (int64_t)tp_dtype_size(args->dtype), bytes = args->head_dim * size;
    const char *row = tpi_element(data, args->dtype, place[0] * stride + place[1]);
    for (int64_t r = 0; r < rows; r++, row += stride * size) {
        for (int64_t at = 0; at < bytes + 63; at += 64) { /* the last line too, wherever a row begins in its first */
            __builtin_prefetch(row + (at < bytes ? at : bytes - 1), 0, 2);
        }
    }
}

/* One row of a tile; `dtype` is a constant in each copy of this. */
TPI_ALWAYS_INLINE void tpi_tile_read_row(const void *from, const tp_dtype dtype, int64_t cols, vf scale, float *to)
{
    int64_t c = 0;
    for (; c + TPI_LANES <= cols; c += TPI_LANES) {
        vf_store(to + c, vf_mul(vf_load_any(tpi_element(from, dtype, c), dtype, TPI_LANES), scale));
    }
    if (c < cols) {
        vf_store(to + c, vf_mul(vf_load_any(tpi_element(from, dtype, c), dtype, (int)(cols - c)), scale));
    }
}

/* to[r][c] = from[r][c] * factor, widened, for `rows` rows of `cols` columns; columns up to the width, and rows up to a
 * multiple of 16, become 0. */
static void tpi_tile_read(const void *from, tp_dtype dtype, int64_t stride, const int64_t shape[2], float factor,
                          float *to)
{
    const int64_t rows = shape[0], cols = shape[1], width = tpi_tile_width(cols);
    const vf scale = vf_set1(factor);
    for (int64_t r = 0; r < rows; r++) {
        const void *row = tpi_element(from, dtype, r * stride);
        if (dtype == TP_DTYPE_F32) {
            tpi_tile_read_row(row, TP_DTYPE_F32, cols, scale, to + r * width);
        } else if (dtype == TP_DTYPE_BF16) {
            tpi_tile_read_row(row, TP_DTYPE_BF16, cols, scale, to + r * width);
        } else {
            tpi_tile_read_row(row, TP_DTYPE_F16, cols, scale, to + r * width);
        }
    }
    for (int64_t i = rows * width; i < (rows + TPI_LANES - 1) / TPI_LANES * TPI_LANES * width; i += TPI_LANES) {
        vf_store(to + i, vf_zero());
    }
}

/* to = from * factor rounded to the dtype. */
static void tpi_tile_write(const float *from, const int64_t shape[2], float factor, void *to, tp_dtype dtype,
                           int64_t stride)
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
static void tpi_tile_transpose(const float *from, int64_t from_stride, const int64_t shape[2], float *to,
                               int64_t to_stride)
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

/* ---- masks ---- */

/* One tile of scores or probabilities: rows [0, keys), lanes [0, queries), of which whole vectors are computed. A tile
 * with masked places is worked on in strips of 16 keys, and of each strip only the vectors that see one of its keys;
 * other tiles are one strip. */
typedef struct tpi_score_tile {
    const tpi_sequence *sequence;
    int64_t first_query, queries, vectors;
    int64_t first_key, keys;
    bool masked;
    int64_t strip; /* keys a strip */
} tpi_score_tile;

static inline tpi_score_tile tpi_score_tile_at(const tpi_sequence *sequence, int64_t query_tile, int64_t key_tile)
{
    tpi_score_tile tile = {
        .sequence = sequence, .first_query = query_tile * TPI_TILE, .first_key = key_tile * TPI_TILE};
    const int64_t queries = sequence->length - tile.first_query, keys = sequence->length - tile.first_key;
    tile.queries = queries < TPI_TILE ? queries : TPI_TILE;
    tile.keys = keys < TPI_TILE ? keys : TPI_TILE;
    tile.vectors = (tile.queries + TPI_LANES - 1) / TPI_LANES;
    const int64_t ahead = sequence->causal ? 1 : sequence->window;
    tile.masked = tile.first_key + tile.keys - tile.first_query > ahead ||
                  tile.first_query + tile.queries - tile.first_key > sequence->window;
    tile.strip = tile.masked ? TPI_LANES : TPI_TILE;
    return tile;
}

/* Vectors of queries that take part in the strip of keys from `key` on. */
static inline tp_range tpi_strip_vectors(const tpi_score_tile *tile, int64_t key)
{
    if (!tile->masked) {
        return (tp_range){0, tile->vectors};
    }
    const int64_t begin = tile->first_key + key,
                  end = tile->first_key + (key + tile->strip < tile->keys ? key + tile->strip : tile->keys);
    const tp_range seen = tpi_queries_of_keys(tile->sequence, begin, end);
    const tp_range lanes = tpi_clip_range(seen.begin - tile->first_query, seen.end - tile->first_query, tile->queries);
    if (lanes.begin >= lanes.end) {
        return (tp_range){0, 0};
    }
    return (tp_range){lanes.begin / TPI_LANES, (lanes.end + TPI_LANES - 1) / TPI_LANES};
}

/* Keys, in whole strips, that take part in one vector of queries: the same pairs as tpi_strip_vectors gives. */
static inline tp_range tpi_vector_keys(const tpi_score_tile *tile, int64_t vector)
{
    if (!tile->masked) {
        return (tp_range){0, tile->keys};
    }
    const int64_t lane = vector * TPI_LANES,
                  lanes = lane + TPI_LANES < tile->queries ? lane + TPI_LANES : tile->queries;
    const tp_range seen = tpi_keys_of_queries(tile->sequence, tile->first_query + lane, tile->first_query + lanes);
    const tp_range keys = tpi_clip_range(seen.begin - tile->first_key, seen.end - tile->first_key, tile->keys);
    if (keys.begin >= keys.end) {
        return (tp_range){0, 0};
    }
    return tpi_clip_range(keys.begin / tile->strip * tile->strip,
                          (keys.end + tile->strip - 1) / tile->strip * tile->strip, tile->keys);
}

static inline int tpi_lanes_below(int64_t lane)
{
    return lane < 0 ? 0 : lane < TPI_LANES ? (int)lane : TPI_LANES;
}

/* Scores of keys that a query does not see become -inf. The lanes that see one key are one interval. */
static void tpi_tile_mask(const tpi_score_tile *tile, float *scores)
{
    const int64_t ahead = tile->sequence->causal ? 1 : tile->sequence->window;
    if (!tile->masked) {
        return;
    }
    for (int64_t vector = 0; vector < tile->vectors; vector++) {
        const tp_range keys = tpi_vector_keys(tile, vector);
        for (int64_t k = keys.begin; k < keys.end; k++) {
            const int64_t place = tile->first_key + k - tile->first_query - vector * TPI_LANES;
            const vm seen = vm_and(vm_first(tpi_lanes_below(place + tile->sequence->window)),
                                   vm_not(vm_first(tpi_lanes_below(place - ahead + 1))));
            float *score = scores + k * TPI_TILE + vector * TPI_LANES;
            vf_store(score, vf_select(seen, vf_load(score), vf_set1(-INFINITY)));
        }
    }
}

/* ---- products of a tile ---- */

/* Words that hold so many elements of the inner dimension. */
static inline int64_t tpi_words_inner(tpi_words words, int64_t elements)
{
    return words == TPI_WORDS_PAIRS ? (elements + 1) / 2 : elements;
}

/* Words of a row of head_dim elements; whole vectors. */
static inline int64_t tpi_words_width(tpi_words words, int64_t head_dim)
{
    return tpi_tile_width(tpi_words_inner(words, head_dim));
}

/* x *= factor in the part of the tile that takes part. */
static void tpi_tile_scale(const tpi_score_tile *tile, float factor, float *scores)
{
    const vf scale = vf_set1(factor);
    for (int64_t vector = 0; vector < tile->vectors; vector++) {
        const tp_range keys = tpi_vector_keys(tile, vector);
        for (int64_t k = keys.begin; k < keys.end; k++) {
            float *score = scores + k * TPI_TILE + vector * TPI_LANES;
            vf_store(score, vf_mul(vf_load(score), scale));
        }
    }
}

/* out[key][query] = factor * sum over head_dim of rows[key][d] * columns[d][query]. */
static void tpi_tile_scores(const tpi_score_tile *tile, int64_t head_dim, const float *rows, const float *columns,
                            float factor, float *out)
{
    const tpi_words words = tile->sequence->words;
    const int64_t width = tpi_words_width(words, head_dim);
    for (int64_t key = 0; key < tile->keys; key += tile->strip) {
        const tp_range vectors = tpi_strip_vectors(tile, key);
        const int64_t lane = vectors.begin * TPI_LANES;
        const tpi_product product = {.words = words,
                                     .rows = tile->keys - key < tile->strip ? tile->keys - key : tile->strip,
                                     .vectors = vectors.end - vectors.begin,
                                     .inner = tpi_words_inner(words, head_dim),
                                     .a = rows + key * width,
                                     .a_stride = width,
                                     .b = columns + lane,
                                     .b_stride = TPI_TILE,
                                     .c = out + key * TPI_TILE + lane,
                                     .c_stride = TPI_TILE,
                                     .factor = factor};
        tpi_product_run(&product, TPI_PRODUCT_DOT);
    }
    if (factor != 1.0f && words != TPI_WORDS_PAIRS) {
        tpi_tile_scale(tile, factor, out);
    }
}

/* out[d][query] = out[d][query] * rescale[query] + sum over keys of rows[key][d] * weights[key][query]; rescale
 * NULL: 1. */
static void tpi_tile_spread(const tpi_score_tile *tile, int64_t head_dim, const float *rows, const float *weights,
                            float *out, const float *rescale)
{
    const tpi_words words = tile->sequence->words;
    const int64_t width = tpi_tile_width(head_dim);
    /* In one go with the chains where there is one product, whose mode keeps subnormals. */
    const bool together = !tile->masked && words != TPI_WORDS_FLUSHED;
    for (int64_t i = 0; !together && rescale != NULL && i < head_dim * tile->vectors; i++) {
        const int64_t lane = i % tile->vectors * TPI_LANES;
        float *element = out + i / tile->vectors * TPI_TILE + lane;
        vf_store(element, vf_mul(vf_load(element), vf_load(rescale + lane)));
    }
    for (int64_t key = 0; key < tile->keys; key += tile->strip) {
        const tp_range vectors = tpi_strip_vectors(tile, key);
        const int64_t lane = vectors.begin * TPI_LANES, first = tpi_words_inner(words, key);
        const int64_t keys = tile->keys - key < tile->strip ? tile->keys - key : tile->strip;
        const tpi_product product = {.words = words,
                                     .rows = head_dim,
                                     .vectors = vectors.end - vectors.begin,
                                     .inner = tpi_words_inner(words, keys),
                                     .a = rows + first * width,
                                     .a_stride = width,
                                     .b = weights + first * TPI_TILE + lane,
                                     .b_stride = TPI_TILE,
                                     .c = out + lane,
                                     .c_stride = TPI_TILE,
                                     .rescale = together ? rescale : NULL};
        tpi_product_run(&product, TPI_PRODUCT_SPREAD);
    }
}

#endif
