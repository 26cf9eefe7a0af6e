#include "interpreter.h"

#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "interpreter_machine.h"

static uint64_t draw(machine *m)
{
    return tpt_draw(&m->random);
}

static const tp_plan_op *op_of(const machine *m, int lane)
{
    return &m->plan->rank[lane / TP_LANES].op[m->lane[lane].op[m->lane[lane].at]];
}

static void check_open(machine *m, int rank, const tp_region *region)
{
    if (region->rank != rank && region->pieces > 0 && !m->open[region->rank])
        m->trespass = true;
}

/* Reads everything into `out`; returns how many numbers. */
static int read_all(machine *m, int lane, uint64_t *out)
{
    const tp_plan_op *op = op_of(m, lane);
    int count = 0;
    for (int r = 0; r < op->reads; r++) {
        check_open(m, lane / TP_LANES, &op->read[r]);
        for (int i = 0; i < op->read[r].pieces; i++)
            out[count++] = *cell(m, &op->read[r], i);
    }
    return count;
}

static void write_garbage(machine *m, int lane)
{
    const tp_plan_op *op = op_of(m, lane);
    for (int w = 0; w < op->writes; w++) {
        check_open(m, lane / TP_LANES, &op->write[w]);
        for (int i = 0; i < op->write[w].pieces; i++)
            *cell(m, &op->write[w], i) = draw(m);
    }
}

/* Whether the op's data flows while it runs; others move when they meet. */
static bool flows(const tp_plan_op *op)
{
    return op->kind != TP_OP_SEND && op->kind != TP_OP_RECV && op->kind != TP_OP_COLLECTIVE && op->kind != TP_OP_LEAVE;
}

/* An op that writes over what it reads (a gradient) reads it once. */
static bool in_place(const tp_plan_op *op)
{
    return op->kind == TP_OP_GEMM &&
           (op->write[0].buffer == TP_BUFFER_GRADIENT || op->write[0].buffer == TP_BUFFER_FIRST_GRADIENT);
}

static void begin(machine *m, int lane)
{
    const tp_plan_op *op = op_of(m, lane);
    m->lane[lane].running = true;
    m->lane[lane].begun = m->now++;
    if (op->kind == TP_OP_LEAVE)
        m->open[lane / TP_LANES] = false;
    if (!flows(op))
        return;
    read_all(m, lane, m->lane[lane].seen);
    write_garbage(m, lane);
}

static void finish(machine *m, int lane)
{
    int rank = lane / TP_LANES;
    const tp_plan_rank *list = &m->plan->rank[rank];
    m->finished[rank][m->lane[lane].op[m->lane[lane].at]] = true;
    m->lane[lane].at++;
    m->lane[lane].running = false;
    while (m->computing[rank] < list->count &&
           (list->op[m->computing[rank]].lane != TP_LANE_COMPUTE || m->finished[rank][m->computing[rank]]))
        m->computing[rank]++;
}

static void enter(machine *m, int rank, const tp_plan_op *op)
{
    bool own = shares_input(m), own_second = shares_second(m);
    m->open[rank] = true;
    for (int w = 0; w < op->writes; w++)
        for (int i = 0; i < op->write[w].pieces; i++) {
            const tp_region *region = &op->write[w];
            bool same =
                (region->buffer == TP_BUFFER_INPUT && own) || (region->buffer == TP_BUFFER_SECOND && own_second);
            if (region->buffer != TP_BUFFER_OUTPUT)
                *cell(m, region, i) =
                    input_number((int)region->buffer, same ? 99 : rank, region->piece + i * region->step);
        }
}

static void write_numbers(machine *m, const tp_region *region, const uint64_t *number)
{
    for (int i = 0; i < region->pieces; i++)
        *cell(m, region, i) = number[i];
}

static void end_gradient(machine *m, const tp_plan_op *op, const uint64_t *in)
{
    uint64_t gradient = in[0];
    const uint64_t *dy = in + 1, *x = dy + op->read[1].pieces;
    bool local = op->reads == 2; /* the first gradient's other operand is no buffer of the plan */
    for (int i = 0; i < op->pieces; i++)
        gradient = accumulate_gradient(op->part, gradient, dy[i], local ? LOCAL_OPERAND : x[i]);
    *cell(m, op->write, 0) = gradient;
}

static void end_sliced_gradient(machine *m, const tp_plan_op *op, const uint64_t *in)
{
    uint64_t sum[TP_PLAN_MAX_CHUNKS] = {0};
    const uint64_t *dy = in + op->read[0].pieces;
    for (int i = 0; i < op->read[0].pieces; i++)
        sum[op->read[0].piece + i * op->read[0].step] = in[i];
    for (int i = 0; i < op->pieces; i++) {
        uint64_t *slice = &sum[(op->piece + i * op->step) % m->plan->chunks];
        *slice = accumulate_gradient(op->part, *slice, dy[i], LOCAL_OPERAND);
    }
    for (int i = 0; i < op->write[0].pieces; i++)
        *cell(m, op->write, i) = sum[op->write[0].piece + i * op->write[0].step];
}

/* Slice after slice, each owner's from nothing on. */
static void end_sum(machine *m, int rank, const tp_plan_op *op, const uint64_t *in)
{
    uint64_t sum = op->reads > 1 ? in[op->pieces] : 0;
    for (int i = 0; i < op->pieces; i++) {
        if ((op->piece + i * op->step) % m->plan->chunks == 0)
            sum = 0;
        sum = accumulate(sum, gemm(rank, op->part, in[i]));
        *cell(m, op->write, i) = sum;
    }
}

/* An op that works alone ends: from `in`, what it read, to what it writes. */
static void end_op(machine *m, int lane, uint64_t *in)
{
    const tp_plan_op *op = op_of(m, lane);
    int rank = lane / TP_LANES;
    uint64_t out[TP_PLAN_MAX_RANKS * TP_PLAN_MAX_CHUNKS];
    if (op->kind == TP_OP_ENTER) {
        enter(m, rank, op);
        return;
    }
    if (in_place(op)) {
        (is_sliced(m) ? end_sliced_gradient : end_gradient)(m, op, in);
        return;
    }
    if (is_sliced(m) && op->kind == TP_OP_GEMM) {
        end_sum(m, rank, op, in);
        return;
    }
    for (int i = 0; i < op->pieces; i++) {
        out[i] = in[i];
        if (op->kind == TP_OP_GEMM)
            out[i] = gemm(rank, op->part, in[i]);
        if (op->kind == TP_OP_COMPUTE)
            out[i] = (mixes(m) ? core(rank, in, op->pieces, op->piece + i * op->step) : compute(rank, in[i])) +
                     (uint64_t)op->part;
        if (op->kind == TP_OP_REDUCE) {
            out[i] = 0;
            for (int r = 0; r < op->reads; r++)
                out[i] = accumulate(out[i], in[r * op->pieces + i]);
        }
    }
    for (int w = 0; w < op->writes; w++)
        write_numbers(m, &op->write[w], out);
}

/* What was read must still be there; else half of it may have been seen. */
static void end_alone(machine *m, int lane)
{
    const tp_plan_op *op = op_of(m, lane);
    uint64_t *seen = m->lane[lane].seen, *again = seen + (4 + m->plan->ranks) * m->pieces;
    if (op->kind != TP_OP_LEAVE) {
        int count = read_all(m, lane, again);
        for (int i = in_place(op) ? op->read[0].pieces : 0; i < count; i++)
            if (again[i] != seen[i])
                seen[i] = draw(m);
        for (int w = 0; w < op->writes; w++)
            check_open(m, lane / TP_LANES, &op->write[w]);
        end_op(m, lane, seen);
    }
    finish(m, lane);
}

static void end_message(machine *m, int send, int recv)
{
    const tp_plan_op *from = op_of(m, send), *to = op_of(m, recv);
    for (int i = 0; i < to->pieces; i++)
        *cell(m, to->write, i) = i < from->pieces ? *cell(m, from->read, i) : draw(m);
    finish(m, send);
    finish(m, recv);
}

/* The rank that has a piece of a gather. */
static const tp_region *holder(machine *m, int kind_of_lane, int piece, int *at)
{
    for (int rank = 0; rank < m->plan->ranks; rank++) {
        const tp_region *read = op_of(m, rank * TP_LANES + kind_of_lane)->read;
        for (*at = 0; *at < read->pieces; (*at)++)
            if (read->piece + *at * read->step == piece)
                return read;
    }
    return NULL;
}

static void end_collective(machine *m, int kind_of_lane)
{
    const tp_plan_op *first = op_of(m, kind_of_lane);
    uint64_t out[TP_PLAN_MAX_RANKS * TP_PLAN_MAX_CHUNKS] = {0}; /* by piece */
    for (int i = 0; i < first->pieces; i++) {
        int piece = first->piece + i * first->step, at = 0;
        if (first->collective == TP_COLLECTIVE_ALL_GATHER) {
            const tp_region *read = holder(m, kind_of_lane, piece, &at);
            out[piece] = read != NULL ? *cell(m, read, at) : draw(m);
        } else {
            for (int rank = 0; rank < m->plan->ranks; rank++)
                out[piece] = accumulate(out[piece], *cell(m, op_of(m, rank * TP_LANES + kind_of_lane)->read, i));
        }
    }
    for (int rank = 0; rank < m->plan->ranks; rank++) {
        const tp_region *write = op_of(m, rank * TP_LANES + kind_of_lane)->write;
        for (int i = 0; i < write->pieces; i++)
            *cell(m, write, i) = out[write->piece + i * write->step];
    }
    for (int rank = 0; rank < m->plan->ranks; rank++)
        finish(m, rank * TP_LANES + kind_of_lane);
}

static bool can_begin(const machine *m, int lane)
{
    const lane_state *state = &m->lane[lane];
    if (state->at == state->count || state->running ||
        (m->inline_compute && state->op[state->at] > m->computing[lane / TP_LANES]))
        return false;
    const tp_plan_op *op = op_of(m, lane);
    for (int w = 0; w < op->waits; w++)
        if (!m->finished[op->wait[w].rank][op->wait[w].op])
            return false;
    return true;
}

/* The lane of `rank` with the message for (or from) `peer` that was posted first; -1: none. */
static int posted(const machine *m, int rank, tp_op_kind kind, int peer)
{
    int first = -1;
    for (int lane = rank * TP_LANES; lane < (rank + 1) * TP_LANES; lane++)
        if (m->lane[lane].running && op_of(m, lane)->kind == kind && op_of(m, lane)->peer == peer &&
            (first < 0 || m->lane[lane].begun < m->lane[first].begun))
            first = lane;
    return first;
}

static bool all_posted(const machine *m, int kind_of_lane)
{
    for (int rank = 0; rank < m->plan->ranks; rank++) {
        int lane = rank * TP_LANES + kind_of_lane;
        if (!m->lane[lane].running || op_of(m, lane)->kind != TP_OP_COLLECTIVE)
            return false;
    }
    return true;
}

/* What the running op of a lane can end with: itself, or whom it meets; -1: not yet. Messages are ended by their SEND.
 */
static int partner(const machine *m, int lane)
{
    const tp_plan_op *op = op_of(m, lane);
    int rank = lane / TP_LANES;
    if (op->kind == TP_OP_RECV)
        return -1;
    if (op->kind == TP_OP_SEND)
        return posted(m, rank, TP_OP_SEND, op->peer) == lane ? posted(m, op->peer, TP_OP_RECV, rank) : -1;
    if (op->kind == TP_OP_COLLECTIVE)
        return all_posted(m, lane % TP_LANES) ? lane : -1;
    return lane;
}

static bool can_act(const machine *m, int lane)
{
    return m->lane[lane].running ? partner(m, lane) >= 0 : can_begin(m, lane);
}

static void act(machine *m, int lane)
{
    if (!m->lane[lane].running) {
        begin(m, lane);
        return;
    }
    const tp_plan_op *op = op_of(m, lane);
    if (op->kind == TP_OP_SEND)
        end_message(m, lane, partner(m, lane));
    else if (op->kind == TP_OP_COLLECTIVE)
        end_collective(m, lane % TP_LANES);
    else
        end_alone(m, lane);
}

/* Any lane that can go on; those with high priority more often, so that others fall far behind. */
static int choose(machine *m)
{
    int able[MAX_LANES], count = 0, best = -1;
    for (int lane = 0; lane < m->plan->ranks * TP_LANES; lane++)
        if (can_act(m, lane)) {
            able[count++] = lane;
            if (best < 0 || m->lane[lane].priority > m->lane[best].priority)
                best = lane;
        }
    if (count == 0)
        return -1;
    return draw(m) % 4 != 0 ? best : able[draw(m) % (uint64_t)count];
}

static tpt_run judge(machine *m)
{
    for (int lane = 0; lane < m->plan->ranks * TP_LANES; lane++)
        if (m->lane[lane].at < m->lane[lane].count)
            return TPT_RUN_STUCK;
    if (m->trespass)
        return TPT_RUN_TRESPASS;
    for (int rank = 0; rank < m->plan->ranks; rank++) {
        if (!tpt_results_are_right(m, rank))
            return TPT_RUN_WRONG;
    }
    return TPT_RUN_RIGHT;
}

static void load(machine *m)
{
    const tp_plan *plan = m->plan;
    size_t cells = (size_t)plan->ranks * (size_t)m->planes * (size_t)m->pieces;
    m->memory = tpt_allocate(cells * sizeof *m->memory);
    for (size_t i = 0; i < cells; i++)
        m->memory[i] = draw(m);
    for (int rank = 0; rank < plan->ranks; rank++) {
        m->finished[rank] = tpt_allocate((size_t)plan->rank[rank].count + 1);
        for (int lane = rank * TP_LANES; lane < (rank + 1) * TP_LANES; lane++) {
            m->lane[lane].op = tpt_allocate(((size_t)plan->rank[rank].count + 1) * sizeof(int));
            m->lane[lane].seen = tpt_allocate(2 * (4 + (size_t)plan->ranks) * (size_t)m->pieces * sizeof(uint64_t));
            m->lane[lane].priority = (uint32_t)draw(m);
        }
        m->computing[rank] = plan->rank[rank].count;
        for (int i = plan->rank[rank].count - 1; i >= 0; i--)
            if (plan->rank[rank].op[i].lane == TP_LANE_COMPUTE)
                m->computing[rank] = i;
        for (int i = 0; i < plan->rank[rank].count; i++) {
            lane_state *state = &m->lane[rank * TP_LANES + (int)plan->rank[rank].op[i].lane];
            state->op[state->count++] = i;
        }
    }
}

tpt_run tpt_interpret(const tp_plan *plan, uint64_t seed, bool inline_compute)
{
    machine *m = tpt_allocate(sizeof *m);
    *m = (machine){.plan = plan,
                   .pieces = plan->ranks * plan->chunks,
                   .planes = TP_BUFFERS - 1 + plan->ranks,
                   .random = seed,
                   .inline_compute = inline_compute};
    load(m);
    for (int lane = choose(m); lane >= 0; lane = choose(m))
        act(m, lane);
    tpt_run result = judge(m);
    for (int rank = 0; rank < plan->ranks; rank++) {
        free(m->finished[rank]);
        for (int lane = rank * TP_LANES; lane < (rank + 1) * TP_LANES; lane++) {
            free(m->lane[lane].op);
            free(m->lane[lane].seen);
        }
    }
    free(m->memory);
    free(m);
    return result;
}
