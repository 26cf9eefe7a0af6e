/* Context memory may be a GPU's: the host works on a copy and moves it with tp_ctx_upload and tp_ctx_download. */
#ifndef BENCH_MIRROR_H
#define BENCH_MIRROR_H

#include <tp/tp.h>

/* A host copy of `bytes` at `memory`; its contents are not set. TP_ERR_MEMORY. */
typedef struct bench_mirror {
    tp_ctx *ctx;
    void *memory;
    void *host;
    size_t bytes;
} bench_mirror;
tp_status bench_mirror_open(bench_mirror *mirror, tp_ctx *ctx, void *memory, size_t bytes);

/* Host to context; context to host, after all that was issued. */
tp_status bench_mirror_put(const bench_mirror *mirror);
tp_status bench_mirror_get(const bench_mirror *mirror);
void bench_mirror_close(bench_mirror *mirror);

/* Fills memory: element i becomes value(i, salt), of one that fits the dtype. */
tp_status bench_fill(tp_ctx *ctx, void *memory, tp_dtype dtype, int64_t count,
                     double (*value)(int64_t i, uint64_t salt), uint64_t salt);
/* All bytes 0. */
tp_status bench_clear(tp_ctx *ctx, void *memory, size_t bytes);

#endif
