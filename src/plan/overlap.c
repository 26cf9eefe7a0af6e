/* The table of overlap algorithms. */
#include <tp/overlap.h>

#include "core/context.h"
#include "plan/generator.h"

typedef struct tpi_overlap_entry {
    const char *name;
    void (*generate)(tp_pattern pattern, int pieces, tp_plan *plan);
    int ops_a_piece; /* most */
} tpi_overlap_entry;

static const tpi_overlap_entry table[TP_OVERLAP_COUNT] = {
    [TP_OVERLAP_NONE] = {"none", tpi_overlap_none, 2},
};

int tpi_plan_add(tp_plan *plan, tp_plan_op op)
{
    plan->op[plan->count] = op;
    return plan->count++;
}

const char *tp_overlap_name(tp_overlap algorithm)
{
    return algorithm >= 0 && algorithm < TP_OVERLAP_COUNT ? table[algorithm].name : "?";
}

tp_status tp_overlap_plan(tp_overlap algorithm, tp_pattern pattern, int ranks, int rank, int pieces, tp_plan *out)
{
    if ((int)algorithm < 0 || algorithm >= TP_OVERLAP_COUNT)
        return tpi_message(TP_ERR_ARGUMENT, "overlap algorithm %d: %d are known", (int)algorithm, TP_OVERLAP_COUNT);
    if ((int)pattern < 0 || pattern >= TP_PATTERN_COUNT)
        return tpi_message(TP_ERR_ARGUMENT, "overlap pattern %d: %d are known", (int)pattern, TP_PATTERN_COUNT);
    if (ranks < 1 || rank < 0 || rank >= ranks)
        return tpi_message(TP_ERR_ARGUMENT, "plan for rank %d of %d ranks", rank, ranks);
    int most = TP_PLAN_MAX_OPS / table[algorithm].ops_a_piece;
    if (pieces < 1 || pieces > most)
        return tpi_message(TP_ERR_ARGUMENT, "plan of %d pieces: 1 to %d with algorithm '%s'", pieces, most, table[algorithm].name);
    *out = (tp_plan){.ranks = ranks, .rank = rank, .pieces = pieces};
    table[algorithm].generate(pattern, pieces, out);
    return TP_OK;
}
