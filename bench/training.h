/* What is trained, on what: a model and a text, from the options; and one rank's training. */
#ifndef BENCH_TRAINING_H
#define BENCH_TRAINING_H

#include "command.h"

typedef struct bench_training {
    tp_model_desc model; /* dtype is set by whoever runs it */
    tp_trainer_desc trainer;
    tp_data *data;
    char text[128]; /* what it is trained on, for the title */
} bench_training;

/* Steps and warm-up where options leave them open; something is left to be timed. */
int bench_training_steps(bench_call *call, int64_t steps);
/* Reads options into descriptions and checks everything that can be checked beforehand, for all degrees and dtypes;
 * then opens the text. */
int bench_training_open(bench_call *call, bench_training *training);
void bench_training_close(bench_training *training);

/* "gpt2 family, 4 layers, hidden 256, ..." */
void bench_training_describe(const bench_training *training, char *text, size_t bytes);

/* The licence texts that every Debian has. */
#define BENCH_TEXT_FOLDER "/usr/share/common-licenses"

/* Opens regular files of a folder, in the order of their names, as one text. */
tp_status bench_open_folder(const char *folder, tp_data **out);

#endif
