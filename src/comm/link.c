/* The modelled link. Every rank has an outgoing and an incoming link; a transfer begins when it was posted and both
 * ends are free, holds them for bytes / bandwidth and arrives a latency later. Time runs from the posters' stamps and
 * the links' own schedule, never from the moment a thread woke up, so a late wake-up does not push later transfers
 * back. */
#include "comm/threads.h"

/* Eleven days: additions can't overflow. */
#define LONGEST 1e15

static int64_t occupied(const tp_world *world, size_t bytes)
{
    double nanoseconds = (double)bytes / world->desc.link.bytes_per_second * 1e9;
    return nanoseconds < LONGEST ? (int64_t)nanoseconds : (int64_t)LONGEST;
}

static int64_t latency(const tp_world *world)
{
    return (int64_t)(world->desc.link.latency_seconds * 1e9);
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void tpi_link_complete(tpi_call *call, int64_t done)
{
    call->own->link_done = later(call->own->link_done, done);
    if (tpi_nanoseconds() < done)
        tpi_sleep_until(done);
}

void tpi_link_crossed(tpi_call *call, size_t sent, size_t received, int steps)
{
    tp_world *world = call->group->world;
    tpi_link_state *link = &world->links[call->seat->world_rank];
    pthread_mutex_lock(&world->link_lock);
    link->out_free = later(link->out_free, call->latest) + occupied(world, sent);
    link->in_free = later(link->in_free, call->latest) + occupied(world, received);
    int64_t done = later(link->out_free, link->in_free) + steps * latency(world);
    pthread_mutex_unlock(&world->link_lock);
    tpi_link_complete(call, done);
}

int64_t tpi_link_message(tp_world *world, int from, int to, size_t bytes, int64_t stamp)
{
    if (!tpi_link_modelled(world) || from == to)
        return 0;
    pthread_mutex_lock(&world->link_lock);
    int64_t *out_free = &world->links[from].out_free, *in_free = &world->links[to].in_free;
    int64_t end = later(stamp, later(*out_free, *in_free)) + occupied(world, bytes);
    *out_free = end;
    *in_free = end;
    pthread_mutex_unlock(&world->link_lock);
    return end + latency(world);
}
