/* Attention and whole blocks on GPUs: near the CPU, and the same bits on every layout. */
#include <criterion/criterion.h>

#include <string.h>

#include "cuda/gpus.h"
#include "cuda/layer_check.h"

static const int64_t lengths[] = {0, 7, 7, 8, 20}; /* packed sequences of 7, 0, 1 and 12 tokens */

static void check_attention(tp_attention_desc desc, const char *name, unsigned number)
{
    desc.name = name;
    desc.bias = true;
    desc.layer = 2;
    tpt_case c = {.name = name,
                  .table = &tpt_attention_table,
                  .desc = &desc,
                  .dtype = desc.dtype,
                  .in = desc.hidden,
                  .out = desc.hidden,
                  .pass = {.tokens = 20, .sequences = 4, .offsets = lengths, .step = 5, .first_token = 40},
                  .residual = true,
                  .seed = 41};
    tpt_gpus_check_layer(&c, 6, false, number);
}

Test(cuda_attention, multi_head_with_dropout, .timeout = 100)
{
    tp_attention_desc desc = {.hidden = 24, .heads = 8, .probability_dropout = 0.25f, .output_dropout = 0.125f};
    desc.dtype = TP_DTYPE_F32;
    check_attention(desc, "multi-head, f32", 0);
    desc.dtype = TP_DTYPE_BF16;
    check_attention(desc, "multi-head, bf16", 1);
}

Test(cuda_attention, grouped_and_rotary, .timeout = 100)
{
    check_attention(
        (tp_attention_desc){
            .hidden = 24, .heads = 8, .kv_heads = 2, .head_dim = 4, .dtype = TP_DTYPE_F32, .rope_theta = 10000},
        "grouped, f32", 2);
    check_attention(
        (tp_attention_desc){
            .hidden = 24, .heads = 12, .kv_heads = 4, .head_dim = 4, .dtype = TP_DTYPE_BF16, .rope_theta = 500},
        "grouped, bf16", 3);
    check_attention((tp_attention_desc){.hidden = 30, .heads = 15, .kv_heads = 5, .head_dim = 2, .dtype = TP_DTYPE_F32},
                    "uneven groups", 4);
}

Test(cuda_attention, window, .timeout = 100)
{
    check_attention(
        (tp_attention_desc){.hidden = 24, .heads = 9, .kv_heads = 1, .head_dim = 4, .dtype = TP_DTYPE_F32, .window = 5},
        "multi-query, window", 5);
    check_attention(
        (tp_attention_desc){.hidden = 24, .heads = 4, .dtype = TP_DTYPE_BF16, .mask = TP_MASK_FULL, .window = 3},
        "full mask, window", 6);
}

/* When the layer is made, not when it first runs. */
Test(cuda_attention, heads_that_are_too_large_are_refused)
{
    tp_ctx *ctx;
    tp_attention *layer = NULL;
    tp_attention_desc desc = {.name = "a", .hidden = 8, .heads = 1, .head_dim = 257, .dtype = TP_DTYPE_F32};
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.device = TP_DEVICE_CUDA, .plugin = TPT_CUDA_PLUGIN}, &ctx), TP_OK, "%s",
                 tp_last_message());
    cr_assert_eq(tp_attention_create(ctx, &desc, &layer), TP_ERR_UNSUPPORTED);
    cr_assert(!layer && strstr(tp_last_message(), "head_dim is 257, at most 256"), "%s", tp_last_message());
    desc.head_dim = 256;
    cr_assert_eq(tp_attention_create(ctx, &desc, &layer), TP_OK, "%s", tp_last_message());
    tp_attention_destroy(layer);
    tp_ctx_destroy(ctx);
}

typedef void (*block_check)(const tpt_case *c, unsigned number);

static void check_block(tp_norm_place place, tp_dtype dtype, unsigned number, block_check check)
{
    bool post = place == TP_NORM_POST;
    tp_block_desc desc = {.name = post ? "post-norm" : "pre-norm",
                          .hidden = 32,
                          .dtype = dtype,
                          .layer = 1,
                          .place = place,
                          .norm = post ? TP_NORM_RMS : TP_NORM_LAYER,
                          .attention = {.heads = 8,
                                        .kv_heads = post ? 2 : 8,
                                        .bias = true,
                                        .rope_theta = 10000,
                                        .probability_dropout = 0.125f},
                          .mlp = {.ffn = 40,
                                  .activation = post ? TP_ACTIVATION_SWIGLU : TP_ACTIVATION_GELU_TANH,
                                  .bias = true,
                                  .output_dropout = 0.1f}};
    static const int64_t offsets[] = {0, 4, 11};
    tpt_case c = {.name = desc.name,
                  .table = &tpt_block_table,
                  .desc = &desc,
                  .dtype = dtype,
                  .in = desc.hidden,
                  .out = desc.hidden,
                  .pass = {.tokens = 11, .sequences = 2, .offsets = offsets, .step = 1},
                  .microbatches = 2,
                  .seed = 51};
    check(&c, number);
}

static void on_all_layouts(const tpt_case *c, unsigned number)
{
    tpt_gpus_check_layer(c, 12, false, number);
}

Test(cuda_block, f32, .timeout = 100)
{
    check_block(TP_NORM_PRE, TP_DTYPE_F32, 0, on_all_layouts);
    check_block(TP_NORM_POST, TP_DTYPE_F32, 1, on_all_layouts);
}

Test(cuda_block, bf16, .timeout = 100)
{
    check_block(TP_NORM_PRE, TP_DTYPE_BF16, 3, on_all_layouts);
    check_block(TP_NORM_POST, TP_DTYPE_BF16, 4, on_all_layouts);
}

/* How often barriers of all-reduces that do a norm were come to: kernels peer_reduce<aligned, adds, norms, ...>. */
static int64_t normed_in_peer_kernels(void)
{
    int64_t times = 0;
    for (int i = 0; i < tpt_gpus_barriers(); i++) {
        gpusim_site site = tpt_gpus_barrier(i);
        if (strstr(site.kernel, "peer_reduce<") != NULL && strstr(site.kernel, ", true, true, ") != NULL)
            times += site.executed;
    }
    return times;
}

static void run_normed(const tpt_case *c, const tpt_layout *layout, bool normed, tpt_result *out)
{
    int64_t before = normed_in_peer_kernels();
    tpt_case_run(c, layout, out);
    tpt_gpus_clean(c->name);
    if (tpt_gpus_barriers() > 0)
        cr_assert_eq(normed_in_peer_kernels() > before, normed, "%s at tp %d: norms are%s done by all-reduces", c->name,
                     layout->tp, normed ? " not" : "");
}

static void with_and_without_peer_kernels(const tpt_case *c, unsigned number)
{
    tpt_layout layout = tpt_gpus_layout((tpt_layout){.tp = 1});
    tpt_result one, other;
    tpt_gpus_turn(number);
    run_normed(c, &layout, false, &one);
    for (layout.tp = 2; layout.tp <= 4; layout.tp += 2)
        for (layout.peer_kernels = TP_PEER_KERNELS_ALWAYS; layout.peer_kernels <= TP_PEER_KERNELS_NEVER;
             layout.peer_kernels++) {
            bool peers = layout.peer_kernels == TP_PEER_KERNELS_ALWAYS;
            layout.devices = layout.tp;
            tpt_gpus_turn(number++);
            run_normed(c, &layout, peers, &other);
            cr_assert(tpt_result_same(c, peers ? "with peer kernels" : "without", &one, &other), "tp %d", layout.tp);
            tpt_result_free(&other);
        }
    tpt_result_free(&one);
}

/* Where sequences are not cut, norms within a block are done by the all-reduce before them, in its kernel if it is one
 * a rank. */
Test(cuda_block, norms_in_all_reduces, .timeout = 100)
{
    check_block(TP_NORM_PRE, TP_DTYPE_F32, 0, with_and_without_peer_kernels);
    check_block(TP_NORM_POST, TP_DTYPE_BF16, 2, with_and_without_peer_kernels);
}
