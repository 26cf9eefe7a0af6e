#include "cuda/sync_mutants.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda/gpus.h"

enum { LONGEST_SECONDS = 60 };

double tpt_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

const char *tpt_verdict_name(tpt_verdict verdict)
{
    static const char *const names[TPT_VERDICTS] = {"nothing", "report", "numbers", "failure", "crash", "time-out"};
    return names[verdict];
}

static void run_here(const tpt_work *work, const gpusim_options *options, tpt_outcome *outcome)
{
    const char *first;
    signal(SIGALRM, SIG_DFL);
    alarm(LONGEST_SECONDS);
    tpt_gpus_quiet(true);
    tpt_gpus_configure(options);
    int sites = tpt_gpus_barriers();
    double begin = tpt_now();
    work->run(work, outcome);
    outcome->seconds = tpt_now() - begin;
    outcome->reports = tpt_gpus_reports(&first);
    snprintf(outcome->why, sizeof outcome->why, "%s",
             outcome->reports > 0       ? first
             : outcome->status != TP_OK ? tp_last_message()
                                        : "");
    for (int i = 0; i < sites && i < TPT_MOST_SITES; i++)
        outcome->executed[i] = tpt_gpus_barrier(i).executed > 0;
    for (int thread = 0; thread < TPT_MOST_THREADS; thread++)
        for (int i = 0; i < TPT_MOST_WAITS && i < tpt_gpus_thread_waits(thread + 1); i++)
            outcome->idle[thread][i] = !tpt_gpus_wait_orders(thread + 1, i + 1);
    outcome->finished = true;
}

void tpt_work_end_if_reported(tpt_outcome *outcome)
{
    const char *first;
    int reports = tpt_gpus_reports(&first);
    if (reports == 0)
        return;
    snprintf(outcome->why, sizeof outcome->why, "%s", first);
    outcome->reports = reports;
    outcome->finished = true;
    _exit(0);
}

void tpt_part(tpt_parts *parts, const char *name)
{
    tpt_work_end_if_reported(parts->outcome);
    if (!parts->counts || parts->count >= TPT_MOST_PARTS)
        return;
    parts->outcome->part[parts->count] = name;
    parts->outcome->first[parts->count++][parts->rank] = tpt_gpus_thread_waits(parts->rank + 1);
}

const tpt_outcome *tpt_work_run(const tpt_work *work, gpusim_options options)
{
    static tpt_outcome *shared;
    int status = 0;
    if (shared == NULL)
        shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        abort();
    memset(shared, 0, sizeof *shared);
    options.multiprocessors = work->options.multiprocessors;
    tpt_gpus_barriers(); /* loads the plugin, once for all processes */
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        run_here(work, &options, shared);
        _exit(0);
    }
    while (child < 0 || (waitpid(child, &status, 0) < 0))
        abort();
    if (!shared->finished) {
        shared->status = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? TP_ERR_TIMEOUT : TP_ERR_INTERNAL;
        snprintf(shared->why, sizeof shared->why, "ended with status %d", status);
    }
    return shared;
}

tpt_verdict tpt_work_judge(const tpt_outcome *right, const tpt_outcome *mutant)
{
    if (!mutant->finished)
        return mutant->status == TP_ERR_TIMEOUT ? TPT_HUNG : TPT_CRASHED;
    if (mutant->reports > 0)
        return TPT_REPORTED;
    if (mutant->status != TP_OK)
        return TPT_FAILED;
    return mutant->hash != right->hash ? TPT_WRONG : TPT_SURVIVES;
}
