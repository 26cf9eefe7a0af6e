/* The gradient of attention. Probabilities are computed again from the log-sum-exp (Dao et al. 2022): P = exp(scale q k - lse),
 * dV = P^T dO, dP = dO V^T, dS = P * (dP - rowsum(dO * O)), dQ = scale dS K, dK = dS^T (scale Q).
 *
 * One pass over (queries, keys) tiles makes all three if there are enough sequences and slots for the workers; else two passes, one by tiles of
 * queries for dQ and one by tiles of keys for dK and dV. Both add in the same order: dQ over keys, dK and dV over heads, then queries. */
#include "cpu/attention_dropout.h"
#include "cpu/attention_tile.h"
#include "cpu/cpu.h"

typedef enum grad_mode { GRAD_ALL, GRAD_QUERY, GRAD_KEY } grad_mode;

typedef struct grad_job {
    tp_ctx *ctx;
    const tpi_attention_grad_args *args;
    grad_mode mode;
    const int64_t *tiles_before; /* [sequences + 1]; tiles of queries and of keys are the same in number */
    size_t tiles_at;
} grad_job;

typedef struct grad_tiles {
    float *query, *dout;           /* [width][64]: scaled queries; output gradients times the factor of kept probabilities */
    float *query_rows, *dout_rows; /* [64][width]: the same by rows */
    float *key, *value;            /* [64][width] */
    float *query_grad;             /* [width][64] */
    float *padded;                 /* [64][width]: a tile of dK or dV whose rows aren't whole vectors */
    float *probabilities;          /* [64 keys][64 queries]: scores, then dropped probabilities */
    float *scores_grad;            /* [64 keys][64 queries]: dP, then dS */
    float *lse, *delta;            /* [64] */
} grad_tiles;

/* Where a part works. */
typedef struct grad_place {
    const tpi_attention_grad_args *args;
    grad_mode mode;
    int64_t head, slot;
    tpi_sequence sequence;
    tpi_tile tile;
} grad_place;

static grad_tiles carve_grad(void *memory, int64_t width, size_t *bytes)
{
    tpi_carve carve = {.memory = memory};
    const size_t row = TPI_TILE * sizeof(float), tile = (size_t)width * row;
    grad_tiles tiles;
    float **wide[] = {&tiles.query, &tiles.dout, &tiles.query_rows, &tiles.dout_rows, &tiles.key, &tiles.value, &tiles.query_grad, &tiles.padded};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        *wide[i] = tpi_carve_take(&carve, tile);
    }
    tiles.probabilities = tpi_carve_take(&carve, TPI_TILE * row);
    tiles.scores_grad = tpi_carve_take(&carve, TPI_TILE * row);
    tiles.lse = tpi_carve_take(&carve, row);
    tiles.delta = tpi_carve_take(&carve, row);
    *bytes = carve.used;
    return tiles;
}

/* delta = rowsum(dO * O), by 16 lanes and the lane tree. O passes through the value tile. */
static void read_output_gradient(const grad_place *at, grad_tiles *tiles)
{
    const tpi_attention_args *forward = &at->args->forward;
    const int64_t width = tpi_tile_width(forward->head_dim), shape[2] = {at->tile.queries, forward->head_dim};
    const int64_t row = at->sequence.first_row + at->tile.first_query, column = at->head * forward->head_dim;
    const void *dout = tpi_element(at->args->dout, forward->dtype, row * at->args->dout_stride + column);
    const void *out = tpi_element(forward->out, forward->dtype, row * forward->out_stride + column);
    tpi_tile_read(dout, forward->dtype, at->args->dout_stride, shape, 1.0f, tiles->dout_rows);
    tpi_tile_read(out, forward->dtype, forward->out_stride, shape, 1.0f, tiles->value);
    const vf factor = vf_set1(tpi_dropout_factor(forward->dropout));
    for (int64_t q = 0; q < at->tile.vectors * TPI_LANES; q++) {
        vf sum = vf_zero();
        for (int64_t d = q * width; d < (q + 1) * width; d += TPI_LANES) {
            const vf gradient = vf_load(tiles->dout_rows + d);
            sum = vf_fma(gradient, vf_load(tiles->value + d), sum);
            vf_store(tiles->dout_rows + d, vf_mul(gradient, factor));
        }
        tiles->delta[q] = vf_sum(sum);
    }
}

static void start_queries(const grad_place *at, grad_tiles *tiles)
{
    const tpi_attention_args *forward = &at->args->forward;
    const int64_t width = tpi_tile_width(forward->head_dim), shape[2] = {at->tile.queries, forward->head_dim};
    const int64_t padded[2] = {at->tile.vectors * TPI_LANES, width};
    const int64_t row = at->sequence.first_row + at->tile.first_query;
    const void *query = tpi_element(forward->q, forward->dtype, row * forward->q_stride + at->head * forward->head_dim);
    tpi_tile_read(query, forward->dtype, forward->q_stride, shape, forward->scale, tiles->query_rows);
    read_output_gradient(at, tiles);
    tpi_tile_transpose(tiles->query_rows, width, padded, tiles->query, TPI_TILE);
    tpi_tile_transpose(tiles->dout_rows, width, padded, tiles->dout, TPI_TILE);
    memset(tiles->query_grad, 0, (size_t)width * TPI_TILE * sizeof(float));
    /* Of a query that saw nothing every score is -inf: with 0 for its lse all its probabilities come out 0. */
    for (int64_t q = 0; q < TPI_TILE; q += TPI_LANES) {
        const vf lse = vf_load_n(forward->lse + at->head * forward->rows + row + q, tpi_lanes_of(at->tile.queries - q));
        vf_store(tiles->lse + q, vf_select(vf_eq(lse, vf_set1(-INFINITY)), vf_zero(), lse));
    }
}

static void finish_queries(const grad_place *at, grad_tiles *tiles)
{
    const tpi_attention_args *forward = &at->args->forward;
    const int64_t width = tpi_tile_width(forward->head_dim), shape[2] = {at->tile.queries, forward->head_dim};
    const int64_t turned[2] = {width, at->tile.vectors * TPI_LANES};
    const int64_t row = at->sequence.first_row + at->tile.first_query;
    void *gradient = tpi_element_of(at->args->dq, forward->dtype, row * at->args->dq_stride + at->head * forward->head_dim);
    tpi_tile_transpose(tiles->query_grad, TPI_TILE, turned, tiles->key, width);
    tpi_tile_write(tiles->key, shape, forward->scale, gradient, forward->dtype, at->args->dq_stride);
}

/* One vector of queries and one key: score and dP become the probability to use and dS. Of a dropped one both the probability that was used and
 * the gradient that came back are 0. */
static inline void soften(const grad_tiles *tiles, int64_t place, const vf stats[2], vm dropped)
{
    const vf probability = vf_exp(vf_sub(vf_load(tiles->probabilities + place), stats[0]));
    const vf gradient = vf_select(dropped, vf_zero(), vf_load(tiles->scores_grad + place));
    vf_store(tiles->probabilities + place, vf_select(dropped, vf_zero(), probability));
    vf_store(tiles->scores_grad + place, vf_mul(probability, vf_sub(gradient, stats[1])));
}

static void soften_vector(const grad_place *at, const grad_tiles *tiles, int64_t vector)
{
    const vf stats[2] = {vf_load(tiles->lse + vector * TPI_LANES), vf_load(tiles->delta + vector * TPI_LANES)};
    for (int64_t k = 0; k < at->tile.keys; k++) {
        soften(tiles, k * TPI_TILE + vector * TPI_LANES, stats, vm_first(0));
    }
}

static void soften_and_drop_vector(const grad_place *at, const grad_tiles *tiles, int64_t vector)
{
    const vf stats[2] = {vf_load(tiles->lse + vector * TPI_LANES), vf_load(tiles->delta + vector * TPI_LANES)};
    const tpi_drop drop = tpi_drop_at(&at->args->forward, at->head, at->sequence.first_row, &at->tile, vector);
    for (int64_t k = 0; k < at->tile.keys; k += 4) {
        vm dropped[4];
        tpi_drop_keys(&drop, k, dropped);
        for (int64_t i = 0; i < 4 && k + i < at->tile.keys; i++) {
            soften(tiles, (k + i) * TPI_TILE + vector * TPI_LANES, stats, dropped[i]);
        }
    }
}

/* One tile of dK or dV [slots, rows, head_dim] goes on: += weights * right. */
static void add_key_gradient(const grad_place *at, grad_tiles *tiles, const float *weights, const float *right, float *gradient)
{
    const tpi_attention_args *forward = &at->args->forward;
    const int64_t head_dim = forward->head_dim, width = tpi_tile_width(head_dim), shape[2] = {at->tile.keys, head_dim};
    float *rows = gradient + (at->slot * forward->rows + at->sequence.first_row + at->tile.first_key) * head_dim;
    const bool whole = width == head_dim;
    if (!whole) {
        tpi_tile_read(rows, TP_DTYPE_F32, head_dim, shape, 1.0f, tiles->padded);
    }
    const tpi_product product = {.rows = at->tile.keys, .vectors = width / TPI_LANES, .inner = at->tile.queries, .a = weights,
                                 .a_stride = TPI_TILE, .b = right, .b_stride = width, .c = whole ? rows : tiles->padded, .c_stride = width};
    tpi_product_add(&product);
    if (!whole) {
        tpi_tile_write(tiles->padded, shape, 1.0f, rows, TP_DTYPE_F32, head_dim);
    }
}

static void grad_tile(const grad_place *at, grad_tiles *tiles)
{
    const tpi_attention_args *forward = &at->args->forward;
    const tpi_tile *tile = &at->tile;
    const int64_t width = tpi_tile_width(forward->head_dim), shape[2] = {tile->keys, forward->head_dim};
    const int64_t row = at->sequence.first_row + tile->first_key, column = forward->kv_of_head[at->head] * forward->head_dim;
    const void *key = tpi_element(forward->k, forward->dtype, row * forward->k_stride + column);
    const void *value = tpi_element(forward->v, forward->dtype, row * forward->v_stride + column);
    tpi_tile_read(key, forward->dtype, forward->k_stride, shape, 1.0f, tiles->key);
    tpi_tile_read(value, forward->dtype, forward->v_stride, shape, 1.0f, tiles->value);

    tpi_product product = {.rows = tile->keys, .vectors = tile->vectors, .inner = forward->head_dim, .a = tiles->key, .a_stride = width,
                           .b = tiles->query, .b_stride = TPI_TILE, .c = tiles->probabilities, .c_stride = TPI_TILE};
    tpi_product_dot(&product);
    tpi_tile_mask(&at->sequence, tile, tiles->probabilities);
    product.a = tiles->value;
    product.b = tiles->dout;
    product.c = tiles->scores_grad;
    tpi_product_dot(&product);
    for (int64_t vector = 0; vector < tile->vectors; vector++) {
        if (forward->dropout > 0) {
            soften_and_drop_vector(at, tiles, vector);
        } else {
            soften_vector(at, tiles, vector);
        }
    }
    if (at->mode != GRAD_QUERY) {
        add_key_gradient(at, tiles, tiles->probabilities, tiles->dout_rows, at->args->dv);
        add_key_gradient(at, tiles, tiles->scores_grad, tiles->query_rows, at->args->dk);
    }
    if (at->mode != GRAD_KEY) {
        const tpi_product query = {.rows = forward->head_dim, .vectors = tile->vectors, .inner = tile->keys, .a = tiles->key, .a_stride = width,
                                   .b = tiles->scores_grad, .b_stride = TPI_TILE, .c = tiles->query_grad, .c_stride = TPI_TILE};
        tpi_product_spread(&query);
    }
}

/* All the keys of one tile of queries. */
static void grad_queries(grad_place *at, int64_t query_tile, grad_tiles *tiles)
{
    at->tile = tpi_tile_at(&at->sequence, query_tile, 0);
    start_queries(at, tiles);
    const tp_range seen = tpi_keys_of_queries(&at->sequence, at->tile.first_query, at->tile.first_query + at->tile.queries);
    const tp_range key_tiles = tpi_tiles_of(seen);
    for (int64_t key_tile = key_tiles.begin; key_tile < key_tiles.end; key_tile++) {
        at->tile = tpi_tile_at(&at->sequence, query_tile, key_tile);
        grad_tile(at, tiles);
    }
    finish_queries(at, tiles);
}

static void clear_key_gradients(const grad_place *at, int64_t first_key, int64_t keys)
{
    const tpi_attention_args *forward = &at->args->forward;
    const int64_t element = (at->slot * forward->rows + at->sequence.first_row + first_key) * forward->head_dim;
    const size_t bytes = (size_t)(keys * forward->head_dim) * sizeof(float);
    memset(at->args->dk + element, 0, bytes);
    memset(at->args->dv + element, 0, bytes);
}

/* All heads and queries of one sequence and slot. */
static void grad_slot(grad_place *at, grad_tiles *tiles)
{
    clear_key_gradients(at, 0, at->sequence.length);
    for (at->head = 0; at->head < at->args->forward.heads; at->head++) {
        if (at->args->slot_of_head[at->head] != at->slot) {
            continue;
        }
        for (int64_t query_tile = 0; query_tile < tpi_tile_count(at->sequence.length); query_tile++) {
            grad_queries(at, query_tile, tiles);
        }
    }
}

/* All heads and queries of one tile of keys. */
static void grad_keys(grad_place *at, int64_t key_tile, grad_tiles *tiles)
{
    const tpi_tile keys = tpi_tile_at(&at->sequence, 0, key_tile);
    const tp_range query_tiles = tpi_tiles_of(tpi_queries_of_keys(&at->sequence, keys.first_key, keys.first_key + keys.keys));
    clear_key_gradients(at, keys.first_key, keys.keys);
    for (at->head = 0; at->head < at->args->forward.heads; at->head++) {
        if (at->args->slot_of_head[at->head] != at->slot) {
            continue;
        }
        for (int64_t query_tile = query_tiles.begin; query_tile < query_tiles.end; query_tile++) {
            at->tile = tpi_tile_at(&at->sequence, query_tile, key_tile);
            start_queries(at, tiles);
            grad_tile(at, tiles);
        }
    }
}

static void grad_part(void *arg, int64_t part, int worker)
{
    const grad_job *job = arg;
    const tpi_attention_args *forward = &job->args->forward;
    const int64_t sequences = tpi_sequence_count(forward), tiles_of_head = job->tiles_before[sequences];
    grad_place at = {.args = job->args, .mode = job->mode};
    size_t bytes;
    grad_tiles tiles = carve_grad((char *)tpi_cpu_workspace(job->ctx, worker) + job->tiles_at, tpi_tile_width(forward->head_dim), &bytes);
    if (job->mode == GRAD_ALL) {
        at.slot = part / sequences;
        at.sequence = tpi_sequence_at(forward, part % sequences);
        grad_slot(&at, &tiles);
        return;
    }
    /* The longest tiles first: under a causal mask the last queries and the first keys. */
    const int64_t place = part % tiles_of_head, tile = job->mode == GRAD_QUERY ? tiles_of_head - 1 - place : place;
    const int64_t index = tpi_sequence_of_tile(job->tiles_before, sequences, tile);
    at.sequence = tpi_sequence_at(forward, index);
    if (job->mode == GRAD_QUERY) {
        at.head = part / tiles_of_head;
        grad_queries(&at, tile - job->tiles_before[index], &tiles);
    } else {
        at.slot = part / tiles_of_head;
        grad_keys(&at, tile - job->tiles_before[index], &tiles);
    }
}

/* Seven products in two balanced passes against five in one pass of few parts: the cheaper one for these workers. */
static bool one_pass_is_faster(int64_t parts, int64_t workers)
{
    const int64_t rounds = (parts + workers - 1) / workers;
    return 5 * rounds * workers <= 7 * parts;
}

tp_status CPU(attention_grad)(tp_ctx *ctx, const void *arguments)
{
    const tpi_attention_grad_args *args = arguments;
    const tpi_attention_args *forward = &args->forward;
    const int64_t sequences = tpi_sequence_count(forward);
    grad_job job = {.ctx = ctx, .args = args, .tiles_at = tpi_tile_table_bytes(sequences)};
    size_t tile_bytes;
    (void)carve_grad(NULL, tpi_tile_width(forward->head_dim), &tile_bytes);
    TPI_TRY(tpi_cpu_reserve(ctx, job.tiles_at + tile_bytes));
    job.tiles_before = tpi_tile_table(forward, tpi_cpu_workspace(ctx, 0));
    if (one_pass_is_faster(sequences * args->slots, tpi_cpu_workers(ctx))) {
        job.mode = GRAD_ALL;
        tpi_cpu_parallel(ctx, sequences * args->slots, grad_part, &job);
        return TP_OK;
    }
    const int64_t tiles_of_head = job.tiles_before[sequences];
    job.mode = GRAD_QUERY;
    tpi_cpu_parallel(ctx, forward->heads * tiles_of_head, grad_part, &job);
    job.mode = GRAD_KEY;
    tpi_cpu_parallel(ctx, args->slots * tiles_of_head, grad_part, &job);
    return TP_OK;
}
