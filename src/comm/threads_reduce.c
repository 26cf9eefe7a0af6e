/* Sums, maxima and minima over thread ranks. Every element is added by one call of the backend's reduce op over all
 * ranks' values, in the order of the fixed tree, so one-shot, two-shot and reduce_scatter give the same bits. */
#include "comm/threads.h"
#include "cpu/cpu.h"

/* Slices begin at multiples of this many elements, so that neighbours don't write into one cache line. */
#define SLICE_ELEMENTS 64

static tpi_span span_of(const tpi_call *call, const tpi_collective_args *args, const void *const *in, void *const *out,
                        int outputs)
{
    return (tpi_span){
        .in = in,
        .inputs = call->size,
        .in_dtype = args->in_dtype,
        .out = out,
        .outputs = outputs,
        .out_dtype = args->out_dtype,
        .cols = args->cols,
        .reduce = &args->reduce,
    };
}

/* The sum of two ranks' staged elements and nothing else: what small operations mostly are. */
static bool adds_pair(const tpi_call *call, const tpi_collective_args *args)
{
    const tp_reduce_desc *desc = &args->reduce;
    return call->size == 2 && desc->op == TP_REDUCE_SUM && args->in_dtype == args->out_dtype &&
           args->in_dtype <= TP_DTYPE_F16 && !desc->bias.data && !desc->residual.data && desc->dropout == 0;
}

/* The tree begins with rank 0's. */
static void add_pair(const tpi_call *call, const tpi_collective_args *args, const void *own, const void *peers,
                     int64_t elements)
{
    bool first = call->rank == 0;
    tpi_cpu_table_of(call->ctx)->sum_pair(args->in_dtype, args->out, first ? own : peers, first ? peers : own,
                                          elements);
}

/* An all-reduce of two ranks that one staging buffer holds. */
static tp_status one_shot_pair(tpi_call *call, const tpi_collective_args *args, size_t bytes)
{
    tpi_call_next_staged(call);
    tpi_comm_copy(tpi_call_staging(call, call->rank), args->in, bytes);
    TPI_TRY(tpi_call_post_args(call, args, true));
    add_pair(call, args, args->in, tpi_call_staging(call, 1 - call->rank), args->rows * args->cols);
    tpi_link_collective(call, bytes, bytes, 1);
    return TP_OK;
}

/* Copies a stretch of this rank's input to its staging, and adds everybody's: one gate a stretch, and in place needs no
 * care. */
static tp_status one_shot(tpi_call *call, const tpi_collective_args *args)
{
    int64_t elements = args->rows * args->cols;
    int64_t most = (int64_t)(TPI_STAGING_BYTES / tp_dtype_size(args->in_dtype));
    int64_t begin = 0;
    do {
        int64_t end = elements - begin < most ? elements : begin + most;
        const void *own = tpi_comm_at(args->in, begin, args->in_dtype);
        tpi_call_next_staged(call);
        tpi_comm_copy(tpi_call_staging(call, call->rank), own, tpi_comm_bytes(end - begin, args->in_dtype));
        TPI_TRY(tpi_call_post_args(call, args, true));
        const void *in[TPI_MAX_RANKS];
        for (int rank = 0; rank < call->size; rank++)
            in[rank] = rank == call->rank ? own : tpi_call_staging(call, rank);
        void *out = tpi_comm_at_out(args->out, begin, args->out_dtype);
        tpi_span span = span_of(call, args, in, &out, 1);
        span.begin = begin;
        span.end = end;
        tp_status status = tpi_comm_reduce_span(call->ctx, &span);
        if (status != TP_OK)
            return tpi_call_op_failed(call, status);
        begin = end;
    } while (begin < elements);
    size_t moved = tpi_comm_bytes(elements, args->in_dtype) * (size_t)(call->size - 1);
    tpi_link_collective(call, moved, moved, 1);
    return TP_OK;
}

static tp_range slice_of(const tpi_call *call, int64_t elements)
{
    int64_t blocks = elements / SLICE_ELEMENTS + (elements % SLICE_ELEMENTS != 0);
    tp_range range = tp_shard_range(blocks, call->size, call->rank);
    bool last = range.end == blocks;
    return (tp_range){range.begin == blocks ? elements : range.begin * SLICE_ELEMENTS,
                      last ? elements : range.end * SLICE_ELEMENTS};
}

typedef tp_status (*reduce_slice)(tpi_call *call, const tpi_span *span);

/* Every rank adds its slice and writes it to all. A slice of any buffer is read by its owner only, so writing to peers
 * that work in place is safe. */
static tp_status sliced(tpi_call *call, const tpi_collective_args *args, reduce_slice reduce, int steps)
{
    int64_t elements = args->rows * args->cols;
    tp_range slice = slice_of(call, elements);
    tpi_call_next(call);
    TPI_TRY(tpi_call_post_args(call, args, true));
    if (!tpi_touch_begin(call))
        return tpi_call_peer_failed(call);
    const void *in[TPI_MAX_RANKS];
    void *out[TPI_MAX_RANKS];
    for (int rank = 0; rank < call->size; rank++) {
        in[rank] = tpi_comm_at(tpi_call_in(call, rank), slice.begin, args->in_dtype);
        out[rank] = tpi_comm_at_out(tpi_call_out(call, rank), slice.begin, args->out_dtype);
    }
    tpi_span span = span_of(call, args, in, out, call->size);
    span.begin = slice.begin;
    span.end = slice.end;
    tp_status status = reduce(call, &span);
    tpi_touch_end(call);
    if (status != TP_OK)
        return tpi_call_op_failed(call, status);
    TPI_TRY(tpi_call_gate(call));
    int64_t own = slice.end - slice.begin, rest = elements - own, others = call->size - 1;
    size_t sent = tpi_comm_bytes(rest, args->in_dtype) + tpi_comm_bytes(own * others, args->out_dtype);
    size_t received = tpi_comm_bytes(own * others, args->in_dtype) + tpi_comm_bytes(rest, args->out_dtype);
    tpi_link_collective(call, sent, received, steps);
    return TP_OK;
}

static tp_status slice_by_tree(tpi_call *call, const tpi_span *span)
{
    return tpi_comm_reduce_span(call->ctx, span);
}

/* acc (f32) = in, or acc + in. */
static tp_status ring_add(tpi_call *call, float *acc, const void *in, tp_dtype dtype, int64_t elements, bool accumulate)
{
    tpi_map_args args = {
        .rows = 1,
        .cols = elements,
        .in = in,
        .in_dtype = dtype,
        .in_stride = elements,
        .out = acc,
        .out_dtype = TP_DTYPE_F32,
        .out_stride = elements,
        .accumulate = accumulate,
    };
    return tpi_comm_local_map(call->ctx, &args);
}

/* The order of a ring: rank r's slice starts at rank r + 1 and ends at r. Memory is shared, so the owner walks the ring
 * itself, with an f32 partial in its staging. */
static tp_status slice_by_ring(tpi_call *call, const tpi_span *span)
{
    if (span->reduce->op != TP_REDUCE_SUM || !(tp_dtype_epsilon(span->in_dtype) > 0))
        return tpi_comm_reduce_span(call->ctx, span); /* the order makes no difference */
    float *acc = (float *)(void *)tpi_call_staging(call, call->rank);
    int64_t most = (int64_t)(TPI_STAGING_BYTES / sizeof *acc);
    for (int64_t begin = span->begin; begin < span->end; begin += most) {
        int64_t end = span->end - begin < most ? span->end : begin + most;
        for (int i = 1; i <= call->size; i++) {
            int from = (call->rank + i) % call->size;
            const void *in = tpi_comm_at(span->in[from], begin - span->begin, span->in_dtype);
            TPI_TRY(ring_add(call, acc, in, span->in_dtype, end - begin, i > 1));
        }
        const void *in = acc;
        void *out[TPI_MAX_RANKS];
        for (int rank = 0; rank < call->size; rank++)
            out[rank] = tpi_comm_at_out(span->out[rank], begin - span->begin, span->out_dtype);
        tpi_span sum = *span;
        sum.in = &in;
        sum.inputs = 1;
        sum.in_dtype = TP_DTYPE_F32;
        sum.out = out;
        sum.begin = begin;
        sum.end = end;
        TPI_TRY(tpi_comm_reduce_span(call->ctx, &sum));
    }
    return TP_OK;
}

/* Where the input has been written and the output is read next, an exchange of two ranks through staging is the faster
 * way up to here. */
#define PAIR_REDUCED_BYTES ((size_t)12288)

static bool pays_one_shot(const tpi_call *call, size_t bytes)
{
    return call->size == 2 && call->group->flagged ? bytes <= PAIR_REDUCED_BYTES : tpi_call_stages(call, bytes);
}

tp_status tpi_threads_all_reduce(tpi_call *call, const tpi_collective_args *args)
{
    tp_all_reduce_algorithm algorithm = args->reduce.algorithm;
    size_t bytes = tpi_comm_bytes(args->rows * args->cols, args->in_dtype);
    if (algorithm == TP_ALL_REDUCE_AUTO)
        algorithm = pays_one_shot(call, bytes) ? TP_ALL_REDUCE_ONE_SHOT : TP_ALL_REDUCE_TWO_SHOT;
    if (algorithm == TP_ALL_REDUCE_ONE_SHOT)
        return adds_pair(call, args) && bytes <= TPI_STAGING_BYTES ? one_shot_pair(call, args, bytes)
                                                                   : one_shot(call, args);
    if (algorithm == TP_ALL_REDUCE_TWO_SHOT)
        return sliced(call, args, slice_by_tree, 2);
    return sliced(call, args, slice_by_ring, 2 * (call->size - 1));
}

/* What others add: of two ranks the other's rows, so that both use the same lines of their staging. */
static void stage_rows(const tpi_call *call, const tpi_collective_args *args)
{
    tp_range rows =
        call->size == 2 ? tpi_comm_range(args->counts, args->rows, 2, 1 - call->rank) : (tp_range){0, args->rows};
    tpi_comm_copy(tpi_call_staging(call, call->rank), tpi_comm_at(args->in, rows.begin * args->cols, args->in_dtype),
                  tpi_comm_bytes((rows.end - rows.begin) * args->cols, args->in_dtype));
}

/* Where a rank's input of the rows from `first` on is; `first` is an element. */
static const void *rows_of(const tpi_call *call, const tpi_collective_args *args, int rank, int64_t first, bool staged)
{
    if (rank == call->rank)
        return tpi_comm_at(args->in, first, args->in_dtype);
    if (!staged)
        return tpi_comm_at(tpi_call_in(call, rank), first, args->in_dtype);
    return tpi_comm_at(tpi_call_staging(call, rank), call->size == 2 ? 0 : first, args->in_dtype);
}

/* Adds this rank's rows of everybody's input. */
static tp_status reduce_rows(tpi_call *call, const tpi_collective_args *args, tp_range rows, bool staged)
{
    const void *in[TPI_MAX_RANKS];
    for (int rank = 0; rank < call->size; rank++)
        in[rank] = rows_of(call, args, rank, rows.begin * args->cols, staged);
    tpi_span span = span_of(call, args, in, &args->out, 1);
    span.end = (rows.end - rows.begin) * args->cols;
    return slice_by_tree(call, &span);
}

/* In place: the rows of any input are read by their owner only, who writes the result over them. */
tp_status tpi_threads_reduce_scatter(tpi_call *call, const tpi_collective_args *args)
{
    tp_range rows = tpi_comm_range(args->counts, args->rows, call->size, call->rank);
    size_t bytes = tpi_comm_bytes(args->rows * args->cols, args->in_dtype);
    bool staged = call->size == 2 ? tpi_call_stages_rows(call, args) : tpi_call_stages(call, bytes);
    if (staged) {
        tpi_call_next_staged(call);
        stage_rows(call, args);
    } else {
        tpi_call_next(call);
    }
    TPI_TRY(tpi_call_post_args(call, args, true));
    if (!staged && !tpi_touch_begin(call))
        return tpi_call_peer_failed(call);
    tp_status status = TP_OK;
    if (staged && adds_pair(call, args))
        add_pair(call, args, tpi_comm_at(args->in, rows.begin * args->cols, args->in_dtype),
                 tpi_call_staging(call, 1 - call->rank), (rows.end - rows.begin) * args->cols);
    else
        status = reduce_rows(call, args, rows, staged);
    if (!staged)
        tpi_touch_end(call);
    if (status != TP_OK)
        return tpi_call_op_failed(call, status);
    if (!staged)
        TPI_TRY(tpi_call_gate(call));
    size_t own = tpi_comm_bytes((rows.end - rows.begin) * args->cols, args->in_dtype);
    tpi_link_collective(call, bytes - own, own * (size_t)(call->size - 1), 1);
    return TP_OK;
}
