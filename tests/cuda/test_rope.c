/* Rotary position embedding: the CPU's bits. */
#include "cuda/cuda_support.h"

typedef struct rope_case {
    tpi_rope_args args;
    int positions; /* 0: from sequences, 1: given */
} rope_case;

static void check_rope(tpt_sides *sides, const rope_case *test)
{
    tpi_rope_args args = test->args;
    int32_t *place = tpt_array(TP_DTYPE_I32, args.rows);
    tpt_pair x, positions;

    for (int64_t row = 0; row < args.rows; row++)
        place[row] = row == 0 ? INT32_MAX : (int32_t)(row * 4095 % 100003);
    x = tpt_pair_normal(sides, args.dtype, args.rows * args.stride + 1, 1, 1);
    positions = tpt_pair_array(sides, place, TP_DTYPE_I32, args.rows);
    free(place);
    for (int side = 0; side < TPT_SIDES; side++) {
        args.x = x.at[side];
        args.positions = test->positions ? (int32_t *)(void *)positions.at[side] : NULL;
        TPT_ISSUE(sides, side, tpi_rope, &args);
    }
    tpt_pair_same(sides, "x", &x, args.dtype);
    tpt_sides_reset(sides);
}

Test(cuda_rope, all)
{
    static const int64_t shapes[][4] = {/* rows, heads, head_dim, dim */
                                        {0, 2, 8, 8},       {3, 0, 8, 8},       {4, 2, 8, 0},    {1, 1, 2, 2},
                                        {6, 3, 16, 16},     {5, 2, 18, 6},      {12, 2, 64, 64}, {4, 3, 40, 32},
                                        {2, 1, 1040, 1030}, {2, 1, 1056, 1040}, {70, 2, 6, 6},   {70, 2, 32, 32},
                                        {6, 4, 34, 32}}; /* the last: only head_dim is not aligned */
    static const int64_t packed[] = {0, 1, 1, 4};
    int64_t many[101] = {0};
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int mode = 0; mode < 6; mode++) {
            rope_case test = {.args = {.rows = shapes[s][0],
                                       .heads = shapes[s][1],
                                       .head_dim = shapes[s][2],
                                       .dim = shapes[s][3],
                                       .dtype = tpt_floats[(s + (size_t)mode) % 3],
                                       .stride = shapes[s][1] * shapes[s][2] + (s % 2 ? 8 : 0),
                                       .theta = mode % 2 ? 10000 : 500000,
                                       .inverse = mode % 2},
                              .positions = mode < 2};

            if (mode == 3 && test.args.rows % 2 == 0)
                test.args.sequences = 2;
            if (mode == 4 && test.args.rows == 4) {
                test.args.offsets = packed;
                test.args.sequences = 3;
            }
            if (mode == 5) { /* more offsets than a kernel's arguments hold */
                for (int i = 0; i <= 100; i++)
                    many[i] = i / 7 < test.args.rows ? i / 7 : test.args.rows;
                many[100] = test.args.rows;
                test.args.offsets = many;
                test.args.sequences = 100;
            }
            check_rope(&sides, &test);
        }
    tpt_sides_close(&sides);
}
