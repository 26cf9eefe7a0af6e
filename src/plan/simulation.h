/* The state of a simulation, for the simulator and for the report of what can't run. */
#ifndef TPI_SIMULATION_H
#define TPI_SIMULATION_H

#include "plan/price.h"

typedef struct tpi_op_state {
    bool done;
    bool arrived;  /* SEND, RECV, COLLECTIVE: could begin as far as its own rank goes */
    int watcher;   /* the first lane (rank * TP_LANES + lane) whose next op waits for this one's end; -1: none */
    int match;     /* SEND, RECV: the op of the peer that it meets; COLLECTIVE: a number that its peers have too; -1:
                    * none */
    int issuer;    /* the last op on the compute lane before it in the list; -1: none */
    int before;    /* the last op on its own lane before it; -1: none */
    tp_wait cause; /* what its beginning waited for; rank -1: nothing */
} tpi_op_state;

typedef struct tpi_link_end {
    double free;
    tp_wait last; /* who used it last */
} tpi_link_end;

/* What one rank's transfers and collectives take without anything beside them: the least that a run of all of them
 * could. */
typedef struct tpi_alone {
    double out, in;          /* of its ends of the link, busy */
    double last;             /* from the link to being seen, of the transfer that takes longest there: latencies of
                              * others overlap with what crosses */
    double chain[TP_LANES];  /* of a lane's collectives on the link: each waits for the one before, with its latency */
    double copies[TP_LANES]; /* of a lane: copying and fixed costs */
} tpi_alone;

/* An op that can begin, when, and why not earlier. */
typedef struct tpi_candidate {
    int rank, op;
    double when;
    double posted; /* a transfer or collective may cross its link from then on, although its lane sees to it later:
                    * arrivals are not waited for in between */
    tp_wait cause;
} tpi_candidate;

typedef struct tpi_simulation {
    const tp_plan *plan;
    const tp_plan_costs *costs;
    double *const *extra; /* seconds, by rank and op: how much longer an op of the compute lane takes, how much later
                           * one of another lane begins; NULL: none */
    tp_timeline *timeline;
    tpi_op_state *state[TP_PLAN_MAX_RANKS];
    int next[TP_PLAN_MAX_RANKS][TP_LANES]; /* of each lane; the list's length when it is empty */
    tpi_link_end out[TP_PLAN_MAX_RANKS], in[TP_PLAN_MAX_RANKS];
    double arrived[TP_PLAN_MAX_RANKS][TP_LANES]; /* when a lane's last collective did, on the link's own clock: before
                                                  * its lane saw that */
    tpi_alone alone[TP_PLAN_MAX_RANKS];
    int left; /* ops that were not run yet */
    /* The next op of a lane is looked at when its lane comes to it, and when an op that it was found to wait for has
     * ended. */
    int watching[TP_PLAN_MAX_RANKS * TP_LANES]; /* of each lane: the next one that waits for the same op; -1: none */
    tp_wait ended[TP_PLAN_MAX_RANKS];           /* by what was run last */
    int just_ended;
    int arrivals[TP_LANES];                     /* ranks that have come to a lane's next collective */
    tpi_candidate ready[TP_PLAN_MAX_RANKS * TP_LANES]; /* of each lane */
    int queue[TP_PLAN_MAX_RANKS * TP_LANES], queued;   /* lanes whose next op can begin: a heap */
} tpi_simulation;

static inline const tp_plan_op *tpi_simulation_op(const tpi_simulation *s, int rank, int index)
{
    return &s->plan->rank[rank].op[index];
}

/* The op is the next of its lane. */
static inline bool tpi_simulation_is_next(const tpi_simulation *s, int rank, int index)
{
    return s->next[rank][tpi_simulation_op(s, rank, index)->lane] == index;
}

/* tp_plan_simulate where ops of the compute lane take so many seconds more each, and those of other lanes begin so much
 * later; extra[rank][op], or NULL. */
tp_status tpi_plan_simulate(const tp_plan *plan, const tp_plan_costs *costs, double *const *extra, tp_timeline **out);

/* Fills what is known of ops before any is run: what each comes after, and what it meets. */
void tpi_simulation_order(tpi_simulation *s);

/* The first op of the lane from an index on; the list's length if there is none. */
int tpi_simulation_next_on_lane(const tp_plan_rank *list, int from, int lane);

/* What is waited for exists and has ended. */
bool tpi_simulation_finished(const tpi_simulation *s, tp_wait on);

/* Whether an op may begin as far as its own rank's order and its waits go. */
bool tpi_simulation_ready(const tpi_simulation *s, int rank, int index, tpi_candidate *c);

/* The collective of that number, if it is the next of its lane; else -1. */
int tpi_simulation_collective(const tpi_simulation *s, int rank, int number);

/* The next op of a lane can begin. */
void tpi_simulation_push(tpi_simulation *s, int rank, int lane, const tpi_candidate *c);

/* The op that can begin first; false if none can. */
bool tpi_simulation_pop(tpi_simulation *s, tpi_candidate *c);

/* TP_ERR_STATE with a message that names an op which can't run, and why. Only when none can. */
tp_status tpi_simulation_stuck(const tpi_simulation *s);

#endif
