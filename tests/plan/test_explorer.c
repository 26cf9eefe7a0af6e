/* Verify against brute force. The explorer goes through every state that any run of a plan can reach, by the rules of a
 * machine alone: an op may begin when the one before it on its lane and its waits are finished (and, where compute is
 * inline, when no compute op listed before it is unfinished); SEND and RECV, and the members of a collective, end
 * together. A state is how far each lane is: beginning an op never keeps another from beginning, so all that could be
 * running together in a state is looked at there. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/overlap.h>

#include "support/data.h"
#include "support/mutants.h"

#define RANKS 3
#define LANES (RANKS * TP_LANES)
#define MAX_OPS 512
#define PLANES (TP_BUFFERS - 1 + RANKS) /* of cells: buffers, and INBOX slots after the first */

/* One piece that an op touches. */
typedef struct touch {
    int cell;
    bool writes, remote;
    int owner; /* whose memory */
} touch;

typedef struct explorer {
    const tp_plan *plan;
    int ops, lanes;
    const tp_plan_op *op[MAX_OPS];
    int rank[MAX_OPS], place[MAX_OPS], number[MAX_OPS]; /* number: of this message between its two ranks */
    int blocker[MAX_OPS];                               /* the compute op listed last before it, or -1 */
    int waits[MAX_OPS + 1];                             /* beginnings in wait */
    int *wait;
    int accesses[MAX_OPS + 1]; /* beginnings in access */
    touch *access;
    int *writers; /* beginnings in writer, of each cell */
    int *writer;
    int lane[LANES][MAX_OPS], length[LANES];
    int enter[RANKS], leave[RANKS];
    bool conflict[MAX_OPS][MAX_OPS];
    uint64_t *seen; /* set of states */
    size_t room, states;
    uint64_t *todo;
    size_t waiting;
    bool inline_compute, stuck, race;
} explorer;

/* A state: 7 bits a lane. */
static int at(uint64_t state, int lane)
{
    return (int)(state >> (7 * lane)) & 127;
}

static int lane_of(const explorer *e, int op)
{
    return e->rank[op] * TP_LANES + (int)e->op[op]->lane;
}

static bool is_finished(const explorer *e, uint64_t state, int op)
{
    return at(state, lane_of(e, op)) > e->place[op];
}

static int pieces_of(const explorer *e)
{
    return e->plan->ranks * e->plan->chunks;
}

static int cells_of(const explorer *e)
{
    return e->plan->ranks * PLANES * pieces_of(e);
}

static int cell_of(const explorer *e, const tp_region *region, int i)
{
    int plane =
        region->buffer == TP_BUFFER_INBOX && region->slot > 0 ? TP_BUFFERS - 1 + region->slot : (int)region->buffer;
    return (region->rank * PLANES + plane) * pieces_of(e) + region->piece + i * region->step;
}

static int note_accesses(explorer *e, int op, int count)
{
    const tp_plan_op *o = e->op[op];
    for (int which = 0; which < o->reads + o->writes; which++) {
        const tp_region *region = which < o->reads ? &o->read[which] : &o->write[which - o->reads];
        for (int i = 0; i < region->pieces; i++)
            e->access[count++] =
                (touch){cell_of(e, region, i), which >= o->reads, region->rank != e->rank[op], region->rank};
    }
    return count;
}

static bool conflicts(const explorer *e, int a, int b)
{
    for (int i = e->accesses[a]; i < e->accesses[a + 1]; i++)
        for (int j = e->accesses[b]; j < e->accesses[b + 1]; j++)
            if (e->access[i].cell == e->access[j].cell && (e->access[i].writes || e->access[j].writes))
                return true;
    return false;
}

static void load_ops(explorer *e)
{
    int first[RANKS], messages[2][RANKS][RANKS] = {{{0}}};
    e->ops = 0;
    for (int rank = 0; rank < e->plan->ranks; rank++) {
        first[rank] = e->ops;
        for (int i = 0, blocker = -1; i < e->plan->rank[rank].count; i++, e->ops++) {
            const tp_plan_op *o = e->op[e->ops] = &e->plan->rank[rank].op[i];
            int lane = rank * TP_LANES + (int)o->lane;
            e->rank[e->ops] = rank;
            e->place[e->ops] = e->length[lane];
            e->lane[lane][e->length[lane]++] = e->ops;
            e->blocker[e->ops] = blocker;
            if (o->lane == TP_LANE_COMPUTE)
                blocker = e->ops;
            if (o->kind == TP_OP_ENTER)
                e->enter[rank] = e->ops;
            if (o->kind == TP_OP_LEAVE)
                e->leave[rank] = e->ops;
            if (o->kind == TP_OP_SEND || o->kind == TP_OP_RECV)
                e->number[e->ops] = messages[o->kind == TP_OP_SEND][rank][o->peer]++;
        }
    }
    int waits = 0, accesses = 0;
    for (int op = 0; op < e->ops; op++) {
        e->waits[op] = waits;
        for (int w = 0; w < e->op[op]->waits; w++)
            e->wait[waits++] = first[e->op[op]->wait[w].rank] + e->op[op]->wait[w].op;
        e->accesses[op] = accesses;
        accesses = note_accesses(e, op, accesses);
        e->waits[op + 1] = waits;
        e->accesses[op + 1] = accesses;
    }
}

/* For each cell, the ops that write it. */
static void load_writers(explorer *e, int accesses)
{
    int count = 0;
    e->writers = tpt_allocate(((size_t)cells_of(e) + 1) * sizeof *e->writers);
    e->writer = tpt_allocate(((size_t)accesses + 1) * sizeof *e->writer);
    for (int i = 0; i < accesses; i++)
        e->writers[e->access[i].cell] += e->access[i].writes;
    for (int cell = 0; cell <= cells_of(e); cell++)
        count = e->writers[cell] += count;
    for (int op = 0; op < e->ops; op++)
        for (int i = e->accesses[op]; i < e->accesses[op + 1]; i++)
            if (e->access[i].writes)
                e->writer[--e->writers[e->access[i].cell]] = op;
}

/* False if the plan does not fit the explorer. */
static bool load(explorer *e, const tp_plan *plan)
{
    size_t waits = 0, accesses = 0, ops = 0;
    e->plan = plan;
    e->lanes = plan->ranks * TP_LANES;
    memset(e->length, 0, sizeof e->length);
    for (int rank = 0; rank < plan->ranks; rank++)
        for (int i = 0; i < plan->rank[rank].count; i++, ops++) {
            const tp_plan_op *o = &plan->rank[rank].op[i];
            waits += (size_t)o->waits;
            for (int r = 0; r < o->reads; r++)
                accesses += (size_t)o->read[r].pieces;
            for (int w = 0; w < o->writes; w++)
                accesses += (size_t)o->write[w].pieces;
        }
    if (ops > MAX_OPS)
        return false;
    e->wait = tpt_allocate((waits + 1) * sizeof *e->wait);
    e->access = tpt_allocate((accesses + 1) * sizeof *e->access);
    load_ops(e);
    load_writers(e, (int)accesses);
    for (int lane = 0; lane < e->lanes; lane++)
        if (e->length[lane] > 126)
            return false;
    for (int a = 0; a < e->ops; a++)
        for (int b = 0; b < a; b++)
            e->conflict[a][b] = e->conflict[b][a] = conflicts(e, a, b);
    return true;
}

static void unload(explorer *e)
{
    free(e->wait);
    free(e->access);
    free(e->writers);
    free(e->writer);
    e->wait = e->writers = e->writer = NULL;
    e->access = NULL;
}

/* The op that a lane may have begun; -1: none. */
static int begun(const explorer *e, uint64_t state, int lane)
{
    if (at(state, lane) == e->length[lane])
        return -1;
    int op = e->lane[lane][at(state, lane)];
    for (int w = e->waits[op]; w < e->waits[op + 1]; w++)
        if (!is_finished(e, state, e->wait[w]))
            return -1;
    return e->inline_compute && e->blocker[op] >= 0 && !is_finished(e, state, e->blocker[op]) ? -1 : op;
}

/* The message of `rank` to or from `peer` that is posted; which of two comes first would be chance. */
static int posted(explorer *e, const int *running, int rank, tp_op_kind kind, int peer)
{
    int found = -1;
    for (int lane = rank * TP_LANES; lane < (rank + 1) * TP_LANES; lane++) {
        int op = running[lane];
        if (op < 0 || e->op[op]->kind != kind || e->op[op]->peer != peer)
            continue;
        if (found >= 0)
            e->race = true;
        if (found < 0 || e->number[op] < e->number[found])
            found = op;
    }
    return found;
}

/* Whether the data of a lane's op can move: alone, or because those that it meets are there. `with`: the ops that end
 * together. */
static int moving(explorer *e, const int *running, int lane, int with[RANKS])
{
    int op = running[lane], count = 0;
    if (op < 0)
        return 0;
    const tp_plan_op *o = e->op[op];
    with[count++] = op;
    if (o->kind == TP_OP_SEND || o->kind == TP_OP_RECV) {
        int rank = e->rank[op],
            other = posted(e, running, o->peer, o->kind == TP_OP_SEND ? TP_OP_RECV : TP_OP_SEND, rank);
        if (other < 0 || posted(e, running, rank, o->kind, o->peer) != op)
            return 0;
        if (e->number[other] != e->number[op])
            e->race = true;
        with[count++] = other;
    } else if (o->kind == TP_OP_COLLECTIVE) {
        count = 0;
        for (int rank = 0; rank < e->plan->ranks; rank++) {
            int member = running[rank * TP_LANES + lane % TP_LANES];
            if (member < 0 || e->op[member]->kind != TP_OP_COLLECTIVE)
                return 0;
            with[count++] = member;
        }
    }
    return count;
}

/* Whether LEAVE has taken a piece. */
static bool is_taken(const explorer *e, uint64_t state, int cell)
{
    for (int i = e->writers[cell]; i < e->writers[cell + 1]; i++)
        if (e->op[e->writer[i]]->kind == TP_OP_LEAVE && is_finished(e, state, e->writer[i]))
            return true;
    return false;
}

/* Whether a finished op made what a piece holds; an OUTPUT that the caller hands over holds nothing. */
static bool is_made(const explorer *e, uint64_t state, int cell)
{
    bool output = cell / pieces_of(e) % PLANES == TP_BUFFER_OUTPUT;
    for (int i = e->writers[cell]; i < e->writers[cell + 1]; i++) {
        tp_op_kind kind = e->op[e->writer[i]]->kind;
        if (kind != TP_OP_LEAVE && !(kind == TP_OP_ENTER && output) && is_finished(e, state, e->writer[i]))
            return true;
    }
    return false;
}

/* What an op does while it moves must be right in every state in which it can. */
static void check_moving(explorer *e, uint64_t state, int op)
{
    for (int i = e->accesses[op]; i < e->accesses[op + 1]; i++) {
        const touch *a = &e->access[i];
        if (a->remote && (!is_finished(e, state, e->enter[a->owner]) || is_finished(e, state, e->leave[a->owner])))
            e->race = true;
        if (is_taken(e, state, a->cell) || (!a->writes && !is_made(e, state, a->cell)))
            e->race = true;
    }
    for (int other = 0; e->op[op]->kind == TP_OP_LEAVE && other < e->ops; other++)
        for (int i = e->accesses[other]; !is_finished(e, state, other) && i < e->accesses[other + 1]; i++)
            if (e->access[i].remote && e->access[i].owner == e->rank[op])
                e->race = true;
}

static void visit(explorer *e, uint64_t state)
{
    size_t slot = (size_t)((state * 0x9e3779b97f4a7c15u) >> 20) & (e->room - 1);
    while (e->seen[slot] != 0 && e->seen[slot] != state + 1)
        slot = (slot + 1) & (e->room - 1);
    if (e->seen[slot] != 0)
        return;
    e->seen[slot] = state + 1;
    e->states++;
    e->todo[e->waiting++] = state;
}

static void expand(explorer *e, uint64_t state)
{
    int running[LANES], active[LANES], actives = 0, with[RANKS];
    bool more = false;
    for (int lane = 0; lane < e->lanes; lane++) {
        running[lane] = begun(e, state, lane);
        more = more || at(state, lane) < e->length[lane];
    }
    for (int lane = 0; lane < e->lanes; lane++) {
        int count = moving(e, running, lane, with);
        if (count == 0)
            continue;
        active[actives++] = running[lane];
        if (count > 1 && e->op[running[lane]]->kind == TP_OP_COLLECTIVE && with[0] != running[lane])
            continue; /* ended by its first member */
        if (e->op[running[lane]]->kind == TP_OP_RECV)
            continue; /* ended by its SEND */
        uint64_t next = state;
        for (int i = 0; i < count; i++)
            next += (uint64_t)1 << (7 * lane_of(e, with[i]));
        visit(e, next);
    }
    if (actives == 0 && more)
        e->stuck = true;
    for (int i = 0; !e->inline_compute && i < actives; i++) {
        check_moving(e, state, active[i]);
        for (int j = 0; j < i; j++)
            if (e->conflict[active[i]][active[j]])
                e->race = true;
    }
}

/* Goes on until what is asked for (a state that is stuck, where compute is inline; else a race) is found, or all is
 * seen. False: more than `most` states. */
static bool explore(explorer *e, bool inline_compute, size_t most)
{
    memset(e->seen, 0, e->room * sizeof *e->seen);
    e->states = e->waiting = 0;
    e->inline_compute = inline_compute;
    e->stuck = e->race = false;
    visit(e, 0);
    while (e->waiting > 0 && !(inline_compute ? e->stuck : e->race)) {
        if (e->states + LANES > most)
            return false;
        expand(e, e->todo[--e->waiting]);
    }
    return true;
}

static explorer *explorer_create(size_t most)
{
    explorer *e = tpt_allocate(sizeof *e);
    for (e->room = 1; e->room < 2 * most; e->room *= 2)
        ;
    e->seen = tpt_allocate(e->room * sizeof *e->seen);
    e->todo = tpt_allocate((most + LANES) * sizeof *e->todo);
    return e;
}

static void explorer_destroy(explorer *e)
{
    free(e->seen);
    free(e->todo);
    free(e);
}

typedef struct outcome {
    int agreed[TP_FAULTS], too_large;
    size_t states, most_states;
} outcome;

/* Whether explorer and verify say the same; what verify did not look at any more is not compared. After a race, where
 * messages may meet in another order, a run may be stuck too. */
static void compare(explorer *e, const tp_plan *plan, size_t most, const char *what, outcome *out)
{
    tp_proof proof;
    cr_assert_eq(tp_plan_verify(plan, &proof), TP_OK);
    if (proof.fault == TP_FAULT_FIELD || proof.fault == TP_FAULT_UNMET)
        return;
    bool fits = load(e, plan) && explore(e, true, most);
    if (fits) {
        cr_assert(proof.fault == TP_FAULT_RACE || e->stuck == (proof.fault == TP_FAULT_DEADLOCK),
                  "%s: verify says %s (%s), the explorer %s", what, tp_fault_name(proof.fault), proof.message,
                  e->stuck ? "is stuck" : "is never stuck");
        out->states += e->states;
    }
    if (fits && (proof.fault == TP_FAULT_NONE || proof.fault == TP_FAULT_RACE)) {
        fits = explore(e, false, most);
        if (fits)
            cr_assert_eq(e->race, proof.fault == TP_FAULT_RACE, "%s: verify says %s (%s), the explorer finds %s", what,
                         tp_fault_name(proof.fault), proof.message, e->race ? "a race" : "none");
        out->states += e->states;
    }
    out->most_states = out->most_states > e->states ? out->most_states : e->states;
    unload(e);
    if (fits)
        out->agreed[proof.fault]++;
    else
        out->too_large++;
}

static void report(const char *what, const outcome *out)
{
    cr_log_info("%s: agreed on %d proven, %d deadlocks, %d races, %d results; %d too large; %zu states", what,
                out->agreed[TP_FAULT_NONE], out->agreed[TP_FAULT_DEADLOCK], out->agreed[TP_FAULT_RACE],
                out->agreed[TP_FAULT_RESULT], out->too_large, out->states);
}

/* All correct plans up to 3 ranks x 3 chunks have fewer states. */
#if defined TPT_SANITIZED || !defined __OPTIMIZE__
#define MOST_STATES 20000
#define MUTANTS 20
#else
#define MOST_STATES 4000000
#define MUTANTS 300
#endif

Test(explorer, correct_plans)
{
    explorer *e = explorer_create(MOST_STATES);
    for (int algorithm = 0; algorithm < TP_OVERLAP_AUTO; algorithm++) {
        outcome out = {{0}, 0, 0, 0};
        for (int pattern = 0; pattern < TP_PATTERN_COUNT; pattern++)
            for (int ranks = 1; ranks <= 3; ranks++)
                for (int i = 0; i < (algorithm == TP_OVERLAP_PULL ? 6 : 3); i++) { /* pull: in one lane, too */
                    const int chunks = i % 3 + 1;
                    tp_plan *plan;
                    int before = out.too_large;
                    cr_assert_eq(tp_plan_create(&(tp_plan_desc){(tp_overlap)algorithm, (tp_pattern)pattern, ranks,
                                                                chunks, i >= 3},
                                                &plan),
                                 TP_OK);
                    compare(e, plan, MOST_STATES, "a correct plan", &out);
                    if (out.too_large > before)
                        cr_log_info("  more than %d states: %s %s, %d ranks x %d chunks", MOST_STATES,
                                    tp_overlap_name((tp_overlap)algorithm), tp_pattern_name((tp_pattern)pattern), ranks,
                                    chunks);
                    tp_plan_destroy(plan);
                }
        report(tp_overlap_name((tp_overlap)algorithm), &out);
    }
    explorer_destroy(e);
}

Test(explorer, mutants)
{
    static const int sizes[][2] = {{1, 2}, {2, 1}, {2, 2}, {3, 1}};
    explorer *e = explorer_create(20000);
    for (int algorithm = 0; algorithm < TP_OVERLAP_AUTO; algorithm++) {
        outcome out = {{0}, 0, 0, 0};
        for (int pattern = 0; pattern < TP_PATTERN_COUNT; pattern++)
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
                tp_plan *plan;
                cr_assert_eq(tp_plan_create(&(tp_plan_desc){(tp_overlap)algorithm, (tp_pattern)pattern, sizes[s][0],
                                                            sizes[s][1], false},
                                            &plan),
                             TP_OK);
                tpt_mutator *mutator = tpt_mutator_create(plan);
                int count = tpt_mutator_count(mutator);
                for (int i = (int)s; i < count; i += 1 + count / MUTANTS) {
                    const tpt_mutant *mutant = tpt_mutator_mutant(mutator, i);
                    char what[128];
                    snprintf(what, sizeof what, "%s %s %dx%d, rank %d op %d, %s (%d, %d)",
                             tp_overlap_name((tp_overlap)algorithm), tp_pattern_name((tp_pattern)pattern), sizes[s][0],
                             sizes[s][1], mutant->rank, mutant->op, tpt_mutation_words(mutant->mutation), mutant->which,
                             mutant->value);
                    compare(e, tpt_mutator_plan(mutator, i), 20000, what, &out);
                }
                tpt_mutator_destroy(mutator);
                tp_plan_destroy(plan);
            }
        report(tp_overlap_name((tp_overlap)algorithm), &out);
    }
    explorer_destroy(e);
}
