/* Work for mutants of barriers in kernels that wait for peers' kernels (cuda/peer.cuh): two ranks with a device
 * each. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <tp/tp.h>

#include "cuda/gpus.h"
#include "cuda/sync_mutants.h"

enum { RANKS = 2, ROWS = 33, COLS = 128, CALLS = 4 };

/* Dtypes of inputs and sums that the kernel is there for. */
typedef struct peer_kind {
    const char *name;
    tp_dtype in, out;
    tp_reduce_op op;
    bool norm;
} peer_kind;

static const peer_kind kinds[] = {
    {"sum f32", TP_DTYPE_F32, TP_DTYPE_F32, TP_REDUCE_SUM, false},
    {"sum f32 to bf16", TP_DTYPE_F32, TP_DTYPE_BF16, TP_REDUCE_SUM, false},
    {"sum f32 to f16", TP_DTYPE_F32, TP_DTYPE_F16, TP_REDUCE_SUM, false},
    {"sum bf16", TP_DTYPE_BF16, TP_DTYPE_BF16, TP_REDUCE_SUM, false},
    {"sum f16", TP_DTYPE_F16, TP_DTYPE_F16, TP_REDUCE_SUM, false},
    {"norm f32", TP_DTYPE_F32, TP_DTYPE_F32, TP_REDUCE_SUM, true},
    {"norm f32 to bf16", TP_DTYPE_F32, TP_DTYPE_BF16, TP_REDUCE_SUM, true},
    {"norm f32 to f16", TP_DTYPE_F32, TP_DTYPE_F16, TP_REDUCE_SUM, true},
    {"norm bf16", TP_DTYPE_BF16, TP_DTYPE_BF16, TP_REDUCE_SUM, true},
    {"norm f16", TP_DTYPE_F16, TP_DTYPE_F16, TP_REDUCE_SUM, true},
    {"max f32", TP_DTYPE_F32, TP_DTYPE_F32, TP_REDUCE_MAX, false},
    {"max bf16", TP_DTYPE_BF16, TP_DTYPE_BF16, TP_REDUCE_MAX, false},
    {"max f16", TP_DTYPE_F16, TP_DTYPE_F16, TP_REDUCE_MAX, false},
};

/* What all ranks share. */
typedef struct peer_run {
    const peer_kind *kind;
    bool aligned;
    uint64_t hash[RANKS];
} peer_run;

typedef struct buffers {
    tp_tensor in, kept[CALLS], sum, norm, gain, stats, seen;
} buffers;

/* Where kernels must not count on alignment, matrices begin one element later and rows are odd. */
static tp_tensor matrix(tpt_memory *memory, const peer_run *run, tp_dtype dtype, int64_t rows, uint64_t seed)
{
    int64_t cols = run->aligned ? COLS : COLS - 1;
    char *data = tpt_memory_normal(memory, dtype, rows * COLS + COLS, seed);
    return tp_tensor_2d(data != NULL && !run->aligned ? data + tp_dtype_size(dtype) : data, dtype, rows, cols);
}

static buffers make(tpt_memory *memory, const peer_run *run)
{
    uint64_t rank = (uint64_t)tp_ctx_rank(memory->ctx);
    const peer_kind *kind = run->kind;
    buffers b = {.in = matrix(memory, run, kind->in, ROWS, 1)};
    for (int i = 0; i < CALLS; i++)
        b.kept[i] = matrix(memory, run, kind->in, ROWS, 10 + 2 * (uint64_t)i + rank);
    b.sum = matrix(memory, run, kind->out, ROWS, 2);
    b.norm = matrix(memory, run, kind->out, ROWS, 3);
    b.seen = matrix(memory, run, kind->out, 2 * CALLS * ROWS, 4);
    b.gain = matrix(memory, run, kind->out, 1, 5);
    b.stats = tp_tensor_2d(tpt_memory_normal(memory, TP_DTYPE_F32, ROWS * 2, 6), TP_DTYPE_F32, ROWS, 2);
    return b;
}

static tp_status copy(tp_ctx *ctx, tp_tensor to, tp_tensor from)
{
    return ctx->backend->copy(ctx->compute, to.data, from.data, tp_tensor_bytes(from), TPI_COPY_WITHIN);
}

/* One-shot twice, then two-shot twice: staging comes round. */
static tp_status call(tp_ctx *ctx, const peer_run *run, const buffers *b, int number)
{
    tp_comm *world = tp_ctx_world(ctx);
    const tp_reduce_desc desc = {.op = run->kind->op,
                                 .algorithm = number < 2 ? TP_ALL_REDUCE_ONE_SHOT : TP_ALL_REDUCE_TWO_SHOT};
    const tp_reduce_norm norm = {.rms = true,
                                 .epsilon = 1e-5f,
                                 .gain = tp_tensor_1d(b->gain.data, b->gain.dtype, b->gain.shape[1]),
                                 .out = b->norm,
                                 .stats = b->stats};
    TPI_TRY(copy(ctx, b->in, b->kept[number]));
    TPI_TRY(run->kind->norm ? tp_all_reduce_norm(ctx, world, b->in, b->sum, &desc, &norm)
                            : tp_all_reduce(ctx, world, b->in, b->sum, &desc));
    TPI_TRY(copy(ctx, tp_tensor_rows(b->seen, 2 * number * ROWS, (2 * number + 1) * ROWS), b->sum));
    return copy(ctx, tp_tensor_rows(b->seen, (2 * number + 1) * ROWS, (2 * number + 2) * ROWS), b->norm);
}

static tp_status run_rank(tp_ctx *ctx, void *arg)
{
    peer_run *run = arg;
    tpt_memory memory = {.ctx = ctx};
    const buffers b = make(&memory, run);
    for (int i = 0; i < CALLS && memory.status == TP_OK; i++)
        memory.status = call(ctx, run, &b, i);
    if (memory.status == TP_OK)
        memory.status = tp_ctx_synchronize(ctx);
    run->hash[tp_ctx_rank(ctx)] = tpt_memory_end(&memory, 0xCBF29CE484222325u);
    return memory.status;
}

static void run_peers(const tpt_work *work, tpt_outcome *outcome)
{
    peer_run run = {.kind = &kinds[work->number / 2], .aligned = work->number % 2 == 0};
    const tp_run_options options = {
        .ranks = RANKS,
        .devices = RANKS,
        .ctx = {.device = TP_DEVICE_CUDA, .plugin = TPT_CUDA_PLUGIN, .threads = 1, .timeout_ms = 5000}};
    outcome->status = tp_run_ranks(&options, run_rank, &run);
    for (int rank = 0; rank < RANKS; rank++)
        outcome->hash = (outcome->hash ^ run.hash[rank]) * 0x100000001B3u;
}

bool tpt_peer_work(int number, tpt_work *out)
{
    if (number < 0 || number >= 2 * (int)(sizeof kinds / sizeof kinds[0]))
        return false;
    *out = (tpt_work){.run = run_peers, .number = number};
    snprintf(out->name, sizeof out->name, "peers, %s%s", kinds[number / 2].name, number % 2 ? ", not aligned" : "");
    return true;
}
