/* Whole blocks, pre- and post-norm: double precision, finite differences, the same bits on every layout. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../support/data.h"
#include "../support/layer_tables.h"
#include "../support/reference.h"

static const int64_t offsets[] = {0, 4, 11};

static tpt_case block_case(const tp_block_desc *desc)
{
    return (tpt_case){.name = desc->name,
                      .table = &tpt_block_table,
                      .desc = desc,
                      .dtype = desc->dtype,
                      .in = desc->hidden,
                      .out = desc->hidden,
                      .pass = {.tokens = 11, .sequences = 2, .offsets = offsets, .step = 1},
                      .seed = 51};
}

/* What the reference reads, in the block's order of parameters. */
typedef struct block_values {
    const double *norm1[2], *attention[4], *norm2[2], *mlp[4];
} block_values;

static void split(const tp_block_desc *d, double *const *param, block_values *v)
{
    int at = 0;
    bool rms = d->norm == TP_NORM_RMS;
    v->norm1[0] = param[at++];
    v->norm1[1] = rms ? NULL : param[at++];
    for (int i = 0; i < 4; i++)
        v->attention[i] = i % 2 == 1 && !d->attention.bias ? NULL : param[at++];
    v->norm2[0] = param[at++];
    v->norm2[1] = rms ? NULL : param[at++];
    for (int i = 0; i < 4; i++)
        v->mlp[i] = i % 2 == 1 && !d->mlp.bias ? NULL : param[at++];
}

static void attention(const tpt_case *c, const double *x, const block_values *v, double *y)
{
    const tp_block_desc *d = c->desc;
    int64_t heads = d->attention.heads, kv = d->attention.kv_heads ? d->attention.kv_heads : heads,
            dim = d->hidden / heads;
    tpt_ref_attention_shape shape = {.tokens = c->pass.tokens,
                                     .heads = heads,
                                     .kv_heads = kv,
                                     .head_dim = dim,
                                     .offsets = offsets,
                                     .sequences = 2,
                                     .causal = true,
                                     .rope_theta = d->attention.rope_theta,
                                     .rope_dim = dim};
    int64_t width = (heads + 2 * kv) * dim;
    double *qkv = tpt_allocate((size_t)(c->pass.tokens * width) * sizeof(double));
    double *core = tpt_allocate((size_t)(c->pass.tokens * heads * dim) * sizeof(double));
    tpt_ref_linear(x, c->pass.tokens, d->hidden, v->attention[0], v->attention[1], width, qkv);
    tpt_ref_attention(&shape, qkv, core);
    tpt_ref_linear(core, c->pass.tokens, heads * dim, v->attention[2], v->attention[3], d->hidden, y);
    free(qkv), free(core);
}

static void mlp(const tpt_case *c, const double *x, const block_values *v, double *y)
{
    const tp_block_desc *d = c->desc;
    bool gated = d->mlp.activation == TP_ACTIVATION_SWIGLU;
    int64_t ffn = d->mlp.ffn, width = gated ? 2 * ffn : ffn, tokens = c->pass.tokens;
    double *pre = tpt_allocate((size_t)(tokens * width) * sizeof(double)),
           *act = tpt_allocate((size_t)(tokens * ffn) * sizeof(double));
    tpt_ref_linear(x, tokens, d->hidden, v->mlp[0], v->mlp[1], width, pre);
    for (int64_t i = 0; i < tokens * ffn; i++) {
        const double *row = pre + i / ffn * width;
        act[i] = tpt_ref_activation(d->mlp.activation, row[i % ffn]) * (gated ? row[ffn + i % ffn] : 1);
    }
    tpt_ref_linear(act, tokens, ffn, v->mlp[2], v->mlp[3], d->hidden, y);
    free(pre), free(act);
}

static void norm(const tpt_case *c, const double *x, const double *const value[2], double *y)
{
    const tp_block_desc *d = c->desc;
    tpt_ref_norm(d->norm == TP_NORM_RMS, x, c->pass.tokens, d->hidden, value[0], value[1], 1e-5, y);
}

static void reference(const tpt_case *c, const double *x, double *const *param, double *y)
{
    const tp_block_desc *d = c->desc;
    int64_t n = c->pass.tokens * d->hidden;
    block_values v;
    split(d, param, &v);
    double *a = tpt_allocate((size_t)n * sizeof(double)), *b = tpt_allocate((size_t)n * sizeof(double));
    double *h = tpt_allocate((size_t)n * sizeof(double));
    bool pre = d->place == TP_NORM_PRE;
    if (pre)
        norm(c, x, v.norm1, a);
    attention(c, pre ? a : x, &v, b);
    for (int64_t i = 0; i < n; i++)
        h[i] = x[i] + b[i];
    if (pre) {
        norm(c, h, v.norm2, a);
        mlp(c, a, &v, b);
        for (int64_t i = 0; i < n; i++)
            y[i] = h[i] + b[i];
    } else {
        norm(c, h, v.norm1, a);
        mlp(c, a, &v, b);
        for (int64_t i = 0; i < n; i++)
            b[i] += a[i];
        norm(c, b, v.norm2, y);
    }
    free(a), free(b), free(h);
}

static tp_block_desc gpt2(tp_norm_place place, tp_dtype dtype)
{
    return (tp_block_desc){.name = place == TP_NORM_PRE ? "pre-norm" : "post-norm",
                           .hidden = 8,
                           .dtype = dtype,
                           .place = place,
                           .attention = {.heads = 8, .bias = true},
                           .mlp = {.ffn = 12, .activation = TP_ACTIVATION_GELU_TANH, .bias = true},
                           .layer = 1};
}

static tp_block_desc llama(tp_dtype dtype)
{
    return (tp_block_desc){.name = "llama",
                           .hidden = 16,
                           .dtype = dtype,
                           .norm = TP_NORM_RMS,
                           .attention = {.heads = 8, .kv_heads = 4, .rope_theta = 10000},
                           .mlp = {.ffn = 11, .activation = TP_ACTIVATION_SWIGLU},
                           .layer = 1};
}

static void check(tp_block_desc desc, int tp, bool sequence_parallel)
{
    tpt_case c = block_case(&desc);
    tpt_result result;
    tpt_case_run(&c, &(tpt_layout){.tp = tp, .threads = 1, .sequence_parallel = sequence_parallel}, &result);
    tpt_result_check(&c, &result, reference, 12);
    tpt_result_free(&result);
}

Test(block, agrees_with_double_precision, .timeout = 120)
{
    check(gpt2(TP_NORM_PRE, TP_DTYPE_F32), 1, false);
    check(gpt2(TP_NORM_PRE, TP_DTYPE_F32), 4, true);
    check(gpt2(TP_NORM_POST, TP_DTYPE_F32), 1, false);
    check(gpt2(TP_NORM_POST, TP_DTYPE_F32), 3, true);
    check(llama(TP_DTYPE_F32), 1, false);
    check(llama(TP_DTYPE_F32), 5, true);
}

static void same_bits(tp_block_desc desc)
{
    desc.hidden = 48;
    desc.mlp.ffn = 53;
    desc.attention.probability_dropout = desc.attention.output_dropout = desc.mlp.output_dropout = 0.125f;
    tpt_case c = block_case(&desc);
    c.microbatches = 2;
    tpt_same_on_all_layouts(&c);
}

Test(block, has_the_same_bits_on_every_layout, .timeout = 240)
{
    same_bits(gpt2(TP_NORM_PRE, TP_DTYPE_F32));
    same_bits(gpt2(TP_NORM_PRE, TP_DTYPE_BF16));
    same_bits(gpt2(TP_NORM_POST, TP_DTYPE_F32));
    same_bits(llama(TP_DTYPE_F32));
    same_bits(llama(TP_DTYPE_BF16));
}

/* What is set in a part must be what the block says, which the part gets. */
Test(block, parts_must_agree)
{
    static const tp_block_desc good = {.name = "b",
                                       .hidden = 8,
                                       .dtype = TP_DTYPE_F32,
                                       .attention = {.heads = 2},
                                       .mlp = {.ffn = 8}};
    static const char *const fields[] = {"sequence_parallel", "overlap", "chunks", "layer"};
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    for (int field = 0; field < 4; field++)
        for (int part = 0; part < 3; part++) { /* of attention, of mlp, of all */
            tp_block_desc desc = good;
            tp_block *block = NULL;
            bool *parallel[] = {&desc.attention.sequence_parallel, &desc.mlp.sequence_parallel};
            tp_overlap *overlap[] = {&desc.attention.overlap, &desc.mlp.overlap};
            int *chunks[] = {&desc.attention.chunks, &desc.mlp.chunks};
            uint32_t *layer[] = {&desc.attention.layer, &desc.mlp.layer};
            for (int i = 0; i < 2; i++)
                if (part == i || part == 2) {
                    *parallel[i] = field == 0;
                    *overlap[i] = field == 1 ? TP_OVERLAP_RING : TP_OVERLAP_NONE;
                    *chunks[i] = field == 2 ? 3 : 0;
                    *layer[i] = field == 3 ? 5 : 0;
                }
            if (part == 2) {
                desc.sequence_parallel = field == 0;
                desc.overlap = desc.mlp.overlap;
                desc.chunks = desc.mlp.chunks;
                desc.layer = desc.mlp.layer;
            }
            cr_expect_eq(tp_block_create(ctx, &desc, &block), part == 2 ? TP_OK : TP_ERR_ARGUMENT, "%s, part %d: %s",
                         fields[field], part, tp_ctx_message(ctx));
            cr_expect(part == 2 || strstr(tp_ctx_message(ctx), fields[field]) != NULL, "%s", tp_ctx_message(ctx));
            tp_block_destroy(block);
        }
    tp_ctx_destroy(ctx);
}
