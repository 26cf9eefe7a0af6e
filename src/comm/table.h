/* THE comm table: what a transport must do. Shapes and dtypes were checked by comm.c; calls run in stream order. Every
 * slot is non-NULL. */
#ifndef TPI_COMM_TABLE_H
#define TPI_COMM_TABLE_H

#include "comm/board.h"
#include "core/context.h"

/* A dense [rows, cols] buffer pair. Counts are rows a rank, [size]; NULL: balanced (tpi_comm_range). They must stay
 * until the op ran. */
typedef struct tpi_collective_args {
    tp_comm *comm;
    const void *in;
    void *out;
    tp_dtype in_dtype, out_dtype;
    int64_t rows, cols;         /* rows: global; all_to_all: of in */
    int64_t out_rows;           /* all_to_all only */
    const int64_t *counts;      /* all_gather, reduce_scatter: rows a rank; all_to_all: rows sent to each */
    const int64_t *recv_counts; /* all_to_all */
    int root;
    tp_reduce_desc reduce;
    const tpi_norm_args *norm; /* all_reduce: of out's rows, in the same kernel or behind it; NULL: none. Read when
                                * issued */
} tpi_collective_args;

typedef struct tpi_p2p_args {
    tp_comm *comm;
    const tp_p2p *ops; /* must stay until the op ran */
    int count;
} tpi_p2p_args;

typedef struct tpi_comm_table {
    const char *name;
    tp_status (*all_reduce)(tpi_stream *stream, const tpi_collective_args *args);
    /* Whether all_reduce does args->norm too, which is issued behind it otherwise. */
    bool (*norms)(const tpi_collective_args *args);
    tp_status (*reduce_scatter)(tpi_stream *stream, const tpi_collective_args *args);
    tp_status (*all_gather)(tpi_stream *stream, const tpi_collective_args *args);
    tp_status (*broadcast)(tpi_stream *stream, const tpi_collective_args *args);
    tp_status (*all_to_all)(tpi_stream *stream, const tpi_collective_args *args);
    tp_status (*p2p)(tpi_stream *stream, const tpi_p2p_args *args);
    tp_status (*barrier)(tpi_stream *stream, tp_comm *comm);
    /* Host-side, collective. */
    tp_status (*split)(tp_ctx *ctx, tp_comm *comm, int color, int key, tp_comm **out);
    tp_status (*exchange)(tp_ctx *ctx, tp_comm *comm, const void *mine, void *all,
                          size_t bytes); /* all-gather of small host data */
    void (*destroy)(tp_ctx *ctx, tp_comm *comm);
    /* rank: of this communicator. Never waits. */
    void (*abort)(tp_comm *comm, int rank, tp_status status, const char *message);
    /* TP_OK, or breaks the context with a peer's failure. Never waits. */
    tp_status (*health)(tp_comm *comm);
    /* Symmetric buffers. create: collective; fills in local and peer[], and refuses on all ranks what one can't have;
     * release: what create made or began. */
    tp_status (*symmetric_create)(tp_ctx *ctx, tp_comm *comm, size_t bytes, tp_symmetric *out);
    void (*symmetric_release)(tp_ctx *ctx, tp_comm *comm, tp_symmetric *symmetric);
    /* After a failure: waits, within the bound of waits and ten seconds, until all peers have come here too or
     * destroyed their communicator, so that symmetric memory may be freed. */
    void (*leave)(tp_comm *comm);
    const tpi_board_table *board;
} tpi_comm_table;

struct tp_comm {
    const tpi_comm_table *table;
    tp_ctx *ctx;
    int rank, size;
    bool apart;  /* ranks do not reach each other's memory by themselves: no boards, and symmetric buffers only from a
                  * fabric */
    bool beside; /* its collectives and messages are of lanes beside compute */
    const char *what; /* its next exchange is for, in messages about calls that differ; NULL: nothing that has a name */
    unsigned issued; /* collectives that its host issued elsewhere in this communicator's name (nccl.c) */
    void *state; /* the transport's */
};

extern const tpi_comm_table tpi_comm_self;
extern const tpi_comm_table tpi_comm_threads;
extern const tpi_comm_table tpi_comm_dry;
extern const tpi_comm_table tpi_comm_nccl;
/* What concerns the host only. */
extern const tpi_comm_table tpi_comm_processes;

/* Communicator of a world for one rank (threads), and the group of one (self). The caller may use a communicator on one
 * lane at a time, in the same order on all ranks; operations of several lanes go over communicators of their own
 * (split). */
tp_status tpi_comm_create_self(tp_ctx *ctx, tp_comm **out);
tp_status tpi_comm_create_threads(tp_ctx *ctx, tp_world *world, int rank, tp_comm **out);
tp_status tpi_comm_create_processes(tp_ctx *ctx, tp_world *world, int rank, tp_comm **out);
/* Over the backend's fabric; `control`, of the same ranks, does what concerns the host, and goes with it. On failure it
 * stays the caller's. */
tp_status tpi_comm_create_nccl(tp_ctx *ctx, tp_comm *control, tp_comm **out);
/* A rank's communicator of its world, by the transport that the world asks for, or the best (docs/cuda.md). Collective
 * on a GPU. */
tp_status tpi_comm_create_world(tp_ctx *ctx, tp_world *world, int rank, tp_comm **out);
/* One rank of a dry run's group. */
tp_status tpi_comm_create_dry(tp_ctx *ctx, int rank, int size, tp_comm **out);

/* Ranks of a world, for checks before anything is made; and abort without a communicator (context creation failed on
 * this rank). Only the first abort of a world counts. */
int tpi_world_ranks(const tp_world *world);
/* That its ranks share: those of the thread that made it. NULL: of this thread. */
int tpi_world_cores(const tp_world *world);
tp_link tpi_world_link(const tp_world *world);
bool tpi_world_checks(const tp_world *world);
void tpi_world_abort(tp_world *world, int rank, tp_status status, const char *message);

/* Collectives on a given lane; the public functions (comm.c) use the compute stream. */
tp_status tpi_comm_all_reduce(tpi_stream *stream, tp_comm *comm, tp_tensor in, tp_tensor out,
                              const tp_reduce_desc *desc);
/* And norm of out's rows, which the caller has checked: its rows, cols, dtype and x are out's. */
tp_status tpi_comm_all_reduce_norm(tpi_stream *stream, tp_comm *comm, tp_tensor in, tp_tensor out,
                                   const tp_reduce_desc *desc, const tpi_norm_args *norm);
tp_status tpi_comm_reduce_scatter(tpi_stream *stream, tp_comm *comm, tp_tensor in, tp_tensor out, const int64_t *counts,
                                  const tp_reduce_desc *desc);
tp_status tpi_comm_all_gather(tpi_stream *stream, tp_comm *comm, tp_tensor in, tp_tensor out, const int64_t *counts);
tp_status tpi_comm_broadcast(tpi_stream *stream, tp_comm *comm, tp_tensor tensor, int root);
tp_status tpi_comm_all_to_all(tpi_stream *stream, tp_comm *comm, tp_tensor in, const int64_t *send_counts,
                              tp_tensor out, const int64_t *recv_counts);
tp_status tpi_comm_p2p(tpi_stream *stream, tp_comm *comm, const tp_p2p *ops, int count);
tp_status tpi_comm_barrier(tpi_stream *stream, tp_comm *comm);

#endif
