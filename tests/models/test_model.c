/* Models as objects: parameters, logits, composed modules, refusals, memory, and the faults that training runs meet. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/counting.h"
#include "support/data.h"
#include "support/tolerance.h"
#include "support/training.h"

enum { SEQUENCES = 4, SEQUENCE = 9, TOKENS = SEQUENCES * SEQUENCE };

static const tp_model_desc small = {.family = TP_MODEL_GPT2,
                                    .layers = 2,
                                    .hidden = 24,
                                    .heads = 4,
                                    .kv_heads = 4,
                                    .ffn = 31,
                                    .vocabulary = 47,
                                    .positions = 16,
                                    .activation = TP_ACTIVATION_GELU_TANH,
                                    .activation_set = true,
                                    .dtype = TP_DTYPE_F32};

static tp_ctx *new_ctx(const tp_allocator *allocator)
{
    tp_ctx *ctx;
    tp_ctx_desc desc = {.threads = 1, .seed = 4};
    if (allocator != NULL)
        desc.allocator = *allocator;
    cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_OK, "%s", tp_last_message());
    return ctx;
}

static tp_model *new_model(tp_ctx *ctx, const tp_model_desc *desc)
{
    tp_model *model;
    cr_assert_eq(tp_model_create(ctx, desc, &model), TP_OK, "%s", tp_last_message());
    int count;
    tp_param *const *params = tp_model_params(model, &count);
    cr_assert_eq(tp_params_init(ctx, params, count), TP_OK);
    return model;
}

Test(model, parameters_have_the_documented_names)
{
    static const char *const names[] = {"wte.weight",
                                        "wte.position",
                                        "h.0.norm1.weight",
                                        "h.0.norm1.bias",
                                        "h.0.attention.qkv.weight",
                                        "h.0.attention.qkv.bias",
                                        "h.0.attention.proj.weight",
                                        "h.1.mlp.up.weight",
                                        "h.1.mlp.down.bias",
                                        "norm.weight",
                                        "norm.bias"};
    tp_ctx *ctx = new_ctx(NULL);
    tp_model *model = new_model(ctx, &small);
    int count;
    tp_param *const *params = tp_model_params(model, &count);
    int64_t elements = 0;
    for (int i = 0; i < count; i++) {
        elements += tp_param_elements(params[i]);
        cr_assert_eq(tp_model_param(model, params[i]->name), params[i], "%s is there twice", params[i]->name);
    }
    cr_assert_eq(elements, tp_model_parameters(&small));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        cr_assert_not_null(tp_model_param(model, names[i]), "%s", names[i]);
    cr_assert_null(tp_model_param(model, "head.weight"));
    tp_model_destroy(model);
    tp_model_desc untied = small;
    untied.tied = -1;
    model = new_model(ctx, &untied);
    cr_assert_not_null(tp_model_param(model, "head.weight"));
    tp_model_destroy(model);
    tp_model_destroy(NULL);
    tp_ctx_destroy(ctx);
}

/* The same initial weights on every layout, with the spread of the whole matrix. */
Test(model, initial_values_do_not_depend_on_the_layout)
{
    tp_model_desc desc = small;
    desc.hidden = 64;
    desc.heads = 8;
    desc.kv_heads = 8;
    desc.ffn = 256;
    desc.vocabulary = 211;
    tpt_trained one, other;
    int32_t ids[TOKENS], targets[TOKENS];
    tpt_make_batch(ids, targets, TOKENS, desc.vocabulary, 0);
    tpt_training training = {.model = desc,
                             .ranks = 1,
                             .sequences = SEQUENCES,
                             .sequence = SEQUENCE,
                             .ids = ids,
                             .targets = targets,
                             .seed = 12};
    cr_assert_eq(tpt_train(&training, &one), TP_OK);
    for (training.ranks = 2; training.ranks <= 8; training.ranks *= 2) {
        cr_assert_eq(tpt_train(&training, &other), TP_OK);
        cr_assert(tpt_same_bits("initial values", other.initial, one.initial, TP_DTYPE_F32, one.elements));
        tpt_trained_free(&other);
    }
    for (int p = 0; p < one.params; p++) {
        bool projection =
            strstr(one.param[p].name, "proj.weight") != NULL || strstr(one.param[p].name, "down.weight") != NULL;
        bool matrix = strstr(one.param[p].name, "norm") == NULL && strstr(one.param[p].name, ".weight") != NULL;
        double square = 0.0;
        for (int64_t i = 0; i < one.param[p].elements; i++)
            square += pow(one.initial[one.param[p].at + i], 2);
        double spread = sqrt(square / (double)one.param[p].elements),
               expected = projection ? 0.02 / sqrt(2.0 * (double)desc.layers) : 0.02;
        if (matrix) /* the spread of n numbers is uncertain by 1/sqrt(2n): four of those */
            cr_assert_leq(fabs(spread / expected - 1.0), 4.0 / sqrt(2.0 * (double)one.param[p].elements), "%s: %g",
                          one.param[p].name, spread);
        for (int q = 0; q < p; q++) /* no two tensors alike */
            cr_assert(!matrix || one.param[q].elements != one.param[p].elements ||
                      memcmp(one.initial + one.param[q].at, one.initial + one.param[p].at, 64) != 0);
    }
    tpt_trained_free(&one);
}

/* ---- logits ------------------------------------------------------------------------------------------------------ */

typedef struct logits_case {
    const tp_model_desc *desc;
    float *logits, *values; /* [TOKENS, vocabulary]; in the order of the list */
    double loss[2];         /* with and without saved memory */
} logits_case;

static tp_status get_logits(tp_ctx *ctx, tp_model *model, logits_case *c, void *saved, const tp_pass *pass)
{
    tp_status status = tp_model_forward(ctx, model, pass, saved);
    double tokens;
    if (status == TP_OK)
        status = tp_model_loss(ctx, model, &c->loss[0], &tokens);
    tp_tensor logits;
    if (status == TP_OK)
        status = tp_model_logits(model, saved, pass, &logits);
    if (status != TP_OK)
        return status;
    tp_range mine = tp_shard_range(c->desc->vocabulary, tp_comm_size(tp_ctx_world(ctx)), tp_ctx_rank(ctx));
    for (int64_t t = 0; t < pass->tokens; t++)
        memcpy(c->logits + t * c->desc->vocabulary + mine.begin, (float *)logits.data + t * logits.stride[0],
               (size_t)(mine.end - mine.begin) * sizeof(float));
    status = tp_model_forward(ctx, model, pass, NULL);
    return status == TP_OK ? tp_model_loss(ctx, model, &c->loss[1], &tokens) : status;
}

static tp_status logits_main(tp_ctx *ctx, void *arg)
{
    logits_case *c = arg;
    int32_t ids[TOKENS], targets[TOKENS];
    tpt_make_batch(ids, targets, TOKENS, c->desc->vocabulary, 0);
    tp_pass pass = {.tokens = TOKENS, .sequences = SEQUENCES, .ids = ids, .targets = targets};
    tp_model *model;
    tp_status status = tp_model_create(ctx, c->desc, &model);
    if (status != TP_OK)
        return status;
    int count;
    tp_param *const *params = tp_model_params(model, &count);
    const float *values = c->values;
    for (int i = 0; i < count && status == TP_OK; i++) {
        status = tp_param_load(ctx, params[i], values, TP_DTYPE_F32, NULL);
        values += tp_param_elements(params[i]);
    }
    logits_case mine = {c->desc, c->logits, c->values, {0}};
    void *saved = tpt_allocate(tp_model_saved_bytes(model, &pass));
    if (status == TP_OK)
        status = get_logits(ctx, model, &mine, saved, &pass);
    if (tp_ctx_rank(ctx) == 0)
        memcpy(c->loss, mine.loss, sizeof mine.loss);
    free(saved);
    tp_model_destroy(model);
    return status;
}

Test(model, logits_agree_with_the_reference)
{
    tpt_reference reference;
    tpt_reference_init(&reference, &small);
    int32_t ids[TOKENS], targets[TOKENS];
    static const int64_t offsets[SEQUENCES + 1] = {0, 9, 18, 27, 36};
    tpt_make_batch(ids, targets, TOKENS, small.vocabulary, 0);
    tpt_trained names;
    tpt_training training = {
        .model = small, .ranks = 1, .sequences = SEQUENCES, .sequence = SEQUENCE, .ids = ids, .targets = targets};
    cr_assert_eq(tpt_train(&training, &names), TP_OK);
    float *values = tpt_new_normal(TP_DTYPE_F32, names.elements, 7, 0.15);
    double *flat = tpt_allocate((size_t)names.elements * sizeof(double)),
           *logits = tpt_allocate(TOKENS * 47 * sizeof(double));
    tpt_values_to_reference(&reference, &names, values, flat);
    tpt_reference_batch batch = {TOKENS, SEQUENCES, offsets, ids, targets};
    double loss = tpt_reference_loss(&reference, flat, &batch, 1.0, NULL, logits);
    for (int ranks = 1; ranks <= 4; ranks++) {
        logits_case c = {&small, tpt_array(TP_DTYPE_F32, TOKENS * 47), values, {0}};
        tp_run_options options = {.ranks = ranks, .ctx = {.threads = 1}};
        cr_assert_eq(tp_run_ranks(&options, logits_main, &c), TP_OK, "%s", tp_last_message());
        cr_assert(tpt_close_norm("logits", c.logits, TP_DTYPE_F32, logits, TOKENS * 47, 1e-5));
        cr_assert_leq(fabs(c.loss[0] - loss), 1e-5 * loss);
        cr_assert_eq(c.loss[0], c.loss[1], "saving changes the loss");
        free(c.logits);
    }
    free(flat);
    free(logits);
    free(values);
    tpt_trained_free(&names);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static tp_status expect_refused(tp_ctx *ctx, tp_model *model, const tp_pass *pass, const char *first,
                                const char *second)
{
    void *saved = tpt_allocate(tp_model_saved_bytes(model, &(tp_pass){.tokens = TOKENS, .sequences = SEQUENCES}));
    tp_status status = tp_model_forward(ctx, model, pass, saved);
    bool named = strstr(tp_last_message(), first) != NULL && strstr(tp_last_message(), second) != NULL;
    double sum, tokens;
    if (status != TP_ERR_ARGUMENT || !named)
        fprintf(stderr, "%s: %s\n", tp_status_name(status), tp_last_message());
    bool good = status == TP_ERR_ARGUMENT && named && tp_model_loss(ctx, model, &sum, &tokens) == TP_OK && sum == 0.0 &&
                tokens == 0.0;
    free(saved);
    return good ? TP_OK : TP_ERR_INTERNAL;
}

static tp_status refusals_main(tp_ctx *ctx, void *arg)
{
    (void)arg;
    int32_t ids[TOKENS], targets[TOKENS];
    tpt_make_batch(ids, targets, TOKENS, small.vocabulary, 0);
    tp_model *model;
    tp_status status = tp_model_create(ctx, &small, &model);
    if (status != TP_OK)
        return status;
    tp_pass pass = {.tokens = TOKENS, .sequences = SEQUENCES, .ids = ids, .targets = targets};
    int32_t good = ids[20];
    ids[20] = 47;
    status = expect_refused(ctx, model, &pass, "ids[20] is 47", "vocabulary 47");
    ids[20] = -1;
    if (status == TP_OK)
        status = expect_refused(ctx, model, &pass, "ids[20] is -1", "vocabulary 47");
    ids[20] = good;
    targets[35] = 47;
    if (status == TP_OK)
        status = expect_refused(ctx, model, &pass, "targets[35] is 47", "vocabulary 47");
    targets[35] = 0;
    pass.sequences = 1;
    if (status == TP_OK)
        status = expect_refused(ctx, model, &pass, "36 tokens", "positions 16");
    pass.sequences = 5;
    if (status == TP_OK)
        status = expect_refused(ctx, model, &pass, "tokens 36", "sequences 5");
    tp_model_destroy(model);
    return status;
}

Test(model, bad_passes_are_refused_on_all_ranks)
{
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        tp_run_options options = {.ranks = ranks, .ctx = {.threads = 1}};
        cr_assert_eq(tp_run_ranks(&options, refusals_main, NULL), TP_OK, "%s", tp_last_message());
    }
}

Test(model, bad_descriptions_allocate_nothing)
{
    tpt_counting counting = {0};
    tp_allocator allocator = tpt_counting_allocator(&counting);
    tp_ctx *ctx = new_ctx(&allocator);
    long long before = atomic_load(&counting.calls);
    tp_model_desc bad = small;
    bad.hidden = 25;
    tp_model *model;
    cr_assert_eq(tp_model_create(ctx, &bad, &model), TP_ERR_ARGUMENT);
    cr_assert_null(model);
    cr_assert_not_null(strstr(tp_ctx_message(ctx), "hidden 25"));
    cr_assert_eq(atomic_load(&counting.calls), before);
    tp_ctx_destroy(ctx);
    cr_assert(atomic_load(&counting.live) == 0 && atomic_load(&counting.other_sizes) == 0);
}

/* Everything that a step needs, with the nth allocation failing. */
static tp_status whole_life(const tp_allocator *allocator)
{
    int32_t ids[TOKENS], targets[TOKENS];
    tpt_make_batch(ids, targets, TOKENS, small.vocabulary, 0);
    tp_pass pass = {.tokens = TOKENS, .sequences = SEQUENCES, .ids = ids, .targets = targets};
    tp_ctx *ctx;
    tp_model *model = NULL;
    tp_optimizer *optimizer = NULL;
    tp_status status = tp_ctx_create(&(tp_ctx_desc){.threads = 1, .allocator = *allocator}, &ctx);
    if (status != TP_OK)
        return status;
    status = tp_model_create(ctx, &small, &model);
    int count = 0;
    tp_param *const *params = status == TP_OK ? tp_model_params(model, &count) : NULL;
    if (status == TP_OK)
        status = tp_params_init(ctx, params, count);
    if (status == TP_OK)
        status = tp_optimizer_create(ctx, &(tp_optimizer_desc){.kind = TP_OPTIMIZER_ADAMW}, params, count, &optimizer);
    void *saved = status == TP_OK ? tpt_allocate(tp_model_saved_bytes(model, &pass)) : NULL;
    if (status == TP_OK)
        status = tp_model_forward(ctx, model, &pass, saved);
    if (status == TP_OK)
        status = tp_model_backward(ctx, model, &pass, saved);
    if (status == TP_OK)
        status = tp_params_finish(ctx, params, count);
    if (status == TP_OK)
        status = tp_optimizer_step(ctx, optimizer, 1e-3f, NULL);
    free(saved);
    tp_optimizer_destroy(optimizer);
    tp_model_destroy(model);
    tp_ctx_destroy(ctx);
    return status;
}

Test(model, every_failing_allocation_is_reported_and_nothing_leaks)
{
    tpt_counting counting = {0};
    tp_allocator allocator = tpt_counting_allocator(&counting);
    cr_assert_eq(whole_life(&allocator), TP_OK, "%s", tp_last_message());
    cr_assert(atomic_load(&counting.live) == 0 && atomic_load(&counting.other_sizes) == 0);
    long long calls = atomic_load(&counting.calls);
    cr_assert_gt(calls, 50);
    for (long long n = 1; n <= calls; n++) {
        counting = (tpt_counting){.fail_at = n};
        tp_status status = whole_life(&allocator);
        cr_assert_eq(status, TP_ERR_MEMORY, "allocation %lld of %lld: %s", n, calls, tp_last_message());
        cr_assert(atomic_load(&counting.live) == 0 && atomic_load(&counting.other_sizes) == 0,
                  "allocation %lld of %lld leaks, or another size is given back", n, calls);
    }
}

/* ---- what training runs meet ------------------------------------------------------------------------------------- */

static tpt_training base_training(const int32_t *ids, const int32_t *targets)
{
    return (tpt_training){.model = small,
                          .ranks = 1,
                          .sequences = SEQUENCES,
                          .sequence = SEQUENCE,
                          .ids = ids,
                          .targets = targets,
                          .steps = 1,
                          .optimizer = {.kind = TP_OPTIMIZER_SGD}};
}

static void train(const tpt_training *training, tpt_trained *out)
{
    cr_assert_eq(tpt_train(training, out), TP_OK);
}

/* The gradient of a split batch is the gradient of the batch; each token weighs the same although microbatches have
 * unequal numbers. */
Test(model, microbatches_add_up)
{
    int32_t ids[TOKENS], targets[TOKENS];
    tpt_make_batch(ids, targets, TOKENS, small.vocabulary, 5);
    for (int t = 0; t < 8; t++)
        targets[t] = -1;
    tpt_training training = base_training(ids, targets);
    for (training.ranks = 1; training.ranks <= 2; training.ranks++) {
        tpt_trained whole, split;
        training.microbatch = SEQUENCES;
        train(&training, &whole);
        double *want = tpt_allocate((size_t)whole.elements * sizeof(double));
        tpt_to_f64(want, whole.grads, TP_DTYPE_F32, whole.elements);
        for (training.microbatch = 1; training.microbatch <= 2; training.microbatch++) {
            train(&training, &split);
            cr_assert_eq(split.loss[0], whole.loss[0]);
            cr_assert_eq(split.tokens[0], whole.tokens[0]);
            for (int p = 0; p < whole.params; p++)
                cr_assert(tpt_close_norm(whole.param[p].name, split.grads + whole.param[p].at, TP_DTYPE_F32,
                                         want + whole.param[p].at, whole.param[p].elements, 1e-5));
            tpt_trained_free(&split);
        }
        free(want);
        tpt_trained_free(&whole);
    }
}

/* Gradients are cleared between steps: with lr 0 the second step's are the first's. */
Test(model, steps_start_from_zero)
{
    int32_t ids[TOKENS], targets[TOKENS];
    tpt_make_batch(ids, targets, TOKENS, small.vocabulary, 5);
    tpt_training training = base_training(ids, targets);
    tpt_trained once, thrice;
    training.microbatch = 2;
    train(&training, &once);
    training.steps = 3;
    train(&training, &thrice);
    cr_assert(tpt_same_bits("gradients", thrice.grads, once.grads, TP_DTYPE_F32, once.elements));
    cr_assert(tpt_same_bits("values", thrice.values, once.initial, TP_DTYPE_F32, once.elements));
    cr_assert(thrice.loss[0] == once.loss[0] && thrice.loss[2] == once.loss[0] && thrice.norm[2] == once.norm[0]);
    tpt_trained_free(&once);
    tpt_trained_free(&thrice);
}

Test(model, nothing_to_learn)
{
    int32_t ids[TOKENS], targets[TOKENS], none[TOKENS];
    tpt_make_batch(ids, targets, TOKENS, small.vocabulary, 0);
    for (int t = 0; t < TOKENS; t++)
        none[t] = -1;
    tpt_training training = base_training(ids, none);
    training.microbatch = 1;
    training.lr = 1.0f;
    training.model.label_smoothing = 0.1f;
    for (training.ranks = 1; training.ranks <= 4; training.ranks *= 2) {
        tpt_trained trained;
        train(&training, &trained);
        cr_assert(trained.loss[0] == 0.0 && trained.tokens[0] == 0.0 && trained.norm[0] == 0.0f && !trained.skipped[0]);
        for (int64_t i = 0; i < trained.elements; i++)
            cr_assert_eq(trained.grads[i], 0.0f);
        cr_assert(tpt_same_bits("values", trained.values, trained.initial, TP_DTYPE_F32, trained.elements));
        tpt_trained_free(&trained);
    }
    /* One microbatch of four without targets: as if it were not there. */
    memcpy(none, targets, sizeof none);
    for (int t = 0; t < SEQUENCE; t++)
        none[t] = -1;
    tpt_trained with, without;
    training.ranks = 1;
    train(&training, &with);
    training.sequences = SEQUENCES - 1;
    training.ids += SEQUENCE;
    training.targets += SEQUENCE;
    train(&training, &without);
    cr_assert_eq(with.loss[0], without.loss[0]);
    cr_assert_eq(with.tokens[0], without.tokens[0]);
    for (int64_t i = 0; i < with.elements; i++) /* not bits: -0 + 0 */
        cr_assert_eq(with.grads[i], without.grads[i]);
    tpt_trained_free(&with);
    tpt_trained_free(&without);
}
