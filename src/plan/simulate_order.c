/* What stands before an op in its list and what it meets in others', found once before a simulation runs. */
#include "plan/simulation.h"

static const tp_wait nothing = {-1, -1};

int tpi_simulation_next_on_lane(const tp_plan_rank *list, int from, int lane)
{
    while (from < list->count && (int)list->op[from].lane != lane)
        from++;
    return from;
}

static void number_ops(tpi_simulation *s, int rank)
{
    const tp_plan_rank *list = &s->plan->rank[rank];
    int issuer = -1, collectives[TP_LANES] = {0}, last[TP_LANES] = {-1, -1, -1};
    for (int i = 0; i < list->count; i++) {
        const tp_plan_op *op = &list->op[i];
        tpi_op_state *state = &s->state[rank][i];
        *state = (tpi_op_state){.watcher = -1, .match = -1, .issuer = issuer, .before = last[op->lane],
                                .cause = nothing};
        last[op->lane] = i;
        if (op->kind == TP_OP_COLLECTIVE)
            state->match = (int)op->lane + TP_LANES * collectives[op->lane]++; /* they meet lane by lane */
        if (op->lane == TP_LANE_COMPUTE)
            issuer = i;
    }
}

/* Messages between two ranks meet in the order of both lists. */
static void match_messages(tpi_simulation *s, int from)
{
    const tp_plan_rank *sender = &s->plan->rank[from];
    int next[TP_PLAN_MAX_RANKS] = {0}; /* in each receiver's list */
    for (int i = 0; i < sender->count; i++) {
        if (sender->op[i].kind != TP_OP_SEND)
            continue;
        int to = sender->op[i].peer, receive = next[to];
        const tp_plan_rank *receiver = &s->plan->rank[to];
        while (receive < receiver->count &&
               (receiver->op[receive].kind != TP_OP_RECV || receiver->op[receive].peer != from))
            receive++;
        next[to] = receive + 1;
        if (receive >= receiver->count)
            continue;
        s->state[from][i].match = receive;
        s->state[to][receive].match = i;
    }
}

void tpi_simulation_order(tpi_simulation *s)
{
    for (int rank = 0; rank < s->plan->ranks; rank++)
        number_ops(s, rank);
    for (int rank = 0; rank < s->plan->ranks; rank++)
        match_messages(s, rank);
}
