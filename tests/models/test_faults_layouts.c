/* Faults that trainers have had in the field, tried on two whole models: T0, of GPT-2's family, and T1, of Llama's. SGD
 * with lr 1, so that nothing hides a factor; against an independent model in double precision, and bit for bit against
 * one rank. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/data.h"
#include "support/tolerance.h"
#include "support/training.h"

enum { MOST_TOKENS = 400 };

static const tp_model_desc t0 = {.family = TP_MODEL_GPT2,
                                 .layers = 2,
                                 .hidden = 64,
                                 .heads = 4,
                                 .kv_heads = 4,
                                 .ffn = 256,
                                 .vocabulary = 128,
                                 .positions = 32,
                                 .activation = TP_ACTIVATION_GELU,
                                 .activation_set = true,
                                 .dtype = TP_DTYPE_F32};

static const tp_model_desc t1 = {.family = TP_MODEL_LLAMA,
                                 .layers = 4,
                                 .hidden = 64,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 16,
                                 .ffn = 128,
                                 .vocabulary = 128,
                                 .positions = 40,
                                 .rope_theta = 10000.0,
                                 .activation = TP_ACTIVATION_SWIGLU,
                                 .activation_set = true,
                                 .dtype = TP_DTYPE_F32};

typedef struct batch {
    int32_t ids[MOST_TOKENS], targets[MOST_TOKENS];
} batch;

static const batch *make_batch(batch *b, const tp_model_desc *desc)
{
    tpt_make_batch(b->ids, b->targets, MOST_TOKENS, desc->vocabulary, 7);
    return b;
}

static tpt_training training_of(const tp_model_desc *desc, const batch *b, int64_t sequences, int64_t sequence)
{
    return (tpt_training){.model = *desc,
                          .ranks = 1,
                          .sequences = sequences,
                          .sequence = sequence,
                          .ids = b->ids,
                          .targets = b->targets,
                          .steps = 1,
                          .lr = 1.0f,
                          .optimizer = {.kind = TP_OPTIMIZER_SGD},
                          .seed = 1234};
}

/* The library at one rank, one step: loss, gradient norm, every gradient and every updated parameter against double
 * precision. */
static void check_reference(const tpt_training *training, const tpt_trained *trained, double relative)
{
    int64_t offsets[16] = {0};
    for (int64_t s = 0; s < training->sequences; s++)
        offsets[s + 1] = training->offsets ? training->offsets[s + 1] : offsets[s] + training->sequence;
    tpt_reference model;
    tpt_reference_init(&model, &training->model);
    cr_assert_eq(model.elements, trained->elements);
    double *values = tpt_allocate((size_t)model.elements * sizeof(double)), square = 0.0;
    double *gradient = tpt_allocate((size_t)model.elements * sizeof(double));
    tpt_values_to_reference(&model, trained, trained->initial, values);
    tpt_reference_batch view = {offsets[training->sequences], training->sequences, offsets, training->ids,
                                training->targets};
    double loss = tpt_reference_loss(&model, values, &view, 1.0 / trained->tokens[0], gradient, NULL);
    cr_assert_leq(fabs(trained->loss[0] - loss), relative * loss, "loss %.9g, reference %.9g", trained->loss[0], loss);
    for (int i = 0; i < trained->params; i++) {
        const tpt_reference_param *param = tpt_reference_find(&model, trained->param[i].name);
        int64_t elements = trained->param[i].elements, at = trained->param[i].at;
        cr_expect(
            tpt_close_norm(param->name, trained->grads + at, TP_DTYPE_F32, gradient + param->at, elements, relative));
        for (int64_t e = param->at; e < param->at + elements; e++) {
            square += gradient[e] * gradient[e];
            values[e] -= gradient[e];
        }
        cr_expect(
            tpt_close_norm(param->name, trained->values + at, TP_DTYPE_F32, values + param->at, elements, relative));
    }
    cr_expect_leq(fabs(trained->norm[0] - sqrt(square)), relative * sqrt(square));
    free(values);
    free(gradient);
}

static const double promised = 1e-5;

/* One step against the reference, then `steps` of them on other layouts, with the bits of one rank. */
static void check_layouts(tpt_training training, int most_ranks, double relative)
{
    int steps = training.steps;
    tpt_trained one, other;
    training.ranks = 1;
    training.steps = 1;
    cr_assert_eq(tpt_train(&training, &one), TP_OK);
    check_reference(&training, &one, relative);
    tpt_trained_free(&one);
    training.steps = steps;
    cr_assert_eq(tpt_train(&training, &one), TP_OK);
    for (int ranks = 2; ranks <= most_ranks; ranks *= 2)
        for (int parallel = 0; parallel < 2; parallel++) {
            char what[64];
            snprintf(what, sizeof what, "TP %d, sequence parallelism %d", ranks, parallel);
            training.ranks = ranks;
            training.model.sequence_parallel = parallel != 0;
            cr_assert_eq(tpt_train(&training, &other), TP_OK);
            cr_expect(tpt_trained_same(what, &other, &one)); /* replicas too */
            tpt_trained_free(&other);
        }
    tpt_trained_free(&one);
}

/* O01, O10, O15: gains, row-parallel biases and the last norm get the sum over all tokens, on all ranks; O24 (b): two
 * kv heads on four ranks. */
Test(faults_layouts, gradients_of_what_is_replicated)
{
    batch b;
    tpt_training training = training_of(&t1, make_batch(&b, &t1), 3, 32);
    check_layouts(training, 4, promised);
    training.steps = 20;
    check_layouts(training, 4, promised);
    training = training_of(&t0, make_batch(&b, &t0), 3, 32);
    training.steps = 20;
    check_layouts(training, 4, promised);
}

/* O24 (b): one kv head on two and on four ranks. */
Test(faults_layouts, one_kv_head_for_all_ranks)
{
    batch b;
    tp_model_desc desc = t1;
    desc.kv_heads = 1;
    tpt_training training = training_of(&desc, make_batch(&b, &desc), 2, 32);
    training.steps = 3;
    check_layouts(training, 4, promised);
}

/* O02: biases of 100 after the row-parallel layers cannot hide if they are added twice. The residual stream is 400
 * then, and f32 keeps what it keeps. */
Test(faults_layouts, large_biases_are_added_once)
{
    batch b;
    tpt_trained start;
    tpt_training training = training_of(&t0, make_batch(&b, &t0), 2, 32);
    training.steps = 0;
    cr_assert_eq(tpt_train(&training, &start), TP_OK);
    for (int i = 0; i < start.params; i++)
        if (strstr(start.param[i].name, "proj.bias") != NULL || strstr(start.param[i].name, "down.bias") != NULL)
            for (int64_t e = 0; e < start.param[i].elements; e++) /* not all alike: a norm would take out a constant */
                start.initial[start.param[i].at + e] = e % 3 == 0 ? -100.0f : 100.0f;
    training.values = start.initial;
    training.steps = 1;
    check_layouts(training, 4, tpt_tolerance_chain(TP_DTYPE_F32, t0.ffn, 4 * (int)t0.layers + 3, 400.0));
    tpt_trained_free(&start);
}

/* O12: microbatches of any number give the gradient of the whole batch, gains and tables included; O10: they have
 * unequal numbers of targets. */
Test(faults_layouts, microbatches_add_up)
{
    batch b;
    make_batch(&b, &t0);
    for (int t = 0; t < 20; t++)
        b.targets[t] = -1;
    for (int ranks = 1; ranks <= 2; ranks++)
        for (int64_t microbatches = 1; microbatches <= 4; microbatches++) {
            tpt_training training = training_of(&t0, &b, 12, 8);
            tpt_trained trained;
            training.ranks = ranks;
            training.model.sequence_parallel = ranks > 1;
            training.microbatch = 12 / microbatches;
            cr_assert_eq(tpt_train(&training, &trained), TP_OK);
            check_reference(&training, &trained, promised);
            tpt_trained_free(&trained);
        }
}

/* O39: tokens that ranks cannot share evenly, a single token, and sequences of unequal lengths whose last is short. */
Test(faults_layouts, any_number_of_tokens)
{
    static const int64_t lengths[] = {33, 30, 7, 3, 1}, ragged[] = {0, 30, 37, 38, 40};
    batch b;
    make_batch(&b, &t1);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        tpt_training training = training_of(&t1, &b, 1, lengths[i]);
        training.steps = 2;
        check_layouts(training, 4, promised);
    }
    tpt_training training = training_of(&t1, &b, 4, 0);
    training.offsets = ragged;
    check_layouts(training, 4, promised);
}

/* O24 (c), O42: no rounding down, but both numbers, on every rank and before anything is there. */
typedef struct refused_desc {
    tp_model_desc desc;
    const char *first, *second;
} refused_desc;

static size_t bytes_held(const tp_ctx *ctx)
{
    size_t bytes = 0;
    for (int kind = 0; kind < TP_MEMORY_KINDS; kind++)
        bytes += tp_ctx_memory(ctx, (tp_memory_kind)kind).peak;
    return bytes;
}

static tp_status refused_main(tp_ctx *ctx, void *arg)
{
    const refused_desc *r = arg;
    size_t before = bytes_held(ctx);
    tp_model *model;
    tp_status status = tp_model_create(ctx, &r->desc, &model);
    bool good = status == TP_ERR_ARGUMENT && model == NULL && bytes_held(ctx) == before &&
                strstr(tp_last_message(), r->first) != NULL && strstr(tp_last_message(), r->second) != NULL;
    if (!good)
        fprintf(stderr, "%s: %s\n", tp_status_name(status), tp_last_message());
    return good ? TP_OK : TP_ERR_INTERNAL;
}

Test(faults_layouts, impossible_shapes_are_refused_on_all_ranks)
{
    refused_desc r[] = {{t1, "heads 4", "8 tensor-parallel"}, {t1, "heads 3", "kv_heads 2"},
                        {t1, "heads 33", "kv_heads 2"},       {t0, "hidden 65", "heads 4"},
                        {t0, "dropout is 1", "[0, 1)"},       {t0, "dropout is nan", "[0, 1)"},
                        {t0, "positions is 0", "[1"},         {t0, "vocabulary is -1", "[1"},
                        {t0, "norm_epsilon is -1", "[0"},     {t1, "rope_theta is inf", "[0"},
                        {t0, "hidden is 4294967296", "]"},    {t0, "vocabulary 7", "8 tensor-parallel"}};
    r[1].desc.heads = 3;
    r[2].desc.heads = 33;
    r[3].desc.hidden = 65;
    r[3].desc.head_dim = 0;
    r[4].desc.dropout = 1.0f;
    r[5].desc.dropout = NAN;
    r[6].desc.positions = 0;
    r[7].desc.vocabulary = -1;
    r[8].desc.norm_epsilon = -1.0f;
    r[9].desc.rope_theta = INFINITY;
    r[10].desc.hidden = INT64_C(1) << 32;
    r[11].desc.heads = r[11].desc.kv_heads = 8;
    r[11].desc.vocabulary = 7;
    for (size_t i = 0; i < sizeof r / sizeof r[0]; i++) {
        tp_run_options options = {.ranks = 8, .ctx = {.threads = 1}};
        cr_assert_eq(tp_run_ranks(&options, refused_main, &r[i]), TP_OK, "%s", tp_last_message());
    }
}
