/* The training loop: batches from a data source, microbatches, clipping, learning rate, one report a step. */
#ifndef TP_TRAINER_H
#define TP_TRAINER_H

#include <tp/data.h>
#include <tp/model.h>
#include <tp/optimizer.h>

typedef struct tp_trainer tp_trainer;

typedef struct tp_trainer_desc {
    int64_t batch;      /* sequences a step */
    int64_t sequence;   /* tokens a sequence */
    int64_t microbatch; /* sequences a forward/backward; 0: batch. Must divide batch */
    float lr;
    float min_lr;       /* end of the cosine */
    int64_t warmup;     /* steps of linear warm-up */
    int64_t decay_steps; /* length of the cosine after it; 0: constant lr */
    tp_optimizer_desc optimizer;
} tp_trainer_desc;

typedef struct tp_train_report {
    int64_t step; /* of this report, from 1 */
    double loss;  /* mean over the step's valid tokens */
    double tokens;
    float lr, grad_norm;
    bool skipped;
} tp_train_report;

TP_BEGIN_DECLS

/* Borrows model and data; all ranks give the same. Errors: TP_ERR_ARGUMENT with field and both numbers (batch %
 * microbatch, sequence > positions, data shorter than a sequence, vocabulary of the data > the model's, lr negative or
 * NaN, ...), before anything is allocated. */
TP_API tp_status tp_trainer_create(tp_ctx *ctx, const tp_trainer_desc *desc, tp_model *model, const tp_data *data,
                                   tp_trainer **out);
TP_API void tp_trainer_destroy(tp_trainer *trainer);

/* One optimizer step: sum of gradients over microbatches, divided once by the number of valid tokens of the whole step.
 * A step without valid tokens has loss 0 and gradients of exactly 0; decay and moments still move the weights. report
 * NULL: nothing is waited for. */
TP_API tp_status tp_trainer_step(tp_ctx *ctx, tp_trainer *trainer, tp_train_report *report);

/* Learning rate of a step (from 1): pure function of the description. */
TP_API float tp_trainer_lr(const tp_trainer_desc *desc, int64_t step);

/* Mean loss over `sequences` sequences of the data from token `at` on, forward only, without dropout; independent of
 * the microbatch. */
TP_API tp_status tp_trainer_evaluate(tp_ctx *ctx, tp_trainer *trainer, int64_t at, int64_t sequences, double *loss);

TP_API tp_optimizer *tp_trainer_optimizer(tp_trainer *trainer);

TP_END_DECLS
#endif
