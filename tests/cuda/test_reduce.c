/* The tree over inputs and its epilogue: the CPU's bits. */
#include "cuda/cuda_support.h"

typedef struct reduce_case {
    tpi_reduce_args args;
    bool bias, residual, in_place, by_value;
} reduce_case;

static void check_reduce(tpt_sides *sides, const reduce_case *test)
{
    tpi_reduce_args args = test->args;
    int64_t count = args.rows * args.cols;
    tpt_pair in[64], out[3], bias, residual;

    cr_assert(args.inputs + args.outputs + 2 <= TPT_MAX_PAIRS);
    for (int i = 0; i < args.inputs; i++)
        in[i] = tpt_pair_normal(sides, args.in_dtype, count, 11 + (uint64_t)i, 1);
    for (int o = 0; o < args.outputs; o++)
        out[o] = test->in_place ? in[o] : tpt_pair_array(sides, NULL, args.out_dtype, count);
    bias = tpt_pair_normal(sides, args.bias_dtype ? args.bias_dtype : TP_DTYPE_F32, args.cols, 5, 1);
    residual = tpt_pair_normal(sides, args.out_dtype, count, 6, 1);
    for (int side = 0; side < TPT_SIDES; side++) {
        const void *from[64];
        void *to[3];

        for (int i = 0; i < args.inputs; i++)
            from[i] = in[i].at[side];
        for (int o = 0; o < args.outputs; o++)
            to[o] = out[o].at[side];
        args.in = test->by_value ? NULL : from;
        args.out = test->by_value ? NULL : to;
        args.single = to[0];
        for (int i = 0; test->by_value && i < args.inputs; i++)
            args.leaf[i] = from[i];
        args.bias = test->bias ? bias.at[side] : NULL;
        args.residual = test->residual ? residual.at[side] : NULL;
        TPT_ISSUE(sides, side, tpi_reduce, &args);
        cr_assert_eq(tp_ctx_synchronize(sides->ctx[side]), TP_OK);
    }
    for (int o = 0; o < args.outputs; o++)
        tpt_pair_same(sides, "out", &out[o], args.out_dtype);
    tpt_sides_reset(sides);
}

Test(cuda_reduce, numbers_of_inputs)
{
    static const int inputs[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 17, 24, 31, 40, 41, 47, 48, 49, 57, 61};
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        for (int op = 0; op < 3; op++) {
            reduce_case test = {.args = {.op = (tp_reduce_op)op,
                                         .inputs = inputs[i],
                                         .outputs = 1 + (int)i % 2,
                                         .in_dtype = tpt_floats[i % 3],
                                         .out_dtype = i % 2 ? TP_DTYPE_F32 : tpt_floats[i % 3],
                                         .rows = 3,
                                         .cols = 17 + 8 * (op == 1)}};

            test.in_place = test.args.in_dtype == test.args.out_dtype && inputs[i] > 1;
            check_reduce(&sides, &test);
        }
    tpt_sides_close(&sides);
}

Test(cuda_reduce, epilogue)
{
    static const int64_t sizes[][2] = {{0, 8}, {5, 0}, {1, 1}, {3, 16}, {7, 33}, {2, 1064}, {65, 24}};
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int parts = 0; parts < 8; parts++) {
            reduce_case test = {.args = {.inputs = 1 + (int)s,
                                         .outputs = 1,
                                         .in_dtype = TP_DTYPE_F32,
                                         .out_dtype = tpt_floats[((int)s + parts) % 3],
                                         .rows = sizes[s][0],
                                         .cols = sizes[s][1],
                                         .bias_dtype = tpt_floats[s % 3],
                                         .dropout = parts & 4 ? 0.25f : 0,
                                         .dropout_key = {s, 99},
                                         .first_row = parts * 1000,
                                         .first_col = parts & 1 ? 3 : 0,
                                         .total_cols = parts & 1 ? 2000 : 0},
                                .bias = parts & 1,
                                .residual = parts & 2,
                                .by_value = s % 2};

            check_reduce(&sides, &test);
        }
    tpt_sides_close(&sides);
}

Test(cuda_reduce, nan_and_infinity)
{
    static const float special[][4] = {{1, NAN, 2, INFINITY}, {NAN, 1, -0.0f, -INFINITY}, {0, -0.0f, 0, INFINITY}};
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int op = 0; op < 3; op++) {
        tpi_reduce_args args = {.op = (tp_reduce_op)op,
                                .inputs = 3,
                                .outputs = 1,
                                .in_dtype = TP_DTYPE_F32,
                                .out_dtype = TP_DTYPE_F32,
                                .rows = 1,
                                .cols = 4};
        tpt_pair in[3], out = tpt_pair_array(&sides, NULL, TP_DTYPE_F32, 4);

        for (int i = 0; i < 3; i++)
            in[i] = tpt_pair_of(&sides, special[i], sizeof special[i]);
        for (int side = 0; side < TPT_SIDES; side++) {
            for (int i = 0; i < 3; i++)
                args.leaf[i] = in[i].at[side];
            args.single = out.at[side];
            TPT_ISSUE(&sides, side, tpi_reduce, &args);
        }
        tpt_pair_same(&sides, "out", &out, TP_DTYPE_F32);
    }
    tpt_sides_close(&sides);
}

Test(cuda_reduce, integers)
{
    static const tp_dtype dtypes[3] = {TP_DTYPE_I32, TP_DTYPE_I64, TP_DTYPE_U8};
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int d = 0; d < 3; d++)
        for (int op = 0; op < 3; op++) {
            /* Random bits: sums wrap. */
            tpi_reduce_args args = {.op = (tp_reduce_op)op,
                                    .inputs = 3,
                                    .outputs = 1,
                                    .in_dtype = dtypes[d],
                                    .out_dtype = dtypes[d],
                                    .rows = 5,
                                    .cols = 77};
            int64_t words = 5 * 77 * (int64_t)tp_dtype_size(dtypes[d]) / 4 + 1;
            tpt_pair in[3], out = tpt_pair_array(&sides, NULL, dtypes[d], 5 * 77);

            for (int i = 0; i < 3; i++)
                in[i] = tpt_pair_uniform(&sides, TP_DTYPE_F32, words, (uint64_t)i, -3, 3);
            for (int side = 0; side < TPT_SIDES; side++) {
                for (int i = 0; i < 3; i++)
                    args.leaf[i] = in[i].at[side];
                args.single = out.at[side];
                TPT_ISSUE(&sides, side, tpi_reduce, &args);
            }
            tpt_pair_same(&sides, "out", &out, dtypes[d]);
            tpt_sides_reset(&sides);
        }
    tpt_sides_close(&sides);
}
