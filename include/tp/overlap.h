/* Algorithms for a collective beside a GEMM: each is a generator of plans (src/plan/overlap/, one a file). */
#ifndef TP_OVERLAP_H
#define TP_OVERLAP_H

#include <tp/plan.h>

typedef enum tp_overlap { TP_OVERLAP_NONE = 0, TP_OVERLAP_COUNT } tp_overlap;

/* What is to be combined. Parts: GEMM 0, COLLECTIVE 0. */
typedef enum tp_pattern {
    TP_PATTERN_GEMM = 0,       /* no collective */
    TP_PATTERN_GATHER_GEMM,    /* all-gather of an operand, then the GEMM */
    TP_PATTERN_GEMM_REDUCE,    /* GEMM of partial sums, then reduce-scatter or all-reduce */
    TP_PATTERN_COUNT
} tp_pattern;

TP_BEGIN_DECLS

/* The plan of `rank`: a pure function. TP_ERR_ARGUMENT for ranks, rank or pieces out of range. */
TP_API tp_status tp_overlap_plan(tp_overlap algorithm, tp_pattern pattern, int ranks, int rank, int pieces, tp_plan *out);
TP_API const char *tp_overlap_name(tp_overlap algorithm);

TP_END_DECLS
#endif
