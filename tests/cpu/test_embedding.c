/* Embedding rows and their gradient. */
#include "cpu/machines.h"

static tp_status run_embedding(tp_ctx *ctx, const void *test, void *out)
{
    tpi_embedding_args args = *(const tpi_embedding_args *)test;

    args.out = out;
    return tpi_embedding(ctx->compute, &args);
}

static tp_status run_embedding_grad(tp_ctx *ctx, const void *test, void *out)
{
    tpi_embedding_grad_args args = *(const tpi_embedding_grad_args *)test;

    args.grad = out;
    return tpi_embedding_grad(ctx->compute, &args);
}

enum { ROWS = 29, VOCABULARY = 50, FIRST = 10, TABLE_ROWS = 30 };

static void fill_ids(int32_t *ids)
{
    for (int i = 0; i < ROWS; i++)
        ids[i] = i % 3 == 0 ? 17 : i * 7919 % VOCABULARY; /* 17 again and again */
    ids[1] = FIRST;
    ids[2] = FIRST + TABLE_ROWS - 1;
    ids[4] = FIRST + TABLE_ROWS;
    ids[5] = FIRST - 1;
}

static void check_embedding(const machines *all, int64_t cols, tp_dtype table_dtype, tp_dtype out_dtype)
{
    int32_t ids[ROWS];
    void *table = tpt_new_normal(table_dtype, TABLE_ROWS * cols, 1, 1), *got;
    tpi_embedding_args args = {.rows = ROWS,
                               .cols = cols,
                               .ids = ids,
                               .table = table,
                               .table_dtype = table_dtype,
                               .first_id = FIRST,
                               .table_rows = TABLE_ROWS,
                               .vocabulary = VOCABULARY,
                               .out_dtype = out_dtype};

    fill_ids(ids);
    tpt_set(table, table_dtype, 0, -0.0);
    got = machines_run(all, run_embedding, &args, NULL, (size_t)(ROWS * cols) * tp_dtype_size(out_dtype));
    for (int64_t e = 0; e < ROWS * cols; e++) {
        int64_t id = ids[e / cols] - FIRST;
        bool here = id >= 0 && id < TABLE_ROWS;
        double want = here ? tpt_get(table, table_dtype, id * cols + e % cols) : 0;

        cr_assert_eq(tpt_get(got, out_dtype, e), want);
        cr_assert(want != 0 || !signbit(tpt_get(got, out_dtype, e)),
                  "-0 must become +0, as it does where ranks add zeros");
    }
    free(table);
    free(got);
}

Test(embedding, rows_by_id)
{
    static const int64_t widths[] = {1, 16, 37, 9001};
    machines all = machines_open();

    for (int w = 0; w < 4; w++) {
        for (int d = 0; d < 3; d++) {
            check_embedding(&all, widths[w], machine_floats[d], machine_floats[d]);
            check_embedding(&all, widths[w], machine_floats[d], TP_DTYPE_F32);
        }
    }
    machines_close(&all);
}

Test(embedding, positions_restart_with_each_sequence)
{
    static const int64_t offsets[] = {0, 3, 3, 7};
    static const int places[] = {0, 1, 2, 0, 1, 2, 3};
    machines all = machines_open();
    float table[4] = {10, 11, 12, 13}, *got;
    tpi_embedding_args args = {.rows = 7,
                               .cols = 1,
                               .offsets = offsets,
                               .sequences = 3,
                               .table = table,
                               .table_dtype = TP_DTYPE_F32,
                               .table_rows = 4,
                               .vocabulary = 4,
                               .out_dtype = TP_DTYPE_F32};

    got = machines_run(&all, run_embedding, &args, NULL, 7 * sizeof(float));
    for (int i = 0; i < 7; i++)
        cr_assert_eq(got[i], table[places[i]]);
    free(got);
    args.offsets = NULL;
    args.sequences = 2;
    args.rows = 8;
    got = machines_run(&all, run_embedding, &args, NULL, 8 * sizeof(float));
    for (int i = 0; i < 8; i++)
        cr_assert_eq(got[i], table[i % 4]);
    free(got);
    machines_close(&all);
}

/* Nothing is written, and the message names the place, the id and how many there are. */
static void check_refused(tp_status (*run)(tp_ctx *ctx, const void *test, void *out), const void *args,
                          const char *message)
{
    tp_ctx_desc desc = {0};
    tp_ctx *ctx;
    tp_status status;
    float out[4] = {5, 5, 5, 5};

    cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_OK);
    status = run(ctx, args, out);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    cr_assert_eq(status, TP_ERR_ARGUMENT);
    cr_assert_str_eq(tp_ctx_message(ctx), message);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(out[i], 5.0f, "written before the check");
    tp_ctx_destroy(ctx);
}

typedef struct refusal {
    int32_t ids[4];
    bool positions, none; /* what they are; not given, but counted */
    int64_t cols, table_rows, vocabulary;
    const char *message;
} refusal;

/* Both directions look at all ids, those of other ranks' rows among them, also without columns or rows. */
Test(embedding, ids_outside_are_refused)
{
    static const refusal cases[] = {
        {{0, 1, 50, 2}, false, false, 1, 4, 50, "pass: ids[2] is 50, must be in [0, vocabulary 50)"},
        {{0, 1, INT32_MAX, 2}, false, false, 1, 4, 50, "pass: ids[2] is 2147483647, must be in [0, vocabulary 50)"},
        {{0, 1, 49, -1}, false, false, 1, 4, 50, "pass: ids[3] is -1, must be in [0, vocabulary 50)"},
        {{0, 1, 49, -1}, false, false, 0, 4, 50, "pass: ids[3] is -1, must be in [0, vocabulary 50)"},
        {{0, 1, 49, -1}, false, false, 1, 0, 50, "pass: ids[3] is -1, must be in [0, vocabulary 50)"},
        {{0, 1, 49, -1}, true, false, 1, 4, 50, "pass: positions[3] is -1, must be in [0, positions 50)"},
        {{0}, false, true, 1, 3, 3, "pass: positions[3] is 3, must be in [0, positions 3)"},
    };
    static const float table[50], dy[4];
    tpi_embedding_args forward = {.rows = 4, .table = table, .table_dtype = TP_DTYPE_F32, .out_dtype = TP_DTYPE_F32};
    tpi_embedding_grad_args backward = {.rows = 4, .dy = dy, .dy_dtype = TP_DTYPE_F32};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const refusal *one = &cases[i];

        forward.ids = backward.ids = one->none ? NULL : one->ids;
        forward.positions = backward.positions = one->positions;
        forward.cols = backward.cols = one->cols;
        forward.table_rows = backward.table_rows = one->table_rows;
        forward.vocabulary = backward.vocabulary = one->vocabulary;
        check_refused(run_embedding, &forward, one->message);
        check_refused(run_embedding_grad, &backward, one->message);
    }
    forward.ids = cases[5].ids; /* not the pass's first rows */
    forward.positions = true;
    forward.vocabulary = 50;
    forward.first_row = 7;
    check_refused(run_embedding, &forward, "pass: positions[10] is -1, must be in [0, positions 50)");
}

static void check_grad(const machines *all, int64_t cols, tp_dtype dtype)
{
    int32_t ids[ROWS];
    void *dy = tpt_new_normal(dtype, ROWS * cols, 1, 1);
    float *before = tpt_new_normal(TP_DTYPE_F32, TABLE_ROWS * cols, 2, 1),
          *want = tpt_array(TP_DTYPE_F32, TABLE_ROWS * cols), *got;
    tpi_embedding_grad_args args = {.rows = ROWS,
                                    .cols = cols,
                                    .ids = ids,
                                    .dy = dy,
                                    .dy_dtype = dtype,
                                    .first_id = FIRST,
                                    .table_rows = TABLE_ROWS,
                                    .vocabulary = VOCABULARY};

    fill_ids(ids);
    memcpy(want, before, (size_t)(TABLE_ROWS * cols) * sizeof(float));
    for (int row = 0; row < ROWS; row++) { /* the chain over tokens in order, exactly */
        int64_t id = ids[row] - FIRST;

        for (int64_t c = 0; id >= 0 && id < TABLE_ROWS && c < cols; c++)
            want[id * cols + c] += (float)tpt_get(dy, dtype, row * cols + c);
    }
    got = machines_run(all, run_embedding_grad, &args, before, (size_t)(TABLE_ROWS * cols) * sizeof(float));
    cr_assert(tpt_same_bits("gradient", got, want, TP_DTYPE_F32, TABLE_ROWS * cols));
    free(dy);
    free(before);
    free(want);
    free(got);
}

Test(embedding, gradient_is_a_chain_over_tokens)
{
    static const int64_t widths[] = {1, 16, 127, 300};
    machines all = machines_open();

    for (int w = 0; w < 4; w++) {
        for (int d = 0; d < 3; d++)
            check_grad(&all, widths[w], machine_floats[d]);
    }
    machines_close(&all);
}
