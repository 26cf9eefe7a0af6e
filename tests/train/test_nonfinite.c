/* A value that is not finite, in one element, on one rank: all ranks skip the step, nothing changes, and training goes
 * on as if it had not been. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/comm.h>

#include "support/data.h"
#include "support/training.h"

enum { TOKENS = 12, MOST_PARAMS = 40 };

static const tp_model_desc gpt2 = {
    .family = TP_MODEL_GPT2, .layers = 1, .hidden = 16, .heads = 4, .ffn = 21, .vocabulary = 23, .positions = 6,
    .sequence_parallel = true};

static const tp_model_desc llama = {.family = TP_MODEL_LLAMA,
                                    .layers = 1,
                                    .hidden = 12,
                                    .heads = 4,
                                    .kv_heads = 1, /* held by every rank, counted by one */
                                    .head_dim = 4,
                                    .ffn = 13,
                                    .vocabulary = 19,
                                    .positions = 6};

typedef struct bad_case {
    tp_model_desc model;
    tp_optimizer_desc optimizer;
    int32_t ids[TOKENS], targets[TOKENS];
    int param, rank; /* whose gradient is hurt, and where */
    bool last;       /* its last element, else its first */
    float value;
    int params;
} bad_case;

typedef struct rank_state {
    tp_ctx *ctx;
    const bad_case *c;
    tp_model *model;
    tp_optimizer *optimizer;
    tp_param *const *params;
    int count;
    void *saved;
} rank_state;

static tp_status take_step(rank_state *s, float lr, bool hurt, tp_step_report *report)
{
    tp_pass pass = {
        .tokens = TOKENS, .sequences = 2, .ids = s->c->ids, .targets = s->c->targets, .loss_scale = 1.0f / TOKENS};
    tp_status status = tp_params_zero_grad(s->ctx, s->params, s->count);
    if (status == TP_OK)
        status = tp_model_forward(s->ctx, s->model, &pass, s->saved);
    if (status == TP_OK)
        status = tp_model_backward(s->ctx, s->model, &pass, s->saved);
    if (status == TP_OK)
        status = tp_params_finish(s->ctx, s->params, s->count);
    if (status == TP_OK)
        status = tp_ctx_synchronize(s->ctx);
    if (status == TP_OK && hurt && tp_ctx_rank(s->ctx) == s->c->rank) {
        tp_tensor grad = s->params[s->c->param]->grad;
        ((float *)grad.data)[s->c->last ? tp_tensor_elements(grad) - 1 : 0] = s->c->value;
    }
    return status == TP_OK ? tp_optimizer_step(s->ctx, s->optimizer, lr, report) : status;
}

/* Everything that a step may change, one after the other. */
static size_t snapshot(const rank_state *s, char *out)
{
    size_t at = 0;
    for (int i = 0; i < s->count; i++) {
        const tp_param *param = s->params[i];
        float *part[3];
        int64_t step;
        if (tp_optimizer_state(s->optimizer, param, &part[0], &part[1], &part[2], &step) != TP_OK)
            return 0;
        size_t bytes = tp_tensor_bytes(param->grad);
        for (int p = 0; p < 3; p++) {
            if (out != NULL && part[p] != NULL)
                memcpy(out + at, part[p], bytes);
            at += part[p] != NULL ? bytes : 0;
        }
        if (out != NULL)
            memcpy(out + at, param->value.data, tp_tensor_bytes(param->value));
        at += tp_tensor_bytes(param->value);
    }
    return at;
}

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "rank %d, '%s' of rank %d, %g in the %s: %s\n", tp_ctx_rank(s->ctx),                       \
                    s->params[s->c->param]->name, s->c->rank, (double)s->c->value, s->c->last ? "last" : "first",      \
                    #condition);                                                                                       \
            return TP_ERR_INTERNAL;                                                                                    \
        }                                                                                                              \
    } while (0)

static tp_status check_steps(rank_state *s, char *before, char *after, size_t bytes)
{
    const float lr = 1e-2f;
    tp_step_report good, bad, next, same;
    EXPECT(take_step(s, lr, false, &good) == TP_OK && !good.skipped && good.step == 1);
    snapshot(s, before);
    EXPECT(take_step(s, lr, true, &bad) == TP_OK && bad.skipped && bad.step == 1 && !isfinite(bad.grad_norm));
    EXPECT(snapshot(s, after) == bytes && memcmp(before, after, bytes) == 0);
    EXPECT(take_step(s, lr, true, NULL) == TP_OK); /* nobody looks */
    /* O12: a skipped step leaves nothing in the gradients of the next, whose norm is that of a step that changed
     * nothing either. */
    EXPECT(take_step(s, 0.0f, false, &next) == TP_OK && !next.skipped && next.step == 2 && isfinite(next.grad_norm));
    EXPECT(take_step(s, lr, true, &bad) == TP_OK && bad.skipped && bad.step == 2);
    EXPECT(take_step(s, 0.0f, false, &same) == TP_OK && !same.skipped && same.step == 3 &&
           same.grad_norm == next.grad_norm);
    return TP_OK;
}

static tp_status rank_main(tp_ctx *ctx, void *arg)
{
    rank_state state = {.ctx = ctx, .c = arg}, *s = &state;
    tp_pass pass = {.tokens = TOKENS, .sequences = 2};
    tp_status status = tp_model_create(ctx, &s->c->model, &s->model);
    if (status != TP_OK)
        return status;
    s->params = tp_model_params(s->model, &s->count);
    if (tp_ctx_rank(ctx) == 0)
        ((bad_case *)arg)->params = s->count;
    status = tp_params_init(ctx, s->params, s->count);
    if (status == TP_OK)
        status = tp_optimizer_create(ctx, &s->c->optimizer, s->params, s->count, &s->optimizer);
    s->saved = tpt_allocate(tp_model_saved_bytes(s->model, &pass));
    size_t bytes = status == TP_OK ? snapshot(s, NULL) : 0;
    char *before = tpt_allocate(bytes), *after = tpt_allocate(bytes);
    if (status == TP_OK)
        status = check_steps(s, before, after, bytes);
    free(before), free(after), free(s->saved);
    tp_optimizer_destroy(s->optimizer);
    tp_model_destroy(s->model);
    return status;
}

static void hurt_every_parameter(tp_model_desc model, tp_dtype dtype, tp_optimizer_kind kind)
{
    static const float values[] = {NAN, INFINITY, -INFINITY};
    bad_case c = {.model = model, .optimizer = {.kind = kind, .decay = 0.1f, .clip_norm = 1.0f, .momentum = 0.5f}};
    c.model.dtype = dtype;
    tpt_make_batch(c.ids, c.targets, TOKENS, model.vocabulary, 5);
    c.params = 1;
    for (c.param = 0; c.param < c.params; c.param++)
        for (c.rank = 0; c.rank < 2; c.rank++)
            for (int last = 0; last < 2; last++) {
                c.last = last != 0;
                c.value = values[(c.param + last) % 3];
                tp_run_options options = {.ranks = 2, .ctx = {.threads = 1, .seed = 9}};
                cr_assert_eq(tp_run_ranks(&options, rank_main, &c), TP_OK, "%s", tp_last_message());
            }
    cr_assert_gt(c.params, 8);
}

/* O18, O19: also in a tensor that every rank holds and one counts (gains, biases, positions, a shared kv head). */
Test(nonfinite, gradients_of_one_rank_f32)
{
    hurt_every_parameter(gpt2, TP_DTYPE_F32, TP_OPTIMIZER_ADAMW);
    hurt_every_parameter(llama, TP_DTYPE_F32, TP_OPTIMIZER_SGD);
}

Test(nonfinite, gradients_of_one_rank_bf16)
{
    hurt_every_parameter(gpt2, TP_DTYPE_BF16, TP_OPTIMIZER_SGD);
    hurt_every_parameter(llama, TP_DTYPE_BF16, TP_OPTIMIZER_ADAMW);
}
