/* Head and loss as one module: what does not fit is refused, memory is optional, and logits are what the loss is made
 * of. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/comm.h>
#include <tp/model.h>

#include "core/context.h"
#include "support/data.h"
#include "support/tolerance.h"
#include "support/training.h"

enum { SEQUENCES = 2, SEQUENCE = 7, TOKENS = SEQUENCES * SEQUENCE, HIDDEN = 16, VOCABULARY = 29 };

static void check_head_refused(tp_ctx *ctx, const tp_linear_desc *desc, const tp_cross_entropy_desc *loss, float *total,
                               const char *text)
{
    tp_module module = {.self = ctx};
    tp_status status = tp_module_head(ctx, desc, loss, total, &module);
    cr_assert(status == TP_ERR_ARGUMENT || status == TP_ERR_DTYPE, "%s: %s", text, tp_status_name(status));
    cr_assert(module.table == NULL && module.self == NULL, "%s", text);
    cr_assert_not_null(strstr(tp_ctx_message(ctx), text), "not \"%s\": %s", text, tp_ctx_message(ctx));
    cr_assert_eq(tp_ctx_failure(ctx), TP_OK);
}

Test(head, what_does_not_fit_is_refused)
{
    static const tp_linear_desc good = {.name = "head",
                                        .kind = TP_LINEAR_COLUMN,
                                        .in_features = HIDDEN,
                                        .out_features = VOCABULARY,
                                        .dtype = TP_DTYPE_F32};
    static const tp_cross_entropy_desc loss = {.vocabulary = VOCABULARY}, other = {.vocabulary = VOCABULARY + 1},
                                       rough = {.vocabulary = VOCABULARY, .z_loss = -1};
    tp_ctx *ctx;
    float total[2];
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    tp_linear_desc row = good, integers = good;
    char text[96];
    row.kind = TP_LINEAR_ROW;
    integers.dtype = TP_DTYPE_I32;
    snprintf(text, sizeof text, "out_features is %d, vocabulary of the loss is %d", (int)VOCABULARY,
             (int)VOCABULARY + 1);
    check_head_refused(ctx, &row, &loss, total, "must be TP_LINEAR_COLUMN");
    check_head_refused(ctx, &good, &other, total, text);
    check_head_refused(ctx, &good, &rough, total, "z_loss is -1");
    check_head_refused(ctx, &good, &loss, NULL, "total is NULL");
    check_head_refused(ctx, &integers, &loss, total, "i32");
    tp_ctx_destroy(ctx);
}

/* The same loss with memory for a backward and without, where scratch is free again; and no backward before a
 * forward. */
Test(head, with_and_without_memory)
{
    static const tp_linear_desc desc = {.name = "head",
                                        .kind = TP_LINEAR_COLUMN,
                                        .in_features = HIDDEN,
                                        .out_features = VOCABULARY,
                                        .dtype = TP_DTYPE_F32};
    static const tp_cross_entropy_desc loss = {.vocabulary = VOCABULARY, .z_loss = 0.01f};
    enum { ROWS = 3 };
    const tp_pass pass = {.tokens = ROWS, .targets = (int32_t[]){1, -1, 3}};
    tp_ctx *ctx;
    tp_param *weight;
    float total[2] = {0}, kept[2], x[ROWS * HIDDEN], dx[ROWS * HIDDEN];
    tp_module module;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    cr_assert_eq(tp_module_head(ctx, &desc, &loss, total, &module), TP_OK, "%s", tp_ctx_message(ctx));
    cr_assert_eq(module.table->params(module.self, &weight, 1), 1);
    cr_assert_eq(tp_params_init(ctx, &weight, 1), TP_OK);
    tpt_fill_normal(x, TP_DTYPE_F32, ROWS * HIDDEN, 5, 4.0);
    void *saved = tpt_allocate(module.table->saved_bytes(module.self, &pass));
    const tp_tensor in = tp_tensor_2d(x, TP_DTYPE_F32, ROWS, HIDDEN);
    const tp_io io = {.out = tp_tensor_2d(dx, TP_DTYPE_F32, ROWS, HIDDEN)};
    cr_assert_eq(module.table->backward(ctx, module.self, &pass, &io, saved), TP_ERR_STATE, "%s", tp_ctx_message(ctx));
    cr_assert_eq(tp_ctx_failure(ctx), TP_OK);
    const tp_pass wrong = {.tokens = ROWS, .targets = (int32_t[]){1, VOCABULARY, 3}};
    const size_t bytes = module.table->saved_bytes(module.self, &pass);
    memset(saved, 0x3c, bytes);
    cr_assert_eq(module.table->forward(ctx, module.self, &wrong, in, tp_tensor_none(), saved), TP_ERR_ARGUMENT);
    for (size_t i = 0; i < bytes; i++)
        cr_assert_eq(((const char *)saved)[i], 0x3c, "a refused forward wrote byte %zu", i);
    cr_assert_gt(module.table->delayed_bytes(module.self, &pass), 0); /* its address tells passes apart */
    const tpi_arena_mark before = tpi_arena_get_mark(&ctx->scratch);
    cr_assert_eq(module.table->forward(ctx, module.self, &pass, in, tp_tensor_none(), NULL), TP_OK, "%s",
                 tp_ctx_message(ctx));
    memcpy(kept, total, sizeof total);
    memset(total, 0, sizeof total);
    cr_assert_eq(module.table->forward(ctx, module.self, &pass, in, tp_tensor_none(), saved), TP_OK, "%s",
                 tp_ctx_message(ctx));
    const tpi_arena_mark after = tpi_arena_get_mark(&ctx->scratch);
    cr_assert(after.chunk == before.chunk && after.used == before.used);
    cr_assert_eq(memcmp(kept, total, sizeof total), 0);
    cr_assert(total[0] > 0.0f && total[1] == 2.0f);
    cr_assert_eq(module.table->backward(ctx, module.self, &pass, &io, saved), TP_OK, "%s", tp_ctx_message(ctx));
    module.table->destroy(module.self);
    free(saved);
    tp_ctx_destroy(ctx);
}

/* ---- logits ---- */

typedef struct logits_case {
    float whole[TOKENS * VOCABULARY];
    int32_t ids[TOKENS], targets[TOKENS];
    double loss;
} logits_case;

static tp_status copy_logits(tp_ctx *ctx, logits_case *c, const tp_model *model, const tp_pass *pass, const void *saved)
{
    tp_tensor own;
    tp_range mine = tp_shard_range(VOCABULARY, tp_comm_size(tp_ctx_world(ctx)), tp_ctx_rank(ctx));
    tp_status status = tp_model_logits(model, saved, pass, &own);
    if (status != TP_OK)
        return status;
    if (own.dtype != TP_DTYPE_F32 || own.shape[0] != TOKENS || own.shape[1] != mine.end - mine.begin)
        return TP_ERR_SHAPE;
    for (int64_t t = 0; t < TOKENS; t++)
        memcpy(c->whole + t * VOCABULARY + mine.begin, (const float *)own.data + t * own.stride[0],
               (size_t)own.shape[1] * sizeof(float));
    return TP_OK;
}

static tp_status logits_main(tp_ctx *ctx, void *arg)
{
    static const tp_model_desc desc = {
        .family = TP_MODEL_GPT2, .layers = 1, .hidden = HIDDEN, .heads = 4, .ffn = 23, .vocabulary = VOCABULARY,
        .positions = SEQUENCE, .dtype = TP_DTYPE_F32};
    logits_case *c = arg;
    tp_model *model;
    tp_tensor none;
    int count;
    double loss = 0, tokens = 0;
    tp_status status = tp_model_create(ctx, &desc, &model);
    if (status != TP_OK)
        return status;
    const tp_pass pass = {.tokens = TOKENS, .sequences = SEQUENCES, .ids = c->ids, .targets = c->targets};
    tp_param *const *params = tp_model_params(model, &count);
    void *saved = tpt_allocate(tp_model_saved_bytes(model, &pass));
    if (tp_model_logits(model, saved, &pass, &none) != TP_ERR_STATE) /* no forward yet */
        status = TP_ERR_INTERNAL;
    if (status == TP_OK)
        status = tp_params_init(ctx, params, count);
    if (status == TP_OK)
        status = tp_model_forward(ctx, model, &pass, saved);
    if (status == TP_OK)
        status = tp_model_loss(ctx, model, &loss, &tokens);
    if (status == TP_OK)
        status = copy_logits(ctx, c, model, &pass, saved);
    if (tp_ctx_rank(ctx) == 0)
        c->loss = loss;
    free(saved);
    tp_model_destroy(model);
    return status;
}

/* They are what the loss is made of, and the same on all layouts. */
Test(head, logits_of_a_model)
{
    logits_case one = {.loss = 0}, more = {.loss = 0};
    tpt_make_batch(one.ids, one.targets, TOKENS, VOCABULARY, 2);
    one.targets[3] = -1;
    tp_run_options options = {.ranks = 1, .ctx = {.threads = 1, .seed = 8}};
    cr_assert_eq(tp_run_ranks(&options, logits_main, &one), TP_OK, "%s", tp_last_message());
    double loss = 0, size = 0;
    for (int t = 0; t < TOKENS; t++) {
        double sum = 0;
        for (int v = 0; v < VOCABULARY; v++)
            sum += exp((double)one.whole[t * VOCABULARY + v]);
        if (one.targets[t] >= 0)
            loss += log(sum) - (double)one.whole[t * VOCABULARY + one.targets[t]];
        size += log(sum) + 1;
    }
    cr_assert_leq(fabs(one.loss - loss), tpt_tolerance(TP_DTYPE_F32, VOCABULARY + TOKENS, size), "%g, expected %g",
                  one.loss, loss);
    memcpy(more.ids, one.ids, sizeof one.ids);
    memcpy(more.targets, one.targets, sizeof one.targets);
    for (options.ranks = 2; options.ranks <= 4; options.ranks *= 2) {
        memset(more.whole, 0, sizeof more.whole);
        cr_assert_eq(tp_run_ranks(&options, logits_main, &more), TP_OK, "%s", tp_last_message());
        cr_assert(tpt_same_bits("logits", more.whole, one.whole, TP_DTYPE_F32, TOKENS * VOCABULARY));
    }
}
