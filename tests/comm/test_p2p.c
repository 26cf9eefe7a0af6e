/* Batches of sends and receives: any order, any number, any size. */
#include <sched.h>
#include <stdatomic.h>

#include "comm/threads.h"
#include "ranks.h"

enum { MAX_OPS = 64 };

static uint8_t byte_of(int from, int to, int message, int64_t i)
{
    return (uint8_t)(from * 31 + to * 17 + message * 7 + i * 13 + 1);
}

typedef struct batch {
    tp_p2p ops[MAX_OPS];
    int count;
} batch;

static void add(batch *b, bool send, int self, int peer, int message, int64_t bytes)
{
    uint8_t *data = tpt_allocate((size_t)bytes);
    for (int64_t i = 0; send && i < bytes; i++)
        data[i] = byte_of(self, peer, message, i);
    b->ops[b->count++] = (tp_p2p){.send = send, .peer = peer, .tensor = tp_tensor_1d(data, TP_DTYPE_U8, bytes)};
}

static int64_t size_of(int message)
{
    const int64_t sizes[] = {0, 1, 4099, 50000, 17};
    return sizes[message % 5];
}

/* Everybody sends `messages` to everybody, itself too; `order` shuffles differently on each rank. Messages between two
 * ranks keep their order. */
static void plan(batch *b, int rank, int size, int messages, int order)
{
    b->count = 0;
    for (int message = 0; message < messages; message++)
        for (int i = 0; i < size; i++) {
            int peer = order % 2 ? (i + rank) % size : size - 1 - i;
            bool first = (order / 2 + rank) % 2;
            add(b, first, rank, peer, message, size_of(message));
            add(b, !first, rank, peer, message, size_of(message));
        }
}

static tp_status check_and_free(batch *b, int rank)
{
    int received[64] = {0};
    for (int i = 0; i < b->count; i++) {
        const tp_p2p *op = &b->ops[i];
        if (!op->send) {
            int message = received[op->peer]++;
            for (int64_t k = 0; k < op->tensor.shape[0]; k++)
                CHECK(((uint8_t *)op->tensor.data)[k] == byte_of(op->peer, rank, message, k));
        }
        free(op->tensor.data);
    }
    return TP_OK;
}

static tp_status all_pairs(tp_ctx *ctx, void *arg)
{
    int messages = *(int *)arg;
    tp_comm *comm = tp_ctx_world(ctx);
    int rank = tp_comm_rank(comm), size = tp_comm_size(comm);
    for (int order = 0; order < 4; order++) {
        batch b;
        plan(&b, rank, size, messages, order);
        TPI_TRY(tp_p2p_batch(ctx, comm, b.ops, b.count));
        TPI_TRY(tp_ctx_synchronize(ctx));
        TPI_TRY(check_and_free(&b, rank));
    }
    return tp_p2p_batch(ctx, comm, NULL, 0);
}

Test(p2p, any_order_completes)
{
    for (int size = 1; size <= 6; size++) {
        int messages = 5;
        tpt_run(size, all_pairs, &messages);
    }
    int one = 1;
    tpt_run(16, all_pairs, &one);
}

Test(p2p, on_a_delayed_lane)
{
    int messages = 3;
    tpt_run_both((tp_run_options){.ranks = 4, .ctx.lane_delay_seed = 11}, all_pairs, &messages);
}

/* All messages one way, then the other: more than a channel holds. */
static tp_status one_way(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tp_comm *comm = tp_ctx_world(ctx);
    int rank = tp_comm_rank(comm);
    for (int round = 0; round < 50; round++) {
        batch b = {.count = 0};
        for (int message = 0; message < 30; message++)
            add(&b, (rank + round) % 2, rank, 1 - rank, message, size_of(message) % 1000);
        TPI_TRY(tp_p2p_batch(ctx, comm, b.ops, b.count));
        TPI_TRY(tp_ctx_synchronize(ctx));
        TPI_TRY(check_and_free(&b, rank));
    }
    return TP_OK;
}

Test(p2p, many_messages_one_way)
{
    tpt_run(2, one_way, NULL);
}

/* Between batches of different ranks no order is needed: rank 0's two batches meet one of rank 1. */
static tp_status across_batches(tp_ctx *ctx, void *arg)
{
    (void)arg;
    int32_t a = 10 + tp_ctx_rank(ctx), b = 20 + tp_ctx_rank(ctx), x = 0, y = 0;
    tp_tensor from[] = {tp_tensor_1d(&a, TP_DTYPE_I32, 1), tp_tensor_1d(&b, TP_DTYPE_I32, 1)};
    tp_tensor to[] = {tp_tensor_1d(&x, TP_DTYPE_I32, 1), tp_tensor_1d(&y, TP_DTYPE_I32, 1)};
    tp_comm *comm = tp_ctx_world(ctx);
    if (tp_ctx_rank(ctx) == 0) {
        TPI_TRY(tp_p2p_batch(ctx, comm, &(tp_p2p){true, 1, from[0]}, 1));
        TPI_TRY(tp_p2p_batch(ctx, comm, (tp_p2p[]){{true, 1, from[1]}, {false, 1, to[0]}}, 2));
        CHECK(x == 11);
        return TP_OK;
    }
    TPI_TRY(tp_p2p_batch(ctx, comm, (tp_p2p[]){{true, 0, from[0]}, {false, 0, to[0]}, {false, 0, to[1]}}, 3));
    CHECK(x == 10 && y == 20);
    return TP_OK;
}

Test(p2p, messages_cross_batches)
{
    tpt_run(2, across_batches, NULL);
}

/* Rank 1 has taken the parcel, and is held up before it rings: rank 0 wakes up at its bound. */
static tp_status without_a_bell(tp_ctx *ctx, void *arg)
{
    int32_t x = 3;
    atomic_int *returned = arg;
    tp_comm *comm = tp_ctx_world(ctx);
    if (tp_ctx_rank(ctx) == 0) {
        tp_status status = tp_p2p_batch(ctx, comm, &(tp_p2p){true, 1, tp_tensor_1d(&x, TP_DTYPE_I32, 1)}, 1);
        atomic_store(returned, 1);
        return status;
    }
    const tpi_thread_comm *own = comm->state;
    tpi_channel *channel = &own->group->channels[1]; /* from rank 0 to rank 1 */
    while (atomic_load(&channel->posted) == 0)
        sched_yield();
    atomic_store(&channel->taken, 1);
    while (!atomic_load(returned))
        sched_yield();
    return TP_OK;
}

Test(p2p, a_message_taken_at_the_last_moment_has_come)
{
    atomic_int returned = 0;
    const tp_run_options options = {.ranks = 2, .ctx.timeout_ms = 100};
    cr_assert_eq(tp_run_ranks(&options, without_a_bell, &returned), TP_OK, "%s", tp_last_message());
}

static tp_status wrong_size(tp_ctx *ctx, void *arg)
{
    (void)arg;
    int32_t data[8] = {0};
    int rank = tp_ctx_rank(ctx);
    const tp_p2p op = {
        .send = rank == 0, .peer = 1 - rank, .tensor = tp_tensor_1d(data, TP_DTYPE_I32, rank == 0 ? 8 : 7)};
    return tp_p2p_batch(ctx, tp_ctx_world(ctx), &op, 1);
}

Test(p2p, sizes_must_meet)
{
    cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = 2}, wrong_size, NULL), TP_ERR_MISMATCH);
    cr_assert(strstr(tp_last_message(), "32 bytes") && strstr(tp_last_message(), "28"), "%s", tp_last_message());
}

/* As many bytes, but other numbers. */
static tp_status wrong_dtype(tp_ctx *ctx, void *arg)
{
    (void)arg;
    int32_t data[8] = {0};
    int rank = tp_ctx_rank(ctx);
    const tp_p2p op = {.send = rank == 0,
                       .peer = 1 - rank,
                       .tensor = tp_tensor_1d(data, rank == 0 ? TP_DTYPE_F32 : TP_DTYPE_I32, 8)};
    return tp_p2p_batch(ctx, tp_ctx_world(ctx), &op, 1);
}

Test(p2p, dtypes_must_meet)
{
    cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = 2}, wrong_dtype, NULL), TP_ERR_MISMATCH);
    cr_assert(strstr(tp_last_message(), "f32") && strstr(tp_last_message(), "i32"), "%s", tp_last_message());
}

static tp_status refusals(tp_ctx *ctx, void *arg)
{
    (void)arg;
    float x[2] = {0};
    tp_comm *comm = tp_ctx_world(ctx);
    tp_tensor one = tp_tensor_1d(x, TP_DTYPE_F32, 1), two = tp_tensor_1d(x, TP_DTYPE_F32, 2);
    int size = tp_comm_size(comm), rank = tp_comm_rank(comm);
    CHECK(tp_p2p_batch(ctx, comm, &(tp_p2p){true, size, one}, 1) == TP_ERR_ARGUMENT);
    CHECK(tp_p2p_batch(ctx, comm, &(tp_p2p){true, -1, one}, 1) == TP_ERR_ARGUMENT);
    CHECK(tp_p2p_batch(ctx, comm, NULL, 1) == TP_ERR_ARGUMENT);
    CHECK(tp_p2p_batch(ctx, comm, NULL, -1) == TP_ERR_ARGUMENT);
    /* Alone with itself it would wait for ever. */
    CHECK(tp_p2p_batch(ctx, comm, &(tp_p2p){true, rank, one}, 1) == TP_ERR_ARGUMENT);
    CHECK(tp_p2p_batch(ctx, comm, &(tp_p2p){false, rank, one}, 1) == TP_ERR_ARGUMENT);
    CHECK(tp_p2p_batch(ctx, comm, (tp_p2p[]){{true, rank, one}, {false, rank, two}}, 2) == TP_ERR_SHAPE);
    two = tp_tensor_1d(x, TP_DTYPE_I32, 1);
    CHECK(tp_p2p_batch(ctx, comm, (tp_p2p[]){{true, rank, one}, {false, rank, two}}, 2) == TP_ERR_DTYPE);
    CHECK(tp_ctx_failure(ctx) == TP_OK);
    return tp_barrier(ctx, comm);
}

Test(p2p, refuses_bad_arrays)
{
    tpt_run(1, refusals, NULL);
    tpt_run(3, refusals, NULL);
}
