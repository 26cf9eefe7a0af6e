/* Activations and gates, forward and backward: the CPU's bits. */
#include "cuda/cuda_support.h"

enum { GAP = 3 };

typedef struct activation_case {
    tpi_activation_args args;
    bool backward, y, in_place;
    int dx_shift; /* elements: dx alone is not aligned */
} activation_case;

static void check_activation(tpt_sides *sides, const activation_case *test)
{
    tpi_activation_args args = test->args;
    int64_t wide = args.gated ? 2 * args.cols : args.cols, gap = args.cols % 8 ? GAP : 0;
    tpt_pair x, y, dy, dx;

    args.x_stride = args.dx_stride = wide + gap;
    args.y_stride = args.dy_stride = args.cols + gap;
    x = tpt_pair_normal(sides, args.dtype, args.rows * args.x_stride + 1, 21, 3);
    y = tpt_pair_array(sides, NULL, args.dtype, args.rows * args.y_stride + 1);
    dy = tpt_pair_normal(sides, args.dtype, args.rows * args.dy_stride + 1, 22, 1);
    dx = tpt_pair_array(sides, NULL, args.dtype, args.rows * args.dx_stride + 1);
    if (test->in_place)
        dx = args.gated ? x : dy;
    for (int side = 0; side < TPT_SIDES; side++) {
        args.x = x.at[side];
        args.y = test->y || !test->backward ? y.at[side] : NULL;
        args.dy = test->backward ? dy.at[side] : NULL;
        args.dx = test->backward ? dx.at[side] + (size_t)test->dx_shift * tp_dtype_size(args.dtype) : NULL;
        TPT_ISSUE(sides, side, tpi_activate, &args);
    }
    tpt_pair_same(sides, "y", &y, args.dtype);
    tpt_pair_same(sides, "dx", &dx, args.dtype);
    tpt_sides_reset(sides);
}

Test(cuda_activation, all)
{
    static const int64_t sizes[][2] = {{0, 3}, {2, 0}, {1, 1}, {3, 24}, {5, 37}, {1, 700}};
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int kind = 0; kind < TPI_ACT_COUNT; kind++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            for (int mode = 0; mode < 8; mode++) {
                activation_case test = {.args = {.activation = (tpi_activation)kind,
                                                 .gated = mode & 1,
                                                 .rows = sizes[s][0],
                                                 .cols = sizes[s][1],
                                                 .dtype = tpt_floats[(kind + (int)s + mode) % 3]},
                                        .backward = mode & 2,
                                        .y = mode & 4,
                                        .in_place = mode & 4 && mode & 2,
                                        .dx_shift = s % 2 && !(mode & 4)};

                check_activation(&sides, &test);
            }
    tpt_sides_close(&sides);
}

Test(cuda_activation, special_values)
{
    static const float values[] = {0,      -0.0f, NAN, INFINITY, -INFINITY, 1e-40f, -1e-40f, 1e38f,
                                   -1e38f, 20,    -20, 88,       -88.5f,    0.625f, 0.624f,  -5.5f,
                                   200,    -201,  9,   -9.1f,    4,         -4.1f,  1.4142f, -13};
    enum { COUNT = sizeof values / sizeof values[0] };
    float ones[COUNT];
    tpt_sides sides;

    for (int i = 0; i < COUNT; i++)
        ones[i] = 1;
    tpt_sides_open(&sides);
    for (int kind = 0; kind < TPI_ACT_COUNT; kind++) {
        tpi_activation_args args = {.activation = (tpi_activation)kind,
                                    .rows = 1,
                                    .cols = COUNT,
                                    .dtype = TP_DTYPE_F32,
                                    .x_stride = COUNT,
                                    .y_stride = COUNT,
                                    .dy_stride = COUNT,
                                    .dx_stride = COUNT};
        tpt_pair x = tpt_pair_of(&sides, values, sizeof values), dy = tpt_pair_of(&sides, ones, sizeof ones);
        tpt_pair y = tpt_pair_of(&sides, NULL, sizeof values), dx = tpt_pair_of(&sides, NULL, sizeof values);

        for (int side = 0; side < TPT_SIDES; side++) {
            args.x = x.at[side];
            args.y = y.at[side];
            args.dy = dy.at[side];
            args.dx = dx.at[side];
            TPT_ISSUE(&sides, side, tpi_activate, &args);
        }
        tpt_pair_same(&sides, "y", &y, TP_DTYPE_F32);
        tpt_pair_same(&sides, "dx", &dx, TP_DTYPE_F32);
        tpt_sides_reset(&sides);
    }
    tpt_sides_close(&sides);
}
