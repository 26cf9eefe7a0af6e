/* The sign of a zero: sums of dV over the virtual ranks that share a kv head, where every part of one has underflowed
 * to -0. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <tp/tp.h>

#include "../support/data.h"

enum { HEADS = 8, KV_HEADS = 2, HIDDEN = 8, TOKENS = 2, ROWS = HEADS + 2 * KV_HEADS };

typedef struct zeros_run {
    float weight[ROWS * HIDDEN], bias[ROWS]; /* gradients of rank 0's */
} zeros_run;

/* q is 1, k is 60 for token 0 and 0 for token 1, v is 0: token 1 sees itself with exp(-60). */
static tp_status load_params(tp_ctx *ctx, tp_param *const *params)
{
    float weight[ROWS * HIDDEN] = {0}, bias[ROWS] = {0}, proj[HIDDEN * HEADS], none[HIDDEN] = {0};
    for (int h = 0; h < HEADS; h++)
        bias[h] = 1;
    for (int kv = 0; kv < KV_HEADS; kv++)
        weight[(HEADS + kv) * HIDDEN] = 60;
    for (int i = 0; i < HIDDEN * HEADS; i++)
        proj[i] = 1;
    const float *values[4] = {weight, bias, proj, none};
    tp_status status = TP_OK;
    for (int i = 0; i < 4 && status == TP_OK; i++)
        status = tp_param_load(ctx, params[i], values[i], TP_DTYPE_F32, NULL);
    return status == TP_OK ? tp_params_zero_grad(ctx, params, 4) : status;
}

/* dcore is -1e-30, so dV of token 0 is about -2e-30, and every part of token 1's is exp(-60) * -1e-30, which underflows
 * to -0. In the chain of the weight gradient over tokens, column 1 underflows to -0 at token 0 and shows the sign of
 * what follows. */
static tp_status run_passes(tp_ctx *ctx, tp_attention *layer)
{
    float x[TOKENS * HIDDEN] = {1, 1e-20f}, y[TOKENS * HIDDEN], dy[TOKENS * HIDDEN] = {0}, dx[TOKENS * HIDDEN];
    x[HIDDEN + 1] = 1;
    dy[0] = dy[HIDDEN] = -1e-30f;
    tp_pass pass = {.tokens = TOKENS};
    tp_io forward = {.in = tp_tensor_2d(x, TP_DTYPE_F32, TOKENS, HIDDEN),
                     .out = tp_tensor_2d(y, TP_DTYPE_F32, TOKENS, HIDDEN)};
    tp_io backward = {.in = tp_tensor_2d(dy, TP_DTYPE_F32, TOKENS, HIDDEN),
                      .out = tp_tensor_2d(dx, TP_DTYPE_F32, TOKENS, HIDDEN)};
    size_t bytes = tp_attention_saved_bytes(layer, &pass);
    void *memory = tpt_allocate(bytes);
    tp_attention_saved saved = {.memory = memory, .bytes = bytes};
    tp_status status = tp_attention_forward(ctx, layer, &pass, &forward, &saved);
    if (status == TP_OK)
        status = tp_attention_backward(ctx, layer, &pass, &backward, &saved);
    tp_status ended = tp_ctx_synchronize(ctx);
    free(memory);
    return status == TP_OK ? ended : status;
}

static tp_status zeros_main(tp_ctx *ctx, void *arg)
{
    tp_attention_desc desc = {.name = "a",
                              .hidden = HIDDEN,
                              .heads = HEADS,
                              .kv_heads = KV_HEADS,
                              .head_dim = 1,
                              .dtype = TP_DTYPE_F32,
                              .bias = true};
    tp_attention *layer;
    tp_status status = tp_attention_create(ctx, &desc, &layer);
    if (status != TP_OK)
        return status;
    tp_param *params[4];
    tp_attention_params(layer, params, 4);
    status = load_params(ctx, params);
    if (status == TP_OK)
        status = run_passes(ctx, layer);
    if (status == TP_OK)
        status = tp_params_finish(ctx, params, 4);
    zeros_run own;
    if (status == TP_OK)
        status = tp_param_gather(ctx, params[0], 1, own.weight);
    if (status == TP_OK)
        status = tp_param_gather(ctx, params[1], 1, own.bias);
    if (tp_ctx_rank(ctx) == 0)
        *(zeros_run *)arg = own;
    tp_attention_destroy(layer);
    return status;
}

Test(attention_zeros, have_one_sign_on_every_number_of_ranks)
{
    zeros_run one, other;
    cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = 1}, zeros_main, &one), TP_OK, "%s", tp_last_message());
    for (int kv = 0; kv < KV_HEADS; kv++) {
        const float *row = one.weight + (HEADS + KV_HEADS + kv) * HIDDEN;
        cr_assert(row[0] < -1e-30f && row[1] == 0, "the gradient of v's weight is %g, %g", (double)row[0],
                  (double)row[1]);
    }
    for (int tp = 2; tp <= 8; tp *= 2) {
        cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = tp}, zeros_main, &other), TP_OK, "tp %d: %s", tp,
                     tp_last_message());
        cr_assert(tpt_same_bits("weight gradient", other.weight, one.weight, TP_DTYPE_F32, ROWS * HIDDEN), "tp %d", tp);
        cr_assert(tpt_same_bits("bias gradient", other.bias, one.bias, TP_DTYPE_F32, ROWS), "tp %d", tp);
    }
}
