/* LayerNorm and RMSNorm, forward. */
#include "cpu/machines.h"

enum { GAP = 2 };

/* out: y [rows, cols + GAP], then stats f32 [rows, 2]. */
static tp_status run_norm(tp_ctx *ctx, const void *test, void *out)
{
    tpi_norm_args args = *(const tpi_norm_args *)test;
    size_t y_bytes = (size_t)(args.rows * args.y_stride) * tp_dtype_size(args.dtype);

    args.y = out;
    args.y_stride = args.cols + GAP;
    args.stats = (float *)(void *)((char *)out + (y_bytes + 7) / 8 * 8);
    return tpi_norm(ctx->compute, &args);
}

static size_t norm_bytes(const tpi_norm_args *a)
{
    return ((size_t)(a->rows * a->y_stride) * tp_dtype_size(a->dtype) + 7) / 8 * 8 +
           (size_t)a->rows * 2 * sizeof(float);
}

static void check_row(const tpi_norm_args *a, const void *y, const float *stats, int64_t row)
{
    double mean = 0, variance = 0, largest = 0, rstd;

    for (int64_t c = 0; c < a->cols; c++) {
        mean += a->rms ? 0 : tpt_get(a->x, a->dtype, row * a->x_stride + c) / (double)a->cols;
        largest = fmax(largest, fabs(tpt_get(a->x, a->dtype, row * a->x_stride + c)));
    }
    for (int64_t c = 0; c < a->cols; c++)
        variance += pow(tpt_get(a->x, a->dtype, row * a->x_stride + c) - mean, 2) / (double)a->cols;
    rstd = 1 / sqrt(variance + (double)a->epsilon);
    cr_assert_float_eq(stats[2 * row], mean, tpt_tolerance(TP_DTYPE_F32, a->cols, largest));
    cr_assert_float_eq(stats[2 * row + 1], rstd, tpt_tolerance(TP_DTYPE_F32, a->cols, rstd));
    for (int64_t c = 0; c < a->cols; c++) {
        double xhat = (tpt_get(a->x, a->dtype, row * a->x_stride + c) - mean) * rstd,
               gain = tpt_get(a->gain, a->dtype, c);
        double bias = a->bias ? tpt_get(a->bias, a->dtype, c) : 0, want = xhat * gain + bias;
        double size = (largest * rstd + fabs(xhat)) * fabs(gain) + fabs(bias);

        cr_assert_float_eq(tpt_get(y, a->dtype, row * a->y_stride + c), want,
                           tpt_tolerance(TP_DTYPE_F32, a->cols, size) + tpt_tolerance(a->dtype, 1, fabs(want)));
    }
}

static void check_norm(const machines *all, tpi_norm_args a)
{
    size_t size = tp_dtype_size(a.dtype), stats_at;
    void *x, *gain, *bias;
    char *got;

    a.x_stride = a.cols + 1;
    a.y_stride = a.cols + GAP;
    a.epsilon = 1e-5f;
    a.x = x = tpt_new_uniform(a.dtype, a.rows * a.x_stride, 1, -1, 3);
    a.gain = gain = tpt_new_uniform(a.dtype, a.cols, 2, 0.5, 1.5);
    bias = tpt_new_normal(a.dtype, a.cols, 3, 1);
    a.bias = a.rms ? NULL : a.bias ? bias : NULL;
    got = machines_run(all, run_norm, &a, NULL, norm_bytes(&a));
    stats_at = ((size_t)(a.rows * a.y_stride) * size + 7) / 8 * 8;
    for (int64_t row = 0; row < a.rows; row++) {
        check_row(&a, got, (float *)(void *)(got + stats_at), row);
        cr_assert(machine_untouched(got + (size_t)(row * a.y_stride + a.cols) * size, GAP * size));
    }
    free(x);
    free(gain);
    free(bias);
    free(got);
}

Test(norm, sizes_and_types)
{
    static const int64_t sizes[][2] = {{0, 8},  {1, 1},  {3, 7},     {2, 16},  {5, 63},
                                       {4, 64}, {3, 65}, {129, 131}, {2, 768}, {1, 9001}};
    machines all = machines_open();

    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (int d = 0; d < 3; d++) {
            for (int form = 0; form < 3; form++) {
                tpi_norm_args args = {
                    .rms = form == 2, .rows = sizes[s][0], .cols = sizes[s][1], .dtype = machine_floats[d]};

                args.bias = form == 1 ? &args : NULL; /* any pointer: the case makes its own */
                check_norm(&all, args);
            }
        }
    }
    machines_close(&all);
}

/* Large mean, small spread: a one-pass variance gives nonsense here. */
Test(norm, large_means_keep_their_digits)
{
    static const double means[] = {0, 100, 1000, 10000}, first[] = {-1.34164, -1.34153, -1.34151, -1.33133};
    machines all = machines_open();
    float gain[16];

    for (int k = 0; k < 4; k++) {
        float x[16], *y;
        tpi_norm_args args = {.rows = 1,
                              .cols = 16,
                              .dtype = TP_DTYPE_F32,
                              .x = x,
                              .x_stride = 16,
                              .gain = gain,
                              .epsilon = 1e-5f,
                              .y_stride = 16 + GAP};

        for (int i = 0; i < 16; i++) {
            x[i] = (float)(means[k] + 0.001 * i);
            gain[i] = 1;
        }
        y = machines_run(&all, run_norm, &args, NULL, norm_bytes(&args));
        cr_assert_float_eq(y[0], first[k], 1e-4, "mean %g: %g", means[k], (double)y[0]);
        free(y);
    }
    machines_close(&all);
}

Test(norm, epsilon_is_inside_the_root)
{
    machines all = machines_open();
    float x[8], gain[8], *y;
    tpi_norm_args args = {.rms = true,
                          .rows = 1,
                          .cols = 8,
                          .dtype = TP_DTYPE_F32,
                          .x = x,
                          .x_stride = 8,
                          .gain = gain,
                          .epsilon = 1e-5f,
                          .y_stride = 8 + GAP};

    for (int i = 0; i < 8; i++) {
        x[i] = 1e-3f;
        gain[i] = 1;
    }
    y = machines_run(&all, run_norm, &args, NULL, norm_bytes(&args));
    cr_assert_float_eq(y[0], 0.301511, 1e-6);
    free(y);
    machines_close(&all);
}

Test(norm, zeros_are_finite)
{
    machines all = machines_open();

    for (int d = 0; d < 3; d++) {
        for (int rms = 0; rms < 2; rms++) {
            void *x = tpt_array(machine_floats[d], 40), *gain = tpt_new_uniform(machine_floats[d], 40, 1, 1, 2), *y;
            tpi_norm_args args = {.rms = rms,
                                  .rows = 1,
                                  .cols = 40,
                                  .dtype = machine_floats[d],
                                  .x = x,
                                  .x_stride = 40,
                                  .gain = gain,
                                  .epsilon = 1e-5f,
                                  .y_stride = 40 + GAP};

            y = machines_run(&all, run_norm, &args, NULL, norm_bytes(&args));
            for (int i = 0; i < 40; i++)
                cr_assert_eq(tpt_get(y, machine_floats[d], i), 0);
            free(x);
            free(gain);
            free(y);
        }
    }
    machines_close(&all);
}
