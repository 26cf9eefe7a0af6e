/* The plugin's one entry. */
#include <stdio.h>

#include "core/context.h"
#include "core/plugin.h"
#include "cuda/state.h"
#include "tpi_contract.h"

TP_API extern const char tp_plugin_contract[TPI_CONTRACT_BYTES];
const char tp_plugin_contract[TPI_CONTRACT_BYTES] = TPI_CONTRACT;

TP_API bool tp_plugin_entry(const tpi_host_table *host, tpi_plugin *out);

/* Libraries before contracts compare versions only. */
bool tp_plugin_entry(const tpi_host_table *host, tpi_plugin *out)
{
    if (host->version != TPI_PLUGIN_VERSION || host->bytes != sizeof *host || out->version != TPI_PLUGIN_VERSION) {
        snprintf(out->reason, sizeof out->reason,
                 "version %u of the library and %u of the plugin differ: build both together", host->version,
                 TPI_PLUGIN_VERSION);
        return false;
    }
    *out = (tpi_plugin){
        .version = TPI_PLUGIN_VERSION,
        .bytes = sizeof *out,
        .ctx_bytes = sizeof(tp_ctx),
        .backend_bytes = sizeof(tpi_backend),
        .backend = &tpi_backend_cuda,
        .describe = tpi_cuda_describe,
    };
    return true;
}
