/* Running a plan on streams that run behind the host: no task in a stream waits for a peer. An op that others wait for
 * is followed by an event, and its flag says that it was issued; a rank's thread waits for the flag, and then its
 * stream for the event. Lists are slices of one sequential program and each rank issues its own in order, so some rank
 * can always go on. A SEND is over when its receive is, which comes later in that program: its stream waits for that
 * only when something is issued behind it. */
#include "plan/execute_state.h"

/* ---- events ------------------------------------------------------------------------------------------------------ */

static tpi_event *event_of(const tpi_prepared *p, int rank, int flag)
{
    return p->event[(size_t)rank * (size_t)p->flags + (size_t)flag];
}

static bool is_known(const tpi_op_note *note)
{
    return note->recorded || note->peers > 0 || note->touches;
}

static tp_status make_own(tpi_prepared *p, tpi_event **own)
{
    const tpi_backend *backend = p->ctx->backend;
    for (int i = 0; i < p->list->count; i++) {
        if (p->list->op[i].kind == TP_OP_SEND && p->note[i].peers > 0)
            return tpi_refuse(p->ctx, TP_ERR_UNSUPPORTED,
                              "plan: another rank waits for op %d of rank %d, a send: not where streams run behind", i,
                              p->rank);
        if (is_known(&p->note[i]) && p->note[i].event == NULL)
            TPI_TRY(backend->event_create(p->ctx, &p->note[i].event));
        if (p->list->op[i].kind == TP_OP_SEND)
            TPI_TRY(backend->event_create(p->ctx, &p->note[i].posted));
        own[tpi_flag_done(i)] = p->note[i].event;
        own[tpi_flag_posted(i)] = p->note[i].posted;
    }
    return TP_OK;
}

/* Holds what peers have shown. A rank whose preparing fails waits for this stretch to end. */
static tp_status hold_peers(tpi_prepared *p)
{
    TPI_TRY(p->board->table->touch(p->board));
    for (int rank = 0; rank < p->plan->ranks; rank++)
        for (int flag = 0; rank != p->rank && flag < p->flags; flag++)
            if (event_of(p, rank, flag) != NULL)
                p->ctx->backend->event_share(event_of(p, rank, flag));
    p->held = true;
    p->board->table->untouch(p->board);
    return TP_OK;
}

static tp_status exchange_events(tpi_prepared *p, tpi_event *const *own)
{
    char mine = 0, all[TP_PLAN_MAX_RANKS];
    TPI_TRY(p->comm->table->exchange(p->ctx, p->comm, own, p->event, (size_t)p->flags * sizeof *own));
    TPI_TRY(hold_peers(p));
    return p->comm->table->exchange(p->ctx, p->comm, &mine, all, sizeof mine);
}

tp_status tpi_behind_prepare(tpi_prepared *p)
{
    size_t row = (size_t)p->flags * sizeof *p->event;
    p->event_bytes = ((size_t)p->plan->ranks + 1) * row;
    p->event = tpi_host_allocate(p->ctx, p->event_bytes);
    if (p->event == NULL) /* peers come to the exchange */
        return tpi_fail(p->ctx, TP_ERR_MEMORY, "plan executor: out of memory");
    tpi_event **own = p->event + (size_t)p->plan->ranks * (size_t)p->flags;
    TPI_TRY(make_own(p, own));
    tp_status status = exchange_events(p, own);
    if (status != TP_OK)
        p->board->table->settle(p->board);
    return status;
}

void tpi_behind_free(tpi_prepared *p)
{
    for (int rank = 0; p->held && rank < p->plan->ranks; rank++)
        for (int flag = 0; rank != p->rank && flag < p->flags; flag++)
            p->ctx->backend->event_destroy(event_of(p, rank, flag));
    for (int i = 0; p->note != NULL && i < p->list->count; i++)
        if (p->note[i].posted != NULL)
            p->ctx->backend->event_destroy(p->note[i].posted);
    if (p->event != NULL)
        tpi_host_release(p->ctx, p->event, p->event_bytes);
}

/* ---- issuing ----------------------------------------------------------------------------------------------------- */

static const tpi_backend *backend_of(const tpi_run *run)
{
    return run->prepared->ctx->backend;
}

static tpi_stream *stream_of(const tpi_run *run, tp_lane lane)
{
    return run->prepared->ctx->executor->lane[lane];
}

/* The thread waits until a peer has issued what the flag stands for. */
static tp_status wait_issued(const tpi_run *run, int rank, int flag)
{
    const tpi_prepared *p = run->prepared;
    const tpi_board_wait wait = tpi_wait_of(run, TP_LANES, rank, flag);
    return p->board->table->wait(p->board, &wait, NULL);
}

/* And the stream until that is done. */
static tp_status wait_for(const tpi_run *run, tp_lane lane, int rank, int flag)
{
    TPI_TRY(wait_issued(run, rank, flag));
    return backend_of(run)->event_wait(event_of(run->prepared, rank, flag), stream_of(run, lane));
}

static void show_issued(const tpi_run *run, int index)
{
    const tpi_prepared *p = run->prepared;
    const tpi_op_note *note = &p->note[index];
    if (p->board != NULL && is_known(note))
        p->board->table->raise(p->board, tpi_flag_done(index), run->epoch, 0, note->peer, note->peers);
}

static tp_status record(const tpi_run *run, int index)
{
    const tpi_prepared *p = run->prepared;
    if (p->note[index].event != NULL)
        TPI_TRY(backend_of(run)->event_record(p->note[index].event, stream_of(run, p->list->op[index].lane)));
    show_issued(run, index);
    return TP_OK;
}

/* The send last issued on the lane is over when its receive is. */
static tp_status end_send(tpi_run *run, tp_lane lane)
{
    const tpi_prepared *p = run->prepared;
    int index = run->sending[lane] - 1;
    if (index < 0)
        return TP_OK;
    run->sending[lane] = 0;
    TPI_TRY(wait_for(run, lane, p->list->op[index].peer, tpi_flag_done(p->note[index].partner)));
    return record(run, index);
}

/* What forking and joining the lanes does already: this rank's ENTER, issued before anything else, is where they fork;
 * its LEAVE, if nothing waits for it, is where they join. */
static bool is_border(const tpi_run *run, int index, int on)
{
    const tpi_prepared *p = run->prepared;
    const tpi_plan_issue *issue = run->job.table->issue;
    return (on == 0 && p->list->op[on].kind == TP_OP_ENTER && issue[TP_OP_ENTER] == NULL) ||
           (p->list->op[index].kind == TP_OP_LEAVE && p->note[index].event == NULL && issue[TP_OP_LEAVE] == NULL);
}

bool tpi_behind_left(const tpi_run *run, tp_lane lane)
{
    const tpi_prepared *p = run->prepared;
    int index = p->last[TP_LANE_COMPUTE], last = p->last[lane];
    const tp_plan_op *leave = &p->list->op[index];
    if (leave->kind != TP_OP_LEAVE || is_border(run, index, last) || p->list->op[last].kind == TP_OP_SEND ||
        p->messages.message != NULL)
        return false;
    for (int w = 0; w < leave->waits; w++)
        if (leave->wait[w].rank == p->rank && leave->wait[w].op == last)
            return true;
    return false;
}

static tp_status wait_for_sender(const tpi_run *run, int index)
{
    const tp_plan_op *op = &run->prepared->list->op[index];
    const tpi_op_note *note = &run->prepared->note[index];
    return note->follows ? wait_issued(run, op->peer, tpi_flag_posted(note->partner))
                         : wait_for(run, op->lane, op->peer, tpi_flag_posted(note->partner));
}

/* Nobody asks for the send under way, and the next one, a send too, is over when both are. */
static bool sends_on(const tpi_run *run, int index)
{
    const tpi_prepared *p = run->prepared;
    const tp_plan_op *op = &p->list->op[index];
    int sending = run->sending[op->lane] - 1;
    return sending >= 0 && op->kind == TP_OP_SEND && p->note[index].follows && p->note[sending].event == NULL;
}

static tp_status wait_for_all(tpi_run *run, int index)
{
    const tpi_prepared *p = run->prepared;
    const tp_plan_op *op = &p->list->op[index];
    if (!sends_on(run, index))
        TPI_TRY(end_send(run, op->lane));
    for (int w = 0; w < op->waits; w++) {
        const tp_wait *wait = &op->wait[w];
        if (wait->rank != p->rank) {
            TPI_TRY(wait_for(run, op->lane, wait->rank, tpi_flag_done(wait->op)));
            continue;
        }
        if (is_border(run, index, wait->op))
            continue;
        tp_lane other = p->list->op[wait->op].lane;
        if (run->sending[other] == wait->op + 1)
            TPI_TRY(end_send(run, other));
        if (other != op->lane)
            TPI_TRY(backend_of(run)->event_wait(p->note[wait->op].event, stream_of(run, op->lane)));
    }
    return op->kind == TP_OP_RECV && p->messages.message == NULL ? wait_for_sender(run, index) : TP_OK;
}

static tp_status post_send(tpi_run *run, int index)
{
    const tpi_prepared *p = run->prepared;
    const tp_plan_op *op = &p->list->op[index];
    TPI_TRY(backend_of(run)->event_record(p->note[index].posted, stream_of(run, op->lane)));
    p->board->table->raise(p->board, tpi_flag_posted(index), run->epoch, 0, &op->peer, 1);
    run->sending[op->lane] = index + 1;
    return TP_OK;
}

/* A stretch that touches peers' memory: whoever settles after it finds a flag for all that was issued in it. */
static tp_status issue_touching(tpi_run *run, int index)
{
    const tpi_prepared *p = run->prepared;
    const tp_plan_op *op = &p->list->op[index];
    TPI_TRY(tpi_see_pages(run, op));
    TPI_TRY(tpi_check_pages(run, op));
    TPI_TRY(p->board->table->touch(p->board));
    tp_status status = tpi_call_issue(run, stream_of(run, op->lane), op);
    tp_status recorded = record(run, index); /* also of what was issued before a failure */
    p->board->table->untouch(p->board);
    return status != TP_OK ? status : recorded;
}

static tp_status issue_op(tpi_run *run, int index)
{
    const tpi_prepared *p = run->prepared;
    const tp_plan_op *op = &p->list->op[index];
    bool timed = op->lane == TP_LANE_COMPUTE && p->note[index].looks;
    double begin = timed ? tpi_seconds() : 0;
    tp_status status = wait_for_all(run, index);
    if (timed)
        tpi_add_seconds(p->ctx, 0, tpi_seconds() - begin);
    TPI_TRY(status);
    if (p->messages.message != NULL && (op->kind == TP_OP_SEND || op->kind == TP_OP_RECV))
        return tpi_messages_issue(run, index);
    if (op->kind == TP_OP_SEND)
        return post_send(run, index);
    if (p->note[index].touches && p->board != NULL)
        return issue_touching(run, index);
    TPI_TRY(tpi_call_issue(run, stream_of(run, op->lane), op));
    return record(run, index);
}

tp_status tpi_behind_issue(tpi_run *run)
{
    const tpi_prepared *p = run->prepared;
    for (int lane = 0; lane < TP_LANES; lane++)
        run->sending[lane] = 0;
    run->next_message = 0;
    for (int i = 0; i < p->list->count; i++)
        TPI_TRY(issue_op(run, i));
    for (int lane = 0; lane < TP_LANES; lane++)
        TPI_TRY(end_send(run, (tp_lane)lane));
    return TP_OK;
}

/* ---- after a failure --------------------------------------------------------------------------------------------- */

static bool touches_rank(const tp_plan_op *op, int rank)
{
    for (int i = 0; i < op->reads + op->writes; i++)
        if ((i < op->reads ? op->read[i].rank : op->write[i - op->reads].rank) == rank)
            return true;
    return op->kind == TP_OP_RECV && op->peer == rank;
}

/* Nobody issues anything more that touches this rank's memory; what was issued is waited for. */
void tpi_behind_settle(const tpi_run *run)
{
    const tpi_prepared *p = run->prepared;
    for (int rank = 0; rank < p->plan->ranks; rank++)
        for (int i = 0; rank != p->rank && i < p->plan->rank[rank].count; i++) {
            int flag = tpi_flag_done(i);
            if (touches_rank(&p->plan->rank[rank].op[i], p->rank) && event_of(p, rank, flag) != NULL &&
                p->board->table->reached(p->board, rank, flag, run->epoch))
                p->ctx->backend->event_synchronize(p->ctx, event_of(p, rank, flag));
        }
}
