/* Optimizers against double precision; clipping, skipped steps, masters. Parameters are made directly, cut as layers
 * cut them. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/comm.h>
#include <tp/optimizer.h>

#include "support/data.h"
#include "support/tolerance.h"
#include "train/optimizer.h"
#include "train/param.h"

enum { PARAMS = 4, MOST = 37 * 12, STEPS = 5 };

/* A matrix cut by rows, one by columns, a shared kv part, and a replicated vector. */
static const tpi_param_desc shapes[PARAMS] = {
    {.layer = "a", .suffix = "rows", .dims = 2, .shape = {37, 11}, .shard_dim = 0, .parts = 1, .part = {{37, 1, 0}},
     .flags = TP_PARAM_DECAY},
    {.layer = "a", .suffix = "cols", .dims = 2, .shape = {5, 24}, .shard_dim = 1, .parts = 1, .part = {{8, 3, 0}},
     .flags = TP_PARAM_DECAY},
    {.layer = "a", .suffix = "qkv", .dims = 2, .shape = {24, 7}, .shard_dim = 0, .parts = 3,
     .part = {{8, 2, 0}, {2, 2, 8}, {2, 2, 8}}},
    {.layer = "a", .suffix = "norm", .dims = 1, .shape = {29}, .shard_dim = -1}};

typedef struct optimizer_case {
    tp_optimizer_desc desc;
    tp_dtype dtype;
    int steps;
    float lr;
    int bad_step;  /* the gradient of this step has one of `bad` on the last rank; -1: none */
    float bad;     /* 0: NaN */
    int load_step; /* before this step values are loaded again; -1: never */
    float values[PARAMS][MOST], masters[PARAMS][MOST];
    float norm[STEPS];
    bool skipped[STEPS];
    int64_t step[STEPS];
} optimizer_case;

static float initial_value(const optimizer_case *c, int param, int64_t element)
{
    float value = tp_random_normal((tp_random_key){1, (uint64_t)param}, (uint64_t)element);
    uint8_t rounded[4];
    tpt_set(rounded, c->dtype, 0, value);
    return (float)tpt_get(rounded, c->dtype, 0);
}

static float gradient_at(int step, int param, int64_t element)
{
    return 0.3f * tp_random_normal((tp_random_key){2, (uint64_t)(step * PARAMS + param)}, (uint64_t)element);
}

static tp_status load_values(tp_ctx *ctx, const optimizer_case *c, tp_param **params)
{
    for (int p = 0; p < PARAMS; p++) {
        float whole[MOST];
        for (int64_t i = 0; i < tp_param_elements(params[p]); i++)
            whole[i] = initial_value(c, p, i);
        tp_status status = tp_param_load(ctx, params[p], whole, TP_DTYPE_F32, NULL);
        if (status != TP_OK)
            return status;
    }
    return TP_OK;
}

/* Writes this rank's shard of the whole gradient. A second parameter of the same cut, of f32, does the cutting. */
static tp_status set_gradients(tp_ctx *ctx, tp_param **params, tp_param **cutters, int step)
{
    for (int p = 0; p < PARAMS; p++) {
        float whole[MOST];
        for (int64_t i = 0; i < tp_param_elements(params[p]); i++)
            whole[i] = gradient_at(step, p, i);
        tp_status status = tp_param_load(ctx, cutters[p], whole, TP_DTYPE_F32, NULL);
        if (status != TP_OK)
            return status;
        memcpy(params[p]->grad.data, cutters[p]->value.data, tp_tensor_bytes(params[p]->grad));
    }
    return TP_OK;
}

static tp_status one_step(tp_ctx *ctx, optimizer_case *c, tp_optimizer *optimizer, tp_param **params,
                          tp_param **cutters, int step)
{
    tp_status status = step == c->load_step ? load_values(ctx, c, params) : TP_OK;
    if (status == TP_OK)
        status = set_gradients(ctx, params, cutters, step);
    if (step == c->bad_step && tp_ctx_rank(ctx) == tp_comm_size(tp_ctx_world(ctx)) - 1)
        ((float *)params[0]->grad.data)[0] = c->bad != 0.0f ? c->bad : NAN;
    tp_step_report report = {0};
    bool read = step % 2 == 0 || step == c->bad_step; /* a report is not needed for the step to be right */
    if (status == TP_OK)
        status = tp_optimizer_step(ctx, optimizer, c->lr, read ? &report : NULL);
    if (tp_ctx_rank(ctx) == 0 && read) {
        c->norm[step] = report.grad_norm;
        c->skipped[step] = report.skipped;
        c->step[step] = report.step;
    }
    return status;
}

static tp_status collect(tp_ctx *ctx, optimizer_case *c, tp_optimizer *optimizer, tp_param **params, tp_param **cutters)
{
    for (int p = 0; p < PARAMS; p++) {
        float whole[2][MOST] = {{0}}, *master, *m, *v;
        int64_t step;
        tp_status status = tp_param_gather(ctx, params[p], 0, whole[0]);
        if (status == TP_OK)
            status = tp_optimizer_state(optimizer, params[p], &master, &m, &v, &step);
        if (status != TP_OK)
            return status;
        memcpy(cutters[p]->value.data, master, tp_tensor_bytes(cutters[p]->value));
        status = tp_param_gather(ctx, cutters[p], 0, whole[1]);
        if (status != TP_OK)
            return status;
        if (tp_ctx_rank(ctx) == 0) {
            memcpy(c->values[p], whole[0], sizeof whole[0]);
            memcpy(c->masters[p], whole[1], sizeof whole[1]);
        }
    }
    return TP_OK;
}

static tp_status run_case(tp_ctx *ctx, void *arg)
{
    optimizer_case *c = arg;
    tp_param *params[PARAMS] = {NULL}, *cutters[PARAMS] = {NULL};
    tp_optimizer *optimizer = NULL;
    tp_status status = TP_OK;
    for (int p = 0; p < PARAMS && status == TP_OK; p++) {
        tpi_param_desc desc = shapes[p];
        desc.dtype = TP_DTYPE_F32;
        status = tpi_param_create(ctx, &desc, &cutters[p]);
        desc.dtype = c->dtype;
        if (status == TP_OK)
            status = tpi_param_create(ctx, &desc, &params[p]);
    }
    if (status == TP_OK)
        status = tp_optimizer_create(ctx, &c->desc, params, PARAMS, &optimizer);
    if (status == TP_OK)
        status = load_values(ctx, c, params); /* after the optimizer was made: masters follow */
    for (int step = 0; step < c->steps && status == TP_OK; step++)
        status = one_step(ctx, c, optimizer, params, cutters, step);
    if (status == TP_OK)
        status = collect(ctx, c, optimizer, params, cutters);
    tp_optimizer_destroy(optimizer);
    for (int p = 0; p < PARAMS; p++) {
        tpi_param_destroy(ctx, params[p]);
        tpi_param_destroy(ctx, cutters[p]);
    }
    return status;
}

static void run_on(optimizer_case *c, int ranks)
{
    tp_run_options options = {.ranks = ranks, .ctx = {.threads = 1}};
    cr_assert_eq(tp_run_ranks(&options, run_case, c), TP_OK, "%s", tp_last_message());
}

static int64_t elements_of(int param)
{
    return shapes[param].dims == 2 ? shapes[param].shape[0] * shapes[param].shape[1] : shapes[param].shape[0];
}

static double norm_of_step(int step)
{
    double square = 0.0;
    for (int p = 0; p < PARAMS; p++)
        for (int64_t i = 0; i < elements_of(p); i++)
            square += (double)gradient_at(step, p, i) * (double)gradient_at(step, p, i);
    return sqrt(square);
}

/* One element's history in double precision. */
static double reference(const optimizer_case *c, const double *norms, int param, int64_t element)
{
    const tp_optimizer_desc *d = &c->desc;
    double beta1 = d->beta1 != 0.0f ? (double)d->beta1 : (double)0.9f,
           beta2 = d->beta2 != 0.0f ? (double)d->beta2 : (double)0.95f;
    double epsilon = d->epsilon != 0.0f ? (double)d->epsilon : (double)1e-8f;
    double decay = shapes[param].flags & TP_PARAM_DECAY ? (double)d->decay : 0.0;
    double w = initial_value(c, param, element), m = 0.0, v = 0.0;
    int counted = 0;
    for (int step = 0; step < c->steps; step++) {
        if (step == c->load_step)
            w = initial_value(c, param, element);
        if (step == c->bad_step)
            continue;
        double norm = norms[step], g = gradient_at(step, param, element);
        if (d->clip_norm > 0.0f && norm > (double)d->clip_norm)
            g *= (double)d->clip_norm / norm;
        counted++;
        if (d->kind == TP_OPTIMIZER_SGD) {
            m = (double)d->momentum * m + g;
            w -= (double)c->lr * (m + decay * w);
            continue;
        }
        m = beta1 * m + (1.0 - beta1) * g;
        v = beta2 * v + (1.0 - beta2) * g * g;
        double mhat = m / (1.0 - pow(beta1, counted)), vhat = v / (1.0 - pow(beta2, counted));
        w -= (double)c->lr * (mhat / (sqrt(vhat) + epsilon) + decay * w);
    }
    return w;
}

/* Masters close to the reference; values are the masters, rounded. */
static void check_values(const optimizer_case *c)
{
    double norms[STEPS];
    for (int step = 0; step < STEPS; step++)
        norms[step] = norm_of_step(step);
    for (int p = 0; p < PARAMS; p++)
        for (int64_t i = 0; i < elements_of(p); i++) {
            double want = reference(c, norms, p, i), got = c->masters[p][i];
            double tolerance = tpt_tolerance_chain(TP_DTYPE_F32, 8, STEPS, fabs(want) + (double)c->lr);
            cr_assert_leq(fabs(got - want), tolerance, "parameter %d, element %d: %.9g, expected %.9g", p, (int)i, got,
                          want);
            uint8_t rounded[4];
            tpt_set(rounded, c->dtype, 0, got);
            cr_assert_eq((double)c->values[p][i], tpt_get(rounded, c->dtype, 0));
        }
}

static void check_everywhere(optimizer_case c)
{
    static const int ranks[] = {1, 2, 4, 8, 3, 5, 7};
    optimizer_case first = c;
    run_on(&first, 1);
    for (int i = 0; i < 7; i++) {
        run_on(&c, ranks[i]);
        check_values(&c);
        for (int step = 0; step < c.steps; step += 2)
            if (step != c.bad_step)
                cr_assert_leq(fabs(c.norm[step] - norm_of_step(step)),
                              tpt_tolerance(TP_DTYPE_F32, MOST, norm_of_step(step)));
        if (8 % ranks[i] == 0) {
            cr_assert_eq(memcmp(c.masters, first.masters, sizeof c.masters), 0, "masters differ at TP %d", ranks[i]);
            cr_assert_eq(memcmp(c.norm, first.norm, sizeof c.norm), 0, "norms differ at TP %d", ranks[i]);
        }
    }
}

Test(optimizer, adamw)
{
    for (tp_dtype dtype = TP_DTYPE_F32; dtype <= TP_DTYPE_F16; dtype++)
        check_everywhere((optimizer_case){.desc = {.kind = TP_OPTIMIZER_ADAMW, .decay = 0.1f},
                                          .dtype = dtype,
                                          .steps = STEPS,
                                          .lr = 1e-2f,
                                          .bad_step = -1,
                                          .load_step = -1});
}

Test(optimizer, adamw_with_clipping)
{
    check_everywhere((optimizer_case){.desc = {.kind = TP_OPTIMIZER_ADAMW,
                                               .beta1 = 0.8f,
                                               .beta2 = 0.9f,
                                               .epsilon = 1e-3f,
                                               .decay = 0.1f,
                                               .clip_norm = 1.0f},
                                      .dtype = TP_DTYPE_BF16,
                                      .steps = STEPS,
                                      .lr = 1e-2f,
                                      .bad_step = -1,
                                      .load_step = -1});
}

/* Gradients below the bound stay as they are. */
Test(optimizer, clipping_only_shortens)
{
    check_everywhere((optimizer_case){.desc = {.kind = TP_OPTIMIZER_SGD, .clip_norm = 100.0f}, .dtype = TP_DTYPE_F32,
                                      .steps = 2, .lr = 0.5f, .bad_step = -1, .load_step = -1});
}

Test(optimizer, sgd)
{
    for (int momentum = 0; momentum < 2; momentum++)
        check_everywhere((optimizer_case){.desc = {.kind = TP_OPTIMIZER_SGD,
                                                   .momentum = momentum ? 0.9f : 0.0f,
                                                   .decay = 0.01f,
                                                   .clip_norm = momentum ? 2.0f : 0.0f},
                                          .dtype = momentum ? TP_DTYPE_BF16 : TP_DTYPE_F32,
                                          .steps = STEPS,
                                          .lr = 0.5f,
                                          .bad_step = -1,
                                          .load_step = -1});
}

/* A NaN on one rank, an infinity, or what is too large for a norm, clipped or not: all skip, nothing changes, the step
 * does not count (bias correction goes on as if it had not been). */
Test(optimizer, non_finite_steps_are_skipped)
{
    optimizer_case c = {.desc = {.kind = TP_OPTIMIZER_ADAMW, .decay = 0.1f, .clip_norm = 1.0f},
                        .dtype = TP_DTYPE_BF16,
                        .steps = STEPS,
                        .lr = 1e-2f,
                        .bad_step = 2,
                        .load_step = -1};
    check_everywhere(c);
    run_on(&c, 4);
    cr_assert(c.skipped[2] && !c.skipped[0] && !c.skipped[4]);
    cr_assert_eq(c.step[2], 2);
    cr_assert_eq(c.step[4], 4);
    cr_assert(!isfinite(c.norm[2]));
    c.bad_step = 1; /* not reported at its own time */
    check_everywhere(c);
    c.desc.clip_norm = 0.0f;
    for (int i = 0; i < 2; i++) {
        c.bad = i == 0 ? INFINITY : 1e30f;
        check_everywhere(c);
    }
}

/* Values loaded later reach the masters: with lr 0 they stay as they were loaded. */
Test(optimizer, masters_follow_loaded_values)
{
    optimizer_case c = {.desc = {.kind = TP_OPTIMIZER_ADAMW},
                        .dtype = TP_DTYPE_BF16,
                        .steps = STEPS,
                        .lr = 1e-2f,
                        .bad_step = -1,
                        .load_step = 3};
    check_everywhere(c);
    c.load_step = -1;
    c.lr = 0.0f;
    run_on(&c, 2);
    for (int p = 0; p < PARAMS; p++)
        for (int64_t i = 0; i < elements_of(p); i++)
            cr_assert_eq(c.values[p][i], initial_value(&c, p, i));
}

static void check_refused(const tp_optimizer_desc *desc, const char *field)
{
    tp_ctx *ctx;
    tp_param *param;
    tp_optimizer *optimizer;
    tpi_param_desc shape = shapes[0];
    shape.dtype = TP_DTYPE_F32;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    cr_assert_eq(tpi_param_create(ctx, &shape, &param), TP_OK);
    cr_assert_eq(tp_optimizer_create(ctx, desc, &param, 1, &optimizer), TP_ERR_ARGUMENT);
    cr_assert_null(optimizer);
    cr_assert_not_null(strstr(tp_ctx_message(ctx), field), "%s", tp_ctx_message(ctx));
    tpi_param_destroy(ctx, param);
    tp_ctx_destroy(ctx);
}

Test(optimizer, bad_descriptions_are_refused)
{
    check_refused(&(tp_optimizer_desc){.kind = (tp_optimizer_kind)7}, "kind is 7");
    check_refused(&(tp_optimizer_desc){.beta1 = 1.0f}, "beta1 is 1");
    check_refused(&(tp_optimizer_desc){.beta2 = -0.1f}, "beta2 is -0.1");
    check_refused(&(tp_optimizer_desc){.epsilon = NAN}, "epsilon is nan");
    check_refused(&(tp_optimizer_desc){.decay = -1.0f}, "decay is -1");
    check_refused(&(tp_optimizer_desc){.momentum = 1.5f}, "momentum is 1.5");
    check_refused(&(tp_optimizer_desc){.clip_norm = INFINITY}, "clip_norm is inf");
}

Test(optimizer, bad_learning_rates_are_refused)
{
    tp_ctx *ctx;
    tp_param *param;
    tp_optimizer *optimizer;
    tpi_param_desc shape = shapes[0];
    shape.dtype = TP_DTYPE_F32;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    cr_assert_eq(tpi_param_create(ctx, &shape, &param), TP_OK);
    cr_assert_eq(tp_optimizer_create(ctx, &(tp_optimizer_desc){0}, &param, 1, &optimizer), TP_OK);
    cr_assert_eq(tp_optimizer_step(ctx, optimizer, -1.0f, NULL), TP_ERR_ARGUMENT);
    cr_assert_eq(tp_optimizer_step(ctx, optimizer, NAN, NULL), TP_ERR_ARGUMENT);
    cr_assert_not_null(strstr(tp_ctx_message(ctx), "lr is nan"));
    cr_assert_eq(tp_optimizer_create(ctx, &(tp_optimizer_desc){0}, &param, 0, &(tp_optimizer *){NULL}),
                 TP_ERR_ARGUMENT);
    tp_optimizer_destroy(optimizer);
    tp_optimizer_destroy(NULL);
    tpi_param_destroy(ctx, param);
    tp_ctx_destroy(ctx);
}
