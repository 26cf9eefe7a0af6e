/* The state of a simulation, for the simulator and for the report of what can't run. */
#ifndef TPI_SIMULATION_H
#define TPI_SIMULATION_H

#include "plan/price.h"

typedef struct tpi_op_state {
    bool done;
    int match;     /* SEND, RECV: the op of the peer that it meets; COLLECTIVE: a number that its peers have too; -1: none */
    int issuer;    /* the last op on the compute lane before it in the list; -1: none */
    int before;    /* the last op on its own lane before it; -1: none */
    tp_wait cause; /* what its beginning waited for; rank -1: nothing */
} tpi_op_state;

typedef struct tpi_link_end {
    double free;
    tp_wait last; /* who used it last */
} tpi_link_end;

/* What one rank's transfers and collectives take without anything beside them: the least that a run of all of them could. */
typedef struct tpi_alone {
    double out, in;          /* of its ends of the link, busy */
    double last;             /* from the link to being seen, of the transfer that takes longest there: latencies of others overlap with what crosses */
    double chain[TP_LANES];  /* of a lane's collectives on the link: each waits for the one before, with its latency */
    double copies[TP_LANES]; /* of a lane: copying and fixed costs */
} tpi_alone;

typedef struct tpi_simulation {
    const tp_plan *plan;
    const tp_plan_costs *costs;
    tp_timeline *timeline;
    tpi_op_state *state[TP_PLAN_MAX_RANKS];
    int next[TP_PLAN_MAX_RANKS][TP_LANES]; /* of each lane; the list's length when it is empty */
    tpi_link_end out[TP_PLAN_MAX_RANKS], in[TP_PLAN_MAX_RANKS];
    double arrived[TP_PLAN_MAX_RANKS][TP_LANES]; /* when a lane's last collective did, on the link's own clock: before its lane saw that */
    tpi_alone alone[TP_PLAN_MAX_RANKS];
    int left; /* ops that were not run yet */
} tpi_simulation;

/* An op that can begin, when, and why not earlier. */
typedef struct tpi_candidate {
    int rank, op;
    double when;
    double posted; /* a transfer or collective may cross its link from then on, although its lane sees to it later: arrivals are not waited for in between */
    tp_wait cause;
} tpi_candidate;

static inline const tp_plan_op *tpi_simulation_op(const tpi_simulation *s, int rank, int index)
{
    return &s->plan->rank[rank].op[index];
}

/* The op is the next of its lane. */
static inline bool tpi_simulation_is_next(const tpi_simulation *s, int rank, int index)
{
    return s->next[rank][tpi_simulation_op(s, rank, index)->lane] == index;
}

/* What is waited for exists and has ended. */
bool tpi_simulation_finished(const tpi_simulation *s, tp_wait on);

/* Whether an op may begin as far as its own rank's order and its waits go. */
bool tpi_simulation_ready(const tpi_simulation *s, int rank, int index, tpi_candidate *c);

/* The collective of that number, if it is the next of its lane; else -1. */
int tpi_simulation_collective(const tpi_simulation *s, int rank, int number);

/* TP_ERR_STATE with a message that names an op which can't run, and why. Only when none can. */
tp_status tpi_simulation_stuck(const tpi_simulation *s);

#endif
