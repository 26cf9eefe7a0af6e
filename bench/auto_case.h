/* One layer with every fixed choice of an overlap, with none twice, and with AUTO, in one world: all are measured in
 * turns, sample by sample. */
#ifndef BENCH_AUTO_CASE_H
#define BENCH_AUTO_CASE_H

#include "layer_case.h"
#include "parallel.h"

typedef struct bench_auto_choice {
    tp_overlap overlap;
    int chunks;
} bench_auto_choice;

/* What AUTO could choose; the first is none. */
#define BENCH_AUTO_CHOICES 16
extern const bench_auto_choice bench_auto_choices[BENCH_AUTO_CHOICES];

/* Times as long as other figures, every one of the second round is measured, in as many passes over a job's points: a
 * plan may keep one of two paces for a hundred calls, and the machine for seconds. All points alike: turns that ended
 * where auto looks good would make it look better. */
#define BENCH_AUTO_LONGER 8
#define BENCH_AUTO_PASSES 4

/* What a point's second round compares. */
enum { BENCH_AUTO_NONE, BENCH_AUTO_AUTO, BENCH_AUTO_AGAIN, BENCH_AUTO_FIXED, BENCH_AUTO_PARTS };

/* One number of tokens and one pass. The best is found in a first round of all choices, and measured again in a second
 * one with the rest: the least of many noisy figures is too small. */
typedef struct bench_auto_point {
    int64_t tokens;
    bool backward;
    double first_round[BENCH_AUTO_CHOICES]; /* seconds */
    int best;                               /* in bench_auto_choices */
    bench_team_figure none, again, fixed, automatic; /* second round; again: none in a layer of its own, what noise
                                                      * does; fixed: the best */
    char chosen[BENCH_CELL_TEXT]; /* the plans that AUTO ran */
    bool same; /* the best fixed choice runs the same ones: both figures are of one layer's samples */
    double to_fixed[BENCH_AUTO_PASSES], to_none[BENCH_AUTO_PASSES]; /* AUTO's time over theirs, of each pass alone:
                                                                      * what only some passes say is noise */
    bool lanes[BENCH_AUTO_PARTS]; /* those that AUTO or the best runs have some: threads of one rank switch then, and a
                                   * switch says nothing */
    bench_team_notes *notes; /* [BENCH_AUTO_PARTS], of the second round while it is measured */
    double predicted[BENCH_AUTO_CHOICES]; /* seconds of those plans' places by the cost model; what runs outside of
                                           * plans with peers is not in it */
    double predicted_auto;
} bench_auto_point;

typedef struct bench_auto_job {
    bench_call *call;
    bench_layer_shape shape; /* all but tokens and overlap */
    int ranks;
    tp_link link;
    tp_machine machine; /* what AUTO goes by */
    bench_auto_point *points;
    int count;
    bench_team team;
} bench_auto_job;

/* Fills the points, whose tokens and passes are given: backward right after the forward of the same tokens. On failure
 * tp_last_message() says why. */
tp_status bench_auto_run(bench_auto_job *job);

#endif
