#include "mutants.h"

#include <stdlib.h>
#include <string.h>

#include "data.h"

struct tpt_mutator {
    const tp_plan *plan;
    tpt_mutant *list;
    int count, capacity;
    tp_plan copy; /* the mutant being looked at */
    tp_plan_op *op;
    tp_wait *wait;
    tp_region *region;
    int waits; /* of wait, in use */
    const tpt_mutant *last; /* what copy is; NULL: more of it than one op differs from the plan */
};

static const char *const words[TPT_MUTATIONS] = {
#define MUTATION_WORDS(name, text) [TPT_##name] = text,
    TPT_MUTATION_LIST(MUTATION_WORDS)
#undef MUTATION_WORDS
};

const char *tpt_mutation_words(tpt_mutation mutation)
{
    return words[mutation];
}

static void note(tpt_mutator *m, tpt_mutation mutation, int rank, int op, int which, int value)
{
    if (m->count == m->capacity) {
        m->capacity = m->capacity ? 2 * m->capacity : 1024;
        m->list = realloc(m->list, (size_t)m->capacity * sizeof *m->list);
        if (m->list == NULL)
            abort();
    }
    m->list[m->count++] = (tpt_mutant){mutation, rank, op, which, value};
}

static tp_region *region_of(const tp_plan_op *op, int which)
{
    return which < op->reads ? &op->read[which] : &op->write[which - op->reads];
}

static int pieces_of(const tpt_mutator *m)
{
    return m->plan->ranks * m->plan->chunks;
}

/* How many places so many pieces can be moved to. */
static int places_of(const tpt_mutator *m, int pieces, int step)
{
    return pieces > 0 ? pieces_of(m) - (pieces - 1) * step : 1;
}

static void note_waits(tpt_mutator *m, int rank, int i)
{
    const tp_plan_op *op = &m->plan->rank[rank].op[i];
    int ranks = m->plan->ranks;
    for (int w = 0; w < op->waits; w++) {
        note(m, TPT_WAIT_DELETED, rank, i, w, 0);
        for (int value = 0; value < (ranks > 1 ? 4 : 2);
             value++) /* the op before, the op after, the next rank's same op, its last */
            note(m, TPT_WAIT_REDIRECTED, rank, i, w, value);
    }
}

static void note_regions(tpt_mutator *m, int rank, int i)
{
    const tp_plan_op *op = &m->plan->rank[rank].op[i];
    int regions = op->reads + op->writes;
    for (int which = 0; which < regions; which++) {
        const tp_region *region = region_of(op, which);
        bool moves = places_of(m, region->pieces, region->step) > 1;
        if (region->buffer != TP_BUFFER_GRADIENT && region->buffer != TP_BUFFER_FIRST_GRADIENT &&
            (moves || region->pieces > 1))
            note(m, TPT_REGION_MOVED, rank, i, which, moves);
        for (int buffer = 0; buffer < TP_BUFFERS; buffer++)
            if (buffer != (int)region->buffer)
                note(m, TPT_BUFFER_CHANGED, rank, i, which, buffer);
        for (int other = 0; other < m->plan->ranks; other++) {
            if (other != region->rank)
                note(m, TPT_MEMORY_CHANGED, rank, i, which, other);
            if (region->buffer == TP_BUFFER_INBOX && other != region->slot)
                note(m, TPT_MEMORY_CHANGED, rank, i, which, m->plan->ranks + other);
        }
        note(m, TPT_REGION_DROPPED, rank, i, which, 0);
        if (which + 1 < regions && which + 1 != op->reads)
            note(m, TPT_REGIONS_SWAPPED, rank, i, which, 0);
    }
}

static void note_fields(tpt_mutator *m, int rank, int i)
{
    const tp_plan_op *op = &m->plan->rank[rank].op[i];
    for (int peer = 0; op->peer >= 0 && peer < m->plan->ranks; peer++)
        if (peer != op->peer && peer != rank)
            note(m, TPT_PEER_CHANGED, rank, i, 0, peer);
    int places = places_of(m, op->pieces, op->step);
    for (int by = 1; by < places; by++)
        note(m, TPT_PIECE_MOVED, rank, i, 0, by);
    if (op->pieces > 1)
        note(m, TPT_PIECE_MOVED, rank, i, 0, 0); /* one less */
    if (places > 1 || op->pieces > 1)
        note(m, TPT_WORK_CHANGED, rank, i, 0, places > 1);
    for (int lane = 0; lane < TP_LANES; lane++)
        if (lane != (int)op->lane)
            note(m, TPT_LANE_CHANGED, rank, i, 0, lane);
    note(m, TPT_PART_CHANGED, rank, i, 0, op->part == 0);
    static const tp_op_kind kinds[] = {TP_OP_GEMM, TP_OP_COMPUTE, TP_OP_COPY,   TP_OP_PULL,
                                       TP_OP_SEND, TP_OP_RECV,    TP_OP_REDUCE, TP_OP_FORWARD};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        if (kinds[k] != op->kind)
            note(m, TPT_KIND_CHANGED, rank, i, 0, (int)kinds[k]);
    for (int c = TP_COLLECTIVE_NONE; op->kind == TP_OP_COLLECTIVE && c <= TP_COLLECTIVE_ALL_REDUCE; c++)
        if (c != (int)op->collective)
            note(m, TPT_COLLECTIVE_CHANGED, rank, i, 0, c);
}

static void note_all(tpt_mutator *m)
{
    for (int rank = 0; rank < m->plan->ranks; rank++)
        for (int i = 0; i < m->plan->rank[rank].count; i++) {
            note(m, TPT_OP_DROPPED, rank, i, 0, 0);
            note(m, TPT_OP_DOUBLED, rank, i, 0, 0);
            if (i + 1 < m->plan->rank[rank].count)
                note(m, TPT_OPS_SWAPPED, rank, i, 0, 0);
            note_waits(m, rank, i);
            note_regions(m, rank, i);
            note_fields(m, rank, i);
        }
}

tpt_mutator *tpt_mutator_create(const tp_plan *plan)
{
    tpt_mutator *m = tpt_allocate(sizeof *m);
    size_t ops = 0, waits = 0, regions = 0, most = 0;
    for (int rank = 0; rank < plan->ranks; rank++) {
        ops += (size_t)plan->rank[rank].count + 1;
        for (int i = 0; i < plan->rank[rank].count; i++) {
            const tp_plan_op *op = &plan->rank[rank].op[i];
            waits += (size_t)op->waits;
            regions += (size_t)(op->reads + op->writes);
            most = most > (size_t)op->waits ? most : (size_t)op->waits;
        }
    }
    m->plan = plan;
    m->op = tpt_allocate(ops * sizeof *m->op);
    m->wait = tpt_allocate((waits + most) * sizeof *m->wait);
    m->region = tpt_allocate(regions * sizeof *m->region);
    note_all(m);
    return m;
}

void tpt_mutator_destroy(tpt_mutator *m)
{
    free(m->list);
    free(m->op);
    free(m->wait);
    free(m->region);
    free(m);
}

int tpt_mutator_count(const tpt_mutator *m)
{
    return m->count;
}

const tpt_mutant *tpt_mutator_mutant(const tpt_mutator *m, int index)
{
    return &m->list[index];
}

/* Each rank with room for one more op. */
static void copy_plan(tpt_mutator *m)
{
    tp_plan_op *op = m->op;
    tp_region *region = m->region;
    m->copy = *m->plan;
    m->waits = 0;
    for (int rank = 0; rank < m->plan->ranks; rank++) {
        m->copy.rank[rank].op = op;
        for (int i = 0; i < m->plan->rank[rank].count; i++, op++) {
            *op = m->plan->rank[rank].op[i];
            for (int w = 0; w < op->waits; w++)
                m->wait[m->waits + w] = op->wait[w];
            op->wait = &m->wait[m->waits];
            m->waits += op->waits;
            for (int r = 0; r < op->reads; r++)
                region[r] = op->read[r];
            for (int w = 0; w < op->writes; w++)
                region[op->reads + w] = op->write[w];
            op->read = region;
            op->write = region + op->reads;
            region += op->reads + op->writes;
        }
        op++;
    }
}

/* After a mutation of one op alone. */
static void restore_op(const tpt_mutator *m, int rank, int i)
{
    tp_plan_op *op = &m->copy.rank[rank].op[i];
    const tp_plan_op *original = &m->plan->rank[rank].op[i];
    tp_wait *wait = op->wait;
    tp_region *read = op->read, *write = op->write;
    *op = *original;
    op->wait = wait;
    op->read = read;
    op->write = write;
    for (int w = 0; w < op->waits; w++)
        op->wait[w] = original->wait[w];
    for (int r = 0; r < op->reads; r++)
        op->read[r] = original->read[r];
    for (int w = 0; w < op->writes; w++)
        op->write[w] = original->write[w];
}

static bool is_local(tpt_mutation mutation)
{
    return mutation != TPT_OP_DROPPED && mutation != TPT_OP_DOUBLED && mutation != TPT_OPS_SWAPPED;
}

static void remove_wait(tp_plan_op *op, int w)
{
    for (int later = w + 1; later < op->waits; later++)
        op->wait[later - 1] = op->wait[later];
    op->waits--;
}

/* Ops of `rank` from `from` on have moved by `by`; waits for `gone` (or -1) go. */
static void renumber(tpt_mutator *m, int rank, int from, int by, int gone)
{
    for (int r = 0; r < m->copy.ranks; r++)
        for (int i = 0; i < m->copy.rank[r].count; i++) {
            tp_plan_op *op = &m->copy.rank[r].op[i];
            for (int w = op->waits - 1; w >= 0; w--) {
                if (op->wait[w].rank != rank)
                    continue;
                if (op->wait[w].op == gone)
                    remove_wait(op, w);
                else if (op->wait[w].op >= from)
                    op->wait[w].op += by;
            }
        }
}

static void drop(tpt_mutator *m, int rank, int i)
{
    tp_plan_rank *list = &m->copy.rank[rank];
    memmove(&list->op[i], &list->op[i + 1], (size_t)(list->count - i - 1) * sizeof *list->op);
    list->count--;
    renumber(m, rank, i + 1, -1, i);
}

/* The second one waits for the same; who waited for the op still waits for the first. */
static void twice(tpt_mutator *m, int rank, int i)
{
    tp_plan_rank *list = &m->copy.rank[rank];
    renumber(m, rank, i + 1, 1, -1);
    memmove(&list->op[i + 1], &list->op[i], (size_t)(list->count - i) * sizeof *list->op);
    list->count++;
    tp_plan_op *second = &list->op[i + 1];
    for (int w = 0; w < second->waits; w++)
        m->wait[m->waits + w] = second->wait[w];
    second->wait = &m->wait[m->waits];
}

/* Waits follow the ops they meant. */
static void swap(tpt_mutator *m, int rank, int i)
{
    tp_plan_op *op = m->copy.rank[rank].op, kept = op[i];
    op[i] = op[i + 1];
    op[i + 1] = kept;
    for (int r = 0; r < m->copy.ranks; r++)
        for (int j = 0; j < m->copy.rank[r].count; j++) {
            tp_plan_op *other = &m->copy.rank[r].op[j];
            for (int w = 0; w < other->waits; w++)
                if (other->wait[w].rank == rank && (other->wait[w].op == i || other->wait[w].op == i + 1))
                    other->wait[w].op = 2 * i + 1 - other->wait[w].op;
        }
}

static void redirect(const tpt_mutator *m, tp_wait *wait, int value)
{
    if (value >= 2)
        wait->rank = (wait->rank + 1) % m->plan->ranks;
    if (value == 3)
        wait->op = m->plan->rank[wait->rank].count - 1;
    if (value < 2)
        wait->op += value == 0 ? -1 : 1;
}

/* By so many pieces, the last one followed by the first; 0: the last piece is left out. */
static void move_region(const tpt_mutator *m, int *piece, int *pieces, int step, int by)
{
    if (by == 0)
        (*pieces)--;
    else
        *piece = (*piece + by) % places_of(m, *pieces, step);
}

static void move_op(const tpt_mutator *m, tp_plan_op *op, int by)
{
    for (int which = 0; which < op->reads + op->writes; which++) {
        tp_region *region = region_of(op, which);
        if (region->buffer != TP_BUFFER_GRADIENT && region->buffer != TP_BUFFER_FIRST_GRADIENT &&
            region->piece == op->piece && region->pieces == op->pieces)
            move_region(m, &region->piece, &region->pieces, region->step, by);
    }
    move_region(m, &op->piece, &op->pieces, op->step, by);
}

static void change_peer(tp_plan_op *op, int peer)
{
    for (int which = 0; which < op->reads + op->writes; which++)
        if (region_of(op, which)->rank == op->peer)
            region_of(op, which)->rank = peer;
    op->peer = peer;
}

static void drop_region(tp_plan_op *op, int which)
{
    tp_region *list = which < op->reads ? op->read : op->write;
    int *count = which < op->reads ? &op->reads : &op->writes, at = which < op->reads ? which : which - op->reads;
    for (int later = at + 1; later < *count; later++)
        list[later - 1] = list[later];
    (*count)--;
}

static void swap_regions(tp_region *a, tp_region *b)
{
    tp_region kept = *a;
    *a = *b;
    *b = kept;
}

static void change_memory(const tpt_mutator *m, tp_region *region, int value)
{
    if (value < m->plan->ranks)
        region->rank = value;
    else
        region->slot = value - m->plan->ranks;
}

const tp_plan *tpt_mutator_plan(tpt_mutator *m, int index)
{
    const tpt_mutant *mutant = &m->list[index];
    if (m->last != NULL)
        restore_op(m, m->last->rank, m->last->op);
    else
        copy_plan(m);
    m->last = is_local(mutant->mutation) ? mutant : NULL;
    tp_plan_op *op = &m->copy.rank[mutant->rank].op[mutant->op];
    int which = mutant->which, value = mutant->value;
    tp_region *region = op->reads + op->writes > 0 ? region_of(op, which) : NULL;
    switch (mutant->mutation) {
    case TPT_WAIT_DELETED: remove_wait(op, which); break;
    case TPT_WAIT_REDIRECTED: redirect(m, &op->wait[which], value); break;
    case TPT_OP_DROPPED: drop(m, mutant->rank, mutant->op); break;
    case TPT_OP_DOUBLED: twice(m, mutant->rank, mutant->op); break;
    case TPT_OPS_SWAPPED: swap(m, mutant->rank, mutant->op); break;
    case TPT_PEER_CHANGED: change_peer(op, value); break;
    case TPT_PIECE_MOVED: move_op(m, op, value); break;
    case TPT_WORK_CHANGED: move_region(m, &op->piece, &op->pieces, op->step, value); break;
    case TPT_REGION_MOVED: move_region(m, &region->piece, &region->pieces, region->step, value); break;
    case TPT_BUFFER_CHANGED:
        region->buffer = (tp_buffer)value;
        region->slot = 0;
        break;
    case TPT_MEMORY_CHANGED: change_memory(m, region, value); break;
    case TPT_REGION_DROPPED: drop_region(op, which); break;
    case TPT_REGIONS_SWAPPED: swap_regions(region, region_of(op, which + 1)); break;
    case TPT_LANE_CHANGED: op->lane = (tp_lane)value; break;
    case TPT_PART_CHANGED: op->part = value; break;
    case TPT_KIND_CHANGED: op->kind = (tp_op_kind)value; break;
    case TPT_COLLECTIVE_CHANGED: op->collective = (tp_collective)value; break;
    case TPT_MUTATIONS: break;
    }
    return &m->copy;
}
