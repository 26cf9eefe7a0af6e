/* The training loop: batches, microbatches, learning rates, evaluation, memory, refusals. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/comm.h>
#include <tp/trainer.h>
#include <unistd.h>

#include "support/counting.h"
#include "support/data.h"
#include "support/text.h"

enum { TEXT_BYTES = 611, MOST_STEPS = 16 };

static const tp_model_desc shape = {.family = TP_MODEL_LLAMA,
                                    .layers = 2,
                                    .hidden = 24,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .ffn = 29,
                                    .vocabulary = 256,
                                    .positions = 16,
                                    .dtype = TP_DTYPE_F32};

static const tp_trainer_desc plan = {.batch = 6,
                                     .sequence = 16,
                                     .lr = 1e-2f,
                                     .optimizer = {.kind = TP_OPTIMIZER_ADAMW, .decay = 0.1f, .clip_norm = 1.0f}};

typedef struct session {
    tp_model_desc model;
    tp_trainer_desc trainer;
    const tp_data *data;
    int steps;
    int report_every;    /* 0: only the last step is reported; -1: none */
    int64_t evaluate_at; /* sequences of an evaluation after every step; 0: none */
    uint64_t delay_seed; /* of lanes that are late; 0: none */
    int poison;          /* before this step (from 1) a weight becomes NaN, and is loaded again after it; 0: never */
    tp_train_report report[MOST_STEPS];
    double evaluation;
    float *values; /* rank 0's, in the order of the list */
    int64_t elements;
} session;

static tp_status poison_weight(tp_ctx *ctx, tp_param *param, bool restore, float *kept)
{
    tp_status status = TP_OK;
    if (!restore) {
        status = tp_param_gather(ctx, param, 0, kept);
        float *poisoned = tpt_array(TP_DTYPE_F32, tp_param_elements(param));
        memcpy(poisoned, kept, (size_t)tp_param_elements(param) * sizeof(float));
        poisoned[3] = NAN;
        if (status == TP_OK)
            status = tp_param_load(ctx, param, poisoned, TP_DTYPE_F32, NULL);
        free(poisoned);
        return status;
    }
    return tp_param_load(ctx, param, kept, TP_DTYPE_F32, NULL);
}

static tp_status one_step(tp_ctx *ctx, session *s, tp_trainer *trainer, int step)
{
    bool last = step == s->steps && s->report_every >= 0;
    bool reported = last || (s->report_every > 0 && step % s->report_every == 0);
    tp_train_report report = {0};
    tp_status status = tp_trainer_step(ctx, trainer, reported ? &report : NULL);
    if (tp_ctx_rank(ctx) == 0)
        s->report[step - 1] = report;
    double loss = 0.0;
    if (status == TP_OK && s->evaluate_at > 0)
        status = tp_trainer_evaluate(ctx, trainer, 5, s->evaluate_at, &loss);
    if (tp_ctx_rank(ctx) == 0)
        s->evaluation = loss;
    return status;
}

static tp_status run_steps(tp_ctx *ctx, session *s, tp_trainer *trainer, tp_param *weight)
{
    float *kept = tpt_array(TP_DTYPE_F32, tp_param_elements(weight));
    tp_status status = TP_OK;
    for (int step = 1; step <= s->steps && status == TP_OK; step++) {
        if (step == s->poison)
            status = poison_weight(ctx, weight, false, kept);
        if (status == TP_OK)
            status = one_step(ctx, s, trainer, step);
        if (status == TP_OK && step == s->poison)
            status = poison_weight(ctx, weight, true, kept);
    }
    free(kept);
    return status;
}

static tp_status keep_values(tp_ctx *ctx, session *s, tp_param *const *params, int count)
{
    float *values = tpt_array(TP_DTYPE_F32, tp_model_parameters(&s->model));
    int64_t at = 0;
    tp_status status = TP_OK;
    for (int i = 0; i < count && status == TP_OK; i++) {
        status = tp_param_gather(ctx, params[i], 0, values + at);
        at += tp_param_elements(params[i]);
    }
    if (tp_ctx_rank(ctx) != 0) {
        free(values);
        return status;
    }
    s->values = values;
    s->elements = at;
    return status;
}

static tp_status session_main(tp_ctx *ctx, void *arg)
{
    session *s = arg;
    tp_model *model;
    tp_trainer *trainer = NULL;
    tp_status status = tp_model_create(ctx, &s->model, &model);
    if (status != TP_OK)
        return status;
    int count;
    tp_param *const *params = tp_model_params(model, &count);
    status = tp_params_init(ctx, params, count);
    if (status == TP_OK)
        status = tp_trainer_create(ctx, &s->trainer, model, s->data, &trainer);
    if (status == TP_OK)
        status = run_steps(ctx, s, trainer, tp_model_param(model, "h.0.mlp.up.weight"));
    if (status == TP_OK)
        status = keep_values(ctx, s, params, count);
    tp_trainer_destroy(trainer);
    tp_model_destroy(model);
    return status;
}

static session run_session(session s, int ranks)
{
    tp_run_options options = {.ranks = ranks, .ctx = {.threads = 1, .seed = 3, .lane_delay_seed = s.delay_seed}};
    cr_assert_eq(tp_run_ranks(&options, session_main, &s), TP_OK, "%s", tp_last_message());
    return s;
}

static session plain_session(const tp_data *data, int steps)
{
    return (session){.model = shape, .trainer = plan, .data = data, .steps = steps, .report_every = 1};
}

Test(trainer, learns_the_same_on_every_number_of_ranks)
{
    tp_data *data = tpt_open_text(TEXT_BYTES);
    session one = run_session(plain_session(data, MOST_STEPS), 1);
    cr_assert_leq(fabs(one.report[0].loss - log(256.0)), 0.1); /* nothing is known at first */
    cr_assert_lt(one.report[MOST_STEPS - 1].loss, 0.7 * one.report[0].loss);
    for (int step = 0; step < MOST_STEPS; step++) {
        cr_assert_eq(one.report[step].step, step + 1);
        cr_assert_eq(one.report[step].tokens, 96.0);
        cr_assert_eq(one.report[step].lr, plan.lr);
        cr_assert(!one.report[step].skipped && one.report[step].grad_norm > 0.0f);
    }
    for (int ranks = 2; ranks <= 4; ranks *= 2) {
        session other = run_session(plain_session(data, MOST_STEPS), ranks);
        for (int step = 0; step < MOST_STEPS; step++) {
            cr_assert_eq(other.report[step].loss, one.report[step].loss);
            cr_assert_eq(other.report[step].grad_norm, one.report[step].grad_norm);
        }
        cr_assert(tpt_same_bits("values", other.values, one.values, TP_DTYPE_F32, one.elements));
        free(other.values);
    }
    free(one.values);
    tp_data_close(data);
}

/* Reports and evaluations only look. */
Test(trainer, looking_changes_nothing)
{
    tp_data *data = tpt_open_text(TEXT_BYTES);
    session every = run_session(plain_session(data, 5), 2);
    session quiet = plain_session(data, 5);
    quiet.report_every = 0;
    quiet = run_session(quiet, 2);
    session curious = plain_session(data, 5);
    curious.evaluate_at = 4;
    curious = run_session(curious, 2);
    cr_assert(tpt_same_bits("values without reports", quiet.values, every.values, TP_DTYPE_F32, every.elements));
    cr_assert(tpt_same_bits("values with evaluations", curious.values, every.values, TP_DTYPE_F32, every.elements));
    cr_assert_eq(quiet.report[4].loss, every.report[4].loss);
    cr_assert_eq(curious.report[4].loss, every.report[4].loss);
    free(every.values);
    free(quiet.values);
    free(curious.values);
    tp_data_close(data);
}

/* First losses are the same, later ones and norms nearly. */
static void agree(const session *split, const session *whole, int steps)
{
    cr_assert_eq(split->report[0].loss, whole->report[0].loss);
    for (int step = 0; step < steps; step++) {
        const tp_train_report *got = &split->report[step], *want = &whole->report[step];
        cr_assert_leq(fabs(got->loss - want->loss), 1e-5 * want->loss);
        cr_assert_leq(fabsf(got->grad_norm - want->grad_norm), 1e-5f * want->grad_norm);
    }
}

Test(trainer, microbatches_agree)
{
    tp_data *data = tpt_open_text(TEXT_BYTES);
    session whole = run_session(plain_session(data, 3), 1);
    for (int microbatch = 1; microbatch <= 3; microbatch++) {
        session split = plain_session(data, 3);
        split.trainer.microbatch = microbatch;
        split = run_session(split, 1);
        agree(&split, &whole, 3);
        free(split.values);
    }
    free(whole.values);
    tp_data_close(data);
}

/* Masks of a step belong to places in its batch, not to its microbatches: those of equal sequences differ, and are the
 * same however it is split. */
Test(trainer, dropout_does_not_depend_on_the_microbatch)
{
    tp_data *data = tpt_open_text(TEXT_BYTES);
    for (int ranks = 1; ranks <= 2; ranks++) {
        session whole = plain_session(data, 3);
        whole.model.dropout = 0.2f;
        whole = run_session(whole, ranks);
        for (int microbatch = 1; microbatch <= 3; microbatch++) {
            session split = plain_session(data, 3);
            split.model.dropout = 0.2f;
            split.trainer.microbatch = microbatch;
            split = run_session(split, ranks);
            agree(&split, &whole, 3);
            free(split.values);
        }
        free(whole.values);
    }
    tp_data_close(data);
}

/* A step's ids stay where they are while its ops wait: lanes that are late, and nobody who waits for them, change
 * nothing. */
Test(trainer, late_lanes_change_nothing)
{
    tp_data *data = tpt_open_text(TEXT_BYTES);
    session want = plain_session(data, 6);
    want.report_every = 0;
    want = run_session(want, 2);
    for (uint64_t seed = 1; seed <= 4; seed++) {
        session late = plain_session(data, 6);
        late.report_every = 0;
        late.delay_seed = seed;
        late.evaluate_at = seed % 2 == 0 ? 2 : 0;
        late = run_session(late, 2);
        cr_assert(tpt_same_bits("values with late lanes", late.values, want.values, TP_DTYPE_F32, want.elements));
        free(late.values);
    }
    free(want.values);
    tp_data_close(data);
}

/* Batches follow each other in the data and go on at its beginning: two epochs of a text of exactly one batch are two
 * equal steps. */
Test(trainer, batches_follow_each_other)
{
    tp_data *data = tpt_open_text(96);
    session s = plain_session(data, 2);
    s.trainer.lr = 0.0f;
    s = run_session(s, 1);
    cr_assert_eq(s.report[0].loss, s.report[1].loss);
    free(s.values);
    s.model.dropout = 0.2f; /* but for their masks */
    s = run_session(s, 1);
    cr_assert_neq(s.report[0].loss, s.report[1].loss);
    free(s.values);
    tp_data_close(data);
    data = tpt_open_text(17); /* shorter than a batch: the shortest that is enough */
    s = run_session(plain_session(data, 2), 1);
    cr_assert(isfinite(s.report[1].loss));
    free(s.values);
    tp_data_close(data);
}

/* Nor on a step before, whether its loss was asked for or not. */
Test(trainer, evaluation_does_not_depend_on_the_microbatch)
{
    tp_data *data = tpt_open_text(TEXT_BYTES);
    double loss = 0.0;
    for (int microbatch = 1; microbatch <= 7; microbatch += microbatch == 1 ? 1 : 5)
        for (int ranks = 1; ranks <= 2; ranks++)
            for (int dropping = 0; dropping < 2; dropping++) {
                session s = plain_session(data, 1);
                s.trainer.batch = s.trainer.microbatch = microbatch;
                s.trainer.lr = 0.0f;
                s.report_every = dropping ? 1 : -1;
                s.model.dropout = dropping ? 0.5f : 0.0f; /* none in an evaluation */
                s.evaluate_at = 7;
                s = run_session(s, ranks);
                if (loss == 0.0)
                    loss = s.evaluation;
                cr_assert_eq(s.evaluation, loss, "microbatch %d, %d ranks, dropout %d: %.9g, not %.9g", microbatch,
                             ranks, dropping, s.evaluation, loss);
                free(s.values);
            }
    cr_assert_leq(fabs(loss - log(256.0)), 0.1);
    tp_data_close(data);
}

/* A step whose gradient is not finite is reported as skipped, changes nothing, and neither the learning rate nor Adam
 * goes on. */
Test(trainer, bad_steps_are_skipped)
{
    tp_data *data = tpt_open_text(96); /* every batch is the same */
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        session good = plain_session(data, 4);
        good.trainer.warmup = 10;
        good = run_session(good, ranks);
        session bad = plain_session(data, 5);
        bad.trainer.warmup = 10;
        bad.poison = 3;
        bad = run_session(bad, ranks);
        cr_assert(bad.report[2].skipped && !bad.report[1].skipped && !bad.report[3].skipped);
        cr_assert_eq(bad.report[3].lr, good.report[2].lr);
        cr_assert_eq(bad.report[4].loss, good.report[3].loss);
        cr_assert(tpt_same_bits("values", bad.values, good.values, TP_DTYPE_F32, good.elements));
        free(good.values);
        free(bad.values);
    }
    tp_data_close(data);
}

Test(trainer, learning_rates)
{
    tp_trainer_desc desc = {.lr = 1.0f, .min_lr = 0.1f, .warmup = 4, .decay_steps = 10};
    cr_assert_eq(tp_trainer_lr(&desc, 1), 0.25f);
    cr_assert_eq(tp_trainer_lr(&desc, 4), 1.0f);
    cr_assert_leq(fabs((double)tp_trainer_lr(&desc, 9) - 0.55), 1e-6); /* half-way down */
    cr_assert_eq(tp_trainer_lr(&desc, 14), 0.1f);
    cr_assert_eq(tp_trainer_lr(&desc, 1000), 0.1f);
    for (int64_t step = 5; step < 14; step++)
        cr_assert_lt(tp_trainer_lr(&desc, step + 1), tp_trainer_lr(&desc, step));
    desc.decay_steps = 0;
    cr_assert_eq(tp_trainer_lr(&desc, 1000), 1.0f);
    desc.warmup = 0;
    cr_assert_eq(tp_trainer_lr(&desc, 1), 1.0f);
}

/* After the first step nothing is taken from the system, nor by what is refused. */
Test(trainer, later_steps_allocate_nothing)
{
    tp_data *data = tpt_open_text(TEXT_BYTES);
    tpt_counting counting = {0};
    tp_ctx_desc desc = {.threads = 1, .allocator = tpt_counting_allocator(&counting)};
    tp_ctx *ctx;
    tp_model *model;
    tp_trainer *trainer;
    cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_OK);
    cr_assert_eq(tp_model_create(ctx, &shape, &model), TP_OK);
    int count;
    tp_param *const *params = tp_model_params(model, &count);
    cr_assert_eq(tp_params_init(ctx, params, count), TP_OK);
    cr_assert_eq(tp_trainer_create(ctx, &plan, model, data, &trainer), TP_OK);
    tp_train_report report;
    cr_assert_eq(tp_trainer_step(ctx, trainer, &report), TP_OK);
    double loss;
    cr_assert_eq(tp_trainer_evaluate(ctx, trainer, -1, 2, &loss), TP_ERR_ARGUMENT);
    cr_assert_not_null(strstr(tp_last_message(), "at is -1"), "%s", tp_last_message());
    cr_assert_eq(tp_trainer_evaluate(ctx, trainer, 0, 0, &loss), TP_ERR_ARGUMENT);
    cr_assert_not_null(strstr(tp_last_message(), "sequences is 0"), "%s", tp_last_message());
    long long calls = atomic_load(&counting.calls);
    for (int step = 0; step < 3; step++)
        cr_assert_eq(tp_trainer_step(ctx, trainer, &report), TP_OK);
    cr_assert_eq(atomic_load(&counting.calls), calls);
    tp_trainer_destroy(trainer);
    tp_model_destroy(model);
    tp_ctx_destroy(ctx);
    cr_assert(atomic_load(&counting.live) == 0 && atomic_load(&counting.other_sizes) == 0);
    tp_data_close(data);
}

typedef struct refusal {
    tp_trainer_desc trainer;
    const tp_data *data;
    const char *first, *second;
} refusal;

static tp_status refusal_main(tp_ctx *ctx, void *arg)
{
    const refusal *r = arg;
    tp_model_desc desc = shape;
    desc.vocabulary = 255; /* one less than bytes need, unless the other fields are refused first */
    tp_model *model;
    tp_trainer *trainer;
    tp_status status = tp_model_create(ctx, &desc, &model);
    if (status != TP_OK)
        return status;
    size_t before = tp_ctx_memory(ctx, TP_MEMORY_OPTIMIZER).bytes + tp_ctx_memory(ctx, TP_MEMORY_OTHER).bytes;
    status = tp_trainer_create(ctx, &r->trainer, model, r->data, &trainer);
    bool named = strstr(tp_last_message(), r->first) != NULL && strstr(tp_last_message(), r->second) != NULL;
    size_t after = tp_ctx_memory(ctx, TP_MEMORY_OPTIMIZER).bytes + tp_ctx_memory(ctx, TP_MEMORY_OTHER).bytes;
    if (status != TP_ERR_ARGUMENT || trainer != NULL || !named || before != after)
        fprintf(stderr, "expected \"%s\" and \"%s\": %s: %s\n", r->first, r->second, tp_status_name(status),
                tp_last_message());
    tp_model_destroy(model);
    return status == TP_ERR_ARGUMENT && named && before == after ? TP_OK : TP_ERR_INTERNAL;
}

static void check_refused(tp_trainer_desc trainer, const tp_data *data, const char *first, const char *second)
{
    refusal r = {trainer, data, first, second};
    for (int ranks = 1; ranks <= 2; ranks++) {
        tp_run_options options = {.ranks = ranks, .ctx = {.threads = 1}};
        cr_assert_eq(tp_run_ranks(&options, refusal_main, &r), TP_OK, "%s", tp_last_message());
    }
}

Test(trainer, bad_descriptions_are_refused)
{
    tp_data *data = tpt_open_text(TEXT_BYTES), *little = tpt_open_text(16);
    tp_trainer_desc bad = plan;
    bad.batch = 10;
    bad.microbatch = 4;
    check_refused(bad, data, "batch 10", "microbatch 4");
    bad = plan;
    bad.batch = 0;
    check_refused(bad, data, "batch is 0", "at least 1");
    bad = plan;
    bad.sequence = 17;
    check_refused(bad, data, "sequence 17", "positions 16");
    bad = plan;
    check_refused(bad, little, "16 tokens", "sequence 16");
    check_refused(bad, data, "vocabulary 256", "255");
    bad.lr = -1.0f;
    check_refused(bad, data, "lr is -1", "[0");
    bad.lr = NAN;
    check_refused(bad, data, "lr is nan", "[0");
    bad.lr = INFINITY;
    check_refused(bad, data, "lr is inf", "[0");
    bad = plan;
    bad.optimizer.clip_norm = -2.0f;
    check_refused(bad, data, "clip_norm is -2", "[0");
    bad = plan;
    bad.warmup = -3;
    check_refused(bad, data, "warmup is -3", "[0");
    bad = plan;
    bad.batch = INT64_MAX / 2;
    check_refused(bad, data, "4611686018427387903", "sequence 16");
    tp_data_close(data);
    tp_data_close(little);
}
