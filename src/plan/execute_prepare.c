/* Preparing a plan for a context: who waits for whom, lanes, events and flags. */
#include <stdio.h>

#include "plan/auto.h"
#include "plan/execute_state.h"
#include "plan/fold.h"
#include "plan/patterns.h"

int tpi_flag_done(int op)
{
    return 2 * op;
}

int tpi_flag_posted(int op)
{
    return 2 * op + 1;
}

int tpi_flag_shown(const tpi_prepared *prepared)
{
    return prepared->flags - 1;
}

static bool remote_region(const tp_region *region, int count, int rank)
{
    for (int i = 0; i < count; i++)
        if (region[i].rank != rank)
            return true;
    return false;
}

/* Sends of `from` to `to` meet receives in the order of both lists: the n-th op of this kind, or the place n of one. */
static int nth_message(const tp_plan_rank *list, tp_op_kind kind, int peer, int n)
{
    for (int i = 0; i < list->count; i++)
        if (list->op[i].kind == kind && list->op[i].peer == peer && n-- == 0)
            return i;
    return -1;
}

static int place_of_message(const tp_plan_rank *list, int index)
{
    int place = 0;
    for (int i = 0; i < index; i++)
        place += list->op[i].kind == list->op[index].kind && list->op[i].peer == list->op[index].peer;
    return place;
}

int tpi_partner_of(const tp_plan *plan, int rank, int index)
{
    const tp_plan_op *op = &plan->rank[rank].op[index];
    if (op->kind != TP_OP_SEND && op->kind != TP_OP_RECV)
        return -1;
    tp_op_kind other = op->kind == TP_OP_SEND ? TP_OP_RECV : TP_OP_SEND;
    return nth_message(&plan->rank[op->peer], other, rank, place_of_message(&plan->rank[rank], index));
}

static int before_in_lane(const tp_plan_rank *list, int index)
{
    int before = index - 1;
    while (before >= 0 && list->op[before].lane != list->op[index].lane)
        before--;
    return before;
}

/* Whether a send comes directly behind another one to the same rank, which receives both in this order on one lane: it
 * is over when both are. That is all its lane need wait for where ranks are ordered by messages of one lane alone, as
 * in the ring's own plans: nothing else of this rank comes between the two. */
static bool follows_send(const tp_plan *plan, int rank, int index)
{
    const tp_plan_rank *list = &plan->rank[rank];
    int before = before_in_lane(list, index);
    if (before < 0 || list->op[before].kind != TP_OP_SEND || list->op[before].peer != list->op[index].peer)
        return false;
    const tp_plan_rank *receiver = &plan->rank[list->op[index].peer];
    int first = tpi_partner_of(plan, rank, before), second = tpi_partner_of(plan, rank, index);
    return receiver->op[first].lane == receiver->op[second].lane && first < second;
}

static bool follows(const tp_plan *plan, int rank, int index, int partner)
{
    const tp_plan_op *op = &plan->rank[rank].op[index];
    if (op->kind == TP_OP_SEND)
        return follows_send(plan, rank, index);
    return op->kind == TP_OP_RECV && plan->rank[op->peer].op[partner].waits == 0 &&
           follows_send(plan, op->peer, partner);
}

static bool looks(const tp_plan_op *op, int rank)
{
    for (int w = 0; w < op->waits; w++)
        if (op->wait[w].rank != rank)
            return true;
    return op->kind == TP_OP_SEND || op->kind == TP_OP_RECV;
}

/* Who waits for each of this rank's ops: other ranks, as bits, and other lanes. */
static void find_waiters(tpi_prepared *p)
{
    for (int rank = 0; rank < p->plan->ranks; rank++)
        for (int i = 0; i < p->plan->rank[rank].count; i++) {
            const tp_plan_op *op = &p->plan->rank[rank].op[i];
            for (int w = 0; w < op->waits; w++) {
                if (op->wait[w].rank != p->rank)
                    continue;
                tpi_op_note *note = &p->note[op->wait[w].op];
                if (rank != p->rank)
                    note->waiters |= (uint64_t)1 << rank;
                else
                    note->recorded = note->recorded || op->lane != p->list->op[op->wait[w].op].lane;
            }
        }
    for (int i = 0; i < p->list->count; i++)
        if (p->list->op[i].kind == TP_OP_RECV)
            p->note[i].waiters |= (uint64_t)1 << p->list->op[i].peer;
    for (int i = 0; i < p->list->count; i++)
        for (uint64_t left = p->note[i].waiters; left != 0; left &= left - 1)
            p->note[i].peers++;
}

/* Whether a collective's pieces are chunks of several owners that don't follow each other. */
static bool is_striped(const tp_plan_op *op)
{
    return op->kind == TP_OP_COLLECTIVE && op->pieces > 1 && op->step > 1;
}

typedef struct sizes {
    size_t ops, peers, pointers, counts;
} sizes;

/* A lane that begins behind one of this rank's ops on the compute lane needs no fork, and one whose last op the compute
 * lane waits for no join. ENTER and LEAVE don't count: their waits are left to fork and join. A send goes on behind its
 * place in the list. */
static void see_lane(tpi_prepared *p, int index)
{
    const tp_plan_op *op = &p->list->op[index];
    bool forks = true;
    for (int w = 0; w < op->waits; w++) {
        const tp_plan_op *on = op->wait[w].rank == p->rank ? &p->list->op[op->wait[w].op] : NULL;
        if (on == NULL)
            continue;
        forks = forks && (on->lane != TP_LANE_COMPUTE || on->kind == TP_OP_ENTER);
        if (op->lane == TP_LANE_COMPUTE && op->kind != TP_OP_LEAVE && on->kind != TP_OP_SEND &&
            p->last[on->lane] == op->wait[w].op)
            p->joins[on->lane] = false;
    }
    if (!p->uses[op->lane])
        p->forks[op->lane] = forks;
    p->uses[op->lane] = p->joins[op->lane] = true;
    p->last[op->lane] = index;
}

static bool waits_for_compute(const tpi_prepared *p, int index)
{
    const tp_plan_op *op = &p->list->op[index];
    for (int w = 0; w < op->waits; w++)
        if (p->list->op[op->wait[w].op].lane == TP_LANE_COMPUTE && p->list->op[op->wait[w].op].kind != TP_OP_ENTER)
            return true;
    return false;
}

static bool compute_waits_for(const tpi_prepared *p, int index)
{
    for (int i = 0; i < p->list->count; i++)
        for (int w = 0; w < p->list->op[i].waits; w++)
            if (p->list->op[i].lane == TP_LANE_COMPUTE && p->list->op[i].kind != TP_OP_LEAVE &&
                p->list->op[i].wait[w].op == index)
                return true;
    return false;
}

/* Where messages go in groups, their lane begins with the first of these as a whole, and ends with the last. */
static void see_groups(tpi_prepared *p)
{
    const tpi_messages *all = &p->messages;
    for (int m = 0; m < all->count && all->message[m].level == all->message[0].level; m++)
        p->forks[TP_LANE_COMM] = p->forks[TP_LANE_COMM] && !waits_for_compute(p, all->message[m].op);
    for (int m = all->count - 1; m >= 0 && all->message[m].level == all->message[all->count - 1].level; m--)
        p->joins[TP_LANE_COMM] = p->joins[TP_LANE_COMM] && !compute_waits_for(p, all->message[m].op);
}

static void see_op(tpi_prepared *p, int index, sizes *total)
{
    const tp_plan_op *op = &p->list->op[index];
    tpi_op_note *note = &p->note[index];
    note->touches = remote_region(op->read, op->reads, p->rank) || remote_region(op->write, op->writes, p->rank) ||
                    op->kind == TP_OP_RECV;
    note->looks = looks(op, p->rank);
    note->partner = tpi_partner_of(p->plan, p->rank, index);
    note->first_pointer = (int)total->pointers;
    note->first_count = -1;
    if (op->kind == TP_OP_REDUCE)
        total->pointers += (size_t)(op->reads + op->writes);
    if (op->kind == TP_OP_COLLECTIVE && op->pieces < p->plan->ranks * p->plan->chunks) {
        note->first_count = (int)total->counts;
        total->counts += (size_t)p->plan->ranks;
    }
    if (is_striped(op))
        p->striped[op->collective == TP_COLLECTIVE_ALL_GATHER ? op->write->buffer : op->read->buffer] = true;
    see_lane(p, index);
}

static bool any_looks(const tpi_prepared *p)
{
    for (int rank = 0; rank < p->plan->ranks; rank++)
        for (int i = 0; i < p->plan->rank[rank].count; i++)
            if (looks(&p->plan->rank[rank].op[i], rank))
                return true;
    return false;
}

static int most_ops(const tp_plan *plan)
{
    int most = 0;
    for (int rank = 0; rank < plan->ranks; rank++)
        most = plan->rank[rank].count > most ? plan->rank[rank].count : most;
    return most;
}

/* The block behind a prepared plan: notes, lists of peers, and each run's arrays. memory NULL: only counted. */
static size_t carve(tpi_prepared *p, const sizes *total, void *memory)
{
    tpi_carve from = {memory, 0};
    p->note = tpi_carve_take(&from, total->ops * sizeof *p->note);
    int *peer = tpi_carve_take(&from, total->peers * sizeof *peer);
    for (size_t i = 0; memory != NULL && i < total->ops; i++) {
        p->note[i].peer = peer;
        peer += p->note[i].peers;
    }
    for (int s = 0; s < TPI_RUN_SLOTS; s++) {
        tpi_run *run = &p->slot[s];
        run->prepared = p;
        run->pointer = tpi_carve_take(&from, total->pointers * sizeof *run->pointer);
        run->count = tpi_carve_take(&from, total->counts * sizeof *run->count);
        run->stamp = tpi_carve_take(&from, total->ops * sizeof *run->stamp);
    }
    return from.used;
}

static void list_peers(tpi_op_note *note)
{
    int peers = 0;
    for (int rank = 0; rank < TP_PLAN_MAX_RANKS; rank++)
        if (note->waiters >> rank & 1)
            note->peer[peers++] = rank;
}

static tp_status make_notes(tpi_prepared *p)
{
    sizes total = {.ops = (size_t)p->list->count};
    tpi_op_note *first = tpi_host_allocate(p->ctx, total.ops * sizeof *first + 1);
    if (first == NULL)
        return tpi_refuse(p->ctx, TP_ERR_MEMORY, "plan: out of memory for %d ops", p->list->count);
    p->note = first;
    find_waiters(p);
    for (int i = 0; i < p->list->count; i++) {
        see_op(p, i, &total);
        total.peers += (size_t)first[i].peers;
    }
    p->bytes = carve(p, &total, NULL) + 64;
    p->memory = tpi_host_allocate(p->ctx, p->bytes);
    tp_status status = TP_OK;
    if (p->memory == NULL)
        status = tpi_refuse(p->ctx, TP_ERR_MEMORY, "plan: out of memory for %d ops", p->list->count);
    for (size_t i = 0; i < total.ops && status == TP_OK; i++)
        ((tpi_op_note *)p->memory)[i] = first[i];
    if (status == TP_OK)
        carve(p, &total, p->memory);
    for (int i = 0; i < p->list->count && status == TP_OK; i++)
        list_peers(&p->note[i]);
    tpi_host_release(p->ctx, first, total.ops * sizeof *first + 1);
    if (status != TP_OK)
        p->note = NULL;
    return status;
}

static void prepared_free(tpi_prepared *p)
{
    tp_ctx *ctx = p->ctx;
    tpi_behind_free(p);
    for (int i = 0; p->note != NULL && i < p->list->count; i++)
        if (p->note[i].event != NULL)
            ctx->backend->event_destroy(p->note[i].event);
    if (p->board != NULL)
        p->board->table->destroy(ctx, p->board);
    if (p->memory != NULL)
        tpi_host_release(ctx, p->memory, p->bytes);
    tpi_messages_free(ctx, &p->messages);
    tp_plan_destroy(p->own);
    tpi_host_release(ctx, p, sizeof *p);
}

static void executor_free(tp_ctx *ctx)
{
    struct tpi_executor *executor = ctx->executor;
    const tpi_backend *backend = ctx->backend;
    for (int lane = TP_LANE_COMM; lane < TP_LANES; lane++) {
        if (executor->lane[lane] != NULL)
            backend->stream_destroy(executor->lane[lane]);
        if (executor->join[lane] != NULL)
            backend->event_destroy(executor->join[lane]);
    }
    tpi_autos_free(ctx, executor->autos);
    while (executor->prepared != NULL) {
        tpi_prepared *first = executor->prepared;
        executor->prepared = first->next;
        prepared_free(first);
    }
    while (executor->comms != NULL) {
        tpi_lane_comm *first = executor->comms;
        executor->comms = first->next;
        if (first->comm != NULL)
            first->comm->table->destroy(ctx, first->comm);
        tpi_host_release(ctx, first, sizeof *first);
    }
    if (executor->fork != NULL)
        backend->event_destroy(executor->fork);
    tpi_host_release(ctx, executor, sizeof *executor);
    ctx->executor = NULL;
    ctx->executor_free = NULL;
}

tp_status tpi_executor_get(tp_ctx *ctx, struct tpi_executor **out)
{
    if (ctx->executor == NULL) {
        struct tpi_executor *executor = tpi_host_allocate(ctx, sizeof *executor);
        if (executor == NULL)
            return tpi_refuse(ctx, TP_ERR_MEMORY, "plan executor: out of memory");
        executor->lane[TP_LANE_COMPUTE] = ctx->compute;
        ctx->executor = executor;
        ctx->executor_free = executor_free;
    }
    *out = ctx->executor;
    return TP_OK;
}

static tp_status make_lanes(tpi_prepared *p, struct tpi_executor *executor)
{
    const tpi_backend *backend = p->ctx->backend;
    for (int lane = TP_LANE_COMM; lane < TP_LANES; lane++) {
        if (!p->uses[lane])
            continue;
        if (executor->fork == NULL)
            TPI_TRY(backend->event_create(p->ctx, &executor->fork));
        if (executor->join[lane] == NULL)
            TPI_TRY(backend->event_create(p->ctx, &executor->join[lane]));
        if (executor->lane[lane] == NULL)
            TPI_TRY(backend->stream_create(p->ctx, tp_lane_name((tp_lane)lane), false, &executor->lane[lane]));
    }
    for (int i = 0; i < p->list->count; i++)
        if (p->note[i].recorded)
            TPI_TRY(backend->event_create(p->ctx, &p->note[i].event));
    return TP_OK;
}

/* Collectives and messages beside the compute stream go over a communicator of their own, one a group. */
static tp_status make_lane_comm(tpi_prepared *p, struct tpi_executor *executor)
{
    bool needed = false;
    for (int i = 0; i < p->list->count; i++)
        needed = needed || (p->list->op[i].kind == TP_OP_COLLECTIVE && p->list->op[i].lane != TP_LANE_COMPUTE);
    needed = needed || p->messages.message != NULL;
    if (!needed)
        return TP_OK;
    tpi_lane_comm *found = executor->comms;
    while (found != NULL && found->group != p->comm)
        found = found->next;
    if (found == NULL) {
        found = tpi_host_allocate(p->ctx, sizeof *found);
        if (found == NULL)
            return tpi_refuse(p->ctx, TP_ERR_MEMORY, "plan executor: out of memory");
        *found = (tpi_lane_comm){.next = executor->comms, .group = p->comm};
        executor->comms = found;
        TPI_TRY(p->comm->table->split(p->ctx, p->comm, 0, p->comm->rank, &found->comm));
        found->comm->beside = true;
    }
    p->lane_comm = found->comm;
    return TP_OK;
}

static tp_status make_board(tpi_prepared *p)
{
    if (!any_looks(p) || p->messages.message != NULL)
        return TP_OK;
    p->flags = 2 * most_ops(p->plan) + 1;
    tpi_board_desc desc = {.flags = p->flags, .page_bytes = TPI_RUN_SLOTS * sizeof(tpi_page), .lanes = TP_LANES + 1};
    bool one_lane = p->plan->algorithm == TP_OVERLAP_PULL && !tpi_plan_uses_lanes(p->plan);
    snprintf(desc.what, sizeof desc.what, "%s %s in %d chunks%s", tp_overlap_name((tp_overlap)p->plan->algorithm),
             tp_pattern_name((tp_pattern)p->plan->pattern), p->plan->chunks, one_lane ? " and one lane" : "");
    return p->comm->table->board->create(p->ctx, p->comm, &desc, &p->board);
}

static tp_status fill(tpi_prepared *p, struct tpi_executor *executor)
{
    TPI_TRY(make_notes(p));
    see_groups(p);
    TPI_TRY(make_lanes(p, executor));
    TPI_TRY(make_lane_comm(p, executor));
    TPI_TRY(make_board(p));
    tpi_agree_prepare(p);
    tpi_dense_prepare(p);
    return p->behind && p->board != NULL ? tpi_behind_prepare(p) : TP_OK;
}

/* Takes the messages over, also when it fails. */
static tp_status prepare(tp_ctx *ctx, tp_comm *comm, const tp_plan *plan, tpi_messages *messages, tpi_prepared **out)
{
    *out = NULL;
    struct tpi_executor *executor = NULL;
    tp_status status = tpi_executor_get(ctx, &executor);
    tpi_prepared *p = status == TP_OK ? tpi_host_allocate(ctx, sizeof *p) : NULL;
    if (p == NULL) {
        tpi_messages_free(ctx, messages);
        return status != TP_OK ? status : tpi_refuse(ctx, TP_ERR_MEMORY, "plan executor: out of memory");
    }
    p->ctx = ctx;
    p->comm = comm;
    p->plan = plan;
    p->rank = plan->ranks == 1 ? 0 : comm->rank;
    p->list = &plan->rank[p->rank];
    p->ahead = ctx->desc.lane_delay_seed != 0;
    p->behind = ctx->behind;
    p->messages = *messages;
    status = fill(p, executor);
    if (status != TP_OK) {
        prepared_free(p);
        return status;
    }
    p->next = executor->prepared;
    executor->prepared = p;
    *out = p;
    return TP_OK;
}

tp_status tpi_plan_prepare(tp_ctx *ctx, tp_comm *comm, const tp_plan *plan, tpi_prepared **out)
{
    tpi_messages none = {.count = 0};
    *out = NULL;
    if (plan->ranks != 1 && plan->ranks != comm->size)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "plan of %d ranks on a group of %d", plan->ranks, comm->size);
    return prepare(ctx, comm, plan, &none, out);
}

/* Ranks that don't reach each other's memory send messages over their communicator. Those must be dense, which slices
 * of columns are not: there is one. */
static tp_status make_own_plan(tp_ctx *ctx, tp_comm *comm, tp_plan_desc desc, tp_plan **plan, tpi_messages *messages)
{
    bool apart = comm->apart && ctx->behind;
    *messages = (tpi_messages){.count = 0};
    if (apart && desc.algorithm == TP_OVERLAP_RING && tpi_pattern_is_sliced(desc.pattern))
        desc.chunks = 1;
    desc.one_lane = desc.one_lane || (desc.algorithm == TP_OVERLAP_PULL && tpi_pulls_inline(ctx));
    TPI_TRY(tp_plan_create(&desc, plan));
    if (!apart || !tpi_messages_suffice(*plan))
        return TP_OK;
    tp_status status = tpi_messages_find(ctx, *plan, comm->rank, messages);
    if (status != TP_OK)
        tp_plan_destroy(*plan);
    else
        tpi_messages_share_lane(*plan);
    return status;
}

static bool same_desc(const tp_plan_desc *a, const tp_plan_desc *b)
{
    return a->algorithm == b->algorithm && a->pattern == b->pattern && a->ranks == b->ranks && a->chunks == b->chunks &&
           a->one_lane == b->one_lane;
}

tp_status tpi_plan_get(tp_ctx *ctx, tp_comm *comm, const tp_plan_desc *desc, tpi_prepared **out)
{
    for (tpi_prepared *p = ctx->executor ? ctx->executor->prepared : NULL; p != NULL; p = p->next)
        if (p->own != NULL && p->comm == comm && same_desc(&p->desc, desc)) {
            *out = p;
            return TP_OK;
        }
    *out = NULL;
    tp_plan *plan;
    tpi_messages messages;
    TPI_TRY(make_own_plan(ctx, comm, *desc, &plan, &messages));
    tp_status status = prepare(ctx, comm, plan, &messages, out);
    if (status != TP_OK) {
        tp_plan_destroy(plan);
        return status;
    }
    (*out)->own = plan;
    for (int i = 0; plan->algorithm == TP_OVERLAP_RING && i < (*out)->list->count; i++)
        (*out)->note[i].follows = follows(plan, (*out)->rank, i, (*out)->note[i].partner);
    (*out)->desc = *desc;
    return TP_OK;
}

const tp_plan *tpi_prepared_plan(const tpi_prepared *prepared)
{
    return prepared->plan;
}
