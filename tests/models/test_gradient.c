/* Loss, logits and all gradients of whole models against an independent one in double precision. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/data.h"
#include "support/tolerance.h"
#include "support/training.h"

enum { MOST_TOKENS = 64 };

typedef struct tokens {
    int32_t ids[MOST_TOKENS], targets[MOST_TOKENS];
} tokens;

static const tp_model_desc gpt2 = {.family = TP_MODEL_GPT2,
                                   .layers = 2,
                                   .hidden = 32,
                                   .heads = 8,
                                   .kv_heads = 8,
                                   .ffn = 101,
                                   .vocabulary = 67,
                                   .positions = 16,
                                   .activation = TP_ACTIVATION_GELU_TANH,
                                   .activation_set = true,
                                   .dtype = TP_DTYPE_F32};

static const tp_model_desc llama = {.family = TP_MODEL_LLAMA,
                                    .layers = 2,
                                    .hidden = 24,
                                    .heads = 12,
                                    .kv_heads = 4,
                                    .head_dim = 6,
                                    .ffn = 37,
                                    .vocabulary = 41,
                                    .positions = 16,
                                    .rope_theta = 100.0,
                                    .label_smoothing = 0.1f,
                                    .z_loss = 1e-2f,
                                    .activation = TP_ACTIVATION_SWIGLU,
                                    .activation_set = true,
                                    .dtype = TP_DTYPE_F32};

/* Values large enough that every part of the model matters; gains around 1. */
static float *lively_values(const tp_model_desc *desc, uint64_t seed)
{
    int64_t elements = tp_model_parameters(desc);
    float *values = tpt_new_normal(TP_DTYPE_F32, elements, seed, 0.15);
    for (int64_t i = 0; i < elements; i++) /* what bf16 holds, so that both dtypes start alike */
        values[i] = tp_f32_from_bf16(tp_bf16_from_f32(values[i]));
    return values;
}

static tpt_reference_batch reference_batch(const tokens *b, const int64_t *offsets, int64_t sequences)
{
    return (tpt_reference_batch){offsets[sequences], sequences, offsets, b->ids, b->targets};
}

/* The reference's own gradient, along random directions, against differences of its loss. */
static void check_by_differences(const tp_model_desc *desc)
{
    tpt_reference model;
    tpt_reference_init(&model, desc);
    tokens b;
    static const int64_t offsets[] = {0, 5, 6, 13};
    tpt_make_batch(b.ids, b.targets, 13, desc->vocabulary, 4);
    tpt_reference_batch batch = reference_batch(&b, offsets, 3);
    double *values = tpt_allocate((size_t)model.elements * sizeof(double));
    double *gradient = tpt_allocate((size_t)model.elements * sizeof(double));
    tpt_fill_normal(gradient, TP_DTYPE_F32, model.elements, 5, 0.15); /* as f32 first */
    for (int64_t i = model.elements - 1; i >= 0; i--)
        values[i] = ((float *)gradient)[i];
    memset(gradient, 0, (size_t)model.elements * sizeof(double));
    tpt_reference_loss(&model, values, &batch, 1.0, gradient, NULL);
    for (int p = 0; p < model.params; p++) {
        const tpt_reference_param *param = &model.param[p];
        double along = 0.0, step = 1e-5, loss[2];
        for (int sign = 0; sign < 2; sign++) {
            for (int64_t i = 0; i < param->rows * param->cols; i++)
                values[param->at + i] += (sign == 0 ? step : -2.0 * step) * sin((double)i + p);
            loss[sign] = tpt_reference_loss(&model, values, &batch, 1.0, NULL, NULL);
        }
        for (int64_t i = 0; i < param->rows * param->cols; i++) {
            values[param->at + i] += step * sin((double)i + p);
            along += gradient[param->at + i] * sin((double)i + p);
        }
        /* Second-order differences: error of about step^2, and rounding of the losses over step. */
        double difference = (loss[0] - loss[1]) / (2.0 * step);
        cr_assert_lt(fabs(difference - along), 1e-7 * (fabs(along) + fabs(loss[0])), "%s: %.12g and %.12g", param->name,
                     difference, along);
    }
    free(values);
    free(gradient);
}

Test(gradient, reference_agrees_with_differences)
{
    check_by_differences(&gpt2);
    check_by_differences(&llama);
    tp_model_desc other = llama;
    other.activation = TP_ACTIVATION_GEGLU;
    other.tied = 1;
    check_by_differences(&other);
    other = gpt2;
    other.activation = TP_ACTIVATION_RELU2;
    other.tied = -1;
    check_by_differences(&other);
    other.activation = TP_ACTIVATION_GELU;
    check_by_differences(&other);
}

/* One pass of the library compared with the reference: loss, gradients, gradient norm. relative: of each tensor's
 * norm. */
static void check_model(const tpt_training *training, const int64_t *offsets, double relative)
{
    tpt_trained trained;
    cr_assert_eq(tpt_train(training, &trained), TP_OK);
    cr_assert(trained.replicas_equal);
    tpt_reference model;
    tpt_reference_init(&model, &training->model);
    cr_assert_eq(model.elements, trained.elements);
    cr_assert_eq(model.elements, tp_model_parameters(&training->model));
    double *values = tpt_allocate((size_t)model.elements * sizeof(double));
    double *gradient = tpt_allocate((size_t)model.elements * sizeof(double));
    tpt_values_to_reference(&model, &trained, trained.initial, values);
    tpt_reference_batch batch = {offsets[training->sequences], training->sequences, offsets, training->ids,
                                 training->targets};
    double scale = 1.0 / trained.tokens[0];
    double loss = tpt_reference_loss(&model, values, &batch, scale, gradient, NULL);
    cr_assert_leq(fabs(trained.loss[0] - loss), relative * loss, "loss %.9g, reference %.9g, TP %d", trained.loss[0],
                  loss, training->ranks);
    double square = 0.0;
    for (int i = 0; i < trained.params; i++) {
        const tpt_reference_param *param = tpt_reference_find(&model, trained.param[i].name);
        char what[160];
        snprintf(what, sizeof what, "gradient of %s at TP %d", param->name, training->ranks);
        cr_expect(tpt_close_norm(what, trained.grads + trained.param[i].at, TP_DTYPE_F32, gradient + param->at,
                                 trained.param[i].elements, relative));
        for (int64_t e = 0; e < trained.param[i].elements; e++)
            square += gradient[param->at + e] * gradient[param->at + e];
    }
    cr_expect_leq(fabs(trained.norm[0] - sqrt(square)), relative * sqrt(square), "norm %.9g, reference %.9g",
                  (double)trained.norm[0], sqrt(square));
    free(values);
    free(gradient);
    tpt_trained_free(&trained);
}

/* What the project promises of f32: 1e-5 of each tensor's norm. */
static const double promised = 1e-5;

/* Roundings of a bf16 model: every stored activation on the way there and back. */
static double bf16_relative(const tp_model_desc *desc)
{
    return tpt_tolerance_chain(TP_DTYPE_BF16, desc->ffn, (int)(4 * desc->layers + 3), 1.0);
}

static void check_everywhere(const tp_model_desc *desc, bool sequence_parallel)
{
    static const int ranks[] = {1, 2, 3, 4, 5, 7, 8};
    static const int64_t offsets[] = {0, 11, 22, 33};
    tokens b;
    float *values = lively_values(desc, 3);
    tpt_make_batch(b.ids, b.targets, 33, desc->vocabulary, 5);
    for (size_t r = 0; r < sizeof ranks / sizeof ranks[0]; r++) {
        tpt_training training = {.model = *desc,
                                 .ranks = ranks[r],
                                 .sequences = 3,
                                 .sequence = 11,
                                 .ids = b.ids,
                                 .targets = b.targets,
                                 .values = values,
                                 .steps = 1,
                                 .optimizer = {.kind = TP_OPTIMIZER_SGD}};
        training.model.sequence_parallel = sequence_parallel;
        check_model(&training, offsets, desc->dtype == TP_DTYPE_F32 ? promised : bf16_relative(desc));
    }
    free(values);
}

Test(gradient, gpt2_f32)
{
    check_everywhere(&gpt2, false);
    check_everywhere(&gpt2, true);
}

Test(gradient, llama_f32)
{
    check_everywhere(&llama, false);
    check_everywhere(&llama, true);
}

Test(gradient, bf16)
{
    tp_model_desc desc = gpt2;
    desc.dtype = TP_DTYPE_BF16;
    check_everywhere(&desc, true);
    desc = llama;
    desc.dtype = TP_DTYPE_BF16;
    check_everywhere(&desc, false);
}

Test(gradient, sequences_of_different_lengths)
{
    static const int64_t offsets[] = {0, 1, 14, 14, 19, 33};
    tokens b;
    const tp_model_desc *both[] = {&gpt2, &llama};
    for (int i = 0; i < 2; i++) {
        float *values = lively_values(both[i], 4);
        tpt_make_batch(b.ids, b.targets, 33, both[i]->vocabulary, 7);
        for (int ranks = 1; ranks <= 4; ranks += 3) {
            tpt_training training = {.model = *both[i],
                                     .ranks = ranks,
                                     .sequences = 5,
                                     .offsets = offsets,
                                     .ids = b.ids,
                                     .targets = b.targets,
                                     .values = values,
                                     .steps = 1,
                                     .optimizer = {.kind = TP_OPTIMIZER_SGD}};
            check_model(&training, offsets, promised);
        }
        free(values);
    }
}

/* Other members of the families: untied, other activations, kv heads, head sizes. */
Test(gradient, variants)
{
    static const int64_t offsets[] = {0, 11, 22, 33};
    tp_model_desc variant[] = {gpt2, gpt2, llama, llama};
    variant[0].activation = TP_ACTIVATION_RELU2;
    variant[0].tied = -1;
    variant[1].activation = TP_ACTIVATION_GELU;
    variant[1].kv_heads = 2;
    variant[2].activation = TP_ACTIVATION_GEGLU;
    variant[2].tied = 1;
    variant[2].kv_heads = 1;
    variant[3].kv_heads = 12;
    variant[3].norm_epsilon = 1e-2f;
    tokens b;
    for (size_t i = 0; i < sizeof variant / sizeof variant[0]; i++) {
        float *values = lively_values(&variant[i], 6);
        tpt_make_batch(b.ids, b.targets, 33, variant[i].vocabulary, 5);
        tpt_training training = {.model = variant[i],
                                 .ranks = 4,
                                 .sequences = 3,
                                 .sequence = 11,
                                 .ids = b.ids,
                                 .targets = b.targets,
                                 .values = values,
                                 .steps = 1,
                                 .optimizer = {.kind = TP_OPTIMIZER_SGD}};
        check_model(&training, offsets, promised);
        free(values);
    }
}
