/* Pricing a plan: a timeline from costs, and pictures of it. */
#ifndef TP_SIMULATE_H
#define TP_SIMULATE_H

#include <tp/comm.h>
#include <tp/overlap.h>

/* Seconds of compute and bytes of transfers, for a whole pass of one rank (not a piece): shares follow from pieces. Filled from the ops' own counts and
 * a machine file, or by hand. */
typedef struct tp_plan_costs {
    double gemm_seconds[2];    /* part 0 and 1, all pieces together, unchunked */
    double compute_seconds;    /* COMPUTE 0, all pieces together */
    double gemm_overhead, compute_overhead; /* fixed, a call */
    double bytes[TP_BUFFERS];  /* of all pieces of a buffer together */
    double reduce_bytes_per_second; /* memory rate of REDUCE */
    double copy_bytes_per_second;   /* memory rate of PULL, PUSH, RECV; 0: only the link counts */
    double transfer_overhead;  /* fixed, a PULL, PUSH, SEND or COLLECTIVE */
    tp_link link;              /* each rank has an outgoing and an incoming one */
} tp_plan_costs;

typedef struct tp_span {
    double begin, end; /* seconds from the start */
} tp_span;

typedef struct tp_timeline {
    const tp_plan *plan; /* borrowed */
    tp_span *span[TP_PLAN_MAX_RANKS]; /* one an op */
    double seconds;       /* the slowest rank's end */
    double comm_seconds;  /* of transfers and collectives on the busiest rank, as if alone */
    double exposed_seconds; /* of it, not under that rank's compute */
    double hidden;        /* (t_compute + t_comm - t) / min(t_compute, t_comm), of the slowest rank; 0 without communication */
    int critical_ops;     /* length of the critical path */
    bool measured;        /* spans are of a run, not simulated */
} tp_timeline;

/* What a plan moves, without running it. */
typedef struct tp_plan_traffic {
    double sent[TP_PLAN_MAX_RANKS], received[TP_PLAN_MAX_RANKS]; /* bytes */
    double link[TP_PLAN_MAX_RANKS][TP_PLAN_MAX_RANKS];           /* [from][to] */
    double workspace[TP_PLAN_MAX_RANKS]; /* bytes of GATHERED, PARTIAL and INBOX alive at once, at most */
    double largest_piece;
} tp_plan_traffic;

TP_BEGIN_DECLS

/* Discrete-event simulation: lanes are FIFOs, compute is inline (blocks issue), links carry one transfer at a time in each direction with latency and
 * bandwidth, rendezvous sends. Errors: TP_ERR_ARGUMENT (negative or NaN costs), TP_ERR_STATE (the plan deadlocks), TP_ERR_MEMORY. */
TP_API tp_status tp_plan_simulate(const tp_plan *plan, const tp_plan_costs *costs, tp_timeline **out);
TP_API void tp_timeline_destroy(tp_timeline *timeline);

TP_API tp_status tp_plan_count_traffic(const tp_plan *plan, const tp_plan_costs *costs, tp_plan_traffic *out);

/* Pictures: lanes x time as SVG (arrows for messages, a colour a kind, exposed communication marked), one timeline or two of the same plan (simulated above
 * measured); Chrome/Perfetto trace JSON. Write at most `bytes` with the final 0; return the length they need. */
TP_API size_t tp_timeline_svg(const tp_timeline *first, const tp_timeline *second, char *text, size_t bytes);
TP_API size_t tp_timeline_trace(const tp_timeline *timeline, char *text, size_t bytes);

TP_END_DECLS
#endif
