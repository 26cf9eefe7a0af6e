#include "training.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "counting.h"
#include "data.h"
#include "support/devices.h"

typedef struct job {
    const tpt_training *training;
    tpt_trained *out;
    atomic_bool replicas_differ;
} job;

/* One rank's objects. */
typedef struct rank_state {
    tp_ctx *ctx;
    job *job;
    tp_model *model;
    tp_optimizer *optimizer;
    tp_param *const *params;
    int count;
    void *saved;
    size_t saved_bytes;
    int32_t *batch; /* ids, then targets */
    size_t batch_bytes;
} rank_state;

static tp_pass whole_pass(const tpt_training *training)
{
    tp_pass pass = {.sequences = training->microbatch != 0 ? training->microbatch : training->sequences};
    if (training->offsets != NULL)
        pass.sequences = training->sequences;
    pass.offsets = training->offsets;
    pass.tokens =
        training->offsets != NULL ? training->offsets[training->sequences] : pass.sequences * training->sequence;
    return pass;
}

static int64_t batch_tokens(const tpt_training *training)
{
    return training->offsets != NULL ? training->offsets[training->sequences]
                                     : training->sequences * training->sequence;
}

static void describe(rank_state *state)
{
    tpt_trained *out = state->job->out;
    out->params = state->count;
    for (int i = 0; i < state->count; i++) {
        snprintf(out->param[i].name, sizeof out->param[i].name, "%s", state->params[i]->name);
        out->param[i].at = out->elements;
        out->param[i].elements = tp_param_elements(state->params[i]);
        out->elements += out->param[i].elements;
    }
    size_t bytes = (size_t)out->elements * sizeof(float);
    out->initial = tpt_allocate(bytes);
    out->values = tpt_allocate(bytes);
    out->grads = tpt_allocate(bytes);
}

/* A replicated tensor must have the bits that rank 0 brought. */
static tp_status check_replica(rank_state *state, const tp_param *param, int which, const float *whole)
{
    const tp_tensor *mine = which == 0 ? &param->value : &param->grad;
    if (param->shard_dim >= 0)
        return TP_OK;
    void *host = tpt_allocate(tp_tensor_bytes(*mine));
    tp_status status = tp_ctx_download(state->ctx, host, mine->data, tp_tensor_bytes(*mine));
    for (int64_t i = 0; status == TP_OK && i < tp_param_elements(param); i++)
        if ((float)tpt_get(host, mine->dtype, i) != whole[i])
            atomic_store(&state->job->replicas_differ, true);
    free(host);
    return status;
}

static tp_status gather(rank_state *state, int which, float *list)
{
    int64_t at = 0;
    for (int i = 0; i < state->count; i++) {
        int64_t elements = tp_param_elements(state->params[i]);
        float *whole = tpt_array(TP_DTYPE_F32, elements);
        tp_status status = tp_param_gather(state->ctx, state->params[i], which, whole);
        if (status == TP_OK)
            status = check_replica(state, state->params[i], which, whole);
        if (status == TP_OK && tp_ctx_rank(state->ctx) == 0)
            memcpy(list + at, whole, (size_t)elements * sizeof(float));
        free(whole);
        TPI_TRY(status);
        at += elements;
    }
    return TP_OK;
}

static tp_status set_values(rank_state *state)
{
    const float *values = state->job->training->values;
    if (values == NULL)
        return tp_params_init(state->ctx, state->params, state->count);
    for (int i = 0; i < state->count; i++) {
        TPI_TRY(tp_param_load(state->ctx, state->params[i], values, TP_DTYPE_F32, NULL));
        values += tp_param_elements(state->params[i]);
    }
    return TP_OK;
}

static int64_t count_valid(const tpt_training *training)
{
    int64_t valid = 0;
    for (int64_t t = 0; t < batch_tokens(training); t++)
        valid += training->targets[t] >= 0;
    return valid;
}

/* The batch as the context sees it. */
static tp_status upload_batch(rank_state *state)
{
    const tpt_training *training = state->job->training;
    size_t bytes = (size_t)batch_tokens(training) * sizeof(int32_t);
    void *memory;
    TPI_TRY(tp_ctx_allocate(state->ctx, TP_MEMORY_OTHER, 2 * bytes, &memory));
    state->batch = memory;
    state->batch_bytes = 2 * bytes;
    TPI_TRY(tp_ctx_upload(state->ctx, state->batch, training->ids, bytes));
    return tp_ctx_upload(state->ctx, state->batch + batch_tokens(training), training->targets, bytes);
}

static tp_status hurt_gradient(rank_state *state)
{
    const float infinite = INFINITY;
    if (tp_ctx_rank(state->ctx) != state->job->training->ranks - 1)
        return TP_OK;
    return tp_ctx_upload(state->ctx, state->params[0]->grad.data, &infinite, sizeof infinite);
}

static tp_status one_step(rank_state *state, int step)
{
    const tpt_training *training = state->job->training;
    tpt_trained *out = state->job->out;
    tp_pass pass = whole_pass(training);
    int64_t valid = count_valid(training);
    pass.loss_scale = valid > 0 ? 1.0f / (float)valid : 1.0f;
    pass.step = (uint64_t)step + 1;
    TPI_TRY((training->zero_grad ? tp_params_zero_grad : tp_params_begin)(state->ctx, state->params, state->count));
    for (int64_t at = 0; at < batch_tokens(training); at += pass.tokens) {
        pass.ids = state->batch + at;
        pass.targets = state->batch + batch_tokens(training) + at;
        pass.first_token = at;
        TPI_TRY(tp_model_forward(state->ctx, state->model, &pass, state->saved));
        TPI_TRY(tp_model_backward(state->ctx, state->model, &pass, state->saved));
    }
    TPI_TRY(tp_params_finish(state->ctx, state->params, state->count));
    if (step + 1 == training->hurt_step)
        TPI_TRY(hurt_gradient(state));
    tp_step_report report;
    TPI_TRY(tp_optimizer_step(state->ctx, state->optimizer, training->lr, &report));
    double sum, tokens;
    TPI_TRY(tp_model_loss(state->ctx, state->model, &sum, &tokens));
    if (tp_ctx_rank(state->ctx) == 0) {
        out->loss[step] = sum;
        out->tokens[step] = tokens;
        out->norm[step] = report.grad_norm;
        out->skipped[step] = report.skipped;
    }
    return TP_OK;
}

static tp_status run(rank_state *state)
{
    const tpt_training *training = state->job->training;
    tpt_trained *out = state->job->out;
    state->params = tp_model_params(state->model, &state->count);
    if (tp_ctx_rank(state->ctx) == 0)
        describe(state);
    /* Now every rank knows where rank 0 collects. */
    TPI_TRY(tp_barrier(state->ctx, tp_ctx_world(state->ctx)));
    TPI_TRY(set_values(state));
    TPI_TRY(tp_optimizer_create(state->ctx, &training->optimizer, state->params, state->count, &state->optimizer));
    tp_pass pass = whole_pass(training);
    state->saved_bytes = tp_model_saved_bytes(state->model, &pass);
    TPI_TRY(tp_ctx_allocate(state->ctx, TP_MEMORY_SAVED, state->saved_bytes, &state->saved));
    TPI_TRY(upload_batch(state));
    TPI_TRY(gather(state, 0, out->initial));
    for (int step = 0; step < training->steps; step++)
        TPI_TRY(one_step(state, step));
    TPI_TRY(gather(state, 1, out->grads));
    return gather(state, 0, out->values);
}

static tp_status rank_main(tp_ctx *ctx, void *arg)
{
    rank_state state = {.ctx = ctx, .job = arg};
    tp_status status = tp_model_create(ctx, &state.job->training->model, &state.model);
    if (status == TP_OK)
        status = run(&state);
    tp_ctx_synchronize(ctx); /* a failed run may leave work behind */
    if (state.saved != NULL)
        tp_ctx_release(ctx, TP_MEMORY_SAVED, state.saved, state.saved_bytes);
    if (state.batch != NULL)
        tp_ctx_release(ctx, TP_MEMORY_OTHER, state.batch, state.batch_bytes);
    tp_optimizer_destroy(state.optimizer);
    tp_model_destroy(state.model);
    return status;
}

tp_status tpt_train(const tpt_training *training, tpt_trained *out)
{
    *out = (tpt_trained){0};
    job all = {.training = training, .out = out};
    tpt_counting counting = {0};
    tp_run_options options = {.ranks = training->ranks,
                              .devices = training->devices,
                              .ctx = {.threads = training->threads != 0 ? training->threads : 1,
                                      .seed = training->seed,
                                      .device = training->device,
                                      .plugin = training->plugin,
                                      .sum_order = training->sum_order,
                                      .lane_delay_seed = training->lane_delay_seed}};
    if (training->device == TP_DEVICE_CPU)
        options.ctx.allocator = tpt_counting_allocator(&counting);
    tp_status status = tpt_run_ranks(&options, rank_main, &all);
    out->replicas_equal = !atomic_load(&all.replicas_differ);
    if (status != TP_OK)
        fprintf(stderr, "training on %d ranks: %s: %s\n", training->ranks, tp_status_name(status), tp_last_message());
    if (atomic_load(&counting.live) == 0)
        return status;
    fprintf(stderr, "training on %d ranks leaks %lld allocations\n", training->ranks,
            (long long)atomic_load(&counting.live));
    return TP_ERR_INTERNAL;
}

void tpt_trained_free(tpt_trained *trained)
{
    free(trained->initial);
    free(trained->values);
    free(trained->grads);
    *trained = (tpt_trained){0};
}

static bool same_list(const char *what, const char *kind, const tpt_trained *trained, const float *got,
                      const float *want)
{
    bool same = true;
    for (int i = 0; i < trained->params; i++) {
        char text[256];
        snprintf(text, sizeof text, "%s: %s of %s", what, kind, trained->param[i].name);
        int64_t at = trained->param[i].at;
        same &= tpt_same_bits(text, got + at, want + at, TP_DTYPE_F32, trained->param[i].elements);
    }
    return same;
}

bool tpt_trained_same(const char *what, const tpt_trained *got, const tpt_trained *want)
{
    bool same = true;
    for (int step = 0; step < TPT_MOST_STEPS && same; step++) {
        same = memcmp(&got->loss[step], &want->loss[step], sizeof got->loss[step]) == 0 &&
               got->tokens[step] == want->tokens[step] &&
               memcmp(&got->norm[step], &want->norm[step], sizeof got->norm[step]) == 0 &&
               got->skipped[step] == want->skipped[step];
        if (!same)
            fprintf(stderr, "%s: step %d: loss %.9g and %.9g, norm %.9g and %.9g\n", what, step, got->loss[step],
                    want->loss[step], (double)got->norm[step], (double)want->norm[step]);
    }
    if (!got->replicas_equal || got->elements != want->elements) {
        fprintf(stderr, "%s: replicas differ, or %" PRId64 " and %" PRId64 " elements\n", what, got->elements,
                want->elements);
        return false;
    }
    same &= same_list(what, "initial value", got, got->initial, want->initial);
    same &= same_list(what, "gradient", got, got->grads, want->grads);
    return same_list(what, "value", got, got->values, want->values) && same;
}

void tpt_values_to_reference(const tpt_reference *reference, const tpt_trained *trained, const float *list,
                             double *flat)
{
    for (int i = 0; i < trained->params; i++) {
        const tpt_reference_param *param = tpt_reference_find(reference, trained->param[i].name);
        if (param == NULL || param->rows * param->cols != trained->param[i].elements) {
            fprintf(stderr, "reference: no parameter %s of %" PRId64 " elements\n", trained->param[i].name,
                    trained->param[i].elements);
            exit(99);
        }
        tpt_to_f64(flat + param->at, list + trained->param[i].at, TP_DTYPE_F32, trained->param[i].elements);
    }
}

void tpt_make_batch(int32_t *ids, int32_t *targets, int64_t tokens, int64_t vocabulary, int ignore)
{
    for (int64_t t = 0; t <= tokens; t++) {
        int32_t id = (int32_t)((t * t * 7 + t / 3 * 5 + 11) % vocabulary);
        if (t < tokens)
            ids[t] = id;
        if (t > 0)
            targets[t - 1] = ignore != 0 && (t - 1) % ignore == ignore - 1 ? -1 : id;
    }
}
