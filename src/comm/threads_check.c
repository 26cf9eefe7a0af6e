/* Whether all ranks called the same. Always: a number made of each call goes along with the gate, and where numbers
 * differ the last rank to come says whose. In a checking world all ranks compare everything that all ranks posted
 * before anything moves. Either way all come to the same verdict. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "comm/threads.h"

#define DESCRIPTION_BYTES 128

static const char *const reduce_names[] = {[TP_REDUCE_SUM] = "sum", [TP_REDUCE_MAX] = "max", [TP_REDUCE_MIN] = "min"};

/* "all_reduce(sum, f32, 12 x 4)" */
static void describe(const tpi_post *post, char text[DESCRIPTION_BYTES])
{
    char reduce[16] = "", root[32] = "", dtype[32] = "";
    if (post->op >= 0)
        snprintf(reduce, sizeof reduce, "%s, ", reduce_names[post->op]);
    if (post->root >= 0)
        snprintf(root, sizeof root, ", root %d", post->root);
    snprintf(dtype, sizeof dtype, "%s", tp_dtype_name(post->in_dtype));
    if (post->out_dtype != post->in_dtype)
        snprintf(dtype, sizeof dtype, "%s to %s", tp_dtype_name(post->in_dtype), tp_dtype_name(post->out_dtype));
    if (post->named)
        snprintf(text, DESCRIPTION_BYTES, "%s", post->call);
    else if (post->in_dtype == TP_DTYPE_INVALID)
        snprintf(text, DESCRIPTION_BYTES, "%s()", post->call);
    else
        snprintf(text, DESCRIPTION_BYTES, "%s(%s%s, %" PRId64 " x %" PRId64 "%s)", post->call, reduce, dtype,
                 post->rows, post->cols, root);
}

static tp_status differ(const tpi_call *call, int a, int b, const char *what)
{
    char first[DESCRIPTION_BYTES], second[DESCRIPTION_BYTES];
    describe(tpi_call_peer(call, a), first);
    describe(tpi_call_peer(call, b), second);
    tpi_touch_end(call);
    return tpi_call_fail(call, TP_ERR_MISMATCH, "rank %d called %s, rank %d called %s on the same group of %d ranks%s",
                         call->group->seats[a].world_rank, first, call->group->seats[b].world_rank, second, call->size,
                         what);
}

static bool same(const tpi_post *a, const tpi_post *b)
{
    return strcmp(a->call, b->call) == 0 && a->in_dtype == b->in_dtype && a->out_dtype == b->out_dtype &&
           a->op == b->op && a->root == b->root && a->cols == b->cols && (a->rows == b->rows || a->exchange);
}

/* Rows a rank, where all ranks must give the same. */
static bool same_counts(const tpi_call *call, const tpi_post *a, const tpi_post *b)
{
    for (int rank = 0; rank < call->size; rank++) {
        tp_range x = tpi_comm_range(a->counts, a->rows, call->size, rank),
                 y = tpi_comm_range(b->counts, b->rows, call->size, rank);
        if (x.begin != y.begin || x.end != y.end)
            return false;
    }
    return true;
}

/* all_to_all: what one sends is what the other expects. */
static bool fits(const tpi_call *call, const tpi_post *from, int a, const tpi_post *to, int b)
{
    tp_range sent = tpi_comm_range(from->counts, from->rows, call->size, b);
    tp_range expected = tpi_comm_range(to->recv_counts, to->out_rows, call->size, a);
    return sent.end - sent.begin == expected.end - expected.begin;
}

/* The count arrays are free again only when all have compared them. */
static tp_status agree(tpi_call *call)
{
    tpi_touch_end(call);
    return tpi_call_gate(call);
}

static tp_status check_exchanges(tpi_call *call)
{
    for (int a = 0; a < call->size; a++)
        for (int b = 0; b < call->size; b++)
            if (!fits(call, tpi_call_peer(call, a), a, tpi_call_peer(call, b), b))
                return differ(call, a, b, ": the first sends other row counts than the second expects");
    return agree(call);
}

/* Inside a touching stretch: count arrays are the peers' memory. */
static tp_status compare(const tpi_call *call)
{
    const tpi_post *first = tpi_call_peer(call, 0);
    for (int rank = 1; rank < call->size; rank++) {
        const tpi_post *other = tpi_call_peer(call, rank);
        if (!same(first, other))
            return differ(call, 0, rank, "");
        if (!first->exchange && !same_counts(call, first, other))
            return differ(call, 0, rank, ": their row counts of the ranks differ");
        if (first->algorithm != other->algorithm)
            return differ(call, 0, rank, ": they ask for different algorithms");
    }
    return TP_OK;
}

tp_status tpi_check_common(const tpi_call *call)
{
    if (!tpi_touch_begin(call))
        return tpi_call_peer_failed(call);
    TPI_TRY(compare(call));
    tpi_touch_end(call);
    return TP_OK;
}

tp_status tpi_check_posts(tpi_call *call)
{
    if (!tpi_touch_begin(call))
        return tpi_call_peer_failed(call);
    TPI_TRY(compare(call));
    if (tpi_call_peer(call, 0)->exchange)
        return check_exchanges(call);
    return agree(call);
}

static uint64_t mix(uint64_t state, uint64_t value)
{
    state = (state ^ value) * 0x9e3779b97f4a7c15u;
    return state ^ state >> 32;
}

/* Counts that are given count only where they are not the balanced ones, which others may have meant by giving none. */
uint64_t tpi_post_mix_counts(uint64_t state, const tpi_call *call, const tpi_post *post)
{
    uint64_t mixed = state;
    bool balanced = true;
    for (int rank = 0; rank < call->size; rank++) {
        balanced = balanced && post->counts[rank] == tpi_comm_range(NULL, post->rows, call->size, rank).end -
                                                         tpi_comm_range(NULL, post->rows, call->size, rank).begin;
        mixed = mix(mixed, (uint64_t)post->counts[rank]);
    }
    return balanced ? state : mixed;
}
