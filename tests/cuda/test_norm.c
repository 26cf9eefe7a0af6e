/* LayerNorm and RMSNorm, forward and backward: the CPU's bits. */
#include "cuda/cuda_support.h"

typedef struct norm_case {
    tpi_norm_args args;
    bool bias, stats;
    double offset; /* mean of x */
} norm_case;

static void check_norm(tpt_sides *sides, const norm_case *test)
{
    tpi_norm_args args = test->args;
    tpt_pair x, gain, bias, y, stats;

    x = tpt_pair_uniform(sides, args.dtype, args.rows * args.x_stride + 1, 1, test->offset - 1, test->offset + 2);
    gain = tpt_pair_uniform(sides, args.dtype, args.cols, 2, 0.5, 1.5);
    bias = tpt_pair_normal(sides, args.dtype, args.cols, 3, 1);
    y = tpt_pair_array(sides, NULL, args.dtype, args.rows * args.y_stride + 1);
    stats = tpt_pair_array(sides, NULL, TP_DTYPE_F32, args.rows * 2);
    for (int side = 0; side < TPT_SIDES; side++) {
        args.x = x.at[side];
        args.gain = gain.at[side];
        args.bias = test->bias ? bias.at[side] : NULL;
        args.y = y.at[side];
        args.stats = test->stats ? (float *)(void *)stats.at[side] : NULL;
        TPT_ISSUE(sides, side, tpi_norm, &args);
    }
    tpt_pair_same(sides, "y", &y, args.dtype);
    tpt_pair_same(sides, "stats", &stats, TP_DTYPE_F32);
    tpt_sides_reset(sides);
}

/* The last size is beyond what waits in shared memory. */
static const int64_t sizes[][2] = {{0, 8},  {3, 0},   {1, 1},    {3, 7},    {2, 16},   {5, 64},
                                   {9, 72}, {17, 65}, {33, 131}, {2, 1096}, {3, 23040}};

Test(cuda_norm, forward)
{
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int d = 0; d < 3; d++)
            for (int kind = 0; kind < 3; kind++) {
                int64_t cols = sizes[s][1], gap = s % 2 ? 8 : 0;
                if (cols > 2000 && d != kind)
                    continue;
                norm_case test = {.args = {.rms = kind == 2,
                                           .rows = sizes[s][0],
                                           .cols = cols,
                                           .dtype = tpt_floats[d],
                                           .x_stride = cols + gap,
                                           .y_stride = cols + 2 * gap,
                                           .epsilon = 1e-5f},
                                  .bias = kind == 1,
                                  .stats = (d + kind) % 2,
                                  .offset = d == 0 ? 1000 : 0};

                check_norm(&sides, &test);
            }
    tpt_sides_close(&sides);
}

typedef struct norm_grad_case {
    tpi_norm_grad_args args;
    bool gain, residual, dx, gain_grad, bias_grad;
    int in_place; /* 1: dx is dy, 2: dx is the residual */
    int residual_shift; /* elements: it alone is not aligned */
} norm_grad_case;

static void check_norm_grad(tpt_sides *sides, const norm_grad_case *test)
{
    tpi_norm_grad_args args = test->args;
    int64_t rows = args.rows, cols = args.cols, chains = args.virtual_count - args.virtual_first;
    tpt_pair x, gain, y, stats, dy, residual, dx, gain_grad, bias_grad;

    x = tpt_pair_uniform(sides, args.dtype, rows * args.x_stride + 1, 1, -1, 2);
    gain = tpt_pair_uniform(sides, args.dtype, cols, 2, 0.5, 1.5);
    y = tpt_pair_array(sides, NULL, args.dtype, rows * cols);
    stats = tpt_pair_array(sides, NULL, TP_DTYPE_F32, rows * 2);
    dy = tpt_pair_normal(sides, args.dtype, rows * args.dy_stride + 1, 4, 1);
    residual = tpt_pair_normal(sides, args.dtype, rows * args.residual_stride + 1, 5, 1);
    dx = tpt_pair_array(sides, NULL, args.dtype, rows * args.dx_stride + 1);
    if (test->in_place)
        dx = test->in_place == 1 ? dy : residual;
    gain_grad = tpt_pair_normal(sides, TP_DTYPE_F32, chains * cols, 6, 1);
    bias_grad = tpt_pair_normal(sides, TP_DTYPE_F32, chains * cols, 7, 1);
    for (int side = 0; side < TPT_SIDES; side++) {
        tpi_norm_args norm = {.rms = args.rms,
                              .rows = rows,
                              .cols = cols,
                              .dtype = args.dtype,
                              .x = x.at[side],
                              .x_stride = args.x_stride,
                              .gain = gain.at[side],
                              .epsilon = 1e-5f,
                              .y = y.at[side],
                              .y_stride = cols};

        norm.stats = (float *)(void *)stats.at[side];
        TPT_ISSUE(sides, side, tpi_norm, &norm);
        args.x = x.at[side];
        args.gain = test->gain ? gain.at[side] : NULL;
        args.stats = norm.stats;
        args.dy = dy.at[side];
        args.residual =
            test->residual ? residual.at[side] + (size_t)test->residual_shift * tp_dtype_size(args.dtype) : NULL;
        args.dx = test->dx ? dx.at[side] : NULL;
        args.gain_grad = test->gain_grad ? (float *)(void *)gain_grad.at[side] : NULL;
        args.bias_grad = test->bias_grad ? (float *)(void *)bias_grad.at[side] : NULL;
        TPT_ISSUE(sides, side, tpi_norm_grad, &args);
    }
    tpt_pair_same(sides, "dx", &dx, args.dtype);
    tpt_pair_same(sides, "gain_grad", &gain_grad, TP_DTYPE_F32);
    tpt_pair_same(sides, "bias_grad", &bias_grad, TP_DTYPE_F32);
    tpt_sides_reset(sides);
}

Test(cuda_norm, backward)
{
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int mode = 0; mode < 7; mode++) {
            int64_t rows = sizes[s][0], cols = sizes[s][1], gap = s % 2 ? 8 : 0;
            if (cols > 2000 && mode % 5)
                continue;
            norm_grad_case test = {.args = {.rms = mode % 2,
                                            .rows = rows,
                                            .cols = cols,
                                            .dtype = tpt_floats[((int)s + mode) % 3],
                                            .x_stride = cols + gap,
                                            .dy_stride = cols + 8,
                                            .residual_stride = cols + 8,
                                            .dx_stride = cols + 8,
                                            .first_row = 5,
                                            .total_rows = rows + 20,
                                            .virtual_count = 8},
                                   .gain = true,
                                   .dx = true,
                                   .residual = mode & 2,
                                   .gain_grad = mode < 4,
                                   .bias_grad = mode < 4 && mode % 2 == 0,
                                   .in_place = mode % 3};

            test.residual = test.residual || test.in_place == 2;
            test.residual_shift = mode == 6;
            if (mode == 3) { /* the gain's gradient alone */
                test.gain = test.dx = false;
                test.in_place = 0;
            }
            check_norm_grad(&sides, &test);
        }
    tpt_sides_close(&sides);
}

/* Virtual ranks of more rows than wait in shared memory at once, whole vectors and single elements. */
Test(cuda_norm, gains_of_many_rows)
{
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int d = 0; d < 3; d++)
        for (int aligned = 0; aligned < 2; aligned++) {
            int64_t cols = aligned ? 40 : 37;
            norm_grad_case test = {.args = {.rms = d == 2,
                                            .rows = 790,
                                            .cols = cols,
                                            .dtype = tpt_floats[d],
                                            .x_stride = cols,
                                            .dy_stride = cols,
                                            .residual_stride = cols,
                                            .dx_stride = cols,
                                            .total_rows = 790,
                                            .virtual_count = 2},
                                   .gain_grad = true,
                                   .bias_grad = d != 2};

            check_norm_grad(&sides, &test);
        }
    tpt_sides_close(&sides);
}

/* Rows of one value, tiny rows, and rows with a large mean. */
Test(cuda_norm, special_rows)
{
    enum { ROWS = 4, COLS = 16 };
    float x[ROWS][COLS];
    tpt_sides sides;

    for (int c = 0; c < COLS; c++) {
        x[0][c] = 0;
        x[1][c] = 10000.0f + 0.001f * (float)c;
        x[2][c] = 1e-3f;
        x[3][c] = c == 3 ? INFINITY : 1;
    }
    tpt_sides_open(&sides);
    for (int rms = 0; rms < 2; rms++) {
        tpt_pair in = tpt_pair_of(&sides, x, sizeof x), gain = tpt_pair_uniform(&sides, TP_DTYPE_F32, COLS, 1, 1, 1),
                 y = tpt_pair_of(&sides, NULL, sizeof x);

        for (int side = 0; side < TPT_SIDES; side++) {
            tpi_norm_args args = {.rms = rms,
                                  .rows = ROWS,
                                  .cols = COLS,
                                  .dtype = TP_DTYPE_F32,
                                  .x = in.at[side],
                                  .x_stride = COLS,
                                  .gain = gain.at[side],
                                  .epsilon = 1e-5f,
                                  .y = y.at[side],
                                  .y_stride = COLS};

            TPT_ISSUE(&sides, side, tpi_norm, &args);
        }
        tpt_pair_same(&sides, "y", &y, TP_DTYPE_F32);
    }
    tpt_sides_close(&sides);
}
