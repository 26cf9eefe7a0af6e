/* Faults that trainers have had in the field, tried on whole models: what a layout must not change about vocabularies,
 * masks, initial values and states, and what models in one process must not share. */
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/trainer.h>
#include <unistd.h>

#include "support/data.h"
#include "support/text.h"
#include "support/tolerance.h"
#include "support/training.h"

enum { MOST_TOKENS = 64 };

static const tp_model_desc t0 = {.family = TP_MODEL_GPT2,
                                 .layers = 2,
                                 .hidden = 64,
                                 .heads = 4,
                                 .ffn = 256,
                                 .vocabulary = 128,
                                 .positions = 32,
                                 .dtype = TP_DTYPE_F32};

static const tp_model_desc t1 = {.family = TP_MODEL_LLAMA,
                                 .layers = 4,
                                 .hidden = 64,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .ffn = 128,
                                 .vocabulary = 128,
                                 .positions = 32,
                                 .dtype = TP_DTYPE_F32};

typedef struct batch {
    int32_t ids[MOST_TOKENS], targets[MOST_TOKENS];
} batch;

static tpt_training training_of(const tp_model_desc *desc, batch *b, int64_t sequences, int64_t sequence)
{
    tpt_make_batch(b->ids, b->targets, sequences * sequence, desc->vocabulary, 7);
    return (tpt_training){.model = *desc,
                          .ranks = 1,
                          .sequences = sequences,
                          .sequence = sequence,
                          .ids = b->ids,
                          .targets = b->targets,
                          .steps = 1,
                          .lr = 1e-2f,
                          .optimizer = {.kind = TP_OPTIMIZER_ADAMW, .decay = 0.1f},
                          .seed = 1234};
}

static void train(const tpt_training *training, tpt_trained *out)
{
    cr_assert_eq(tpt_train(training, out), TP_OK);
}

/* ---- O04: vocabularies that divide by nothing -------------------------------------------------------------------- */

static void check_vocabulary(int64_t vocabulary)
{
    batch b;
    tp_model_desc desc = t0;
    desc.vocabulary = vocabulary;
    desc.hidden = 16;
    desc.heads = 8;
    desc.ffn = 32;
    desc.layers = 1;
    tpt_trained one, other, again;
    tpt_training training = training_of(&desc, &b, 1, 16);
    b.ids[3] = b.targets[5] = (int32_t)vocabulary - 1;
    train(&training, &one);
    cr_assert_eq(one.param[0].elements, vocabulary * 16); /* the rows that there are, and no more */
    for (training.ranks = 2; training.ranks <= 8; training.ranks *= 2) {
        train(&training, &other);
        cr_assert(tpt_trained_same("vocabulary", &other, &one));
        /* What two ranks bring together, others take apart. */
        tpt_training reload = training;
        reload.values = other.values;
        reload.steps = 0;
        for (reload.ranks = 1; reload.ranks <= 8; reload.ranks *= 2) {
            train(&reload, &again);
            cr_assert(tpt_same_bits("reloaded", again.values, other.values, TP_DTYPE_F32, other.elements));
            tpt_trained_free(&again);
        }
        tpt_trained_free(&other);
    }
    tpt_trained_free(&one);
}

Test(faults_state, vocabularies_are_not_padded, .timeout = 120)
{
    check_vocabulary(50257);
#ifndef TPT_SANITIZED
    check_vocabulary(65535);
#endif
}

/* ---- O20: dropout ------------------------------------------------------------------------------------------------ */

enum { MASK_TOKENS = 512, MASK_HEADS = 8, MASK_DIM = 2 };

typedef struct mask_case {
    bool sequence_parallel;
    float *core; /* [MASK_TOKENS, MASK_HEADS]: what each head keeps of each row's probabilities */
} mask_case;

/* Queries and keys of 0 and values of 1: the output of a head counts the probabilities that are kept. */
static tp_status mask_main(tp_ctx *ctx, void *arg)
{
    const mask_case *c = arg;
    tp_attention_desc desc = {.name = "a",
                              .hidden = MASK_HEADS * MASK_DIM,
                              .heads = MASK_HEADS,
                              .dtype = TP_DTYPE_F32,
                              .bias = true,
                              .probability_dropout = 0.5f,
                              .sequence_parallel = c->sequence_parallel};
    tp_pass pass = {.tokens = MASK_TOKENS};
    tp_range rows = tp_pass_rows(ctx, &pass, c->sequence_parallel);
    tp_attention *layer;
    tp_param *params[4];
    tp_status status = tp_attention_create(ctx, &desc, &layer);
    if (status != TP_OK)
        return status;
    cr_assert_eq(tp_attention_params(layer, params, 4), 4);
    float *zeros = tpt_array(TP_DTYPE_F32, 3 * desc.hidden * desc.hidden),
          *bias = tpt_array(TP_DTYPE_F32, 3 * desc.hidden);
    for (int64_t i = 2 * desc.hidden; i < 3 * desc.hidden; i++)
        bias[i] = 1.0f;
    for (int i = 0; i < 4 && status == TP_OK; i++)
        status = tp_param_load(ctx, params[i], strstr(params[i]->name, "qkv.bias") != NULL ? bias : zeros, TP_DTYPE_F32,
                               NULL);
    tp_attention_saved saved = {.bytes = tp_attention_saved_bytes(layer, &pass)};
    saved.memory = tpt_allocate(saved.bytes);
    tp_tensor x = tp_tensor_2d(tpt_array(TP_DTYPE_F32, MASK_TOKENS * desc.hidden), TP_DTYPE_F32, rows.end - rows.begin,
                               desc.hidden);
    tp_tensor y = tp_tensor_2d(tpt_array(TP_DTYPE_F32, MASK_TOKENS * desc.hidden), TP_DTYPE_F32, rows.end - rows.begin,
                               desc.hidden);
    if (status == TP_OK)
        status = tp_attention_forward(ctx, layer, &pass, &(tp_io){.in = x, .out = y}, &saved);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    tp_range heads = tp_shard_range(MASK_HEADS, tp_comm_size(tp_ctx_world(ctx)), tp_ctx_rank(ctx));
    for (int64_t t = 0; t < MASK_TOKENS && status == TP_OK; t++)
        for (int64_t h = heads.begin; h < heads.end; h++)
            c->core[h * MASK_TOKENS + t] =
                ((float *)saved.core.data)[t * saved.core.stride[0] + (h - heads.begin) * MASK_DIM];
    free(zeros), free(bias), free(saved.memory), free(x.data), free(y.data);
    tp_attention_destroy(layer);
    return status;
}

Test(faults_state, attention_masks_differ_between_heads_not_layouts)
{
    mask_case one = {.core = tpt_array(TP_DTYPE_F32, MASK_TOKENS * MASK_HEADS)}, other = one;
    other.core = tpt_array(TP_DTYPE_F32, MASK_TOKENS * MASK_HEADS);
    cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = 1, .ctx = {.seed = 5}}, mask_main, &one), TP_OK, "%s",
                 tp_last_message());
    double kept = 0.0, drawn = 0.0;
    for (int h = 0; h < MASK_HEADS; h++)
        for (int t = 0; t < MASK_TOKENS; t++) {
            kept += one.core[h * MASK_TOKENS + t] * (t + 1) / 2.0; /* kept ones count twice */
            drawn += t + 1;
        }
    cr_assert_gt(drawn, 1e6);
    cr_assert_leq(fabs(kept / drawn - 0.5), 0.002, "keep rate %g", kept / drawn);
    for (int h = 1; h < MASK_HEADS; h++)
        cr_assert_neq(memcmp(one.core, one.core + h * MASK_TOKENS, MASK_TOKENS * sizeof(float)), 0,
                      "head %d has the mask of head 0", h);
    for (int ranks = 2; ranks <= 4; ranks++)
        for (int parallel = 0; parallel < 2; parallel++) {
            other.sequence_parallel = parallel != 0;
            tp_run_options options = {.ranks = ranks, .ctx = {.threads = 1, .seed = 5}};
            cr_assert_eq(tp_run_ranks(&options, mask_main, &other), TP_OK, "%s", tp_last_message());
            cr_assert(tpt_same_bits("masks", other.core, one.core, TP_DTYPE_F32, MASK_TOKENS * MASK_HEADS));
        }
    free(one.core);
    free(other.core);
}

/* ---- O44: what models in one process share: nothing -------------------------------------------------------------- */

typedef struct side_work {
    tpt_training training;
    tpt_trained trained;
    tp_status status;
    pthread_t thread;
} side_work;

static void *side_main(void *arg)
{
    side_work *work = arg;
    work->status = tpt_train(&work->training, &work->trained);
    return NULL;
}

/* O20, O44: models with other seeds, dtypes and layouts, all training at once in one process, each as if it were
 * alone. */
Test(faults_state, models_side_by_side)
{
    enum { MODELS = 3 };
    batch b[MODELS];
    side_work alone[MODELS], together[MODELS];
    for (int i = 0; i < MODELS; i++) {
        tp_model_desc desc = i == 1 ? t1 : t0;
        desc.dropout = 0.1f * (float)i;
        desc.dtype = i == 0 ? TP_DTYPE_BF16 : TP_DTYPE_F32;
        desc.sequence_parallel = i == 1;
        alone[i] = (side_work){.training = training_of(&desc, &b[i], 2, 32)};
        alone[i].training.ranks = i + 1;
        alone[i].training.seed = (uint64_t)i * 77;
        alone[i].training.steps = 6;
        together[i] = alone[i];
        side_main(&alone[i]);
        cr_assert_eq(alone[i].status, TP_OK);
    }
    for (int i = 0; i < MODELS; i++)
        cr_assert_eq(pthread_create(&together[i].thread, NULL, side_main, &together[i]), 0);
    for (int i = 0; i < MODELS; i++)
        pthread_join(together[i].thread, NULL);
    for (int i = 0; i < MODELS; i++) {
        cr_assert_eq(together[i].status, TP_OK);
        cr_expect(tpt_trained_same("beside others", &together[i].trained, &alone[i].trained));
        tpt_trained_free(&alone[i].trained);
        tpt_trained_free(&together[i].trained);
    }
}

/* O22, O44: ranks that begin in another order, and one that does other things on the way, change nothing. */
typedef struct order_case {
    tp_world *world;
    batch b;
    bool reverse; /* the last rank comes first, and rank 0 reads a file and draws numbers for itself */
    double loss;
    float norm;
} order_case;

typedef struct order_rank {
    order_case *c;
    int rank;
    tp_status status;
    pthread_t thread;
} order_rank;

/* Another model of this rank alone, with dropout, and a file. */
static tp_status distract(void)
{
    tp_data *data = tpt_open_text(100);
    tp_ctx *ctx;
    tp_model *model;
    tp_status status = tp_ctx_create(&(tp_ctx_desc){.threads = 1, .seed = 8}, &ctx);
    if (status != TP_OK)
        return status;
    tp_model_desc desc = t0;
    desc.dropout = 0.3f;
    status = tp_model_create(ctx, &desc, &model);
    int32_t ids[8], targets[8];
    int count;
    if (status == TP_OK)
        status = tp_params_init(ctx, tp_model_params(model, &count), 5);
    if (status == TP_OK)
        status = tp_data_read(data, 3, 8, ids, targets);
    if (status == TP_OK)
        status = tp_model_forward(ctx, model, &(tp_pass){.tokens = 8, .ids = ids, .targets = targets, .step = 4}, NULL);
    tp_model_destroy(model);
    tp_ctx_destroy(ctx);
    tp_data_close(data);
    return status;
}

static tp_status order_pass(tp_ctx *ctx, tp_model *model, order_case *c)
{
    tp_pass pass = {.tokens = 32, .ids = c->b.ids, .targets = c->b.targets, .step = 3};
    int count;
    tp_param *const *params = tp_model_params(model, &count);
    void *saved = tpt_allocate(tp_model_saved_bytes(model, &pass));
    tp_status status = tp_params_init(ctx, params, count);
    if (status == TP_OK)
        status = tp_params_zero_grad(ctx, params, count);
    if (status == TP_OK)
        status = tp_model_forward(ctx, model, &pass, saved);
    if (status == TP_OK && c->reverse && tp_ctx_rank(ctx) == 0)
        status = distract();
    if (status == TP_OK)
        status = tp_model_backward(ctx, model, &pass, saved);
    if (status == TP_OK)
        status = tp_params_finish(ctx, params, count);
    float norm;
    double loss, tokens;
    if (status == TP_OK)
        status = tp_params_grad_norm(ctx, params, count, &norm);
    if (status == TP_OK)
        status = tp_model_loss(ctx, model, &loss, &tokens);
    if (status == TP_OK && tp_ctx_rank(ctx) == 0) {
        c->norm = norm;
        c->loss = loss;
    }
    free(saved);
    return status;
}

static void *order_main(void *arg)
{
    order_rank *r = arg;
    usleep(r->c->reverse ? (3 - (unsigned)r->rank) * 3000 : 0);
    tp_ctx *ctx;
    tp_ctx_desc desc = {.threads = 1, .seed = 6, .world = r->c->world, .rank = r->rank, .timeout_ms = 60000};
    r->status = tp_ctx_create(&desc, &ctx);
    if (r->status != TP_OK)
        return NULL;
    tp_model_desc model_desc = t0;
    model_desc.dropout = 0.2f;
    model_desc.sequence_parallel = true;
    tp_model *model;
    r->status = tp_model_create(ctx, &model_desc, &model);
    if (r->status == TP_OK) {
        r->status = order_pass(ctx, model, r->c);
        tp_model_destroy(model);
    }
    tp_ctx_destroy(ctx);
    return NULL;
}

static void run_in_order(order_case *c)
{
    order_rank ranks[4];
    tpt_make_batch(c->b.ids, c->b.targets, 32, t0.vocabulary, 5);
    cr_assert_eq(tp_world_create_threads(&(tp_world_desc){.ranks = 4, .timeout_ms = 60000}, &c->world), TP_OK);
    for (int i = 0; i < 4; i++) {
        int rank = c->reverse ? 3 - i : i;
        ranks[rank] = (order_rank){.c = c, .rank = rank};
        cr_assert_eq(pthread_create(&ranks[rank].thread, NULL, order_main, &ranks[rank]), 0);
    }
    for (int rank = 0; rank < 4; rank++)
        pthread_join(ranks[rank].thread, NULL);
    for (int rank = 0; rank < 4; rank++)
        cr_assert_eq(ranks[rank].status, TP_OK, "rank %d: %s", rank, tp_status_name(ranks[rank].status));
    tp_world_destroy(c->world);
}

Test(faults_state, the_order_of_ranks_does_not_matter)
{
    order_case forward = {0}, reverse = {.reverse = true};
    run_in_order(&forward);
    run_in_order(&reverse);
    cr_assert(forward.loss == reverse.loss && forward.norm == reverse.norm && forward.norm > 0.0f);
}
