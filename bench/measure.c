#include "measure.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static double clock_seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double bench_now(void)
{
    return clock_seconds(CLOCK_MONOTONIC);
}

double bench_thread_seconds(void)
{
    return clock_seconds(CLOCK_THREAD_CPUTIME_ID);
}

static long switches(int who)
{
    struct rusage usage;
    return getrusage(who, &usage) == 0 ? usage.ru_nivcsw : 0;
}

long bench_thread_switches(void)
{
    return switches(RUSAGE_THREAD);
}

long bench_process_switches(void)
{
    return switches(RUSAGE_SELF);
}

bool bench_is_clean(long switches, double seconds, double lost_seconds)
{
    return switches == 0 || lost_seconds < (seconds < BENCH_LONG_SECONDS ? BENCH_LOST : BENCH_LONG_LOST) * seconds;
}

/* Seconds that this process's threads were ready to run and waited for a core, added up; NaN: the system doesn't say.
 * And how many threads these are. */
static double waited_seconds(int *count)
{
    *count = 0;
    DIR *threads = opendir("/proc/self/task");
    double sum = threads != NULL ? 0 : NAN, running = 0;
    for (const struct dirent *entry; threads != NULL && (entry = readdir(threads)) != NULL;) {
        char path[64];
        unsigned long long ran, waited;
        snprintf(path, sizeof path, "/proc/self/task/%.20s/schedstat", entry->d_name);
        FILE *file = entry->d_name[0] != '.' ? fopen(path, "r") : NULL;
        if (file == NULL) {
            if (entry->d_name[0] != '.' && errno != ENOENT && errno != ESRCH) /* it has not just ended */
                sum = NAN;
            continue;
        }
        bool told = fscanf(file, "%llu %llu", &ran, &waited) == 2;
        sum += told ? 1e-9 * (double)waited : NAN;
        running += told ? (double)ran : 0;
        *count += 1;
        fclose(file);
    }
    if (threads != NULL)
        closedir(threads);
    return running > 0 ? sum : NAN; /* nobody ran: nothing is counted */
}

static long watched_switches(bench_watched watched)
{
    return watched == BENCH_OWN_THREAD ? bench_thread_switches() : bench_process_switches();
}

bench_watch bench_watch_start(bench_watched watched)
{
    bench_watch watch = {.watched = watched};
    if (watched == BENCH_ALL_WAITS)
        watch.waited = waited_seconds(&watch.threads);
    watch.switches = watched_switches(watched);
    watch.cpu = bench_thread_seconds();
    watch.start = bench_now();
    return watch;
}

double bench_watch_stop(const bench_watch *watch, bool *clean)
{
    double seconds = bench_now() - watch->start, lost = seconds - (bench_thread_seconds() - watch->cpu);
    long switches = watched_switches(watch->watched) - watch->switches;
    if (watch->watched == BENCH_ALL_SWITCHES)
        lost = seconds;
    if (watch->watched == BENCH_ALL_WAITS && switches > 0) {
        int threads;
        double waited = waited_seconds(&threads) - watch->waited;
        lost = threads >= watch->threads && !isnan(waited) ? waited : seconds; /* else what one lost went with it */
    }
    *clean = bench_is_clean(switches, seconds, lost);
    return seconds;
}

void bench_sample_add(bench_samples *samples, double seconds, bool clean)
{
    samples->calls++;
    if (samples->count == BENCH_SAMPLES)
        return;
    samples->seconds[samples->count] = seconds;
    samples->clean[samples->count++] = clean;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, int count)
{
    if (count == 0)
        return NAN;
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return count % 2 == 1 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}

double bench_geometric_mean(const double *values, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += log(values[i]);
    return count > 0 ? exp(sum / count) : NAN;
}

bench_figure bench_sample_figure_since(const bench_samples *samples, int first)
{
    double values[BENCH_SAMPLES];
    bench_figure figure = {.total = samples->count - first};
    for (int i = first; i < samples->count; i++)
        if (samples->clean[i])
            values[figure.kept++] = samples->seconds[i];
    int used = figure.kept;
    for (int i = first; figure.kept == 0 && i < samples->count; i++)
        values[used++] = samples->seconds[i];
    figure.seconds = bench_median(values, used);
    return figure;
}

bench_figure bench_sample_figure(const bench_samples *samples)
{
    return bench_sample_figure_since(samples, 0);
}

bench_figure bench_figure_fewer(bench_figure a, bench_figure b)
{
    return b.kept < a.kept ? b : a;
}

int bench_sample_clean(const bench_samples *samples)
{
    int clean = 0;
    for (int i = 0; i < samples->count; i++)
        clean += samples->clean[i];
    return clean;
}

int bench_sample_pair(bench_samples *a, bench_samples *b)
{
    int count = a->count < b->count ? a->count : b->count, clean = 0;
    a->count = b->count = count;
    for (int i = 0; i < count; i++) {
        a->clean[i] = b->clean[i] = a->clean[i] && b->clean[i];
        clean += a->clean[i];
    }
    return clean;
}

/* Whether the plan asks for one more turn. */
static bool wanted(const bench_part *parts, int count, const bench_plan *plan, int turn, double passed)
{
    if (turn < plan->least || passed < plan->seconds)
        return true;
    for (int i = 0; i < count; i++)
        if (bench_sample_clean(parts[i].samples) < plan->least)
            return passed < BENCH_PATIENCE * plan->seconds;
    return false;
}

static void take_turn(const bench_part *parts, int count, bool whole_process)
{
    bool all_clean = true;
    for (int i = 0; i < count; i++) {
        bool clean;
        const bench_watch watch = bench_watch_start(whole_process ? BENCH_ALL_SWITCHES : BENCH_OWN_THREAD);
        parts[i].fn(parts[i].arg);
        double seconds = bench_watch_stop(&watch, &clean);
        all_clean = all_clean && clean;
        bench_sample_add(parts[i].samples, seconds, clean);
    }
    for (int i = 0; i < count; i++) {
        bench_samples *samples = parts[i].samples;
        if (samples->calls == samples->count) /* else the last one had no place, and what was kept before it stays as it
                                               * is */
            samples->clean[samples->count - 1] = all_clean;
    }
}

void bench_measure(const bench_part *parts, int count, const bench_plan *plan)
{
    for (int turn = 0; turn < plan->warmup; turn++)
        for (int i = 0; i < count; i++)
            parts[i].fn(parts[i].arg);
    int most = plan->most < BENCH_SAMPLES ? plan->most : BENCH_SAMPLES;
    double begin = bench_now();
    for (int turn = 0; turn < most && wanted(parts, count, plan, turn, bench_now() - begin); turn++)
        take_turn(parts, count, plan->whole_process);
}

typedef struct together {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int verdict; /* 0: wait, 1: go, -1: a thread is missing, give up */
    void (*fn)(void *arg, int index);
    void *arg;
} together;

typedef struct together_thread {
    together *shared;
    int index, core; /* core -1: not pinned */
    pthread_t thread;
} together_thread;

static void *together_main(void *arg)
{
    together_thread *self = arg;
    together *shared = self->shared;
    if (self->core >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET((size_t)self->core, &set);
        sched_setaffinity(0, sizeof set, &set);
    }
    pthread_mutex_lock(&shared->lock);
    while (shared->verdict == 0)
        pthread_cond_wait(&shared->changed, &shared->lock);
    bool go = shared->verdict > 0;
    pthread_mutex_unlock(&shared->lock);
    if (go)
        shared->fn(shared->arg, self->index);
    return NULL;
}

/* The core that thread `index` of `threads` is pinned to: the index-th that this process may use. */
static int core_for(int index, int threads)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) < threads)
        return -1;
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET((size_t)core, &set) && index-- == 0)
            return core;
    return -1;
}

bool bench_together(int threads, bool pin, void (*fn)(void *arg, int index), void *arg)
{
    together shared = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .fn = fn, .arg = arg};
    together_thread *all = calloc((size_t)threads, sizeof *all);
    if (all == NULL)
        return false;
    int started = 0;
    for (; started < threads; started++) {
        all[started] =
            (together_thread){.shared = &shared, .index = started, .core = pin ? core_for(started, threads) : -1};
        if (pthread_create(&all[started].thread, NULL, together_main, &all[started]) != 0)
            break;
    }
    bool good = started == threads;
    pthread_mutex_lock(&shared.lock);
    shared.verdict = good ? 1 : -1;
    pthread_cond_broadcast(&shared.changed);
    pthread_mutex_unlock(&shared.lock);
    for (int i = 0; i < started; i++)
        pthread_join(all[i].thread, NULL);
    free(all);
    return good;
}

void bench_progress(const char *format, ...)
{
    if (!isatty(STDERR_FILENO))
        return;
    va_list arguments;
    va_start(arguments, format);
    fputs("\r\033[K", stderr);
    vfprintf(stderr, format, arguments);
    fflush(stderr);
    va_end(arguments);
}

void bench_progress_end(void)
{
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}
