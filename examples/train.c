/* The trainer: a small GPT-2 learns a text file, byte by byte, on two ranks. usage: train FILE [STEPS] */
#include <stdio.h>
#include <stdlib.h>
#include <tp/tp.h>

#define MOST_STEPS 1000000

typedef struct job {
    const tp_data *data;
    int steps;
    double first, last; /* losses */
} job;

static tp_status train(tp_ctx *ctx, tp_trainer *trainer, job *j)
{
    for (int step = 1; step <= j->steps; step++) {
        tp_train_report report;
        tp_status status = tp_trainer_step(ctx, trainer, &report);
        if (status != TP_OK)
            return status;
        if (tp_ctx_rank(ctx) != 0)
            continue;
        j->first = step == 1 ? report.loss : j->first;
        j->last = report.loss;
        if (step == 1 || step % 10 == 0)
            printf("step %3d  loss %.4f  gradient norm %.3f\n", step, report.loss, (double)report.grad_norm);
    }
    return TP_OK;
}

static tp_status run(tp_ctx *ctx, void *arg)
{
    job *j = arg;
    tp_model_desc shape = {.family = TP_MODEL_GPT2, .layers = 2, .hidden = 64, .heads = 4, .vocabulary = 256,
                           .positions = 64,
                           .dtype = TP_DTYPE_F32};
    tp_trainer_desc training = {.batch = 4, .sequence = 64, .lr = 3e-3f,
                                .optimizer = {.kind = TP_OPTIMIZER_ADAMW, .decay = 0.01f, .clip_norm = 1}};
    tp_model *model;
    tp_status status = tp_model_create(ctx, &shape, &model);
    if (status != TP_OK)
        return status;
    int count;
    tp_param *const *params = tp_model_params(model, &count);
    status = tp_params_init(ctx, params, count);
    tp_trainer *trainer = NULL;
    if (status == TP_OK)
        status = tp_trainer_create(ctx, &training, model, j->data, &trainer);
    if (status == TP_OK)
        status = train(ctx, trainer, j);
    tp_trainer_destroy(trainer);
    tp_model_destroy(model);
    return status;
}

/* 0 if it is not a number of steps; a loss that falls needs two of them. */
static int read_steps(const char *text)
{
    char *end;
    long steps = strtol(text, &end, 10);
    return end != text && *end == '\0' && steps >= 2 && steps <= MOST_STEPS ? (int)steps : 0;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: train FILE [STEPS]\n");
        return 2;
    }
    const char *path = argv[1];
    int steps = argc > 2 ? read_steps(argv[2]) : 30;
    if (steps == 0) {
        fprintf(stderr, "train: STEPS '%s' is not a whole number in [2, %d]\n", argv[2], MOST_STEPS);
        return 2;
    }
    tp_data *data;
    if (tp_data_open(&path, 1, TP_DATA_AUTO, &data) != TP_OK) {
        fprintf(stderr, "train: %s\n", tp_last_message());
        return 1;
    }
    job j = {.data = data, .steps = steps};
    tp_status status = tp_run_ranks(&(tp_run_options){.ranks = 2, .ctx = {.seed = 1}}, run, &j);
    if (status != TP_OK)
        fprintf(stderr, "train: %s\n", tp_last_message());
    else
        printf("train: loss %s from %.4f to %.4f in %d steps\n", j.last < j.first ? "fell" : "did not fall", j.first,
               j.last, j.steps);
    tp_data_close(data);
    return status != TP_OK || !(j.last < j.first);
}
