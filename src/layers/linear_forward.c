#include "layers/linear.h"

bool tpi_linear_splits_tokens(const tp_linear *layer)
{
    return layer->gather_input || layer->gather_gradient;
}

tp_range tpi_linear_rows(const tp_linear *layer, const tp_pass *pass)
{
    return tp_pass_rows(layer->ctx, pass, tpi_linear_splits_tokens(layer));
}

tp_status tpi_linear_run(tpi_linear_call *call, const tp_plan *plan, const tpi_plan_table *table)
{
    return tpi_plan_execute(call->ctx, plan, table, call);
}

/* COLLECTIVE of the gathering plans: this rank's rows become all tokens. */
tp_status tpi_linear_gather(void *user, tpi_stream *stream, const tp_plan_op *op)
{
    const tpi_linear_call *call = user;
    (void)op; /* one piece */
    return tpi_comm_all_gather(stream, call->layer->group, call->local, call->operand, NULL);
}

static void finish_gemm(const tpi_linear_call *call, tpi_gemm_args *args)
{
    const tp_linear *layer = call->layer;
    if (layer->bias != NULL) {
        args->bias = layer->bias->value.data;
        args->bias_dtype = layer->bias->value.dtype;
    }
    args->activation = call->fusion.activation;
    args->pre = call->fusion.pre.data;
    args->pre_stride = call->fusion.pre.data ? call->fusion.pre.stride[0] : 0;
    args->residual = call->residual.data;
    args->residual_stride = call->residual.data ? call->residual.stride[0] : 0;
    args->dropout = tpi_pass_dropout(&call->pass, layer->desc.dropout);
    args->dropout_key = tpi_dropout_key(call->ctx, layer->desc.site, &call->pass);
    args->first_row = call->pass.first_token;
}

/* GEMM of forward: operand [T, in] x weight [out, in]. */
static tp_status forward_gemm(void *user, tpi_stream *stream, const tp_plan_op *op)
{
    const tpi_linear_call *call = user;
    const tp_param *weight = call->layer->weight;
    (void)op;
    tpi_gemm_args args = {.rows = call->operand.shape[0],
                          .cols = weight->value.shape[0],
                          .inner = weight->value.shape[1],
                          .a = {call->operand.data, call->operand.dtype, call->operand.stride[0], 1},
                          .b = {weight->value.data, weight->value.dtype, weight->value.stride[0], 1},
                          .b_packed = &tpi_param_internal_of(weight)->forward,
                          .order = tpi_param_order(weight, 1),
                          .c = call->result.data,
                          .c_dtype = call->result.dtype,
                          .c_stride = call->result.stride[0]};
    if (call->finish)
        finish_gemm(call, &args);
    return tpi_gemm(stream, &args);
}

/* COLLECTIVE of row-parallel forward: partial sums become the finished output. */
static tp_status forward_reduce(void *user, tpi_stream *stream, const tp_plan_op *op)
{
    const tpi_linear_call *call = user;
    const tp_linear *layer = call->layer;
    (void)op;
    tp_reduce_desc reduce = {.bias = layer->bias ? layer->bias->value : tp_tensor_none(),
                             .residual = call->residual,
                             .dropout = tpi_pass_dropout(&call->pass, layer->desc.dropout),
                             .dropout_key = tpi_dropout_key(call->ctx, layer->desc.site, &call->pass),
                             .first_row = call->pass.first_token + tpi_linear_rows(layer, &call->pass).begin};
    if (layer->gather_gradient)
        return tpi_comm_reduce_scatter(stream, layer->group, call->result, call->local, NULL, &reduce);
    return tpi_comm_all_reduce(stream, layer->group, call->result, call->local, &reduce);
}

static const tpi_plan_table gather_table = {.issue = {[TP_OP_GEMM] = forward_gemm, [TP_OP_COLLECTIVE] = tpi_linear_gather}};
static const tpi_plan_table reduce_table = {.issue = {[TP_OP_GEMM] = forward_gemm, [TP_OP_COLLECTIVE] = forward_reduce}};

static tp_status check_forward(const tp_linear *layer, const tp_pass *pass, const tp_io *io)
{
    tp_range rows = tpi_linear_rows(layer, pass);
    int64_t mine = rows.end - rows.begin;
    tp_tensor in = tp_tensor_2d(NULL, layer->desc.dtype, layer->gather_input ? mine : pass->tokens, layer->in_local);
    tp_tensor out = tp_tensor_2d(NULL, layer->desc.dtype, layer->gather_gradient ? mine : pass->tokens, layer->out_local);
    TPI_TRY(tpi_layer_check_matrix(layer->ctx, layer->name, "input", io->in, &in));
    TPI_TRY(tpi_layer_check_matrix(layer->ctx, layer->name, "output", io->out, &out));
    if (!tp_tensor_is_none(io->residual)) {
        if (layer->desc.kind == TP_LINEAR_COLUMN)
            return tpi_refuse(layer->ctx, TP_ERR_ARGUMENT, "%s: a column-parallel output takes no residual", layer->name);
        TPI_TRY(tpi_layer_check_matrix(layer->ctx, layer->name, "residual", io->residual, &out));
    }
    return TP_OK;
}

static tp_status forward_in_scratch(tpi_linear_call *call, const tp_io *io)
{
    const tp_linear *layer = call->layer;
    bool reduces = layer->desc.kind == TP_LINEAR_ROW && layer->ranks > 1;
    call->finish = !reduces;
    call->operand = io->in;
    call->result = io->out;
    if (layer->gather_input) {
        call->local = io->in;
        TPI_TRY(tpi_scratch_tensor(call->ctx, io->in.dtype, call->pass.tokens, layer->in_local, &call->operand));
    }
    if (reduces) {
        call->local = io->out;
        TPI_TRY(tpi_scratch_tensor(call->ctx, TP_DTYPE_F32, call->pass.tokens, layer->out_local, &call->result));
    }
    return tpi_linear_run(call, layer->forward, reduces ? &reduce_table : &gather_table);
}

tp_status tpi_linear_forward(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass, const tp_io *io, const tpi_linear_fusion *fusion,
                             tp_linear_saved *saved)
{
    tpi_linear_call call = {.ctx = ctx, .layer = layer, .residual = io->residual};
    tpi_pass_need need = {layer->name, layer->desc.sequence_parallel, layer->desc.dropout};
    TPI_TRY(tpi_layer_pass(ctx, &need, pass, io->in.shape[0], &call.pass));
    TPI_TRY(check_forward(layer, &call.pass, io));
    if (fusion != NULL)
        call.fusion = *fusion;
    if (saved != NULL)
        saved->x = io->in;
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status = forward_in_scratch(&call, io);
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}

tp_status tp_linear_forward(tp_ctx *ctx, const tp_linear *layer, const tp_pass *pass, const tp_io *io, tp_linear_saved *saved)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (layer == NULL || io == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_linear_forward: %s is NULL", layer == NULL ? "layer" : "io");
    return tpi_linear_forward(ctx, layer, pass, io, NULL, saved);
}
