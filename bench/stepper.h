/* One training step of a whole model taken apart: forward, backward, finishing of gradients, optimizer, each timed. The
 * same code sizes a dry run. */
#ifndef BENCH_STEPPER_H
#define BENCH_STEPPER_H

#include "core/backend.h"
#include "mirror.h"
#include "training.h"

typedef enum bench_phase { BENCH_FORWARD = 0, BENCH_BACKWARD, BENCH_FINISH, BENCH_OPTIMIZER, BENCH_PHASES } bench_phase;

typedef struct bench_stepper {
    tp_ctx *ctx;
    const bench_training *training;
    tp_model *model;
    tp_optimizer *optimizer;
    tp_param *const *params;
    int count;
    tp_pass pass;
    bench_mirror ids, targets; /* of this step */
    void *saved;
    size_t id_bytes, saved_bytes;
    int64_t at; /* first token of the next step */
    double loss, norm; /* of the last step; norm: of all gradients, before clipping */
    double phase[BENCH_PHASES]; /* its seconds; on a GPU those of the GPU */
    tpi_timer *timer; /* NULL: the host's clock */
} bench_stepper;

tp_status bench_stepper_open(bench_stepper *stepper, tp_ctx *ctx, const bench_training *training, tp_dtype dtype);
tp_status bench_stepper_step(bench_stepper *stepper);
/* The same in pieces: its tokens, each phase in order, its loss. */
tp_status bench_stepper_begin(bench_stepper *stepper);
tp_status bench_stepper_phase(bench_stepper *stepper, bench_phase phase);
tp_status bench_stepper_end(bench_stepper *stepper);
void bench_stepper_close(bench_stepper *stepper);

/* Memory and work that one rank of a layout would use in a step, by a dry run: nothing is computed or allocated. */
typedef struct bench_prediction {
    double bytes[TP_MEMORY_KINDS];
    double flops; /* of one step */
} bench_prediction;
tp_status bench_predict_rank(const bench_call *call, const bench_training *training, tp_dtype dtype, int ranks,
                             int rank, int threads, bench_prediction *out);

/* Of all ranks together. */
tp_status bench_predict(const bench_call *call, const bench_training *training, tp_dtype dtype, int ranks, int threads,
                        bench_prediction *out);
double bench_prediction_total(const bench_prediction *prediction);

#endif
