/* Linear layers against double precision and finite differences, and bit for bit on every layout. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <tp/tp.h>

#include "../support/data.h"
#include "../support/layouts.h"
#include "../support/layer_tables.h"

static tpt_case linear_case(const tp_linear_desc *desc, tp_dtype dtype, int64_t tokens)
{
    return (tpt_case){.name = desc->name,
                      .table = &tpt_linear_table,
                      .desc = desc,
                      .cut = desc->kind == TP_LINEAR_COLUMN ? TPT_CUT_OUTPUT
                             : desc->kind == TP_LINEAR_ROW  ? TPT_CUT_INPUT
                                                            : TPT_CUT_NONE,
                      .dtype = dtype,
                      .in = desc->in_features,
                      .out = desc->out_features,
                      .pass = {.tokens = tokens, .step = 3, .first_token = 100},
                      .residual = desc->kind == TP_LINEAR_ROW,
                      .residual_gradient = tokens % 2 == 1,
                      .seed = 11};
}

static void reference(const tpt_case *c, const double *x, double *const *param, double *y)
{
    for (int64_t t = 0; t < c->pass.tokens; t++)
        for (int64_t o = 0; o < c->out; o++) {
            double sum = param[1][o];
            for (int64_t i = 0; i < c->in; i++)
                sum += x[t * c->in + i] * param[0][o * c->in + i];
            y[t * c->out + o] = sum;
        }
}

static void check_reference(tp_linear_kind kind, tp_dtype dtype, int tp, bool sequence_parallel)
{
    tp_linear_desc desc = {
        .name = "linear", .kind = kind, .in_features = 21, .out_features = 19, .dtype = dtype, .bias = true};
    tpt_case c = linear_case(&desc, dtype, 13);
    tpt_result result;
    tpt_case_run(&c, &(tpt_layout){.tp = tp, .threads = 1, .sequence_parallel = sequence_parallel}, &result);
    tpt_result_check(&c, &result, reference, 1);
    tpt_result_free(&result);
}

Test(linear, column_agrees_with_double_precision)
{
    static const int ranks[] = {1, 2, 3, 5, 7, 8};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        check_reference(TP_LINEAR_COLUMN, TP_DTYPE_F32, ranks[i], false);
        check_reference(TP_LINEAR_COLUMN, TP_DTYPE_F32, ranks[i], true);
        check_reference(TP_LINEAR_COLUMN, TP_DTYPE_BF16, ranks[i], true);
    }
}

Test(linear, row_agrees_with_double_precision)
{
    static const int ranks[] = {1, 2, 3, 5, 7, 8};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        check_reference(TP_LINEAR_ROW, TP_DTYPE_F32, ranks[i], false);
        check_reference(TP_LINEAR_ROW, TP_DTYPE_F32, ranks[i], true);
        check_reference(TP_LINEAR_ROW, TP_DTYPE_F16, ranks[i], true);
    }
}

static void same_bits(tp_linear_kind kind, tp_dtype dtype, float dropout, int64_t tokens)
{
    tp_linear_desc desc = {.name = kind == TP_LINEAR_ROW ? "row" : "column",
                           .kind = kind,
                           .in_features = 101,
                           .out_features = 67,
                           .dtype = dtype,
                           .bias = true,
                           .dropout = dropout,
                           .site = 0x304};
    tpt_case c = linear_case(&desc, dtype, tokens);
    tpt_same_on_all_layouts(&c);
}

Test(linear, column_has_the_same_bits_on_every_layout, .timeout = 120)
{
    same_bits(TP_LINEAR_COLUMN, TP_DTYPE_F32, 0, 37);
    same_bits(TP_LINEAR_COLUMN, TP_DTYPE_BF16, 0, 37);
}

Test(linear, row_has_the_same_bits_on_every_layout, .timeout = 120)
{
    same_bits(TP_LINEAR_ROW, TP_DTYPE_F32, 0, 37);
    same_bits(TP_LINEAR_ROW, TP_DTYPE_BF16, 0.25f, 37);
    same_bits(TP_LINEAR_ROW, TP_DTYPE_F32, 0.5f, 5); /* fewer tokens than ranks */
}

Test(linear, no_tokens_change_nothing)
{
    tp_linear_desc desc = {.name = "empty", .kind = TP_LINEAR_ROW, .in_features = 9, .out_features = 8,
                           .dtype = TP_DTYPE_F32, .bias = true};
    tpt_case c = linear_case(&desc, TP_DTYPE_F32, 0);
    tpt_result result;
    tpt_case_run(&c, &(tpt_layout){.tp = 2, .threads = 1, .sequence_parallel = true}, &result);
    for (int p = 0; p < result.params; p++)
        for (int64_t i = 0; i < result.elements[p]; i++)
            cr_assert_eq(result.grad[p][i], 0.0f);
    tpt_result_free(&result);
}

/* O02: the bias of a row-parallel layer is added once, not by every rank. */
static tp_status bias_once(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tp_linear_desc desc = {.name = "down", .kind = TP_LINEAR_ROW, .in_features = 8, .out_features = 4,
                           .dtype = TP_DTYPE_F32, .bias = true};
    tp_linear *layer;
    tp_status status = tp_linear_create(ctx, &desc, &layer);
    if (status != TP_OK)
        return status;
    tp_param *params[2];
    tp_linear_params(layer, params, 2);
    const float zeros[32] = {0}, bias[4] = {1, 2, 3, 4};
    tp_param_load(ctx, params[0], zeros, TP_DTYPE_F32, NULL);
    tp_param_load(ctx, params[1], bias, TP_DTYPE_F32, NULL);
    float x[2 * 8], y[2 * 4] = {0};
    for (int i = 0; i < 16; i++)
        x[i] = 1;
    int64_t local = tp_linear_local_features(layer);
    tp_io io = {.in = tp_tensor_2d(x, TP_DTYPE_F32, 2, local), .out = tp_tensor_2d(y, TP_DTYPE_F32, 2, 4)};
    status = tp_linear_forward(ctx, layer, NULL, &io, NULL);
    bool right = memcmp(y, bias, sizeof bias) == 0 && memcmp(y + 4, bias, sizeof bias) == 0;
    tp_linear_destroy(layer);
    return status == TP_OK && !right ? TP_ERR_NUMERIC : status;
}

Test(linear, row_bias_is_added_once)
{
    for (int tp = 1; tp <= 8; tp *= 2)
        cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = tp}, bias_once, NULL), TP_OK, "tp %d: %s", tp,
                     tp_last_message());
}

typedef struct refusal {
    tp_linear_desc desc;
    tp_status status;
    const char *text[2];
} refusal;

static tp_status try_refusal(tp_ctx *ctx, void *arg)
{
    const refusal *r = arg;
    size_t before = tp_ctx_memory(ctx, TP_MEMORY_PARAM).bytes;
    tp_linear *layer = (tp_linear *)&before;
    tp_status status = tp_linear_create(ctx, &r->desc, &layer);
    if (status != r->status || layer != NULL || tp_ctx_memory(ctx, TP_MEMORY_PARAM).bytes != before)
        return TP_ERR_INTERNAL;
    for (int i = 0; i < 2; i++)
        if (r->text[i] != NULL && strstr(tp_ctx_message(ctx), r->text[i]) == NULL)
            return TP_ERR_FORMAT;
    return tp_ctx_failure(ctx);
}

Test(linear, bad_descriptions_are_refused_with_both_numbers)
{
    static const refusal refusals[] = {
        {{.name = "a", .in_features = 0, .out_features = 4, .dtype = TP_DTYPE_F32}, TP_ERR_ARGUMENT,
         {"in_features 0", "out_features 4"}},
        {{.name = "a", .in_features = 8, .out_features = 3, .dtype = TP_DTYPE_F32}, TP_ERR_ARGUMENT,
         {"3 units", "tp 4"}},
        {{.name = "a", .in_features = 8, .out_features = 8}, TP_ERR_DTYPE, {"invalid", "f32"}},
        {{.name = "a", .in_features = 8, .out_features = 8, .dtype = TP_DTYPE_I32}, TP_ERR_DTYPE, {"i32", "f32"}},
        {{.name = "a", .kind = TP_LINEAR_ROW, .in_features = 8, .out_features = 8, .dtype = TP_DTYPE_F32, .dropout = 1},
         TP_ERR_ARGUMENT, {"dropout 1", "[0, 1)"}},
        {{.name = "a", .in_features = 8, .out_features = 8, .dtype = TP_DTYPE_F32, .parts = 1, .part = {{7, 1, 0}}},
         TP_ERR_ARGUMENT, {"7", "8"}},
        {{.name = "a", .in_features = INT64_MAX / 2, .out_features = 8, .dtype = TP_DTYPE_F32}, TP_ERR_ARGUMENT,
         {"8", "too large"}},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        refusal r = refusals[i];
        tp_status status = tp_run_ranks(&(tp_run_options){.ranks = 4}, try_refusal, &r);
        cr_assert_eq(status, TP_OK, "case %zu: %s %s", i, tp_status_name(status), tp_last_message());
    }
}

static tp_status wrong_shapes(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tp_linear_desc desc = {.name = "up", .in_features = 8, .out_features = 8, .dtype = TP_DTYPE_F32};
    tp_linear *layer;
    if (tp_linear_create(ctx, &desc, &layer) != TP_OK)
        return TP_ERR_INTERNAL;
    float x[16] = {0}, y[16];
    memset(y, 0x55, sizeof y);
    float before[16];
    memcpy(before, y, sizeof y);
    tp_io io = {.in = tp_tensor_2d(x, TP_DTYPE_F32, 2, 7),
                .out = tp_tensor_2d(y, TP_DTYPE_F32, 2, tp_linear_local_features(layer))};
    tp_status status = tp_linear_forward(ctx, layer, NULL, &io, NULL);
    bool right =
        status == TP_ERR_SHAPE && strstr(tp_ctx_message(ctx), "[2, 7]") && strstr(tp_ctx_message(ctx), "[2, 8]");
    io.in = tp_tensor_2d(x, TP_DTYPE_BF16, 2, 8);
    right = right && tp_linear_forward(ctx, layer, NULL, &io, NULL) == TP_ERR_DTYPE && memcmp(before, y, sizeof y) == 0;
    io.in = tp_tensor_2d(x, TP_DTYPE_F32, 2, 8);
    right = right && tp_linear_forward(ctx, layer, NULL, &io, NULL) == TP_OK; /* the context is as good as before */
    tp_linear_destroy(layer);
    return right ? TP_OK : TP_ERR_FORMAT;
}

Test(linear, wrong_shapes_are_refused_and_change_nothing)
{
    cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = 2}, wrong_shapes, NULL), TP_OK, "%s", tp_last_message());
}

/* The caller's own weight, which has no packed copies. A frozen one leaves the bias to learn, which needs no input. */
static void check_own_weight(unsigned flags)
{
    tp_ctx *ctx, *other;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &other), TP_OK, "%s", tp_last_message());
    const tp_param_desc own = {.name = "own", .dims = 2, .shape = {2, 3}, .dtype = TP_DTYPE_F32, .flags = flags,
                               .init = TP_INIT_ONE};
    tp_linear_desc desc = {.name = "up", .kind = TP_LINEAR_REPLICATED, .in_features = 3, .out_features = 2,
                           .dtype = TP_DTYPE_F32, .bias = true};
    cr_assert_eq(tp_param_create(ctx, &own, &desc.weight), TP_OK, "%s", tp_last_message());
    tp_linear *layer;
    cr_expect_eq(tp_linear_create(other, &desc, &layer), TP_ERR_ARGUMENT);
    cr_expect(strstr(tp_ctx_message(other), "another context"), "%s", tp_ctx_message(other));
    cr_assert_eq(tp_linear_create(ctx, &desc, &layer), TP_OK, "%s", tp_last_message());
    tp_param *param[2] = {desc.weight};
    cr_assert_eq(tp_linear_params(layer, param + 1, 1), 1);
    cr_assert_eq(tp_params_init(ctx, param, 2), TP_OK);
    float x[2][3] = {{1, 2, 3}, {4, 5, 6}}, y[2][2], dy[2][2] = {{1, 2}, {3, 4}}, dx[2][3];
    const tp_io io = {.in = tp_tensor_2d(x, TP_DTYPE_F32, 2, 3), .out = tp_tensor_2d(y, TP_DTYPE_F32, 2, 2)},
                back = {.in = tp_tensor_2d(dy, TP_DTYPE_F32, 2, 2), .out = tp_tensor_2d(dx, TP_DTYPE_F32, 2, 3)};
    tp_linear_saved saved;
    tp_linear_delayed delayed = {.memory = NULL};
    cr_assert_eq(tp_linear_forward(ctx, layer, NULL, &io, &saved), TP_OK, "%s", tp_last_message());
    if (flags & TP_PARAM_FROZEN)
        saved.x = tp_tensor_none();
    cr_assert_eq(tp_linear_backward(ctx, layer, NULL, &back, &saved), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_linear_backward_input(ctx, layer, NULL, &back, &delayed), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_linear_backward_weight(ctx, layer, NULL, &saved, &delayed), TP_OK, "%s", tp_last_message());
    const float *dw = param[0]->grad.data, *db = param[1]->grad.data;
    cr_assert(y[0][1] == 6 && y[1][0] == 15 && dx[0][2] == 3 && dx[1][0] == 7);
    cr_assert(db[0] == 2 * 4 && db[1] == 2 * 6, "%g %g", (double)db[0], (double)db[1]);
    cr_assert(flags & TP_PARAM_FROZEN ? dw == NULL : dw[1] == 2 * 17 && dw[5] == 2 * 30);
    tp_linear_destroy(layer);
    tp_param_destroy(ctx, desc.weight);
    tp_ctx_destroy(other);
    tp_ctx_destroy(ctx);
}

Test(linear, weights_of_the_callers_own)
{
    check_own_weight(0);
    check_own_weight(TP_PARAM_FROZEN);
}
