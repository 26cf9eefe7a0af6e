/* Rank 0's half of a rendezvous: takes connections, knows ranks by their hello, gathers exchanges and spreads failures.
 * One thread, which never waits for one connection alone. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/rendezvous_frame.h"
#include "core/context.h"

#define MOST_STRANGERS 64
/* A connection that doesn't say who it is. */
#define HELLO_MS 10000
/* A rank that doesn't take what it is sent. */
#define SEND_MS 5000
#define LOOK_MS 100
/* The listener's clock, whose message says who is missing, goes off so much before the ranks' own: a quarter of the
 * bound, and at most that. */
#define FORESIGHT_MS 1000
/* How long the listener stays for the others when rank 0 has left. */
#define LINGER_MS 10000
/* And after a meeting that failed, for those that come to it later. */
#define TELL_MS 2000

typedef struct guest {
    int connection;
    int rank; /* -1: not known yet */
    int64_t since;
    uint64_t order; /* of coming */
    tpi_inbox inbox;
    bool waits;       /* in an exchange, with */
    tpi_frame offer;
    char *data;
} guest;

struct tpi_rendezvous_server {
    tpi_rendezvous_desc desc;
    int listener, wake[2];
    pthread_t thread;
    int64_t deadline; /* for all to have come */
    guest *guests;    /* [ranks + MOST_STRANGERS] */
    int count, present, came; /* connections; ranks that are there; that said hello */
    uint64_t taken;           /* connections so far */
    bool welcomed;
    int left; /* a rank that left in order, or -1 */
    tpi_rendezvous_failure failure; /* status TP_OK: none */
};

/* ---- failures and leaving ---------------------------------------------------------------------------------------- */

static void send_failure(const tpi_rendezvous_server *server, const guest *to)
{
    const tpi_rendezvous_failure *failure = &server->failure;
    const tpi_frame frame = {.kind = TPI_FRAME_FAILED,
                             .rank = failure->rank,
                             .status = (int32_t)failure->status,
                             .bytes = (uint32_t)strlen(failure->message)};
    tpi_frame_send(to->connection, frame, failure->message, SEND_MS);
}

/* The first one counts, and goes to all that are there. */
static void fail(tpi_rendezvous_server *server, int rank, tp_status status, const char *message)
{
    if (server->failure.status != TP_OK)
        return;
    server->failure.rank = rank;
    server->failure.status = status;
    snprintf(server->failure.message, sizeof server->failure.message, "%s", message);
    for (int i = 0; i < server->count; i++)
        if (server->guests[i].rank >= 0)
            send_failure(server, &server->guests[i]);
}

static void drop_guest(tpi_rendezvous_server *server, int place)
{
    guest *gone = &server->guests[place];
    tpi_close_connection(&gone->connection);
    tpi_inbox_free(&gone->inbox);
    free(gone->data);
    *gone = server->guests[--server->count];
}

static void lose_guest(tpi_rendezvous_server *server, int place, bool in_order)
{
    int rank = server->guests[place].rank;
    drop_guest(server, place);
    if (rank < 0)
        return;
    server->present--;
    server->left = rank;
    if (!in_order || !server->welcomed)
        fail(server, rank, TP_ERR_COMM, "its process went away");
}

static void refuse(tpi_rendezvous_server *server, int place, const char *message)
{
    const tpi_frame frame = {.kind = TPI_FRAME_REFUSED, .bytes = (uint32_t)strlen(message)};
    tpi_frame_send(server->guests[place].connection, frame, message, SEND_MS);
    drop_guest(server, place);
}

/* ---- coming ------------------------------------------------------------------------------------------------------ */

static bool has_come(const tpi_rendezvous_server *server, int rank)
{
    for (int i = 0; i < server->count; i++)
        if (server->guests[i].rank == rank)
            return true;
    return false;
}

static void welcome(tpi_rendezvous_server *server)
{
    server->welcomed = true;
    for (int i = 0; i < server->count; i++)
        if (server->guests[i].rank >= 0)
            tpi_frame_send(server->guests[i].connection, (tpi_frame){.kind = TPI_FRAME_WELCOME}, NULL, SEND_MS);
}

/* False: the guest is gone. What is wrong with a rank's number is wrong with the whole world, so all are told. */
static bool greet(tpi_rendezvous_server *server, int place, const tpi_frame *hello)
{
    char message[160] = "";
    server->came++;
    guest *new = &server->guests[place];
    if (hello->size != server->desc.ranks)
        snprintf(message, sizeof message, "rank %d says there are %d ranks, rank 0 says %d", hello->rank, hello->size,
                 server->desc.ranks);
    else if (hello->rank < 0 || hello->rank >= server->desc.ranks)
        snprintf(message, sizeof message, "a process says it is rank %d of %d", hello->rank, server->desc.ranks);
    else if (has_come(server, hello->rank))
        snprintf(message, sizeof message, "two processes say they are rank %d of %d", hello->rank, server->desc.ranks);
    if (message[0]) {
        refuse(server, place, message);
        fail(server, hello->rank, TP_ERR_ARGUMENT, message);
        return false;
    }
    new->rank = hello->rank;
    tpi_inbox_drop(&new->inbox);
    if (server->failure.status != TP_OK)
        send_failure(server, new);
    if (++server->present == server->desc.ranks)
        welcome(server);
    return true;
}

/* Where there are too many, the one that has been silent longest: a rank says who it is at once. */
static void drop_oldest_stranger(tpi_rendezvous_server *server)
{
    int oldest = -1;
    for (int i = 0; i < server->count; i++)
        if (server->guests[i].rank < 0 && (oldest < 0 || server->guests[i].order < server->guests[oldest].order))
            oldest = i;
    if (oldest >= 0) /* all others are ranks, and there are fewer of these than places */
        drop_guest(server, oldest);
}

static void take_connection(tpi_rendezvous_server *server)
{
    int connection = accept(server->listener, NULL, NULL);
    if (connection < 0)
        return;
    if (server->count == server->desc.ranks + MOST_STRANGERS)
        drop_oldest_stranger(server);
    server->guests[server->count++] =
        (guest){.connection = connection, .rank = -1, .since = tpi_milliseconds(), .order = server->taken++};
}

static int64_t foresight(const tpi_rendezvous_desc *desc)
{
    return desc->timeout_ms / 4 < FORESIGHT_MS ? desc->timeout_ms / 4 : FORESIGHT_MS;
}

/* Silent strangers go; and ranks have only so long to come. */
static void look_at_clock(tpi_rendezvous_server *server)
{
    int64_t now = tpi_milliseconds();
    for (int i = server->count - 1; i >= 0; i--)
        if (server->guests[i].rank < 0 && now - server->guests[i].since > HELLO_MS)
            drop_guest(server, i);
    if (server->welcomed || now <= server->deadline || server->failure.status != TP_OK)
        return;
    char message[160];
    int first = 0;
    while (has_come(server, first))
        first++;
    snprintf(message, sizeof message, "%d of %d ranks came within %lld ms; rank %d did not", server->present,
             server->desc.ranks, (long long)(server->desc.timeout_ms - foresight(&server->desc)), first);
    fail(server, first, TP_ERR_TIMEOUT, message);
}

/* ---- exchanges --------------------------------------------------------------------------------------------------- */

/* Data of the group's ranks in order, if all are there with as many bytes; false with `different` if they are not as
 * many. */
static bool gather(tpi_rendezvous_server *server, const tpi_frame *first, char *all, bool *different)
{
    int found = 0;
    for (int i = 0; i < server->count; i++) {
        const guest *one = &server->guests[i];
        if (!one->waits || one->offer.group != first->group)
            continue;
        if (one->offer.bytes != first->bytes || one->offer.size != first->size || one->offer.rank < 0 ||
            one->offer.rank >= first->size) {
            *different = true;
            return false;
        }
        memcpy(all + (size_t)one->offer.rank * first->bytes, one->data, first->bytes);
        found++;
    }
    return found == first->size;
}

static void answer(tpi_rendezvous_server *server, const tpi_frame *first, const char *all)
{
    const tpi_frame reply = {
        .kind = TPI_FRAME_ANSWER, .group = first->group, .bytes = first->bytes * (uint32_t)first->size};
    for (int i = 0; i < server->count; i++) {
        guest *one = &server->guests[i];
        if (!one->waits || one->offer.group != first->group)
            continue;
        one->waits = false;
        tpi_frame_send(one->connection, reply, all, SEND_MS);
    }
}

static void try_exchange(tpi_rendezvous_server *server, const tpi_frame *first)
{
    bool sound = first->size >= 1 && first->size <= server->desc.ranks && first->bytes <= TPI_RENDEZVOUS_BYTES;
    bool different = !sound;
    char *all = sound ? malloc((size_t)first->size * first->bytes + 1) : NULL;
    if (all && gather(server, first, all, &different))
        answer(server, first, all);
    free(all);
    if (different)
        fail(server, first->rank, TP_ERR_MISMATCH,
             "ranks exchange different numbers of bytes, or in groups of different sizes");
    else if (first->size == server->desc.ranks && server->left >= 0)
        fail(server, server->left, TP_ERR_STATE, "left the world, and others still want to exchange with it");
}

/* Its data is kept until all have come, so that what it says meanwhile is heard. */
static void begin_exchange(tpi_rendezvous_server *server, guest *one, const tpi_frame *frame, const char *bytes)
{
    char *data = realloc(one->data, (size_t)frame->bytes + 1);
    if (!data) {
        fail(server, one->rank, TP_ERR_MEMORY, "rank 0 has no memory for an exchange");
        return;
    }
    memcpy(data, bytes, frame->bytes);
    one->data = data;
    one->offer = *frame;
    one->waits = true;
    try_exchange(server, &one->offer);
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

/* False: the guest is gone, and another has its place. */
static bool serve_frame(tpi_rendezvous_server *server, int place, const tpi_frame *frame, const char *bytes)
{
    guest *one = &server->guests[place];
    char message[TPI_RENDEZVOUS_TEXT];
    if (one->rank < 0) {
        if (frame->kind == TPI_FRAME_HELLO)
            return greet(server, place, frame);
        drop_guest(server, place);
        return false;
    }
    switch (frame->kind) {
    case TPI_FRAME_EXCHANGE:
        begin_exchange(server, one, frame, bytes);
        tpi_inbox_drop(&one->inbox);
        return true;
    case TPI_FRAME_FAILED:
        snprintf(message, sizeof message, "%.*s",
                 (int)(frame->bytes < sizeof message ? frame->bytes : sizeof message - 1), bytes);
        tpi_inbox_drop(&one->inbox);
        fail(server, frame->rank, (tp_status)frame->status, message);
        return true;
    default:
        lose_guest(server, place, frame->kind == TPI_FRAME_LEFT);
        return false;
    }
}

static void serve_guest(tpi_rendezvous_server *server, int place)
{
    guest *one = &server->guests[place];
    bool closed = tpi_inbox_fill(&one->inbox, one->connection) == TPI_INTAKE_CLOSED;
    tpi_intake intake;
    tpi_frame frame;
    const char *bytes;
    while ((intake = tpi_inbox_take(&one->inbox, &frame, &bytes)) == TPI_INTAKE_FRAME)
        if (!serve_frame(server, place, &frame, bytes))
            return;
    if (intake == TPI_INTAKE_VERSION)
        refuse(server, place, "the processes have different versions of the library");
    else if (intake == TPI_INTAKE_STRANGE)
        lose_guest(server, place, false);
    else if (closed)
        lose_guest(server, place, false);
}

/* Rank 0 has left: others may still exchange among themselves for a while. A meeting that failed is over when all were
 * told why. */
static bool is_over(const tpi_rendezvous_server *server, int64_t end)
{
    if (end == INT64_MAX)
        return false;
    bool late = tpi_milliseconds() > end;
    if (server->welcomed)
        return late || server->present == 0 || server->failure.status != TP_OK;
    return late || server->came >= server->desc.ranks || server->failure.status == TP_ERR_TIMEOUT;
}

static int64_t end_of(const tpi_rendezvous_server *server)
{
    int64_t most = server->welcomed ? LINGER_MS : TELL_MS;
    return tpi_milliseconds() + (server->desc.timeout_ms < most ? server->desc.timeout_ms : most);
}

/* Until the clock must be looked at. */
static int look_ms(const tpi_rendezvous_server *server)
{
    int64_t left = server->deadline - tpi_milliseconds() + 1;
    return server->welcomed || left <= 0 || left > LOOK_MS ? LOOK_MS : (int)left;
}

static void *serve(void *pointer)
{
    tpi_rendezvous_server *server = pointer;
    struct pollfd places[2 + 64 + MOST_STRANGERS];
    int64_t end = INT64_MAX;
    while (!is_over(server, end)) {
        places[0] = (struct pollfd){.fd = end == INT64_MAX ? server->wake[0] : -1, .events = POLLIN};
        places[1] = (struct pollfd){.fd = server->listener, .events = POLLIN};
        int count = server->count;
        for (int i = 0; i < count; i++)
            places[2 + i] = (struct pollfd){.fd = server->guests[i].connection, .events = POLLIN};
        poll(places, (nfds_t)(2 + count), look_ms(server));
        for (int i = count - 1; i >= 0; i--) /* who goes gives their place to a later one, which was looked at */
            if (places[2 + i].revents)
                serve_guest(server, i);
        if (places[1].revents)
            take_connection(server);
        if (places[0].revents)
            end = end_of(server);
        look_at_clock(server);
    }
    return NULL;
}

/* ---- beginning and end ------------------------------------------------------------------------------------------- */

static int listen_at(const struct addrinfo *address)
{
    int listener =
            socket(address->ai_family, address->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address->ai_protocol),
        on = 1;
    if (listener < 0)
        return -1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, address->ai_addr, address->ai_addrlen) == 0 && listen(listener, 128) == 0)
        return listener;
    int error = errno;
    close(listener);
    errno = error;
    return -1;
}

/* At the address itself, if it is this machine's, so that no other network sees the port; else (behind a translation of
 * addresses) at any. */
static tp_status listen_for(const tpi_rendezvous_desc *desc, int *out)
{
    char port[16];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list;
    snprintf(port, sizeof port, "%d", desc->port);
    int error = getaddrinfo(desc->address, port, &hints, &list);
    if (error != 0)
        return tpi_message(TP_ERR_ARGUMENT, "rendezvous: address %s: %s", desc->address, gai_strerror(error));
    *out = -1;
    for (struct addrinfo *one = list; one && *out < 0; one = one->ai_next)
        *out = listen_at(one);
    error = errno;
    freeaddrinfo(list);
    hints.ai_flags |= AI_PASSIVE;
    if (*out < 0 && error == EADDRNOTAVAIL && getaddrinfo(NULL, port, &hints, &list) == 0) {
        *out = listen_at(list);
        error = errno;
        freeaddrinfo(list);
    }
    return *out >= 0 ? TP_OK
                     : tpi_message(TP_ERR_COMM, "rendezvous: rank 0 can't listen at %s, port %d: %s", desc->address,
                                   desc->port, strerror(error));
}

static void free_server(tpi_rendezvous_server *server)
{
    for (int i = 0; i < server->count; i++) {
        tpi_close_connection(&server->guests[i].connection);
        tpi_inbox_free(&server->guests[i].inbox);
        free(server->guests[i].data);
    }
    tpi_close_connection(&server->listener);
    tpi_close_connection(&server->wake[0]);
    tpi_close_connection(&server->wake[1]);
    free(server->guests);
    free(server);
}

tp_status tpi_rendezvous_serve(const tpi_rendezvous_desc *desc, tpi_rendezvous_server **out)
{
    *out = NULL;
    tpi_rendezvous_server *server = calloc(1, sizeof *server);
    if (!server)
        return tpi_message(TP_ERR_MEMORY, "rendezvous: no memory");
    *server = (tpi_rendezvous_server){.desc = *desc,
                                      .listener = -1,
                                      .wake = {-1, -1},
                                      .left = -1,
                                      .deadline = tpi_milliseconds() + desc->timeout_ms - foresight(desc)};
    server->guests = calloc((size_t)desc->ranks + MOST_STRANGERS, sizeof *server->guests);
    tp_status status =
        server->guests ? listen_for(desc, &server->listener) : tpi_message(TP_ERR_MEMORY, "rendezvous: no memory");
    if (status == TP_OK &&
        (pipe2(server->wake, O_CLOEXEC) != 0 || pthread_create(&server->thread, NULL, serve, server) != 0))
        status = tpi_message(TP_ERR_MEMORY, "rendezvous: no thread for rank 0's listener");
    if (status != TP_OK) {
        free_server(server);
        return status;
    }
    *out = server;
    return TP_OK;
}

void tpi_rendezvous_server_end(tpi_rendezvous_server *server)
{
    if (!server)
        return;
    tpi_close_connection(&server->wake[1]);
    pthread_join(server->thread, NULL);
    for (int i = 0; i < server->count; i++)
        if (server->guests[i].rank >= 0)
            tpi_frame_send(server->guests[i].connection, (tpi_frame){.kind = TPI_FRAME_LEFT}, NULL, SEND_MS);
    free_server(server);
}
