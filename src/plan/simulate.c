/* Discrete events. The next op of every lane is a candidate; the one that can begin first is run, and only ends that
 * are known count. An op that becomes possible by this begins no earlier, so ops are run in the order of their
 * beginnings, and links serve who comes first. */
#include <math.h>
#include <stdlib.h>

#include "core/context.h"
#include "plan/simulation.h"
#include "plan/timeline.h"

static const tp_wait nothing = {-1, -1};

static double end_of(const tpi_simulation *s, tp_wait on)
{
    return s->timeline->span[on.rank][on.op].end;
}

bool tpi_simulation_finished(const tpi_simulation *s, tp_wait on)
{
    return on.rank >= 0 && on.rank < s->plan->ranks && on.op >= 0 && on.op < s->plan->rank[on.rank].count &&
           s->state[on.rank][on.op].done;
}

static void later(const tpi_simulation *s, tpi_candidate *c, tp_wait on, double extra)
{
    double end = end_of(s, on);
    if (end + extra > c->when && end >= c->when) {
        c->when = end + extra;
        c->cause = on;
    } else if (c->cause.rank < 0)
        c->cause = on;
}

/* Compute spins for a while where it waits for a peer; lanes that may have no core of their own must not. */
static double waking(const tpi_simulation *s, const tp_plan_op *waits, const tp_plan_op *awaited)
{
    return waits->lane != TP_LANE_COMPUTE || awaited->lane != TP_LANE_COMPUTE ? s->costs->wake_seconds : 0;
}

/* The end of what the op waits for, however late its lane sees it; not the end of the last op on its lane, which waited
 * for an arrival. A PULL's time runs from when its data was there, as the executor has it, also if the host issues it
 * later. */
static double posted_at(const tpi_simulation *s, int rank, int index)
{
    const tp_plan_op *op = tpi_simulation_op(s, rank, index);
    const tpi_op_state *state = &s->state[rank][index];
    double when = state->issuer >= 0 && (op->kind != TP_OP_PULL || op->waits == 0)
                      ? end_of(s, (tp_wait){rank, state->issuer})
                      : 0;
    for (int i = 0; i < op->waits; i++)
        when = fmax(when, end_of(s, op->wait[i]));
    return when;
}

bool tpi_simulation_ready(const tpi_simulation *s, int rank, int index, tpi_candidate *c)
{
    const tp_plan_op *op = tpi_simulation_op(s, rank, index);
    const tpi_op_state *state = &s->state[rank][index];
    *c = (tpi_candidate){.rank = rank, .op = index, .cause = nothing};
    if (!tpi_simulation_is_next(s, rank, index) || (state->issuer >= 0 && !s->state[rank][state->issuer].done))
        return false;
    for (int i = 0; i < op->waits; i++)
        if (!tpi_simulation_finished(s, op->wait[i]))
            return false;
    if (state->before >= 0)
        later(s, c, (tp_wait){rank, state->before}, 0);
    if (state->issuer >= 0)
        later(s, c, (tp_wait){rank, state->issuer}, 0);
    for (int i = 0; i < op->waits; i++) {
        tp_wait on = op->wait[i];
        bool own = on.rank == rank; /* threads of one rank take turns on a core that is awake: switching is in what a
                                     * lane's op takes at least */
        if (!own || end_of(s, on) > c->when)
            later(s, c, on, s->costs->wait_seconds + (own ? 0 : waking(s, op, tpi_simulation_op(s, on.rank, on.op))));
    }
    /* messages cross meanwhile */
    double late = op->lane != TP_LANE_COMPUTE && s->extra != NULL ? s->extra[rank][index] : 0;
    c->posted = tpi_price_is_transfer(op->kind) ? posted_at(s, rank, index) + (op->kind == TP_OP_COLLECTIVE ? late : 0)
                                                : c->when;
    c->when += late;
    return true;
}

int tpi_simulation_collective(const tpi_simulation *s, int rank, int number)
{
    for (int lane = 0; lane < TP_LANES; lane++) {
        int index = s->next[rank][lane];
        if (index < s->plan->rank[rank].count && tpi_simulation_op(s, rank, index)->kind == TP_OP_COLLECTIVE &&
            s->state[rank][index].match == number)
            return index;
    }
    return -1;
}

/* All ranks have arrived at the collective; c: the last to arrive, and when the last one posted it. */
static bool collective_ready(const tpi_simulation *s, int number, tpi_candidate *c)
{
    double posted = 0;
    for (int rank = 0; rank < s->plan->ranks; rank++) {
        tpi_candidate arrival;
        int index = tpi_simulation_collective(s, rank, number);
        if (index < 0 || !tpi_simulation_ready(s, rank, index, &arrival))
            return false;
        posted = fmax(posted, fmax(arrival.posted, s->arrived[rank][tpi_simulation_op(s, rank, index)->lane]));
        if (rank == 0 || arrival.when > c->when)
            *c = arrival;
    }
    c->posted = posted;
    return true;
}

static bool ready(const tpi_simulation *s, int rank, int index, tpi_candidate *c)
{
    const tp_plan_op *op = tpi_simulation_op(s, rank, index);
    tpi_candidate peer;
    if (!tpi_simulation_ready(s, rank, index, c))
        return false;
    switch (op->kind) {
    case TP_OP_RECV: return false; /* run with its SEND */
    case TP_OP_COLLECTIVE: return rank == 0 && collective_ready(s, s->state[rank][index].match, c);
    case TP_OP_SEND:
        if (s->state[rank][index].match < 0 || !tpi_simulation_ready(s, op->peer, s->state[rank][index].match, &peer))
            return false;
        if (peer.when > c->when) {
            c->when = peer.when;
            c->cause = peer.cause;
        }
        c->posted = fmax(c->posted, peer.posted);
        return true;
    default: return true;
    }
}

static void complete(tpi_simulation *s, int rank, int index, tp_wait cause, tp_span span)
{
    const tp_plan_rank *list = &s->plan->rank[rank];
    int lane = (int)list->op[index].lane;
    s->timeline->span[rank][index] = span;
    s->state[rank][index].done = true;
    s->state[rank][index].cause = cause;
    s->next[rank][lane] = tpi_simulation_next_on_lane(list, index + 1, lane);
    s->ended[s->just_ended++] = (tp_wait){rank, index};
    s->left--;
}

static bool modelled(const tpi_simulation *s)
{
    return s->costs->link.bytes_per_second > 0;
}

/* From a transfer's leaving the link to its being seen at the other end. */
static double arriving(const tpi_simulation *s, int steps)
{
    return steps * s->costs->link.latency_seconds + s->costs->arrival_seconds;
}

static void count_crossing(tpi_simulation *s, int from, int to, double bytes, double overhead)
{
    if (!modelled(s) || from == to)
        return;
    tpi_alone *sender = &s->alone[from], *receiver = &s->alone[to];
    double seconds = bytes / s->costs->link.bytes_per_second;
    sender->out += seconds;
    receiver->in += seconds;
    sender->last = fmax(sender->last, arriving(s, 1));
    receiver->last = fmax(receiver->last, arriving(s, 1) + overhead);
}

static double seconds_alone(const tpi_alone *alone)
{
    double most = fmax(alone->out, alone->in) + alone->last;
    for (int lane = 0; lane < TP_LANES; lane++)
        most = fmax(most, fmax(alone->chain[lane], alone->copies[lane]));
    return most;
}

/* A transfer over the link: begins when posted and both ends are free. Returns when it has arrived; the op's beginning
 * and its cause move if an end was busy. */
static double cross(tpi_simulation *s, tp_wait by, int from, int to, double bytes, tpi_candidate *c)
{
    if (!modelled(s) || from == to)
        return c->when;
    tpi_link_end *ends[2] = {&s->out[from], &s->in[to]};
    for (int i = 0; i < 2; i++)
        if (ends[i]->free > c->when) {
            c->when = ends[i]->free;
            c->cause = ends[i]->last;
        }
    double end = fmax(fmax(c->posted, ends[0]->free), ends[1]->free) + bytes / s->costs->link.bytes_per_second;
    *ends[0] = *ends[1] = (tpi_link_end){end, by};
    return fmax(end + arriving(s, 1), c->when);
}

/* What an op is on its lane at least. */
static double least_on(const tpi_simulation *s, const tp_plan_op *op)
{
    return op->lane != TP_LANE_COMPUTE ? s->costs->lane_seconds : 0;
}

/* PULL, PUSH, SEND with its RECV. */
static void run_transfer(tpi_simulation *s, tpi_candidate c)
{
    const tp_plan_op *op = tpi_simulation_op(s, c.rank, c.op);
    int from = op->kind == TP_OP_PULL ? op->peer : c.rank, to = op->kind == TP_OP_PULL ? c.rank : op->peer;
    double bytes = tpi_price_bytes(s->plan, s->costs, &op->read[0]);
    double copying = tpi_price_seconds(bytes, s->costs->copy_bytes_per_second),
           copied = c.when + fmax(copying, least_on(s, op));
    double overhead = s->costs->transfer_overhead,
           end = fmax(cross(s, (tp_wait){c.rank, c.op}, from, to, bytes, &c), copied) + overhead;
    count_crossing(s, from, to, bytes, op->kind == TP_OP_PUSH ? 0 : overhead);
    s->alone[c.rank].copies[op->lane] += copying + overhead; /* the passive end of a one-sided copy does nothing */
    if (op->kind == TP_OP_SEND)
        s->alone[op->peer].copies[tpi_simulation_op(s, op->peer, s->state[c.rank][c.op].match)->lane] +=
            copying + overhead;
    tp_span span = {.begin = c.when, .end = end, .comm_begin = c.when, .comm_end = end};
    complete(s, c.rank, c.op, c.cause, span);
    if (op->kind == TP_OP_SEND)
        complete(s, op->peer, s->state[c.rank][c.op].match, c.cause, span);
}

/* One rank's part of a collective that all have come to at c->when. */
static void run_collective_part(tpi_simulation *s, const tpi_candidate *c, int rank, int index)
{
    const tp_plan_costs *costs = s->costs;
    const tp_plan_op *op = tpi_simulation_op(s, rank, index);
    tpi_collective_price price = tpi_price_collective(s->plan, costs, op);
    double rate = costs->link.bytes_per_second, overhead = s->plan->ranks > 1 ? costs->transfer_overhead : 0;
    double copying = tpi_price_seconds(price.copied, costs->copy_bytes_per_second),
           end = c->when + fmax(copying + waking(s, op, op), least_on(s, op));
    tpi_alone *alone = &s->alone[rank];
    if (modelled(s) && s->plan->ranks > 1) {
        s->out[rank] = (tpi_link_end){fmax(s->out[rank].free, c->posted) + price.sent / rate, {rank, index}};
        s->in[rank] = (tpi_link_end){fmax(s->in[rank].free, c->posted) + price.received / rate, {rank, index}};
        double last = fmax(s->out[rank].free, s->in[rank].free);
        s->arrived[rank][op->lane] = last + price.steps * costs->link.latency_seconds;
        end = fmax(end, last + arriving(s, price.steps));
        alone->out += price.sent / rate;
        alone->in += price.received / rate;
        alone->last = fmax(alone->last, arriving(s, price.steps) + overhead);
        double seen =
            op->lane == TP_LANE_COMPUTE || alone->chain[op->lane] == 0 ? costs->arrival_seconds + overhead : 0;
        alone->chain[op->lane] +=
            fmax(price.sent, price.received) / rate + price.steps * costs->link.latency_seconds + seen;
    }
    alone->copies[op->lane] += copying + overhead;
    end += overhead;
    double added = end + tpi_price_seconds(price.added, costs->reduce_bytes_per_second);
    complete(s, rank, index, c->cause, (tp_span){c->when, added, end, added, c->when, end});
}

static void run_collective(tpi_simulation *s, const tpi_candidate *c)
{
    int number = s->state[c->rank][c->op].match;
    for (int rank = 0; rank < s->plan->ranks; rank++)
        run_collective_part(s, c, rank, tpi_simulation_collective(s, rank, number));
}

/* Regions in peers' memory, read or written while it computes. */
static double run_remote(tpi_simulation *s, const tpi_candidate *c, const tp_plan_op *op)
{
    double end = c->when;
    for (int i = 0; i < op->reads + op->writes; i++) {
        const tp_region *region = i < op->reads ? &op->read[i] : &op->write[i - op->reads];
        tpi_candidate transfer = *c;
        int from = i < op->reads ? region->rank : c->rank, to = i < op->reads ? c->rank : region->rank;
        double bytes = tpi_price_bytes(s->plan, s->costs, region);
        end = fmax(end, cross(s, (tp_wait){c->rank, c->op}, from, to, bytes, &transfer));
        count_crossing(s, from, to, bytes, 0);
    }
    return end;
}

static void run_local(tpi_simulation *s, const tpi_candidate *c)
{
    const tp_plan_op *op = tpi_simulation_op(s, c->rank, c->op);
    double more = s->extra != NULL ? s->extra[c->rank][c->op] : 0;
    double computed = c->when + tpi_price_compute(s->plan, s->costs, op) + more, moved = c->when;
    if (op->kind != TP_OP_ENTER && op->kind != TP_OP_LEAVE)
        moved = run_remote(s, c, op);
    complete(s, c->rank, c->op, c->cause, (tp_span){c->when, fmax(computed, moved), c->when, computed, c->when, moved});
}

static void run(tpi_simulation *s, const tpi_candidate *c)
{
    tp_op_kind kind = tpi_simulation_op(s, c->rank, c->op)->kind;
    if (kind == TP_OP_COLLECTIVE)
        run_collective(s, c);
    else if (tpi_price_is_transfer(kind))
        run_transfer(s, *c);
    else
        run_local(s, c);
}

/* Something on its own rank, or a wait, that keeps the next op of a lane from beginning; rank -1: nothing. */
static tp_wait held_by(const tpi_simulation *s, int rank, int index)
{
    const tp_plan_op *op = tpi_simulation_op(s, rank, index);
    int issuer = s->state[rank][index].issuer;
    if (issuer >= 0 && !s->state[rank][issuer].done)
        return (tp_wait){rank, issuer};
    for (int i = 0; i < op->waits; i++)
        if (!tpi_simulation_finished(s, op->wait[i]))
            return op->wait[i];
    return nothing;
}

static bool exists(const tp_plan *plan, tp_wait on)
{
    return on.rank >= 0 && on.rank < plan->ranks && on.op >= 0 && on.op < plan->rank[on.rank].count;
}

/* Of an op that could begin as far as its own rank goes: the op whose beginning that makes possible, if its peers have
 * come to it too. */
static tp_wait begun_by(tpi_simulation *s, int rank, int index)
{
    const tp_plan_op *op = tpi_simulation_op(s, rank, index);
    const tpi_op_state *state = &s->state[rank][index];
    s->state[rank][index].arrived = true;
    switch (op->kind) {
    case TP_OP_SEND:
        return state->match >= 0 && s->state[op->peer][state->match].arrived ? (tp_wait){rank, index} : nothing;
    case TP_OP_RECV:
        return state->match >= 0 && s->state[op->peer][state->match].arrived ? (tp_wait){op->peer, state->match}
                                                                             : nothing;
    case TP_OP_COLLECTIVE:
        if (++s->arrivals[op->lane] < s->plan->ranks)
            return nothing;
        s->arrivals[op->lane] = 0;
        return (tp_wait){0, s->next[0][op->lane]};
    default: return (tp_wait){rank, index};
    }
}

/* The next op of a lane: what it waits for, or it is queued. */
static void look(tpi_simulation *s, int rank, int lane)
{
    int index = s->next[rank][lane];
    if (index >= s->plan->rank[rank].count)
        return;
    tp_wait on = held_by(s, rank, index);
    if (on.rank != nothing.rank || on.op != nothing.op) {
        if (!exists(s->plan, on))
            return;
        s->watching[rank * TP_LANES + lane] = s->state[on.rank][on.op].watcher;
        s->state[on.rank][on.op].watcher = rank * TP_LANES + lane;
        return;
    }
    tpi_candidate c;
    tp_wait begun = begun_by(s, rank, index);
    if (begun.rank >= 0 && ready(s, begun.rank, begun.op, &c))
        tpi_simulation_push(s, begun.rank, (int)tpi_simulation_op(s, begun.rank, begun.op)->lane, &c);
}

/* Looks at the lanes of what has just ended, and at those that waited for it. */
static void look_again(tpi_simulation *s)
{
    for (int i = 0; i < s->just_ended; i++) {
        tp_wait at = s->ended[i];
        for (int lane = s->state[at.rank][at.op].watcher, next; lane >= 0; lane = next) {
            next = s->watching[lane];
            look(s, lane / TP_LANES, lane % TP_LANES);
        }
        look(s, at.rank, (int)tpi_simulation_op(s, at.rank, at.op)->lane);
    }
    s->just_ended = 0;
}

/* From the slowest rank's last op back to what its beginning waited for. */
static void mark_critical(tpi_simulation *s)
{
    tp_timeline *timeline = s->timeline;
    tp_wait at = {timeline->rank, -1};
    for (int i = 0; i < s->plan->rank[at.rank].count; i++)
        if (at.op < 0 || timeline->span[at.rank][i].end >= end_of(s, at))
            at.op = i;
    while (at.rank >= 0 && at.op >= 0 && !timeline->critical[at.rank][at.op]) {
        const tp_span *span = &timeline->span[at.rank][at.op];
        timeline->critical[at.rank][at.op] = true;
        timeline->critical_ops += span->end > span->begin;
        at = s->state[at.rank][at.op].cause;
    }
}

static tp_status check_kinds(const tp_plan *plan)
{
    for (int rank = 0; rank < plan->ranks; rank++)
        for (int i = 0; i < plan->rank[rank].count; i++)
            if (plan->rank[rank].op[i].kind >= TP_OP_FORWARD)
                return tpi_message(TP_ERR_UNSUPPORTED, "tp_plan_simulate: rank %d op %d (%s) has no cost", rank, i,
                                   tp_op_name(plan->rank[rank].op[i].kind));
    return TP_OK;
}

static tp_status simulate(tpi_simulation *s)
{
    const tp_plan *plan = s->plan;
    tpi_simulation_order(s);
    for (int rank = 0; rank < plan->ranks; rank++) {
        s->left += plan->rank[rank].count;
        s->out[rank].last = s->in[rank].last = nothing;
        for (int lane = 0; lane < TP_LANES; lane++)
            s->next[rank][lane] = tpi_simulation_next_on_lane(&plan->rank[rank], 0, lane);
    }
    for (int rank = 0; rank < plan->ranks; rank++)
        for (int lane = 0; lane < TP_LANES; lane++)
            look(s, rank, lane);
    for (tpi_candidate c; s->left > 0; look_again(s)) {
        if (!tpi_simulation_pop(s, &c))
            return tpi_simulation_stuck(s);
        run(s, &c);
    }
    return TP_OK;
}

static tp_status allocate_states(tpi_simulation *s, tpi_op_state **memory)
{
    size_t ops = 0;
    for (int rank = 0; rank < s->plan->ranks; rank++)
        ops += (size_t)s->plan->rank[rank].count;
    *memory = calloc(ops + 1, sizeof **memory);
    if (*memory == NULL)
        return tpi_message(TP_ERR_MEMORY, "tp_plan_simulate: out of memory for %zu ops", ops);
    tpi_op_state *next = *memory;
    for (int rank = 0; rank < s->plan->ranks; rank++) {
        s->state[rank] = next;
        next += s->plan->rank[rank].count;
    }
    return TP_OK;
}

/* Costs that are finite may have quotients and sums that are not. */
static tp_status check_finite(const tpi_simulation *s)
{
    const tp_timeline *timeline = s->timeline;
    if (isfinite(timeline->seconds) && isfinite(timeline->gemm_seconds + timeline->comm_seconds))
        return TP_OK;
    TPI_TRY(tpi_price_find_endless(s->plan, s->costs));
    return tpi_message(TP_ERR_ARGUMENT,
                       "tp_plan_simulate: with these costs the plan takes %g seconds, its gemms %g and transfers %g",
                       timeline->seconds, timeline->gemm_seconds, timeline->comm_seconds);
}

/* Runs all ops into an empty timeline and sums it up. */
static tp_status fill(tpi_simulation *s)
{
    TPI_TRY(simulate(s));
    TPI_TRY(tpi_timeline_sum(s->timeline));
    int rank = s->timeline->rank;
    tpi_timeline_set_alone(s->timeline, tpi_price_uncut(s->plan, s->costs, rank), seconds_alone(&s->alone[rank]));
    TPI_TRY(check_finite(s));
    mark_critical(s);
    return TP_OK;
}

tp_status tp_plan_simulate(const tp_plan *plan, const tp_plan_costs *costs, tp_timeline **out)
{
    return tpi_plan_simulate(plan, costs, NULL, out);
}

tp_status tpi_plan_simulate(const tp_plan *plan, const tp_plan_costs *costs, double *const *extra, tp_timeline **out)
{
    if (out == NULL)
        return tpi_message(TP_ERR_ARGUMENT, "tp_plan_simulate: out is NULL");
    *out = NULL;
    TPI_TRY(tpi_price_check_costs("tp_plan_simulate", plan, costs));
    TPI_TRY(tpi_price_check_plan(plan));
    TPI_TRY(check_kinds(plan));
    tpi_op_state *states = NULL;
    tpi_simulation *s = calloc(1, sizeof *s);
    if (s == NULL)
        return tpi_message(TP_ERR_MEMORY, "tp_plan_simulate: out of memory");
    s->plan = plan;
    s->costs = costs;
    s->extra = extra;
    tp_status status = allocate_states(s, &states);
    if (status == TP_OK)
        status = tpi_timeline_allocate(plan, &s->timeline);
    if (status == TP_OK)
        status = fill(s);
    if (status == TP_OK)
        *out = s->timeline;
    else
        tp_timeline_destroy(s->timeline);
    free(states);
    free(s);
    return status;
}
