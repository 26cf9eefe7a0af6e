#include "stepper.h"

#include "mirror.h"
#include "parallel.h"

#include "core/context.h"

static tp_status open_parts(bench_stepper *s, tp_dtype dtype)
{
    tp_model_desc model = s->training->model;
    model.dtype = dtype;
    TPI_TRY(tp_model_create(s->ctx, &model, &s->model));
    s->params = tp_model_params(s->model, &s->count);
    TPI_TRY(tp_params_init(s->ctx, s->params, s->count));
    TPI_TRY(tp_optimizer_create(s->ctx, &s->training->trainer.optimizer, s->params, s->count, &s->optimizer));
    const tp_trainer_desc *trainer = &s->training->trainer;
    s->pass = (tp_pass){.tokens = trainer->batch * trainer->sequence, .sequences = trainer->batch};
    s->pass.loss_scale = 1.0f / (float)s->pass.tokens;
    void *memory;
    s->id_bytes = (size_t)s->pass.tokens * sizeof(int32_t);
    TPI_TRY(tp_ctx_allocate(s->ctx, TP_MEMORY_OTHER, s->id_bytes, &memory));
    s->pass.ids = memory;
    TPI_TRY(bench_mirror_open(&s->ids, s->ctx, memory, s->id_bytes));
    TPI_TRY(tp_ctx_allocate(s->ctx, TP_MEMORY_OTHER, s->id_bytes, &memory));
    s->pass.targets = memory;
    TPI_TRY(bench_mirror_open(&s->targets, s->ctx, memory, s->id_bytes));
    s->saved_bytes = tp_model_saved_bytes(s->model, &s->pass);
    return tp_ctx_allocate(s->ctx, TP_MEMORY_SAVED, s->saved_bytes, &s->saved);
}

tp_status bench_stepper_open(bench_stepper *stepper, tp_ctx *ctx, const bench_training *training, tp_dtype dtype)
{
    *stepper = (bench_stepper){.ctx = ctx, .training = training};
    if (ctx->backend->behind && !ctx->backend->host_memory)
        TPI_TRY(ctx->backend->timer_create(ctx, &stepper->timer));
    return open_parts(stepper, dtype);
}

void bench_stepper_close(bench_stepper *s)
{
    if (s->timer != NULL)
        s->ctx->backend->timer_destroy(s->timer);
    bench_mirror *const mirrors[] = {&s->ids, &s->targets};
    for (int i = 0; i < 2; i++) {
        if (mirrors[i]->memory != NULL)
            tp_ctx_release(s->ctx, TP_MEMORY_OTHER, mirrors[i]->memory, s->id_bytes);
        bench_mirror_close(mirrors[i]);
    }
    if (s->saved != NULL)
        tp_ctx_release(s->ctx, TP_MEMORY_SAVED, s->saved, s->saved_bytes);
    tp_optimizer_destroy(s->optimizer);
    tp_model_destroy(s->model);
    *s = (bench_stepper){0};
}

static tp_status read_sequences(bench_stepper *s)
{
    int64_t length = s->training->trainer.sequence, tokens = tp_data_tokens(s->training->data);
    for (int64_t i = 0; i < s->pass.sequences; i++) {
        int32_t *ids = s->ids.host, *targets = s->targets.host;
        TPI_TRY(tp_data_read(s->training->data, s->at, length, ids + i * length, targets + i * length));
        s->at = (s->at + length) % tokens;
    }
    TPI_TRY(bench_mirror_put(&s->ids));
    return bench_mirror_put(&s->targets);
}

static tp_status step_optimizer(bench_stepper *s)
{
    tp_step_report report;
    TPI_TRY(tp_optimizer_step(s->ctx, s->optimizer, s->training->trainer.lr, &report));
    s->norm = (double)report.grad_norm;
    return TP_OK;
}

static tp_status run_phase(bench_stepper *s, bench_phase phase)
{
    switch (phase) {
    case BENCH_FORWARD:
        TPI_TRY(tp_params_begin(s->ctx, s->params, s->count));
        return tp_model_forward(s->ctx, s->model, &s->pass, s->saved);
    case BENCH_BACKWARD: return tp_model_backward(s->ctx, s->model, &s->pass, s->saved);
    case BENCH_FINISH: return tp_params_finish(s->ctx, s->params, s->count);
    case BENCH_OPTIMIZER: return step_optimizer(s);
    case BENCH_PHASES: break;
    }
    return TP_ERR_ARGUMENT;
}

tp_status bench_stepper_begin(bench_stepper *s)
{
    return read_sequences(s);
}

tp_status bench_stepper_phase(bench_stepper *s, bench_phase phase)
{
    const tpi_backend *backend = s->ctx->backend;
    double start = bench_now();
    if (s->timer != NULL)
        TPI_TRY(backend->timer_mark(s->timer, s->ctx->compute, 0));
    TPI_TRY(run_phase(s, phase));
    if (s->timer != NULL)
        TPI_TRY(backend->timer_mark(s->timer, s->ctx->compute, 1));
    TPI_TRY(tp_ctx_synchronize(s->ctx));
    s->phase[phase] = bench_now() - start;
    return s->timer != NULL ? backend->timer_read(s->timer, &s->phase[phase]) : TP_OK;
}

tp_status bench_stepper_end(bench_stepper *s)
{
    s->pass.step++;
    double sum, tokens;
    TPI_TRY(tp_model_loss(s->ctx, s->model, &sum, &tokens));
    s->loss = sum / tokens;
    return TP_OK;
}

tp_status bench_stepper_step(bench_stepper *s)
{
    TPI_TRY(bench_stepper_begin(s));
    for (int phase = 0; phase < BENCH_PHASES; phase++)
        TPI_TRY(bench_stepper_phase(s, (bench_phase)phase));
    return bench_stepper_end(s);
}

/* ---- dry runs ---------------------------------------------------------------------------------------------------- */

tp_status bench_predict_rank(const bench_call *call, const bench_training *training, tp_dtype dtype, int ranks,
                             int rank, int threads, bench_prediction *out)
{
    tp_ctx_desc desc = bench_run_options(call, ranks, threads).ctx;
    desc.dry_run = true;
    desc.dry_transport = (tp_transport)call->options.transport;
    desc.rank = rank;
    desc.mesh = (tp_mesh){.tp = ranks};
    tp_ctx *ctx = NULL;
    TPI_TRY(tp_ctx_create(&desc, &ctx));
    bench_stepper stepper;
    double before = 0, after = 0, bytes;
    tp_status status = bench_stepper_open(&stepper, ctx, training, dtype);
    if (status == TP_OK)
        status = bench_stepper_step(&stepper);
    tp_ctx_work(ctx, &before, &bytes);
    if (status == TP_OK)
        status = bench_stepper_step(&stepper);
    tp_ctx_work(ctx, &after, &bytes);
    out->flops = after - before;
    for (int kind = 0; kind < TP_MEMORY_KINDS; kind++)
        out->bytes[kind] = (double)tp_ctx_memory(ctx, (tp_memory_kind)kind).peak;
    bench_stepper_close(&stepper);
    tp_ctx_destroy(ctx);
    return status;
}

tp_status bench_predict(const bench_call *call, const bench_training *training, tp_dtype dtype, int ranks, int threads,
                        bench_prediction *out)
{
    *out = (bench_prediction){0};
    for (int rank = 0; rank < ranks; rank++) {
        bench_prediction one;
        TPI_TRY(bench_predict_rank(call, training, dtype, ranks, rank, threads, &one));
        for (int kind = 0; kind < TP_MEMORY_KINDS; kind++)
            out->bytes[kind] += one.bytes[kind];
        out->flops += one.flops;
    }
    return TP_OK;
}

double bench_prediction_total(const bench_prediction *prediction)
{
    double total = 0;
    for (int kind = 0; kind < TP_MEMORY_KINDS; kind++)
        total += prediction->bytes[kind];
    return total;
}
