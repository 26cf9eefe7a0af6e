/* Lists of many small parameters: each has its own update, once; frozen ones have none. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <tp/tp.h>

#include "train/optimizer.h"
#include "train/param.h"

/* ---- lists of parameters ---- */

enum { MANY = 301 };

static tp_param *make_pair(tp_ctx *ctx, tp_dtype dtype, unsigned flags, float value)
{
    tp_param *param;
    const tp_param_desc desc = {.name = "pair", .dims = 1, .shape = {2}, .dtype = dtype, .flags = flags};
    const float whole[2] = {value, -value};
    cr_assert_eq(tp_param_create(ctx, &desc, &param), TP_OK, "%s", tp_ctx_message(ctx));
    cr_assert_eq(tp_param_load(ctx, param, whole, TP_DTYPE_F32, NULL), TP_OK, "%s", tp_ctx_message(ctx));
    return param;
}

static void check_pair(tp_ctx *ctx, tp_optimizer *optimizer, const tp_param *param, float value)
{
    float whole[2], *master, *m, *v;
    int64_t step;
    bool frozen = param->flags & TP_PARAM_FROZEN;
    cr_assert_eq(tp_param_gather(ctx, param, 0, whole), TP_OK);
    cr_assert(whole[0] == value && whole[1] == -value, "%g, expected %g", (double)whole[0], (double)value);
    cr_assert_eq(tp_optimizer_state(optimizer, param, &master, &m, &v, &step), TP_OK);
    cr_assert(step == 1 && v == NULL && (m == NULL) == frozen);
    if (param->value.dtype == TP_DTYPE_F32)
        cr_assert_eq(master, param->value.data);
    else
        cr_assert_eq(master == NULL, frozen);
}

static void check_pair_stays(tp_ctx *ctx, const tp_param *param, float value)
{
    float whole[2];
    cr_assert_eq(tp_param_gather(ctx, param, 0, whole), TP_OK);
    cr_assert(whole[0] == value && whole[1] == -value, "%g, %g, expected %g", (double)whole[0], (double)whole[1],
              (double)value);
}

/* More than are issued together. Each gets its own update, once; frozen ones, the last too, stay, keep nothing, and
 * have no share in the norm. */
Test(optimizer_lists, long_lists_with_frozen_parameters)
{
    tp_ctx *ctx;
    tp_optimizer *optimizer;
    tp_param *params[MANY];
    tp_step_report report;
    int learning = 0;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    for (int i = 0; i < MANY; i++)
        params[i] = make_pair(ctx, i % 2 ? TP_DTYPE_BF16 : TP_DTYPE_F32,
                              i % 5 == 0 ? TP_PARAM_FROZEN | TP_PARAM_DECAY : 0, (float)(i % 64));
    const tp_optimizer_desc desc = {.kind = TP_OPTIMIZER_SGD, .momentum = 0.5f, .decay = 0.5f};
    cr_assert_eq(tp_optimizer_create(ctx, &desc, params, MANY, &optimizer), TP_OK, "%s", tp_ctx_message(ctx));
    cr_assert_eq(tp_params_begin(ctx, params, MANY), TP_OK, "%s", tp_ctx_message(ctx));
    for (int i = 0; i < MANY; i++)
        if (params[i]->grad.data != NULL) {
            ((float *)params[i]->grad.data)[0] = -1.0f;
            ((float *)params[i]->grad.data)[1] = 1.0f;
            learning++;
        }
    cr_assert_eq(learning, MANY / 5 * 4);
    cr_assert_eq(tp_params_finish(ctx, params, MANY), TP_OK, "%s", tp_ctx_message(ctx));
    cr_assert_eq(tp_optimizer_step(ctx, optimizer, 0.25f, &report), TP_OK, "%s", tp_ctx_message(ctx));
    cr_assert_eq(report.grad_norm, sqrtf(2.0f * (float)learning));
    for (int i = 0; i < MANY; i++)
        check_pair(ctx, optimizer, params[i], (float)(i % 64) + (i % 5 == 0 ? 0 : 0.25f));
    float whole[2];
    cr_assert_eq(tp_param_gather(ctx, params[0], 1, whole), TP_ERR_ARGUMENT);
    cr_assert_not_null(strstr(tp_ctx_message(ctx), "frozen"));
    tp_optimizer_destroy(optimizer);
    for (int i = 0; i < MANY; i++)
        tp_param_destroy(ctx, params[i]);
    tp_ctx_destroy(ctx);
}

static void step_with_gradients(tp_ctx *ctx, tp_optimizer *optimizer, tp_param *const *params, int count,
                                tp_step_report *report)
{
    cr_assert_eq(tp_params_begin(ctx, params, count), TP_OK, "%s", tp_ctx_message(ctx));
    for (int i = 0; i < count; i++)
        for (int element = 0; element < 2; element++)
            ((float *)params[i]->grad.data)[element] = (float)(1 << i);
    cr_assert_eq(tp_params_finish(ctx, params, count), TP_OK, "%s", tp_ctx_message(ctx));
    cr_assert_eq(tp_optimizer_step(ctx, optimizer, 0.25f, report), TP_OK, "%s", tp_ctx_message(ctx));
}

/* Between steps, in f32 and with a master: what is frozen stays and has no share in the norm, and so none in what
 * clipping leaves of the others; then it goes on. */
Test(optimizer_lists, freezing_for_some_steps)
{
    static const tp_optimizer_desc desc = {.kind = TP_OPTIMIZER_SGD, .momentum = 0.5f, .clip_norm = 1.0f};
    tp_ctx *ctx;
    tp_optimizer *optimizer, *alone;
    tp_step_report report;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    for (int frozen = 0; frozen < 2; frozen++) {
        tp_param *params[3] = {make_pair(ctx, TP_DTYPE_F32, 0, 3), make_pair(ctx, TP_DTYPE_BF16, 0, 5),
                               make_pair(ctx, TP_DTYPE_F32, 0, 7)};
        tp_param *peers[2] = {make_pair(ctx, frozen ? TP_DTYPE_F32 : TP_DTYPE_BF16, 0, frozen ? 3 : 5),
                              make_pair(ctx, TP_DTYPE_F32, 0, 7)};
        tp_param *other = params[1 - frozen];
        float before[2], after[2], expected[2];
        params[frozen]->flags |= TP_PARAM_FROZEN;
        cr_assert_eq(tp_optimizer_create(ctx, &desc, params, 3, &optimizer), TP_OK, "%s", tp_ctx_message(ctx));
        cr_assert_eq(tp_optimizer_create(ctx, &desc, peers, 2, &alone), TP_OK, "%s", tp_ctx_message(ctx));
        for (int step = 0; step < 2; step++) {
            step_with_gradients(ctx, optimizer, params, 3, &report);
            cr_assert_eq(report.grad_norm, sqrtf(2.0f * (16.0f + (frozen ? 1.0f : 4.0f))), "%g",
                         (double)report.grad_norm);
            cr_assert_eq(tp_params_begin(ctx, peers, 2), TP_OK);
            for (int i = 0; i < 4; i++)
                ((float *)peers[i / 2]->grad.data)[i % 2] = i / 2 ? 4.0f : frozen ? 1.0f : 2.0f;
            cr_assert_eq(tp_params_finish(ctx, peers, 2), TP_OK);
            cr_assert_eq(tp_optimizer_step(ctx, alone, 0.25f, NULL), TP_OK);
        }
        cr_assert_eq(tp_param_gather(ctx, params[frozen], 0, before), TP_OK);
        cr_assert(before[0] == (frozen ? 5 : 3) && before[1] == -before[0], "%g, %g", (double)before[0],
                  (double)before[1]);
        for (int i = 0; i < 2; i++) {
            cr_assert_eq(tp_param_gather(ctx, i ? params[2] : other, 0, after), TP_OK);
            cr_assert_eq(tp_param_gather(ctx, peers[i], 0, expected), TP_OK);
            cr_assert_arr_eq(after, expected, sizeof after, "%g, alone %g", (double)after[0], (double)expected[0]);
        }
        params[frozen]->flags &= ~(unsigned)TP_PARAM_FROZEN;
        step_with_gradients(ctx, optimizer, params, 3, &report);
        cr_assert_eq(report.grad_norm, sqrtf(2.0f * 21.0f));
        cr_assert_eq(tp_param_gather(ctx, params[frozen], 0, after), TP_OK);
        cr_assert(after[0] < before[0] && after[1] < before[1], "%g, %g", (double)after[0], (double)after[1]);
        tp_optimizer_destroy(optimizer);
        tp_optimizer_destroy(alone);
        for (int i = 0; i < 5; i++)
            tp_param_destroy(ctx, i < 3 ? params[i] : peers[i - 3]);
    }
    tp_ctx_destroy(ctx);
}

Test(optimizer_lists, what_was_created_frozen_stays_so)
{
    static const tp_optimizer_desc desc = {.kind = TP_OPTIMIZER_ADAMW};
    tp_ctx *ctx;
    tp_optimizer *optimizer;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    tp_param *params[2] = {make_pair(ctx, TP_DTYPE_F32, 0, 3), make_pair(ctx, TP_DTYPE_BF16, TP_PARAM_FROZEN, 5)};
    cr_assert_eq(tp_optimizer_create(ctx, &desc, params, 2, &optimizer), TP_OK, "%s", tp_ctx_message(ctx));
    cr_assert_eq(tp_params_zero_grad(ctx, params, 2), TP_OK);
    ((float *)params[0]->grad.data)[0] = 1.0f;
    params[1]->flags = 0;
    cr_assert_eq(tp_optimizer_step(ctx, optimizer, 0.25f, NULL), TP_ERR_STATE);
    cr_assert_not_null(strstr(tp_ctx_message(ctx), "created frozen"), "%s", tp_ctx_message(ctx));
    check_pair_stays(ctx, params[0], 3);
    params[1]->flags = TP_PARAM_FROZEN;
    cr_assert_eq(tp_optimizer_step(ctx, optimizer, 0.25f, NULL), TP_OK, "%s", tp_ctx_message(ctx));
    check_pair_stays(ctx, params[1], 5);
    tp_optimizer_destroy(optimizer);
    for (int i = 0; i < 2; i++)
        tp_param_destroy(ctx, params[i]);
    tp_ctx_destroy(ctx);
}

/* A parameter that comes twice, or that another optimizer keeps a master of, is refused; it is free again when that is
 * destroyed. */
Test(optimizer_lists, a_parameter_has_one_update)
{
    static const tp_optimizer_desc desc = {.kind = TP_OPTIMIZER_ADAMW};
    tp_ctx *ctx;
    tp_optimizer *optimizer, *second;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    tp_param *param = make_pair(ctx, TP_DTYPE_BF16, 0, 3), *other = make_pair(ctx, TP_DTYPE_F32, 0, 5);
    for (int between = 0; between < 2; between++) {
        tp_param *twice[3] = {other, between ? param : other, other};
        cr_assert_eq(tp_optimizer_create(ctx, &desc, twice, 2 + between, &second), TP_ERR_ARGUMENT);
        cr_assert_null(second);
        cr_assert_not_null(strstr(tp_ctx_message(ctx), between ? "params[0] and params[2]" : "params[0] and params[1]"),
                           "%s", tp_ctx_message(ctx));
        float norm; /* would be of more than there is */
        cr_assert_eq(tp_params_grad_norm(ctx, twice, 2 + between, &norm), TP_ERR_ARGUMENT);
        cr_assert_eq(tp_params_finish(ctx, twice, 2 + between), TP_ERR_ARGUMENT);
        cr_assert_eq(tp_params_finish(ctx, twice, 1 + between), TP_OK, "%s", tp_ctx_message(ctx));
    }
    for (int round = 0; round < 2; round++) {
        cr_assert_eq(tp_optimizer_create(ctx, &desc, &param, 1, &optimizer), TP_OK, "%s", tp_ctx_message(ctx));
        cr_assert_eq(tp_optimizer_create(ctx, &desc, (tp_param *[]){other, param}, 2, &second), TP_ERR_ARGUMENT);
        cr_assert_null(second);
        cr_assert_not_null(strstr(tp_ctx_message(ctx), "another optimizer"), "%s", tp_ctx_message(ctx));
        tp_optimizer_destroy(optimizer);
    }
    tp_param_destroy(ctx, param);
    tp_param_destroy(ctx, other);
    tp_ctx_destroy(ctx);
}

/* Nobody asked for a report: who asks for the count later gets the last step too. */
Test(optimizer_lists, steps_without_reports_are_counted)
{
    static const tp_optimizer_desc desc = {.kind = TP_OPTIMIZER_SGD};
    tp_ctx *ctx;
    tp_optimizer *optimizer;
    float *master, *m, *v;
    int64_t steps;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1, .lane_delay_seed = 5}, &ctx), TP_OK);
    tp_param *param = make_pair(ctx, TP_DTYPE_F32, 0, 3);
    cr_assert_eq(tp_optimizer_create(ctx, &desc, &param, 1, &optimizer), TP_OK, "%s", tp_ctx_message(ctx));
    for (int step = 1; step <= 6; step++) {
        if (step == 4) /* does not count */
            ((float *)param->grad.data)[0] = NAN;
        cr_assert_eq(tp_optimizer_step(ctx, optimizer, 0.5f, NULL), TP_OK);
        cr_assert_eq(step % 2 ? tpi_optimizer_steps(optimizer, &steps)
                              : tp_optimizer_state(optimizer, param, &master, &m, &v, &steps),
                     TP_OK);
        cr_assert_eq(steps, step < 4 ? step : step - 1);
        cr_assert_eq(tp_ctx_synchronize(ctx), TP_OK);
        ((float *)param->grad.data)[0] = 0;
    }
    tp_optimizer_destroy(optimizer);
    tp_param_destroy(ctx, param);
    tp_ctx_destroy(ctx);
}

/* Whoever is taken apart first: an optimizer outlives its parameters, though only to be destroyed. */
Test(optimizer_lists, parameters_may_go_first)
{
    for (int dtype = TP_DTYPE_F32; dtype <= TP_DTYPE_F16; dtype++) {
        tp_ctx *ctx;
        tp_optimizer *optimizer;
        tp_param *params[2];
        cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
        for (int i = 0; i < 2; i++)
            params[i] = make_pair(ctx, (tp_dtype)dtype, 0, 1);
        const tp_optimizer_desc desc = {.kind = TP_OPTIMIZER_ADAMW};
        cr_assert_eq(tp_optimizer_create(ctx, &desc, params, 2, &optimizer), TP_OK, "%s", tp_ctx_message(ctx));
        tp_param_destroy(ctx, params[0]);
        cr_expect_eq(tp_optimizer_step(ctx, optimizer, 0.1f, NULL), TP_ERR_STATE);
        cr_expect_not_null(strstr(tp_ctx_message(ctx), "destroyed"), "%s", tp_ctx_message(ctx));
        tp_param_destroy(ctx, params[1]);
        tp_optimizer_destroy(optimizer);
        cr_expect_eq(tp_ctx_memory(ctx, TP_MEMORY_OPTIMIZER).bytes, 0);
        cr_expect_eq(tp_ctx_memory(ctx, TP_MEMORY_PARAM).bytes, 0);
        tp_ctx_destroy(ctx);
    }
}
