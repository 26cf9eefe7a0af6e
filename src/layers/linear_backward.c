#include "layers/linear.h"

/* GEMM of the input gradient: operand [T, out] x weight^T [in, out]. */
static tp_status input_gemm(void *user, tpi_stream *stream, const tp_plan_op *op)
{
    const tpi_linear_call *call = user;
    const tp_param *weight = call->layer->weight;
    (void)op;
    tpi_gemm_args args = {.rows = call->operand.shape[0],
                          .cols = weight->value.shape[1],
                          .inner = weight->value.shape[0],
                          .a = {call->operand.data, call->operand.dtype, call->operand.stride[0], 1},
                          .b = {weight->value.data, weight->value.dtype, 1, weight->value.stride[0]},
                          .b_packed = &tpi_param_internal_of(weight)->backward,
                          .order = tpi_param_order(weight, 0),
                          .c = call->result.data,
                          .c_dtype = call->result.dtype,
                          .c_stride = call->result.stride[0]};
    if (call->finish) {
        args.activation = call->fusion.activation;
        args.act_input = call->fusion.act_input.data;
        args.act_input_stride = call->fusion.act_input.data ? call->fusion.act_input.stride[0] : 0;
        args.residual = call->residual.data;
        args.residual_stride = call->residual.data ? call->residual.stride[0] : 0;
    }
    return tpi_gemm(stream, &args);
}

/* COLLECTIVE of the column-parallel input gradient: partial sums become this rank's gradient. */
static tp_status input_reduce(void *user, tpi_stream *stream, const tp_plan_op *op)
{
    const tpi_linear_call *call = user;
    tp_reduce_desc reduce = {.residual = call->residual};
    (void)op;
    if (call->layer->gather_input)
        return tpi_comm_reduce_scatter(stream, call->layer->group, call->result, call->local, NULL, &reduce);
    return tpi_comm_all_reduce(stream, call->layer->group, call->result, call->local, &reduce);
}

/* GEMM of the weight gradient: dW [out, in] += dy^T x, tokens in order; the bias gradient is the row sums of dy^T. */
static tp_status weight_gemm(void *user, tpi_stream *stream, const tp_plan_op *op)
{
    const tpi_linear_call *call = user;
    const tp_linear *layer = call->layer;
    const tp_tensor *dy = &call->local, *x = &call->operand;
    (void)op;
    return tpi_gemm(stream, &(tpi_gemm_args){.rows = layer->out_local,
                                            .cols = layer->in_local,
                                            .inner = call->pass.tokens,
                                            .a = {dy->data, dy->dtype, 1, dy->stride[0]},
                                            .b = {x->data, x->dtype, 1, x->stride[0]},
                                            .c = layer->weight->grad.data,
                                            .c_dtype = TP_DTYPE_F32,
                                            .c_stride = layer->weight->grad.stride[0],
                                            .accumulate = true,
                                            .row_sums = layer->bias ? layer->bias->grad.data : NULL});
}

/* COLLECTIVE of the weight gradient: x of all tokens. */
static tp_status weight_gather(void *user, tpi_stream *stream, const tp_plan_op *op)
{
    const tpi_linear_call *call = user;
    (void)op;
    return tpi_comm_all_gather(stream, call->layer->group, call->saved->x, call->operand, NULL);
}

static const tpi_plan_table input_gather_table = {.issue = {[TP_OP_GEMM] = input_gemm, [TP_OP_COLLECTIVE] = tpi_linear_gather}};
static const tpi_plan_table input_reduce_table = {.issue = {[TP_OP_GEMM] = input_gemm, [TP_OP_COLLECTIVE] = input_reduce}};
static const tpi_plan_table weight_table = {.issue = {[TP_OP_GEMM] = weight_gemm, [TP_OP_COLLECTIVE] = weight_gather}};

static bool masks(const tp_linear *layer)
{
    return layer->desc.dropout > 0;
}

size_t tp_linear_delayed_bytes(const tp_linear *layer, const tp_pass *pass)
{
    if (!masks(layer) && !layer->gather_gradient)
        return 0;
    return (size_t)pass->tokens * (size_t)layer->out_local * tp_dtype_size(layer->desc.dtype);
}

static tp_status check_backward(const tp_linear *layer, const tp_pass *pass, const tp_io *io)
{
    tp_range rows = tpi_linear_rows(layer, pass);
    int64_t mine = rows.end - rows.begin;
    tp_tensor dy = tp_tensor_2d(NULL, layer->desc.dtype, layer->gather_gradient ? mine : pass->tokens, layer->out_local);
    tp_tensor dx = tp_tensor_2d(NULL, layer->desc.dtype, layer->gather_input ? mine : pass->tokens, layer->in_local);
    TPI_TRY(tpi_layer_check_matrix(layer->ctx, layer->name, "output gradient", io->in, &dy));
    if (!tp_tensor_is_none(io->out))
        TPI_TRY(tpi_layer_check_matrix(layer->ctx, layer->name, "input gradient", io->out, &dx));
    if (!tp_tensor_is_none(io->residual))
        TPI_TRY(tpi_layer_check_matrix(layer->ctx, layer->name, "residual gradient", io->residual, &dx));
    return TP_OK;
}

/* dy of this rank's rows -> dy' of all tokens in `full`: dropout's mask, then the gather. */
static tp_status prepare_gradient(tpi_linear_call *call, tp_tensor dy, tp_tensor full)
{
    const tp_linear *layer = call->layer;
    tp_range rows = tpi_linear_rows(layer, &call->pass);
    call->operand = full;
    call->local = dy;
    if (!masks(layer))
        return TP_OK;
    call->local = layer->gather_gradient ? tp_tensor_rows(full, rows.begin, rows.end) : full;
    return tpi_map(call->ctx->compute, &(tpi_map_args){.rows = dy.shape[0],
                                                      .cols = dy.shape[1],
                                                      .in = dy.data,
                                                      .in_dtype = dy.dtype,
                                                      .in_stride = dy.stride[0],
                                                      .out = call->local.data,
                                                      .out_dtype = dy.dtype,
                                                      .out_stride = call->local.stride[0],
                                                      .dropout = tpi_pass_dropout(&call->pass, layer->desc.dropout),
                                                      .dropout_key = tpi_dropout_key(call->ctx, layer->desc.site, &call->pass),
                                                      .first_row = call->pass.first_token + rows.begin});
}

/* Runs the input-gradient plan; its gather (if any) fills call->operand even when dx is not wanted. */
static tp_status run_input(tpi_linear_call *call, const tp_io *io)
{
    const tp_linear *layer = call->layer;
    if (tp_tensor_is_none(io->out))
        return layer->gather_gradient ? tpi_linear_gather(call, call->ctx->compute, NULL) : TP_OK;
    bool reduces = layer->desc.kind == TP_LINEAR_COLUMN && layer->ranks > 1;
    call->finish = !reduces;
    call->result = io->out;
    if (reduces) {
        call->local = io->out;
        TPI_TRY(tpi_scratch_tensor(call->ctx, TP_DTYPE_F32, call->pass.tokens, layer->in_local, &call->result));
    }
    return tpi_linear_run(call, layer->input, reduces ? &input_reduce_table : &input_gather_table);
}

static tp_status input_in_scratch(tpi_linear_call *call, const tp_io *io, void *memory, tp_tensor *full)
{
    const tp_linear *layer = call->layer;
    bool own = masks(layer) || layer->gather_gradient; /* dy' is not dy itself */
    *full = io->in;
    if (own && memory != NULL)
        *full = tp_tensor_2d(memory, layer->desc.dtype, call->pass.tokens, layer->out_local);
    else if (own)
        TPI_TRY(tpi_scratch_tensor(call->ctx, layer->desc.dtype, call->pass.tokens, layer->out_local, full));
    TPI_TRY(prepare_gradient(call, io->in, *full));
    return run_input(call, io);
}

static tp_status begin_call(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass, int64_t rows, tpi_linear_call *call)
{
    tpi_pass_need need = {layer->name, layer->desc.sequence_parallel, layer->desc.dropout};
    *call = (tpi_linear_call){.ctx = ctx, .layer = layer};
    return tpi_layer_pass(ctx, &need, pass, rows, &call->pass);
}

tp_status tpi_linear_backward_input(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass, const tp_io *io, const tpi_linear_fusion *fusion,
                                    tp_linear_delayed *delayed)
{
    tpi_linear_call call;
    TPI_TRY(begin_call(ctx, layer, pass, io->in.shape[0], &call));
    TPI_TRY(check_backward(layer, &call.pass, io));
    call.residual = io->residual;
    if (fusion != NULL)
        call.fusion = *fusion;
    void *memory = NULL;
    if (delayed != NULL) {
        TPI_TRY(tpi_layer_check_memory(ctx, layer->name, delayed->memory, delayed->bytes, tp_linear_delayed_bytes(layer, &call.pass)));
        memory = delayed->memory;
    }
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_tensor full;
    tp_status status = input_in_scratch(&call, io, memory, &full);
    if (delayed != NULL)
        delayed->dy = full;
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}

static tp_status weight_in_scratch(tpi_linear_call *call)
{
    const tp_linear *layer = call->layer;
    call->operand = call->saved->x;
    if (layer->gather_input)
        TPI_TRY(tpi_scratch_tensor(call->ctx, layer->desc.dtype, call->pass.tokens, layer->in_local, &call->operand));
    return tpi_linear_run(call, layer->weight_plan, &weight_table);
}

tp_status tp_linear_backward_weight(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass, const tp_linear_saved *saved,
                                    const tp_linear_delayed *delayed)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (layer == NULL || saved == NULL || delayed == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_linear_backward_weight: %s is NULL",
                          layer == NULL ? "layer" : saved == NULL ? "saved" : "delayed");
    tpi_linear_call call;
    TPI_TRY(begin_call(ctx, layer, pass, delayed->dy.shape[0], &call));
    if (layer->weight->grad.data == NULL)
        return TP_OK;
    call.saved = saved;
    call.local = delayed->dy;
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status = weight_in_scratch(&call);
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}

tp_status tp_linear_backward_input(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass, const tp_io *io, tp_linear_delayed *delayed)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (layer == NULL || io == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_linear_backward_input: %s is NULL", layer == NULL ? "layer" : "io");
    return tpi_linear_backward_input(ctx, layer, pass, io, NULL, delayed);
}

tp_status tp_linear_backward(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass, const tp_io *io, const tp_linear_saved *saved)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (layer == NULL || io == NULL || saved == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_linear_backward: %s is NULL", layer == NULL ? "layer" : io == NULL ? "io" : "saved");
    tpi_linear_call call;
    TPI_TRY(begin_call(ctx, layer, pass, io->in.shape[0], &call));
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_linear_delayed delayed = {.bytes = tp_linear_delayed_bytes(layer, &call.pass)};
    tp_status status = tpi_scratch(ctx, delayed.bytes, &delayed.memory);
    if (status == TP_OK)
        status = tpi_linear_backward_input(ctx, layer, &call.pass, io, NULL, &delayed);
    if (status == TP_OK)
        status = tp_linear_backward_weight(ctx, layer, &call.pass, saved, &delayed);
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}
