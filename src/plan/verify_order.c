/* Which ops meet, and in what order everything can happen. Ops that meet (SEND and RECV, the members of a collective)
 * are one node of a graph; an edge goes from what must be finished first. There is an order if, and only if, no run can
 * get stuck. */
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "plan/verify.h"

static bool same_work(const tp_plan_op *a, const tp_plan_op *b)
{
    return a->piece == b->piece && a->pieces == b->pieces && (a->pieces <= 1 || a->step == b->step);
}

/* The next op of a rank, from number `op` on, that sends to `peer`; the end of its list if there is none. */
static int next_send(const tpi_verifier *v, int rank, int op, int peer)
{
    while (op < v->first[rank + 1] && (tpi_verify_op(v, op)->kind != TP_OP_SEND || tpi_verify_op(v, op)->peer != peer))
        op++;
    return op;
}

/* The k-th SEND from a to b meets the k-th RECV on b from a. */
static bool meet_messages(tpi_verifier *v)
{
    for (int rank = 0; rank < v->plan->ranks; rank++) {
        int next[TP_PLAN_MAX_RANKS];
        memcpy(next, v->first, sizeof next);
        for (int op = v->first[rank]; op < v->first[rank + 1]; op++) {
            const tp_plan_op *o = tpi_verify_op(v, op);
            if (o->kind != TP_OP_RECV)
                continue;
            int send = next_send(v, o->peer, next[o->peer], rank);
            if (send == v->first[o->peer + 1])
                return tpi_verify_fault(v, TP_FAULT_UNMET, op, "recv of piece %d: rank %d does not send that often",
                                        o->piece, o->peer);
            if (!same_work(o, tpi_verify_op(v, send)))
                return tpi_verify_fault(v, TP_FAULT_UNMET, op,
                                        "recv of piece %d meets rank %d's send of piece %d (its op %d)", o->piece,
                                        o->peer, tpi_verify_op(v, send)->piece, send - v->first[o->peer]);
            v->meets[send] = op;
            v->node[op] = send;
            next[o->peer] = send + 1;
        }
    }
    for (int op = 0; op < v->ops; op++) {
        const tp_plan_op *o = tpi_verify_op(v, op);
        if (o->kind == TP_OP_SEND && v->meets[op] < 0)
            return tpi_verify_fault(v, TP_FAULT_UNMET, op, "send of piece %d: rank %d does not receive it", o->piece,
                                    o->peer);
    }
    return true;
}

static int next_collective(const tpi_verifier *v, int rank, int op, tp_lane lane)
{
    while (op < v->first[rank + 1] &&
           (tpi_verify_op(v, op)->kind != TP_OP_COLLECTIVE || tpi_verify_op(v, op)->lane != lane))
        op++;
    return op;
}

/* One collective on all ranks; next: each rank's, which may be the end of its list. */
static bool meet_collective(tpi_verifier *v, const int *next, int last)
{
    for (int rank = 0; rank < v->plan->ranks; rank++)
        if (next[rank] == v->first[rank + 1])
            return tpi_verify_fault(v, TP_FAULT_UNMET, last, "collective of piece %d: rank %d does not take part",
                                    tpi_verify_op(v, last)->piece, rank);
    const tp_plan_op *first = tpi_verify_op(v, next[0]);
    for (int rank = 1; rank < v->plan->ranks; rank++) {
        const tp_plan_op *other = tpi_verify_op(v, next[rank]);
        if (other->collective != first->collective || other->part != first->part || !same_work(first, other))
            return tpi_verify_fault(v, TP_FAULT_UNMET, next[rank],
                                    "collective of piece %d meets another one, of piece %d, on rank 0 (its op %d)",
                                    other->piece, first->piece, next[0]);
        v->meets[next[rank - 1]] = next[rank];
        v->node[next[rank]] = next[0];
    }
    return true;
}

/* The k-th collective on a lane of one rank meets the k-th on that lane of every other. */
static bool meet_collectives(tpi_verifier *v, tp_lane lane)
{
    int next[TP_PLAN_MAX_RANKS];
    memcpy(next, v->first, sizeof next);
    for (;;) {
        int last = -1;
        for (int rank = 0; rank < v->plan->ranks; rank++) {
            next[rank] = next_collective(v, rank, next[rank], lane);
            if (next[rank] < v->first[rank + 1])
                last = next[rank];
        }
        if (last < 0)
            return true;
        if (!meet_collective(v, next, last))
            return false;
        for (int rank = 0; rank < v->plan->ranks; rank++)
            next[rank]++;
    }
}

bool tpi_verify_meetings(tpi_verifier *v)
{
    for (int op = 0; op < v->ops; op++) {
        v->lane[op] = v->rank[op] * TP_LANES + (int)tpi_verify_op(v, op)->lane;
        v->node[op] = op; /* for now: the first op that it meets */
        v->meets[op] = -1;
    }
    if (!meet_messages(v))
        return false;
    for (int lane = 0; lane < TP_LANES; lane++)
        if (!meet_collectives(v, (tp_lane)lane))
            return false;
    int *number = v->order; /* not needed otherwise yet */
    for (int op = 0; op < v->ops; op++)
        if (v->node[op] == op) {
            number[op] = v->nodes;
            v->head[v->nodes++] = op;
        }
    for (int op = 0; op < v->ops; op++)
        v->node[op] = number[v->node[op]];
    return true;
}

/* What an op must wait for, one after the other: its waits, the op before it on its lane, and the compute op that may
 * block its issue. */
typedef struct causes {
    const tpi_verifier *v;
    const tp_plan_op *op;
    int next, before, blocker;
} causes;

static int blocker_of(const tpi_verifier *v, const int *blocker, int op)
{
    return blocker[op] == v->before[op] ? -1 : blocker[op];
}

static causes causes_of(const tpi_verifier *v, const int *blocker, int op)
{
    return (causes){.v = v, .op = tpi_verify_op(v, op), .before = v->before[op], .blocker = blocker_of(v, blocker, op)};
}

/* -1 at the end. */
static int next_cause(causes *c)
{
    if (c->next < c->op->waits) {
        const tp_wait *wait = &c->op->wait[c->next++];
        return c->v->first[wait->rank] + wait->op;
    }
    int cause = c->before >= 0 ? c->before : c->blocker;
    if (c->before >= 0)
        c->before = -1;
    else
        c->blocker = -1;
    return cause;
}

/* Fills place, before, and blocker: the compute op listed last before each op. */
static void find_lanes(tpi_verifier *v, int *blocker)
{
    for (int rank = 0; rank < v->plan->ranks; rank++) {
        int last[TP_LANES] = {-1, -1, -1};
        for (int op = v->first[rank]; op < v->first[rank + 1]; op++) {
            tp_lane lane = tpi_verify_op(v, op)->lane;
            v->before[op] = last[lane];
            v->place[op] = last[lane] < 0 ? 0 : v->place[last[lane]] + 1;
            blocker[op] = last[TP_LANE_COMPUTE];
            last[lane] = op;
        }
    }
}

/* The graph: edges to what comes after, by node. */
typedef struct graph {
    int *blocker; /* of each op */
    int *begin;   /* of each node: its first edge */
    int *missing; /* of each node: edges to it from nodes that have no place in the order yet */
    int *to;
    int *from; /* of each edge as it was found: its two nodes */
    int *into;
    size_t edges;
} graph;

/* Enters an edge from each cause of each op. */
static void find_edges(tpi_verifier *v, graph *g)
{
    for (int op = 0; op < v->ops; op++) {
        causes c = causes_of(v, g->blocker, op);
        int node = v->node[op];
        for (int cause = next_cause(&c); cause >= 0; cause = next_cause(&c)) {
            g->from[g->edges] = v->node[cause];
            g->into[g->edges++] = node;
            g->begin[v->node[cause]]++;
            g->missing[node]++;
        }
    }
}

static tp_status graph_create(tpi_verifier *v, graph *g)
{
    size_t ops = (size_t)v->ops, nodes = (size_t)v->nodes;
    for (int op = 0; op < v->ops; op++)
        v->proof->waits += tpi_verify_op(v, op)->waits;
    size_t most = (size_t)v->proof->waits + 2 * ops; /* edges */
    g->blocker = malloc((ops + 2 * nodes + 2 + 3 * most) * sizeof *g->blocker);
    if (g->blocker == NULL)
        return tpi_message(TP_ERR_MEMORY, "plan verify: out of memory for %d ops", v->ops);
    g->begin = g->blocker + ops;
    g->missing = g->begin + nodes + 1;
    g->to = g->missing + nodes + 1;
    g->from = g->to + most;
    g->into = g->from + most;
    memset(g->begin, 0, (2 * nodes + 2) * sizeof *g->begin);
    find_lanes(v, g->blocker);
    find_edges(v, g);
    v->proof->edges = (int)g->edges;
    int end = 0;
    for (int node = 0; node <= v->nodes; node++) { /* ends for now; filling from the back makes them beginnings */
        end += node < v->nodes ? g->begin[node] : 0;
        g->begin[node] = end;
    }
    for (size_t edge = g->edges; edge-- > 0;)
        g->to[--g->begin[g->from[edge]]] = g->into[edge];
    return TP_OK;
}

/* Fills v->order with what can happen; returns how many nodes that is. */
static int sort_nodes(tpi_verifier *v, graph *g)
{
    int ready = 0;
    for (int node = 0; node < v->nodes; node++)
        if (g->missing[node] == 0)
            v->order[ready++] = node;
    for (int done = 0; done < ready; done++)
        for (int edge = g->begin[v->order[done]]; edge < g->begin[v->order[done] + 1]; edge++)
            if (--g->missing[g->to[edge]] == 0)
                v->order[ready++] = g->to[edge];
    return ready;
}

/* What keeps a node from happening: an op of it, and what that op waits for in vain. */
static int stuck_on(const tpi_verifier *v, const graph *g, int node, int *op)
{
    for (*op = v->head[node]; *op >= 0; *op = v->meets[*op]) {
        causes c = causes_of(v, g->blocker, *op);
        for (int cause = next_cause(&c); cause >= 0; cause = next_cause(&c))
            if (g->missing[v->node[cause]] > 0)
                return cause;
    }
    return -1;
}

/* Following what keeps a stuck node stuck ends in a circle; names an op of it, if possible one with a wait. */
static void report_circle(tpi_verifier *v, const graph *g)
{
    int node = 0, op = -1, cause = -1, length = 0;
    while (g->missing[node] == 0)
        node++;
    for (int step = 0; step < v->nodes; step++)
        node = v->node[stuck_on(v, g, node, &op)];
    int begin = node;
    int named = -1, named_cause = -1;
    do {
        cause = stuck_on(v, g, node, &op);
        const tp_plan_op *o = tpi_verify_op(v, op);
        bool waits = o->waits > 0 && cause != v->before[op] && cause != g->blocker[op];
        if (named < 0 || waits) {
            named = op;
            named_cause = cause;
        }
        node = v->node[cause];
        length++;
    } while (node != begin);
    const tp_plan_op *o = tpi_verify_op(v, named), *on = tpi_verify_op(v, named_cause);
    const char *how = named_cause == v->before[named]    ? "is behind"
                      : named_cause == g->blocker[named] ? "is issued only after"
                                                         : "waits for";
    tpi_verify_fault(v, TP_FAULT_DEADLOCK, named,
                     "deadlock: %s of piece %d %s rank %d's op %d (%s of piece %d), which waits for it (circle of %d)",
                     tp_op_name(o->kind), o->piece, how, v->rank[named_cause],
                     named_cause - v->first[v->rank[named_cause]], tp_op_name(on->kind), on->piece, length);
}

static void join(const tpi_verifier *v, int *clock, int cause)
{
    const int *other = &v->clock[(size_t)v->node[cause] * (size_t)v->lanes];
    for (int lane = 0; lane < v->lanes; lane++)
        clock[lane] = clock[lane] > other[lane] ? clock[lane] : other[lane];
}

/* What is finished when each node is: by lanes, waits and meetings alone. An op on a real compute stream blocks nobody.
 */
static void fill_clocks(tpi_verifier *v)
{
    for (int i = 0; i < v->nodes; i++) {
        int node = v->order[i];
        int *clock = &v->clock[(size_t)node * (size_t)v->lanes];
        for (int op = v->head[node]; op >= 0; op = v->meets[op]) {
            const tp_plan_op *o = tpi_verify_op(v, op);
            if (v->before[op] >= 0)
                join(v, clock, v->before[op]);
            for (int w = 0; w < o->waits; w++)
                join(v, clock, v->first[o->wait[w].rank] + o->wait[w].op);
        }
        for (int op = v->head[node]; op >= 0; op = v->meets[op])
            clock[v->lane[op]] = v->place[op] + 1;
    }
}

/* Whether `message` is finished before `op` can even be posted: by what `op` itself waits for, not what the op that it
 * meets waits for. */
static bool is_posted_after(const tpi_verifier *v, int message, int op)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    int cause = v->before[op];
    for (int w = -1; w < o->waits; w++) {
        if (w >= 0)
            cause = v->first[o->wait[w].rank] + o->wait[w].op;
        if (cause >= 0 && (v->node[cause] == v->node[message] || tpi_verify_before(v, message, cause)))
            return true;
    }
    return false;
}

/* Messages between two ranks meet in the order of the lists, so no one may overtake another. */
static bool check_overtaking(tpi_verifier *v)
{
    for (int rank = 0; rank < v->plan->ranks; rank++) {
        int last[2][TP_PLAN_MAX_RANKS];
        memset(last, -1, sizeof last);
        for (int op = v->first[rank]; op < v->first[rank + 1]; op++) {
            const tp_plan_op *o = tpi_verify_op(v, op);
            if (o->kind != TP_OP_SEND && o->kind != TP_OP_RECV)
                continue;
            int *before = &last[o->kind == TP_OP_RECV][o->peer];
            if (*before >= 0 && !is_posted_after(v, *before, op))
                return tpi_verify_fault(v, TP_FAULT_RACE, op,
                                        "%s of piece %d can overtake op %d, a message between the same two ranks",
                                        tp_op_name(o->kind), o->piece, *before - v->first[rank]);
            *before = op;
        }
    }
    return true;
}

tp_status tpi_verify_order(tpi_verifier *v)
{
    graph g = {.edges = 0};
    tp_status status = graph_create(v, &g);
    if (status == TP_OK && sort_nodes(v, &g) < v->nodes)
        report_circle(v, &g);
    else if (status == TP_OK) {
        fill_clocks(v);
        check_overtaking(v);
    }
    free(g.blocker);
    return status;
}
