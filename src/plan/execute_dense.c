/* The caller's rows may lie apart. Collectives, reductions and messages take dense rows: there the run works on a dense
 * copy in scratch, with the same bits, on every transport and under every algorithm. */
#include "core/stream.h"
#include "plan/execute_state.h"

static void widen(tpi_prepared *p, const tp_region *region)
{
    tpi_piece_span *span = &p->span[region->buffer];
    if (region->rank != p->rank || region->pieces == 0)
        return;
    int end = region->piece + (region->pieces - 1) * region->step + 1;
    if (span->end == 0 || region->piece < span->begin)
        span->begin = region->piece;
    span->end = end > span->end ? end : span->end;
}

static bool wants_dense(const tpi_prepared *p, const tp_plan_op *op)
{
    bool message = op->kind == TP_OP_SEND || op->kind == TP_OP_RECV;
    return op->kind == TP_OP_COLLECTIVE || op->kind == TP_OP_REDUCE || (message && p->messages.message != NULL);
}

void tpi_dense_prepare(tpi_prepared *p)
{
    for (int rank = 0; rank < p->plan->ranks; rank++)
        for (int i = 0; i < p->plan->rank[rank].count; i++) {
            const tp_plan_op *op = &p->plan->rank[rank].op[i];
            for (int r = 0; r < op->reads + op->writes; r++) {
                const tp_region *region = r < op->reads ? &op->read[r] : &op->write[r - op->reads];
                widen(p, region);
                p->dense[region->buffer] = p->dense[region->buffer] || wants_dense(p, op);
            }
        }
}

static tp_status copy(tp_ctx *ctx, const tpi_view *from, const tpi_view *to, int64_t rows)
{
    const tpi_map_args args = tpi_rows_copied(to, from, rows);
    return tpi_map(ctx->compute, &args);
}

/* From global row `row` on. */
static tpi_view from_row(tpi_view view, int64_t row)
{
    view.data = tpi_view_row(&view, row);
    view.first = row;
    return view;
}

/* Puts dense rows in the view's place; `own` is where the caller's are. data NULL: they are dense. */
static tp_status take(tpi_run *run, tp_range rows, tpi_view *view, tpi_view *own)
{
    own->data = NULL;
    if (view->data == NULL || view->stride == view->cols || rows.end <= rows.begin)
        return TP_OK;
    tp_tensor dense;
    TPI_TRY(tpi_scratch_tensor(run->prepared->ctx, view->dtype, rows.end - rows.begin, view->cols, &dense));
    *own = from_row(*view, rows.begin);
    *view = tpi_view_of(dense, rows.begin);
    return TP_OK;
}

static tp_status take_input(tpi_run *run, tp_range rows, tpi_view *view)
{
    tpi_view own;
    TPI_TRY(take(run, rows, view, &own));
    return own.data != NULL ? copy(run->prepared->ctx, &own, view, rows.end - rows.begin) : TP_OK;
}

static tp_range rows_of(const tpi_run *run, tp_buffer buffer)
{
    const tpi_piece_span *span = &run->prepared->span[buffer];
    return span->end > 0 ? tpi_run_rows(run, span->begin, span->end - span->begin) : (tp_range){0, 0};
}

tp_status tpi_dense_begin(tpi_run *run, tpi_view *output)
{
    const tpi_prepared *p = run->prepared;
    static const tp_buffer inputs[] = {TP_BUFFER_INPUT, TP_BUFFER_SECOND};
    output->data = NULL;
    for (int i = 0; i < 2; i++)
        if (p->dense[inputs[i]])
            TPI_TRY(take_input(run, rows_of(run, inputs[i]), &run->job.view[inputs[i]]));
    if (!p->dense[TP_BUFFER_OUTPUT])
        return TP_OK;
    tp_range rows = rows_of(run, TP_BUFFER_OUTPUT);
    TPI_TRY(take_input(run, rows, &run->job.residual));
    return take(run, rows, &run->job.view[TP_BUFFER_OUTPUT], output);
}

tp_status tpi_dense_end(const tpi_run *run, const tpi_view *output)
{
    tp_range rows = rows_of(run, TP_BUFFER_OUTPUT);
    return output->data != NULL
               ? copy(run->prepared->ctx, &run->job.view[TP_BUFFER_OUTPUT], output, rows.end - rows.begin)
               : TP_OK;
}
