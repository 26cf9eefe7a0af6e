/* Training on GPUs: parameters after several steps, clipping, skipped steps and the trainer, near the CPU's, and the
 * same bits on every layout. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/comm.h>
#include <tp/trainer.h>

#include "cuda/gpus.h"
#include "support/data.h"
#include "support/text.h"
#include "support/tolerance.h"
#include "support/training.h"
#include "support/devices.h"

enum { SEQUENCES = 2, SEQUENCE = 5, TOKENS = SEQUENCES * SEQUENCE, STEPS = 3 };

static const tp_model_desc model = {.family = TP_MODEL_GPT2,
                                    .layers = 1,
                                    .hidden = 16,
                                    .heads = 4,
                                    .ffn = 21,
                                    .vocabulary = 23,
                                    .positions = 6,
                                    .dtype = TP_DTYPE_F32,
                                    .sequence_parallel = true};

static tpt_training base(const int32_t *ids, const int32_t *targets)
{
    return (tpt_training){.model = model,
                          .ranks = 1,
                          .sequences = SEQUENCES,
                          .sequence = SEQUENCE,
                          .ids = ids,
                          .targets = targets,
                          .steps = STEPS,
                          .lr = 1e-2f,
                          .seed = 17};
}

static void train_on_gpus(tpt_training training, int ranks, int devices, tpt_trained *out)
{
    training.ranks = ranks;
    training.devices = devices;
    training.device = TP_DEVICE_CUDA;
    training.plugin = TPT_CUDA_PLUGIN;
    cr_assert_eq(tpt_train(&training, out), TP_OK);
    tpt_gpus_clean("training");
}

/* Each step's errors add to those of the steps before it. */
static double tolerance(int steps)
{
    return 2.0 * tpt_tolerance_chain(TP_DTYPE_F32, model.ffn, 2 * steps * 18, 1.0);
}

static void check_near(const tpt_trained *got, const tpt_trained *want)
{
    for (int step = 0; step < STEPS; step++) {
        double relative = tolerance(step + 1);
        cr_assert_leq(fabs(got->loss[step] - want->loss[step]), relative * want->loss[step],
                      "step %d: loss %.9g, on the CPU %.9g", step, got->loss[step], want->loss[step]);
        if (isfinite(want->norm[step]))
            cr_assert_leq(fabs((double)got->norm[step] - want->norm[step]), relative * want->norm[step]);
        cr_assert_eq(got->skipped[step], want->skipped[step], "step %d", step);
    }
    for (int i = 0; i < want->params; i++) {
        int64_t at = want->param[i].at, count = want->param[i].elements;
        double *exact = tpt_allocate((size_t)count * sizeof *exact);
        tpt_to_f64(exact, want->values + at, TP_DTYPE_F32, count);
        cr_assert(tpt_close_norm(want->param[i].name, got->values + at, TP_DTYPE_F32, exact, count, tolerance(STEPS)));
        free(exact);
    }
}

static void check_training(tpt_training training, unsigned number)
{
    static const int layouts[][2] = {{2, 1}, {4, 4}};
    tpt_trained cpu, one, other;
    cr_assert_eq(tpt_train(&training, &cpu), TP_OK);
    tpt_gpus_turn(number);
    train_on_gpus(training, 1, 1, &one);
    check_near(&one, &cpu);
    for (unsigned i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        tpt_gpus_turn(number + 1 + i);
        train_on_gpus(training, layouts[i][0], layouts[i][1], &other);
        cr_assert(tpt_trained_same("several ranks", &other, &one));
        tpt_trained_free(&other);
    }
    tpt_trained_free(&one);
    tpt_trained_free(&cpu);
}

static void with_optimizer(tp_optimizer_desc optimizer, int hurt_step, unsigned number)
{
    int32_t ids[TOKENS], targets[TOKENS];
    tpt_make_batch(ids, targets, TOKENS, model.vocabulary, 4);
    tpt_training training = base(ids, targets);
    training.optimizer = optimizer;
    training.hurt_step = hurt_step;
    check_training(training, number);
}

Test(cuda_training, sgd, .timeout = 100)
{
    with_optimizer((tp_optimizer_desc){.kind = TP_OPTIMIZER_SGD, .momentum = 0.9f}, 0, 0);
}

/* With a small epsilon a gradient of nearly zero moves a weight by the learning rate, either way: errors would not stay
 * small. */
Test(cuda_training, adamw_clipped, .timeout = 100)
{
    with_optimizer((tp_optimizer_desc){.kind = TP_OPTIMIZER_ADAMW, .epsilon = 1, .decay = 0.1f, .clip_norm = 0.5f}, 0,
                   1);
}

Test(cuda_training, an_infinite_gradient_skips_the_step, .timeout = 100)
{
    with_optimizer((tp_optimizer_desc){.kind = TP_OPTIMIZER_ADAMW, .epsilon = 1, .clip_norm = 1}, 2, 2);
}

/* ---- the trainer, and values out and in again -------------------------------------------------------------------- */

typedef struct trainer_run {
    const tp_data *data;
    double loss[STEPS], evaluated, reloaded;
    float norm[STEPS];
} trainer_run;

/* A checkpoint: every value gathered, changed, and loaded again. */
static tp_status reload(tp_ctx *ctx, const tp_model *m)
{
    int count;
    tp_param *const *params = tp_model_params(m, &count);
    for (int i = 0; i < count; i++) {
        size_t elements = (size_t)tp_param_elements(params[i]);
        float *kept = tpt_allocate(elements * sizeof *kept), *zeros = tpt_allocate(elements * sizeof *zeros);
        tp_status status = tp_param_gather(ctx, params[i], 0, kept);
        if (status == TP_OK)
            status = tp_param_load(ctx, params[i], zeros, TP_DTYPE_F32, NULL);
        if (status == TP_OK)
            status = tp_param_load(ctx, params[i], kept, TP_DTYPE_F32, NULL);
        free(kept);
        free(zeros);
        if (status != TP_OK)
            return status;
    }
    return TP_OK;
}

static tp_status drive(tp_ctx *ctx, trainer_run *run, tp_model *m, tp_trainer *trainer)
{
    trainer_run mine = {.data = run->data};
    tp_status status = TP_OK;
    for (int step = 0; step < STEPS && status == TP_OK; step++) {
        tp_train_report report = {0};
        status = tp_trainer_step(ctx, trainer, &report);
        mine.loss[step] = report.loss;
        mine.norm[step] = report.grad_norm;
    }
    if (status == TP_OK)
        status = tp_trainer_evaluate(ctx, trainer, 3, 2, &mine.evaluated);
    if (status == TP_OK)
        status = reload(ctx, m);
    if (status == TP_OK)
        status = tp_trainer_evaluate(ctx, trainer, 3, 2, &mine.reloaded);
    if (tp_ctx_rank(ctx) == 0)
        *run = mine;
    return status;
}

static tp_status run_trainer(tp_ctx *ctx, void *arg)
{
    trainer_run *run = arg;
    static const tp_trainer_desc desc = {.batch = 2,
                                         .sequence = SEQUENCE,
                                         .microbatch = 1,
                                         .lr = 1e-2f,
                                         .warmup = 2,
                                         .optimizer = {.kind = TP_OPTIMIZER_ADAMW, .epsilon = 1, .clip_norm = 1}};
    tp_model_desc shape = model;
    shape.vocabulary = 256;
    shape.dtype = TP_DTYPE_BF16;
    tp_model *m = NULL;
    tp_trainer *trainer = NULL;
    int count;
    tp_status status = tp_model_create(ctx, &shape, &m);
    if (status == TP_OK) {
        tp_param *const *params = tp_model_params(m, &count);
        status = tp_params_init(ctx, params, count);
    }
    if (status == TP_OK)
        status = tp_trainer_create(ctx, &desc, m, run->data, &trainer);
    if (status == TP_OK)
        status = drive(ctx, run, m, trainer);
    tp_trainer_destroy(trainer);
    tp_model_destroy(m);
    return status;
}

static void check_trainer(const trainer_run *got, const trainer_run *want)
{
    cr_assert(memcmp(got->loss, want->loss, sizeof got->loss) == 0 &&
              memcmp(got->norm, want->norm, sizeof got->norm) == 0);
    cr_assert_eq(got->evaluated, want->evaluated);
}

Test(cuda_training, trainer, .timeout = 100)
{
    tp_data *data = tpt_open_text(97);
    trainer_run cpu = {.data = data}, one = {.data = data};
    cr_assert_eq(tp_run_ranks(&(tp_run_options){.ctx = {.threads = 1, .seed = 5}}, run_trainer, &cpu), TP_OK);
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        trainer_run several = {.data = data};
        tp_run_options options = {
            .ranks = ranks,
            .devices = ranks,
            .ctx = {.device = TP_DEVICE_CUDA, .plugin = TPT_CUDA_PLUGIN, .threads = 1, .seed = 5}};
        tpt_gpus_turn((unsigned)ranks);
        cr_assert_eq(tpt_run_ranks(&options, run_trainer, &several), TP_OK, "%s", tp_last_message());
        tpt_gpus_clean("trainer");
        cr_assert_eq(several.evaluated, several.reloaded, "values came back changed");
        if (ranks == 1)
            one = several;
        check_trainer(&several, &one);
        for (int step = 0; step < STEPS; step++)
            cr_assert_leq(fabs(several.loss[step] - cpu.loss[step]),
                          2.0 * tpt_tolerance_chain(TP_DTYPE_BF16, model.ffn, 2 * (step + 1) * 18, cpu.loss[step]));
    }
    tp_data_close(data);
}
