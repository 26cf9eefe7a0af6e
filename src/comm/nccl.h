/* Inside the transport over a fabric (NCCL). Data goes over the fabric; whatever concerns the host (exchange,
 * splitting, failures, boards) goes over a communicator of the same ranks that does without it: that of thread ranks,
 * or of processes.
 *
 * Under TP_SUM_TREE sums of floats are not left to the fabric, whose order is its own: parts move to their owner, who
 * adds them in the tree's order. */
#ifndef TPI_COMM_NCCL_H
#define TPI_COMM_NCCL_H

#include "comm/collective.h"
#include "comm/fabric.h"

/* Up to here, all ranks' inputs together, everybody gets all inputs and adds them: one step instead of two. */
#define TPI_NCCL_ONE_SHOT_BYTES ((size_t)262144)
/* Staging grows up to this; what needs more is done in stretches. */
#define TPI_NCCL_STAGING_BYTES ((size_t)33554432)

/* Memory of this rank that NCCL knows on all ranks. */
typedef struct tpi_nccl_window {
    void *memory; /* NULL: there is none */
    size_t bytes;
    void *handle;
    struct tpi_nccl_window *next; /* of the communicator's symmetric buffers */
} tpi_nccl_window;

typedef struct tpi_nccl_comm {
    tp_comm comm;
    tp_comm *control;
    const tpi_fabric *table;
    tpi_fabric_comm *fabric;
    bool aborted; /* the fabric */
    struct tpi_nccl_comm *next; /* of the context's */
    tpi_nccl_window window;     /* staging of small operations, in which NCCL takes its kernels for symmetric memory */
    tpi_nccl_window *symmetric; /* the caller's buffers */
    void *staging;              /* of all others */
    size_t staging_bytes;
    tpi_stream *staging_stream; /* that used it last, */
    tpi_event *staging_used;    /* until here */
    tpi_pointer_ring arrays;
    bool checks; /* a checking world */
} tpi_nccl_comm;

/* One operation. */
typedef struct tpi_nccl_call {
    tp_ctx *ctx;
    tpi_nccl_comm *own;
    tpi_fabric_comm *fabric;
    const tpi_fabric *table;
    tpi_stream *stream;
    int rank, size;
} tpi_nccl_call;

/* nccl_call.c */
tp_status tpi_nccl_begin(tpi_stream *stream, tp_comm *comm, tpi_nccl_call *out);
/* What follows every operation; status: its own. */
tp_status tpi_nccl_end(const tpi_nccl_call *call, tp_status status);
/* Device memory of this communicator, at most TPI_NCCL_STAGING_BYTES, until tpi_nccl_unstage: for collectives, in the
 * window if all ranks ask for as many bytes and they fit; for messages, never. */
tp_status tpi_nccl_stage(const tpi_nccl_call *call, size_t bytes, void **out);
tp_status tpi_nccl_stage_messages(const tpi_nccl_call *call, size_t bytes, void **out);
tp_status tpi_nccl_unstage(const tpi_nccl_call *call);
/* Whether what was staged lies in the window. The same on all ranks if they asked for the same number of bytes. */
bool tpi_nccl_in_window(const tpi_nccl_call *call, const void *staging);
/* Moves of bytes; 0 bytes are nothing. Within a group. */
tp_status tpi_nccl_send(const tpi_nccl_call *call, const void *from, size_t bytes, int peer);
tp_status tpi_nccl_receive(const tpi_nccl_call *call, void *to, size_t bytes, int peer);
/* On this rank. */
tp_status tpi_nccl_copy(const tpi_nccl_call *call, void *to, const void *from, size_t bytes);
/* A group's end, after `status` of what was in it. */
tp_status tpi_nccl_group_end(const tpi_nccl_call *call, tp_status status);

/* nccl.c: aborts the fabric's communicator. */
void tpi_nccl_abort(tpi_nccl_comm *own);

/* nccl_window.c: makes the communicator's window, if there can be one. Collective. */
tp_status tpi_nccl_window_stage(tpi_nccl_comm *own);
/* All of the communicator's; not collective. */
void tpi_nccl_windows_close(tpi_nccl_comm *own);
/* As in tpi_comm_table. */
tp_status tpi_nccl_symmetric_create(tp_ctx *ctx, tp_comm *comm, size_t bytes, tp_symmetric *out);
void tpi_nccl_symmetric_release(tp_ctx *ctx, tp_comm *comm, tp_symmetric *symmetric);

/* nccl_check.c: in a checking world, compares what all ranks call; TP_ERR_MISMATCH names two that differ. */
tp_status tpi_nccl_check(const tpi_nccl_call *call, const char *name, const tpi_collective_args *args);

/* nccl_reduce.c, nccl_move.c */
tp_status tpi_nccl_all_reduce(const tpi_nccl_call *call, const tpi_collective_args *args);
tp_status tpi_nccl_reduce_scatter(const tpi_nccl_call *call, const tpi_collective_args *args);
tp_status tpi_nccl_all_gather(const tpi_nccl_call *call, const tpi_collective_args *args);
tp_status tpi_nccl_broadcast(const tpi_nccl_call *call, const tpi_collective_args *args);
tp_status tpi_nccl_all_to_all(const tpi_nccl_call *call, const tpi_collective_args *args);
tp_status tpi_nccl_barrier(const tpi_nccl_call *call, const tpi_collective_args *args);

#endif
