/* Looking for NCCL. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "cuda/nccl_calls.h"

#define LIBRARY "libnccl.so.2"
/* What the calls need: split, and communicators that don't block. */
#define LEAST_VERSION NCCL_VERSION(2, 18, 1)

__attribute__((weak)) bool tpi_nccl_linked(tpi_nccl_calls *out)
{
    (void)out;
    return false;
}

/* One pointer to a function: all have the same representation where there is a dlsym. */
static bool find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

static bool find_all(void *library, tpi_nccl_calls *out, char *reason, size_t bytes)
{
#define FIND(name) {#name, &out->name},
    const struct {
        const char *name;
        void *place;
    } wanted[] = {TPI_NCCL_CALLS(FIND)};
#undef FIND
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!find(library, wanted[i].name, wanted[i].place)) {
            snprintf(reason, bytes, "NCCL: " LIBRARY " has no %s: it is too old", wanted[i].name);
            return false;
        }
    return true;
}

bool tpi_nccl_load(tpi_nccl_calls *out, char *reason, size_t bytes)
{
    if (tpi_nccl_linked(out))
        return true;
    /* Never unloaded: it keeps threads. */
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        const char *why = dlerror();
        snprintf(reason, bytes, "NCCL: not there: %s", why ? why : LIBRARY);
        return false;
    }
    int version = 0;
    if (!find_all(library, out, reason, bytes))
        return false;
    if (out->ncclGetVersion(&version) != ncclSuccess || version < LEAST_VERSION) {
        snprintf(reason, bytes, "NCCL: " LIBRARY " has version %d, at least %d is needed", version, LEAST_VERSION);
        return false;
    }
    return true;
}
