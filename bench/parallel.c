#include "parallel.h"

int bench_threads_for(const bench_call *call, int ranks)
{
    if (call->options.threads > 0)
        return (int)call->options.threads;
    int threads = call->machine.cores / ranks;
    return threads > 1 ? threads : 1;
}

tp_run_options bench_run_options(const bench_call *call, int ranks, int threads)
{
    const bench_options *options = &call->options;
    return (tp_run_options){.ranks = ranks,
                            .ctx = {.version = TP_VERSION,
                                    .threads = threads,
                                    .isa = (tp_isa)options->isa,
                                    .seed = (uint64_t)options->seed},
                            .link = {options->link_latency, options->link_bandwidth}};
}

int bench_check_parallel(bench_call *call)
{
    const bench_options *options = &call->options;
    if (options->isa != 0 && !tp_isa_available((tp_isa)options->isa))
        return bench_refuse(call, "--isa %s: this machine does not have it; its best is %s", tp_isa_name((tp_isa)options->isa),
                            tp_isa_name(call->machine.isa));
    for (int i = 0; i < options->dtypes.count; i++)
        if (options->dtypes.value[i] > TP_DTYPE_F16)
            return bench_refuse(call, "--dtype %s: layers are of f32, bf16 or f16", tp_dtype_name((tp_dtype)options->dtypes.value[i]));
    return BENCH_OK;
}

bool bench_bits_promised(int a, int b)
{
    return TP_VIRTUAL_RANKS % a == 0 && TP_VIRTUAL_RANKS % b == 0;
}

void bench_same_cell(bench_call *call, bool same, bool promised, const char *what)
{
    bench_word(&call->table, "%s", same ? "yes" : promised ? "NO" : "differs (not promised)");
    if (!same && promised)
        bench_check_failed(call, "%s", what);
}

double bench_peak_for(bench_call *call, bench_peaks *peaks, tp_dtype dtype, int threads)
{
    if (peaks->core[dtype] <= 0) {
        bench_peak peak = bench_peak_of((tp_isa)call->options.isa, dtype);
        peaks->core[dtype] = bench_peak_measure(&peak, 0.05);
    }
    return peaks->core[dtype] * (threads < call->machine.cores ? threads : call->machine.cores);
}
