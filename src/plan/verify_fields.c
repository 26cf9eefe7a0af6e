/* Whether each op's fields are in range and fit its kind. Everything after this may index by them. */
#include "plan/verify.h"

typedef enum place { OWN = 0, PEER, ANY } place; /* whose memory */

typedef struct shape {
    int reads, writes; /* how many; -1: any number */
    place reads_of, writes_to;
    bool works; /* on pieces, and belongs to an overlap plan */
    bool peer;
} shape;

static const shape shapes[TP_OP_KINDS] = {
    [TP_OP_ENTER] = {.reads = 0, .writes = -1},
    [TP_OP_LEAVE] = {.reads = -1, .writes = -1},
    [TP_OP_GEMM] = {.reads = 1, .writes = 1, .reads_of = ANY, .works = true},
    [TP_OP_COMPUTE] = {.reads = 1, .writes = 1, .works = true},
    [TP_OP_COPY] = {.reads = 1, .writes = 1, .works = true},
    [TP_OP_PULL] = {.reads = 1, .writes = 1, .reads_of = PEER, .works = true, .peer = true},
    [TP_OP_PUSH] = {.reads = 1, .writes = 1, .writes_to = PEER, .works = true, .peer = true},
    [TP_OP_REDUCE] = {.reads = -1, .writes = -1, .reads_of = ANY, .writes_to = ANY, .works = true},
    [TP_OP_SEND] = {.reads = 1, .writes = 0, .works = true, .peer = true},
    [TP_OP_RECV] = {.reads = 0, .writes = 1, .works = true, .peer = true},
    [TP_OP_COLLECTIVE] = {.reads = 1, .writes = 1, .works = true},
};

static bool fault(tpi_verifier *v, int op, const char *what, int got)
{
    return tpi_verify_fault(v, TP_FAULT_FIELD, op, "%s: %s (%d)", tp_op_name(tpi_verify_op(v, op)->kind), what, got);
}

static bool in_range(int piece, int pieces, int step, int total)
{
    return piece >= 0 && pieces >= 0 && (pieces == 0 || (piece < total && step >= 1 && pieces <= total)) &&
           (pieces <= 1 || (int64_t)piece + (int64_t)(pieces - 1) * step < total);
}

static bool is_gradient(tp_buffer buffer)
{
    return buffer == TP_BUFFER_GRADIENT || buffer == TP_BUFFER_FIRST_GRADIENT;
}

static bool is_sliced(const tpi_verifier *v)
{
    return tpi_pattern_is_sliced((tp_pattern)v->plan->pattern);
}

static int pieces_of(const tpi_verifier *v, tp_buffer buffer)
{
    if (buffer == TP_BUFFER_GRADIENT)
        return tpi_gradient_pieces((tp_pattern)v->plan->pattern, v->plan->chunks);
    return buffer == TP_BUFFER_FIRST_GRADIENT ? 1 : v->pieces;
}

static bool check_region(tpi_verifier *v, int op, const tp_region *region, place allowed)
{
    int rank = v->rank[op];
    if ((int)region->buffer < 0 || region->buffer >= TP_BUFFERS)
        return fault(v, op, "no such buffer", (int)region->buffer);
    if (region->rank < 0 || region->rank >= v->plan->ranks)
        return fault(v, op, "a region of a rank that is not there", region->rank);
    if (region->slot < 0 || region->slot >= (region->buffer == TP_BUFFER_INBOX ? v->plan->ranks : 1))
        return fault(v, op, "no such slot", region->slot);
    if (!in_range(region->piece, region->pieces, region->step, pieces_of(v, region->buffer)))
        return fault(v, op, "a region with pieces that are not there", region->piece);
    if (allowed == OWN && region->rank != rank)
        return fault(v, op, "touches a peer's memory", region->rank);
    if (allowed == PEER && region->rank != tpi_verify_op(v, op)->peer)
        return fault(v, op, "touches memory that is not its peer's", region->rank);
    return true;
}

/* Whether a region has just the pieces that the op works on. */
static bool check_pieces(tpi_verifier *v, int op, const tp_region *region)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    if (region->piece != o->piece || region->pieces != o->pieces || (o->pieces > 1 && region->step != o->step))
        return fault(v, op, "a region with other pieces than the op works on", region->piece);
    return true;
}

/* Whether a region has just the pieces of the op that belong to this rank. */
static bool check_owned(tpi_verifier *v, int op, const tp_region *region)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    int next = 0;
    for (int i = 0; i < o->pieces; i++) {
        int piece = o->piece + i * o->step;
        if (piece / v->plan->chunks == v->rank[op] && (next == region->pieces || tpi_piece_at(region, next++) != piece))
            return fault(v, op, "a region without an owned piece of the op", piece);
    }
    return next == region->pieces || fault(v, op, "a region with pieces that others own", region->piece);
}

static bool check_collective(tpi_verifier *v, int op)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    switch (o->collective) {
    case TP_COLLECTIVE_ALL_GATHER: return check_owned(v, op, o->read) && check_pieces(v, op, o->write);
    case TP_COLLECTIVE_REDUCE_SCATTER: return check_pieces(v, op, o->read) && check_owned(v, op, o->write);
    case TP_COLLECTIVE_ALL_REDUCE: return check_pieces(v, op, o->read) && check_pieces(v, op, o->write);
    case TP_COLLECTIVE_NONE: break;
    }
    return fault(v, op, "no such collective", (int)o->collective);
}

static bool has_slice(const tp_plan_op *o, int slice, int chunks)
{
    for (int i = 0; i < o->pieces; i++)
        if ((o->piece + i * o->step) % chunks == slice)
            return true;
    return false;
}

/* Whether a gradient's region has just the slices that the op works on. */
static bool check_slices(tpi_verifier *v, int op, const tp_region *region)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    for (int slice = 0, next = 0; slice < v->plan->chunks; slice++) {
        bool there = next < region->pieces && tpi_piece_at(region, next) == slice;
        if (has_slice(o, slice, v->plan->chunks) != there)
            return fault(v, op, "a weight gradient with other slices than the op works on", slice);
        next += there;
    }
    return true;
}

/* Sums over slices: those of whole owners, or one that goes on where the one before left it. */
static bool check_sum(tpi_verifier *v, int op)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    bool goes_on = o->piece % v->plan->chunks != 0;
    if (o->reads != 1 + goes_on || (o->pieces > 1 && o->step != 1))
        return fault(v, op, "a sum over slices must read them, and the sum before if there is one", o->reads);
    if (!check_pieces(v, op, &o->read[0]) || !check_pieces(v, op, &o->write[0]))
        return false;
    const tp_region *before = &o->read[o->reads - 1];
    if (goes_on && (before->buffer != o->write[0].buffer || before->rank != v->rank[op] ||
                    before->piece != o->piece - 1 || before->pieces != 1))
        return fault(v, op, "a sum over slices must go on from the slice before", before->piece);
    return true;
}

/* GRADIENT, dy, x -> GRADIENT; FIRST_GRADIENT or slices of GRADIENT, dy -> the same. */
static bool check_weight_gradient(tpi_verifier *v, int op)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    int operands = o->write[0].buffer == TP_BUFFER_GRADIENT && !is_sliced(v) ? 2 : 1;
    if (o->reads != 1 + operands || o->read[0].buffer != o->write[0].buffer || o->read[0].rank != v->rank[op])
        return fault(v, op, "a weight gradient must read itself and its operands", o->reads);
    if (is_sliced(v)) {
        if (!check_slices(v, op, &o->read[0]) || !check_slices(v, op, &o->write[0]))
            return false;
    } else if (o->read[0].pieces != 1 || o->write[0].pieces != 1)
        return fault(v, op, "a weight gradient is one piece", o->write[0].pieces);
    for (int i = 1; i < o->reads; i++)
        if (is_gradient(o->read[i].buffer) || !check_pieces(v, op, &o->read[i]))
            return is_gradient(o->read[i].buffer) ? fault(v, op, "a gradient as operand", i) : false;
    return true;
}

static bool is_weight_gradient(const tp_plan_op *o)
{
    return o->kind == TP_OP_GEMM && o->writes == 1 && is_gradient(o->write[0].buffer);
}

static bool is_sum(const tpi_verifier *v, const tp_plan_op *o)
{
    return o->kind == TP_OP_GEMM && o->writes == 1 && is_sliced(v) && !is_gradient(o->write[0].buffer);
}

/* Buffers that only some kinds may touch. */
static bool check_buffers(tpi_verifier *v, int op)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    bool callers = o->kind == TP_OP_ENTER || o->kind == TP_OP_LEAVE;
    for (int i = 0; i < o->reads; i++)
        if (!callers && !is_weight_gradient(o) && is_gradient(o->read[i].buffer))
            return fault(v, op, "reads the weight gradient", i);
    for (int i = 0; i < o->writes; i++) {
        tp_buffer buffer = o->write[i].buffer;
        bool input = buffer == TP_BUFFER_INPUT || buffer == TP_BUFFER_SECOND || is_gradient(buffer);
        if (!callers && !is_weight_gradient(o) && input)
            return fault(v, op, "writes what the caller gave", i);
        if (o->kind == TP_OP_ENTER && !input && buffer != TP_BUFFER_OUTPUT)
            return fault(v, op, "hands over what no caller has", i);
    }
    return true;
}

static bool check_works(tpi_verifier *v, int op)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    if (!in_range(o->piece, o->pieces, o->step, v->pieces))
        return fault(v, op, "works on pieces that are not there", o->piece);
    if (o->pieces == 0)
        return fault(v, op, "works on nothing", 0);
    if (o->kind == TP_OP_COLLECTIVE)
        return check_collective(v, op);
    if (is_weight_gradient(o))
        return check_weight_gradient(v, op);
    if (is_sum(v, o))
        return check_sum(v, op);
    for (int i = 0; i < o->reads; i++)
        if (!check_pieces(v, op, &o->read[i]))
            return false;
    for (int i = 0; i < o->writes; i++)
        if (!check_pieces(v, op, &o->write[i]))
            return false;
    return true;
}

static bool check_regions(tpi_verifier *v, int op)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    const shape *s = &shapes[o->kind];
    if (o->reads < 0 || (s->reads >= 0 && o->reads != s->reads && !is_weight_gradient(o) && !is_sum(v, o)) ||
        (o->reads > 0 && o->read == NULL))
        return fault(v, op, "wrong number of reads", o->reads);
    if (o->writes < 0 || (s->writes >= 0 && o->writes != s->writes) || (o->writes > 0 && o->write == NULL))
        return fault(v, op, "wrong number of writes", o->writes);
    for (int i = 0; i < o->reads; i++)
        if (!check_region(v, op, &o->read[i], s->reads_of))
            return false;
    for (int i = 0; i < o->writes; i++)
        if (!check_region(v, op, &o->write[i], s->writes_to))
            return false;
    return check_buffers(v, op) && (!s->works || check_works(v, op));
}

static bool check_waits(tpi_verifier *v, int op)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    int rank = v->rank[op], own = op - v->first[rank];
    if (o->waits < 0 || (o->waits > 0 && o->wait == NULL))
        return fault(v, op, "wrong number of waits", o->waits);
    for (int i = 0; i < o->waits; i++) {
        const tp_wait *wait = &o->wait[i];
        if (wait->rank < 0 || wait->rank >= v->plan->ranks)
            return fault(v, op, "waits for a rank that is not there", wait->rank);
        if (wait->op < 0 || wait->op >= v->plan->rank[wait->rank].count)
            return fault(v, op, "waits for an op that is not there", wait->op);
        if (wait->rank == rank && wait->op >= own)
            return fault(v, op, "waits for an op of its rank that is not issued before it", wait->op);
    }
    return true;
}

static bool check_op(tpi_verifier *v, int op)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    if ((int)o->kind < 0 || o->kind >= TP_OP_KINDS)
        return fault(v, op, "no such kind", (int)o->kind);
    const shape *s = &shapes[o->kind];
    bool border = o->kind == TP_OP_ENTER || o->kind == TP_OP_LEAVE;
    if (!s->works && !border)
        return fault(v, op, "has no place in a plan of a collective and its GEMMs", (int)o->kind);
    if ((int)o->lane < 0 || o->lane >= TP_LANES)
        return fault(v, op, "no such lane", (int)o->lane);
    if (o->part < 0 || o->part >= TP_PLAN_PARTS ||
        (o->part > 0 && o->kind != TP_OP_GEMM && o->kind != TP_OP_COMPUTE && o->kind != TP_OP_COLLECTIVE))
        return fault(v, op, "no such part", o->part);
    if (s->peer ? o->peer < 0 || o->peer >= v->plan->ranks || o->peer == v->rank[op] : o->peer != -1)
        return fault(v, op, "wrong peer", o->peer);
    if (o->kind != TP_OP_COLLECTIVE && o->collective != TP_COLLECTIVE_NONE)
        return fault(v, op, "has a collective", (int)o->collective);
    if (border && o->pieces != 0)
        return fault(v, op, "works on pieces", o->pieces);
    return check_regions(v, op) && check_waits(v, op);
}

/* One ENTER and one LEAVE a rank. */
static bool find_borders(tpi_verifier *v)
{
    for (int rank = 0; rank < v->plan->ranks; rank++)
        v->enter[rank] = v->leave[rank] = -1;
    for (int op = 0; op < v->ops; op++) {
        tp_op_kind kind = tpi_verify_op(v, op)->kind;
        if (kind != TP_OP_ENTER && kind != TP_OP_LEAVE)
            continue;
        int *found = kind == TP_OP_ENTER ? &v->enter[v->rank[op]] : &v->leave[v->rank[op]];
        if (*found >= 0)
            return fault(v, op, "a second one on this rank", op - v->first[v->rank[op]]);
        *found = op;
    }
    for (int rank = 0; rank < v->plan->ranks; rank++)
        if (v->enter[rank] < 0 || v->leave[rank] < 0) {
            v->proof->rank = rank;
            return tpi_verify_fault(v, TP_FAULT_FIELD, -1, "rank %d has no %s", rank,
                                    v->enter[rank] < 0 ? "enter" : "leave");
        }
    return true;
}

bool tpi_verify_fields(tpi_verifier *v)
{
    for (int op = 0; op < v->ops; op++)
        if (!check_op(v, op))
            return false;
    return find_borders(v);
}
