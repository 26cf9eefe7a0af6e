/* What transports share. */
#include "comm/collective.h"

#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "cpu/cpu.h"

#define LINE ((size_t)64)
/* Elements of a small sum. */
#define SMALL_SUM 8192

tp_range tpi_comm_any_range(const int64_t *counts, int64_t rows, int size, int rank)
{
    if (!counts)
        return tp_shard_range(rows, size, rank);
    tp_range range = {0, 0};
    for (int i = 0; i < rank; i++)
        range.begin += counts[i];
    range.end = range.begin + counts[rank];
    return range;
}

tp_status tpi_comm_local_reduce(tp_ctx *ctx, const tpi_reduce_args *args)
{
    return tpi_cpu_table_of(ctx)->reduce(ctx, args);
}

tp_status tpi_comm_local_map(tp_ctx *ctx, const tpi_map_args *args)
{
    return tpi_cpu_table_of(ctx)->map(ctx, args);
}

tp_status tpi_comm_no_memory(tp_ctx *ctx, const tp_comm *comm, int rank, const char *what)
{
    return tpi_refuse(ctx, rank == comm->rank ? TP_ERR_MEMORY : TP_ERR_PEER, "rank %d of %d has no memory for %s", rank,
                      comm->size, what);
}

bool tpi_norms_never(const tpi_collective_args *args)
{
    (void)args;
    return false;
}

void tpi_comm_copy(void *out, const void *in, size_t bytes)
{
    if (bytes > 0 && out != in)
        memcpy(out, in, bytes);
}

void tpi_comm_copy_past_caches(void *out, const void *in, size_t bytes)
{
#if defined(__x86_64__)
    size_t head = (size_t)(-(uintptr_t)out % LINE);
    head = head < bytes ? head : bytes;
    tpi_comm_copy(out, in, head);
    size_t at = head;
    for (; bytes - at >= LINE; at += LINE) {
        const __m128i *from = (const __m128i *)(const void *)((const char *)in + at);
        __m128i *to = (__m128i *)(void *)((char *)out + at);
        __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1), c = _mm_loadu_si128(from + 2),
                d = _mm_loadu_si128(from + 3);
        _mm_stream_si128(to, a);
        _mm_stream_si128(to + 1, b);
        _mm_stream_si128(to + 2, c);
        _mm_stream_si128(to + 3, d);
    }
    _mm_sfence();
    tpi_comm_copy((char *)out + at, (const char *)in + at, bytes - at);
#else
    tpi_comm_copy(out, in, bytes);
#endif
}

/* Addresses of a span's inputs and outputs at an element. */
static void fill_addresses(const tpi_span *span, int64_t first, const void **in, void **out)
{
    for (int i = 0; i < span->inputs; i++)
        in[i] = tpi_comm_at(span->in[i], first - span->begin, span->in_dtype);
    for (int i = 0; i < span->outputs; i++)
        out[i] = tpi_comm_at_out(span->out[i], first - span->begin, span->out_dtype);
}

/* An array for an op issued on `stream`. A backend whose streams run behind has read it when the op was issued. */
static tp_status take_array(tp_ctx *ctx, tpi_pointer_ring *ring, tpi_stream *stream, void ***out)
{
    unsigned place = ring->taken++ % TPI_POINTER_ARRAYS;
    if (ring->stream[place] && !ctx->backend->behind)
        TPI_TRY(ctx->backend->stream_synchronize(ring->stream[place]));
    ring->stream[place] = stream;
    *out = ring->array[place];
    return TP_OK;
}

static tp_status issue_block(tp_ctx *ctx, const tpi_span *span, int64_t first, tpi_reduce_args *args)
{
    if (span->inputs <= TP_VIRTUAL_RANKS + 1 && span->outputs == 1) {
        fill_addresses(span, first, args->leaf, &args->single);
        return ctx->backend->reduce(span->stream, args);
    }
    void **array;
    TPI_TRY(take_array(ctx, span->arrays, span->stream, &array));
    const void **in = (const void **)(void *)array;
    fill_addresses(span, first, in, array + TPI_MAX_RANKS);
    args->in = in;
    args->out = array + TPI_MAX_RANKS;
    return ctx->backend->reduce(span->stream, args);
}

static tp_status do_block(tp_ctx *ctx, const tpi_span *span, int64_t first, tpi_reduce_args *args)
{
    const void *in[TPI_MAX_RANKS];
    void *out[TPI_MAX_RANKS];
    fill_addresses(span, first, in, out);
    args->in = in;
    args->out = out;
    return tpi_comm_local_reduce(ctx, args);
}

/* Whole rows, or a part of one row, of a span: `first` is the element number of its start. */
static tp_status reduce_block(tp_ctx *ctx, const tpi_span *span, int64_t first, int64_t rows, int64_t cols)
{
    const tp_reduce_desc *desc = span->reduce;
    int64_t column = first % span->cols;
    tpi_reduce_args args = {
        .op = desc->op,
        .inputs = span->inputs,
        .in_dtype = span->in_dtype,
        .outputs = span->outputs,
        .out_dtype = span->out_dtype,
        .rows = rows,
        .cols = cols,
        .bias = tpi_comm_at(desc->bias.data, column, desc->bias.dtype),
        .bias_dtype = desc->bias.dtype,
        .residual = tpi_comm_at(desc->residual.data, first, span->out_dtype),
        .dropout = desc->dropout,
        .dropout_key = desc->dropout_key,
        .first_row = desc->first_row + first / span->cols,
        .first_col = column,
        .total_cols = span->cols,
    };
    return span->stream ? issue_block(ctx, span, first, &args) : do_block(ctx, span, first, &args);
}

/* The sum of two arrays and nothing else, of so few elements that the way to the op counts. */
static bool is_small_sum(const tpi_span *span)
{
    const tp_reduce_desc *desc = span->reduce;
    return span->inputs == 2 && span->outputs == 1 && !span->stream && span->end - span->begin <= SMALL_SUM &&
           desc->op == TP_REDUCE_SUM && span->in_dtype == span->out_dtype && span->in_dtype <= TP_DTYPE_F16 &&
           !desc->bias.data && !desc->residual.data && desc->dropout == 0;
}

tp_status tpi_comm_reduce_span(tp_ctx *ctx, const tpi_span *span)
{
    int64_t begin = span->begin, end = span->end, cols = span->cols;
    if (begin >= end)
        return TP_OK;
    if (is_small_sum(span)) {
        tpi_cpu_table_of(ctx)->sum_pair(span->in_dtype, span->out[0], span->in[0], span->in[1], end - begin);
        return TP_OK;
    }
    /* Without a bias and a mask columns don't matter. */
    if (!span->reduce->bias.data && span->reduce->dropout == 0)
        return reduce_block(ctx, span, begin, 1, end - begin);
    int64_t head = (begin + cols - 1) / cols * cols;
    if (head > begin)
        TPI_TRY(reduce_block(ctx, span, begin, 1, (head < end ? head : end) - begin));
    if (head >= end)
        return TP_OK;
    int64_t rows = (end - head) / cols;
    if (rows > 0)
        TPI_TRY(reduce_block(ctx, span, head, rows, cols));
    int64_t tail = head + rows * cols;
    return tail < end ? reduce_block(ctx, span, tail, 1, end - tail) : TP_OK;
}

int tpi_split_members(const tpi_vote *votes, int size, int color, int *members)
{
    int count = 0;
    for (int rank = 0; rank < size; rank++) {
        if (votes[rank].color != color)
            continue;
        int place = count++;
        for (; place > 0 && votes[members[place - 1]].key > votes[rank].key; place--)
            members[place] = members[place - 1];
        members[place] = rank;
    }
    return count;
}

int tpi_split_place(const int *members, int count, int rank)
{
    int place = 0;
    while (place < count && members[place] != rank)
        place++;
    return place;
}
