/* A plan is, for each rank, an ordered list of ops on lanes, with what each must wait for. Generators make plans, one executor runs them. List order is
 * issue order. A plan depends on ranks, chunks and algorithm, never on token counts: pieces become ranges when it runs. */
#ifndef TP_PLAN_H
#define TP_PLAN_H

#include <tp/context.h>

typedef enum tp_op_kind {
    TP_OP_GEMM = 0,
    TP_OP_COMPUTE, /* attention core, activation */
    TP_OP_COPY,
    TP_OP_PULL,
    TP_OP_PUSH,
    TP_OP_REDUCE,
    TP_OP_SEND,
    TP_OP_RECV,
    TP_OP_COLLECTIVE,
    TP_OP_FORWARD,
    TP_OP_BACKWARD_INPUT,
    TP_OP_BACKWARD_WEIGHT,
    TP_OP_RECOMPUTE,
    TP_OP_OPTIMIZER,
    TP_OP_KINDS
} tp_op_kind;

typedef enum tp_lane { TP_LANE_COMPUTE = 0, TP_LANE_COMM, TP_LANE_COPY, TP_LANES } tp_lane;

#define TP_PLAN_MAX_WAITS 4
#define TP_PLAN_MAX_OPS 64

typedef struct tp_plan_op {
    tp_op_kind kind;
    tp_lane lane;
    int part;  /* which of the caller's ops of that kind (pipeline: model chunk) */
    int piece; /* which chunk (pipeline: microbatch) */
    int peer;  /* SEND, RECV, PULL, PUSH: the other rank; -1 otherwise */
    int waits; /* ops of this rank, on other lanes, that must be finished before */
    int wait[TP_PLAN_MAX_WAITS];
} tp_plan_op;

/* One rank's list. */
typedef struct tp_plan {
    int ranks, rank;
    int pieces;
    int count;
    tp_plan_op op[TP_PLAN_MAX_OPS];
} tp_plan;

TP_BEGIN_DECLS

/* One line: "G0.0 C0.0@comm<0 ..." : kind letter, part.piece, @lane when not compute, <waits. Writes at most `bytes` with the final 0 and returns the length it
 * needs. */
TP_API size_t tp_plan_print(const tp_plan *plan, char *text, size_t bytes);

TP_END_DECLS
#endif
