/* A plan says, for each rank, which ops run on which lane, in which order they are issued, and what each must wait for.
 * Plans are data: a generator (a pure function) makes one, tp_plan_verify proves it, tp_plan_simulate prices it,
 * tp_plan_render_* draw it, and the layers' executor runs it. A plan depends on ranks, chunks and algorithm, never on
 * token counts: pieces become ranges when it runs. */
#ifndef TP_PLAN_H
#define TP_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tp/status.h>

#define TP_PLAN_MAX_RANKS 64
#define TP_PLAN_MAX_CHUNKS 16
#define TP_PLAN_PARTS 4 /* GEMMs that a pattern tells apart, at most */

/* X(name, letter in the text form, word in messages and pictures) */
#define TP_OP_LIST(X)                                                                                        \
    X(TP_OP_ENTER, 'E', "enter")     /* this rank's inputs are there: peers may read them */                 \
    X(TP_OP_LEAVE, 'L', "leave")     /* no peer reads or writes this rank's buffers any more */              \
    X(TP_OP_GEMM, 'G', "gemm")                                                                               \
    X(TP_OP_COMPUTE, 'K', "compute") /* attention core, activation */                                        \
    X(TP_OP_COPY, 'Y', "copy")       /* within this rank */                                                  \
    X(TP_OP_PULL, 'P', "pull")       /* peer's memory -> own */                                              \
    X(TP_OP_PUSH, 'U', "push")       /* own memory -> peer's */                                              \
    X(TP_OP_REDUCE, 'R', "reduce")   /* adds its reads in the tree's order of their ranks, finishes, writes */ \
    X(TP_OP_SEND, 'S', "send")       /* meets a RECV of the peer; both complete together (rendezvous) */     \
    X(TP_OP_RECV, 'V', "recv")                                                                               \
    X(TP_OP_COLLECTIVE, 'C', "collective") /* all ranks together */                                          \
    X(TP_OP_FORWARD, 'F', "forward")                                                                         \
    X(TP_OP_BACKWARD_INPUT, 'B', "backward_input")                                                           \
    X(TP_OP_BACKWARD_WEIGHT, 'W', "backward_weight")                                                         \
    X(TP_OP_RECOMPUTE, 'T', "recompute")                                                                     \
    X(TP_OP_OPTIMIZER, 'O', "optimizer")

typedef enum tp_op_kind {
#define TP_OP_ENUM(name, letter, word) name,
    TP_OP_LIST(TP_OP_ENUM)
#undef TP_OP_ENUM
    TP_OP_KINDS
} tp_op_kind;

/* COMPUTE may be inline: an op on it can block everything issued after it. COMM and COPY are FIFOs beside it. */
typedef enum tp_lane { TP_LANE_COMPUTE = 0, TP_LANE_COMM, TP_LANE_COPY, TP_LANES } tp_lane;

/* What a COLLECTIVE does. */
typedef enum tp_collective { TP_COLLECTIVE_NONE = 0, TP_COLLECTIVE_ALL_GATHER, TP_COLLECTIVE_REDUCE_SCATTER,
                            TP_COLLECTIVE_ALL_REDUCE } tp_collective;

/* Buffers of a plan. Which exist, and what a piece of them is, the pattern says (tp/overlap.h). */
#define TP_BUFFER_LIST(X)                                                                           \
    X(TP_BUFFER_INPUT, "input")       /* what the caller gives: this rank's shard, or all of it */  \
    X(TP_BUFFER_GATHERED, "gathered") /* pieces of the input that came from peers */                \
    X(TP_BUFFER_MIDDLE, "middle")     /* between the two GEMMs of a chain */                        \
    X(TP_BUFFER_CORE, "core")         /* after the attention core */                                \
    X(TP_BUFFER_PARTIAL, "partial")   /* f32 partial sums */                                        \
    X(TP_BUFFER_INBOX, "inbox")       /* peers' partial sums here; slot: whose */                   \
    X(TP_BUFFER_OUTPUT, "output")                                                                   \
    X(TP_BUFFER_SECOND, "second")     /* second input: the activations of a weight gradient */      \
    X(TP_BUFFER_GRADIENT, "gradient") /* the weight gradient: one piece, accumulated into */        \
    X(TP_BUFFER_FIRST_GRADIENT, "first-gradient")   /* that of the first of two layers, likewise */ \
    X(TP_BUFFER_GATHERED_SECOND, "gathered-second") /* pieces of the second input from peers */

typedef enum tp_buffer {
#define TP_BUFFER_ENUM(name, word) name,
    TP_BUFFER_LIST(TP_BUFFER_ENUM)
#undef TP_BUFFER_ENUM
    TP_BUFFERS
} tp_buffer;

/* Pieces piece, piece + step, ... (`pieces` of them) of a buffer in rank `rank`'s memory. piece = owner * chunks +
 * chunk: the owner is the rank whose rows they are. */
typedef struct tp_region {
    tp_buffer buffer;
    int rank;
    int slot; /* INBOX: the rank whose partial sums; else 0 */
    int piece, pieces, step;
} tp_region;

/* Op `op` of rank `rank` must be finished. A remote one is a flag in memory that both see. */
typedef struct tp_wait {
    int rank, op;
} tp_wait;

typedef struct tp_plan_op {
    tp_op_kind kind;
    tp_lane lane;
    int part;  /* which of the caller's ops of that kind (chain: GEMM 0, GEMM 1; pipeline schedule: model chunk) */
    int piece, pieces, step; /* what it works on, as in tp_region (pipeline schedule: the microbatch) */
    int peer;  /* SEND, RECV, PULL, PUSH: the other rank; else -1 */
    tp_collective collective;
    int waits, reads, writes;
    tp_wait *wait;     /* not those that lane order gives already */
    tp_region *read;   /* REDUCE: in rank order of whose partial sums they are */
    tp_region *write;
} tp_plan_op;

/* One rank's ops in the order they are issued. */
typedef struct tp_plan_rank {
    int count;
    tp_plan_op *op;
} tp_plan_rank;

typedef struct tp_plan {
    int algorithm; /* tp_overlap */
    int pattern;   /* tp_pattern */
    int ranks, chunks;
    tp_plan_rank rank[TP_PLAN_MAX_RANKS];
    void *memory; /* everything above points into it */
} tp_plan;

/* X(name, word): what can be wrong with a plan. */
#define TP_FAULT_LIST(X)                                                                          \
    X(TP_FAULT_NONE, "none")                                                                      \
    X(TP_FAULT_FIELD, "field")       /* a field is out of range, or does not fit the op's kind */ \
    X(TP_FAULT_UNMET, "unmet")       /* a message or collective that the other side does not have */ \
    X(TP_FAULT_DEADLOCK, "deadlock")                                                              \
    X(TP_FAULT_RACE, "race")         /* accesses without an order; a read of what nothing wrote before */ \
    X(TP_FAULT_RESULT, "result")     /* all is ordered, but not what the pattern promises */

typedef enum tp_fault {
#define TP_FAULT_ENUM(name, word) name,
    TP_FAULT_LIST(TP_FAULT_ENUM)
#undef TP_FAULT_ENUM
    TP_FAULTS
} tp_fault;

typedef struct tp_proof {
    bool proven;
    tp_fault fault;
    int rank, op;       /* where it fails; -1: the plan as a whole */
    char message[192];  /* what fails, "" if proven */
    int ops, waits, edges; /* size of what was proven */
    int peak_pieces;    /* most pieces of GATHERED, GATHERED_SECOND, PARTIAL and INBOX that can be alive at once on one
                         * rank, in any run */
} tp_proof;

TP_BEGIN_DECLS

TP_API const char *tp_op_name(tp_op_kind kind);
TP_API const char *tp_buffer_name(tp_buffer buffer);
TP_API const char *tp_lane_name(tp_lane lane);
TP_API const char *tp_fault_name(tp_fault fault);

TP_API void tp_plan_destroy(tp_plan *plan);

/* Text form: a header line "plan <algorithm> <pattern> ranks N chunks C", then one line a rank, ops separated by "; ".
 * Readable, diffable, and read back by tp_plan_parse to an equal plan:
 *   0: E writes input[0x2], output[0x4]; P 2 ~1 @copy after 1.0 reads 1:input[2] writes gathered[2]; G0 2 after 1 reads
 *   gathered[2] writes output[2]
 * An op is its letter and part, its pieces (4x3: 4 5 6; 4x3/2: 4 6 8), a collective's name, ~peer, @lane unless
 * compute, its waits (op of this rank, or rank.op), and the regions it reads and writes ([rank:]buffer[#slot][pieces];
 * this rank's memory where no rank is written). Lines end with a newline; a carriage return before it is read too.
 * Writes at most `bytes` with the final 0; returns the length it needs (0: plan is NULL). */
TP_API size_t tp_plan_print(const tp_plan *plan, char *text, size_t bytes);

/* Errors: TP_ERR_FORMAT with line, column and what was expected; TP_ERR_MEMORY. */
TP_API tp_status tp_plan_parse(const char *text, tp_plan **out);

/* Proves, or names the op and rank that break it, by happens-before over lanes, waits and messages:
 *   no deadlock     every wait points to an op that is there and happens; every SEND meets its RECV; collectives meet
 *                   in the same order on all ranks; no cycle, with rendezvous sends, and with ops on the compute lane
 *                   blocking what is issued after them;
 *   no race         two accesses to a piece, one of them a write, are ordered; no read before what it reads was
 *                   written; no buffer is written while a peer may still read it;
 *   right result    what each op reads is what the pattern says it must read; every output piece is produced exactly
 *                   once, or reduced exactly once from each rank, in the tree's order.
 * The rules that are not plain from the fields' comments:
 *   - messages between two ranks meet in issue order, so each must be ordered after the one before; collectives meet
 *     lane by lane, and all ranks begin and end one together, as SEND and RECV do;
 *   - what an op touches has the pieces it works on (piece i of what it reads becomes piece i of what it writes); only
 *     GEMM, PULL and REDUCE read peers' memory, only PUSH and REDUCE write there, between that rank's ENTER and LEAVE;
 *   - in a pattern whose pieces are slices of columns, OUTPUT is a sum over an owner's slices: an op that begins inside
 *     it reads the piece before, too; and a weight gradient's pieces are the slices of what the op works on;
 *   - what is written to any buffer is what the pattern says that buffer holds, not only OUTPUT and GRADIENT.
 * Returns TP_OK with proof->proven false when the plan is wrong; errors only for bad arguments and memory. */
TP_API tp_status tp_plan_verify(const tp_plan *plan, tp_proof *proof);

/* Draws the failing plan as a rank x step grid with the offending op marked, into text; 0: plan or proof is NULL. */
TP_API size_t tp_plan_explain(const tp_plan *plan, const tp_proof *proof, char *text, size_t bytes);

TP_END_DECLS
#endif
