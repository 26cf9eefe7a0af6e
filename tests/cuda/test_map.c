/* Copies, casts, scaling, accumulation and dropout: the CPU's bits. */
#include "cuda/cuda_support.h"

static void check_map(tpt_sides *sides, tpi_map_args args)
{
    tpt_pair in = {0}, out = tpt_pair_array(sides, NULL, args.out_dtype, args.rows * args.out_stride + 1);

    if (args.accumulate)
        out = tpt_pair_normal(sides, args.out_dtype, args.rows * args.out_stride + 1, 7, 1);
    if (args.in)
        in = tpt_pair_normal(sides, args.in_dtype, args.rows * args.in_stride + 1, 3, 2);
    for (int side = 0; side < TPT_SIDES; side++) {
        args.in = in.at[side];
        args.out = out.at[side];
        TPT_ISSUE(sides, side, tpi_map, &args);
    }
    tpt_pair_same(sides, "out", &out, args.out_dtype);
    tpt_sides_reset(sides);
}

static const int64_t sizes[][4] = {/* rows, cols, in_stride, out_stride */
                                   {0, 5, 5, 5},          {4, 0, 0, 3},    {1, 1, 1, 1},    {3, 7, 7, 7},
                                   {5, 16, 16, 16},       {7, 24, 32, 24}, {3, 33, 35, 40}, {300, 8, 8, 16},
                                   {2, 2051, 2056, 2064}, {1, 4099, 1, 1}};

Test(cuda_map, casts)
{
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int i = 0; i < 3; i++)
            for (int o = 0; o < 3; o++) {
                tpi_map_args args = {.rows = sizes[s][0],
                                     .cols = sizes[s][1],
                                     .in = &sides,
                                     .in_dtype = tpt_floats[i],
                                     .in_stride = sizes[s][2],
                                     .out_dtype = tpt_floats[o],
                                     .out_stride = sizes[s][3]};

                if (args.rows == 1)
                    args.in_stride = args.out_stride = args.cols;
                args.scale = s % 2 ? 0.37f : 0;
                check_map(&sides, args);
            }
    tpt_sides_close(&sides);
}

Test(cuda_map, accumulation_and_dropout)
{
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int kind = 1; kind < 4; kind++) {
            tpi_map_args args = {.rows = sizes[s][0],
                                 .cols = sizes[s][1],
                                 .in = &sides,
                                 .in_dtype = tpt_floats[s % 3],
                                 .in_stride = sizes[s][2],
                                 .out_dtype = TP_DTYPE_F32,
                                 .out_stride = sizes[s][3],
                                 .scale = -1.5f,
                                 .accumulate = kind & 1,
                                 .dropout = kind & 2 ? 0.3f : 0,
                                 .dropout_key = {5 + s, 0x123456789abcdefu},
                                 .first_row = s % 2 ? 0x300000007 : 0};

            if (args.rows == 1)
                args.in_stride = args.out_stride = args.cols;
            check_map(&sides, args);
        }
    tpt_sides_close(&sides);
}

/* Any dtype is copied and cleared. */
Test(cuda_map, bits)
{
    static const tp_dtype dtypes[] = {TP_DTYPE_F32, TP_DTYPE_BF16, TP_DTYPE_F16,
                                      TP_DTYPE_I32, TP_DTYPE_I64,  TP_DTYPE_U8};
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int d = 0; d < 6; d++)
            for (int clear = 0; clear < 2; clear++) {
                tpi_map_args args = {
                    .rows = sizes[s][0], .cols = sizes[s][1], .in_stride = sizes[s][2], .out_stride = sizes[s][3]};

                if (args.rows == 1)
                    args.in_stride = args.out_stride = args.cols;
                args.in_dtype = args.out_dtype = dtypes[d];
                args.in = clear ? NULL : &sides;
                check_map(&sides, args);
            }
    tpt_sides_close(&sides);
}

/* Every rounding case of the narrow types. */
Test(cuda_map, special_values)
{
    static const uint32_t bits[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f7fffff, 0x00000001,
                                    0x80000001, 0x33000000, 0x33000001, 0x33800000, 0x387fe000, 0x387ff000, 0x38800000,
                                    0x477fefff, 0x477ff000, 0x3f808000, 0x3f818000, 0x3f808001, 0x3f801000, 0x3f803000,
                                    0x7f7f8000, 0x00400000, 0x00008000, 0x00018000};
    enum { COUNT = sizeof bits / sizeof bits[0] };
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int d = 0; d < 3; d++) {
        tpt_pair in = tpt_pair_of(&sides, bits, sizeof bits),
                 narrow = tpt_pair_array(&sides, NULL, tpt_floats[d], COUNT),
                 wide = tpt_pair_array(&sides, NULL, TP_DTYPE_F32, COUNT);

        for (int side = 0; side < TPT_SIDES; side++) {
            tpi_map_args args = {.rows = 1, .cols = COUNT, .in_stride = COUNT, .out_stride = COUNT};

            args.in = in.at[side];
            args.out = narrow.at[side];
            args.in_dtype = TP_DTYPE_F32;
            args.out_dtype = tpt_floats[d];
            TPT_ISSUE(&sides, side, tpi_map, &args);
            args.in = narrow.at[side];
            args.out = wide.at[side];
            args.in_dtype = tpt_floats[d];
            args.out_dtype = TP_DTYPE_F32;
            TPT_ISSUE(&sides, side, tpi_map, &args);
        }
        tpt_pair_same(&sides, "narrow", &narrow, tpt_floats[d]);
        tpt_pair_same(&sides, "wide", &wide, TP_DTYPE_F32);
    }
    tpt_sides_close(&sides);
}
