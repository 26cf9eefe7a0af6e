/* The interpreter's machine, and what its patterns have. */
#ifndef TPT_INTERPRETER_MACHINE_H
#define TPT_INTERPRETER_MACHINE_H

#include "interpreter.h"
#include "interpreter_numbers.h"

#define MAX_LANES (TP_PLAN_MAX_RANKS * TP_LANES)

typedef struct lane_state {
    int *op; /* indices in the rank's list */
    int count, at;
    bool running;
    uint64_t begun;    /* when */
    uint32_t priority; /* of this run */
    uint64_t *seen;    /* what the running op has read */
} lane_state;

typedef struct machine {
    const tp_plan *plan;
    int pieces, planes;
    uint64_t random, now;
    bool inline_compute, trespass;
    bool open[TP_PLAN_MAX_RANKS];
    uint64_t *memory; /* [rank][plane][piece] */
    bool *finished[TP_PLAN_MAX_RANKS];
    int computing[TP_PLAN_MAX_RANKS]; /* the first op on the compute lane that is not finished */
    lane_state lane[MAX_LANES];
} machine;

static inline uint64_t *cell(machine *m, const tp_region *region, int i)
{
    int plane =
        region->buffer == TP_BUFFER_INBOX && region->slot > 0 ? TP_BUFFERS - 1 + region->slot : (int)region->buffer;
    return &m->memory[((size_t)region->rank * (size_t)m->planes + (size_t)plane) * (size_t)m->pieces +
                      (size_t)(region->piece + i * region->step)];
}

static inline bool is_backward_chain(const machine *m)
{
    return m->plan->pattern == TP_PATTERN_CHAIN_BACKWARD || m->plan->pattern == TP_PATTERN_CHAIN_BACKWARD_REDUCE ||
           m->plan->pattern == TP_PATTERN_CHAIN_CORE_BACKWARD ||
           m->plan->pattern == TP_PATTERN_CHAIN_CORE_BACKWARD_REDUCE;
}

/* Chunks are slices of columns: OUTPUT is summed over them, GRADIENT has a piece each. */
static inline bool is_sliced(const machine *m)
{
    return m->plan->pattern == TP_PATTERN_ROW_BACKWARD;
}

/* Whether a rank's input, or second input, is its part of what all ranks share; else each has its own of all pieces. */
static inline bool shares_input(const machine *m)
{
    return m->plan->pattern == TP_PATTERN_GEMM || m->plan->pattern == TP_PATTERN_GATHER_GEMM ||
           m->plan->pattern == TP_PATTERN_CHAIN || m->plan->pattern == TP_PATTERN_CHAIN_CORE ||
           m->plan->pattern == TP_PATTERN_CHAIN_BACKWARD || m->plan->pattern == TP_PATTERN_CHAIN_CORE_BACKWARD ||
           is_sliced(m);
}

static inline bool shares_second(const machine *m)
{
    return m->plan->pattern != TP_PATTERN_BACKWARD_REDUCE && m->plan->pattern != TP_PATTERN_CHAIN_BACKWARD_REDUCE &&
           m->plan->pattern != TP_PATTERN_CHAIN_CORE_BACKWARD_REDUCE;
}

static inline bool mixes(const machine *m)
{
    return m->plan->pattern == TP_PATTERN_CHAIN_CORE_BACKWARD ||
           m->plan->pattern == TP_PATTERN_CHAIN_CORE_BACKWARD_REDUCE || m->plan->pattern == TP_PATTERN_CHAIN_CORE ||
           m->plan->pattern == TP_PATTERN_CHAIN_CORE_REDUCE;
}

/* Whether a rank's output and gradients are what the pattern's definition in tp/overlap.h gives. */
bool tpt_results_are_right(machine *m, int rank);

#endif
