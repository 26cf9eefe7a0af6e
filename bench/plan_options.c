#include "plan_options.h"

bool bench_list_has(const bench_list *list, int64_t value)
{
    for (int i = 0; i < list->count; i++)
        if (list->value[i] == value)
            return true;
    return false;
}

bool bench_plan_takes_chunks(int64_t algorithm)
{
    return algorithm != TP_OVERLAP_AUTO && algorithm != TP_OVERLAP_NONE && algorithm != TP_OVERLAP_BULK;
}

bool bench_plan_shaped(const bench_options *options)
{
    return options->machine_file != NULL || options->run || bench_list_has(&options->overlaps, TP_OVERLAP_AUTO);
}

int bench_check_chunks(bench_call *call)
{
    const bench_list *overlaps = &call->options.overlaps, *chunks = &call->options.chunk_counts;
    bool taken = overlaps->count == 0;
    for (int i = 0; i < overlaps->count; i++)
        taken = taken || bench_plan_takes_chunks(overlaps->value[i]);
    for (int i = 0; i < chunks->count && !taken; i++) {
        long long count = (long long)chunks->value[i];
        if (count > 0 && bench_list_has(overlaps, TP_OVERLAP_AUTO))
            return bench_refuse(call, "--chunks %lld: auto chooses the number itself", count);
        if (count > 1)
            return bench_refuse(call, "--chunks %lld: none and bulk cut nothing, their one plan has 1", count);
    }
    return BENCH_OK;
}

static int check_shaped(bench_call *call)
{
    const bench_options *options = &call->options;
    if (options->rows == 0 || options->cols == 0 || options->inner == 0)
        return bench_refuse(
            call, "costs of a machine (--machine, --algorithm auto) and runs (--run) need --rows, --cols and --inner");
    if (options->gemm_ms > 0 || options->plan_bytes > 0 || options->compute_ms > 0)
        return bench_refuse(call, "--gemm-ms, --compute-ms and --bytes don't go with costs of a machine (--machine, "
                                  "--run, --algorithm auto)");
    if (options->dtypes.count > 1)
        return bench_refuse(call, "--dtype: %d are given, plan takes 1", options->dtypes.count);
    if (options->dtypes.count > 0 && options->dtypes.value[0] > TP_DTYPE_F16)
        return bench_refuse(call, "--dtype %s: layers are of f32, bf16 or f16",
                            tp_dtype_name((tp_dtype)options->dtypes.value[0]));
    return BENCH_OK;
}

static int check_unshaped(bench_call *call)
{
    const bench_options *options = &call->options;
    const char *given = options->rows > 0           ? "rows"
                        : options->cols > 0         ? "cols"
                        : options->inner > 0        ? "inner"
                        : options->dtypes.count > 0 ? "dtype"
                                                    : NULL;
    if (given != NULL)
        return bench_refuse(call, "--%s: only costs of a machine (--machine, --algorithm auto) and runs (--run) go by "
                                  "a shape; else --gemm-ms, --bytes and --link say the costs",
                            given);
    return BENCH_OK;
}

/* none and direct have no other lane, the rest can't do without. */
static int check_one_lane(bench_call *call)
{
    const bench_options *options = &call->options;
    for (int i = 0; i < options->overlaps.count && options->one_lane; i++)
        if (options->overlaps.value[i] != TP_OVERLAP_PULL)
            return bench_refuse(call, "--one-lane: it says how pull runs, not %s",
                                tp_overlap_name((tp_overlap)options->overlaps.value[i]));
    return BENCH_OK;
}

int bench_plan_check_options(bench_call *call)
{
    bench_options *options = &call->options;
    if (options->plan_file != NULL) {
        if (options->overlaps.count + options->patterns.count + options->ranks.count + options->chunk_counts.count > 0)
            return bench_refuse(call,
                                "--plan %s: the plan says what --algorithm, --pattern, --ranks and --chunks would",
                                options->plan_file);
        if (options->one_lane)
            return bench_refuse(call, "--plan %s: the plan says its lanes, not --one-lane", options->plan_file);
        if (options->run)
            return bench_refuse(call, "--plan %s: --run runs layers, which make their own plans", options->plan_file);
        options->verify = true;
    }
    if (options->explain && !bench_list_has(&options->overlaps, TP_OVERLAP_AUTO))
        return bench_refuse(call, "--explain tells how auto chooses: --algorithm auto");
    int status = bench_check_chunks(call);
    if (status == BENCH_OK)
        status = check_one_lane(call);
    if (status != BENCH_OK)
        return status;
    bench_list_default(&options->overlaps, 1, (const int64_t[]){TP_OVERLAP_PULL});
    bench_list_default(&options->patterns, 1, (const int64_t[]){TP_PATTERN_GATHER_GEMM});
    bench_list_default(&options->ranks, 1, (const int64_t[]){2});
    bench_list_default(&options->chunk_counts, 1, (const int64_t[]){0});
    if (options->overlaps.count == TP_OVERLAP_COUNT && options->rows == 0)
        options->overlaps.count--; /* "all" without a shape: auto has nothing to choose by */
    status = bench_plan_shaped(options) ? check_shaped(call) : check_unshaped(call);
    if (status != BENCH_OK)
        return status;
    int plans = options->overlaps.count * options->patterns.count * options->ranks.count * options->chunk_counts.count;
    if (plans != 1 && (options->svg != NULL || options->trace != NULL))
        return bench_refuse(
            call,
            "--svg and --trace draw one plan, these are %d: give one algorithm, pattern, rank count and chunk count",
            plans);
    return BENCH_OK;
}
