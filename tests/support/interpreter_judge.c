#include "interpreter_machine.h"

/* What the definition in tp/overlap.h gives: INPUT, CORE, PARTIAL. */
static uint64_t wanted_input(const machine *m, int rank, int piece)
{
    return input_number(TP_BUFFER_INPUT, shares_input(m) ? 99 : rank, piece);
}

static uint64_t wanted_core(const machine *m, int rank, int piece)
{
    uint64_t middle[TP_PLAN_MAX_RANKS * TP_PLAN_MAX_CHUNKS];
    for (int p = 0; p < m->pieces; p++)
        middle[p] = gemm(rank, 0, wanted_input(m, rank, p));
    return mixes(m) ? core(rank, middle, m->pieces, piece) : compute(rank, middle[piece]);
}

static uint64_t wanted_partial(const machine *m, int rank, int piece)
{
    if (m->plan->pattern < TP_PATTERN_CHAIN)
        return gemm(rank, 0, wanted_input(m, rank, piece));
    return gemm(rank, 1, wanted_core(m, rank, piece));
}

static bool right_output(machine *m, int rank, int piece)
{
    tp_region region = {.buffer = TP_BUFFER_OUTPUT, .rank = rank, .piece = piece, .pieces = 1, .step = 1};
    uint64_t got = *cell(m, &region, 0), wanted = 0;
    bool own = piece / m->plan->chunks == rank;
    switch ((tp_pattern)m->plan->pattern) {
    case TP_PATTERN_GATHER_WEIGHT: return true;
    case TP_PATTERN_GEMM: return !own || got == gemm(rank, 0, input_number(TP_BUFFER_INPUT, 99, piece));
    case TP_PATTERN_GATHER_GEMM: return got == gemm(rank, 0, input_number(TP_BUFFER_INPUT, 99, piece));
    case TP_PATTERN_GEMM_SCATTER:
    case TP_PATTERN_BACKWARD:
    case TP_PATTERN_CHAIN:
    case TP_PATTERN_CHAIN_CORE:
    case TP_PATTERN_CHAIN_BACKWARD:
    case TP_PATTERN_CHAIN_CORE_BACKWARD:
        if (!own)
            return true;
        break;
    case TP_PATTERN_ROW_BACKWARD:
        for (int p = piece - piece % m->plan->chunks; p <= piece; p++)
            wanted = accumulate(wanted, gemm(rank, 0, input_number(TP_BUFFER_INPUT, 99, p)));
        return got == wanted;
    default: break;
    }
    for (int s = 0; s < m->plan->ranks; s++)
        wanted = accumulate(wanted, wanted_partial(m, s, piece));
    return got == wanted;
}

static bool right_first_gradient(machine *m, int rank)
{
    if (!is_backward_chain(m))
        return true;
    uint64_t wanted = input_number(TP_BUFFER_FIRST_GRADIENT, rank, 0);
    for (int piece = 0; piece < m->pieces; piece++)
        wanted = accumulate_gradient(2, wanted, wanted_input(m, rank, piece), LOCAL_OPERAND);
    tp_region region = {.buffer = TP_BUFFER_FIRST_GRADIENT, .rank = rank, .pieces = 1, .step = 1};
    return *cell(m, &region, 0) == wanted;
}

static bool right_slices(machine *m, int rank)
{
    tp_region region = {.buffer = TP_BUFFER_GRADIENT, .rank = rank, .pieces = 1, .step = 1};
    for (region.piece = 0; region.piece < m->plan->chunks; region.piece++) {
        uint64_t wanted = input_number(TP_BUFFER_GRADIENT, rank, region.piece);
        for (int owner = 0; owner < m->plan->ranks; owner++)
            wanted = accumulate_gradient(1, wanted, wanted_input(m, rank, owner * m->plan->chunks + region.piece),
                                         LOCAL_OPERAND);
        if (*cell(m, &region, 0) != wanted)
            return false;
    }
    return true;
}

static bool right_gradient(machine *m, int rank)
{
    if (is_sliced(m))
        return right_slices(m, rank);
    tp_pattern pattern = (tp_pattern)m->plan->pattern;
    bool backward = pattern == TP_PATTERN_BACKWARD || pattern == TP_PATTERN_BACKWARD_REDUCE;
    if (pattern != TP_PATTERN_GATHER_WEIGHT && !backward && !is_backward_chain(m))
        return true;
    uint64_t wanted = input_number(TP_BUFFER_GRADIENT, rank, 0);
    for (int piece = 0; piece < m->pieces; piece++) {
        uint64_t dy = is_backward_chain(m) ? wanted_core(m, rank, piece) : wanted_input(m, rank, piece);
        uint64_t x = input_number(TP_BUFFER_SECOND, shares_second(m) ? 99 : rank, piece);
        wanted = accumulate_gradient(is_backward_chain(m) ? 3 : backward, wanted, dy, x);
    }
    tp_region region = {.buffer = TP_BUFFER_GRADIENT, .rank = rank, .pieces = 1, .step = 1};
    return *cell(m, &region, 0) == wanted;
}

bool tpt_results_are_right(machine *m, int rank)
{
    if (!right_gradient(m, rank) || !right_first_gradient(m, rank))
        return false;
    for (int piece = 0; piece < m->pieces; piece++)
        if (!right_output(m, rank, piece))
            return false;
    return true;
}
