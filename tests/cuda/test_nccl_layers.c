/* Layers over NCCL with every overlap algorithm: the bits of thread ranks over device memory without overlap. */
#include <pthread.h>
#include <tp/linear.h>

#include "cuda/nccl_script.h"

enum { IN = 24, OUT = 16, TOKENS = 21 };

typedef struct layer_run {
    tp_overlap overlap;
    tp_linear_kind kind;
    bool sequence_parallel;
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
                                 .chunks = 2};
    CHECK(!run->transport || strcmp(tp_comm_transport(tp_ctx_world(ctx)), run->transport) == 0);
    TPI_TRY(tp_linear_create(ctx, &desc, &layer));
    tp_status status = pass_through(ctx, layer, run, &run->log[tp_ctx_rank(ctx)]);
    tp_linear_destroy(layer);
    return status;
}

static void free_log(layer_run *run)
{
    for (int rank = 0; rank < MAX_RANKS; rank++)
        free(run->log[rank].bytes);
}

static void same_with_every_algorithm(int ranks, tp_linear_kind kind, bool sequence_parallel)
{
    if (!tpt_have_gpus(ranks))
        return;
    layer_run none = {.kind = kind, .sequence_parallel = sequence_parallel, .transport = "threads"};
    tp_run_options options = on_gpus(ranks);
    options.transport = TP_TRANSPORT_THREADS;
    options.ctx.mesh.tp = ranks;
    tpt_schedule(0);
    tpt_run_with(options, run_layer, &none);
    options.transport = TP_TRANSPORT_NCCL;
    for (int overlap = TP_OVERLAP_NONE; overlap < TP_OVERLAP_COUNT; overlap++) {
        layer_run other = none;
        memset(other.log, 0, sizeof other.log);
        other.overlap = (tp_overlap)overlap;
        other.transport = "nccl";
        tpt_schedule((size_t)(overlap + ranks) % COUNT_OF(tpt_schedules));
        tpt_run_with(options, run_layer, &other);
        tpt_no_reports(tp_overlap_name(other.overlap));
        for (int rank = 0; rank < ranks; rank++) {
            cr_assert_eq(other.log[rank].used, none.log[rank].used);
            cr_assert_eq(memcmp(other.log[rank].bytes, none.log[rank].bytes, none.log[rank].used), 0, "%s, kind %d, %d ranks, rank %d",
                         tp_overlap_name(other.overlap), (int)kind, ranks, rank);
        }
        free_log(&other);
    }
    free_log(&none);
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
