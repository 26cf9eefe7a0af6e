/* Reductions over a fabric. Three ways: the fabric's own, where its order is nobody's business (TP_SUM_FAST) or doesn't
 * matter (integers); one step, where every rank gets all inputs; two steps, where the owner of a slice gets all ranks'
 * parts of it. Maxima of floats go the last two ways: a NaN must win. */
#include "comm/nccl.h"

/* Slices begin at multiples of this many elements. */
#define SLICE_ELEMENTS 64

typedef struct shares {
    tp_range range[TPI_MAX_RANKS]; /* elements of the whole input that each rank owns */
    int64_t longest;
} shares;

static bool is_float(tp_dtype dtype)
{
    return dtype == TP_DTYPE_F32 || dtype == TP_DTYPE_BF16 || dtype == TP_DTYPE_F16;
}

static bool fabric_adds(const tpi_nccl_call *call, const tpi_collective_args *args)
{
    if (!is_float(args->in_dtype))
        return true;
    tp_all_reduce_algorithm algorithm = args->reduce.algorithm;
    bool free_order = algorithm == TP_ALL_REDUCE_AUTO || algorithm == TP_ALL_REDUCE_RING;
    return args->reduce.op == TP_REDUCE_SUM && free_order && call->ctx->desc.sum_order == TP_SUM_FAST;
}

static bool is_plain(const tpi_collective_args *args)
{
    const tp_reduce_desc *reduce = &args->reduce;
    return args->in_dtype == args->out_dtype && !reduce->bias.data && !reduce->residual.data && reduce->dropout == 0;
}

/* Adds elements [begin, end) of the result, whose inputs begin at in[]; `out` is where they go. */
static tp_status add(const tpi_nccl_call *call, const tpi_collective_args *args, const void *const *in, int inputs,
                     void *out, tp_range elements)
{
    const tpi_span span = {
        .in = in,
        .inputs = inputs,
        .in_dtype = args->in_dtype,
        .out = &out,
        .outputs = 1,
        .out_dtype = args->out_dtype,
        .begin = elements.begin,
        .end = elements.end,
        .cols = args->cols,
        .reduce = &args->reduce,
        .stream = call->stream,
        .arrays = &call->own->arrays,
    };
    return tpi_comm_reduce_span(call->ctx, &span);
}

/* In the window an operation is in place: NCCL takes its kernel for symmetric memory only if all it reads and writes is
 * in windows. */
static tp_status bring(const tpi_nccl_call *call, void *staging, size_t offset, const void **in, size_t bytes)
{
    if (!tpi_nccl_in_window(call, staging))
        return TP_OK;
    void *own = (char *)staging + offset;
    TPI_TRY(tpi_nccl_copy(call, own, *in, bytes));
    *in = own;
    return TP_OK;
}

/* ---- the fabric's own -------------------------------------------------------------------------------------------- */

/* One stretch: sums to `out`, by way of staging where they must be finished in another dtype. */
static tp_status fabric_stretch(const tpi_nccl_call *call, const tpi_collective_args *args, tp_range elements)
{
    const void *in = tpi_comm_at(args->in, elements.begin, args->in_dtype);
    void *out = tpi_comm_at_out(args->out, elements.begin, args->out_dtype), *sums = out;
    size_t bytes = tpi_comm_bytes(elements.end - elements.begin, args->in_dtype);
    if (!is_plain(args)) {
        TPI_TRY(tpi_nccl_stage(call, bytes, &sums));
        TPI_TRY(bring(call, sums, 0, &in, bytes));
    }
    const tpi_fabric_op op = {
        .in = in, .out = sums, .count = elements.end - elements.begin, .dtype = args->in_dtype, .op = args->reduce.op};
    TPI_TRY(call->table->all_reduce(call->stream, call->fabric, &op));
    if (is_plain(args))
        return TP_OK;
    const void *leaf = sums;
    TPI_TRY(add(call, args, &leaf, 1, out, elements));
    return tpi_nccl_unstage(call);
}

static tp_status fabric_all_reduce(const tpi_nccl_call *call, const tpi_collective_args *args)
{
    int64_t elements = args->rows * args->cols;
    int64_t most = is_plain(args) ? elements : (int64_t)(TPI_NCCL_STAGING_BYTES / tp_dtype_size(args->in_dtype));
    for (int64_t begin = 0; begin < elements; begin += most)
        TPI_TRY(fabric_stretch(call, args, (tp_range){begin, elements - begin < most ? elements : begin + most}));
    return TP_OK;
}

/* Every rank has `count` elements. */
static tp_status fabric_reduce_scatter(const tpi_nccl_call *call, const tpi_collective_args *args, int64_t count)
{
    void *sums = args->out;
    if (!is_plain(args))
        TPI_TRY(tpi_nccl_stage(call, tpi_comm_bytes(count, args->in_dtype), &sums));
    const tpi_fabric_op op = {
        .in = args->in, .out = sums, .count = count, .dtype = args->in_dtype, .op = args->reduce.op};
    TPI_TRY(call->table->reduce_scatter(call->stream, call->fabric, &op));
    if (is_plain(args))
        return TP_OK;
    const void *leaf = sums;
    TPI_TRY(add(call, args, &leaf, 1, args->out, (tp_range){0, count}));
    return tpi_nccl_unstage(call);
}

/* ---- one step ---------------------------------------------------------------------------------------------------- */

static tp_status one_shot_stretch(const tpi_nccl_call *call, const tpi_collective_args *args, tp_range elements)
{
    size_t bytes = tpi_comm_bytes(elements.end - elements.begin, args->in_dtype);
    const void *leaf[TPI_MAX_RANKS];
    void *staging;
    TPI_TRY(tpi_nccl_stage(call, bytes * (size_t)call->size, &staging));
    const void *in = tpi_comm_at(args->in, elements.begin, args->in_dtype);
    TPI_TRY(bring(call, staging, (size_t)call->rank * bytes, &in, bytes));
    const tpi_fabric_op op = {.in = in, .out = staging, .count = (int64_t)bytes, .dtype = TP_DTYPE_U8};
    TPI_TRY(call->table->all_gather(call->stream, call->fabric, &op));
    for (int rank = 0; rank < call->size; rank++)
        leaf[rank] = (char *)staging + (size_t)rank * bytes;
    TPI_TRY(add(call, args, leaf, call->size, tpi_comm_at_out(args->out, elements.begin, args->out_dtype), elements));
    return tpi_nccl_unstage(call);
}

/* A stretch's length that staging holds once a rank. */
static int64_t most_elements(const tpi_nccl_call *call, tp_dtype dtype)
{
    int64_t most = (int64_t)(TPI_NCCL_STAGING_BYTES / ((size_t)call->size * tp_dtype_size(dtype)));
    return most / SLICE_ELEMENTS * SLICE_ELEMENTS;
}

static tp_status one_shot(const tpi_nccl_call *call, const tpi_collective_args *args)
{
    int64_t elements = args->rows * args->cols, most = most_elements(call, args->in_dtype);
    for (int64_t begin = 0; begin < elements; begin += most)
        TPI_TRY(one_shot_stretch(call, args, (tp_range){begin, elements - begin < most ? elements : begin + most}));
    return TP_OK;
}

/* ---- two steps --------------------------------------------------------------------------------------------------- */

/* Elements [from, from + most) of a share, counted from its begin, as elements of the whole. */
static tp_range part_of(tp_range share, int64_t from, int64_t most)
{
    int64_t begin = share.begin + from < share.end ? share.begin + from : share.end;
    return (tp_range){begin, share.end - begin < most ? share.end : begin + most};
}

static size_t part_bytes(tp_range part, tp_dtype dtype)
{
    return tpi_comm_bytes(part.end - part.begin, dtype);
}

/* Everybody's part of each share goes to its owner; leaf[] is where this rank's then lie. */
static tp_status collect(const tpi_nccl_call *call, const tpi_collective_args *args, const tp_range *parts,
                         const void **leaf)
{
    size_t own = part_bytes(parts[call->rank], args->in_dtype);
    void *staging;
    TPI_TRY(tpi_nccl_stage_messages(call, own * (size_t)call->size, &staging));
    TPI_TRY(call->table->group_begin(call->fabric));
    tp_status status = TP_OK;
    for (int i = 1; i < call->size && status == TP_OK; i++) {
        int to = (call->rank + i) % call->size, from = (call->rank + call->size - i) % call->size;
        status = tpi_nccl_send(call, tpi_comm_at(args->in, parts[to].begin, args->in_dtype),
                               part_bytes(parts[to], args->in_dtype), to);
        if (status == TP_OK)
            status = tpi_nccl_receive(call, (char *)staging + (size_t)from * own, own, from);
        leaf[from] = (char *)staging + (size_t)from * own;
    }
    leaf[call->rank] = tpi_comm_at(args->in, parts[call->rank].begin, args->in_dtype);
    return tpi_nccl_group_end(call, status);
}

/* Every owner's finished part goes to everybody. */
static tp_status hand_out(const tpi_nccl_call *call, const tpi_collective_args *args, const tp_range *parts)
{
    const char *mine = tpi_comm_at(args->out, parts[call->rank].begin, args->out_dtype);
    TPI_TRY(call->table->group_begin(call->fabric));
    tp_status status = TP_OK;
    for (int i = 1; i < call->size && status == TP_OK; i++) {
        int to = (call->rank + i) % call->size, from = (call->rank + call->size - i) % call->size;
        status = tpi_nccl_send(call, mine, part_bytes(parts[call->rank], args->out_dtype), to);
        if (status == TP_OK)
            status = tpi_nccl_receive(call, tpi_comm_at_out(args->out, parts[from].begin, args->out_dtype),
                                      part_bytes(parts[from], args->out_dtype), from);
    }
    return tpi_nccl_group_end(call, status);
}

/* `gathers`: out is the whole, and everybody gets it; else it is this rank's share. */
static tp_status two_shot(const tpi_nccl_call *call, const tpi_collective_args *args, const shares *owned, bool gathers)
{
    int64_t most = most_elements(call, args->in_dtype);
    tp_range share = owned->range[call->rank], parts[TPI_MAX_RANKS];
    const void *leaf[TPI_MAX_RANKS];
    for (int64_t from = 0; from < owned->longest; from += most) {
        for (int rank = 0; rank < call->size; rank++)
            parts[rank] = part_of(owned->range[rank], from, most);
        tp_range mine = parts[call->rank];
        int64_t shift = gathers ? 0 : share.begin;
        TPI_TRY(collect(call, args, parts, leaf));
        TPI_TRY(add(call, args, leaf, call->size, tpi_comm_at_out(args->out, mine.begin - shift, args->out_dtype),
                    (tp_range){mine.begin - shift, mine.end - shift}));
        TPI_TRY(tpi_nccl_unstage(call));
        if (gathers)
            TPI_TRY(hand_out(call, args, parts));
    }
    return TP_OK;
}

static void own(shares *owned, int rank, tp_range range)
{
    owned->range[rank] = range;
    if (range.end - range.begin > owned->longest)
        owned->longest = range.end - range.begin;
}

static shares slices_of(const tpi_nccl_call *call, int64_t elements)
{
    shares owned = {.longest = 0};
    int64_t blocks = elements / SLICE_ELEMENTS + (elements % SLICE_ELEMENTS != 0);
    for (int rank = 0; rank < call->size; rank++) {
        tp_range range = tp_shard_range(blocks, call->size, rank);
        own(&owned, rank,
            (tp_range){range.begin == blocks ? elements : range.begin * SLICE_ELEMENTS,
                       range.end == blocks ? elements : range.end * SLICE_ELEMENTS});
    }
    return owned;
}

/* ---- the operations ---------------------------------------------------------------------------------------------- */

tp_status tpi_nccl_all_reduce(const tpi_nccl_call *call, const tpi_collective_args *args)
{
    int64_t elements = args->rows * args->cols;
    if (fabric_adds(call, args))
        return fabric_all_reduce(call, args);
    bool small = tpi_comm_bytes(elements, args->in_dtype) * (size_t)call->size <= TPI_NCCL_ONE_SHOT_BYTES;
    tp_all_reduce_algorithm algorithm = args->reduce.algorithm;
    if (algorithm == TP_ALL_REDUCE_ONE_SHOT || (algorithm != TP_ALL_REDUCE_TWO_SHOT && small))
        return one_shot(call, args);
    const shares owned = slices_of(call, elements);
    return two_shot(call, args, &owned, true);
}

tp_status tpi_nccl_reduce_scatter(const tpi_nccl_call *call, const tpi_collective_args *args)
{
    shares owned = {.longest = 0};
    int64_t shortest = INT64_MAX;
    for (int rank = 0; rank < call->size; rank++) {
        tp_range rows = tpi_comm_range(args->counts, args->rows, call->size, rank);
        own(&owned, rank, (tp_range){rows.begin * args->cols, rows.end * args->cols});
        shortest = (rows.end - rows.begin) * args->cols < shortest ? (rows.end - rows.begin) * args->cols : shortest;
    }
    bool fits = is_plain(args) || tpi_comm_bytes(owned.longest, args->in_dtype) <= TPI_NCCL_STAGING_BYTES;
    if (fabric_adds(call, args) && shortest == owned.longest && fits)
        return shortest > 0 ? fabric_reduce_scatter(call, args, shortest) : TP_OK;
    return two_shot(call, args, &owned, false);
}
