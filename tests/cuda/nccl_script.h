/* What ranks do over a communicator in tests of transports on GPUs: everything, written down so that it can be compared
 * with thread ranks on the CPU. */
#ifndef TPT_NCCL_SCRIPT_H
#define TPT_NCCL_SCRIPT_H

#include <math.h>

#include "cuda/cuda_ranks.h"

enum { MAX_RANKS = 4 };

typedef struct script {
    tpt_record log[MAX_RANKS];
} script;

/* Random numbers that differ from rank to rank. */
static inline tp_status random_up(tp_ctx *ctx, tp_dtype dtype, int64_t rows, int64_t cols, uint64_t seed,
                                  tpt_device *out)
{
    uint64_t own = seed * 100 + (uint64_t)tp_ctx_rank(ctx);
    bool is_float = tp_dtype_epsilon(dtype) > 0;
    void *host = tpt_array(dtype, rows * cols);
    if (is_float)
        tpt_fill_normal(host, dtype, rows * cols, own, 1);
    else
        tpt_fill_integers(host, dtype, rows * cols, own, 100);
    tp_status status = tpt_up(ctx, host, dtype, rows, cols, out);
    free(host);
    return status;
}

static inline tp_status poison_up(tp_ctx *ctx, tp_dtype dtype, int64_t rows, int64_t cols, tpt_device *out)
{
    size_t bytes = (size_t)(rows * cols) * tp_dtype_size(dtype);
    void *host = tpt_allocate(bytes + 1);
    memset(host, 0x5a, bytes);
    tp_status status = tpt_up(ctx, host, dtype, rows, cols, out);
    free(host);
    return status;
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

static inline tp_status reduce_one(tp_ctx *ctx, tp_comm *comm, tp_dtype dtype, int64_t rows, const tp_reduce_desc *desc,
                                   tpt_record *log)
{
    tpt_device in, out;
    TPI_TRY(random_up(ctx, dtype, rows, 5, 3, &in));
    TPI_TRY(poison_up(ctx, dtype, rows, 5, &out));
    TPI_TRY(tp_all_reduce(ctx, comm, in.tensor, out.tensor, desc));
    TPI_TRY(tp_all_reduce(ctx, comm, in.tensor, in.tensor, desc)); /* in place */
    TPI_TRY(tpt_down(ctx, &out, log));
    return tpt_down(ctx, &in, log);
}

static inline tp_status all_reduces(tp_ctx *ctx, tp_comm *comm, tpt_record *log)
{
    static const int64_t rows[] = {0, 1, 7, 203};
    static const tp_dtype dtypes[] = {TP_DTYPE_F32, TP_DTYPE_BF16, TP_DTYPE_F16,
                                      TP_DTYPE_I32, TP_DTYPE_I64,  TP_DTYPE_U8};
    for (size_t r = 0; r < COUNT_OF(rows); r++)
        for (size_t d = 0; d < COUNT_OF(dtypes); d++) {
            tp_reduce_desc desc = {.op = (tp_reduce_op)((r + d) % 3)};
            TPI_TRY(reduce_one(ctx, comm, dtypes[d], rows[r], &desc, log));
            desc = (tp_reduce_desc){.algorithm = r % 2 ? TP_ALL_REDUCE_ONE_SHOT : TP_ALL_REDUCE_TWO_SHOT};
            TPI_TRY(reduce_one(ctx, comm, dtypes[d], rows[r], &desc, log));
        }
    return TP_OK;
}

/* bf16 of f32 sums, with bias, mask and residual. */
static inline tp_status finished_sums(tp_ctx *ctx, tp_comm *comm, tpt_record *log)
{
    for (int algorithm = TP_ALL_REDUCE_ONE_SHOT; algorithm <= TP_ALL_REDUCE_TWO_SHOT; algorithm++) {
        tpt_device in, out, bias, residual, part;
        int rank = tp_comm_rank(comm), size = tp_comm_size(comm);
        tp_range own = tp_shard_range(37, size, rank);
        TPI_TRY(random_up(ctx, TP_DTYPE_F32, 37, 11, 5, &in));
        TPI_TRY(random_up(ctx, TP_DTYPE_F32, 1, 11, 6, &bias));
        TPI_TRY(random_up(ctx, TP_DTYPE_BF16, 37, 11, 7, &residual));
        TPI_TRY(poison_up(ctx, TP_DTYPE_BF16, 37, 11, &out));
        TPI_TRY(poison_up(ctx, TP_DTYPE_BF16, own.end - own.begin, 11, &part));
        tp_reduce_desc desc = {
            .algorithm = (tp_all_reduce_algorithm)algorithm, .dropout = 0.25f, .residual = residual.tensor};
        desc.bias = bias.tensor;
        desc.bias.dims = 1;
        desc.bias.shape[0] = 11;
        desc.bias.stride[0] = 1;
        TPI_TRY(tp_all_reduce(ctx, comm, in.tensor, out.tensor, &desc));
        desc.residual = tpt_rows(&residual, own.begin, own.end);
        desc.first_row = own.begin;
        TPI_TRY(tp_reduce_scatter(ctx, comm, in.tensor, part.tensor, NULL, &desc));
        TPI_TRY(tpt_down(ctx, &out, log));
        TPI_TRY(tpt_down(ctx, &part, log));
        TPI_TRY(tpt_down(ctx, &bias, NULL));
        TPI_TRY(tpt_down(ctx, &residual, NULL));
        TPI_TRY(tpt_down(ctx, &in, NULL));
    }
    return TP_OK;
}

/* A NaN wins, whoever has it. */
static inline tp_status nan_wins(tp_ctx *ctx, tp_comm *comm, tpt_record *log)
{
    for (int op = TP_REDUCE_MAX; op <= TP_REDUCE_MIN; op++) {
        float values[MAX_RANKS];
        for (int i = 0; i < MAX_RANKS; i++)
            values[i] = i == tp_comm_rank(comm) ? NAN : (float)(i - 2);
        tpt_device array;
        TPI_TRY(tpt_up(ctx, values, TP_DTYPE_F32, 1, MAX_RANKS, &array));
        TPI_TRY(tp_all_reduce(ctx, comm, array.tensor, array.tensor, &(tp_reduce_desc){.op = (tp_reduce_op)op}));
        TPI_TRY(tp_ctx_download(ctx, values, array.tensor.data, sizeof values));
        for (int i = 0; i < MAX_RANKS; i++) {
            bool is_nan = isnan(values[i]);
            CHECK(is_nan == (i < tp_comm_size(comm)));
            tpt_note(log, &is_nan, sizeof is_nan);
        }
        TPI_TRY(tpt_down(ctx, &array, NULL));
    }
    return TP_OK;
}

/* ---- uneven counts ----------------------------------------------------------------------------------------------- */

/* No rows on the first rank, and more on each further one. */
static inline int64_t uneven(int size, int64_t *counts)
{
    int64_t rows = 0;
    for (int rank = 0; rank < size; rank++)
        rows += counts[rank] = rank * 3;
    return rows;
}

static inline tp_status scatter_one(tp_ctx *ctx, tp_comm *comm, int64_t rows, const int64_t *counts, tpt_record *log)
{
    tp_range own = tp_shard_range(rows, tp_comm_size(comm), tp_comm_rank(comm));
    if (counts) {
        own.begin = 0;
        for (int rank = 0; rank < tp_comm_rank(comm); rank++)
            own.begin += counts[rank];
        own.end = own.begin + counts[tp_comm_rank(comm)];
    }
    tpt_device in, out, all;
    TPI_TRY(random_up(ctx, TP_DTYPE_F32, rows, 3, 11, &in));
    TPI_TRY(poison_up(ctx, TP_DTYPE_F32, own.end - own.begin, 3, &out));
    TPI_TRY(poison_up(ctx, TP_DTYPE_F32, rows, 3, &all));
    TPI_TRY(tp_reduce_scatter(ctx, comm, in.tensor, out.tensor, counts, NULL));
    TPI_TRY(tp_reduce_scatter(ctx, comm, in.tensor, tpt_rows(&in, own.begin, own.end), counts, NULL)); /* in place */
    TPI_TRY(tp_all_gather(ctx, comm, out.tensor, all.tensor, counts));
    TPI_TRY(tp_all_gather(ctx, comm, tpt_rows(&in, own.begin, own.end), in.tensor, counts));
    TPI_TRY(tpt_down(ctx, &out, log));
    TPI_TRY(tpt_down(ctx, &all, log));
    return tpt_down(ctx, &in, log);
}

static inline tp_status scatters(tp_ctx *ctx, tp_comm *comm, tpt_record *log)
{
    int64_t counts[MAX_RANKS];
    int64_t rows = uneven(tp_comm_size(comm), counts);
    TPI_TRY(scatter_one(ctx, comm, rows, counts, log));
    TPI_TRY(scatter_one(ctx, comm, 0, NULL, log));
    TPI_TRY(scatter_one(ctx, comm, 1, NULL, log));
    TPI_TRY(scatter_one(ctx, comm, 12, NULL, log));
    return scatter_one(ctx, comm, 101, NULL, log);
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static inline tp_status exchanges(tp_ctx *ctx, tp_comm *comm, tpt_record *log)
{
    int rank = tp_comm_rank(comm), size = tp_comm_size(comm);
    int64_t sent[MAX_RANKS], received[MAX_RANKS], rows = 0, out_rows = 0;
    for (int peer = 0; peer < size; peer++) {
        rows += sent[peer] = (rank * 2 + peer) % 3;
        out_rows += received[peer] = (peer * 2 + rank) % 3;
    }
    tpt_device in, out, word;
    TPI_TRY(random_up(ctx, TP_DTYPE_BF16, rows, 7, 13, &in));
    TPI_TRY(poison_up(ctx, TP_DTYPE_BF16, out_rows, 7, &out));
    TPI_TRY(tp_all_to_all(ctx, comm, in.tensor, sent, out.tensor, received));
    TPI_TRY(tpt_down(ctx, &out, log));
    TPI_TRY(tpt_down(ctx, &in, NULL));
    for (int root = 0; root < size; root++) {
        TPI_TRY(random_up(ctx, TP_DTYPE_I32, 9, 1, 17, &word));
        TPI_TRY(tp_broadcast(ctx, comm, word.tensor, root));
        TPI_TRY(tpt_down(ctx, &word, log));
    }
    return tp_barrier(ctx, comm);
}

/* A ring, a message to oneself, and two messages each way to the next rank. */
static inline tp_status messages(tp_ctx *ctx, tp_comm *comm, tpt_record *log)
{
    int rank = tp_comm_rank(comm), size = tp_comm_size(comm), next = (rank + 1) % size, last = (rank + size - 1) % size;
    tpt_device from[3], to[3];
    for (int i = 0; i < 3; i++) {
        TPI_TRY(random_up(ctx, TP_DTYPE_F32, 4 + i, 3, 19 + (uint64_t)i, &from[i]));
        TPI_TRY(poison_up(ctx, TP_DTYPE_F32, 4 + i, 3, &to[i]));
    }
    const tp_p2p ops[] = {
        {false, last, to[0].tensor}, {true, next, from[0].tensor}, {true, next, from[1].tensor},
        {false, last, to[1].tensor}, {true, rank, from[2].tensor}, {false, rank, to[2].tensor},
    };
    TPI_TRY(tp_p2p_batch(ctx, comm, ops, (int)COUNT_OF(ops)));
    for (int i = 0; i < 3; i++) {
        TPI_TRY(tpt_down(ctx, &from[i], NULL));
        TPI_TRY(tpt_down(ctx, &to[i], log));
    }
    return TP_OK;
}

static inline tp_status everything(tp_ctx *ctx, tp_comm *comm, tpt_record *log)
{
    TPI_TRY(all_reduces(ctx, comm, log));
    TPI_TRY(finished_sums(ctx, comm, log));
    TPI_TRY(nan_wins(ctx, comm, log));
    TPI_TRY(scatters(ctx, comm, log));
    TPI_TRY(exchanges(ctx, comm, log));
    return messages(ctx, comm, log);
}

static inline tp_status run_script(tp_ctx *ctx, void *arg)
{
    script *all = arg;
    tpt_record *log = &all->log[tp_ctx_rank(ctx)];
    tp_comm *world = tp_ctx_world(ctx);
    bool gpu = ctx->desc.device == TP_DEVICE_CUDA;
    CHECK(strcmp(tp_comm_transport(world), gpu ? "nccl" : "threads") == 0);
    return everything(ctx, world, log);
}

/* In halves that are turned round, and with a rank left out. */
static inline tp_status run_split(tp_ctx *ctx, void *arg)
{
    script *all = arg;
    int rank = tp_ctx_rank(ctx), size = tp_comm_size(tp_ctx_world(ctx));
    tp_comm *part;
    TPI_TRY(tp_comm_split(ctx, tp_ctx_world(ctx), rank % 2, -rank, &part));
    tp_status status = everything(ctx, part, &all->log[rank]);
    tp_comm_destroy(ctx, part);
    TPI_TRY(status);
    TPI_TRY(tp_comm_split(ctx, tp_ctx_world(ctx), rank == 0 ? -1 : 4, rank, &part));
    CHECK((part == NULL) == (rank == 0));
    if (part) {
        CHECK(tp_comm_size(part) == size - 1 && tp_comm_rank(part) == rank - 1);
        status = scatters(ctx, part, &all->log[rank]);
        tp_comm_destroy(ctx, part);
    }
    return status;
}

/* Of a run that must not come to its functions. */
static inline tp_status never(tp_ctx *ctx, void *arg)
{
    (void)ctx;
    (void)arg;
    return TP_ERR_INTERNAL;
}

static inline tp_run_options on_gpus(int ranks)
{
    tp_run_options options = {.ranks = ranks, .transport = TP_TRANSPORT_NCCL, .devices = ranks};
    options.ctx = (tp_ctx_desc){.device = TP_DEVICE_CUDA, .plugin = TPT_CUDA_PLUGIN, .timeout_ms = 60000};
    return options;
}

#endif
