/* LayerNorm and RMSNorm, backward: against finite differences of the forward formula in double. */
#include "cpu/machines.h"

/* out: dx [rows, cols] in dtype, 8-byte aligned end, then gain_grad and bias_grad [virtual_count, cols]. */
typedef struct norm_grad_case {
    tpi_norm_grad_args args;
    bool dx, gains, over_dy; /* over_dy: dx is dy */
} norm_grad_case;

static size_t dx_bytes(const tpi_norm_grad_args *a)
{
    return ((size_t)(a->rows * a->cols) * tp_dtype_size(a->dtype) + 7) / 8 * 8;
}

static tp_status run_norm_grad(tp_ctx *ctx, const void *test, void *out)
{
    const norm_grad_case *c = test;
    tpi_norm_grad_args args = c->args;
    size_t gain_bytes = (size_t)(args.virtual_count * args.cols) * sizeof(float);

    if (c->dx) {
        args.dx = out;
        args.dx_stride = args.cols;
    }
    if (c->over_dy) {
        memcpy(out, args.dy, (size_t)(args.rows * args.cols) * tp_dtype_size(args.dtype));
        args.dy = out;
    }
    if (c->gains) {
        args.gain_grad = (float *)(void *)((char *)out + dx_bytes(&args));
        if (!args.rms)
            args.bias_grad = (float *)(void *)((char *)args.gain_grad + gain_bytes);
    }
    return tpi_norm_grad(ctx->compute, &args);
}

static double mean_of(const double *x, int64_t cols)
{
    double mean = 0;

    for (int64_t c = 0; c < cols; c++)
        mean += x[c] / (double)cols;
    return mean;
}

static double rstd_of(const double *x, int64_t cols, double mean, double epsilon)
{
    double variance = 0;

    for (int64_t c = 0; c < cols; c++)
        variance += (x[c] - mean) * (x[c] - mean) / (double)cols;
    return 1 / sqrt(variance + epsilon);
}

/* sum of dy * gain * xhat: what x's gradient is of. */
static double dot_of(const tpi_norm_grad_args *a, const double *x, int64_t row, double epsilon)
{
    double mean = a->rms ? 0 : mean_of(x, a->cols), rstd = rstd_of(x, a->cols, mean, epsilon), dot = 0;

    for (int64_t c = 0; c < a->cols; c++)
        dot += tpt_get(a->dy, a->dtype, row * a->dy_stride + c) * tpt_get(a->gain, a->dtype, c) * (x[c] - mean) * rstd;
    return dot;
}

enum { ROWS = 13, FIRST_ROW = 5, TOTAL_ROWS = 21 };
static const double EPSILON = 1e-5;

static void check_dx(const norm_grad_case *c, const void *got, const double *x, int64_t row)
{
    const tpi_norm_grad_args *a = &c->args;
    double rstd = rstd_of(x, a->cols, a->rms ? 0 : mean_of(x, a->cols), EPSILON), size = 0, moved[200], h = 1e-5;

    memcpy(moved, x, (size_t)a->cols * sizeof(double));
    for (int64_t k = 0; k < a->cols; k++)
        size += fabs(tpt_get(a->dy, a->dtype, row * a->dy_stride + k) * tpt_get(a->gain, a->dtype, k));
    for (int64_t k = 0; k < a->cols; k++) {
        double want, residual = a->residual ? tpt_get(a->residual, a->dtype, row * a->residual_stride + k) : 0;

        moved[k] = x[k] + h;
        want = dot_of(a, moved, row, EPSILON);
        moved[k] = x[k] - h;
        want = (want - dot_of(a, moved, row, EPSILON)) / (2 * h) + residual;
        moved[k] = x[k];
        cr_assert_float_eq(tpt_get(got, a->dtype, row * a->cols + k), want,
                           tpt_tolerance(TP_DTYPE_F32, a->cols, size * rstd + fabs(residual)) +
                               tpt_tolerance(a->dtype, 1, fabs(want)) + 1e-7 * size * rstd,
                           "row %lld column %lld", (long long)row, (long long)k);
    }
}

/* Gain and bias: by virtual ranks, added to what was there (k + 1 at every place of virtual rank k). */
static void check_gains(const norm_grad_case *c, const float *gain, const float *bias, double *const *x)
{
    const tpi_norm_grad_args *a = &c->args;

    for (int64_t v = 0; v < a->virtual_count; v++) {
        tp_range range = tp_shard_range(a->total_rows, a->virtual_count, v);

        for (int64_t k = 0; k < a->cols; k++) {
            double want = (double)v + 1, want_bias = (double)v + 1, size = want, size_bias = want;

            for (int64_t row = 0; row < a->rows; row++) {
                double mean = a->rms ? 0 : mean_of(x[row], a->cols),
                       dy = tpt_get(a->dy, a->dtype, row * a->dy_stride + k), term;

                if (a->first_row + row < range.begin || a->first_row + row >= range.end)
                    continue;
                term = dy * (x[row][k] - mean) * rstd_of(x[row], a->cols, mean, EPSILON);
                want += term;
                want_bias += dy;
                size += fabs(term) + fabs(dy);
                size_bias += fabs(dy);
            }
            cr_assert_float_eq(gain[v * a->cols + k], want, tpt_tolerance(TP_DTYPE_F32, a->rows + a->cols, size));
            if (!a->rms)
                cr_assert_float_eq(bias[v * a->cols + k], want_bias, tpt_tolerance(TP_DTYPE_F32, a->rows, size_bias));
        }
    }
}

static void fill_stats(float *stats, double *const *x, int64_t cols, bool rms)
{
    for (int64_t row = 0; row < ROWS; row++) {
        double mean = rms ? 0 : mean_of(x[row], cols);

        stats[2 * row] = (float)mean;
        stats[2 * row + 1] = (float)rstd_of(x[row], cols, mean, EPSILON);
    }
}

static void check_norm_grad(const machines *all, norm_grad_case c, bool residual)
{
    tpi_norm_grad_args *a = &c.args;
    int64_t cols = a->cols, elements = ROWS * cols;
    void *inputs[4] = {tpt_new_uniform(a->dtype, elements, 1, -1, 3), tpt_new_normal(a->dtype, elements, 2, 1),
                       tpt_new_uniform(a->dtype, cols, 3, 0.5, 1.5), tpt_new_normal(a->dtype, elements, 4, 1)};
    float *stats = tpt_array(TP_DTYPE_F32, 2 * ROWS), *gains;
    double *x[ROWS];
    size_t bytes;
    char *before, *got;

    a->rows = ROWS;
    a->x_stride = a->dy_stride = a->residual_stride = cols;
    a->x = inputs[0];
    a->dy = inputs[1];
    a->gain = c.dx ? inputs[2] : NULL;
    a->residual = residual ? inputs[3] : NULL;
    a->stats = stats;
    a->first_row = FIRST_ROW;
    a->total_rows = TOTAL_ROWS;
    a->virtual_count = 8;
    for (int64_t row = 0; row < ROWS; row++) {
        x[row] = tpt_allocate((size_t)cols * sizeof(double));
        for (int64_t k = 0; k < cols; k++)
            x[row][k] = tpt_get(a->x, a->dtype, row * cols + k);
    }
    fill_stats(stats, x, cols, a->rms);
    bytes = dx_bytes(a) + 2 * 8 * (size_t)cols * sizeof(float);
    before = tpt_allocate(bytes);
    gains = (float *)(void *)(before + dx_bytes(a));
    for (int64_t k = 0; k < 2 * 8 * cols; k++)
        gains[k] = (float)(k / cols % 8 + 1);
    got = machines_run(all, run_norm_grad, &c, before, bytes);
    gains = (float *)(void *)(got + dx_bytes(a));
    for (int64_t row = 0; c.dx && row < ROWS; row++)
        check_dx(&c, got, x[row], row);
    if (c.gains)
        check_gains(&c, gains, gains + 8 * cols, x);
    for (int i = 0; i < 4; i++)
        free(inputs[i]);
    for (int64_t row = 0; row < ROWS; row++)
        free(x[row]);
    free(stats);
    free(before);
    free(got);
}

Test(norm_grad, agrees_with_finite_differences)
{
    static const int64_t widths[] = {1, 7, 16, 65, 131};
    machines all = machines_open();

    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
        for (int d = 0; d < 3; d++) {
            for (int rms = 0; rms < 2; rms++) {
                norm_grad_case c = {
                    .args = {.rms = rms, .cols = widths[w], .dtype = machine_floats[d]}, .dx = true, .gains = true};

                check_norm_grad(&all, c, false);
                c.over_dy = true;
                check_norm_grad(&all, c, true);
                c.gains = false;
                check_norm_grad(&all, c, true);
                c = (norm_grad_case){.args = c.args, .gains = true};
                check_norm_grad(&all, c, false);
            }
        }
    }
    machines_close(&all);
}

Test(norm_grad, zeros_are_finite)
{
    machines all = machines_open();

    for (int d = 0; d < 3; d++) {
        for (int rms = 0; rms < 2; rms++) {
            void *zero = tpt_array(machine_floats[d], 40), *gain = tpt_new_uniform(machine_floats[d], 40, 1, 1, 2),
                 *got;
            float stats[2] = {0, 316.2f};
            norm_grad_case c = {.args = {.rms = rms,
                                         .rows = 1,
                                         .cols = 40,
                                         .dtype = machine_floats[d],
                                         .x = zero,
                                         .x_stride = 40,
                                         .gain = gain,
                                         .stats = stats,
                                         .dy = zero,
                                         .dy_stride = 40,
                                         .total_rows = 1,
                                         .virtual_count = 1},
                                .dx = true};

            got = machines_run(&all, run_norm_grad, &c, NULL, dx_bytes(&c.args));
            for (int i = 0; i < 40; i++)
                cr_assert_eq(tpt_get(got, machine_floats[d], i), 0);
            free(zero);
            free(gain);
            free(got);
        }
    }
    machines_close(&all);
}

/* Ranks that hold rows [0, r) and [r, total), r at a virtual rank's border, give the bits of one rank that holds all.
 */
Test(norm_grad, virtual_ranks_are_the_same_on_two_ranks)
{
    enum { COLS = 37 };
    machines all = machines_open();
    tp_ctx *ctx = all.ctx[0];
    float *x = tpt_new_normal(TP_DTYPE_F32, TOTAL_ROWS * COLS, 1, 1),
          *dy = tpt_new_normal(TP_DTYPE_F32, TOTAL_ROWS * COLS, 2, 1);
    float *gain = tpt_new_uniform(TP_DTYPE_F32, COLS, 3, 1, 2), stats[2 * TOTAL_ROWS], whole[8 * COLS] = {0},
          halves[8 * COLS] = {0};
    int64_t border = tp_shard_range(TOTAL_ROWS, 2, 0).end;

    for (int row = 0; row < TOTAL_ROWS; row++) {
        stats[2 * row] = 0.01f;
        stats[2 * row + 1] = 1.1f;
    }
    for (int part = 0; part < 3; part++) {
        int64_t first = part == 2 ? border : 0, end = part == 1 ? border : TOTAL_ROWS;
        tpi_norm_grad_args args = {.rows = end - first,
                                   .cols = COLS,
                                   .dtype = TP_DTYPE_F32,
                                   .x = x + first * COLS,
                                   .x_stride = COLS,
                                   .gain = gain,
                                   .stats = stats + 2 * first,
                                   .dy = dy + first * COLS,
                                   .dy_stride = COLS,
                                   .first_row = first,
                                   .total_rows = TOTAL_ROWS,
                                   .virtual_first = part == 2 ? 4 : 0,
                                   .virtual_count = 8,
                                   .gain_grad = part == 0 ? whole : halves + (part == 2 ? 4 * COLS : 0)};

        cr_assert_eq(tpi_norm_grad(ctx->compute, &args), TP_OK);
        cr_assert_eq(tp_ctx_synchronize(ctx), TP_OK);
    }
    cr_assert(tpt_same_bits("gain by virtual ranks", halves, whole, TP_DTYPE_F32, 8 * COLS));
    free(x);
    free(dy);
    free(gain);
    machines_close(&all);
}

enum { FAR_ROWS = 3, FAR_COLS = 131 };

/* dx of a row in double: rstd * (g - mean(g) - xhat * mean(g * xhat)). */
static void far_dx(const float *x, const float *dy, const float *gain, double *xhat, double *dx)
{
    double row[FAR_COLS], mean_g = 0, mean_gx = 0, mean, rstd;

    for (int k = 0; k < FAR_COLS; k++)
        row[k] = (double)x[k];
    mean = mean_of(row, FAR_COLS);
    rstd = rstd_of(row, FAR_COLS, mean, EPSILON);
    for (int k = 0; k < FAR_COLS; k++) {
        xhat[k] = (row[k] - mean) * rstd;
        mean_g += (double)dy[k] * gain[k] / FAR_COLS;
        mean_gx += (double)dy[k] * gain[k] * xhat[k] / FAR_COLS;
    }
    for (int k = 0; k < FAR_COLS; k++)
        dx[k] = rstd * ((double)dy[k] * gain[k] - mean_g - xhat[k] * mean_gx);
}

/* A mean of 1e4 and a spread of 1e-2: the mean's rounding to f32 is a hundredth of the spread and must not be lost. */
Test(norm_grad, far_from_zero)
{
    machines all = machines_open();
    float *x = tpt_new_normal(TP_DTYPE_F32, FAR_ROWS * FAR_COLS, 5, 1e-2), stats[2 * FAR_ROWS], *got_gain;
    float *dy = tpt_new_uniform(TP_DTYPE_F32, FAR_ROWS * FAR_COLS, 6, 0.5, 1.5),
          *gain = tpt_new_uniform(TP_DTYPE_F32, FAR_COLS, 7, 0.5, 1.5);
    double xhat[FAR_COLS], dx[FAR_ROWS * FAR_COLS], gain_grad[FAR_COLS] = {0};
    norm_grad_case c = {.args = {.rows = FAR_ROWS,
                                 .cols = FAR_COLS,
                                 .dtype = TP_DTYPE_F32,
                                 .x = x,
                                 .x_stride = FAR_COLS,
                                 .gain = gain,
                                 .stats = stats,
                                 .dy = dy,
                                 .dy_stride = FAR_COLS,
                                 .total_rows = FAR_ROWS,
                                 .virtual_count = 1},
                        .dx = true,
                        .gains = true};
    char *got, *before = tpt_allocate(dx_bytes(&c.args) + 2 * FAR_COLS * sizeof(float));

    for (int row = 0; row < FAR_ROWS; row++) {
        double values[FAR_COLS], mean;

        for (int k = 0; k < FAR_COLS; k++) {
            x[row * FAR_COLS + k] += 1e4f;
            values[k] = (double)x[row * FAR_COLS + k];
        }
        mean = mean_of(values, FAR_COLS);
        stats[2 * row] = (float)mean;
        stats[2 * row + 1] = (float)rstd_of(values, FAR_COLS, mean, EPSILON);
        far_dx(x + row * FAR_COLS, dy + row * FAR_COLS, gain, xhat, dx + row * FAR_COLS);
        for (int k = 0; k < FAR_COLS; k++)
            gain_grad[k] += (double)dy[row * FAR_COLS + k] * xhat[k];
    }
    got = machines_run(&all, run_norm_grad, &c, before, dx_bytes(&c.args) + 2 * FAR_COLS * sizeof(float));
    got_gain = (float *)(void *)(got + dx_bytes(&c.args));
    cr_assert(
        tpt_close_norm("dx", got, TP_DTYPE_F32, dx, FAR_ROWS * FAR_COLS, tpt_tolerance(TP_DTYPE_F32, FAR_COLS, 1)));
    cr_assert(tpt_close_norm("gain's gradient", got_gain, TP_DTYPE_F32, gain_grad, FAR_COLS,
                             tpt_tolerance(TP_DTYPE_F32, FAR_COLS, 1)));
    free(x);
    free(dy);
    free(gain);
    free(before);
    free(got);
    machines_close(&all);
}
