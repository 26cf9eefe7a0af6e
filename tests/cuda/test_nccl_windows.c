/* NCCL's windows: symmetric buffers between ranks that are processes, the staging of small operations, and what happens
 * where there are none. Other versions of NCCL, and failures, are the simulator's. */
#include "cuda/nccl_processes.h"

enum { RANKS = 3, FLOATS = 100, STAGED = 2 * 262144 };

static size_t comm_bytes(const tp_ctx *ctx)
{
    return tp_ctx_memory(ctx, TP_MEMORY_COMM).bytes;
}

/* ---- symmetric buffers ------------------------------------------------------------------------------------------- */

/* Copies a rank's numbers into its neighbour's buffer, by a kernel. */
static tp_status write_to_next(tp_ctx *ctx, const tp_symmetric *shared)
{
    tp_comm *world = tp_ctx_world(ctx);
    int rank = tp_comm_rank(world), size = tp_comm_size(world), from = (rank + size - 1) % size;
    float values[FLOATS];
    tpt_device mine;
    for (int i = 0; i < FLOATS; i++)
        values[i] = (float)(rank * 1000 + i);
    TPI_TRY(tpt_up(ctx, values, TP_DTYPE_F32, 1, FLOATS, &mine));
    const tpi_map_args copy = {.rows = 1,
                               .cols = FLOATS,
                               .in = mine.tensor.data,
                               .in_dtype = TP_DTYPE_F32,
                               .in_stride = FLOATS,
                               .out = shared->peer[(rank + 1) % size],
                               .out_dtype = TP_DTYPE_F32,
                               .out_stride = FLOATS};
    tp_status status = ctx->backend->map(ctx->compute, &copy);
    if (status == TP_OK)
        status = tp_barrier(ctx, world);
    if (status == TP_OK)
        status = tp_ctx_download(ctx, values, shared->local, sizeof values);
    for (int i = 0; i < FLOATS && status == TP_OK; i++)
        CHECK(values[i] == (float)(from * 1000 + i));
    tpt_down(ctx, &mine, NULL);
    return status;
}

static tp_status symmetric_buffers(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tp_comm *world = tp_ctx_world(ctx);
    size_t before = comm_bytes(ctx);
    tp_symmetric first, second;
    CHECK(world->apart);
    for (int round = 0; round < 2; round++) {
        tp_status status = tp_symmetric_create(ctx, world, FLOATS * sizeof(float), &first);
        if (status == TP_ERR_UNSUPPORTED && !tpt_simulator_symbol("gpusim_nccl")) /* real GPUs may lack it */
            return tp_barrier(ctx, world);
        TPI_TRY(status);
        TPI_TRY(tp_symmetric_create(ctx, world, (size_t)round, &second));
        CHECK(first.local && first.local == first.peer[tp_comm_rank(world)] && comm_bytes(ctx) > before);
        TPI_TRY(write_to_next(ctx, &first));
        tp_symmetric_destroy(ctx, world, round ? &first : &second);
        tp_symmetric_destroy(ctx, world, round ? &second : &first);
        CHECK(!first.local && !first.peer && comm_bytes(ctx) == before);
    }
    return TP_OK;
}

Test(nccl_windows, processes_have_symmetric_buffers)
{
    if (!tpt_have_gpus(RANKS))
        return;
    for (unsigned s = 0; s < TPT_RANK_SCHEDULES; s++) {
        outcome ends;
        tpt_schedule(s);
        run_processes(RANKS, symmetric_buffers, NULL, &ends);
        all_well(&ends, RANKS, "symmetric buffers");
    }
}

/* Of a group, and left to the context's end. */
static tp_status of_a_group(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tp_comm *part;
    tp_symmetric shared;
    TPI_TRY(tp_comm_split(ctx, tp_ctx_world(ctx), tp_ctx_rank(ctx) == 0, 0, &part));
    if (tp_comm_size(part) > 1) {
        TPI_TRY(tp_symmetric_create(ctx, part, 64, &shared));
        CHECK(shared.peer[0] && shared.peer[1] && shared.peer[0] != shared.peer[1]);
        tp_symmetric_destroy(ctx, part, &shared);
    }
    tp_comm_destroy(ctx, part);
    return tp_barrier(ctx, tp_ctx_world(ctx));
}

static tp_status different_sizes(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tp_symmetric shared;
    tp_status status = tp_symmetric_create(ctx, tp_ctx_world(ctx), tp_ctx_rank(ctx) == 1 ? 128 : 64, &shared);
    CHECK(status == TP_ERR_MISMATCH && !shared.local && !shared.peer && comm_bytes(ctx) == STAGED);
    CHECK(strstr(tp_last_message(), "bytes is 64 on rank 0 and 128 on rank 1") != NULL);
    return symmetric_buffers(ctx, NULL);
}

Test(nccl_windows, groups_and_sizes)
{
    static const tpt_rank_fn fns[] = {of_a_group, different_sizes};
    if (!tpt_have_gpus(RANKS))
        return;
    for (size_t f = 0; f < COUNT_OF(fns); f++) {
        outcome ends;
        tpt_schedule((unsigned)f);
        if (!tpt_simulator_nccl(0, true))
            return;
        run_processes(RANKS, fns[f], NULL, &ends);
        all_well(&ends, RANKS, "groups and sizes");
    }
}

/* ---- where there are none ---------------------------------------------------------------------------------------- */

typedef struct library {
    int version;
    bool symmetric;
    size_t staged; /* at the begin */
    const char *says;
} library;

static const library libraries[] = {
    {21801, true, 0, "NCCL 2.18.1 has no windows"},
    {22605, true, 0, "NCCL 2.26.5 has no windows"},
    {22809, true, STAGED, "NCCL 2.28.9 does not say where peers' memory is"},
    {22809, false, STAGED, "NCCL 2.28.9 does not say where peers' memory is"},
    {23007, false, 0, "no symmetric memory between these GPUs"},
};

typedef struct trial {
    const library *library;
    script said;
} trial;

/* Refused alike on all ranks, with nothing broken; and all else works as ever. */
static tp_status without(tp_ctx *ctx, void *arg)
{
    trial *all = arg;
    tp_symmetric shared;
    CHECK(comm_bytes(ctx) == all->library->staged);
    CHECK(tp_symmetric_create(ctx, tp_ctx_world(ctx), 64, &shared) == TP_ERR_UNSUPPORTED);
    CHECK(strstr(tp_last_message(), all->library->says) != NULL);
    CHECK(!shared.local && !shared.peer && comm_bytes(ctx) == all->library->staged);
    return run_script(ctx, &all->said);
}

Test(nccl_windows, older_libraries_and_gpus_without)
{
    script cpu = {0};
    if (!tpt_have_gpus(RANKS))
        return;
    tpt_run_with((tp_run_options){.ranks = RANKS}, run_script, &cpu);
    for (size_t i = 0; i < COUNT_OF(libraries); i++) {
        outcome ends;
        trial all = {.library = &libraries[i]};
        tpt_schedule((unsigned)i);
        if (!tpt_simulator_nccl(libraries[i].version, libraries[i].symmetric))
            break;
        run_processes(RANKS, without, &all, &ends);
        all_well(&ends, RANKS, libraries[i].says);
        tpt_records_same(libraries[i].says, all.said.log, cpu.log, RANKS);
        tpt_records_free(all.said.log, RANKS);
    }
    tpt_records_free(cpu.log, RANKS);
}

Test(nccl_windows, a_library_that_is_too_old)
{
    if (!tpt_have_gpus(2))
        return;
    tp_run_options options = on_gpus(2);
    tpt_schedule(0);
    if (!tpt_simulator_nccl(21701, true))
        return;
    cr_assert_eq(tp_run_ranks(&options, never, NULL), TP_ERR_UNSUPPORTED, "%s", tp_last_message());
    cr_assert_not_null(strstr(tp_last_message(), "has version 2.17.1, at least 2.18.1 is needed"), "%s",
                       tp_last_message());
    tpt_gpus_clean("too old");
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

static tp_status make_one(tp_ctx *ctx, void *arg)
{
    tp_comm *world = tp_ctx_world(ctx);
    tp_symmetric shared;
    tp_status status = tp_symmetric_create(ctx, world, 64, &shared);
    note_outcome(ctx, arg, status);
    tp_symmetric_destroy(ctx, world, &shared);
    if (tp_ctx_failure(ctx) != TP_OK)
        return status;
    CHECK(comm_bytes(ctx) == STAGED);
    return symmetric_buffers(ctx, NULL); /* nothing is broken */
}

Test(nccl_windows, one_rank_without_memory)
{
    if (!tpt_have_gpus(RANKS))
        return;
    for (unsigned s = 0; s < TPT_SCHEDULES; s++) {
        outcome all = {.status = {TP_OK}};
        outcome ends;
        tpt_schedule(s);
        if (!tpt_simulator_fail_nccl(1, CREATION + 1, GPUSIM_NCCL_AT_CALL))
            return;
        run_processes(RANKS, make_one, &all, &ends);
        for (int rank = 0; rank < RANKS; rank++)
            cr_assert_eq(all.status[rank], rank == 1 ? TP_ERR_MEMORY : TP_ERR_PEER, "rank %d: %s", rank,
                         all.message[rank]);
        cr_assert_not_null(strstr(all.message[0], "rank 1 of 3 has no memory"), "%s", all.message[0]);
        all_well(&ends, RANKS, "no memory");
    }
}

/* No memory for the communicator's own window: it goes without, on all ranks. */
static tp_status without_staging(tp_ctx *ctx, void *arg)
{
    CHECK(comm_bytes(ctx) == STAGED / 2);
    return run_script(ctx, arg);
}

Test(nccl_windows, staging_without_memory)
{
    if (!tpt_have_gpus(RANKS))
        return;
    script cpu = {0};
    tpt_run_with((tp_run_options){.ranks = RANKS}, run_script, &cpu);
    for (int call = 1; call <= 3; call += 2) {
        script gpu = {0};
        outcome ends;
        tpt_schedule((unsigned)call);
        if (!tpt_simulator_fail_nccl(1, call, GPUSIM_NCCL_AT_CALL))
            break;
        run_processes(RANKS, without_staging, &gpu, &ends);
        all_well(&ends, RANKS, "staging without memory");
        tpt_records_same("staging without memory", gpu.log, cpu.log, RANKS);
        tpt_records_free(gpu.log, RANKS);
    }
    tpt_records_free(cpu.log, RANKS);
}

typedef struct planted {
    int call; /* of rank 1 */
    gpusim_nccl_failure how;
    const char *says;
} planted;

/* In the making of a context, or later: rank 1 says what NCCL said, the others hear of it, and nothing is left. */
Test(nccl_windows, failures_of_nccl_are_told)
{
    static const planted cases[] = {
        {2, GPUSIM_NCCL_AT_CALL, "NCCL: ncclCommWindowRegister"},
        {2, GPUSIM_NCCL_LATER, "remote process exited"},
        {4, GPUSIM_NCCL_AT_CALL, "NCCL: ncclCommWindowRegister"},
        {4, GPUSIM_NCCL_LATER, "remote process exited"},
        {CREATION + 2, GPUSIM_NCCL_AT_CALL, "NCCL: ncclCommWindowRegister"},
        {CREATION + 2, GPUSIM_NCCL_LATER, "remote process exited"},
        {CREATION + 3, GPUSIM_NCCL_AT_CALL, "NCCL: ncclGetPeerDevicePointer"},
        {CREATION + 4, GPUSIM_NCCL_AT_CALL, "NCCL: ncclGetPeerDevicePointer"},
    };
    if (!tpt_have_gpus(RANKS))
        return;
    for (unsigned s = 0; s < TPT_SCHEDULES; s++)
        for (size_t i = 0; i < COUNT_OF(cases); i++) {
            outcome all = {.status = {TP_OK}};
            outcome ends;
            tpt_schedule(s);
            if (!tpt_simulator_fail_nccl(1, cases[i].call, cases[i].how))
                return;
            run_processes(RANKS, make_one, &all, &ends);
            one_failed(&ends, RANKS, TP_ERR_COMM, cases[i].says);
            tpt_gpus_clean(cases[i].says);
        }
}

/* Rank 1 fails with its buffer registered, while the others' streams wait for it and may still write there. */
static tp_status fails_with_a_window(tp_ctx *ctx, void *arg)
{
    tp_comm *world = tp_ctx_world(ctx);
    tp_symmetric shared;
    TPI_TRY(tp_symmetric_create(ctx, world, FLOATS * sizeof(float), &shared));
    tp_status status = tp_ctx_rank(ctx) == 1 ? tpi_fail(ctx, TP_ERR_BACKEND, "planted") : write_to_next(ctx, &shared);
    note_outcome(ctx, arg, status);
    tp_symmetric_destroy(ctx, world, &shared);
    return status;
}

Test(nccl_windows, a_failing_rank_leaves_no_window)
{
    if (!tpt_have_gpus(RANKS))
        return;
    for (unsigned s = 0; s < TPT_RANK_SCHEDULES; s++) {
        outcome all = {.status = {TP_OK}};
        outcome ends;
        tpt_schedule(s);
        if (!tpt_simulator_nccl(0, true))
            return;
        run_processes(RANKS, fails_with_a_window, &all, &ends);
        one_failed(&all, RANKS, TP_ERR_BACKEND, "planted");
        tpt_gpus_clean("a failing rank");
    }
}
