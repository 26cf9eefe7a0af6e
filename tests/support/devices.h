/* Ranks on the devices that there are. */
#ifndef TPT_DEVICES_H
#define TPT_DEVICES_H

#include <tp/comm.h>
#include <tp/device.h>

/* tp_run_ranks; where there are fewer devices than wanted (a machine with one GPU), ranks share them. */
static inline tp_status tpt_run_ranks(const tp_run_options *wanted, tp_status (*fn)(tp_ctx *ctx, void *arg),
                                      void *argument)
{
    tp_run_options options = *wanted;
    tp_device_info info;

    if (options.devices > 1 && tp_device_describe(options.ctx.device, 0, options.ctx.plugin, &info) == TP_OK &&
        info.count > 0 && info.count < options.devices)
        options.devices = info.count;
    return tp_run_ranks(&options, fn, argument);
}

#endif
