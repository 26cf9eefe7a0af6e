#include "parallel.h"

#include "gpu_time.h"
#include "plan_options.h"

#include <math.h>

/* Seconds: nobody waits for a table of longer passes. */
#define LONGEST_CROSSING 60

int bench_threads_for(const bench_call *call, int ranks)
{
    if (call->options.threads > 0)
        return (int)call->options.threads;
    if (bench_on_gpu(call))
        return 1;
    int threads = call->machine.cores / ranks;
    return threads > 1 ? threads : 1;
}

tp_run_options bench_run_options(const bench_call *call, int ranks, int threads)
{
    const bench_options *options = &call->options;
    tp_run_options start = {
        .ranks = ranks, .ctx = bench_ctx_desc(call, threads), .link = {options->link_latency, options->link_bandwidth}};
    start.devices = (int)options->devices;
    start.bind_cores = true;
    start.transport = (tp_transport)options->transport;
    start.peer_kernels = (tp_peer_kernels)options->peer_kernels;
    start.ctx.machine = options->machine_file != NULL ? &call->costs : NULL;
    return start;
}

void bench_team_begin(const bench_call *call, bench_team *team, int ranks)
{
    bench_team_init(team, ranks, call->machine.cores);
    team->on_gpu = bench_on_gpu(call);
    team->untimed = call->gpu.simulated;
    team->probed = team->probed && !team->on_gpu;
}

double bench_cpu_tolerance(tp_dtype dtype, bool tf32)
{
    /* A few roundings of the storage type on the way; in f32 of sums of thousands, in another order. TF32 has f16's
     * bits of mantissa. */
    return dtype == TP_DTYPE_F32 && !tf32 ? 1e-5 : dtype == TP_DTYPE_BF16 ? 3e-2 : 4e-3;
}

int bench_take_link(bench_call *call)
{
    bench_options *options = &call->options;
    tp_link link;
    if (options->link == NULL)
        return BENCH_OK;
    if (!bench_parse_link_or_gemm(options->link, &link, &options->link_gemm))
        return bench_refuse(call, "--link %s: not LATENCY,BANDWIDTH (5us,2GB/s), in [0, 10] seconds", options->link);
    if (options->link_gemm && options->overlaps.count == 0)
        return bench_refuse(call, "--link %s: only linear, mlp and attention with --overlap measure their GEMMs alone",
                            options->link);
    options->link_latency = link.latency_seconds;
    options->link_bandwidth = link.bytes_per_second;
    return BENCH_OK;
}

bool bench_link_modelled(const bench_call *call)
{
    return call->options.link_bandwidth > 0 || call->options.link_gemm;
}

int bench_check_link(bench_call *call, double bytes)
{
    const bench_options *options = &call->options;
    if (options->link_bandwidth > 0 && bytes / options->link_bandwidth > LONGEST_CROSSING)
        return bench_refuse(call,
                            "--link %s: the %.0f bytes of one of the passes' tensors take %.3g s to cross it, at most "
                            "%d s are measured",
                            options->link, bytes, bytes / options->link_bandwidth, LONGEST_CROSSING);
    return BENCH_OK;
}

int bench_check_machine(bench_call *call)
{
    const bench_options *options = &call->options;
    for (int i = 0; i < options->overlaps.count; i++)
        if (options->overlaps.value[i] == TP_OVERLAP_AUTO)
            return BENCH_OK;
    if (options->machine_file != NULL)
        return bench_refuse(call, "--machine %s: what auto goes by: --overlap auto", options->machine_file);
    return BENCH_OK;
}

int bench_take_overlap(bench_call *call, tp_overlap *overlap, int *chunks)
{
    const bench_options *options = &call->options;
    if (options->overlaps.count > 1)
        return bench_refuse(call, "--overlap: %d are given, %s takes 1", options->overlaps.count, call->table.command);
    if (options->chunk_counts.count > 1)
        return bench_refuse(call, "--chunks: %d are given, %s takes 1", options->chunk_counts.count,
                            call->table.command);
    if (options->chunk_counts.count > 0 && options->overlaps.count == 0)
        return bench_refuse(call, "--chunks %lld: chunks of what? --overlap says it",
                            (long long)options->chunk_counts.value[0]);
    int status = bench_check_chunks(call);
    if (status != BENCH_OK)
        return status;
    if (options->link_gemm)
        return bench_refuse(call, "--link %s: only linear, mlp and attention measure their GEMMs alone", options->link);
    *overlap = options->overlaps.count > 0 ? (tp_overlap)options->overlaps.value[0] : TP_OVERLAP_NONE;
    *chunks = (int)options->chunk_counts.value[0];
    return bench_check_machine(call);
}

int bench_check_parallel(bench_call *call)
{
    int status = bench_take_device(call);
    if (status == BENCH_OK)
        status = bench_take_link(call);
    if (status != BENCH_OK)
        return status;
    status = bench_load_costs(call);
    if (status != BENCH_OK)
        return status;
    const bench_options *options = &call->options;
    if (options->machine_file != NULL && call->costs.device != (tp_device)options->device)
        return bench_refuse(call, "--machine %.200s: has times of %s, --device is %s", options->machine_file,
                            tp_device_name(call->costs.device), tp_device_name((tp_device)options->device));
    if (options->isa != 0 && !tp_isa_available((tp_isa)options->isa))
        return bench_refuse(call, "--isa %s: this machine does not have it; its best is %s",
                            tp_isa_name((tp_isa)options->isa), tp_isa_name(call->machine.isa));
    for (int i = 0; i < options->dtypes.count; i++)
        if (options->dtypes.value[i] > TP_DTYPE_F16)
            return bench_refuse(call, "--dtype %s: layers are of f32, bf16 or f16",
                                tp_dtype_name((tp_dtype)options->dtypes.value[i]));
    return BENCH_OK;
}

bool bench_bits_promised(const bench_call *call, int a, int b)
{
    return call->options.sums == TP_SUM_TREE && TP_VIRTUAL_RANKS % a == 0 && TP_VIRTUAL_RANKS % b == 0;
}

void bench_same_cell(bench_call *call, bool same, bool promised, const char *what)
{
    bench_word(&call->table, "%s", same ? "yes" : promised ? "NO" : "differs (not promised)");
    if (!same && promised)
        bench_check_failed(call, "%s", what);
}

double bench_peak_for(bench_call *call, bench_peaks *peaks, tp_dtype dtype, int threads)
{
    if (bench_on_gpu(call)) {
        if (peaks->core[dtype] == 0 && bench_gpu_peak(call, dtype, call->options.tf32, &peaks->core[dtype]) != TP_OK) {
            bench_note(&call->table, "the peak of %s could not be measured: %.200s", tp_dtype_name(dtype),
                       tp_last_message());
            peaks->core[dtype] = NAN;
        }
        return peaks->core[dtype];
    }
    if (peaks->core[dtype] <= 0) {
        bench_peak peak = bench_peak_of((tp_isa)call->options.isa, dtype);
        peaks->core[dtype] = bench_peak_measure(&peak, 0.05);
    }
    return peaks->core[dtype] * (threads < call->machine.cores ? threads : call->machine.cores);
}
