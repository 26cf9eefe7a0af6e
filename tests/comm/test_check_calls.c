/* Ranks that call different things are told so, all of them alike, with both calls; and the argument checks of every
 * call. */
#include <stdint.h>
#include <stdio.h>

#include "ranks.h"

enum { RANKS = 3 };

typedef tp_status (*call_fn)(tp_ctx *ctx, tp_comm *comm, float *x);

static tp_tensor vector(float *x, int64_t length)
{
    return tp_tensor_1d(x, TP_DTYPE_F32, length);
}

static tp_status sum_12(tp_ctx *ctx, tp_comm *comm, float *x)
{
    return tp_all_reduce(ctx, comm, vector(x, 12), vector(x, 12), NULL);
}

static tp_status sum_9(tp_ctx *ctx, tp_comm *comm, float *x)
{
    return tp_all_reduce(ctx, comm, vector(x, 9), vector(x, 9), NULL);
}

static tp_status max_12(tp_ctx *ctx, tp_comm *comm, float *x)
{
    return tp_all_reduce(ctx, comm, vector(x, 12), vector(x, 12), &(tp_reduce_desc){.op = TP_REDUCE_MAX});
}

static tp_status sum_two_shot(tp_ctx *ctx, tp_comm *comm, float *x)
{
    return tp_all_reduce(ctx, comm, vector(x, 12), vector(x, 12),
                         &(tp_reduce_desc){.algorithm = TP_ALL_REDUCE_TWO_SHOT});
}

static tp_status sum_bf16(tp_ctx *ctx, tp_comm *comm, float *x)
{
    tp_tensor tensor = tp_tensor_1d(x, TP_DTYPE_BF16, 12);
    return tp_all_reduce(ctx, comm, tensor, tensor, NULL);
}

static tp_status sum_narrowed(tp_ctx *ctx, tp_comm *comm, float *x)
{
    return tp_all_reduce(ctx, comm, vector(x, 12), tp_tensor_1d(x + 20, TP_DTYPE_BF16, 12), NULL);
}

static tp_status sum_6x2(tp_ctx *ctx, tp_comm *comm, float *x)
{
    tp_tensor tensor = tp_tensor_2d(x, TP_DTYPE_F32, 6, 2);
    return tp_all_reduce(ctx, comm, tensor, tensor, NULL);
}

static tp_status sum_6x5(tp_ctx *ctx, tp_comm *comm, float *x)
{
    tp_tensor tensor = tp_tensor_2d(x, TP_DTYPE_F32, 6, 5);
    return tp_all_reduce(ctx, comm, tensor, tensor, NULL);
}

static tp_status scatter_12(tp_ctx *ctx, tp_comm *comm, float *x)
{
    return tp_reduce_scatter(ctx, comm, vector(x, 12), vector(x + 20, 4), NULL, NULL);
}

static tp_status gather_12(tp_ctx *ctx, tp_comm *comm, float *x)
{
    return tp_all_gather(ctx, comm, vector(x, 4), vector(x + 20, 12), NULL);
}

static tp_status gather_counts(tp_ctx *ctx, tp_comm *comm, float *x)
{
    int64_t counts[RANKS] = {2, 5, 5};
    return tp_all_gather(ctx, comm, vector(x, counts[tp_comm_rank(comm)]), vector(x + 20, 12), counts);
}

static tp_status broadcast_0(tp_ctx *ctx, tp_comm *comm, float *x)
{
    return tp_broadcast(ctx, comm, vector(x, 12), 0);
}

static tp_status broadcast_1(tp_ctx *ctx, tp_comm *comm, float *x)
{
    return tp_broadcast(ctx, comm, vector(x, 12), 1);
}

static tp_status barrier(tp_ctx *ctx, tp_comm *comm, float *x)
{
    (void)x;
    return tp_barrier(ctx, comm);
}

static tp_status split(tp_ctx *ctx, tp_comm *comm, float *x)
{
    (void)x;
    tp_comm *out = NULL;
    tp_status status = tp_comm_split(ctx, comm, 0, 0, &out);
    tp_comm_destroy(ctx, out);
    return status;
}

typedef struct pair {
    call_fn common, odd;
    const char *first, *second; /* parts of the message */
    int odd_rank;
} pair;

static const pair pairs[] = {
    {sum_12, sum_9, "all_reduce(sum, f32, 12 x 1)", "all_reduce(sum, f32, 9 x 1)", 2},
    {sum_12, sum_9, "all_reduce(sum, f32, 12 x 1)", "all_reduce(sum, f32, 9 x 1)", 1},
    {sum_12, max_12, "all_reduce(sum, f32, 12 x 1)", "all_reduce(max, f32, 12 x 1)", 2},
    {sum_12, sum_two_shot, "all_reduce(sum, f32, 12 x 1)", "different algorithms", 1},
    {sum_12, sum_bf16, "(sum, f32, 12 x 1)", "(sum, bf16, 12 x 1)", 1},
    {sum_bf16, sum_narrowed, "(sum, bf16, 12 x 1)", "(sum, f32 to bf16, 12 x 1)", 2},
    {sum_12, sum_narrowed, "(sum, f32, 12 x 1)", "(sum, f32 to bf16, 12 x 1)", 1},
    {sum_6x2, sum_6x5, "all_reduce(sum, f32, 6 x 2)", "all_reduce(sum, f32, 6 x 5)", 1},
    {sum_12, scatter_12, "all_reduce(sum, f32, 12 x 1)", "reduce_scatter(sum, f32, 12 x 1)", 2},
    {sum_12, gather_12, "all_reduce(sum, f32, 12 x 1)", "all_gather(f32, 12 x 1)", 1},
    {gather_12, gather_counts, "all_gather(f32, 12 x 1)", "counts", 2},
    {broadcast_0, broadcast_1, "root 0", "root 1", 2},
    {barrier, sum_12, "barrier()", "all_reduce(sum, f32, 12 x 1)", 1},
    {barrier, split, "barrier()", "split(", 2},
};

typedef struct trial {
    const pair *pair;
    tp_status seen[RANKS];
    char message[RANKS][TPI_MESSAGE_BYTES];
} trial;

static tp_status call_different_things(tp_ctx *ctx, void *arg)
{
    trial *t = arg;
    int rank = tp_ctx_rank(ctx);
    float x[64] = {0};
    tp_comm *comm = tp_ctx_world(ctx);
    TPI_TRY(t->pair->common(ctx, comm, x));
    tp_status status = (rank == t->pair->odd_rank ? t->pair->odd : t->pair->common)(ctx, comm, x);
    t->seen[rank] = status;
    snprintf(t->message[rank], TPI_MESSAGE_BYTES, "%s", tp_ctx_message(ctx));
    CHECK(tp_ctx_failure(ctx) == TP_ERR_MISMATCH);
    return status;
}

Test(check_calls, every_rank_is_told_what_differs)
{
    for (size_t n = 0; n < 2 * COUNT_OF(pairs); n++) {
        size_t i = n / 2;
        const pair *p = &pairs[i];
        trial t = {.pair = p};
        const tp_run_options options = {
            .ranks = RANKS, .check_calls = n % 2 == 0, .ctx = {.threads = 1, .timeout_ms = 60000}};
        cr_assert_eq(tp_run_ranks(&options, call_different_things, &t), TP_ERR_MISMATCH, "pair %zu: %s", i,
                     tp_last_message());
        char odd_rank[16];
        snprintf(odd_rank, sizeof odd_rank, "rank %d", p->odd_rank);
        for (int rank = 0; rank < RANKS; rank++) {
            cr_assert_eq(t.seen[rank], TP_ERR_MISMATCH, "pair %zu, rank %d: %s", i, rank, t.message[rank]);
            cr_assert_str_eq(t.message[rank], t.message[0]);
            cr_assert(strstr(t.message[rank], "rank 0") && strstr(t.message[rank], odd_rank), "%s", t.message[rank]);
            cr_assert(strstr(t.message[rank], p->first) && strstr(t.message[rank], p->second), "%s", t.message[rank]);
        }
    }
}

/* Differences that would even out in a sum. */
static tp_status uneven_counts(tp_ctx *ctx, void *arg)
{
    static const int64_t lengths[] = {12, 13, 12, 11};
    float x[64] = {0};
    int64_t length = lengths[tp_ctx_rank(ctx)];
    tp_status *seen = arg;
    return seen[tp_ctx_rank(ctx)] = tp_broadcast(ctx, tp_ctx_world(ctx), vector(x, length), 0);
}

Test(check_calls, differences_add_up)
{
    for (int ranks = 2; ranks <= 4; ranks += 2) { /* two with a core each meet in another way than many */
        tp_status seen[4] = {TP_OK};
        const tp_run_options options = {.ranks = ranks, .ctx = {.threads = 1, .timeout_ms = 60000}};
        cr_assert_eq(tp_run_ranks(&options, uneven_counts, seen), TP_ERR_MISMATCH, "%s", tp_last_message());
        for (int rank = 0; rank < ranks; rank++)
            cr_assert_eq(seen[rank], TP_ERR_MISMATCH);
        cr_assert(strstr(tp_last_message(), "12 x 1") && strstr(tp_last_message(), "13 x 1"), "%s", tp_last_message());
    }
}

/* Counts that say what balanced means are no difference. */
static tp_status say_balanced(tp_ctx *ctx, void *arg)
{
    (void)arg;
    float x[64] = {0};
    static const int64_t balanced[RANKS] = {3, 3, 4};
    int rank = tp_ctx_rank(ctx);
    tp_range own = tp_shard_range(10, RANKS, rank);
    CHECK(own.end - own.begin == balanced[rank]);
    return tp_all_gather(ctx, tp_ctx_world(ctx), vector(x, balanced[rank]), vector(x + 20, 10),
                         rank == 1 ? balanced : NULL);
}

static tp_status equal_calls(tp_ctx *ctx, void *arg)
{
    (void)arg;
    const call_fn calls[] = {sum_12, max_12, sum_bf16, gather_12, gather_counts, broadcast_1, barrier, split};
    for (int round = 0; round < 30; round++)
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
            float x[64] = {0};
            TPI_TRY(calls[i](ctx, tp_ctx_world(ctx), x));
        }
    int64_t sends[RANKS], receives[RANKS];
    int32_t in[16] = {0}, out[16] = {0};
    int rank = tp_ctx_rank(ctx);
    int64_t sent = 0, received = 0;
    for (int peer = 0; peer < RANKS; peer++) {
        sends[peer] = rank + peer;
        receives[peer] = peer + rank;
        sent += sends[peer];
        received += receives[peer];
    }
    return tp_all_to_all(ctx, tp_ctx_world(ctx), tp_tensor_1d(in, TP_DTYPE_I32, sent), sends,
                         tp_tensor_1d(out, TP_DTYPE_I32, received), receives);
}

Test(check_calls, equal_calls_pass)
{
    for (int check = 0; check < 2; check++) {
        tpt_run_with((tp_run_options){.ranks = RANKS, .check_calls = check}, equal_calls, NULL);
        tpt_run_with((tp_run_options){.ranks = RANKS, .check_calls = check}, say_balanced, NULL);
    }
}

/* ---- arguments: refused before anything moves, the same way on every rank ---- */

static tp_status bad_tensors(tp_ctx *ctx, void *arg)
{
    (void)arg;
    float x[64] = {0};
    tp_comm *comm = tp_ctx_world(ctx);
    tp_tensor good = tp_tensor_2d(x, TP_DTYPE_F32, 4, 3), none = tp_tensor_none();
    tp_tensor gaps = tp_tensor_cols(tp_tensor_2d(x, TP_DTYPE_F32, 4, 6), 0, 3), negative = good, no_data = good,
              no_dtype = good;
    tp_tensor huge = tp_tensor_2d(x, TP_DTYPE_F32, INT64_C(1) << 40, INT64_C(1) << 40);
    negative.shape[0] = -1;
    no_data.data = NULL;
    no_dtype.dtype = TP_DTYPE_INVALID;
    CHECK(tp_all_reduce(ctx, comm, none, good, NULL) == TP_ERR_DTYPE);
    CHECK(tp_all_reduce(ctx, comm, good, no_dtype, NULL) == TP_ERR_DTYPE);
    CHECK(tp_all_reduce(ctx, comm, gaps, good, NULL) == TP_ERR_SHAPE);
    CHECK(tp_all_reduce(ctx, comm, negative, good, NULL) == TP_ERR_SHAPE);
    CHECK(tp_all_reduce(ctx, comm, huge, huge, NULL) == TP_ERR_SHAPE);
    CHECK(tp_all_reduce(ctx, comm, no_data, good, NULL) == TP_ERR_ARGUMENT);
    CHECK(tp_all_reduce(ctx, comm, good, tp_tensor_2d(x, TP_DTYPE_F32, 3, 4), NULL) == TP_ERR_SHAPE);
    CHECK(strstr(tp_ctx_message(ctx), "4 x 3") && strstr(tp_ctx_message(ctx), "3 x 4"));
    CHECK(tp_all_reduce(ctx, comm, good, tp_tensor_2d(x + 32, TP_DTYPE_I32, 4, 3), NULL) == TP_ERR_DTYPE);
    CHECK(tp_all_reduce(ctx, comm, tp_tensor_1d(x, TP_DTYPE_BF16, 4), tp_tensor_1d(x + 32, TP_DTYPE_F32, 4), NULL) ==
          TP_ERR_DTYPE);
    /* Overlaps other than in == out. */
    CHECK(tp_all_reduce(ctx, comm, good, tp_tensor_2d(x + 1, TP_DTYPE_F32, 4, 3), NULL) == TP_ERR_ARGUMENT);
    CHECK(tp_all_reduce(ctx, comm, good, tp_tensor_2d(x, TP_DTYPE_BF16, 4, 3), NULL) == TP_ERR_ARGUMENT);
    CHECK(tp_all_to_all(ctx, comm, good, NULL, good, NULL) == TP_ERR_ARGUMENT);
    CHECK(tp_ctx_failure(ctx) == TP_OK);
    return tp_barrier(ctx, comm);
}

static tp_status bad_reductions(tp_ctx *ctx, void *arg)
{
    (void)arg;
    float x[64] = {0};
    int32_t n[12] = {0};
    tp_comm *comm = tp_ctx_world(ctx);
    tp_tensor in = tp_tensor_2d(x, TP_DTYPE_F32, 4, 3), out = tp_tensor_2d(x + 12, TP_DTYPE_F32, 4, 3);
    tp_tensor integers = tp_tensor_2d(n, TP_DTYPE_I32, 4, 3), bias = tp_tensor_1d(x + 24, TP_DTYPE_F32, 3);
    const tp_reduce_desc bad[] = {
        {.op = (tp_reduce_op)7}, {.algorithm = (tp_all_reduce_algorithm)9}, {.dropout = 1.0f},
        {.dropout = -0.5f},      {.dropout = 0.5f, .first_row = -1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK(tp_all_reduce(ctx, comm, in, out, &bad[i]) == TP_ERR_ARGUMENT);
    CHECK(tp_all_reduce(ctx, comm, in, out, &(tp_reduce_desc){.bias = tp_tensor_1d(x + 24, TP_DTYPE_F32, 4)}) ==
          TP_ERR_SHAPE);
    CHECK(strstr(tp_ctx_message(ctx), "4") && strstr(tp_ctx_message(ctx), "3"));
    CHECK(tp_all_reduce(ctx, comm, in, out, &(tp_reduce_desc){.residual = tp_tensor_2d(x + 24, TP_DTYPE_F32, 3, 3)}) ==
          TP_ERR_SHAPE);
    CHECK(tp_all_reduce(ctx, comm, in, out, &(tp_reduce_desc){.residual = integers}) == TP_ERR_DTYPE);
    CHECK(tp_all_reduce(ctx, comm, in, out, &(tp_reduce_desc){.op = TP_REDUCE_MAX, .bias = bias}) == TP_ERR_DTYPE);
    CHECK(tp_all_reduce(ctx, comm, integers, integers, &(tp_reduce_desc){.dropout = 0.5f}) == TP_ERR_DTYPE);
    return tp_barrier(ctx, comm);
}

static tp_status bad_counts(tp_ctx *ctx, void *arg)
{
    (void)arg;
    float x[64] = {0};
    tp_comm *comm = tp_ctx_world(ctx);
    int size = tp_comm_size(comm);
    int64_t negative[8] = {-1, 13}, short_sum[8] = {1, 1, 1};
    if (size == 1)
        negative[0] = -12;
    tp_tensor all = tp_tensor_1d(x, TP_DTYPE_F32, 12), own = tp_tensor_1d(x + 20, TP_DTYPE_F32, 13);
    CHECK(tp_all_gather(ctx, comm, own, all, negative) == TP_ERR_ARGUMENT);
    CHECK(tp_all_gather(ctx, comm, own, all, short_sum) == TP_ERR_SHAPE);
    CHECK(tp_all_gather(ctx, comm, own, all, NULL) == TP_ERR_SHAPE);
    CHECK(strstr(tp_ctx_message(ctx), "13"));
    CHECK(tp_reduce_scatter(ctx, comm, all, own, NULL, NULL) == TP_ERR_SHAPE);
    CHECK(tp_broadcast(ctx, comm, all, size) == TP_ERR_ARGUMENT);
    CHECK(tp_broadcast(ctx, comm, all, -1) == TP_ERR_ARGUMENT);
    CHECK(tp_all_to_all(ctx, comm, all, short_sum, own, NULL) == TP_ERR_SHAPE);
    CHECK(tp_comm_split(ctx, comm, 0, 0, NULL) == TP_ERR_ARGUMENT);
    CHECK(tp_symmetric_create(ctx, comm, 8, NULL) == TP_ERR_ARGUMENT);
    CHECK(tp_barrier(ctx, NULL) == TP_ERR_ARGUMENT);
    CHECK(tp_barrier(NULL, comm) == TP_ERR_ARGUMENT);
    tp_comm_destroy(ctx, NULL);
    return tp_barrier(ctx, comm);
}

Test(check_calls, bad_arguments_are_refused)
{
    for (int ranks = 1; ranks <= 3; ranks++) {
        tpt_run(ranks, bad_tensors, NULL);
        tpt_run(ranks, bad_reductions, NULL);
        tpt_run(ranks, bad_counts, NULL);
    }
}

/* Every slot of the tables is there. */
Test(check_calls, tables_are_complete)
{
    const tpi_comm_table *const tables[] = {&tpi_comm_self, &tpi_comm_threads, &tpi_comm_dry, &tpi_comm_nccl,
                                            &tpi_comm_processes};
    for (int t = 0; t < 5; t++) {
        void *const *slots = (void *const *)(const void *)tables[t];
        for (size_t i = 0; i < sizeof *tables[t] / sizeof *slots; i++)
            cr_assert_not_null(slots[i], "table %d, slot %zu", t, i);
    }
}
