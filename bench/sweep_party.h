/* One party of a sweep: a model trained at one degree, in turns with the others. */
#ifndef BENCH_SWEEP_PARTY_H
#define BENCH_SWEEP_PARTY_H

#include "parallel.h"
#include "stepper.h"

/* Weights and losses of a first degree, which others are compared with. */
typedef struct bench_sweep_reference {
    bool ready;
    int params;
    float **weights; /* by parameter, global */
    double *losses;  /* by step */
} bench_sweep_reference;

typedef struct bench_sweep_party {
    bench_call *call;
    const bench_training *training;
    /* what it is */
    bench_scaling scaling;
    int index, ranks, threads;
    tp_dtype dtype;
    int64_t batch, microbatch, steps;
    bool shown;    /* false: it runs only to be compared with */
    bool defines;  /* its results are the reference */
    bench_sweep_reference *reference;
    /* what became of it */
    bench_team team;
    tp_status status;
    char message[BENCH_MESSAGE];
    double *losses; /* [steps], written by rank 0 */
    bench_team_figure figure; /* of one step */
    bool compared, same_losses, same_weights;
} bench_sweep_party;

/* Trains: runs the party's ranks. For bench_turns_run. */
void bench_sweep_party_run(bench_sweep_party *party);

void bench_sweep_reference_close(bench_sweep_reference *reference);

/* Bytes that a party will need, by a dry run of it. */
tp_status bench_sweep_party_bytes(const bench_sweep_party *party, double *bytes);

#endif
