/* Moments inside a plan that are hard to hit by chance, brought about by callbacks that wait for each other: memory is
 * not given back while a peer or a lane still works in it, and no more runs are under way than there is room for. Where
 * the executor is right, a callback waits in vain and goes on. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tp/overlap.h>

#include "../support/data.h"
#include "plan/execute_state.h"

enum { TOKENS = 8, COLS = 2, IN_VAIN_MS = 150, LONG_MS = 10000 };

/* What the threads of a test tell each other. */
typedef struct scene {
    tp_plan_desc plan;
    atomic_int inside;    /* somebody works where he must not be left alone */
    atomic_int issued;    /* runs whose call has returned without an error */
    atomic_int returned;  /* the failing rank may free its memory */
    int left_early;       /* it did so before the work was done */
    bool late;            /* the failure comes after the call has returned */
    tp_status status[2];
} scene;

static bool wait_for(atomic_int *value, int least, int64_t milliseconds)
{
    double end = tpi_seconds() + (double)milliseconds * 1e-3;
    while (atomic_load(value) < least) {
        if (tpi_seconds() > end)
            return false;
        nanosleep(&(struct timespec){0, 100000}, NULL);
    }
    return true;
}

/* A task of a GEMM or a transfer that takes its time. */
static tp_status linger(tp_ctx *ctx, const void *pointer)
{
    scene *s = *(scene *const *)pointer;
    (void)ctx;
    atomic_store(&s->inside, 1);
    s->left_early = wait_for(&s->returned, 1, IN_VAIN_MS);
    return TP_OK;
}

static tp_status fail(tp_ctx *ctx, const void *pointer)
{
    scene *s = *(scene *const *)pointer;
    if (!wait_for(&s->inside, 1, LONG_MS) || (s->late && !wait_for(&s->issued, 1, LONG_MS)))
        return tpi_fail(ctx, TP_ERR_INTERNAL, "the moment did not come");
    return tpi_fail(ctx, TP_ERR_NUMERIC, "planted failure");
}

static bool reads_a_peer(const tpi_run *run, const tp_plan_op *op)
{
    return op->reads > 0 && op->read[0].rank != run->prepared->rank;
}

/* Rank 0 fails in its first GEMM, while rank 1 is in the one that reads rank 0's memory. */
static tp_status issue_gemm(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    scene *s = tpi_run_job(run)->user;
    tp_ctx *ctx = run->prepared->ctx;
    if (run->prepared->rank == 0)
        return ctx->backend->run(stream, fail, &s, sizeof s);
    return reads_a_peer(run, op) ? ctx->backend->run(stream, linger, &s, sizeof s) : TP_OK;
}

/* Or while its own copy lane is in a transfer. */
static tp_status issue_own_pull(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    scene *s = tpi_run_job(run)->user;
    (void)op;
    return run->prepared->rank == 0 ? run->prepared->ctx->backend->run(stream, linger, &s, sizeof s) : TP_OK;
}

static const tpi_plan_table table = {.issue = {[TP_OP_GEMM] = issue_gemm, [TP_OP_PULL] = issue_own_pull}};

/* Room for all rows in every buffer of a run. */
static float *make_job(tpi_job *job, void *user, const tpi_plan_table *ops)
{
    float *memory = tpt_allocate((size_t)TP_BUFFERS * TOKENS * COLS * sizeof(float));
    memset(memory, 0, (size_t)TP_BUFFERS * TOKENS * COLS * sizeof(float));
    *job = (tpi_job){.table = ops, .user = user, .tokens = TOKENS};
    for (int buffer = 0; buffer < TP_BUFFERS; buffer++)
        job->view[buffer] = (tpi_view){memory + buffer * TOKENS * COLS, TP_DTYPE_F32, COLS, COLS, 0};
    return memory;
}

static tp_status run_scene(tp_ctx *ctx, void *arg)
{
    scene *s = arg;
    int rank = tp_ctx_rank(ctx);
    tpi_prepared *prepared;
    ctx->pulling = TPI_PULL_ON_LANE;
    tp_status status = tpi_plan_get(ctx, tp_ctx_group(ctx, TP_AXIS_TP), &s->plan, &prepared);
    if (status != TP_OK)
        return status;
    tpi_job job;
    float *memory = make_job(&job, s, &table);
    status = tpi_plan_run(prepared, &job);
    if (status == TP_OK && rank == 0)
        atomic_store(&s->issued, 1);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    if (rank == 0)
        atomic_store(&s->returned, 1);
    s->status[rank] = status;
    free(memory);
    return status;
}

static void play(scene *s, uint64_t lane_delay_seed)
{
    const tp_run_options options = {.ranks = 2,
                                    .ctx = {.threads = 1, .lane_delay_seed = lane_delay_seed, .timeout_ms = 20000}};
    cr_assert_eq(tp_run_ranks(&options, run_scene, s), TP_ERR_NUMERIC, "%s", tp_last_message());
    cr_assert_eq(s->status[0], TP_ERR_NUMERIC, "%s", tp_last_message());
    cr_assert_eq(atomic_load(&s->inside), 1);
    cr_assert_not(s->left_early);
}

static const tp_plan_desc direct = {
    .algorithm = TP_OVERLAP_DIRECT, .pattern = TP_PATTERN_GATHER_GEMM, .ranks = 2, .chunks = 1};

/* The call that fails returns only when no peer reads this rank's memory. */
Test(execute_faults, a_failing_call_waits_for_peers_in_its_memory)
{
    scene s = {.plan = direct};
    play(&s, 0);
}

/* The call has returned long since; who waits for the stream learns of the failure, and then no peer reads this rank's
 * memory. */
Test(execute_faults, a_failure_of_a_lane_waits_for_peers_too)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        scene s = {.plan = direct, .late = true};
        play(&s, seed);
    }
}

/* The call that fails returns only when its own lanes are at rest. */
Test(execute_faults, a_failing_call_waits_for_its_lanes)
{
    scene s = {.plan = {.algorithm = TP_OVERLAP_PULL, .pattern = TP_PATTERN_GATHER_GEMM, .ranks = 2, .chunks = 1}};
    play(&s, 0);
}

/* ---- ops that are refused when they are issued ------------------------------------------------------------------- */

typedef struct refusal {
    int rank; /* whose GEMMs are */
    int calls;
    atomic_int worked; /* what was issued before the refusal */
} refusal;

static tp_status work(tp_ctx *ctx, const void *pointer)
{
    refusal *r = *(refusal *const *)pointer;
    (void)ctx;
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    atomic_store(&r->worked, 1);
    return TP_OK;
}

static tp_status refuse_gemm(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    refusal *r = tpi_run_job(run)->user;
    tp_ctx *ctx = run->prepared->ctx;
    void *scratch;
    (void)op;
    if (tp_ctx_rank(ctx) != r->rank)
        return TP_OK;
    r->calls++;
    TPI_TRY(tpi_scratch(ctx, 1000, &scratch));
    TPI_TRY(ctx->backend->run(stream, work, &r, sizeof r));
    return tpi_refuse(ctx, TP_ERR_ARGUMENT, "planted refusal");
}

static const tpi_plan_table refusals = {.issue = {[TP_OP_GEMM] = refuse_gemm}};

/* Alone: what was issued is done, scratch is given back, and the context goes on, until it is broken by something
 * else. */
Test(execute_faults, a_refused_op_of_one_rank_leaves_nothing)
{
    for (uint64_t seed = 0; seed < 2; seed++) {
        const tp_plan_desc plan = {.algorithm = TP_OVERLAP_NONE, .pattern = TP_PATTERN_GEMM, .ranks = 1, .chunks = 1};
        refusal r = {.rank = 0};
        tp_ctx *ctx;
        tpi_prepared *prepared;
        tpi_job job;
        float *memory = make_job(&job, &r, &refusals);
        cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1, .lane_delay_seed = seed}, &ctx), TP_OK);
        cr_assert_eq(tpi_plan_get(ctx, tp_ctx_world(ctx), &plan, &prepared), TP_OK);
        const tpi_arena_mark before = tpi_arena_get_mark(&ctx->scratch);
        cr_assert_eq(tpi_plan_run(prepared, &job), TP_ERR_ARGUMENT);
        const tpi_arena_mark after = tpi_arena_get_mark(&ctx->scratch);
        cr_assert(atomic_load(&r.worked) == 1 && r.calls == 1);
        cr_assert(after.chunk == before.chunk && after.used == before.used);
        cr_assert_eq(tp_ctx_failure(ctx), TP_OK);
        tpi_fail(ctx, TP_ERR_NUMERIC, "planted failure");
        cr_assert_eq(tpi_plan_run(prepared, &job), TP_ERR_NUMERIC);
        cr_assert_eq(r.calls, 1);
        tp_ctx_destroy(ctx);
        free(memory);
    }
}

static tp_status run_refused(tp_ctx *ctx, void *arg)
{
    scene *s = arg;
    int rank = tp_ctx_rank(ctx);
    refusal r = {.rank = 1};
    tpi_prepared *prepared;
    tpi_job job;
    TPI_TRY(tpi_plan_get(ctx, tp_ctx_group(ctx, TP_AXIS_TP), &s->plan, &prepared));
    float *memory = make_job(&job, &r, &refusals);
    tp_status status = tpi_plan_run(prepared, &job);
    s->status[rank] = status == TP_OK ? tp_ctx_synchronize(ctx) : status;
    bool broken = tp_ctx_failure(ctx) == s->status[rank], done = atomic_load(&r.worked) == (rank == 1);
    free(memory);
    return broken && done ? s->status[rank] : TP_ERR_INTERNAL;
}

/* Among peers who need it, it breaks the plan, and they are told. */
Test(execute_faults, a_refused_op_frees_its_peers)
{
    static const tp_overlap algorithms[] = {TP_OVERLAP_RING, TP_OVERLAP_PULL, TP_OVERLAP_DIRECT};
    for (int i = 0; i < 6; i++) {
        scene s = {.plan = {
                       .algorithm = algorithms[i / 2], .pattern = TP_PATTERN_GEMM_REDUCE, .ranks = 2, .chunks = 1}};
        const tp_run_options options = {
            .ranks = 2, .ctx = {.threads = 1, .lane_delay_seed = i % 2 == 0 ? 0 : 3, .timeout_ms = 20000}};
        cr_assert_eq(tp_run_ranks(&options, run_refused, &s), TP_ERR_ARGUMENT, "%s", tp_last_message());
        cr_assert_not_null(strstr(tp_last_message(), "planted refusal"), "%s", tp_last_message());
        cr_assert(s.status[0] == TP_ERR_PEER && s.status[1] == TP_ERR_ARGUMENT, "%s: %s, %s",
                  tp_overlap_name(s.plan.algorithm), tp_status_name(s.status[0]), tp_status_name(s.status[1]));
    }
}

/* ---- runs under way ---------------------------------------------------------------------------------------------- */

enum { RUNS = 3 * TPI_RUN_SLOTS };

typedef struct flood {
    atomic_int issued; /* by rank 0 */
    int most;          /* issued before the first was done */
    bool right[2];
} flood;

static tp_status hold(tp_ctx *ctx, const void *pointer)
{
    flood *f = *(flood *const *)pointer;
    (void)ctx;
    wait_for(&f->issued, RUNS, IN_VAIN_MS);
    f->most = atomic_load(&f->issued);
    return TP_OK;
}

typedef struct copy {
    float *to;
    const float *from;
    int64_t count;
} copy;

static tp_status do_copy(tp_ctx *ctx, const void *pointer)
{
    const copy *c = pointer;
    (void)ctx;
    memcpy(c->to, c->from, (size_t)c->count * sizeof *c->to);
    return TP_OK;
}

static tp_status issue_copy(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    for (int i = 0; i < tpi_run_segments(run, op); i++) {
        tpi_segment segment = tpi_run_segment(run, op, i);
        const copy c = {.to = tpi_run_at(run, &op->write[0], segment).data,
                        .from = tpi_run_at(run, &op->read[0], segment).data,
                        .count = (segment.rows.end - segment.rows.begin) * COLS};
        tp_status status = run->prepared->ctx->backend->run(stream, do_copy, &c, sizeof c);
        if (status != TP_OK)
            return status;
    }
    return TP_OK;
}

static const tpi_plan_table copies = {.issue = {[TP_OP_GEMM] = issue_copy}};

/* Sums of ranks 0 and 1: their inputs are 10 * run + rank. */
static bool all_right(const tpi_job *job)
{
    for (int run = 0; run < RUNS; run++)
        for (int i = 0; i < TOKENS * COLS; i++)
            if (((const float *)job[run].view[TP_BUFFER_OUTPUT].data)[i] != (float)(20 * run + 1))
                return false;
    return true;
}

static tp_status issue_many(tp_ctx *ctx, void *arg)
{
    flood *f = arg;
    const tp_plan_desc desc = {
        .algorithm = TP_OVERLAP_DIRECT, .pattern = TP_PATTERN_GEMM_REDUCE, .ranks = 2, .chunks = 1};
    int rank = tp_ctx_rank(ctx);
    tpi_prepared *prepared;
    tp_status status = tpi_plan_get(ctx, tp_ctx_group(ctx, TP_AXIS_TP), &desc, &prepared);
    if (status != TP_OK)
        return status;
    tpi_job job[RUNS];
    float *memory[RUNS];
    for (int run = 0; run < RUNS; run++) {
        memory[run] = make_job(&job[run], NULL, &copies);
        for (int i = 0; i < TOKENS * COLS; i++)
            ((float *)job[run].view[TP_BUFFER_INPUT].data)[i] = (float)(10 * run + rank);
    }
    if (rank == 0)
        status = ctx->backend->run(ctx->compute, hold, &f, sizeof f);
    for (int run = 0; run < RUNS && status == TP_OK; run++) {
        status = tpi_plan_run(prepared, &job[run]);
        if (rank == 0)
            atomic_fetch_add(&f->issued, 1);
    }
    tp_status synchronized = tp_ctx_synchronize(ctx);
    f->right[rank] = all_right(job);
    for (int run = 0; run < RUNS; run++)
        free(memory[run]);
    return status != TP_OK ? status : synchronized;
}

/* A plan's runs share a few slots: whoever issues one more waits until the oldest is done. */
Test(execute_faults, runs_wait_for_a_free_slot)
{
    flood f = {.most = 0};
    const tp_run_options options = {.ranks = 2, .ctx = {.threads = 1, .lane_delay_seed = 7, .timeout_ms = 20000}};
    cr_assert_eq(tp_run_ranks(&options, issue_many, &f), TP_OK, "%s", tp_last_message());
    cr_assert_leq(f.most, TPI_RUN_SLOTS);
    cr_assert(f.right[0] && f.right[1]);
}

/* The last rank has something else than the others. */
typedef struct difference {
    tp_plan_desc plan, other; /* other: the last rank's */
    int64_t tokens, cols;     /* the last rank's */
    tp_dtype dtype;           /* the last rank's */
    unsigned buffers;         /* those whose rows differ; 0: all */
    bool prepared;            /* all ranks have prepared both plans before */
    tp_status status[3];
} difference;

static tp_status run_differently(tp_ctx *ctx, void *arg)
{
    static const tpi_plan_table nothing = {{NULL}};
    difference *d = arg;
    int rank = tp_ctx_rank(ctx);
    bool differs = rank == d->plan.ranks - 1;
    tpi_prepared *prepared;
    tp_status status = TP_OK;
    ctx->pulling = TPI_PULL_ON_LANE; /* unless the plan says one lane */
    if (d->prepared)
        status = tpi_plan_get(ctx, tp_ctx_group(ctx, TP_AXIS_TP), &d->plan, &prepared);
    if (d->prepared && status == TP_OK)
        status = tpi_plan_get(ctx, tp_ctx_group(ctx, TP_AXIS_TP), &d->other, &prepared);
    if (status == TP_OK)
        status = tpi_plan_get(ctx, tp_ctx_group(ctx, TP_AXIS_TP), differs ? &d->other : &d->plan, &prepared);
    if (status != TP_OK)
        return d->status[rank] = status;
    tpi_job job;
    float *memory = make_job(&job, NULL, &nothing);
    if (differs)
        job.tokens = d->tokens;
    for (int buffer = 0; buffer < TP_BUFFERS && differs; buffer++) {
        if (d->buffers != 0 && !(d->buffers >> buffer & 1))
            continue;
        job.view[buffer].dtype = d->dtype;
        job.view[buffer].cols = job.view[buffer].stride = d->cols;
    }
    status = tpi_plan_run(prepared, &job);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    free(memory);
    return d->status[rank] = status;
}

static void refused(difference d, bool checks, const char *first, const char *second)
{
    const tp_run_options options = {
        .ranks = d.plan.ranks, .check_calls = checks, .ctx = {.threads = 1, .timeout_ms = 20000}};
    cr_assert_eq(tp_run_ranks(&options, run_differently, &d), TP_ERR_MISMATCH, "%s", tp_last_message());
    cr_expect(strstr(tp_last_message(), first) && strstr(tp_last_message(), second), "%s", tp_last_message());
    for (int rank = 0; rank < d.plan.ranks; rank++)
        cr_expect_neq(d.status[rank], TP_OK, "rank %d", rank);
}

/* What stays on a rank is its own: shards of unequal width. */
Test(execute_faults, ranks_may_differ_in_what_stays)
{
    for (int algorithm = 0; algorithm < TP_OVERLAP_AUTO; algorithm++) {
        const tp_plan_desc plan = {
            .algorithm = (tp_overlap)algorithm, .pattern = TP_PATTERN_GATHER_GEMM, .ranks = 2, .chunks = 1};
        difference d = {.plan = plan, .other = plan, .tokens = TOKENS, .cols = COLS - 1, .dtype = TP_DTYPE_F32,
                        .buffers = 1u << TP_BUFFER_OUTPUT};
        const tp_run_options options = {.ranks = 2, .check_calls = true, .ctx = {.threads = 1, .timeout_ms = 20000}};
        cr_assert_eq(tp_run_ranks(&options, run_differently, &d), TP_OK, "%s", tp_last_message());
    }
}

/* Nobody touches memory that has other rows, columns or numbers than he thinks. */
Test(execute_faults, ranks_that_differ)
{
    static const tp_overlap algorithms[] = {TP_OVERLAP_RING, TP_OVERLAP_PULL, TP_OVERLAP_DIRECT};
    static const tp_pattern patterns[] = {TP_PATTERN_GATHER_GEMM, TP_PATTERN_GEMM_SCATTER, TP_PATTERN_GEMM_REDUCE};
    for (int a = 0; a < 3; a++)
        for (int p = 0; p < 3; p++) {
            const tp_plan_desc plan = {.algorithm = algorithms[a], .pattern = patterns[p], .ranks = 2, .chunks = 2};
            const difference same = {
                .plan = plan, .other = plan, .tokens = TOKENS, .cols = COLS, .dtype = TP_DTYPE_F32};
            difference tokens = same, cols = same, dtype = same, chunks = same;
            tokens.tokens = TOKENS - 1;
            cols.cols = COLS - 1;
            dtype.dtype = TP_DTYPE_BF16;
            chunks.other.chunks = 3;
            for (int checks = 0; checks < 2; checks++) {
                refused(tokens, checks, "8", "7");
                refused(cols, checks, "columns", "that of rank");
                refused(dtype, checks, "f32", "bf16");
                refused(chunks, checks, "in 2 chunks", "in 3 chunks");
            }
        }
    /* Ranks that check: what is only received, or only written by a collective, must be of one kind too. */
    static const tp_overlap receivers[] = {TP_OVERLAP_RING, TP_OVERLAP_PIPELINE, TP_OVERLAP_NONE};
    for (int r = 0; r < 3; r++) {
        const tp_plan_desc plan = {
            .algorithm = receivers[r], .pattern = TP_PATTERN_GATHER_GEMM, .ranks = 2, .chunks = r == 2 ? 1 : 2};
        const difference gathered = {.plan = plan, .other = plan, .tokens = TOKENS, .cols = COLS - 1,
                                     .dtype = TP_DTYPE_F32, .buffers = 1u << TP_BUFFER_GATHERED};
        refused(gathered, true, "gathered of rank 0 has 2 columns", "that of rank 1 1");
    }
    /* As many ops and flags. */
    const tp_plan_desc scatter = {
        .algorithm = TP_OVERLAP_DIRECT, .pattern = TP_PATTERN_GEMM_SCATTER, .ranks = 2, .chunks = 2};
    difference patterns_differ = {
        .plan = scatter, .other = scatter, .tokens = TOKENS, .cols = COLS, .dtype = TP_DTYPE_F32};
    patterns_differ.other.pattern = TP_PATTERN_GEMM_REDUCE;
    refused(patterns_differ, false, "direct gemm-scatter in 2 chunks", "direct gemm-reduce in 2 chunks");
    refused(patterns_differ, true, "direct gemm-scatter in 2 chunks", "direct gemm-reduce in 2 chunks");
    /* Plans that were both prepared: only who checks is told before they wait for each other. */
    const tp_plan_desc none = {.algorithm = TP_OVERLAP_NONE, .pattern = TP_PATTERN_BACKWARD, .ranks = 2, .chunks = 1};
    difference algorithms_differ = {
        .plan = none, .other = none, .tokens = TOKENS, .cols = COLS, .dtype = TP_DTYPE_F32, .prepared = true};
    algorithms_differ.other.algorithm = TP_OVERLAP_BULK;
    refused(algorithms_differ, true, "none backward in 1 chunks", "bulk backward in 1 chunks");
    difference third = algorithms_differ;
    third.plan.ranks = third.other.ranks = 3;
    refused(third, true, "rank 0 called plan none backward", "rank 2 called plan bulk backward");
    difference lanes_differ = algorithms_differ;
    lanes_differ.plan = lanes_differ.other = (tp_plan_desc){
        .algorithm = TP_OVERLAP_PULL, .pattern = TP_PATTERN_GATHER_GEMM, .ranks = 2, .chunks = 2, .one_lane = true};
    lanes_differ.other.chunks = 3;
    refused(lanes_differ, true, "in 2 chunks and one lane", "in 3 chunks and one lane");
    lanes_differ.other.chunks = 2;
    lanes_differ.other.one_lane = false;
    refused(lanes_differ, true, "in 2 chunks and one lane for 8", "in 2 chunks for 8");
}
