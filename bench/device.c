/* Which device a command runs on. */
#include "command.h"

#include <stdio.h>

static int refuse_without_gpu(bench_call *call)
{
    const bench_options *options = &call->options;
    if (options->plugin != NULL)
        return bench_refuse(call, "--plugin %s: of what? --device cuda says it", options->plugin);
    if (options->device_index != 0)
        return bench_refuse(call, "--device-index %lld: of what? --device cuda says it",
                            (long long)options->device_index);
    if (options->devices > 0)
        return bench_refuse(call, "--devices %lld: of what? --device cuda says it", (long long)options->devices);
    if (options->transport == TP_TRANSPORT_NCCL)
        return bench_refuse(call, "--transport nccl: between GPUs. --device cuda says which");
    if (options->peer_kernels != TP_PEER_KERNELS_AUTO)
        return bench_refuse(call, "--peer-kernels %s: between GPUs. --device cuda says which",
                            bench_peer_kernels_names[options->peer_kernels]);
    if (options->tf32)
        return bench_refuse(call, "--tf32: a way of cuBLASLt to multiply. --device cuda says where");
    if (options->check)
        return bench_refuse(call, "--check compares with the CPU: --device cuda says what");
    return BENCH_OK;
}

int bench_take_device(bench_call *call)
{
    bench_options *options = &call->options;
    if (!bench_on_gpu(call))
        return refuse_without_gpu(call);
    if (options->isa != 0)
        return bench_refuse(call, "--isa %s is the CPU's, --device is cuda", tp_isa_name((tp_isa)options->isa));
    if (options->tf32 && options->sums != TP_SUM_FAST)
        return bench_refuse(call, "--tf32: of cuBLASLt's products, which --sums fast has, not %s",
                            bench_sums_names[options->sums]);
    if (options->link != NULL)
        return bench_refuse(call, "--link %s: a modelled link is between ranks on the CPU, --device is cuda",
                            options->link);
    if (options->trace != NULL)
        return bench_refuse(
            call, "--trace %s: notes the CPU's clock, --device is cuda (a profiler shows the ops by their names)",
            options->trace);
    if (tp_device_describe(TP_DEVICE_CUDA, (int)options->device_index, options->plugin, &call->gpu) != TP_OK)
        return bench_fail(call, "%s", call->gpu.reason);
    if (options->device_index + options->devices > call->gpu.count)
        return bench_fail(call, "--device-index %lld --devices %lld: there are %d", (long long)options->device_index,
                          (long long)options->devices, call->gpu.count);
    call->machine.available = call->gpu.memory_bytes * (size_t)(options->devices > 1 ? options->devices : 1);
    return BENCH_OK;
}

tp_ctx_desc bench_ctx_desc(const bench_call *call, int threads)
{
    const bench_options *options = &call->options;
    return (tp_ctx_desc){.version = TP_VERSION,
                         .device = (tp_device)options->device,
                         .device_index = (int)options->device_index,
                         .plugin = options->plugin,
                         .threads = threads,
                         .isa = (tp_isa)options->isa,
                         .seed = (uint64_t)options->seed,
                         .sum_order = (tp_sum_order)options->sums,
                         .tf32 = options->tf32};
}

void bench_isa_cell(bench_call *call)
{
    const bench_options *options = &call->options;
    if (bench_on_gpu(call))
        bench_word(&call->table, "sm_%d%d", call->gpu.major, call->gpu.minor);
    else
        bench_word(&call->table, "%s", tp_isa_name(options->isa == 0 ? call->machine.isa : (tp_isa)options->isa));
}

void bench_on_cell(bench_call *call, const char *transport)
{
    const bench_options *options = &call->options;
    bool modelled = options->link_bandwidth > 0 || options->link_gemm;
    char gpus[64] = "";
    static const char *const kernels[] = {"", ", peer kernels", ", no peer kernels"}; /* by tp_peer_kernels */
    if (bench_on_gpu(call))
        snprintf(gpus, sizeof gpus, ", %s%s%s", call->gpu.simulated ? "simulated " : "",
                 options->devices > 1 ? "GPUs" : "GPU", kernels[options->peer_kernels]);
    bench_word(&call->table, "%s%s%s%s%s", transport, modelled ? ", modelled link" : "", gpus,
               options->sums == TP_SUM_FAST ? ", fast sums" : "", options->tf32 ? ", TF32" : "");
}

bool bench_fits(const bench_call *call, int ranks, int threads)
{
    int64_t gpus = call->options.devices > 1 ? call->options.devices : 1;
    return bench_on_gpu(call) ? ranks <= gpus : ranks * threads <= call->machine.cores;
}

void bench_hide_times(bench_call *call, uint64_t columns)
{
    if (!call->gpu.simulated)
        return;
    call->table.hidden = columns;
    bench_note(
        &call->table,
        "simulated GPU: its time is no speed, so nothing that is made of times is shown; counts and checks hold");
}
