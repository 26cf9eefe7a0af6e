/* One walk through the nodes in an order in which they can happen. For each piece of memory: are two accesses, one of
 * them a write, ordered in every run? and is what is written there what the pattern promises? It is enough to compare
 * each access with the last write and the reads since: what came before is before those. */
#include "plan/text.h"
#include "plan/verify.h"

static const char *where(char text[64], const tp_region *region, int i)
{
    tpi_writer writer = {text, 64, 0};
    tpi_put(&writer, "%s", tp_buffer_name(region->buffer));
    if (region->buffer == TP_BUFFER_INBOX)
        tpi_put(&writer, "#%d", region->slot);
    tpi_put(&writer, " piece %d of rank %d", tpi_piece_at(region, i), region->rank);
    tpi_put_end(&writer);
    return text;
}

static bool fault(tpi_verifier *v, tp_fault kind, int op, const char *what, const tp_region *region, int i)
{
    char text[64];
    return tpi_verify_fault(v, kind, op, "%s %s %s", tp_op_name(tpi_verify_op(v, op)->kind), what,
                            where(text, region, i));
}

/* Two accesses that no run may turn round. */
static bool race(tpi_verifier *v, int op, const char *what, const tp_region *region, int i, int other)
{
    char text[64];
    return tpi_verify_fault(v, TP_FAULT_RACE, op, "%s %s %s, but nothing orders it after rank %d's op %d (%s)",
                            tp_op_name(tpi_verify_op(v, op)->kind), what, where(text, region, i), v->rank[other],
                            other - v->first[v->rank[other]], tp_op_name(tpi_verify_op(v, other)->kind));
}

/* Peers' memory may be touched between its owner's ENTER and LEAVE only. */
static bool check_stay(tpi_verifier *v, int op, const tp_region *region)
{
    if (region->rank == v->rank[op])
        return true;
    if (!tpi_verify_before(v, v->enter[region->rank], op))
        return fault(v, TP_FAULT_RACE, op, "does not wait for the enter of", region, 0);
    if (!tpi_verify_before(v, op, v->leave[region->rank]))
        return fault(v, TP_FAULT_RACE, op, "is not waited for by the leave of", region, 0);
    return true;
}

static bool read_piece(tpi_verifier *v, int op, const tp_region *region, int i, uint64_t *content)
{
    tpi_cell *cell = tpi_verify_cell(v, region, i);
    if (cell->content == 0)
        return fault(v, TP_FAULT_RACE, op,
                     cell->taken ? "reads, after leave," : "reads, before anything was written there,", region, i);
    if (cell->writer != op && !tpi_verify_before(v, cell->writer, op))
        return race(v, op, "reads", region, i, cell->writer);
    v->reader[v->readers] = (tpi_reader){op, cell->reader};
    cell->reader = v->readers++;
    *content = cell->content;
    return true;
}

/* Whether `op` may write a piece now. */
static bool claim_piece(tpi_verifier *v, int op, const tp_region *region, int i)
{
    tpi_cell *cell = tpi_verify_cell(v, region, i);
    if (cell->taken)
        return fault(v, TP_FAULT_RACE, op, "writes, after leave,", region, i);
    if (cell->writer >= 0 && cell->writer != op && !tpi_verify_before(v, cell->writer, op))
        return race(v, op, "writes", region, i, cell->writer);
    for (int r = cell->reader; r >= 0; r = v->reader[r].next)
        if (v->reader[r].op != op && !tpi_verify_before(v, v->reader[r].op, op))
            return race(v, op, "overwrites", region, i, v->reader[r].op);
    return true;
}

static void put_content(tpi_cell *cell, int op, uint64_t content)
{
    cell->content = content;
    cell->writer = op;
    cell->reader = -1;
    if (cell->first < 0 && content != 0)
        cell->first = op;
}

static bool write_piece(tpi_verifier *v, int op, const tp_region *region, int i, uint64_t content)
{
    tpi_cell *cell = tpi_verify_cell(v, region, i);
    if (!claim_piece(v, op, region, i))
        return false;
    uint64_t promised = tpi_promise(&v->promises, region->buffer, region->rank, region->slot, tpi_piece_at(region, i));
    if (promised == 0)
        return fault(v, TP_FAULT_RESULT, op, "writes what the pattern does not have:", region, i);
    if (promised != content)
        return fault(v, TP_FAULT_RESULT, op, "writes something else than the pattern promises into", region, i);
    if (region->buffer == TP_BUFFER_OUTPUT && cell->writes > 0)
        return fault(v, TP_FAULT_RESULT, op, "produces a second time", region, i);
    cell->writes++;
    put_content(cell, op, content);
    return true;
}

/* v->value of each piece into a region. */
static bool write_region(tpi_verifier *v, int op, const tp_region *region)
{
    if (!check_stay(v, op, region))
        return false;
    for (int i = 0; i < region->pieces; i++)
        if (!write_piece(v, op, region, i, v->value[tpi_piece_at(region, i)]))
            return false;
    return true;
}

/* A region into v->value of each piece. */
static bool read_region(tpi_verifier *v, int op, const tp_region *region)
{
    if (!check_stay(v, op, region))
        return false;
    for (int i = 0; i < region->pieces; i++)
        if (!read_piece(v, op, region, i, &v->value[tpi_piece_at(region, i)]))
            return false;
    return true;
}

static bool walk_enter(tpi_verifier *v, int op)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    for (int w = 0; w < o->writes; w++)
        for (int i = 0; i < o->write[w].pieces; i++) {
            const tp_region *region = &o->write[w];
            uint64_t given = tpi_promise(&v->promises, region->buffer, region->rank, 0, tpi_piece_at(region, i));
            if (given == 0)
                return fault(v, TP_FAULT_RESULT, op, "hands over what the pattern does not have:", region, i);
            if (!claim_piece(v, op, region, i))
                return false;
            put_content(tpi_verify_cell(v, region, i), op, region->buffer == TP_BUFFER_OUTPUT ? 0 : given);
        }
    return true;
}

static bool walk_leave(tpi_verifier *v, int op)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    for (int r = 0; r < o->reads; r++)
        if (!read_region(v, op, &o->read[r]))
            return false;
    for (int w = 0; w < o->writes; w++)
        for (int i = 0; i < o->write[w].pieces; i++) {
            tpi_cell *cell = tpi_verify_cell(v, &o->write[w], i);
            if (!cell->taken && !claim_piece(v, op, &o->write[w], i))
                return false;
            cell->content = 0; /* writer and readers stay: who used the piece while it was alive */
            cell->taken = true;
        }
    return true;
}

/* The chain over pieces, in global order. */
static bool walk_weight_gradient(tpi_verifier *v, int op)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    int rank = v->rank[op];
    bool of_first = o->write[0].buffer == TP_BUFFER_FIRST_GRADIENT; /* one operand only */
    uint64_t *promised = &v->gradient[tpi_verify_gradient(v, rank, of_first, 0)], content, first, second = 0;
    int *accumulated = &v->accumulated[tpi_verify_gradient(v, rank, of_first, 0)];
    if (!read_piece(v, op, &o->read[0], 0, &content) || !check_stay(v, op, &o->read[1]) ||
        (!of_first && !check_stay(v, op, &o->read[2])))
        return false;
    for (int i = 0; i < o->pieces; i++) {
        int piece = o->piece + i * o->step;
        if (piece != *accumulated)
            return fault(v, TP_FAULT_RESULT, op, "accumulates out of order, or a second time,", &o->read[1], i);
        if (!read_piece(v, op, &o->read[1], i, &first) || (!of_first && !read_piece(v, op, &o->read[2], i, &second)))
            return false;
        content = tpi_symbol_accumulate(rank, o->part, content, tpi_symbol_mix(first, second));
        uint64_t operands = tpi_gradient_operands(&v->promises, of_first, rank, piece);
        *promised = tpi_symbol_accumulate(rank, tpi_gradient_part(v->promises.pattern, of_first), *promised, operands);
        if (content != *promised)
            return fault(v, TP_FAULT_RESULT, op, "accumulates something else than the pattern promises from",
                         &o->read[1], i);
        (*accumulated)++;
    }
    if (!claim_piece(v, op, o->write, 0))
        return false;
    put_content(tpi_verify_cell(v, o->write, 0), op, content);
    return true;
}

/* Each slice's chain over owners, in order. */
static bool walk_sliced_gradient(tpi_verifier *v, int op)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    int rank = v->rank[op], chunks = v->plan->chunks;
    uint64_t content[TP_PLAN_MAX_CHUNKS], operand;
    for (int i = 0; i < o->read[0].pieces; i++)
        if (!read_piece(v, op, &o->read[0], i, &content[tpi_piece_at(&o->read[0], i)]))
            return false;
    if (!check_stay(v, op, &o->read[1]))
        return false;
    for (int i = 0; i < o->pieces; i++) {
        int piece = o->piece + i * o->step, slice = piece % chunks, at = tpi_verify_gradient(v, rank, false, slice);
        if (piece / chunks != v->accumulated[at])
            return fault(v, TP_FAULT_RESULT, op, "accumulates out of order, or a second time,", &o->read[1], i);
        if (!read_piece(v, op, &o->read[1], i, &operand))
            return false;
        content[slice] = tpi_symbol_accumulate(rank, o->part, content[slice], tpi_symbol_mix(operand, 0));
        uint64_t operands = tpi_gradient_operands(&v->promises, false, rank, piece);
        v->gradient[at] =
            tpi_symbol_accumulate(rank, tpi_gradient_part(v->promises.pattern, false), v->gradient[at], operands);
        if (content[slice] != v->gradient[at])
            return fault(v, TP_FAULT_RESULT, op, "accumulates something else than the pattern promises from",
                         &o->read[1], i);
        v->accumulated[at]++;
    }
    for (int i = 0; i < o->write[0].pieces; i++) {
        if (!claim_piece(v, op, o->write, i))
            return false;
        put_content(tpi_verify_cell(v, o->write, i), op, content[tpi_piece_at(&o->write[0], i)]);
    }
    return true;
}

/* The sum over an owner's slices goes on where the piece before left it. */
static bool walk_slices(tpi_verifier *v, int op)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    uint64_t sum = 0;
    if (!read_region(v, op, o->read) || (o->reads > 1 && !read_piece(v, op, &o->read[1], 0, &sum)))
        return false;
    for (int i = 0; i < o->pieces; i++) {
        uint64_t *value = &v->value[o->piece + i];
        if ((o->piece + i) % v->plan->chunks == 0)
            sum = 0;
        *value = sum = tpi_symbol_accumulate(v->rank[op], o->part, sum, *value);
    }
    return write_region(v, op, o->write);
}

static bool walk_gemm(tpi_verifier *v, int op)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    bool sliced = tpi_pattern_is_sliced(v->promises.pattern);
    if (o->write[0].buffer == TP_BUFFER_GRADIENT || o->write[0].buffer == TP_BUFFER_FIRST_GRADIENT)
        return sliced ? walk_sliced_gradient(v, op) : walk_weight_gradient(v, op);
    if (sliced)
        return walk_slices(v, op);
    if (!read_region(v, op, o->read))
        return false;
    for (int i = 0; i < o->pieces; i++) {
        uint64_t *value = &v->value[tpi_piece_at(o->read, i)];
        *value = tpi_symbol_gemm(v->rank[op], o->part, *value);
    }
    return write_region(v, op, o->write);
}

static bool walk_compute(tpi_verifier *v, int op)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    if (!read_region(v, op, o->read))
        return false;
    uint64_t all = 0;
    for (int i = 0; i < o->pieces; i++)
        all = tpi_symbol_mix(all, v->value[tpi_piece_at(o->read, i)]);
    for (int i = 0; i < o->pieces; i++) {
        int piece = tpi_piece_at(o->read, i);
        v->value[piece] = tpi_core_mixes(v->promises.pattern)
                              ? tpi_symbol_core(v->rank[op], o->part, all, piece)
                              : tpi_symbol_compute(v->rank[op], o->part, v->value[piece]);
    }
    return write_region(v, op, o->write);
}

/* Whose partial sums a REDUCE reads. */
static int origin(const tp_region *region)
{
    return region->buffer == TP_BUFFER_INBOX ? region->slot : region->rank;
}

static bool walk_reduce(tpi_verifier *v, int op)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    if (o->reads != v->plan->ranks)
        return tpi_verify_fault(v, TP_FAULT_RESULT, op, "reduce of piece %d adds %d partial sums, there are %d ranks",
                                o->piece, o->reads, v->plan->ranks);
    for (int r = 0; r < o->reads; r++)
        if (origin(&o->read[r]) != r)
            return tpi_verify_fault(v, TP_FAULT_RESULT, op,
                                    "reduce of piece %d: partial sum %d is rank %d's, the order of ranks is the tree's",
                                    o->piece, r, origin(&o->read[r]));
    for (int r = 0; r < o->reads; r++)
        if (!check_stay(v, op, &o->read[r]))
            return false;
    for (int i = 0; i < o->pieces; i++) {
        uint64_t sum = 0, term = 0;
        for (int r = 0; r < o->reads; r++) {
            if (!read_piece(v, op, &o->read[r], i, &term))
                return false;
            sum = tpi_symbol_mix(sum, term);
        }
        v->value[tpi_piece_at(o->read, i)] = sum;
    }
    for (int w = 0; w < o->writes; w++)
        if (!write_region(v, op, &o->write[w]))
            return false;
    return true;
}

/* Every rank's part into v->value, then v->value to every rank. */
static bool walk_gather(tpi_verifier *v, int first)
{
    for (int op = first; op >= 0; op = v->meets[op])
        if (!read_region(v, op, tpi_verify_op(v, op)->read))
            return false;
    for (int op = first; op >= 0; op = v->meets[op])
        if (!write_region(v, op, tpi_verify_op(v, op)->write))
            return false;
    return true;
}

static bool walk_reduction(tpi_verifier *v, int first)
{
    const tp_plan_op *o = tpi_verify_op(v, first);
    for (int i = 0; i < o->pieces; i++) {
        uint64_t sum = 0, term = 0;
        for (int op = first; op >= 0; op = v->meets[op]) {
            if (!read_piece(v, op, tpi_verify_op(v, op)->read, i, &term))
                return false;
            sum = tpi_symbol_mix(sum, term);
        }
        v->value[o->piece + i * o->step] = sum;
    }
    for (int op = first; op >= 0; op = v->meets[op])
        if (!write_region(v, op, tpi_verify_op(v, op)->write))
            return false;
    return true;
}

static bool walk_node(tpi_verifier *v, int op)
{
    const tp_plan_op *o = tpi_verify_op(v, op);
    switch (o->kind) {
    case TP_OP_ENTER: return walk_enter(v, op);
    case TP_OP_LEAVE: return walk_leave(v, op);
    case TP_OP_GEMM: return walk_gemm(v, op);
    case TP_OP_COMPUTE: return walk_compute(v, op);
    case TP_OP_REDUCE: return walk_reduce(v, op);
    case TP_OP_COLLECTIVE:
        return o->collective == TP_COLLECTIVE_ALL_GATHER ? walk_gather(v, op) : walk_reduction(v, op);
    case TP_OP_SEND:
        return read_region(v, op, o->read) && write_region(v, v->meets[op], tpi_verify_op(v, v->meets[op])->write);
    default: return read_region(v, op, o->read) && write_region(v, op, o->write); /* COPY, PULL, PUSH */
    }
}

static bool check_gradient(tpi_verifier *v, int rank, bool first, int piece)
{
    int wanted = tpi_pattern_is_sliced(v->promises.pattern) ? v->plan->ranks : v->pieces;
    int got = v->accumulated[tpi_verify_gradient(v, rank, first, piece)];
    if (tpi_gradient_part(v->promises.pattern, first) < 0 || got == wanted)
        return true;
    return tpi_verify_fault(v, TP_FAULT_RESULT, -1, "the %sgradient of rank %d has %d of %d pieces",
                            first ? "first " : "", rank, got, wanted);
}

/* Whether everything that the pattern promises was made. */
static bool check_results(tpi_verifier *v)
{
    tp_region region = {.buffer = TP_BUFFER_OUTPUT, .pieces = 1, .step = 1};
    for (region.rank = 0; region.rank < v->plan->ranks; region.rank++) {
        v->proof->rank = region.rank;
        for (region.piece = 0; region.piece < v->pieces; region.piece++)
            if (tpi_promise(&v->promises, TP_BUFFER_OUTPUT, region.rank, 0, region.piece) != 0 &&
                tpi_verify_cell(v, &region, 0)->writes == 0)
                return tpi_verify_fault(v, TP_FAULT_RESULT, -1, "output piece %d of rank %d is never produced",
                                        region.piece, region.rank);
        if (!check_gradient(v, region.rank, true, 0))
            return false;
        for (int piece = 0; piece < tpi_gradient_pieces(v->promises.pattern, v->plan->chunks); piece++)
            if (!check_gradient(v, region.rank, false, piece))
                return false;
    }
    v->proof->rank = -1;
    return true;
}

bool tpi_verify_contents(tpi_verifier *v)
{
    for (int i = 0; i < v->nodes; i++)
        if (!walk_node(v, v->head[v->order[i]]))
            return false;
    return check_results(v);
}
