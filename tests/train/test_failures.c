/* What fails on one rank, whenever it fails: a status with a message, peers that return, and nothing left behind. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <tp/comm.h>
#include <tp/trainer.h>

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
        cr_assert_eq(tp_world_create_threads(&(tp_world_desc){.ranks = c->ranks, .timeout_ms = TIMEOUT_MS}, &c->world), TP_OK);
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
    for (int rank = 0; rank < c->ranks; rank++)
        cr_assert_eq(atomic_load(&c->life[rank].counting.live), 0, "rank %d of %d leaks, allocation %lld of rank %d failing", rank, c->ranks,
                     at, failing);
}

static void check_fate(const life_case *c, int failing, long long at)
{
    for (int rank = 0; rank < c->ranks; rank++) {
        const life *l = &c->life[rank];
        /* While communicators are split, all ranks agree on the one's lack of memory. */
        bool expected = l->status == TP_ERR_MEMORY || (rank != failing && l->status == TP_ERR_PEER);
        cr_assert(expected && l->message[0] != 0, "allocation %lld of rank %d: rank %d of %d returns %s: \"%s\"", at, failing, rank, c->ranks,
                  tp_status_name(l->status), l->message);
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
