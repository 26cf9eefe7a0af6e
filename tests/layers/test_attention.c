/* The attention layer: double precision, finite differences, the same bits on every layout, shared kv heads (O24). */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../support/data.h"
#include "../support/layer_tables.h"
#include "../support/reference.h"

static const int64_t lengths[] = {0, 7, 7, 8, 20}; /* packed sequences of 7, 0, 1 and 12 tokens */

static tpt_case attention_case(const tp_attention_desc *desc)
{
    return (tpt_case){.name = desc->name,
                      .table = &tpt_attention_table,
                      .desc = desc,
                      .dtype = desc->dtype,
                      .in = desc->hidden,
                      .out = desc->hidden,
                      .pass = {.tokens = 20, .sequences = 4, .offsets = lengths, .step = 5, .first_token = 40},
                      .residual = true,
                      .residual_gradient = true,
                      .seed = 41};
}

static void reference(const tpt_case *c, const double *x, double *const *param, double *y)
{
    const tp_attention_desc *d = c->desc;
    int64_t kv = d->kv_heads ? d->kv_heads : d->heads, dim = d->head_dim ? d->head_dim : d->hidden / d->heads,
            tokens = c->pass.tokens;
    tpt_ref_attention_shape shape = {.tokens = tokens,
                                     .heads = d->heads,
                                     .kv_heads = kv,
                                     .head_dim = dim,
                                     .offsets = c->pass.offsets,
                                     .sequences = c->pass.sequences,
                                     .causal = d->mask == TP_MASK_CAUSAL,
                                     .window = d->window,
                                     .rope_theta = d->rope_theta,
                                     .rope_dim = d->rope_dim ? d->rope_dim : dim};
    int64_t width = (d->heads + 2 * kv) * dim;
    double *qkv = tpt_allocate((size_t)(tokens * width) * sizeof(double));
    double *core = tpt_allocate((size_t)(tokens * d->heads * dim) * sizeof(double));
    tpt_ref_linear(x, tokens, d->hidden, param[0], param[1], width, qkv);
    tpt_ref_attention(&shape, qkv, core);
    tpt_ref_linear(core, tokens, d->heads * dim, param[2], param[3], d->hidden, y);
    free(qkv), free(core);
}

static void check(tp_attention_desc desc, int tp, bool sequence_parallel)
{
    desc.name = "attention";
    desc.bias = true;
    tpt_case c = attention_case(&desc);
    tpt_result result;
    tpt_case_run(&c, &(tpt_layout){.tp = tp, .threads = 1, .sequence_parallel = sequence_parallel}, &result);
    tpt_result_check(&c, &result, reference, 6);
    tpt_result_free(&result);
}

Test(attention, agrees_with_double_precision, .timeout = 120)
{
    tp_attention_desc plain = {.hidden = 16, .heads = 8, .dtype = TP_DTYPE_F32};
    check(plain, 1, false);
    check(plain, 8, true);
    tp_attention_desc rotary = {
        .hidden = 12, .heads = 6, .kv_heads = 2, .head_dim = 4, .rope_theta = 10000, .dtype = TP_DTYPE_F32};
    check(rotary, 1, false);
    check(rotary, 3, true);
    check(rotary, 5, false);
    tp_attention_desc window = {.hidden = 10, .heads = 7, .kv_heads = 1, .head_dim = 2, .window = 3,
                                .mask = TP_MASK_FULL, .dtype = TP_DTYPE_F32};
    check(window, 1, false);
    check(window, 7, true);
    check(window, 2, false);
}

Test(attention, half_precision_agrees_with_double_precision, .timeout = 120)
{
    check((tp_attention_desc){.hidden = 16, .heads = 4, .kv_heads = 2, .rope_theta = 500, .dtype = TP_DTYPE_BF16}, 2,
          true);
}

/* A kv head that several ranks hold adds to the input's gradient once, in either order of sums. */
Test(attention, shared_kv_heads_count_once_with_fast_sums)
{
    tp_attention_desc desc = {
        .name = "shared", .hidden = 10, .heads = 9, .kv_heads = 1, .head_dim = 4, .window = 5, .dtype = TP_DTYPE_F32,
        .bias = true};
    tpt_case c = attention_case(&desc);
    tpt_result tree, fast;
    tpt_case_run(&c, &(tpt_layout){.tp = 1, .threads = 1}, &tree);
    for (int tp = 2; tp <= 8; tp++) {
        tpt_case_run(&c,
                     &(tpt_layout){.tp = tp, .threads = 1, .sequence_parallel = tp % 2 == 0, .sum_order = TP_SUM_FAST},
                     &fast);
        cr_assert(tpt_result_near(&c, &fast, &tree, 6), "tp %d", tp);
        tpt_result_free(&fast);
    }
    tpt_result_free(&tree);
}

static void same_bits(tp_attention_desc desc, const char *name)
{
    desc.name = name;
    desc.bias = true;
    desc.layer = 2;
    tpt_case c = attention_case(&desc);
    c.microbatches = 2;
    tpt_same_on_all_layouts(&c);
}

Test(attention, has_the_same_bits_on_every_layout, .timeout = 240)
{
    same_bits(
        (tp_attention_desc){
            .hidden = 24, .heads = 8, .dtype = TP_DTYPE_F32, .probability_dropout = 0.25f, .output_dropout = 0.125f},
        "multi-head");
    same_bits(
        (tp_attention_desc){.hidden = 24, .heads = 12, .head_dim = 6, .dtype = TP_DTYPE_BF16, .rope_theta = 10000},
        "uneven heads");
    same_bits(
        (tp_attention_desc){
            .hidden = 24, .heads = 8, .kv_heads = 2, .head_dim = 4, .dtype = TP_DTYPE_F32, .rope_theta = 10000},
        "kv heads < ranks");
    same_bits((tp_attention_desc){.hidden = 24, .heads = 12, .kv_heads = 4, .head_dim = 4, .dtype = TP_DTYPE_BF16},
              "kv heads shared by neighbours");
    same_bits(
        (tp_attention_desc){.hidden = 24, .heads = 9, .kv_heads = 1, .head_dim = 4, .dtype = TP_DTYPE_F32, .window = 5},
        "multi-query");
    same_bits((tp_attention_desc){.hidden = 30, .heads = 15, .kv_heads = 5, .head_dim = 2, .dtype = TP_DTYPE_F32},
              "uneven groups");
}

/* O24 (a): query head i reads kv head i / (heads / kv): weights that encode the head make the output say which. */
static tp_status head_pairs(tp_ctx *ctx, void *arg)
{
    enum { HEADS = 8, KV = 2, T = 2 };
    (void)arg;
    tp_attention_desc desc = {.name = "a", .hidden = HEADS, .heads = HEADS, .kv_heads = KV, .head_dim = 1,
                              .dtype = TP_DTYPE_F32, .bias = true};
    tp_attention *layer;
    if (tp_attention_create(ctx, &desc, &layer) != TP_OK)
        return TP_ERR_INTERNAL;
    tp_param *params[4];
    tp_attention_params(layer, params, 4);
    float weight[(HEADS + 2 * KV) * HEADS] = {0}, bias[HEADS + 2 * KV] = {0}, proj[HEADS * HEADS] = {0},
                                    none[HEADS] = {0};
    for (int j = 0; j < KV; j++)
        bias[HEADS + KV + j] = (float)(100 + j); /* v of kv head j */
    for (int i = 0; i < HEADS; i++)
        proj[i * HEADS + i] = 1;
    tp_param_load(ctx, params[0], weight, TP_DTYPE_F32, NULL);
    tp_param_load(ctx, params[1], bias, TP_DTYPE_F32, NULL);
    tp_param_load(ctx, params[2], proj, TP_DTYPE_F32, NULL);
    tp_param_load(ctx, params[3], none, TP_DTYPE_F32, NULL);
    float x[T * HEADS] = {0}, y[T * HEADS];
    tp_io io = {.in = tp_tensor_2d(x, TP_DTYPE_F32, T, HEADS), .out = tp_tensor_2d(y, TP_DTYPE_F32, T, HEADS)};
    tp_status status = tp_attention_forward(ctx, layer, NULL, &io, NULL);
    bool right = true;
    for (int i = 0; i < T * HEADS; i++)
        right = right && y[i] == (float)(100 + i % HEADS / (HEADS / KV));
    tp_attention_destroy(layer);
    return status == TP_OK && !right ? TP_ERR_NUMERIC : status;
}

Test(attention, query_heads_read_their_kv_head)
{
    for (int tp = 1; tp <= 8; tp *= 2)
        cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = tp}, head_pairs, NULL), TP_OK, "tp %d: %s", tp,
                     tp_last_message());
}

typedef struct refusal {
    tp_attention_desc desc;
    const char *text[2];
} refusal;

static tp_status try_refusal(tp_ctx *ctx, void *arg)
{
    const refusal *r = arg;
    tp_attention *layer;
    tp_status status = tp_attention_create(ctx, &r->desc, &layer);
    bool named = strstr(tp_ctx_message(ctx), r->text[0]) != NULL && strstr(tp_ctx_message(ctx), r->text[1]) != NULL;
    return status == TP_ERR_ARGUMENT && layer == NULL && named && tp_ctx_memory(ctx, TP_MEMORY_PARAM).peak == 0
               ? TP_OK
               : TP_ERR_FORMAT;
}

/* O24 (c), O42: refused on all ranks before anything is allocated, with both numbers. */
Test(attention, bad_heads_are_refused)
{
    static const refusal refusals[] = {
        {{.hidden = 66, .heads = 3, .kv_heads = 2, .dtype = TP_DTYPE_F32}, {"heads 3", "kv_heads 2"}},
        {{.hidden = 66, .heads = 33, .kv_heads = 2, .dtype = TP_DTYPE_F32}, {"heads 33", "kv_heads 2"}},
        {{.hidden = 65, .heads = 4, .dtype = TP_DTYPE_F32}, {"hidden 65", "heads 4"}},
        {{.hidden = 64, .heads = 2, .dtype = TP_DTYPE_F32}, {"heads 2", "tp 4"}},
        {{.hidden = 64, .heads = 4, .rope_theta = 100, .rope_dim = 17, .dtype = TP_DTYPE_F32},
         {"rope_dim 17", "head_dim 16"}},
        {{.hidden = 64, .heads = 4, .probability_dropout = 1.5f, .dtype = TP_DTYPE_F32},
         {"probability_dropout 1.5", "[0, 1)"}},
        {{.hidden = 64, .heads = 4, .window = -1, .dtype = TP_DTYPE_F32}, {"window -1", "0"}},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        refusal r = refusals[i];
        cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = 4}, try_refusal, &r), TP_OK, "case %zu: %s", i,
                     tp_last_message());
    }
}
