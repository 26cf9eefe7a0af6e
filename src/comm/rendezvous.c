/* A rank's half of a rendezvous: one connection to rank 0's process. */
#include "comm/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/rendezvous_frame.h"
#include "core/context.h"

/* Between tries to connect: rank 0 may come later. */
#define RETRY_MS 50
#define SEND_MS 5000

struct tpi_rendezvous {
    tpi_rendezvous_desc desc;
    tpi_rendezvous_server *server; /* rank 0's process */
    int connection;
    tpi_inbox inbox;
    bool opened; /* all have come */
    bool closed; /* rank 0 left */
    pthread_mutex_t sending;
    tpi_rendezvous_failure failure; /* status TP_OK: none */
};

/* ---- connecting -------------------------------------------------------------------------------------------------- */

static int finish_connect(int connection, int64_t deadline)
{
    struct pollfd done = {.fd = connection, .events = POLLOUT};
    int64_t left = deadline - tpi_milliseconds();
    int error = 0;
    socklen_t bytes = sizeof error;
    if (poll(&done, 1, left > 0 ? (int)(left < INT32_MAX ? left : INT32_MAX) : 0) != 1)
        return ETIMEDOUT;
    getsockopt(connection, SOL_SOCKET, SO_ERROR, &error, &bytes);
    return error;
}

/* A connection, or -1 with errno. */
static int connect_to(const struct addrinfo *address, int64_t deadline)
{
    int connection =
            socket(address->ai_family, address->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address->ai_protocol),
        on = 1;
    if (connection < 0)
        return -1;
    int error = connect(connection, address->ai_addr, address->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS)
        error = finish_connect(connection, deadline);
    if (error == 0) {
        setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        return connection;
    }
    close(connection);
    errno = error;
    return -1;
}

static int try_addresses(const struct addrinfo *list, int64_t deadline)
{
    int connection = -1;
    for (; list && connection < 0; list = list->ai_next)
        connection = connect_to(list, deadline);
    return connection;
}

static tp_status connect_in_time(tpi_rendezvous *own, int64_t deadline)
{
    const tpi_rendezvous_desc *desc = &own->desc;
    char port[16];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list;
    snprintf(port, sizeof port, "%d", desc->port);
    int error = getaddrinfo(desc->address, port, &hints, &list);
    if (error != 0)
        return tpi_message(TP_ERR_ARGUMENT, "rendezvous: address %s: %s", desc->address, gai_strerror(error));
    do {
        own->connection = try_addresses(list, deadline);
        error = errno;
        if (own->connection < 0)
            poll(NULL, 0, RETRY_MS);
    } while (own->connection < 0 && tpi_milliseconds() < deadline);
    freeaddrinfo(list);
    if (own->connection >= 0)
        return TP_OK;
    return tpi_message(TP_ERR_TIMEOUT, "rendezvous: rank %d can't connect to rank 0 at %s, port %d, for %lld ms: %s",
                       desc->rank, desc->address, desc->port, (long long)desc->timeout_ms, strerror(error));
}

/* ---- what comes in ----------------------------------------------------------------------------------------------- */

static void note_failure(tpi_rendezvous *own, int rank, tp_status status, const char *text, size_t bytes)
{
    if (own->failure.status != TP_OK)
        return;
    own->failure.rank = rank;
    own->failure.status = status == TP_OK ? TP_ERR_COMM : status;
    snprintf(own->failure.message, sizeof own->failure.message, "%.*s",
             (int)(bytes < TPI_RENDEZVOUS_TEXT ? bytes : TPI_RENDEZVOUS_TEXT - 1), text);
}

static void note_words(tpi_rendezvous *own, int rank, tp_status status, const char *text)
{
    note_failure(own, rank, status, text, strlen(text));
}

/* Takes news; true for a frame that somebody waits for, which stays at the inbox' head. */
static bool take_news(tpi_rendezvous *own, const tpi_frame *frame, const char *bytes)
{
    switch (frame->kind) {
    case TPI_FRAME_FAILED:
        note_failure(own, frame->rank, (tp_status)frame->status, bytes, frame->bytes);
        break;
    case TPI_FRAME_REFUSED:
        note_failure(own, own->desc.rank, TP_ERR_ARGUMENT, bytes, frame->bytes);
        break;
    case TPI_FRAME_LEFT:
        own->closed = true;
        break;
    default:
        return true;
    }
    tpi_inbox_drop(&own->inbox);
    return false;
}

/* Looks at what has come; true with a frame that is not news. */
static bool look(tpi_rendezvous *own, tpi_frame *frame, const char **bytes)
{
    bool gone = tpi_inbox_fill(&own->inbox, own->connection) == TPI_INTAKE_CLOSED;
    tpi_intake intake;
    while ((intake = tpi_inbox_take(&own->inbox, frame, bytes)) == TPI_INTAKE_FRAME)
        if (take_news(own, frame, *bytes))
            return true;
    if (intake == TPI_INTAKE_VERSION)
        note_words(own, 0, TP_ERR_VERSION, "rendezvous: rank 0 has another version of the library");
    else if (intake == TPI_INTAKE_STRANGE)
        note_words(own, 0, TP_ERR_COMM, "rendezvous: who listens there is no rank of this library");
    else if (gone && !own->closed)
        note_words(own, 0, TP_ERR_COMM, "its process went away");
    return false;
}

static tp_status peer_failed(const tpi_rendezvous *own)
{
    const tpi_rendezvous_failure *failure = &own->failure;
    /* Before all came, what the listener says is about the meeting itself. */
    if (failure->status == TP_ERR_MISMATCH || !own->opened)
        return tpi_message(failure->status, "%s", failure->message);
    return tpi_message(TP_ERR_PEER, "rank %d: %s", failure->rank, failure->message);
}

/* Waits for a frame of this kind, which stays at the inbox' head. */
static tp_status wait_for(tpi_rendezvous *own, tpi_frame_kind kind, int64_t deadline, tpi_frame *frame,
                          const char **bytes)
{
    for (;;) {
        bool found = look(own, frame, bytes);
        if (found && frame->kind == kind)
            return TP_OK;
        if (found)
            note_words(own, 0, TP_ERR_COMM, "rendezvous: rank 0 answers something else than was asked");
        if (own->failure.status != TP_OK)
            return peer_failed(own);
        if (own->closed)
            return tpi_message(TP_ERR_PEER, "rank 0: closed the world");
        int64_t left = deadline - tpi_milliseconds();
        if (left <= 0)
            return tpi_message(TP_ERR_TIMEOUT, "rendezvous: rank %d waited %lld ms for the other ranks", own->desc.rank,
                               (long long)own->desc.timeout_ms);
        struct pollfd news = {.fd = own->connection, .events = POLLIN};
        poll(&news, 1, (int)(left < INT32_MAX ? left : INT32_MAX));
    }
}

static bool send_frame(tpi_rendezvous *own, tpi_frame frame, const void *bytes, int timeout_ms)
{
    pthread_mutex_lock(&own->sending);
    bool sent = tpi_frame_send(own->connection, frame, bytes, timeout_ms);
    pthread_mutex_unlock(&own->sending);
    return sent;
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

static tp_status check_desc(const tpi_rendezvous_desc *desc)
{
    if (desc->ranks < 1 || desc->ranks > 64)
        return tpi_message(TP_ERR_ARGUMENT, "rendezvous: ranks is %d, must be 1 to 64", desc->ranks);
    if (desc->rank < 0 || desc->rank >= desc->ranks)
        return tpi_message(TP_ERR_ARGUMENT, "rendezvous: rank is %d, must be 0 to %d", desc->rank, desc->ranks - 1);
    if (!desc->address || !desc->address[0])
        return tpi_message(TP_ERR_ARGUMENT, "rendezvous: no address of rank 0");
    if (desc->port < 1 || desc->port > 65535)
        return tpi_message(TP_ERR_ARGUMENT, "rendezvous: port is %d, must be 1 to 65535", desc->port);
    return desc->timeout_ms > 0
               ? TP_OK
               : tpi_message(TP_ERR_ARGUMENT, "rendezvous: timeout_ms is %lld", (long long)desc->timeout_ms);
}

static tp_status meet(tpi_rendezvous *own)
{
    int64_t deadline = tpi_milliseconds() + own->desc.timeout_ms;
    tpi_frame frame;
    const char *bytes;
    if (own->desc.rank == 0)
        TPI_TRY(tpi_rendezvous_serve(&own->desc, &own->server));
    TPI_TRY(connect_in_time(own, deadline));
    if (!send_frame(own, (tpi_frame){.kind = TPI_FRAME_HELLO, .rank = own->desc.rank, .size = own->desc.ranks}, NULL,
                    SEND_MS))
        return tpi_message(TP_ERR_COMM, "rendezvous: rank 0 closed the connection");
    TPI_TRY(wait_for(own, TPI_FRAME_WELCOME, deadline, &frame, &bytes));
    tpi_inbox_drop(&own->inbox);
    return TP_OK;
}

tp_status tpi_rendezvous_open(const tpi_rendezvous_desc *desc, tpi_rendezvous **out)
{
    *out = NULL;
    TPI_TRY(check_desc(desc));
    tpi_rendezvous *own = calloc(1, sizeof *own);
    if (!own)
        return tpi_message(TP_ERR_MEMORY, "rendezvous: no memory");
    own->desc = *desc;
    own->connection = -1;
    pthread_mutex_init(&own->sending, NULL);
    tp_status status = meet(own);
    if (status != TP_OK) {
        tpi_close_connection(&own->connection);
        tpi_rendezvous_close(own);
        return status;
    }
    own->desc.address = NULL; /* the caller's */
    own->opened = true;
    *out = own;
    return TP_OK;
}

void tpi_rendezvous_close(tpi_rendezvous *own)
{
    if (!own)
        return;
    if (own->connection >= 0)
        send_frame(own, (tpi_frame){.kind = TPI_FRAME_LEFT}, NULL, SEND_MS);
    tpi_rendezvous_server_end(own->server);
    tpi_close_connection(&own->connection);
    tpi_inbox_free(&own->inbox);
    pthread_mutex_destroy(&own->sending);
    free(own);
}

/* ---- in touch ---------------------------------------------------------------------------------------------------- */

tp_status tpi_rendezvous_exchange(tpi_rendezvous *own, const tpi_rendezvous_group *group, const void *mine, void *all,
                                  size_t bytes)
{
    if (bytes > TPI_RENDEZVOUS_BYTES)
        return tpi_message(TP_ERR_UNSUPPORTED, "rendezvous: an exchange of %zu bytes a rank, at most %zu", bytes,
                           TPI_RENDEZVOUS_BYTES);
    int64_t deadline = tpi_milliseconds() + own->desc.timeout_ms;
    const tpi_frame offer = {.kind = TPI_FRAME_EXCHANGE,
                             .group = group->id,
                             .rank = group->rank,
                             .size = group->size,
                             .bytes = (uint32_t)bytes};
    tpi_frame answer;
    const char *data;
    if (own->failure.status != TP_OK)
        return peer_failed(own);
    send_frame(own, offer, mine, SEND_MS);
    TPI_TRY(wait_for(own, TPI_FRAME_ANSWER, deadline, &answer, &data));
    if (answer.group != group->id || answer.bytes != bytes * (size_t)group->size)
        return tpi_message(TP_ERR_COMM, "rendezvous: rank 0 answers something else than was asked");
    memcpy(all, data, answer.bytes);
    tpi_inbox_drop(&own->inbox);
    return TP_OK;
}

void tpi_rendezvous_abort(tpi_rendezvous *own, tp_status status, const char *message)
{
    size_t bytes = strlen(message);
    const tpi_frame frame = {.kind = TPI_FRAME_FAILED,
                             .rank = own->desc.rank,
                             .status = (int32_t)status,
                             .bytes = (uint32_t)(bytes < TPI_RENDEZVOUS_TEXT ? bytes : TPI_RENDEZVOUS_TEXT - 1)};
    send_frame(own, frame, message, 0);
}

bool tpi_rendezvous_failed(tpi_rendezvous *own, tpi_rendezvous_failure *out)
{
    tpi_frame frame;
    const char *bytes;
    if (own->failure.status == TP_OK)
        look(own, &frame, &bytes);
    if (own->failure.status == TP_OK)
        return false;
    *out = own->failure;
    return true;
}
