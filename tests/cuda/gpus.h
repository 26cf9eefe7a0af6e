/* The GPUs under tests of whole layers and models: the simulator's schedules, reports, counts and mutants. On real GPUs there is no
 * simulator: nothing is reported or counted there. */
#ifndef TPT_CUDA_GPUS_H
#define TPT_CUDA_GPUS_H

#include "../../gpusim/include/gpusim/gpusim.h"

enum { TPT_SCHEDULES = 5 };

/* Options of the simulator, before contexts are made and when all are destroyed; false without a simulator. */
bool tpt_gpus_configure(const gpusim_options *options);
/* Eager, lazy, and three random ones. */
gpusim_options tpt_gpus_schedule(unsigned number);
/* How many of them a case runs under: one, or all if the environment has TPT_CUDA_ALL_SCHEDULES; and the one to take at a turn: neighbouring cases
 * take neighbouring schedules, so that all come up. */
unsigned tpt_gpus_turns(void);
void tpt_gpus_turn(unsigned which_case, unsigned turn);

int tpt_gpus_reports(const char **first);
int tpt_gpus_leaks(void);
void tpt_gpus_quiet(bool quiet);
gpusim_counts tpt_gpus_count(void);
void tpt_gpus_clear_counts(void);
/* Numbers the calling thread; how many waits it has issued. */
void tpt_gpus_thread(int number);
int64_t tpt_gpus_thread_waits(int number);
int tpt_gpus_barriers(void);
gpusim_site tpt_gpus_barrier(int index);

/* Nothing was reported, nothing is left. All contexts are destroyed. */
void tpt_gpus_clean(const char *what);

#endif
