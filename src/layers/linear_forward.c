#include "layers/linear.h"

bool tpi_linear_splits_tokens(const tp_linear *layer)
{
    return layer->gather_input || layer->gather_gradient;
}

tp_range tpi_linear_rows(const tp_linear *layer, const tp_pass *pass)
{
    return tp_pass_rows(layer->ctx, pass, tpi_linear_splits_tokens(layer));
}

tp_status tpi_linear_begin(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass, int64_t rows,
                           tpi_linear_call *call)
{
    tpi_pass_need need = {layer->name, layer->desc.sequence_parallel, layer->desc.dropout, layer->ctx};
    *call = (tpi_linear_call){.ctx = ctx, .layer = layer, .residual = tp_tensor_none(), .whole = tp_tensor_none()};
    TPI_TRY(tpi_layer_pass(ctx, &need, pass, rows, &call->pass));
    const tpi_prepared *input = tpi_site_at(&layer->input, call->pass.tokens);
    call->direct = layer->gather_gradient && tpi_prepared_plan(input)->algorithm == TP_OVERLAP_DIRECT;
    return TP_OK;
}

tp_status tpi_linear_gathered(const tpi_linear_call *call, const tpi_prepared *plan, tp_buffer like, tp_buffer to,
                              tpi_job *job)
{
    if (tpi_prepared_plan(plan)->algorithm == TP_OVERLAP_DIRECT)
        return TP_OK;
    tp_tensor rows;
    TPI_TRY(tpi_scratch_tensor(call->ctx, job->view[like].dtype, job->tokens, job->view[like].cols, &rows));
    job->view[to] = tpi_view_of(rows, 0);
    return TP_OK;
}

tp_status tpi_linear_partial(const tpi_linear_call *call, const tpi_prepared *plan, int64_t cols, tpi_job *job)
{
    const tp_plan *shape = tpi_prepared_plan(plan);
    tp_tensor rows;
    TPI_TRY(tpi_scratch_tensor(call->ctx, TP_DTYPE_F32, job->tokens, cols, &rows));
    job->view[TP_BUFFER_PARTIAL] = tpi_view_of(rows, 0);
    if (shape->algorithm != TP_OVERLAP_RING && shape->algorithm != TP_OVERLAP_PULL)
        return TP_OK;
    tp_range own = tp_shard_range(job->tokens, shape->ranks, tp_comm_rank(call->layer->group));
    TPI_TRY(tpi_scratch_tensor(call->ctx, TP_DTYPE_F32, (own.end - own.begin) * (shape->ranks - 1), cols, &rows));
    job->view[TP_BUFFER_INBOX] = tpi_view_of(rows, own.begin);
    return TP_OK;
}

/* Rows from `row` on of a matrix of all rows; none stays NULL. */
static void *rows_from(const tp_tensor *tensor, int64_t row)
{
    return tensor->data ? (char *)tensor->data + (size_t)(row * tensor->stride[0]) * tp_dtype_size(tensor->dtype)
                        : NULL;
}

static void finish_gemm(const tpi_linear_call *call, int64_t row, tpi_gemm_args *args)
{
    const tp_linear *layer = call->layer;
    if (layer->bias != NULL) {
        args->bias = layer->bias->value.data;
        args->bias_dtype = layer->bias->value.dtype;
    }
    args->activation = call->fusion.activation;
    args->pre = rows_from(&call->fusion.pre, row);
    args->pre_stride = args->pre ? call->fusion.pre.stride[0] : 0;
    args->residual = rows_from(&call->residual, row);
    args->residual_stride = args->residual ? call->residual.stride[0] : 0;
    args->dropout = tpi_pass_dropout(&call->pass, layer->desc.dropout);
    args->dropout_key = tpi_dropout_key(call->ctx, layer->desc.site, &call->pass);
    args->first_row = call->pass.first_token + row;
}

/* Rows [.., in] x weight [out, in]. */
static tp_status forward_rows(const tpi_linear_call *call, tpi_stream *stream, int64_t rows, tpi_view from, tpi_view to)
{
    const tp_param *weight = call->layer->weight;
    tpi_gemm_args args = {.rows = rows,
                          .cols = weight->value.shape[0],
                          .inner = weight->value.shape[1],
                          .a = {from.data, from.dtype, from.stride, 1},
                          .b = {weight->value.data, weight->value.dtype, weight->value.stride[0], 1},
                          .b_packed = &tpi_param_internal_of(weight)->copies.forward,
                          .order = tpi_param_order(weight, 1),
                          .c = to.data,
                          .c_dtype = to.dtype,
                          .c_stride = to.stride};
    if (call->finish)
        finish_gemm(call, to.first, &args);
    return tpi_gemm(stream, &args);
}

tp_status tpi_linear_forward_op(const tpi_linear_call *call, const tpi_run *run, tpi_stream *stream,
                                const tp_plan_op *op)
{
    for (int i = 0; i < tpi_run_segments(run, op); i++) {
        tpi_segment segment = tpi_run_segment(run, op, i);
        tpi_view from = tpi_run_at(run, &op->read[0], segment), to = tpi_run_at(run, &op->write[0], segment);
        TPI_TRY(forward_rows(call, stream, segment.rows.end - segment.rows.begin, from, to));
    }
    return TP_OK;
}

static tp_status forward_gemm(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    return tpi_linear_forward_op(tpi_run_job(run)->user, run, stream, op);
}

tp_reduce_desc tpi_linear_reduce(const tpi_linear_call *call)
{
    const tp_linear *layer = call->layer;
    return (tp_reduce_desc){.bias = layer->bias ? layer->bias->value : tp_tensor_none(),
                            .dropout = tpi_pass_dropout(&call->pass, layer->desc.dropout),
                            .dropout_key = tpi_dropout_key(call->ctx, layer->desc.site, &call->pass),
                            .first_row = call->pass.first_token};
}

static const tpi_plan_table forward_table = {.issue = {[TP_OP_GEMM] = forward_gemm}};

tp_status tpi_linear_check_input(const tp_linear *layer, const tp_pass *pass, tp_tensor x)
{
    tp_range rows = tpi_linear_rows(layer, pass);
    tp_tensor in = tp_tensor_2d(NULL, layer->desc.dtype, layer->gather_input ? rows.end - rows.begin : pass->tokens,
                                layer->in_local);
    return tpi_layer_check_matrix(layer->ctx, layer->name, "input", x, &in);
}

tp_status tpi_linear_check_output(const tp_linear *layer, const tp_pass *pass, const tp_io *io)
{
    tp_range rows = tpi_linear_rows(layer, pass);
    tp_tensor out = tp_tensor_2d(NULL, layer->desc.dtype,
                                 layer->gather_gradient ? rows.end - rows.begin : pass->tokens, layer->out_local);
    TPI_TRY(tpi_layer_check_matrix(layer->ctx, layer->name, "output", io->out, &out));
    if (tp_tensor_is_none(io->residual))
        return TP_OK;
    if (layer->desc.kind == TP_LINEAR_COLUMN)
        return tpi_refuse(layer->ctx, TP_ERR_ARGUMENT, "%s: a column-parallel output takes no residual", layer->name);
    return tpi_layer_check_matrix(layer->ctx, layer->name, "residual", io->residual, &out);
}

static tp_status forward_in_scratch(tpi_linear_call *call, const tp_io *io)
{
    const tp_linear *layer = call->layer;
    int64_t first = tpi_linear_rows(layer, &call->pass).begin;
    tpi_prepared *plan = tpi_site_at(&layer->forward, call->pass.tokens);
    tpi_job job = {.table = &forward_table, .user = call, .tokens = call->pass.tokens, .norm = call->fusion.norm};
    job.view[TP_BUFFER_INPUT] = tpi_view_of(io->in, layer->gather_input ? first : 0);
    job.view[TP_BUFFER_OUTPUT] = tpi_view_of(io->out, layer->gather_gradient ? first : 0);
    call->finish = layer->desc.kind != TP_LINEAR_ROW || layer->ranks == 1;
    if (layer->gather_input)
        TPI_TRY(tpi_linear_gathered(call, plan, TP_BUFFER_INPUT, TP_BUFFER_GATHERED, &job));
    if (call->finish) {
        call->residual = io->residual;
    } else {
        job.reduce = tpi_linear_reduce(call);
        job.residual = tpi_view_of(io->residual, layer->gather_gradient ? first : 0);
        TPI_TRY(tpi_linear_partial(call, plan, layer->out_local, &job));
    }
    return tpi_plan_run(plan, &job);
}

tp_status tpi_linear_forward(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass, const tp_io *io,
                             const tpi_linear_fusion *fusion, tp_linear_saved *saved)
{
    tpi_linear_call call;
    TPI_TRY(tpi_linear_begin(ctx, layer, pass, io->in.shape[0], &call));
    TPI_TRY(tpi_linear_check_input(layer, &call.pass, io->in));
    TPI_TRY(tpi_linear_check_output(layer, &call.pass, io));
    TPI_TRY(tpi_layer_check_apart(ctx, layer->name, io));
    if (fusion != NULL)
        call.fusion = *fusion;
    if (saved != NULL)
        saved->x = io->in;
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status = forward_in_scratch(&call, io);
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}

tp_status tp_linear_forward(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass, const tp_io *io,
                            tp_linear_saved *saved)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (layer == NULL || io == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_linear_forward: %s is NULL", layer == NULL ? "layer" : "io");
    return tpi_linear_forward(ctx, layer, pass, io, NULL, saved);
}
