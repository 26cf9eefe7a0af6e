/* A rank that returns with an error may free its buffers: nobody reads or writes them any more. Where the transport is
 * right, the rank that works in them waits in vain for the others to leave, and goes on. */
#include <stdatomic.h>
#include <time.h>

#include "comm/threads.h"
#include "ranks.h"

enum { RANKS = 3, IN_VAIN_MS = 150, LONG_MS = 10000 };

/* What the threads of a test tell each other. */
typedef struct scene {
    atomic_int inside;          /* rank 1 is in a stretch that touches its peers' buffers */
    atomic_int returned[RANKS]; /* these return with an error */
    bool left_early[RANKS];     /* they did while rank 1 was still inside */
    bool began_late, marked;    /* rank 1 touches after the failure; its mark stays */
    tp_status status[RANKS];
} scene;

static bool wait_for(atomic_int *value, int64_t milliseconds)
{
    double end = tpi_seconds() + (double)milliseconds * 1e-3;
    while (!atomic_load(value)) {
        if (tpi_seconds() > end)
            return false;
        nanosleep(&(struct timespec){0, 100000}, NULL);
    }
    return true;
}

/* Rank 0 waits at a gate, rank 1 touches, rank 2 fails. */
static tp_status meet(tp_ctx *ctx, void *arg)
{
    scene *s = arg;
    int rank = tp_ctx_rank(ctx);
    tpi_call call = tpi_call_begin(tp_ctx_world(ctx), "scene", 0);
    tp_status status = TP_OK;
    if (rank == 0)
        status = tp_barrier(ctx, tp_ctx_world(ctx));
    if (rank == 1) {
        CHECK(tpi_touch_begin(&call));
        atomic_store(&s->inside, 1);
        for (int peer = 0; peer < RANKS; peer += 2)
            s->left_early[peer] = wait_for(&s->returned[peer], IN_VAIN_MS);
        tpi_touch_end(&call);
    }
    if (rank == 2) {
        CHECK(wait_for(&s->inside, LONG_MS));
        status = tpi_call_fail(&call, TP_ERR_NUMERIC, "planted failure");
    }
    atomic_store(&s->returned[rank], 1);
    s->status[rank] = status;
    return status;
}

Test(touching, whoever_leaves_waits_for_peers_in_its_buffers)
{
    scene s = {.inside = 0};
    const tp_run_options options = {.ranks = RANKS, .ctx = {.threads = 1, .timeout_ms = 20000}};
    cr_assert_eq(tp_run_ranks(&options, meet, &s), TP_ERR_NUMERIC, "%s", tp_last_message());
    cr_assert_eq(s.status[0], TP_ERR_PEER);
    cr_assert_eq(s.status[2], TP_ERR_NUMERIC);
    cr_assert_not(s.left_early[0], "rank 0, which learns of the failure, returned");
    cr_assert_not(s.left_early[2], "rank 2, which fails, returned");
}

static tp_status touch_after_failure(tp_ctx *ctx, void *arg)
{
    scene *s = arg;
    tpi_call call = tpi_call_begin(tp_ctx_world(ctx), "scene", 0);
    if (tp_ctx_rank(ctx) == 0) {
        tp_status status = tpi_call_fail(&call, TP_ERR_NUMERIC, "planted failure");
        atomic_store(&s->returned[0], 1);
        return status;
    }
    CHECK(wait_for(&s->returned[0], LONG_MS));
    s->began_late = tpi_touch_begin(&call);
    s->marked = atomic_load(&call.seat->touching) != 0;
    return TP_OK;
}

/* And nobody begins any more. */
Test(touching, nobody_touches_after_a_failure)
{
    scene s = {.inside = 0};
    const tp_run_options options = {.ranks = 2, .ctx = {.threads = 1, .timeout_ms = 20000}};
    cr_assert_eq(tp_run_ranks(&options, touch_after_failure, &s), TP_ERR_NUMERIC, "%s", tp_last_message());
    cr_assert(!s.began_late && !s.marked);
}

static tp_status touch_by_a_board(tp_ctx *ctx, void *arg)
{
    scene *s = arg;
    tp_comm *world = tp_ctx_world(ctx);
    const tpi_board_desc desc = {.what = "scene", .flags = 1, .page_bytes = 8, .lanes = 1};
    tpi_call call = tpi_call_begin(world, "scene", 0);
    tpi_board *board;
    tp_status status = world->table->board->create(ctx, world, &desc, &board);
    if (status == TP_OK && tp_ctx_rank(ctx) == 0) {
        status = tpi_call_fail(&call, TP_ERR_NUMERIC, "planted failure");
        atomic_store(&s->returned[0], 1);
        CHECK(wait_for(&s->returned[1], LONG_MS));
        board->table->settle(board); /* would never end if a mark had stayed */
    } else if (status == TP_OK) {
        CHECK(wait_for(&s->returned[0], LONG_MS));
        s->began_late = board->table->touch(board) == TP_OK;
        atomic_store(&s->returned[1], 1);
    }
    board->table->destroy(ctx, board);
    return status;
}

/* In plans neither. */
Test(touching, no_plan_touches_after_a_failure, .timeout = 30)
{
    scene s = {.inside = 0};
    const tp_run_options options = {.ranks = 2, .ctx = {.threads = 1, .timeout_ms = 20000}};
    cr_assert_eq(tp_run_ranks(&options, touch_by_a_board, &s), TP_ERR_NUMERIC, "%s", tp_last_message());
    cr_assert(!s.began_late);
}

/* A message is taken inside such a stretch: it lies in its sender's memory. */
typedef struct watched_batch {
    tpi_batch common; /* first */
    bool marked;
} watched_batch;

static tp_status take(tpi_batch *common, int peer, tpi_parcel *parcel)
{
    (void)peer, (void)parcel;
    ((watched_batch *)common)->marked = atomic_load(&common->call->seat->touching) != 0;
    return TP_OK;
}

static tp_status pass_message(tp_ctx *ctx, void *arg)
{
    int32_t x = 0;
    int rank = tp_ctx_rank(ctx);
    const tp_p2p op = {.send = rank == 0, .peer = 1 - rank, .tensor = tp_tensor_1d(&x, TP_DTYPE_I32, 1)};
    const tpi_batch_way way = {.take = take};
    tpi_call call = tpi_call_begin(tp_ctx_world(ctx), "scene", 0);
    watched_batch b = {.common = tpi_batch_begin(&call, &op, 1)};
    (void)arg;
    TPI_TRY(tpi_batch_progress(&b.common, &way));
    CHECK(b.marked == (rank == 1) && atomic_load(&call.seat->touching) == 0);
    return TP_OK;
}

Test(touching, who_takes_a_message_touches)
{
    tpt_run(2, pass_message, NULL);
}

static tp_status wait_in_vain(tp_ctx *ctx, void *arg)
{
    scene *s = arg;
    tpi_call call = tpi_call_begin(tp_ctx_world(ctx), "scene", 0);
    if (tp_ctx_rank(ctx) == 0) {
        tpi_call_fail(&call, TP_ERR_TIMEOUT, "planted failure");
        atomic_store(&s->returned[0], 1);
        return s->status[0] = tpi_call_peer_failed(&call); /* as another thread of this rank sees it */
    }
    CHECK(wait_for(&s->returned[0], LONG_MS));
    return s->status[1] = tp_barrier(ctx, tp_ctx_world(ctx));
}

/* Who waited in vain is told so; its peers, that it failed. */
Test(touching, a_time_out_is_of_one_rank)
{
    scene s = {.inside = 0};
    const tp_run_options options = {.ranks = 2, .ctx = {.threads = 1, .timeout_ms = 20000}};
    cr_assert_eq(tp_run_ranks(&options, wait_in_vain, &s), TP_ERR_TIMEOUT, "%s", tp_last_message());
    cr_assert_eq(s.status[0], TP_ERR_TIMEOUT);
    cr_assert_eq(s.status[1], TP_ERR_PEER);
}
