/* The NCCL transport when ranks fail, hang, end or differ, and when they are processes. */
#include "cuda/nccl_processes.h"

/* ---- failures ---------------------------------------------------------------------------------------------------- */

static tp_status reduce_and_wait(tp_ctx *ctx)
{
    tpt_device array;
    TPI_TRY(random_up(ctx, TP_DTYPE_F32, 50, 3, 23, &array));
    tp_status status = tp_all_reduce(ctx, tp_ctx_world(ctx), array.tensor, array.tensor, NULL);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    tpt_down(ctx, &array, NULL);
    return status;
}

/* Rank 1 fails while the others' streams wait for it. */
static tp_status one_fails(tp_ctx *ctx, void *arg)
{
    tp_status status = reduce_and_wait(ctx); /* rank 1 may be through, and fail, before another has seen its own end */
    if (tp_ctx_rank(ctx) == 1)
        return note_outcome(ctx, arg, tpi_fail(ctx, TP_ERR_BACKEND, "planted"));
    return note_outcome(ctx, arg, status == TP_OK ? reduce_and_wait(ctx) : status);
}

Test(nccl, a_failing_rank_frees_its_peers)
{
    if (!tpt_have_gpus(4))
        return;
    for (unsigned s = 0; s < TPT_RANK_SCHEDULES; s++) {
        outcome all = {.status = {TP_OK}};
        tp_run_options options = on_gpus(4);
        options.ctx.threads = 1;
        tpt_schedule(s);
        double begin = tpi_seconds();
        cr_assert_eq(tp_run_ranks(&options, one_fails, &all), TP_ERR_BACKEND, "%s", tp_last_message());
        cr_assert_lt(tpi_seconds() - begin, 20);
        one_failed(&all, 4, TP_ERR_BACKEND, "planted");
        tpt_no_reports("NCCL");
    }
}

/* ---- failures of NCCL itself ------------------------------------------------------------------------------------- */

static tp_status two_sums(tp_ctx *ctx, void *arg)
{
    TPI_TRY(note_outcome(ctx, arg, reduce_and_wait(ctx)));
    return note_outcome(ctx, arg, reduce_and_wait(ctx));
}

/* Messages of all ranks to all, as one group of calls; a rank that the failed one doesn't concern learns of it in the
 * third. */
static tp_status three_exchanges(tp_ctx *ctx, void *arg)
{
    tpt_device in, out;
    int64_t counts[] = {2, 2, 2};
    TPI_TRY(random_up(ctx, TP_DTYPE_F32, 6, 3, 37, &in));
    TPI_TRY(poison_up(ctx, TP_DTYPE_F32, 6, 3, &out));
    tp_status status = TP_OK;
    for (int round = 0; round < 3 && status == TP_OK; round++) {
        status = tp_all_to_all(ctx, tp_ctx_world(ctx), in.tensor, counts, out.tensor, counts);
        if (status == TP_OK)
            status = tp_ctx_synchronize(ctx);
    }
    note_outcome(ctx, arg, status);
    tpt_down(ctx, &in, NULL);
    tpt_down(ctx, &out, NULL);
    return status;
}

typedef struct planted {
    tpt_rank_fn fn;
    int call; /* of rank 1, by NCCL's count */
    gpusim_nccl_failure how;
    const char *says;
} planted;

/* Rank 1 names the call; the others hear of it long before their time is up. */
Test(nccl, failures_of_nccl_are_told)
{
    static const planted cases[] = {
        {two_sums, CREATION + 2, GPUSIM_NCCL_AT_CALL, "NCCL: ncclAllGather"},
        {two_sums, CREATION + 2, GPUSIM_NCCL_LATER, "remote process exited"},
        {three_exchanges, CREATION + 5, GPUSIM_NCCL_AT_CALL, "NCCL: ncclSend"},
        {three_exchanges, CREATION + 8, GPUSIM_NCCL_AT_CALL, "NCCL: ncclRecv"},
        {three_exchanges, CREATION + 6, GPUSIM_NCCL_LATER, "remote process exited"},
    };
    if (!tpt_have_gpus(3))
        return;
    for (unsigned s = 0; s < TPT_SCHEDULES; s++)
        for (size_t i = 0; i < COUNT_OF(cases); i++) {
            outcome all = {.status = {TP_OK}};
            tp_run_options options = on_gpus(3);
            options.ctx.timeout_ms = 10000;
            tpt_schedule(s);
            if (!tpt_simulator_fail_nccl(1, cases[i].call, cases[i].how))
                return;
            tp_run_ranks(&options, cases[i].fn, &all);
            one_failed(&all, 3, TP_ERR_COMM, cases[i].says);
            tpt_no_reports("NCCL");
        }
}

/* ---- ranks that end or stay away --------------------------------------------------------------------------------- */

/* Rank 2's function ends before the second sum. */
static tp_status one_ends(tp_ctx *ctx, void *arg)
{
    tp_status status = reduce_and_wait(ctx); /* another may have noticed before this one has seen its own end */
    if (tp_ctx_rank(ctx) == 2)
        return status;
    return note_outcome(ctx, arg, status == TP_OK ? reduce_and_wait(ctx) : status);
}

Test(nccl, a_rank_that_ended_is_not_waited_for)
{
    if (!tpt_have_gpus(3))
        return;
    for (unsigned s = 0; s < TPT_RANK_SCHEDULES; s++) {
        outcome all = {.status = {TP_OK}};
        tp_run_options options = on_gpus(3);
        tpt_schedule(s);
        double begin = tpi_seconds();
        cr_assert_eq(tp_run_ranks(&options, one_ends, &all), TP_ERR_STATE, "%s", tp_last_message());
        cr_assert_lt(tpi_seconds() - begin, 20);
        for (int rank = 0; rank < 2; rank++)
            cr_assert_eq(all.status[rank], TP_ERR_PEER, "rank %d: %s", rank, all.message[rank]);
        tpt_no_reports("NCCL");
    }
}

/* Rank 0 never comes to the second sum. */
static tp_status one_stays_away(tp_ctx *ctx, void *arg)
{
    TPI_TRY(reduce_and_wait(ctx));
    if (tp_ctx_rank(ctx) != 0)
        return note_outcome(ctx, arg, reduce_and_wait(ctx));
    double begin = tpi_seconds();
    while (tpi_seconds() - begin < 4 && ctx->world->table->health(ctx->world) == TP_OK)
        ;
    return note_outcome(ctx, arg, tp_barrier(ctx, tp_ctx_world(ctx)));
}

Test(nccl, a_hang_is_a_time_out)
{
    if (!tpt_have_gpus(3))
        return;
    outcome all = {.status = {TP_OK}};
    tp_run_options options = on_gpus(3);
    options.ctx.timeout_ms = 500;
    tpt_schedule(0);
    cr_assert_eq(tp_run_ranks(&options, one_stays_away, &all), TP_ERR_TIMEOUT, "%s", tp_last_message());
    int late = 0;
    for (int rank = 0; rank < 3; rank++) {
        late += all.status[rank] == TP_ERR_TIMEOUT;
        cr_assert(all.status[rank] == TP_ERR_TIMEOUT || all.status[rank] == TP_ERR_PEER, "rank %d: %s", rank,
                  all.message[rank]);
    }
    cr_assert_geq(late, 1);
    cr_assert_eq(all.status[0], TP_ERR_PEER);
    tpt_no_reports("time-out");
}

/* ---- ranks that are processes ------------------------------------------------------------------------------------ */

Test(nccl, processes_get_the_same_bits)
{
    if (!tpt_have_gpus(4))
        return;
    static const tpt_rank_fn fns[] = {run_script, run_split};
    for (size_t f = 0; f < COUNT_OF(fns); f++) {
        script cpu = {0}, gpu = {0};
        outcome ends;
        tpt_schedule(2 - f);
        run_processes(4, fns[f], &gpu, &ends);
        all_well(&ends, 4, "processes");
        tpt_run_with((tp_run_options){.ranks = 4}, fns[f], &cpu);
        tpt_records_same("processes", gpu.log, cpu.log, 4);
        tpt_records_free(gpu.log, 4);
        tpt_records_free(cpu.log, 4);
    }
}

Test(nccl, a_failing_process_frees_its_peers)
{
    if (!tpt_have_gpus(3))
        return;
    outcome all = {.status = {TP_OK}};
    outcome ends;
    tpt_schedule(1);
    run_processes(3, one_fails, &all, &ends);
    one_failed(&ends, 3, TP_ERR_BACKEND, "planted");
    tpt_no_reports("a failing process");
}

/* What needs the other ranks' memory in a plan is refused, and the automatic choice goes without. */
static tp_status apart(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tpi_board *board;
    tp_comm *world = tp_ctx_world(ctx);
    const tpi_board_desc desc = {.flags = 1, .page_bytes = 8, .lanes = 1};
    CHECK(world->table->board->create(ctx, world, &desc, &board) == TP_ERR_UNSUPPORTED);
    CHECK(strstr(tp_ctx_message(ctx), "touch each other's memory"));
    return tp_barrier(ctx, world);
}

Test(nccl, processes_do_not_share_memory)
{
    if (!tpt_have_gpus(2))
        return;
    outcome ends;
    tpt_schedule(0);
    run_processes(2, apart, NULL, &ends);
    all_well(&ends, 2, "apart");
}

/* ---- a checking world -------------------------------------------------------------------------------------------- */

static tp_status different_calls(tp_ctx *ctx, void *arg)
{
    tpt_device array;
    int64_t rows = tp_ctx_rank(ctx) == 2 ? 5 : 4;
    TPI_TRY(random_up(ctx, TP_DTYPE_F32, rows, 3, 29, &array));
    tp_status status = note_outcome(ctx, arg, tp_all_reduce(ctx, tp_ctx_world(ctx), array.tensor, array.tensor, NULL));
    tpt_down(ctx, &array, NULL);
    return status;
}

static tp_status different_counts(tp_ctx *ctx, void *arg)
{
    tpt_device in, out;
    int64_t two[] = {2, 2, 2}, wrong[] = {2, 2, 3};
    bool odd = tp_ctx_rank(ctx) == 1;
    TPI_TRY(random_up(ctx, TP_DTYPE_F32, 6, 3, 31, &in));
    TPI_TRY(poison_up(ctx, TP_DTYPE_F32, odd ? 7 : 6, 3, &out));
    tp_status status =
        note_outcome(ctx, arg, tp_all_to_all(ctx, tp_ctx_world(ctx), in.tensor, two, out.tensor, odd ? wrong : two));
    tpt_down(ctx, &in, NULL);
    tpt_down(ctx, &out, NULL);
    return status;
}

Test(nccl, a_checking_world_compares_calls)
{
    if (!tpt_have_gpus(3))
        return;
    static const tpt_rank_fn wrong[] = {different_calls, different_counts};
    tpt_schedule(2);
    script all = {0};
    tp_run_options options = on_gpus(3);
    options.check_calls = true;
    tpt_run_with(options, run_script, &all);
    tpt_records_free(all.log, 3);
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        outcome seen = {.status = {TP_OK}};
        cr_assert_eq(tp_run_ranks(&options, wrong[i], &seen), TP_ERR_MISMATCH, "%s", tp_last_message());
        for (int rank = 0; rank < 3; rank++)
            cr_assert_eq(seen.status[rank], TP_ERR_MISMATCH, "rank %d: %s", rank, seen.message[rank]);
    }
    tpt_no_reports("different calls");
}
