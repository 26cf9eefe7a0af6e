/* What transports share: ranges of ranks, copies and sums on the executing thread, and the account of communication
 * time. */
#ifndef TPI_COLLECTIVE_H
#define TPI_COLLECTIVE_H

#include "comm/table.h"

/* Refusals are rare: what leads to them lies out of the way of small operations. */
tp_status tpi_refuse(tp_ctx *ctx, tp_status status, const char *format, ...) __attribute__((cold));
tp_status tpi_fail(tp_ctx *ctx, tp_status status, const char *format, ...) __attribute__((cold));

/* Ranks of one communicator: the widest sum that the reduce op takes. */
#define TPI_MAX_RANKS 64

/* Rows [begin, end) of a rank under counts, or balanced where counts is NULL. */
tp_range tpi_comm_any_range(const int64_t *counts, int64_t rows, int size, int rank);
static inline tp_range tpi_comm_range(const int64_t *counts, int64_t rows, int size, int rank)
{
    if (counts || size != 2)
        return tpi_comm_any_range(counts, rows, size, rank);
    /* As tp_shard_range, without its divisions. */
    int64_t first = rows / 2;
    return rank == 0 ? (tp_range){0, first} : (tp_range){first, rows};
}

typedef struct tpi_pointer_ring tpi_pointer_ring;

/* Elements [begin, end) of a [.., cols] result, begin and end counted from its first element. in[] and out[] already
 * point to element `begin`; bias, residual and dropout of `reduce` are found from the element numbers. */
typedef struct tpi_span {
    const void *const *in;
    int inputs;
    tp_dtype in_dtype;
    void *const *out;
    int outputs;
    tp_dtype out_dtype;
    int64_t begin, end, cols;
    const tp_reduce_desc *reduce;
    tpi_stream *stream;       /* the sums are issued there; NULL: done at once, on the executing thread */
    tpi_pointer_ring *arrays; /* for issued sums of more than TP_VIRTUAL_RANKS + 1 inputs, or several outputs */
} tpi_span;

/* Arrays of addresses that issued ops may still read: taken in turn. */
#define TPI_POINTER_ARRAYS 16
struct tpi_pointer_ring {
    unsigned taken;
    tpi_stream *stream[TPI_POINTER_ARRAYS]; /* that the last op with this array was issued on */
    void *array[TPI_POINTER_ARRAYS][2 * TPI_MAX_RANKS];
};

tp_status tpi_comm_reduce_span(tp_ctx *ctx, const tpi_span *span);

/* The one place where a communication task calls a backend op: the task already runs on the stream's executing thread.
 */
tp_status tpi_comm_local_reduce(tp_ctx *ctx, const tpi_reduce_args *args);
tp_status tpi_comm_local_map(tp_ctx *ctx, const tpi_map_args *args);

/* Copies where the two differ. */
void tpi_comm_copy(void *out, const void *in, size_t bytes);

/* For more than caches hold: what is written doesn't go through them, and is visible to other threads when this
 * returns. */
void tpi_comm_copy_past_caches(void *out, const void *in, size_t bytes);

/* Bytes of an element; 0: no dtype. A small collective asks many times. */
static inline size_t tpi_comm_size_of(tp_dtype dtype)
{
    static const unsigned char sizes[TP_DTYPE_COUNT] = {[TP_DTYPE_F32] = 4, [TP_DTYPE_BF16] = 2, [TP_DTYPE_F16] = 2,
                                                        [TP_DTYPE_I32] = 4, [TP_DTYPE_I64] = 8,  [TP_DTYPE_U8] = 1};
    return (unsigned)dtype < TP_DTYPE_COUNT ? sizes[dtype] : 0;
}

static inline size_t tpi_comm_bytes(int64_t elements, tp_dtype dtype)
{
    return (size_t)elements * tpi_comm_size_of(dtype);
}

/* Address of an element; NULL stays NULL. */
static inline const void *tpi_comm_at(const void *base, int64_t element, tp_dtype dtype)
{
    return base ? (const char *)base + tpi_comm_bytes(element, dtype) : NULL;
}

static inline void *tpi_comm_at_out(void *base, int64_t element, tp_dtype dtype)
{
    return base ? (char *)base + tpi_comm_bytes(element, dtype) : NULL;
}

/* norms of transports that don't do it. */
bool tpi_norms_never(const tpi_collective_args *args);

/* comm.c: TP_OK if this context may communicate over comm. */
tp_status tpi_comm_usable(tp_ctx *ctx, const tp_comm *comm);

/* symmetric.c: symmetric buffers of plain memory, for ranks that reach each other's. */
tp_status tpi_symmetric_allocate(tp_ctx *ctx, tp_comm *comm, size_t bytes, tp_symmetric *out);
void tpi_symmetric_release(tp_ctx *ctx, tp_comm *comm, tp_symmetric *symmetric);

/* Whether all ranks ask for symmetric memory of one size, given what each asked for; else a refusal, on all ranks. */
tp_status tpi_symmetric_agree(tp_ctx *ctx, int size, const size_t *bytes);

/* A refusal on all ranks because `rank` has no memory for `what`: TP_ERR_MEMORY there, TP_ERR_PEER on the others. */
tp_status tpi_comm_no_memory(tp_ctx *ctx, const tp_comm *comm, int rank, const char *what);

/* What a rank says when a communicator is split; color < 0: it takes no part. */
typedef struct tpi_vote {
    int color, key;
    uint64_t id; /* processes: the group's, if this is its first rank */
} tpi_vote;

/* Ranks of this color, by key, then rank; their number. And a rank's place among them; count: it has none. */
int tpi_split_members(const tpi_vote *votes, int size, int color, int *members);
int tpi_split_place(const int *members, int count, int rank);

/* check.c: the argument checks of comm.c; they fill in the transport's args. */
tp_status tpi_check_all_reduce(tp_comm *comm, const tp_tensor *in, const tp_tensor *out, const tp_reduce_desc *desc,
                               tpi_collective_args *args);
/* Those of its norm; fills in the op's. */
tp_status tpi_check_reduce_norm(tp_ctx *ctx, tp_tensor sum, const tp_reduce_norm *norm, tpi_norm_args *args);
tp_status tpi_check_reduce_scatter(tp_comm *comm, const tp_tensor *in, const tp_tensor *out, const int64_t *counts,
                                   const tp_reduce_desc *desc, tpi_collective_args *args);
tp_status tpi_check_all_gather(tp_comm *comm, const tp_tensor *in, const tp_tensor *out, const int64_t *counts,
                               tpi_collective_args *args);
tp_status tpi_check_broadcast(tp_comm *comm, tp_tensor tensor, int root, tpi_collective_args *args);
tp_status tpi_check_all_to_all(tp_comm *comm, tp_tensor in, const int64_t *send_counts, tp_tensor out,
                               const int64_t *recv_counts, tpi_collective_args *args);
tp_status tpi_check_p2p(tp_comm *comm, const tp_p2p *ops, int count);

#endif
