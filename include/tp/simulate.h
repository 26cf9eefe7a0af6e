/* Pricing a plan: a timeline from costs, and pictures of it. Lanes are FIFOs; an op on the compute lane holds up
 * everything issued after it; every rank has an outgoing and an incoming link, as in a thread world's modelled link: a
 * transfer begins when both sides are ready and both links are free, holds them for bytes / bandwidth and arrives a
 * latency later; arrivals that the lane still waits for don't hold up the next transfer's crossing. */
#ifndef TP_SIMULATE_H
#define TP_SIMULATE_H

#include <tp/comm.h>
#include <tp/overlap.h>
#include <tp/trace.h>

/* Seconds of compute and bytes of transfers, for a whole pass of one rank (not a piece): shares follow from pieces.
 * Filled from a machine file (tp_overlap_costs in tp/auto.h), or by hand. A rate of 0 costs nothing. */
typedef struct tp_plan_costs {
    double gemm_seconds[TP_PLAN_PARTS]; /* of each part, all pieces together, unchunked */
    double compute_seconds;    /* COMPUTE 0, all pieces together */
    double gemm_overhead[TP_PLAN_PARTS], compute_overhead; /* fixed, a call; REDUCE and COPY have compute_overhead */
    double bytes[TP_BUFFERS];  /* of all pieces of a buffer together; INBOX: of one slot */
    double reduce_bytes_per_second; /* memory rate of REDUCE, and of a reducing collective's adds */
    double copy_bytes_per_second;   /* memory rate of PULL, PUSH, RECV, COPY and all-gather; 0: only the link counts */
    double transfer_overhead;  /* fixed, a PULL, PUSH, SEND or COLLECTIVE */
    double lane_seconds;       /* least, a PULL, PUSH, SEND or COLLECTIVE on COMM or COPY: from its beginning there to
                                * its end, however little it moves */
    double wait_seconds;       /* fixed, a wait for another lane or rank that is not over before */
    double wake_seconds;       /* more, where who waits for another rank, or who is waited for, is on COMM or COPY, and
                                * a collective there: such waits are slept through */
    double arrival_seconds;    /* from an arrival over the link to its being seen by who sleeps for it: once a transfer
                                * or collective; holds up no later transfer */
    tp_link link;              /* each rank has an outgoing and an incoming one; bandwidth 0: none is modelled */
} tp_plan_costs;

/* Seconds from the start. Where an op both computes and communicates (a GEMM that reads a peer's memory, a collective
 * that adds), its parts are told apart; a part that is not there is empty. */
typedef struct tp_span {
    double begin, end;
    double compute_begin, compute_end;
    double comm_begin, comm_end;
} tp_span;

typedef struct tp_timeline {
    const tp_plan *plan; /* borrowed */
    tp_span *span[TP_PLAN_MAX_RANKS];  /* one an op */
    bool *critical[TP_PLAN_MAX_RANKS]; /* one an op: on the critical path; all false when measured */
    double seconds;         /* the slowest rank's end */
    int rank;               /* the slowest; the figures below are its */
    double compute_seconds; /* of time in which it computed: GEMMs, computes, adds */
    double comm_seconds;    /* of its transfers and collectives, as if alone, in its busier direction; without adds */
    double exposed_seconds; /* of time in which it communicated and did not compute */
    double gemm_seconds;    /* of its GEMMs and computes at full speed: uncut, each part in one call; measured:
                             * compute_seconds */
    double hidden;          /* (gemm_seconds + comm_seconds - seconds) / the lesser of the two; 0 where one of them is
                             * 0 */
    int critical_ops;       /* ops on the critical path that take time */
    bool measured;          /* spans are of a run, not simulated */
    void *memory;           /* spans and marks point into it */
} tp_timeline;

/* What a plan moves, without running it. */
typedef struct tp_plan_traffic {
    double sent[TP_PLAN_MAX_RANKS], received[TP_PLAN_MAX_RANKS]; /* bytes */
    double link[TP_PLAN_MAX_RANKS][TP_PLAN_MAX_RANKS];           /* [from][to] */
    double workspace[TP_PLAN_MAX_RANKS]; /* bytes of GATHERED, GATHERED_SECOND, PARTIAL and INBOX that it touches: each
                                          * piece has a place of its own */
    double largest_piece;                /* bytes of the largest single transfer between two ranks */
} tp_plan_traffic;

TP_BEGIN_DECLS

/* Discrete-event simulation of all ranks.
 * Errors: TP_ERR_ARGUMENT (costs that are negative or not finite, or bytes, rates and sums that make a time that is
 * not), TP_ERR_STATE (the plan can't run: names rank and op), TP_ERR_UNSUPPORTED (an op of a pipeline schedule, which
 * has no cost here), TP_ERR_MEMORY. */
TP_API tp_status tp_plan_simulate(const tp_plan *plan, const tp_plan_costs *costs, tp_timeline **out);

/* A timeline of a run, from the begin and end of each op of each rank: span[rank][op]. Figures are of the slowest rank;
 * comm_seconds holds the waiting for peers inside its transfers too, which a run can't tell apart. Errors:
 * TP_ERR_ARGUMENT, TP_ERR_MEMORY. */
TP_API tp_status tp_timeline_create(const tp_plan *plan, const tp_span *const *span, tp_timeline **out);
TP_API void tp_timeline_destroy(tp_timeline *timeline);

/* The same from what tp_trace recorded on all ranks: execution `execution` of the plan (any with its algorithm,
 * pattern, ranks, chunks and lanes); span[rank] has count[rank] of them. It begins with the first op of any rank.
 * Errors: TP_ERR_ARGUMENT; TP_ERR_STATE: an op was not recorded. */
TP_API tp_status tp_timeline_from_trace(const tp_plan *plan, const tp_trace_span *const *span, const int64_t *count,
                                        int64_t execution, tp_timeline **out);

/* Bytes that cross between ranks; an all-reduce counts as a reduce-scatter and an all-gather. Errors: TP_ERR_ARGUMENT,
 * TP_ERR_STATE (as above). */
TP_API tp_status tp_plan_count_traffic(const tp_plan *plan, const tp_plan_costs *costs, tp_plan_traffic *out);

/* Most bytes of GATHERED, GATHERED_SECOND, PARTIAL and INBOX that can be alive at once on one rank, in any run of a
 * proven plan. Errors: TP_ERR_ARGUMENT, TP_ERR_STATE (it is not proven: says why), TP_ERR_MEMORY. */
TP_API tp_status tp_plan_count_peak(const tp_plan *plan, const tp_plan_costs *costs, double *bytes);

/* Pictures: lanes x time as SVG (arrows for messages, a colour a kind, exposed communication marked), one timeline or
 * two of the same plan on one scale (second NULL: one); Chrome/Perfetto trace JSON. Write at most `bytes` with the
 * final 0; return the length they need without it (0: no timeline). */
TP_API size_t tp_timeline_svg(const tp_timeline *first, const tp_timeline *second, char *text, size_t bytes);
TP_API size_t tp_timeline_trace(const tp_timeline *timeline, char *text, size_t bytes);

TP_END_DECLS
#endif
