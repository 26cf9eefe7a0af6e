/* What GEMM does to its sums before it stores them: each step against scalar code, and all together. */
#include <tp/random.h>

#include "gemm_case.h"

enum { ROWS = 23, COLS = 83, INNER = 40, COUNT = ROWS * COLS, STRIDE = COLS + 5, RESIDUAL_STRIDE = STRIDE + 3,
      PRE_STRIDE = STRIDE + 2 };

typedef struct inputs {
    gemm_matrix a, b;
    tp_dtype dtype;                                         /* of C and all that has its shape */
    float *root;                                            /* the sums */
    float *bias, *residual, *act_input;                     /* values */
    void *bias_stored, *residual_stored, *act_input_stored; /* the same, with strides */
} inputs;

static void *stored(tp_dtype dtype, float *value, int64_t rows, int64_t stride)
{
    void *data = tpt_array(dtype, rows * stride);
    for (int64_t i = 0; i < rows * COLS; i++) {
        tpt_set(data, dtype, i / COLS * stride + i % COLS, (double)value[i]);
        value[i] = (float)tpt_get(data, dtype, i / COLS * stride + i % COLS);
    }
    return data;
}

static inputs inputs_new(tp_dtype dtype)
{
    inputs in = {.dtype = dtype,
                 .a = gemm_matrix_new(dtype, ROWS, INNER, 1, 1),
                 .b = gemm_matrix_new(dtype, COLS, INNER, 2, 0.2),
                 .root = tpt_array(TP_DTYPE_F32, COUNT),
                 .bias = tpt_new_normal(TP_DTYPE_F32, COLS, 3, 1),
                 .residual = tpt_new_normal(TP_DTYPE_F32, COUNT, 4, 1),
                 .act_input = tpt_new_normal(TP_DTYPE_F32, COUNT, 5, 2)};
    const tpi_inner chain = gemm_one_chain(INNER);
    gemm_reference(&in.a, &in.b, &chain, NULL, in.root);
    in.bias_stored = stored(dtype, in.bias, 1, COLS);
    in.residual_stored = stored(dtype, in.residual, ROWS, RESIDUAL_STRIDE);
    in.act_input_stored = stored(dtype, in.act_input, ROWS, STRIDE + 1);
    return in;
}

static void inputs_free(inputs *in)
{
    gemm_matrix_free(&in->a);
    gemm_matrix_free(&in->b);
    void *all[] = {
        in->root, in->bias, in->residual, in->act_input, in->bias_stored, in->residual_stored, in->act_input_stored};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static tpi_gemm_args plain(const inputs *in, void *c)
{
    return (tpi_gemm_args){.rows = ROWS,
                           .cols = COLS,
                           .inner = INNER,
                           .a = gemm_operand(&in->a, false),
                           .b = gemm_operand(&in->b, true),
                           .c = c,
                           .c_dtype = in->dtype,
                           .c_stride = STRIDE,
                           .bias_dtype = in->dtype,
                           .first_row = 1000,
                           .dropout_key = {.seed = 77, .stream = 5}};
}

/* ---- references, in double ---- */

static double normal_cdf(double x)
{
    return 0.5 * erfc(-x / sqrt(2));
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double gelu_tanh_inner(double x)
{
    return sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
}

static double activation(tpi_activation kind, double x)
{
    switch (kind) {
    case TPI_ACT_GELU: return x * normal_cdf(x);
    case TPI_ACT_GELU_TANH: return 0.5 * x * (1 + tanh(gelu_tanh_inner(x)));
    case TPI_ACT_RELU: return x > 0 ? x : 0;
    case TPI_ACT_RELU2: return x > 0 ? x * x : 0;
    case TPI_ACT_SILU: return x * sigmoid(x);
    default: return x;
    }
}

static double slope(tpi_activation kind, double x)
{
    double t;
    switch (kind) {
    case TPI_ACT_GELU: return normal_cdf(x) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    case TPI_ACT_GELU_TANH:
        t = tanh(gelu_tanh_inner(x));
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    case TPI_ACT_RELU: return x > 0;
    case TPI_ACT_RELU2: return x > 0 ? 2 * x : 0;
    case TPI_ACT_SILU: return sigmoid(x) * (1 + x * (1 - sigmoid(x)));
    default: return 1;
    }
}

/* ---- comparison ---- */

static void *new_c(tp_dtype dtype)
{
    void *c = tpt_array(dtype, ROWS * STRIDE);
    for (int64_t i = 0; i < ROWS * STRIDE; i++)
        tpt_set(c, dtype, i, -7);
    return c;
}

/* c holds want, rounded to its dtype, bit for bit, and nothing was written between the rows. */
static void assert_exact(const char *what, const void *c, tp_dtype dtype, const float *want)
{
    void *rounded = new_c(dtype);
    for (int64_t i = 0; i < COUNT; i++)
        tpt_set(rounded, dtype, i / COLS * STRIDE + i % COLS, (double)want[i]);
    cr_assert(tpt_same_bits(what, c, rounded, dtype, ROWS * STRIDE), "%s, %s", what, tp_dtype_name(dtype));
    free(rounded);
}

/* want = root * f, where f is a sum of terms of about 1: (1 + tanh) / 2, Phi, a sigmoid. So an
 * error is relative to the root, however small f is. */
static void assert_close(const char *what, const void *c, tp_dtype dtype, const double *want, const float *root)
{
    double *padded = tpt_allocate(ROWS * STRIDE * sizeof *padded),
           *tolerance = tpt_allocate(ROWS * STRIDE * sizeof *tolerance);
    for (int64_t i = 0; i < ROWS * STRIDE; i++) {
        bool inside = i % STRIDE < COLS;
        int64_t from = i / STRIDE * COLS + i % STRIDE;
        padded[i] = inside ? want[from] : -7;
        tolerance[i] = inside ? tpt_tolerance(dtype, 4, fabs((double)root[from]) + fabs(padded[i])) : 0;
    }
    cr_assert(tpt_close_each(what, c, dtype, padded, tolerance, ROWS * STRIDE), "%s, %s", what, tp_dtype_name(dtype));
    free(padded);
    free(tolerance);
}

static bool kept(const tpi_gemm_args *args, int64_t i)
{
    return tp_random_u32(args->dropout_key, (uint64_t)(args->first_row * COLS + i)) >=
           tp_random_threshold(args->dropout);
}

/* ---- each alone ---- */

static void check_linear_steps(tp_ctx *ctx, const inputs *in)
{
    float want[COUNT];
    void *c = new_c(in->dtype), *pre = new_c(in->dtype);
    tpi_gemm_args args = plain(in, c);
    cr_assert_eq(gemm_call(ctx, &args), TP_OK);
    assert_exact("plain", c, in->dtype, in->root);

    args.bias = in->bias_stored;
    for (int i = 0; i < COUNT; i++)
        want[i] = in->root[i] + in->bias[i % COLS];
    cr_assert_eq(gemm_call(ctx, &args), TP_OK);
    assert_exact("bias", c, in->dtype, want);

    args = plain(in, c);
    args.residual = in->residual_stored;
    args.residual_stride = RESIDUAL_STRIDE;
    for (int i = 0; i < COUNT; i++)
        want[i] = in->root[i] + in->residual[i];
    cr_assert_eq(gemm_call(ctx, &args), TP_OK);
    assert_exact("residual", c, in->dtype, want);

    args = plain(in, c);
    args.dropout = 0.3f;
    for (int i = 0; i < COUNT; i++)
        want[i] = kept(&args, i) ? in->root[i] * (1.0f / (1.0f - 0.3f)) : 0;
    cr_assert_eq(gemm_call(ctx, &args), TP_OK);
    assert_exact("dropout", c, in->dtype, want);

    args = plain(in, c);
    args.pre = pre;
    args.pre_stride = STRIDE;
    args.activation = TPI_ACT_RELU;
    for (int i = 0; i < COUNT; i++)
        want[i] = in->root[i] > 0 ? in->root[i] : 0;
    cr_assert_eq(gemm_call(ctx, &args), TP_OK);
    assert_exact("relu", c, in->dtype, want);
    assert_exact("value before the activation", pre, in->dtype, in->root);
    free(c);
    free(pre);
}

/* Kept beside C and nothing else to do, its rows further apart than C's. */
static void check_pre_alone(tp_ctx *ctx, const inputs *in)
{
    const size_t size = tp_dtype_size(in->dtype);
    void *c = new_c(in->dtype), *rows = new_c(in->dtype);
    char *pre = tpt_array(in->dtype, ROWS * PRE_STRIDE);
    for (int64_t i = 0; i < ROWS * PRE_STRIDE; i++)
        tpt_set(pre, in->dtype, i, -7);
    tpi_gemm_args args = plain(in, c);
    args.pre = pre;
    args.pre_stride = PRE_STRIDE;
    cr_assert_eq(gemm_call(ctx, &args), TP_OK);
    for (int64_t r = 0; r < ROWS; r++)
        memcpy((char *)rows + (size_t)(r * STRIDE) * size, pre + (size_t)(r * PRE_STRIDE) * size, STRIDE * size);
    assert_exact("C", c, in->dtype, in->root);
    assert_exact("its copy", rows, in->dtype, in->root);
    free(c);
    free(rows);
    free(pre);
}

static void check_activations(tp_ctx *ctx, const inputs *in)
{
    double want[COUNT];
    void *c = new_c(in->dtype);
    for (int kind = TPI_ACT_GELU; kind < TPI_ACT_COUNT; kind++) {
        tpi_gemm_args args = plain(in, c);
        args.activation = (tpi_activation)kind;
        for (int i = 0; i < COUNT; i++)
            want[i] = activation(args.activation, (double)in->root[i]);
        cr_assert_eq(gemm_call(ctx, &args), TP_OK);
        assert_close("activation", c, in->dtype, want, in->root);

        args.act_input = in->act_input_stored;
        args.act_input_stride = STRIDE + 1;
        for (int i = 0; i < COUNT; i++)
            want[i] = (double)in->root[i] * slope(args.activation, (double)in->act_input[i]);
        cr_assert_eq(gemm_call(ctx, &args), TP_OK);
        assert_close("gradient of activation", c, in->dtype, want, in->root);
    }
    free(c);
}

Test(gemm_epilogue, each_step)
{
    tp_ctx *ctx = gemm_context(TP_ISA_AUTO, 2);
    for (int d = 0; d < 3; d++) {
        inputs in = inputs_new(gemm_dtypes[d]);
        check_linear_steps(ctx, &in);
        check_pre_alone(ctx, &in);
        check_activations(ctx, &in);
        inputs_free(&in);
    }
    tp_ctx_destroy(ctx);
}

/* ---- all together, everywhere ---- */

static tpi_gemm_args everything(const inputs *in, void *c, void *pre, tpi_activation kind, bool backward)
{
    tpi_gemm_args args = plain(in, c);
    args.bias = in->bias_stored;
    args.pre = pre;
    args.pre_stride = STRIDE;
    args.activation = kind;
    if (backward) {
        args.act_input = in->act_input_stored;
        args.act_input_stride = STRIDE + 1;
    }
    args.dropout = 0.1f;
    args.residual = in->residual_stored;
    args.residual_stride = RESIDUAL_STRIDE;
    return args;
}

/* With ReLU all is exact: x = sum + bias; pre; relu; dropout; + residual; one rounding. */
Test(gemm_epilogue, all_steps_in_order)
{
    tp_ctx *ctx = gemm_context(TP_ISA_AUTO, 1);
    for (int d = 0; d < 3; d++) {
        inputs in = inputs_new(gemm_dtypes[d]);
        void *c = new_c(in.dtype), *pre = new_c(in.dtype);
        float want[COUNT], want_pre[COUNT];
        tpi_gemm_args args = everything(&in, c, pre, TPI_ACT_RELU, false);
        for (int i = 0; i < COUNT; i++) {
            want_pre[i] = in.root[i] + in.bias[i % COLS];
            float x = want_pre[i] > 0 ? want_pre[i] : 0;
            want[i] = (kept(&args, i) ? x * (1.0f / (1.0f - 0.1f)) : 0) + in.residual[i];
        }
        cr_assert_eq(gemm_call(ctx, &args), TP_OK);
        assert_exact("all steps", c, in.dtype, want);
        assert_exact("value before the activation", pre, in.dtype, want_pre);
        inputs_free(&in);
        free(c);
        free(pre);
    }
    tp_ctx_destroy(ctx);
}

Test(gemm_epilogue, same_bits_on_every_instruction_set)
{
    for (int d = 0; d < 3; d++) {
        inputs in = inputs_new(gemm_dtypes[d]);
        for (int kind = TPI_ACT_NONE; kind < 2 * TPI_ACT_COUNT; kind++) {
            void *first = new_c(in.dtype), *first_pre = new_c(in.dtype);
            for (int isa = TP_ISA_PORTABLE; isa < TP_ISA_COUNT; isa++) {
                if (!tp_isa_available((tp_isa)isa))
                    continue;
                tp_ctx *ctx = gemm_context((tp_isa)isa, 1 + isa % 3);
                void *c = isa == TP_ISA_PORTABLE ? first : new_c(in.dtype),
                     *pre = isa == TP_ISA_PORTABLE ? first_pre : new_c(in.dtype);
                tpi_gemm_args args =
                    everything(&in, c, pre, (tpi_activation)(kind % TPI_ACT_COUNT), kind >= TPI_ACT_COUNT);
                cr_assert_eq(gemm_call(ctx, &args), TP_OK);
                tp_ctx_destroy(ctx);
                cr_assert(tpt_same_bits("C", c, first, in.dtype, ROWS * STRIDE), "%s, activation %d",
                          tp_isa_name((tp_isa)isa), kind);
                cr_assert(tpt_same_bits("pre", pre, first_pre, in.dtype, ROWS * STRIDE), "%s, activation %d",
                          tp_isa_name((tp_isa)isa), kind);
                if (c != first) {
                    free(c);
                    free(pre);
                }
            }
            free(first);
            free(first_pre);
        }
        inputs_free(&in);
    }
}

/* A fused activation and the op of its own give the same bits when what lies between them is stored unrounded. */
Test(gemm_epilogue, fused_activation_is_the_separate_one)
{
    tp_ctx *ctx = gemm_context(TP_ISA_AUTO, 1);
    inputs in = inputs_new(TP_DTYPE_F32);
    void *c = new_c(TP_DTYPE_F32), *pre = new_c(TP_DTYPE_F32), *separate = new_c(TP_DTYPE_F32);
    for (int kind = TPI_ACT_GELU; kind < TPI_ACT_COUNT; kind++) {
        tpi_gemm_args args = plain(&in, c);
        args.pre = pre;
        args.pre_stride = STRIDE;
        args.activation = (tpi_activation)kind;
        cr_assert_eq(gemm_call(ctx, &args), TP_OK);
        const tpi_activation_args act = {.activation = (tpi_activation)kind,
                                         .rows = ROWS,
                                         .cols = COLS,
                                         .dtype = TP_DTYPE_F32,
                                         .x = pre,
                                         .x_stride = STRIDE,
                                         .y = separate,
                                         .y_stride = STRIDE};
        cr_assert_eq(ctx->backend->activation(ctx->compute, &act), TP_OK);
        cr_assert_eq(tp_ctx_synchronize(ctx), TP_OK);
        cr_assert(tpt_same_bits("activation", c, separate, TP_DTYPE_F32, ROWS * STRIDE), "activation %d", kind);
    }
    free(c);
    free(pre);
    free(separate);
    inputs_free(&in);
    tp_ctx_destroy(ctx);
}
