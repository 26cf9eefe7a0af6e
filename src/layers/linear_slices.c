/* ROW under sequence parallelism: both gradients in one plan, from slices of the columns of dy
 * (TP_PATTERN_ROW_BACKWARD). A slice of all tokens is all that its rows of the weight gradient need. Cut by tokens,
 * which they sum over in order, no later rank could begin with its own before the last of the first rank's came. */
#include "layers/linear.h"

typedef struct sliced_call {
    tpi_linear_call linear;
    tp_tensor x;
    tpi_view sum;      /* f32, the input gradient so far: all rows; OUTPUT where that is f32 and not the residual */
    tpi_packed packed; /* x of all tokens for every slice's GEMM; data NULL: packed by each */
    bool unset;        /* the gradient holds nothing yet: what the first tokens give overwrites it */
} sliced_call;

static const void *at(tp_tensor matrix, int64_t row, int64_t column)
{
    if (matrix.data == NULL) /* no rows */
        return NULL;
    return (const char *)matrix.data + (size_t)(row * matrix.stride[0] + column) * tp_dtype_size(matrix.dtype);
}

/* From the sum to the input gradient of these rows. */
static tp_status finish_rows(const sliced_call *call, tpi_stream *stream, int64_t rows, tpi_view sum, tpi_view out)
{
    tp_tensor residual = call->linear.residual;
    if (!tp_tensor_is_none(residual))
        TPI_TRY(tpi_map(stream, &(tpi_map_args){.rows = rows,
                                               .cols = sum.cols,
                                               .in = at(residual, out.first, 0),
                                               .in_dtype = residual.dtype,
                                               .in_stride = residual.stride[0],
                                               .out = sum.data,
                                               .out_dtype = sum.dtype,
                                               .out_stride = sum.stride,
                                               .accumulate = true}));
    if (sum.data == out.data)
        return TP_OK;
    return tpi_map(stream, &(tpi_map_args){.rows = rows,
                                          .cols = sum.cols,
                                          .in = sum.data,
                                          .in_dtype = sum.dtype,
                                          .in_stride = sum.stride,
                                          .out = out.data,
                                          .out_dtype = out.dtype,
                                          .out_stride = out.stride});
}

/* The slice of the weight's packed copy; data NULL where there is none, or a pair of bf16 would be torn. */
static tpi_packed packed_slice(const tp_param *weight, tp_range columns)
{
    tpi_packed packed = tpi_param_internal_of(weight)->copies.backward;
    packed.first = columns.begin;
    packed.inner = weight->value.shape[0];
    bool torn = columns.begin % 2 != 0 || (columns.end % 2 != 0 && columns.end != packed.inner);
    return torn && weight->value.dtype == TP_DTYPE_BF16 ? (tpi_packed){.data = NULL} : packed;
}

/* One owner's rows times the weight's rows of one slice, added to the sum. */
static tp_status sum_slice(const sliced_call *call, const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    const tp_param *weight = call->linear.layer->weight;
    int chunks = tpi_run_plan(run)->chunks, slice = op->piece % chunks;
    tpi_segment segment = {op->piece, tpi_run_rows(run, op->piece, 1)};
    tp_range columns = tpi_run_columns(run, slice);
    tpi_view from = tpi_run_at(run, &op->read[0], segment), out = tpi_run_at(run, &op->write[0], segment),
             sum = call->sum;
    int64_t rows = segment.rows.end - segment.rows.begin;
    tpi_packed packed = packed_slice(weight, columns);
    if (sum.data != NULL)
        sum.data = (char *)sum.data + (size_t)(segment.rows.begin * sum.stride) * sizeof(float);
    TPI_TRY(tpi_gemm(stream, &(tpi_gemm_args){.rows = rows,
                                              .cols = weight->value.shape[1],
                                              .inner = columns.end - columns.begin,
                                              .a = {from.data, from.dtype, from.stride, 1},
                                              .b = {at(weight->value, columns.begin, 0), weight->value.dtype, 1,
                                                    weight->value.stride[0]},
                                              .b_packed = packed.data != NULL ? &packed : NULL,
                                              .c = sum.data,
                                              .c_dtype = TP_DTYPE_F32,
                                              .c_stride = sum.stride,
                                              .accumulate = slice > 0}));
    return slice + 1 < chunks ? TP_OK : finish_rows(call, stream, rows, sum, out);
}

static tp_status pack_input(const sliced_call *call, tpi_stream *stream)
{
    const tp_tensor *x = &call->x;
    tpi_operand b = {x->data, x->dtype, 1, x->stride[0]};
    return call->linear.ctx->backend->gemm_pack(stream, &b, x->shape[1], x->shape[0], NULL, &call->packed);
}

/* The slices' rows of dW, over the tokens of the op's owners. */
static tp_status weight_slices(const sliced_call *call, const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    const tp_linear *layer = call->linear.layer;
    const tp_region *slices = &op->write[0];
    int last = op->piece + (op->pieces - 1) * op->step;
    tp_range columns = {tpi_run_columns(run, slices->piece).begin,
                        tpi_run_columns(run, slices->piece + slices->pieces - 1).end};
    tp_range rows = {tpi_run_rows(run, op->piece, 1).begin, tpi_run_rows(run, last, 1).end};
    bool packed = call->packed.data != NULL && rows.end - rows.begin == call->x.shape[0];
    tpi_view dy = tpi_run_at(run, &op->read[1], (tpi_segment){op->piece, rows});
    if (packed && slices->piece == 0)
        TPI_TRY(pack_input(call, stream));
    float *sums = layer->bias != NULL ? layer->bias->grad.data : NULL;
    return tpi_gemm(stream, &(tpi_gemm_args){.rows = columns.end - columns.begin,
                                            .cols = layer->in_local,
                                            .inner = rows.end - rows.begin,
                                            .a = {dy.data, dy.dtype, 1, dy.stride},
                                            .b = {at(call->x, rows.begin, 0), call->x.dtype, 1, call->x.stride[0]},
                                            .b_packed = packed ? &call->packed : NULL,
                                            .c = (void *)(uintptr_t)at(layer->weight->grad, columns.begin, 0),
                                            .c_dtype = TP_DTYPE_F32,
                                            .c_stride = layer->weight->grad.stride[0],
                                            .accumulate = rows.begin > 0 || !call->unset,
                                            .past_caches = rows.end - rows.begin == call->x.shape[0],
                                            .row_sums = sums != NULL ? sums + columns.begin : NULL});
}

static tp_status sliced_gemm(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    const sliced_call *call = tpi_run_job(run)->user;
    int chunks = tpi_run_plan(run)->chunks;
    if (op->part == 1)
        return weight_slices(call, run, stream, op);
    if (op->pieces == 1 && chunks > 1)
        return sum_slice(call, run, stream, op);
    return tpi_linear_input_op(&call->linear, run, stream, op); /* whole owners */
}

static const tpi_plan_table sliced_table = {.issue = {[TP_OP_GEMM] = sliced_gemm}};

/* Sums beside the output, and x packed once, where slices are worked on one by one. */
static tp_status prepare_slices(sliced_call *call, const tp_plan *plan, const tp_io *io)
{
    const tp_linear *layer = call->linear.layer;
    tp_ctx *ctx = call->linear.ctx;
    bool cut = plan->chunks > 1 && (plan->algorithm == TP_OVERLAP_RING || plan->algorithm == TP_OVERLAP_PULL);
    call->sum = tpi_view_of(io->out, 0);
    if (!cut)
        return TP_OK;
    bool holds_residual = io->out.data != NULL && io->residual.data == io->out.data; /* until the last slice */
    if (io->out.dtype != TP_DTYPE_F32 || holds_residual) {
        tp_tensor sum;
        TPI_TRY(tpi_scratch_tensor(ctx, TP_DTYPE_F32, call->x.shape[0], layer->in_local, &sum));
        call->sum = tpi_view_of(sum, 0);
    }
    call->packed.bytes = ctx->backend->gemm_packed_bytes(ctx, call->x.dtype, layer->in_local, call->x.shape[0], NULL);
    return call->packed.bytes > 0 ? tpi_scratch(ctx, call->packed.bytes, &call->packed.data) : TP_OK;
}

tp_status tpi_linear_run_slices(const tpi_linear_call *linear, const tp_io *io, tp_tensor x)
{
    sliced_call call = {.linear = *linear, .x = x};
    tpi_prepared *plan = tpi_site_at(&linear->layer->both, linear->pass.tokens);
    tp_tensor dy;
    call.linear.finish = true;
    call.linear.residual = io->residual;
    TPI_TRY(tpi_linear_mask(linear, io->in, &dy));
    tpi_job job = {.table = &sliced_table, .user = &call, .tokens = linear->pass.tokens};
    job.view[TP_BUFFER_INPUT] = tpi_view_of(dy, tpi_linear_rows(linear->layer, &linear->pass).begin);
    job.view[TP_BUFFER_OUTPUT] = tpi_view_of(io->out, 0);
    TPI_TRY(tpi_linear_gathered(linear, plan, TP_BUFFER_INPUT, TP_BUFFER_GATHERED, &job));
    TPI_TRY(prepare_slices(&call, tpi_prepared_plan(plan), io));
    call.unset = tpi_param_unset(linear->layer->weight) && linear->pass.tokens > 0;
    TPI_TRY(tpi_plan_run(plan, &job));
    if (call.unset)
        tpi_param_was_set(linear->layer->weight);
    return TP_OK;
}
