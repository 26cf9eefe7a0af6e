/* Whole models on GPUs: loss and gradients near the CPU's at TP 1, 2 and 4, the same bits on every layout, and steps of
 * training. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda/gpus.h"
#include "support/data.h"
#include "support/tolerance.h"
#include "support/training.h"

enum { SEQUENCES = 2, SEQUENCE = 7, TOKENS = SEQUENCES * SEQUENCE };

static const tp_model_desc gpt2 = {
    .family = TP_MODEL_GPT2, .layers = 2, .hidden = 16, .heads = 4, .ffn = 37, .vocabulary = 29, .positions = 8};

static const tp_model_desc llama = {.family = TP_MODEL_LLAMA,
                                    .layers = 2,
                                    .hidden = 20,
                                    .heads = 8,
                                    .kv_heads = 2, /* shared by ranks of 4 */
                                    .head_dim = 4,
                                    .ffn = 27,
                                    .vocabulary = 31,
                                    .positions = 8,
                                    .label_smoothing = 0.1f};

/* What is trained, on what. */
typedef struct run_on {
    int ranks, devices; /* devices 0: the CPU */
    bool sequence_parallel, fast;
} run_on;

static tpt_training training_of(const tp_model_desc *desc, const int32_t *ids, const int32_t *targets)
{
    return (tpt_training){.model = *desc,
                          .sequences = SEQUENCES,
                          .sequence = SEQUENCE,
                          .microbatch = 1,
                          .ids = ids,
                          .targets = targets,
                          .steps = 1,
                          .lr = 1e-2f,
                          .optimizer = {.kind = TP_OPTIMIZER_SGD, .momentum = 0.9f},
                          .seed = 17};
}

static void train(tpt_training training, run_on where, tpt_trained *out)
{
    char name[128];
    snprintf(name, sizeof name, "%d ranks on %d devices, sequence parallelism %s", where.ranks, where.devices,
             where.sequence_parallel ? "on" : "off");
    training.ranks = where.ranks;
    training.devices = where.devices;
    training.model.sequence_parallel = where.sequence_parallel;
    if (where.devices > 0) {
        training.device = TP_DEVICE_CUDA;
        training.plugin = TPT_CUDA_PLUGIN;
    }
    training.sum_order = where.fast ? TP_SUM_FAST : TP_SUM_TREE;
    cr_assert_eq(tpt_train(&training, out), TP_OK, "%s", name);
    cr_assert(out->replicas_equal, "%s: replicas differ", name);
    if (where.devices > 0)
        tpt_gpus_clean(name);
}

/* Relative error in a tensor's norm: a layer's depth as for the block, and embedding, norm, head and loss; forward,
 * then backward; two of them. */
static double tolerance(const tp_model_desc *desc)
{
    return 2.0 * tpt_tolerance_chain(desc->dtype, desc->ffn, (int)(2 * (12 * desc->layers + 6)), 1.0);
}

static bool near_list(const char *what, const tpt_trained *trained, const float *got, const float *want,
                      double relative)
{
    bool close = true;
    for (int i = 0; i < trained->params; i++) {
        int64_t at = trained->param[i].at, count = trained->param[i].elements;
        double *exact = tpt_allocate((size_t)count * sizeof *exact);
        char text[160];
        snprintf(text, sizeof text, "%s of %s", what, trained->param[i].name);
        tpt_to_f64(exact, want + at, TP_DTYPE_F32, count);
        close = tpt_close_norm(text, got + at, TP_DTYPE_F32, exact, count, relative) && close;
        free(exact);
    }
    return close;
}

static void check_near(const tpt_training *training, const tpt_trained *got, const tpt_trained *want)
{
    double relative = tolerance(&training->model);
    cr_assert(tpt_same_bits("initial values", got->initial, want->initial, TP_DTYPE_F32, want->elements));
    for (int step = 0; step < training->steps; step++) {
        double of_loss = (step + 1) * relative * fabs(want->loss[step]);
        cr_assert_leq(fabs(got->loss[step] - want->loss[step]), of_loss, "step %d: loss %.9g, on the CPU %.9g", step,
                      got->loss[step], want->loss[step]);
        cr_assert_eq(got->tokens[step], want->tokens[step]);
        cr_assert_eq(got->skipped[step], want->skipped[step]);
    }
    cr_assert(near_list("gradient", want, got->grads, want->grads, training->steps * relative));
    cr_assert(near_list("value", want, got->values, want->values, training->steps * relative));
}

static void check_model(tpt_training training, unsigned number)
{
    static const run_on layouts[] = {
        {2, 1, false, false}, {2, 2, true, false}, {4, 4, true, false}, {4, 2, false, false}};
    tpt_trained cpu, one, other;
    train(training, (run_on){1, 0, false, false}, &cpu);
    tpt_gpus_turn(number);
    train(training, (run_on){1, 1, false, false}, &one);
    check_near(&training, &one, &cpu);
    for (unsigned i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        tpt_gpus_turn(number + 1 + i);
        train(training, layouts[i], &other);
        cr_assert(tpt_trained_same("several ranks", &other, &one));
        tpt_trained_free(&other);
    }
    tpt_trained_free(&one);
    tpt_gpus_turn(number);
    train(training, (run_on){2, 2, number % 2 != 0, true}, &other);
    check_near(&training, &other, &cpu);
    tpt_trained_free(&other);
    tpt_trained_free(&cpu);
}

static void check_dtype(const tp_model_desc *desc, tp_dtype dtype, float dropout, unsigned number)
{
    int32_t ids[TOKENS], targets[TOKENS];
    tpt_make_batch(ids, targets, TOKENS, desc->vocabulary, 6);
    tpt_training training = training_of(desc, ids, targets);
    training.model.dtype = dtype;
    training.model.dropout = dropout;
    check_model(training, number);
}

Test(cuda_model, gpt2_f32, .timeout = 100)
{
    check_dtype(&gpt2, TP_DTYPE_F32, 0, 0);
}

Test(cuda_model, gpt2_bf16, .timeout = 100)
{
    check_dtype(&gpt2, TP_DTYPE_BF16, 0.1f, 1);
}

Test(cuda_model, llama_f32, .timeout = 100)
{
    check_dtype(&llama, TP_DTYPE_F32, 0.1f, 2);
}

Test(cuda_model, llama_bf16, .timeout = 100)
{
    check_dtype(&llama, TP_DTYPE_BF16, 0, 3);
}
