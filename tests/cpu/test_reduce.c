/* reduce: the tree, its epilogue, storage types, integers. */
#include "cpu/machines.h"

enum { MOST_OUTPUTS = 64 }; /* of the last step of a ring: one a rank */

typedef struct reduce_case {
    tpi_reduce_args args; /* without outputs */
    int outputs;
} reduce_case;

static tp_status run_reduce(tp_ctx *ctx, const void *test, void *out)
{
    const reduce_case *c = test;
    tpi_reduce_args args = c->args;
    size_t bytes = (size_t)(args.rows * args.cols) * tp_dtype_size(args.out_dtype);
    void *outs[MOST_OUTPUTS];
    tp_status status;

    for (int o = 0; o < c->outputs; o++)
        outs[o] = (char *)out + (size_t)o * bytes;
    args.outputs = c->outputs;
    args.out = outs;
    status = tpi_reduce(ctx->compute, &args);
    tp_ctx_synchronize(ctx);
    return status;
}

/* The tree as its definition has it, in f32. */
static float tree_of(float *leaf, int count)
{
    for (int distance = 1; distance < count; distance *= 2) {
        for (int i = 0; i + distance < count; i += 2 * distance)
            leaf[i] = leaf[i] + leaf[i + distance];
    }
    return leaf[0];
}

static float float_at(const void *data, tp_dtype dtype, int64_t i)
{
    return (float)tpt_get(data, dtype, i);
}

static void check_sum(const machines *all, int inputs, tp_dtype in_dtype, tp_dtype out_dtype, int64_t rows,
                      int64_t cols)
{
    int64_t elements = rows * cols;
    const void *in[64];
    reduce_case c = {.args = {.op = TP_REDUCE_SUM,
                              .inputs = inputs,
                              .in = in,
                              .in_dtype = in_dtype,
                              .out_dtype = out_dtype,
                              .rows = rows,
                              .cols = cols},
                     .outputs = 2};
    void *want = tpt_array(out_dtype, elements), *got;

    for (int i = 0; i < inputs; i++)
        in[i] = tpt_new_normal(in_dtype, elements, (uint64_t)i + 7, 1);
    for (int64_t e = 0; e < elements; e++) {
        float leaf[64];

        for (int i = 0; i < inputs; i++)
            leaf[i] = float_at(in[i], in_dtype, e);
        tpt_set(want, out_dtype, e, (double)tree_of(leaf, inputs));
    }
    got = machines_run(all, run_reduce, &c, NULL, 2 * (size_t)elements * tp_dtype_size(out_dtype));
    cr_assert(tpt_same_bits("first output", got, want, out_dtype, elements));
    cr_assert(tpt_same_bits("second output", (char *)got + (size_t)elements * tp_dtype_size(out_dtype), want, out_dtype,
                            elements));
    for (int i = 0; i < inputs; i++)
        free((void *)in[i]);
    free(want);
    free(got);
}

Test(reduce, sums_are_the_tree_of_neighbours)
{
    static const int inputs[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 33, 63, 64};
    machines all = machines_open();

    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        check_sum(&all, inputs[i], TP_DTYPE_F32, TP_DTYPE_F32, 3, 37);
        check_sum(&all, inputs[i], TP_DTYPE_BF16, TP_DTYPE_BF16, 1, 17);
        check_sum(&all, inputs[i], TP_DTYPE_F16, TP_DTYPE_F32, 5, 1);
    }
    check_sum(&all, 2, TP_DTYPE_F32, TP_DTYPE_BF16, 2, 20011);
    check_sum(&all, 4, TP_DTYPE_F32, TP_DTYPE_F16, 1, 16384);
    check_sum(&all, 3, TP_DTYPE_F32, TP_DTYPE_F32, 0, 5);
    machines_close(&all);
}

Test(reduce, one_input_is_kept_as_it_is)
{
    machines all = machines_open();
    float zero[3] = {-0.0f, 1.0f, -INFINITY};
    reduce_case c = {
        .args =
            {.inputs = 1, .leaf = {zero}, .in_dtype = TP_DTYPE_F32, .out_dtype = TP_DTYPE_F32, .rows = 1, .cols = 3},
        .outputs = 1};
    float *got = machines_run(&all, run_reduce, &c, NULL, sizeof zero);

    cr_assert(memcmp(got, zero, sizeof zero) == 0);
    free(got);
    machines_close(&all);
}

/* bias, dropout and residual in f32 on the root, one rounding. */
static void check_epilogue(const machines *all, tp_dtype dtype, float dropout)
{
    enum { ROWS = 5, COLS = 23 };
    const tp_random_key key = {11, 12};
    const void *in[3];
    void *bias = tpt_new_normal(dtype, COLS, 20, 1), *residual = tpt_new_normal(dtype, ROWS * COLS, 21, 1),
         *want = tpt_array(dtype, ROWS * COLS), *got;
    reduce_case c = {.args = {.inputs = 3,
                              .in = in,
                              .in_dtype = TP_DTYPE_F32,
                              .out_dtype = dtype,
                              .rows = ROWS,
                              .cols = COLS,
                              .bias = bias,
                              .bias_dtype = dtype,
                              .residual = residual,
                              .dropout = dropout,
                              .dropout_key = key,
                              .first_row = 9,
                              .first_col = 5,
                              .total_cols = 31},
                     .outputs = 1};

    for (int i = 0; i < 3; i++)
        in[i] = tpt_new_normal(TP_DTYPE_F32, ROWS * COLS, (uint64_t)i + 30, 1);
    for (int64_t e = 0; e < ROWS * COLS; e++) {
        float leaf[3], x;
        uint64_t index = (uint64_t)((9 + e / COLS) * 31 + 5 + e % COLS);

        for (int i = 0; i < 3; i++)
            leaf[i] = float_at(in[i], TP_DTYPE_F32, e);
        x = tree_of(leaf, 3) + float_at(bias, dtype, e % COLS);
        if (dropout > 0)
            x = tp_random_u32(key, index) >= tp_random_threshold(dropout) ? x * (1 / (1 - dropout)) : 0;
        tpt_set(want, dtype, e, (double)(x + float_at(residual, dtype, e)));
    }
    got = machines_run(all, run_reduce, &c, NULL, ROWS * COLS * tp_dtype_size(dtype));
    cr_assert(tpt_same_bits("epilogue", got, want, dtype, ROWS * COLS));
    for (int i = 0; i < 3; i++)
        free((void *)in[i]);
    free(bias);
    free(residual);
    free(want);
    free(got);
}

Test(reduce, epilogue_is_on_the_root_and_rounded_once)
{
    machines all = machines_open();

    for (int d = 0; d < 3; d++) {
        check_epilogue(&all, machine_floats[d], 0);
        check_epilogue(&all, machine_floats[d], 0.3f);
    }
    machines_close(&all);
}

Test(reduce, nan_wins_in_max_and_min)
{
    machines all = machines_open();
    float a[4] = {1, NAN, 3, -0.0f}, b[4] = {2, 2, NAN, -5};

    for (int op = TP_REDUCE_MAX; op <= TP_REDUCE_MIN; op++) {
        reduce_case c = {.args = {.op = (tp_reduce_op)op,
                                  .inputs = 2,
                                  .leaf = {a, b},
                                  .in_dtype = TP_DTYPE_F32,
                                  .out_dtype = TP_DTYPE_F32,
                                  .rows = 2,
                                  .cols = 2},
                         .outputs = 1};
        float *got = machines_run(&all, run_reduce, &c, NULL, sizeof a);

        cr_assert_eq(got[0], op == TP_REDUCE_MAX ? 2.0f : 1.0f);
        cr_assert(isnan(got[1]) && isnan(got[2]));
        cr_assert_eq(got[3], op == TP_REDUCE_MAX ? 0.0f : -5.0f);
        free(got);
    }
    machines_close(&all);
}

Test(reduce, integers_wrap)
{
    machines all = machines_open();
    int32_t a[3] = {INT32_MAX, -7, 5}, b[3] = {1, 3, 5};
    uint8_t x[3] = {200, 1, 9}, y[3] = {100, 2, 9};
    int64_t p[2] = {INT64_MAX, 4}, q[2] = {1, -9};
    reduce_case c = {
        .args =
            {.inputs = 2, .leaf = {a, b}, .in_dtype = TP_DTYPE_I32, .out_dtype = TP_DTYPE_I32, .rows = 1, .cols = 3},
        .outputs = 1};
    int32_t *sums = machines_run(&all, run_reduce, &c, NULL, sizeof a), *largest;
    uint8_t *bytes;
    int64_t *wide;

    cr_assert(sums[0] == INT32_MIN && sums[1] == -4 && sums[2] == 10);
    c.args.op = TP_REDUCE_MAX;
    largest = machines_run(&all, run_reduce, &c, NULL, sizeof a);
    cr_assert(largest[0] == INT32_MAX && largest[1] == 3 && largest[2] == 5);
    c = (reduce_case){
        .args = {.inputs = 2, .leaf = {x, y}, .in_dtype = TP_DTYPE_U8, .out_dtype = TP_DTYPE_U8, .rows = 1, .cols = 3},
        .outputs = 1};
    bytes = machines_run(&all, run_reduce, &c, NULL, sizeof x);
    cr_assert(bytes[0] == 44 && bytes[1] == 3 && bytes[2] == 18);
    c = (reduce_case){
        .args =
            {.inputs = 2, .leaf = {p, q}, .in_dtype = TP_DTYPE_I64, .out_dtype = TP_DTYPE_I64, .rows = 1, .cols = 2},
        .outputs = 1};
    wide = machines_run(&all, run_reduce, &c, NULL, sizeof p);
    cr_assert(wide[0] == INT64_MIN && wide[1] == -5);
    free(sums);
    free(largest);
    free(bytes);
    free(wide);
    machines_close(&all);
}

Test(reduce, an_input_may_be_the_output)
{
    machines all = machines_open();

    for (int i = 0; i < all.count; i++) {
        float *a = tpt_new_normal(TP_DTYPE_F32, 40000, 1, 1), *b = tpt_new_normal(TP_DTYPE_F32, 40000, 2, 1);
        float *before = tpt_new_normal(TP_DTYPE_F32, 40000, 1, 1);
        tpi_reduce_args args = {.inputs = 2,
                                .leaf = {a, b},
                                .single = a,
                                .outputs = 1,
                                .in_dtype = TP_DTYPE_F32,
                                .out_dtype = TP_DTYPE_F32,
                                .rows = 1,
                                .cols = 40000};

        cr_assert_eq(tpi_reduce(all.ctx[i]->compute, &args), TP_OK);
        cr_assert_eq(tp_ctx_synchronize(all.ctx[i]), TP_OK);
        for (int e = 0; e < 40000; e++)
            cr_assert_eq(a[e], before[e] + b[e]);
        free(a);
        free(b);
        free(before);
    }
    machines_close(&all);
}

Test(reduce, many_outputs_get_the_same)
{
    enum { COLS = 150 };
    machines all = machines_open();
    float *x = tpt_new_normal(TP_DTYPE_F32, COLS, 1, 1);

    for (int outputs = 7; outputs <= MOST_OUTPUTS; outputs += 19) {
        reduce_case c = {.args = {.inputs = 1,
                                  .leaf = {x},
                                  .in_dtype = TP_DTYPE_F32,
                                  .out_dtype = TP_DTYPE_F32,
                                  .rows = 1,
                                  .cols = COLS},
                         .outputs = outputs};
        float *got = machines_run(&all, run_reduce, &c, NULL, (size_t)outputs * COLS * sizeof *got);

        for (int o = 0; o < outputs; o++)
            cr_assert(tpt_same_bits("output", got + o * COLS, x, TP_DTYPE_F32, COLS));
        free(got);
    }
    free(x);
    machines_close(&all);
}
