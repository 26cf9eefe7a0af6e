/* Dry runs: a model that fits no machine is sized exactly, and one that fits uses what its dry run said. */
#include <criterion/criterion.h>
#include <string.h>
#include <tp/tp.h>

#include "support/text.h"
#include "support/usage.h"

enum { SEQUENCE = 64 };

static const tp_model_desc small = {.family = TP_MODEL_GPT2, .layers = 2, .hidden = 128, .heads = 8, .vocabulary = 301,
                                    .positions = SEQUENCE, .dtype = TP_DTYPE_BF16};

typedef struct run {
    const tp_data *data;
    tpt_usage used[8];
} run;

static tp_status train_rank(tp_ctx *ctx, void *arg)
{
    run *r = arg;
    return tpt_usage_of_training(ctx, &small, r->data, SEQUENCE, &r->used[tp_ctx_rank(ctx)]);
}

/* Peak bytes of a step as predicted: within 5 % in all, for every layout. */
Test(dry_run, predicts_what_a_step_uses)
{
    static const int ranks[] = {1, 2, 4, 8};
    tp_data *data = tpt_open_text(4000);
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        run r = {.data = data};
        cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = ranks[i], .ctx = {.threads = 1}}, train_rank, &r), TP_OK,
                     "%s", tp_last_message());
        tp_ctx *ctx;
        tpt_usage predicted;
        cr_assert_eq(
            tp_ctx_create(&(tp_ctx_desc){.dry_run = true, .threads = 1, .mesh = {.tp = ranks[i]}, .rank = ranks[i] - 1},
                          &ctx),
            TP_OK);
        cr_assert_eq(tpt_usage_of_training(ctx, &small, data, SEQUENCE, &predicted), TP_OK, "%s", tp_ctx_message(ctx));
        tp_ctx_destroy(ctx);
        const tpt_usage *used = &r.used[ranks[i] - 1];
        double sum = 0, want = 0;
        for (int kind = 0; kind < TP_MEMORY_KINDS; kind++) {
            sum += (double)used->peak[kind];
            want += (double)predicted.peak[kind];
        }
        cr_assert(want > 0.95 * sum && want < 1.05 * sum, "tp %d: predicted %.0f bytes, used %.0f", ranks[i], want,
                  sum);
        cr_assert_eq(predicted.peak[TP_MEMORY_PARAM], used->peak[TP_MEMORY_PARAM]);
        cr_assert_eq(predicted.peak[TP_MEMORY_OPTIMIZER], used->peak[TP_MEMORY_OPTIMIZER]);
        cr_assert_eq(predicted.peak[TP_MEMORY_SAVED], used->peak[TP_MEMORY_SAVED]);
        cr_assert_eq(predicted.flops, used->flops, "tp %d: %.0f and %.0f operations", ranks[i], predicted.flops,
                     used->flops);
    }
    tp_data_close(data);
}

/* O40 (a): sizes past 2^31 elements are exact, and nothing is allocated for them. */
Test(dry_run, sizes_a_matrix_past_32_bits)
{
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.dry_run = true, .threads = 1, .mesh = {.tp = 3}, .rank = 2}, &ctx),
                 TP_OK);
    tp_embedding *layer;
    tp_embedding_desc desc = {.name = "wte", .vocabulary = 262144, .features = 12288, .dtype = TP_DTYPE_F32};
    cr_assert_eq(tp_embedding_create(ctx, &desc, &layer), TP_OK, "%s", tp_ctx_message(ctx));
    tp_param *param;
    cr_assert_eq(tp_embedding_params(layer, &param, 1), 1);
    cr_assert_eq(tp_param_elements(param), INT64_C(3221225472));
    cr_assert_eq(param->value.shape[0], INT64_C(262144) - INT64_C(262144) * 2 / 3);
    cr_assert_geq(tp_ctx_memory(ctx, TP_MEMORY_PARAM).bytes, (size_t)param->value.shape[0] * 12288 * 8);
    tp_embedding_destroy(layer);
    cr_assert_eq(tp_ctx_memory(ctx, TP_MEMORY_PARAM).bytes, 0);
    tp_ctx_destroy(ctx);
}

Test(dry_run, stands_for_its_mesh_only)
{
    tp_world *world;
    cr_assert_eq(tp_world_create_threads(&(tp_world_desc){.ranks = 2}, &world), TP_OK);
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.dry_run = true, .world = world}, &ctx), TP_ERR_ARGUMENT);
    cr_assert(strstr(tp_last_message(), "dry_run") && strstr(tp_last_message(), "2"), "%s", tp_last_message());
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.dry_run = true, .mesh = {.tp = 2}, .rank = 2}, &ctx), TP_ERR_ARGUMENT);
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.dry_run = true, .mesh = {.tp = 65536, .dp = 65536}}, &ctx),
                 TP_ERR_ARGUMENT);
    tp_world_destroy(world);
}
