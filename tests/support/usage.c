#include "usage.h"

static tp_status train(tp_ctx *ctx, tp_model *model, const tp_data *data, int64_t sequence)
{
    const tp_trainer_desc desc = {
        .batch = 4, .sequence = sequence, .microbatch = 2, .lr = 1e-3f, .optimizer = {.kind = TP_OPTIMIZER_ADAMW}};
    tp_trainer *trainer = NULL;
    int count;
    tp_param *const *params = tp_model_params(model, &count);
    tp_status status = tp_params_init(ctx, params, count);
    if (status == TP_OK)
        status = tp_trainer_create(ctx, &desc, model, data, &trainer);
    for (int step = 0; step < 2 && status == TP_OK; step++) {
        tp_train_report report;
        status = tp_trainer_step(ctx, trainer, &report);
    }
    tp_trainer_destroy(trainer);
    return status;
}

tp_status tpt_usage_of_training(tp_ctx *ctx, const tp_model_desc *desc, const tp_data *data, int64_t sequence,
                                tpt_usage *out)
{
    tp_model *model;
    tp_status status = tp_model_create(ctx, desc, &model);
    if (status != TP_OK)
        return status;
    status = train(ctx, model, data, sequence);
    for (int kind = 0; kind < TP_MEMORY_KINDS; kind++)
        out->peak[kind] = tp_ctx_memory(ctx, (tp_memory_kind)kind).peak;
    double bytes;
    tp_ctx_work(ctx, &out->flops, &bytes);
    tp_model_destroy(model);
    return status;
}
