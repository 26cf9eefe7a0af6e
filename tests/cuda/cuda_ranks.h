/* Tests on several ranks with a simulated GPU each: the simulator's schedules, arrays in device memory, and what every
 * rank saw. */
#ifndef TPT_CUDA_RANKS_H
#define TPT_CUDA_RANKS_H

#include <stdio.h>
#include <tp/device.h>

#include "comm/ranks.h"
#include "cuda/cuda_support.h"
#include "cuda/gpus.h"
#include "cuda/simulator.h"

/* Schedules that a case here runs under by itself. */
enum { TPT_RANK_SCHEDULES = 3 };

/* Real machines have fewer than the simulator: what needs more is left out there. */
static inline bool tpt_have_gpus(int count)
{
    tp_device_info info;
    return tp_device_describe(TP_DEVICE_CUDA, count - 1, TPT_CUDA_PLUGIN, &info) == TP_OK;
}

/* Before a run: the schedule by number, with nothing reported. */
static inline void tpt_schedule(unsigned number)
{
    gpusim_options options = tpt_gpus_schedule_of(number);
    options.devices = 8;
    tpt_gpus_configure(&options);
}

static inline void tpt_no_reports(const char *what)
{
    char first[256] = "";
    int count = tpt_simulator_count(first, sizeof first);
    cr_assert_eq(count, 0, "%s: %d reports of the simulator, the first: %s", what, count, first);
}

/* What a rank writes down, to be compared with what the same rank saw elsewhere. */
typedef struct tpt_record {
    char *bytes;
    size_t used, size;
} tpt_record;

static inline void tpt_note(tpt_record *log, const void *data, size_t bytes)
{
    if (log->used + bytes > log->size) {
        log->size = 2 * (log->used + bytes);
        log->bytes = realloc(log->bytes, log->size);
    }
    if (bytes > 0)
        memcpy(log->bytes + log->used, data, bytes);
    log->used += bytes;
}

/* Every rank wrote down the same bytes. */
static inline void tpt_records_same(const char *what, const tpt_record *got, const tpt_record *want, int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        size_t used = want[rank].used, at = 0;
        cr_assert_eq(got[rank].used, used, "%s: rank %d of %d: %zu bytes, not %zu", what, rank, ranks, got[rank].used,
                     used);
        while (at < used && got[rank].bytes[at] == want[rank].bytes[at])
            at++;
        cr_assert_eq(at, used, "%s: rank %d of %d: byte %zu of %zu", what, rank, ranks, at, used);
    }
}

static inline void tpt_records_free(tpt_record *log, int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        free(log[rank].bytes);
        log[rank] = (tpt_record){.bytes = NULL};
    }
}

/* An array in the context's memory. */
typedef struct tpt_device {
    tp_tensor tensor;
    size_t bytes;
} tpt_device;

static inline tp_status tpt_up(tp_ctx *ctx, const void *host, tp_dtype dtype, int64_t rows, int64_t cols,
                               tpt_device *out)
{
    void *memory;
    size_t bytes = (size_t)(rows * cols) * tp_dtype_size(dtype);
    TPI_TRY(tp_ctx_allocate(ctx, TP_MEMORY_OTHER, bytes, &memory));
    out->tensor = (tp_tensor){.data = memory, .dtype = dtype, .dims = 2, .shape = {rows, cols}, .stride = {cols, 1}};
    out->bytes = bytes;
    return tp_ctx_upload(ctx, memory, host, bytes);
}

/* Writes it down, and frees it. */
static inline tp_status tpt_down(tp_ctx *ctx, tpt_device *device, tpt_record *log)
{
    char *host = tpt_allocate(device->bytes + 1);
    tp_status status = tp_ctx_download(ctx, host, device->tensor.data, device->bytes);
    if (status == TP_OK && log)
        tpt_note(log, host, device->bytes);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, device->tensor.data, device->bytes);
    free(host);
    return status;
}

/* Rows [begin, end) of it. */
static inline tp_tensor tpt_rows(const tpt_device *device, int64_t begin, int64_t end)
{
    tp_tensor rows = device->tensor;
    rows.data = (char *)rows.data + (size_t)(begin * rows.shape[1]) * tp_dtype_size(rows.dtype);
    rows.shape[0] = end - begin;
    return rows;
}

#endif
