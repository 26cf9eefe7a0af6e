/* Random values on global indices. */
#include "cpu/machines.h"
#include <tp/random.h>

static tp_status run_fill(tp_ctx *ctx, const void *test, void *out)
{
    tpi_random_fill_args args = *(const tpi_random_fill_args *)test;

    args.out = out;
    return tpi_random_fill(ctx->compute, &args);
}

static void check_fill(const machines *all, tpi_random_fill_args args)
{
    size_t size = tp_dtype_size(args.dtype);
    void *want = tpt_array(args.dtype, 1);
    char *got = machines_run(all, run_fill, &args, NULL, (size_t)(args.rows * args.stride) * size);

    for (int64_t e = 0; e < args.rows * args.stride; e++) {
        int64_t row = e / args.stride, col = e % args.stride;
        uint64_t index = (uint64_t)((args.first_row + row) * args.total_cols + args.first_col + col);

        if (col >= args.cols) {
            cr_assert(machine_untouched(got + (size_t)e * size, size));
            continue;
        }
        tpt_set(want, args.dtype, 0, (double)(args.std * tp_random_normal(args.key, index)));
        cr_assert(memcmp(got + (size_t)e * size, want, size) == 0, "element %lld", (long long)e);
    }
    free(want);
    free(got);
}

Test(random_fill, values_are_the_public_ones)
{
    machines all = machines_open();

    for (int d = 0; d < 3; d++) {
        for (int first_col = 0; first_col < 5; first_col++) {
            tpi_random_fill_args args = {.rows = 5,
                                         .cols = 37,
                                         .dtype = machine_floats[d],
                                         .stride = 39,
                                         .std = 0.02f,
                                         .key = {1234, tp_random_stream_name("w")},
                                         .first_row = 1000,
                                         .first_col = first_col,
                                         .total_cols = 101};

            check_fill(&all, args);
        }
    }
    check_fill(&all, (tpi_random_fill_args){.rows = 1,
                                            .cols = 20001,
                                            .dtype = TP_DTYPE_F32,
                                            .stride = 20001,
                                            .std = 1,
                                            .key = {9, 9},
                                            .total_cols = 20001});
    /* A row of an odd length, long enough for every exponent. */
    check_fill(&all, (tpi_random_fill_args){.rows = 3,
                                            .cols = 300001,
                                            .dtype = TP_DTYPE_F32,
                                            .stride = 300001,
                                            .std = 1,
                                            .key = {77, 5},
                                            .total_cols = 300001});
    machines_close(&all);
}

Test(random_fill, moments_are_those_of_a_normal)
{
    enum { COUNT = 100000 };
    tp_ctx_desc desc = {0};
    tp_ctx *ctx;
    float *x = tpt_array(TP_DTYPE_F32, COUNT);
    tpi_random_fill_args args = {
        .rows = 1, .cols = COUNT, .dtype = TP_DTYPE_F32, .stride = COUNT, .std = 2, .key = {3, 4}, .total_cols = COUNT};
    double mean = 0, square = 0, fourth = 0;

    cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_OK);
    cr_assert_eq(run_fill(ctx, &args, x), TP_OK);
    cr_assert_eq(tp_ctx_synchronize(ctx), TP_OK);
    for (int i = 0; i < COUNT; i++) {
        double z = (double)x[i] / 2;

        mean += z / COUNT;
        square += z * z / COUNT;
        fourth += z * z * z * z / COUNT;
    }
    /* Five standard errors. */
    cr_assert_float_eq(mean, 0, 5 / sqrt(COUNT));
    cr_assert_float_eq(square, 1, 5 * sqrt(2.0 / COUNT));
    cr_assert_float_eq(fourth, 3, 5 * sqrt(96.0 / COUNT));
    free(x);
    tp_ctx_destroy(ctx);
}
