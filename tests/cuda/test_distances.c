/* Distances in memory beyond 32 bits, counted in elements: each op that takes a row's distance from the next has the
 * same bits where rows lie near together and where they lie more than 2^31 and 2^32 elements apart. Only rows are
 * touched, so a simulated GPU needs no such memory. */
#include "cuda/attention.h"
#include "cuda/cuda_support.h"

enum { MATRICES = 8, MATRIX_COLS = 64, MOST_ROWS = 129, NUMBERS = 4, NUMBERS_LENGTH = 2304, NEAR_STRIDE = 512 };

/* What ops work on: matrices of one dtype, whose rows have one distance and lie between each other's, and dense
 * memory. */
typedef struct scene {
    tp_ctx *ctx;
    tp_dtype dtype;
    int64_t rows, cols, stride; /* the stride is a multiple of the columns */
    char *matrix[MATRICES];
    float *numbers[NUMBERS];
    int32_t *ids; /* MOST_ROWS */
} scene;

/* All rows of the matrices at any of the distances below. */
#define FAR_ELEMENTS ((INT64_C(1) << 32) + 4096)

/* Of 16-bit elements, where attention computes some distances in 32 bits. */
enum { MOST_ATTENTION_STRIDE = INT32_MAX / TPI_CUDA_ROWS_APART };

typedef struct distance {
    int64_t rows, cols, stride, near_stride;
} distance;

/* Three rows of which the second lies beyond 2^31 elements and the third beyond 2^32, whole vectors and single
 * elements; more rows than small tiles have; and the largest distance that attention takes. */
static const distance distances[] = {{3, 16, (INT64_C(1) << 31) + NEAR_STRIDE, NEAR_STRIDE},
                                     {3, 15, (INT64_C(1) << 31) + 517, 525},
                                     {MOST_ROWS, 16, (INT64_C(1) << 25) + 16, NEAR_STRIDE},
                                     {65, 16, MOST_ATTENTION_STRIDE / 16 * 16, NEAR_STRIDE}};

#define ISSUE(s, op, args) cr_assert_eq(op((s)->ctx->compute, args), TP_OK, "%s", tp_ctx_message((s)->ctx))

/* ---- ops --------------------------------------------------------------------------------------------------------- */

static void map_op(const scene *s)
{
    tpi_map_args args = {.rows = s->rows,
                         .cols = s->cols,
                         .in = s->matrix[0],
                         .in_dtype = s->dtype,
                         .in_stride = s->stride,
                         .out = s->matrix[1],
                         .out_dtype = s->dtype,
                         .out_stride = s->stride};

    ISSUE(s, tpi_map, &args);
    args.scale = 2;
    args.out = s->matrix[2];
    ISSUE(s, tpi_map, &args);
    args.out = s->matrix[3];
    args.accumulate = true;
    if (s->dtype == TP_DTYPE_F32)
        ISSUE(s, tpi_map, &args);
}

static void activation_op(const scene *s)
{
    tpi_activation_args args = {.activation = TPI_ACT_SILU,
                                .gated = true,
                                .rows = s->rows,
                                .cols = s->cols,
                                .dtype = s->dtype,
                                .x = s->matrix[0],
                                .x_stride = s->stride,
                                .y = s->matrix[1],
                                .y_stride = s->stride};

    ISSUE(s, tpi_activate, &args);
    args.y = s->matrix[2];
    args.dy = s->matrix[3];
    args.dx = s->matrix[4];
    args.dy_stride = args.dx_stride = s->stride;
    ISSUE(s, tpi_activate, &args);
}

static void rope_op(const scene *s)
{
    tpi_rope_args args = {.rows = s->rows,
                          .heads = 2,
                          .head_dim = s->cols,
                          .dim = s->cols / 2 * 2,
                          .x = s->matrix[0],
                          .dtype = s->dtype,
                          .stride = s->stride,
                          .theta = 10000};

    ISSUE(s, tpi_rope, &args);
}

static void random_fill_op(const scene *s)
{
    tpi_random_fill_args args = {.rows = s->rows,
                                 .cols = s->cols,
                                 .out = s->matrix[0],
                                 .dtype = s->dtype,
                                 .stride = s->stride,
                                 .std = 1,
                                 .total_cols = s->cols};

    ISSUE(s, tpi_random_fill, &args);
}

static void norm_op(const scene *s)
{
    tpi_norm_args args = {.rows = s->rows,
                          .cols = s->cols,
                          .dtype = s->dtype,
                          .x = s->matrix[0],
                          .x_stride = s->stride,
                          .gain = s->matrix[6],
                          .bias = s->matrix[7],
                          .epsilon = 1e-5f,
                          .y = s->matrix[1],
                          .y_stride = s->stride,
                          .stats = s->numbers[0]};
    tpi_norm_grad_args grad = {.rows = s->rows,
                               .cols = s->cols,
                               .dtype = s->dtype,
                               .x = s->matrix[0],
                               .x_stride = s->stride,
                               .gain = s->matrix[6],
                               .stats = s->numbers[0],
                               .dy = s->matrix[2],
                               .dy_stride = s->stride,
                               .residual = s->matrix[3],
                               .residual_stride = s->stride,
                               .dx = s->matrix[4],
                               .dx_stride = s->stride,
                               .gain_grad = s->numbers[1],
                               .bias_grad = s->numbers[2],
                               .total_rows = s->rows,
                               .virtual_count = 1};

    ISSUE(s, tpi_norm, &args);
    ISSUE(s, tpi_norm_grad, &grad);
}

/* Two heads of one slot. */
static void attention_op(const scene *s)
{
    static const int32_t first[2] = {0, 0};
    tpi_attention_grad_args args = {.forward = {.rows = s->rows,
                                                .heads = 2,
                                                .kv_heads = 1,
                                                .head_dim = s->cols,
                                                .dtype = s->dtype,
                                                .q = s->matrix[0],
                                                .k = s->matrix[1],
                                                .v = s->matrix[2],
                                                .q_stride = s->stride,
                                                .k_stride = s->stride,
                                                .v_stride = s->stride,
                                                .out = s->matrix[3],
                                                .out_stride = s->stride,
                                                .lse = s->numbers[0],
                                                .kv_of_head = first,
                                                .scale = 0.25f,
                                                .causal = true,
                                                .total_heads = 2},
                                    .dout = s->matrix[4],
                                    .dout_stride = s->stride,
                                    .dq = s->matrix[5],
                                    .dq_stride = s->stride,
                                    .slots = 1,
                                    .slot_of_head = first,
                                    .dk = s->numbers[1],
                                    .dv = s->numbers[2]};

    ISSUE(s, tpi_attention, &args.forward);
    ISSUE(s, tpi_attention_grad, &args);
}

static void xent_op(const scene *s)
{
    int32_t targets[MOST_ROWS];

    for (int t = 0; t < MOST_ROWS; t++)
        targets[t] = (int32_t)(t * 5 % s->cols);
    cr_assert_eq(tp_ctx_upload(s->ctx, s->ids, targets, sizeof targets), TP_OK);
    for (int phase = TPI_XENT_MAX; phase <= TPI_XENT_GRAD; phase++) {
        tpi_xent_args args = {.phase = (tpi_xent_phase)phase,
                              .rows = s->rows,
                              .cols = s->cols,
                              .vocabulary = s->cols,
                              .logits = s->matrix[0],
                              .dtype = s->dtype,
                              .stride = s->stride,
                              .targets = s->ids,
                              .max = s->numbers[0],
                              .sums = s->numbers[1],
                              .loss = s->numbers[2],
                              .lse = s->numbers[2] + MOST_ROWS,
                              .total = s->numbers[3],
                              .label_smoothing = 0.1f,
                              .loss_scale = 1};

        ISSUE(s, tpi_xent, &args);
    }
}

/* Each operand along its rows and along its columns, and all of an epilogue's matrices. */
static void gemm_op(const scene *s)
{
    const tpi_operand rows[2] = {{s->matrix[0], s->dtype, s->stride, 1}, {s->matrix[1], s->dtype, s->stride, 1}},
                      cols[2] = {{s->matrix[0], s->dtype, 1, s->stride}, {s->matrix[1], s->dtype, 1, s->stride}};
    tpi_gemm_args args = {.rows = s->rows,
                          .cols = 3,
                          .inner = s->cols,
                          .a = rows[0],
                          .b = rows[1],
                          .c = s->matrix[2],
                          .c_dtype = s->dtype,
                          .c_stride = s->stride,
                          .row_sums = s->numbers[0]};

    args.accumulate = s->dtype == TP_DTYPE_F32;
    ISSUE(s, tpi_gemm, &args);
    args.accumulate = false;
    args.row_sums = NULL;
    args.c = s->matrix[3];
    args.activation = TPI_ACT_GELU;
    args.pre = s->matrix[4];
    args.residual = s->matrix[5];
    args.pre_stride = args.residual_stride = s->stride;
    ISSUE(s, tpi_gemm, &args);
    args.c = s->matrix[6];
    args.act_input = args.pre;
    args.act_input_stride = s->stride;
    args.pre = NULL;
    args.residual = NULL;
    ISSUE(s, tpi_gemm, &args);
    args = (tpi_gemm_args){.rows = 3,
                           .cols = s->cols,
                           .inner = s->rows,
                           .a = cols[0],
                           .b = cols[1],
                           .c = s->matrix[7],
                           .c_dtype = s->dtype,
                           .c_stride = s->stride,
                           .row_sums = s->numbers[1]};
    ISSUE(s, tpi_gemm, &args);
    /* Many rows of b. */
    args.cols = s->rows;
    args.inner = s->cols;
    args.a = rows[0];
    args.b = rows[1];
    args.c = s->numbers[2];
    args.c_dtype = TP_DTYPE_F32;
    args.c_stride = s->rows;
    args.row_sums = NULL;
    ISSUE(s, tpi_gemm, &args);
}

static void square_sum_op(const scene *s)
{
    for (int dim = 0; dim < 2 && s->dtype == TP_DTYPE_F32; dim++) {
        tpi_square_sum_args args = {.rows = s->rows,
                                    .cols = s->cols,
                                    .x = (const float *)(const void *)s->matrix[0],
                                    .stride = s->stride,
                                    .dim = dim,
                                    .result = s->numbers[dim]};

        ISSUE(s, tpi_square_sum, &args);
    }
}

/* A matrix's rows are those of a table with these numbers: dense, but only they are touched. */
static int64_t id_of_row(const scene *s, int64_t row)
{
    return row * (s->stride / s->cols);
}

static void embedding_op(const scene *s)
{
    int32_t ids[MOST_ROWS] = {0};
    const int64_t table_rows = id_of_row(s, s->rows - 1) + 1;

    for (int64_t row = 0; row < s->rows; row++)
        ids[row] = (int32_t)id_of_row(s, row);
    cr_assert_eq(tp_ctx_upload(s->ctx, s->ids, ids, sizeof ids), TP_OK);
    tpi_embedding_args args = {.rows = s->rows,
                               .cols = s->cols,
                               .ids = s->ids,
                               .table = s->matrix[0],
                               .table_dtype = s->dtype,
                               .table_rows = table_rows,
                               .vocabulary = table_rows,
                               .out = s->numbers[0],
                               .out_dtype = s->dtype};
    ISSUE(s, tpi_embedding, &args);
}

/* The last row has more tokens than one block adds on its own. */
static void embedding_grad_op(const scene *s)
{
    int32_t ids[MOST_ROWS];
    const int64_t table_rows = id_of_row(s, s->rows - 1) + 1;

    for (int64_t token = 0; token < MOST_ROWS; token++)
        ids[token] = (int32_t)id_of_row(s, token % 2 == 0 ? s->rows - 1 : token % s->rows);
    cr_assert_eq(tp_ctx_upload(s->ctx, s->ids, ids, sizeof ids), TP_OK);
    tpi_embedding_grad_args args = {.rows = MOST_ROWS,
                                    .cols = s->cols,
                                    .ids = s->ids,
                                    .dy = s->numbers[0],
                                    .dy_dtype = TP_DTYPE_F32,
                                    .table_rows = table_rows,
                                    .vocabulary = table_rows,
                                    .grad = (float *)(void *)s->matrix[0]};
    if (s->dtype == TP_DTYPE_F32)
        ISSUE(s, tpi_embedding_grad, &args);
}

static const struct {
    const char *name;
    void (*issue)(const scene *s);
    int matrices; /* that it uses */
    bool tiles;   /* of rows: many rows are another case than three */
} ops[] = {{"map", map_op, 4, false},
           {"activation", activation_op, 5, false},
           {"rope", rope_op, 1, false},
           {"random_fill", random_fill_op, 1, false},
           {"norm", norm_op, MATRICES, true},
           {"attention", attention_op, 6, true},
           {"xent", xent_op, 1, false},
           {"gemm", gemm_op, MATRICES, true},
           {"square_sum", square_sum_op, 1, false},
           {"embedding", embedding_op, 1, false},
           {"embedding_grad", embedding_grad_op, 1, false}};

/* ---- near and far ------------------------------------------------------------------------------------------------ */

/* What a scene holds, row after row, then its numbers. */
typedef struct contents {
    char rows[MATRICES][MOST_ROWS][MATRIX_COLS * sizeof(float)];
    float numbers[NUMBERS][NUMBERS_LENGTH];
} contents;

static void move_contents(const scene *s, int matrices, contents *host, bool up)
{
    const size_t size = tp_dtype_size(s->dtype), line = (size_t)s->cols * 2 * size;

    for (int m = 0; m < matrices; m++)
        for (int64_t row = 0; row < s->rows; row++) {
            char *device = s->matrix[m] + (size_t)(row * s->stride) * size;

            cr_assert_eq(up ? tp_ctx_upload(s->ctx, device, host->rows[m][row], line)
                            : tp_ctx_download(s->ctx, host->rows[m][row], device, line),
                         TP_OK, "%s", tp_ctx_message(s->ctx));
        }
    for (int n = 0; n < NUMBERS; n++)
        cr_assert_eq(up ? tp_ctx_upload(s->ctx, s->numbers[n], host->numbers[n], sizeof host->numbers[n])
                        : tp_ctx_download(s->ctx, host->numbers[n], s->numbers[n], sizeof host->numbers[n]),
                     TP_OK, "%s", tp_ctx_message(s->ctx));
}

static void check_same(const char *name, const scene *s, int matrices, const contents *far, const contents *near)
{
    for (int m = 0; m < matrices; m++)
        for (int64_t row = 0; row < s->rows; row++)
            cr_assert(tpt_same_bits(name, far->rows[m][row], near->rows[m][row], s->dtype, 2 * s->cols),
                      "%s: matrix %d, row %lld of %lld, %lld elements apart", name, m, (long long)row,
                      (long long)s->rows, (long long)s->stride);
    for (int n = 0; n < NUMBERS; n++)
        cr_assert(tpt_same_bits(name, far->numbers[n], near->numbers[n], TP_DTYPE_F32, NUMBERS_LENGTH),
                  "%s: numbers %d, rows %lld elements apart", name, n, (long long)s->stride);
}

static void fill(const scene *s, contents *start)
{
    for (int m = 0; m < MATRICES; m++)
        for (int row = 0; row < MOST_ROWS; row++)
            tpt_fill_uniform(start->rows[m][row], s->dtype, MATRIX_COLS, (uint64_t)(m * MOST_ROWS + row), -1, 1);
    for (int n = 0; n < NUMBERS; n++)
        tpt_fill_uniform(start->numbers[n], TP_DTYPE_F32, NUMBERS_LENGTH, (uint64_t)n + 5000, -1, 1);
}

/* far_memory: room for the rows at their distance. */
static void check_distance(const distance *at, scene s, char *far_memory, char *near_memory)
{
    contents *start = tpt_allocate(sizeof *start), *near = tpt_allocate(sizeof *near), *far = tpt_allocate(sizeof *far);
    const size_t size = tp_dtype_size(s.dtype);

    s.rows = at->rows;
    s.cols = at->cols;
    fill(&s, start);
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        if (s.rows > 3 && !ops[i].tiles)
            continue;
        if (ops[i].issue == attention_op && size == 2 && at->stride > MOST_ATTENTION_STRIDE)
            continue;
        for (int is_far = 0; is_far < 2; is_far++) {
            contents *result = is_far ? far : near;

            s.stride = is_far ? at->stride : at->near_stride;
            for (int m = 0; m < MATRICES; m++)
                s.matrix[m] = (is_far ? far_memory : near_memory) + (size_t)(m * MATRIX_COLS) * size;
            move_contents(&s, ops[i].matrices, start, true);
            ops[i].issue(&s);
            move_contents(&s, ops[i].matrices, result, false);
        }
        check_same(ops[i].name, &s, ops[i].matrices, far, near);
    }
    free(start);
    free(near);
    free(far);
}

static void check_dtype(tp_dtype dtype)
{
    const size_t near_bytes = (size_t)(MOST_ROWS * NEAR_STRIDE) * sizeof(float),
                 dense_bytes = sizeof(float) * NUMBERS * NUMBERS_LENGTH,
                 far_bytes = (size_t)FAR_ELEMENTS * tp_dtype_size(dtype);
    tpt_sides sides;
    scene s = {.dtype = dtype};
    void *far, *near, *dense, *ids;

    tpt_sides_open_on(&sides, &(gpusim_options){.devices = 1, .device_bytes = (size_t)20 << 30});
    s.ctx = sides.ctx[TPT_GPU];
    cr_assert_eq(tp_ctx_allocate(s.ctx, TP_MEMORY_OTHER, far_bytes, &far), TP_OK, "%s", tp_ctx_message(s.ctx));
    cr_assert_eq(tp_ctx_allocate(s.ctx, TP_MEMORY_OTHER, near_bytes, &near), TP_OK);
    cr_assert_eq(tp_ctx_allocate(s.ctx, TP_MEMORY_OTHER, dense_bytes, &dense), TP_OK);
    cr_assert_eq(tp_ctx_allocate(s.ctx, TP_MEMORY_OTHER, MOST_ROWS * sizeof(int32_t), &ids), TP_OK);
    for (int n = 0; n < NUMBERS; n++)
        s.numbers[n] = (float *)dense + n * NUMBERS_LENGTH;
    s.ids = ids;
    for (size_t i = 0; i < sizeof distances / sizeof distances[0]; i++)
        check_distance(&distances[i], s, far, near);
    tp_ctx_release(s.ctx, TP_MEMORY_OTHER, far, far_bytes);
    tp_ctx_release(s.ctx, TP_MEMORY_OTHER, near, near_bytes);
    tp_ctx_release(s.ctx, TP_MEMORY_OTHER, dense, dense_bytes);
    tp_ctx_release(s.ctx, TP_MEMORY_OTHER, ids, MOST_ROWS * sizeof(int32_t));
    tpt_sides_close(&sides);
}

Test(cuda_distances, attention_refuses_rows_too_far_apart)
{
    static const char *const names[] = {"q_stride", "k_stride", "v_stride", "dout_stride"};
    static const int32_t first_head = 0;
    tpt_sides sides;

    tpt_sides_open(&sides);
    tpt_pair memory = tpt_pair_array(&sides, NULL, TP_DTYPE_BF16, 64);
    char *data = memory.at[TPT_GPU];
    for (int far = 0; far < 4; far++) {
        tpi_attention_grad_args args = {.forward = {.rows = 1,
                                                    .heads = 1,
                                                    .kv_heads = 1,
                                                    .head_dim = 8,
                                                    .dtype = TP_DTYPE_BF16,
                                                    .q = data,
                                                    .k = data,
                                                    .v = data,
                                                    .q_stride = 8,
                                                    .k_stride = 8,
                                                    .v_stride = 8,
                                                    .out = data,
                                                    .out_stride = 8,
                                                    .lse = (float *)(void *)data,
                                                    .kv_of_head = &first_head,
                                                    .scale = 1,
                                                    .total_heads = 1},
                                        .dout = data,
                                        .dout_stride = 8,
                                        .dq = data,
                                        .dq_stride = 8,
                                        .slots = 1,
                                        .slot_of_head = &first_head,
                                        .dk = (float *)(void *)data,
                                        .dv = (float *)(void *)data};
        int64_t *const strides[] = {&args.forward.q_stride, &args.forward.k_stride, &args.forward.v_stride,
                                    &args.dout_stride};
        tp_ctx *ctx = sides.ctx[TPT_GPU];

        *strides[far] = (int64_t)MOST_ATTENTION_STRIDE + 1;
        cr_assert_eq(tpi_attention_grad(ctx->compute, &args), TP_ERR_UNSUPPORTED);
        cr_assert(strstr(tp_ctx_message(ctx), names[far]), "%s", tp_ctx_message(ctx));
        if (far < 3)
            cr_assert_eq(tpi_attention(ctx->compute, &args.forward), TP_ERR_UNSUPPORTED);
    }
    tpt_pair_same(&sides, "memory", &memory, TP_DTYPE_BF16);
    tpt_sides_close(&sides);
}

Test(cuda_distances, f32, .timeout = 100)
{
    check_dtype(TP_DTYPE_F32);
}

Test(cuda_distances, bf16, .timeout = 100)
{
    check_dtype(TP_DTYPE_BF16);
}
