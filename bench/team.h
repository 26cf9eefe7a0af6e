/* Ranks that measure together: every sample begins with a barrier, its time is the mean over ranks, as nccl-tests
 * reports it. */
#ifndef BENCH_TEAM_H
#define BENCH_TEAM_H

#include "notes.h"
#include "turns.h"

#include <stdatomic.h>
#include <tp/tp.h>

#define BENCH_RANKS 64

/* Parts of one comparison that are measured in turns. */
#define BENCH_TEAM_PARTS 32

typedef struct bench_team {
    int ranks;
    bool on_gpu;   /* times are the GPU's own; nothing is dropped */
    bool untimed;  /* a simulated GPU: each part runs once, to see that it does */
    bool probed; /* ranks 0 and 1 have cores of their own, so how far these are from each other can be felt */
    struct {
        double seconds;
        bool switched;
        double compute, comm; /* seconds inside samples, all together */
        _Alignas(64) char apart;
    } slot[BENCH_RANKS];
    bench_turns *turns; /* NULL: alone */
    int party;
    int64_t repeats[BENCH_TEAM_PARTS]; /* of the call within one sample */
    bool more;
    struct {
        _Alignas(64) atomic_long turn;
    } probe[2];
    double probe_seconds;
    long probe_round;
} bench_team;

typedef struct bench_team_plan {
    int warmup, least, most; /* samples of a part, those in its notes included; so are the seconds */
    double seconds;
    bench_team_notes *notes; /* one a part, of earlier comparisons, zeroed before the first: these samples join them,
                              * and the figures are of all. NULL: of this one alone */
    bench_figure *alone; /* [parts] rank 0's: of this comparison's samples alone; NULL: not wanted */
    int64_t repeats; /* calls a sample; 0: as many as take 0.2 ms */
    bench_samples *taken; /* rank 0's: of the first part each sample, in the order of turns, near or far; NULL: not
                           * wanted */
    bool whole;      /* fn takes the whole sample itself: what arg points to begins with a bench_team_sample */
    bool together;   /* a turn is clean for all parts or for none, as with bench_measure */
} bench_team_plan;

typedef struct bench_team_sample {
    int64_t repeats; /* calls that are wanted */
    double seconds;  /* fn's answer: of one of them, */
    bool switched;   /* and whether this rank was switched out */
} bench_team_sample;

void bench_team_init(bench_team *team, int ranks, int cores);

/* Whom a rank's samples watch: its thread, and where it has workers, these too. */
bench_watched bench_watched_of(const tp_ctx *ctx);

/* Collective: times fn(arg), taking turns with other parties for each sample. Rank 0 gets the figure. Called without
 * the turn. */
tp_status bench_team_measure(bench_team *team, tp_ctx *ctx, const bench_team_plan *plan, tp_status (*fn)(void *arg),
                             void *arg, bench_team_figure *figure);

/* The same for up to BENCH_TEAM_PARTS functions, sample by sample in turns, so that a slow moment falls on all of them.
 * plan->seconds is for each. */
typedef struct bench_team_part {
    tp_status (*fn)(void *arg);
    void *arg;
    bench_team_figure *figure;
    bool lanes; /* its own lanes take the core from the compute thread: a switch says nothing, all samples count */
} bench_team_part;
tp_status bench_team_compare(bench_team *team, tp_ctx *ctx, const bench_team_plan *plan, const bench_team_part *parts,
                             int count);

/* Part of all ranks' time inside samples that went into communication, waiting for peers included. Not while ranks
 * measure. NaN on a GPU. */
double bench_team_comm_share(const bench_team *team);

/* Collective: whether the cores of ranks 0 and 1 share an L3 cache now; where that can't be felt, true. */
tp_status bench_team_probe(bench_team *team, tp_ctx *ctx, bool *near);

/* Collective: the sum of a number over ranks, and the largest, by way of shared memory. A NaN is the largest. */
tp_status bench_team_sum(bench_team *team, tp_ctx *ctx, double mine, double *sum);
tp_status bench_team_most(bench_team *team, tp_ctx *ctx, double mine, double *most);

#endif
