#include "plan/fold.h"

#include <stdlib.h>

#include "comm/table.h"
#include "core/stream.h"

bool tpi_lanes_share_cores(int cores, int64_t ranks)
{
    return cores < 2 * ranks;
}

bool tpi_ctx_lanes_share_cores(const tp_ctx *ctx)
{
    return tpi_lanes_share_cores(tpi_world_cores(ctx->desc.world), tpi_ctx_ranks(ctx));
}

/* Lanes that are delayed at random have threads of their own whatever the cores, and a device has its own engines. */
bool tpi_pulls_inline(const tp_ctx *ctx)
{
    return ctx->compute->at_once && !ctx->behind && ctx->pulling != TPI_PULL_ON_LANE &&
           (ctx->pulling == TPI_PULL_INLINE || tpi_ctx_lanes_share_cores(ctx));
}

static bool is_beside(const tp_plan_op *op)
{
    return op->lane != TP_LANE_COMPUTE;
}

static tp_status check(const tp_plan *plan)
{
    for (int rank = 0; rank < plan->ranks; rank++)
        for (int i = 0; i < plan->rank[rank].count; i++) {
            const tp_plan_op *op = &plan->rank[rank].op[i];
            if (is_beside(op) && op->kind != TP_OP_PULL)
                return tpi_message(TP_ERR_UNSUPPORTED,
                                   "plan: one_lane, but rank %d op %d (%s) needs a lane beside compute", rank, i,
                                   tp_op_name(op->kind));
        }
    return TP_OK;
}

/* The last pull beside compute that the op waits for; -1: none. */
static int last_needed(const tp_plan_rank *list, int rank, const tp_plan_op *op)
{
    int last = -1;
    for (int w = 0; w < op->waits; w++)
        if (op->wait[w].rank == rank && op->wait[w].op > last && is_beside(&list->op[op->wait[w].op]))
            last = op->wait[w].op;
    return last;
}

static int add_pulls(const tp_plan_rank *list, int from, int end, int *order, int count)
{
    for (int i = from; i < end; i++)
        if (is_beside(&list->op[i]))
            order[count++] = i;
    return count;
}

/* The ops of a rank as they follow each other then. What a pull waits for on its own rank is listed before it, and so
 * is before who needs it. */
static void find_order(const tp_plan_rank *list, int rank, int *order)
{
    int next = 0, count = 0;
    for (int i = 0; i < list->count; i++) {
        if (is_beside(&list->op[i]))
            continue;
        int end = last_needed(list, rank, &list->op[i]) + 1;
        count = add_pulls(list, next, end, order, count);
        next = end > next ? end : next;
        order[count++] = i;
    }
    add_pulls(list, next, list->count, order, count);
}

/* Renumbers an op's waits. A rank is one sequence: none of its own is needed, and of a peer's only the latest. */
static void keep_latest(tp_plan_op *op, int rank, int *const *place)
{
    int latest[TP_PLAN_MAX_RANKS] = {0}, waits = 0;
    for (int w = 0; w < op->waits; w++) {
        tp_wait *on = &op->wait[w];
        on->op = place[on->rank][on->op];
        latest[on->rank] = on->op > latest[on->rank] ? on->op : latest[on->rank];
    }
    for (int w = 0; w < op->waits; w++)
        if (op->wait[w].rank != rank && op->wait[w].op == latest[op->wait[w].rank])
            op->wait[waits++] = op->wait[w];
    op->waits = waits;
}

/* A pull's waits say when its data was there, from when on it crosses. One that left them to the pull before it on its
 * lane crosses no earlier than that one. */
static void keep_waits(tp_plan_rank *list, int rank, int *const *place)
{
    const tp_plan_op *before = NULL;
    for (int i = 0; i < list->count; i++) {
        tp_plan_op *op = &list->op[i];
        keep_latest(op, rank, place);
        if (op->kind != TP_OP_PULL)
            continue;
        if (op->waits == 0 && before != NULL) {
            op->wait = before->wait;
            op->waits = before->waits;
        }
        before = op;
    }
}

/* places: of each op of all ranks in the new order; order, copy: for one rank at a time. */
static void fold(tp_plan *plan, int most, int *places, int *order, tp_plan_op *copy)
{
    int *place[TP_PLAN_MAX_RANKS];
    for (int rank = 0; rank < plan->ranks; rank++) {
        tp_plan_rank *list = &plan->rank[rank];
        place[rank] = places + (size_t)rank * (size_t)most;
        find_order(list, rank, order);
        for (int i = 0; i < list->count; i++)
            copy[i] = list->op[i];
        for (int i = 0; i < list->count; i++) {
            place[rank][order[i]] = i;
            list->op[i] = copy[order[i]];
            list->op[i].lane = TP_LANE_COMPUTE;
        }
    }
    for (int rank = 0; rank < plan->ranks; rank++)
        keep_waits(&plan->rank[rank], rank, place);
}

tp_status tpi_plan_fold(tp_plan *plan)
{
    TPI_TRY(check(plan));
    int most = 0;
    for (int rank = 0; rank < plan->ranks; rank++)
        most = plan->rank[rank].count > most ? plan->rank[rank].count : most;
    int *places = calloc((size_t)plan->ranks * (size_t)most + 1, sizeof *places);
    int *order = calloc((size_t)most + 1, sizeof *order);
    tp_plan_op *copy = calloc((size_t)most + 1, sizeof *copy);
    bool enough = places != NULL && order != NULL && copy != NULL;
    if (enough)
        fold(plan, most, places, order, copy);
    free(places);
    free(order);
    free(copy);
    return enough ? TP_OK : tpi_message(TP_ERR_MEMORY, "plan: out of memory for %d ops a rank", most);
}
