/* Loading of plugins, and what they are given. */
#include "core/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/context.h"
#include "core/stream.h"

#define LIBRARY "libtp_cuda.so"

static tp_status refuse(tp_ctx *ctx, tp_status status, const char *text)
{
    return tpi_refuse(ctx, status, "%s", text);
}

static tp_status fail(tp_ctx *ctx, tp_status status, const char *text)
{
    return tpi_fail(ctx, status, "%s", text);
}

const tpi_host_table tpi_host = {
    .version = TPI_PLUGIN_VERSION,
    .bytes = sizeof(tpi_host_table),
    .refuse = refuse,
    .fail = fail,
    .usable = tpi_ctx_usable,
    .last_message = tp_last_message,
    .allocate = tp_ctx_allocate,
    .release = tp_ctx_release,
    .host_allocate = tpi_host_allocate,
    .host_release = tpi_host_release,
    .stream_enter = tpi_stream_enter,
    .stream_leave = tpi_stream_leave,
};

/* The file beside the library, or the program, that this function is in; false if that has no folder. */
static bool beside(char *path, size_t bytes)
{
    Dl_info own;
    if (dladdr(&tpi_host, &own) == 0 || !own.dli_fname)
        return false;
    const char *slash = strrchr(own.dli_fname, '/');
    return slash && (size_t)snprintf(path, bytes, "%.*s" LIBRARY, (int)(slash + 1 - own.dli_fname), own.dli_fname) < bytes;
}

/* Never unloaded: drivers keep threads and handlers in it. */
static void *open_library(const char *path)
{
    return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

static tp_status find_library(const char *path, void **out)
{
    char near[PATH_MAX];
    *out = NULL;
    if (path)
        *out = open_library(path);
    else if (beside(near, sizeof near))
        *out = open_library(near);
    if (!path && !*out)
        *out = open_library(LIBRARY);
    if (*out)
        return TP_OK;
    const char *why = dlerror();
    return tpi_message(TP_ERR_BACKEND, "CUDA: no plugin: %s", why ? why : path ? path : LIBRARY);
}

tp_status tpi_plugin_load(const char *path, tpi_plugin *out)
{
    void *library;
    TPI_TRY(find_library(path, &library));
    union {
        void *object;
        tpi_plugin_entry call;
    } entry = {.object = dlsym(library, TPI_PLUGIN_ENTRY)}; /* POSIX's way from one to the other */
    const char *name = path ? path : LIBRARY;
    if (!entry.object)
        return tpi_message(TP_ERR_BACKEND, "CUDA: %s is no plugin of tp: it has no %s", name, TPI_PLUGIN_ENTRY);
    *out = (tpi_plugin){.version = TPI_PLUGIN_VERSION};
    if (!entry.call(&tpi_host, out))
        return tpi_message(TP_ERR_BACKEND, "CUDA: %s: %s", name, out->reason);
    if (out->version != TPI_PLUGIN_VERSION || out->bytes != sizeof *out || out->ctx_bytes != sizeof(tp_ctx) ||
        out->backend_bytes != sizeof(tpi_backend))
        return tpi_message(TP_ERR_BACKEND, "CUDA: %s has version %u and a context of %zu bytes, the library has %u and %zu: build both together",
                           name, out->version, out->ctx_bytes, TPI_PLUGIN_VERSION, sizeof(tp_ctx));
    return TP_OK;
}
