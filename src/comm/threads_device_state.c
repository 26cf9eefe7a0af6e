/* What a rank's communicator keeps in device order: events that peers wait for, and staging that they read. */
#include "comm/threads.h"

#define LONGEST_WAIT_NS ((int64_t)10000000000)
#define NAP_NS 50000

static void free_events(tp_ctx *ctx, tpi_device_comm *device)
{
    tpi_event *const events[] = {device->ready[0], device->ready[1], device->done};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            ctx->backend->event_destroy(events[i]);
    for (int rank = 0; rank < TPI_MAX_RANKS; rank++)
        if (device->taken[rank])
            ctx->backend->event_destroy(device->taken[rank]);
}

tp_status tpi_device_comm_get(const tpi_call *call, tpi_device_comm **out)
{
    tp_ctx *ctx = call->ctx;
    *out = call->own->device;
    if (*out)
        return TP_OK;
    tpi_device_comm *device = tpi_host_allocate(ctx, sizeof *device);
    if (!device)
        return TP_ERR_MEMORY;
    device->ops = device->shared = atomic_load(&call->seat->passed);
    tpi_event **const events[] = {&device->ready[0], &device->ready[1], &device->done};
    tp_status status = TP_OK;
    for (size_t i = 0; i < sizeof events / sizeof *events && status == TP_OK; i++)
        status = ctx->backend->event_create(ctx, events[i]);
    if (status != TP_OK) {
        free_events(ctx, device);
        tpi_host_release(ctx, device, sizeof *device);
        return status;
    }
    *out = call->own->device = device;
    return TP_OK;
}

static bool behind(const atomic_uint *count, unsigned wanted)
{
    return (int)(atomic_load(count) - wanted) < 0;
}

/* A peer may still have to wait for this rank's events, or to read its staging. One that has gone itself is done with
 * everything. */
static void wait_for_peer(const tpi_thread_comm *own, int peer, int64_t deadline)
{
    const tpi_group *group = own->group;
    tpi_seat *seat = &group->seats[peer];
    const tpi_channel *taken = &group->channels[(size_t)peer * (size_t)group->size + (size_t)own->comm.rank];
    atomic_fetch_add(&seat->users, 1); /* its events stay while this rank looks at them */
    while (!atomic_load(&seat->left) && tpi_nanoseconds() < deadline &&
           (behind(&seat->passed, own->device->shared) || behind(&taken->settled, atomic_load(&taken->taken))))
        tpi_sleep_until(tpi_nanoseconds() + NAP_NS);
    if ((own->device->staging || own->device->memory) && !atomic_load(&seat->left) &&
        !behind(&seat->passed, own->device->shared) && atomic_load(&seat->done))
        own->comm.ctx->backend->event_synchronize(own->comm.ctx, atomic_load(&seat->done));
    atomic_fetch_sub(&seat->users, 1);
}

/* The communicator has said already that it is leaving. */
void tpi_device_comm_free(tp_ctx *ctx, tpi_thread_comm *own)
{
    tpi_device_comm *device = own->device;
    if (!device)
        return;
    int64_t deadline = tpi_nanoseconds() + LONGEST_WAIT_NS;
    for (int rank = 0; rank < own->comm.size; rank++)
        if (rank != own->comm.rank)
            wait_for_peer(own, rank, deadline);
    while (atomic_load(&own->group->seats[own->comm.rank].users) > 0 && tpi_nanoseconds() < deadline)
        tpi_sleep_until(tpi_nanoseconds() + NAP_NS);
    free_events(ctx, device);
    tpi_peers_free(ctx, own);
    if (device->staging)
        tp_ctx_release(ctx, TP_MEMORY_COMM, device->staging, 2 * TPI_DEVICE_STAGING_BYTES);
    tpi_host_release(ctx, device, sizeof *device);
    own->device = NULL;
}
