/* Looking for NCCL. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "cuda/nccl_calls.h"

#define LIBRARY "libnccl.so.2"
/* Communicators that don't block, and split. */
#define FIRST_VERSION NCCL_VERSION(2, 18, 1)
/* Their kernels for symmetric memory came with 2.27.1; the addresses of peers' memory, for the host, with 2.29.2. */
#define FIRST_WITH_WINDOWS NCCL_VERSION(2, 27, 1)
#define FIRST_WITH_ADDRESSES NCCL_VERSION(2, 29, 2)

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

#define FIND(name) {#name, &out->name},

static bool find_all(void *library, tpi_nccl_calls *out, char *reason, size_t bytes)
{
    const struct {
        const char *name;
        void *place;
    } wanted[] = {TPI_NCCL_CALLS(FIND)}, welcome[] = {TPI_NCCL_WINDOW_CALLS(FIND) TPI_NCCL_ADDRESS_CALLS(FIND)};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!find(library, wanted[i].name, wanted[i].place)) {
            snprintf(reason, bytes, "NCCL: " LIBRARY " has no %s: it is too old", wanted[i].name);
            return false;
        }
    for (size_t i = 0; i < sizeof welcome / sizeof *welcome; i++)
        find(library, welcome[i].name, welcome[i].place);
    return true;
}

#undef FIND

static bool open_library(tpi_nccl_calls *out, char *reason, size_t bytes)
{
    /* Never unloaded: it keeps threads. */
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        const char *why = dlerror();
        snprintf(reason, bytes, "NCCL: not there: %s", why ? why : LIBRARY);
        return false;
    }
    return find_all(library, out, reason, bytes);
}

/* What the version doesn't have isn't there, whatever was found. */
static void drop_calls(tpi_nccl_calls *calls)
{
#define DROP(name) calls->name = NULL;
    if (calls->version < FIRST_WITH_WINDOWS || !calls->ncclMemAlloc || !calls->ncclMemFree ||
        !calls->ncclCommWindowRegister || !calls->ncclCommWindowDeregister) {
        TPI_NCCL_WINDOW_CALLS(DROP)
    }
    if (calls->version < FIRST_WITH_ADDRESSES || !calls->ncclCommWindowRegister) {
        TPI_NCCL_ADDRESS_CALLS(DROP)
    }
#undef DROP
}

bool tpi_nccl_load(tpi_nccl_calls *out, char *reason, size_t bytes)
{
    *out = (tpi_nccl_calls){.version = 0};
    if (!tpi_nccl_linked(out) && !open_library(out, reason, bytes))
        return false;
    if (out->ncclGetVersion(&out->version) != ncclSuccess || out->version < FIRST_VERSION) {
        snprintf(reason, bytes,
                 "NCCL: " LIBRARY " has version " TPI_NCCL_VERSION_FORMAT ", at least " TPI_NCCL_VERSION_FORMAT
                 " is needed",
                 TPI_NCCL_VERSION_PARTS(out->version), TPI_NCCL_VERSION_PARTS(FIRST_VERSION));
        return false;
    }
    drop_calls(out);
    return true;
}
