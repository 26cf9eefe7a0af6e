/* The NCCL transport on simulated GPUs, a device a rank: what every rank gets, against thread ranks on the CPU, bit for
 * bit. */
#include "cuda/nccl_script.h"

static const int rank_counts[] = {2, 3, 4};

static void same_as_on_cpu(int ranks, tpt_rank_fn fn)
{
    if (!tpt_have_gpus(ranks))
        return;
    script cpu = {0};
    tpt_run_with((tp_run_options){.ranks = ranks}, fn, &cpu);
    for (unsigned s = 0; s < TPT_RANK_SCHEDULES; s++) {
        script gpu = {0};
        char what[32];
        tpt_schedule(s);
        tpt_run_with(on_gpus(ranks), fn, &gpu);
        tpt_no_reports("NCCL");
        snprintf(what, sizeof what, "schedule %u", s);
        tpt_records_same(what, gpu.log, cpu.log, ranks);
        tpt_records_free(gpu.log, ranks);
    }
    tpt_records_free(cpu.log, ranks);
}

Test(nccl, gives_the_bits_of_thread_ranks)
{
    for (size_t i = 0; i < COUNT_OF(rank_counts); i++)
        same_as_on_cpu(rank_counts[i], run_script);
}

Test(nccl, splits_into_groups)
{
    same_as_on_cpu(2, run_split);
    same_as_on_cpu(4, run_split);
}

/* ---- sums in NCCL's own order ------------------------------------------------------------------------------------ */

/* Small integers: every order gives the same sum. */
static tp_status run_fast(tp_ctx *ctx, void *arg)
{
    script *all = arg;
    tpt_record *log = &all->log[tp_ctx_rank(ctx)];
    tp_comm *comm = tp_ctx_world(ctx);
    int size = tp_comm_size(comm), rank = tp_comm_rank(comm);
    for (int way = 0; way < 3; way++) {
        tpt_device in, out, part;
        int64_t rows = 12 * (1 + way);
        tp_range own = tp_shard_range(rows, size, rank);
        tp_dtype dtype = way == 1 ? TP_DTYPE_BF16 : TP_DTYPE_F32, out_dtype = way == 0 ? TP_DTYPE_F32 : TP_DTYPE_BF16;
        void *host = tpt_array(dtype, rows * 4);
        tpt_fill_integers(host, dtype, rows * 4, (uint64_t)(way * 10 + rank), 9);
        TPI_TRY(tpt_up(ctx, host, dtype, rows, 4, &in));
        free(host);
        TPI_TRY(poison_up(ctx, out_dtype, rows, 4, &out));
        TPI_TRY(poison_up(ctx, out_dtype, own.end - own.begin, 4, &part));
        tp_reduce_desc desc = {.algorithm = way == 0 ? TP_ALL_REDUCE_RING : TP_ALL_REDUCE_AUTO};
        TPI_TRY(tp_all_reduce(ctx, comm, in.tensor, out.tensor, &desc));
        desc = (tp_reduce_desc){.residual = way == 2 ? tpt_rows(&out, own.begin, own.end) : (tp_tensor){.data = NULL}};
        TPI_TRY(tp_reduce_scatter(ctx, comm, in.tensor, part.tensor, NULL, &desc));
        TPI_TRY(tpt_down(ctx, &in, NULL));
        TPI_TRY(tpt_down(ctx, &out, log));
        TPI_TRY(tpt_down(ctx, &part, log));
    }
    return TP_OK;
}

static tp_status fast_transport(tp_ctx *ctx, void *arg)
{
    CHECK(strcmp(tp_comm_transport(tp_ctx_world(ctx)), "nccl") == 0);
    return run_fast(ctx, arg);
}

Test(nccl, adds_in_its_own_order_where_that_is_asked_for)
{
    for (int ranks = 2; ranks <= 4 && tpt_have_gpus(ranks); ranks++) {
        script cpu = {0}, gpu = {0};
        tp_run_options options = on_gpus(ranks);
        options.ctx.sum_order = TP_SUM_FAST;
        options.transport = TP_TRANSPORT_AUTO;
        tpt_schedule((unsigned)ranks);
        tpt_run_with(options, fast_transport, &gpu);
        tpt_no_reports("fast");
        tpt_run_with((tp_run_options){.ranks = ranks, .ctx.sum_order = TP_SUM_FAST}, run_fast, &cpu);
        tpt_records_same("fast", gpu.log, cpu.log, ranks);
        tpt_records_free(gpu.log, ranks);
        tpt_records_free(cpu.log, ranks);
    }
}

/* ---- the choice of transport ------------------------------------------------------------------------------------- */

static tp_status expect_threads(tp_ctx *ctx, void *arg)
{
    (void)arg;
    CHECK(strcmp(tp_comm_transport(tp_ctx_world(ctx)), "threads") == 0);
    return tp_barrier(ctx, tp_ctx_world(ctx));
}

Test(nccl, auto_takes_threads_for_the_tree_and_for_shared_devices)
{
    if (!tpt_have_gpus(2))
        return;
    tp_run_options options = on_gpus(2);
    options.transport = TP_TRANSPORT_AUTO;
    tpt_schedule(0);
    tpt_run_with(options, expect_threads, NULL);
    options.ctx.sum_order = TP_SUM_FAST;
    options.devices = 1;
    tpt_run_with(options, expect_threads, NULL);
    tpt_no_reports("auto");
}

static void assert_refused(tp_run_options options, tp_status status, const char *words)
{
    cr_assert_eq(tp_run_ranks(&options, never, NULL), status, "%s", tp_last_message());
    cr_assert_not_null(strstr(tp_last_message(), words), "%s", tp_last_message());
}

Test(nccl, is_refused_where_it_can_not_be)
{
    if (!tpt_have_gpus(3))
        return;
    tp_run_options options = on_gpus(3);
    tpt_schedule(0);
    options.devices = 2;
    assert_refused(options, TP_ERR_ARGUMENT, "NCCL wants a device a rank");
    options.devices = 3;
    options.link.bytes_per_second = 1e9;
    assert_refused(options, TP_ERR_ARGUMENT, "modelled link");
    options = (tp_run_options){.ranks = 2, .transport = TP_TRANSPORT_NCCL};
    assert_refused(options, TP_ERR_UNSUPPORTED, "CPU");
    tpt_no_reports("refused");
}
