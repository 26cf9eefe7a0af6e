/* Dropout of attention's probabilities does not depend on how a batch is split into passes. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <tp/tp.h>

#include "../support/data.h"

enum { SEQUENCES = 4, LENGTH = 5, TOKENS = SEQUENCES * LENGTH, HIDDEN = 16, FIRST = 40 };

typedef struct outputs {
    float y[TOKENS * HIDDEN], dx[TOKENS * HIDDEN];
} outputs;

typedef struct split_run {
    tp_attention *layer;
    float *x, *dy;
} split_run;

/* Forward and backward of `sequences` sequences from `first` on, as one pass. */
static tp_status run_pass(tp_ctx *ctx, const split_run *run, int64_t first, int64_t sequences, outputs *out)
{
    int64_t tokens = sequences * LENGTH, row = first * LENGTH;
    tp_pass pass = {.tokens = tokens, .sequences = sequences, .step = 5, .first_token = FIRST + row};
    tp_io forward = {.in = tp_tensor_2d(run->x + row * HIDDEN, TP_DTYPE_F32, tokens, HIDDEN),
                     .out = tp_tensor_2d(out->y + row * HIDDEN, TP_DTYPE_F32, tokens, HIDDEN)};
    tp_io backward = {.in = tp_tensor_2d(run->dy + row * HIDDEN, TP_DTYPE_F32, tokens, HIDDEN),
                      .out = tp_tensor_2d(out->dx + row * HIDDEN, TP_DTYPE_F32, tokens, HIDDEN)};
    size_t bytes = tp_attention_saved_bytes(run->layer, &pass);
    tp_attention_saved saved = {.memory = tpt_allocate(bytes), .bytes = bytes};
    void *memory = saved.memory;
    tp_status status = tp_attention_forward(ctx, run->layer, &pass, &forward, &saved);
    if (status == TP_OK)
        status = tp_attention_backward(ctx, run->layer, &pass, &backward, &saved);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    free(memory);
    return status;
}

static tp_status run_split(tp_ctx *ctx, const split_run *run, int64_t sequences, outputs *out)
{
    tp_status status = TP_OK;
    for (int64_t first = 0; first < SEQUENCES && status == TP_OK; first += sequences)
        status = run_pass(ctx, run, first, sequences, out);
    return status;
}

static tp_status compare_splits(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tp_attention_desc desc = {.name = "a",
                              .hidden = HIDDEN,
                              .heads = 4,
                              .kv_heads = 2,
                              .dtype = TP_DTYPE_F32,
                              .probability_dropout = 0.25f,
                              .init_std = 0.3f};
    split_run run;
    tp_status status = tp_attention_create(ctx, &desc, &run.layer);
    if (status != TP_OK)
        return status;
    tp_param *params[4];
    status = tp_params_init(ctx, params, tp_attention_params(run.layer, params, 4));
    run.x = tpt_new_normal(TP_DTYPE_F32, TOKENS * HIDDEN, 1, 1);
    run.dy = tpt_new_normal(TP_DTYPE_F32, TOKENS * HIDDEN, 2, 1);
    outputs whole, halves, single;
    if (status == TP_OK)
        status = run_split(ctx, &run, SEQUENCES, &whole);
    if (status == TP_OK)
        status = run_split(ctx, &run, 2, &halves);
    if (status == TP_OK)
        status = run_split(ctx, &run, 1, &single);
    bool same =
        status == TP_OK && memcmp(&whole, &halves, sizeof whole) == 0 && memcmp(&whole, &single, sizeof whole) == 0;
    free(run.x);
    free(run.dy);
    tp_attention_destroy(run.layer);
    return status == TP_OK && !same ? TP_ERR_NUMERIC : status;
}

Test(attention_dropout, masks_do_not_depend_on_how_a_batch_is_split)
{
    for (int tp = 1; tp <= 4; tp *= 2)
        cr_assert_eq(
            tp_run_ranks(&(tp_run_options){.ranks = tp, .ctx = {.threads = 1, .seed = 6}}, compare_splits, NULL), TP_OK,
            "tp %d: %s", tp, tp_last_message());
}
