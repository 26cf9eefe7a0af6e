/* What goes over a rendezvous' connections: frames of a head and some bytes. */
#ifndef TPI_COMM_RENDEZVOUS_FRAME_H
#define TPI_COMM_RENDEZVOUS_FRAME_H

#include "comm/rendezvous.h"

#define TPI_FRAME_MAGIC 0x7470726eu
#define TPI_FRAME_VERSION 1u
/* An exchange's answer has all ranks' data. */
#define TPI_FRAME_BYTES ((size_t)64 * TPI_RENDEZVOUS_BYTES)

typedef enum tpi_frame_kind {
    TPI_FRAME_HELLO = 1, /* rank and size */
    TPI_FRAME_WELCOME,   /* all have come */
    TPI_FRAME_REFUSED,   /* with words: this connection is no rank */
    TPI_FRAME_EXCHANGE,  /* group, rank and size there, data */
    TPI_FRAME_ANSWER,    /* group, all data */
    TPI_FRAME_FAILED,    /* rank, status, words */
    TPI_FRAME_LEFT       /* this side closes in order */
} tpi_frame_kind;

typedef struct tpi_frame {
    uint32_t magic;
    uint16_t version, kind;
    uint64_t group;
    int32_t rank, size, status;
    uint32_t bytes; /* that follow */
} tpi_frame;

/* What came over a connection and was not taken yet. */
typedef struct tpi_inbox {
    char *memory;
    size_t used, size;
} tpi_inbox;

typedef enum tpi_intake { TPI_INTAKE_NOTHING = 0, TPI_INTAKE_FRAME, TPI_INTAKE_CLOSED, TPI_INTAKE_STRANGE,
                         TPI_INTAKE_VERSION } tpi_intake;

/* Reads what is there, without waiting; CLOSED: the other side is gone. */
tpi_intake tpi_inbox_fill(tpi_inbox *inbox, int connection);
/* Takes the next whole frame; its bytes stay until the next call. STRANGE: no frame of ours. */
tpi_intake tpi_inbox_take(tpi_inbox *inbox, tpi_frame *frame, const char **bytes);
void tpi_inbox_drop(tpi_inbox *inbox); /* the frame taken last */
void tpi_inbox_free(tpi_inbox *inbox);

/* Sends a whole frame, within `timeout_ms`. False: the connection is of no use any more. */
bool tpi_frame_send(int connection, tpi_frame frame, const void *bytes, int timeout_ms);

int64_t tpi_milliseconds(void); /* monotonic clock */
void tpi_close_connection(int *connection); /* -1 after it */

/* rendezvous_server.c: rank 0's half, on a thread of its own. */
typedef struct tpi_rendezvous_server tpi_rendezvous_server;
tp_status tpi_rendezvous_serve(const tpi_rendezvous_desc *desc, tpi_rendezvous_server **out);
/* Stays a while until all have left, tells those that are still there that the world is closed, and ends. NULL is
 * fine. */
void tpi_rendezvous_server_end(tpi_rendezvous_server *server);

#endif
