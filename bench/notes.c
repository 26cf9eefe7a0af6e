#include "notes.h"

#include <string.h>

/* Flags pass between cores that share an L3 cache in about 50 ns, between others in about 190. */
#define NEAR_SECONDS 110e-9
#define BOGUS_SECONDS 10e-9 /* faster than any exchange: the other rank had given the round up */

bool bench_is_near(double seconds)
{
    return seconds > BOGUS_SECONDS && seconds < NEAR_SECONDS;
}

int bench_notes_turns(const bench_team_notes *book)
{
    return book->near.count + book->far.count;
}

void bench_notes_begin(bench_team_notes *books, int count)
{
    for (int i = 0; i < count; i++) {
        books[i].near_before = books[i].near.count;
        books[i].far_before = books[i].far.count;
    }
}

bool bench_notes_enter(bench_team_notes *book, const bench_taken *taken)
{
    bool near = bench_is_near(taken->before), moved = taken->probed && near != bench_is_near(taken->after);
    int turn = bench_notes_turns(book);
    bench_samples *samples = near ? &book->near : &book->far;
    book->last = samples->count < BENCH_SAMPLES ? &samples->clean[samples->count] : NULL;
    bench_sample_add(samples, taken->seconds, taken->clean && !moved);
    book->probes[turn < BENCH_SAMPLES ? turn : BENCH_SAMPLES - 1] =
        taken->before < taken->after ? taken->before : taken->after;
    book->passed += taken->seconds * (double)taken->repeats;
    return taken->clean && !moved;
}

void bench_notes_judge(bench_team_notes *books, int count)
{
    bool clean = true;
    for (int i = 0; i < count; i++)
        clean = clean && (books[i].last == NULL || *books[i].last);
    for (int i = 0; i < count; i++)
        if (books[i].last != NULL)
            *books[i].last = clean;
}

/* What was seen more often, of all parts together. */
static bool mostly_near(const bench_team_notes *books, int count)
{
    int clean = 0, all = 0;
    for (int i = 0; i < count; i++) {
        clean += bench_sample_clean(&books[i].near) - bench_sample_clean(&books[i].far);
        all += books[i].near.count - books[i].far.count;
    }
    return clean > 0 || (clean == 0 && all > 0);
}

bench_team_figure bench_notes_figure(const bench_team_notes *books, int count, int index, bool probed)
{
    const bench_team_notes *book = &books[index];
    bool near = mostly_near(books, count), missing = (near ? &book->near : &book->far)->count == 0;
    double probes[BENCH_SAMPLES];
    int total = bench_notes_turns(book), listed = total < BENCH_SAMPLES ? total : BENCH_SAMPLES;
    near = near != missing;
    bench_team_figure out = {.figure = bench_sample_figure(near ? &book->near : &book->far), .distance = ""};
    out.figure.total = total;
    if (missing)
        out.figure.kept = 0;
    if (!probed)
        return out;
    out.distance = near ? "near" : "far";
    memcpy(probes, book->probes, (size_t)listed * sizeof *probes);
    out.probe_seconds = bench_median(probes, listed);
    return out;
}

bench_figure bench_notes_alone(const bench_team_notes *books, int count, int index)
{
    const bench_team_notes *book = &books[index];
    return mostly_near(books, count) ? bench_sample_figure_since(&book->near, book->near_before)
                                     : bench_sample_figure_since(&book->far, book->far_before);
}
