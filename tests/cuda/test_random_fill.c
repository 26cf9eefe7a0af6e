/* Initial weights: the CPU's bits. */
#include "cuda/cuda_support.h"

Test(cuda_random_fill, all)
{
    static const int64_t cases[][6] = {
        /* rows, cols, stride, first_row, first_col, total_cols */
        {0, 4, 4, 0, 0, 4},    {3, 0, 1, 0, 0, 4},          {1, 1, 1, 0, 0, 1},
        {1, 1, 1, 5, 3, 7},    {4, 8, 8, 0, 0, 8},          {5, 7, 9, 2, 1, 13},
        {3, 33, 33, 0, 2, 35}, {2, 1030, 1031, 1, 3, 1033}, {2, 5, 5, 0x40000000, 7, 0x10000001}};
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int d = 0; d < 3; d++) {
            const int64_t *c = cases[i];
            tpi_random_fill_args args = {.rows = c[0],
                                         .cols = c[1],
                                         .dtype = tpt_floats[d],
                                         .stride = c[2],
                                         .std = 0.02f,
                                         .key = {42 + i, 0xfedcba9876543210u},
                                         .first_row = c[3],
                                         .first_col = c[4],
                                         .total_cols = c[5]};
            tpt_pair out = tpt_pair_array(&sides, NULL, args.dtype, args.rows * args.stride + 1);

            for (int side = 0; side < TPT_SIDES; side++) {
                args.out = out.at[side];
                TPT_ISSUE(&sides, side, tpi_random_fill, &args);
            }
            tpt_pair_same(&sides, "out", &out, args.dtype);
            tpt_sides_reset(&sides);
        }
    tpt_sides_close(&sides);
}
