#include "peer.h"

#include "companion.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where the build made it; empty: it didn't. */
#ifndef BENCH_ONEDNN
#define BENCH_ONEDNN ""
#endif

/* A function's address, from an object's. */
static bool find(void *module, const char *name, void *function)
{
    void *address = dlsym(module, name);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

bool bench_peer_load(bench_peer *peer, char reason[BENCH_MESSAGE])
{
    *peer = (bench_peer){0};
    const char *slash = strrchr(BENCH_ONEDNN, '/');
    if (slash == NULL)
        return bench_say(reason, "this build found no oneDNN 2 (libdnnl-dev)");
    /* Ranks and callers are threads already: the peer's own stay out of it. Read once, when its OpenMP is loaded. */
    setenv("OMP_NUM_THREADS", "1", 1);
    char path[PATH_MAX];
    if (!bench_companion(slash + 1, BENCH_ONEDNN, path, sizeof path))
        return bench_say(reason, "%s is neither beside tp_bench nor where it was installed", slash + 1);
    peer->module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (peer->module == NULL)
        return bench_say(reason, "%s", dlerror());
    tp_peer_name *name;
    if (!find(peer->module, "tp_peer_name_library", &name) ||
        !find(peer->module, "tp_peer_open_product", &peer->open) ||
        !find(peer->module, "tp_peer_run_product", &peer->run) ||
        !find(peer->module, "tp_peer_close_product", &peer->close)) {
        bench_peer_unload(peer);
        return bench_say(reason, "%s is no peer of this version", path);
    }
    name(peer->name);
    return true;
}

void bench_peer_unload(bench_peer *peer)
{
    if (peer->module != NULL)
        dlclose(peer->module);
    *peer = (bench_peer){0};
}

bool bench_peer_gemm_open(bench_peer_gemm *self, const bench_peer *peer, const bench_gemm *gemm, bool packed,
                          char message[200])
{
    const tpi_gemm_args *args = &gemm->args;
    *self = (bench_peer_gemm){.peer = peer};
    if (gemm->dtype == TP_DTYPE_F16) {
        snprintf(message, 200, "its f16 is not compared");
        return false;
    }
    self->c = aligned_alloc(64, (gemm->c_bytes + 63) / 64 * 64);
    if (self->c == NULL) {
        snprintf(message, 200, "out of memory");
        return false;
    }
    memset(self->c, 0, gemm->c_bytes);
    const tp_peer_product product = {.rows = args->rows,
                                     .cols = args->cols,
                                     .inner = args->inner,
                                     .bf16 = gemm->dtype == TP_DTYPE_BF16,
                                     .c_f32 = args->c_dtype == TP_DTYPE_F32,
                                     .accumulate = args->accumulate,
                                     .packed = packed,
                                     .a = gemm->a,
                                     .b = gemm->b,
                                     .a_strides = {args->a.outer_stride, args->a.inner_stride},
                                     .b_strides = {args->b.inner_stride, args->b.outer_stride},
                                     .c = self->c};
    self->product = peer->open(&product, message);
    if (self->product == NULL)
        bench_peer_gemm_close(self);
    return self->product != NULL;
}

void bench_peer_gemm_close(bench_peer_gemm *self)
{
    if (self->product != NULL)
        self->peer->close(self->product);
    free(self->c);
    *self = (bench_peer_gemm){0};
}

void bench_peer_gemm_run(void *arg)
{
    bench_peer_gemm *self = arg;
    self->status |= self->peer->run(self->product);
}
