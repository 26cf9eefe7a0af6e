#include "sweep_party.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One rank's training. */
typedef struct trainee {
    bench_sweep_party *party;
    tp_ctx *ctx;
    tp_model *model;
    tp_trainer *trainer;
    int64_t step; /* steps done */
} trainee;

static tp_status open_trainee(trainee *t)
{
    bench_sweep_party *party = t->party;
    tp_model_desc model = party->training->model;
    model.dtype = party->dtype;
    tp_trainer_desc trainer = party->training->trainer;
    trainer.batch = party->batch;
    trainer.microbatch = party->microbatch;
    tp_status status = tp_model_create(t->ctx, &model, &t->model);
    if (status != TP_OK)
        return status;
    int count;
    tp_param *const *params = tp_model_params(t->model, &count);
    status = tp_params_init(t->ctx, params, count);
    return status == TP_OK ? tp_trainer_create(t->ctx, &trainer, t->model, party->training->data, &t->trainer) : status;
}

/* One step, for bench_team_measure. */
static tp_status train_step(void *arg)
{
    trainee *t = arg;
    tp_train_report report;
    tp_status status = tp_trainer_step(t->ctx, t->trainer, &report);
    if (status == TP_OK && tp_ctx_rank(t->ctx) == 0) {
        t->party->losses[t->step] = report.loss;
        bench_progress("sweep: %s, %d ranks, step %lld of %lld, loss %.4f", tp_dtype_name(t->party->dtype),
                       t->party->ranks, (long long)t->step + 1, (long long)t->party->steps, report.loss);
    }
    t->step++;
    return status;
}

/* ---- comparison -------------------------------------------------------------------------------------------------- */

static bool reference_open(bench_sweep_reference *reference, tp_param *const *params, int count)
{
    reference->params = count;
    reference->weights = calloc((size_t)count, sizeof *reference->weights);
    for (int i = 0; i < count && reference->weights != NULL; i++) {
        reference->weights[i] = malloc((size_t)tp_param_elements(params[i]) * sizeof(float));
        if (reference->weights[i] == NULL)
            return false;
    }
    return reference->weights != NULL;
}

void bench_sweep_reference_close(bench_sweep_reference *reference)
{
    for (int i = 0; i < reference->params && reference->weights != NULL; i++)
        free(reference->weights[i]);
    free(reference->weights);
    free(reference->losses);
    *reference = (bench_sweep_reference){0};
}

static int64_t largest_param(tp_param *const *params, int count)
{
    int64_t largest = 1;
    for (int i = 0; i < count; i++)
        largest = tp_param_elements(params[i]) > largest ? tp_param_elements(params[i]) : largest;
    return largest;
}

/* Gathers each parameter; rank 0 keeps it, or compares it with what was kept. */
static tp_status meet_weights(trainee *t, bool keep, bool *same)
{
    bench_sweep_reference *reference = t->party->reference;
    int count;
    tp_param *const *params = tp_model_params(t->model, &count);
    float *global = malloc((size_t)largest_param(params, count) * sizeof *global);
    tp_status status = global != NULL ? TP_OK : TP_ERR_MEMORY;
    *same = true;
    for (int i = 0; i < count && status == TP_OK; i++) {
        size_t bytes = (size_t)tp_param_elements(params[i]) * sizeof *global;
        status = tp_param_gather(t->ctx, params[i], 0, global);
        if (status != TP_OK || tp_ctx_rank(t->ctx) != 0)
            continue;
        if (keep)
            memcpy(reference->weights[i], global, bytes);
        else
            *same = *same && memcmp(reference->weights[i], global, bytes) == 0;
    }
    free(global);
    return status;
}

static tp_status keep_results(trainee *t)
{
    bench_sweep_party *party = t->party;
    bench_sweep_reference *reference = party->reference;
    bool unused, root = tp_ctx_rank(t->ctx) == 0;
    if (root) {
        int count;
        tp_param *const *params = tp_model_params(t->model, &count);
        reference->losses = malloc((size_t)party->steps * sizeof *reference->losses);
        if (reference->losses == NULL || !reference_open(reference, params, count))
            return TP_ERR_MEMORY;
        memcpy(reference->losses, party->losses, (size_t)party->steps * sizeof *reference->losses);
    }
    tp_status status = meet_weights(t, true, &unused);
    if (status == TP_OK && root)
        reference->ready = true;
    return status;
}

static tp_status compare_results(trainee *t)
{
    bench_sweep_party *party = t->party;
    if (!party->reference->ready)
        return TP_OK;
    bool same;
    tp_status status = meet_weights(t, false, &same);
    if (status == TP_OK && tp_ctx_rank(t->ctx) == 0) {
        party->compared = true;
        party->same_weights = same;
        party->same_losses =
            memcmp(party->reference->losses, party->losses, (size_t)party->steps * sizeof *party->losses) == 0;
    }
    return status;
}

/* ---- the party --------------------------------------------------------------------------------------------------- */

static tp_status train(trainee *t)
{
    bench_sweep_party *party = t->party;
    int warmup = (int)party->call->options.warmup;
    warmup = warmup < party->steps ? warmup : (int)party->steps - 1;
    int timed = (int)party->steps - warmup;
    bench_team_plan plan = {.warmup = warmup, .least = timed, .most = timed, .seconds = 0, .repeats = 1};
    tp_status status = bench_team_measure(&party->team, t->ctx, &plan, train_step, t, &party->figure);
    if (status != TP_OK || party->call->options.no_check)
        return status;
    /* The party that defines the reference comes before those that are compared with it, and all take equally many
     * turns. */
    bench_turns_take(party->team.turns, party->index);
    /* A rank may have come through before rank 0 passed the turn: together they see one state of the reference. */
    double unused;
    status = bench_team_sum(&party->team, t->ctx, 0, &unused);
    if (status != TP_OK)
        return status;
    return party->defines ? keep_results(t) : compare_results(t);
}

static tp_status rank_main(tp_ctx *ctx, void *arg)
{
    bench_sweep_party *party = arg;
    trainee t = {.party = party, .ctx = ctx};
    bench_turns_take(party->team.turns, party->index);
    tp_status status = open_trainee(&t);
    double unused;
    if (status == TP_OK)
        status = bench_team_sum(&party->team, ctx, 0, &unused);
    if (status == TP_OK && tp_ctx_rank(ctx) == 0)
        bench_turns_pass(party->team.turns, party->index);
    if (status == TP_OK)
        status = train(&t);
    tp_trainer_destroy(t.trainer);
    tp_model_destroy(t.model);
    return status;
}

void bench_sweep_party_run(bench_sweep_party *party)
{
    tp_run_options options = bench_run_options(party->call, party->ranks, party->threads);
    party->losses = calloc((size_t)party->steps, sizeof *party->losses);
    party->status = party->losses != NULL ? tp_run_ranks(&options, rank_main, party) : TP_ERR_MEMORY;
    if (party->status != TP_OK)
        snprintf(party->message, sizeof party->message, "%s", tp_last_message());
}

tp_status bench_sweep_party_bytes(const bench_sweep_party *party, double *bytes)
{
    bench_training step = *party->training;
    step.trainer.batch = party->microbatch > 0 ? party->microbatch : party->batch;
    bench_prediction predicted;
    tp_status status = bench_predict(party->call, &step, party->dtype, party->ranks, party->threads, &predicted);
    if (status != TP_OK)
        return status;
    /* The comparison gathers one parameter at a time on every rank, and keeps all of one degree. */
    const tp_model_desc *model = &party->training->model;
    double largest = (double)model->vocabulary * (double)model->hidden, kept = (double)tp_model_parameters(model);
    double compared = party->call->options.no_check ? 0 : 4 * (party->ranks * largest + kept);
    *bytes = bench_prediction_total(&predicted) + compared;
    return TP_OK;
}
