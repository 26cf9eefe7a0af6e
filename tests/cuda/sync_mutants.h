/* Running work with one barrier or wait left out, each time in a process of its own: what noticed it. */
#ifndef TPT_CUDA_SYNC_MUTANTS_H
#define TPT_CUDA_SYNC_MUTANTS_H

#include "cuda/sync_work.h"

typedef enum tpt_verdict {
    TPT_SURVIVES = 0,
    TPT_REPORTED, /* by the simulator */
    TPT_WRONG,    /* other numbers */
    TPT_FAILED,   /* an operation of the library */
    TPT_CRASHED,
    TPT_HUNG,
    TPT_VERDICTS
} tpt_verdict;

const char *tpt_verdict_name(tpt_verdict verdict);

/* Runs it under these options; multiprocessors are the work's. The result stays until the next call. */
const tpt_outcome *tpt_work_run(const tpt_work *work, gpusim_options options);
/* Within work: enough was seen once something is reported. Ends its process then. */
void tpt_work_end_if_reported(tpt_outcome *outcome);
/* What noticed the mutant that was run last; `right`: the outcome without. */
tpt_verdict tpt_work_judge(const tpt_outcome *right, const tpt_outcome *mutant);

double tpt_now(void);

#endif
