/* tp_bench collective: operations between ranks in the vocabulary of nccl-tests. */
#include "collective_case.h"
#include "collective_peer.h"
#include "parallel.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE, COUNT, TYPE, REDOP, ROOT, OPERATION, ALGORITHM, RANKS, ON, PLACE, TIME, ALGBW, BUSBW, WRONG, DISTANCE,
      KEPT, TOTAL, FITS, COLUMNS };

static const bench_column columns[COLUMNS] = {
    {"size", "B", 0, false},       {"count", "elements", 0, false}, {"type", "", 0, true},
    {"redop", "", 0, true},        {"root", "", 0, false},          {"operation", "", 0, true},
    {"algorithm", "", 0, true},    {"ranks", "", 0, false},         {"on", "", 0, true},
    {"place", "", 0, true},        {"time", "us", 4, false},        {"algbw", "GB/s", 4, false},
    {"busbw", "GB/s", 4, false},   {"#wrong", "", 0, false},        {"cores", "distance", 0, true},
    {"kept", "samples", 0, false}, {"of", "samples", 0, false},     {"ranks <= cores", "", 0, false},
};

/* What all ranks of one run share; only rank 0 writes rows. */
typedef struct collective_run {
    bench_call *call;
    int ranks;
    int64_t largest; /* bytes of a buffer */
    bench_team team;
    double busbw_sum;
    int64_t busbw_count, wrong;
} collective_run;

static tp_status call_once(void *arg)
{
    return bench_collective_call(arg);
}

static void add_row(collective_run *run, const bench_collective *c, const bench_team_figure *found, double wrong)
{
    bench_table *table = &run->call->table;
    const bench_options *options = &run->call->options;
    double bytes = (double)c->count * (double)tp_dtype_size(c->dtype);
    double algbw = bytes / found->figure.seconds, busbw = algbw * bench_collective_factor(c->operation, run->ranks);
    bench_row(table);
    bench_integer(table, (int64_t)bytes);
    bench_integer(table, c->count);
    bench_word(table, "%s", tp_dtype_name(c->dtype));
    bench_word(table, "%s", bench_collective_reduces(c->operation) ? bench_reduce_names[c->reduce] : "none");
    bench_integer(table, c->operation == BENCH_BROADCAST ? 0 : -1);
    bench_word(table, "%s", bench_operation_names[c->operation]);
    bench_word(table, "%s", c->operation == BENCH_ALL_REDUCE ? bench_algorithm_names[c->algorithm] : "-");
    bench_integer(table, run->ranks);
    bench_on_cell(run->call, tp_comm_transport(tp_ctx_world(c->ctx)));
    bench_word(table, "%s", bench_place_names[c->in_place]);
    bench_real(table, found->figure.seconds * 1e6);
    bench_real(table, algbw / 1e9);
    bench_real(table, busbw / 1e9);
    if (options->no_check)
        bench_empty(table);
    else
        bench_integer(table, (int64_t)wrong);
    bench_word(table, "%s", found->distance);
    bench_integer(table, found->figure.kept);
    bench_integer(table, found->figure.total);
    bench_truth(table, bench_fits(run->call, run->ranks, 1));
    if (run->call->gpu.simulated)
        busbw = NAN;
    run->busbw_sum += busbw / 1e9;
    run->busbw_count++;
    run->wrong += (int64_t)wrong;
}

/* Checks, then times, one case. */
static tp_status run_case(collective_run *run, bench_collective *c)
{
    const bench_options *options = &run->call->options;
    double wrong = 0;
    tp_status status = TP_OK;
    bench_collective_prepare(c);
    if (c->rank == 0)
        bench_progress("collective: %s, %d ranks, %lld elements of %s", bench_operation_names[c->operation], run->ranks,
                       (long long)c->count, tp_dtype_name(c->dtype));
    if (!options->no_check) {
        int64_t mine = 0;
        status = bench_collective_check(c, &mine);
        if (status == TP_OK)
            status = bench_team_sum(&run->team, c->ctx, (double)mine, &wrong);
    }
    bench_team_plan plan = {.warmup = (int)options->warmup,
                            .least = 3,
                            .most = (int)options->samples,
                            .seconds = options->seconds,
                            .repeats = options->iterations};
    bench_team_figure found = {0};
    if (status == TP_OK)
        status = bench_team_measure(&run->team, c->ctx, &plan, call_once, c, &found);
    if (status == TP_OK && c->rank == 0)
        add_row(run, c, &found, wrong);
    return status;
}

/* The next size: by increment or by factor, at least one byte more. */
static int64_t next_size(const bench_options *options, int64_t size)
{
    if (options->increment_bytes > 0)
        return size + options->increment_bytes;
    int64_t next = (int64_t)((double)size * options->factor);
    return next > size ? next : size + 1;
}

static tp_status run_sizes(collective_run *run, bench_collective *c)
{
    const bench_options *options = &run->call->options;
    tp_status status = TP_OK;
    int64_t before = -1;
    for (int64_t size = options->begin_bytes; size <= options->end_bytes && status == TP_OK;
         size = next_size(options, size)) {
        c->count = bench_collective_count(c->operation, size, c->dtype, c->ranks);
        if (c->count == before) /* sizes less than an element apart */
            continue;
        before = c->count;
        for (int i = 0; i < options->places.count && status == TP_OK; i++) {
            c->in_place = options->places.value[i] == 1;
            if (bench_collective_has(c->operation, c->in_place))
                status = run_case(run, c);
        }
    }
    return status;
}

static tp_status run_operations(collective_run *run, bench_collective *c)
{
    const bench_options *options = &run->call->options;
    tp_status status = TP_OK;
    for (int d = 0; d < options->dtypes.count; d++)
        for (int o = 0; o < options->operations.count; o++) {
            c->dtype = (tp_dtype)options->dtypes.value[d];
            c->operation = (bench_operation)options->operations.value[o];
            int algorithms = c->operation == BENCH_ALL_REDUCE ? options->algorithms.count : 1;
            for (int a = 0; a < algorithms && status == TP_OK; a++) {
                c->algorithm = (tp_all_reduce_algorithm)options->algorithms.value[a];
                status = run_sizes(run, c);
            }
        }
    return status;
}

static tp_status rank_main(tp_ctx *ctx, void *arg)
{
    collective_run *run = arg;
    bench_collective c = {.ctx = ctx,
                          .ranks = run->ranks,
                          .rank = tp_ctx_rank(ctx),
                          .reduce = (tp_reduce_op)(run->call->options.reduce - 1)};
    size_t bytes = (size_t)run->largest;
    tp_status status = tp_ctx_allocate(ctx, TP_MEMORY_OTHER, bytes, &c.in);
    if (status == TP_OK)
        status = tp_ctx_allocate(ctx, TP_MEMORY_OTHER, bytes, &c.out);
    if (status == TP_OK)
        status = run_operations(run, &c);
    if (c.in != NULL)
        tp_ctx_release(ctx, TP_MEMORY_OTHER, c.in, bytes);
    if (c.out != NULL)
        tp_ctx_release(ctx, TP_MEMORY_OTHER, c.out, bytes);
    return status;
}

static void set_defaults(bench_options *options)
{
    bench_list_default(&options->ranks, 1, (const int64_t[]){2});
    bench_list_default(&options->dtypes, 1, (const int64_t[]){TP_DTYPE_F32});
    bench_list_default(&options->operations, BENCH_OPERATIONS, (const int64_t[]){0, 1, 2, 3, 4, 5});
    bench_list_default(&options->algorithms, 1, (const int64_t[]){TP_ALL_REDUCE_AUTO});
    bench_list_default(&options->places, 2, (const int64_t[]){0, 1});
    options->reduce = options->reduce == 0 ? 1 : options->reduce;
    options->end_bytes = options->end_bytes > 0           ? options->end_bytes
                         : options->begin_bytes > 4 << 20 ? options->begin_bytes
                                                          : 4 << 20;
    options->begin_bytes = options->begin_bytes > 0    ? options->begin_bytes
                           : options->end_bytes < 1024 ? options->end_bytes
                                                       : 1024;
    options->samples = options->samples > 0 ? options->samples : BENCH_SAMPLES;
    options->warmup = options->warmup > 0 ? options->warmup : 5;
    options->seconds = options->seconds > 0 ? options->seconds : 0.1;
}

static int check_options(bench_call *call)
{
    bench_options *options = &call->options;
    if (options->factor > 0 && options->increment_bytes > 0)
        return bench_refuse(call, "--factor %g and --increment %lld: give one of them", options->factor,
                            (long long)options->increment_bytes);
    options->factor = options->factor > 0 ? options->factor : 4;
    if (options->near_seconds > 0 && options->peers.count == 0)
        return bench_refuse(call, "--near %g: only comparisons with --peer wait for near cores", options->near_seconds);
    set_defaults(options);
    if (options->begin_bytes > options->end_bytes)
        return bench_refuse(call, "--begin %lld is larger than --end %lld", (long long)options->begin_bytes,
                            (long long)options->end_bytes);
    if (options->isa != 0 && !tp_isa_available((tp_isa)options->isa))
        return bench_refuse(call, "--isa %s: this machine does not have it; its best is %s",
                            tp_isa_name((tp_isa)options->isa), tp_isa_name(call->machine.isa));
    for (int i = 0; i < options->ranks.count; i++) {
        double need = 2.0 * (double)options->end_bytes * (double)options->ranks.value[i];
        if (need > 0.8 * (double)call->machine.available)
            return bench_refuse(call, "--end %lld: %lld ranks need %.0f bytes of buffers, %zu are free",
                                (long long)options->end_bytes, (long long)options->ranks.value[i], need,
                                call->machine.available);
    }
    return BENCH_OK;
}

static int run_ranks(bench_call *call, collective_run *run, int ranks)
{
    const bench_options *options = &call->options;
    run->call = call;
    run->ranks = ranks;
    run->largest = options->end_bytes + 64;
    bench_team_begin(call, &run->team, ranks);
    tp_run_options start = bench_run_options(call, ranks, 1);
    for (int i = 0; i < options->algorithms.count; i++)
        if (options->algorithms.value[i] == TP_ALL_REDUCE_RING)
            start.ctx.sum_order = TP_SUM_FAST;
    tp_status status = tp_run_ranks(&start, rank_main, run);
    return status == TP_OK ? BENCH_OK
                           : bench_fail(call, "%d ranks: %s: %s", ranks, tp_status_name(status), tp_last_message());
}

int bench_command_collective(bench_call *call)
{
    bench_options *options = &call->options;
    int status = bench_take_device(call);
    if (status == BENCH_OK)
        status = bench_take_link(call);
    if (status == BENCH_OK && options->peers.count > 0)
        status = bench_check_peers(call);
    if (status == BENCH_OK)
        status = check_options(call);
    if (status != BENCH_OK)
        return status;
    if (options->peers.count > 0)
        return bench_collective_peers(call, next_size);
    bench_begin(call, columns, COLUMNS);
    bench_hide_times(call, BENCH_BITS(TIME, BUSBW));
    call->table.plot = (bench_plot){.x = SIZE, .y = BUSBW, .only = FITS, .log_x = true, .groups = 5,
                                    .group = {OPERATION, ALGORITHM, TYPE, RANKS, PLACE}};
    snprintf(call->table.title, sizeof call->table.title, "collectives between thread ranks");
    collective_run *run = calloc(1, sizeof *run);
    if (run == NULL)
        return bench_fail(call, "out of memory");
    for (int i = 0; i < options->ranks.count && status == BENCH_OK; i++)
        status = run_ranks(call, run, (int)options->ranks.value[i]);
    if (!options->no_check)
        bench_note(&call->table, "Out of bounds values : %lld %s", (long long)run->wrong,
                   run->wrong > 0 ? "FAILED" : "OK");
    if (run->busbw_count > 0 && !call->gpu.simulated)
        bench_note(&call->table, "Avg bus bandwidth    : %.4g GB/s", run->busbw_sum / (double)run->busbw_count);
    if (run->wrong > 0)
        bench_check_failed(call, "%lld elements differ from the exact result", (long long)run->wrong);
    bench_note_kept(call, KEPT, TOTAL);
    bench_note(
        &call->table,
        "distance: by an exchange of flags before and after each sample; the figure is of the kind seen more often");
    free(run);
    return status;
}
