/* tp_bench calibrate: the figures that the choice of an overlap needs, measured while all ranks work, written as a machine file. */
#include "command.h"
#include "gemm_case.h"
#include "output.h"
#include "team.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIGURE, VALUE, UNIT, COLUMNS };

static const bench_column columns[COLUMNS] = {{"figure", "", 0, true}, {"value", "", 5, false}, {"unit", "", 0, true}};

/* A layer's product; rows of the curve; bytes of large and small messages. */
enum { OUT = 768, IN = 768, POINTS = 8, LARGE = 4 << 20, SMALL = 64, DIRECT_ROWS = 384 };
static const int64_t curve_rows[POINTS] = {1, 4, 16, 48, 96, 192, 384, 768};
static const tp_dtype curve_dtypes[] = {TP_DTYPE_F32, TP_DTYPE_BF16};

#define SAMPLE_SECONDS 0.04

typedef struct calibration {
    bench_team team;
    tp_machine machine; /* rank 0 fills it */
} calibration;

/* One rank at work. */
typedef struct worker {
    calibration *all;
    tp_ctx *ctx;
    int rank, ranks;
    float *in, *out; /* LARGE bytes each */
    int64_t count;   /* of floats, in all */
    bench_gemm gemm;
    tp_symmetric inputs;
    int reads; /* whose input the product reads */
} worker;

static tp_status measure(worker *w, tp_status (*fn)(void *arg), double *seconds)
{
    bench_team_plan plan = {.warmup = 2, .least = 5, .most = 256, .seconds = SAMPLE_SECONDS};
    bench_team_figure figure;
    tp_status status = bench_team_measure(&w->all->team, w->ctx, &plan, fn, w, &figure);
    *seconds = figure.figure.seconds;
    return status;
}

static tp_status run_gemm(void *arg)
{
    worker *w = arg;
    bench_gemm_run(&w->gemm);
    return w->gemm.status;
}

static tp_status time_gemm(worker *w, const bench_product *product, tp_dtype dtype, double *seconds)
{
    tp_status status = bench_gemm_open(&w->gemm, w->ctx, product, dtype, false);
    if (status == TP_OK)
        status = measure(w, run_gemm, seconds);
    bench_gemm_close(&w->gemm);
    return status;
}

/* More rows are never slower, since they could be cut; where it looks so, other work took the cores from the longer samples. */
static void add_point(tp_machine *machine, tp_dtype dtype, int i, double flops)
{
    machine->gemm[dtype].rows[i] = (double)curve_rows[i];
    machine->gemm[dtype].flops[i] = i > 0 ? fmax(flops, machine->gemm[dtype].flops[i - 1]) : flops;
    machine->gemm[dtype].points = i + 1;
}

static tp_status calibrate_gemm(worker *w)
{
    for (size_t d = 0; d < sizeof curve_dtypes / sizeof *curve_dtypes; d++)
        for (int i = 0; i < POINTS; i++) {
            bench_product product = {.layer = "calibrate", .tokens = curve_rows[i], .out = OUT, .in = IN, .variant = BENCH_NT};
            double seconds;
            tp_status status = time_gemm(w, &product, curve_dtypes[d], &seconds);
            if (status != TP_OK)
                return status;
            if (w->rank > 0)
                continue;
            add_point(&w->all->machine, curve_dtypes[d], i, bench_product_flops(&product) / seconds);
        }
    bench_product tiny = {.layer = "calibrate", .tokens = 1, .out = 8, .in = 8, .variant = BENCH_NT};
    double seconds;
    tp_status status = time_gemm(w, &tiny, TP_DTYPE_F32, &seconds);
    if (status == TP_OK && w->rank == 0)
        w->all->machine.call_seconds = seconds;
    return status;
}

static tp_status run_gather(void *arg)
{
    worker *w = arg;
    tp_range mine = tp_shard_range(w->count, w->ranks, w->rank);
    return tp_all_gather(w->ctx, tp_ctx_world(w->ctx), tp_tensor_1d(w->in, TP_DTYPE_F32, mine.end - mine.begin),
                         tp_tensor_1d(w->out, TP_DTYPE_F32, w->count), NULL);
}

static tp_status run_scatter(void *arg)
{
    worker *w = arg;
    tp_range mine = tp_shard_range(w->count, w->ranks, w->rank);
    return tp_reduce_scatter(w->ctx, tp_ctx_world(w->ctx), tp_tensor_1d(w->in, TP_DTYPE_F32, w->count),
                             tp_tensor_1d(w->out, TP_DTYPE_F32, mine.end - mine.begin), NULL, NULL);
}

static tp_status run_barrier(void *arg)
{
    worker *w = arg;
    return tp_barrier(w->ctx, tp_ctx_world(w->ctx));
}

/* Seconds of a large and a small message. */
static tp_status time_sizes(worker *w, tp_status (*fn)(void *arg), double *large, double *small)
{
    w->count = SMALL / (int64_t)sizeof(float) * w->ranks;
    tp_status status = measure(w, fn, small);
    w->count = LARGE / (int64_t)sizeof(float);
    return status == TP_OK ? measure(w, fn, large) : status;
}

static tp_status calibrate_transfers(worker *w)
{
    double large = 0, small = 0, added = 0, added_small = 0, barrier = 0;
    tp_status status = time_sizes(w, run_gather, &large, &small);
    if (status == TP_OK)
        status = time_sizes(w, run_scatter, &added, &added_small);
    if (status == TP_OK)
        status = measure(w, run_barrier, &barrier);
    if (status != TP_OK || w->rank > 0)
        return status;
    tp_machine *machine = &w->all->machine;
    machine->copy_bytes_per_second = LARGE / fmax(large - small, 1e-9);
    machine->reduce_bytes_per_second = LARGE * (1 + 1.0 / w->ranks) / fmax(added - added_small, 1e-9);
    machine->transfer_seconds = small;
    machine->wait_seconds = barrier / 2;
    return TP_OK;
}

/* Every rank writes its input anew, then multiplies the one that `reads` says. */
static tp_status run_fresh(void *arg)
{
    worker *w = arg;
    float *own = w->inputs.local;
    for (int64_t i = 0; i < (int64_t)DIRECT_ROWS * IN; i++)
        own[i] += 1;
    tp_status status = tp_barrier(w->ctx, tp_ctx_world(w->ctx));
    if (status != TP_OK)
        return status;
    w->gemm.args.a.data = w->inputs.peer[w->reads];
    bench_gemm_run(&w->gemm);
    return w->gemm.status == TP_OK ? tp_barrier(w->ctx, tp_ctx_world(w->ctx)) : w->gemm.status;
}

static tp_status calibrate_direct(worker *w)
{
    bench_product product = {.layer = "calibrate", .tokens = DIRECT_ROWS, .out = OUT, .in = IN, .variant = BENCH_NT};
    double own = 0, peer = 0, alone = 0;
    tp_status status = tp_symmetric_create(w->ctx, tp_ctx_world(w->ctx), sizeof(float) * DIRECT_ROWS * IN, &w->inputs);
    if (status != TP_OK)
        return status;
    status = bench_gemm_open(&w->gemm, w->ctx, &product, TP_DTYPE_F32, false);
    const void *data = w->gemm.args.a.data;
    w->reads = w->rank;
    if (status == TP_OK)
        status = measure(w, run_fresh, &own);
    w->reads = (w->rank + 1) % w->ranks;
    if (status == TP_OK)
        status = measure(w, run_fresh, &peer);
    w->gemm.args.a.data = data;
    if (status == TP_OK)
        status = measure(w, run_gemm, &alone);
    bench_gemm_close(&w->gemm);
    if (status == TP_OK && w->rank == 0)
        w->all->machine.direct_slowdown = fmax(1 + (peer - own) / alone, 1);
    tp_symmetric_destroy(w->ctx, tp_ctx_world(w->ctx), &w->inputs);
    return status;
}

static tp_status rank_main(tp_ctx *ctx, void *arg)
{
    worker w = {.all = arg, .ctx = ctx, .rank = tp_ctx_rank(ctx), .ranks = ((calibration *)arg)->team.ranks};
    w.in = calloc(1, LARGE);
    w.out = calloc(1, LARGE);
    tp_status status = w.in != NULL && w.out != NULL ? TP_OK : TP_ERR_MEMORY;
    if (w.rank == 0)
        bench_progress("calibrate: products");
    if (status == TP_OK)
        status = calibrate_gemm(&w);
    if (w.rank == 0)
        bench_progress("calibrate: transfers");
    if (status == TP_OK)
        status = calibrate_transfers(&w);
    if (status == TP_OK)
        status = calibrate_direct(&w);
    free(w.in);
    free(w.out);
    return status;
}

static void add_figure(bench_call *call, const char *name, double value, const char *unit)
{
    bench_row(&call->table);
    bench_word(&call->table, "%s", name);
    bench_real(&call->table, value);
    bench_word(&call->table, "%s", unit);
}

static void add_figures(bench_call *call, const tp_machine *machine)
{
    char name[BENCH_CELL_TEXT];
    for (size_t d = 0; d < sizeof curve_dtypes / sizeof *curve_dtypes; d++)
        for (int i = 0; i < machine->gemm[curve_dtypes[d]].points; i++) {
            snprintf(name, sizeof name, "gemm %s, %.0f rows x %d x %d", tp_dtype_name(curve_dtypes[d]), machine->gemm[curve_dtypes[d]].rows[i], OUT, IN);
            add_figure(call, name, machine->gemm[curve_dtypes[d]].flops[i] / 1e9, "GFLOP/s a rank");
        }
    add_figure(call, "gemm that reads a peer's rows", machine->direct_slowdown, "x own rows");
    add_figure(call, "fixed, a call", machine->call_seconds * 1e6, "us");
    add_figure(call, "fixed, a transfer", machine->transfer_seconds * 1e6, "us");
    add_figure(call, "a wait for a peer", machine->wait_seconds * 1e6, "us");
    add_figure(call, "copy out of a peer's memory", machine->copy_bytes_per_second / 1e9, "GB/s a rank");
    add_figure(call, "adds, read and written", machine->reduce_bytes_per_second / 1e9, "GB/s a rank");
}

static int write_machine(bench_call *call, const tp_machine *machine, const char *path)
{
    size_t length = tp_machine_print(machine, NULL, 0);
    char *text = malloc(length + 1);
    if (text == NULL)
        return bench_fail(call, "out of memory");
    tp_machine_print(machine, text, length + 1);
    FILE *file = fopen(path, "wb");
    bool good = file != NULL && fwrite(text, 1, length, file) == length;
    if (file != NULL)
        good = fclose(file) == 0 && good;
    free(text);
    if (!good)
        return bench_fail(call, "%s: %s", path, strerror(errno));
    bench_note(&call->table, "written to %s", path);
    return BENCH_OK;
}

static int check_options(bench_call *call, tp_link *link)
{
    bench_options *options = &call->options;
    bench_list_default(&options->ranks, 1, (const int64_t[]){call->machine.cores > 1 ? call->machine.cores : 2});
    if (options->ranks.count != 1 || options->ranks.value[0] < 2)
        return bench_refuse(call, "--ranks: a machine is measured with one number of ranks, at least 2");
    if (options->link != NULL && !bench_parse_link(options->link, link))
        return bench_refuse(call, "--link: '%s' is not LATENCY,BANDWIDTH in seconds and bytes/s, like 5e-6,1e9", options->link);
    return BENCH_OK;
}

int bench_command_calibrate(bench_call *call)
{
    tp_link link = {0, 0};
    int status = check_options(call, &link);
    if (status != BENCH_OK)
        return status;
    int ranks = (int)call->options.ranks.value[0];
    calibration *all = calloc(1, sizeof *all);
    if (all == NULL)
        return bench_fail(call, "out of memory");
    bench_begin(call, columns, COLUMNS);
    snprintf(call->table.title, sizeof call->table.title, "one of %d ranks at work, a thread each", ranks);
    bench_team_init(&all->team, ranks, call->machine.cores);
    all->machine.threads = 1;
    all->machine.link = link;
    all->machine.lanes_share_cores = call->machine.cores < 2 * ranks;
    snprintf(all->machine.name, sizeof all->machine.name, "%.70s, %d cores", call->machine.processor, call->machine.cores);
    tp_run_options start = {.ranks = ranks, .ctx = {.version = TP_VERSION, .threads = 1}};
    if (tp_run_ranks(&start, rank_main, all) != TP_OK)
        status = bench_fail(call, "%s", tp_last_message());
    else {
        add_figures(call, &all->machine);
        status = write_machine(call, &all->machine, call->options.out != NULL ? call->options.out : BENCH_MACHINE_FILE);
    }
    free(all);
    return status;
}
