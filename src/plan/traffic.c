/* What a plan moves, from its ops alone. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "plan/price.h"

typedef struct counting {
    const tp_plan *plan;
    const tp_plan_costs *costs;
    tp_plan_traffic *traffic;
} counting;

static void move(const counting *c, int from, int to, double bytes)
{
    if (from == to)
        return;
    c->traffic->link[from][to] += bytes;
    c->traffic->sent[from] += bytes;
    c->traffic->received[to] += bytes;
    c->traffic->largest_piece = fmax(c->traffic->largest_piece, bytes);
}

/* A rank's own part of a gather goes to every peer; of a reduction, a slice to its owner, and, where all get the
 * result, a slice of it to all. */
static void count_collective(const counting *c, int rank, const tp_plan_op *op)
{
    double n = c->plan->ranks, in = tpi_price_bytes(c->plan, c->costs, &op->read[0]);
    double out = op->writes > 0 ? tpi_price_bytes(c->plan, c->costs, &op->write[0]) : 0;
    double each = op->collective == TP_COLLECTIVE_ALL_GATHER ? in : in / n;
    for (int peer = 0; peer < c->plan->ranks; peer++) {
        move(c, rank, peer, each);
        if (op->collective == TP_COLLECTIVE_ALL_REDUCE)
            move(c, rank, peer, out / n);
    }
}

static void count_op(const counting *c, int rank, const tp_plan_op *op)
{
    double bytes = op->reads > 0 ? tpi_price_bytes(c->plan, c->costs, &op->read[0]) : 0;
    switch (op->kind) {
    case TP_OP_ENTER:
    case TP_OP_LEAVE:
    case TP_OP_RECV: return; /* counted at its SEND */
    case TP_OP_PULL: move(c, op->peer, rank, bytes); return;
    case TP_OP_PUSH:
    case TP_OP_SEND: move(c, rank, op->peer, bytes); return;
    case TP_OP_COLLECTIVE: count_collective(c, rank, op); return;
    default: break;
    }
    for (int i = 0; i < op->reads; i++)
        move(c, op->read[i].rank, rank, tpi_price_bytes(c->plan, c->costs, &op->read[i]));
    for (int i = 0; i < op->writes; i++)
        move(c, rank, op->write[i].rank, tpi_price_bytes(c->plan, c->costs, &op->write[i]));
}

/* One mark a piece of GATHERED, PARTIAL, GATHERED_SECOND and each slot of INBOX, on every rank. */
typedef struct marks {
    size_t pieces, planes;
    bool *touched;
} marks;

static bool *plane_of(const marks *m, const tp_region *region)
{
    size_t plane = 3 + (size_t)region->slot;
    if (region->buffer != TP_BUFFER_INBOX)
        plane = region->buffer == TP_BUFFER_GATHERED ? 0 : region->buffer == TP_BUFFER_PARTIAL ? 1 : 2;
    return m->touched + ((size_t)region->rank * m->planes + plane) * m->pieces;
}

static bool is_workspace(const tp_plan *plan, const tp_region *region)
{
    bool inbox = region->buffer == TP_BUFFER_INBOX && region->slot >= 0 && region->slot < plan->ranks;
    return inbox || region->buffer == TP_BUFFER_GATHERED || region->buffer == TP_BUFFER_PARTIAL ||
           region->buffer == TP_BUFFER_GATHERED_SECOND;
}

static void mark_regions(const tp_plan *plan, const marks *m, const tp_region *region, int count)
{
    for (int i = 0; i < count; i++) {
        if (!is_workspace(plan, &region[i]))
            continue;
        bool *touched = plane_of(m, &region[i]);
        for (int k = 0; k < region[i].pieces; k++) {
            int piece = region[i].piece + k * region[i].step;
            if (piece >= 0 && piece < (int)m->pieces)
                touched[piece] = true;
        }
    }
}

static double marked_bytes(const counting *c, const marks *m, tp_region which)
{
    const bool *touched = plane_of(m, &which);
    which.pieces = 0;
    for (size_t i = 0; i < m->pieces; i++)
        which.pieces += touched[i];
    return tpi_price_bytes(c->plan, c->costs, &which);
}

static tp_status count_workspace(const counting *c)
{
    const tp_plan *plan = c->plan;
    marks m = {.pieces = (size_t)plan->ranks * (size_t)plan->chunks, .planes = 3 + (size_t)plan->ranks};
    m.touched = calloc((size_t)plan->ranks * m.planes * m.pieces, sizeof *m.touched);
    if (m.touched == NULL)
        return tpi_message(TP_ERR_MEMORY, "tp_plan_count_traffic: out of memory");
    for (int rank = 0; rank < plan->ranks; rank++)
        for (int i = 0; i < plan->rank[rank].count; i++) {
            const tp_plan_op *op = &plan->rank[rank].op[i];
            mark_regions(plan, &m, op->read, op->reads);
            mark_regions(plan, &m, op->write, op->writes);
        }
    for (int rank = 0; rank < plan->ranks; rank++) {
        double bytes = marked_bytes(c, &m, (tp_region){.buffer = TP_BUFFER_GATHERED, .rank = rank});
        bytes += marked_bytes(c, &m, (tp_region){.buffer = TP_BUFFER_PARTIAL, .rank = rank});
        bytes += marked_bytes(c, &m, (tp_region){.buffer = TP_BUFFER_GATHERED_SECOND, .rank = rank});
        for (int slot = 0; slot < plan->ranks; slot++)
            bytes += marked_bytes(c, &m, (tp_region){.buffer = TP_BUFFER_INBOX, .rank = rank, .slot = slot});
        c->traffic->workspace[rank] = bytes;
    }
    free(m.touched);
    return TP_OK;
}

tp_status tp_plan_count_traffic(const tp_plan *plan, const tp_plan_costs *costs, tp_plan_traffic *out)
{
    if (out == NULL)
        return tpi_message(TP_ERR_ARGUMENT, "tp_plan_count_traffic: out is NULL");
    memset(out, 0, sizeof *out);
    TPI_TRY(tpi_price_check_costs("tp_plan_count_traffic", plan, costs));
    TPI_TRY(tpi_price_check_plan(plan));
    counting c = {plan, costs, out};
    for (int rank = 0; rank < plan->ranks; rank++)
        for (int i = 0; i < plan->rank[rank].count; i++)
            count_op(&c, rank, &plan->rank[rank].op[i]);
    return count_workspace(&c);
}
