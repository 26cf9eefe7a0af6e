#include "mirror.h"

#include "values.h"

#include <stdlib.h>
#include <string.h>

tp_status bench_mirror_open(bench_mirror *mirror, tp_ctx *ctx, void *memory, size_t bytes)
{
    *mirror = (bench_mirror){.ctx = ctx, .memory = memory, .host = malloc(bytes > 0 ? bytes : 1), .bytes = bytes};
    return mirror->host != NULL ? TP_OK : TP_ERR_MEMORY;
}

tp_status bench_mirror_put(const bench_mirror *mirror)
{
    return tp_ctx_upload(mirror->ctx, mirror->memory, mirror->host, mirror->bytes);
}

tp_status bench_mirror_get(const bench_mirror *mirror)
{
    return tp_ctx_download(mirror->ctx, mirror->host, mirror->memory, mirror->bytes);
}

void bench_mirror_close(bench_mirror *mirror)
{
    free(mirror->host);
    mirror->host = NULL;
}

tp_status bench_fill(tp_ctx *ctx, void *memory, tp_dtype dtype, int64_t count,
                     double (*value)(int64_t i, uint64_t salt), uint64_t salt)
{
    bench_mirror mirror;
    tp_status status = bench_mirror_open(&mirror, ctx, memory, (size_t)count * tp_dtype_size(dtype));
    if (status == TP_OK) {
        bool real = dtype == TP_DTYPE_F32 || dtype == TP_DTYPE_BF16 || dtype == TP_DTYPE_F16;
        for (int64_t i = 0; i < count; i++) {
            if (real)
                bench_store_real(mirror.host, dtype, i, (float)value(i, salt));
            else
                bench_store(mirror.host, dtype, i, (int64_t)value(i, salt));
        }
        status = bench_mirror_put(&mirror);
    }
    bench_mirror_close(&mirror);
    return status;
}

tp_status bench_clear(tp_ctx *ctx, void *memory, size_t bytes)
{
    bench_mirror mirror;
    tp_status status = bench_mirror_open(&mirror, ctx, memory, bytes);
    if (status == TP_OK) {
        memset(mirror.host, 0, bytes);
        status = bench_mirror_put(&mirror);
    }
    bench_mirror_close(&mirror);
    return status;
}
