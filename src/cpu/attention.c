/* softmax(scale * Q K^T + mask) V: running maximum m, sum l and output O of each query over the tiles of keys in order
 * (Dao et al. 2022, "FlashAttention"; Milakov and Gimelshein 2018 for the running sums). One part of the work is a
 * group of tiles of queries of one head. */
#include "cpu/attention_dropout.h"
#include "cpu/attention_words.h"
#include "cpu/cpu.h"

typedef struct forward_job {
    tp_ctx *ctx;
    const tpi_attention_args *args;
    int64_t group_size;
    const int64_t *groups_before; /* [sequences + 1] */
    size_t tiles_at;              /* bytes into a workspace where tiles begin */
} forward_job;

/* One tile of queries on its way. */
typedef struct forward_queries {
    float *query;                   /* words [..][64]; scaled where they are of f32 */
    float *out;                     /* [width][64] */
    float *maximum, *sum, *rescale; /* [64] */
} forward_queries;

/* A worker's memory. */
typedef struct forward_tiles {
    float *key;     /* words [64][..], neighbours along a row */
    float *value;   /* words [..][width], neighbours along a column */
    float *scores;  /* [64 keys][64 queries], then probabilities */
    float *weights; /* the probabilities as words: `scores`, or pairs of keys [32][64] */
    forward_queries queries[TPI_GROUP];
} forward_tiles;

/* Where a part works. */
typedef struct forward_place {
    const tpi_attention_args *args;
    int64_t head, kv_head;
    tpi_sequence sequence;
} forward_place;

static forward_tiles carve_forward(void *memory, const tpi_attention_args *args, int64_t group_size, size_t *bytes)
{
    tpi_carve carve = {.memory = memory};
    const tpi_words words = tpi_words_of(args->dtype);
    const size_t row = TPI_TILE * sizeof(float), tile = (size_t)tpi_tile_width(args->head_dim) * row;
    forward_tiles tiles = {.key = NULL};
    tiles.key = tpi_carve_take(&carve, tile);
    tiles.value = tpi_carve_take(&carve, tile);
    tiles.scores = tpi_carve_take(&carve, TPI_TILE * row);
    tiles.weights = words == TPI_WORDS_PAIRS ? tpi_carve_take(&carve, TPI_TILE / 2 * row) : tiles.scores;
    for (int64_t i = 0; i < group_size; i++) {
        forward_queries *queries = &tiles.queries[i];
        queries->query = tpi_carve_take(&carve, tile);
        queries->out = tpi_carve_take(&carve, tile);
        queries->maximum = tpi_carve_take(&carve, row);
        queries->sum = tpi_carve_take(&carve, row);
        queries->rescale = tpi_carve_take(&carve, row);
    }
    *bytes = carve.used;
    return tiles;
}

#define VECTORS (TPI_TILE / TPI_LANES)

/* The maxima of all queries with this tile's: side by side where every vector sees all keys. */
static void find_maxima(const tpi_score_tile *tile, const float *maximum, const float *scores, vf now[VECTORS])
{
    for (int64_t vector = 0; vector < VECTORS; vector++) {
        now[vector] = vf_load(maximum + vector * TPI_LANES);
    }
    if (!tile->masked && tile->vectors == VECTORS) {
        for (int64_t k = 0; k < tile->keys; k++) {
#pragma GCC unroll 4
            for (int vector = 0; vector < VECTORS; vector++) {
                now[vector] = vf_max(vf_load(scores + k * TPI_TILE + vector * TPI_LANES), now[vector]);
            }
        }
        return;
    }
    for (int64_t vector = 0; vector < tile->vectors; vector++) {
        const tp_range keys = tpi_vector_keys(tile, vector);
        for (int64_t k = keys.begin; k < keys.end; k++) {
            now[vector] = vf_max(vf_load(scores + k * TPI_TILE + vector * TPI_LANES), now[vector]);
        }
    }
}

/* One vector of queries: scores become exp(score - maximum); maximum and sum move on. A query that has seen nothing has
 * maximum -inf, for which 0 stands in: exp(-inf - 0) is 0, where -inf - -inf would be NaN. */
static void soften_vector(const tpi_score_tile *tile, forward_queries *queries, float *scores, int64_t vector, vf now)
{
    const tp_range keys = tpi_vector_keys(tile, vector);
    const int64_t lane = vector * TPI_LANES;
    const vf before = vf_load(queries->maximum + lane);
    const vf base = vf_select(vf_eq(now, vf_set1(-INFINITY)), vf_zero(), now);
    const vf rescale = tpi_exp_falling(vf_sub(before, base));
    vf sum = vf_mul(vf_load(queries->sum + lane), rescale);
    for (int64_t k = keys.begin; k < keys.end; k++) {
        const vf probability = tpi_exp_falling(vf_sub(vf_load(scores + k * TPI_TILE + lane), base));
        vf_store(scores + k * TPI_TILE + lane, probability);
        sum = vf_add(sum, probability);
    }
    vf_store(queries->maximum + lane, now);
    vf_store(queries->sum + lane, sum);
    vf_store(queries->rescale + lane, rescale);
}

static void forward_tile(const forward_place *at, const tpi_score_tile *tile, forward_tiles *tiles,
                         forward_queries *queries)
{
    const int64_t head_dim = at->args->head_dim;
    const tpi_words words = tile->sequence->words;
    tpi_tile_scores(tile, head_dim, tiles->key, queries->query, words == TPI_WORDS_F32 ? 1.0f : at->args->scale,
                    tiles->scores);
    tpi_tile_mask(tile, tiles->scores);
    vf now[VECTORS];
    find_maxima(tile, queries->maximum, tiles->scores, now);
    for (int64_t vector = 0; vector < tile->vectors; vector++) {
        soften_vector(tile, queries, tiles->scores, vector, now[vector]);
    }
    if (at->args->dropout > 0) {
        tpi_tile_drop(at->args, at->head, tile, tiles->scores);
    }
    for (int64_t vector = 0; words != TPI_WORDS_F32 && vector < tile->vectors; vector++) {
        if (words == TPI_WORDS_PAIRS) {
            tpi_pairs_of_keys(tile, vector, tiles->scores, 1.0f, tiles->weights);
        } else {
            tpi_round_keys(tile, vector, 1.0f, tiles->scores);
        }
    }
    tpi_tile_spread(tile, head_dim, tiles->value, tiles->weights, queries->out, queries->rescale);
}

static void fetch_keys(const forward_place *at, int64_t key_tile)
{
    const tpi_attention_args *args = at->args;
    const tpi_score_tile tile = tpi_score_tile_at(&at->sequence, 0, key_tile);
    const int64_t place[2] = {at->sequence.first_row + tile.first_key, at->kv_head * args->head_dim};
    tpi_tile_fetch(args, args->k, args->k_stride, place, tile.keys);
    tpi_tile_fetch(args, args->v, args->v_stride, place, tile.keys);
}

static void fetch_queries(const forward_place *at, int64_t query_tile)
{
    const tpi_attention_args *args = at->args;
    const tpi_score_tile tile = tpi_score_tile_at(&at->sequence, query_tile, 0);
    const int64_t place[2] = {at->sequence.first_row + tile.first_query, at->head * args->head_dim};
    tpi_tile_fetch(args, args->q, args->q_stride, place, tile.queries);
}

static void read_keys(const forward_place *at, int64_t key_tile, forward_tiles *tiles)
{
    const tpi_attention_args *args = at->args;
    const tpi_score_tile tile = tpi_score_tile_at(&at->sequence, 0, key_tile);
    const int64_t shape[2] = {tile.keys, args->head_dim};
    const int64_t row = at->sequence.first_row + tile.first_key, column = at->kv_head * args->head_dim;
    const void *key = tpi_element(args->k, args->dtype, row * args->k_stride + column);
    const void *value = tpi_element(args->v, args->dtype, row * args->v_stride + column);
    if (at->sequence.words == TPI_WORDS_PAIRS) {
        tpi_pairs_in_rows(key, args->k_stride, shape, TPI_BROADCAST, tiles->key);
        tpi_pairs_of_rows(value, args->v_stride, shape, TPI_BROADCAST, tiles->value);
        return;
    }
    tpi_tile_read(key, args->dtype, args->k_stride, shape, 1.0f, tiles->key);
    tpi_tile_read(value, args->dtype, args->v_stride, shape, 1.0f, tiles->value);
}

static void start_queries(const forward_place *at, int64_t query_tile, forward_queries *queries)
{
    const tpi_attention_args *args = at->args;
    const tpi_score_tile tile = tpi_score_tile_at(&at->sequence, query_tile, 0);
    const int64_t width = tpi_tile_width(args->head_dim), shape[2] = {tile.queries, args->head_dim};
    const tpi_words words = at->sequence.words;
    const int64_t padded[2] = {tile.vectors * TPI_LANES, tpi_words_width(words, args->head_dim)};
    const int64_t element = (at->sequence.first_row + tile.first_query) * args->q_stride + at->head * args->head_dim;
    const void *query = tpi_element(args->q, args->dtype, element);
    /* The queries pass through the output's tile, which is as large. */
    if (words == TPI_WORDS_PAIRS) {
        tpi_pairs_in_rows(query, args->q_stride, shape, TPI_VECTOR, queries->out);
    } else {
        tpi_tile_read(query, args->dtype, args->q_stride, shape, words == TPI_WORDS_F32 ? args->scale : 1.0f,
                      queries->out);
    }
    tpi_tile_transpose(queries->out, padded[1], padded, queries->query, TPI_TILE);
    memset(queries->out, 0, (size_t)width * TPI_TILE * sizeof(float));
    for (int64_t i = 0; i < TPI_TILE; i++) {
        queries->maximum[i] = -INFINITY;
        queries->sum[i] = 0;
    }
}

/* out = O / l and lse = m + log(l); a query that saw nothing has l = 0 and gets 0 and -inf. */
static void finish_queries(const forward_place *at, int64_t query_tile, forward_queries *queries)
{
    const tpi_attention_args *args = at->args;
    const tpi_score_tile tile = tpi_score_tile_at(&at->sequence, query_tile, 0);
    const int64_t width = tpi_tile_width(args->head_dim), shape[2] = {tile.queries, args->head_dim};
    const int64_t turned[2] = {width, tile.vectors * TPI_LANES};
    const int64_t row = at->sequence.first_row + tile.first_query;
    const vf kept = vf_set1(tpi_dropout_factor(args->dropout));
    for (int64_t lane = 0; lane < tile.queries; lane += TPI_LANES) {
        const vf sum = vf_load(queries->sum + lane);
        const vm empty = vf_eq(sum, vf_zero());
        const vf factor = vf_select(empty, vf_zero(), vf_div(kept, sum));
        for (int64_t d = 0; d < args->head_dim; d++) {
            float *out = queries->out + d * TPI_TILE + lane;
            vf_store(out, vf_mul(vf_load(out), factor));
        }
        if (args->lse != NULL) {
            const vf lse = vf_select(empty, vf_set1(-INFINITY), vf_add(vf_load(queries->maximum + lane), vf_log(sum)));
            vf_store_n(args->lse + at->head * args->rows + row + lane, lse, tpi_lanes_of(tile.queries - lane));
        }
    }
    tpi_tile_transpose(queries->out, TPI_TILE, turned, queries->query, width);
    tpi_tile_write(queries->query, shape, 1.0f,
                   tpi_element_of(args->out, args->dtype, row * args->out_stride + at->head * args->head_dim),
                   args->dtype, args->out_stride);
}

/* The tiles of queries [group.begin, group.end), by tiles of keys. */
static void forward_group(const forward_place *at, tp_range group, forward_tiles *tiles)
{
    tp_range seen[TPI_GROUP] = {{0, 0}};
    for (int64_t i = group.begin; i < group.end; i++) {
        seen[i - group.begin] = tpi_key_tiles_of(&at->sequence, i);
        fetch_queries(at, i);
    }
    fetch_keys(at, seen[0].begin);
    for (int64_t i = group.begin; i < group.end; i++) {
        start_queries(at, i, &tiles->queries[i - group.begin]);
    }
    /* The last tile of queries sees the last keys, the first one the first. */
    for (int64_t key_tile = seen[0].begin; key_tile < seen[group.end - 1 - group.begin].end; key_tile++) {
        read_keys(at, key_tile, tiles);
        if (key_tile + 1 < seen[group.end - 1 - group.begin].end) {
            fetch_keys(at, key_tile + 1);
        }
        for (int64_t i = group.begin; i < group.end; i++) {
            if (key_tile >= seen[i - group.begin].begin && key_tile < seen[i - group.begin].end) {
                const tpi_score_tile tile = tpi_score_tile_at(&at->sequence, i, key_tile);
                forward_tile(at, &tile, tiles, &tiles->queries[i - group.begin]);
            }
        }
    }
    for (int64_t i = group.begin; i < group.end; i++) {
        finish_queries(at, i, &tiles->queries[i - group.begin]);
    }
}

/* Parts are ordered by head, the last groups of queries first: under a causal mask they take longest. */
static void forward_part(void *arg, int64_t part, int worker)
{
    const forward_job *job = arg;
    const tpi_attention_args *args = job->args;
    const int64_t sequences = tpi_sequence_count(args), groups = job->groups_before[sequences];
    const int64_t group = groups - 1 - part % groups,
                  index = tpi_sequence_of_group(job->groups_before, sequences, group);
    const int64_t head = part / groups;
    const forward_place at = {
        .args = args, .head = head, .kv_head = args->kv_of_head[head], .sequence = tpi_sequence_at(args, index)};
    size_t bytes;
    forward_tiles tiles = carve_forward((char *)tpi_cpu_workspace(job->ctx, worker) + job->tiles_at,
                                        args, job->group_size, &bytes);
    forward_group(&at, tpi_group_tiles(&at.sequence, job->group_size, group - job->groups_before[index]), &tiles);
}

tp_status CPU(attention)(tp_ctx *ctx, const void *arguments)
{
    const tpi_attention_args *args = arguments;
    const int64_t sequences = tpi_sequence_count(args);
    forward_job job = {.ctx = ctx, .args = args, .tiles_at = tpi_group_table_bytes(sequences)};
    job.group_size = tpi_group_size(args, tpi_cpu_workers(ctx));
    size_t tile_bytes;
    (void)carve_forward(NULL, args, job.group_size, &tile_bytes);
    TPI_TRY(tpi_cpu_reserve(ctx, job.tiles_at + tile_bytes));
    job.groups_before = tpi_group_table(args, job.group_size, tpi_cpu_workspace(ctx, 0));
    tpi_cpu_parallel(ctx, args->heads * job.groups_before[sequences], forward_part, &job);
    return TP_OK;
}
