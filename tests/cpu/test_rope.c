/* Rotary position embedding. */
#include "cpu/machines.h"

static tp_status run_rope(tp_ctx *ctx, const void *test, void *out)
{
    tpi_rope_args args = *(const tpi_rope_args *)test;

    args.x = out;
    return tpi_rope(ctx->compute, &args);
}

static int64_t place_of(const tpi_rope_args *a, int64_t row)
{
    int64_t s = 0;

    if (a->positions)
        return a->positions[row];
    if (!a->offsets)
        return row % (a->rows / a->sequences);
    while (a->offsets[s + 1] <= row)
        s++;
    return row - a->offsets[s];
}

/* One row's head turned in double. */
static void check_head(const tpi_rope_args *a, const void *before, const void *got, int64_t row, int64_t head)
{
    int64_t half = a->dim / 2, at = row * a->stride + head * a->head_dim;

    for (int64_t i = 0; i < half; i++) {
        double angle = (double)place_of(a, row) * pow(a->theta, -2.0 * (double)i / (double)a->dim);
        double c = cos(angle), s = a->inverse ? -sin(angle) : sin(angle);
        double x = tpt_get(before, a->dtype, at + i), y = tpt_get(before, a->dtype, at + half + i);
        double tolerance = tpt_tolerance(a->dtype, 2, fabs(x) + fabs(y));

        cr_assert_float_eq(tpt_get(got, a->dtype, at + i), x * c - y * s, tolerance, "row %lld", (long long)row);
        cr_assert_float_eq(tpt_get(got, a->dtype, at + half + i), y * c + x * s, tolerance, "row %lld", (long long)row);
    }
}

static void check_rope(const machines *all, tpi_rope_args args)
{
    int64_t elements = args.rows * args.stride;
    size_t size = tp_dtype_size(args.dtype);
    void *before = tpt_new_normal(args.dtype, elements, 3, 1);
    char *got = machines_run(all, run_rope, &args, before, (size_t)elements * size);

    for (int64_t e = 0; e < elements; e++) {
        int64_t col = e % args.stride;

        if (col >= args.heads * args.head_dim || col % args.head_dim >= args.dim)
            cr_assert(memcmp(got + (size_t)e * size, (char *)before + (size_t)e * size, size) == 0,
                      "beyond `dim` nothing changes");
    }
    for (int64_t row = 0; row < args.rows; row++) {
        for (int64_t head = 0; head < args.heads; head++)
            check_head(&args, before, got, row, head);
    }
    free(before);
    free(got);
}

Test(rope, turns_pairs_by_position)
{
    static const int64_t offsets[] = {0, 5, 5, 6, 20}, shapes[][3] = {{1, 2, 2}, {3, 16, 10}, {2, 64, 64}, {5, 40, 38}};
    static const int32_t positions[20] = {0, 7, 4095, 15962, 1, 1, 2, 131071, 3, 3, 5, 6, 1000, 7, 8, 9, 2, 4, 6, 8};
    machines all = machines_open();

    for (int s = 0; s < 4; s++) {
        for (int d = 0; d < 3; d++) {
            tpi_rope_args args = {.rows = 20,
                                  .heads = shapes[s][0],
                                  .head_dim = shapes[s][1],
                                  .dim = shapes[s][2],
                                  .dtype = machine_floats[d],
                                  .stride = shapes[s][0] * shapes[s][1] + 3,
                                  .sequences = 4,
                                  .theta = 10000,
                                  .inverse = d == 1};

            check_rope(&all, args);
            args.offsets = offsets;
            check_rope(&all, args);
            args.positions = positions;
            args.theta = 500000;
            check_rope(&all, args);
        }
    }
    machines_close(&all);
}

Test(rope, result_does_not_depend_on_the_row_s_place_in_the_call)
{
    machines all = machines_open();
    int32_t positions[3] = {9, 11, 9};
    float *x = tpt_new_normal(TP_DTYPE_F32, 3 * 32, 3, 1), *got;
    tpi_rope_args args = {.rows = 3,
                          .heads = 1,
                          .head_dim = 32,
                          .dim = 32,
                          .dtype = TP_DTYPE_F32,
                          .stride = 32,
                          .positions = positions,
                          .theta = 10000};

    memcpy(x + 64, x, 32 * sizeof(float));
    got = machines_run(&all, run_rope, &args, x, 3 * 32 * sizeof(float));
    cr_assert(tpt_same_bits("rows of one position", got, got + 64, TP_DTYPE_F32, 32));
    free(x);
    free(got);
    machines_close(&all);
}

Test(rope, inverse_undoes_it)
{
    machines all = machines_open();
    float *x = tpt_new_normal(TP_DTYPE_F32, 50 * 64, 3, 1), *turned, *back;
    double want[50 * 64];
    tpi_rope_args args = {.rows = 50,
                          .heads = 1,
                          .head_dim = 64,
                          .dim = 64,
                          .dtype = TP_DTYPE_F32,
                          .stride = 64,
                          .sequences = 1,
                          .theta = 10000};

    turned = machines_run(&all, run_rope, &args, x, 50 * 64 * sizeof(float));
    args.inverse = true;
    back = machines_run(&all, run_rope, &args, turned, 50 * 64 * sizeof(float));
    tpt_to_f64(want, x, TP_DTYPE_F32, 50 * 64);
    cr_assert(tpt_close("turned back", back, TP_DTYPE_F32, want, 50 * 64, tpt_tolerance_chain(TP_DTYPE_F32, 2, 2, 8)));
    free(x);
    free(turned);
    free(back);
    machines_close(&all);
}

/* q.k depends on the distance alone, also far out: positions are not rounded to bf16. */
Test(rope, far_positions_keep_their_angle)
{
    machines all = machines_open();

    for (int64_t hot = 0; hot < 32; hot++) {
        float x[4][64] = {{0}};
        int32_t positions[4] = {4095, 4094, 1, 0};
        tpi_rope_args args = {.rows = 4,
                              .heads = 1,
                              .head_dim = 64,
                              .dim = 64,
                              .dtype = TP_DTYPE_F32,
                              .stride = 64,
                              .positions = positions,
                              .theta = 10000};
        double far = 0, near = 0;
        float *got;

        for (int row = 0; row < 4; row++)
            x[row][hot] = 1;
        got = machines_run(&all, run_rope, &args, x, sizeof x);
        for (int i = 0; i < 64; i++) {
            far += (double)got[i] * (double)got[64 + i];
            near += (double)got[128 + i] * (double)got[192 + i];
        }
        cr_assert_float_eq(far, near, 1e-4);
        if (hot == 0)
            cr_assert_float_eq(got[0], -0.0660, 1e-4, "cos(4095)");
        free(got);
    }
    machines_close(&all);
}
