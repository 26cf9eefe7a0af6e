/* A plugin of a device that isn't there. TPT_FAKE_FAULT in the environment says what is wrong with it. */
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/plugin.h"
#include "tpi_contract.h"

TP_API extern const char tp_plugin_contract[TPI_CONTRACT_BYTES];
const char tp_plugin_contract[TPI_CONTRACT_BYTES] = TPI_CONTRACT;

TP_API bool tp_plugin_entry(const tpi_host_table *host, tpi_plugin *out);

static tp_status nothing(tp_ctx *ctx)
{
    (void)ctx;
    return TP_ERR_UNSUPPORTED;
}

static void describe(int index, tp_device_info *out)
{
    out->usable = index == 0;
    out->count = 1;
    strcpy(out->name, "fake");
}

static bool fault_is(const char *name)
{
    const char *fault = getenv("TPT_FAKE_FAULT");
    return fault && strcmp(fault, name) == 0;
}

static const tpi_backend *backend(void)
{
    static tpi_backend table;
    for (size_t at = offsetof(tpi_backend, open); at < offsetof(tpi_backend, square_sum_list);
         at += sizeof table.open) {
        tp_status (*slot)(tp_ctx *) = nothing;
        memcpy((unsigned char *)&table + at, &slot, sizeof slot);
    }
    table.name = "fake";
    if (fault_is("slot"))
        table.gemm = NULL;
    return &table;
}

bool tp_plugin_entry(const tpi_host_table *host, tpi_plugin *out)
{
    (void)host;
    if (fault_is("called"))
        abort();
    if (fault_is("silent"))
        return false;
    if (fault_is("endless")) {
        memset(out->reason, 'x', sizeof out->reason);
        return false;
    }
    *out = (tpi_plugin){.version = TPI_PLUGIN_VERSION + fault_is("version"),
                        .bytes = sizeof *out + fault_is("bytes"),
                        .ctx_bytes = sizeof(tp_ctx) + fault_is("ctx_bytes"),
                        .backend_bytes = sizeof(tpi_backend) + fault_is("backend_bytes"),
                        .backend = fault_is("backend") ? NULL : backend(),
                        .describe = fault_is("describe") ? NULL : describe};
    return true;
}
