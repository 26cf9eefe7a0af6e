/* all_gather, broadcast and all_to_all over thread ranks: every rank copies what it wants from its peers' buffers, or,
 * where they are small, from their staging, which needs no second gate. */
#include "comm/threads.h"

/* From so many bytes on a peer's rows are more than caches hold, and are written past them. */
#define PAST_CACHES ((size_t)8 << 20)

static size_t range_bytes(const tpi_collective_args *args, tp_range rows)
{
    return tpi_comm_bytes((rows.end - rows.begin) * args->cols, args->in_dtype);
}

static void copy_from_peer(void *out, const void *in, size_t bytes)
{
    if (bytes >= PAST_CACHES)
        tpi_comm_copy_past_caches(out, in, bytes);
    else
        tpi_comm_copy(out, in, bytes);
}

static void next(tpi_call *call, bool staged)
{
    if (staged)
        tpi_call_next_staged(call);
    else
        tpi_call_next(call);
}

static void gather_rows(const tpi_call *call, const tpi_collective_args *args, bool staged)
{
    /* Everyone begins at its own, so that not all read the same rank at once. */
    for (int i = 0, from = call->rank; i < call->size; i++, from = from + 1 == call->size ? 0 : from + 1) {
        tp_range rows = tpi_comm_range(args->counts, args->rows, call->size, from);
        const void *in = staged ? tpi_call_staging(call, from) : tpi_call_in(call, from);
        void *out = tpi_comm_at_out(args->out, rows.begin * args->cols, args->out_dtype);
        if (from == call->rank)
            tpi_comm_copy(out, args->in, range_bytes(args, rows));
        else
            copy_from_peer(out, in, range_bytes(args, rows));
    }
}

tp_status tpi_threads_all_gather(tpi_call *call, const tpi_collective_args *args)
{
    bool staged = tpi_call_stages_rows(call, args);
    size_t own = range_bytes(args, tpi_comm_range(args->counts, args->rows, call->size, call->rank));
    next(call, staged);
    if (staged)
        tpi_comm_copy(tpi_call_staging(call, call->rank), args->in, own);
    TPI_TRY(tpi_call_post_args(call, args, false));
    if (staged) {
        gather_rows(call, args, true);
    } else {
        if (!tpi_touch_begin(call))
            return tpi_call_peer_failed(call);
        gather_rows(call, args, false);
        tpi_touch_end(call);
        TPI_TRY(tpi_call_gate(call));
    }
    size_t all = tpi_comm_bytes(args->rows * args->cols, args->in_dtype);
    tpi_link_collective(call, own * (size_t)(call->size - 1), all - own, 1);
    return TP_OK;
}

tp_status tpi_threads_broadcast(tpi_call *call, const tpi_collective_args *args)
{
    tpi_post post = tpi_post_of(args);
    post.root = args->root;
    size_t bytes = tpi_comm_bytes(args->rows * args->cols, args->in_dtype);
    bool staged = tpi_call_stages(call, bytes), is_root = call->rank == args->root;
    next(call, staged);
    if (staged && is_root)
        tpi_comm_copy(tpi_call_staging(call, call->rank), args->in, bytes);
    TPI_TRY(tpi_call_post(call, &post));
    if (staged && !is_root)
        tpi_comm_copy(args->out, tpi_call_staging(call, args->root), bytes);
    if (!staged) {
        if (!tpi_touch_begin(call))
            return tpi_call_peer_failed(call);
        if (!is_root)
            tpi_comm_copy(args->out, tpi_call_in(call, args->root), bytes);
        tpi_touch_end(call);
        TPI_TRY(tpi_call_gate(call));
    }
    /* On a real link it would be pipelined along a chain. */
    tpi_link_collective(call, is_root ? bytes : 0, is_root ? 0 : bytes, 1);
    return TP_OK;
}

/* Rows that `from` sends to `to`, in from's input; counts NULL: balanced. */
static tp_range sent_rows(const tpi_call *call, int from, int to)
{
    const tpi_post *post = tpi_call_peer(call, from);
    return tpi_comm_range(post->counts, post->rows, call->size, to);
}

static tp_range received_rows(const tpi_call *call, const tpi_collective_args *args, int from)
{
    return tpi_comm_range(args->recv_counts, args->out_rows, call->size, from);
}

static int64_t count_of(tp_range rows)
{
    return rows.end - rows.begin;
}

static tp_status copy_from_all(const tpi_call *call, const tpi_collective_args *args, int *bad)
{
    int64_t first = 0;
    for (int from = 0; from < call->size; from++) {
        tp_range rows = sent_rows(call, from, call->rank);
        *bad = from;
        if (count_of(rows) != count_of(received_rows(call, args, from)))
            return TP_ERR_MISMATCH;
        const void *in = tpi_comm_at(tpi_call_peer(call, from)->in, rows.begin * args->cols, args->in_dtype);
        tpi_comm_copy(tpi_comm_at_out(args->out, first * args->cols, args->out_dtype), in, range_bytes(args, rows));
        first += count_of(rows);
    }
    return TP_OK;
}

tp_status tpi_threads_all_to_all(tpi_call *call, const tpi_collective_args *args)
{
    tpi_post post = tpi_post_of(args);
    post.exchange = true;
    tpi_call_next(call);
    TPI_TRY(tpi_call_post(call, &post));
    if (!tpi_touch_begin(call))
        return tpi_call_peer_failed(call);
    int from = 0;
    tp_status status = copy_from_all(call, args, &from);
    long long sends = (long long)count_of(sent_rows(call, from, call->rank)),
              expected = (long long)count_of(received_rows(call, args, from));
    size_t own = range_bytes(args, sent_rows(call, call->rank, call->rank));
    size_t received = 0;
    for (int rank = 0; rank < call->size; rank++)
        received += range_bytes(args, sent_rows(call, rank, call->rank));
    tpi_touch_end(call);
    if (status != TP_OK)
        return tpi_call_fail(call, status, "all_to_all: rank %d sends %lld rows to rank %d, which expects %lld",
                             call->group->seats[from].world_rank, sends, call->seat->world_rank, expected);
    TPI_TRY(tpi_call_gate(call));
    tpi_link_collective(call, tpi_comm_bytes(args->rows * args->cols, args->in_dtype) - own, received - own, 1);
    return TP_OK;
}
