/* Trains a model on thread ranks and brings everything back as whole tensors, so that layouts can be compared. */
#ifndef TPT_TRAINING_H
#define TPT_TRAINING_H

#include "reference_model.h"

#include <tp/comm.h>
#include <tp/optimizer.h>

enum { TPT_MOST_STEPS = 32, TPT_MOST_PARAMS = 64 };

typedef struct tpt_training {
    tp_model_desc model;
    int ranks, threads; /* threads 0: 1 */
    int64_t sequences, sequence; /* of a batch; the same batch every step */
    const int64_t *offsets;      /* one microbatch of sequences of these lengths instead; sequence is unused then */
    int64_t microbatch; /* sequences; 0: all */
    const int32_t *ids, *targets;
    const float *values; /* to begin with, in the order of the model's list; NULL: tp_params_init */
    int steps;
    float lr;
    tp_optimizer_desc optimizer;
    uint64_t seed, lane_delay_seed;
    tp_device device;
    const char *plugin;
    int devices; /* ranks are dealt out over so many; 0: 1 */
    tp_sum_order sum_order;
    bool zero_grad; /* steps begin with tp_params_zero_grad instead of tp_params_begin */
    int hurt_step; /* before this step's optimizer, from 1, a gradient of the last rank becomes infinite; 0: never */
} tpt_training;

typedef struct tpt_trained {
    int params;
    struct {
        char name[TP_PARAM_NAME];
        int64_t at, elements;
    } param[TPT_MOST_PARAMS];
    int64_t elements;
    float *initial, *values, *grads; /* gradients of the last step */
    double loss[TPT_MOST_STEPS], tokens[TPT_MOST_STEPS];
    float norm[TPT_MOST_STEPS];
    bool skipped[TPT_MOST_STEPS];
    bool replicas_equal; /* what is replicated has the same bits on all ranks */
} tpt_trained;

/* Prints the message of a failure. Allocations on the CPU are counted: a leak is a failure. */
tp_status tpt_train(const tpt_training *training, tpt_trained *out);
void tpt_trained_free(tpt_trained *trained);

/* Losses, norms, values and gradients have the same bits; prints the first difference. */
bool tpt_trained_same(const char *what, const tpt_trained *got, const tpt_trained *want);

/* The reference's view of the same batch and of values in the order of the list. */
void tpt_values_to_reference(const tpt_reference *reference, const tpt_trained *trained, const float *list,
                             double *flat);

/* Deterministic ids and targets: tokens of a cheap text-like sequence; every `ignore`th target is -1 (0: none). */
void tpt_make_batch(int32_t *ids, int32_t *targets, int64_t tokens, int64_t vocabulary, int ignore);

#endif
