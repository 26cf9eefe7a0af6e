/* `model --peer torch`: PyTorch's side of the comparison, one more party that takes turns with ours, step by step: on
 * the same weights and tokens, so with the same losses and gradients. */
#ifndef BENCH_MODEL_PEER_H
#define BENCH_MODEL_PEER_H

#include "stepper.h"
#include "torch_peer.h"
#include "turns.h"

#include <stdatomic.h>

/* Of each step: loss, and norm of all gradients before clipping. */
typedef struct bench_model_results {
    double loss[BENCH_SAMPLES], norm[BENCH_SAMPLES];
} bench_model_results;

typedef struct bench_model_peer {
    bench_call *call;
    const bench_training *training;
    tp_dtype dtype;
    int threads;
    bench_torch torch;
    bench_samples step, phase[BENCH_PHASES];
    bench_model_results results;
    atomic_bool failed;
    char message[BENCH_MESSAGE];
} bench_model_peer;

/* Refuses what PyTorch's side does not do. */
int bench_model_peer_check(bench_call *call, const bench_training *training);

/* Starts it on the weights that ours begin with. */
int bench_model_peer_open(bench_model_peer *peer, bench_call *call, const bench_training *training, tp_dtype dtype,
                          int threads);
/* All steps, each in a turn of its own; ours fail when it has. */
void bench_model_peer_run(bench_model_peer *peer, bench_turns *turns, int party);
/* Holds one of ours against it, step by step: a note, and a failed check where losses or gradients differ by more than
 * rounding. */
void bench_model_peer_compare(bench_model_peer *peer, const bench_model_results *ours, int ranks);
void bench_model_peer_close(bench_model_peer *peer);

#endif
