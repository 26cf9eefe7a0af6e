/* Devices: whether one can be used, and what it is. */
#ifndef TP_DEVICE_H
#define TP_DEVICE_H

#include <tp/context.h>

#define TP_DEVICE_TEXT 256

typedef struct tp_device_info {
    bool usable;
    bool simulated;           /* a simulated GPU: its time says nothing */
    int count;                /* devices of this kind; 0 where that isn't known */
    char name[TP_DEVICE_TEXT];   /* "" unless usable */
    char reason[TP_DEVICE_TEXT]; /* one line why not; "" if usable */
    size_t memory_bytes;      /* of the device; 0 for the CPU */
    int major, minor;         /* compute capability; 0 for the CPU */
} tp_device_info;

TP_BEGIN_DECLS

/* Computes: what device `index` of a kind is, or why it can't be used. plugin: as tp_ctx_desc.plugin.
 * Errors: TP_ERR_ARGUMENT; TP_ERR_BACKEND with the reason as message: no plugin, no driver, a driver that is too old,
 * no device, no such index. */
TP_API tp_status tp_device_describe(tp_device device, int index, const char *plugin, tp_device_info *out);

/* "cpu", "cuda". */
TP_API const char *tp_device_name(tp_device device);

TP_END_DECLS
#endif
