/* Writes a model's weights, logits, loss and gradients for one batch, for an outside program to check; or what some
 * steps of training make of them.
 *
 *   dump_model FAMILY TP SEQUENCE_PARALLEL FILE [DTYPE]
 *
 * File: text lines "name dims..." each followed by that many raw f32 values (little endian). FAMILY: gpt2 or llama.
 * DTYPE, f32 or bf16: the weights, losses and gradient norms of all steps, then "after:NAME", and, of one rank,
 * "master:NAME". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/tp.h>

enum { BATCH = 3, SEQUENCE = 17, TOKENS = BATCH * SEQUENCE, STEPS = 5 };

/* An epsilon of the gradients' size: an update is then a smooth function of its gradient, and not the sign of one that
 * may be rounding only. */
static const tp_optimizer_desc optimizer_desc = {
    .kind = TP_OPTIMIZER_ADAMW, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-3f, .decay = 0.1f, .clip_norm = 1};
static const float learning_rate = 1e-3f;

typedef struct dump {
    tp_model_desc desc;
    bool train;
    FILE *file;
    int32_t ids[TOKENS], targets[TOKENS];
    float *logits; /* [TOKENS, vocabulary], each rank fills its columns */
} dump;

static void write_tensor(FILE *file, const char *name, const float *data, int64_t rows, int64_t cols)
{
    fprintf(file, "%s %lld %lld\n", name, (long long)rows, (long long)cols);
    fwrite(data, sizeof *data, (size_t)(rows * cols), file);
}

static void write_param(FILE *file, const char *prefix, const tp_param *param, const float *data)
{
    char name[TP_PARAM_NAME + 16];
    snprintf(name, sizeof name, "%s%s", prefix, param->name);
    write_tensor(file, name, data, param->shape[0], param->dims == 2 ? param->shape[1] : 1);
}

/* Values, which = 0, or gradients, 1; on all ranks. */
static tp_status write_params(tp_ctx *ctx, dump *d, tp_param *const *params, int count, int which, const char *prefix)
{
    for (int i = 0; i < count; i++) {
        float *all = malloc((size_t)tp_param_elements(params[i]) * sizeof *all);
        tp_status status = all ? tp_param_gather(ctx, params[i], which, all) : TP_ERR_MEMORY;
        if (status == TP_OK && tp_ctx_rank(ctx) == 0)
            write_param(d->file, prefix, params[i], all);
        free(all);
        if (status != TP_OK)
            return status;
    }
    return TP_OK;
}

/* Values that show a wrong order, transposition or missing term: nothing is zero, no two tensors are alike. */
static tp_status load_params(tp_ctx *ctx, tp_param *const *params, int count)
{
    for (int i = 0; i < count; i++) {
        int64_t elements = tp_param_elements(params[i]);
        float *values = malloc((size_t)elements * sizeof *values);
        if (!values)
            return TP_ERR_MEMORY;
        tp_random_key key = {7, tp_random_stream_name(params[i]->name)};
        for (int64_t e = 0; e < elements; e++)
            values[e] = (params[i]->init == TP_INIT_ONE ? 1.0f : 0.0f) + 0.15f * tp_random_normal(key, (uint64_t)e);
        tp_status status = tp_param_load(ctx, params[i], values, TP_DTYPE_F32, NULL);
        free(values);
        if (status != TP_OK)
            return status;
    }
    return TP_OK;
}

static tp_status collect_logits(tp_ctx *ctx, dump *d, tp_model *model, const void *saved, const tp_pass *pass)
{
    tp_tensor local;
    tp_status status = tp_model_logits(model, saved, pass, &local);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    tp_range columns = tp_shard_range(d->desc.vocabulary, tp_comm_size(tp_ctx_world(ctx)), tp_ctx_rank(ctx));
    for (int64_t t = 0; status == TP_OK && t < TOKENS; t++)
        memcpy(d->logits + t * d->desc.vocabulary + columns.begin, (float *)local.data + t * local.stride[0],
               (size_t)(columns.end - columns.begin) * sizeof(float));
    tp_status met = tp_barrier(ctx, tp_ctx_world(ctx));
    return status != TP_OK ? status : met;
}

/* The batch, of every step. */
static tp_pass pass_of(const dump *d, int64_t step)
{
    return (tp_pass){.tokens = TOKENS, .sequences = BATCH, .ids = d->ids, .targets = d->targets,
                     .loss_scale = 1.0f / TOKENS, .step = (uint64_t)step};
}

static tp_status run_model(tp_ctx *ctx, dump *d, tp_model *model)
{
    const tp_pass pass = pass_of(d, 0);
    int count;
    tp_param *const *params = tp_model_params(model, &count);
    tp_status status = load_params(ctx, params, count);
    size_t bytes = tp_model_saved_bytes(model, &pass);
    void *saved = NULL;
    if (status == TP_OK)
        status = tp_ctx_allocate(ctx, TP_MEMORY_SAVED, bytes, &saved);
    if (status == TP_OK)
        status = tp_model_forward(ctx, model, &pass, saved);
    if (status == TP_OK)
        status = collect_logits(ctx, d, model, saved, &pass);
    if (status == TP_OK)
        status = tp_model_backward(ctx, model, &pass, saved);
    if (status == TP_OK)
        status = tp_params_finish(ctx, params, count);
    double sum = 0, tokens = 0;
    if (status == TP_OK)
        status = tp_model_loss(ctx, model, &sum, &tokens);
    if (status == TP_OK && tp_ctx_rank(ctx) == 0) {
        float loss = (float)(sum / tokens);
        write_tensor(d->file, "loss", &loss, 1, 1);
        write_tensor(d->file, "logits", d->logits, TOKENS, d->desc.vocabulary);
    }
    if (status == TP_OK)
        status = write_params(ctx, d, params, count, 0, "");
    if (status == TP_OK)
        status = write_params(ctx, d, params, count, 1, "grad:");
    tp_ctx_release(ctx, TP_MEMORY_SAVED, saved, bytes);
    return status;
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

static tp_status take_step(tp_ctx *ctx, dump *d, tp_model *model, tp_optimizer *optimizer, int64_t step, void *saved)
{
    const tp_pass pass = pass_of(d, step);
    int count;
    tp_param *const *params = tp_model_params(model, &count);
    double sum = 0, tokens = 0;
    tp_step_report report;
    tp_status status = tp_params_begin(ctx, params, count);
    if (status == TP_OK)
        status = tp_model_forward(ctx, model, &pass, saved);
    if (status == TP_OK)
        status = tp_model_backward(ctx, model, &pass, saved);
    if (status == TP_OK)
        status = tp_params_finish(ctx, params, count);
    if (status == TP_OK)
        status = tp_optimizer_step(ctx, optimizer, learning_rate, &report);
    if (status == TP_OK)
        status = tp_model_loss(ctx, model, &sum, &tokens);
    if (status == TP_OK && tp_ctx_rank(ctx) == 0) {
        const float figures[2] = {(float)(sum / tokens), report.grad_norm};
        char name[32];
        snprintf(name, sizeof name, "step:%lld", (long long)step);
        write_tensor(d->file, name, figures, 1, 2);
    }
    return status;
}

static tp_status write_masters(dump *d, tp_optimizer *optimizer, tp_param *const *params, int count)
{
    for (int i = 0; i < count; i++) {
        float *master, *m, *v;
        int64_t step;
        tp_status status = tp_optimizer_state(optimizer, params[i], &master, &m, &v, &step);
        if (status != TP_OK)
            return status;
        write_param(d->file, "master:", params[i], master);
    }
    return TP_OK;
}

static tp_status train_model(tp_ctx *ctx, dump *d, tp_model *model)
{
    const tp_pass pass = pass_of(d, 0);
    int count;
    tp_param *const *params = tp_model_params(model, &count);
    tp_optimizer *optimizer = NULL;
    size_t bytes = tp_model_saved_bytes(model, &pass);
    void *saved = NULL;
    tp_status status = load_params(ctx, params, count);
    if (status == TP_OK)
        status = write_params(ctx, d, params, count, 0, "");
    if (status == TP_OK)
        status = tp_optimizer_create(ctx, &optimizer_desc, params, count, &optimizer);
    if (status == TP_OK)
        status = tp_ctx_allocate(ctx, TP_MEMORY_SAVED, bytes, &saved);
    for (int64_t step = 0; step < STEPS && status == TP_OK; step++)
        status = take_step(ctx, d, model, optimizer, step, saved);
    if (status == TP_OK)
        status = write_params(ctx, d, params, count, 0, "after:");
    if (status == TP_OK && tp_comm_size(tp_ctx_world(ctx)) == 1)
        status = write_masters(d, optimizer, params, count);
    tp_ctx_release(ctx, TP_MEMORY_SAVED, saved, bytes);
    tp_optimizer_destroy(optimizer);
    return status;
}

static tp_status run_rank(tp_ctx *ctx, void *arg)
{
    dump *d = arg;
    tp_model *model;
    tp_status status = tp_model_create(ctx, &d->desc, &model);
    if (status != TP_OK)
        return status;
    status = d->train ? train_model(ctx, d, model) : run_model(ctx, d, model);
    tp_model_destroy(model);
    return status;
}

int main(int argc, char **argv)
{
    bool bf16 = argc == 6 && strcmp(argv[5], "bf16") == 0;
    if (argc < 5 || argc > 6 || (argc == 6 && !bf16 && strcmp(argv[5], "f32") != 0) ||
        (strcmp(argv[1], "gpt2") != 0 && strcmp(argv[1], "llama") != 0)) {
        fprintf(stderr, "usage: dump_model gpt2|llama TP SEQUENCE_PARALLEL FILE [f32|bf16]\n");
        return 2;
    }
    dump d = {.train = argc == 6,
              .desc = {.family = strcmp(argv[1], "gpt2") == 0 ? TP_MODEL_GPT2 : TP_MODEL_LLAMA,
                       .layers = 3,
                       .hidden = 48,
                       .heads = 12,
                       .kv_heads = strcmp(argv[1], "gpt2") == 0 ? 0 : 4,
                       .ffn = 100,
                       .vocabulary = 67,
                       .positions = 32,
                       .dtype = bf16 ? TP_DTYPE_BF16 : TP_DTYPE_F32,
                       .sequence_parallel = atoi(argv[3]) != 0}};
    float ids[TOKENS], targets[TOKENS];
    for (int t = 0; t < TOKENS; t++) {
        ids[t] = (float)(d.ids[t] = (t * 31 + 7) % 67);
        targets[t] = (float)(d.targets[t] = (t * 17 + 3) % 67);
    }
    d.file = fopen(argv[4], "wb");
    d.logits = malloc((size_t)TOKENS * (size_t)d.desc.vocabulary * sizeof *d.logits);
    if (!d.file || !d.logits)
        return 1;
    write_tensor(d.file, "ids", ids, BATCH, SEQUENCE);
    write_tensor(d.file, "targets", targets, BATCH, SEQUENCE);
    tp_status status = tp_run_ranks(&(tp_run_options){.ranks = atoi(argv[2])}, run_rank, &d);
    if (status != TP_OK)
        fprintf(stderr, "%s: %s\n", tp_status_name(status), tp_last_message());
    free(d.logits);
    return fclose(d.file) != 0 || status != TP_OK;
}
