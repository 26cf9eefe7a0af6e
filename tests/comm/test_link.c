/* The modelled link: nothing completes sooner than it would allow. Only lower bounds: how much later depends on the
 * machine. */
#include "comm/threads.h"
#include "ranks.h"

/* 1 MB/s and 2 ms: times that a test can see. */
static const tp_link slow_link = {.latency_seconds = 2e-3, .bytes_per_second = 1e6};

enum { BYTES = 20000, CALLS = 2 };

typedef tp_status (*timed_fn)(tp_ctx *ctx, tp_comm *comm, uint8_t *in, uint8_t *out);

static tp_status all_reduce(tp_ctx *ctx, tp_comm *comm, uint8_t *in, uint8_t *out)
{
    return tp_all_reduce(ctx, comm, tp_tensor_1d(in, TP_DTYPE_U8, BYTES), tp_tensor_1d(out, TP_DTYPE_U8, BYTES),
                         &(tp_reduce_desc){.algorithm = TP_ALL_REDUCE_TWO_SHOT});
}

static tp_status all_reduce_one_shot(tp_ctx *ctx, tp_comm *comm, uint8_t *in, uint8_t *out)
{
    return tp_all_reduce(ctx, comm, tp_tensor_1d(in, TP_DTYPE_U8, BYTES), tp_tensor_1d(out, TP_DTYPE_U8, BYTES),
                         &(tp_reduce_desc){.algorithm = TP_ALL_REDUCE_ONE_SHOT});
}

static tp_status reduce_scatter(tp_ctx *ctx, tp_comm *comm, uint8_t *in, uint8_t *out)
{
    return tp_reduce_scatter(ctx, comm, tp_tensor_1d(in, TP_DTYPE_U8, BYTES),
                             tp_tensor_1d(out, TP_DTYPE_U8, BYTES / tp_comm_size(comm)), NULL, NULL);
}

static tp_status all_gather(tp_ctx *ctx, tp_comm *comm, uint8_t *in, uint8_t *out)
{
    return tp_all_gather(ctx, comm, tp_tensor_1d(in, TP_DTYPE_U8, BYTES / tp_comm_size(comm)),
                         tp_tensor_1d(out, TP_DTYPE_U8, BYTES), NULL);
}

static tp_status broadcast(tp_ctx *ctx, tp_comm *comm, uint8_t *in, uint8_t *out)
{
    (void)out;
    return tp_broadcast(ctx, comm, tp_tensor_1d(in, TP_DTYPE_U8, BYTES), 0);
}

static tp_status all_to_all(tp_ctx *ctx, tp_comm *comm, uint8_t *in, uint8_t *out)
{
    return tp_all_to_all(ctx, comm, tp_tensor_1d(in, TP_DTYPE_U8, BYTES), NULL, tp_tensor_1d(out, TP_DTYPE_U8, BYTES),
                         NULL);
}

static tp_status ring_messages(tp_ctx *ctx, tp_comm *comm, uint8_t *in, uint8_t *out)
{
    int rank = tp_comm_rank(comm), size = tp_comm_size(comm);
    const tp_p2p ops[] = {
        {.send = true, .peer = (rank + 1) % size, .tensor = tp_tensor_1d(in, TP_DTYPE_U8, BYTES)},
        {.peer = (rank + size - 1) % size, .tensor = tp_tensor_1d(out, TP_DTYPE_U8, BYTES)},
    };
    return tp_p2p_batch(ctx, comm, ops, 2);
}

static tp_status barrier(tp_ctx *ctx, tp_comm *comm, uint8_t *in, uint8_t *out)
{
    (void)in;
    (void)out;
    return tp_barrier(ctx, comm);
}

/* Bytes over the busiest link in units of BYTES * (ranks - 1) / ranks, or of BYTES, and the number of dependent steps.
 */
typedef struct timed_call {
    timed_fn fn;
    double shares, whole;
    int steps;
} timed_call;

static const timed_call timed_calls[] = {
    {all_reduce, 2, 0, 2}, {reduce_scatter, 1, 0, 1}, {all_gather, 1, 0, 1}, {broadcast, 0, 1, 1},
    {all_to_all, 1, 0, 1}, {ring_messages, 0, 1, 1},  {barrier, 0, 0, 1},
};

static double lower_bound(double bytes, int steps)
{
    return bytes / slow_link.bytes_per_second + steps * slow_link.latency_seconds;
}

static tp_status takes_its_time(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tp_comm *comm = tp_ctx_world(ctx);
    int size = tp_comm_size(comm);
    uint8_t *in = tpt_array(TP_DTYPE_U8, BYTES), *out = tpt_array(TP_DTYPE_U8, BYTES);
    for (size_t i = 0; i < sizeof timed_calls / sizeof *timed_calls; i++) {
        const timed_call *call = &timed_calls[i];
        double share = (double)BYTES * (size - 1) / size;
        TPI_TRY(tp_barrier(ctx, comm));
        double begin = tpi_seconds();
        for (int k = 0; k < CALLS; k++)
            TPI_TRY(call->fn(ctx, comm, in, out));
        /* A rank may have left the barrier a latency before this one. */
        double bound = CALLS * lower_bound(call->shares * share + call->whole * BYTES, call->steps) -
                       slow_link.latency_seconds;
        CHECK(tpi_seconds() - begin >= bound * 0.999);
    }
    TPI_TRY(tp_barrier(ctx, comm));
    double begin = tpi_seconds();
    TPI_TRY(all_reduce_one_shot(ctx, comm, in, out));
    CHECK(tpi_seconds() - begin >= lower_bound((double)BYTES * (size - 1), 0) * 0.999);
    double comm_seconds = 0;
    tp_ctx_times(ctx, NULL, &comm_seconds);
    CHECK(comm_seconds >= lower_bound((double)BYTES * (size - 1), 0));
    free(in);
    free(out);
    return TP_OK;
}

/* All rows to rank 0, whose incoming link is the busiest. */
static tp_status rows_to_one(tp_ctx *ctx, void *arg)
{
    (void)arg;
    enum { RANKS = 3 };
    static const int64_t counts[RANKS] = {BYTES, 0, 0};
    tp_comm *comm = tp_ctx_world(ctx);
    int64_t mine = counts[tp_comm_rank(comm)];
    uint8_t *in = tpt_array(TP_DTYPE_U8, BYTES), *out = tpt_array(TP_DTYPE_U8, BYTES);
    TPI_TRY(tp_barrier(ctx, comm));
    double begin = tpi_seconds();
    TPI_TRY(tp_reduce_scatter(ctx, comm, tp_tensor_1d(in, TP_DTYPE_U8, BYTES), tp_tensor_1d(out, TP_DTYPE_U8, mine),
                              counts, NULL));
    CHECK(tpi_seconds() - begin >= lower_bound((double)(mine > 0 ? RANKS - 1 : 1) * BYTES, 0) * 0.999);
    free(in);
    free(out);
    return TP_OK;
}

Test(link, rows_to_one)
{
    tpt_run_with((tp_run_options){.ranks = 3, .link = slow_link}, rows_to_one, NULL);
}

Test(link, completes_no_sooner_than_the_link_allows)
{
    for (int ranks = 2; ranks <= 4; ranks += 2)
        tpt_run_with((tp_run_options){.ranks = ranks, .link = slow_link}, takes_its_time, NULL);
}

/* Messages of one batch share the links: four times the bytes take four times as long, in both orders. */
static tp_status messages_queue_up(tp_ctx *ctx, void *arg)
{
    (void)arg;
    enum { MESSAGES = 4 };
    tp_comm *comm = tp_ctx_world(ctx);
    uint8_t *data = tpt_array(TP_DTYPE_U8, MESSAGES * BYTES);
    tp_p2p ops[MESSAGES];
    for (int i = 0; i < MESSAGES; i++)
        ops[i] = (tp_p2p){tp_comm_rank(comm) == 0, 1 - tp_comm_rank(comm),
                          tp_tensor_1d(data + i * BYTES, TP_DTYPE_U8, BYTES)};
    TPI_TRY(tp_barrier(ctx, comm));
    double begin = tpi_seconds();
    TPI_TRY(tp_p2p_batch(ctx, comm, ops, MESSAGES));
    CHECK(tpi_seconds() - begin >= lower_bound(MESSAGES * (double)BYTES, 0) * 0.999);
    free(data);
    return TP_OK;
}

Test(link, messages_queue_up)
{
    tpt_run_with((tp_run_options){.ranks = 2, .link = slow_link}, messages_queue_up, NULL);
}

/* What crosses is under way from when the last of its ranks came, however long others have waited. */
static tp_status late_call(tp_ctx *ctx, void *arg)
{
    double *begin = arg;
    int rank = tp_ctx_rank(ctx);
    uint8_t *data = tpt_array(TP_DTYPE_U8, BYTES), *all = tpt_array(TP_DTYPE_U8, 2 * BYTES);
    const tp_p2p op = {rank == 0, 1 - rank, tp_tensor_1d(data, TP_DTYPE_U8, BYTES)};
    for (int call = 0; call < 2; call++) {
        if (rank == 0) {
            begin[call] = tpi_seconds();
            tpi_sleep_until(tpi_nanoseconds() + (int64_t)(lower_bound((double)BYTES, 0) * 1e9));
        }
        TPI_TRY(call == 0 ? tp_p2p_batch(ctx, tp_ctx_world(ctx), &op, 1)
                          : tp_all_gather(ctx, tp_ctx_world(ctx), tp_tensor_1d(data, TP_DTYPE_U8, BYTES),
                                          tp_tensor_1d(all, TP_DTYPE_U8, 2 * BYTES), NULL));
        CHECK(tpi_seconds() - begin[call] >= lower_bound(2.0 * BYTES, 0) * 0.999);
    }
    free(data);
    free(all);
    return TP_OK;
}

Test(link, late_ranks_begin_late)
{
    double begin[2] = {0};
    tpt_run_with((tp_run_options){.ranks = 2, .link = slow_link}, late_call, begin);
}

/* Two lanes of a rank share its links. */
static tp_status lanes_share_a_link(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tp_comm *world = tp_ctx_world(ctx), *comm[2];
    tpi_stream *stream[2];
    uint8_t *in = tpt_array(TP_DTYPE_U8, BYTES), *out = tpt_array(TP_DTYPE_U8, 2 * 2 * BYTES);
    for (int lane = 0; lane < 2; lane++) {
        TPI_TRY(tp_comm_split(ctx, world, 0, 0, &comm[lane]));
        TPI_TRY(ctx->backend->stream_create(ctx, "lane", false, &stream[lane]));
    }
    TPI_TRY(tp_barrier(ctx, world));
    double begin = tpi_seconds();
    for (int lane = 0; lane < 2; lane++)
        TPI_TRY(tpi_comm_all_gather(stream[lane], comm[lane], tp_tensor_1d(in, TP_DTYPE_U8, BYTES),
                                    tp_tensor_1d(out + lane * 2 * BYTES, TP_DTYPE_U8, 2 * BYTES), NULL));
    /* The issuing thread is not held up by its lanes: it sees the whole time only when it waits. */
    TPI_TRY(tp_ctx_synchronize(ctx));
    CHECK(tpi_seconds() - begin >= lower_bound(2.0 * BYTES, 0) * 0.999);
    double comm_seconds = 0;
    tp_ctx_times_reset(ctx);
    TPI_TRY(tpi_comm_all_gather(stream[0], comm[0], tp_tensor_1d(in, TP_DTYPE_U8, BYTES),
                                tp_tensor_1d(out, TP_DTYPE_U8, 2 * BYTES), NULL));
    TPI_TRY(tp_ctx_synchronize(ctx));
    tp_ctx_times(ctx, NULL, &comm_seconds);
    CHECK(comm_seconds == 0); /* time of other lanes is not the compute thread's */
    for (int lane = 0; lane < 2; lane++) {
        ctx->backend->stream_destroy(stream[lane]);
        tp_comm_destroy(ctx, comm[lane]);
    }
    free(in);
    free(out);
    return TP_OK;
}

Test(link, lanes_share_a_link)
{
    tpt_run_with((tp_run_options){.ranks = 2, .link = slow_link}, lanes_share_a_link, NULL);
}
