/* all_gather, broadcast, all_to_all, barrier: every element arrives where it belongs, in place and not, with any
 * counts. */
#include "comm/collective.h"
#include "ranks.h"

enum { MAX_RANKS = 16, COLS = 3 };

static const int rank_counts[] = {1, 2, 3, 4, 5, 7, 8, 16};
static const int64_t row_counts[] = {0, 1, 7, 333, 4099, 30011};
static const tp_dtype dtypes[] = {TP_DTYPE_F32, TP_DTYPE_BF16, TP_DTYPE_F16, TP_DTYPE_I32, TP_DTYPE_I64, TP_DTYPE_U8};

/* Bytes of the global rows [first, first + rows), any bits. */
static void fill(void *data, tp_dtype dtype, int64_t first, int64_t rows, uint32_t salt)
{
    size_t row_bytes = COLS * tp_dtype_size(dtype);
    for (size_t i = 0; i < (size_t)rows * row_bytes; i++) {
        uint32_t place = (uint32_t)((size_t)first * row_bytes + i);
        ((uint8_t *)data)[i] = (uint8_t)((place * 2654435761u + salt * 40503u) >> 24);
    }
}

/* Rank 1 has nothing, the last has what is left. */
static void uneven(int64_t *counts, int size, int64_t rows)
{
    int64_t left = rows;
    for (int rank = 0; rank < size - 1; rank++) {
        counts[rank] = rank == 1 ? 0 : left / (rank + 3);
        left -= counts[rank];
    }
    counts[size - 1] = left;
}

static tp_status gather(tp_ctx *ctx, tp_dtype dtype, int64_t rows, const int64_t *counts, bool in_place)
{
    tp_comm *comm = tp_ctx_world(ctx);
    int size = tp_comm_size(comm), rank = tp_comm_rank(comm);
    tp_range own = tp_shard_range(rows, size, rank);
    for (int r = 0; counts && r <= rank; r++)
        own = r == 0 ? (tp_range){0, counts[0]} : (tp_range){own.end, own.end + counts[r]};
    int64_t own_rows = own.end - own.begin;
    char *out = tpt_array(dtype, rows * COLS), *want = tpt_array(dtype, rows * COLS);
    size_t offset = (size_t)own.begin * COLS * tp_dtype_size(dtype);
    char *in = in_place ? out + offset : tpt_array(dtype, own_rows * COLS);
    fill(want, dtype, 0, rows, 1);
    fill(in, dtype, own.begin, own_rows, 1);
    TPI_TRY(tp_all_gather(ctx, comm, tp_tensor_2d(in, dtype, own_rows, COLS), tp_tensor_2d(out, dtype, rows, COLS),
                          counts));
    CHECK(memcmp(out, want, (size_t)rows * COLS * tp_dtype_size(dtype)) == 0);
    if (!in_place)
        free(in);
    free(out);
    free(want);
    return TP_OK;
}

static tp_status broadcast(tp_ctx *ctx, tp_dtype dtype, int64_t rows, int root)
{
    tp_comm *comm = tp_ctx_world(ctx);
    char *data = tpt_array(dtype, rows * COLS), *want = tpt_array(dtype, rows * COLS);
    fill(data, dtype, 0, rows, 100u + (uint32_t)tp_comm_rank(comm));
    fill(want, dtype, 0, rows, 100u + (uint32_t)root);
    TPI_TRY(tp_broadcast(ctx, comm, tp_tensor_2d(data, dtype, rows, COLS), root));
    CHECK(memcmp(data, want, (size_t)rows * COLS * tp_dtype_size(dtype)) == 0);
    free(data);
    free(want);
    return TP_OK;
}

static tp_status copy_cases(tp_ctx *ctx, void *arg)
{
    (void)arg;
    int size = tp_comm_size(tp_ctx_world(ctx));
    /* The largest only where few ranks share the cores. */
    size_t sizes = size <= 4 ? COUNT_OF(row_counts) : COUNT_OF(row_counts) - 1;
    for (size_t d = 0; d < COUNT_OF(dtypes); d++)
        for (size_t n = 0; n < sizes; n++) {
            int64_t counts[MAX_RANKS];
            uneven(counts, size, row_counts[n]);
            for (int in_place = 0; in_place < 2; in_place++) {
                TPI_TRY(gather(ctx, dtypes[d], row_counts[n], NULL, in_place));
                TPI_TRY(gather(ctx, dtypes[d], row_counts[n], counts, in_place));
            }
            TPI_TRY(broadcast(ctx, dtypes[d], row_counts[n], (int)n % size));
            TPI_TRY(tp_barrier(ctx, tp_ctx_world(ctx)));
        }
    return TP_OK;
}

Test(copy, gather_and_broadcast)
{
    for (size_t i = 0; i < COUNT_OF(rank_counts); i++)
        tpt_run(rank_counts[i], copy_cases, NULL);
}

/* Rows that `from` sends `to`: a table with zeros, or the same for all. */
static int64_t traffic(int from, int to, int64_t unit)
{
    return unit < 0 ? -unit : (from * 7 + to * 3) % 4 * unit;
}

static tp_status exchange(tp_ctx *ctx, tp_dtype dtype, int64_t unit, bool balanced)
{
    tp_comm *comm = tp_ctx_world(ctx);
    int size = tp_comm_size(comm), rank = tp_comm_rank(comm);
    int64_t sends[MAX_RANKS], receives[MAX_RANKS], sent = 0, received = 0;
    for (int peer = 0; peer < size; peer++) {
        sends[peer] = traffic(rank, peer, unit);
        receives[peer] = traffic(peer, rank, unit);
        sent += sends[peer];
        received += receives[peer];
    }
    size_t row_bytes = COLS * tp_dtype_size(dtype);
    char *in = tpt_array(dtype, sent * COLS), *out = tpt_array(dtype, received * COLS),
         *want = tpt_array(dtype, received * COLS);
    int64_t at = 0;
    for (int peer = 0; peer < size; at += sends[peer++])
        fill(in + (size_t)at * row_bytes, dtype, 0, sends[peer], (uint32_t)(rank * 100 + peer));
    at = 0;
    for (int peer = 0; peer < size; at += receives[peer++])
        fill(want + (size_t)at * row_bytes, dtype, 0, receives[peer], (uint32_t)(peer * 100 + rank));
    TPI_TRY(tp_all_to_all(ctx, comm, tp_tensor_2d(in, dtype, sent, COLS), balanced ? NULL : sends,
                          tp_tensor_2d(out, dtype, received, COLS), balanced ? NULL : receives));
    /* With counts the call itself waits, as it borrows them; not in device order, where it has read them. */
    if (balanced || ctx->behind)
        TPI_TRY(tp_ctx_synchronize(ctx));
    CHECK(memcmp(out, want, (size_t)received * row_bytes) == 0);
    free(in);
    free(out);
    free(want);
    return TP_OK;
}

static tp_status exchange_cases(tp_ctx *ctx, void *arg)
{
    (void)arg;
    const int64_t units[] = {0, 1, 13, 997, -5, -1};
    for (size_t d = 0; d < COUNT_OF(dtypes); d++)
        for (size_t n = 0; n < COUNT_OF(units); n++) {
            TPI_TRY(exchange(ctx, dtypes[d], units[n], false));
            if (units[n] <= 0)
                TPI_TRY(exchange(ctx, dtypes[d], units[n], true));
        }
    return TP_OK;
}

Test(copy, all_to_all)
{
    for (size_t i = 0; i < COUNT_OF(rank_counts); i++)
        tpt_run(rank_counts[i], exchange_cases, NULL);
}

/* A rank that sends other counts than its peer expects can't be served: both numbers are named, on a plain world too.
 */
static tp_status wrong_counts(tp_ctx *ctx, void *arg)
{
    (void)arg;
    int rank = tp_ctx_rank(ctx);
    int64_t sends[] = {1, 1, 1}, receives[] = {1, 1, 1};
    int32_t in[4] = {0}, out[4] = {0};
    if (rank == 1)
        sends[2] = 2;
    return tp_all_to_all(ctx, tp_ctx_world(ctx), tp_tensor_1d(in, TP_DTYPE_I32, rank == 1 ? 4 : 3), sends,
                         tp_tensor_1d(out, TP_DTYPE_I32, 3), receives);
}

Test(copy, all_to_all_counts_must_meet)
{
    cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = 3}, wrong_counts, NULL), TP_ERR_MISMATCH);
    cr_assert(strstr(tp_last_message(), "rank 1 sends 2 rows to rank 2, which expects 1"), "%s", tp_last_message());
}

/* Operations of different kinds and sizes follow each other without anything in between. */
static tp_status mixed(tp_ctx *ctx, void *arg)
{
    (void)arg;
    for (int64_t i = 0; i < 150; i++) {
        TPI_TRY(gather(ctx, TP_DTYPE_U8, 1 + i * 37 % 9000, NULL, i % 2));
        TPI_TRY(broadcast(ctx, TP_DTYPE_I32, 1 + i * 53 % 3000, (int)i % tp_comm_size(tp_ctx_world(ctx))));
        TPI_TRY(exchange(ctx, TP_DTYPE_F16, i % 5, false));
    }
    return TP_OK;
}

Test(copy, mixed_without_pauses)
{
    tpt_run(2, mixed, NULL);
    tpt_run(6, mixed, NULL);
}

/* With the compute stream as a delayed worker lane, the caller's count arrays are free again at return. */
Test(copy, on_a_delayed_lane)
{
    tpt_run_both((tp_run_options){.ranks = 4, .ctx.lane_delay_seed = 3}, exchange_cases, NULL);
}

/* Past the caches, from any address to any, whole lines and less: those bytes and no others. */
Test(copy, past_caches_copies_every_byte)
{
    enum { MOST = 200, ROOM = 64 + MOST + 64 };
    char in[ROOM], expected[ROOM];
    _Alignas(64) char out[ROOM];
    for (int i = 0; i < ROOM; i++)
        in[i] = (char)(i % 100 + 1);
    for (size_t bytes = 0; bytes <= MOST; bytes++)
        for (size_t from = 0; from < 64; from += 7)
            for (size_t to = 0; to < 64; to++) {
                memset(out, 0, sizeof out);
                memset(expected, 0, sizeof expected);
                memcpy(expected + to, in + from, bytes);
                tpi_comm_copy_past_caches(out + to, in + from, bytes);
                cr_assert_arr_eq(out, expected, sizeof out, "%zu bytes from %zu to %zu", bytes, from, to);
            }
}
