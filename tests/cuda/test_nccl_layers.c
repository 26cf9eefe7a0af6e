/* Layers over NCCL with every overlap algorithm: the bits of thread ranks over device memory without overlap. */
#include <tp/tp.h>

#include "cuda/nccl_processes.h"

enum { IN = 24, OUT = 16, TOKENS = 21 };

typedef struct layer_run {
    tp_overlap overlap;
    tp_linear_kind kind;
    bool sequence_parallel;
    int chunks;
    const char *transport; /* NULL: any */
    tpt_record log[MAX_RANKS];
} layer_run;

static tp_status note_params(tp_ctx *ctx, tp_param *const *param, int count, tpt_record *log)
{
    for (int i = 0; i < count; i++) {
        size_t bytes = tp_tensor_bytes(param[i]->grad);
        char *host = tpt_allocate(bytes + 1);
        tp_status status = tp_ctx_download(ctx, host, param[i]->grad.data, bytes);
        tpt_note(log, host, bytes);
        free(host);
        TPI_TRY(status);
    }
    return TP_OK;
}

static tp_status pass_through(tp_ctx *ctx, tp_linear *layer, const layer_run *run, tpt_record *log)
{
    bool column = run->kind == TP_LINEAR_COLUMN;
    const tp_pass pass = {.tokens = TOKENS, .step = 1};
    tp_range rows = tp_pass_rows(ctx, &pass, run->sequence_parallel);
    int64_t local = tp_linear_local_features(layer), whole_rows = rows.end - rows.begin;
    int64_t in_rows = column ? whole_rows : TOKENS, out_rows = column ? TOKENS : whole_rows;
    int64_t in_cols = column ? IN : local, out_cols = column ? local : OUT;
    tpt_device x, y, dy, dx;
    tp_param *param[4];
    tp_linear_saved saved;
    int count = tp_linear_params(layer, param, 4);
    TPI_TRY(random_up(ctx, TP_DTYPE_F32, in_rows, in_cols, 3, &x));
    TPI_TRY(random_up(ctx, TP_DTYPE_F32, out_rows, out_cols, 4, &dy));
    TPI_TRY(poison_up(ctx, TP_DTYPE_F32, out_rows, out_cols, &y));
    TPI_TRY(poison_up(ctx, TP_DTYPE_F32, in_rows, in_cols, &dx));
    TPI_TRY(tp_params_init(ctx, param, count));
    TPI_TRY(tp_params_zero_grad(ctx, param, count));
    TPI_TRY(tp_linear_forward(ctx, layer, &pass, &(tp_io){.in = x.tensor, .out = y.tensor}, &saved));
    TPI_TRY(tp_linear_backward(ctx, layer, &pass, &(tp_io){.in = dy.tensor, .out = dx.tensor}, &saved));
    TPI_TRY(tp_params_finish(ctx, param, count));
    TPI_TRY(note_params(ctx, param, count, log));
    TPI_TRY(tpt_down(ctx, &y, log));
    TPI_TRY(tpt_down(ctx, &dx, log));
    TPI_TRY(tpt_down(ctx, &x, NULL));
    return tpt_down(ctx, &dy, NULL);
}

static tp_status run_layer(tp_ctx *ctx, void *arg)
{
    layer_run *run = arg;
    tp_linear *layer;
    const tp_linear_desc desc = {.name = "layer",
                                 .kind = run->kind,
                                 .in_features = IN,
                                 .out_features = OUT,
                                 .dtype = TP_DTYPE_F32,
                                 .bias = true,
                                 .sequence_parallel = run->sequence_parallel,
                                 .overlap = run->overlap,
                                 .chunks = run->chunks};
    CHECK(!run->transport || strcmp(tp_comm_transport(tp_ctx_world(ctx)), run->transport) == 0);
    TPI_TRY(tp_linear_create(ctx, &desc, &layer));
    tp_status status = pass_through(ctx, layer, run, &run->log[tp_ctx_rank(ctx)]);
    tp_linear_destroy(layer);
    return status;
}

static void on_threads(int ranks, tpt_rank_fn fn, void *run)
{
    tp_run_options options = on_gpus(ranks);
    options.transport = TP_TRANSPORT_THREADS;
    options.ctx.mesh.tp = ranks;
    tpt_schedule(0);
    tpt_run_with(options, fn, run);
}

static void same_with_every_algorithm(int ranks, tp_linear_kind kind, bool sequence_parallel)
{
    if (!tpt_have_gpus(ranks))
        return;
    layer_run none = {.kind = kind, .sequence_parallel = sequence_parallel, .chunks = 2, .transport = "threads"};
    tp_run_options options = on_gpus(ranks);
    options.ctx.mesh.tp = ranks;
    on_threads(ranks, run_layer, &none);
    for (int overlap = TP_OVERLAP_NONE; overlap < TP_OVERLAP_COUNT; overlap++) {
        layer_run other = none;
        char what[64];
        memset(other.log, 0, sizeof other.log);
        other.overlap = (tp_overlap)overlap;
        other.transport = "nccl";
        tpt_schedule((unsigned)(overlap + ranks));
        tpt_run_with(options, run_layer, &other);
        tpt_no_reports(tp_overlap_name(other.overlap));
        snprintf(what, sizeof what, "%s, kind %d", tp_overlap_name(other.overlap), (int)kind);
        tpt_records_same(what, other.log, none.log, ranks);
        tpt_records_free(other.log, ranks);
    }
    tpt_records_free(none.log, ranks);
}

Test(nccl_layers, column)
{
    same_with_every_algorithm(2, TP_LINEAR_COLUMN, true);
    same_with_every_algorithm(4, TP_LINEAR_COLUMN, false);
}

Test(nccl_layers, row)
{
    same_with_every_algorithm(2, TP_LINEAR_ROW, false);
    same_with_every_algorithm(4, TP_LINEAR_ROW, true);
}

/* ---- ranks that are processes ------------------------------------------------------------------------------------ */

/* Messages in groups, one after the other and several under way; more chunks than rows. */
static void ring_of_processes(int ranks, tp_linear_kind kind, bool sequence_parallel, int chunks)
{
    if (!tpt_have_gpus(ranks))
        return;
    layer_run none = {.kind = kind, .sequence_parallel = sequence_parallel, .chunks = 1, .transport = "threads"},
              ring = none;
    char what[64];
    snprintf(what, sizeof what, "ring, kind %d, sequences cut %d, %d chunks", (int)kind, sequence_parallel, chunks);
    on_threads(ranks, run_layer, &none);
    ring.overlap = TP_OVERLAP_RING;
    ring.chunks = chunks;
    ring.transport = "nccl";
    for (unsigned s = 0; s < TPT_RANK_SCHEDULES; s++) {
        outcome ends;
        memset(ring.log, 0, sizeof ring.log);
        tpt_schedule(s);
        run_processes(ranks, run_layer, &ring, &ends);
        all_well(&ends, ranks, what);
        tpt_records_same(what, ring.log, none.log, ranks);
        tpt_records_free(ring.log, ranks);
    }
    tpt_records_free(none.log, ranks);
}

Test(nccl_layers, ring_between_processes, .timeout = 200)
{
    static const int sizes[][2] = {{2, 1}, {2, 3}, {3, 2}, {4, 1}, {4, 2}, {3, 8}};
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        for (int kind = TP_LINEAR_COLUMN; kind <= TP_LINEAR_ROW; kind++)
            for (int cut = 0; cut < 2; cut++)
                ring_of_processes(sizes[i][0], (tp_linear_kind)kind, cut, sizes[i][1]);
}

/* A model has all patterns: chains of two layers forward and backward, with what lies between them. */
static tp_status run_model(tp_ctx *ctx, void *arg)
{
    layer_run *run = arg;
    tpt_record *log = &run->log[tp_ctx_rank(ctx)];
    const tp_model_desc desc = {.family = TP_MODEL_LLAMA, .layers = 1, .hidden = 16, .heads = 4, .kv_heads = 2,
                                .ffn = 21, .vocabulary = 23, .positions = 12,
                                .overlap = run->overlap, .chunks = run->chunks,
                                .sequence_parallel = run->sequence_parallel, .dtype = TP_DTYPE_F32};
    int32_t ids[2][11];
    tp_model *model;
    tpt_device words;
    void *saved;
    int count;
    for (int i = 0; i < 11; i++) {
        ids[0][i] = i * 7 % 23;
        ids[1][i] = (i + 1) * 7 % 23;
    }
    CHECK(strcmp(tp_comm_transport(tp_ctx_world(ctx)), run->transport) == 0);
    TPI_TRY(tp_model_create(ctx, &desc, &model));
    tp_param *const *params = tp_model_params(model, &count);
    TPI_TRY(tp_params_init(ctx, params, count));
    TPI_TRY(tp_params_zero_grad(ctx, params, count));
    TPI_TRY(tpt_up(ctx, ids, TP_DTYPE_I32, 2, 11, &words));
    const tp_pass pass = {.tokens = 11, .step = 1, .ids = words.tensor.data,
                          .targets = (int32_t *)words.tensor.data + 11, .loss_scale = 1.0f / 11};
    size_t bytes = tp_model_saved_bytes(model, &pass);
    TPI_TRY(tp_ctx_allocate(ctx, TP_MEMORY_SAVED, bytes, &saved));
    for (int step = 0; step < 2; step++) {
        TPI_TRY(tp_model_forward(ctx, model, &pass, saved));
        TPI_TRY(tp_model_backward(ctx, model, &pass, saved));
    }
    TPI_TRY(tp_params_finish(ctx, params, count));
    TPI_TRY(note_params(ctx, params, count, log));
    double loss[2];
    TPI_TRY(tp_model_loss(ctx, model, &loss[0], &loss[1]));
    tpt_note(log, loss, sizeof loss);
    tp_ctx_release(ctx, TP_MEMORY_SAVED, saved, bytes);
    tp_model_destroy(model);
    return tpt_down(ctx, &words, NULL);
}

Test(nccl_layers, a_model_between_processes, .timeout = 200)
{
    static const tp_overlap overlaps[] = {TP_OVERLAP_RING, TP_OVERLAP_RING, TP_OVERLAP_PIPELINE};
    for (size_t i = 0; i < COUNT_OF(overlaps); i++) {
        int ranks = i == 1 ? 4 : 2;
        if (!tpt_have_gpus(ranks))
            continue;
        layer_run none = {.sequence_parallel = i != 1, .chunks = 1, .transport = "threads"}, other = none;
        outcome ends;
        char what[32];
        on_threads(ranks, run_model, &none);
        other.overlap = overlaps[i];
        other.chunks = 2;
        other.transport = "nccl";
        memset(other.log, 0, sizeof other.log);
        tpt_schedule(i);
        run_processes(ranks, run_model, &other, &ends);
        snprintf(what, sizeof what, "a model, case %zu", i);
        all_well(&ends, ranks, what);
        tpt_records_same(what, other.log, none.log, ranks);
        tpt_records_free(other.log, ranks);
        tpt_records_free(none.log, ranks);
    }
}

/* What touches peers' memory is refused on all ranks, and nothing is left behind. */
static tp_status refused_layer(tp_ctx *ctx, void *arg)
{
    layer_run *run = arg;
    tp_linear *layer;
    const tp_linear_desc desc = {.name = "layer",
                                 .kind = run->kind,
                                 .in_features = IN,
                                 .out_features = OUT,
                                 .dtype = TP_DTYPE_F32,
                                 .sequence_parallel = true,
                                 .overlap = run->overlap};
    CHECK(tp_linear_create(ctx, &desc, &layer) == TP_ERR_UNSUPPORTED);
    CHECK(strstr(tp_ctx_message(ctx), "touch each other's memory"));
    return tp_barrier(ctx, tp_ctx_world(ctx));
}

Test(nccl_layers, pull_and_direct_are_refused_between_processes)
{
    for (int direct = 0; direct < 2 && tpt_have_gpus(2); direct++) {
        layer_run run = {.overlap = direct ? TP_OVERLAP_DIRECT : TP_OVERLAP_PULL};
        outcome ends;
        tpt_schedule(0);
        run_processes(2, refused_layer, &run, &ends);
        all_well(&ends, 2, "refused");
    }
}
