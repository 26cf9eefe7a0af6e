/* The proof of a plan, in steps: fields, meetings of messages and collectives, order (deadlocks), then one walk in that
 * order for races and contents. */
#ifndef TPI_VERIFY_H
#define TPI_VERIFY_H

#include "plan/patterns.h"

/* Who touched a piece of memory, and what is in it. Ops are numbered through all ranks. */
typedef struct tpi_cell {
    uint64_t content; /* 0: nothing an op made */
    int writer;       /* the last op that wrote it, or -1 */
    int first;        /* the first that wrote content */
    int reader;       /* first of a list in verifier.reader: who read it since; or -1 */
    int writes;       /* ENTER and LEAVE do not count */
    bool taken;       /* LEAVE has it */
} tpi_cell;

typedef struct tpi_reader {
    int op, next;
} tpi_reader;

typedef struct tpi_verifier {
    const tp_plan *plan;
    tp_proof *proof;
    tpi_promises promises;
    int ops, lanes, pieces;
    int first[TP_PLAN_MAX_RANKS + 1]; /* number of a rank's first op */
    int enter[TP_PLAN_MAX_RANKS], leave[TP_PLAN_MAX_RANKS];
    const tp_plan_op **op; /* by number */
    int *rank;   /* of each op */
    int *lane;   /* of each op, numbered through all ranks */
    int *place;  /* of each op in its lane */
    int *before; /* the op before it in its lane, or -1 */
    int *meets;  /* SEND, RECV, COLLECTIVE: the next op that meets it, in rank order (SEND: its RECV), or -1 */
    int *node;   /* ops that meet are one node */
    int nodes;
    int *head;    /* of each node: its first op */
    int *order;   /* nodes, each after all it must wait for */
    int *clock;   /* of each node, of each lane: ops that are finished when it is, itself included */
    size_t cells; /* of one rank */
    tpi_cell *cell;
    tpi_reader *reader;
    int readers;
    uint64_t *value;    /* of each piece: what an op is about to write */
    uint64_t *gradient; /* of each rank, FIRST_GRADIENT and each piece of GRADIENT: what the pattern promises so far */
    int *accumulated;   /* of each rank, likewise: pieces in its gradient */
    int *used;          /* room for the cells of one rank */
    const struct tp_plan_costs *costs; /* of which peak_bytes are; NULL: nobody asks for them */
    double peak_bytes;
} tpi_verifier;

/* Each step returns false after a fault, which is in the proof. */
bool tpi_verify_fields(tpi_verifier *v);
bool tpi_verify_meetings(tpi_verifier *v);
/* Its status is not of the plan, but of memory. */
tp_status tpi_verify_order(tpi_verifier *v);
bool tpi_verify_contents(tpi_verifier *v);
void tpi_verify_peak(tpi_verifier *v);

/* False, with the fault in the proof. op -1: of the rank as a whole. */
bool tpi_verify_fault(tpi_verifier *v, tp_fault fault, int op, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static inline const tp_plan_op *tpi_verify_op(const tpi_verifier *v, int op)
{
    return v->op[op];
}

/* Whether `a` is finished before `b` begins, in every run. */
static inline bool tpi_verify_before(const tpi_verifier *v, int a, int b)
{
    return v->node[a] != v->node[b] &&
           v->clock[(size_t)v->node[b] * (size_t)v->lanes + (size_t)v->lane[a]] > v->place[a];
}

/* Where in `gradient` and `accumulated`. */
static inline int tpi_verify_gradient(const tpi_verifier *v, int rank, bool first, int piece)
{
    return rank * (1 + v->plan->chunks) + (first ? 0 : 1 + piece);
}

static inline int tpi_piece_at(const tp_region *region, int i)
{
    return region->piece + i * region->step;
}

static inline tpi_cell *tpi_verify_cell(const tpi_verifier *v, const tp_region *region, int i)
{
    size_t plane = region->buffer; /* INBOX slots come after all buffers */
    if (region->buffer == TP_BUFFER_INBOX && region->slot > 0)
        plane = TP_BUFFERS - 1 + (size_t)region->slot;
    return &v->cell[(size_t)region->rank * v->cells + plane * (size_t)v->pieces + (size_t)tpi_piece_at(region, i)];
}

#endif
