/* Faults that trainers have had in the field: matrices that are cut through the middle and brought together again,
 * Adam's state beside them, positions far from 0. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/data.h"
#include "support/tolerance.h"
#include "support/training.h"

enum { FFN = 128, HIDDEN = 64, TOKENS = 64, STEPS = 3, MOST_ELEMENTS = 1 << 18 };

static const tp_model_desc t1 = {.family = TP_MODEL_LLAMA,
                                 .layers = 2,
                                 .hidden = HIDDEN,
                                 .heads = 8,
                                 .kv_heads = 2,
                                 .ffn = FFN,
                                 .vocabulary = 128,
                                 .positions = 8192,
                                 .dtype = TP_DTYPE_F32};

/* ---- O23: gate and up -------------------------------------------------------------------------------------------- */

/* All values and both moments, whole, after some steps of AdamW. */
typedef struct state {
    int64_t elements;
    float *values, *m, *v;
    double loss; /* of the last step */
} state;

typedef struct reload_case {
    const state *from; /* its values are loaded; NULL: initial ones, with marks in gate and up */
    int steps;
    state *out;
} reload_case;

static tp_status mark_gate_and_up(tp_ctx *ctx, tp_param *up)
{
    float *marks = tpt_array(TP_DTYPE_F32, 2 * FFN * HIDDEN);
    for (int64_t i = 0; i < 2 * FFN * HIDDEN; i++) {
        int64_t row = i / HIDDEN;
        marks[i] = (row < FFN ? (float)(row + 1) : (float)(1001 + row - FFN)) * 1e-3f * (i % 2 ? -1.0f : 1.0f);
    }
    tp_status status = tp_param_load(ctx, up, marks, TP_DTYPE_F32, NULL);
    free(marks);
    return status;
}

/* A moment travels in the place of the gradient. */
static tp_status gather_moment(tp_ctx *ctx, tp_param *param, const float *moment, float *whole)
{
    memcpy(param->grad.data, moment, tp_tensor_bytes(param->grad));
    return tp_param_gather(ctx, param, 1, whole);
}

static tp_status collect(tp_ctx *ctx, tp_optimizer *optimizer, tp_param *const *params, int count, state *out)
{
    state mine = {.values = tpt_array(TP_DTYPE_F32, MOST_ELEMENTS), .m = tpt_array(TP_DTYPE_F32, MOST_ELEMENTS),
                  .v = tpt_array(TP_DTYPE_F32, MOST_ELEMENTS)};
    tp_status status = TP_OK;
    for (int i = 0; i < count && status == TP_OK; i++) {
        float *master, *m, *v;
        int64_t step, at = mine.elements;
        status = tp_param_gather(ctx, params[i], 0, mine.values + at);
        if (status == TP_OK)
            status = tp_optimizer_state(optimizer, params[i], &master, &m, &v, &step);
        if (status == TP_OK)
            status = gather_moment(ctx, params[i], m, mine.m + at);
        if (status == TP_OK)
            status = gather_moment(ctx, params[i], v, mine.v + at);
        mine.elements += tp_param_elements(params[i]);
    }
    if (tp_ctx_rank(ctx) == 0) {
        mine.loss = out->loss;
        *out = mine;
    } else {
        free(mine.values), free(mine.m), free(mine.v);
    }
    return status;
}

static tp_status take_steps(tp_ctx *ctx, const reload_case *c, tp_model *model, tp_optimizer *optimizer)
{
    int32_t ids[TOKENS], targets[TOKENS];
    tpt_make_batch(ids, targets, TOKENS, t1.vocabulary, 0);
    tp_pass pass = {.tokens = TOKENS, .sequences = 2, .ids = ids, .targets = targets, .loss_scale = 1.0f / TOKENS};
    int count;
    tp_param *const *params = tp_model_params(model, &count);
    void *saved = tpt_allocate(tp_model_saved_bytes(model, &pass));
    tp_status status = TP_OK;
    double loss = 0.0, tokens;
    for (int step = 0; step < c->steps && status == TP_OK; step++) {
        status = tp_params_zero_grad(ctx, params, count);
        status = status == TP_OK ? tp_model_forward(ctx, model, &pass, saved) : status;
        status = status == TP_OK ? tp_model_backward(ctx, model, &pass, saved) : status;
        status = status == TP_OK ? tp_params_finish(ctx, params, count) : status;
        status = status == TP_OK ? tp_optimizer_step(ctx, optimizer, 1e-3f, NULL) : status;
        status = status == TP_OK ? tp_model_loss(ctx, model, &loss, &tokens) : status;
    }
    if (tp_ctx_rank(ctx) == 0)
        c->out->loss = loss;
    free(saved);
    return status;
}

static tp_status load_all(tp_ctx *ctx, const reload_case *c, tp_model *model)
{
    int count;
    tp_param *const *params = tp_model_params(model, &count);
    if (c->from == NULL) {
        tp_status status = tp_params_init(ctx, params, count);
        return status == TP_OK ? mark_gate_and_up(ctx, tp_model_param(model, "h.1.mlp.up.weight")) : status;
    }
    const float *values = c->from->values;
    tp_status status = TP_OK;
    for (int i = 0; i < count && status == TP_OK; i++) {
        status = tp_param_load(ctx, params[i], values, TP_DTYPE_F32, NULL);
        values += tp_param_elements(params[i]);
    }
    return status;
}

static tp_status reload_main(tp_ctx *ctx, void *arg)
{
    const reload_case *c = arg;
    tp_model *model;
    tp_optimizer *optimizer = NULL;
    tp_status status = tp_model_create(ctx, &t1, &model);
    if (status != TP_OK)
        return status;
    int count;
    tp_param *const *params = tp_model_params(model, &count);
    status = load_all(ctx, c, model);
    if (status == TP_OK)
        status = tp_optimizer_create(ctx, &(tp_optimizer_desc){.kind = TP_OPTIMIZER_ADAMW}, params, count, &optimizer);
    if (status == TP_OK)
        status = take_steps(ctx, c, model, optimizer);
    if (status == TP_OK)
        status = collect(ctx, optimizer, params, count, c->out);
    tp_optimizer_destroy(optimizer);
    tp_model_destroy(model);
    return status;
}

static state run_reload(const state *from, int ranks, int steps)
{
    state out = {0};
    reload_case c = {from, steps, &out};
    tp_run_options options = {.ranks = ranks, .ctx = {.threads = 1, .seed = 4}};
    cr_assert_eq(tp_run_ranks(&options, reload_main, &c), TP_OK, "%s", tp_last_message());
    return out;
}

static void free_state(state *s)
{
    free(s->values), free(s->m), free(s->v);
}

Test(faults_reload, gate_and_up_at_every_pair_of_layouts)
{
    state start[4], trained[4];
    for (int a = 0; a < 4; a++) {
        start[a] = run_reload(NULL, 1 << a, 0);
        trained[a] = run_reload(NULL, 1 << a, STEPS);
        cr_assert(tpt_same_bits("marked", start[a].values, start[0].values, TP_DTYPE_F32, start[0].elements));
        cr_assert(tpt_same_bits("trained", trained[a].values, trained[0].values, TP_DTYPE_F32, trained[0].elements));
        cr_assert(tpt_same_bits("first moments", trained[a].m, trained[0].m, TP_DTYPE_F32, trained[0].elements));
        cr_assert(tpt_same_bits("second moments", trained[a].v, trained[0].v, TP_DTYPE_F32, trained[0].elements));
        cr_assert_eq(trained[a].loss, trained[0].loss);
    }
    for (int a = 0; a < 4; a++) /* brought together by one layout, taken apart by another */
        for (int b = 0; b < 4; b++) {
            state again = run_reload(&start[a], 1 << b, STEPS);
            cr_assert(tpt_same_bits("reloaded and trained", again.values, trained[0].values, TP_DTYPE_F32,
                                    trained[0].elements));
            cr_assert_eq(again.loss, trained[0].loss);
            free_state(&again);
        }
    for (int a = 0; a < 4; a++) {
        free_state(&start[a]);
        free_state(&trained[a]);
    }
}

/* ---- O07: far positions ------------------------------------------------------------------------------------------ */

typedef struct far_case {
    tp_dtype dtype;
    int64_t tokens;
    int32_t first; /* position of the first token */
    double loss;
} far_case;

/* Loss of a model with lively weights, forward only. */
static tp_status far_main(tp_ctx *ctx, void *arg)
{
    far_case *c = arg;
    tp_model_desc desc = t1;
    desc.layers = 1;
    desc.heads = 4;
    desc.dtype = c->dtype;
    int32_t *ids = tpt_array(TP_DTYPE_I32, c->tokens), *targets = tpt_array(TP_DTYPE_I32, c->tokens),
            *at = tpt_array(TP_DTYPE_I32, c->tokens);
    tpt_make_batch(ids, targets, c->tokens, desc.vocabulary, 0);
    for (int64_t t = 0; t < c->tokens; t++)
        at[t] = c->first + (int32_t)t;
    tp_pass pass = {.tokens = c->tokens, .ids = ids, .targets = targets, .positions = at};
    tp_model *model;
    tp_status status = tp_model_create(ctx, &desc, &model);
    int count = 0;
    tp_param *const *params = status == TP_OK ? tp_model_params(model, &count) : NULL;
    for (int i = 0; i < count && status == TP_OK; i++) {
        int64_t elements = tp_param_elements(params[i]);
        float *values = tpt_new_normal(TP_DTYPE_F32, elements, (uint64_t)i, 0.3);
        status = tp_param_load(ctx, params[i], values, TP_DTYPE_F32, NULL);
        free(values);
    }
    double sum = 0.0, tokens = 1.0;
    if (status == TP_OK)
        status = tp_model_forward(ctx, model, &pass, NULL);
    if (status == TP_OK)
        status = tp_model_loss(ctx, model, &sum, &tokens);
    if (tp_ctx_rank(ctx) == 0)
        c->loss = sum / tokens;
    tp_model_destroy(model);
    free(ids), free(targets), free(at);
    return status;
}

static double far_loss(tp_dtype dtype, int64_t tokens, int32_t first, int ranks)
{
    far_case c = {dtype, tokens, first, 0.0};
    tp_run_options options = {.ranks = ranks, .ctx = {.threads = 1}};
    cr_assert_eq(tp_run_ranks(&options, far_main, &c), TP_OK, "%s", tp_last_message());
    cr_assert(isfinite(c.loss));
    return c.loss;
}

/* Only distances matter: the same text far out has the same loss. An f32 angle at 8128 is off by 8128 * 2^-24 = 5e-4 at
 * most; scores follow it. */
Test(faults_reload, rope_knows_distances_only)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        double near = far_loss(TP_DTYPE_F32, TOKENS, 0, ranks), half_near = far_loss(TP_DTYPE_BF16, TOKENS, 0, ranks);
        cr_assert_leq(fabs(far_loss(TP_DTYPE_F32, TOKENS, 8128, ranks) - near), 1e-3 * near);
        cr_assert_leq(fabs(far_loss(TP_DTYPE_BF16, TOKENS, 8128, ranks) - half_near),
                      tpt_tolerance_chain(TP_DTYPE_BF16, HIDDEN, 4, half_near));
    }
}

#ifndef TPT_SANITIZED
/* A bf16 model at sequence 8192 is as good as its roundings. */
Test(faults_reload, long_sequences_in_bf16, .timeout = 120)
{
    double wide = far_loss(TP_DTYPE_F32, 8192, 0, 1), narrow = far_loss(TP_DTYPE_BF16, 8192, 0, 2);
    cr_assert_leq(fabs(narrow - wide), tpt_tolerance_chain(TP_DTYPE_BF16, HIDDEN, 4, wide), "bf16 %.6f, f32 %.6f",
                  narrow, wide);
}
#endif
