/* tp_bench calibrate: a machine's figures as a table and as a file. */
#include "calibration.h"
#include "output.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FIGURE, VALUE, UNIT, COLUMNS };

static const bench_column columns[COLUMNS] = {{"figure", "", 0, true}, {"value", "", 5, false}, {"unit", "", 0, true}};

static void add_figure(bench_call *call, const char *name, double value, const char *unit)
{
    bench_row(&call->table);
    bench_word(&call->table, "%s", name);
    bench_real(&call->table, value);
    bench_word(&call->table, "%s", unit);
}

/* Of the layer whose products are measured. */
static int features_of(const bench_call *call)
{
    if (!bench_on_gpu(call))
        return BENCH_CALIBRATION_OUT;
    return call->gpu.simulated ? BENCH_CALIBRATION_SIMULATED_FEATURES : BENCH_CALIBRATION_GPU_FEATURES;
}

static void add_curve(bench_call *call, const char *what, tp_dtype dtype, const tp_machine_curve *curve)
{
    char name[BENCH_CELL_TEXT];
    for (int i = 0; i < curve->points; i++) {
        snprintf(name, sizeof name, "%s %s, %.0f rows x %d x %d", what, tp_dtype_name(dtype), curve->rows[i],
                 features_of(call), features_of(call));
        add_figure(call, name, curve->flops[i] / 1e9, "GFLOP/s a rank");
    }
}

static void add_figures(bench_call *call, const tp_machine *machine)
{
    for (int dtype = 0; dtype < TP_DTYPE_COUNT; dtype++)
        add_curve(call, "gemm", (tp_dtype)dtype, &machine->gemm[dtype]);
    for (int dtype = 0; dtype < TP_DTYPE_COUNT; dtype++)
        add_curve(call, "weight gradient", (tp_dtype)dtype, &machine->weight[dtype]);
    add_figure(call, "gemm that reads a peer's rows", machine->direct_slowdown, "x own rows");
    add_figure(call, "fixed, a call", machine->call_seconds * 1e6, "us");
    add_figure(call, "fixed, a transfer", machine->transfer_seconds * 1e6, "us");
    add_figure(call, "a wait for a peer", machine->wait_seconds * 1e6, "us");
    if (bench_on_gpu(call)) { /* lanes are streams of their own, and a curve's weights come out of memory */
        add_figure(call, "an activation, an element", machine->activation_seconds * 1e9, "ns");
        add_figure(call, "copy within a device", machine->copy_bytes_per_second / 1e9, "GB/s a rank");
        add_figure(call, "link to another device",
                   machine->link.bytes_per_second > 0 ? machine->link.bytes_per_second / 1e9 : NAN, "GB/s a rank");
        add_figure(call, "adds, read and written", machine->reduce_bytes_per_second / 1e9, "GB/s a rank");
        return;
    }
    add_figure(call, "an op on a lane beside compute", machine->lane_seconds * 1e6, "us");
    add_figure(call, "a collective there", machine->meet_seconds * 1e6, "us");
    add_figure(call, "starting and joining such a lane", machine->start_seconds * 1e6, "us");
    add_figure(call, "waking up for a modelled link", machine->wake_seconds * 1e6, "us");
    add_figure(call, "an activation, an element", machine->activation_seconds * 1e9, "ns");
    add_figure(call, "copy out of a peer's memory", machine->copy_bytes_per_second / 1e9, "GB/s a rank");
    add_figure(call, "adds, read and written", machine->reduce_bytes_per_second / 1e9, "GB/s a rank");
    add_figure(call, "what a gemm finds in no cache", machine->memory_bytes_per_second / 1e9, "GB/s a rank");
    add_figure(call, "a weight gradient in no cache, added to", machine->gradient_bytes_per_second / 1e9,
               "GB/s a rank");
}

static bool write_text(const char *path, const char *text, size_t length)
{
    FILE *file = fopen(path, "wb");
    bool good = file != NULL && fwrite(text, 1, length, file) == length;
    if (file != NULL)
        good = fclose(file) == 0 && good;
    return good;
}

/* Beside it and then in its place: who reads it meanwhile, or after a crash, finds the old text or the new one. Only
 * files are replaced, no devices or links. */
static bool replace_text(const char *path, const char *text, size_t length)
{
    struct stat there;
    char part[4096];
    if ((lstat(path, &there) == 0 && !S_ISREG(there.st_mode)) ||
        snprintf(part, sizeof part, "%s.part", path) >= (int)sizeof part)
        return write_text(path, text, length);
    bool good = write_text(part, text, length) && rename(part, path) == 0;
    int reason = errno;
    if (!good)
        remove(part);
    errno = reason;
    return good;
}

static int write_machine(bench_call *call, const tp_machine *machine, const char *path)
{
    size_t length = tp_machine_print(machine, NULL, 0);
    char *text = malloc(length + 1);
    if (text == NULL)
        return bench_fail(call, "out of memory");
    tp_machine_print(machine, text, length + 1);
    bool good = replace_text(path, text, length);
    free(text);
    if (!good)
        return bench_fail(call, "%s: %s", path, strerror(errno));
    bench_note(&call->table, "written to %s", path);
    return BENCH_OK;
}

static int check_options(bench_call *call, tp_link *link)
{
    bench_options *options = &call->options;
    int status = bench_take_device(call);
    if (status != BENCH_OK)
        return status;
    int64_t most = bench_on_gpu(call) ? options->devices : call->machine.cores;
    bench_list_default(&options->ranks, 1, (const int64_t[]){most > 1 ? most : 2});
    if (options->ranks.count != 1 || options->ranks.value[0] < 2)
        return bench_refuse(call, "--ranks: a machine is measured with one number of ranks, at least 2");
    if (call->gpu.simulated && options->out != NULL)
        return bench_refuse(call, "--out %s: a simulated GPU's time is no speed, so there is nothing to be written",
                            options->out);
    if (options->link != NULL && !bench_parse_link(options->link, link))
        return bench_refuse(call, "--link: '%s' is not LATENCY,BANDWIDTH in seconds and bytes/s, like 5e-6,1e9",
                            options->link);
    return BENCH_OK;
}

int bench_command_calibrate(bench_call *call)
{
    tp_link link = {0, 0};
    int status = check_options(call, &link);
    if (status != BENCH_OK)
        return status;
    int ranks = (int)call->options.ranks.value[0];
    bench_begin(call, columns, COLUMNS);
    bench_hide_times(call, BENCH_BITS(VALUE, VALUE));
    bool gpu = bench_on_gpu(call);
    snprintf(call->table.title, sizeof call->table.title, "one of %d ranks at work, a thread each%s", ranks,
             gpu ? ", on " : "");
    if (gpu)
        bench_costs_name(call, call->table.title + strlen(call->table.title),
                         sizeof call->table.title - strlen(call->table.title));
    tp_machine machine;
    bench_figure samples;
    status = bench_calibrate(call, ranks, &machine, &samples);
    if (status != BENCH_OK)
        return status;
    if (!gpu)
        machine.link = link;
    add_figures(call, &machine);
    if (samples.total > 0)
        bench_note_samples(call, samples.kept, samples.total);
    if (call->gpu.simulated) {
        bench_note(&call->table, "no file was written: auto would go by it");
        return BENCH_OK;
    }
    return write_machine(call, &machine, bench_machine_path(&call->options));
}
