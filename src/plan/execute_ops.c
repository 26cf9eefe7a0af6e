/* Kinds of ops that move or add rows, whatever they mean: done on the run's views. */
#include <string.h>

#include "core/stream.h"
#include "plan/execute_state.h"
#include "plan/patterns.h"

/* What a task on a lane gets. */
typedef struct op_task {
    const tpi_run *run;
    const tp_plan_op *op;
} op_task;

static void copy_rows(const tpi_view *to, const tpi_view *from, int64_t rows)
{
    size_t size = tp_dtype_size(from->dtype), row = (size_t)from->cols * size;
    if (rows == 0 || row == 0 || to->data == from->data)
        return;
    if (to->stride == to->cols && from->stride == from->cols) {
        memcpy(to->data, from->data, (size_t)rows * row);
        return;
    }
    for (int64_t r = 0; r < rows; r++)
        memcpy((char *)to->data + (size_t)(r * to->stride) * size,
               (const char *)from->data + (size_t)(r * from->stride) * size, row);
}

/* Piece by piece: the two buffers may have them in different orders. */
static void copy_region(const tpi_run *run, const tp_region *to, const tp_region *from)
{
    if (run->prepared->ctx->desc.dry_run)
        return;
    for (int i = 0; i < to->pieces; i++) {
        int piece = to->piece + i * to->step;
        tpi_segment segment = {piece, tpi_run_rows(run, piece, 1)};
        tpi_view target = tpi_run_at(run, to, segment), source = tpi_run_at(run, from, segment);
        copy_rows(&target, &source, segment.rows.end - segment.rows.begin);
    }
}

static int index_of(const tpi_run *run, const tp_plan_op *op)
{
    return (int)(op - run->prepared->list->op);
}

static const tp_region *source_of(const tpi_run *run, const tp_plan_op *op)
{
    if (op->kind == TP_OP_RECV)
        return run->prepared->plan->rank[op->peer].op[run->prepared->note[index_of(run, op)].partner].read;
    return op->read;
}

/* Shows that the data is there, and stays until the receiver has it. */
static tp_status send(const tpi_run *run, const tp_plan_op *op)
{
    tpi_board *board = run->prepared->board;
    int index = index_of(run, op);
    board->table->raise(board, tpi_flag_posted(index), run->epoch, run->lane_ready[op->lane], &op->peer, 1);
    const tpi_board_wait met =
        tpi_wait_of(run, (int)op->lane, op->peer, tpi_flag_done(run->prepared->note[index].partner));
    return board->table->wait(board, &met, &run->stamp[index]);
}

static tp_status transfer(tp_ctx *ctx, const void *pointer)
{
    const op_task *task = pointer;
    const tpi_run *run = task->run;
    const tp_plan_op *op = task->op;
    (void)ctx;
    if (op->kind == TP_OP_SEND)
        return send(run, op);
    copy_region(run, op->write, source_of(run, op));
    return TP_OK;
}

tpi_map_args tpi_rows_copied(const tpi_view *to, const tpi_view *from, int64_t rows)
{
    return (tpi_map_args){.rows = rows,
                          .cols = from->cols,
                          .in = from->data,
                          .in_dtype = from->dtype,
                          .in_stride = from->stride,
                          .out = to->data,
                          .out_dtype = to->dtype,
                          .out_stride = to->stride};
}

static tp_status issue_rows(tpi_stream *stream, const tpi_view *to, const tpi_view *from, int64_t rows)
{
    const tpi_backend *backend = stream->ctx->backend;
    size_t row = (size_t)from->cols * tp_dtype_size(from->dtype);
    if (rows == 0 || row == 0 || to->data == from->data)
        return TP_OK;
    if (to->stride == to->cols && from->stride == from->cols)
        return backend->copy(stream, to->data, from->data, (size_t)rows * row, TPI_COPY_WITHIN);
    const tpi_map_args args = tpi_rows_copied(to, from, rows);
    return backend->map(stream, &args);
}

/* As copy_region, by the backend's ops. */
static tp_status issue_region(const tpi_run *run, tpi_stream *stream, const tp_region *to, const tp_region *from)
{
    if (run->prepared->ctx->desc.dry_run)
        return TP_OK;
    for (int i = 0; i < to->pieces; i++) {
        int piece = to->piece + i * to->step;
        tpi_segment segment = {piece, tpi_run_rows(run, piece, 1)};
        tpi_view target = tpi_run_at(run, to, segment), source = tpi_run_at(run, from, segment);
        TPI_TRY(issue_rows(stream, &target, &source, segment.rows.end - segment.rows.begin));
    }
    return TP_OK;
}

tp_status tpi_issue_transfer(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    if (run->prepared->behind)
        return issue_region(run, stream, op->write, source_of(run, op));
    const op_task task = {run, op};
    return run->prepared->ctx->backend->run(stream, transfer, &task, sizeof task);
}

void *tpi_view_row(const tpi_view *view, int64_t row)
{
    return view->data ? (char *)view->data + (size_t)((row - view->first) * view->stride) * tp_dtype_size(view->dtype)
                      : NULL;
}

tp_status tpi_issue_reduce(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    const tpi_job *job = &run->job;
    void **in = run->pointer + run->prepared->note[index_of(run, op)].first_pointer, **out = in + op->reads;
    tpi_segment segment = tpi_run_segment(run, op, 0);
    for (int i = 0; i < op->reads; i++)
        in[i] = tpi_run_at(run, &op->read[i], segment).data;
    for (int i = 0; i < op->writes; i++)
        out[i] = tpi_run_at(run, &op->write[i], segment).data;
    const tpi_view *output = &job->view[TP_BUFFER_OUTPUT];
    return tpi_reduce(stream, &(tpi_reduce_args){.op = job->reduce.op,
                                                 .inputs = op->reads,
                                                 .in = (const void *const *)in,
                                                 .in_dtype = job->view[TP_BUFFER_PARTIAL].dtype,
                                                 .outputs = op->writes,
                                                 .out = out,
                                                 .out_dtype = output->dtype,
                                                 .rows = segment.rows.end - segment.rows.begin,
                                                 .cols = output->cols,
                                                 .bias = job->reduce.bias.data,
                                                 .bias_dtype = job->reduce.bias.dtype,
                                                 .residual = tpi_view_row(&job->residual, segment.rows.begin),
                                                 .dropout = job->reduce.dropout,
                                                 .dropout_key = job->reduce.dropout_key,
                                                 .first_row = job->reduce.first_row + segment.rows.begin});
}

tp_tensor tpi_run_tensor(const tpi_run *run, const tp_region *region)
{
    const tp_plan *plan = run->prepared->plan;
    bool sliced = tpi_pattern_is_sliced((tp_pattern)plan->pattern);
    tp_tensor tensor = {.dims = 2};
    tpi_view view = run->job.view[region->buffer];
    int64_t rows = 0;
    if (region->pieces > 0) {
        view = tpi_run_at(run, region, (tpi_segment){region->piece, tpi_run_rows(run, region->piece, 1)});
        for (int i = 0; i < region->pieces; i++) {
            int piece = region->piece + i * region->step;
            tp_range range = tpi_run_rows(run, piece, 1);
            rows += sliced && piece % plan->chunks != 0 ? 0 : range.end - range.begin;
        }
    }
    tensor.data = view.data;
    tensor.dtype = view.dtype;
    tensor.shape[0] = rows;
    tensor.shape[1] = run->job.view[region->buffer].cols;
    tensor.stride[0] = view.stride;
    tensor.stride[1] = 1;
    return tensor;
}

/* Rows of the op's pieces that each rank owns; NULL where they are all rows. */
static const int64_t *count_rows(const tpi_run *run, const tp_plan_op *op)
{
    const tp_plan *plan = run->prepared->plan;
    int first = run->prepared->note[index_of(run, op)].first_count;
    if (first < 0)
        return NULL;
    int64_t *count = run->count + first;
    memset(count, 0, (size_t)plan->ranks * sizeof *count);
    for (int i = 0; i < op->pieces; i++) {
        int piece = op->piece + i * op->step;
        tp_range rows = tpi_run_rows(run, piece, 1);
        count[piece / plan->chunks] += rows.end - rows.begin;
    }
    return count;
}

bool tpi_op_norms(const tpi_run *run, const tp_plan_op *op)
{
    const tp_plan *plan = run->prepared->plan;
    bool reduces =
        op->kind == TP_OP_COLLECTIVE && op->collective == TP_COLLECTIVE_ALL_REDUCE && op->lane == TP_LANE_COMPUTE;
    return run->job.norm != NULL && reduces && op->write->buffer == TP_BUFFER_OUTPUT &&
           op->write->pieces == plan->ranks * plan->chunks;
}

tp_status tpi_issue_collective(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    const tpi_job *job = &run->job;
    tp_comm *comm = op->lane == TP_LANE_COMPUTE ? run->prepared->comm : run->prepared->lane_comm;
    tp_tensor in = tpi_run_tensor(run, op->read), out = tpi_run_tensor(run, op->write);
    if (op->collective == TP_COLLECTIVE_ALL_GATHER)
        return tpi_comm_all_gather(stream, comm, in, out, count_rows(run, op));
    tp_reduce_desc reduce = job->reduce;
    const tp_region *write = op->write;
    int64_t begin = write->pieces > 0 ? tpi_run_rows(run, write->piece, 1).begin : 0;
    reduce.residual = tp_tensor_none();
    if (job->residual.data != NULL) {
        reduce.residual = out;
        reduce.residual.data = (void *)(uintptr_t)tpi_view_row(&job->residual, begin);
        reduce.residual.stride[0] = job->residual.stride;
    }
    reduce.first_row += begin;
    if (op->collective == TP_COLLECTIVE_REDUCE_SCATTER)
        return tpi_comm_reduce_scatter(stream, comm, in, out, count_rows(run, op), &reduce);
    if (!tpi_op_norms(run, op))
        return tpi_comm_all_reduce(stream, comm, in, out, &reduce);
    tpi_norm_args norm = *job->norm;
    norm.x = out.data; /* a copy of the caller's, if the caller's rows lie apart */
    norm.x_stride = out.stride[0];
    return tpi_comm_all_reduce_norm(stream, comm, in, out, &reduce, &norm);
}
