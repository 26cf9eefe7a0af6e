/* How things are timed. Other work takes the cores: a sample during which its thread was switched out and lost more
 * than BENCH_LOST of its time says nothing, and is dropped; the median of the rest is the figure. Of a sample of
 * BENCH_LONG_SECONDS or more, BENCH_LONG_LOST: where a virtual machine's cores all compute, its host takes 1 to 4 % of
 * them for itself, so none would be left. */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#define BENCH_SAMPLES 4096
#define BENCH_PATIENCE 8
#define BENCH_LOST 0.01
#define BENCH_LONG_SECONDS 0.1
#define BENCH_LONG_LOST 0.05

typedef struct bench_samples {
    int64_t calls; /* of bench_sample_add: the first BENCH_SAMPLES are kept */
    int count;
    double seconds[BENCH_SAMPLES];
    bool clean[BENCH_SAMPLES];
} bench_samples;

typedef struct bench_figure {
    double seconds; /* median of the clean samples; of all where none is clean */
    int kept, total;
} bench_figure;

/* Seconds of a clock that only goes forward. */
double bench_now(void);

/* Seconds that the calling thread was running. */
double bench_thread_seconds(void);

/* Involuntary context switches so far: of this thread, and of the whole process. */
long bench_thread_switches(void);
long bench_process_switches(void);

/* Whether a sample is clean: nobody was switched out, or, while it ran, its thread lost less than it may. */
bool bench_is_clean(long switches, double seconds, double lost_seconds);

/* Whose switches a sample is judged by. */
typedef enum bench_watched {
    BENCH_OWN_THREAD,   /* the calling thread's */
    BENCH_ALL_SWITCHES, /* those of the process: what its threads lost isn't known, so no switch of any is clean */
    BENCH_ALL_WAITS     /* those of the process, lost being what its threads waited for a core, added up, where the
                         * system counts that; slower to start and to stop */
} bench_watched;

/* One sample: started right before it, stopped right after. */
typedef struct bench_watch {
    bench_watched watched;
    int threads;
    long switches;
    double cpu, waited, start;
} bench_watch;
bench_watch bench_watch_start(bench_watched watched);
double bench_watch_stop(const bench_watch *watch, bool *clean); /* its seconds */

void bench_sample_add(bench_samples *samples, double seconds, bool clean);
int bench_sample_clean(const bench_samples *samples);
/* Turn by turn: what was not clean on both sides is clean on neither, so that figures of the two are of the same turns.
 * Returns how many turns are. */
int bench_sample_pair(bench_samples *a, bench_samples *b);
bench_figure bench_sample_figure(const bench_samples *samples);
/* Of those from number `first` on alone. */
bench_figure bench_sample_figure_since(const bench_samples *samples, int first);

/* The one with fewer clean samples: what is made of two figures has no more than that. */
bench_figure bench_figure_fewer(bench_figure a, bench_figure b);

/* Sorts the values. NaN for none. */
double bench_median(double *values, int count);
double bench_geometric_mean(const double *values, int count);

/* One part of a comparison: fn(arg) is run once a sample. */
typedef struct bench_part {
    void (*fn)(void *arg);
    void *arg;
    bench_samples *samples;
} bench_part;

/* Runs the parts in turns, so that a slow moment falls on all of them, until `seconds` are over or each has `most`
 * samples; at least `least` samples, and, within BENCH_PATIENCE times `seconds`, until each part has `least` clean
 * ones. A turn is clean for all parts or for none: figures that are compared are of the same turns. Switches are those
 * of the calling thread, or of the process if fn has threads of its own. */
typedef struct bench_plan {
    int warmup, least, most;
    double seconds;
    bool whole_process;
} bench_plan;
void bench_measure(const bench_part *parts, int count, const bench_plan *plan);

/* Starts `threads` threads and runs fn(arg, index) in all at the same time; pin: each on a core of its own, if there
 * are enough. False if a thread can't be started. */
bool bench_together(int threads, bool pin, void (*fn)(void *arg, int index), void *arg);

/* Progress on a terminal (standard error), nothing elsewhere. */
void bench_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void bench_progress_end(void);

#endif
