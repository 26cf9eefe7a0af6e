#include "cuda/cuda_support.h"

#include <dlfcn.h>
#include <errno.h>

typedef int (*reports_function)(int kind);
typedef const char *(*text_function)(int index);

static void *plugin_symbol(const char *name)
{
    void *plugin = dlopen(TPT_CUDA_PLUGIN, RTLD_NOW | RTLD_NOLOAD), *symbol;

    if (!plugin)
        return NULL;
    symbol = dlsym(plugin, name);
    dlclose(plugin);
    return symbol;
}

int tpt_simulator_reports(void)
{
    reports_function reports;
    void *symbol = plugin_symbol("gpusim_reports");

    if (!symbol)
        return 0; /* a real GPU */
    memcpy(&reports, &symbol, sizeof reports);
    return reports(-1);
}

static void assert_no_reports(void)
{
    text_function text = NULL;
    void *symbol = plugin_symbol("gpusim_report_text");
    int count = tpt_simulator_reports();

    if (symbol)
        memcpy(&text, &symbol, sizeof text);
    cr_assert_eq(count, 0, "%d reports of the simulator, the first: %s", count, text && count > 0 ? text(0) : "");
}

static void take_schedule(const gpusim_options *machine)
{
    static unsigned opened;
    unsigned name = 0;

    for (const char *letter = program_invocation_short_name; *letter != '\0'; letter++)
        name += (unsigned)*letter;
    gpusim_options options = tpt_gpus_schedule_of(name + opened++);
    options.compute_capability = machine->compute_capability;
    options.devices = machine->devices;
    options.device_bytes = machine->device_bytes;
    tpt_gpus_configure(&options);
}

void tpt_sides_open(tpt_sides *sides)
{
    tpt_sides_open_on(sides, &(gpusim_options){0});
}

void tpt_sides_open_on(tpt_sides *sides, const gpusim_options *machine)
{
    tp_ctx_desc desc = {.threads = 1};

    take_schedule(machine);
    memset(sides, 0, sizeof *sides);
    cr_assert_eq(tp_ctx_create(&desc, &sides->ctx[TPT_CPU]), TP_OK, "%s", tp_last_message());
    desc.device = TP_DEVICE_CUDA;
    desc.plugin = TPT_CUDA_PLUGIN;
    cr_assert_eq(tp_ctx_create(&desc, &sides->ctx[TPT_GPU]), TP_OK, "%s", tp_last_message());
}

void tpt_sides_reset(tpt_sides *sides)
{
    for (int side = 0; side < TPT_SIDES; side++) {
        cr_assert_eq(tp_ctx_synchronize(sides->ctx[side]), TP_OK, "%s", tp_ctx_message(sides->ctx[side]));
        for (int i = 0; i < sides->pairs; i++)
            tp_ctx_release(sides->ctx[side], TP_MEMORY_OTHER, sides->pair[i].at[side], sides->pair[i].bytes);
    }
    sides->pairs = 0;
    assert_no_reports();
}

void tpt_sides_close(tpt_sides *sides)
{
    tpt_sides_reset(sides);
    for (int side = 0; side < TPT_SIDES; side++)
        tp_ctx_destroy(sides->ctx[side]);
    assert_no_reports();
}

tpt_pair tpt_pair_of(tpt_sides *sides, const void *host, size_t bytes)
{
    tpt_pair pair = {.bytes = bytes};
    char *poison = tpt_allocate(bytes + 1);

    memset(poison, 0x5a, bytes);
    for (int side = 0; side < TPT_SIDES; side++) {
        void *memory;

        cr_assert_eq(tp_ctx_allocate(sides->ctx[side], TP_MEMORY_OTHER, bytes, &memory), TP_OK);
        pair.at[side] = memory;
        cr_assert_eq(tp_ctx_upload(sides->ctx[side], memory, host ? host : poison, bytes), TP_OK);
    }
    free(poison);
    cr_assert_lt(sides->pairs, TPT_MAX_PAIRS);
    sides->pair[sides->pairs++] = pair;
    return pair;
}

tpt_pair tpt_pair_array(tpt_sides *sides, const void *host, tp_dtype dtype, int64_t count)
{
    return tpt_pair_of(sides, host, (size_t)count * tp_dtype_size(dtype));
}

static tpt_pair pair_from(tpt_sides *sides, void *host, tp_dtype dtype, int64_t count)
{
    tpt_pair pair = tpt_pair_array(sides, host, dtype, count);

    free(host);
    return pair;
}

tpt_pair tpt_pair_normal(tpt_sides *sides, tp_dtype dtype, int64_t count, uint64_t seed, double deviation)
{
    return pair_from(sides, tpt_new_normal(dtype, count, seed, deviation), dtype, count);
}

tpt_pair tpt_pair_uniform(tpt_sides *sides, tp_dtype dtype, int64_t count, uint64_t seed, double low, double high)
{
    return pair_from(sides, tpt_new_uniform(dtype, count, seed, low, high), dtype, count);
}

void *tpt_pair_get(tpt_sides *sides, const tpt_pair *pair, int side)
{
    void *host = tpt_allocate(pair->bytes + 1);

    cr_assert_eq(tp_ctx_download(sides->ctx[side], host, pair->at[side], pair->bytes), TP_OK, "%s",
                 tp_ctx_message(sides->ctx[side]));
    return host;
}

void tpt_pair_same(tpt_sides *sides, const char *what, const tpt_pair *pair, tp_dtype dtype)
{
    size_t size = tp_dtype_size(dtype);
    char *cpu = tpt_pair_get(sides, pair, TPT_CPU), *gpu = tpt_pair_get(sides, pair, TPT_GPU);

    for (size_t i = 0; i < pair->bytes / size; i++) {
        double want = tpt_get(cpu, dtype, (int64_t)i), got = tpt_get(gpu, dtype, (int64_t)i);

        if (memcmp(cpu + i * size, gpu + i * size, size) != 0)
            cr_assert(isnan(want) && isnan(got), "%s[%zu] of %zu: %.9g on the GPU, %.9g on the CPU", what, i,
                      pair->bytes / size, got, want);
    }
    free(cpu);
    free(gpu);
}

void tpt_pair_near(tpt_sides *sides, const char *what, const tpt_pair *pair, tp_dtype dtype, double tolerance)
{
    int64_t count = (int64_t)(pair->bytes / tp_dtype_size(dtype));
    void *cpu = tpt_pair_get(sides, pair, TPT_CPU), *gpu = tpt_pair_get(sides, pair, TPT_GPU);
    double *want = tpt_allocate((size_t)count * sizeof *want);

    tpt_to_f64(want, cpu, dtype, count);
    cr_assert(tpt_close(what, gpu, dtype, want, count, tolerance));
    free(want);
    free(cpu);
    free(gpu);
}
