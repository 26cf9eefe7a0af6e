/* Worlds, tp_run_ranks, and what happens when a rank fails. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "ranks.h"

#define SHORT_MS 500
/* A failure must free the others long before the default bound of ten minutes. */
#define SOON_SECONDS 20.0

static tp_status count_ranks(tp_ctx *ctx, void *arg)
{
    atomic_int *seen = arg;
    atomic_fetch_add(&seen[tp_ctx_rank(ctx)], 1);
    tp_comm *world = tp_ctx_world(ctx);
    CHECK(tp_comm_rank(world) == tp_ctx_rank(ctx));
    return tp_barrier(ctx, world);
}

Test(run_ranks, every_rank_runs_once)
{
    const int counts[] = {1, 2, 3, 8, 64};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        atomic_int seen[64] = {0};
        tpt_run_with((tp_run_options){.ranks = counts[i]}, count_ranks, seen);
        for (int rank = 0; rank < 64; rank++)
            cr_assert_eq(atomic_load(&seen[rank]), rank < counts[i] ? 1 : 0);
    }
    atomic_int seen[1] = {0};
    cr_assert_eq(tp_run_ranks(NULL, count_ranks, seen), TP_OK);
    cr_assert_eq(atomic_load(&seen[0]), 1);
}

typedef struct bound_ranks {
    cpu_set_t set[64];
    int threads[64];
} bound_ranks;

static tp_status note_cores(tp_ctx *ctx, void *arg)
{
    bound_ranks *seen = arg;
    int rank = tp_ctx_rank(ctx);
    sched_getaffinity(0, sizeof seen->set[rank], &seen->set[rank]);
    seen->threads[rank] = tp_ctx_threads(ctx);
    return TP_OK;
}

/* Equal shares that don't overlap, if there is a core for each; all cores, if not. Threads a rank are counted before
 * that, and the caller stays where it was. */
Test(run_ranks, cores_are_shared_out)
{
    static bound_ranks bound, free_ranks;
    cpu_set_t all, after;
    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    int cores = CPU_COUNT(&all), counts[] = {1, 2, cores < 64 ? cores : 64, cores < 63 ? cores + 1 : 64};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int ranks = counts[i];
        cpu_set_t together;
        CPU_ZERO(&together);
        tpt_run_with((tp_run_options){.ranks = ranks, .bind_cores = true}, note_cores, &bound);
        tpt_run_with((tp_run_options){.ranks = ranks}, note_cores, &free_ranks);
        for (int rank = 0; rank < ranks; rank++) {
            cr_assert_eq(bound.threads[rank], free_ranks.threads[rank]);
            cr_assert(CPU_EQUAL(&free_ranks.set[rank], &all));
            cr_assert_eq(CPU_COUNT(&bound.set[rank]), cores < ranks ? cores : cores / ranks, "rank %d of %d", rank,
                         ranks);
            CPU_OR(&together, &together, &bound.set[rank]);
        }
        cr_assert_eq(CPU_COUNT(&together), cores < ranks ? cores : cores / ranks * ranks, "%d ranks", ranks);
        CPU_AND(&together, &together, &all);
        cr_assert_eq(CPU_COUNT(&together), cores < ranks ? cores : cores / ranks * ranks, "%d ranks", ranks);
    }
    cr_assert(sched_getaffinity(0, sizeof after, &after) == 0 && CPU_EQUAL(&all, &after));
}

Test(run_ranks, refuses_bad_options)
{
    cr_assert_eq(tp_run_ranks(NULL, NULL, NULL), TP_ERR_ARGUMENT);
    cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = -2}, count_ranks, NULL), TP_ERR_ARGUMENT);
    cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = 65}, count_ranks, NULL), TP_ERR_ARGUMENT);
    cr_assert(strstr(tp_last_message(), "65") && strstr(tp_last_message(), "64"), "%s", tp_last_message());
    cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = 2, .devices = -1}, count_ranks, NULL), TP_ERR_ARGUMENT);
    cr_assert(strstr(tp_last_message(), "devices") && strstr(tp_last_message(), "-1"), "%s", tp_last_message());
    tp_world *world = (tp_world *)&world;
    cr_assert_eq(tp_world_create_threads(&(tp_world_desc){.ranks = 0}, &world), TP_ERR_ARGUMENT);
    cr_assert_null(world);
    cr_assert_eq(tp_world_create_threads(&(tp_world_desc){.ranks = 2, .timeout_ms = -1}, &world), TP_ERR_ARGUMENT);
    cr_assert_eq(tp_world_create_threads(&(tp_world_desc){.ranks = 2, .link = {.bytes_per_second = -1}}, &world),
                 TP_ERR_ARGUMENT);
    tp_world_destroy(NULL);
}

/* A mesh that doesn't fit is refused by every rank alike. */
Test(run_ranks, context_creation_fails)
{
    const tp_run_options options = {.ranks = 8, .ctx = {.mesh = {.tp = 3}}};
    cr_assert_eq(tp_run_ranks(&options, count_ranks, NULL), TP_ERR_ARGUMENT);
    cr_assert(strstr(tp_last_message(), "rank ") && strstr(tp_last_message(), "8"), "%s", tp_last_message());
}

static tp_status barriers(tp_ctx *ctx, void *arg)
{
    int count = *(int *)arg;
    for (int i = 0; i < count; i++)
        TPI_TRY(tp_barrier(ctx, tp_ctx_world(ctx)));
    return TP_OK;
}

/* Waits spin briefly, then sleep: 64 ranks on few cores must not crawl. */
Test(run_ranks, many_ranks_do_not_crawl)
{
    int count = 200;
    double begin = tpi_seconds();
    tpt_run(64, barriers, &count);
    cr_assert_lt(tpi_seconds() - begin, SOON_SECONDS);
}

typedef enum call_kind {
    CALL_BARRIER = 0,
    CALL_ALL_REDUCE_SMALL,
    CALL_ALL_REDUCE_LARGE,
    CALL_REDUCE_SCATTER,
    CALL_ALL_GATHER_SMALL,
    CALL_ALL_GATHER_LARGE,
    CALL_BROADCAST,
    CALL_ALL_TO_ALL,
    CALL_P2P,
    CALL_SPLIT,
    CALL_SYMMETRIC,
    CALL_COUNT
} call_kind;

enum { RANKS = 4, SMALL = 64, LARGE = 40000 };

static tp_status ring_messages(tp_ctx *ctx, tp_comm *comm, int32_t *in, int32_t *out)
{
    int rank = tp_comm_rank(comm), size = tp_comm_size(comm);
    const tp_p2p ops[] = {
        {.send = true, .peer = (rank + 1) % size, .tensor = tp_tensor_1d(in, TP_DTYPE_I32, SMALL)},
        {.peer = (rank + size - 1) % size, .tensor = tp_tensor_1d(out, TP_DTYPE_I32, SMALL)},
    };
    return tp_p2p_batch(ctx, comm, ops, 2);
}

static tp_status symmetric_once(tp_ctx *ctx, tp_comm *comm)
{
    tp_symmetric symmetric;
    tp_status status = tp_symmetric_create(ctx, comm, 1000, &symmetric);
    if (status == TP_OK)
        tp_symmetric_destroy(ctx, comm, &symmetric);
    return status;
}

static tp_status split_once(tp_ctx *ctx, tp_comm *comm)
{
    tp_comm *part = NULL;
    tp_status status = tp_comm_split(ctx, comm, tp_comm_rank(comm) % 2, 0, &part);
    tp_comm_destroy(ctx, part);
    return status;
}

static tp_status call_once(tp_ctx *ctx, call_kind kind, int32_t *a, int32_t *b)
{
    tp_comm *comm = tp_ctx_world(ctx);
    const tp_dtype i32 = TP_DTYPE_I32;
    tp_tensor small = tp_tensor_1d(a, i32, SMALL), large = tp_tensor_1d(a, i32, LARGE),
              out = tp_tensor_1d(b, i32, LARGE);
    const int size = tp_comm_size(comm);
    tp_tensor part = tp_tensor_1d(b, i32, LARGE / size), small_part = tp_tensor_1d(b, i32, SMALL / size);
    switch (kind) {
    case CALL_BARRIER: return tp_barrier(ctx, comm);
    case CALL_ALL_REDUCE_SMALL: return tp_all_reduce(ctx, comm, small, small, NULL);
    case CALL_ALL_REDUCE_LARGE: return tp_all_reduce(ctx, comm, large, large, NULL);
    case CALL_REDUCE_SCATTER: return tp_reduce_scatter(ctx, comm, large, part, NULL, NULL);
    case CALL_ALL_GATHER_SMALL: return tp_all_gather(ctx, comm, small_part, small, NULL);
    case CALL_ALL_GATHER_LARGE: return tp_all_gather(ctx, comm, part, large, NULL);
    case CALL_BROADCAST: return tp_broadcast(ctx, comm, large, 1);
    case CALL_ALL_TO_ALL: return tp_all_to_all(ctx, comm, large, NULL, out, NULL);
    case CALL_P2P: return ring_messages(ctx, comm, a, b);
    case CALL_SPLIT: return split_once(ctx, comm);
    case CALL_SYMMETRIC: return symmetric_once(ctx, comm);
    default: return TP_ERR_INTERNAL;
    }
}

typedef struct death {
    call_kind kind;
    int dying;
    int rounds; /* calls before the rank dies */
    bool late;  /* others come to their next call when it has gone */
    atomic_int returned;
    tp_status seen[RANKS];
    char message[RANKS][TPI_MESSAGE_BYTES];
} death;

static tp_status die_in_the_middle(tp_ctx *ctx, void *arg)
{
    death *d = arg;
    int rank = tp_ctx_rank(ctx);
    int32_t *a = tpt_array(TP_DTYPE_I32, LARGE), *b = tpt_array(TP_DTYPE_I32, LARGE);
    tp_status status = TP_OK;
    for (int i = 0; status == TP_OK && (rank != d->dying || i < d->rounds); i++)
        status = call_once(ctx, d->kind, a, b);
    if (rank == d->dying && status == TP_OK)
        status = tpi_message(TP_ERR_NUMERIC, "weight 17 is not finite");
    d->seen[rank] = status;
    snprintf(d->message[rank], sizeof d->message[rank], "%s", tp_last_message());
    /* Nobody may touch them any more. */
    free(a);
    free(b);
    return status;
}

Test(run_ranks, a_dying_rank_frees_the_others)
{
    for (int kind = 0; kind < CALL_COUNT; kind++)
        for (int rounds = 0; rounds <= 2; rounds += 2) {
            death d = {.kind = (call_kind)kind, .dying = 2, .rounds = rounds};
            double begin = tpi_seconds();
            tp_status status =
                tp_run_ranks(&(tp_run_options){.ranks = RANKS, .ctx = {.threads = 1}}, die_in_the_middle, &d);
            cr_assert_lt(tpi_seconds() - begin, SOON_SECONDS);
            cr_assert_eq(status, TP_ERR_NUMERIC, "call %d: %s", kind, tp_last_message());
            cr_assert_str_eq(tp_last_message(), "rank 2: weight 17 is not finite");
            for (int rank = 0; rank < RANKS; rank++) {
                cr_assert_eq(d.seen[rank], rank == 2 ? TP_ERR_NUMERIC : TP_ERR_PEER, "call %d, rank %d: %s", kind, rank,
                             d.message[rank]);
                if (rank != 2)
                    cr_assert_str_eq(d.message[rank], "rank 2: weight 17 is not finite");
            }
        }
}

static tp_status one_stays_away(tp_ctx *ctx, void *arg)
{
    death *d = arg;
    if (tp_ctx_rank(ctx) == d->dying) {
        /* Alive, but elsewhere until the others have given up. */
        while (atomic_load(&d->returned) < RANKS - 1)
            nanosleep(&(struct timespec){0, 5000000}, NULL);
        return TP_OK;
    }
    int32_t *a = tpt_array(TP_DTYPE_I32, LARGE), *b = tpt_array(TP_DTYPE_I32, LARGE);
    d->seen[tp_ctx_rank(ctx)] = call_once(ctx, d->kind, a, b);
    snprintf(d->message[tp_ctx_rank(ctx)], TPI_MESSAGE_BYTES, "%s", tp_last_message());
    free(a);
    free(b);
    atomic_fetch_add(&d->returned, 1);
    return d->seen[tp_ctx_rank(ctx)];
}

static const char *const call_names[CALL_COUNT] = {
    "barrier",   "all_reduce", "all_reduce", "reduce_scatter", "all_gather", "all_gather",
    "broadcast", "all_to_all", "p2p_batch",  "split",          "exchange",
};

Test(run_ranks, waits_are_bounded)
{
    for (int kind = 0; kind < CALL_COUNT; kind++) {
        death d = {.kind = (call_kind)kind, .dying = 3};
        tp_status status = tp_run_ranks(
            &(tp_run_options){.ranks = RANKS, .ctx = {.threads = 1, .timeout_ms = SHORT_MS}}, one_stays_away, &d);
        cr_assert_eq(status, TP_ERR_TIMEOUT, "call %d: %s", kind, tp_last_message());
        cr_assert(strstr(tp_last_message(), call_names[kind]), "call %d: %s", kind, tp_last_message());
        cr_assert(strstr(tp_last_message(), "rank 3 did not") || kind == CALL_P2P, "call %d: %s", kind,
                  tp_last_message());
        int timeouts = 0;
        for (int rank = 0; rank < 3; rank++) {
            cr_assert(d.seen[rank] == TP_ERR_TIMEOUT || d.seen[rank] == TP_ERR_PEER || kind == CALL_P2P,
                      "call %d, rank %d: %s", kind, rank, tp_status_name(d.seen[rank]));
            timeouts += d.seen[rank] == TP_ERR_TIMEOUT;
        }
        cr_assert_geq(timeouts, 1);
    }
}

static tp_status one_goes_home(tp_ctx *ctx, void *arg)
{
    death *d = arg;
    int rank = tp_ctx_rank(ctx);
    int32_t *a = tpt_array(TP_DTYPE_I32, LARGE), *b = tpt_array(TP_DTYPE_I32, LARGE);
    tp_status status = call_once(ctx, d->kind, a, b);
    if (rank != d->dying && d->late)
        nanosleep(&(struct timespec){0, 20000000}, NULL);
    if (rank != d->dying && status == TP_OK)
        status = call_once(ctx, d->kind, a, b);
    d->seen[rank] = status;
    free(a);
    free(b);
    return status;
}

/* A rank that ends without failing would be waited for in vain: the others are told at once, whether they came before
 * it went or after. Two with a core each wait in another way than many. */
Test(run_ranks, a_rank_that_ends_early_is_noticed)
{
    for (int n = 0; n < 4 * CALL_COUNT; n++) {
        int kind = n / 4, ranks = n % 2 == 0 ? RANKS : 2;
        death d = {.kind = (call_kind)kind, .dying = 1, .late = n % 4 >= 2};
        double begin = tpi_seconds();
        tp_status status = tp_run_ranks(&(tp_run_options){.ranks = ranks, .ctx = {.threads = 1}}, one_goes_home, &d);
        cr_assert_lt(tpi_seconds() - begin, SOON_SECONDS);
        cr_assert_eq(status, TP_ERR_STATE, "call %d: %s: %s", kind, tp_status_name(status), tp_last_message());
        cr_assert(strstr(tp_last_message(), "rank 1: destroyed its communicator"), "call %d: %s", kind,
                  tp_last_message());
        for (int rank = 0; rank < ranks; rank++)
            /* Messages of rank 3 don't need rank 1. */
            cr_assert(d.seen[rank] == (rank == 1 ? TP_OK : TP_ERR_PEER) || (kind == CALL_P2P && rank == 3),
                      "call %d, rank %d: %s", kind, rank, tp_status_name(d.seen[rank]));
    }
}

static tp_status abort_one(tp_ctx *ctx, void *arg)
{
    death *d = arg;
    int rank = tp_ctx_rank(ctx);
    if (rank == d->dying)
        tp_comm_abort(ctx, tp_ctx_group(ctx, TP_AXIS_TP), TP_ERR_IO, "disk is full");
    do
        d->seen[rank] = tp_barrier(ctx, tp_ctx_world(ctx));
    while (d->seen[rank] == TP_OK);
    CHECK(tp_ctx_failure(ctx) == TP_ERR_PEER);
    CHECK(strcmp(tp_ctx_message(ctx), "rank 1: disk is full") == 0);
    /* Sticky, for every call. */
    CHECK(tp_barrier(ctx, tp_ctx_group(ctx, TP_AXIS_TP)) == TP_ERR_PEER);
    return TP_OK;
}

Test(run_ranks, abort_reaches_every_rank)
{
    for (int tp = 1; tp <= RANKS; tp *= 2) {
        death d = {.dying = 1};
        tpt_run_with((tp_run_options){.ranks = RANKS, .ctx.mesh = {.tp = tp, .dp = RANKS / tp}}, abort_one, &d);
        for (int rank = 0; rank < RANKS; rank++)
            cr_assert_eq(d.seen[rank], TP_ERR_PEER);
    }
}

/* Two worlds in one process never meet. */
static tp_status sum_of_world(tp_ctx *ctx, void *arg)
{
    int32_t base = *(int32_t *)arg, size = tp_comm_size(tp_ctx_world(ctx));
    for (int i = 0; i < 200; i++) {
        int32_t all[RANKS], own = base + tp_ctx_rank(ctx) + i;
        TPI_TRY(tp_all_gather(ctx, tp_ctx_world(ctx), tp_tensor_1d(&own, TP_DTYPE_I32, 1),
                              tp_tensor_1d(all, TP_DTYPE_I32, size), NULL));
        for (int rank = 0; rank < size; rank++)
            CHECK(all[rank] == base + rank + i);
    }
    return TP_OK;
}

static void *run_world(void *arg)
{
    tpt_run(3, sum_of_world, arg);
    return NULL;
}

Test(run_ranks, two_worlds_at_once)
{
    int32_t bases[] = {1000, 500000};
    pthread_t thread;
    pthread_create(&thread, NULL, run_world, &bases[0]);
    run_world(&bases[1]);
    pthread_join(thread, NULL);
}

/* Without tp_run_ranks: the caller's own threads and contexts. The mesh needs no split here, so one thread can make
 * both. */
Test(run_ranks, a_rank_has_one_context)
{
    tp_world *world = NULL;
    cr_assert_eq(tp_world_create_threads(&(tp_world_desc){.ranks = 1}, &world), TP_OK);
    tp_ctx *ctx = NULL, *again = NULL;
    tp_ctx_desc desc = {.world = world, .threads = 1}, outside = {.world = world, .rank = 1, .threads = 1};
    cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_OK);
    cr_assert_eq(tp_ctx_create(&desc, &again), TP_ERR_STATE);
    cr_assert_null(again);
    cr_assert_eq(tp_ctx_create(&outside, &again), TP_ERR_ARGUMENT);
    tp_ctx_destroy(ctx);
    tp_world_destroy(world);
    /* A rank that was given back can be taken again. */
    cr_assert_eq(tp_world_create_threads(&(tp_world_desc){.ranks = 1}, &world), TP_OK);
    desc.world = world;
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_OK);
        tp_ctx_destroy(ctx);
    }
    tp_world_destroy(world);
}

/* Of what kind a rank's device is its context says, not one that was refused. */
Test(run_ranks, a_refused_context_leaves_no_trace)
{
    tp_world *world = NULL;
    tp_ctx *ctx = NULL;
    tp_comm *comm[2], *none = NULL;
    cr_assert_eq(tp_world_create_threads(&(tp_world_desc){.ranks = 2}, &world), TP_OK);
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    cr_assert_eq(tpi_comm_create_threads(ctx, world, 0, &comm[0]), TP_OK);
    ctx->desc.device = TP_DEVICE_CUDA;
    for (int rank = 0; rank < 2; rank++) {
        cr_assert_eq(tpi_comm_create_threads(ctx, world, rank, &none), TP_ERR_ARGUMENT);
        cr_assert_null(none);
        cr_assert_not_null(strstr(tp_last_message(), "rank 0 of the world has another"), "%s", tp_last_message());
    }
    ctx->desc.device = TP_DEVICE_CPU;
    cr_assert_eq(tpi_comm_create_threads(ctx, world, 1, &comm[1]), TP_OK, "%s", tp_last_message());
    for (int rank = 0; rank < 2; rank++)
        comm[rank]->table->destroy(ctx, comm[rank]);
    tp_ctx_destroy(ctx);
    tp_world_destroy(world);
}

/* The shorter of the two bounds holds, the context's own too. Its peer, with which it makes the mesh's groups, never
 * comes. */
Test(run_ranks, a_context_may_wait_less_than_its_world)
{
    for (int longer = 0; longer < 2; longer++) {
        tp_world *world = NULL;
        const tp_world_desc of_world = {.ranks = 2, .timeout_ms = longer ? 200 : 60000};
        cr_assert_eq(tp_world_create_threads(&of_world, &world), TP_OK);
        tp_ctx *ctx = NULL;
        tp_ctx_desc desc = {.world = world, .threads = 1, .timeout_ms = longer ? 60000 : 200};
        double begin = tpi_seconds();
        cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_ERR_TIMEOUT, "%s", tp_last_message());
        double waited = tpi_seconds() - begin;
        cr_assert_null(ctx);
        cr_assert(waited > 0.1 && waited < 5, "waited %g s", waited);
        cr_assert_not_null(strstr(tp_last_message(), "rank 0 waited 200 ms, rank 1 did not come"), "%s",
                           tp_last_message());
        tp_world_destroy(world);
    }
}
