#include "model_peer.h"

#include "core/context.h"
#include "parallel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int bench_model_peer_check(bench_call *call, const bench_training *training)
{
    const bench_options *options = &call->options;
    const tp_model_desc *model = &training->model;
    if (options->dry_run || bench_on_gpu(call))
        return bench_refuse(call,
                            "--peer torch: compares steps on the CPU, without --dry-run and without --device cuda");
    if (bench_link_modelled(call))
        return bench_refuse(call, "--peer torch: compares with what the machine has, without --link");
    if (model->family != TP_MODEL_GPT2 || (model->activation_set && model->activation != TP_ACTIVATION_GELU_TANH) ||
        (model->kv_heads > 0 && model->kv_heads != model->heads))
        return bench_refuse(call,
                            "--peer torch: its model is GPT-2's: --family gpt2, gelu-tanh, as many kv heads as heads");
    if (model->dropout > 0)
        return bench_refuse(call, "--dropout %g: --peer torch compares losses, so without", options->dropout);
    for (int i = 0; i < options->dtypes.count; i++)
        if (options->dtypes.value[i] == TP_DTYPE_F16)
            return bench_refuse(call, "--dtype f16: --peer torch compares f32 and bf16");
    return BENCH_OK;
}

/* ---- starting ---------------------------------------------------------------------------------------------------- */

static bool send_job(bench_model_peer *peer)
{
    const tp_model_desc *model = &peer->training->model;
    const tp_trainer_desc *trainer = &peer->training->trainer;
    const tp_optimizer_desc *optimizer = &trainer->optimizer;
    const bench_options *options = &peer->call->options;
    return bench_torch_line(&peer->torch, peer->message,
                            "layers %lld heads %lld batch %lld sequence %lld threads %d dtype %s settings %.100s lr "
                            "%.9e beta1 %.9e beta2 %.9e epsilon %.9e decay %.9e "
                            "clip %.9e norm_epsilon %.9e\n",
                            (long long)model->layers, (long long)model->heads, (long long)trainer->batch,
                            (long long)trainer->sequence, peer->threads, tp_dtype_name(peer->dtype),
                            options->peer_settings != NULL ? options->peer_settings : "auto", (double)trainer->lr,
                            optimizer->beta1 > 0 ? (double)optimizer->beta1 : 0.9,
                            optimizer->beta2 > 0 ? (double)optimizer->beta2 : 0.95,
                            optimizer->epsilon > 0 ? (double)optimizer->epsilon : 1e-8, (double)optimizer->decay,
                            (double)optimizer->clip_norm, model->norm_epsilon > 0 ? (double)model->norm_epsilon : 1e-5);
}

static tp_status send_param(bench_model_peer *peer, tp_ctx *ctx, const tp_param *param)
{
    size_t count = (size_t)tp_param_elements(param);
    float *values = malloc(count * sizeof *values);
    if (values == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "no memory for %zu values of %s", count, param->name);
    tp_status status = tp_param_gather(ctx, param, 0, values);
    if (status == TP_OK &&
        (!bench_torch_line(&peer->torch, peer->message, "param %s %lld %lld %d\n", param->name,
                           (long long)param->shape[0], (long long)(param->dims == 2 ? param->shape[1] : 1),
                           (param->flags & TP_PARAM_DECAY) != 0) ||
         !bench_torch_send(&peer->torch, values, count * sizeof *values, peer->message)))
        status = tpi_refuse(ctx, TP_ERR_COMM, "%s", peer->message);
    free(values);
    return status;
}

/* The weights that every layout begins with, rounded to the dtype. */
static tp_status send_weights(tp_ctx *ctx, void *arg)
{
    bench_model_peer *peer = arg;
    tp_model_desc desc = peer->training->model;
    desc.dtype = peer->dtype;
    tp_model *model = NULL;
    int count = 0;
    TPI_TRY(tp_model_create(ctx, &desc, &model));
    tp_param *const *params = tp_model_params(model, &count);
    tp_status status = tp_params_init(ctx, params, count);
    for (int i = 0; i < count && status == TP_OK; i++)
        status = send_param(peer, ctx, params[i]);
    tp_model_destroy(model);
    return status;
}

int bench_model_peer_open(bench_model_peer *peer, bench_call *call, const bench_training *training, tp_dtype dtype,
                          int threads)
{
    const bench_options *options = &call->options;
    *peer = (bench_model_peer){.call = call, .training = training, .dtype = dtype, .threads = threads};
    atomic_init(&peer->failed, false);
    double patience = options->patience > 0 ? options->patience : 300;
    bench_progress("model: PyTorch is started for %s", tp_dtype_name(dtype));
    if (!bench_torch_start(&peer->torch, bench_torch_python(options->python), threads, patience, peer->message) ||
        !send_job(peer))
        return bench_fail(call, "%s", peer->message);
    tp_run_options start = bench_run_options(call, 1, 1);
    if (tp_run_ranks(&start, send_weights, peer) != TP_OK)
        return bench_fail(call, "%s", peer->message[0] != '\0' ? peer->message : tp_last_message());
    if (!bench_torch_ready(&peer->torch, peer->message))
        return bench_fail(call, "%s", peer->message);
    bench_note(&call->table, "%s: PyTorch %s", tp_dtype_name(dtype), peer->torch.name);
    return BENCH_OK;
}

void bench_model_peer_close(bench_model_peer *peer)
{
    if (peer->torch.child > 0)
        bench_torch_stop(&peer->torch);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Where its tokens are read, as in a stepper. */
typedef struct reader {
    int32_t *ids, *targets;
    int64_t at, tokens;
} reader;

static bool read_tokens(const bench_model_peer *peer, reader *r)
{
    const tp_trainer_desc *trainer = &peer->training->trainer;
    for (int64_t i = 0; i < trainer->batch; i++) {
        if (tp_data_read(peer->training->data, r->at, trainer->sequence, r->ids + i * trainer->sequence,
                         r->targets + i * trainer->sequence) != TP_OK)
            return false;
        r->at = (r->at + trainer->sequence) % tp_data_tokens(peer->training->data);
    }
    return true;
}

static bool take_step(bench_model_peer *peer, reader *r, int64_t step)
{
    bench_torch_sample sample;
    if (!read_tokens(peer, r))
        return bench_say(peer->message, "%.300s", tp_last_message());
    bench_progress("model: %s, PyTorch, step %lld", tp_dtype_name(peer->dtype), (long long)step + 1);
    if (!bench_torch_step(&peer->torch, r->ids, r->targets, r->tokens, &sample, peer->message))
        return false;
    peer->results.loss[step] = sample.loss;
    peer->results.norm[step] = sample.norm;
    if (step >= peer->call->options.warmup) {
        bench_sample_add(&peer->step, sample.seconds, sample.clean);
        bench_sample_add(&peer->phase[BENCH_FORWARD], sample.forward, sample.clean);
        bench_sample_add(&peer->phase[BENCH_BACKWARD], sample.backward, sample.clean);
        bench_sample_add(&peer->phase[BENCH_OPTIMIZER], sample.optimizer, sample.clean);
    }
    return true;
}

/* A turn in which ours open, one for the steps before the timing, then one for each. */
static bool take_steps(bench_model_peer *peer, reader *r, bench_turns *turns, int party)
{
    const bench_options *options = &peer->call->options;
    bench_turns_take(turns, party);
    bench_turns_pass(turns, party);
    for (int64_t step = 0; step < options->steps; step++) {
        if (step == 0 || step >= options->warmup)
            bench_turns_take(turns, party);
        if (!take_step(peer, r, step))
            return false;
        if (step + 1 >= options->warmup)
            bench_turns_pass(turns, party);
    }
    return true;
}

void bench_model_peer_run(bench_model_peer *peer, bench_turns *turns, int party)
{
    int64_t tokens = peer->training->trainer.batch * peer->training->trainer.sequence;
    reader r = {.ids = malloc((size_t)tokens * sizeof *r.ids),
                .targets = malloc((size_t)tokens * sizeof *r.targets),
                .tokens = tokens};
    bool good = r.ids != NULL && r.targets != NULL;
    if (!good)
        bench_say(peer->message, "--peer torch: out of memory");
    if (!good || !take_steps(peer, &r, turns, party))
        atomic_store(&peer->failed, true); /* while it has the turn: all ranks of ours see it before their next step */
    free(r.ids);
    free(r.targets);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* How far a row is off another at most, relative to it; not a number where either is none. */
static double distance(const double *ours, const double *theirs, int64_t steps)
{
    double most = 0;
    for (int64_t i = 0; i < steps; i++) {
        double off = fabs(ours[i] / theirs[i] - 1);
        most = off > most || isnan(off) ? off : most;
    }
    return most;
}

void bench_model_peer_compare(bench_model_peer *peer, const bench_model_results *ours, int ranks)
{
    /* bf16: of a loss half an epsilon, which one rounding may take (both are means, so rounding mostly cancels, but it
     * grows from step to step); of a norm, of gradients that were rounded many times, two. f32: PyTorch adds up squares
     * in f32, which alone is 1e-4 of a norm of 39 M elements. */
    bool f32 = peer->dtype == TP_DTYPE_F32;
    double loss_most = f32 ? 1e-4 : 0x1p-9, norm_most = f32 ? 1e-3 : 0x1p-7;
    const bench_model_results *theirs = &peer->results;
    int64_t steps = peer->call->options.steps, last = steps - 1;
    double loss = distance(ours->loss, theirs->loss, steps), norm = distance(ours->norm, theirs->norm, steps);
    const char *dtype = tp_dtype_name(peer->dtype);
    bench_note(&peer->call->table,
               "%s, %d ranks: loss %.6f, PyTorch %.6f in step 1; %.6f, %.6f in step %lld; in all %lld losses are off "
               "by at most %.2g of them, gradients' norms by %.2g",
               dtype, ranks, ours->loss[0], theirs->loss[0], ours->loss[last], theirs->loss[last], (long long)steps,
               (long long)steps, loss, norm);
    if (!(loss <= loss_most) || !(norm <= norm_most))
        bench_check_failed(peer->call,
                           "%s, %d ranks: losses are %.3g of them off PyTorch's, gradients' norms %.3g; up to %.3g and "
                           "%.3g are rounding (which a high --lr makes more of)",
                           dtype, ranks, loss, norm, loss_most, norm_most);
}
