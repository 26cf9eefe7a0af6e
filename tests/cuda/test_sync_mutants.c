/* The simulator's mutants: every barrier of the kernels and every wait of a stream for an event is left out, one at a time, and something must notice: a
 * report, a wrong result or a failure. Runs a sample of both within a minute; all of them, with a table of those that nobody noticed, if the environment
 * has TPT_CUDA_ALL_MUTANTS. docs/cuda.md says why each of these is harmless. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <tp/tp.h>
#include <unistd.h>

#include "core/context.h"
#include "cuda/gpus.h"
#include "cuda/sync_mutants.h"
#include "support/data.h"

enum { SAMPLE_SECONDS = 25, MUTANT_SECONDS = 240, LEAST_SAMPLED = 50, /* percent: see docs/cuda.md */
       MOST_PROGRAMS = 4 };

static bool everything(void)
{
    return getenv("TPT_CUDA_ALL_MUTANTS") != NULL;
}

/* Numbers 0 to count - 1 in an order that TPT_CUDA_MUTANT_SEED gives; in their own order for all of them. */
static int *order_of(int count)
{
    int *order = malloc(((size_t)count + 1) * sizeof *order);
    const char *text = getenv("TPT_CUDA_MUTANT_SEED");
    uint64_t state = text != NULL ? strtoull(text, NULL, 0) + 1 : 1;
    for (int i = 0; i < count; i++)
        order[i] = i;
    for (int i = count - 1; i > 0 && !everything(); i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        int other = (int)((state >> 33) % (uint64_t)(i + 1)), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    return order;
}

typedef struct tally {
    int tried, caught;
} tally;

/* A small sample may have one survivor. */
static void judge(const char *what, const tally *t, int least_percent)
{
    printf("%s: %d of %d mutants caught\n", what, t->caught, t->tried);
    cr_assert_gt(t->tried, 0);
    cr_assert((t->caught + !everything()) * 100 >= t->tried * least_percent, "%s: only %d of %d mutants are caught", what, t->caught, t->tried);
}

/* Everything that was tried, in lines of a table. */
static void log_mutant(int number, tpt_verdict verdict, const char *work)
{
    const char *path = getenv("TPT_CUDA_MUTANT_LOG");
    gpusim_site site = tpt_gpus_barrier(number);
    FILE *log = path != NULL ? fopen(path, "a") : NULL;
    if (log != NULL) {
        fprintf(log, "%d,%s,\"%s\",%s:%d,%s,%s\n", number, site.what, site.kernel, site.file != NULL ? site.file : "?", site.line, work,
                tpt_verdict_name(verdict));
        fclose(log);
    }
    if (verdict == TPT_SURVIVES)
        printf("survives: %s in %s, %s:%d: %s\n", site.what, site.kernel, site.file != NULL ? site.file : "?", site.line, work);
}

static void log_wait(const tpt_work *work, const tpt_outcome *right, int part, int thread, int64_t number, tpt_verdict verdict)
{
    const char *path = getenv("TPT_CUDA_MUTANT_LOG");
    FILE *log = path != NULL ? fopen(path, "a") : NULL;
    int place = (int)(number - right->first[part][thread]);
    if (log != NULL) {
        fprintf(log, "%d,wait,\"%s\",%s: rank %d,,%s\n", place, work->name, right->part[part], thread, tpt_verdict_name(verdict));
        fclose(log);
    }
    if (verdict == TPT_SURVIVES)
        printf("survives: %s, %s, rank %d, wait %d of %d\n", work->name, right->part[part], thread, place,
               (int)(right->first[part + 1][thread] - right->first[part][thread]));
}

/* ---- barriers ------------------------------------------------------------------------------------------------------------------------------------ */

enum { MOST_WORKS = 64 };

/* All work, run once each with everything in place. */
typedef struct barrier_works {
    int count;
    tpt_work work[MOST_WORKS];
    tpt_outcome right[MOST_WORKS];
    int order[MOST_WORKS]; /* the fastest first */
} barrier_works;

static int by_seconds(const void *a, const void *b, void *works)
{
    const barrier_works *of = works;
    double first = of->right[*(const int *)a].seconds, second = of->right[*(const int *)b].seconds;
    return (first > second) - (first < second);
}

static barrier_works *run_all_works(void)
{
    barrier_works *of = calloc(1, sizeof *of);
    for (; of->count < MOST_WORKS && tpt_kernel_work(of->count, &of->work[of->count]); of->count++) {
        of->right[of->count] = *tpt_work_run(&of->work[of->count], (gpusim_options){0});
        of->order[of->count] = of->count;
        const tpt_outcome *right = &of->right[of->count];
        cr_assert(right->finished && right->status == TP_OK && right->reports == 0, "%s: %s", of->work[of->count].name, right->why);
    }
    qsort_r(of->order, (size_t)of->count, sizeof of->order[0], by_seconds, of);
    return of;
}

/* Tries one barrier in all work that executes it, the fastest first. */
static tpt_verdict try_barrier(const barrier_works *of, int site)
{
    static const gpusim_options schedules[] = {{.order = GPUSIM_UP}, {.order = GPUSIM_DOWN}, {.order = GPUSIM_SHUFFLED, .seed = 1}};
    bool reached = false;
    for (size_t s = 0; s < sizeof schedules / sizeof schedules[0]; s++)
        for (int i = 0; i < of->count; i++) {
            int number = of->order[i];
            gpusim_options options = schedules[s];
            if (!of->right[number].executed[site])
                continue;
            reached = true;
            options.skip_barrier = site + 1;
            tpt_verdict verdict = tpt_work_judge(&of->right[number], tpt_work_run(&of->work[number], options));
            if (verdict != TPT_SURVIVES) {
                log_mutant(site, verdict, of->work[number].name);
                return verdict;
            }
        }
    log_mutant(site, TPT_SURVIVES, reached ? "everything that executes it" : "not executed");
    return TPT_SURVIVES;
}

Test(cuda_sync_mutants, barriers, .timeout = 14400)
{
    double begin = tpt_now();
    int count = tpt_gpus_barriers(), *order;
    tally t = {0, 0};
    if (count == 0)
        cr_skip_test("no simulator");
    cr_assert_leq(count, TPT_MOST_SITES);
    barrier_works *of = run_all_works();
    printf("%d programs once: %.1f s\n", of->count, tpt_now() - begin);
    order = order_of(count);
    for (int i = 0; i < count && (everything() || tpt_now() < begin + SAMPLE_SECONDS); i++) {
        t.tried++;
        t.caught += try_barrier(of, order[i]) != TPT_SURVIVES;
        fflush(stdout);
    }
    free(order);
    free(of);
    judge("barriers", &t, everything() ? 95 : LEAST_SAMPLED);
}

/* ---- waits for events -------------------------------------------------------------------------------------------------------------------------------- */

static tpt_verdict try_wait(const tpt_work *work, const tpt_outcome *right, int part, int thread, int64_t number)
{
    tpt_verdict verdict = TPT_SURVIVES;
    for (unsigned s = 0; s < 3 && verdict == TPT_SURVIVES; s++) {
        gpusim_options options = tpt_gpus_schedule(s);
        options.skip_thread = thread + 1;
        options.skip_wait = (int)number + 1;
        verdict = tpt_work_judge(right, tpt_work_run(work, options));
    }
    log_wait(work, right, part, thread, number, verdict);
    return verdict;
}

typedef struct wait_place {
    int part, thread;
    int64_t number;
} wait_place;

enum { MOST_WAITS = 4096 };

static int list_waits(const tpt_outcome *right, int threads, wait_place *out)
{
    int count = 0;
    for (int part = 0; part + 1 < right->parts; part++)
        for (int thread = 0; thread < threads && right->part[part] != NULL; thread++)
            for (int64_t number = right->first[part][thread]; number < right->first[part + 1][thread]; number++) {
                cr_assert_lt(count, MOST_WAITS);
                out[count++] = (wait_place){part, thread, number};
            }
    return count;
}

static void try_waits(const tpt_work *work, double until, tally *t)
{
    static wait_place place[MOST_WAITS];
    tpt_outcome *right = malloc(sizeof *right);
    *right = *tpt_work_run(work, (gpusim_options){0});
    cr_assert(right->finished && right->status == TP_OK && right->reports == 0, "%s: %s", work->name, right->why);
    int count = list_waits(right, work->threads, place), *order = order_of(count), tried = 0, caught = 0;
    for (; tried < count && (everything() || tpt_now() < until); tried++) {
        const wait_place *at = &place[order[tried]];
        caught += try_wait(work, right, at->part, at->thread, at->number) != TPT_SURVIVES;
    }
    t->tried += tried;
    t->caught += caught;
    printf("%s: %d of %d waits tried, %d survive (%.3f s a run)\n", work->name, tried, count, tried - caught, right->seconds);
    fflush(stdout);
    free(order);
    free(right);
}

Test(cuda_sync_mutants, waits, .timeout = 14400)
{
    double begin = tpt_now();
    tpt_work work;
    tally t = {0, 0};
    int count = 0;
    if (tpt_gpus_barriers() == 0)
        cr_skip_test("no simulator");
    while (tpt_wait_work(count, &work))
        count++;
    for (int i = 0; i < count; i++) {
        tpt_wait_work(i, &work);
        if (getenv("ONLY") == NULL || strstr(work.name, getenv("ONLY")) != NULL)
            try_waits(&work, begin + SAMPLE_SECONDS * (double)(i + 1) / (double)count, &t);
    }
    judge("waits", &t, everything() ? 95 : LEAST_SAMPLED);
}
