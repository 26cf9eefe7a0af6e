/* Loading of plugins, and what they are given. */
#include "core/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/context.h"
#include "core/library_file.h"
#include "core/stream.h"
#include "tpi_contract.h"

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

/* The file beside the library, or the program, that this function is in; false if that has no folder, or no such
 * file. */
static bool beside(char *path, size_t bytes)
{
    Dl_info own;
    if (dladdr(&tpi_host, &own) == 0 || !own.dli_fname)
        return false;
    const char *slash = strrchr(own.dli_fname, '/');
    return slash &&
           (size_t)snprintf(path, bytes, "%.*s" LIBRARY, (int)(slash + 1 - own.dli_fname), own.dli_fname) < bytes &&
           access(path, F_OK) == 0;
}

/* Never unloaded: drivers keep threads and handlers in it. */
static tp_status open_library(const char *path, void **out)
{
    const char *damage = strchr(path, '/') ? tpi_library_file_damage(path) : NULL;
    if (damage)
        return tpi_message(TP_ERR_BACKEND, "CUDA: no plugin: %s: %s", path, damage);
    *out = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (*out)
        return TP_OK;
    const char *why = dlerror();
    return tpi_message(TP_ERR_BACKEND, "CUDA: no plugin: %s", why ? why : path);
}

/* Before anything of the plugin is called: one of other headers would read and write what isn't there. */
static tp_status check_contract(void *library, const char *name)
{
    const char *theirs = dlsym(library, TPI_PLUGIN_CONTRACT);
    if (!theirs && dlsym(library, TPI_PLUGIN_ENTRY))
        return tpi_message(TP_ERR_BACKEND,
                           "CUDA: %s does not say what it was built from, the library is %s: build both together", name,
                           TPI_CONTRACT);
    if (theirs && strncmp(theirs, TPI_CONTRACT, TPI_CONTRACT_BYTES) != 0)
        return tpi_message(TP_ERR_BACKEND, "CUDA: %s was built from %.*s, the library from %s: build both together",
                           name, TPI_CONTRACT_BYTES, theirs, TPI_CONTRACT);
    return TP_OK;
}

static tp_status check_number(const char *name, const char *what, size_t theirs, size_t ours)
{
    if (theirs == ours)
        return TP_OK;
    return tpi_message(TP_ERR_BACKEND, "CUDA: %s has %s %zu, the library has %zu: build both together", name, what,
                       theirs, ours);
}

/* Every slot that each backend fills, and what is called without a look. */
static tp_status check_table(const char *name, const tpi_plugin *plugin)
{
    TPI_TRY(check_number(name, "version", plugin->version, TPI_PLUGIN_VERSION));
    TPI_TRY(check_number(name, "tables of bytes", plugin->bytes, sizeof *plugin));
    TPI_TRY(check_number(name, "contexts of bytes", plugin->ctx_bytes, sizeof(tp_ctx)));
    TPI_TRY(check_number(name, "backends of bytes", plugin->backend_bytes, sizeof(tpi_backend)));
    if (!plugin->backend || !plugin->describe)
        return tpi_message(TP_ERR_BACKEND, "CUDA: %s is damaged: it has no %s", name,
                           plugin->backend ? "description of devices" : "backend");
    const unsigned char *table = (const unsigned char *)plugin->backend;
    for (size_t at = 0; at < offsetof(tpi_backend, square_sum_list); at += sizeof(void *)) {
        void *slot;
        memcpy(&slot, table + at, sizeof slot);
        if (!slot)
            return tpi_message(TP_ERR_BACKEND, "CUDA: %s is damaged: slot %zu of its backend is NULL", name,
                               at / sizeof slot);
    }
    return TP_OK;
}

tp_status tpi_plugin_load(const char *path, tpi_plugin *out)
{
    char near[PATH_MAX];
    void *library = NULL;
    const char *name = path ? path : beside(near, sizeof near) ? near : LIBRARY;
    TPI_TRY(open_library(name, &library));
    TPI_TRY(check_contract(library, name));
    union {
        void *object;
        tpi_plugin_entry call;
    } entry = {.object = dlsym(library, TPI_PLUGIN_ENTRY)}; /* POSIX's way from one to the other */
    if (!entry.object)
        return tpi_message(TP_ERR_BACKEND, "CUDA: %s is no plugin of tp: it has no %s", name, TPI_PLUGIN_ENTRY);
    *out = (tpi_plugin){.version = TPI_PLUGIN_VERSION};
    if (!entry.call(&tpi_host, out)) {
        out->reason[sizeof out->reason - 1] = '\0';
        return tpi_message(TP_ERR_BACKEND, "CUDA: %s: %s", name,
                           out->reason[0] ? out->reason : "refuses, and does not say why");
    }
    return check_table(name, out);
}
