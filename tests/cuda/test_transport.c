/* Thread ranks over device memory: every collective against the same on the CPU, bit for bit, with all ranks on one GPU
 * and on several, under all schedules of the simulator, without reports. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <tp/tp.h>

#include "comm/table.h"
#include "core/context.h"
#include "cuda/gpus.h"
#include "cuda/simulator.h"
#include "support/data.h"
#include "support/devices.h"

enum { MOST_RANKS = 4, RESULT_BYTES = 1 << 22 };

/* What a rank got, one result after the other. */
typedef struct record {
    char *bytes[MOST_RANKS];
    size_t used[MOST_RANKS];
} record;

typedef struct scene {
    tp_ctx *ctx;
    tp_comm *comm;
    int rank, size;
    record *out;
} scene;

static tp_status up(const scene *s, const void *host, size_t bytes, void **out)
{
    TPI_TRY(tp_ctx_allocate(s->ctx, TP_MEMORY_OTHER, bytes, out));
    return tp_ctx_upload(s->ctx, *out, host, bytes);
}

/* Takes down what is there and frees it. */
static tp_status down(const scene *s, void *memory, size_t bytes)
{
    size_t *used = &s->out->used[s->rank];
    if (*used + bytes > RESULT_BYTES)
        return TP_ERR_INTERNAL;
    TPI_TRY(tp_ctx_download(s->ctx, s->out->bytes[s->rank] + *used, memory, bytes));
    *used += bytes;
    tp_ctx_release(s->ctx, TP_MEMORY_OTHER, memory, bytes);
    return TP_OK;
}

static tp_tensor tensor_up(const scene *s, tp_dtype dtype, int64_t rows, int64_t cols, uint64_t seed, tp_status *status)
{
    void *host = tpt_new_normal(dtype, rows * cols, seed, 1.0);
    tp_tensor tensor = tp_tensor_2d(NULL, dtype, rows, cols);
    if (*status == TP_OK)
        *status = up(s, host, tp_tensor_bytes(tensor), &tensor.data);
    free(host);
    return tensor;
}

static tp_status reduce_case(const scene *s, tp_dtype dtype, int64_t rows, tp_all_reduce_algorithm algorithm)
{
    enum { COLS = 37 };
    tp_status status = TP_OK;
    tp_tensor in = tensor_up(s, dtype, rows, COLS, 10 + (uint64_t)s->rank, &status);
    tp_tensor out = tensor_up(s, TP_DTYPE_BF16, rows, COLS, 20, &status);
    tp_tensor residual = tensor_up(s, TP_DTYPE_BF16, rows, COLS, 21, &status);
    tp_tensor bias = tensor_up(s, TP_DTYPE_F32, 1, COLS, 22, &status);
    TPI_TRY(status);
    bias = tp_tensor_1d(bias.data, TP_DTYPE_F32, COLS);
    tp_tensor in_place = dtype == TP_DTYPE_F32 ? out : in;
    const tp_reduce_desc finish = {.algorithm = algorithm, .bias = bias, .residual = residual, .dropout = 0.25f,
                                   .dropout_key = {3, 4}, .first_row = 5};
    if (dtype == TP_DTYPE_F32)
        TPI_TRY(tp_all_reduce(s->ctx, s->comm, in, out, &finish));
    else
        TPI_TRY(tp_all_reduce(s->ctx, s->comm, in, in_place, &(tp_reduce_desc){.algorithm = algorithm}));
    TPI_TRY(tp_all_reduce(s->ctx, s->comm, in, in, &(tp_reduce_desc){.algorithm = algorithm, .op = TP_REDUCE_MAX}));
    TPI_TRY(down(s, in.data, tp_tensor_bytes(in)));
    TPI_TRY(down(s, out.data, tp_tensor_bytes(out)));
    TPI_TRY(down(s, residual.data, tp_tensor_bytes(residual)));
    return down(s, bias.data, tp_tensor_bytes(bias));
}

static tp_status shard_case(const scene *s, tp_dtype dtype, int64_t rows)
{
    enum { COLS = 11 };
    tp_status status = TP_OK;
    tp_range mine = tp_shard_range(rows, s->size, s->rank);
    tp_tensor whole = tensor_up(s, dtype, rows, COLS, 30 + (uint64_t)s->rank, &status),
              all = tensor_up(s, dtype, rows, COLS, 31, &status);
    tp_tensor part = tensor_up(s, dtype, mine.end - mine.begin, COLS, 40 + (uint64_t)s->rank, &status);
    TPI_TRY(status);
    TPI_TRY(tp_reduce_scatter(s->ctx, s->comm, whole, part, NULL, NULL));
    TPI_TRY(tp_all_gather(s->ctx, s->comm, part, all, NULL));
    TPI_TRY(tp_reduce_scatter(s->ctx, s->comm, whole, tp_tensor_rows(whole, mine.begin, mine.end), NULL, NULL));
    TPI_TRY(tp_all_gather(s->ctx, s->comm, tp_tensor_rows(whole, mine.begin, mine.end), whole, NULL));
    TPI_TRY(tp_broadcast(s->ctx, s->comm, all, s->size - 1));
    TPI_TRY(tp_barrier(s->ctx, s->comm));
    TPI_TRY(down(s, whole.data, tp_tensor_bytes(whole)));
    TPI_TRY(down(s, all.data, tp_tensor_bytes(all)));
    return down(s, part.data, tp_tensor_bytes(part));
}

static tp_status exchange_case(const scene *s)
{
    int64_t sends[MOST_RANKS], receives[MOST_RANKS], sent = 0, received = 0;
    for (int peer = 0; peer < s->size; peer++) {
        sent += sends[peer] = (s->rank + 2 * peer) % 3;
        received += receives[peer] = (peer + 2 * s->rank) % 3;
    }
    tp_status status = TP_OK;
    tp_tensor in = tensor_up(s, TP_DTYPE_F32, sent, 9, 50 + (uint64_t)s->rank, &status),
              out = tensor_up(s, TP_DTYPE_F32, received, 9, 51, &status);
    TPI_TRY(status);
    TPI_TRY(tp_all_to_all(s->ctx, s->comm, in, sends, out, receives));
    TPI_TRY(down(s, in.data, tp_tensor_bytes(in)));
    return down(s, out.data, tp_tensor_bytes(out));
}

/* Everybody sends to everybody else, three messages each; then what came is sent on. */
static tp_status message_case(const scene *s)
{
    enum { MESSAGES = 3, LENGTH = 129 };
    tp_p2p ops[2][2 * MESSAGES * MOST_RANKS];
    tp_status status = TP_OK;
    int count = 0;
    for (int message = 0; message < MESSAGES; message++)
        for (int peer = 0; peer < s->size; peer++) {
            if (peer == s->rank)
                continue;
            tp_tensor out =
                tensor_up(s, TP_DTYPE_F32, 1, LENGTH + message, 60 + (uint64_t)(s->rank * 8 + peer), &status);
            tp_tensor in = tensor_up(s, TP_DTYPE_F32, 1, LENGTH + message, 1, &status);
            ops[0][count] = (tp_p2p){true, peer, out};
            ops[1][count++] = (tp_p2p){false, peer, out};
            ops[0][count] = (tp_p2p){false, peer, in};
            ops[1][count++] = (tp_p2p){true, peer, in};
        }
    TPI_TRY(status);
    for (int batch = 0; batch < 2; batch++)
        TPI_TRY(tp_p2p_batch(s->ctx, s->comm, ops[batch], count));
    for (int i = 0; i < count; i++)
        TPI_TRY(down(s, ops[0][i].tensor.data, tp_tensor_bytes(ops[0][i].tensor)));
    return TP_OK;
}

/* A rank writes into its neighbour's symmetric buffer by an op. */
static tp_status symmetric_case(const scene *s)
{
    enum { COUNT = 100 };
    tp_symmetric shared;
    tp_status status = TP_OK;
    tp_tensor own = tensor_up(s, TP_DTYPE_F32, 1, COUNT, 70 + (uint64_t)s->rank, &status),
              got = tensor_up(s, TP_DTYPE_F32, 1, COUNT, 71, &status);
    TPI_TRY(status);
    TPI_TRY(tp_symmetric_create(s->ctx, s->comm, COUNT * sizeof(float), &shared));
    tpi_map_args copy = {.rows = 1,
                         .cols = COUNT,
                         .in = own.data,
                         .in_dtype = TP_DTYPE_F32,
                         .in_stride = COUNT,
                         .out = shared.peer[(s->rank + 1) % s->size],
                         .out_dtype = TP_DTYPE_F32,
                         .out_stride = COUNT};
    TPI_TRY(tpi_map(s->ctx->compute, &copy));
    TPI_TRY(tp_barrier(s->ctx, s->comm));
    copy.in = shared.local;
    copy.out = got.data;
    TPI_TRY(tpi_map(s->ctx->compute, &copy));
    TPI_TRY(down(s, got.data, COUNT * sizeof(float)));
    TPI_TRY(down(s, own.data, COUNT * sizeof(float)));
    tp_symmetric_destroy(s->ctx, s->comm, &shared);
    return TP_OK;
}

/* Small all-reduces, and between them what not all ranks' streams meet in: a broadcast, and what only the hosts do.
 * What the ranks stage is used in turn all the same. */
static tp_status turns_case(const scene *s)
{
    enum { COUNT = 300, ROUNDS = 4 };
    tp_status status = TP_OK;
    tp_tensor in = tensor_up(s, TP_DTYPE_F32, 1, COUNT, 80 + (uint64_t)s->rank, &status), out[ROUNDS];
    for (int i = 0; i < ROUNDS; i++)
        out[i] = tensor_up(s, TP_DTYPE_F32, 1, COUNT, 90, &status);
    TPI_TRY(status);
    for (int i = 0; i < ROUNDS; i++) {
        int mine = s->rank, all[MOST_RANKS];
        TPI_TRY(tp_all_reduce(s->ctx, s->comm, i == 0 ? in : out[i - 1], out[i], NULL));
        if (i % 2 == 0)
            TPI_TRY(tp_broadcast(s->ctx, s->comm, in, s->size - 1));
        else
            TPI_TRY(s->comm->table->exchange(s->ctx, s->comm, &mine, all, sizeof mine));
    }
    for (int i = 0; i < ROUNDS; i++)
        TPI_TRY(down(s, out[i].data, tp_tensor_bytes(out[i])));
    return down(s, in.data, tp_tensor_bytes(in));
}

static tp_status all_cases(tp_ctx *ctx, void *arg)
{
    static const int64_t rows[] = {0, 1, 7, 2000}; /* the last one is more than staging holds */
    const scene s = {ctx, tp_ctx_world(ctx), tp_ctx_rank(ctx), tp_comm_size(tp_ctx_world(ctx)), arg};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tp_dtype dtype = i % 2 ? TP_DTYPE_F32 : TP_DTYPE_BF16;
        TPI_TRY(reduce_case(&s, i == 3 ? TP_DTYPE_F32 : dtype, rows[i], TP_ALL_REDUCE_AUTO));
        TPI_TRY(reduce_case(&s, dtype, rows[i] > 100 ? 40 : rows[i], TP_ALL_REDUCE_TWO_SHOT));
        TPI_TRY(shard_case(&s, dtype, rows[i] > 100 ? 53 : rows[i]));
    }
    TPI_TRY(turns_case(&s));
    TPI_TRY(exchange_case(&s));
    TPI_TRY(message_case(&s));
    return symmetric_case(&s);
}

static void run(const tp_run_options *options, record *out)
{
    for (int rank = 0; rank < MOST_RANKS; rank++) {
        out->bytes[rank] = tpt_allocate(RESULT_BYTES);
        out->used[rank] = 0;
    }
    tp_status status = tpt_run_ranks(options, all_cases, out);
    cr_assert_eq(status, TP_OK, "%s: %s", tp_status_name(status), tp_last_message());
}

static void free_record(record *out)
{
    for (int rank = 0; rank < MOST_RANKS; rank++)
        free(out->bytes[rank]);
}

static void check(int ranks, int devices, unsigned number)
{
    record cpu, gpu;
    char text[512];
    tpt_gpus_turn(number);
    run(&(tp_run_options){.ranks = ranks, .ctx = {.threads = 1}}, &cpu);
    run(&(tp_run_options){.ranks = ranks,
                          .devices = devices,
                          .ctx = {.device = TP_DEVICE_CUDA, .plugin = TPT_CUDA_PLUGIN, .timeout_ms = 60000}},
        &gpu);
    for (int rank = 0; rank < ranks; rank++) {
        cr_assert_eq(cpu.used[rank], gpu.used[rank]);
        cr_assert(memcmp(cpu.bytes[rank], gpu.bytes[rank], cpu.used[rank]) == 0, "rank %d of %d on %d devices", rank,
                  ranks, devices);
    }
    cr_assert_eq(tpt_simulator_count(text, sizeof text), 0, "%s", text);
    free_record(&cpu);
    free_record(&gpu);
}

Test(cuda_transport, two_ranks_on_one_gpu, .timeout = 100)
{
    check(2, 1, 0);
    check(2, 1, 1);
}

Test(cuda_transport, two_ranks_on_two_gpus, .timeout = 100)
{
    for (unsigned number = 1; number < TPT_SCHEDULES; number++)
        check(2, 2, number);
}

Test(cuda_transport, four_ranks, .timeout = 100)
{
    check(4, 4, 1);
    check(4, 2, 4);
    check(4, 1, 0);
}
