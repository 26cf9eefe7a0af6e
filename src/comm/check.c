/* Argument checks of collectives. What all ranks share is refused by all of them alike, without communication. */
#include "comm/collective.h"

#include <inttypes.h>

/* A dense tensor seen as [rows, cols]: rows is the first dimension. */
typedef struct matrix {
    const char *name;
    const tp_tensor *tensor;
    int64_t rows, cols;
    size_t bytes;
} matrix;

/* Elements of a tensor whose strides are those of a dense one, in one pass over it; -1: it is too large, or a size is
 * negative. */
static int64_t elements_of(const tp_tensor *tensor, bool *dense)
{
    if (tensor->dims == 1) {
        *dense = tensor->shape[0] <= 1 || tensor->stride[0] == 1;
        return tensor->shape[0] < 0 ? -1 : tensor->shape[0];
    }
    int64_t elements = 1, expected = 1;
    bool empty = false, large = false;
    *dense = true;
    for (int dim = tensor->dims - 1; dim >= 0; dim--) {
        int64_t size = tensor->shape[dim];
        if (size < 0)
            return -1;
        empty = empty || size == 0;
        /* The stride of a dimension of one is never used. */
        *dense = *dense && (size == 1 || tensor->stride[dim] == expected);
        large = __builtin_mul_overflow(elements, size, &elements) || large;
        expected = elements;
    }
    *dense = *dense || empty;
    return empty ? 0 : large ? -1 : elements;
}

static tp_status check_tensor(tp_ctx *ctx, const char *call, const char *name, const tp_tensor *tensor, size_t *out)
{
    size_t size = tpi_comm_size_of(tensor->dtype), bytes;
    bool dense;
    if (size == 0)
        return tpi_refuse(ctx, TP_ERR_DTYPE, "%s: %s has no valid dtype (%d)", call, name, (int)tensor->dtype);
    if (tensor->dims < 1 || tensor->dims > TP_MAX_DIMS)
        return tpi_refuse(ctx, TP_ERR_SHAPE, "%s: %s has %d dimensions, must have 1 to %d", call, name, tensor->dims,
                          TP_MAX_DIMS);
    int64_t elements = elements_of(tensor, &dense);
    if (elements < 0 || __builtin_mul_overflow((size_t)elements, size, &bytes) || bytes > (size_t)PTRDIFF_MAX)
        return tpi_refuse(ctx, TP_ERR_SHAPE, "%s: %s is too large, or a size of it is negative", call, name);
    if (!dense)
        return tpi_refuse(ctx, TP_ERR_SHAPE, "%s: %s is not dense", call, name);
    if (!tensor->data && elements > 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: %s.data is NULL with %" PRId64 " elements", call, name, elements);
    if ((uintptr_t)tensor->data % size != 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: %s.data at %p is not aligned to the %zu bytes of %s", call, name,
                          tensor->data, size, tp_dtype_name(tensor->dtype));
    *out = bytes;
    return TP_OK;
}

static tp_status check_matrix(tp_ctx *ctx, const char *call, const char *name, const tp_tensor *tensor, matrix *out)
{
    out->name = name;
    out->tensor = tensor;
    out->cols = 1;
    TPI_TRY(check_tensor(ctx, call, name, tensor, &out->bytes));
    out->rows = tensor->shape[0];
    for (int dim = 1; dim < tensor->dims; dim++)
        if (__builtin_mul_overflow(out->cols, tensor->shape[dim], &out->cols))
            return tpi_refuse(ctx, TP_ERR_SHAPE, "%s: a row of %s has too many elements", call, name);
    return TP_OK;
}

static tp_status check_same_cols(tp_ctx *ctx, const char *call, const matrix *a, const matrix *b)
{
    if (a->cols != b->cols)
        return tpi_refuse(ctx, TP_ERR_SHAPE, "%s: a row of %s has %" PRId64 " elements, a row of %s %" PRId64, call,
                          a->name, a->cols, b->name, b->cols);
    return TP_OK;
}

static tp_status check_rows(tp_ctx *ctx, const char *call, const matrix *m, int64_t rows, int rank)
{
    if (m->rows != rows)
        return tpi_refuse(ctx, TP_ERR_SHAPE, "%s: %s has %" PRId64 " rows, those of rank %d are %" PRId64, call,
                          m->name, m->rows, rank, rows);
    return TP_OK;
}

static tp_status check_same_dtype(tp_ctx *ctx, const char *call, const matrix *a, const matrix *b)
{
    if (a->tensor->dtype != b->tensor->dtype)
        return tpi_refuse(ctx, TP_ERR_DTYPE, "%s: %s is %s, %s is %s", call, a->name, tp_dtype_name(a->tensor->dtype),
                          b->name, tp_dtype_name(b->tensor->dtype));
    return TP_OK;
}

static tp_status check_counts(tp_ctx *ctx, const char *call, const char *name, const int64_t *counts, int size,
                              int64_t rows)
{
    int64_t sum = 0;
    for (int rank = 0; counts && rank < size; rank++) {
        if (counts[rank] < 0)
            return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: %s[%d] is %" PRId64, call, name, rank, counts[rank]);
        if (__builtin_add_overflow(sum, counts[rank], &sum))
            return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: the sum of %s is too large", call, name);
    }
    if (counts && sum != rows)
        return tpi_refuse(ctx, TP_ERR_SHAPE, "%s: %s add up to %" PRId64 " rows, the tensor has %" PRId64, call, name,
                          sum, rows);
    return TP_OK;
}

/* in may lie at `offset` elements inside out (or out inside in) with the same dtype; any other overlap is refused. */
static tp_status check_overlap(tp_ctx *ctx, const char *call, const matrix *part, const matrix *whole, int64_t offset)
{
    size_t part_bytes = part->bytes, whole_bytes = whole->bytes;
    uintptr_t a = (uintptr_t)part->tensor->data, b = (uintptr_t)whole->tensor->data;
    if (part_bytes == 0 || whole_bytes == 0 || a >= b + whole_bytes || b >= a + part_bytes)
        return TP_OK;
    if (offset >= 0 && part->tensor->dtype == whole->tensor->dtype &&
        a == b + tpi_comm_bytes(offset, whole->tensor->dtype))
        return TP_OK;
    return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: %s and %s overlap in a way that is not allowed", call, part->name,
                      whole->name);
}

static bool is_float(tp_dtype dtype)
{
    return tp_dtype_epsilon(dtype) > 0;
}

static bool is_none(const tp_tensor *tensor)
{
    return !tensor->data && tensor->dims == 0;
}

static tp_status check_epilogue(tp_ctx *ctx, const char *call, const tp_reduce_desc *desc, const matrix *out)
{
    bool bias = !is_none(&desc->bias), residual = !is_none(&desc->residual);
    if (!(desc->dropout >= 0 && desc->dropout < 1))
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: dropout is %g, must be in [0, 1)", call, (double)desc->dropout);
    if (!bias && !residual && desc->dropout == 0)
        return TP_OK;
    if (desc->op != TP_REDUCE_SUM || !is_float(out->tensor->dtype))
        return tpi_refuse(ctx, TP_ERR_DTYPE, "%s: bias, residual and dropout need a sum in a floating dtype", call);
    if (desc->first_row < 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: first_row is %" PRId64, call, desc->first_row);
    if (bias) {
        size_t bytes;
        TPI_TRY(check_tensor(ctx, call, "bias", &desc->bias, &bytes));
        if (!is_float(desc->bias.dtype))
            return tpi_refuse(ctx, TP_ERR_DTYPE, "%s: bias is %s", call, tp_dtype_name(desc->bias.dtype));
        if (tp_tensor_elements(desc->bias) != out->cols)
            return tpi_refuse(ctx, TP_ERR_SHAPE, "%s: bias has %" PRId64 " elements, a row %" PRId64, call,
                              tp_tensor_elements(desc->bias), out->cols);
    }
    if (residual) {
        matrix m;
        TPI_TRY(check_matrix(ctx, call, "residual", &desc->residual, &m));
        TPI_TRY(check_same_dtype(ctx, call, &m, out));
        if (m.rows != out->rows || m.cols != out->cols)
            return tpi_refuse(ctx, TP_ERR_SHAPE,
                              "%s: residual is %" PRId64 " x %" PRId64 ", out %" PRId64 " x %" PRId64, call, m.rows,
                              m.cols, out->rows, out->cols);
    }
    return TP_OK;
}

static tp_status check_reduce(tp_ctx *ctx, const char *call, const tp_reduce_desc *desc, const matrix *in,
                              const matrix *out)
{
    if ((int)desc->op < TP_REDUCE_SUM || (int)desc->op > TP_REDUCE_MIN)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: op is %d, must be 0 to %d", call, (int)desc->op, TP_REDUCE_MIN);
    if ((int)desc->algorithm < TP_ALL_REDUCE_AUTO || (int)desc->algorithm > TP_ALL_REDUCE_RING)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: algorithm is %d, must be 0 to %d", call, (int)desc->algorithm,
                          TP_ALL_REDUCE_RING);
    if (desc->algorithm == TP_ALL_REDUCE_RING && ctx->desc.sum_order != TP_SUM_FAST)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT,
                          "%s: algorithm is TP_ALL_REDUCE_RING (%d), which needs sum_order TP_SUM_FAST (%d), not %d",
                          call, TP_ALL_REDUCE_RING, TP_SUM_FAST, (int)ctx->desc.sum_order);
    if (in->tensor->dtype != out->tensor->dtype && !(in->tensor->dtype == TP_DTYPE_F32 && is_float(out->tensor->dtype)))
        return tpi_refuse(ctx, TP_ERR_DTYPE, "%s: in is %s, out is %s", call, tp_dtype_name(in->tensor->dtype),
                          tp_dtype_name(out->tensor->dtype));
    return check_epilogue(ctx, call, desc, out);
}

/* What a caller who gives none means. */
static const tp_reduce_desc plain_sum = {.op = TP_REDUCE_SUM};

/* A tensor that is none keeps its sizes to itself. */
static void set_optional(tp_tensor *out, const tp_tensor *tensor)
{
    out->data = NULL;
    out->dtype = tensor->dtype;
    out->dims = 0;
    if (!is_none(tensor))
        *out = *tensor;
}

/* Field by field: a small collective takes as long as clearing all of them. */
static void set_args(tpi_collective_args *args, tp_comm *comm, const matrix *in, const matrix *out,
                     const matrix *global, const tp_reduce_desc *reduce)
{
    args->reduce.op = reduce->op;
    args->reduce.algorithm = reduce->algorithm;
    set_optional(&args->reduce.bias, &reduce->bias);
    set_optional(&args->reduce.residual, &reduce->residual);
    args->reduce.dropout = reduce->dropout;
    args->reduce.dropout_key = reduce->dropout_key;
    args->reduce.first_row = reduce->first_row;
    args->comm = comm;
    args->out_rows = 0;
    args->counts = NULL;
    args->recv_counts = NULL;
    args->root = 0;
    args->norm = NULL;
    args->in = in->tensor->data;
    args->out = out->tensor->data;
    args->in_dtype = in->tensor->dtype;
    args->out_dtype = out->tensor->dtype;
    args->rows = global->rows;
    args->cols = global->cols;
}

tp_status tpi_check_all_reduce(tp_comm *comm, const tp_tensor *in, const tp_tensor *out, const tp_reduce_desc *desc,
                               tpi_collective_args *args)
{
    tp_ctx *ctx = comm->ctx;
    const char *call = "all_reduce";
    matrix from, to;
    desc = desc ? desc : &plain_sum;
    TPI_TRY(check_matrix(ctx, call, "in", in, &from));
    TPI_TRY(check_matrix(ctx, call, "out", out, &to));
    if (from.rows != to.rows || from.cols != to.cols)
        return tpi_refuse(ctx, TP_ERR_SHAPE, "%s: in is %" PRId64 " x %" PRId64 ", out %" PRId64 " x %" PRId64, call,
                          from.rows, from.cols, to.rows, to.cols);
    TPI_TRY(check_reduce(ctx, call, desc, &from, &to));
    TPI_TRY(check_overlap(ctx, call, &from, &to, 0));
    set_args(args, comm, &from, &to, &to, desc);
    return TP_OK;
}

/* A [cols] parameter of the norm, or none where it may be missing. */
static tp_status check_gain(tp_ctx *ctx, const char *name, tp_tensor gain, const matrix *sum)
{
    const char *call = "all_reduce_norm";
    matrix m;
    TPI_TRY(check_matrix(ctx, call, name, &gain, &m));
    TPI_TRY(check_same_dtype(ctx, call, &m, sum));
    if (tp_tensor_elements(gain) != sum->cols)
        return tpi_refuse(ctx, TP_ERR_SHAPE, "%s: %s has %" PRId64 " elements, a row %" PRId64, call, name,
                          tp_tensor_elements(gain), sum->cols);
    return TP_OK;
}

static tp_status check_stats(tp_ctx *ctx, tp_tensor stats, const matrix *sum)
{
    const char *call = "all_reduce_norm";
    matrix m;
    TPI_TRY(check_matrix(ctx, call, "stats", &stats, &m));
    if (stats.dtype != TP_DTYPE_F32 || m.rows != sum->rows || m.cols != 2)
        return tpi_refuse(ctx, TP_ERR_SHAPE, "%s: stats is %s %" PRId64 " x %" PRId64 ", expected f32 %" PRId64 " x 2",
                          call, tp_dtype_name(stats.dtype), m.rows, m.cols, sum->rows);
    return TP_OK;
}

tp_status tpi_check_reduce_norm(tp_ctx *ctx, tp_tensor sum, const tp_reduce_norm *norm, tpi_norm_args *args)
{
    const char *call = "all_reduce_norm";
    matrix from, to;
    if (!norm)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: norm is NULL", call);
    TPI_TRY(check_matrix(ctx, call, "sum", &sum, &from));
    TPI_TRY(check_matrix(ctx, call, "out", &norm->out, &to));
    if (!is_float(sum.dtype))
        return tpi_refuse(ctx, TP_ERR_DTYPE, "%s: sum is %s", call, tp_dtype_name(sum.dtype));
    TPI_TRY(check_same_dtype(ctx, call, &to, &from));
    if (from.rows != to.rows || from.cols != to.cols)
        return tpi_refuse(ctx, TP_ERR_SHAPE, "%s: sum is %" PRId64 " x %" PRId64 ", out %" PRId64 " x %" PRId64, call,
                          from.rows, from.cols, to.rows, to.cols);
    TPI_TRY(check_overlap(ctx, call, &to, &from, -1));
    TPI_TRY(check_gain(ctx, "gain", norm->gain, &from));
    if (!(norm->epsilon >= 0 && norm->epsilon < 1)) /* NaN too */
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: epsilon %g is not in [0, 1)", call, (double)norm->epsilon);
    bool bias = !tp_tensor_is_none(norm->bias), stats = !tp_tensor_is_none(norm->stats);
    if (bias && norm->rms)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: an RMSNorm has no bias", call);
    if (bias)
        TPI_TRY(check_gain(ctx, "bias", norm->bias, &from));
    if (stats)
        TPI_TRY(check_stats(ctx, norm->stats, &from));
    *args = (tpi_norm_args){.rms = norm->rms,
                            .rows = from.rows,
                            .cols = from.cols,
                            .dtype = sum.dtype,
                            .x = sum.data,
                            .x_stride = from.cols,
                            .gain = norm->gain.data,
                            .bias = bias ? norm->bias.data : NULL,
                            .epsilon = norm->epsilon,
                            .y = norm->out.data,
                            .y_stride = from.cols,
                            .stats = stats ? norm->stats.data : NULL};
    return TP_OK;
}

tp_status tpi_check_reduce_scatter(tp_comm *comm, const tp_tensor *in, const tp_tensor *out, const int64_t *counts,
                                   const tp_reduce_desc *desc, tpi_collective_args *args)
{
    tp_ctx *ctx = comm->ctx;
    const char *call = "reduce_scatter";
    matrix from, to;
    desc = desc ? desc : &plain_sum;
    TPI_TRY(check_matrix(ctx, call, "in", in, &from));
    TPI_TRY(check_matrix(ctx, call, "out", out, &to));
    TPI_TRY(check_same_cols(ctx, call, &from, &to));
    TPI_TRY(check_counts(ctx, call, "counts", counts, comm->size, from.rows));
    tp_range own = tpi_comm_range(counts, from.rows, comm->size, comm->rank);
    TPI_TRY(check_rows(ctx, call, &to, own.end - own.begin, comm->rank));
    TPI_TRY(check_reduce(ctx, call, desc, &from, &to));
    TPI_TRY(check_overlap(ctx, call, &to, &from, own.begin * from.cols));
    set_args(args, comm, &from, &to, &from, desc);
    args->counts = counts;
    return TP_OK;
}

tp_status tpi_check_all_gather(tp_comm *comm, const tp_tensor *in, const tp_tensor *out, const int64_t *counts,
                               tpi_collective_args *args)
{
    tp_ctx *ctx = comm->ctx;
    const char *call = "all_gather";
    matrix from, to;
    TPI_TRY(check_matrix(ctx, call, "in", in, &from));
    TPI_TRY(check_matrix(ctx, call, "out", out, &to));
    TPI_TRY(check_same_cols(ctx, call, &from, &to));
    TPI_TRY(check_same_dtype(ctx, call, &from, &to));
    TPI_TRY(check_counts(ctx, call, "counts", counts, comm->size, to.rows));
    tp_range own = tpi_comm_range(counts, to.rows, comm->size, comm->rank);
    TPI_TRY(check_rows(ctx, call, &from, own.end - own.begin, comm->rank));
    TPI_TRY(check_overlap(ctx, call, &from, &to, own.begin * to.cols));
    set_args(args, comm, &from, &to, &to, &plain_sum);
    args->counts = counts;
    return TP_OK;
}

tp_status tpi_check_broadcast(tp_comm *comm, tp_tensor tensor, int root, tpi_collective_args *args)
{
    tp_ctx *ctx = comm->ctx;
    matrix m;
    TPI_TRY(check_matrix(ctx, "broadcast", "tensor", &tensor, &m));
    if (root < 0 || root >= comm->size)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "broadcast: root is %d, must be 0 to %d", root, comm->size - 1);
    set_args(args, comm, &m, &m, &m, &plain_sum);
    args->root = root;
    return TP_OK;
}

tp_status tpi_check_all_to_all(tp_comm *comm, tp_tensor in, const int64_t *send_counts, tp_tensor out,
                               const int64_t *recv_counts, tpi_collective_args *args)
{
    tp_ctx *ctx = comm->ctx;
    const char *call = "all_to_all";
    matrix from, to;
    TPI_TRY(check_matrix(ctx, call, "in", &in, &from));
    TPI_TRY(check_matrix(ctx, call, "out", &out, &to));
    TPI_TRY(check_same_cols(ctx, call, &from, &to));
    TPI_TRY(check_same_dtype(ctx, call, &from, &to));
    TPI_TRY(check_counts(ctx, call, "send_counts", send_counts, comm->size, from.rows));
    TPI_TRY(check_counts(ctx, call, "recv_counts", recv_counts, comm->size, to.rows));
    TPI_TRY(check_overlap(ctx, call, &from, &to, -1));
    set_args(args, comm, &from, &to, &from, &plain_sum);
    args->out_rows = to.rows;
    args->counts = send_counts;
    args->recv_counts = recv_counts;
    tp_range own_sent = tpi_comm_range(send_counts, from.rows, comm->size, comm->rank);
    tp_range own_expected = tpi_comm_range(recv_counts, to.rows, comm->size, comm->rank);
    if (own_sent.end - own_sent.begin != own_expected.end - own_expected.begin)
        return tpi_refuse(ctx, TP_ERR_SHAPE, "%s: rank %d sends itself %" PRId64 " rows and expects %" PRId64, call,
                          comm->rank, own_sent.end - own_sent.begin, own_expected.end - own_expected.begin);
    return TP_OK;
}

/* The k-th send to itself must fit the k-th receive from itself: waiting for another would be for ever. */
static tp_status check_own_messages(tp_ctx *ctx, const tp_comm *comm, const tp_p2p *ops, int count)
{
    int receive = 0;
    for (int send = 0; send < count; send++) {
        if (!ops[send].send || ops[send].peer != comm->rank)
            continue;
        while (receive < count && (ops[receive].send || ops[receive].peer != comm->rank))
            receive++;
        if (receive == count)
            return tpi_refuse(ctx, TP_ERR_ARGUMENT, "p2p_batch: ops[%d] sends to rank %d itself, which receives fewer",
                              send, comm->rank);
        size_t sent = tp_tensor_bytes(ops[send].tensor), expected = tp_tensor_bytes(ops[receive].tensor);
        if (sent != expected)
            return tpi_refuse(ctx, TP_ERR_SHAPE,
                              "p2p_batch: ops[%d] sends %zu bytes to rank %d itself, ops[%d] receives %zu", send, sent,
                              comm->rank, receive, expected);
        if (ops[send].tensor.dtype != ops[receive].tensor.dtype)
            return tpi_refuse(ctx, TP_ERR_DTYPE,
                              "p2p_batch: ops[%d] sends %s to rank %d itself, ops[%d] receives %s", send,
                              tp_dtype_name(ops[send].tensor.dtype), comm->rank, receive,
                              tp_dtype_name(ops[receive].tensor.dtype));
        receive++;
    }
    for (; receive < count; receive++)
        if (!ops[receive].send && ops[receive].peer == comm->rank)
            return tpi_refuse(ctx, TP_ERR_ARGUMENT,
                              "p2p_batch: ops[%d] receives from rank %d itself, which sends fewer", receive,
                              comm->rank);
    return TP_OK;
}

tp_status tpi_check_p2p(tp_comm *comm, const tp_p2p *ops, int count)
{
    tp_ctx *ctx = comm->ctx;
    if (count < 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "p2p_batch: count is %d", count);
    if (count > 0 && !ops)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "p2p_batch: ops is NULL with count %d", count);
    for (int i = 0; i < count; i++) {
        size_t bytes;
        TPI_TRY(check_tensor(ctx, "p2p_batch", "tensor", &ops[i].tensor, &bytes));
        if (ops[i].peer < 0 || ops[i].peer >= comm->size)
            return tpi_refuse(ctx, TP_ERR_ARGUMENT, "p2p_batch: ops[%d].peer is %d, must be 0 to %d", i, ops[i].peer,
                              comm->size - 1);
    }
    return check_own_messages(ctx, comm, ops, count);
}
