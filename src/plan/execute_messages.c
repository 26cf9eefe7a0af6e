/* Plans of messages alone on ranks that don't reach each other's memory: the communicator moves what is sent (NCCL
 * between processes). A send and a receive on one lane would wait for each other all round a ring, so messages are
 * issued in groups that begin together.
 *
 * A message's level is one more than that of every message before it: those that its sender sent and its receiver
 * received before, and those that the plan's waits put before it on either side. It is the same on both sides, so ranks
 * that issue their messages level by level, those of one level together, never wait for each other in a circle. In a
 * ring a level is a hop. */
#include "plan/execute_state.h"

/* One number an op of each rank, in one memory. */
typedef struct op_numbers {
    int *at[TP_PLAN_MAX_RANKS];
    int *memory;
    size_t bytes;
} op_numbers;

static bool is_message(const tp_plan_op *op)
{
    return op->kind == TP_OP_SEND || op->kind == TP_OP_RECV;
}

static bool stays_at_home(const tp_plan_op *op, int rank)
{
    for (int w = 0; w < op->waits; w++)
        if (op->wait[w].rank != rank)
            return false;
    for (int i = 0; i < op->reads + op->writes; i++)
        if ((i < op->reads ? op->read[i].rank : op->write[i - op->reads].rank) != rank)
            return false;
    return true;
}

bool tpi_messages_suffice(const tp_plan *plan)
{
    int messages = 0;
    for (int rank = 0; rank < plan->ranks; rank++)
        for (int i = 0; i < plan->rank[rank].count; i++) {
            const tp_plan_op *op = &plan->rank[rank].op[i];
            if (!stays_at_home(op, rank))
                return false;
            messages += is_message(op);
        }
    return messages > 0;
}

static tp_status make_numbers(tp_ctx *ctx, const tp_plan *plan, op_numbers *out)
{
    size_t total = 0;
    for (int rank = 0; rank < plan->ranks; rank++)
        total += (size_t)plan->rank[rank].count;
    out->bytes = (total + 1) * sizeof *out->memory;
    out->memory = tpi_host_allocate(ctx, out->bytes);
    if (out->memory == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "plan: out of memory for the order of %zu ops", total);
    int *next = out->memory;
    for (int rank = 0; rank < plan->ranks; rank++) {
        out->at[rank] = next;
        next += plan->rank[rank].count;
    }
    return TP_OK;
}

static void free_numbers(tp_ctx *ctx, op_numbers *numbers)
{
    if (numbers->memory != NULL)
        tpi_host_release(ctx, numbers->memory, numbers->bytes);
}

/* ---- levels ------------------------------------------------------------------------------------------------------ */

/* The deepest of what comes before an op: by its waits, and by the order of its lane. */
static int level_before(const tp_plan *plan, const op_numbers *level, int rank, int index)
{
    const tp_plan_rank *list = &plan->rank[rank];
    int deepest = 0, before = index - 1;
    while (before >= 0 && list->op[before].lane != list->op[index].lane)
        before--;
    if (before >= 0)
        deepest = level->at[rank][before];
    for (int w = 0; w < list->op[index].waits; w++) {
        int other = level->at[rank][list->op[index].wait[w].op];
        deepest = other > deepest ? other : deepest;
    }
    return deepest;
}

static bool raise_level(const tp_plan *plan, const op_numbers *partner, op_numbers *level, int rank, int index)
{
    const tp_plan_op *op = &plan->rank[rank].op[index];
    int deepest = level_before(plan, level, rank, index);
    if (is_message(op)) {
        int other = level_before(plan, level, op->peer, partner->at[rank][index]);
        deepest = 1 + (other > deepest ? other : deepest);
    }
    if (deepest <= level->at[rank][index])
        return false;
    level->at[rank][index] = deepest;
    return true;
}

/* Raised until they are right. The plan is proven: there is no circle. */
static void find_levels(const tp_plan *plan, const op_numbers *partner, op_numbers *level)
{
    bool changed = true;
    while (changed) {
        changed = false;
        for (int rank = 0; rank < plan->ranks; rank++)
            for (int i = 0; i < plan->rank[rank].count; i++)
                changed = raise_level(plan, partner, level, rank, i) || changed;
    }
}

/* ---- this rank's messages by level ------------------------------------------------------------------------------- */

static int count_messages(const tp_plan_rank *list)
{
    int count = 0;
    for (int i = 0; i < list->count; i++)
        count += is_message(&list->op[i]);
    return count;
}

/* A stable order: those of one level stay in the order of the list, which both sides of a pair of ranks have. */
static void sort_by_level(const tp_plan_rank *list, const int *level, tpi_grouped *message)
{
    int count = 0;
    for (int i = 0; i < list->count; i++) {
        if (!is_message(&list->op[i]))
            continue;
        int place = count++;
        for (; place > 0 && message[place - 1].level > level[i]; place--)
            message[place] = message[place - 1];
        message[place] = (tpi_grouped){.op = i, .level = level[i]};
    }
    for (int i = 0, issued = 0; i < count; i++) { /* a group is issued with its last message, and not before those of
                                                   * lower levels */
        for (int k = i; k < count && message[k].level == message[i].level; k++)
            issued = message[k].op > issued ? message[k].op : issued;
        message[i].issued = issued;
    }
}

/* Every op that waits for a message comes behind its group, and groups fit into one call. */
static bool can_issue(const tp_plan_rank *list, const tpi_grouped *message, int count)
{
    for (int m = 0; m < count; m++) {
        if (m + TPI_GROUP_MESSAGES < count && message[m + TPI_GROUP_MESSAGES].level == message[m].level)
            return false;
        for (int i = 0; i < message[m].issued; i++)
            for (int w = 0; w < list->op[i].waits; w++)
                if (list->op[i].wait[w].op == message[m].op && !is_message(&list->op[i]))
                    return false;
    }
    return true;
}

static tp_status fill(tp_ctx *ctx, const tp_plan *plan, int rank, tpi_grouped *message, int count)
{
    op_numbers partner = {.memory = NULL}, level = {.memory = NULL};
    tp_status status = make_numbers(ctx, plan, &partner);
    if (status == TP_OK)
        status = make_numbers(ctx, plan, &level);
    if (status == TP_OK) {
        for (int r = 0; r < plan->ranks; r++)
            for (int i = 0; i < plan->rank[r].count; i++) {
                partner.at[r][i] = tpi_partner_of(plan, r, i);
                level.at[r][i] = 0;
            }
        find_levels(plan, &partner, &level);
        sort_by_level(&plan->rank[rank], level.at[rank], message);
        if (!can_issue(&plan->rank[rank], message, count))
            status = tpi_refuse(
                ctx, TP_ERR_UNSUPPORTED, "plan %s %s: rank %d needs a message before those that must begin with it",
                tp_overlap_name((tp_overlap)plan->algorithm), tp_pattern_name((tp_pattern)plan->pattern), rank);
    }
    free_numbers(ctx, &partner);
    free_numbers(ctx, &level);
    return status;
}

tp_status tpi_messages_find(tp_ctx *ctx, const tp_plan *plan, int rank, tpi_messages *out)
{
    *out = (tpi_messages){.count = count_messages(&plan->rank[rank])};
    out->message = tpi_host_allocate(ctx, (size_t)(out->count + 1) * sizeof *out->message);
    if (out->message == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "plan: out of memory for %d messages", out->count);
    tp_status status = fill(ctx, plan, rank, out->message, out->count);
    if (status != TP_OK)
        tpi_messages_free(ctx, out);
    return status;
}

void tpi_messages_free(tp_ctx *ctx, tpi_messages *messages)
{
    if (messages->message != NULL)
        tpi_host_release(ctx, messages->message, (size_t)(messages->count + 1) * sizeof *messages->message);
    *messages = (tpi_messages){.count = 0};
}

/* Their order on it is that of the groups, so all messages share a lane. */
void tpi_messages_share_lane(tp_plan *plan)
{
    for (int rank = 0; rank < plan->ranks; rank++)
        for (int i = 0; i < plan->rank[rank].count; i++)
            if (is_message(&plan->rank[rank].op[i]))
                plan->rank[rank].op[i].lane = TP_LANE_COMM;
}

/* ---- issuing ----------------------------------------------------------------------------------------------------- */

tp_status tpi_messages_issue(tpi_run *run, int index)
{
    const tpi_prepared *p = run->prepared;
    const tpi_messages *all = &p->messages;
    while (run->next_message < all->count && all->message[run->next_message].issued <= index) {
        int first = run->next_message, count = 0;
        tp_p2p ops[TPI_GROUP_MESSAGES];
        for (; first + count < all->count && all->message[first + count].level == all->message[first].level; count++) {
            const tp_plan_op *op = &p->list->op[all->message[first + count].op];
            bool sends = op->kind == TP_OP_SEND;
            ops[count] =
                (tp_p2p){.send = sends, .peer = op->peer, .tensor = tpi_run_tensor(run, sends ? op->read : op->write)};
        }
        run->next_message = first + count;
        TPI_TRY(tpi_comm_p2p(p->ctx->executor->lane[TP_LANE_COMM], p->lane_comm, ops, count));
        for (int i = 0; i < count; i++) {
            const tpi_op_note *note = &p->note[all->message[first + i].op];
            if (note->event != NULL)
                TPI_TRY(p->ctx->backend->event_record(note->event, p->ctx->executor->lane[TP_LANE_COMM]));
        }
    }
    return TP_OK;
}
