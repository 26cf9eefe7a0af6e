/* Algorithms that overlap a collective with GEMMs, and what they may be asked to overlap. Each algorithm is a generator
 * in a file of its own under src/plan/overlap/; docs/overlap.md tells when each wins. All of them give the same bits:
 * chunks of partial sums go to their owner, who adds them in the tree's order; where the gathered dimension is the
 * inner one, chunks are consumed in global order whatever arrives first. */
#ifndef TP_OVERLAP_H
#define TP_OVERLAP_H

#include <tp/plan.h>

typedef enum tp_overlap {
    TP_OVERLAP_NONE = 0, /* collective and GEMM one after the other */
    TP_OVERLAP_BULK,     /* backward: a whole collective beside an independent GEMM */
    TP_OVERLAP_RING,     /* chunks travel point to point, each step's GEMM under the next transfer */
    TP_OVERLAP_PIPELINE, /* the work is cut into chunks, the collective of chunk i-1 under the GEMM of chunk i */
    TP_OVERLAP_PULL,     /* a copy lane pulls peers' chunks while the GEMM works on those that are there; where ranks
                          * leave no core for it, layers run it in one lane */
    TP_OVERLAP_DIRECT,   /* no copies: the GEMM reads peers' inputs, reductions read peers' partial sums */
    TP_OVERLAP_AUTO,     /* a cost model picks one of the above; never in a plan */
    TP_OVERLAP_COUNT
} tp_overlap;

/* What is combined. r: this rank; p: a piece (owner * chunks + chunk); x: INPUT.
 * GEMM            y[r] = G0(x[r]): no peers.
 * GATHER_GEMM     INPUT is this rank's pieces. OUTPUT[r][p] = G0(x[p]) for all p.
 * GEMM_SCATTER    INPUT is all pieces (this rank's part of the inner dimension). OUTPUT[r][p] = sum over ranks s of
 *                 G0_s(x_s[p]) for own p.
 * GEMM_REDUCE     the same for all p: every rank gets every OUTPUT piece.
 * GATHER_WEIGHT   weight gradient: INPUT is dy, all pieces, local; SECOND is this rank's pieces of x. GRADIENT = chain
 *                 over p in global order of G0(dy[p], x[p]).
 * BACKWARD        column-parallel: INPUT dy, all pieces, local. OUTPUT as GEMM_SCATTER by G0 (dgrad); GRADIENT as
 *                 GATHER_WEIGHT by G1 (wgrad).
 * BACKWARD_REDUCE the same without sequence parallelism: OUTPUT as GEMM_REDUCE, SECOND is all pieces, local.
 * ROW_BACKWARD    row-parallel: pieces are cut by columns, not rows: p = owner * chunks + slice. INPUT dy, this rank's
 *                 pieces. OUTPUT[r][p] = G0(dy), summed in order over the owner's slices up to p: the input gradient
 *                 when the last is added (an owner's pieces share their memory). GRADIENT has a piece a slice: chain
 *                 over owners in order of G1(dy[p]), whose other operand is local.
 * CHAIN           column, COMPUTE 0 piece by piece, row: GATHER_GEMM: MIDDLE[p] = G0(x[p]), CORE[p] = K0(MIDDLE[p]),
 *                 then GEMM_SCATTER of G1(CORE[p]).
 * CHAIN_REDUCE    the same without sequence parallelism: INPUT is all pieces, local; OUTPUT as GEMM_REDUCE.
 * CHAIN_CORE      CHAIN whose COMPUTE (attention core) reads all pieces of MIDDLE at once and writes all of CORE, which
 *                 G1 reads.
 * CHAIN_CORE_REDUCE.
 * CHAIN_BACKWARD  the backward of two layers: as CHAIN from INPUT (dy, this rank's pieces) to OUTPUT; FIRST_GRADIENT =
 *                 chain over p in global order of G2(dy[p]), whose other operand is local; GRADIENT = chain of
 *                 G3(CORE[p], x[p]), x being SECOND, this rank's pieces.
 * CHAIN_BACKWARD_REDUCE  the same without sequence parallelism: INPUT and SECOND are all pieces, local; OUTPUT as
 *                        GEMM_REDUCE.
 * CHAIN_CORE_BACKWARD    CHAIN_BACKWARD whose COMPUTE reads all pieces of MIDDLE at once and writes all of CORE.
 * CHAIN_CORE_BACKWARD_REDUCE. */
#define TP_PATTERN_LIST(X)                           \
    X(TP_PATTERN_GEMM, "gemm")                       \
    X(TP_PATTERN_GATHER_GEMM, "gather-gemm")         \
    X(TP_PATTERN_GEMM_SCATTER, "gemm-scatter")       \
    X(TP_PATTERN_GEMM_REDUCE, "gemm-reduce")         \
    X(TP_PATTERN_GATHER_WEIGHT, "gather-weight")     \
    X(TP_PATTERN_BACKWARD, "backward")               \
    X(TP_PATTERN_BACKWARD_REDUCE, "backward-reduce") \
    X(TP_PATTERN_ROW_BACKWARD, "row-backward")       \
    X(TP_PATTERN_CHAIN, "chain")                     \
    X(TP_PATTERN_CHAIN_REDUCE, "chain-reduce")       \
    X(TP_PATTERN_CHAIN_CORE, "chain-core")           \
    X(TP_PATTERN_CHAIN_CORE_REDUCE, "chain-core-reduce") \
    X(TP_PATTERN_CHAIN_BACKWARD, "chain-backward")   \
    X(TP_PATTERN_CHAIN_BACKWARD_REDUCE, "chain-backward-reduce") \
    X(TP_PATTERN_CHAIN_CORE_BACKWARD, "chain-core-backward") \
    X(TP_PATTERN_CHAIN_CORE_BACKWARD_REDUCE, "chain-core-backward-reduce")

typedef enum tp_pattern {
#define TP_PATTERN_ENUM(name, word) name,
    TP_PATTERN_LIST(TP_PATTERN_ENUM)
#undef TP_PATTERN_ENUM
    TP_PATTERN_COUNT
} tp_pattern;

typedef struct tp_plan_desc {
    tp_overlap algorithm;
    tp_pattern pattern;
    int ranks;
    int chunks; /* pieces of one owner's rows; 0: the algorithm's default */
    bool one_lane; /* PULL: no lane beside compute; each rank pulls a chunk right before what needs it. On a link of
                    * its own the chunk crosses meanwhile all the same, and nothing interrupts what is computed */
} tp_plan_desc;

TP_BEGIN_DECLS

/* A pure function: the plan of all ranks. An algorithm that has nothing to gain on a pattern gives the plan of `none`,
 * relabelled.
 * Errors: TP_ERR_ARGUMENT (ranks 1 to 64, chunks 0 to 16, AUTO), TP_ERR_UNSUPPORTED (one_lane where messages or
 * collectives need another: RING, PIPELINE, BULK), TP_ERR_MEMORY. */
TP_API tp_status tp_plan_create(const tp_plan_desc *desc, tp_plan **out);

TP_API const char *tp_overlap_name(tp_overlap algorithm);
TP_API const char *tp_pattern_name(tp_pattern pattern);
/* By name; -1 if there is none, or name is NULL. */
TP_API int tp_overlap_from_name(const char *name);
TP_API int tp_pattern_from_name(const char *name);

TP_END_DECLS
#endif
