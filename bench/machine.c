#include "machine.h"

#include "core/memory.h"
#include "measure.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The text after "key :" in a file of such lines. */
static bool read_field(const char *path, const char *key, char *value, size_t bytes)
{
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return false;
    char line[512];
    bool found = false;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, key, strlen(key)) != 0)
            continue;
        const char *text = strchr(line, ':');
        if (text == NULL)
            continue;
        text += 1 + strspn(text + 1, " \t");
        snprintf(value, bytes, "%.*s", (int)strcspn(text, "\n"), text);
        found = true;
    }
    fclose(file);
    return found;
}

static size_t meminfo(const char *key)
{
    char text[128];
    return read_field("/proc/meminfo", key, text, sizeof text) ? (size_t)strtoull(text, NULL, 10) * 1024 : 0;
}

/* Sizes of the first core's data caches, as the system lists them. */
static void read_caches(size_t cache[4])
{
    for (int index = 0; index < 8; index++) {
        char path[128], text[3][32] = {{0}};
        static const char *const fields[] = {"level", "type", "size"};
        bool all = true;
        for (int i = 0; i < 3; i++) {
            snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, fields[i]);
            FILE *file = fopen(path, "r");
            all = all && file != NULL && fgets(text[i], sizeof text[i], file) != NULL;
            if (file != NULL)
                fclose(file);
        }
        int level = atoi(text[0]);
        if (!all || level < 1 || level > 3 || strncmp(text[1], "Instruction", 11) == 0)
            continue;
        char *unit;
        size_t size = (size_t)strtoull(text[2], &unit, 10);
        cache[level] = size << (*unit == 'K' ? 10 : *unit == 'M' ? 20 : 0);
    }
}

bench_machine bench_machine_look(void)
{
    bench_machine machine = {.cores = 1};
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        machine.cores = CPU_COUNT(&set);
    if (!read_field("/proc/cpuinfo", "model name", machine.processor, sizeof machine.processor))
        snprintf(machine.processor, sizeof machine.processor, "unknown processor");
    machine.memory = meminfo("MemTotal");
    machine.available = meminfo("MemAvailable");
    read_caches(machine.cache);
    if (getloadavg(&machine.load, 1) != 1)
        machine.load = -1;
    machine.isa = TP_ISA_PORTABLE;
    for (int isa = TP_ISA_PORTABLE; isa < TP_ISA_COUNT; isa++)
        if (tp_isa_available((tp_isa)isa))
            machine.isa = (tp_isa)isa;
    return machine;
}

void bench_machine_line(const bench_machine *machine, tp_isa isa, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s, %d core%s, %s, tp %d.%d.%d", machine->processor, machine->cores,
             machine->cores == 1 ? "" : "s", tp_isa_name(isa == TP_ISA_AUTO ? machine->isa : isa), tp_version() / 10000,
             tp_version() / 100 % 100, tp_version() % 100);
}

void bench_machine_name(const bench_machine *machine, char *text, size_t bytes)
{
    snprintf(text, bytes, "%.70s, %d cores", machine->processor, machine->cores);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

#define SAMPLE_FLOATS ((size_t)1 << 20) /* 4 MiB a sample: short chunks */

typedef struct stream_run {
    bench_stream stream;
    bench_add *add;
    size_t floats; /* an array */
    double seconds;
    double rate[BENCH_SAMPLES]; /* by thread; 0: no memory */
} stream_run;

#ifdef BENCH_SANITIZED /* its times mean nothing */
#define STREAM_MEMORY ((size_t)1 << 20)
#else
#define STREAM_MEMORY ((size_t)64 << 20)
#endif
const size_t bench_stream_memory = STREAM_MEMORY;
const double bench_streamer_bytes = 2 * 3 * (double)STREAM_MEMORY; /* added twice */

const char *bench_stream_name(bench_stream stream)
{
    static const char *const names[BENCH_STREAM_COUNT] = {"read", "copy", "add in place"};
    return names[stream];
}

/* Sixteen sums, so that the additions don't wait for each other. */
static float read_piece(const float *in, size_t floats)
{
    float sum[16] = {0};
    for (size_t i = 0; i < floats; i += 16)
        for (size_t lane = 0; lane < 16; lane++)
            sum[lane] += in[i + lane];
    float all = 0;
    for (int lane = 0; lane < 16; lane++)
        all += sum[lane];
    return all;
}

static inline __attribute__((always_inline)) void add_floats(float *restrict out, const float *restrict in,
                                                              size_t floats)
{
    for (size_t i = 0; i < floats; i++)
        out[i] += in[i];
}

static void add_narrow(float *out, const float *in, size_t floats)
{
    add_floats(out, in, floats);
}

#if defined(__x86_64__)
/* Narrow vectors don't reach what the caches give. */
__attribute__((target("avx2"))) static void add_wide(float *out, const float *in, size_t floats)
{
    add_floats(out, in, floats);
}
#else
#define add_wide add_narrow
#endif

/* Chosen once: asking a virtual machine's processor what it has takes as long as adding up a level-2 cache. */
static bench_add *choose_add(void)
{
    return tp_isa_available(TP_ISA_AVX2) ? add_wide : add_narrow;
}

/* Arrays as the library's own are: on huge pages, if they are large. */
static float *new_array(size_t bytes)
{
    return tpi_raw_allocate(NULL, bytes);
}

static void free_array(float *array, size_t bytes)
{
    tpi_raw_release(NULL, array, bytes);
}

/* One sample: from `at` on, or small arrays several times over. */
static float stream_sample(const stream_run *run, float *out, const float *in, size_t at)
{
    size_t piece = run->floats < SAMPLE_FLOATS ? run->floats : SAMPLE_FLOATS;
    float kept = 0;
    for (size_t done = 0; done < SAMPLE_FLOATS; done += piece) {
        if (run->stream == BENCH_STREAM_READ)
            kept += read_piece(in + at, piece);
        else if (run->stream == BENCH_STREAM_COPY)
            memcpy(out + at, in + at, piece * sizeof *out);
        else
            run->add(out + at, in + at, piece);
    }
    return kept;
}

static double stream_bytes(bench_stream stream)
{
    static const double passes[BENCH_STREAM_COUNT] = {1, 2, 3};
    return passes[stream] * (double)SAMPLE_FLOATS * sizeof(float);
}

static void stream_thread(void *arg, int index)
{
    stream_run *run = arg;
    const size_t bytes = run->floats * sizeof(float);
    float *in = new_array(bytes), *out = new_array(bytes);
    bench_samples samples = {0};
    if (in != NULL && out != NULL) {
        for (size_t i = 0; i < run->floats; i++)
            in[i] = out[i] = (float)(i % 7);
        size_t at = 0;
        volatile float kept = 0;
        for (double begin = bench_now(); samples.count < BENCH_SAMPLES && bench_now() - begin < run->seconds;) {
            bool clean;
            const bench_watch watch = bench_watch_start(BENCH_OWN_THREAD);
            kept = kept + stream_sample(run, out, in, at);
            double seconds = bench_watch_stop(&watch, &clean);
            bench_sample_add(&samples, seconds, clean);
            at = run->floats > SAMPLE_FLOATS ? (at + SAMPLE_FLOATS) % run->floats : 0;
        }
        run->rate[index] = stream_bytes(run->stream) / bench_sample_figure(&samples).seconds;
    }
    free_array(in, bytes);
    free_array(out, bytes);
}

double bench_stream_measure(bench_stream stream, int threads, size_t bytes, double seconds)
{
    stream_run run = {.stream = stream, .add = choose_add(), .floats = bytes / sizeof(float), .seconds = seconds};
    if (threads > BENCH_SAMPLES || !bench_together(threads, true, stream_thread, &run))
        return 0;
    double sum = 0;
    for (int i = 0; i < threads; i++)
        sum += run.rate[i];
    return sum;
}

bool bench_streamer_open(bench_streamer *streamer)
{
    size_t floats = bench_stream_memory / sizeof(float);
    *streamer = (bench_streamer){
        .add = choose_add(), .in = new_array(bench_stream_memory), .out = new_array(bench_stream_memory)};
    if (streamer->in == NULL || streamer->out == NULL) {
        bench_streamer_close(streamer);
        return false;
    }
    for (size_t i = 0; i < floats; i++)
        streamer->in[i] = streamer->out[i] = (float)(i % 7);
    return true;
}

void bench_streamer_close(bench_streamer *streamer)
{
    free_array(streamer->in, bench_stream_memory);
    free_array(streamer->out, bench_stream_memory);
    *streamer = (bench_streamer){.in = NULL};
}

void bench_streamer_run(bench_streamer *streamer)
{
    const size_t floats = bench_stream_memory / sizeof(float);
    for (size_t done = 0; done < (size_t)(bench_streamer_bytes / 3) / sizeof(float); done += floats)
        streamer->add(streamer->out, streamer->in, floats);
}

double bench_streamer_rate(const bench_figure *figure, double before)
{
    return figure->kept > 0 ? bench_streamer_bytes / figure->seconds : before;
}
