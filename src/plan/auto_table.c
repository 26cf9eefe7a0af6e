/* Choices for all numbers of rows. They change few times from one row to the most, and most candidates are nowhere near
 * the best: those that can't matter are not simulated. */
#include <tp/auto.h>

#include <math.h>
#include <stdlib.h>

#include "core/context.h"
#include "plan/auto.h"

/* Every so many classes one is looked at; in between, only where the two at the ends choose differently. */
#define STRIDE 4
/* More chunks hide more and cost more: an algorithm's chunk counts are tried in rising order until one takes so much
 * longer than the best before it. */
#define WORSE 1.1
/* A candidate that takes so many times the best one's time at both ends is not tried in between. */
#define FAR 2

/* What is known about one class. */
typedef struct row_class {
    int64_t last, middle; /* rows: it holds up to, it is simulated for */
    tp_overlap algorithm;
    int chunks;
    bool far[TP_OVERLAP_CANDIDATES];
} row_class;

typedef struct table_job {
    const tp_machine *machine;
    const tp_overlap_shape *shape;
    const tpi_progress *progress;
    int candidates, classes;
    tp_plan_desc desc[TP_OVERLAP_CANDIDATES];
    tp_plan *plan[TP_OVERLAP_CANDIDATES]; /* NULL: not asked for yet */
    row_class at[TP_OVERLAP_CLASSES];
} table_job;

/* 1, 2, 3, 4, 6, 8, 12, ... */
static int64_t last_rows(int which)
{
    int64_t power = (int64_t)1 << (which + 1) / 2;
    return which < 2 || which % 2 == 1 ? power : power / 2 * 3;
}

static void divide_rows(table_job *job)
{
    do {
        row_class *at = &job->at[job->classes];
        at->last = last_rows(job->classes);
        at->middle = job->classes > 0 ? (at[-1].last + at->last + 1) / 2 : 1;
    } while (job->at[job->classes++].last < job->shape->rows && job->classes < TP_OVERLAP_CLASSES);
}

static tp_status report(const table_job *job)
{
    return job->progress != NULL ? job->progress->call(job->progress->arg) : TP_OK;
}

/* Adds one candidate to the choice. */
static tp_status try_candidate(table_job *job, const tp_overlap_shape *shape, int which, tp_overlap_choice *choice)
{
    if (job->plan[which] == NULL) {
        TPI_TRY(tp_plan_create(&job->desc[which], &job->plan[which]));
        TPI_TRY(report(job));
    }
    TPI_TRY(tpi_overlap_try(job->machine, shape, &job->desc[which], job->plan[which], choice));
    return report(job);
}

/* The ends: chosen classes on both sides; NULL: there are none yet. */
static tp_status choose(table_job *job, row_class *at, const row_class *from, const row_class *to)
{
    tp_overlap_choice choice = {.algorithm = TP_OVERLAP_NONE};
    tp_overlap_shape shape = *job->shape;
    double seconds[TP_OVERLAP_CANDIDATES] = {0}, least = INFINITY, best = INFINITY;
    shape.rows = at->middle;
    for (int c = 0; c < job->candidates; c++) {
        if (c > 0 && job->desc[c].algorithm != job->desc[c - 1].algorithm)
            least = INFINITY;
        at->far[c] = c > 0 && from != NULL && from->far[c] && to->far[c];
        if (at->far[c] || least <= 0 || tpi_overlap_too_fine(&shape, &job->desc[c]))
            continue;
        TPI_TRY(try_candidate(job, &shape, c, &choice));
        seconds[c] = choice.candidate[choice.candidates - 1].seconds;
        best = fmin(best, seconds[c]);
        least = seconds[c] > WORSE * least ? 0 : fmin(least, seconds[c]); /* 0: no more of them */
    }
    for (int c = 1; c < job->candidates; c++)
        at->far[c] = at->far[c] || seconds[c] > FAR * best;
    at->algorithm = choice.algorithm;
    at->chunks = choice.chunks;
    return TP_OK;
}

/* Chooses for the classes between two. */
static tp_status refine(table_job *job, int from, int to)
{
    row_class *low = &job->at[from], *high = &job->at[to];
    if (low->algorithm == high->algorithm && low->chunks == high->chunks)
        for (int i = from + 1; i < to; i++) {
            job->at[i].algorithm = low->algorithm;
            job->at[i].chunks = low->chunks;
        }
    else if (to - from > 1) {
        int middle = (from + to) / 2;
        TPI_TRY(choose(job, &job->at[middle], low, high));
        TPI_TRY(refine(job, from, middle));
        TPI_TRY(refine(job, middle, to));
    }
    return TP_OK;
}

static tp_status fill(table_job *job)
{
    int last = 0;
    TPI_TRY(choose(job, &job->at[0], NULL, NULL));
    while (last + 1 < job->classes) {
        int next = last + STRIDE < job->classes ? last + STRIDE : job->classes - 1;
        TPI_TRY(choose(job, &job->at[next], NULL, NULL));
        TPI_TRY(refine(job, last, next));
        last = next;
    }
    return TP_OK;
}

tp_status tpi_overlap_table_fill(const tp_machine *machine, const tp_overlap_shape *shape, const tpi_progress *progress,
                                 tp_overlap_table *out)
{
    *out = (tp_overlap_table){0};
    table_job *job = calloc(1, sizeof *job);
    if (job == NULL)
        return tpi_message(TP_ERR_MEMORY, "tp_overlap_table_fill: out of memory");
    job->machine = machine;
    job->shape = shape;
    job->progress = progress;
    job->candidates = tpi_overlap_list_candidates(machine, shape, job->desc);
    divide_rows(job);
    tp_status status = fill(job);
    for (int i = 0; i < job->classes && status == TP_OK; i++) {
        out->entry[i].rows = job->at[i].last;
        out->entry[i].algorithm = job->at[i].algorithm;
        out->entry[i].chunks = job->at[i].chunks;
        out->classes = i + 1;
    }
    for (int c = 0; c < job->candidates; c++)
        tp_plan_destroy(job->plan[c]);
    free(job);
    return status;
}

tp_status tp_overlap_table_fill(const tp_machine *machine, const tp_overlap_shape *shape, tp_overlap_table *out)
{
    TPI_TRY(tpi_overlap_check_arguments("tp_overlap_table_fill", machine, shape, out));
    return tpi_overlap_table_fill(machine, shape, NULL, out);
}

void tp_overlap_table_find(const tp_overlap_table *table, int64_t rows, tp_overlap *algorithm, int *chunks)
{
    if (algorithm == NULL || chunks == NULL)
        return;
    *algorithm = TP_OVERLAP_NONE;
    *chunks = 1;
    for (int i = 0; table != NULL && i < table->classes; i++) {
        *algorithm = table->entry[i].algorithm;
        *chunks = table->entry[i].chunks;
        if (rows <= table->entry[i].rows)
            return;
    }
}
