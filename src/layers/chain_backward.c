#include "layers/chain.h"

bool tpi_chain_runs_backward(const tp_linear *row, const tp_linear *column, const tpi_site *site, const tp_pass *pass,
                             const tp_io *io)
{
    bool gradients = row->weight->grad.data != NULL && column->weight->grad.data != NULL;
    return tpi_site_at(site, pass->tokens) != NULL && gradients && !tp_tensor_is_none(io->out);
}

tp_status tpi_chain_prepare_backward(const tp_linear *row, const tp_linear *column, bool whole_core, tpi_site *out)
{
    *out = (tpi_site){NULL, NULL};
    int64_t ranks = row->ranks;
    if (ranks == 1 || row->desc.overlap == TP_OVERLAP_NONE)
        return TP_OK;
    bool split = row->gather_gradient;
    tp_pattern piecewise = split ? TP_PATTERN_CHAIN_BACKWARD : TP_PATTERN_CHAIN_BACKWARD_REDUCE;
    tp_pattern whole = split ? TP_PATTERN_CHAIN_CORE_BACKWARD : TP_PATTERN_CHAIN_CORE_BACKWARD_REDUCE;
    const tp_plan_desc plan = {.algorithm = row->desc.overlap,
                               .pattern = whole_core ? whole : piecewise,
                               .ranks = row->ranks,
                               .chunks = row->desc.chunks};
    const tp_overlap_shape shape = {.dtype = row->desc.dtype,
                                    .cols = {(row->desc.in_features + ranks - 1) / ranks, column->desc.in_features},
                                    .inner = {row->desc.out_features, (column->desc.out_features + ranks - 1) / ranks}};
    return tpi_site_make(row->ctx, row->group, &plan, &shape, out);
}

tp_status tpi_chain_begin_backward(tp_ctx *ctx, const tp_linear *row, const tp_linear *column, const tp_pass *pass,
                                   tpi_chain_backward *call)
{
    *call = (tpi_chain_backward){.ordered = tp_tensor_none()};
    TPI_TRY(tpi_linear_begin(ctx, row, pass, pass->tokens, &call->first));
    TPI_TRY(tpi_linear_begin(ctx, column, pass, pass->tokens, &call->second));
    call->first.finish = true;
    return TP_OK;
}

tp_status tpi_chain_check_backward(const tp_linear *row, const tp_linear *column, const tp_pass *pass, const tp_io *io)
{
    TPI_TRY(tpi_linear_check_output_gradient(row, pass, io->in));
    return tpi_linear_check_input_gradient(column, pass, io);
}

static tpi_view rows_of(tp_tensor tensor, tp_range rows)
{
    return tpi_view_of(tp_tensor_rows(tensor, rows.begin, rows.end), rows.begin);
}

/* ROW's weight gradient: dy from wherever it came, its input is here. */
static tp_status row_weight(const tpi_chain_backward *call, const tpi_run *run, tpi_stream *stream,
                            const tp_plan_op *op)
{
    tp_range all = {0, call->first.pass.tokens};
    if (!tp_tensor_is_none(call->ordered)) { /* one unit */
        TPI_TRY(tpi_linear_collect(&call->first, run, stream, call->ordered));
        return tpi_linear_weight_rows(&call->first, stream, all.end, rows_of(call->ordered, all),
                                      rows_of(call->row_input, all));
    }
    for (int i = 0; i < tpi_run_segments(run, op); i++) {
        tpi_segment segment = tpi_run_segment(run, op, i);
        tpi_view dy = tpi_run_at(run, &op->read[1], segment), input = rows_of(call->row_input, segment.rows);
        TPI_TRY(tpi_linear_weight_rows(&call->first, stream, segment.rows.end - segment.rows.begin, dy, input));
    }
    return TP_OK;
}

static tp_status backward_gemm(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    const tpi_chain_backward *call = tpi_run_job(run)->user;
    switch (op->part) {
    case 0: return tpi_linear_input_op(&call->first, run, stream, op);
    case 1: return tpi_linear_input_op(&call->second, run, stream, op);
    case 2: return row_weight(call, run, stream, op);
    default: return tpi_linear_weight_op(&call->second, run, stream, op);
    }
}

static tp_status backward_compute(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    const tpi_chain_backward *call = tpi_run_job(run)->user;
    for (int i = 0; call->compute != NULL && i < tpi_run_segments(run, op); i++)
        TPI_TRY(call->compute(call, stream, tpi_run_segment(run, op, i).rows));
    return TP_OK;
}

static const tpi_plan_table backward_table = {
    .issue = {[TP_OP_GEMM] = backward_gemm, [TP_OP_COMPUTE] = backward_compute}};

static tp_status gather_both(tpi_chain_backward *call, const tpi_prepared *plan, tpi_job *job)
{
    const tp_plan *shape = tpi_prepared_plan(plan);
    if (!call->first.layer->gather_gradient)
        return TP_OK;
    TPI_TRY(tpi_linear_gathered(&call->first, plan, TP_BUFFER_INPUT, TP_BUFFER_GATHERED, job));
    TPI_TRY(tpi_linear_gathered(&call->second, plan, TP_BUFFER_SECOND, TP_BUFFER_GATHERED_SECOND, job));
    if (shape->algorithm != TP_OVERLAP_PIPELINE || shape->chunks == 1)
        return TP_OK;
    return tpi_scratch_tensor(call->first.ctx, job->view[TP_BUFFER_INPUT].dtype, job->tokens,
                              job->view[TP_BUFFER_INPUT].cols, &call->ordered);
}

static tp_status run_in_scratch(tpi_chain_backward *call, tpi_prepared *plan, const tp_io *io)
{
    int64_t first = tpi_linear_rows(call->first.layer, &call->first.pass).begin;
    tp_tensor dy;
    TPI_TRY(tpi_linear_mask(&call->first, io->in, &dy));
    tpi_job job = {.table = &backward_table, .user = call, .tokens = call->first.pass.tokens};
    job.view[TP_BUFFER_INPUT] = tpi_view_of(dy, first);
    job.view[TP_BUFFER_SECOND] = tpi_view_of(call->column_input, first);
    job.view[TP_BUFFER_MIDDLE] = tpi_view_of(call->middle, 0);
    job.view[TP_BUFFER_CORE] = tpi_view_of(call->core, 0);
    job.view[TP_BUFFER_OUTPUT] = tpi_view_of(io->out, first);
    job.residual = tpi_view_of(io->residual, first);
    TPI_TRY(gather_both(call, plan, &job));
    TPI_TRY(tpi_linear_partial(&call->second, plan, call->second.layer->in_local, &job));
    return tpi_plan_run(plan, &job);
}

tp_status tpi_chain_run_backward(tpi_chain_backward *call, const tpi_site *site, const tp_io *io)
{
    tp_ctx *ctx = call->first.ctx;
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status = run_in_scratch(call, tpi_site_at(site, call->first.pass.tokens), io);
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}
