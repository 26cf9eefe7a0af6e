/* How processes find each other and stay in touch: rank 0's process listens on a TCP port, all ranks (its own too)
 * connect to it and keep the connection. Over it go exchanges of small data among any group of ranks, and the news of a
 * failure. Every wait has a bound. Knows nothing of devices. */
#ifndef TPI_COMM_RENDEZVOUS_H
#define TPI_COMM_RENDEZVOUS_H

#include <tp/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TPI_RENDEZVOUS_TEXT 512
/* Of one rank, in one exchange. */
#define TPI_RENDEZVOUS_BYTES ((size_t)65536)

typedef struct tpi_rendezvous tpi_rendezvous;

typedef struct tpi_rendezvous_desc {
    int rank, ranks;
    const char *address; /* rank 0's host name or number */
    int port;
    int64_t timeout_ms; /* of every wait */
} tpi_rendezvous_desc;

typedef struct tpi_rendezvous_failure {
    int rank; /* who failed */
    tp_status status;
    char message[TPI_RENDEZVOUS_TEXT];
} tpi_rendezvous_failure;

typedef struct tpi_rendezvous_group {
    uint64_t id; /* the same on its ranks, and no other group's */
    int rank, size;
} tpi_rendezvous_group;

/* Returns when all ranks have come. The thread's message says why not. */
tp_status tpi_rendezvous_open(const tpi_rendezvous_desc *desc, tpi_rendezvous **out);
/* Not collective, but rank 0 waits for the others to leave, at most ten seconds. Peers that still want something from a
 * rank are told that it left. NULL is fine. */
void tpi_rendezvous_close(tpi_rendezvous *own);

/* Collective among the group: everybody's data, in rank order. TP_ERR_PEER, TP_ERR_TIMEOUT, TP_ERR_MISMATCH (sizes
 * differ); the thread's message says more. */
tp_status tpi_rendezvous_exchange(tpi_rendezvous *own, const tpi_rendezvous_group *group, const void *mine, void *all,
                                  size_t bytes);

/* Tells all ranks that this one failed. Only the first failure of a world counts. Never waits; from any thread. */
void tpi_rendezvous_abort(tpi_rendezvous *own, tp_status status, const char *message);
/* Whether a rank failed, as far as is known here. Never waits. */
bool tpi_rendezvous_failed(tpi_rendezvous *own, tpi_rendezvous_failure *out);

#endif
