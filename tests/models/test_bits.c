/* One order of sums: losses, gradients and weights of a training run have the same bits on every layout that divides
 * eight. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "support/data.h"
#include "support/training.h"

enum { SEQUENCES = 4, SEQUENCE = 13, TOKENS = SEQUENCES * SEQUENCE };
/* What a sanitizer sees is the same in every step. */
#ifdef TPT_SANITIZED
enum { STEPS = 6 };
#else
enum { STEPS = 20 };
#endif

/* 8 heads, everything else odd. */
static const tp_model_desc gpt2 = {.family = TP_MODEL_GPT2,
                                   .layers = 2,
                                   .hidden = 32,
                                   .heads = 8,
                                   .ffn = 101,
                                   .vocabulary = 67,
                                   .positions = 16};

/* 12 query heads on 8 ranks, kv heads shared by ranks. */
static const tp_model_desc llama = {.family = TP_MODEL_LLAMA,
                                    .layers = 2,
                                    .hidden = 30,
                                    .heads = 12,
                                    .kv_heads = 4,
                                    .head_dim = 4,
                                    .ffn = 43,
                                    .vocabulary = 53,
                                    .positions = 16,
                                    .label_smoothing = 0.1f};

typedef struct layout {
    int ranks, threads;
    bool sequence_parallel;
} layout;

static void train(const tp_model_desc *desc, layout where, tpt_trained *out)
{
    int32_t ids[TOKENS], targets[TOKENS];
    tpt_make_batch(ids, targets, TOKENS, desc->vocabulary, 6);
    tpt_training training = {.model = *desc,
                             .ranks = where.ranks,
                             .threads = where.threads,
                             .sequences = SEQUENCES,
                             .sequence = SEQUENCE,
                             .microbatch = 2,
                             .ids = ids,
                             .targets = targets,
                             .steps = STEPS,
                             .lr = 1e-2f,
                             .optimizer = {.kind = TP_OPTIMIZER_ADAMW, .decay = 0.1f, .clip_norm = 1.0f},
                             .seed = 17};
    training.model.sequence_parallel = where.sequence_parallel;
    cr_assert_eq(tpt_train(&training, out), TP_OK);
}

static void check_layouts(const tp_model_desc *desc, int threads)
{
    tpt_trained one;
    train(desc, (layout){1, 1, false}, &one);
#ifndef TPT_SANITIZED
    cr_assert_lt(one.loss[STEPS - 1], 0.8 * one.loss[0], "loss %g, then %g: nothing was learned", one.loss[0],
                 one.loss[STEPS - 1]);
#endif
    for (int ranks = 1; ranks <= 8; ranks *= 2)
        for (int parallel = 0; parallel < 2; parallel++) {
            tpt_trained other;
            char what[96];
            snprintf(what, sizeof what, "%s, TP %d, %d threads, sequence parallelism %d", tp_dtype_name(desc->dtype),
                     ranks, threads, parallel);
            train(desc, (layout){ranks, threads, parallel != 0}, &other);
            cr_expect(tpt_trained_same(what, &other, &one));
            tpt_trained_free(&other);
        }
    tpt_trained_free(&one);
}

static void check_threads(tp_model_desc desc, tp_dtype dtype)
{
    desc.dtype = dtype;
    for (int threads = 1; threads <= 3; threads++)
        check_layouts(&desc, threads);
}

Test(bits, gpt2_f32)
{
    check_threads(gpt2, TP_DTYPE_F32);
}

Test(bits, gpt2_bf16)
{
    check_threads(gpt2, TP_DTYPE_BF16);
}

Test(bits, llama_f32)
{
    check_threads(llama, TP_DTYPE_F32);
}

Test(bits, llama_bf16)
{
    check_threads(llama, TP_DTYPE_BF16);
}

Test(bits, f16)
{
    tp_model_desc desc = gpt2;
    desc.dtype = TP_DTYPE_F16;
    check_layouts(&desc, 1);
}

/* Masks are drawn on global indices, so dropout changes nothing of it. */
Test(bits, dropout)
{
    tp_model_desc desc = gpt2;
    desc.dropout = 0.2f;
    desc.dtype = TP_DTYPE_BF16;
    check_layouts(&desc, 1);
    desc = llama;
    desc.dropout = 0.1f;
    desc.dtype = TP_DTYPE_F32;
    check_layouts(&desc, 1);
}

/* Compute on a worker lane, lanes delayed at random: the same bits as inline. */
Test(bits, delayed_lanes)
{
    int32_t ids[TOKENS], targets[TOKENS];
    tpt_make_batch(ids, targets, TOKENS, llama.vocabulary, 0);
    tpt_training training = {.model = llama,
                             .ranks = 2,
                             .sequences = SEQUENCES,
                             .sequence = SEQUENCE,
                             .ids = ids,
                             .targets = targets,
                             .steps = 2,
                             .lr = 1e-2f,
                             .optimizer = {.kind = TP_OPTIMIZER_ADAMW}};
    training.model.dtype = TP_DTYPE_F32;
    training.model.sequence_parallel = true;
    tpt_trained inline_run, delayed;
    cr_assert_eq(tpt_train(&training, &inline_run), TP_OK);
    training.lane_delay_seed = 99;
    cr_assert_eq(tpt_train(&training, &delayed), TP_OK);
    cr_expect(tpt_trained_same("delayed lanes", &delayed, &inline_run));
    tpt_trained_free(&inline_run);
    tpt_trained_free(&delayed);
}

/* Layouts that do not divide eight: the same twice, and close to one rank (their sums have another order, which
 * training amplifies: one step). */
Test(bits, other_layouts_repeat)
{
    for (int ranks = 3; ranks <= 7; ranks += 2) {
        tp_model_desc desc = gpt2;
        desc.dtype = TP_DTYPE_F32;
        tpt_trained first, second;
        train(&desc, (layout){ranks, 1, true}, &first);
        train(&desc, (layout){ranks, 2, true}, &second);
        cr_expect(tpt_trained_same("again", &second, &first));
        tpt_trained_free(&first);
        tpt_trained_free(&second);
    }
}
