/* map: casts, scaling, accumulation, dropout, sub-matrices. */
#include "cpu/machines.h"

typedef struct map_case {
    tpi_map_args args; /* out is the run's */
} map_case;

static tp_status run_map(tp_ctx *ctx, const void *test, void *out)
{
    tpi_map_args args = ((const map_case *)test)->args;

    args.out = out;
    return tpi_map(ctx->compute, &args);
}

static void check_map(const machines *all, tpi_map_args args)
{
    size_t out_size = tp_dtype_size(args.out_dtype);
    int64_t elements = args.rows * args.out_stride;
    void *in = tpt_new_normal(args.in_dtype, args.rows * args.in_stride, 3, 2),
         *before = tpt_new_normal(args.out_dtype, elements, 4, 1);
    void *want = tpt_array(args.out_dtype, 1), *got;
    float scale = args.scale == 0 ? 1 : args.scale;
    map_case c = {args};

    c.args.in = in;
    got = machines_run(all, run_map, &c, before, (size_t)elements * out_size);
    for (int64_t e = 0; e < elements; e++) {
        int64_t row = e / args.out_stride, col = e % args.out_stride;
        const char *result = (const char *)got + (size_t)e * out_size;
        float x, old;

        if (col >= args.cols) {
            cr_assert(memcmp(result, (const char *)before + (size_t)e * out_size, out_size) == 0,
                      "written past the row's end");
            continue;
        }
        x = (float)tpt_get(in, args.in_dtype, row * args.in_stride + col);
        old = (float)tpt_get(before, args.out_dtype, e);
        if (args.dropout > 0) {
            uint64_t index = (uint64_t)((args.first_row + row) * args.cols + col);

            x = tp_random_u32(args.dropout_key, index) >= tp_random_threshold(args.dropout)
                    ? x * scale * (1 / (1 - args.dropout))
                    : 0;
            x = args.accumulate ? old + x : x;
        } else {
            x = args.accumulate ? fmaf(x, scale, old) : x * scale;
        }
        tpt_set(want, args.out_dtype, 0, (double)x);
        cr_assert(memcmp(result, want, out_size) == 0, "element %lld", (long long)e);
    }
    free(in);
    free(before);
    free(want);
    free(got);
}

Test(map, casts_and_scales_between_all_floats)
{
    machines all = machines_open();

    for (int i = 0; i < 3; i++) {
        for (int o = 0; o < 3; o++) {
            tpi_map_args args = {.rows = 3,
                                 .cols = 19,
                                 .in_dtype = machine_floats[i],
                                 .in_stride = 19,
                                 .out_dtype = machine_floats[o],
                                 .out_stride = 19};

            check_map(&all, args);
            args.scale = 0.375f;
            args.in_stride = 24;
            args.out_stride = 21;
            check_map(&all, args);
        }
    }
    machines_close(&all);
}

Test(map, sizes)
{
    static const int64_t sizes[][2] = {{0, 5},  {5, 0},    {1, 1},     {1, 15},   {7, 16},
                                       {2, 17}, {1, 8193}, {3, 16384}, {131, 64}, {4099, 3}};
    machines all = machines_open();

    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        tpi_map_args args = {.rows = sizes[s][0],
                             .cols = sizes[s][1],
                             .in_dtype = TP_DTYPE_F32,
                             .in_stride = sizes[s][1],
                             .out_dtype = TP_DTYPE_BF16,
                             .out_stride = sizes[s][1] + 1,
                             .scale = -2};

        check_map(&all, args);
    }
    machines_close(&all);
}

Test(map, accumulates)
{
    machines all = machines_open();

    for (int i = 0; i < 3; i++) {
        tpi_map_args args = {.rows = 4,
                             .cols = 33,
                             .in_dtype = machine_floats[i],
                             .in_stride = 35,
                             .out_dtype = TP_DTYPE_F32,
                             .out_stride = 34,
                             .scale = 0.1f,
                             .accumulate = true};

        check_map(&all, args);
        args.dropout = 0.5f;
        args.dropout_key = (tp_random_key){1, 2};
        check_map(&all, args);
    }
    machines_close(&all);
}

Test(map, masks_follow_global_rows)
{
    machines all = machines_open();
    static const int64_t first_rows[] = {0, 1, 1000003};

    for (int f = 0; f < 3; f++) {
        for (int dense = 0; dense < 2; dense++) {
            tpi_map_args args = {.rows = 9,
                                 .cols = 61,
                                 .in_dtype = TP_DTYPE_BF16,
                                 .in_stride = dense ? 61 : 64,
                                 .out_dtype = TP_DTYPE_BF16,
                                 .out_stride = 61,
                                 .dropout = 0.1f,
                                 .dropout_key = {77, UINT64_C(1) << 40},
                                 .first_row = first_rows[f]};

            check_map(&all, args);
        }
    }
    machines_close(&all);
}

Test(map, keep_rate_is_right)
{
    enum { COUNT = 1 << 20 };
    machines all = machines_open();
    float *ones = tpt_new_uniform(TP_DTYPE_F32, COUNT, 1, 1, 1.0000001), *got;
    map_case c = {{.rows = 1,
                   .cols = COUNT,
                   .in = ones,
                   .in_dtype = TP_DTYPE_F32,
                   .in_stride = COUNT,
                   .out_dtype = TP_DTYPE_F32,
                   .out_stride = COUNT,
                   .dropout = 0.5f,
                   .dropout_key = {5, 6}}};
    int64_t kept = 0;

    got = tpt_array(TP_DTYPE_F32, COUNT);
    cr_assert_eq(run_map(all.ctx[0], &c, got), TP_OK);
    cr_assert_eq(tp_ctx_synchronize(all.ctx[0]), TP_OK);
    for (int i = 0; i < COUNT; i++) {
        cr_assert(got[i] == 0 || got[i] == 2 * ones[i]);
        kept += got[i] != 0;
    }
    cr_assert_float_eq((double)kept / COUNT, 0.5, 0.002);
    free(ones);
    free(got);
    machines_close(&all);
}

static void check_zeros(const machines *all, int64_t rows, int64_t cols, int64_t stride)
{
    map_case c = {{.rows = rows, .cols = cols, .out_dtype = TP_DTYPE_F16, .out_stride = stride}};
    uint16_t *got = machines_run(all, run_map, &c, NULL, (size_t)(rows * stride) * sizeof(uint16_t));

    for (int64_t row = 0; row < rows; row++) {
        for (int64_t col = 0; col < cols; col++)
            cr_assert_eq(got[row * stride + col], 0);
        cr_assert(machine_untouched(got + row * stride + cols, (size_t)(stride - cols) * sizeof(uint16_t)));
    }
    free(got);
}

Test(map, no_input_is_zero)
{
    machines all = machines_open();

    check_zeros(&all, 5, 7, 9);
    /* A megabyte goes past the caches, line by line: rows that have none, and rows that begin and end within one. */
    check_zeros(&all, 180000, 3, 5);
    check_zeros(&all, 7, 80005, 80009);
    machines_close(&all);
}
