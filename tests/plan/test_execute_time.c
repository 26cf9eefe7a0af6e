/* Runs take the time that the simulator says: GEMMs are sleeps, so that cores don't matter, and the link is a modelled
 * one. The quickest of some runs counts, as a busy machine only ever makes them longer, and one that stays busy gets
 * more runs. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tp/simulate.h>

#include "../support/data.h"
#include "core/context.h"
#include "plan/execute.h"

enum { RANKS = 2, CHUNKS = 8, TOKENS = 64, COLS = 64, TRIES = 5, ROUNDS = 12 };

#define GEMM_SECONDS 0.016
#define MOST 1.35 /* times as long as simulated */

/* Transfers of a pattern together take as long as its GEMMs. */
typedef struct timing {
    tp_plan_desc plan;
    int gemms, transfers;
    double seconds[RANKS];
    tp_status (*run)(tpi_stream *stream, tpi_task task, const void *args, size_t bytes); /* the backend's */
} timing;

static double bytes_of_a_buffer(void)
{
    return (double)TOKENS * COLS * sizeof(float);
}

/* Half of a buffer crosses the link in its share of the time. */
static tp_link link_of(const timing *t)
{
    return (tp_link){.bytes_per_second = bytes_of_a_buffer() / 2 / (GEMM_SECONDS * t->gemms / t->transfers)};
}

static tp_status sleep_task(tp_ctx *ctx, const void *pointer)
{
    const double *seconds = pointer;
    (void)ctx;
    struct timespec pause = {0, (long)(*seconds * 1e9)};
    nanosleep(&pause, NULL);
    return TP_OK;
}

static tp_status issue_sleep(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    const timing *t = tpi_run_job(run)->user;
    double seconds = GEMM_SECONDS * op->pieces / (t->plan.ranks * t->plan.chunks);
    return t->run(stream, sleep_task, &seconds, sizeof seconds);
}

static const tpi_plan_table table = {.issue = {[TP_OP_GEMM] = issue_sleep}};

static tp_status run_rank(tp_ctx *ctx, void *arg)
{
    timing *t = arg;
    int rank = tp_ctx_rank(ctx);
    tpi_prepared *prepared;
    ctx->pulling = TPI_PULL_ON_LANE; /* unless the plan says one lane */
    if (rank == 0)
        t->run = ctx->backend->run;
    tp_status status = tp_barrier(ctx, tp_ctx_world(ctx));
    if (status == TP_OK)
        status = tpi_plan_get(ctx, tp_ctx_group(ctx, TP_AXIS_TP), &t->plan, &prepared);
    tpi_job job = {.table = &table, .user = t, .tokens = TOKENS};
    tp_range own = tp_shard_range(TOKENS, RANKS, rank);
    float *memory[TP_BUFFERS];
    for (int buffer = 0; buffer < TP_BUFFERS; buffer++) {
        bool shard = buffer == TP_BUFFER_INPUT || buffer == TP_BUFFER_SECOND || buffer == TP_BUFFER_OUTPUT ||
                     buffer == TP_BUFFER_INBOX;
        memory[buffer] = tpt_new_normal(TP_DTYPE_F32, TOKENS * COLS, 1, 1.0);
        job.view[buffer] = (tpi_view){memory[buffer], TP_DTYPE_F32, COLS, COLS, shard ? own.begin : 0};
    }
    for (int i = 0; i < TRIES && status == TP_OK; i++) {
        status = tp_barrier(ctx, tp_ctx_world(ctx));
        double begin = tpi_seconds();
        if (status == TP_OK)
            status = tpi_plan_run(prepared, &job);
        t->seconds[rank] = fmin(t->seconds[rank], tpi_seconds() - begin);
    }
    for (int buffer = 0; buffer < TP_BUFFERS; buffer++)
        free(memory[buffer]);
    return status;
}

static double simulated(const timing *t)
{
    tp_plan *plan;
    cr_assert_eq(tp_plan_create(&t->plan, &plan), TP_OK);
    tp_plan_costs costs = {.link = link_of(t)};
    for (int part = 0; part < TP_PLAN_PARTS; part++)
        costs.gemm_seconds[part] = GEMM_SECONDS;
    for (int buffer = 0; buffer < TP_BUFFERS; buffer++)
        costs.bytes[buffer] = bytes_of_a_buffer();
    tp_timeline *timeline;
    cr_assert_eq(tp_plan_simulate(plan, &costs, &timeline), TP_OK, "%s", tp_last_message());
    double seconds = timeline->seconds;
    tp_timeline_destroy(timeline);
    tp_plan_destroy(plan);
    return seconds;
}

/* one_lane: of PULL. */
static void check(tp_overlap algorithm, bool one_lane, tp_pattern pattern, int gemms, int transfers)
{
    timing t = {.plan = {algorithm, pattern, RANKS, CHUNKS, one_lane},
                .gemms = gemms,
                .transfers = transfers,
                .seconds = {INFINITY, INFINITY}};
    const tp_run_options options = {.ranks = RANKS, .ctx = {.threads = 1, .timeout_ms = 20000}, .link = link_of(&t)};
    double measured = INFINITY, expected = simulated(&t);
    for (int round = 0; round < ROUNDS && measured >= MOST * expected; round++) {
        cr_assert_eq(tp_run_ranks(&options, run_rank, &t), TP_OK, "%s", tp_last_message());
        measured = fmax(t.seconds[0], t.seconds[1]);
    }
    cr_log_info("%s %s: %.1f ms measured, %.1f ms simulated", tp_overlap_name(algorithm), tp_pattern_name(pattern),
                measured * 1e3, expected * 1e3);
    cr_assert_gt(measured, 0.97 * expected, "%s %s", tp_overlap_name(algorithm), tp_pattern_name(pattern));
    cr_assert_lt(measured, MOST * expected, "%s %s: %.1f ms measured, %.1f ms simulated", tp_overlap_name(algorithm),
                 tp_pattern_name(pattern), measured * 1e3, expected * 1e3);
}

Test(execute_time, runs_take_as_long_as_simulated, .timeout = 120)
{
    static const tp_overlap algorithms[] = {TP_OVERLAP_NONE, TP_OVERLAP_RING, TP_OVERLAP_PIPELINE, TP_OVERLAP_DIRECT,
                                            TP_OVERLAP_PULL, TP_OVERLAP_PULL};
    for (int i = 0; i < 6; i++) {
        check(algorithms[i], i == 5, TP_PATTERN_GATHER_GEMM, 1, 1);
        check(algorithms[i], i == 5, TP_PATTERN_GEMM_SCATTER, 1, 1);
        check(algorithms[i], i == 5, TP_PATTERN_BACKWARD, 2, 2);
        check(algorithms[i], i == 5, TP_PATTERN_ROW_BACKWARD, 2, 1);
        check(algorithms[i], i == 5, TP_PATTERN_CHAIN, 2, 2);
        check(algorithms[i], i == 5, TP_PATTERN_CHAIN_BACKWARD, 4, 3);
    }
}
