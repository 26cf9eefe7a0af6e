#include "layers/chain.h"

/* For AUTO: the same on all ranks. What lies between hides nothing and costs the same under every algorithm. */
static tp_overlap_shape shape_of(const tp_linear *first, const tp_linear *second)
{
    int64_t ranks = first->ranks;
    int64_t out = (first->desc.out_features + ranks - 1) / ranks, in = (second->desc.in_features + ranks - 1) / ranks;
    return (tp_overlap_shape){.dtype = first->desc.dtype,
                              .cols = {out, second->desc.out_features},
                              .inner = {first->desc.in_features, in}};
}

tp_status tpi_chain_prepare(const tp_linear *first, const tp_linear *second, bool whole_core, tpi_site *out)
{
    *out = (tpi_site){NULL, NULL};
    if (first->ranks == 1 || first->desc.overlap == TP_OVERLAP_NONE)
        return TP_OK;
    bool split = second->gather_gradient;
    tp_pattern piecewise = split ? TP_PATTERN_CHAIN : TP_PATTERN_CHAIN_REDUCE;
    tp_pattern whole = split ? TP_PATTERN_CHAIN_CORE : TP_PATTERN_CHAIN_CORE_REDUCE;
    const tp_plan_desc plan = {.algorithm = first->desc.overlap,
                               .pattern = whole_core ? whole : piecewise,
                               .ranks = first->ranks,
                               .chunks = first->desc.chunks};
    const tp_overlap_shape shape = shape_of(first, second);
    return tpi_site_make(first->ctx, first->group, &plan, &shape, out);
}

tp_status tpi_chain_begin(tp_ctx *ctx, const tp_linear *first, const tp_linear *second, const tp_pass *pass,
                          tpi_chain_call *call)
{
    *call = (tpi_chain_call){.layer = NULL};
    TPI_TRY(tpi_linear_begin(ctx, first, pass, pass->tokens, &call->first));
    TPI_TRY(tpi_linear_begin(ctx, second, pass, pass->tokens, &call->second));
    call->first.finish = true;
    return TP_OK;
}

tp_status tpi_chain_check(const tp_linear *first, const tp_linear *second, const tp_pass *pass, const tp_io *io)
{
    TPI_TRY(tpi_linear_check_input(first, pass, io->in));
    return tpi_linear_check_output(second, pass, io);
}

static tp_status chain_gemm(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    const tpi_chain_call *call = tpi_run_job(run)->user;
    return tpi_linear_forward_op(op->part == 0 ? &call->first : &call->second, run, stream, op);
}

static tp_status chain_compute(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    const tpi_chain_call *call = tpi_run_job(run)->user;
    for (int i = 0; call->compute != NULL && i < tpi_run_segments(run, op); i++)
        TPI_TRY(call->compute(call, stream, tpi_run_segment(run, op, i).rows));
    return TP_OK;
}

static const tpi_plan_table chain_table = {.issue = {[TP_OP_GEMM] = chain_gemm, [TP_OP_COMPUTE] = chain_compute}};

static tp_status run_in_scratch(tpi_chain_call *call, tpi_prepared *plan, const tp_io *io)
{
    const tp_linear *second = call->second.layer;
    int64_t first = tpi_linear_rows(second, &call->second.pass).begin;
    tpi_job job = {
        .table = &chain_table, .user = call, .tokens = call->first.pass.tokens, .norm = call->second.fusion.norm};
    job.view[TP_BUFFER_INPUT] = tpi_view_of(io->in, first);
    job.view[TP_BUFFER_MIDDLE] = tpi_view_of(call->middle, 0);
    job.view[TP_BUFFER_CORE] = tpi_view_of(call->core, 0);
    job.view[TP_BUFFER_OUTPUT] = tpi_view_of(io->out, first);
    job.residual = tpi_view_of(io->residual, first);
    job.reduce = tpi_linear_reduce(&call->second);
    if (call->first.layer->gather_input)
        TPI_TRY(tpi_linear_gathered(&call->first, plan, TP_BUFFER_INPUT, TP_BUFFER_GATHERED, &job));
    TPI_TRY(tpi_linear_partial(&call->second, plan, second->out_local, &job));
    return tpi_plan_run(plan, &job);
}

tp_status tpi_chain_forward(tpi_chain_call *call, const tpi_site *site, const tp_io *io)
{
    tp_ctx *ctx = call->first.ctx;
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status = run_in_scratch(call, tpi_site_at(site, call->first.pass.tokens), io);
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}
