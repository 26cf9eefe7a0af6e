/* Gradients between tp_params_begin and tp_params_finish: the values that tp_params_zero_grad gives, whatever was in
 * their memory before. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tp/tp.h>

#include "../support/data.h"
#include "../support/training.h"

enum { SEQUENCES = 4, SEQUENCE = 11, TOKENS = SEQUENCES * SEQUENCE };

static void train_both_ways(tp_model_desc model, int64_t microbatch, uint64_t lane_delay_seed)
{
    int32_t ids[TOKENS], targets[TOKENS];
    tpt_make_batch(ids, targets, TOKENS, model.vocabulary, 6);
    tpt_training training = {.model = model,
                             .ranks = 2,
                             .sequences = SEQUENCES,
                             .sequence = SEQUENCE,
                             .microbatch = microbatch,
                             .ids = ids,
                             .targets = targets,
                             .steps = 3,
                             .lr = 1e-2f,
                             .optimizer = {.kind = TP_OPTIMIZER_ADAMW, .decay = 0.1f, .clip_norm = 1.0f},
                             .seed = 17,
                             .lane_delay_seed = lane_delay_seed};
    tpt_trained begun, cleared;
    cr_assert_eq(tpt_train(&training, &begun), TP_OK);
    training.zero_grad = true;
    cr_assert_eq(tpt_train(&training, &cleared), TP_OK);
    cr_assert(tpt_trained_same("begun", &begun, &cleared));
    tpt_trained_free(&begun);
    tpt_trained_free(&cleared);
}

Test(begin, steps_have_the_bits_of_cleared_gradients)
{
    tp_model_desc model = {
        .family = TP_MODEL_GPT2, .layers = 2, .hidden = 24, .heads = 4, .ffn = 37, .vocabulary = 61, .positions = 16,
        .dtype = TP_DTYPE_BF16};
    for (int tied = -1; tied <= 1; tied += 2)
        for (int64_t microbatch = 1; microbatch <= SEQUENCES; microbatch *= 2) {
            model.tied = tied;
            model.sequence_parallel = microbatch == 2;
            train_both_ways(model, microbatch, microbatch == 4 ? 5 : 0);
        }
}

/* ---- a tied table alone ---- */

enum { VOCABULARY = 53, FEATURES = 5, IDS = 9, STEPS = 4 };

/* Other rows in every step; some of the ones before stay away. */
static int32_t id_of(int step, int token)
{
    return (int32_t)((step * 11 + token * token * (step % 2 + 1)) % VOCABULARY);
}

static tp_status make_table(tp_ctx *ctx, tp_embedding **layer, tp_param **table)
{
    const tp_embedding_desc desc = {
        .name = "e", .vocabulary = VOCABULARY, .features = FEATURES, .dtype = TP_DTYPE_F32, .tied = true};
    tp_status status = tp_embedding_create(ctx, &desc, layer);
    if (status == TP_OK)
        tp_embedding_params(*layer, table, 1);
    return status;
}

static tp_status one_step(tp_ctx *ctx, const tp_embedding *layer, tp_param *table, int step, float *whole)
{
    int32_t ids[IDS];
    float dy[IDS * FEATURES];
    for (int i = 0; i < IDS; i++)
        ids[i] = id_of(step, i);
    for (int i = 0; i < IDS * FEATURES; i++)
        dy[i] = (float)(step * 100 + i);
    tp_pass pass = {.tokens = IDS, .ids = ids};
    memset(table->grad.data, 0xff, tp_tensor_bytes(table->grad));
    tp_status status = tp_params_begin(ctx, &table, 1);
    if (status == TP_OK)
        status = tp_embedding_backward(ctx, layer, &pass, tp_tensor_2d(dy, TP_DTYPE_F32, IDS, FEATURES));
    if (status == TP_OK)
        status = tp_params_finish(ctx, &table, 1);
    return status == TP_OK ? tp_param_gather(ctx, table, 1, whole) : status;
}

static bool has_step(int step, const float *whole)
{
    float want[VOCABULARY * FEATURES] = {0};
    for (int i = 0; i < IDS; i++)
        for (int f = 0; f < FEATURES; f++)
            want[id_of(step, i) * FEATURES + f] += (float)(step * 100 + i * FEATURES + f);
    return tpt_same_bits("gradient of the table", whole, want, TP_DTYPE_F32, VOCABULARY * FEATURES);
}

/* The head never ran: its gradient counts as zero although it was not written. What is in grad_tied is the last step's
 * alone, also when the caller wrote there before. */
static tp_status steps_of_a_table(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tp_embedding *layer;
    tp_param *table;
    float whole[VOCABULARY * FEATURES];
    tp_status status = make_table(ctx, &layer, &table);
    if (status != TP_OK)
        return status;
    for (int step = 0; step < STEPS && status == TP_OK; step++) {
        if (step == 2) {
            status = tp_params_zero_grad(ctx, &table, 1);
            memset(table->grad_tied.data, 0x41, tp_tensor_bytes(table->grad_tied));
        }
        if (status == TP_OK)
            status = one_step(ctx, layer, table, step, whole);
        if (status == TP_OK && !has_step(step, whole))
            status = TP_ERR_NUMERIC;
    }
    tp_embedding_destroy(layer);
    return status;
}

Test(begin, a_tied_table_gets_the_rows_of_its_step)
{
    for (int ranks = 1; ranks <= 5; ranks++)
        cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = ranks}, steps_of_a_table, NULL), TP_OK, "tp %d: %s", ranks,
                     tp_last_message());
}

/* What the caller adds by itself after tp_params_zero_grad counts, in whatever rows. */
static tp_status written_by_hand(tp_ctx *ctx, void *arg)
{
    tp_embedding *layer;
    tp_param *table;
    float whole[VOCABULARY * FEATURES];
    tp_status status = make_table(ctx, &layer, &table);
    if (status != TP_OK)
        return status;
    status = one_step(ctx, layer, table, 1, whole);
    if (status == TP_OK)
        status = tp_params_zero_grad(ctx, &table, 1);
    for (int64_t i = 0; i < tp_tensor_elements(table->grad_tied); i++)
        ((float *)table->grad_tied.data)[i] = 3.0f;
    if (status == TP_OK)
        status = tp_params_finish(ctx, &table, 1);
    if (status == TP_OK)
        status = tp_param_gather(ctx, table, 1, whole);
    for (int i = 0; i < VOCABULARY * FEATURES; i++)
        *(bool *)arg = *(bool *)arg && whole[i] == 3.0f;
    tp_embedding_destroy(layer);
    return status;
}

/* A rank's main that clears its bool where something is wrong. */
static void check_alone(tp_status (*rank_main)(tp_ctx *, void *))
{
    bool right = true;
    cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = 1}, rank_main, &right), TP_OK, "%s", tp_last_message());
    cr_assert(right);
}

Test(begin, after_zero_grad_all_rows_are_added)
{
    check_alone(written_by_hand);
}

/* The same for a weight that was to be overwritten: after tp_params_zero_grad it is the caller's again. */
static tp_status weight_by_hand(tp_ctx *ctx, void *arg)
{
    enum { IN = 7, OUT = 13 };
    tp_linear_desc desc = {
        .name = "l", .kind = TP_LINEAR_COLUMN, .in_features = IN, .out_features = OUT, .dtype = TP_DTYPE_F32};
    tp_linear *layer;
    tp_param *weight;
    float whole[OUT * IN];
    tp_status status = tp_linear_create(ctx, &desc, &layer);
    if (status != TP_OK)
        return status;
    tp_linear_params(layer, &weight, 1);
    status = tp_params_begin(ctx, &weight, 1);
    if (status == TP_OK)
        status = tp_params_zero_grad(ctx, &weight, 1);
    for (int i = 0; i < OUT * IN; i++) {
        *(bool *)arg = *(bool *)arg && ((float *)weight->grad.data)[i] == 0.0f;
        ((float *)weight->grad.data)[i] = (float)i;
    }
    if (status == TP_OK)
        status = tp_params_finish(ctx, &weight, 1);
    if (status == TP_OK)
        status = tp_param_gather(ctx, weight, 1, whole);
    for (int i = 0; i < OUT * IN; i++)
        *(bool *)arg = *(bool *)arg && whole[i] == (float)i;
    tp_linear_destroy(layer);
    return status;
}

Test(begin, after_zero_grad_a_weight_is_added_to)
{
    check_alone(weight_by_hand);
}

/* ---- no gradient at all ---- */

static tp_status nothing_was_added(tp_ctx *ctx, void *arg)
{
    enum { IN = 7, OUT = 13 };
    tp_linear_desc desc = {.name = "l", .kind = TP_LINEAR_COLUMN, .in_features = IN, .out_features = OUT,
                           .dtype = TP_DTYPE_F32, .bias = true};
    tp_linear *layer;
    tp_param *params[2];
    float norm = NAN, weight[OUT * IN];
    tp_status status = tp_linear_create(ctx, &desc, &layer);
    if (status != TP_OK)
        return status;
    int count = tp_linear_params(layer, params, 2);
    for (int way = 0; way < 3 && status == TP_OK; way++) {
        for (int i = 0; i < count; i++)
            memset(params[i]->grad.data, 0xff, tp_tensor_bytes(params[i]->grad));
        status = tp_params_begin(ctx, params, count);
        if (status == TP_OK && way == 0)
            status = tp_params_finish(ctx, params, count);
        if (status == TP_OK && way == 1)
            status = tp_params_grad_norm(ctx, params, count, &norm);
        if (status == TP_OK)
            status = tp_param_gather(ctx, params[0], 1, weight);
        for (int i = 0; i < OUT * IN; i++)
            *(bool *)arg = *(bool *)arg && weight[i] == 0.0f;
        *(bool *)arg = *(bool *)arg && (way != 1 || norm == 0.0f);
    }
    tp_linear_destroy(layer);
    return status;
}

Test(begin, a_weight_without_a_gradient_has_zeros)
{
    bool right = true;
    cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = 1}, nothing_was_added, &right), TP_OK, "%s",
                 tp_last_message());
    cr_assert(right);
}
