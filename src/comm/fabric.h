/* A library that moves data between ranks with a device each (NCCL). A backend has one or none; comm/nccl.c is the
 * transport on top of it. Operations are issued: they run in the stream's order. All ranks of a communicator make the
 * same calls in the same order. */
#ifndef TPI_COMM_FABRIC_H
#define TPI_COMM_FABRIC_H

#include "core/context.h"

#define TPI_FABRIC_ID_BYTES 128
#define TPI_FABRIC_TEXT 256

typedef struct tpi_fabric_comm tpi_fabric_comm;

/* What one rank makes and all need to make a communicator. */
typedef struct tpi_fabric_id {
    char bytes[TPI_FABRIC_ID_BYTES];
} tpi_fabric_id;

/* Elements are of `dtype`; the pieces of several ranks lie in rank order. */
typedef struct tpi_fabric_op {
    const void *in;
    void *out;
    int64_t count; /* all_gather: of in; reduce_scatter: of out */
    tp_dtype dtype;
    tp_reduce_op op;
    int peer; /* send, receive: the other rank; broadcast: the root */
} tpi_fabric_op;

typedef struct tpi_fabric {
    const char *name;
    /* Whether the library is there. One line in `text`: what it is, or why it can't be used. */
    bool (*available)(char text[TPI_FABRIC_TEXT]);
    tp_status (*make_id)(tp_ctx *ctx, tpi_fabric_id *out);
    /* Collective; on the context's device. Within the context's bound. */
    tp_status (*create)(tp_ctx *ctx, const tpi_fabric_id *id, int rank, int size, tpi_fabric_comm **out);
    /* Collective. color < 0: *out is NULL. */
    tp_status (*split)(tpi_fabric_comm *comm, int color, int key, tpi_fabric_comm **out);
    /* Collective; waits for what was issued, within the bound. */
    void (*destroy)(tpi_fabric_comm *comm);
    /* At once: what was issued over it ends as it is, so that streams go on. Also from within a wait of another call on
     * it, which then fails. Only release may follow, or another abort. */
    void (*abort)(tpi_fabric_comm *comm);
    /* Aborts and frees it. */
    void (*release)(tpi_fabric_comm *comm);
    /* TP_OK, or breaks the context with what the library met on its own. Never waits. */
    tp_status (*health)(tpi_fabric_comm *comm);
    /* Operations in between begin together, and none waits for another. */
    tp_status (*group_begin)(tpi_fabric_comm *comm);
    tp_status (*group_end)(tpi_fabric_comm *comm);
    tp_status (*send)(tpi_stream *stream, tpi_fabric_comm *comm, const tpi_fabric_op *op);
    tp_status (*receive)(tpi_stream *stream, tpi_fabric_comm *comm, const tpi_fabric_op *op);
    tp_status (*broadcast)(tpi_stream *stream, tpi_fabric_comm *comm, const tpi_fabric_op *op);
    tp_status (*all_gather)(tpi_stream *stream, tpi_fabric_comm *comm, const tpi_fabric_op *op);
    /* In the library's own order, rounded at every step. */
    tp_status (*all_reduce)(tpi_stream *stream, tpi_fabric_comm *comm, const tpi_fabric_op *op);
    tp_status (*reduce_scatter)(tpi_stream *stream, tpi_fabric_comm *comm, const tpi_fabric_op *op);
    /* Windows: the same number of bytes on every rank, of memory from window_allocate, which the library then reaches
     * from all of them. First the memory, each rank its own: refuses with TP_ERR_UNSUPPORTED, for what the library or
     * its version lacks, or TP_ERR_MEMORY. */
    tp_status (*window_allocate)(tp_ctx *ctx, size_t bytes, void **out);
    void (*window_free)(tp_ctx *ctx, void *memory, size_t bytes);
    /* Collective. *out NULL: there is no such memory between these ranks. */
    tp_status (*window_open)(tpi_fabric_comm *comm, void *memory, size_t bytes, void **out);
    void (*window_close)(tpi_fabric_comm *comm, void *window);
    /* Where this rank's kernels find a rank's memory. Refuses with TP_ERR_UNSUPPORTED and the reason if they don't. */
    tp_status (*window_address)(tpi_fabric_comm *comm, void *window, int rank, void **out);
} tpi_fabric;

#endif
