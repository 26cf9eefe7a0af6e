/* Running a prepared plan. Every op is issued with a task before it, which waits for peers, and one after it, which
 * tells those who wait. */
#include "plan/execute_state.h"

/* What the tasks around an op get. */
typedef struct op_step {
    tpi_run *run;
    int op;
} op_step;

static int64_t now(void)
{
    return (int64_t)(tpi_seconds() * 1e9);
}

tpi_page *tpi_run_page(const tpi_run *run, int rank)
{
    const tpi_board *board = run->prepared->board;
    return (tpi_page *)board->table->page(board, rank) + run->epoch % TPI_RUN_SLOTS;
}

/* ---- around an op ------------------------------------------------------------------------------------------------ */

tpi_board_wait tpi_wait_of(const tpi_run *run, int lane, int rank, int flag)
{
    const tpi_prepared *p = run->prepared;
    tpi_board_wait wait = {.lane = lane, .rank = rank, .flag = flag, .epoch = run->epoch, .op = flag / 2};
    if (flag == tpi_flag_shown(p))
        return wait;
    wait.kind = tp_op_name(p->plan->rank[rank].op[wait.op].kind);
    wait.posted = flag == tpi_flag_posted(wait.op);
    return wait;
}

static tp_status wait_for(const tpi_run *run, tp_lane lane, int rank, int flag, int64_t *ready)
{
    tpi_board *board = run->prepared->board;
    const tpi_board_wait wait = tpi_wait_of(run, (int)lane, rank, flag);
    int64_t stamp = 0;
    TPI_TRY(board->table->wait(board, &wait, &stamp));
    *ready = stamp > *ready ? stamp : *ready;
    return TP_OK;
}

static tp_status wait_for_all(const tpi_run *run, int index, int64_t *ready)
{
    const tpi_prepared *p = run->prepared;
    const tp_plan_op *op = &p->list->op[index];
    for (int w = 0; w < op->waits; w++) {
        const tp_wait *wait = &op->wait[w];
        if (wait->rank != p->rank)
            TPI_TRY(wait_for(run, op->lane, wait->rank, tpi_flag_done(wait->op), ready));
        else if (run->stamp[wait->op] > *ready)
            *ready = run->stamp[wait->op];
    }
    if (op->kind == TP_OP_RECV)
        TPI_TRY(wait_for(run, op->lane, op->peer, tpi_flag_posted(p->note[index].partner), ready));
    return TP_OK;
}

/* Ranks that run a plan for different numbers of tokens, columns or dtypes must not touch each other's memory. */
static tp_status check_page(const tpi_run *run, int rank, int buffer)
{
    const tpi_prepared *p = run->prepared;
    const tpi_page *page = tpi_run_page(run, rank);
    const tpi_view *mine = &run->job.view[buffer], *theirs = &page->view[buffer];
    const char *algorithm = tp_overlap_name((tp_overlap)p->plan->algorithm),
               *pattern = tp_pattern_name((tp_pattern)p->plan->pattern);
    if (page->tokens != run->job.tokens)
        return tpi_fail(p->ctx, TP_ERR_MISMATCH, "plan %s %s: rank %d runs it for %lld tokens, rank %d for %lld",
                        algorithm, pattern, p->rank, (long long)run->job.tokens, rank, (long long)page->tokens);
    if (mine->dtype == theirs->dtype && mine->cols == theirs->cols)
        return TP_OK;
    return tpi_fail(p->ctx, TP_ERR_MISMATCH,
                    "plan %s %s: %s of rank %d has %lld columns of %s, that of rank %d %lld of %s", algorithm, pattern,
                    tp_buffer_name((tp_buffer)buffer), p->rank, (long long)mine->cols, tp_dtype_name(mine->dtype), rank,
                    (long long)theirs->cols, tp_dtype_name(theirs->dtype));
}

tp_status tpi_check_pages(const tpi_run *run, const tp_plan_op *op)
{
    const tpi_prepared *p = run->prepared;
    for (int i = 0; i < op->reads + op->writes; i++) {
        const tp_region *region = i < op->reads ? &op->read[i] : &op->write[i - op->reads];
        if (region->rank != p->rank)
            TPI_TRY(check_page(run, region->rank, (int)region->buffer));
    }
    if (op->kind != TP_OP_RECV)
        return TP_OK;
    const tp_plan_op *sent = &p->plan->rank[op->peer].op[p->note[op - p->list->op].partner];
    return check_page(run, op->peer, (int)sent->read[0].buffer);
}

static bool is_transfer(tp_op_kind kind)
{
    return kind == TP_OP_PULL || kind == TP_OP_PUSH || kind == TP_OP_RECV;
}

static tp_status before_op(tp_ctx *ctx, const void *pointer)
{
    const op_step *step = pointer;
    tpi_run *run = step->run;
    const tpi_prepared *p = run->prepared;
    tp_lane lane = p->list->op[step->op].lane;
    bool timed = lane == TP_LANE_COMPUTE && p->note[step->op].looks;
    double begin = timed ? tpi_seconds() : 0;
    tp_status status = wait_for_all(run, step->op, &run->lane_ready[lane]);
    if (timed)
        tpi_add_seconds(ctx, 0, tpi_seconds() - begin);
    TPI_TRY(status);
    if (p->note[step->op].touches && p->board != NULL) {
        TPI_TRY(tpi_check_pages(run, &p->list->op[step->op]));
        TPI_TRY(p->board->table->touch(p->board));
        run->lane_touching[lane] = true;
        /* A transfer's time runs from when it could begin, however late its lane woke up; what computes on peers'
         * memory moves it as it goes. */
        if (!is_transfer(p->list->op[step->op].kind)) {
            int64_t moment = now();
            run->lane_ready[lane] = moment > run->lane_ready[lane] ? moment : run->lane_ready[lane];
        }
    }
    if (lane == TP_LANE_COMPUTE && is_transfer(p->list->op[step->op].kind))
        run->moving_since = tpi_seconds();
    if (run->traced)
        run->lane_begin[lane] = tpi_seconds();
    return TP_OK;
}

/* When the modelled link is through with what the op moved: data that came from a peer, or went to one. */
static int64_t deliver(const tpi_run *run, int index)
{
    const tpi_prepared *p = run->prepared;
    const tp_plan_op *op = &p->list->op[index];
    int64_t ready = run->lane_ready[op->lane], done = ready;
    if (op->kind == TP_OP_RECV) {
        size_t bytes = tpi_run_bytes(run, op->write);
        return bytes > 0 ? p->board->table->deliver(p->board, op->peer, p->rank, bytes, ready) : ready;
    }
    for (int i = 0; i < op->reads + op->writes; i++) {
        const tp_region *region = i < op->reads ? &op->read[i] : &op->write[i - op->reads];
        size_t bytes = region->rank != p->rank ? tpi_run_bytes(run, region) : 0;
        if (bytes == 0)
            continue;
        int from = i < op->reads ? region->rank : p->rank, to = i < op->reads ? p->rank : region->rank;
        int64_t through = p->board->table->deliver(p->board, from, to, bytes, ready);
        done = through > done ? through : done;
    }
    return done;
}

/* What compute moves itself counts as communication, and so does what it waits for the link. */
static void await_link(const tpi_run *run, const tp_plan_op *op, int64_t done)
{
    const tpi_prepared *p = run->prepared;
    bool moves = is_transfer(op->kind), waits = done > run->lane_ready[op->lane];
    bool timed = op->lane == TP_LANE_COMPUTE && (moves || waits);
    double begin = !timed ? 0 : moves ? run->moving_since : tpi_seconds();
    p->board->table->sleep_until(p->board, done);
    if (timed)
        tpi_add_seconds(p->ctx, 0, tpi_seconds() - begin);
}

static void finish_op(tpi_run *run, int index)
{
    const tpi_prepared *p = run->prepared;
    const tp_plan_op *op = &p->list->op[index];
    int64_t done = run->stamp[index];
    if (p->note[index].touches && p->board != NULL) {
        done = deliver(run, index);
        await_link(run, op, done);
    }
    if (!is_transfer(op->kind) && op->kind != TP_OP_SEND) {
        int64_t moment = now();
        done = moment > done ? moment : done;
    }
    run->stamp[index] = done;
    if (p->note[index].peers > 0)
        p->board->table->raise(p->board, tpi_flag_done(index), run->epoch, done, p->note[index].peer,
                               p->note[index].peers);
}

static void record_span(const tpi_run *run, int index)
{
    const tpi_prepared *p = run->prepared;
    struct tpi_executor *executor = p->ctx->executor;
    int64_t place = atomic_fetch_add(&executor->traced, 1);
    if (place < executor->trace_capacity)
        executor->trace[place] = (tp_trace_span){.plan = p->plan,
                                                 .execution = run->epoch - 1,
                                                 .op = index,
                                                 .begin = run->lane_begin[p->list->op[index].lane],
                                                 .end = tpi_seconds()};
}

static tp_status after_op(tp_ctx *ctx, const void *pointer)
{
    const op_step *step = pointer;
    tpi_run *run = step->run;
    const tpi_prepared *p = run->prepared;
    const tp_plan_op *op = &p->list->op[step->op];
    if (run->lane_touching[op->lane])
        p->board->table->untouch(p->board);
    run->lane_touching[op->lane] = false;
    if (tp_ctx_failure(ctx) != TP_OK) {
        if (op->kind == TP_OP_LEAVE && p->board != NULL)
            p->board->table->settle(p->board);
        return TP_OK;
    }
    finish_op(run, step->op);
    if (run->traced)
        record_span(run, step->op);
    return TP_OK;
}

/* ---- issuing ----------------------------------------------------------------------------------------------------- */

static const tpi_plan_issue general[TP_OP_KINDS] = {
    [TP_OP_PULL] = tpi_issue_transfer, [TP_OP_PUSH] = tpi_issue_transfer,       [TP_OP_COPY] = tpi_issue_transfer,
    [TP_OP_SEND] = tpi_issue_transfer, [TP_OP_RECV] = tpi_issue_transfer,       [TP_OP_REDUCE] = tpi_issue_reduce,
    [TP_OP_COLLECTIVE] = tpi_issue_collective,
};

tp_status tpi_call_issue(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    tpi_plan_issue issue = run->job.table->issue[op->kind] ? run->job.table->issue[op->kind] : general[op->kind];
    if (!issue)
        return TP_OK;
    const tpi_backend *backend = run->prepared->ctx->backend;
    backend->range_push(tp_op_name(op->kind));
    tp_status status = issue(run, stream, op);
    backend->range_pop();
    return status;
}

/* Peers' addresses are needed to issue an op that touches their memory. Where ops are issued ahead of time, the issuing
 * thread waits for them. */
tp_status tpi_see_pages(const tpi_run *run, const tp_plan_op *op)
{
    const tpi_prepared *p = run->prepared;
    for (int i = 0; i < op->reads + op->writes; i++) {
        int rank = i < op->reads ? op->read[i].rank : op->write[i - op->reads].rank;
        if (rank == p->rank)
            continue;
        const tpi_board_wait wait = tpi_wait_of(run, TP_LANES, rank, tpi_flag_shown(p));
        TPI_TRY(p->board->table->wait(p->board, &wait, NULL));
    }
    return TP_OK;
}

static tp_status issue_between(tpi_run *run, tpi_stream *stream, int index)
{
    const tpi_prepared *p = run->prepared;
    const tp_plan_op *op = &p->list->op[index];
    const op_step step = {run, index};
    if (p->ahead && p->note[index].touches && p->board != NULL)
        TPI_TRY(tpi_see_pages(run, op)); /* before the stretch that touches: those never wait */
    TPI_TRY(p->ctx->backend->run(stream, before_op, &step, sizeof step));
    return tpi_call_issue(run, stream, op);
}

static tp_status issue_op(tpi_run *run, int index)
{
    tpi_prepared *p = run->prepared;
    const tpi_backend *backend = p->ctx->backend;
    const tp_plan_op *op = &p->list->op[index];
    tpi_stream *stream = p->ctx->executor->lane[op->lane];
    for (int w = 0; w < op->waits; w++)
        if (op->wait[w].rank == p->rank && p->list->op[op->wait[w].op].lane != op->lane)
            TPI_TRY(backend->event_wait(p->note[op->wait[w].op].event, stream));
    tp_status status = issue_between(run, stream, index);
    const op_step step = {run, index};
    tp_status after = backend->run_anyway(stream, after_op, &step, sizeof step);
    TPI_TRY(status);
    TPI_TRY(after);
    return p->note[index].event != NULL ? backend->event_record(p->note[index].event, stream) : TP_OK;
}

static tp_status issue_ops(tpi_run *run)
{
    for (int i = 0; i < run->prepared->list->count; i++)
        TPI_TRY(issue_op(run, i));
    return TP_OK;
}

static tp_status fork_lanes(tpi_prepared *p)
{
    struct tpi_executor *executor = p->ctx->executor;
    if (!p->forks[TP_LANE_COMM] && !p->forks[TP_LANE_COPY])
        return TP_OK;
    TPI_TRY(p->ctx->backend->event_record(executor->fork, p->ctx->compute));
    for (int lane = TP_LANE_COMM; lane < TP_LANES; lane++)
        if (p->forks[lane])
            TPI_TRY(p->ctx->backend->event_wait(executor->fork, executor->lane[lane]));
    return TP_OK;
}

/* After a failure the op that waits for a lane may be missing. */
static bool needs_join(const tpi_run *run, tp_lane lane, bool failed)
{
    const tpi_prepared *p = run->prepared;
    if (failed || !p->joins[lane])
        return failed && p->uses[lane];
    return !p->behind || !tpi_behind_left(run, lane);
}

static tp_status join_lanes(const tpi_run *run, bool failed)
{
    const tpi_prepared *p = run->prepared;
    struct tpi_executor *executor = p->ctx->executor;
    for (int lane = TP_LANE_COMM; lane < TP_LANES; lane++) {
        if (!needs_join(run, (tp_lane)lane, failed))
            continue;
        TPI_TRY(p->ctx->backend->event_record(executor->join[lane], executor->lane[lane]));
        TPI_TRY(p->ctx->backend->event_wait(executor->join[lane], p->ctx->compute));
    }
    return TP_OK;
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

static tp_status end_run(tp_ctx *ctx, const void *pointer)
{
    tpi_run *const *run = pointer;
    (void)ctx;
    atomic_store(&(*run)->busy, 0);
    return TP_OK;
}

/* Ops of a backend whose streams run behind were given everything when they were issued. */
static tp_status end_when_done(tpi_run *run)
{
    tp_ctx *ctx = run->prepared->ctx;
    if (!ctx->backend->behind)
        return ctx->backend->run_anyway(ctx->compute, end_run, &run, sizeof run);
    atomic_store(&run->busy, 0);
    return TP_OK;
}

static tp_status begin_run(tpi_prepared *p, const tpi_job *job, tpi_view *output, tpi_run **out)
{
    unsigned epoch = ++p->runs;
    tpi_run *run = &p->slot[epoch % TPI_RUN_SLOTS];
    if (atomic_load(&run->busy))
        TPI_TRY(p->ctx->backend->stream_synchronize(p->ctx->compute));
    run->job = *job;
    run->epoch = epoch;
    run->traced = p->ctx->executor->trace != NULL;
    for (int lane = 0; lane < TP_LANES; lane++)
        run->lane_ready[lane] = 0;
    TPI_TRY(tpi_dense_begin(run, output));
    atomic_store(&run->busy, 1);
    *out = run;
    if (p->board == NULL)
        return TP_OK;
    tpi_page *page = tpi_run_page(run, p->rank);
    page->tokens = run->job.tokens;
    for (int buffer = 0; buffer < TP_BUFFERS; buffer++)
        page->view[buffer] = run->job.view[buffer];
    if (p->ahead || p->behind) {
        int peer[TP_PLAN_MAX_RANKS], peers = 0;
        for (int rank = 0; rank < p->plan->ranks; rank++)
            if (rank != p->rank)
                peer[peers++] = rank;
        p->board->table->raise(p->board, tpi_flag_shown(p), epoch, 0, peer, peers);
    }
    return TP_OK;
}

/* Nothing beside the compute stream, nobody to wait for: ops are simply called. */
static bool is_plain(const tpi_prepared *p)
{
    return p->board == NULL && !p->uses[TP_LANE_COMM] && !p->uses[TP_LANE_COPY];
}

static tp_status issue_plain(const tpi_run *run)
{
    const tpi_prepared *p = run->prepared;
    for (int i = 0; i < p->list->count; i++)
        TPI_TRY(tpi_call_issue(run, p->ctx->compute, &p->list->op[i]));
    return TP_OK;
}

/* No lane may run on in memory that the caller is about to free, and no peer may touch it. */
static tp_status break_off(const tpi_run *run, tp_status status)
{
    tpi_prepared *p = run->prepared;
    tp_ctx *ctx = p->ctx;
    if (tp_ctx_failure(ctx) == TP_OK)
        tpi_fail(ctx, status, "%s", tp_ctx_message(ctx)[0] ? tp_ctx_message(ctx) : tp_status_text(status));
    for (int lane = 0; lane < TP_LANES; lane++)
        if (p->uses[lane])
            ctx->backend->stream_synchronize(ctx->executor->lane[lane]);
    if (p->board != NULL)
        p->board->table->settle(p->board);
    if (p->board != NULL && p->behind)
        tpi_behind_settle(run);
    return tpi_ctx_usable(ctx);
}

static void note_run(const tpi_prepared *p, const tpi_job *job)
{
    struct tpi_executor *executor = p->ctx->executor;
    if (executor->notes == NULL || executor->noted == executor->note_capacity)
        return;
    tpi_run_note *note = &executor->notes[executor->noted++];
    *note = (tpi_run_note){.plan = p->plan, .tokens = job->tokens, .dtype = job->view[TP_BUFFER_INPUT].dtype};
    for (int buffer = 0; buffer < TP_BUFFERS; buffer++)
        note->cols[buffer] = job->view[buffer].cols;
}

static tp_status issue_on_lanes(tpi_run *run)
{
    tpi_prepared *p = run->prepared;
    tp_status status = fork_lanes(p);
    if (status == TP_OK)
        status = p->behind ? tpi_behind_issue(run) : issue_ops(run);
    tp_status joined = join_lanes(run, status != TP_OK);
    return status != TP_OK ? status : joined;
}

/* The job's norm, unless an op has done it. */
static tp_status norm_behind(const tpi_run *run)
{
    const tpi_prepared *p = run->prepared;
    if (run->job.norm == NULL)
        return TP_OK;
    for (int i = 0; i < p->list->count; i++)
        if (tpi_op_norms(run, &p->list->op[i]))
            return TP_OK;
    return tpi_norm(p->ctx->compute, run->job.norm);
}

static tp_status run_in_scratch(tpi_prepared *p, const tpi_job *job)
{
    tpi_run *run = NULL;
    tpi_view output;
    TPI_TRY(begin_run(p, job, &output, &run));
    note_run(p, job);
    bool plain = is_plain(p);
    tp_status status = p->agrees ? tpi_agree(run) : TP_OK;
    if (status == TP_OK)
        status = plain && (!run->traced || p->behind) ? issue_plain(run) : issue_on_lanes(run);
    if (status == TP_OK)
        status = tpi_dense_end(run, &output);
    if (status == TP_OK)
        status = norm_behind(run);
    tp_status ended = end_when_done(run);
    status = status != TP_OK ? status : ended;
    if (status == TP_OK)
        status = tp_ctx_failure(p->ctx);
    if (status == TP_OK)
        return TP_OK;
    if (!plain)
        return break_off(run, status);
    p->ctx->backend->stream_synchronize(p->ctx->compute); /* what was issued may still run, in memory that the caller is
                                                           * about to free */
    return status;
}

tp_status tpi_plan_run(tpi_prepared *p, const tpi_job *job)
{
    TPI_TRY(tpi_ctx_usable(p->ctx));
    tpi_arena_mark mark = tpi_arena_get_mark(&p->ctx->scratch);
    tp_status status = run_in_scratch(p, job);
    tpi_arena_release(&p->ctx->scratch, mark);
    return status;
}
