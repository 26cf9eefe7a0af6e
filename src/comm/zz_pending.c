/* Stand-ins for the communicators that are still to come; the linker prefers the real ones. */
#include "comm/table.h"

static void pending_destroy(tp_ctx *ctx, tp_comm *comm)
{
    tpi_host_release(ctx, comm, sizeof *comm);
}

static void pending_abort(tp_comm *comm, int rank, tp_status status, const char *message)
{
    (void)comm, (void)rank, (void)status, (void)message;
}

static const tpi_comm_table pending_table = {.name = "self", .destroy = pending_destroy, .abort = pending_abort};

__attribute__((weak)) tp_status tpi_comm_create_self(tp_ctx *ctx, tp_comm **out)
{
    *out = tpi_host_allocate(ctx, sizeof **out);
    if (!*out)
        return TP_ERR_MEMORY;
    **out = (tp_comm){.table = &pending_table, .ctx = ctx, .rank = 0, .size = 1};
    return TP_OK;
}

__attribute__((weak)) tp_status tpi_comm_create_threads(tp_ctx *ctx, tp_world *world, int rank, tp_comm **out)
{
    (void)world, (void)rank;
    *out = NULL;
    return tpi_refuse(ctx, TP_ERR_UNSUPPORTED, "thread ranks are not there yet");
}

__attribute__((weak)) int tpi_world_ranks(const tp_world *world)
{
    (void)world;
    return 1;
}

__attribute__((weak)) void tpi_world_abort(tp_world *world, int rank, tp_status status, const char *message)
{
    (void)world, (void)rank, (void)status, (void)message;
}
