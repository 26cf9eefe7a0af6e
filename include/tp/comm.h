/* Communication between ranks: worlds, communicators and collectives.
 *
 * Common to all collectives
 *   Shapes      tensors are dense; "rows" is the first dimension. Counts of rows a rank default to tp_shard_range(rows,
 *               size, rank).
 *   When        ordered on the context's compute stream. All ranks of a communicator make the same calls in the same
 *               order; other communicators of the same ranks may be used in between in any order.
 *   Sums        f32, bf16 and f16 inputs are added in f32, integers in their own type (wrapping), always in the fixed
 *               binary tree over ranks ((0+1)+(2+3))+..., and rounded once; TP_ALL_REDUCE_RING adds along the ring
 *               instead. max and min: NaN wins.
 *   Aliasing    in == out (same memory) is allowed where the shapes allow it; other overlaps are not.
 *   Errors      TP_ERR_SHAPE, TP_ERR_DTYPE, and TP_ERR_ARGUMENT where memory is not aligned to its dtype, before
 *               anything moves; TP_ERR_PEER with the failing rank's own message; TP_ERR_TIMEOUT; TP_ERR_MISMATCH where
 *               ranks call different things. After the last three the context can only be destroyed. What makes
 *               something (split, symmetric_create) is refused on all ranks if one has no memory: TP_ERR_MEMORY there,
 *               TP_ERR_PEER on the others, nothing broken. */
#ifndef TP_COMM_H
#define TP_COMM_H

#include <tp/context.h>
#include <tp/random.h>

typedef enum tp_reduce_op { TP_REDUCE_SUM = 0, TP_REDUCE_MAX, TP_REDUCE_MIN } tp_reduce_op;

typedef enum tp_all_reduce_algorithm {
    TP_ALL_REDUCE_AUTO = 0,
    TP_ALL_REDUCE_ONE_SHOT, /* every rank reads all and adds everything: fewest steps */
    TP_ALL_REDUCE_TWO_SHOT, /* every rank adds its slice and hands it to all: least traffic */
    TP_ALL_REDUCE_RING      /* only under TP_SUM_FAST */
} tp_all_reduce_algorithm;

/* A link put on a thread world so that overlap can be measured where memory is shared: a transfer completes no sooner
 * than the link would allow. bytes_per_second 0: no model. Every figure from it must be labelled as modelled. */
typedef struct tp_link {
    double latency_seconds;
    double bytes_per_second;
} tp_link;

/* All-reduces of up to 256 KiB between GPUs of one process in one kernel a rank, whose kernels wait for each other over
 * peer memory (docs/cuda.md, section 3). AUTO: where up to eight ranks have a device each and reach each other. ALWAYS:
 * also where ranks share devices, which must have room for the kernels of all of them at once. NEVER: for profilers and
 * debuggers that run one kernel at a time. The bits don't depend on it. */
typedef enum tp_peer_kernels { TP_PEER_KERNELS_AUTO = 0, TP_PEER_KERNELS_ALWAYS,
                              TP_PEER_KERNELS_NEVER } tp_peer_kernels;

typedef struct tp_world_desc {
    int ranks; /* 1 to 64 */
    tp_link link;
    /* Compare all calls of all ranks before anything moves: also what ranks of all_to_all send each other, and which
     * plans, on how many tokens, layers run. A gate more a collective, an exchange more a plan. */
    bool check_calls;
    int64_t timeout_ms; /* bound of every wait; 0: ten minutes */
    tp_transport transport;
    tp_peer_kernels peer_kernels;
} tp_world_desc;

/* One process of a world whose ranks are processes. */
typedef struct tp_process_desc {
    int rank, ranks;
    const char *address; /* host name or number of rank 0's machine; borrowed for the call */
    int port;            /* that rank 0 listens on */
    bool check_calls;    /* as in tp_world_desc */
    int64_t timeout_ms;  /* bound of every wait, the one for all ranks to come too; 0: ten minutes */
} tp_process_desc;

/* How a reduced value is finished: out = round(dropout(sum + bias) + residual), in f32, rounded once.
 * All parts optional. first_row is the global row of out's first row (masks are drawn on global indices). */
typedef struct tp_reduce_desc {
    tp_reduce_op op;
    tp_all_reduce_algorithm algorithm;
    tp_tensor bias;     /* [cols] */
    tp_tensor residual; /* shape of out */
    float dropout;      /* probability; 0: none */
    tp_random_key dropout_key;
    int64_t first_row;
} tp_reduce_desc;

/* A norm behind a sum: of each row, as in tp_norm_forward. */
typedef struct tp_reduce_norm {
    bool rms;
    float epsilon;
    tp_tensor gain;  /* [cols], dtype of the sum */
    tp_tensor bias;  /* the same; optional, LayerNorm only */
    tp_tensor out;   /* [rows, cols], dtype of the sum: written */
    tp_tensor stats; /* f32 [rows, 2]: written; optional */
} tp_reduce_norm;

typedef struct tp_p2p {
    bool send; /* else receive */
    int peer;
    tp_tensor tensor;
} tp_p2p;

/* The same-size buffer on every rank, and everyone's addresses, for kernels of this rank. */
typedef struct tp_symmetric {
    size_t bytes;
    void *local;
    void **peer; /* [size of the communicator]; peer[rank] == local */
} tp_symmetric;

typedef struct tp_run_options {
    int ranks;              /* 0: 1 */
    tp_ctx_desc ctx;        /* template; world and rank are filled in */
    int devices;            /* ranks are dealt out in turn over so many devices from ctx.device_index on; 0: 1 */
    tp_link link;
    bool check_calls;
    tp_transport transport;
    tp_peer_kernels peer_kernels;
    bool bind_cores;        /* each rank's threads, lanes too, keep to an equal share of the caller's cores, where there
                             * is one for each rank. Where lanes share a core with compute, the kernel may otherwise put
                             * two ranks' compute on one core for as long as a pass takes */
} tp_run_options;

TP_BEGIN_DECLS

/* A world of thread ranks in this process. Each rank's thread creates its own context with .world and .rank. */
TP_API tp_status tp_world_create_threads(const tp_world_desc *desc, tp_world **out);
/* A world whose ranks are processes: returns when all of them have come. Each makes one context with .world and .rank,
 * on a GPU of its own (data moves over NCCL). Errors: TP_ERR_ARGUMENT (two ranks with one number, different numbers of
 * ranks: all are told), TP_ERR_TIMEOUT (nobody listens, or who did not come), TP_ERR_COMM, TP_ERR_VERSION. */
TP_API tp_status tp_world_create_processes(const tp_process_desc *desc, tp_world **out);
/* The same from the environment that launchers set: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and LOCAL_RANK
 * (default: RANK). Fills in desc->world, ->rank and, on a GPU, ->device_index; takes ->timeout_ms. The caller destroys
 * the world. */
TP_API tp_status tp_world_create_env(tp_ctx_desc *desc);
/* After all its contexts were destroyed. NULL is fine. */
TP_API void tp_world_destroy(tp_world *world);

/* Starts `ranks` threads, each with a context, and runs fn in them; waits for all. A rank whose fn fails aborts the
 * world, so peers return TP_ERR_PEER soon; so do those who wait for a rank whose fn has ended (TP_ERR_STATE in the
 * end). Returns the first failing rank's own status; tp_last_message() is its message, with the rank's number. */
TP_API tp_status tp_run_ranks(const tp_run_options *options, tp_status (*fn)(tp_ctx *ctx, void *arg), void *arg);

/* Of NULL: 0, 0, "none". */
TP_API int tp_comm_rank(const tp_comm *comm);
TP_API int tp_comm_size(const tp_comm *comm);
/* "self", "threads", "nccl", ... */
TP_API const char *tp_comm_transport(const tp_comm *comm);

/* Collectives: all ranks of the communicator call the same operations in the same order, with the same shapes, dtypes,
 * row counts, root, op and algorithm. Where they don't, all get TP_ERR_MISMATCH with the calls of two ranks that
 * differ, before any data has moved; over NCCL in a checking world only. Elsewhere NCCL promises nothing then: wrong
 * numbers without an error, writes past the end of memory, an error, or no end, until the bound makes it
 * TP_ERR_TIMEOUT. */

/* out = finish(sum over ranks of in). in, out: same shape on all ranks. Input f32 may write f32, bf16 or f16; other
 * inputs keep their dtype. desc NULL: plain sum. */
TP_API tp_status tp_all_reduce(tp_ctx *ctx, tp_comm *comm, tp_tensor in, tp_tensor out, const tp_reduce_desc *desc);

/* sum = finish(sum over ranks of in), and norm->out = norm(sum): what follows a row-parallel layer with a residual, in
 * one call. The bits of tp_all_reduce and of the norm, one after the other; one kernel where tp_all_reduce is one
 * (tp_peer_kernels).
 * Shapes      in, sum [rows, cols]; sum in a floating dtype. desc->op is TP_REDUCE_SUM; NULL: plain sum.
 * Aliasing    sum may be in, and desc->residual may be sum; norm->out is apart. */
TP_API tp_status tp_all_reduce_norm(tp_ctx *ctx, tp_comm *comm, tp_tensor in, tp_tensor sum, const tp_reduce_desc *desc,
                                    const tp_reduce_norm *norm);

/* out = finish(rows [range of this rank] of the sum over ranks of in). in: [rows, ...] on all; out: this rank's rows.
 * counts: rows a rank, NULL for balanced. In place: out is the rank's own rows inside in. */
TP_API tp_status tp_reduce_scatter(tp_ctx *ctx, tp_comm *comm, tp_tensor in, tp_tensor out, const int64_t *counts,
                                   const tp_reduce_desc *desc);

/* out = rows of all ranks, in rank order. In place: in is the rank's own rows inside out. */
TP_API tp_status tp_all_gather(tp_ctx *ctx, tp_comm *comm, tp_tensor in, tp_tensor out, const int64_t *counts);

/* Copies root's tensor to all. */
TP_API tp_status tp_broadcast(tp_ctx *ctx, tp_comm *comm, tp_tensor tensor, int root);

/* Rank r sends send_counts[p] rows to p, in rank order from in, and receives recv_counts[p] rows from p into out. Not
 * in place. */
TP_API tp_status tp_all_to_all(tp_ctx *ctx, tp_comm *comm, tp_tensor in, const int64_t *send_counts, tp_tensor out,
                               const int64_t *recv_counts);

/* Posts all sends and receives as one batch and completes them: no order among them can deadlock. Between two ranks,
 * sends meet receives in the order of the array, of the same dtype and size; shapes may differ. */
TP_API tp_status tp_p2p_batch(tp_ctx *ctx, tp_comm *comm, const tp_p2p *ops, int count);

TP_API tp_status tp_barrier(tp_ctx *ctx, tp_comm *comm);

/* New communicator of the ranks that give the same color, ordered by key, then rank; color < 0: *out is NULL. */
TP_API tp_status tp_comm_split(tp_ctx *ctx, tp_comm *comm, int color, int key, tp_comm **out);
TP_API void tp_comm_destroy(tp_ctx *ctx, tp_comm *comm);

/* Makes every pending and later wait on this world return TP_ERR_PEER with this message, on all ranks. Never blocks. */
TP_API void tp_comm_abort(tp_ctx *ctx, tp_comm *comm, tp_status status, const char *message);

/* Registers `bytes` on all ranks; collective. Freed by tp_symmetric_destroy, collective too, before the communicator.
 * Where ranks do not reach each other's memory by themselves (processes, GPUs without peer access) it is a window of
 * NCCL, 2.29.2 or later, between GPUs that have symmetric memory: from NCCL's allocator, not tp_ctx_desc.allocator, and
 * rounded up by it to what the GPU maps at once.
 * Over NCCL a message (tp_p2p_batch) that is sent from such memory must be received in such memory, and the other way
 * round.
 * Errors      TP_ERR_UNSUPPORTED, with what is missing, on all ranks; TP_ERR_MISMATCH where ranks ask for other sizes:
 *             nothing is broken after either. */
TP_API tp_status tp_symmetric_create(tp_ctx *ctx, tp_comm *comm, size_t bytes, tp_symmetric *out);
TP_API void tp_symmetric_destroy(tp_ctx *ctx, tp_comm *comm, tp_symmetric *symmetric);

TP_END_DECLS
#endif
