/* What a dry run predicts is what a training loop on a GPU uses, workspaces of kernels included; and no GPU is needed
 * for it. */
#include <criterion/criterion.h>
#include <tp/tp.h>

#include "cuda/cuda_ranks.h"
#include "cuda/gpus.h"
#include "support/text.h"
#include "support/usage.h"

typedef struct run {
    const tp_data *data;
    tp_model_desc desc;
    tpt_usage used[4];
} run;

static tp_status train(tp_ctx *ctx, void *arg)
{
    run *r = arg;
    return tpt_usage_of_training(ctx, &r->desc, r->data, 9, &r->used[tp_ctx_rank(ctx)]);
}

static tpt_usage predict(const run *used, tp_ctx_desc desc)
{
    run predicted = *used;
    tp_ctx *ctx;
    desc.device = TP_DEVICE_CUDA;
    desc.plugin = TPT_CUDA_PLUGIN;
    desc.dry_run = true;
    cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_OK, "%s", tp_last_message());
    cr_assert_eq(train(ctx, &predicted), TP_OK, "%s", tp_ctx_message(ctx));
    tp_ctx_destroy(ctx);
    return predicted.used[desc.rank];
}

static void check(tp_model_family family, tp_dtype dtype, int ranks, tp_sum_order sums, tp_transport transport)
{
    static const tp_memory_kind kinds[] = {TP_MEMORY_PARAM, TP_MEMORY_OPTIMIZER, TP_MEMORY_SAVED, TP_MEMORY_SCRATCH,
                                           TP_MEMORY_COMM};
    run r = {.desc = {.family = family, .layers = 2, .hidden = 32, .heads = 4, .vocabulary = 257, .positions = 16,
                      .dtype = dtype}};
    if (family == TP_MODEL_LLAMA)
        r.desc.ffn = 43;
    tp_data *data = tpt_open_text(1000);
    r.data = data;
    const tp_ctx_desc desc = {.device = TP_DEVICE_CUDA, .plugin = TPT_CUDA_PLUGIN, .threads = 1, .sum_order = sums};
    tpt_gpus_configure(&(gpusim_options){.devices = 4});
    const bool alone = ranks == 1 || tpt_have_gpus(ranks); /* on one device the ranks' all-reduces have other memory */
    const tp_run_options options = {.ranks = ranks, .devices = alone ? ranks : 1, .ctx = desc, .transport = transport};
    bool nccl = transport == TP_TRANSPORT_NCCL || (transport == TP_TRANSPORT_AUTO && sums == TP_SUM_FAST && ranks > 1);
    if (nccl && !alone) {
        tp_data_close(data);
        return;
    }
    cr_assert_eq(tp_run_ranks(&options, train, &r), TP_OK, "%s", tp_last_message());
    tpt_usage predicted = predict(
        &r, (tp_ctx_desc){
                .threads = 1, .sum_order = sums, .mesh = {.tp = ranks}, .rank = ranks - 1, .dry_transport = transport});
    const tpt_usage *used = &r.used[ranks - 1];
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        size_t want = predicted.peak[kinds[i]], got = used->peak[kinds[i]];
        if (kinds[i] == TP_MEMORY_COMM && !alone)
            continue;
        if (sums == TP_SUM_TREE || kinds[i] != TP_MEMORY_SCRATCH)
            cr_assert_eq(want, got, "%d ranks, kind %d: predicted %zu bytes, used %zu", ranks, (int)kinds[i], want,
                         got);
        else /* of cuBLASLt's workspace the most is taken */
            cr_assert_geq(want, got, "%d ranks: predicted %zu bytes, used %zu", ranks, want, got);
    }
    cr_assert_eq(predicted.flops, used->flops);
    tp_data_close(data);
    tpt_gpus_clean("dry run");
}

Test(cuda_dry_run, predicts_what_a_step_uses, .timeout = 200)
{
    check(TP_MODEL_GPT2, TP_DTYPE_F32, 1, TP_SUM_TREE, TP_TRANSPORT_AUTO);
    check(TP_MODEL_GPT2, TP_DTYPE_BF16, 2, TP_SUM_TREE, TP_TRANSPORT_AUTO);
    check(TP_MODEL_LLAMA, TP_DTYPE_BF16, 4, TP_SUM_TREE, TP_TRANSPORT_AUTO);
    check(TP_MODEL_LLAMA, TP_DTYPE_BF16, 1, TP_SUM_FAST, TP_TRANSPORT_AUTO);
}

/* Every communicator's staging. */
Test(cuda_dry_run, predicts_what_nccl_stages, .timeout = 200)
{
    check(TP_MODEL_GPT2, TP_DTYPE_BF16, 2, TP_SUM_TREE, TP_TRANSPORT_NCCL);
    check(TP_MODEL_LLAMA, TP_DTYPE_F32, 4, TP_SUM_TREE, TP_TRANSPORT_NCCL);
    check(TP_MODEL_GPT2, TP_DTYPE_F32, 2, TP_SUM_FAST, TP_TRANSPORT_AUTO);
}

/* A device that isn't there is one like an A100. */
Test(cuda_dry_run, needs_no_gpu)
{
    tp_data *data = tpt_open_text(1000);
    const run r = {.data = data,
                   .desc = {.family = TP_MODEL_GPT2, .layers = 1, .hidden = 64, .heads = 8, .vocabulary = 257,
                            .positions = 16, .dtype = TP_DTYPE_BF16}};
    tpt_gpus_configure(&(gpusim_options){.devices = 1});
    for (int sums = TP_SUM_TREE; sums <= TP_SUM_FAST; sums++) {
        tpt_usage predicted = predict(
            &r, (tp_ctx_desc){.threads = 1, .device_index = 15, .sum_order = (tp_sum_order)sums, .mesh = {.tp = 2}});
        cr_assert_gt(predicted.peak[TP_MEMORY_SCRATCH], 4096);
        cr_assert_gt(predicted.flops, 1e6);
    }
    tp_data_close(data);
    tpt_gpus_clean("no GPU");
}
