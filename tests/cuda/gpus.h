/* The GPUs under tests of whole layers and models: the simulator's schedules, reports, counts and mutants. On real GPUs
 * there is no simulator: nothing is reported or counted there. */
#ifndef TPT_CUDA_GPUS_H
#define TPT_CUDA_GPUS_H

#include "../../gpusim/include/gpusim/gpusim.h"

enum { TPT_SCHEDULES = 5 };

/* Options of the simulator, before contexts are made and when all are destroyed; false without a simulator. */
bool tpt_gpus_configure(const gpusim_options *options);
/* Eager, lazy, and three random ones. */
gpusim_options tpt_gpus_schedule(unsigned number);
/* The one for a case: neighbouring cases take neighbouring schedules, so that all come up. TPT_CUDA_SCHEDULE=n in the
 * environment moves all of them on by n: after five runs, 0 to 4, every case was under every schedule. */
gpusim_options tpt_gpus_schedule_of(unsigned which_case);
void tpt_gpus_turn(unsigned which_case);

int tpt_gpus_reports(const char **first);
int tpt_gpus_leaks(void);
void tpt_gpus_quiet(bool quiet);
gpusim_counts tpt_gpus_count(void);
void tpt_gpus_clear_counts(void);
/* Numbers the calling thread; how many waits it has issued. */
void tpt_gpus_thread(int number);
int64_t tpt_gpus_thread_waits(int number);
/* Whether its n-th wait, from 1 on, ordered anything that no other did. */
bool tpt_gpus_wait_orders(int number, int64_t n);
/* gpusim_fail_blas; false on a real GPU. */
bool tpt_gpus_fail_blas(int n, gpusim_blas_failure what);
int tpt_gpus_barriers(void);
gpusim_site tpt_gpus_barrier(int index);

/* Nothing was reported, nothing is left. All contexts are destroyed. */
void tpt_gpus_clean(const char *what);

#endif
