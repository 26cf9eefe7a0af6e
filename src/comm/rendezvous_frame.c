/* Frames over sockets that don't block. */
#include "comm/rendezvous_frame.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LEAST_ROOM 4096

int64_t tpi_milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void tpi_close_connection(int *connection)
{
    if (*connection >= 0)
        close(*connection);
    *connection = -1;
}

static bool make_room(tpi_inbox *inbox)
{
    if (inbox->size - inbox->used >= LEAST_ROOM)
        return true;
    size_t size = inbox->size ? 2 * inbox->size : 2 * LEAST_ROOM;
    char *memory = realloc(inbox->memory, size);
    if (!memory)
        return false;
    inbox->memory = memory;
    inbox->size = size;
    return true;
}

tpi_intake tpi_inbox_fill(tpi_inbox *inbox, int connection)
{
    while (inbox->used <= TPI_FRAME_BYTES + sizeof(tpi_frame)) {
        if (!make_room(inbox))
            return TPI_INTAKE_CLOSED;
        ssize_t got = recv(connection, inbox->memory + inbox->used, inbox->size - inbox->used, MSG_DONTWAIT);
        if (got > 0) {
            inbox->used += (size_t)got;
            continue;
        }
        if (got < 0 && errno == EINTR)
            continue;
        bool nothing = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
        return nothing ? TPI_INTAKE_NOTHING : TPI_INTAKE_CLOSED;
    }
    return TPI_INTAKE_NOTHING;
}

tpi_intake tpi_inbox_take(tpi_inbox *inbox, tpi_frame *frame, const char **bytes)
{
    /* Strangers are known by their first bytes. */
    const uint32_t magic = TPI_FRAME_MAGIC;
    size_t known = inbox->used < sizeof magic ? inbox->used : sizeof magic;
    if (known > 0 && memcmp(inbox->memory, &magic, known) != 0)
        return TPI_INTAKE_STRANGE;
    if (inbox->used < sizeof *frame)
        return TPI_INTAKE_NOTHING;
    memcpy(frame, inbox->memory, sizeof *frame);
    if (frame->version != TPI_FRAME_VERSION)
        return TPI_INTAKE_VERSION;
    if (frame->bytes > TPI_FRAME_BYTES || frame->kind < TPI_FRAME_HELLO || frame->kind > TPI_FRAME_LEFT)
        return TPI_INTAKE_STRANGE;
    if (inbox->used < sizeof *frame + frame->bytes)
        return TPI_INTAKE_NOTHING;
    *bytes = inbox->memory + sizeof *frame;
    return TPI_INTAKE_FRAME;
}

void tpi_inbox_drop(tpi_inbox *inbox)
{
    tpi_frame frame;
    memcpy(&frame, inbox->memory, sizeof frame);
    size_t whole = sizeof frame + frame.bytes;
    memmove(inbox->memory, inbox->memory + whole, inbox->used - whole);
    inbox->used -= whole;
}

void tpi_inbox_free(tpi_inbox *inbox)
{
    free(inbox->memory);
    *inbox = (tpi_inbox){.memory = NULL};
}

static bool send_bytes(int connection, const char *bytes, size_t count, int64_t deadline)
{
    while (count > 0) {
        ssize_t sent = send(connection, bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent > 0) {
            bytes += sent;
            count -= (size_t)sent;
            continue;
        }
        if (sent < 0 && errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)
            return false;
        int64_t left = deadline - tpi_milliseconds();
        if (left <= 0)
            return false;
        struct pollfd room = {.fd = connection, .events = POLLOUT};
        poll(&room, 1, (int)(left < 100 ? left : 100));
    }
    return true;
}

bool tpi_frame_send(int connection, tpi_frame frame, const void *bytes, int timeout_ms)
{
    int64_t deadline = tpi_milliseconds() + timeout_ms;
    frame.magic = TPI_FRAME_MAGIC;
    frame.version = TPI_FRAME_VERSION;
    return send_bytes(connection, (const char *)&frame, sizeof frame, deadline) &&
           send_bytes(connection, bytes, frame.bytes, deadline);
}
