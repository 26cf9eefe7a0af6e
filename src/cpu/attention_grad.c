/* The gradient of attention. Probabilities are computed again from the log-sum-exp (Dao et al. 2022): P = exp(scale q k
 * - lse), dV = P^T dO, dP = dO V^T, dS = P * (dP - rowsum(dO * O)), dQ = scale dS K, dK = dS^T (scale Q).
 *
 * One pass over tiles makes all three if there are enough sequences and slots for the workers; else two passes, one by
 * groups of queries for dQ and one by groups of keys for dK and dV. Both add in the same order: dQ over keys, dK and dV
 * over heads, then queries. */
#include "cpu/attention_dropout.h"
#include "cpu/attention_words.h"
#include "cpu/cpu.h"

typedef enum grad_mode { GRAD_ALL, GRAD_QUERY, GRAD_KEY } grad_mode;

typedef struct grad_job {
    tp_ctx *ctx;
    const tpi_attention_grad_args *args;
    grad_mode mode;
    int64_t group_size;
    const int64_t *groups_before; /* [sequences + 1]; groups of queries and of keys are the same in number */
    size_t tiles_at;
} grad_job;

/* One tile of queries. */
typedef struct grad_queries {
    float *query, *dout; /* words [..][64]: queries and output gradients; of f32: scaled, and times the factor of kept
                          * probabilities */
    float *query_rows, *dout_rows; /* words [..][width]: the same by rows, neighbours along a column */
    float *query_grad;             /* [width][64] */
    float *lse, *delta;            /* [64] */
} grad_queries;

/* A worker's memory. */
typedef struct grad_tiles {
    float *key, *value;   /* words [64][..], neighbours along a row */
    float *key_rows;      /* words [..][width], neighbours along a column: `key`, or pairs */
    float *padded;        /* [64][width]: what else passes through in rows */
    float *probabilities; /* [64 keys][64 queries]: scores, then the probabilities that were used */
    float *scores_grad;   /* [64 keys][64 queries]: dP, then dS */
    /* These two as words: themselves, or pairs of queries [64 keys][32], and dS as pairs of keys [32][64] too. */
    float *probability_words, *scores_grad_words, *scores_grad_keys;
    grad_queries queries[TPI_GROUP];
} grad_tiles;

/* Where a part works. */
typedef struct grad_place {
    const tpi_attention_grad_args *args;
    grad_mode mode;
    int64_t head, slot;
    tpi_sequence sequence;
} grad_place;

static grad_tiles carve_grad(void *memory, const tpi_attention_args *forward, int64_t group_size, size_t *bytes)
{
    tpi_carve carve = {.memory = memory};
    const bool pairs = tpi_words_of(forward->dtype) == TPI_WORDS_PAIRS;
    const size_t row = TPI_TILE * sizeof(float), tile = (size_t)tpi_tile_width(forward->head_dim) * row;
    grad_tiles tiles = {.key = NULL};
    float **shared[] = {&tiles.key, &tiles.value, &tiles.padded};
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
        *shared[i] = tpi_carve_take(&carve, tile);
    }
    tiles.probabilities = tpi_carve_take(&carve, TPI_TILE * row);
    tiles.scores_grad = tpi_carve_take(&carve, TPI_TILE * row);
    tiles.key_rows = pairs ? tpi_carve_take(&carve, tile / 2) : tiles.key;
    tiles.probability_words = pairs ? tpi_carve_take(&carve, TPI_TILE / 2 * row) : tiles.probabilities;
    tiles.scores_grad_words = pairs ? tpi_carve_take(&carve, TPI_TILE / 2 * row) : tiles.scores_grad;
    tiles.scores_grad_keys = pairs ? tpi_carve_take(&carve, TPI_TILE / 2 * row) : tiles.scores_grad;
    for (int64_t g = 0; g < group_size; g++) {
        grad_queries *queries = &tiles.queries[g];
        float **own[] = {&queries->query, &queries->dout, &queries->query_rows, &queries->dout_rows,
                         &queries->query_grad};
        for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
            *own[i] = tpi_carve_take(&carve, tile);
        }
        queries->lse = tpi_carve_take(&carve, row);
        queries->delta = tpi_carve_take(&carve, row);
    }
    *bytes = carve.used;
    return tiles;
}

/* delta = rowsum(dO * O), by 16 lanes and the lane tree. */
static void sum_deltas(const grad_place *at, const tpi_score_tile *tile, float *delta)
{
    const tpi_attention_args *forward = &at->args->forward;
    const int64_t row = at->sequence.first_row + tile->first_query, column = at->head * forward->head_dim;
    for (int64_t q = 0; q < tile->queries; q++) {
        const void *gradient = tpi_element(at->args->dout, forward->dtype, (row + q) * at->args->dout_stride + column);
        const void *out = tpi_element(forward->out, forward->dtype, (row + q) * forward->out_stride + column);
        vf sum = vf_zero();
        for (int64_t d = 0; d < forward->head_dim; d += TPI_LANES) {
            const int n = tpi_lanes_of(forward->head_dim - d);
            sum = vf_fma(vf_load_any(tpi_element(gradient, forward->dtype, d), forward->dtype, n),
                         vf_load_any(tpi_element(out, forward->dtype, d), forward->dtype, n), sum);
        }
        delta[q] = vf_sum(sum);
    }
    for (int64_t q = tile->queries; q < tile->vectors * TPI_LANES; q++) {
        delta[q] = 0;
    }
}

/* A matrix of one row a query, as words by columns and by rows. */
static void read_matrix(const grad_place *at, const tpi_score_tile *tile, const void *from, int64_t stride,
                        float factor, float *columns, float *rows, float *spare)
{
    const tpi_attention_args *forward = &at->args->forward;
    const tpi_words words = at->sequence.words;
    const int64_t shape[2] = {tile->queries, forward->head_dim};
    const int64_t padded[2] = {tile->vectors * TPI_LANES, tpi_words_width(words, forward->head_dim)};
    if (words == TPI_WORDS_PAIRS) {
        tpi_pairs_in_rows(from, stride, shape, TPI_VECTOR, spare);
        tpi_pairs_of_rows(from, stride, shape, TPI_VECTOR, rows);
        tpi_tile_transpose(spare, padded[1], padded, columns, TPI_TILE);
        return;
    }
    tpi_tile_read(from, forward->dtype, stride, shape, words == TPI_WORDS_F32 ? factor : 1.0f, rows);
    tpi_tile_transpose(rows, padded[1], padded, columns, TPI_TILE);
}

static void start_queries(const grad_place *at, int64_t query_tile, grad_queries *queries, float *spare)
{
    const tpi_attention_args *forward = &at->args->forward;
    const tpi_score_tile tile = tpi_score_tile_at(&at->sequence, query_tile, 0);
    const int64_t width = tpi_tile_width(forward->head_dim);
    const int64_t row = at->sequence.first_row + tile.first_query, column = at->head * forward->head_dim;
    read_matrix(at, &tile, tpi_element(forward->q, forward->dtype, row * forward->q_stride + column), forward->q_stride,
                forward->scale, queries->query, queries->query_rows, spare);
    read_matrix(at, &tile, tpi_element(at->args->dout, forward->dtype, row * at->args->dout_stride + column),
                at->args->dout_stride, tpi_dropout_factor(forward->dropout), queries->dout, queries->dout_rows, spare);
    sum_deltas(at, &tile, queries->delta);
    memset(queries->query_grad, 0, (size_t)width * TPI_TILE * sizeof(float));
    /* Of a query that saw nothing every score is -inf: with 0 for its lse all its probabilities come out 0. */
    for (int64_t lane = 0; lane < tile.queries; lane += TPI_LANES) {
        const vf lse =
            vf_load_n(forward->lse + at->head * forward->rows + row + lane, tpi_lanes_of(tile.queries - lane));
        vf_store(queries->lse + lane, vf_select(vf_eq(lse, vf_set1(-INFINITY)), vf_zero(), lse));
    }
}

static void finish_queries(const grad_place *at, int64_t query_tile, grad_queries *queries, float *spare)
{
    const tpi_attention_args *forward = &at->args->forward;
    const tpi_score_tile tile = tpi_score_tile_at(&at->sequence, query_tile, 0);
    const int64_t width = tpi_tile_width(forward->head_dim), shape[2] = {tile.queries, forward->head_dim};
    const int64_t turned[2] = {width, tile.vectors * TPI_LANES};
    const int64_t element =
        (at->sequence.first_row + tile.first_query) * at->args->dq_stride + at->head * forward->head_dim;
    tpi_tile_transpose(queries->query_grad, TPI_TILE, turned, spare, width);
    /* dS of bf16 has the scale in it. */
    tpi_tile_write(spare, shape, at->sequence.words == TPI_WORDS_F32 ? forward->scale : 1.0f,
                   tpi_element_of(at->args->dq, forward->dtype, element), forward->dtype, at->args->dq_stride);
}

static void fetch_keys(const grad_place *at, int64_t key_tile)
{
    const tpi_attention_args *forward = &at->args->forward;
    const tpi_score_tile tile = tpi_score_tile_at(&at->sequence, 0, key_tile);
    const int64_t place[2] = {at->sequence.first_row + tile.first_key,
                              forward->kv_of_head[at->head] * forward->head_dim};
    tpi_tile_fetch(forward, forward->k, forward->k_stride, place, tile.keys);
    tpi_tile_fetch(forward, forward->v, forward->v_stride, place, tile.keys);
}

static void fetch_queries(const grad_place *at, int64_t query_tile)
{
    const tpi_attention_args *forward = &at->args->forward;
    const tpi_score_tile tile = tpi_score_tile_at(&at->sequence, query_tile, 0);
    const int64_t place[2] = {at->sequence.first_row + tile.first_query, at->head * forward->head_dim};
    tpi_tile_fetch(forward, forward->q, forward->q_stride, place, tile.queries);
    tpi_tile_fetch(forward, at->args->dout, at->args->dout_stride, place, tile.queries);
    tpi_tile_fetch(forward, forward->out, forward->out_stride, place, tile.queries);
}

static void read_keys(const grad_place *at, int64_t key_tile, grad_tiles *tiles)
{
    const tpi_attention_args *forward = &at->args->forward;
    const tpi_score_tile tile = tpi_score_tile_at(&at->sequence, 0, key_tile);
    const int64_t shape[2] = {tile.keys, forward->head_dim};
    const int64_t row = at->sequence.first_row + tile.first_key,
                  column = forward->kv_of_head[at->head] * forward->head_dim;
    const void *key = tpi_element(forward->k, forward->dtype, row * forward->k_stride + column);
    const void *value = tpi_element(forward->v, forward->dtype, row * forward->v_stride + column);
    if (at->sequence.words == TPI_WORDS_PAIRS) {
        tpi_pairs_in_rows(key, forward->k_stride, shape, TPI_BROADCAST, tiles->key);
        tpi_pairs_of_rows(key, forward->k_stride, shape, TPI_BROADCAST, tiles->key_rows);
        tpi_pairs_in_rows(value, forward->v_stride, shape, TPI_BROADCAST, tiles->value);
        return;
    }
    tpi_tile_read(key, forward->dtype, forward->k_stride, shape, 1.0f, tiles->key);
    tpi_tile_read(value, forward->dtype, forward->v_stride, shape, 1.0f, tiles->value);
}

/* One vector of queries and one key: score and dP become the probability that was used and dS. Of a dropped one both
 * that probability and the gradient that comes back through it are 0. stats: lse, delta. */
static inline void soften(const grad_tiles *tiles, int64_t place, const vf stats[2], vm dropped)
{
    const vf probability = tpi_exp_falling(vf_sub(vf_load(tiles->probabilities + place), stats[0]));
    const vf gradient = vf_select(dropped, vf_zero(), vf_load(tiles->scores_grad + place));
    vf_store(tiles->probabilities + place, vf_select(dropped, vf_zero(), probability));
    vf_store(tiles->scores_grad + place, vf_mul(probability, vf_sub(gradient, stats[1])));
}

static void soften_vector(const grad_tiles *tiles, const tpi_score_tile *tile, const grad_queries *queries,
                          int64_t vector)
{
    const vf stats[2] = {vf_load(queries->lse + vector * TPI_LANES), vf_load(queries->delta + vector * TPI_LANES)};
    const tp_range keys = tpi_vector_keys(tile, vector);
    for (int64_t k = keys.begin; k < keys.end; k++) {
        soften(tiles, k * TPI_TILE + vector * TPI_LANES, stats, vm_first(0));
    }
}

static void soften_and_drop_vector(const grad_tiles *tiles, const tpi_score_tile *tile, const grad_queries *queries,
                                   int64_t vector, const tpi_drop *drop)
{
    const vf stats[2] = {vf_load(queries->lse + vector * TPI_LANES), vf_load(queries->delta + vector * TPI_LANES)};
    const tp_range keys = tpi_vector_keys(tile, vector);
    for (int64_t k = keys.begin; k < keys.end; k += 4) {
        vm dropped[4];
        tpi_drop_keys(drop, k, dropped);
        for (int64_t i = 0; i < 4 && k + i < keys.end; i++) {
            soften(tiles, (k + i) * TPI_TILE + vector * TPI_LANES, stats, dropped[i]);
        }
    }
}

/* Of bf16: the probabilities that were used, with the factor of kept ones, and dS, with the scale, as products read
 * them. */
static void round_weights(const grad_place *at, const tpi_score_tile *tile, const grad_tiles *tiles)
{
    const float factor = tpi_dropout_factor(at->args->forward.dropout), scale = at->args->forward.scale;
    for (int64_t vector = 0; vector < tile->vectors; vector++) {
        if (tile->sequence->words == TPI_WORDS_PAIRS) {
            tpi_pairs_of_queries(tile, vector, tiles->probabilities, factor, tiles->probability_words);
            tpi_pairs_of_queries(tile, vector, tiles->scores_grad, scale, tiles->scores_grad_words);
            tpi_pairs_of_keys(tile, vector, tiles->scores_grad, scale, tiles->scores_grad_keys);
        } else {
            tpi_round_keys(tile, vector, factor, tiles->probabilities);
            tpi_round_keys(tile, vector, scale, tiles->scores_grad);
        }
    }
}

/* One tile of dK or dV [slots, rows, head_dim] goes on: += weights * right. */
static void add_key_gradient(const grad_place *at, const tpi_score_tile *tile, const float *weights, const float *right,
                             float *gradient)
{
    const int64_t head_dim = at->args->forward.head_dim, width = tpi_tile_width(head_dim);
    const tpi_words words = tile->sequence->words;
    const int64_t stride = tpi_words_inner(words, TPI_TILE);
    for (int64_t key = 0; key < tile->keys; key += tile->strip) {
        const tp_range vectors = tpi_strip_vectors(tile, key);
        const int64_t begin = vectors.begin * TPI_LANES;
        const int64_t end = vectors.end * TPI_LANES < tile->queries ? vectors.end * TPI_LANES : tile->queries;
        const int64_t first = tpi_words_inner(words, begin);
        const tpi_product product = {.words = words,
                                     .rows = tile->keys - key < tile->strip ? tile->keys - key : tile->strip,
                                     .vectors = width / TPI_LANES,
                                     .inner = tpi_words_inner(words, end - begin),
                                     .a = weights + key * stride + first,
                                     .a_stride = stride,
                                     .b = right + first * width,
                                     .b_stride = width,
                                     .c = gradient + key * width,
                                     .c_stride = width};
        tpi_product_run(&product, TPI_PRODUCT_ADD);
    }
}

static void add_key_gradients(const grad_place *at, const tpi_score_tile *tile, const grad_tiles *tiles,
                              const grad_queries *queries)
{
    const tpi_attention_args *forward = &at->args->forward;
    const int64_t head_dim = forward->head_dim, shape[2] = {tile->keys, head_dim};
    const int64_t first = (at->slot * forward->rows + at->sequence.first_row + tile->first_key) * head_dim;
    float *const gradients[2] = {at->args->dv + first, at->args->dk + first};
    const float *const weights[2] = {tiles->probability_words, tiles->scores_grad_words}, *const right[2] = {
                                                                                              queries->dout_rows,
                                                                                              queries->query_rows};
    for (int i = 0; i < 2; i++) {
        if (head_dim == tpi_tile_width(head_dim)) {
            add_key_gradient(at, tile, weights[i], right[i], gradients[i]);
        } else {
            tpi_tile_read(gradients[i], TP_DTYPE_F32, head_dim, shape, 1.0f, tiles->padded);
            add_key_gradient(at, tile, weights[i], right[i], tiles->padded);
            tpi_tile_write(tiles->padded, shape, 1.0f, gradients[i], TP_DTYPE_F32, head_dim);
        }
    }
}

static void grad_tile(const grad_place *at, const tpi_score_tile *tile, grad_tiles *tiles, grad_queries *queries)
{
    const tpi_attention_args *forward = &at->args->forward;
    const bool wide = tile->sequence->words == TPI_WORDS_F32;
    tpi_tile_scores(tile, forward->head_dim, tiles->key, queries->query, wide ? 1.0f : forward->scale,
                    tiles->probabilities);
    tpi_tile_mask(tile, tiles->probabilities);
    tpi_tile_scores(tile, forward->head_dim, tiles->value, queries->dout,
                    wide ? 1.0f : tpi_dropout_factor(forward->dropout), tiles->scores_grad);
    for (int64_t vector = 0; vector < tile->vectors; vector++) {
        if (forward->dropout > 0) {
            const tpi_drop drop = tpi_drop_at(forward, at->head, tile, vector);
            soften_and_drop_vector(tiles, tile, queries, vector, &drop);
        } else {
            soften_vector(tiles, tile, queries, vector);
        }
    }
    if (!wide) {
        round_weights(at, tile, tiles);
    }
    if (at->mode != GRAD_QUERY) {
        add_key_gradients(at, tile, tiles, queries);
    }
    if (at->mode != GRAD_KEY) {
        tpi_tile_spread(tile, forward->head_dim, tiles->key_rows, tiles->scores_grad_keys, queries->query_grad, NULL);
    }
}

/* The tiles of queries [group.begin, group.end) of one head, by tiles of keys. */
static void grad_query_group(const grad_place *at, tp_range group, grad_tiles *tiles)
{
    tp_range seen[TPI_GROUP] = {{0, 0}};
    for (int64_t i = group.begin; i < group.end; i++) {
        seen[i - group.begin] = tpi_key_tiles_of(&at->sequence, i);
        fetch_queries(at, i);
    }
    fetch_keys(at, seen[0].begin);
    for (int64_t i = group.begin; i < group.end; i++) {
        start_queries(at, i, &tiles->queries[i - group.begin], tiles->padded);
    }
    for (int64_t key_tile = seen[0].begin; key_tile < seen[group.end - 1 - group.begin].end; key_tile++) {
        read_keys(at, key_tile, tiles);
        if (key_tile + 1 < seen[group.end - 1 - group.begin].end) {
            fetch_keys(at, key_tile + 1);
        }
        for (int64_t i = group.begin; i < group.end; i++) {
            if (key_tile >= seen[i - group.begin].begin && key_tile < seen[i - group.begin].end) {
                const tpi_score_tile tile = tpi_score_tile_at(&at->sequence, i, key_tile);
                grad_tile(at, &tile, tiles, &tiles->queries[i - group.begin]);
            }
        }
    }
    for (int64_t i = group.begin; i < group.end; i++) {
        finish_queries(at, i, &tiles->queries[i - group.begin], tiles->padded);
    }
}

/* The tiles of keys [group.begin, group.end) of one head, by tiles of queries. */
static void grad_key_group(const grad_place *at, tp_range group, grad_tiles *tiles)
{
    const tp_range first = tpi_query_tiles_of(&at->sequence, group.begin),
                   last = tpi_query_tiles_of(&at->sequence, group.end - 1);
    for (int64_t query_tile = first.begin; query_tile < last.end; query_tile++) {
        const tp_range seen = tpi_key_tiles_of(&at->sequence, query_tile);
        start_queries(at, query_tile, &tiles->queries[0], tiles->padded);
        for (int64_t i = group.begin; i < group.end; i++) {
            if (i >= seen.begin && i < seen.end) {
                const tpi_score_tile tile = tpi_score_tile_at(&at->sequence, query_tile, i);
                read_keys(at, i, tiles);
                grad_tile(at, &tile, tiles, &tiles->queries[0]);
            }
        }
    }
}

/* dK and dV of keys [begin, end) of the sequence, in one slot, start from zero. */
static void clear_key_gradients(const grad_place *at, int64_t begin, int64_t end)
{
    const tpi_attention_args *forward = &at->args->forward;
    const int64_t element = (at->slot * forward->rows + at->sequence.first_row + begin) * forward->head_dim;
    const size_t bytes = (size_t)((end - begin) * forward->head_dim) * sizeof(float);
    memset(at->args->dk + element, 0, bytes);
    memset(at->args->dv + element, 0, bytes);
}

/* All the heads of a slot, in order, on one group of keys, or on all of the sequence. */
static void grad_slot(grad_place *at, const grad_job *job, int64_t key_group, grad_tiles *tiles)
{
    const tp_range all = {0, tpi_tile_count(at->sequence.length)};
    const tp_range keys = at->mode == GRAD_ALL ? all : tpi_group_tiles(&at->sequence, job->group_size, key_group);
    const tp_range rows = tpi_clip_range(keys.begin * TPI_TILE, keys.end * TPI_TILE, at->sequence.length);
    clear_key_gradients(at, rows.begin, rows.end);
    for (at->head = 0; at->head < at->args->forward.heads; at->head++) {
        if (at->args->slot_of_head[at->head] != at->slot) {
            continue;
        }
        if (at->mode == GRAD_KEY) {
            grad_key_group(at, keys, tiles);
            continue;
        }
        for (int64_t group = 0; group * job->group_size < all.end; group++) {
            grad_query_group(at, tpi_group_tiles(&at->sequence, job->group_size, group), tiles);
        }
    }
}

static void grad_part(void *arg, int64_t part, int worker)
{
    const grad_job *job = arg;
    const tpi_attention_args *forward = &job->args->forward;
    const int64_t sequences = tpi_sequence_count(forward), groups = job->groups_before[sequences];
    grad_place at = {.args = job->args, .mode = job->mode};
    size_t bytes;
    grad_tiles tiles = carve_grad((char *)tpi_cpu_workspace(job->ctx, worker) + job->tiles_at,
                                  forward, job->group_size, &bytes);
    if (job->mode == GRAD_ALL) {
        at.slot = part / sequences;
        at.sequence = tpi_sequence_at(forward, part % sequences);
        grad_slot(&at, job, 0, &tiles);
        return;
    }
    /* The longest groups first: under a causal mask the last queries and the first keys. */
    const int64_t place = part % groups, group = job->mode == GRAD_QUERY ? groups - 1 - place : place;
    const int64_t index = tpi_sequence_of_group(job->groups_before, sequences, group),
                  own = group - job->groups_before[index];
    at.sequence = tpi_sequence_at(forward, index);
    if (job->mode == GRAD_QUERY) {
        at.head = part / groups;
        grad_query_group(&at, tpi_group_tiles(&at.sequence, job->group_size, own), &tiles);
    } else {
        at.slot = part / groups;
        grad_slot(&at, job, own, &tiles);
    }
}

/* Seven products in two balanced passes against five in one pass of few parts: which is faster with these workers? */
static bool one_pass_is_faster(int64_t parts, int64_t workers)
{
    const int64_t rounds = (parts + workers - 1) / workers;
    return 5 * rounds * workers <= 7 * parts;
}

tp_status CPU(attention_grad)(tp_ctx *ctx, const void *arguments)
{
    const tpi_attention_grad_args *args = arguments;
    const tpi_attention_args *forward = &args->forward;
    const int64_t sequences = tpi_sequence_count(forward), workers = tpi_cpu_workers(ctx);
    const bool one_pass = one_pass_is_faster(sequences * args->slots, workers);
    grad_job job = {.ctx = ctx, .args = args, .tiles_at = tpi_group_table_bytes(sequences)};
    job.group_size = tpi_group_size(forward, one_pass ? 0 : workers);
    size_t tile_bytes;
    (void)carve_grad(NULL, forward, job.group_size, &tile_bytes);
    TPI_TRY(tpi_cpu_reserve(ctx, job.tiles_at + tile_bytes));
    job.groups_before = tpi_group_table(forward, job.group_size, tpi_cpu_workspace(ctx, 0));
    if (one_pass) {
        job.mode = GRAD_ALL;
        tpi_cpu_parallel(ctx, sequences * args->slots, grad_part, &job);
        return TP_OK;
    }
    job.mode = GRAD_QUERY;
    tpi_cpu_parallel(ctx, forward->heads * job.groups_before[sequences], grad_part, &job);
    job.mode = GRAD_KEY;
    tpi_cpu_parallel(ctx, args->slots * job.groups_before[sequences], grad_part, &job);
    return TP_OK;
}
