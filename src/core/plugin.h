/* Backends in libraries of their own. libtp loads one when it is asked for its device; the plugin links to nothing of
 * libtp, and calls back through the host table. Both sides are compiled from the same headers, and say which: that is
 * compared before anything else of a plugin is read or called. */
#ifndef TPI_PLUGIN_H
#define TPI_PLUGIN_H

#include <tp/device.h>

#include "core/backend.h"

#define TPI_PLUGIN_VERSION 2u
#define TPI_PLUGIN_ENTRY "tp_plugin_entry"
/* A plugin's char[TPI_CONTRACT_BYTES]: TPI_CONTRACT of tpi_contract.h, the product's version and a hash of the headers,
 * which the build writes. */
#define TPI_PLUGIN_CONTRACT "tp_plugin_contract"
#define TPI_CONTRACT_BYTES 64

/* What a plugin calls. The functions are those of the same names in core/context.h and core/stream.h; texts are
 * complete. */
typedef struct tpi_host_table {
    unsigned version;
    size_t bytes;
    tp_status (*refuse)(tp_ctx *ctx, tp_status status, const char *text);
    tp_status (*fail)(tp_ctx *ctx, tp_status status, const char *text);
    tp_status (*usable)(tp_ctx *ctx);
    const char *(*last_message)(void);
    /* tp_ctx_allocate: counted device memory */
    tp_status (*allocate)(tp_ctx *ctx, tp_memory_kind kind, size_t bytes, void **out);
    void (*release)(tp_ctx *ctx, tp_memory_kind kind, void *memory, size_t bytes);
    void *(*host_allocate)(tp_ctx *ctx, size_t bytes);
    void (*host_release)(tp_ctx *ctx, void *memory, size_t bytes);
    void (*stream_enter)(tp_ctx *ctx, tpi_stream *stream);
    void (*stream_leave)(tpi_stream *stream);
} tpi_host_table;

/* What a plugin gives. Filled by its entry, which checks the host table first and returns false, with a line in
 * `reason`, if it doesn't fit. */
typedef struct tpi_plugin {
    unsigned version;
    size_t bytes, ctx_bytes, backend_bytes;
    const tpi_backend *backend;
    /* Fills in everything of `out`, which is zero. */
    void (*describe)(int index, tp_device_info *out);
    char reason[TP_DEVICE_TEXT];
} tpi_plugin;

typedef bool (*tpi_plugin_entry)(const tpi_host_table *host, tpi_plugin *out);

extern const tpi_host_table tpi_host;

/* Loads the plugin of a device other than the CPU. It stays loaded; loading it again gives the same one. path NULL:
 * beside libtp, or, if none is there, wherever the loader looks. A file given by its path is looked through first
 * (core/library_file.h). TP_ERR_BACKEND with one line. */
tp_status tpi_plugin_load(const char *path, tpi_plugin *out);

#endif
