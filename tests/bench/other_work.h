/* Other work on this process's core, for tests of what measuring makes of it. */
#ifndef TPT_BENCH_OTHER_WORK_H
#define TPT_BENCH_OTHER_WORK_H

#include <criterion/criterion.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "measure.h"

/* This process on one core, and another one that never sleeps beside it. */
static inline pid_t tpt_begin_other_work(void)
{
    cpu_set_t set;
    cr_assert_eq(sched_getaffinity(0, sizeof set, &set), 0);
    size_t core = 0;
    while (!CPU_ISSET(core, &set))
        core++;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    cr_assert_eq(sched_setaffinity(0, sizeof set, &set), 0);
    pid_t parent = getpid(), other = fork();
    if (other == 0) {
        while (getppid() == parent)
            ;
        _exit(0);
    }
    cr_assert_gt(other, 0);
    return other;
}

static inline void tpt_end_other_work(pid_t other)
{
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
}

/* Until it was switched out for more than a few percent of its time. */
static inline void tpt_until_disturbed(void *arg)
{
    (void)arg;
    long before = bench_thread_switches();
    double start = bench_now(), cpu = bench_thread_seconds(), passed, lost;
    do {
        passed = bench_now() - start;
        lost = passed - (bench_thread_seconds() - cpu);
    } while (bench_thread_switches() == before || lost < 0.05 * passed);
}

#endif
