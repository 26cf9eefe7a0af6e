/* Activations against double precision, with derivatives by finite differences of it. */
#include "cpu/machines.h"

static double exact(tpi_activation activation, double x)
{
    static const double pi = 3.14159265358979323846;

    switch (activation) {
    case TPI_ACT_GELU: return x * 0.5 * erfc(-x / sqrt(2));
    case TPI_ACT_GELU_TANH: return 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
    case TPI_ACT_RELU: return x > 0 ? x : 0;
    case TPI_ACT_RELU2: return x > 0 ? x * x : 0;
    case TPI_ACT_SILU: return x / (1 + exp(-x));
    default: return x;
    }
}

static double slope(tpi_activation activation, double x)
{
    double h = 1e-5;

    if (activation == TPI_ACT_RELU && fabs(x) < 2 * h)
        return x > 0;
    return (exact(activation, x + h) - exact(activation, x - h)) / (2 * h);
}

static const tpi_activation activations[] = {TPI_ACT_NONE, TPI_ACT_GELU,  TPI_ACT_GELU_TANH,
                                             TPI_ACT_RELU, TPI_ACT_RELU2, TPI_ACT_SILU};

enum { X_GAP = 3, Y_GAP = 1 }; /* strides are longer than rows */

typedef struct activation_case {
    tpi_activation_args args;
    int64_t wide; /* columns of x */
    bool want_y;
} activation_case;

/* out: y [rows, cols + Y_GAP], then dx [rows, wide]. */
static tp_status run_activation(tp_ctx *ctx, const void *test, void *out)
{
    const activation_case *c = test;
    tpi_activation_args args = c->args;
    size_t y_bytes = (size_t)(args.rows * args.y_stride) * tp_dtype_size(args.dtype);

    if (c->want_y)
        args.y = out;
    if (args.dy)
        args.dx = (char *)out + y_bytes;
    return tpi_activate(ctx->compute, &args);
}

/* The error of x * (something within 1): a few roundings of |x|. */
static double tolerance_of(tp_dtype dtype, double value, double size)
{
    return tpt_tolerance(TP_DTYPE_F32, 4, size) + tpt_tolerance(dtype, 1, fabs(value));
}

static void check_one(const activation_case *c, const void *got, int64_t row, int64_t col)
{
    const tpi_activation_args *a = &c->args;
    const void *dx = (const char *)got + (size_t)(a->rows * a->y_stride) * tp_dtype_size(a->dtype);
    double x = tpt_get(a->x, a->dtype, row * a->x_stride + col);
    double up = a->gated ? tpt_get(a->x, a->dtype, row * a->x_stride + a->cols + col) : 1;
    double y = exact(a->activation, x), size = fmax(fabs(x), fabs(y)), dy, want;

    if (c->want_y)
        cr_assert_float_eq(tpt_get(got, a->dtype, row * a->y_stride + col), y * up,
                           tolerance_of(a->dtype, y * up, size * fabs(up)));
    if (!a->dy)
        return;
    dy = tpt_get(a->dy, a->dtype, row * a->dy_stride + col);
    want = dy * up * slope(a->activation, x);
    /* 1e-9: the finite difference's own error */
    cr_assert_float_eq(tpt_get(dx, a->dtype, row * a->dx_stride + col), want,
                       tolerance_of(a->dtype, want, (1 + size) * fabs(dy * up)) + 1e-9, "slope of %d at %g",
                       (int)a->activation, x);
    if (a->gated)
        cr_assert_float_eq(tpt_get(dx, a->dtype, row * a->dx_stride + a->cols + col), dy * y,
                           tolerance_of(a->dtype, dy * y, size * fabs(dy)));
}

static void check_activation(const machines *all, activation_case c, int64_t rows, int64_t cols)
{
    tpi_activation_args *a = &c.args;
    size_t size = tp_dtype_size(a->dtype);
    void *x, *dy = NULL, *got;

    c.wide = a->gated ? 2 * cols : cols;
    a->rows = rows;
    a->cols = cols;
    a->x_stride = c.wide + X_GAP;
    a->y_stride = cols + Y_GAP;
    a->dx_stride = c.wide;
    a->dy_stride = cols;
    a->x = x = tpt_new_normal(a->dtype, rows * a->x_stride, 5, 2.5);
    if (a->dy)
        a->dy = dy = tpt_new_normal(a->dtype, rows * cols, 6, 1);
    got = machines_run(all, run_activation, &c, NULL, (size_t)(rows * (a->y_stride + a->dx_stride)) * size);
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t col = 0; col < cols; col++)
            check_one(&c, got, row, col);
        cr_assert(machine_untouched((char *)got + (size_t)(row * a->y_stride + cols) * size, size));
    }
    free(x);
    free(dy);
    free(got);
}

static void check_all(bool gated, bool backward)
{
    static const int64_t sizes[][2] = {{0, 4}, {1, 1}, {3, 16}, {7, 37}, {2, 8200}};
    machines all = machines_open();

    for (size_t k = 0; k < sizeof activations / sizeof activations[0]; k++) {
        for (int d = 0; d < 3; d++) {
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
                activation_case c = {.args = {.activation = activations[k], .gated = gated, .dtype = machine_floats[d]},
                                     .want_y = !backward || s % 2};

                c.args.dy = backward ? &c : NULL; /* any pointer: the case makes its own */
                if (s < 4 || d == 0)
                    check_activation(&all, c, sizes[s][0], sizes[s][1]);
            }
        }
    }
    machines_close(&all);
}

Test(activation, forward)
{
    check_all(false, false);
}

Test(activation, backward)
{
    check_all(false, true);
}

Test(activation, gated_forward)
{
    check_all(true, false);
}

Test(activation, gated_backward)
{
    check_all(true, true);
}

/* All of f32 but NaN, in steps: exp, tanh, erf and the sigmoid have the same bits everywhere, and nothing turns into
 * NaN. */
Test(activation, whole_range_has_the_same_bits)
{
    enum { COUNT = 40000 };
    machines all = machines_open();
    float *x = tpt_array(TP_DTYPE_F32, COUNT), *dy = tpt_new_uniform(TP_DTYPE_F32, COUNT, 1, 1, 1.5);

    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t bits = i * (UINT32_MAX / COUNT) + 2;

        memcpy(&x[i], &bits, sizeof bits);
        if (isnan(x[i]))
            x[i] = i % 2 ? INFINITY : -INFINITY;
    }
    for (size_t k = 1; k < sizeof activations / sizeof activations[0]; k++) {
        activation_case c = {.args = {.activation = activations[k],
                                      .rows = 1,
                                      .cols = COUNT,
                                      .dtype = TP_DTYPE_F32,
                                      .x = x,
                                      .x_stride = COUNT,
                                      .y_stride = COUNT,
                                      .dy = dy,
                                      .dy_stride = COUNT,
                                      .dx_stride = COUNT},
                             .want_y = true};
        float *got = machines_run(&all, run_activation, &c, NULL, 2 * COUNT * sizeof(float));

        for (int i = 0; i < 2 * COUNT; i++)
            cr_assert(!isnan(got[i]), "activation %d at %a", (int)activations[k], (double)x[i % COUNT]);
        free(got);
    }
    free(x);
    free(dy);
    machines_close(&all);
}

/* Rounding to bf16 keeps what is bf16 already, subnormals too. */
Test(activation, every_bf16_value_stays)
{
    enum { COUNT = 0x7f81 }; /* from 0 to infinity */
    machines all = machines_open();
    uint16_t *x = tpt_array(TP_DTYPE_BF16, COUNT);
    activation_case c = {.args = {.activation = TPI_ACT_RELU,
                                  .rows = 1,
                                  .cols = COUNT,
                                  .dtype = TP_DTYPE_BF16,
                                  .x = x,
                                  .x_stride = COUNT,
                                  .y_stride = COUNT},
                         .want_y = true};

    for (int i = 0; i < COUNT; i++)
        x[i] = (uint16_t)i;
    void *got = machines_run(&all, run_activation, &c, NULL, COUNT * sizeof *x);
    cr_assert_eq(memcmp(got, x, COUNT * sizeof *x), 0);
    free(got);
    free(x);
    machines_close(&all);
}

Test(activation, nan_stays)
{
    machines all = machines_open();
    float x[2] = {NAN, 1}, dy[2] = {1, 1};

    for (size_t k = 1; k < sizeof activations / sizeof activations[0]; k++) {
        float y[2], dx[2];
        tpi_activation_args args = {.activation = activations[k],
                                    .rows = 1,
                                    .cols = 2,
                                    .dtype = TP_DTYPE_F32,
                                    .x = x,
                                    .x_stride = 2,
                                    .y = y,
                                    .y_stride = 2,
                                    .dy = dy,
                                    .dy_stride = 2,
                                    .dx = dx,
                                    .dx_stride = 2};

        for (int i = 0; i < all.count; i++) {
            cr_assert_eq(tpi_activate(all.ctx[i]->compute, &args), TP_OK);
            cr_assert_eq(tp_ctx_synchronize(all.ctx[i]), TP_OK);
            cr_assert(isnan(y[0]) && isnan(dx[0]) && !isnan(y[1]) && !isnan(dx[1]), "activation %d",
                      (int)activations[k]);
        }
    }
    machines_close(&all);
}
