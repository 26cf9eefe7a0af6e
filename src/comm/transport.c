/* Which transport a world's communicators get. All ranks decide alike: they show each other what the choice depends
 * on. */
#include <string.h>

#include "comm/fabric.h"
#include "comm/threads.h"

typedef struct station {
    int device_index, sum_order;
    bool fabric; /* its library is there */
    bool apart;  /* doesn't reach all others' memory */
} station;

static bool asks_for_nccl(const tp_world *world)
{
    return world->desc.transport == TP_TRANSPORT_NCCL;
}

static const char *missing_fabric(const tp_ctx *ctx, char reason[TPI_FABRIC_TEXT])
{
    if (!ctx->backend->fabric)
        return "the device has none";
    return ctx->backend->fabric->available(reason) ? NULL : reason;
}

/* A rank on the same device as an earlier one, or -1. */
static int second_on_device(const tp_ctx *ctx, const station *all, int size)
{
    if (ctx->desc.world->rendezvous) /* every process counts its own devices: NCCL finds out */
        return -1;
    for (int rank = 1; rank < size; rank++)
        for (int other = 0; other < rank; other++)
            if (all[rank].device_index == all[other].device_index)
                return rank;
    return -1;
}

static bool all_have(const tp_ctx *ctx, const station *all, int size)
{
    for (int rank = 0; rank < size; rank++)
        if (!all[rank].fabric || all[rank].sum_order != TP_SUM_FAST)
            return false;
    return second_on_device(ctx, all, size) < 0;
}

static tp_status check_nccl(tp_ctx *ctx, const station *all, int size, const char *missing)
{
    if (missing)
        return tpi_refuse(ctx, TP_ERR_UNSUPPORTED, "transport NCCL: %s", missing);
    for (int rank = 0; rank < size; rank++)
        if (!all[rank].fabric)
            return tpi_refuse(ctx, TP_ERR_UNSUPPORTED, "transport NCCL: rank %d doesn't have it", rank);
    int rank = second_on_device(ctx, all, size);
    if (rank >= 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT,
                          "transport NCCL: rank %d is on device %d, as another rank is: NCCL wants a device a rank",
                          rank, all[rank].device_index);
    if (ctx->desc.world->desc.link.bytes_per_second > 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "transport NCCL: a modelled link goes with THREADS only");
    return TP_OK;
}

/* Whether this rank reaches all others' memory; a refusal's words stay in the context. */
static bool reaches(tp_ctx *ctx, const station *all, int size)
{
    for (int rank = 0; rank < size; rank++)
        if (ctx->backend->reach(ctx, all[rank].device_index) != TP_OK)
            return false;
    return true;
}

static tp_status find_apart(tp_ctx *ctx, tp_comm *control, station *mine, station *all, bool *apart)
{
    mine->apart = control->apart || !reaches(ctx, all, control->size);
    TPI_TRY(control->table->exchange(ctx, control, mine, all, sizeof *mine));
    *apart = false;
    for (int rank = 0; rank < control->size; rank++)
        *apart = *apart || all[rank].apart;
    return TP_OK;
}

static tp_status choose(tp_ctx *ctx, tp_comm *control, tp_comm **out)
{
    const tp_world *world = ctx->desc.world;
    char reason[TPI_FABRIC_TEXT];
    const char *missing = missing_fabric(ctx, reason);
    station mine, all[TPI_MAX_RANKS];
    bool apart;
    memset(&mine, 0, sizeof mine);
    mine.device_index = ctx->desc.device_index;
    mine.sum_order = (int)ctx->desc.sum_order;
    mine.fabric = !missing;
    TPI_TRY(control->table->exchange(ctx, control, &mine, all, sizeof mine));
    bool nccl = asks_for_nccl(world);
    if (nccl)
        TPI_TRY(check_nccl(ctx, all, control->size, missing));
    else if (world->desc.transport == TP_TRANSPORT_AUTO && world->desc.link.bytes_per_second <= 0)
        nccl = all_have(ctx, all, control->size);
    TPI_TRY(find_apart(ctx, control, &mine, all, &apart));
    *out = control;
    if (nccl)
        TPI_TRY(tpi_comm_create_nccl(ctx, control, out));
    else if (apart)
        return mine.apart ? TP_ERR_BACKEND : tpi_refuse(ctx, TP_ERR_PEER, "a rank does not reach the others' memory");
    (*out)->apart = apart;
    return TP_OK;
}

static tp_status create_control(tp_ctx *ctx, tp_world *world, int rank, tp_comm **out)
{
    if (!world->rendezvous)
        return tpi_comm_create_threads(ctx, world, rank, out);
    return tpi_comm_create_processes(ctx, world, rank, out);
}

tp_status tpi_comm_create_world(tp_ctx *ctx, tp_world *world, int rank, tp_comm **out)
{
    *out = NULL;
    tp_comm *control;
    bool cpu = ctx->desc.device == TP_DEVICE_CPU;
    if (world->rendezvous && world->desc.ranks == 1)
        return tpi_comm_create_self(ctx, out);
    if (cpu && asks_for_nccl(world))
        return tpi_refuse(ctx, TP_ERR_UNSUPPORTED, "transport NCCL%s: tp_ctx_desc.device is the CPU",
                          world->rendezvous ? ", which ranks that are processes need" : "");
    TPI_TRY(create_control(ctx, world, rank, &control));
    *out = control;
    if (cpu || world->desc.ranks == 1)
        return TP_OK;
    tp_status status = choose(ctx, control, out);
    if (status != TP_OK) {
        control->table->destroy(ctx, control);
        *out = NULL;
    }
    return status;
}
