/* Worlds of thread ranks: creation, and the record of the first failure. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/rendezvous.h"
#include "comm/threads.h"

#define DEFAULT_TIMEOUT_MS ((int64_t)600000)
/* Spins before a sleep, with a core for every rank (some ten microseconds), and with fewer cores than ranks. */
#define MOST_SPINS 4000
#define CROWDED_SPINS 16
/* With a core for every rank a gate costs less than copying this much twice; with fewer a gate is several sleeps. */
#define STAGED_BYTES ((size_t)256)

static tp_status check_desc(const tp_world_desc *desc)
{
    if (desc->ranks < 1 || desc->ranks > TPI_MAX_RANKS)
        return tpi_message(TP_ERR_ARGUMENT, "ranks is %d, must be 1 to %d", desc->ranks, TPI_MAX_RANKS);
    if (!(desc->link.latency_seconds >= 0) || !(desc->link.latency_seconds < 1e6))
        return tpi_message(TP_ERR_ARGUMENT, "link.latency_seconds is %g, must be 0 or more",
                           desc->link.latency_seconds);
    if (!(desc->link.bytes_per_second >= 0))
        return tpi_message(TP_ERR_ARGUMENT, "link.bytes_per_second is %g, must be 0 or more",
                           desc->link.bytes_per_second);
    if (desc->transport < TP_TRANSPORT_AUTO || desc->transport > TP_TRANSPORT_NCCL)
        return tpi_message(TP_ERR_ARGUMENT, "transport is %d, must be 0 to %d", (int)desc->transport,
                           (int)TP_TRANSPORT_NCCL);
    if ((int)desc->peer_kernels < TP_PEER_KERNELS_AUTO || desc->peer_kernels > TP_PEER_KERNELS_NEVER)
        return tpi_message(TP_ERR_ARGUMENT, "peer_kernels is %d, must be 0 to %d", (int)desc->peer_kernels,
                           (int)TP_PEER_KERNELS_NEVER);
    if (desc->timeout_ms < 0)
        return tpi_message(TP_ERR_ARGUMENT, "timeout_ms is %" PRId64 ", must be 0 or more", desc->timeout_ms);
    return TP_OK;
}

tp_status tp_world_create_threads(const tp_world_desc *desc, tp_world **out)
{
    if (!out)
        return tpi_message(TP_ERR_ARGUMENT, "out is NULL");
    *out = NULL;
    if (!desc)
        return tpi_message(TP_ERR_ARGUMENT, "desc is NULL");
    TPI_TRY(check_desc(desc));
    tp_world *world = calloc(1, sizeof *world);
    if (!world)
        return tpi_message(TP_ERR_MEMORY, "no memory for a world of %d ranks", desc->ranks);
    world->desc = *desc;
    if (world->desc.timeout_ms == 0)
        world->desc.timeout_ms = DEFAULT_TIMEOUT_MS;
    world->cores = tpi_usable_cores();
    bool crowded = desc->ranks > world->cores;
    world->flagged = !crowded && tpi_flags_usable();
    world->spin_limit = crowded ? CROWDED_SPINS : MOST_SPINS;
    world->staged_bytes = crowded ? TPI_STAGING_BYTES : STAGED_BYTES;
    atomic_init(&world->failed, TP_OK);
    pthread_mutex_init(&world->lock, NULL);
    pthread_mutex_init(&world->link_lock, NULL);
    world->taken = calloc((size_t)desc->ranks, sizeof *world->taken);
    world->device = calloc((size_t)desc->ranks, sizeof *world->device);
    world->links = calloc((size_t)desc->ranks, sizeof *world->links);
    world->all = world->taken && world->device && world->links ? tpi_group_create(world, NULL, desc->ranks) : NULL;
    if (!world->all) {
        tp_world_destroy(world);
        return tpi_message(TP_ERR_MEMORY, "no memory for a world of %d ranks", desc->ranks);
    }
    /* The world keeps it; contexts hold and release it besides. */
    atomic_store(&world->all->holders, 1);
    *out = world;
    return TP_OK;
}

void tp_world_destroy(tp_world *world)
{
    if (!world)
        return;
    /* Also those whose split was broken off by a failure. */
    while (world->groups) {
        tpi_group *group = world->groups;
        world->groups = group->next;
        tpi_group_free(group);
    }
    tpi_shared_boards_free(world->boards);
    tpi_rendezvous_close(world->rendezvous);
    free(world->links);
    free(world->device);
    free(world->taken);
    pthread_mutex_destroy(&world->link_lock);
    pthread_mutex_destroy(&world->lock);
    free(world);
}

int tpi_world_ranks(const tp_world *world)
{
    return world->desc.ranks;
}

int tpi_world_lane_spins(const tp_world *world, const tp_ctx *ctx)
{
    return (int64_t)world->desc.ranks * ctx->desc.threads < world->cores ? world->spin_limit : CROWDED_SPINS;
}

int tpi_world_cores(const tp_world *world)
{
    return world ? world->cores : tpi_usable_cores();
}

bool tpi_world_checks(const tp_world *world)
{
    return world->desc.check_calls;
}

tp_link tpi_world_link(const tp_world *world)
{
    return world->desc.link;
}

void tpi_world_abort(tp_world *world, int world_rank, tp_status status, const char *message)
{
    if (status == TP_OK)
        status = TP_ERR_COMM;
    pthread_mutex_lock(&world->lock);
    if (atomic_load(&world->failed) == TP_OK) {
        world->failed_rank = world_rank;
        snprintf(world->message, sizeof world->message, "%s", message && message[0] ? message : tp_status_text(status));
        /* From here on nobody begins to touch a peer's buffers. */
        atomic_store(&world->failed, status);
        for (tpi_group *group = world->groups; group; group = group->next)
            tpi_group_fail(group);
        tpi_shared_boards_fail(world->boards);
        if (world->rendezvous && world_rank == world->own_rank)
            tpi_rendezvous_abort(world->rendezvous, status, world->message);
    }
    pthread_mutex_unlock(&world->lock);
}
