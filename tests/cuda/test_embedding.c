/* Embedding rows and their gradient in token order: the CPU's bits. */
#include "cuda/cuda_support.h"

typedef struct embedding_case {
    int64_t rows, cols, first_id, table_rows, vocabulary, sequences;
    const int64_t *offsets;
    tp_dtype table_dtype, out_dtype;
    bool ids;
    int same; /* how many different ids at most; 0: any */
} embedding_case;

static tpt_pair make_ids(tpt_sides *sides, const embedding_case *test)
{
    int32_t *ids = tpt_array(TP_DTYPE_I32, test->rows);
    uint64_t state = 12345;
    tpt_pair pair;

    for (int64_t row = 0; row < test->rows; row++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[row] = (int32_t)((state >> 33) % (uint64_t)(test->same ? test->same : test->vocabulary));
    }
    pair = tpt_pair_array(sides, ids, TP_DTYPE_I32, test->rows);
    free(ids);
    return pair;
}

static void check_embedding(tpt_sides *sides, const embedding_case *test)
{
    tpi_embedding_args args = {.rows = test->rows,
                               .cols = test->cols,
                               .offsets = test->offsets,
                               .sequences = test->sequences,
                               .table_dtype = test->table_dtype,
                               .first_id = test->first_id,
                               .table_rows = test->table_rows,
                               .vocabulary = test->vocabulary,
                               .out_dtype = test->out_dtype};
    tpi_embedding_grad_args grad = {.rows = test->rows,
                                    .cols = test->cols,
                                    .offsets = test->offsets,
                                    .sequences = test->sequences,
                                    .dy_dtype = test->out_dtype,
                                    .first_id = test->first_id,
                                    .table_rows = test->table_rows,
                                    .vocabulary = test->vocabulary};
    tpt_pair ids = make_ids(sides, test), table, out, dy, table_grad;

    table = tpt_pair_normal(sides, args.table_dtype, args.table_rows * args.cols, 1, 1);
    out = tpt_pair_array(sides, NULL, args.out_dtype, args.rows * args.cols);
    dy = tpt_pair_normal(sides, grad.dy_dtype, args.rows * args.cols, 2, 1);
    table_grad = tpt_pair_normal(sides, TP_DTYPE_F32, args.table_rows * args.cols, 3, 1);
    for (int side = 0; side < TPT_SIDES; side++) {
        args.ids = grad.ids = test->ids ? (int32_t *)(void *)ids.at[side] : NULL;
        args.table = table.at[side];
        args.out = out.at[side];
        grad.dy = dy.at[side];
        grad.grad = (float *)(void *)table_grad.at[side];
        TPT_ISSUE(sides, side, tpi_embedding, &args);
        TPT_ISSUE(sides, side, tpi_embedding_grad, &grad);
    }
    tpt_pair_same(sides, "out", &out, args.out_dtype);
    tpt_pair_same(sides, "grad", &table_grad, TP_DTYPE_F32);
    tpt_sides_reset(sides);
}

Test(cuda_embedding, ids)
{
    static const int64_t shapes[][5] = {/* rows, cols, first_id, table_rows, vocabulary */
                                        {0, 4, 0, 5, 5},    {3, 0, 0, 5, 5},          {1, 1, 0, 1, 1},
                                        {7, 8, 0, 0, 5},    {40, 24, 3, 9, 20},       {257, 5, 0, 300, 300},
                                        {33, 160, 7, 2, 9}, {5000, 3, 100, 700, 1000},
                                        {1025, 1, 0, 511, 512}, {3000, 1, 0, 512, 513}, {2049, 1, 5, 300000, 400000}};
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int d = 0; d < 3; d++) {
            embedding_case test = {.rows = shapes[s][0],
                                   .cols = shapes[s][1],
                                   .first_id = shapes[s][2],
                                   .table_rows = shapes[s][3],
                                   .vocabulary = shapes[s][4],
                                   .ids = true};

            if (test.rows > 1000 && d > 0)
                continue;
            test.table_dtype = tpt_floats[d];
            test.out_dtype = s % 2 ? TP_DTYPE_F32 : tpt_floats[d];
            test.same = d == 1 && s > 3 ? 2 : 0;
            check_embedding(&sides, &test);
        }
    tpt_sides_close(&sides);
}

/* A few ids of many tokens each, more than wait in shared memory at once, and many of few. */
Test(cuda_embedding, frequent_ids)
{
    static const int64_t shapes[][3] = {/* rows, cols, different ids */
                                        {64, 8, 1},     {63, 8, 1},   {1000, 136, 3},
                                        {1000, 130, 3}, {700, 5, 11}, {65, 3, 1}};
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int d = 0; d < 3; d++) {
            embedding_case test = {.rows = shapes[s][0],
                                   .cols = shapes[s][1],
                                   .table_rows = 9,
                                   .vocabulary = 12,
                                   .same = (int)shapes[s][2],
                                   .ids = true};

            test.table_dtype = test.out_dtype = tpt_floats[d];
            check_embedding(&sides, &test);
        }
    tpt_sides_close(&sides);
}

Test(cuda_embedding, positions)
{
    static const int64_t packed[] = {0, 5, 5, 6, 13};
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int mode = 0; mode < 3; mode++)
        for (int d = 0; d < 3; d++) {
            embedding_case test = {.rows = mode == 2 ? 13 : 12,
                                   .cols = 16 + d,
                                   .table_rows = 6,
                                   .first_id = d,
                                   .vocabulary = 13,
                                   .sequences = mode == 1 ? 3 : 4};

            if (mode == 0)
                test.sequences = 0;
            test.offsets = mode == 2 ? packed : NULL;
            test.table_dtype = test.out_dtype = tpt_floats[d];
            check_embedding(&sides, &test);
        }
    tpt_sides_close(&sides);
}

/* Forward, backward, and each without columns, backward without rows of the table. */
enum { FORWARD, FORWARD_NARROW, BACKWARD, BACKWARD_NARROW, BACKWARD_EMPTY, DIRECTIONS };

static tp_status issue_direction(tpt_sides *sides, int side, int direction, const tpt_pair *pairs, bool positions)
{
    tp_ctx *ctx = sides->ctx[side];
    tpi_embedding_args args = {.rows = 5,
                               .cols = direction == FORWARD_NARROW ? 0 : 8,
                               .ids = (int32_t *)(void *)pairs[0].at[side],
                               .table = pairs[1].at[side],
                               .table_dtype = TP_DTYPE_F32,
                               .table_rows = 4,
                               .vocabulary = 4,
                               .out = pairs[2].at[side],
                               .out_dtype = TP_DTYPE_F32,
                               .positions = positions};
    tpi_embedding_grad_args grad = {.rows = 5,
                                    .cols = direction == BACKWARD_NARROW ? 0 : 8,
                                    .ids = args.ids,
                                    .dy = pairs[2].at[side],
                                    .dy_dtype = TP_DTYPE_F32,
                                    .table_rows = direction == BACKWARD_EMPTY ? 0 : 4,
                                    .vocabulary = 4,
                                    .grad = (float *)(void *)pairs[1].at[side],
                                    .positions = positions};
    return direction < BACKWARD ? tpi_embedding(ctx->compute, &args) : tpi_embedding_grad(ctx->compute, &grad);
}

/* The same verdict and words on both sides: the CPU refuses, the GPU's context fails at its next synchronisation. */
static void expect_fault(int direction, int32_t bad, bool positions, const char *words)
{
    tpt_sides sides;
    int32_t ids[5] = {0, 1, bad, 2, 3};
    tpt_pair pairs[3];

    tpt_sides_open(&sides);
    pairs[0] = tpt_pair_of(&sides, ids, sizeof ids);
    pairs[1] = tpt_pair_normal(&sides, TP_DTYPE_F32, 4 * 8, 1, 1);
    pairs[2] = tpt_pair_normal(&sides, TP_DTYPE_F32, 5 * 8, 2, 1);
    cr_assert_eq(issue_direction(&sides, TPT_CPU, direction, pairs, positions), TP_ERR_ARGUMENT);
    cr_assert_eq(issue_direction(&sides, TPT_GPU, direction, pairs, positions), TP_OK);
    cr_assert_eq(tp_ctx_synchronize(sides.ctx[TPT_GPU]), TP_ERR_ARGUMENT);
    for (int side = 0; side < TPT_SIDES; side++)
        cr_assert_str_eq(tp_ctx_message(sides.ctx[side]), words);
    cr_assert_eq(tpt_simulator_reports(), 0);
    for (int side = 0; side < TPT_SIDES; side++) {
        for (int i = 0; i < sides.pairs; i++)
            tp_ctx_release(sides.ctx[side], TP_MEMORY_OTHER, sides.pair[i].at[side], sides.pair[i].bytes);
        tp_ctx_destroy(sides.ctx[side]);
    }
}

Test(cuda_embedding, wrong_ids)
{
    for (int direction = 0; direction < DIRECTIONS; direction++) {
        expect_fault(direction, 4, false, "pass: ids[2] is 4, must be in [0, vocabulary 4)");
        expect_fault(direction, -1, false, "pass: ids[2] is -1, must be in [0, vocabulary 4)");
        expect_fault(direction, INT32_MIN, true, "pass: positions[2] is -2147483648, must be in [0, positions 4)");
    }
    expect_fault(BACKWARD, INT32_MAX, true, "pass: positions[2] is 2147483647, must be in [0, positions 4)");
}

/* Ids at both ends are right ones, whoever has their rows. */
Test(cuda_embedding, ids_at_the_ends)
{
    tpt_sides sides;
    int32_t ids[5] = {0, 3, 0, 3, 3};
    tpt_pair pairs[3];

    tpt_sides_open(&sides);
    pairs[0] = tpt_pair_of(&sides, ids, sizeof ids);
    pairs[1] = tpt_pair_normal(&sides, TP_DTYPE_F32, 4 * 8, 1, 1);
    pairs[2] = tpt_pair_normal(&sides, TP_DTYPE_F32, 5 * 8, 2, 1);
    for (int direction = 0; direction < DIRECTIONS; direction++)
        for (int side = 0; side < TPT_SIDES; side++)
            cr_assert_eq(issue_direction(&sides, side, direction, pairs, false), TP_OK);
    tpt_pair_same(&sides, "table or gradient", &pairs[1], TP_DTYPE_F32);
    tpt_pair_same(&sides, "rows", &pairs[2], TP_DTYPE_F32);
    tpt_sides_close(&sides);
}

Test(cuda_embedding, wrong_positions)
{
    tpt_sides sides;
    tpi_embedding_args args = {
        .rows = 5, .cols = 8, .table_dtype = TP_DTYPE_F32, .table_rows = 4, .vocabulary = 4, .out_dtype = TP_DTYPE_F32};
    tpt_pair table, out;

    tpt_sides_open(&sides);
    table = tpt_pair_normal(&sides, TP_DTYPE_F32, 4 * 8, 1, 1);
    out = tpt_pair_array(&sides, NULL, TP_DTYPE_F32, 5 * 8);
    args.table = table.at[TPT_GPU];
    args.out = out.at[TPT_GPU];
    cr_assert_eq(tpi_embedding(sides.ctx[TPT_GPU]->compute, &args), TP_ERR_ARGUMENT);
    cr_assert_str_eq(tp_ctx_message(sides.ctx[TPT_GPU]), "pass: positions[4] is 4, must be in [0, positions 4)");
    for (int side = 0; side < TPT_SIDES; side++) {
        tpi_embedding_grad_args grad = {.rows = 5,
                                        .cols = 8,
                                        .dy = out.at[side],
                                        .dy_dtype = TP_DTYPE_F32,
                                        .sequences = 5, /* each has position 0 only */
                                        .table_rows = 4,
                                        .vocabulary = 4,
                                        .grad = (float *)(void *)table.at[side]};

        TPT_ISSUE(&sides, side, tpi_embedding_grad, &grad);
        grad.sequences = 0;
        if (side == TPT_CPU) /* tests/cpu has that */
            continue;
        cr_assert_eq(tpi_embedding_grad(sides.ctx[side]->compute, &grad), TP_ERR_ARGUMENT);
        cr_assert_str_eq(tp_ctx_message(sides.ctx[side]), "pass: positions[4] is 4, must be in [0, positions 4)");
    }
    tpt_sides_close(&sides);
}

/* More sequences than the staging of host arrays holds: lengths 0 and 1, then others, without waiting in between. */
Test(cuda_embedding, very_many_sequences)
{
    enum { SEQUENCES = 140000, ROWS = 300 };
    int64_t *offsets[2];
    tpt_sides sides;
    tpi_embedding_args args = {.rows = ROWS,
                               .cols = 4,
                               .sequences = SEQUENCES,
                               .table_dtype = TP_DTYPE_F32,
                               .table_rows = 3,
                               .vocabulary = 3,
                               .out_dtype = TP_DTYPE_F32};
    tpt_pair table, out[2];

    tpt_sides_open(&sides);
    table = tpt_pair_normal(&sides, TP_DTYPE_F32, 3 * 4, 1, 1);
    for (int turn = 0; turn < 2; turn++) {
        out[turn] = tpt_pair_array(&sides, NULL, TP_DTYPE_F32, ROWS * 4);
        offsets[turn] = malloc((SEQUENCES + 1) * sizeof *offsets[turn]);
        for (int64_t s = 0; s <= SEQUENCES; s++) /* of one token each, or of three */
            offsets[turn][s] = turn == 0 ? s * ROWS / SEQUENCES : s * (ROWS / 3) / SEQUENCES * 3;
    }
    for (int side = 0; side < TPT_SIDES; side++)
        for (int turn = 0; turn < 2; turn++) {
            args.offsets = offsets[turn];
            args.table = table.at[side];
            args.out = out[turn].at[side];
            TPT_ISSUE(&sides, side, tpi_embedding, &args);
        }
    for (int turn = 0; turn < 2; turn++) {
        tpt_pair_same(&sides, "out", &out[turn], TP_DTYPE_F32);
        free(offsets[turn]);
    }
    tpt_sides_close(&sides);
}

/* Tokens are sorted by numbers of 32 bits: more are refused before anything is read or written. */
Test(cuda_embedding, a_gradient_of_too_many_tokens_is_refused)
{
    tpt_sides sides;
    tpt_sides_open(&sides);
    tp_ctx *ctx = sides.ctx[TPT_GPU];
    tpt_pair data = tpt_pair_normal(&sides, TP_DTYPE_F32, 4, 1, 1);
    const tpi_embedding_grad_args args = {.rows = (int64_t)1 << 32,
                                          .cols = 1,
                                          .ids = (const int32_t *)(const void *)data.at[TPT_GPU],
                                          .dy = data.at[TPT_GPU],
                                          .dy_dtype = TP_DTYPE_F32,
                                          .table_rows = 1,
                                          .vocabulary = 1,
                                          .grad = (float *)(void *)data.at[TPT_GPU]};
    cr_assert_eq(tpi_embedding_grad(ctx->compute, &args), TP_ERR_UNSUPPORTED);
    cr_assert_str_eq(tp_ctx_message(ctx), "embedding_grad: rows is 4294967296, the most on a GPU is 4294967295");
    tpt_pair_same(&sides, "data", &data, TP_DTYPE_F32);
    tpt_sides_close(&sides);
}
