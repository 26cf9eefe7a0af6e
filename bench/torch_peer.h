/* PyTorch as the other side of a comparison: a Python process (bench/peers/torch_step.py) that takes a training step
 * when it is asked for one, and sleeps otherwise. Nothing of it is needed to build or use anything else. Every wait has
 * a bound. */
#ifndef BENCH_TORCH_PEER_H
#define BENCH_TORCH_PEER_H

#include "keeper.h"
#include "options.h"

#include <sys/types.h>

#define BENCH_TORCH_LINE 640

typedef struct bench_torch {
    bench_keeper keeper; /* of the group that the child is in */
    pid_t child;       /* 0: none */
    int socket;
    double patience;   /* seconds that the next answer may take */
    int64_t steps;     /* answered so far */
    char name[200];    /* "2.4.0 compiled, autocast; fused AdamW, ..."; before it is ready only the version */
    size_t filled;     /* of `received` */
    char received[BENCH_TORCH_LINE]; /* answers that were not read yet */
} bench_torch;

typedef struct bench_torch_sample {
    double seconds, forward, backward, optimizer;
    bool clean;        /* as bench_is_clean says: of what others took of its threads' time */
    double loss, norm; /* norm: of all gradients, before clipping */
} bench_torch_sample;

/* The interpreter: as given, else what the variable TP_BENCH_PYTHON says, else python3. */
const char *bench_torch_python(const char *given);

/* Starts it with so many threads and waits until PyTorch is loaded. False, with a message that says why, where that
 * can't be done: also below. */
bool bench_torch_start(bench_torch *self, const char *python, int threads, double patience,
                       char message[BENCH_MESSAGE]);
/* What the script's head says comes first: a line, weights, "go"; then it becomes ready. */
bool bench_torch_line(bench_torch *self, char message[BENCH_MESSAGE], const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool bench_torch_send(bench_torch *self, const void *data, size_t bytes, char message[BENCH_MESSAGE]);
bool bench_torch_ready(bench_torch *self, char message[BENCH_MESSAGE]);
bool bench_torch_step(bench_torch *self, const int32_t *ids, const int32_t *targets, int64_t tokens,
                      bench_torch_sample *out, char message[BENCH_MESSAGE]);
/* Ends the process and what it started. */
void bench_torch_stop(bench_torch *self);

#endif
