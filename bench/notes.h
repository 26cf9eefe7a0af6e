/* Books of what a team measured. The host moves virtual cores between core complexes, which changes every exchange
 * between two of them by a factor; so samples are told apart by a probe of flags before and after each, and figures are
 * of the kind that was seen more often. */
#ifndef BENCH_NOTES_H
#define BENCH_NOTES_H

#include "measure.h"

typedef struct bench_team_figure {
    bench_figure figure; /* seconds of one call */
    const char *distance; /* "near", "far", or "" where it was not probed */
    double probe_seconds; /* of one exchange of flags; 0: not probed */
} bench_team_figure;

/* Samples of one part. */
typedef struct bench_team_notes {
    bench_samples near, far;
    double probes[BENCH_SAMPLES];
    double passed; /* seconds in samples */
    bool *last;    /* whether the last sample is clean; NULL: there was no room for it */
    int near_before, far_before; /* samples when the comparison began */
} bench_team_notes;

/* One sample. */
typedef struct bench_taken {
    double seconds; /* of a call */
    int64_t repeats;
    bool clean;           /* on all ranks */
    bool probed;          /* else it counts as far */
    double before, after; /* seconds of an exchange of flags */
} bench_taken;

/* Whether an exchange of flags took as long as between cores that share an L3 cache. */
bool bench_is_near(double seconds);

/* A comparison begins, whose samples join those that are there. */
void bench_notes_begin(bench_team_notes *books, int count);

/* Returns whether the sample is clean: cores that were moved meanwhile are neither near nor far. */
bool bench_notes_enter(bench_team_notes *book, const bench_taken *taken);
int bench_notes_turns(const bench_team_notes *book);

/* The last turn is clean for all parts or for none. */
void bench_notes_judge(bench_team_notes *books, int count);

/* Of the part in books[index]. What is compared is of the same distance: a part that was never seen at that of all
 * parts together has its figure from the other, with no sample kept. */
bench_team_figure bench_notes_figure(const bench_team_notes *books, int count, int index, bool probed);

/* The same of the samples since bench_notes_begin alone; NaN if all of them are of the other distance. */
bench_figure bench_notes_alone(const bench_team_notes *books, int count, int index);

#endif
