/* What fails on one rank, whenever it fails: a status with a message, peers that return, and nothing left behind. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <tp/comm.h>
#include <tp/trainer.h>

#include "comm/table.h"
#include "support/counting.h"
#include "support/data.h"
#include "support/text.h"

enum { MOST_RANKS = 4, TIMEOUT_MS = 60000 };

static const tp_model_desc shape = {.family = TP_MODEL_GPT2,
                                    .layers = 1,
                                    .hidden = 16,
                                    .heads = 4,
                                    .ffn = 20,
                                    .vocabulary = 256,
                                    .positions = 8,
                                    .dropout = 0.1f,
                                    .dtype = TP_DTYPE_BF16,
                                    .sequence_parallel = true};

static const tp_trainer_desc plan = {.batch = 4,
                                     .sequence = 8,
                                     .microbatch = 2,
                                     .lr = 1e-2f,
                                     .optimizer = {.kind = TP_OPTIMIZER_ADAMW, .decay = 0.1f, .clip_norm = 1.0f}};

typedef struct life_case life_case;

/* One rank: its own allocator, and how its life ended. */
typedef struct life {
    life_case *c;
    int rank;
    tpt_counting counting;
    tp_status status;
    char message[256];
    pthread_t thread;
} life;

struct life_case {
    int ranks, threads;
    const tp_data *data;
    tp_world *world;
    bool silent; /* the failing rank leaves without telling the others */
    life life[MOST_RANKS];
};

static tp_status train(tp_ctx *ctx, const tp_data *data, tp_model **model, tp_trainer **trainer)
{
    tp_status status = tp_model_create(ctx, &shape, model);
    if (status != TP_OK)
        return status;
    int count;
    tp_param *const *params = tp_model_params(*model, &count);
    status = tp_params_init(ctx, params, count);
    if (status == TP_OK)
        status = tp_trainer_create(ctx, &plan, *model, data, trainer);
    tp_train_report report;
    if (status == TP_OK)
        status = tp_trainer_step(ctx, *trainer, &report);
    double loss;
    if (status == TP_OK)
        status = tp_trainer_evaluate(ctx, *trainer, 3, 3, &loss);
    return status;
}

static void *live(void *arg)
{
    life *l = arg;
    tp_ctx_desc desc = {.threads = l->c->threads,
                        .world = l->c->world,
                        .rank = l->rank,
                        .timeout_ms = TIMEOUT_MS,
                        .allocator = tpt_counting_allocator(&l->counting)};
    tp_ctx *ctx;
    l->status = tp_ctx_create(&desc, &ctx);
    snprintf(l->message, sizeof l->message, "%s", l->status != TP_OK ? tp_last_message() : "");
    if (l->status != TP_OK)
        return NULL;
    tp_model *model = NULL;
    tp_trainer *trainer = NULL;
    l->status = train(ctx, l->c->data, &model, &trainer);
    if (l->status != TP_OK) {
        snprintf(l->message, sizeof l->message, "%s", tp_ctx_message(ctx));
        if (!l->c->silent && l->c->world != NULL)
            tp_comm_abort(ctx, tp_ctx_world(ctx), l->status, l->message);
    }
    tp_trainer_destroy(trainer);
    tp_model_destroy(model);
    tp_ctx_destroy(ctx);
    return NULL;
}

/* Runs all ranks; rank `failing` loses its allocation number `at` (and, if `from_then_on`, every later one). */
static void run_lives(life_case *c, int failing, long long at, bool from_then_on)
{
    c->world = NULL;
    if (c->ranks > 1)
        cr_assert_eq(tp_world_create_threads(&(tp_world_desc){.ranks = c->ranks, .timeout_ms = TIMEOUT_MS}, &c->world),
                     TP_OK);
    for (int rank = 0; rank < c->ranks; rank++) {
        c->life[rank] = (life){.c = c, .rank = rank};
        if (rank == failing) {
            c->life[rank].counting.fail_at = at;
            c->life[rank].counting.fail_later = from_then_on;
        }
    }
    for (int rank = 0; rank < c->ranks; rank++)
        cr_assert_eq(pthread_create(&c->life[rank].thread, NULL, live, &c->life[rank]), 0);
    for (int rank = 0; rank < c->ranks; rank++)
        pthread_join(c->life[rank].thread, NULL);
    tp_world_destroy(c->world);
    for (int rank = 0; rank < c->ranks; rank++) {
        const tpt_counting *counting = &c->life[rank].counting;
        cr_assert_eq(atomic_load(&counting->live), 0, "rank %d of %d leaks, allocation %lld of rank %d failing", rank,
                     c->ranks, at, failing);
        cr_assert_eq(atomic_load(&counting->other_sizes), 0, "rank %d of %d gives back %lld blocks of another size, "
                     "allocation %lld of rank %d failing", rank, c->ranks, atomic_load(&counting->other_sizes), at,
                     failing);
    }
}

static void check_fate(const life_case *c, int failing, long long at)
{
    for (int rank = 0; rank < c->ranks; rank++) {
        const life *l = &c->life[rank];
        /* While communicators are split, all ranks agree on the one's lack of memory. */
        bool expected = l->status == TP_ERR_MEMORY || (rank != failing && l->status == TP_ERR_PEER);
        cr_assert(expected && l->message[0] != 0, "allocation %lld of rank %d: rank %d of %d returns %s: \"%s\"", at,
                  failing, rank, c->ranks, tp_status_name(l->status), l->message);
        if (rank != failing && !c->silent)
            cr_assert_not_null(strstr(l->message, "memory"), "rank %d is not told why: %s", rank, l->message);
    }
}

static void fail_every_allocation(int ranks, int threads, bool from_then_on, bool silent)
{
    life_case c = {.ranks = ranks, .threads = threads, .data = tpt_open_text(311), .silent = silent};
    run_lives(&c, -1, 0, false);
    for (int rank = 0; rank < ranks; rank++)
        cr_assert_eq(c.life[rank].status, TP_OK, "%s", c.life[rank].message);
    int failing = ranks - 1;
    long long calls = atomic_load(&c.life[failing].counting.calls);
    cr_assert_gt(calls, 60);
#ifdef TPT_SANITIZED
    long long stride = ranks > 1 ? 7 : 1;
#else
    long long stride = 1;
#endif
    for (long long at = 1; at <= calls; at += stride) {
        run_lives(&c, failing, at, from_then_on);
        check_fate(&c, failing, at);
    }
    tp_data_close((tp_data *)c.data);
}

Test(failures, one_allocation_of_one_rank)
{
    fail_every_allocation(1, 1, false, false);
    fail_every_allocation(1, 2, false, false);
}

Test(failures, no_memory_from_some_point_on)
{
    fail_every_allocation(1, 2, true, false);
}

Test(failures, one_allocation_on_one_of_two_ranks, .timeout = 120)
{
    fail_every_allocation(2, 1, false, false);
}

Test(failures, a_rank_without_memory_among_three, .timeout = 120)
{
    fail_every_allocation(3, 1, true, false);
}

/* The failing rank destroys its context and tells nobody: peers notice that it is gone. */
Test(failures, a_rank_that_leaves_in_silence, .timeout = 120)
{
    fail_every_allocation(2, 1, false, true);
}

/* ---- communication ----------------------------------------------------------------------------------------------- */

/* How the rank goes at its n-th collective. */
typedef enum comm_fault {
    COMM_BREAKS, /* the transport fails */
    COMM_ABORTS, /* the caller gives up from outside */
    COMM_REFUSES /* an error that nobody is told of: the rank just goes */
} comm_fault;

/* A transport that is the rank's own up to the call at which it fails. */
typedef struct faulty_comm {
    tpi_comm_table table;
    const tpi_comm_table *real;
    long calls, fail_at; /* from 1; 0: never */
    comm_fault fault;
} faulty_comm;

/* Work is inline: a rank's collectives are issued by its own thread. */
static _Thread_local faulty_comm *faulty;

static tp_status before_call(tp_comm *comm)
{
    if (++faulty->calls != faulty->fail_at)
        return TP_OK;
    switch (faulty->fault) {
    case COMM_BREAKS: return tpi_fail(comm->ctx, TP_ERR_COMM, "cable %ld is cut", faulty->calls);
    case COMM_ABORTS:
        tp_comm_abort(comm->ctx, tp_ctx_world(comm->ctx), TP_ERR_IO, "somebody pulled the plug");
        return TP_OK;
    default: return tpi_refuse(comm->ctx, TP_ERR_COMM, "call %ld is refused", faulty->calls);
    }
}

#define FAULTY_COLLECTIVE(slot)                                                                                        \
    static tp_status faulty_##slot(tpi_stream *stream, const tpi_collective_args *args)                                \
    {                                                                                                                  \
        tp_status status = before_call(args->comm);                                                                    \
        return status == TP_OK ? faulty->real->slot(stream, args) : status;                                            \
    }

FAULTY_COLLECTIVE(all_reduce)
FAULTY_COLLECTIVE(reduce_scatter)
FAULTY_COLLECTIVE(all_gather)

static void make_faulty(faulty_comm *f, tp_comm *comm)
{
    f->real = comm->table;
    f->table = *comm->table;
    f->table.all_reduce = faulty_all_reduce;
    f->table.reduce_scatter = faulty_reduce_scatter;
    f->table.all_gather = faulty_all_gather;
    comm->table = &f->table;
    faulty = f;
}

typedef struct comm_case {
    const tp_data *data;
    int failing;
    long fail_at;
    comm_fault fault;
    long calls; /* of rank 0, when nothing fails */
    tp_status status[MOST_RANKS];
    bool settled[MOST_RANKS]; /* later calls return the same failure, and quickly */
} comm_case;

/* A broken context refuses everything and stays as it is. */
static bool stays_broken(tp_ctx *ctx, tp_model *model, tp_trainer *trainer)
{
    tp_status failure = tp_ctx_failure(ctx);
    if (failure == TP_OK)
        return true;
    tp_train_report report;
    double loss;
    int count;
    tp_param *const *params = tp_model_params(model, &count);
    void *memory;
    bool same =
        tp_trainer_step(ctx, trainer, &report) == failure && tp_trainer_evaluate(ctx, trainer, 0, 1, &loss) == failure;
    same &= tp_params_init(ctx, params, count) == failure && tp_model_loss(ctx, model, &loss, &loss) == failure;
    same &= tp_ctx_synchronize(ctx) == failure && tp_barrier(ctx, tp_ctx_world(ctx)) == failure;
    return same && tp_ctx_allocate(ctx, TP_MEMORY_OTHER, 1, &memory) == failure && tp_ctx_message(ctx)[0] != 0;
}

static tp_status comm_main(tp_ctx *ctx, void *arg)
{
    comm_case *c = arg;
    int rank = tp_ctx_rank(ctx);
    faulty_comm own = {.fail_at = rank == c->failing ? c->fail_at : 0, .fault = c->fault};
    tp_comm *group = tp_ctx_group(ctx, TP_AXIS_TP);
    make_faulty(&own, group);
    tp_model *model = NULL;
    tp_trainer *trainer = NULL;
    c->status[rank] = train(ctx, c->data, &model, &trainer);
    c->settled[rank] = stays_broken(ctx, model, trainer);
    if (rank == 0)
        c->calls = own.calls;
    tp_trainer_destroy(trainer);
    tp_model_destroy(model);
    group->table = own.real;
    return c->status[rank];
}

static void fail_every_call(int ranks, comm_fault fault)
{
    static const tp_status own_status[] = {
        [COMM_BREAKS] = TP_ERR_COMM, [COMM_ABORTS] = TP_ERR_PEER, [COMM_REFUSES] = TP_ERR_COMM};
    comm_case c = {.data = tpt_open_text(311), .failing = ranks - 1, .fault = fault};
    tp_run_options options = {.ranks = ranks, .ctx = {.threads = 1, .timeout_ms = TIMEOUT_MS}};
    cr_assert_eq(tp_run_ranks(&options, comm_main, &c), TP_OK, "%s", tp_last_message());
    long calls = c.calls;
    cr_assert_gt(calls, 20);
    for (c.fail_at = 1; c.fail_at <= calls; c.fail_at++) {
        tp_status status = tp_run_ranks(&options, comm_main, &c);
        cr_assert(status != TP_OK && tp_last_message()[0] != 0);
        for (int rank = 0; rank < ranks; rank++) {
            tp_status expected = rank == c.failing ? own_status[fault] : TP_ERR_PEER;
            cr_assert_eq(c.status[rank], expected, "call %ld of rank %d: rank %d of %d returns %s", c.fail_at,
                         c.failing, rank, ranks, tp_status_name(c.status[rank]));
            cr_assert(c.settled[rank], "call %ld of rank %d: rank %d of %d does not stay broken", c.fail_at, c.failing,
                      rank, ranks);
        }
    }
    tp_data_close((tp_data *)c.data);
}

Test(failures, every_collective_may_break, .timeout = 120)
{
    fail_every_call(2, COMM_BREAKS);
    fail_every_call(4, COMM_BREAKS);
}

Test(failures, an_abort_at_any_collective, .timeout = 120)
{
    fail_every_call(3, COMM_ABORTS);
}

Test(failures, a_rank_may_go_at_any_collective, .timeout = 120)
{
    fail_every_call(3, COMM_REFUSES);
}
