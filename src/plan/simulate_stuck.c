/* Why a plan can't run. */
#include "core/context.h"
#include "plan/simulation.h"

static const tp_wait nothing = {-1, -1};

/* What an op at the head of its lane waits for, as a text. */
static tp_status stuck(const tpi_simulation *s, int rank, int index)
{
    const tp_plan_op *op = tpi_simulation_op(s, rank, index);
    const char *name = tp_op_name(op->kind);
    for (int i = 0; i < op->waits; i++)
        if (!tpi_simulation_finished(s, op->wait[i]))
            return tpi_message(TP_ERR_STATE,
                               "plan can't run: rank %d op %d (%s) waits for rank %d op %d, which never ends", rank,
                               index, name, op->wait[i].rank, op->wait[i].op);
    if ((op->kind == TP_OP_SEND || op->kind == TP_OP_RECV) && s->state[rank][index].match < 0)
        return tpi_message(TP_ERR_STATE, "plan can't run: rank %d op %d (%s) meets no %s of rank %d", rank, index, name,
                           op->kind == TP_OP_SEND ? "recv" : "send", op->peer);
    if (op->kind == TP_OP_SEND || op->kind == TP_OP_RECV)
        return tpi_message(TP_ERR_STATE, "plan can't run: rank %d op %d (%s) waits for rank %d op %d to meet it", rank,
                           index, name, op->peer, s->state[rank][index].match);
    return tpi_message(TP_ERR_STATE, "plan can't run: rank %d op %d (%s): not every rank comes to this collective",
                       rank, index, name);
}

/* The op of another rank that keeps one from its collective; op -1: it has none. */
static tp_wait absent(const tpi_simulation *s, int number)
{
    for (int rank = 0; rank < s->plan->ranks; rank++) {
        tpi_candidate c;
        int index = tpi_simulation_collective(s, rank, number);
        if (index >= 0 && tpi_simulation_ready(s, rank, index, &c))
            continue;
        const tp_plan_rank *list = &s->plan->rank[rank];
        for (int i = 0; i < list->count; i++)
            if (list->op[i].kind == TP_OP_COLLECTIVE && s->state[rank][i].match == number)
                return (tp_wait){rank, i};
        return nothing;
    }
    return nothing;
}

/* What holds an op up; rank -1: something that is not in the plan. */
static tp_wait blocker(const tpi_simulation *s, tp_wait at)
{
    const tp_plan_op *op = tpi_simulation_op(s, at.rank, at.op);
    const tpi_op_state *state = &s->state[at.rank][at.op];
    if (state->issuer >= 0 && !s->state[at.rank][state->issuer].done)
        return (tp_wait){at.rank, state->issuer};
    if (!tpi_simulation_is_next(s, at.rank, at.op))
        return (tp_wait){at.rank, state->before};
    for (int i = 0; i < op->waits; i++) {
        bool there = op->wait[i].rank >= 0 && op->wait[i].rank < s->plan->ranks && op->wait[i].op >= 0 &&
                     op->wait[i].op < s->plan->rank[op->wait[i].rank].count;
        if (!tpi_simulation_finished(s, op->wait[i]))
            return there ? op->wait[i] : nothing;
    }
    if (op->kind == TP_OP_COLLECTIVE)
        return absent(s, state->match);
    return state->match >= 0 ? (tp_wait){op->peer, state->match} : nothing;
}

static bool is_held_by_others(const tpi_simulation *s, tp_wait at)
{
    int issuer = s->state[at.rank][at.op].issuer;
    return tpi_simulation_is_next(s, at.rank, at.op) && (issuer < 0 || s->state[at.rank][issuer].done);
}

/* Follows what ops wait for until nothing is left to follow, or round a cycle, and tells about the op where it ends. */
tp_status tpi_simulation_stuck(const tpi_simulation *s)
{
    tp_wait at = {0, 0};
    while (at.op >= s->plan->rank[at.rank].count || s->state[at.rank][at.op].done)
        at = at.op < s->plan->rank[at.rank].count ? (tp_wait){at.rank, at.op + 1} : (tp_wait){at.rank + 1, 0};
    for (int steps = 0; steps <= s->left; steps++) {
        tp_wait on = blocker(s, at);
        if (on.rank < 0)
            break;
        at = on;
    }
    /* One that waits for its own rank's order tells nothing: go on to one that waits for something else. */
    for (int steps = 0; steps <= s->left && !is_held_by_others(s, at); steps++)
        at = blocker(s, at);
    return stuck(s, at.rank, at.op);
}
