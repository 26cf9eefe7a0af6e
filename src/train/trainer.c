/* The training loop. */
#include <tp/trainer.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/context.h"
#include "models/build.h"
#include "train/optimizer.h"

/* Ids and targets of one step. Two of them, because ops of the step before may still read theirs. */
typedef struct step_data {
    int32_t *ids, *targets;
} step_data;

struct tp_trainer {
    tp_ctx *ctx;
    tp_trainer_desc desc; /* resolved */
    tp_model *model;
    const tp_data *data;
    tp_optimizer *optimizer;
    tp_param *const *params;
    int param_count;
    int64_t step; /* steps taken, skipped ones included */
    int64_t at;   /* first token of the next step */
    step_data buffer[2];
    step_data host;      /* where a step is read to; the buffer at hand where the host can write it */
    size_t buffer_bytes; /* of one array */
    void *saved;
    size_t saved_bytes;
};

/* ---- creation ---------------------------------------------------------------------------------------------------- */

static tp_status check_positive(tp_ctx *ctx, const char *field, int64_t value)
{
    if (value >= 1)
        return TP_OK;
    return tpi_refuse(ctx, TP_ERR_ARGUMENT, "trainer: %s is %" PRId64 ", must be at least 1", field, value);
}

static tp_status check_not_negative(tp_ctx *ctx, const char *field, double value)
{
    if (value >= 0.0 && isfinite(value))
        return TP_OK;
    return tpi_refuse(ctx, TP_ERR_ARGUMENT, "trainer: %s is %g, must be in [0, inf)", field, value);
}

static tp_status check_desc(tp_ctx *ctx, const tp_trainer_desc *desc)
{
    TPI_TRY(check_positive(ctx, "batch", desc->batch));
    TPI_TRY(check_positive(ctx, "sequence", desc->sequence));
    TPI_TRY(check_not_negative(ctx, "microbatch", (double)desc->microbatch));
    TPI_TRY(check_not_negative(ctx, "lr", desc->lr));
    TPI_TRY(check_not_negative(ctx, "min_lr", desc->min_lr));
    TPI_TRY(check_not_negative(ctx, "warmup", (double)desc->warmup));
    TPI_TRY(check_not_negative(ctx, "decay_steps", (double)desc->decay_steps));
    if (desc->batch > INT64_MAX / 64 / desc->sequence)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "trainer: batch %" PRId64 " times sequence %" PRId64 " is too large",
                          desc->batch, desc->sequence);
    if (desc->microbatch != 0 && desc->batch % desc->microbatch != 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "trainer: batch %" PRId64 " is no multiple of microbatch %" PRId64,
                          desc->batch, desc->microbatch);
    return tpi_optimizer_check(ctx, &desc->optimizer);
}

static tp_status check_fit(tp_ctx *ctx, const tp_trainer_desc *desc, const tp_model *model, const tp_data *data)
{
    if (tp_data_tokens(data) <= desc->sequence)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT,
                          "trainer: data of %" PRId64 " tokens is too short for sequence %" PRId64 " and its targets",
                          tp_data_tokens(data), desc->sequence);
    const tp_model_desc *shape = tpi_model_desc_of(model);
    if (shape != NULL && desc->sequence > shape->positions)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT,
                          "trainer: sequence %" PRId64 " is longer than the model's positions %" PRId64, desc->sequence,
                          shape->positions);
    if (shape != NULL && tp_data_vocabulary(data) > shape->vocabulary)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT,
                          "trainer: vocabulary %" PRId64 " of the data is larger than the model's %" PRId64,
                          tp_data_vocabulary(data), shape->vocabulary);
    const tp_mesh *mesh = tp_ctx_mesh(ctx);
    if (mesh->cp != 1 || mesh->dp != 1 || mesh->pp != 1)
        return tpi_refuse(ctx, TP_ERR_UNSUPPORTED, "trainer: mesh has cp %d, dp %d, pp %d: only tp may be more than 1",
                          mesh->cp, mesh->dp, mesh->pp);
    return TP_OK;
}

static tp_pass pass_of(const tp_trainer_desc *desc, int64_t sequences)
{
    return (tp_pass){.tokens = sequences * desc->sequence, .sequences = sequences};
}

static tp_status allocate_ids(tp_trainer *trainer, int32_t **out)
{
    void *memory;
    TPI_TRY(tp_ctx_allocate(trainer->ctx, TP_MEMORY_OTHER, trainer->buffer_bytes, &memory));
    *out = memory;
    return TP_OK;
}

static tp_status allocate_host(tp_trainer *trainer)
{
    trainer->host.ids = tpi_host_allocate(trainer->ctx, trainer->buffer_bytes);
    trainer->host.targets = tpi_host_allocate(trainer->ctx, trainer->buffer_bytes);
    if (trainer->host.ids != NULL && trainer->host.targets != NULL)
        return TP_OK;
    return tpi_refuse(trainer->ctx, TP_ERR_MEMORY, "trainer: no memory for %zu bytes of tokens", trainer->buffer_bytes);
}

static tp_status fill_trainer(tp_trainer *trainer)
{
    tp_ctx *ctx = trainer->ctx;
    trainer->params = tp_model_params(trainer->model, &trainer->param_count);
    TPI_TRY(
        tp_optimizer_create(ctx, &trainer->desc.optimizer, trainer->params, trainer->param_count, &trainer->optimizer));
    trainer->buffer_bytes = (size_t)(trainer->desc.batch * trainer->desc.sequence) * sizeof(int32_t);
    for (int i = 0; i < 2; i++) {
        TPI_TRY(allocate_ids(trainer, &trainer->buffer[i].ids));
        TPI_TRY(allocate_ids(trainer, &trainer->buffer[i].targets));
    }
    if (!ctx->backend->host_memory)
        TPI_TRY(allocate_host(trainer));
    tp_pass pass = pass_of(&trainer->desc, trainer->desc.microbatch);
    trainer->saved_bytes = tp_model_saved_bytes(trainer->model, &pass);
    return tp_ctx_allocate(ctx, TP_MEMORY_SAVED, trainer->saved_bytes, &trainer->saved);
}

tp_status tp_trainer_create(tp_ctx *ctx, const tp_trainer_desc *desc, tp_model *model, const tp_data *data,
                            tp_trainer **out)
{
    TPI_TRY(tpi_given(ctx, "tp_trainer_create: out", out));
    *out = NULL;
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_given(ctx, "tp_trainer_create: desc", desc));
    TPI_TRY(tpi_given(ctx, "tp_trainer_create: data", data));
    TPI_TRY(tpi_object_usable(ctx, "tp_trainer_create: model", tpi_model_ctx(model)));
    TPI_TRY(check_desc(ctx, desc));
    TPI_TRY(check_fit(ctx, desc, model, data));
    tp_trainer *trainer = tpi_host_allocate(ctx, sizeof *trainer);
    if (trainer == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "trainer: out of memory");
    trainer->ctx = ctx;
    trainer->desc = *desc;
    trainer->desc.microbatch = desc->microbatch != 0 ? desc->microbatch : desc->batch;
    trainer->model = model;
    trainer->data = data;
    tp_status status = fill_trainer(trainer);
    if (status != TP_OK) {
        tp_trainer_destroy(trainer);
        return status;
    }
    *out = trainer;
    return TP_OK;
}

static void release_ids(tp_trainer *trainer, int32_t *ids)
{
    if (ids != NULL)
        tp_ctx_release(trainer->ctx, TP_MEMORY_OTHER, ids, trainer->buffer_bytes);
}

void tp_trainer_destroy(tp_trainer *trainer)
{
    if (trainer == NULL)
        return;
    tp_ctx *ctx = trainer->ctx;
    tp_ctx_synchronize(ctx);
    tp_optimizer_destroy(trainer->optimizer);
    for (int i = 0; i < 2; i++) {
        release_ids(trainer, trainer->buffer[i].ids);
        release_ids(trainer, trainer->buffer[i].targets);
    }
    tpi_host_release(ctx, trainer->host.ids, trainer->buffer_bytes);
    tpi_host_release(ctx, trainer->host.targets, trainer->buffer_bytes);
    if (trainer->saved != NULL)
        tp_ctx_release(ctx, TP_MEMORY_SAVED, trainer->saved, trainer->saved_bytes);
    tpi_host_release(ctx, trainer, sizeof *trainer);
}

tp_optimizer *tp_trainer_optimizer(tp_trainer *trainer)
{
    return trainer->optimizer;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

float tp_trainer_lr(const tp_trainer_desc *desc, int64_t step)
{
    if (step <= desc->warmup)
        return (float)((double)desc->lr * (double)step / (double)desc->warmup);
    if (desc->decay_steps == 0)
        return desc->lr;
    static const double pi = 3.14159265358979323846;
    double done = (double)(step - desc->warmup) / (double)desc->decay_steps;
    double share = done < 1.0 ? 0.5 * (1.0 + cos(pi * done)) : 0.0;
    return (float)((double)desc->min_lr + ((double)desc->lr - (double)desc->min_lr) * share);
}

static int64_t valid_tokens(const int32_t *targets, int64_t count)
{
    int64_t valid = 0;
    for (int64_t i = 0; i < count; i++)
        valid += targets[i] >= 0;
    return valid;
}

static tp_status upload(const tp_trainer *trainer, int64_t tokens, const step_data *to)
{
    size_t bytes = (size_t)tokens * sizeof(int32_t);
    TPI_TRY(tp_ctx_upload(trainer->ctx, to->ids, trainer->host.ids, bytes));
    return tp_ctx_upload(trainer->ctx, to->targets, trainer->host.targets, bytes);
}

/* Reads `sequences` sequences from token `at` on, each with its own targets: the last target is the first token of the
 * next sequence. Returns how many targets are valid in *valid unless that is NULL. */
static tp_status read_sequences(const tp_trainer *trainer, int64_t at, int64_t sequences, const step_data *to,
                                int64_t *valid)
{
    const step_data *out = trainer->host.ids != NULL ? &trainer->host : to;
    int64_t length = trainer->desc.sequence, tokens = tp_data_tokens(trainer->data);
    for (int64_t s = 0; s < sequences; s++) {
        tp_status status = tp_data_read(trainer->data, at, length, out->ids + s * length, out->targets + s * length);
        if (status != TP_OK)
            return tpi_refuse(trainer->ctx, status, "trainer: %s", tp_last_message());
        at = (at + length) % tokens; /* a sequence is shorter than the data */
    }
    if (valid != NULL)
        *valid = valid_tokens(out->targets, sequences * length);
    return out == to ? TP_OK : upload(trainer, sequences * length, to);
}

/* Modules of the caller's own may add to gradients in ways that only zeros are good for. */
static tp_status begin_gradients(tp_ctx *ctx, tp_trainer *trainer)
{
    bool ours = tpi_model_desc_of(trainer->model) != NULL;
    return (ours ? tp_params_begin : tp_params_zero_grad)(ctx, trainer->params, trainer->param_count);
}

/* Forward and backward of all microbatches, every gradient scaled by the step's valid tokens. */
static tp_status accumulate(tp_ctx *ctx, tp_trainer *trainer, const step_data *data, int64_t valid)
{
    const tp_trainer_desc *desc = &trainer->desc;
    tp_pass pass = pass_of(desc, desc->microbatch);
    pass.loss_scale = valid > 0 ? 1.0f / (float)valid : 1.0f; /* without valid tokens gradients are 0 anyway */
    pass.step = (uint64_t)trainer->step;
    for (int64_t at = 0; at < desc->batch * desc->sequence; at += pass.tokens) {
        pass.ids = data->ids + at;
        pass.targets = data->targets + at;
        pass.first_token = at;
        TPI_TRY(tp_model_forward(ctx, trainer->model, &pass, trainer->saved));
        TPI_TRY(tp_model_backward(ctx, trainer->model, &pass, trainer->saved));
    }
    return tp_params_finish(ctx, trainer->params, trainer->param_count);
}

static tp_status fill_report(tp_ctx *ctx, tp_trainer *trainer, float lr, const tp_step_report *step,
                             tp_train_report *report)
{
    double sum, tokens;
    TPI_TRY(tp_model_loss(ctx, trainer->model, &sum, &tokens));
    *report = (tp_train_report){.step = trainer->step,
                                .loss = tokens > 0.0 ? sum / tokens : 0.0,
                                .tokens = tokens,
                                .lr = lr,
                                .grad_norm = step->grad_norm,
                                .skipped = step->skipped};
    return TP_OK;
}

tp_status tp_trainer_step(tp_ctx *ctx, tp_trainer *trainer, tp_train_report *report)
{
    TPI_TRY_OBJECT(ctx, "tp_trainer_step: trainer", trainer);
    const tp_trainer_desc *desc = &trainer->desc;
    const step_data *data = &trainer->buffer[trainer->step % 2];
    int64_t tokens = desc->batch * desc->sequence;
    int64_t valid = 0;
    TPI_TRY(read_sequences(trainer, trainer->at, desc->batch, data, &valid));
    TPI_TRY(begin_gradients(ctx, trainer));
    TPI_TRY(tpi_model_loss_reset(ctx, trainer->model));
    trainer->at = (trainer->at + tokens % tp_data_tokens(trainer->data)) % tp_data_tokens(trainer->data);
    trainer->step++;
    TPI_TRY(accumulate(ctx, trainer, data, valid));
    /* Skipped steps don't advance the learning rate. This waits for the step before, so of the two buffers the other
     * one is free now. */
    int64_t counted;
    TPI_TRY(tpi_optimizer_steps(trainer->optimizer, &counted));
    float lr = tp_trainer_lr(desc, counted + 1);
    tp_step_report step;
    TPI_TRY(tp_optimizer_step(ctx, trainer->optimizer, lr, report != NULL ? &step : NULL));
    return report != NULL ? fill_report(ctx, trainer, lr, &step, report) : TP_OK;
}

/* ---- evaluation -------------------------------------------------------------------------------------------------- */

static tp_status evaluate_pass(tp_ctx *ctx, tp_trainer *trainer, int64_t at, int64_t sequences)
{
    const step_data *data = &trainer->buffer[0];
    TPI_TRY(tp_ctx_synchronize(ctx)); /* the buffer is free */
    TPI_TRY(read_sequences(trainer, at, sequences, data, NULL));
    tp_pass pass = pass_of(&trainer->desc, sequences);
    pass.ids = data->ids;
    pass.targets = data->targets;
    pass.no_dropout = true;
    return tp_model_forward(ctx, trainer->model, &pass, NULL);
}

tp_status tp_trainer_evaluate(tp_ctx *ctx, tp_trainer *trainer, int64_t at, int64_t sequences, double *loss)
{
    TPI_TRY_OBJECT(ctx, "tp_trainer_evaluate: trainer", trainer);
    TPI_TRY(tpi_given(ctx, "tp_trainer_evaluate: loss", loss));
    if (at < 0 || sequences < 1)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT,
                          "trainer: at is %" PRId64 ", at least 0 expected; sequences is %" PRId64 ", at least 1", at,
                          sequences);
    TPI_TRY(tpi_model_loss_reset(ctx, trainer->model));
    int64_t tokens = tp_data_tokens(trainer->data), microbatch = trainer->desc.microbatch;
    at %= tokens;
    for (int64_t s = 0; s < sequences; s += microbatch) {
        int64_t here = sequences - s < microbatch ? sequences - s : microbatch;
        TPI_TRY(evaluate_pass(ctx, trainer, at, here));
        at = (at + here * trainer->desc.sequence % tokens) % tokens;
    }
    double sum, counted;
    TPI_TRY(tp_model_loss(ctx, trainer->model, &sum, &counted));
    *loss = counted > 0.0 ? sum / counted : 0.0;
    return TP_OK;
}
