/* What devices there are. */
#include <tp/device.h>

#include <string.h>

#include "core/context.h"
#include "core/plugin.h"

const char *tp_device_name(tp_device device)
{
    return device == TP_DEVICE_CPU ? "cpu" : device == TP_DEVICE_CUDA ? "cuda" : "?";
}

static tp_status no_such(int index, tp_device_info *out)
{
    tp_status status = tpi_message(TP_ERR_BACKEND, "device_index is %d, there is 1 CPU", index);
    strcpy(out->reason, tp_last_message());
    return status;
}

tp_status tp_device_describe(tp_device device, int index, const char *plugin, tp_device_info *out)
{
    TPI_TRY(tpi_given(NULL, "tp_device_describe: out", out));
    memset(out, 0, sizeof *out);
    if (device != TP_DEVICE_CPU && device != TP_DEVICE_CUDA)
        return tpi_message(TP_ERR_ARGUMENT, "device is %d, must be %d or %d", (int)device, TP_DEVICE_CPU,
                           TP_DEVICE_CUDA);
    if (device == TP_DEVICE_CPU) {
        out->count = 1;
        if (index != 0)
            return no_such(index, out);
        out->usable = true;
        strcpy(out->name, "cpu");
        return TP_OK;
    }
    tpi_plugin loaded;
    tp_status status = tpi_plugin_load(plugin, &loaded);
    if (status == TP_OK)
        loaded.describe(index, out);
    else
        memccpy(out->reason, tp_last_message(), 0, sizeof out->reason - 1);
    return out->usable ? TP_OK : tpi_message(TP_ERR_BACKEND, "%s", out->reason);
}
