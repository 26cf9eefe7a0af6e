/* Work for mutants of waits: collectives and layers on several ranks. What peers read was written just before, and is
 * overwritten just after: else another operation's waits would do for those of this one. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/tp.h>

#include "comm/table.h"
#include "cuda/gpus.h"
#include "cuda/sync_mutants.h"
#include "cuda/sync_sites.h"
#include "support/data.h"
#include "support/layer_tables.h"

enum { MOST_RANKS = TPT_MOST_THREADS };

typedef struct rank_work rank_work;

/* What the ranks of a program do. begin makes a rank's memory; go issues, three times; end hashes what is not in the
 * memory. */
typedef struct wait_program {
    const char *name;
    int ranks, devices;
    tp_status (*begin)(rank_work *r);
    tp_status (*go)(rank_work *r);
    tp_status (*end)(rank_work *r);
    /* One collective, or one layer. */
    tp_status (*collective)(rank_work *r);
    const tpt_layer_table *table;
    const void *desc;
    int in, out;
    tp_overlap overlap;
    bool sequence_parallel;
    tp_transport transport;
    bool processes;
} wait_program;

struct rank_work {
    tp_ctx *ctx;
    tp_comm *group;
    const wait_program *program;
    tpt_memory memory;
    tpt_parts parts;
    uint64_t hash;
    tp_tensor in, in_kept, in_junk, out, out_junk, out_seen; /* of a collective */
    tp_tensor x, x_kept, y, dy, dy_kept, dx, junk, seen;     /* of a layer */
    tp_symmetric shared;
    tpi_stream *second;                                      /* another lane of this rank, */
    tpi_event *begun, *ended;                                /* between which and the compute lane these are */
    void *layer, *saved;
    tp_param *params[TPT_MAX_PARAMS];
    int param_count;
    size_t saved_bytes;
};

typedef struct run_state {
    const wait_program *program;
    tpt_outcome *outcome;
    uint64_t hash[MOST_RANKS];
} run_state;

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

static void part(rank_work *r, const char *name)
{
    tpt_part(&r->parts, name);
}

static tp_tensor tensor(rank_work *r, int64_t rows, int64_t cols, uint64_t seed)
{
    uint64_t own = seed > 0 ? seed + 100u * (uint64_t)tp_ctx_rank(r->ctx) : 0;
    void *data = own > 0 ? tpt_memory_normal(&r->memory, TP_DTYPE_F32, rows * cols, own)
                         : tpt_memory_of(&r->memory, NULL, (size_t)(rows * cols) * sizeof(float));
    return tp_tensor_2d(data, TP_DTYPE_F32, rows, cols);
}

static tp_status overwrite(rank_work *r, tp_tensor to, tp_tensor from)
{
    return r->ctx->backend->copy(r->ctx->compute, to.data, from.data, tp_tensor_bytes(to), TPI_COPY_WITHIN);
}

static tp_status run_rank(tp_ctx *ctx, void *arg)
{
    run_state *state = arg;
    rank_work r = {.ctx = ctx, .program = state->program, .memory = {.ctx = ctx}, .hash = 0xCBF29CE484222325u};
    int rank = tp_ctx_rank(ctx);
    r.parts = (tpt_parts){.outcome = state->outcome, .rank = rank};
    tpt_gpus_thread(rank + 1);
    tpt_sites_watch(ctx, &r.parts);
    r.group = tp_ctx_group(ctx, TP_AXIS_TP);
    tp_status status = r.program->begin(&r);
    if (status == TP_OK)
        status = r.memory.status;
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    for (int turn = 0; turn < 3 && status == TP_OK; turn++) {
        r.parts.counts = turn == 1;
        status = r.program->go(&r);
        part(&r, NULL);
        if (rank == 0)
            state->outcome->parts = r.parts.count;
    }
    tpt_sites_leave(ctx);
    tp_status ended = r.program->end(&r);
    r.memory.status = status != TP_OK ? status : ended;
    state->hash[rank] = tpt_memory_end(&r.memory, r.hash);
    return r.memory.status;
}

static void run_ranks(const tpt_work *work, tpt_outcome *outcome)
{
    const wait_program *program = work->arg;
    run_state state = {.program = program, .outcome = outcome};
    const tp_run_options options = {.ranks = program->ranks,
                                    .devices = program->devices,
                                    .transport = program->transport,
                                    .ctx = {.device = TP_DEVICE_CUDA, .plugin = TPT_CUDA_PLUGIN, .threads = 1,
                                            .timeout_ms = 20000}};
    outcome->status = program->processes ? tpt_run_processes(program->ranks, run_rank, &state)
                                         : tp_run_ranks(&options, run_rank, &state);
    for (int rank = 0; rank < program->ranks; rank++)
        outcome->hash = (outcome->hash ^ state.hash[rank]) * 0x100000001B3u;
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

/* Enough for every rank to have a slice of a two-shot sum. */
enum { ROWS = 16, COLS = 40 };

static tp_status begin_collective(rank_work *r)
{
    r->in = tensor(r, ROWS, COLS, 1);
    r->in_kept = tensor(r, ROWS, COLS, 2);
    r->in_junk = tensor(r, ROWS, COLS, 3);
    r->out = tensor(r, ROWS, COLS, 4);
    r->out_junk = tensor(r, ROWS, COLS, 5);
    r->out_seen = tensor(r, ROWS, COLS, 6);
    return r->memory.status != TP_OK
               ? r->memory.status
               : tp_symmetric_create(r->ctx, r->group, sizeof(float) * ROWS * COLS * MOST_RANKS, &r->shared);
}

static tp_status go_collective(rank_work *r)
{
    TPI_TRY(overwrite(r, r->in, r->in_kept));
    part(r, r->program->name);
    TPI_TRY(r->program->collective(r));
    part(r, NULL);
    TPI_TRY(overwrite(r, r->out_seen, r->out));
    TPI_TRY(overwrite(r, r->in, r->in_junk));
    return overwrite(r, r->out, r->out_junk);
}

static tp_status end_collective(rank_work *r)
{
    tp_status status = tp_ctx_synchronize(r->ctx);
    if (r->shared.peer != NULL)
        tp_symmetric_destroy(r->ctx, r->group, &r->shared);
    return status;
}

static tp_tensor own_rows(const rank_work *r, tp_tensor whole)
{
    tp_range rows = tp_shard_range(ROWS, tp_comm_size(r->group), tp_comm_rank(r->group));
    return tp_tensor_rows(whole, rows.begin, rows.end);
}

static tp_status all_gather(rank_work *r)
{
    return tp_all_gather(r->ctx, r->group, own_rows(r, r->in), r->out, NULL);
}

static tp_status reduce_scatter(rank_work *r)
{
    return tp_reduce_scatter(r->ctx, r->group, r->in, own_rows(r, r->out), NULL, NULL);
}

static tp_status one_shot(rank_work *r)
{
    return tp_all_reduce(r->ctx, r->group, r->in, r->out, &(tp_reduce_desc){.algorithm = TP_ALL_REDUCE_ONE_SHOT});
}

static tp_status two_shot(rank_work *r)
{
    return tp_all_reduce(r->ctx, r->group, r->in, r->out, &(tp_reduce_desc){.algorithm = TP_ALL_REDUCE_TWO_SHOT});
}

static tp_status broadcast(rank_work *r)
{
    int root = tp_comm_size(r->group) - 1;
    return tp_broadcast(r->ctx, r->group, tp_comm_rank(r->group) == root ? r->in : r->out, root);
}

static tp_status all_to_all(rank_work *r)
{
    int64_t counts[MOST_RANKS];
    for (int rank = 0; rank < MOST_RANKS; rank++)
        counts[rank] = ROWS / tp_comm_size(r->group);
    return tp_all_to_all(r->ctx, r->group, r->in, counts, r->out, counts);
}

/* Two messages to everybody, and two from everybody. */
static tp_status messages(rank_work *r)
{
    int size = tp_comm_size(r->group), rank = tp_comm_rank(r->group), count = 0;
    tp_p2p ops[4 * MOST_RANKS];
    for (int row = 0; row < 2 * size; row++) {
        int peer = row % size;
        if (peer == rank)
            continue;
        ops[count++] = (tp_p2p){true, peer, tp_tensor_rows(r->in, row, row + 1)};
        ops[count++] = (tp_p2p){false, peer, tp_tensor_rows(r->out, row, row + 1)};
    }
    return tp_p2p_batch(r->ctx, r->group, ops, count);
}

/* Everybody writes into everybody's symmetric memory between two barriers. */
static tp_status barriers(rank_work *r)
{
    size_t bytes = sizeof(float) * ROWS * COLS;
    int size = tp_comm_size(r->group), rank = tp_comm_rank(r->group);
    TPI_TRY(tp_barrier(r->ctx, r->group));
    for (int i = 0; i < size; i++)
        TPI_TRY(r->ctx->backend->copy(r->ctx->compute, (char *)r->shared.peer[(rank + i) % size] + (size_t)rank * bytes,
                                      r->in.data, bytes, TPI_COPY_WITHIN));
    TPI_TRY(tp_barrier(r->ctx, r->group));
    for (int i = 0; i < size; i++) {
        TPI_TRY(r->ctx->backend->copy(r->ctx->compute, r->out.data, (char *)r->shared.local + (size_t)i * bytes, bytes,
                                      TPI_COPY_WITHIN));
        TPI_TRY(overwrite(r, r->out_seen, r->out));
    }
    return TP_OK;
}

/* Over NCCL, whose staging two lanes use in turn. */
static tp_status begin_lanes(rank_work *r)
{
    const tpi_backend *backend = r->ctx->backend;
    TPI_TRY(begin_collective(r));
    TPI_TRY(backend->stream_create(r->ctx, "second", false, &r->second));
    TPI_TRY(backend->event_create(r->ctx, &r->begun));
    return backend->event_create(r->ctx, &r->ended);
}

static tp_status go_lanes(rank_work *r)
{
    const tpi_backend *backend = r->ctx->backend;
    const tp_reduce_desc sum = {.algorithm = TP_ALL_REDUCE_ONE_SHOT};
    TPI_TRY(overwrite(r, r->in, r->in_kept));
    TPI_TRY(backend->event_record(r->begun, r->ctx->compute));
    TPI_TRY(backend->event_wait(r->begun, r->second));
    TPI_TRY(tpi_comm_all_reduce(r->second, r->group, r->in, r->out, &sum));
    part(r, "from the second lane to compute");
    TPI_TRY(tpi_comm_all_reduce(r->ctx->compute, r->group, r->in, r->out_seen, &sum));
    part(r, "from compute to the second lane");
    TPI_TRY(tpi_comm_all_reduce(r->second, r->group, r->in, r->out, &sum));
    part(r, NULL);
    TPI_TRY(backend->event_record(r->ended, r->second));
    TPI_TRY(backend->event_wait(r->ended, r->ctx->compute));
    return overwrite(r, r->in, r->in_junk);
}

static tp_status end_lanes(rank_work *r)
{
    const tpi_backend *backend = r->ctx->backend;
    tp_status status = end_collective(r);
    if (r->second != NULL)
        backend->stream_destroy(r->second);
    if (r->begun != NULL)
        backend->event_destroy(r->begun);
    if (r->ended != NULL)
        backend->event_destroy(r->ended);
    return status;
}

#define COLLECTIVE(name, function, ranks, devices)                                                                     \
    {name, ranks, devices, begin_collective, go_collective, end_collective, function, NULL, NULL, 0, 0,                \
     TP_OVERLAP_NONE, false, TP_TRANSPORT_AUTO, false}
#define LANES(ranks)                                                                                                   \
    {"staging", ranks, ranks, begin_lanes, go_lanes, end_lanes, NULL, NULL, NULL, 0, 0, TP_OVERLAP_NONE, false,        \
     TP_TRANSPORT_NCCL, false}
#define COLLECTIVES(ranks, devices)                                                                                    \
    COLLECTIVE("all_gather", all_gather, ranks, devices),                                                              \
    COLLECTIVE("reduce_scatter", reduce_scatter, ranks, devices),                                                      \
    COLLECTIVE("all_reduce, one-shot", one_shot, ranks, devices),                                                      \
    COLLECTIVE("all_reduce, two-shot", two_shot, ranks, devices),                                                      \
    COLLECTIVE("broadcast", broadcast, ranks, devices), COLLECTIVE("all_to_all", all_to_all, ranks, devices),          \
    COLLECTIVE("p2p_batch", messages, ranks, devices), COLLECTIVE("barrier", barriers, ranks, devices)

/* ---- layers ------------------------------------------------------------------------------------------------------ */

enum { TOKENS = 17, HIDDEN = 16, FFN = 19 };

static const tp_pass pass = {.tokens = TOKENS, .step = 1};

/* A linear layer's cut side has all tokens and some features. */
static void shape_of(const rank_work *r, bool input, int64_t *rows, int64_t *cols)
{
    const wait_program *program = r->program;
    tp_range own = tp_pass_rows(r->ctx, &pass, program->sequence_parallel);
    *rows = own.end - own.begin;
    *cols = input ? program->in : program->out;
    if (program->table != &tpt_linear_table)
        return;
    const tp_linear_desc *desc = program->desc;
    if ((desc->kind == TP_LINEAR_ROW) == input) {
        tp_range features = tp_shard_range(*cols, tp_comm_size(r->group), tp_comm_rank(r->group));
        *rows = TOKENS;
        *cols = features.end - features.begin;
    }
}

static tp_status begin_layer(rank_work *r)
{
    const wait_program *program = r->program;
    const tpt_layout layout = {.sequence_parallel = program->sequence_parallel, .overlap = program->overlap,
                               .chunks = 2};
    int64_t rows, cols;
    TPI_TRY(program->table->create(r->ctx, program->desc, &layout, &r->layer));
    r->param_count = program->table->params(r->layer, r->params, TPT_MAX_PARAMS);
    TPI_TRY(tp_params_init(r->ctx, r->params, r->param_count));
    shape_of(r, true, &rows, &cols);
    r->x = tensor(r, rows, cols, 1);
    r->x_kept = tensor(r, rows, cols, 2);
    r->dx = tensor(r, rows, cols, 3);
    shape_of(r, false, &rows, &cols);
    r->y = tensor(r, rows, cols, 4);
    r->dy = tensor(r, rows, cols, 5);
    r->dy_kept = tensor(r, rows, cols, 6);
    r->junk = tensor(r, TOKENS, program->in > program->out ? program->in : program->out, 7);
    r->seen = tensor(r, 3 * TOKENS, program->in > program->out ? program->in : program->out, 8);
    r->saved_bytes = program->table->saved_bytes(r->layer, &pass);
    return tp_ctx_allocate(r->ctx, TP_MEMORY_SAVED, r->saved_bytes, &r->saved);
}

/* Keeps what came out, then overwrites it. */
static tp_status see(rank_work *r, int slot, tp_tensor out)
{
    tp_tensor seen = out;
    seen.data = (char *)r->seen.data + (size_t)slot * tp_tensor_bytes(r->junk);
    TPI_TRY(overwrite(r, seen, out));
    return overwrite(r, out, r->junk);
}

/* Other ops have the same scratch, before and behind. */
static tp_status use_scratch(rank_work *r)
{
    tpi_arena_mark mark = tpi_arena_get_mark(&r->ctx->scratch);
    tp_tensor scratch = r->seen;
    TPI_TRY(tpi_scratch(r->ctx, tp_tensor_bytes(scratch), &scratch.data));
    tp_status status = overwrite(r, scratch, r->seen);
    tpi_arena_release(&r->ctx->scratch, mark);
    return status;
}

/* Without an input gradient, as a layer of which nobody wants one. */
static tp_status go_weights(rank_work *r)
{
    for (int again = 0; again < 2; again++) {
        TPI_TRY(overwrite(r, r->x, r->x_kept));
        TPI_TRY(overwrite(r, r->dy, r->dy_kept));
        TPI_TRY(use_scratch(r));
        part(r, "weights");
        TPI_TRY(r->program->table->backward(r->ctx, r->layer, &pass, &(tp_io){.in = r->dy}));
        part(r, NULL);
        TPI_TRY(overwrite(r, r->dy, r->junk));
        TPI_TRY(overwrite(r, r->x, r->junk));
    }
    return TP_OK;
}

static tp_status go_layer(rank_work *r)
{
    const tpt_layer_table *table = r->program->table;
    const tp_io forward = {.in = r->x, .out = r->y}, backward = {.in = r->dy, .out = r->dx};
    for (int saves = 0; saves < 2; saves++) {
        TPI_TRY(overwrite(r, r->x, r->x_kept));
        TPI_TRY(use_scratch(r));
        part(r, "forward");
        TPI_TRY(table->forward(r->ctx, r->layer, &pass, &forward, r->saved, r->saved_bytes, saves));
        part(r, NULL);
        TPI_TRY(see(r, saves, r->y));
        TPI_TRY(overwrite(r, r->x, r->junk));
    }
    for (int again = 0; again < (table == &tpt_linear_table ? 2 : 1); again++) {
        TPI_TRY(overwrite(r, r->x, r->x_kept));
        TPI_TRY(overwrite(r, r->dy, r->dy_kept));
        TPI_TRY(use_scratch(r));
        part(r, "backward");
        TPI_TRY(table->backward(r->ctx, r->layer, &pass, &backward));
        part(r, NULL);
        if (again) /* straight into the memory of the partial sums that peers read in this one */
            TPI_TRY(table->backward(r->ctx, r->layer, &pass, &backward));
        TPI_TRY(see(r, 2, r->dx));
        TPI_TRY(overwrite(r, r->dy, r->junk));
        TPI_TRY(overwrite(r, r->x, r->junk));
    }
    return table == &tpt_linear_table ? go_weights(r) : TP_OK;
}

static tp_status end_layer(rank_work *r)
{
    tp_status status = tp_ctx_synchronize(r->ctx);
    for (int i = 0; i < r->param_count && status == TP_OK; i++) {
        int64_t elements = tp_param_elements(r->params[i]);
        float *whole = tpt_array(TP_DTYPE_F32, elements);
        status = tp_param_gather(r->ctx, r->params[i], 1, whole);
        for (int64_t k = 0; k < elements && tp_ctx_rank(r->ctx) == 0; k++) {
            uint32_t bits;
            memcpy(&bits, &whole[k], sizeof bits);
            r->hash = (r->hash ^ bits) * 0x100000001B3u;
        }
        free(whole);
    }
    tp_ctx_release(r->ctx, TP_MEMORY_SAVED, r->saved, r->saved_bytes);
    if (r->layer != NULL)
        r->program->table->destroy(r->layer);
    return status;
}

static const tp_linear_desc column = {
    .name = "column", .kind = TP_LINEAR_COLUMN, .in_features = HIDDEN, .out_features = FFN, .dtype = TP_DTYPE_F32,
    .bias = true, .init_std = 0.3f};
static const tp_linear_desc row = {
    .name = "row", .kind = TP_LINEAR_ROW, .in_features = FFN, .out_features = HIDDEN, .dtype = TP_DTYPE_F32,
    .bias = true, .init_std = 0.3f};
static const tp_mlp_desc mlp = {
    .name = "mlp", .hidden = HIDDEN, .ffn = FFN, .activation = TP_ACTIVATION_SWIGLU, .dtype = TP_DTYPE_F32,
    .bias = true, .init_std = 0.3f};
static const tp_attention_desc attention = {
    .name = "attention", .hidden = HIDDEN, .heads = 4, .kv_heads = 2, .head_dim = 4, .dtype = TP_DTYPE_F32,
    .bias = true, .init_std = 0.3f};

#define LAYER(name, table, desc, in, out, ranks, devices, overlap, sequence_parallel)                                  \
    {name, ranks, devices, begin_layer, go_layer, end_layer, NULL, table, desc, in, out, overlap, sequence_parallel,   \
     TP_TRANSPORT_AUTO, false}
#define NCCL_LAYER(name, table, desc, in, out, ranks, overlap, sequence_parallel, processes)                           \
    {name, ranks, ranks, begin_layer, go_layer, end_layer, NULL, table, desc, in, out, overlap, sequence_parallel,     \
     TP_TRANSPORT_NCCL, processes}
#define NCCL_LINEAR(ranks, overlap, sequence_parallel, processes) \
    NCCL_LAYER("column", &tpt_linear_table, &column, HIDDEN, FFN, ranks, overlap, sequence_parallel, processes), \
    NCCL_LAYER("row", &tpt_linear_table, &row, FFN, HIDDEN, ranks, overlap, sequence_parallel, processes)
#define LINEAR(ranks, devices, overlap, sequence_parallel) \
    LAYER("column", &tpt_linear_table, &column, HIDDEN, FFN, ranks, devices, overlap, sequence_parallel), \
    LAYER("row", &tpt_linear_table, &row, FFN, HIDDEN, ranks, devices, overlap, sequence_parallel)
#define CHAINS(ranks, devices, overlap, sequence_parallel) \
    LAYER("mlp", &tpt_mlp_table, &mlp, HIDDEN, HIDDEN, ranks, devices, overlap, sequence_parallel), \
    LAYER("attention", &tpt_attention_table, &attention, HIDDEN, HIDDEN, ranks, devices, overlap, sequence_parallel)

static const wait_program programs[] = {
    COLLECTIVES(2, 2),
    COLLECTIVES(4, 2),
    LINEAR(2, 2, TP_OVERLAP_NONE, true),
    LINEAR(2, 1, TP_OVERLAP_BULK, true),
    LINEAR(4, 4, TP_OVERLAP_BULK, false),
    LINEAR(2, 1, TP_OVERLAP_RING, true),
    LINEAR(4, 4, TP_OVERLAP_RING, false),
    LINEAR(2, 2, TP_OVERLAP_PIPELINE, true),
    LINEAR(4, 2, TP_OVERLAP_PIPELINE, false),
    LINEAR(2, 2, TP_OVERLAP_PULL, true),
    LINEAR(4, 2, TP_OVERLAP_PULL, false),
    LINEAR(2, 2, TP_OVERLAP_DIRECT, true),
    LINEAR(4, 4, TP_OVERLAP_DIRECT, false),
    CHAINS(2, 1, TP_OVERLAP_RING, true),
    CHAINS(2, 2, TP_OVERLAP_PIPELINE, true),
    CHAINS(2, 2, TP_OVERLAP_PULL, true),
    CHAINS(2, 2, TP_OVERLAP_DIRECT, true),
    LANES(2),
    NCCL_LINEAR(2, TP_OVERLAP_BULK, true, false),
    NCCL_LINEAR(2, TP_OVERLAP_RING, true, false),
    NCCL_LINEAR(2, TP_OVERLAP_PIPELINE, true, false),
    NCCL_LINEAR(4, TP_OVERLAP_PIPELINE, false, false),
    NCCL_LINEAR(2, TP_OVERLAP_PULL, true, false),
    NCCL_LINEAR(2, TP_OVERLAP_DIRECT, true, false),
    NCCL_LINEAR(2, TP_OVERLAP_RING, true, true),
    NCCL_LINEAR(4, TP_OVERLAP_RING, false, true),
};

bool tpt_wait_work(int number, tpt_work *out)
{
    const int count = sizeof programs / sizeof programs[0];
    if (number < 0 || number >= count)
        return tpt_step_work(number - count, out);
    const wait_program *program = &programs[number];
    const char *nccl = program->processes                        ? " that are processes"
                       : program->transport == TP_TRANSPORT_NCCL ? " over NCCL"
                                                                 : "";
    *out = (tpt_work){.run = run_ranks, .number = number, .threads = program->ranks, .in_samples = true,
                      .arg = program};
    if (program->table == NULL)
        snprintf(out->name, sizeof out->name, "%s on %d ranks%s", program->name, program->ranks, nccl);
    else
        snprintf(out->name, sizeof out->name, "%s with %s%s on %d ranks%s", program->name,
                 tp_overlap_name(program->overlap), program->sequence_parallel ? " and sequences cut" : "",
                 program->ranks, nccl);
    return true;
}
