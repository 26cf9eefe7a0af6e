/* What patterns have (tp/overlap.h), said again: tests go by this, not by what the library makes of it. */
#ifndef TPT_PATTERNS_H
#define TPT_PATTERNS_H

#include <stdbool.h>
#include <tp/overlap.h>

static inline bool has_first_gradient(tp_pattern p)
{
    return p >= TP_PATTERN_CHAIN_BACKWARD;
}

static inline bool is_sliced(tp_pattern p)
{
    return p == TP_PATTERN_ROW_BACKWARD;
}

static inline bool reduces(tp_pattern p)
{
    return p == TP_PATTERN_GEMM_REDUCE || p == TP_PATTERN_BACKWARD_REDUCE || p == TP_PATTERN_CHAIN_REDUCE ||
           p == TP_PATTERN_CHAIN_CORE_REDUCE || p == TP_PATTERN_CHAIN_BACKWARD_REDUCE ||
           p == TP_PATTERN_CHAIN_CORE_BACKWARD_REDUCE;
}

static inline bool is_chain(tp_pattern p)
{
    return p >= TP_PATTERN_CHAIN;
}

static inline bool input_is_sharded(tp_pattern p)
{
    return p == TP_PATTERN_GEMM || p == TP_PATTERN_GATHER_GEMM || is_sliced(p) || (is_chain(p) && !reduces(p));
}

static inline bool second_is_sharded(tp_pattern p)
{
    return p == TP_PATTERN_GATHER_WEIGHT || p == TP_PATTERN_BACKWARD || (has_first_gradient(p) && !reduces(p));
}

static inline bool has_gradient(tp_pattern p)
{
    return second_is_sharded(p) || p == TP_PATTERN_BACKWARD_REDUCE || is_sliced(p) || has_first_gradient(p);
}

static inline bool output_is_sharded(tp_pattern p)
{
    return p == TP_PATTERN_GEMM || p == TP_PATTERN_GEMM_SCATTER || p == TP_PATTERN_BACKWARD ||
           (is_chain(p) && !reduces(p));
}

#endif
