/* The simulator's mutants: every barrier, fence and copy wait of the kernels, and every wait of a stream for an event,
 * is left out, one at a time, and something must notice: a report, other numbers or a failure. Runs a sample of both
 * within a minute (TPT_CUDA_MUTANT_SEED chooses it); all of them if the environment has TPT_CUDA_ALL_MUTANTS.
 * TPT_CUDA_MUTANT_LOG: a file for a line about each; TPT_CUDA_MUTANT_WORK: only work with these words in its name;
 * TPT_CUDA_MUTANT_PIECE: "2/5" is every fifth mutant from the third on. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/gpus.h"
#include "cuda/sync_mutants.h"

enum { SAMPLE_SECONDS = 20, LEAST_PERCENT = 95, MOST_WORKS = 160, MOST_WAITS = 4096,
      SAMPLED_WAITS = 6 /* of one work */ };

static bool everything(void)
{
    return getenv("TPT_CUDA_ALL_MUTANTS") != NULL;
}

/* ---- what is noticed, and what need not be ----------------------------------------------------------------------- */

/* Waits that survive in this work, and which other work needs; docs/cuda.md, section 6, says why. Parts of the work's
 * name, and the part of it; of one work at most so many. Every barrier is needed. */
typedef struct harmless {
    const char *where, *what;
    int most;
} harmless;

static const harmless harmless_waits[] = {
    {"with none and sequences cut", "backward", 2},
    {"with bulk and sequences cut", "backward", 2},
    {"with pipeline and sequences cut", "", 16},
    {"with ring on 4 ranks", "", 12},
    {"model step with none", "", 36},
    {"model step with pull", "", 47},
    {"model step with ring", "", 73},
    {"model step with pipeline", "", 20},
};

static const harmless *find_harmless(const char *where, const char *what)
{
    for (size_t i = 0; i < sizeof harmless_waits / sizeof harmless_waits[0]; i++)
        if (strstr(where, harmless_waits[i].where) != NULL && strstr(what, harmless_waits[i].what) != NULL)
            return &harmless_waits[i];
    return NULL;
}

/* A wait of the library, wherever it is executed. */
typedef struct wait_site {
    char name[TPT_SITE_BYTES];
    int tried, caught;
} wait_site;

enum { MOST_WAIT_SITES = 2048 };

typedef struct tally {
    int tried, caught;
    int harmless; /* listed or idle */
    int of_work; /* survivors of the work under way */
    wait_site *site; /* of waits; NULL: each barrier is a site of its own */
    int sites;
} tally;

static void note_site(tally *t, const char *name, bool caught)
{
    int i = 0;
    while (i < t->sites && strcmp(t->site[i].name, name) != 0)
        i++;
    if (i == t->sites) {
        cr_assert_lt(t->sites, MOST_WAIT_SITES);
        snprintf(t->site[t->sites++].name, TPT_SITE_BYTES, "%s", name);
    }
    t->site[i].tried++;
    t->site[i].caught += caught;
}

/* One mutant, for the tally and the log. */
typedef struct mutant {
    const char *kind, *where, *place, *what, *work;
    int number;
    const harmless *harmless; /* if it survives; NULL: it is not */
    bool idle; /* a wait: whatever it orders, others order too */
} mutant;

static void note(tally *t, const mutant *m, tpt_verdict verdict)
{
    const char *path = getenv("TPT_CUDA_MUTANT_LOG"), *open = strchr(m->where, '<');
    bool survives = verdict == TPT_SURVIVES, long_name = strlen(m->where) > 100 && open != NULL;
    int length = (int)(long_name ? open - m->where : (long)strlen(m->where));
    FILE *log = path != NULL ? fopen(path, "a") : NULL;
    t->tried++;
    t->caught += !survives;
    if (t->site != NULL)
        note_site(t, m->where, !survives);
    bool idle = survives && m->idle;
    t->of_work += survives && !idle;
    bool listed = survives && !idle && m->harmless != NULL && t->of_work <= m->harmless->most;
    const char *fate = idle ? "nothing (idle)" : listed ? "nothing (harmless)" : tpt_verdict_name(verdict);
    t->harmless += listed || idle;
    if (survives)
        printf("survives, %s: %s %d (%s) of %.*s, %s; %s\n", fate, m->kind, m->number, m->what, length, m->where,
               m->place, m->work);
    if (log == NULL)
        return;
    fprintf(log, "%s,%d,\"%.*s\",\"%s\",%s,\"%s\",%s\n", m->kind, m->number, length, m->where, m->place, m->what,
            m->work, fate);
    fclose(log);
}

/* Sites that some work caught. */
static int caught_sites(const tally *t)
{
    int caught = t->site == NULL ? t->caught : 0;
    for (int i = 0; i < t->sites; i++) {
        caught += t->site[i].caught > 0;
        if (t->site[i].caught == 0)
            printf("no work catches %s (%d tries)\n", t->site[i].name, t->site[i].tried);
    }
    return caught;
}

/* Of all mutants, nothing is taken off: of all places in the code at least so many must be caught by some work. Of a
 * sample, those that need not be noticed are: it may hold none of the work that needs a place. */
static void judge(const char *what, const tally *t)
{
    int needed = t->tried - t->harmless, sites = t->site != NULL ? t->sites : t->tried, caught = caught_sites(t);
    printf("%s: %d mutants, %d caught, %d harmless; %d of %d sites caught\n", what, t->tried, t->caught, t->harmless,
           caught, sites);
    cr_assert_gt(needed, 0);
    cr_assert_geq(t->caught * 100, needed * LEAST_PERCENT, "%s: only %d of %d mutants are caught", what, t->caught,
                  needed);
    if (everything() && getenv("TPT_CUDA_MUTANT_WORK") == NULL && getenv("TPT_CUDA_MUTANT_PIECE") == NULL)
        cr_assert_geq(caught * 100, sites * LEAST_PERCENT, "%s: only %d of %d sites are caught", what, caught, sites);
}

/* Numbers 0 to count - 1: all in their order, or as TPT_CUDA_MUTANT_SEED shuffles them. Freed by free(). */
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

/* NULL: all work there is. */
static bool is_wanted(const tpt_work *work)
{
    const char *words = getenv("TPT_CUDA_MUTANT_WORK");
    return words == NULL || (work != NULL && strstr(work->name, words) != NULL);
}

static bool is_in_piece(int number)
{
    const char *text = getenv("TPT_CUDA_MUTANT_PIECE");
    int piece = 0, pieces = 1;
    if (text != NULL && (sscanf(text, "%d/%d", &piece, &pieces) != 2 || pieces < 1))
        cr_assert(false, "TPT_CUDA_MUTANT_PIECE=%s: expected a piece and their number, like 0/4", text);
    return number % pieces == piece;
}

/* With everything in place. */
static void run_right(const tpt_work *work, tpt_outcome *right)
{
    *right = *tpt_work_run(work, (gpusim_options){0});
    cr_assert(right->finished && right->status == TP_OK && right->reports == 0, "%s: %s", work->name, right->why);
}

/* ---- barriers ---------------------------------------------------------------------------------------------------- */

typedef struct barrier_works {
    int count;
    tpt_work work[MOST_WORKS];
    tpt_outcome right[MOST_WORKS];
    int fastest[MOST_WORKS];
} barrier_works;

static int by_seconds(const void *a, const void *b, void *works)
{
    const barrier_works *of = works;
    double first = of->right[*(const int *)a].seconds, second = of->right[*(const int *)b].seconds;
    return (first > second) - (first < second);
}

/* All work, or what can be run until then. */
static barrier_works *run_works(double until)
{
    barrier_works *of = calloc(1, sizeof *of);
    tpt_work work;
    int all = 0;
    while (tpt_kernel_work(all, &work))
        all++;
    int *order = order_of(all);
    cr_assert_leq(all, MOST_WORKS);
    for (int i = 0; i < all && (everything() || tpt_now() < until); i++) {
        tpt_kernel_work(order[i], &of->work[of->count]);
        if (!is_wanted(&of->work[of->count]))
            continue;
        run_right(&of->work[of->count], &of->right[of->count]);
        of->fastest[of->count] = of->count;
        of->count++;
    }
    free(order);
    qsort_r(of->fastest, (size_t)of->count, sizeof of->fastest[0], by_seconds, of);
    return of;
}

/* Tries one barrier in all work that executes it, the fastest first. False if none does. */
static bool try_barrier(const barrier_works *of, int number, tally *t)
{
    static const gpusim_options schedules[] = {
        {.order = GPUSIM_UP}, {.order = GPUSIM_DOWN}, {.order = GPUSIM_SHUFFLED, .seed = 1}};
    const size_t count = sizeof schedules / sizeof schedules[0];
    gpusim_site site = tpt_gpus_barrier(number);
    char place[64];
    tpt_verdict verdict = TPT_SURVIVES;
    mutant m = {"barrier", site.kernel, place, site.what, "not executed", number, NULL, false};
    snprintf(place, sizeof place, "%s:%d", site.file != NULL ? site.file : "?", site.line);
    for (size_t i = 0; i < count * (size_t)of->count && verdict == TPT_SURVIVES; i++) {
        int work = of->fastest[i % (size_t)of->count];
        gpusim_options options = schedules[i / (size_t)of->count];
        if (!of->right[work].executed[number])
            continue;
        options.skip_barrier = number + 1;
        m.work = of->work[work].name;
        verdict = tpt_work_judge(&of->right[work], tpt_work_run(&of->work[work], options));
    }
    bool executed = strcmp(m.work, "not executed") != 0;
    if (executed || (everything() && is_wanted(NULL)))
        note(t, &m, verdict);
    return executed;
}

/* Else a kernel that is new would have no mutants. */
Test(cuda_sync_mutants, every_barrier_is_executed_by_some_work, .timeout = 600)
{
    int count = tpt_gpus_barriers(), left = count;
    bool *executed = calloc((size_t)count + 1, sizeof *executed);
    tpt_outcome *right = malloc(sizeof *right);
    tpt_work work;
    for (int i = 0; left > 0 && tpt_kernel_work(i, &work); i++) {
        run_right(&work, right);
        for (int site = 0; site < count; site++) {
            left -= right->executed[site] && !executed[site];
            executed[site] = executed[site] || right->executed[site];
        }
    }
    for (int site = 0; site < count; site++)
        if (!executed[site])
            printf("no work executes barrier %d (%s) of %s\n", site, tpt_gpus_barrier(site).what,
                   tpt_gpus_barrier(site).kernel);
    free(executed);
    free(right);
    cr_assert_eq(left, 0, "no work executes %d of %d barriers", left, count);
}

Test(cuda_sync_mutants, barriers, .timeout = 14400)
{
    double begin = tpt_now();
    int count = tpt_gpus_barriers();
    tally t = {0};
    if (count == 0)
        cr_skip_test("no simulator");
    cr_assert_leq(count, TPT_MOST_SITES);
    barrier_works *of = run_works(begin + SAMPLE_SECONDS / 2.5);
    int *order = order_of(count);
    for (int i = 0; i < count && (everything() || tpt_now() < begin + SAMPLE_SECONDS); i++)
        if (is_in_piece(order[i]))
            try_barrier(of, order[i], &t);
    free(order);
    free(of);
    judge("barriers", &t);
}

/* ---- waits for events -------------------------------------------------------------------------------------------- */

typedef struct wait_place {
    int part, thread, number;
} wait_place;

/* The next part, behind `after`, with the name of `part`; -1: none. */
static int next_like(const tpt_outcome *right, int after, int part)
{
    for (int i = after + 1; i + 1 < right->parts && right->part[part] != NULL; i++)
        if (right->part[i] == right->part[part])
            return i;
    return -1;
}

static int list_waits(const tpt_outcome *right, int threads, wait_place *out)
{
    int count = 0;
    for (int part = 0; part + 1 < right->parts; part++)
        for (int thread = 0; thread < threads && next_like(right, -1, part) == part; thread++)
            for (int number = 0; number < (int)(right->first[part + 1][thread] - right->first[part][thread]);
                 number++) {
                cr_assert_lt(count, MOST_WAITS);
                out[count++] = (wait_place){part, thread, number};
            }
    return count;
}

static int number_in_run(const tpt_outcome *right, const wait_place *at, int part)
{
    return (int)right->first[part][at->thread] + at->number;
}

/* Whatever it orders, others order too, in every part where the same is done: there is nothing to notice. */
static bool is_idle(const tpt_outcome *right, const wait_place *at)
{
    for (int part = at->part; part >= 0; part = next_like(right, part, part)) {
        int number = number_in_run(right, at, part);
        if (number >= TPT_MOST_WAITS || !right->idle[at->thread][number])
            return false;
    }
    return true;
}

/* In every part where the same is done. */
static void try_wait(const tpt_work *work, const tpt_outcome *right, const wait_place *at, tally *t)
{
    tpt_verdict verdict = TPT_SURVIVES;
    char place[64];
    mutant m = {"wait", right->site[at->thread][number_in_run(right, at, at->part)], place, "event", work->name,
                at->number, find_harmless(work->name, right->part[at->part]), is_idle(right, at)};
    snprintf(place, sizeof place, "%s: rank %d", right->part[at->part], at->thread);
    for (unsigned s = 0; s < 2 && !m.idle; s++)
        for (int part = at->part; part >= 0 && verdict == TPT_SURVIVES; part = next_like(right, part, part)) {
            gpusim_options options = tpt_gpus_schedule(s);
            options.skip_thread = at->thread + 1;
            options.skip_wait = number_in_run(right, at, part) + 1;
            verdict = tpt_work_judge(right, tpt_work_run(work, options));
        }
    note(t, &m, verdict);
}

static void try_waits(const tpt_work *work, double until, tally *t)
{
    static wait_place place[MOST_WAITS];
    tpt_outcome *right = malloc(sizeof *right);
    run_right(work, right);
    int count = list_waits(right, work->threads, place), *order = order_of(count);
    const tally before = *t;
    t->of_work = 0;
    int most = everything() || count < SAMPLED_WAITS ? count : SAMPLED_WAITS;
    for (int i = 0; i < most && (everything() || tpt_now() < until); i++)
        if (is_in_piece(order[i]))
            try_wait(work, right, &place[order[i]], t);
    printf("%s: %d waits, %d of them tried, %d caught\n", work->name, count, t->tried - before.tried,
           t->caught - before.caught);
    fflush(stdout);
    free(order);
    free(right);
}

Test(cuda_sync_mutants, waits, .timeout = 14400)
{
    double until = tpt_now() + SAMPLE_SECONDS;
    tpt_work work;
    tally t = {.site = calloc(MOST_WAIT_SITES, sizeof *t.site)};
    int count = 0;
    if (tpt_gpus_barriers() == 0)
        cr_skip_test("no simulator");
    while (tpt_wait_work(count, &work))
        count++;
    int *order = order_of(count);
    for (int i = 0; i < count && (everything() || tpt_now() < until); i++) {
        tpt_wait_work(order[i], &work);
        if (is_wanted(&work) && (everything() || work.in_samples))
            try_waits(&work, until, &t);
    }
    free(order);
    judge("waits", &t);
    free(t.site);
}
