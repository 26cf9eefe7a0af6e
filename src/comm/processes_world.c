/* Worlds whose ranks are processes: from numbers, or from the environment that launchers set. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm/rendezvous.h"
#include "comm/threads.h"

#define DEFAULT_TIMEOUT_MS ((int64_t)600000)

tp_status tp_world_create_processes(const tp_process_desc *desc, tp_world **out)
{
    if (!desc || !out)
        return tpi_message(TP_ERR_ARGUMENT, "tp_world_create_processes: %s is NULL", desc ? "out" : "desc");
    *out = NULL;
    const tp_world_desc common = {.ranks = desc->ranks,
                                  .check_calls = desc->check_calls,
                                  .timeout_ms = desc->timeout_ms == 0 ? DEFAULT_TIMEOUT_MS : desc->timeout_ms,
                                  .transport = TP_TRANSPORT_NCCL};
    const tpi_rendezvous_desc meeting = {.rank = desc->rank,
                                         .ranks = desc->ranks,
                                         .address = desc->address,
                                         .port = desc->port,
                                         .timeout_ms = common.timeout_ms};
    tp_world *world;
    TPI_TRY(tp_world_create_threads(&common, &world));
    tp_status status = tpi_rendezvous_open(&meeting, &world->rendezvous);
    if (status != TP_OK) {
        tp_world_destroy(world);
        return status;
    }
    world->own_rank = desc->rank;
    *out = world;
    return TP_OK;
}

/* A whole number in a variable; `fallback` < 0: it must be there. */
static tp_status number_of(const char *name, int most, int fallback, int *out)
{
    const char *text = getenv(name);
    char *end;
    *out = fallback;
    if (!text || !text[0])
        return fallback >= 0 ? TP_OK : tpi_message(TP_ERR_ARGUMENT, "environment: %s is not set", name);
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || *end != '\0' || value < 0 || value > most)
        return tpi_message(TP_ERR_ARGUMENT, "environment: %s is \"%s\", must be 0 to %d", name, text, most);
    *out = (int)value;
    return TP_OK;
}

tp_status tp_world_create_env(tp_ctx_desc *desc)
{
    if (!desc)
        return tpi_message(TP_ERR_ARGUMENT, "tp_world_create_env: desc is NULL");
    tp_process_desc process = {.address = getenv("MASTER_ADDR"), .timeout_ms = desc->timeout_ms};
    int local;
    tp_world *world;
    TPI_TRY(number_of("RANK", TPI_MAX_RANKS - 1, -1, &process.rank));
    TPI_TRY(number_of("WORLD_SIZE", TPI_MAX_RANKS, -1, &process.ranks));
    TPI_TRY(number_of("LOCAL_RANK", INT32_MAX, process.rank, &local));
    TPI_TRY(number_of("MASTER_PORT", 65535, -1, &process.port));
    if (!process.address || !process.address[0])
        return tpi_message(TP_ERR_ARGUMENT, "environment: MASTER_ADDR is not set");
    TPI_TRY(tp_world_create_processes(&process, &world));
    desc->world = world;
    desc->rank = process.rank;
    if (desc->device == TP_DEVICE_CUDA)
        desc->device_index = local;
    return TP_OK;
}
