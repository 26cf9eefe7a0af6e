/* Under a modelled link, what the executor says about when ops were done obeys the plan and the link: nothing is done
 * before what it waited for and its own time on the link, and no link carries more than its bandwidth. Ops compute
 * nothing; clocks only ever make stamps later, so a busy machine does no harm. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <tp/overlap.h>

#include "../support/data.h"
#include "plan/execute_state.h"

enum { TOKENS = 24, COLS = 8, MOST_RANKS = 3, MOST_OPS = 128 };

/* A row crosses in 40 us; the latency is another 150. */
static const tp_link slow_link = {.latency_seconds = 150e-6, .bytes_per_second = COLS * sizeof(float) / 40e-6};

/* Rounding of a clock in seconds to nanoseconds. */
#define SLACK 2000

typedef struct recording {
    tp_plan_desc plan;
    int64_t stamp[MOST_RANKS][MOST_OPS], end[MOST_RANKS];
    double elapsed[MOST_RANKS], waited[MOST_RANKS]; /* seconds; of these compute's for others, as the context says */
} recording;

static tp_status do_nothing(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    (void)run, (void)stream, (void)op;
    return TP_OK;
}

static const tpi_plan_table table = {.issue = {[TP_OP_GEMM] = do_nothing, [TP_OP_COMPUTE] = do_nothing}};

static tp_status record_run(tp_ctx *ctx, void *arg)
{
    recording *r = arg;
    int rank = tp_ctx_rank(ctx);
    tpi_prepared *prepared;
    ctx->pulling = TPI_PULL_ON_LANE; /* unless the plan says one lane */
    tp_status status = tpi_plan_get(ctx, tp_ctx_group(ctx, TP_AXIS_TP), &r->plan, &prepared);
    if (status != TP_OK)
        return status;
    int64_t first = tp_shard_range(TOKENS, r->plan.ranks, rank).begin;
    float *memory = tpt_allocate((size_t)TP_BUFFERS * TOKENS * COLS * sizeof(float));
    memset(memory, 0, (size_t)TP_BUFFERS * TOKENS * COLS * sizeof(float));
    tpi_job job = {.table = &table, .tokens = TOKENS};
    /* Every buffer has room for all rows, whatever part of them its pattern holds; INBOX: own rows from every rank. */
    for (int buffer = 0; buffer < TP_BUFFERS; buffer++)
        job.view[buffer] = (tpi_view){memory + buffer * TOKENS * COLS, TP_DTYPE_F32, COLS, COLS,
                                      buffer == TP_BUFFER_INBOX ? first : 0};
    double begin = tpi_seconds(), computed;
    tp_ctx_times_reset(ctx);
    status = tpi_plan_run(prepared, &job);
    tp_ctx_times(ctx, &computed, &r->waited[rank]);
    r->elapsed[rank] = tpi_seconds() - begin;
    r->end[rank] = (int64_t)(tpi_seconds() * 1e9);
    const tpi_run *run = &prepared->slot[prepared->runs % TPI_RUN_SLOTS];
    memcpy(r->stamp[rank], run->stamp, (size_t)prepared->list->count * sizeof *run->stamp);
    if (status == TP_OK)
        status = tp_barrier(ctx, tp_ctx_world(ctx));
    free(memory);
    return status;
}

static int64_t nanoseconds_of(int pieces, int ranks, int chunks)
{
    return (int64_t)((double)pieces * TOKENS / (ranks * chunks) * COLS * sizeof(float) / slow_link.bytes_per_second *
                     1e9);
}

/* Pieces that the op moves over this rank's links, in and out. */
static void count_pieces(const tp_plan_op *op, int rank, int *in, int *out)
{
    *in = *out = 0;
    for (int i = 0; i < op->reads; i++)
        *in += op->read[i].rank != rank ? op->read[i].pieces : 0;
    for (int i = 0; i < op->writes; i++)
        *out += op->write[i].rank != rank ? op->write[i].pieces : 0;
    if (op->kind == TP_OP_RECV)
        *in = op->write[0].pieces;
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t waited_for(const recording *r, const tp_plan_op *op)
{
    int64_t ready = 0;
    for (int w = 0; w < op->waits; w++)
        ready = later(ready, r->stamp[op->wait[w].rank][op->wait[w].op]);
    return ready;
}

/* The SEND that the n-th RECV from a peer meets. */
static const tp_plan_op *sender_of(const tp_plan *plan, int rank, int index)
{
    const tp_plan_op *recv = &plan->rank[rank].op[index];
    int before = 0;
    for (int i = 0; i < index; i++)
        before += plan->rank[rank].op[i].kind == TP_OP_RECV && plan->rank[rank].op[i].peer == recv->peer;
    const tp_plan_rank *list = &plan->rank[recv->peer];
    for (int i = 0; i < list->count; i++)
        if (list->op[i].kind == TP_OP_SEND && list->op[i].peer == rank && before-- == 0)
            return &list->op[i];
    cr_assert_fail("no send meets op %d of rank %d", index, rank);
    return NULL;
}

/* Bounds of what one end of a link carried. */
typedef struct traffic {
    int pieces;
    int64_t begin, end;
} traffic;

static void add(traffic *t, int pieces, int64_t ready, int64_t stamp)
{
    if (pieces == 0)
        return;
    t->begin = t->pieces == 0 || ready < t->begin ? ready : t->begin;
    t->end = later(t->end, stamp);
    t->pieces += pieces;
}

static void check_op(const recording *r, const tp_plan *plan, int rank, int i, traffic out[MOST_RANKS],
                     traffic in[MOST_RANKS])
{
    const tp_plan_op *op = &plan->rank[rank].op[i];
    int64_t ready = waited_for(r, op), stamp = r->stamp[rank][i];
    int received, sent;
    count_pieces(op, rank, &received, &sent);
    if (op->kind == TP_OP_RECV) {
        ready = later(ready, waited_for(r, sender_of(plan, rank, i)));
        add(&out[op->peer], received, ready, stamp);
    }
    int64_t least = nanoseconds_of(received > sent ? received : sent, plan->ranks, plan->chunks);
    least += received + sent > 0 ? (int64_t)(slow_link.latency_seconds * 1e9) : 0;
    cr_assert(stamp + SLACK >= ready + least,
              "%s %s on %d ranks, rank %d op %d (%s): done %lld ns after what it waited for, its bytes take %lld",
              tp_overlap_name(r->plan.algorithm), tp_pattern_name(r->plan.pattern), plan->ranks, rank, i,
              tp_op_name(op->kind), (long long)(stamp - ready), (long long)least);
    cr_assert(stamp <= r->end[rank] + SLACK, "%s %s: rank %d op %d is done after the run",
              tp_overlap_name(r->plan.algorithm), tp_pattern_name(r->plan.pattern), rank, i);
    add(&in[rank], received, ready, stamp);
    add(&out[rank], sent, ready, stamp);
    for (int k = 0; k < op->reads; k++)
        if (op->read[k].rank != rank)
            add(&out[op->read[k].rank], op->read[k].pieces, ready, stamp);
    for (int k = 0; k < op->writes; k++)
        if (op->write[k].rank != rank)
            add(&in[op->write[k].rank], op->write[k].pieces, ready, stamp);
}

static void check_recording(const recording *r, const tp_plan *plan)
{
    traffic out[MOST_RANKS] = {{0}}, in[MOST_RANKS] = {{0}};
    for (int rank = 0; rank < plan->ranks; rank++) {
        for (int i = 0; i < plan->rank[rank].count; i++)
            check_op(r, plan, rank, i, out, in);
        cr_assert(r->waited[rank] <= r->elapsed[rank] + 1e-9 * SLACK, "%s %s: rank %d waited %g s of %g",
                  tp_overlap_name(r->plan.algorithm), tp_pattern_name(r->plan.pattern), rank, r->waited[rank],
                  r->elapsed[rank]);
    }
    for (int end = 0; end < 2 * plan->ranks; end++) {
        const traffic *t = end % 2 ? &in[end / 2] : &out[end / 2];
        int64_t least = nanoseconds_of(t->pieces, plan->ranks, plan->chunks);
        cr_assert(t->end + SLACK >= t->begin + least,
                  "%s %s on %d ranks: the link %s rank %d carries %d pieces in %lld ns, they take %lld",
                  tp_overlap_name(r->plan.algorithm), tp_pattern_name(r->plan.pattern), plan->ranks,
                  end % 2 ? "to" : "from", end / 2, t->pieces, (long long)(t->end - t->begin), (long long)least);
    }
}

static void check(tp_overlap algorithm, bool one_lane, tp_pattern pattern, int ranks)
{
    recording r = {
        .plan = {.algorithm = algorithm, .pattern = pattern, .ranks = ranks, .chunks = 2, .one_lane = one_lane}};
    const tp_run_options options = {.ranks = ranks, .ctx = {.threads = 1, .timeout_ms = 20000}, .link = slow_link};
    tp_plan *plan;
    cr_assert_eq(tp_plan_create(&r.plan, &plan), TP_OK);
    cr_assert_eq(tp_run_ranks(&options, record_run, &r), TP_OK, "%s %s: %s", tp_overlap_name(algorithm),
                 tp_pattern_name(pattern), tp_last_message());
    check_recording(&r, plan);
    tp_plan_destroy(plan);
}

Test(execute_link, stamps_obey_the_plan_and_the_link, .timeout = 120)
{
    for (int pattern = 0; pattern < TP_PATTERN_COUNT; pattern++)
        for (int ranks = 2; ranks <= MOST_RANKS; ranks++) {
            for (int algorithm = TP_OVERLAP_RING; algorithm < TP_OVERLAP_AUTO; algorithm++)
                check((tp_overlap)algorithm, false, (tp_pattern)pattern, ranks);
            check(TP_OVERLAP_PULL, true, (tp_pattern)pattern, ranks);
        }
}
