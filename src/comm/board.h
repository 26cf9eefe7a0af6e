/* What the ranks of a communicator show each other while plans run: flags that count executions, and a page of
 * addresses a rank. A transport's half of remote waits; the executor (plan/execute.h) is the other. */
#ifndef TPI_COMM_BOARD_H
#define TPI_COMM_BOARD_H

#include "core/context.h"

typedef struct tpi_board tpi_board;

/* The same on all ranks. */
typedef struct tpi_board_desc {
    int flags;         /* of each rank */
    size_t page_bytes; /* of each rank */
    int lanes;         /* threads of a rank that may wait at once, the first being the one that computes */
    char what[64];     /* for whom it is: the plan */
} tpi_board_desc;

/* Stamps are nanoseconds of the clock that a modelled link runs by. */
typedef struct tpi_board_wait {
    int lane;
    int rank, flag;
    unsigned epoch; /* until the flag has reached it */
    /* For messages: what that rank is waited for. */
    int op;
    const char *kind; /* of the op; NULL: no op, the beginning of its run */
    bool posted;      /* the op's data is to be there; else it is to be done */
} tpi_board_wait;

typedef struct tpi_board_table {
    /* Host-side, collective; all ranks make it or none does. */
    tp_status (*create)(tp_ctx *ctx, tp_comm *comm, const tpi_board_desc *desc, tpi_board **out);
    /* Not collective: what peers may still read stays until the last of them is gone. */
    void (*destroy)(tp_ctx *ctx, tpi_board *board);
    /* A rank writes its own page before it raises a flag that says so, and reads a peer's after it waited for one. */
    void *(*page)(const tpi_board *board, int rank);
    /* Sets an own flag to `epoch` and wakes those of `peer` that wait for it. */
    void (*raise)(tpi_board *board, int flag, unsigned epoch, int64_t stamp, const int *peer, int peers);
    /* Returns the stamp of raising in *stamp unless that is NULL. TP_ERR_PEER once the world has failed,
     * TP_ERR_TIMEOUT. */
    tp_status (*wait)(tpi_board *board, const tpi_board_wait *wait, int64_t *stamp);
    /* Whether a wait would return at once because the flag has reached its epoch. */
    bool (*reached)(const tpi_board *board, int rank, int flag, unsigned epoch);
    /* A stretch that touches peers' memory, which never waits inside: TP_ERR_PEER, and no stretch, once the world has
     * failed. */
    tp_status (*touch)(tpi_board *board);
    void (*untouch)(tpi_board *board);
    /* After a failure: returns when no peer is in such a stretch, so that memory may be freed. */
    void (*settle)(tpi_board *board);
    /* A message under the modelled link: when it is through; `stamp` without one. */
    int64_t (*deliver)(tpi_board *board, int from, int to, size_t bytes, int64_t stamp);
    /* Sleeps until then; not at all without a modelled link. */
    void (*sleep_until)(tpi_board *board, int64_t stamp);
} tpi_board_table;

struct tpi_board {
    const tpi_board_table *table;
    tp_comm *comm;
};

/* Where nobody else is: of one rank (self), and of a dry run, whose peers show what this rank does. */
extern const tpi_board_table tpi_board_alone;
extern const tpi_board_table tpi_board_threads;

#endif
