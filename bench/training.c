#include "training.h"

#include "parallel.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FOLDER_FILES 256

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Paths of the folder's regular files; links are left out, so that no text comes twice. */
static int list_folder(const char *folder, char *paths[FOLDER_FILES])
{
    DIR *dir = opendir(folder);
    int count = 0;
    for (struct dirent *entry; dir != NULL && count < FOLDER_FILES && (entry = readdir(dir)) != NULL;) {
        size_t bytes = strlen(folder) + strlen(entry->d_name) + 2;
        char *path = malloc(bytes);
        struct stat status;
        if (path == NULL)
            break;
        snprintf(path, bytes, "%s/%s", folder, entry->d_name);
        if (lstat(path, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0)
            paths[count++] = path;
        else
            free(path);
    }
    if (dir != NULL)
        closedir(dir);
    qsort(paths, (size_t)count, sizeof *paths, compare_names);
    return count;
}

tp_status bench_open_folder(const char *folder, tp_data **out)
{
    char *paths[FOLDER_FILES];
    const char *given[FOLDER_FILES];
    int count = list_folder(folder, paths);
    for (int i = 0; i < count; i++)
        given[i] = paths[i];
    tp_status status = count > 0 ? tp_data_open(given, count, TP_DATA_TEXT, out) : TP_ERR_IO;
    for (int i = 0; i < count; i++)
        free(paths[i]);
    return status;
}

static int take_model(bench_call *call, tp_model_desc *desc)
{
    const bench_options *o = &call->options;
    *desc = (tp_model_desc){.family = o->family > 0 ? (tp_model_family)(o->family - 1) : TP_MODEL_GPT2,
                            .layers = 4, .hidden = 256, .heads = 8, .vocabulary = 256};
    bool preset = o->model != NULL;
    if (preset && tp_model_preset(o->model, desc) != TP_OK)
        return bench_refuse(call, "--model: %s", tp_last_message());
    if (preset && o->family > 0)
        return bench_refuse(call, "--family: --model %s already says which", o->model);
    if (preset && o->layers > desc->layers)
        return bench_refuse(call, "--layers %lld: --model %s has %lld layers, and --layers only cuts",
                            (long long)o->layers, o->model, (long long)desc->layers);
    desc->layers = o->layers > 0 ? o->layers : desc->layers;
    if (o->hidden > 0 || o->heads > 0)
        desc->head_dim = 0;
    if (o->hidden > 0 && o->ffn == 0)
        desc->ffn = 0;
    if (o->heads > 0)
        desc->kv_heads = 0;
    desc->hidden = o->hidden > 0 ? o->hidden : desc->hidden;
    desc->heads = o->heads > 0 ? o->heads : desc->heads;
    desc->kv_heads = o->kv_heads > 0 ? o->kv_heads : desc->kv_heads;
    desc->ffn = o->ffn > 0 ? o->ffn : desc->ffn > 0 ? desc->ffn : 4 * desc->hidden;
    desc->vocabulary = o->vocabulary > 0 ? o->vocabulary : desc->vocabulary;
    desc->positions = o->positions > 0 ? o->positions : desc->positions;
    if (o->activation > 0) {
        desc->activation = (tp_activation)(o->activation - 1);
        desc->activation_set = true;
    }
    desc->dropout = (float)o->dropout;
    desc->sequence_parallel = o->sequence_parallel;
    return bench_take_overlap(call, &desc->overlap, &desc->chunks);
}

static void take_trainer(const bench_call *call, bench_training *training)
{
    const bench_options *o = &call->options;
    tp_model_desc *model = &training->model;
    /* Beside a peer its steps must not make more of rounding than there is: at ten times this GPT-2's loss goes up in
     * its third step. */
    float rate = o->peer > 0 ? 1e-4f : 1e-3f;
    int64_t sequence = o->sequence > 0                                  ? o->sequence
                       : model->positions > 0 && model->positions < 128 ? model->positions
                                                                        : 128;
    if (model->positions == 0)
        model->positions = sequence;
    training->trainer = (tp_trainer_desc){.batch = o->batch > 0 ? o->batch : 4,
                                          .sequence = sequence,
                                          .microbatch = o->microbatch,
                                          .lr = o->learning_rate > 0 ? (float)o->learning_rate : rate,
                                          .optimizer = {.kind = TP_OPTIMIZER_ADAMW, .decay = 0.1f, .clip_norm = 1}};
}

static int check_degrees(bench_call *call, const bench_training *training)
{
    const bench_options *o = &call->options;
    const tp_trainer_desc *trainer = &training->trainer;
    if (trainer->sequence > training->model.positions)
        return bench_refuse(call, "--sequence %lld is longer than the model's positions %lld",
                            (long long)trainer->sequence, (long long)training->model.positions);
    if (trainer->microbatch > 0 && trainer->batch % trainer->microbatch != 0)
        return bench_refuse(call, "--batch %lld is no multiple of --microbatch %lld", (long long)trainer->batch,
                            (long long)trainer->microbatch);
    for (int i = 0; i < o->ranks.count; i++) {
        tp_model_desc desc = training->model;
        desc.dtype = TP_DTYPE_F32;
        if (tp_model_check(&desc, (int)o->ranks.value[i]) != TP_OK)
            return bench_refuse(call, "%lld ranks: %s", (long long)o->ranks.value[i], tp_last_message());
    }
    return BENCH_OK;
}

static int open_text(bench_call *call, bench_training *training)
{
    const bench_texts *text = &call->options.text;
    tp_status status;
    if (text->count > 0) {
        const char *name = strrchr(text->value[0], '/') != NULL ? strrchr(text->value[0], '/') + 1 : text->value[0];
        snprintf(training->text, sizeof training->text, "%.80s%s", name, text->count > 1 ? " and others" : "");
        status = tp_data_open(text->value, text->count, TP_DATA_AUTO, &training->data);
    } else {
        snprintf(training->text, sizeof training->text, "licence texts");
        status = bench_open_folder(BENCH_TEXT_FOLDER, &training->data);
        if (status != TP_OK)
            return bench_refuse(call, "--text: there are no files in %s: give a text", BENCH_TEXT_FOLDER);
    }
    if (status != TP_OK)
        return bench_refuse(call, "--text: %s", tp_last_message());
    if (tp_data_tokens(training->data) <= training->trainer.sequence)
        return bench_refuse(call, "--text: %lld tokens are too few for --sequence %lld and its targets",
                            (long long)tp_data_tokens(training->data), (long long)training->trainer.sequence);
    if (tp_data_vocabulary(training->data) > training->model.vocabulary)
        return bench_refuse(call, "--text: its vocabulary %lld is larger than the model's --vocabulary %lld",
                            (long long)tp_data_vocabulary(training->data), (long long)training->model.vocabulary);
    return BENCH_OK;
}

int bench_training_steps(bench_call *call, int64_t steps)
{
    bench_options *options = &call->options;
    options->steps = options->steps > 0 ? options->steps : steps;
    if (options->warmup == 0)
        options->warmup = options->steps > 2 ? 2 : options->steps - 1;
    if (options->warmup >= options->steps)
        return bench_refuse(call, "--warmup %lld leaves nothing of --steps %lld to be timed",
                            (long long)options->warmup, (long long)options->steps);
    return BENCH_OK;
}

int bench_training_open(bench_call *call, bench_training *training)
{
    *training = (bench_training){0};
    int status = bench_check_parallel(call);
    if (status == BENCH_OK)
        status = take_model(call, &training->model);
    if (status != BENCH_OK)
        return status;
    take_trainer(call, training);
    status = check_degrees(call, training);
    if (status == BENCH_OK)
        status = bench_check_link(call, (double)training->trainer.batch * (double)training->trainer.sequence *
                                            (double)training->model.hidden * 4);
    if (status == BENCH_OK)
        status = open_text(call, training);
    if (status != BENCH_OK)
        bench_training_close(training);
    return status;
}

void bench_training_close(bench_training *training)
{
    tp_data_close(training->data);
    training->data = NULL;
}

void bench_training_describe(const bench_training *training, char *text, size_t bytes)
{
    const tp_model_desc *m = &training->model;
    char overlap[48] = "";
    if (m->overlap != TP_OVERLAP_NONE)
        snprintf(overlap, sizeof overlap, "; overlap %s, chunks %d", bench_overlap_names[m->overlap], m->chunks);
    snprintf(text, bytes,
             "%s family, %lld layers, hidden %lld, heads %lld, ffn %lld, vocabulary %lld: %.4g M parameters; sequence "
             "%lld of %s%s",
             bench_family_names[m->family], (long long)m->layers, (long long)m->hidden, (long long)m->heads,
             (long long)m->ffn, (long long)m->vocabulary, (double)tp_model_parameters(m) / 1e6,
             (long long)training->trainer.sequence, training->text, overlap);
}
