#include "layers/linear.h"

static const void *rows_from(const tp_tensor *tensor, int64_t row)
{
    return tensor->data ? (const char *)tensor->data + (size_t)(row * tensor->stride[0]) * tp_dtype_size(tensor->dtype)
                        : NULL;
}

/* Rows [.., out] x weight^T [in, out]. */
static tp_status input_rows(const tpi_linear_call *call, tpi_stream *stream, int64_t rows, tpi_view from, tpi_view to)
{
    const tp_param *weight = call->layer->weight;
    tpi_gemm_args args = {.rows = rows,
                          .cols = weight->value.shape[1],
                          .inner = weight->value.shape[0],
                          .a = {from.data, from.dtype, from.stride, 1},
                          .b = {weight->value.data, weight->value.dtype, 1, weight->value.stride[0]},
                          .b_packed = &tpi_param_internal_of(weight)->copies.backward,
                          .order = tpi_param_order(weight, 0),
                          .c = to.data,
                          .c_dtype = to.dtype,
                          .c_stride = to.stride};
    if (call->finish) {
        args.activation = call->fusion.activation;
        args.act_input = rows_from(&call->fusion.act_input, to.first);
        args.act_input_stride = args.act_input ? call->fusion.act_input.stride[0] : 0;
        args.residual = rows_from(&call->residual, to.first);
        args.residual_stride = args.residual ? call->residual.stride[0] : 0;
    }
    return tpi_gemm(stream, &args);
}

tp_status tpi_linear_input_op(const tpi_linear_call *call, const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    for (int i = 0; i < tpi_run_segments(run, op); i++) {
        tpi_segment segment = tpi_run_segment(run, op, i);
        tpi_view from = tpi_run_at(run, &op->read[0], segment), to = tpi_run_at(run, &op->write[0], segment);
        TPI_TRY(input_rows(call, stream, segment.rows.end - segment.rows.begin, from, to));
    }
    return TP_OK;
}

/* dW [out, in] += dy^T x over these tokens; the bias gradient is the row sums of dy^T. A frozen weight leaves only
 * these, and needs no x. */
tp_status tpi_linear_weight_rows(const tpi_linear_call *call, tpi_stream *stream, int64_t tokens, tpi_view dy,
                                 tpi_view x)
{
    const tp_linear *layer = call->layer;
    bool frozen = layer->weight->grad.data == NULL;
    TPI_TRY(tpi_gemm(stream, &(tpi_gemm_args){.rows = layer->out_local,
                                             .cols = frozen ? 0 : layer->in_local,
                                             .inner = tokens,
                                             .a = {dy.data, dy.dtype, 1, dy.stride},
                                             .b = {x.data, dy.dtype, 1, x.stride},
                                             .c = layer->weight->grad.data,
                                             .c_dtype = TP_DTYPE_F32,
                                             .c_stride = layer->weight->grad.stride[0],
                                             .accumulate = !tpi_param_unset(layer->weight),
                                             .past_caches = tokens == call->pass.tokens,
                                             .row_sums = layer->bias ? layer->bias->grad.data : NULL}));
    if (!frozen)
        tpi_param_was_set(layer->weight);
    return TP_OK;
}

/* Tokens in order, whatever was here first. Under a plan of one GEMM both operands are the caller's. */
tp_status tpi_linear_weight_op(const tpi_linear_call *call, const tpi_run *run, tpi_stream *stream,
                               const tp_plan_op *op)
{
    bool alone = op->reads == 1;
    tp_region second = op->read[alone ? 0 : 2];
    if (alone)
        second.buffer = TP_BUFFER_SECOND;
    for (int i = 0; i < tpi_run_segments(run, op); i++) {
        tpi_segment segment = tpi_run_segment(run, op, i);
        tpi_view one = tpi_run_at(run, &op->read[alone ? 0 : 1], segment), other = tpi_run_at(run, &second, segment);
        bool swapped = call->direct; /* ROW: x is here, dy is not */
        TPI_TRY(tpi_linear_weight_rows(call, stream, segment.rows.end - segment.rows.begin, swapped ? other : one,
                                       swapped ? one : other));
    }
    return TP_OK;
}

static tp_status input_gemm(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    return tpi_linear_input_op(tpi_run_job(run)->user, run, stream, op);
}

static tp_status weight_gemm(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    return tpi_linear_weight_op(tpi_run_job(run)->user, run, stream, op);
}

static tp_status both_gemm(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    const tpi_linear_call *call = tpi_run_job(run)->user;
    return op->part == 0 ? tpi_linear_input_op(call, run, stream, op) : tpi_linear_weight_op(call, run, stream, op);
}

static tp_status copy_rows(tpi_stream *stream, int64_t rows, tpi_view from, tp_tensor to)
{
    void *out = (void *)(uintptr_t)rows_from(&to, from.first);
    if (rows == 0 || out == from.data)
        return TP_OK;
    return tpi_map(stream, &(tpi_map_args){.rows = rows,
                                          .cols = from.cols,
                                          .in = from.data,
                                          .in_dtype = from.dtype,
                                          .in_stride = from.stride,
                                          .out = out,
                                          .out_dtype = to.dtype,
                                          .out_stride = to.stride[0]});
}

tp_status tpi_linear_collect(const tpi_linear_call *call, const tpi_run *run, tpi_stream *stream, tp_tensor to)
{
    const tp_plan *plan = tpi_run_plan(run);
    bool mixed = plan->algorithm == TP_OVERLAP_RING || plan->algorithm == TP_OVERLAP_PULL;
    int own = tp_comm_rank(call->layer->group);
    for (int piece = 0; piece < plan->ranks * plan->chunks; piece++) {
        tp_region region = {.buffer = TP_BUFFER_GATHERED, .rank = own, .piece = piece, .pieces = 1, .step = 1};
        if (mixed && piece / plan->chunks == own)
            region.buffer = TP_BUFFER_INPUT;
        tpi_segment segment = {piece, tpi_run_rows(run, piece, 1)};
        tpi_view from = tpi_run_at(run, &region, segment);
        TPI_TRY(copy_rows(stream, segment.rows.end - segment.rows.begin, from, to));
    }
    return TP_OK;
}

/* LEAVE of ROW's input gradient: dy of all tokens, which the weight gradient reads, where the algorithm left some of it
 * elsewhere. */
static tp_status complete_gradient(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    const tpi_linear_call *call = tpi_run_job(run)->user;
    (void)op;
    return tp_tensor_is_none(call->whole) ? TP_OK : tpi_linear_collect(call, run, stream, call->whole);
}

static const tpi_plan_table input_table = {.issue = {[TP_OP_GEMM] = input_gemm, [TP_OP_LEAVE] = complete_gradient}};
static const tpi_plan_table weight_table = {.issue = {[TP_OP_GEMM] = weight_gemm}};
static const tpi_plan_table both_table = {.issue = {[TP_OP_GEMM] = both_gemm}};

static bool masks(const tp_linear *layer)
{
    return layer->desc.dropout > 0;
}

size_t tp_linear_delayed_bytes(const tp_linear *layer, const tp_pass *pass)
{
    if (layer == NULL || pass == NULL || (!masks(layer) && !layer->gather_gradient))
        return 0;
    return tp_tensor_bytes(tp_tensor_2d(NULL, layer->desc.dtype, pass->tokens, layer->out_local));
}

tp_status tpi_linear_check_output_gradient(const tp_linear *layer, const tp_pass *pass, tp_tensor gradient)
{
    tp_range rows = tpi_linear_rows(layer, pass);
    tp_tensor dy = tp_tensor_2d(NULL, layer->desc.dtype,
                                layer->gather_gradient ? rows.end - rows.begin : pass->tokens, layer->out_local);
    return tpi_layer_check_matrix(layer->ctx, layer->name, "output gradient", gradient, &dy);
}

tp_status tpi_linear_check_input_gradient(const tp_linear *layer, const tp_pass *pass, const tp_io *io)
{
    tp_range rows = tpi_linear_rows(layer, pass);
    tp_tensor dx = tp_tensor_2d(NULL, layer->desc.dtype, layer->gather_input ? rows.end - rows.begin : pass->tokens,
                                layer->in_local);
    if (!tp_tensor_is_none(io->out))
        TPI_TRY(tpi_layer_check_matrix(layer->ctx, layer->name, "input gradient", io->out, &dx));
    if (!tp_tensor_is_none(io->residual))
        TPI_TRY(tpi_layer_check_matrix(layer->ctx, layer->name, "residual gradient", io->residual, &dx));
    return tpi_layer_check_apart(layer->ctx, layer->name, io);
}

tp_status tpi_linear_check_saved(const tp_linear *layer, const tp_pass *pass, const tp_linear_saved *saved)
{
    tp_range rows = tpi_linear_rows(layer, pass);
    tp_tensor x = tp_tensor_2d(NULL, layer->desc.dtype, layer->gather_input ? rows.end - rows.begin : pass->tokens,
                               layer->in_local);
    return layer->weight->grad.data == NULL
               ? TP_OK
               : tpi_layer_check_matrix(layer->ctx, layer->name, "saved input", saved->x, &x);
}

static bool has_gradients(const tp_linear *layer)
{
    return layer->weight->grad.data != NULL || (layer->bias != NULL && layer->bias->grad.data != NULL);
}

tp_status tpi_linear_check_delayed(const tp_linear *layer, const tp_pass *pass, const tp_linear_delayed *delayed)
{
    tpi_linear_call call;
    if (!has_gradients(layer))
        return TP_OK;
    TPI_TRY(tpi_linear_begin(layer->ctx, layer, pass, pass->tokens, &call));
    tp_range rows = tpi_linear_rows(layer, pass);
    tp_tensor dy =
        tp_tensor_2d(NULL, layer->desc.dtype, call.direct ? rows.end - rows.begin : pass->tokens, layer->out_local);
    return tpi_layer_check_matrix(layer->ctx, layer->name, "delayed output gradient", delayed->dy, &dy);
}

/* What a backward call works with. */
typedef struct tpi_linear_gradients {
    tp_tensor dy;   /* after dropout's mask, as given: this rank's tokens or all */
    tp_tensor full; /* what the weight gradient reads: all tokens, or, under direct, this rank's */
} tpi_linear_gradients;

static tp_status mask_gradient(const tpi_linear_call *call, tp_tensor dy, tp_tensor to)
{
    const tp_linear *layer = call->layer;
    return tpi_map(call->ctx->compute, &(tpi_map_args){.rows = dy.shape[0],
                                                      .cols = dy.shape[1],
                                                      .in = dy.data,
                                                      .in_dtype = dy.dtype,
                                                      .in_stride = dy.stride[0],
                                                      .out = to.data,
                                                      .out_dtype = dy.dtype,
                                                      .out_stride = to.stride[0],
                                                      .dropout = tpi_pass_dropout(&call->pass, layer->desc.dropout),
                                                      .dropout_key = tpi_dropout_key(call->ctx, layer->desc.site,
                                                                                     &call->pass),
                                                      .first_row = call->pass.first_token +
                                                                   tpi_linear_rows(layer, &call->pass).begin});
}

tp_status tpi_linear_mask(const tpi_linear_call *call, tp_tensor dy, tp_tensor *out)
{
    *out = dy;
    if (!masks(call->layer))
        return TP_OK;
    TPI_TRY(tpi_scratch_tensor(call->ctx, dy.dtype, dy.shape[0], dy.shape[1], out));
    return mask_gradient(call, dy, *out);
}

/* Finds room for dy' in `memory`, or in scratch where that is NULL, and applies dropout's mask. */
static tp_status prepare_gradient(const tpi_linear_call *call, tp_tensor dy, void *memory, tpi_linear_gradients *out)
{
    const tp_linear *layer = call->layer;
    bool gathers = layer->gather_gradient && !call->direct;
    *out = (tpi_linear_gradients){dy, dy};
    if (!masks(layer) && !gathers)
        return TP_OK;
    out->full = tp_tensor_2d(memory, layer->desc.dtype, gathers ? call->pass.tokens : dy.shape[0], layer->out_local);
    if (memory == NULL)
        TPI_TRY(tpi_scratch(call->ctx, tp_tensor_bytes(out->full), &out->full.data));
    if (!masks(layer))
        return TP_OK;
    tp_range rows = tpi_linear_rows(layer, &call->pass);
    out->dy = gathers ? tp_tensor_rows(out->full, rows.begin, rows.end) : out->full;
    return mask_gradient(call, dy, out->dy);
}

/* The job of an input gradient, on its own or with the weight gradient. */
static tp_status input_job(tpi_linear_call *call, const tp_io *io, const tpi_linear_gradients *gradients, tpi_job *job)
{
    const tp_linear *layer = call->layer;
    const tpi_prepared *plan = tpi_site_at(job->table == &both_table ? &layer->both : &layer->input, call->pass.tokens);
    int64_t first = tpi_linear_rows(layer, &call->pass).begin;
    job->user = call;
    job->tokens = call->pass.tokens;
    job->view[TP_BUFFER_INPUT] = tpi_view_of(gradients->dy, layer->gather_gradient ? first : 0);
    job->view[TP_BUFFER_OUTPUT] = tpi_view_of(io->out, layer->gather_input ? first : 0);
    call->finish = layer->desc.kind != TP_LINEAR_COLUMN || layer->ranks == 1;
    if (call->finish) {
        call->residual = io->residual;
        return TP_OK;
    }
    job->residual = tpi_view_of(io->residual, layer->gather_input ? first : 0);
    return tpi_linear_partial(call, plan, layer->in_local, job);
}

/* The gather of dy lands where it is wanted, unless the algorithm needs another order of rows. */
static tp_status gather_job(tpi_linear_call *call, const tpi_linear_gradients *gradients, tpi_job *job)
{
    const tp_linear *layer = call->layer;
    if (!layer->gather_gradient || call->direct)
        return TP_OK;
    call->whole = gradients->full;
    const tp_plan *plan = tpi_prepared_plan(tpi_site_at(&layer->input, call->pass.tokens));
    if (plan->algorithm == TP_OVERLAP_PIPELINE && plan->chunks > 1)
        return tpi_linear_gathered(call, tpi_site_at(&layer->input, call->pass.tokens), TP_BUFFER_INPUT,
                                   TP_BUFFER_GATHERED, job);
    job->view[TP_BUFFER_GATHERED] = tpi_view_of(gradients->full, 0);
    return TP_OK;
}

/* dx is not wanted: only the gather is left. */
static tp_status gather_only(const tpi_linear_call *call, const tpi_linear_gradients *gradients)
{
    if (!call->layer->gather_gradient || call->direct)
        return TP_OK;
    tp_range rows = tpi_linear_rows(call->layer, &call->pass);
    tp_tensor mine = gradients->dy;
    if (mine.stride[0] != mine.shape[1]) { /* rows that lie apart are gathered from where they go */
        mine = tp_tensor_rows(gradients->full, rows.begin, rows.end);
        TPI_TRY(copy_rows(call->ctx->compute, rows.end - rows.begin, tpi_view_of(gradients->dy, rows.begin),
                          gradients->full));
    }
    return tpi_comm_all_gather(call->ctx->compute, call->layer->group, mine, gradients->full, NULL);
}

static tp_status run_input(tpi_linear_call *call, const tp_io *io, const tpi_linear_gradients *gradients)
{
    tpi_job job = {.table = &input_table};
    if (tp_tensor_is_none(io->out))
        return gather_only(call, gradients);
    TPI_TRY(input_job(call, io, gradients, &job));
    TPI_TRY(gather_job(call, gradients, &job));
    return tpi_plan_run(tpi_site_at(&call->layer->input, call->pass.tokens), &job);
}

tp_status tpi_linear_backward_input(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass, const tp_io *io,
                                    const tpi_linear_fusion *fusion, tp_linear_delayed *delayed)
{
    tpi_linear_call call;
    TPI_TRY(tpi_linear_begin(ctx, layer, pass, io->in.shape[0], &call));
    TPI_TRY(tpi_linear_check_output_gradient(layer, &call.pass, io->in));
    TPI_TRY(tpi_linear_check_input_gradient(layer, &call.pass, io));
    if (fusion != NULL)
        call.fusion = *fusion;
    void *memory = NULL;
    if (delayed != NULL) {
        TPI_TRY(tpi_layer_check_memory(ctx, layer->name, delayed->memory, delayed->bytes,
                                       tp_linear_delayed_bytes(layer, &call.pass)));
        memory = delayed->memory;
    }
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tpi_linear_gradients gradients;
    tp_status status = prepare_gradient(&call, io->in, memory, &gradients);
    if (status == TP_OK)
        status = run_input(&call, io, &gradients);
    if (delayed != NULL)
        delayed->dy = gradients.full;
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}

/* The views of a weight gradient: what is here in INPUT, what may be at peers in SECOND. */
static tp_status weight_job(const tpi_linear_call *call, tp_tensor dy, tp_tensor x, const tpi_prepared *plan,
                            tpi_job *job)
{
    const tp_linear *layer = call->layer;
    int64_t first = tpi_linear_rows(layer, &call->pass).begin;
    bool gathers = layer->gather_input || call->direct;
    job->view[TP_BUFFER_INPUT] = tpi_view_of(call->direct ? x : dy, 0);
    job->view[TP_BUFFER_SECOND] = tpi_view_of(call->direct ? dy : x, gathers ? first : 0);
    return gathers ? tpi_linear_gathered(call, plan, TP_BUFFER_SECOND, TP_BUFFER_GATHERED, job) : TP_OK;
}

static tp_status run_weight(tpi_linear_call *call, tp_tensor dy, tp_tensor x)
{
    bool frozen = call->layer->weight->grad.data == NULL;
    if (frozen && !call->direct) /* dy of all tokens is here */
        return tpi_linear_weight_rows(call, call->ctx->compute, call->pass.tokens, tpi_view_of(dy, 0),
                                      (tpi_view){.data = NULL});
    tpi_job job = {.table = &weight_table, .user = call, .tokens = call->pass.tokens};
    tpi_prepared *plan =
        tpi_site_at(call->direct ? &call->layer->weight_direct : &call->layer->weight_site, call->pass.tokens);
    TPI_TRY(weight_job(call, dy, frozen ? tp_tensor_none() : x, plan, &job));
    return tpi_plan_run(plan, &job);
}

tp_status tp_linear_backward_weight(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass,
                                    const tp_linear_saved *saved, const tp_linear_delayed *delayed)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (layer == NULL || saved == NULL || delayed == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_linear_backward_weight: %s is NULL",
                          layer == NULL ? "layer" : saved == NULL ? "saved" : "delayed");
    tpi_linear_call call;
    TPI_TRY(tpi_linear_begin(ctx, layer, pass, delayed->dy.shape[0], &call));
    if (!has_gradients(layer))
        return TP_OK;
    TPI_TRY(tpi_linear_check_saved(layer, &call.pass, saved));
    TPI_TRY(tpi_linear_check_delayed(layer, &call.pass, delayed));
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status = run_weight(&call, delayed->dy, saved->x);
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}

tp_status tp_linear_backward_input(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass, const tp_io *io,
                                   tp_linear_delayed *delayed)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (layer == NULL || io == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_linear_backward_input: %s is NULL", layer == NULL ? "layer" : "io");
    return tpi_linear_backward_input(ctx, layer, pass, io, NULL, delayed);
}

/* COLUMN: both gradients in one plan. */
static tp_status run_both(tpi_linear_call *call, const tp_io *io, tp_tensor x)
{
    const tp_linear *layer = call->layer;
    const tpi_linear_gradients gradients = {io->in, io->in};
    tpi_job job = {.table = &both_table};
    TPI_TRY(input_job(call, io, &gradients, &job));
    tpi_prepared *plan = tpi_site_at(&layer->both, call->pass.tokens);
    TPI_TRY(weight_job(call, io->in, x, plan, &job));
    return tpi_plan_run(plan, &job);
}

static tp_status run_in_turn(tpi_linear_call *call, const tp_io *io, tp_tensor x)
{
    tpi_linear_gradients gradients;
    TPI_TRY(prepare_gradient(call, io->in, NULL, &gradients));
    tpi_arena_mark mark = tpi_arena_get_mark(&call->ctx->scratch);
    tp_status status = run_input(call, io, &gradients);
    tpi_arena_release(&call->ctx->scratch, mark);
    if (status != TP_OK || !has_gradients(call->layer))
        return status;
    return run_weight(call, gradients.full, x);
}

tp_status tp_linear_backward(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass, const tp_io *io,
                             const tp_linear_saved *saved)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (layer == NULL || io == NULL || saved == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_linear_backward: %s is NULL",
                          layer == NULL ? "layer"
                          : io == NULL  ? "io"
                                        : "saved");
    tpi_linear_call call;
    TPI_TRY(tpi_linear_begin(ctx, layer, pass, io->in.shape[0], &call));
    TPI_TRY(tpi_linear_check_output_gradient(layer, &call.pass, io->in));
    TPI_TRY(tpi_linear_check_input_gradient(layer, &call.pass, io));
    TPI_TRY(tpi_linear_check_saved(layer, &call.pass, saved));
    bool both = tpi_site_at(&layer->both, call.pass.tokens) != NULL && !tp_tensor_is_none(io->out) &&
                layer->weight->grad.data != NULL;
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status;
    if (both)
        status = layer->gather_gradient ? tpi_linear_run_slices(&call, io, saved->x) : run_both(&call, io, saved->x);
    else
        status = run_in_turn(&call, io, saved->x);
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}
