/* The executor on synthetic work: small integers, so that every sum is exact, against what the patterns say
 * (tp/overlap.h), serially. GEMMs are scalings by a number of this rank, weight gradients a chain in which the order of
 * tokens matters. Lanes are delayed at random in half of the runs. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/trace.h>

#include "../support/data.h"
#include "core/context.h"
#include "patterns.h"
#include "plan/execute_state.h"

enum { COLS = 3, RUNS = TPI_RUN_SLOTS + 1 };

static const int64_t token_counts[RUNS] = {23, 3, 40, 0, 17}; /* the last has the memory of the first */

static float value_of(int rank, int64_t row, int64_t col)
{
    return (float)((rank * 5 + row * 3 + col) % 11 - 5);
}

static float factor_of(int rank, int part)
{
    return (float)(rank + 2 + 3 * part);
}

static float core_of(float value)
{
    return value + 1;
}

/* The state of a weight gradient after one more token. */
static float chained(float state, float dy, float x)
{
    return fmodf(state * 3 + dy * x + 1000, 8191);
}

/* ---- the callbacks ----------------------------------------------------------------------------------------------- */

typedef struct rank_state {
    tp_ctx *ctx;
    int rank, ranks;
    tp_plan_desc plan;
    int64_t tokens;
    float gradient[COLS], first_gradient[COLS];
    int fails_at; /* the GEMM that fails on this rank; -1: none */
    int gemms;
} rank_state;

typedef struct work {
    tp_op_kind kind;
    int part;
    float factor;
    int64_t rows;
    tpi_view from, second, to;
    float *gradient;
    bool begins; /* the sum: nothing of it is there yet */
} work;

static float *at(const tpi_view *view, int64_t row, int col)
{
    return (float *)view->data + row * view->stride + col;
}

static tp_status do_work(tp_ctx *ctx, const void *pointer)
{
    const work *w = pointer;
    (void)ctx;
    for (int64_t row = 0; row < w->rows; row++)
        for (int col = 0; col < COLS; col++) {
            if (w->gradient != NULL)
                w->gradient[col] = chained(w->gradient[col], *at(&w->from, row, col), *at(&w->second, row, col));
            else if (w->kind == TP_OP_COMPUTE)
                *at(&w->to, row, col) = core_of(*at(&w->from, row, col));
            else
                *at(&w->to, row, col) = w->factor * *at(&w->from, row, col);
        }
    return TP_OK;
}

/* A slice of columns: summed into the first column of OUTPUT, or each column's own gradient. */
static tp_status do_slice(tp_ctx *ctx, const void *pointer)
{
    const work *w = pointer;
    (void)ctx;
    for (int64_t row = 0; row < w->rows; row++) {
        if (w->gradient == NULL && w->begins)
            *at(&w->to, row, 0) = 0;
        for (int64_t col = 0; col < w->from.cols; col++) {
            float x = *at(&w->from, row, (int)col);
            float *to = w->gradient != NULL ? &w->gradient[col] : at(&w->to, row, 0);
            *to = w->gradient != NULL ? chained(*to, x, x) : chained(*to, w->factor, x);
        }
    }
    return TP_OK;
}

static tp_status issue_slices(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    rank_state *state = tpi_run_job(run)->user;
    const tp_plan *plan = tpi_run_plan(run);
    bool weight = op->part == 1;
    for (int i = 0; i < op->pieces; i++) {
        int piece = op->piece + i * op->step, slice = piece % plan->chunks;
        tpi_segment segment = {piece, tpi_run_rows(run, piece, 1)};
        work w = {.kind = op->kind, .factor = factor_of(state->rank, 0), .rows = segment.rows.end - segment.rows.begin,
                  .begins = slice == 0};
        w.from = tpi_run_at(run, &op->read[weight ? 1 : 0], segment);
        if (weight)
            w.gradient = state->gradient + tpi_run_columns(run, slice).begin;
        else
            w.to = tpi_run_at(run, &op->write[0], segment);
        tp_status status = state->ctx->backend->run(stream, do_slice, &w, sizeof w);
        if (status != TP_OK)
            return status;
    }
    return TP_OK;
}

static tp_status issue_work(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    rank_state *state = tpi_run_job(run)->user;
    if (op->kind == TP_OP_GEMM && state->gemms++ == state->fails_at)
        return tpi_fail(state->ctx, TP_ERR_NUMERIC, "planted failure of rank %d", state->rank);
    if (is_sliced(state->plan.pattern))
        return issue_slices(run, stream, op);
    bool weight = op->kind == TP_OP_GEMM && op->reads > 1, first = op->kind == TP_OP_GEMM && op->reads == 2;
    for (int i = 0; i < tpi_run_segments(run, op); i++) {
        tpi_segment segment = tpi_run_segment(run, op, i);
        work w = {.kind = op->kind, .factor = factor_of(state->rank, op->part),
                  .rows = segment.rows.end - segment.rows.begin};
        w.from = tpi_run_at(run, &op->read[weight ? 1 : 0], segment);
        if (weight) {
            w.second = tpi_run_at(run, &op->read[first ? 1 : 2], segment); /* the first's other operand: dy again */
            w.gradient = first ? state->first_gradient : state->gradient;
        } else {
            w.to = tpi_run_at(run, &op->write[0], segment);
        }
        tp_status status = state->ctx->backend->run(stream, do_work, &w, sizeof w);
        if (status != TP_OK)
            return status;
    }
    return TP_OK;
}

static const tpi_plan_table table = {.issue = {[TP_OP_GEMM] = issue_work, [TP_OP_COMPUTE] = issue_work}};

/* ---- the reference ----------------------------------------------------------------------------------------------- */

/* The value that `rank` finds in its input for a global row: sharded inputs are one tensor, others are each rank's
 * own. */
static float input_at(const rank_state *s, int rank, int64_t row, int col)
{
    return value_of(input_is_sharded(s->plan.pattern) ? 100 : rank, row, col);
}

static float summand(const rank_state *s, int rank, int64_t row, int col)
{
    float x = input_at(s, rank, row, col);
    return is_chain(s->plan.pattern) ? factor_of(rank, 1) * core_of(factor_of(rank, 0) * x) : factor_of(rank, 0) * x;
}

static float expected(const rank_state *s, int64_t row, int col)
{
    if (is_sliced(s->plan.pattern)) { /* in the first column */
        float state = 0;
        for (int c = 0; c < COLS; c++)
            state = chained(state, factor_of(s->rank, 0), input_at(s, s->rank, row, c));
        return col == 0 ? state : NAN;
    }
    if (s->plan.pattern == TP_PATTERN_GEMM || s->plan.pattern == TP_PATTERN_GATHER_GEMM)
        return summand(s, s->rank, row, col);
    float sum = 0;
    for (int rank = 0; rank < s->ranks; rank++)
        sum += summand(s, rank, row, col);
    return sum;
}

static float expected_gradient(const rank_state *s, bool first, int col)
{
    float state = 0;
    for (int64_t row = 0; row < s->tokens; row++) {
        float dy = input_at(s, s->rank, row, col),
              x = value_of(second_is_sharded(s->plan.pattern) ? 200 : s->rank + 50, row, col);
        float core = is_chain(s->plan.pattern) ? core_of(factor_of(s->rank, 0) * dy) : dy;
        state = first || is_sliced(s->plan.pattern) ? chained(state, dy, dy) : chained(state, core, x);
    }
    return state;
}

/* ---- a run on one rank ------------------------------------------------------------------------------------------- */

static tpi_view new_view(int64_t first, int64_t rows)
{
    float *data = tpt_allocate((size_t)(rows * COLS) * sizeof(float) + 1);
    memset(data, 0xff, (size_t)(rows * COLS) * sizeof(float)); /* NaN */
    return (tpi_view){.data = data, .dtype = TP_DTYPE_F32, .cols = COLS, .stride = COLS, .first = first};
}

static void fill(const tpi_view *view, int64_t rows, int seed)
{
    for (int64_t row = 0; row < rows; row++)
        for (int col = 0; col < COLS; col++)
            *at(view, row, col) = value_of(seed, view->first + row, col);
}

static void make_views(const rank_state *s, tpi_job *job)
{
    tp_pattern p = s->plan.pattern;
    tp_range own = tp_shard_range(s->tokens, s->ranks, s->rank), all = {0, s->tokens};
    tp_range in = input_is_sharded(p) ? own : all, second = second_is_sharded(p) ? own : all,
             out = output_is_sharded(p) ? own : all;
    for (int buffer = 0; buffer < TP_BUFFERS; buffer++)
        job->view[buffer] = new_view(0, s->tokens);
    free(job->view[TP_BUFFER_INPUT].data), free(job->view[TP_BUFFER_SECOND].data),
        free(job->view[TP_BUFFER_OUTPUT].data);
    free(job->view[TP_BUFFER_INBOX].data);
    job->view[TP_BUFFER_INPUT] = new_view(in.begin, in.end - in.begin);
    job->view[TP_BUFFER_SECOND] = new_view(second.begin, second.end - second.begin);
    job->view[TP_BUFFER_OUTPUT] = new_view(out.begin, out.end - out.begin);
    job->view[TP_BUFFER_INBOX] = new_view(own.begin, (own.end - own.begin) * s->ranks);
    fill(&job->view[TP_BUFFER_INPUT], in.end - in.begin, input_is_sharded(p) ? 100 : s->rank);
    fill(&job->view[TP_BUFFER_SECOND], second.end - second.begin, second_is_sharded(p) ? 200 : s->rank + 50);
}

static bool right(const rank_state *s, const tpi_job *job)
{
    tp_pattern p = s->plan.pattern;
    tp_range own = tp_shard_range(s->tokens, s->ranks, s->rank), all = {0, s->tokens},
             out = output_is_sharded(p) ? own : all;
    for (int col = 0; col < COLS; col++) {
        for (int64_t row = out.begin; p != TP_PATTERN_GATHER_WEIGHT && row < out.end; row++)
            if ((!is_sliced(p) || col == 0) &&
                *at(&job->view[TP_BUFFER_OUTPUT], row - out.begin, col) != expected(s, row, col))
                return false;
        if (has_gradient(p) && s->gradient[col] != expected_gradient(s, false, col))
            return false;
        if (has_first_gradient(p) && s->first_gradient[col] != expected_gradient(s, true, col))
            return false;
    }
    return true;
}

static tp_status run_once(rank_state *s, tpi_prepared *prepared, bool *good)
{
    tpi_job job = {.table = &table, .user = s, .tokens = s->tokens};
    make_views(s, &job);
    memset(s->gradient, 0, sizeof s->gradient);
    memset(s->first_gradient, 0, sizeof s->first_gradient);
    tp_status status = tpi_plan_run(prepared, &job);
    if (status == TP_OK)
        status = tp_ctx_synchronize(s->ctx);
    *good = status == TP_OK && right(s, &job);
    for (int buffer = 0; buffer < TP_BUFFERS; buffer++)
        free(job.view[buffer].data);
    return status;
}

static tp_status check_plan(tp_ctx *ctx, const tp_plan_desc *desc)
{
    tpi_prepared *prepared;
    tp_status status = tpi_plan_get(ctx, tp_ctx_group(ctx, TP_AXIS_TP), desc, &prepared);
    for (int i = 0; i < RUNS && status == TP_OK; i++) {
        rank_state s = {.ctx = ctx, .rank = tp_ctx_rank(ctx), .ranks = desc->ranks, .plan = *desc,
                        .tokens = token_counts[i], .fails_at = -1};
        bool good;
        status = run_once(&s, prepared, &good);
        if (status == TP_OK && !good)
            status = tpi_fail(ctx, TP_ERR_NUMERIC, "%s%s %s with %d chunks on %d ranks, %d tokens: wrong on rank %d",
                              tp_overlap_name(desc->algorithm), desc->one_lane ? ", one lane," : "",
                              tp_pattern_name(desc->pattern), desc->chunks, desc->ranks, (int)s.tokens, s.rank);
    }
    return status;
}

static tp_status check_all_plans(tp_ctx *ctx, void *arg)
{
    const int *chunks = arg;
    tp_status status = TP_OK;
    ctx->pulling = TPI_PULL_ON_LANE; /* with and without lanes, whatever the machine's cores */
    for (int a = 0; a <= TP_OVERLAP_AUTO; a++)
        for (int pattern = 0; pattern < TP_PATTERN_COUNT; pattern++)
            for (int c = 0; chunks[c] > 0 && status == TP_OK; c++) {
                const tp_plan_desc desc = {.algorithm = a < TP_OVERLAP_AUTO ? (tp_overlap)a : TP_OVERLAP_PULL,
                                           .pattern = (tp_pattern)pattern,
                                           .ranks = tp_comm_size(tp_ctx_world(ctx)),
                                           .chunks = chunks[c],
                                           .one_lane = a == TP_OVERLAP_AUTO};
                status = check_plan(ctx, &desc);
            }
    return status;
}

static void check_ranks(int ranks, const int *chunks, uint64_t lane_delay_seed)
{
    const tp_run_options options = {.ranks = ranks,
                                    .ctx = {.threads = 1, .lane_delay_seed = lane_delay_seed, .timeout_ms = 60000}};
    cr_assert_eq(tp_run_ranks(&options, check_all_plans, (void *)(uintptr_t)chunks), TP_OK, "%d ranks: %s", ranks,
                 tp_last_message());
}

Test(execute, every_plan_does_what_its_pattern_says, .timeout = 120)
{
    static const int all[] = {1, 2, 3, 5, 0}, few[] = {1, 3, 0}, one[] = {2, 0};
    for (int ranks = 1; ranks <= 8; ranks++)
        check_ranks(ranks, ranks <= 3 ? all : ranks <= 5 ? few : one, 0);
}

Test(execute, every_plan_is_right_under_random_delays, .timeout = 120)
{
    static const int all[] = {1, 2, 3, 0}, few[] = {2, 0};
    check_ranks(2, all, 3);
    check_ranks(3, few, 4);
    check_ranks(5, few, 5);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

typedef struct planted {
    tp_plan_desc plan;
    bool ahead; /* ranks wait for each other when they issue */
    int rank, gemm;
    tp_status status[8];
    char message[8][256];
} planted;

static tp_status fail_inside(tp_ctx *ctx, void *arg)
{
    planted *f = arg;
    int rank = tp_ctx_rank(ctx);
    tpi_prepared *prepared;
    if (f->ahead)
        tpi_ctx_issue_ahead(ctx);
    ctx->pulling = TPI_PULL_ON_LANE;
    tp_status status = tpi_plan_get(ctx, tp_ctx_group(ctx, TP_AXIS_TP), &f->plan, &prepared);
    rank_state s = {.ctx = ctx, .rank = rank, .ranks = f->plan.ranks, .plan = f->plan, .tokens = 23,
                    .fails_at = rank == f->rank ? f->gemm : -1};
    bool good;
    for (int i = 0; i < 3 && status == TP_OK; i++) /* the failure is in the first or second */
        status = run_once(&s, prepared, &good);
    f->status[rank] = status;
    snprintf(f->message[rank], sizeof f->message[rank], "%s", tp_ctx_message(ctx));
    return status;
}

/* one_lane: of PULL. */
static void check_failure(tp_overlap algorithm, bool one_lane, tp_pattern pattern, int when, uint64_t lane_delay_seed)
{
    int gemm = when % 2;
    planted f = {.plan = {.algorithm = algorithm, .pattern = pattern, .ranks = 3, .chunks = 2, .one_lane = one_lane},
                 .ahead = when >= 2, .rank = gemm % 3, .gemm = gemm};
    const tp_run_options options = {.ranks = 3,
                                    .ctx = {.threads = 1, .lane_delay_seed = lane_delay_seed, .timeout_ms = 20000}};
    double begin = tpi_seconds();
    tp_status status = tp_run_ranks(&options, fail_inside, &f);
    cr_assert_eq(status, TP_ERR_NUMERIC, "%s %s: %s", tp_overlap_name(algorithm), tp_pattern_name(pattern),
                 tp_last_message());
    cr_assert_lt(tpi_seconds() - begin, 10.0);
    for (int rank = 0; rank < 3; rank++) {
        if (f.status[rank] == TP_OK && pattern == TP_PATTERN_GEMM)
            continue; /* nobody to wait for */
        cr_assert_eq(f.status[rank], rank == f.rank ? TP_ERR_NUMERIC : TP_ERR_PEER, "%s %s: rank %d: %s",
                     tp_overlap_name(algorithm), tp_pattern_name(pattern), rank, tp_status_name(f.status[rank]));
        cr_assert_not_null(strstr(f.message[rank], "planted failure"), "%s", f.message[rank]);
    }
}

Test(execute, a_rank_failing_inside_any_plan_frees_its_peers, .timeout = 120)
{
    for (int pattern = 0; pattern < TP_PATTERN_COUNT; pattern++)
        for (int when = 0; when < 4; when++) {
            for (int algorithm = 0; algorithm < TP_OVERLAP_AUTO; algorithm++)
                check_failure((tp_overlap)algorithm, false, (tp_pattern)pattern, when,
                              when % 2 ? (uint64_t)(algorithm * 20 + pattern + 1) : 0);
            check_failure(TP_OVERLAP_PULL, true, (tp_pattern)pattern, when, when % 2 ? (uint64_t)(pattern + 1) : 0);
        }
}

/* O34: ranks that disagree about the tokens are told so, all alike, before they touch each other's memory. */
typedef struct disagreement {
    tp_plan_desc plan;
    tp_status status[3];
} disagreement;

static tp_status disagree(tp_ctx *ctx, void *arg)
{
    disagreement *d = arg;
    int rank = tp_ctx_rank(ctx);
    tpi_prepared *prepared;
    tp_status status = tpi_plan_get(ctx, tp_ctx_group(ctx, TP_AXIS_TP), &d->plan, &prepared);
    rank_state s = {.ctx = ctx, .rank = rank, .ranks = d->plan.ranks, .plan = d->plan, .tokens = rank == 1 ? 31 : 32,
                    .fails_at = -1};
    bool good;
    if (status == TP_OK)
        status = run_once(&s, prepared, &good);
    return d->status[rank] = status;
}

Test(execute, different_token_counts_are_told)
{
    for (int algorithm = 0; algorithm < TP_OVERLAP_AUTO; algorithm++)
        for (int pattern = TP_PATTERN_GATHER_GEMM; pattern < TP_PATTERN_COUNT; pattern++) {
            disagreement d = {.plan = {.algorithm = (tp_overlap)algorithm, .pattern = (tp_pattern)pattern, .ranks = 3,
                                       .chunks = 2}};
            const tp_run_options options = {.ranks = 3,
                                            .ctx = {.threads = 1, .lane_delay_seed = pattern % 2 ? 5 : 0,
                                                    .timeout_ms = 20000}};
            tp_status status = tp_run_ranks(&options, disagree, &d);
            cr_assert_eq(status, TP_ERR_MISMATCH, "%s %s: %s", tp_overlap_name(d.plan.algorithm),
                         tp_pattern_name(d.plan.pattern), tp_last_message());
            bool cut = algorithm == TP_OVERLAP_PIPELINE; /* its message has the rows of a chunk */
            cr_assert(strstr(tp_last_message(), "rank 1") &&
                          (cut || (strstr(tp_last_message(), "31") && strstr(tp_last_message(), "32"))),
                      "%s", tp_last_message());
            for (int rank = 0; rank < 3; rank++)
                cr_assert_eq(d.status[rank], TP_ERR_MISMATCH, "%s %s: rank %d: %s", tp_overlap_name(d.plan.algorithm),
                             tp_pattern_name(d.plan.pattern), rank, tp_status_name(d.status[rank]));
        }
}

static tp_status leave_early(tp_ctx *ctx, void *arg)
{
    const tp_plan_desc *plan = arg;
    tpi_prepared *prepared;
    tp_status status = tpi_plan_get(ctx, tp_ctx_group(ctx, TP_AXIS_TP), plan, &prepared);
    rank_state s = {.ctx = ctx, .rank = tp_ctx_rank(ctx), .ranks = plan->ranks, .plan = *plan, .tokens = 23,
                    .fails_at = -1};
    bool good;
    return status == TP_OK && s.rank != 1 ? run_once(&s, prepared, &good) : status;
}

Test(execute, a_rank_that_ends_early_is_noticed)
{
    for (int algorithm = TP_OVERLAP_RING; algorithm < TP_OVERLAP_AUTO; algorithm++) {
        tp_plan_desc plan = {.algorithm = (tp_overlap)algorithm, .pattern = TP_PATTERN_CHAIN, .ranks = 3, .chunks = 2};
        const tp_run_options options = {.ranks = 3, .ctx = {.threads = 1, .timeout_ms = 20000}};
        double begin = tpi_seconds();
        cr_assert_neq(tp_run_ranks(&options, leave_early, &plan), TP_OK);
        cr_assert_not_null(strstr(tp_last_message(), "rank 1: destroyed its"), "%s: %s",
                           tp_overlap_name(plan.algorithm), tp_last_message());
        cr_assert_lt(tpi_seconds() - begin, 10.0, "%s", tp_overlap_name(plan.algorithm));
    }
}

typedef struct traced {
    enum tpi_pulling pulling;
    bool right[2];
} traced;

/* Every op of a traced run is there once, in order on its lane. */
static tp_status trace_one(tp_ctx *ctx, void *arg)
{
    enum { MOST = 256 };
    tp_trace_span span[MOST];
    const tp_plan_desc plan = {.algorithm = TP_OVERLAP_PULL, .pattern = TP_PATTERN_CHAIN, .ranks = 2, .chunks = 3};
    int rank = tp_ctx_rank(ctx);
    traced *to = arg;
    bool *right = to->right;
    tpi_prepared *prepared;
    ctx->pulling = to->pulling;
    tp_status status = tpi_plan_get(ctx, tp_ctx_group(ctx, TP_AXIS_TP), &plan, &prepared);
    if (status != TP_OK || (status = tp_trace_begin(ctx, span, MOST)) != TP_OK)
        return status;
    rank_state s = {.ctx = ctx, .rank = rank, .ranks = 2, .plan = plan, .tokens = 23, .fails_at = -1};
    bool good;
    int64_t count = 0;
    status = run_once(&s, prepared, &good);
    if (status == TP_OK)
        status = tp_trace_end(ctx, &count);
    const tp_plan_rank *list = &tpi_prepared_plan(prepared)->rank[rank];
    double end[TP_LANES] = {0};
    right[rank] = good && count == list->count;
    for (int64_t i = 0; i < count && right[rank]; i++) {
        tp_lane lane = list->op[span[i].op].lane;
        right[rank] = span[i].plan == tpi_prepared_plan(prepared) && span[i].execution == 0 &&
                      span[i].begin >= end[lane] && span[i].end >= span[i].begin;
        end[lane] = span[i].end;
    }
    return status;
}

Test(execute, traces_have_every_op)
{
    for (int i = 0; i < 3; i++) {
        traced to = {.pulling = i < 2 ? TPI_PULL_ON_LANE : TPI_PULL_INLINE};
        const tp_run_options options = {.ranks = 2,
                                        .ctx = {.threads = 1, .lane_delay_seed = i == 1 ? 9 : 0, .timeout_ms = 20000}};
        cr_assert_eq(tp_run_ranks(&options, trace_one, &to), TP_OK, "%s", tp_last_message());
        cr_assert(to.right[0] && to.right[1]);
    }
}
