/* O40: more than 2^31 elements, and distances of more than 2^32 bytes, without the memory: address space whose pages
 * are the same few, or were never touched. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cpu/machines.h"

/* ---- long rows --------------------------------------------------------------------------------------------------- */

#ifndef TPT_SANITIZED /* minutes of shadow memory */
#define PAGE ((size_t)4096)
#define TILE ((size_t)64 << 20)

/* `bytes` (a multiple of the tile) of address space that repeats one tile, and one page of its own behind. */
typedef struct tiled {
    char *memory;
    size_t bytes;
} tiled;

static tiled tiled_map(size_t bytes)
{
    int file = memfd_create("tile", 0);
    cr_assert(file >= 0 && ftruncate(file, (off_t)TILE) == 0 && bytes % TILE == 0);
    char *memory = mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    cr_assert_neq(memory, MAP_FAILED);
    for (size_t at = 0; at < bytes; at += TILE)
        cr_assert_neq(mmap(memory + at, TILE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0), MAP_FAILED);
    close(file);
    return (tiled){memory, bytes};
}

static void tiled_unmap(tiled *map)
{
    munmap(map->memory, map->bytes + PAGE);
}

static const int64_t long_row = (INT64_C(1) << 31) + 3;

static tp_ctx *new_ctx(void)
{
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 2}, &ctx), TP_OK, "%s", tp_last_message());
    return ctx;
}

Test(past_32_bits, map, .timeout = 120)
{
    tp_ctx *ctx = new_ctx();
    tiled in = tiled_map((size_t)2 << 31), out = tiled_map((size_t)2 << 31);
    uint16_t *from = (uint16_t *)in.memory, *to = (uint16_t *)out.memory;
    for (int64_t i = 0; i < 3; i++)
        from[long_row - 3 + i] = tp_bf16_from_f32((float)(i + 1));
    from[17] = tp_bf16_from_f32(5.0f);
    tpi_map_args args = {.rows = 1,
                         .cols = long_row,
                         .in = from,
                         .in_dtype = TP_DTYPE_BF16,
                         .in_stride = long_row,
                         .out = to,
                         .out_dtype = TP_DTYPE_BF16,
                         .out_stride = long_row,
                         .scale = 2.0f};
    cr_assert_eq(tpi_map(ctx->compute, &args), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_ctx_synchronize(ctx), TP_OK);
    cr_assert_eq(tp_f32_from_bf16(to[17]), 10.0f);
    for (int64_t i = 0; i < 4; i++) /* and nothing behind */
        cr_assert_eq(tp_f32_from_bf16(to[long_row - 3 + i]), i < 3 ? 2.0f * (float)(i + 1) : 0.0f);
    tiled_unmap(&in);
    tiled_unmap(&out);
    tp_ctx_destroy(ctx);
}

Test(past_32_bits, square_sum, .timeout = 120)
{
    tp_ctx *ctx = new_ctx();
    tiled x = tiled_map((size_t)4 << 31);
    float *values = (float *)x.memory, result = -1.0f;
    values[5] = 0.5f; /* in each of the tiles */
    for (int64_t i = 0; i < 4; i++)
        values[long_row - 3 + i] = (float)(i + 1);
    tpi_square_sum_args args = {
        .rows = 1, .cols = long_row, .x = values, .stride = long_row, .dim = 1, .result = &result};
    cr_assert_eq(tpi_square_sum(ctx->compute, &args), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_ctx_synchronize(ctx), TP_OK);
    cr_assert_eq(result, 0.25f * (float)(x.bytes / TILE) + 14.0f);
    tiled_unmap(&x);
    tp_ctx_destroy(ctx);
}

/* All kinds walk the elements alike; this one has the fewest arrays. */
Test(past_32_bits, optimizer, .timeout = 120)
{
    tp_ctx *ctx = new_ctx();
    tiled map[2];
    float *array[2], scale = 1.0f; /* value, gradient */
    for (int i = 0; i < 2; i++) {
        map[i] = tiled_map((size_t)4 << 31);
        array[i] = (float *)map[i].memory;
    }
    for (int64_t i = 0; i < 4; i++)
        array[1][long_row - 3 + i] = i % 2 ? -1.0f : 1.0f;
    tpi_optimizer_args args = {.kind = TPI_OPTIMIZER_SGD,
                               .elements = long_row,
                               .value = array[0],
                               .value_dtype = TP_DTYPE_F32,
                               .grad = array[1],
                               .grad_scale = &scale,
                               .lr = 0.25f,
                               .step = 1};
    cr_assert_eq(tpi_optimizer(ctx->compute, &args), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_ctx_synchronize(ctx), TP_OK);
    for (int64_t i = 0; i < 4; i++)
        cr_assert_eq(array[0][long_row - 3 + i], i == 3 ? 0.0f : i % 2 ? 0.25f : -0.25f);
    for (int i = 0; i < 2; i++)
        tiled_unmap(&map[i]);
    tp_ctx_destroy(ctx);
}
#endif

/* ---- rows far apart ---------------------------------------------------------------------------------------------- */

enum { FAR_ROWS = 3, FAR_COLS = 33 };

static const int64_t far_stride = (INT64_C(1) << 31) + 40;

/* FAR_ROWS rows of a matrix of f32, and as many of a dense one with the same values. */
typedef struct far_matrix {
    float *far, *near;
    size_t bytes;
} far_matrix;

static far_matrix far_new(uint64_t seed)
{
    far_matrix m = {.bytes = (size_t)(far_stride * (FAR_ROWS - 1) + FAR_COLS + 64) * sizeof(float)};
    m.far = mmap(NULL, m.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    cr_assert_neq(m.far, MAP_FAILED);
    m.near = tpt_new_normal(TP_DTYPE_F32, FAR_ROWS * FAR_COLS, seed, 1.0);
    for (int r = 0; r < FAR_ROWS; r++)
        memcpy(m.far + r * far_stride, m.near + r * FAR_COLS, FAR_COLS * sizeof(float));
    return m;
}

static void far_check(const far_matrix *m)
{
    for (int r = 0; r < FAR_ROWS; r++)
        cr_assert(tpt_same_bits("row", m->far + r * far_stride, m->near + r * FAR_COLS, TP_DTYPE_F32, FAR_COLS),
                  "row %d", r);
}

static void far_free(far_matrix *m)
{
    munmap(m->far, m->bytes);
    free(m->near);
}

#define ISSUE(call) cr_assert_eq((call), TP_OK, "%s", tp_last_message())

static void far_gemm(tp_ctx *ctx)
{
    far_matrix a = far_new(1), b = far_new(2), c = far_new(3);
    for (int far = 0; far < 2; far++) {
        int64_t stride = far ? far_stride : FAR_COLS;
        tpi_gemm_args args = {.rows = FAR_ROWS,
                              .cols = FAR_ROWS,
                              .inner = FAR_COLS,
                              .a = {far ? a.far : a.near, TP_DTYPE_F32, stride, 1},
                              .b = {far ? b.far : b.near, TP_DTYPE_F32, stride, 1},
                              .c = far ? c.far : c.near,
                              .c_dtype = TP_DTYPE_F32,
                              .c_stride = stride};
        ISSUE(tpi_gemm(ctx->compute, &args));
    }
    ISSUE(tp_ctx_synchronize(ctx));
    far_check(&c);
    far_free(&a), far_free(&b), far_free(&c);
}

static void far_norm_and_rope(tp_ctx *ctx)
{
    far_matrix x = far_new(4), y = far_new(5);
    float *gain = tpt_new_uniform(TP_DTYPE_F32, FAR_COLS, 6, 0.5, 1.5);
    for (int far = 0; far < 2; far++) {
        int64_t stride = far ? far_stride : FAR_COLS;
        tpi_norm_args norm = {
            .rows = FAR_ROWS, .cols = FAR_COLS, .dtype = TP_DTYPE_F32, .x_stride = stride, .y_stride = stride};
        norm.gain = gain;
        norm.x = far ? x.far : x.near;
        norm.y = far ? y.far : y.near;
        ISSUE(tpi_norm(ctx->compute, &norm));
        tpi_rope_args rope = {.rows = FAR_ROWS,
                              .heads = 2,
                              .head_dim = 16,
                              .dim = 16,
                              .dtype = TP_DTYPE_F32,
                              .stride = stride,
                              .theta = 10000.0};
        rope.x = norm.y;
        ISSUE(tpi_rope(ctx->compute, &rope));
    }
    ISSUE(tp_ctx_synchronize(ctx));
    far_check(&y);
    free(gain);
    far_free(&x), far_free(&y);
}

static void far_xent(tp_ctx *ctx)
{
    static const int32_t targets[FAR_ROWS] = {4, -1, 32};
    far_matrix logits = far_new(7);
    for (int far = 0; far < 2; far++) {
        float max[FAR_ROWS], sums[3 * FAR_ROWS], lse[FAR_ROWS], loss[FAR_ROWS], total[2] = {0};
        tpi_xent_args args = {.rows = FAR_ROWS,
                              .cols = FAR_COLS,
                              .vocabulary = FAR_COLS,
                              .logits = far ? logits.far : logits.near,
                              .dtype = TP_DTYPE_F32,
                              .stride = far ? far_stride : FAR_COLS,
                              .targets = targets,
                              .loss_scale = 1.0f,
                              .max = max,
                              .sums = sums,
                              .loss = loss,
                              .lse = lse,
                              .total = total};
        for (args.phase = TPI_XENT_MAX; args.phase <= TPI_XENT_GRAD; args.phase++)
            ISSUE(tpi_xent(ctx->compute, &args));
        ISSUE(tp_ctx_synchronize(ctx));
    }
    far_check(&logits);
    far_free(&logits);
}

Test(past_32_bits, rows_far_apart)
{
    machines all = machines_open();
    for (int i = 0; i < all.count; i++) {
        far_gemm(all.ctx[i]);
        far_norm_and_rope(all.ctx[i]);
        far_xent(all.ctx[i]);
    }
    machines_close(&all);
}

/* (e): id times width past 2^31, in the table and in its gradient. */
Test(past_32_bits, embedding_of_a_large_table)
{
    enum { COLS = 4096, TOKENS = 3 };
    static const int32_t ids[TOKENS] = {(1 << 20) + 6, 5, (1 << 20) + 6};
    const int64_t rows = (INT64_C(1) << 20) + 7;
    size_t bytes = (size_t)(rows * COLS) * sizeof(float);
    float *table = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    cr_assert_neq(table, MAP_FAILED);
    float *out = tpt_array(TP_DTYPE_F32, TOKENS * COLS), *dy = tpt_new_normal(TP_DTYPE_F32, TOKENS * COLS, 1, 1.0);
    for (int64_t c = 0; c < COLS; c++)
        table[(rows - 1) * COLS + c] = dy[c];
    machines all = machines_open();
    for (int i = 0; i < all.count; i++) {
        tpi_embedding_args args = {.rows = TOKENS,
                                   .cols = COLS,
                                   .ids = ids,
                                   .table = table,
                                   .table_dtype = TP_DTYPE_F32,
                                   .table_rows = rows,
                                   .vocabulary = rows,
                                   .out = out,
                                   .out_dtype = TP_DTYPE_F32};
        ISSUE(tpi_embedding(all.ctx[i]->compute, &args));
        ISSUE(tp_ctx_synchronize(all.ctx[i]));
        cr_assert(tpt_same_bits("first", out, dy, TP_DTYPE_F32, COLS) &&
                  tpt_same_bits("last", out + 2 * COLS, dy, TP_DTYPE_F32, COLS));
        cr_assert(out[COLS] == 0.0f && out[2 * COLS - 1] == 0.0f);
    }
    tpi_embedding_grad_args grad = {
        .rows = TOKENS, .cols = COLS, .ids = ids, .dy = dy, .dy_dtype = TP_DTYPE_F32, .table_rows = rows,
        .vocabulary = rows, .grad = table};
    ISSUE(tpi_embedding_grad(all.ctx[0]->compute, &grad));
    ISSUE(tp_ctx_synchronize(all.ctx[0]));
    for (int64_t c = 0; c < COLS; c++)
        cr_assert_eq(table[(rows - 1) * COLS + c], dy[c] + dy[c] + dy[2 * COLS + c]);
    munmap(table, bytes);
    free(out), free(dy);
    machines_close(&all);
}

/* ---- indices that numbers are drawn from ------------------------------------------------------------------------- */

Test(past_32_bits, random_numbers_of_far_elements)
{
    enum { COLS = 21 };
    const int64_t total_cols = (INT64_C(1) << 31) + 11, first_row = 7, first_col = total_cols - COLS;
    tp_random_key key = {.seed = 3, .stream = 9};
    float values[2 * COLS], ones[2 * COLS], masked[2 * COLS];
    for (int i = 0; i < 2 * COLS; i++)
        ones[i] = 1.0f;
    machines all = machines_open();
    for (int i = 0; i < all.count; i++) {
        tpi_random_fill_args fill = {.rows = 2,
                                     .cols = COLS,
                                     .out = values,
                                     .dtype = TP_DTYPE_F32,
                                     .stride = COLS,
                                     .std = 1.0f,
                                     .key = key,
                                     .first_row = first_row,
                                     .first_col = first_col,
                                     .total_cols = total_cols};
        tpi_map_args map = {.rows = 2,
                            .cols = COLS,
                            .in = ones,
                            .in_dtype = TP_DTYPE_F32,
                            .in_stride = COLS,
                            .out = masked,
                            .out_dtype = TP_DTYPE_F32,
                            .out_stride = COLS,
                            .dropout = 0.5f,
                            .dropout_key = key,
                            .first_row = (INT64_C(1) << 33) + 1};
        ISSUE(tpi_random_fill(all.ctx[i]->compute, &fill));
        ISSUE(tpi_map(all.ctx[i]->compute, &map));
        ISSUE(tp_ctx_synchronize(all.ctx[i]));
        for (int64_t r = 0; r < 2; r++)
            for (int64_t c = 0; c < COLS; c++) {
                uint64_t element = (uint64_t)((first_row + r) * total_cols + first_col + c);
                uint64_t index = (uint64_t)((map.first_row + r) * COLS + c);
                cr_assert_eq(values[r * COLS + c], tp_random_normal(key, element));
                cr_assert_eq(masked[r * COLS + c],
                             tp_random_u32(key, index) >= tp_random_threshold(0.5f) ? 2.0f : 0.0f);
            }
    }
    machines_close(&all);
}
