/* tp_bench info: the machine, its measured limits, and what is built in. */
#include "command.h"
#include "gpu_time.h"

#include "comm/fabric.h"
#include "core/context.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const bench_column columns[] = {
    {"what", "", 0, true},
    {"value", "", 4, false},
    {"unit", "", 0, true},
    {"how", "", 0, true},
};

static void row_word(bench_table *table, const char *what, const char *value, const char *how)
{
    bench_row(table);
    bench_word(table, "%s", what);
    bench_word(table, "%s", value);
    bench_word(table, "%s", "");
    bench_word(table, "%s", how);
}

static void row_number(bench_table *table, const char *what, double value, const char *unit, const char *how)
{
    bench_row(table);
    bench_word(table, "%s", what);
    if (value == floor(value) && fabs(value) < 1e6)
        bench_integer(table, (int64_t)value);
    else
        bench_real(table, value);
    bench_word(table, "%s", unit);
    bench_word(table, "%s", how);
}

static void rows_machine(bench_call *call)
{
    bench_table *table = &call->table;
    const bench_machine *machine = &call->machine;
    row_word(table, "processor", machine->processor, "");
    row_number(table, "cores", machine->cores, "", "that this process may use");
    row_number(table, "memory", (double)machine->memory / (1 << 30), "GiB", "in all");
    row_number(table, "memory free", (double)machine->available / (1 << 30), "GiB", "available now");
    static const char *const names[] = {"", "L1 data cache", "L2 cache", "L3 cache"};
    for (int level = 1; level < 4; level++)
        if (machine->cache[level] > 0)
            row_number(table, names[level], (double)machine->cache[level] / 1024, "KiB", "first core");
    for (int isa = TP_ISA_PORTABLE; isa < TP_ISA_COUNT; isa++)
        row_word(table, tp_isa_name((tp_isa)isa), tp_isa_available((tp_isa)isa) ? "yes" : "no",
                 isa == (int)machine->isa ? "instruction set; taken by default" : "instruction set");
}

/* One peak by two ways: the loop's own time, and clock x operations a cycle. */
static void rows_peak(bench_call *call, tp_dtype dtype, double clock, double seconds)
{
    bench_table *table = &call->table;
    bench_peak peak = bench_peak_of(call->machine.isa, dtype);
    bench_progress("info: peak of %s", peak.what);
    double one = bench_peak_measure(&peak, seconds);
    double all = bench_peak_together(&peak, call->machine.cores, seconds);
    char what[64];
    snprintf(what, sizeof what, "%s peak, 1 core", tp_dtype_name(dtype));
    row_number(table, what, one / 1e9, "GFLOP/s", peak.what);
    snprintf(what, sizeof what, "%s peak, all cores", tp_dtype_name(dtype));
    row_number(table, what, all / 1e9, "GFLOP/s", peak.what);
    if (clock <= 0)
        return;
    /* Hardware does a power of two of operations a cycle. */
    double cycle = exp2(round(log2(one / clock)));
    snprintf(what, sizeof what, "%s clock x FLOPs a cycle", tp_dtype_name(dtype));
    char how[BENCH_CELL_TEXT];
    snprintf(how, sizeof how, "%.0f a cycle; the loop reached %.1f %% of this", cycle, 100 * one / (clock * cycle));
    row_number(table, what, clock * cycle / 1e9, "GFLOP/s", how);
}

static void rows_memory(bench_call *call, double seconds)
{
    for (int stream = 0; stream < BENCH_STREAM_COUNT; stream++) {
        bench_progress("info: memory, %s", bench_stream_name((bench_stream)stream));
        int counts[2] = {1, call->machine.cores};
        for (int i = 0; i < (counts[1] > 1 ? 2 : 1); i++) {
            double rate = bench_stream_measure((bench_stream)stream, counts[i], bench_stream_memory, seconds);
            char what[64];
            snprintf(what, sizeof what, "memory %s, %s", bench_stream_name((bench_stream)stream),
                     i == 0 ? "1 core" : "all cores");
            row_number(&call->table, what, rate > 0 ? rate / 1e9 : NAN, "GB/s",
                       "bytes read and written, 64 MiB arrays");
        }
    }
}

/* Limits of the GPU that --device and --device-index name. */
static tp_status rows_limits(bench_call *call)
{
    static const struct {
        const char *name;
        tp_dtype dtype;
        bool tf32;
    } peaks[] = {{"f32", TP_DTYPE_F32, false},
                 {"TF32", TP_DTYPE_F32, true},
                 {"bf16", TP_DTYPE_BF16, false},
                 {"f16", TP_DTYPE_F16, false}};
    char what[64];
    double figure;
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++) {
        bench_progress("info: GPU's peak of %s", peaks[i].name);
        TPI_TRY(bench_gpu_peak(call, peaks[i].dtype, peaks[i].tf32, &figure));
        snprintf(what, sizeof what, "%s peak, GPU %lld", peaks[i].name, (long long)call->options.device_index);
        row_number(&call->table, what, figure / 1e9, "GFLOP/s",
                   call->gpu.simulated ? "simulated: its time is no speed"
                                       : bench_gpu_peak_text(peaks[i].dtype, peaks[i].tf32));
    }
    TPI_TRY(bench_gpu_copy_rate(call, &figure));
    snprintf(what, sizeof what, "memory copy, GPU %lld", (long long)call->options.device_index);
    row_number(&call->table, what, figure / 1e9, "GB/s",
               call->gpu.simulated ? "simulated: its time is no speed" : "bytes read and written, 256 MiB arrays");
    return TP_OK;
}

/* Each GPU, or why there is none that can be used. */
static void rows_cuda(bench_call *call)
{
    bench_table *table = &call->table;
    tp_device_info info;
    bool usable = tp_device_describe(TP_DEVICE_CUDA, 0, call->options.plugin, &info) == TP_OK;
    row_word(table, "backend cuda", usable || info.count > 0 ? "yes" : "no",
             usable ? info.simulated ? "simulated GPUs" : "own kernels, cuBLASLt, NCCL" : info.reason);
    int count = info.count;
    for (int index = 0; index < count; index++) {
        char what[64], how[BENCH_CELL_TEXT];
        usable = tp_device_describe(TP_DEVICE_CUDA, index, call->options.plugin, &info) == TP_OK;
        snprintf(what, sizeof what, "GPU %d", index);
        if (usable)
            snprintf(how, sizeof how, "sm_%d%d, %.1f GiB%s", info.major, info.minor,
                     (double)info.memory_bytes / (1 << 30), info.simulated ? ", simulated: its time is no speed" : "");
        row_word(table, what, usable ? info.name : "no", usable ? how : info.reason);
    }
}

static void rows_build(bench_call *call)
{
    bench_table *table = &call->table;
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", tp_version() / 10000, tp_version() / 100 % 100, tp_version() % 100);
    row_word(table, "tp", version, "");
#if defined(__clang__)
    row_word(table, "compiler", "clang " __clang_version__, "");
#elif defined(__GNUC__)
    row_word(table, "compiler", "gcc " __VERSION__, "");
#endif
    row_word(table, "backend cpu", "yes", "own kernels");
    rows_cuda(call);
    row_word(table, "transport self", "yes", "one rank");
    row_word(table, "transport threads", "yes", "up to 64 ranks in one process");
    row_word(table, "transport mpi", "no", "not part of this version");
    row_word(table, "transport nccl", "plugin", "of the CUDA plugin; libnccl.so.2 is looked for when it is wanted");
    row_word(table, "OpenMP", "no", "not used: ranks and their workers are plain threads");
}

/* Which NCCL the plugin finds, and what it can do. */
static tp_status row_nccl(bench_call *call)
{
    const tp_ctx_desc desc = bench_ctx_desc(call, 1);
    char text[TPI_FABRIC_TEXT];
    tp_ctx *ctx;
    TPI_TRY(tp_ctx_create(&desc, &ctx));
    bool found = ctx->backend->fabric->available(text);
    tp_ctx_destroy(ctx);
    row_word(&call->table, "NCCL", found ? "yes" : "no", text);
    return TP_OK;
}

/* Only what is asked for may fail: without --device, a machine without a GPU is as good as any. */
static int look_at_device(bench_call *call)
{
    const bench_options *options = &call->options;
    if (!bench_on_gpu(call))
        return BENCH_OK;
    if (tp_device_describe(TP_DEVICE_CUDA, (int)options->device_index, options->plugin, &call->gpu) != TP_OK)
        return bench_fail(call, "%s", call->gpu.reason);
    if (row_nccl(call) != TP_OK)
        return bench_fail(call, "NCCL: %.300s", tp_last_message());
    if (rows_limits(call) != TP_OK)
        return bench_fail(call, "limits of the GPU: %.300s", tp_last_message());
    return BENCH_OK;
}

int bench_command_info(bench_call *call)
{
    bench_begin(call, columns, (int)(sizeof columns / sizeof *columns));
    double seconds = call->options.seconds > 0 ? call->options.seconds : 0.15;
    snprintf(call->table.title, sizeof call->table.title, "limits of this machine, and what is built in");
    rows_machine(call);
    bench_progress("info: clock");
    double clock = bench_clock_measure(seconds);
    if (clock > 0)
        row_number(&call->table, "clock under load", clock / 1e9, "GHz", "chain of one-cycle additions");
    rows_peak(call, TP_DTYPE_F32, clock, seconds);
    rows_peak(call, TP_DTYPE_BF16, clock, seconds);
    rows_memory(call, seconds);
    rows_build(call);
    bench_note(
        &call->table,
        "peaks and bandwidths are medians of short samples; samples in which the thread was switched out are dropped");
    return look_at_device(call);
}
