/* softmax(scale * Q K^T + mask) V, one part a tile of queries: running maximum m, sum l and output O over the tiles of keys in order
 * (Dao et al. 2022, "FlashAttention"; Milakov and Gimelshein 2018 for the running sums). */
#include "cpu/attention_dropout.h"
#include "cpu/attention_tile.h"
#include "cpu/cpu.h"

typedef struct forward_job {
    tp_ctx *ctx;
    const tpi_attention_args *args;
    const int64_t *tiles_before; /* [sequences + 1] */
    size_t tiles_at;             /* bytes into a workspace where tiles begin */
} forward_job;

typedef struct forward_tiles {
    float *query;  /* [width][64], scaled */
    float *key;    /* [64][width] */
    float *value;  /* [64][width] */
    float *scores; /* [64 keys][64 queries], then probabilities */
    float *out;    /* [width][64] */
    float *maximum, *sum, *rescale; /* [64] */
} forward_tiles;

static forward_tiles carve_forward(void *memory, int64_t width, size_t *bytes)
{
    tpi_carve carve = {.memory = memory};
    const size_t tile = (size_t)width * TPI_TILE * sizeof(float), row = TPI_TILE * sizeof(float);
    forward_tiles tiles;
    tiles.query = tpi_carve_take(&carve, tile);
    tiles.key = tpi_carve_take(&carve, tile);
    tiles.value = tpi_carve_take(&carve, tile);
    tiles.scores = tpi_carve_take(&carve, TPI_TILE * row);
    tiles.out = tpi_carve_take(&carve, tile);
    tiles.maximum = tpi_carve_take(&carve, row);
    tiles.sum = tpi_carve_take(&carve, row);
    tiles.rescale = tpi_carve_take(&carve, row);
    *bytes = carve.used;
    return tiles;
}

/* One vector of queries: scores become exp(score - maximum); maximum and sum move on. A query that has seen nothing has maximum -inf, for which
 * 0 stands in: exp(-inf - 0) is 0, where -inf - -inf would be NaN. */
static void soften_vector(forward_tiles *tiles, int64_t keys, int64_t vector)
{
    float *scores = tiles->scores + vector * TPI_LANES;
    const vf before = vf_load(tiles->maximum + vector * TPI_LANES);
    vf now = before;
    for (int64_t k = 0; k < keys; k++) {
        now = vf_max(vf_load(scores + k * TPI_TILE), now);
    }
    const vf base = vf_select(vf_eq(now, vf_set1(-INFINITY)), vf_zero(), now);
    const vf rescale = vf_exp(vf_sub(before, base));
    vf sum = vf_mul(vf_load(tiles->sum + vector * TPI_LANES), rescale);
    for (int64_t k = 0; k < keys; k++) {
        const vf probability = vf_exp(vf_sub(vf_load(scores + k * TPI_TILE), base));
        vf_store(scores + k * TPI_TILE, probability);
        sum = vf_add(sum, probability);
    }
    vf_store(tiles->maximum + vector * TPI_LANES, now);
    vf_store(tiles->sum + vector * TPI_LANES, sum);
    vf_store(tiles->rescale + vector * TPI_LANES, rescale);
}

/* Where a part's head lies. */
typedef struct forward_head {
    int64_t head, kv_head;
    tpi_sequence sequence;
} forward_head;

static void forward_key_tile(const tpi_attention_args *args, const forward_head *at, const tpi_tile *tile, forward_tiles *tiles)
{
    const int64_t width = tpi_tile_width(args->head_dim), shape[2] = {tile->keys, args->head_dim};
    const int64_t row = at->sequence.first_row + tile->first_key, column = at->kv_head * args->head_dim;
    tpi_tile_read(tpi_element(args->k, args->dtype, row * args->k_stride + column), args->dtype, args->k_stride, shape, 1.0f, tiles->key);
    tpi_tile_read(tpi_element(args->v, args->dtype, row * args->v_stride + column), args->dtype, args->v_stride, shape, 1.0f, tiles->value);

    const tpi_product scores = {.rows = tile->keys, .vectors = tile->vectors, .inner = args->head_dim, .a = tiles->key, .a_stride = width,
                                .b = tiles->query, .b_stride = TPI_TILE, .c = tiles->scores, .c_stride = TPI_TILE};
    tpi_product_dot(&scores);
    tpi_tile_mask(&at->sequence, tile, tiles->scores);
    for (int64_t vector = 0; vector < tile->vectors; vector++) {
        soften_vector(tiles, tile->keys, vector);
    }
    if (args->dropout > 0) {
        tpi_tile_drop(args, at->head, at->sequence.first_row, tile, tiles->scores);
    }
    const tpi_product out = {.rows = args->head_dim, .vectors = tile->vectors, .inner = tile->keys, .a = tiles->value, .a_stride = width,
                             .b = tiles->scores, .b_stride = TPI_TILE, .c = tiles->out, .c_stride = TPI_TILE, .rescale = tiles->rescale};
    tpi_product_spread(&out);
}

static void start_queries(const tpi_attention_args *args, const forward_head *at, const tpi_tile *tile, forward_tiles *tiles)
{
    const int64_t width = tpi_tile_width(args->head_dim), shape[2] = {tile->queries, args->head_dim};
    const int64_t padded[2] = {tile->vectors * TPI_LANES, width};
    const int64_t element = (at->sequence.first_row + tile->first_query) * args->q_stride + at->head * args->head_dim;
    /* The queries pass through the output's tile, which is as large. */
    tpi_tile_read(tpi_element(args->q, args->dtype, element), args->dtype, args->q_stride, shape, args->scale, tiles->out);
    tpi_tile_transpose(tiles->out, width, padded, tiles->query, TPI_TILE);
    memset(tiles->out, 0, (size_t)width * TPI_TILE * sizeof(float));
    for (int64_t i = 0; i < TPI_TILE; i++) {
        tiles->maximum[i] = -INFINITY;
        tiles->sum[i] = 0;
    }
}

/* out = O / l and lse = m + log(l); a query that saw nothing has l = 0 and gets 0 and -inf. */
static void finish_queries(const tpi_attention_args *args, const forward_head *at, const tpi_tile *tile, forward_tiles *tiles)
{
    const int64_t width = tpi_tile_width(args->head_dim), shape[2] = {tile->queries, args->head_dim};
    const int64_t turned[2] = {width, tile->vectors * TPI_LANES};
    const int64_t row = at->sequence.first_row + tile->first_query;
    const vf kept = vf_set1(tpi_dropout_factor(args->dropout));
    for (int64_t vector = 0; vector < tile->vectors; vector++) {
        const vf sum = vf_load(tiles->sum + vector * TPI_LANES);
        const vm empty = vf_eq(sum, vf_zero());
        const vf factor = vf_select(empty, vf_zero(), vf_div(kept, sum));
        for (int64_t d = 0; d < args->head_dim; d++) {
            float *out = tiles->out + d * TPI_TILE + vector * TPI_LANES;
            vf_store(out, vf_mul(vf_load(out), factor));
        }
        if (args->lse != NULL) {
            const vf maximum = vf_load(tiles->maximum + vector * TPI_LANES);
            const vf lse = vf_select(empty, vf_set1(-INFINITY), vf_add(maximum, vf_log(sum)));
            vf_store_n(args->lse + at->head * args->rows + row + vector * TPI_LANES, lse, tpi_lanes_of(tile->queries - vector * TPI_LANES));
        }
    }
    tpi_tile_transpose(tiles->out, TPI_TILE, turned, tiles->query, width);
    tpi_tile_write(tiles->query, shape, 1.0f, tpi_element_of(args->out, args->dtype, row * args->out_stride + at->head * args->head_dim),
                   args->dtype, args->out_stride);
}

/* Parts are ordered by head, the last tiles of queries first: under a causal mask they are the longest. */
static void forward_part(void *arg, int64_t part, int worker)
{
    const forward_job *job = arg;
    const tpi_attention_args *args = job->args;
    const int64_t sequences = tpi_sequence_count(args), tiles_of_head = job->tiles_before[sequences];
    const int64_t query_tile = tiles_of_head - 1 - part % tiles_of_head;
    const int64_t index = tpi_sequence_of_tile(job->tiles_before, sequences, query_tile);
    forward_head at = {.head = part / tiles_of_head, .sequence = tpi_sequence_at(args, index)};
    at.kv_head = args->kv_of_head[at.head];

    size_t bytes;
    forward_tiles tiles =
        carve_forward((char *)tpi_cpu_workspace(job->ctx, worker) + job->tiles_at, tpi_tile_width(args->head_dim), &bytes);
    tpi_tile tile = tpi_tile_at(&at.sequence, query_tile - job->tiles_before[index], 0);
    const tp_range seen = tpi_keys_of_queries(&at.sequence, tile.first_query, tile.first_query + tile.queries);
    const tp_range key_tiles = tpi_tiles_of(seen);
    start_queries(args, &at, &tile, &tiles);
    for (int64_t key_tile = key_tiles.begin; key_tile < key_tiles.end; key_tile++) {
        tile = tpi_tile_at(&at.sequence, query_tile - job->tiles_before[index], key_tile);
        forward_key_tile(args, &at, &tile, &tiles);
    }
    finish_queries(args, &at, &tile, &tiles);
}

tp_status CPU(attention)(tp_ctx *ctx, const void *arguments)
{
    const tpi_attention_args *args = arguments;
    const int64_t sequences = tpi_sequence_count(args);
    size_t tile_bytes;
    (void)carve_forward(NULL, tpi_tile_width(args->head_dim), &tile_bytes);
    const size_t tiles_at = tpi_tile_table_bytes(sequences);
    TPI_TRY(tpi_cpu_reserve(ctx, tiles_at + tile_bytes));
    const int64_t *tiles_before = tpi_tile_table(args, tpi_cpu_workspace(ctx, 0));
    forward_job job = {.ctx = ctx, .args = args, .tiles_before = tiles_before, .tiles_at = tiles_at};
    tpi_cpu_parallel(ctx, args->heads * tiles_before[sequences], forward_part, &job);
    return TP_OK;
}
