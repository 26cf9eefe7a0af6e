/* tp_bench linear, mlp, attention --overlap: rows for forward, backward and both, an algorithm and a number of chunks
 * each. */
#include "calibration.h"
#include "overlap.h"
#include "plan/fold.h"
#include "plan_options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPERATION, SHAPE, DTYPE, ISA, RANKS, THREADS, PARALLEL, ON, PASS, OVERLAP, CHUNKS, LINK, COMPUTE, COMM, PLAIN,
    FUSED, HIDDEN, BOUND, SHARE, SPEEDUP, SIMULATED, RATIO, SAME,
    KEPT, TOTAL, FITS, COLUMNS
};

static const bench_column columns[COLUMNS] = {
    {"layer", "", 0, true},               {"shape", "", 0, true},               {"dtype", "", 0, true},
    {"isa", "", 0, true},                 {"ranks", "", 0, false},              {"threads", "each", 0, false},
    {"sequence parallel", "", 0, false},  {"on", "", 0, true},                  {"pass", "", 0, true},
    {"overlap", "", 0, true},             {"chunks", "", 0, false},             {"link", "GB/s", 4, false},
    {"t_gemm", "us", 5, false},           {"t_comm", "us", 5, false},           {"t_none", "us", 5, false},
    {"t_fused", "us", 5, false},          {"hidden", "", -3, false},            {"bound", "", -3, false},
    {"share", "", -3, false},             {"speed-up", "over none", -3, false}, {"simulated", "us", 5, false},
    {"fused / simulated", "", -3, false}, {"same bits", "", 0, true},           {"kept", "samples", 0, false},
    {"of", "samples", 0, false},          {"ranks <= cores", "", 0, false},
};

static const char *const pass_names[] = {"forward", "backward", "both"};

/* What rows of one dtype and degree share. */
typedef struct overlap_case {
    bench_call *call;
    bench_layer_shape shape;
    int ranks;
    tp_link link[2]; /* forward, backward */
    bench_layer_reference reference;
    bench_trace *trace;
    char text[BENCH_CELL_TEXT];
} overlap_case;

static double seconds_of(const bench_overlap_figures *figures, int count, size_t offset)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += ((const bench_team_figure *)(const void *)((const char *)&figures[i] + offset))->figure.seconds;
    return sum;
}

static void add_same(overlap_case *c, const bench_overlap_figures *figures, int count)
{
    double from_none = 0, from_first = 0;
    for (int i = 0; i < count; i++) {
        from_none += figures[i].different;
        from_first += figures[i].from_first;
    }
    char what[200];
    snprintf(what, sizeof what, "%s %s %s: %.0f values differ from none's, none's %.0f from one rank's",
             c->call->table.command, tp_dtype_name(c->shape.dtype), bench_overlap_names[c->shape.overlap], from_none,
             from_first);
    if (c->call->options.no_check)
        bench_word(&c->call->table, "-");
    else
        bench_same_cell(c->call, from_none == 0 && from_first == 0,
                        from_none > 0 || bench_bits_promised(c->call, 1, c->ranks), what);
}

/* What the layer's plan combines; GEMM: nothing of which a bound is known. */
static tp_pattern pattern_of(const bench_layer_shape *shape, bool backward)
{
    bool row = shape->kind == TP_LINEAR_ROW;
    if (!shape->sequence_parallel || shape->command == BENCH_ATTENTION)
        return TP_PATTERN_GEMM;
    if (shape->command == BENCH_MLP)
        return backward ? TP_PATTERN_CHAIN_BACKWARD : TP_PATTERN_CHAIN;
    if (backward)
        return row ? TP_PATTERN_ROW_BACKWARD : TP_PATTERN_BACKWARD;
    return row ? TP_PATTERN_GEMM_SCATTER : TP_PATTERN_GATHER_GEMM;
}

/* Of passes together: each counts by what it could hide. */
static double bound_of(const overlap_case *c, const bench_overlap_figures *figures, int first, int count)
{
    double sum = 0, weights = 0;
    int chunks = bench_chunks_of(c->shape.overlap, c->ranks, c->shape.chunks);
    for (int i = 0; i < count; i++) {
        double weight = fmin(figures[i].compute.figure.seconds, figures[i].comm.figure.seconds);
        sum += weight * bench_hidden_bound(c->shape.overlap, pattern_of(&c->shape, first + i == 1), chunks);
        weights += weight;
    }
    return c->ranks == 2 && weights > 0 ? sum / weights : NAN;
}

static void add_figures(overlap_case *c, const bench_overlap_figures *figures, int first, int count)
{
    bench_table *table = &c->call->table;
    double compute = seconds_of(figures, count, offsetof(bench_overlap_figures, compute));
    double comm = seconds_of(figures, count, offsetof(bench_overlap_figures, comm));
    double plain = seconds_of(figures, count, offsetof(bench_overlap_figures, none));
    double fused = seconds_of(figures, count, offsetof(bench_overlap_figures, fused));
    bench_real(table, compute * 1e6);
    bench_real(table, comm * 1e6);
    bench_real(table, plain * 1e6);
    bench_real(table, fused * 1e6);
    bench_real(table, bench_hidden(compute, comm, fused));
    bench_real(table, bound_of(c, figures, first, count));
    bench_real(table, bench_link_modelled(c->call) ? NAN : compute / fused);
    bench_real(table, plain / fused);
    double simulated = 0;
    for (int i = 0; i < count; i++)
        simulated += figures[i].simulated; /* NaN stays NaN */
    bench_real(table, simulated * 1e6);
    bench_real(table, fused / simulated);
}

/* Clean samples of the part that has fewest. */
static bench_figure fewest_kept(const bench_overlap_figures *figures)
{
    return bench_figure_fewer(bench_figure_fewer(figures->compute.figure, figures->comm.figure),
                              bench_figure_fewer(figures->none.figure, figures->fused.figure));
}

/* A row of one pass, or of both together. */
static void add_row(overlap_case *c, const bench_overlap_figures *figures, int pass)
{
    bench_call *call = c->call;
    bench_table *table = &call->table;
    int count = pass == 2 ? 2 : 1;
    const bench_overlap_figures *first = pass == 2 ? figures : &figures[pass];
    bench_row(table);
    bench_word(table, "%s", table->command);
    bench_word(table, "%s", c->text);
    bench_word(table, "%s", tp_dtype_name(c->shape.dtype));
    bench_isa_cell(call);
    bench_integer(table, c->ranks);
    bench_integer(table, bench_threads_for(call, c->ranks));
    bench_truth(table, c->shape.sequence_parallel);
    bench_on_cell(call, "threads");
    bench_word(table, "%s", pass_names[pass]);
    bench_word(table, "%s", bench_overlap_names[c->shape.overlap]);
    bench_integer(table, bench_chunks_of(c->shape.overlap, c->ranks, c->shape.chunks));
    bench_real(table, pass < 2 && bench_link_modelled(call) ? c->link[pass].bytes_per_second / 1e9 : NAN);
    add_figures(c, first, pass == 2 ? 0 : pass, count);
    add_same(c, first, count);
    bench_figure fewest = fewest_kept(first);
    for (int i = 1; i < count; i++)
        fewest = bench_figure_fewer(fewest, fewest_kept(&first[i]));
    bench_integer(table, fewest.kept);
    bench_integer(table, fewest.total);
    bench_truth(table, bench_fits(call, c->ranks, 1));
}

static int fail(bench_call *call, const bench_overlap_job *job, tp_status status)
{
    const char *name = bench_overlap_names[job->shape.overlap];
    return bench_fail(call, "%d ranks, %s: %s: %.300s", job->ranks, name, tp_status_name(status), tp_last_message());
}

static int run_algorithm(overlap_case *c)
{
    bench_call *call = c->call;
    bench_overlap_figures figures[2] = {{.simulated = NAN}, {.simulated = NAN}};
    for (int pass = 0; pass < 2; pass++) {
        bench_progress("%s: %s, %d ranks, %s, %d chunks, %s", call->table.command, tp_dtype_name(c->shape.dtype),
                       c->ranks, bench_overlap_names[c->shape.overlap], c->shape.chunks, pass_names[pass]);
        bench_overlap_job *job = calloc(1, sizeof *job);
        if (job == NULL)
            return bench_fail(call, "out of memory");
        *job = (bench_overlap_job){.call = call,
                                   .shape = c->shape,
                                   .ranks = c->ranks,
                                   .backward = pass == 1,
                                   .link = c->link[pass],
                                   .reference = call->options.no_check ? NULL : &c->reference,
                                   .figures = &figures[pass],
                                   .trace = c->trace};
        if (bench_link_modelled(call) && c->ranks > 1) {
            job->machine = call->costs;
            job->machine.lanes_share_cores = tpi_lanes_share_cores(call->machine.cores, c->ranks);
        }
        tp_status status = bench_overlap_run(job);
        int failed = status == TP_OK ? BENCH_OK : fail(call, job, status);
        free(job);
        if (failed != BENCH_OK)
            return failed;
        add_row(c, figures, pass);
    }
    add_row(c, figures, 2);
    return BENCH_OK;
}

/* A run of GEMMs alone: one rank's results, or, with --link gemm, the bandwidths. */
static int run_alone(overlap_case *c, int ranks, bool backward, bench_overlap_figures *figures)
{
    bench_call *call = c->call;
    bench_overlap_job *job = calloc(1, sizeof *job);
    if (job == NULL)
        return bench_fail(call, "out of memory");
    *job = (bench_overlap_job){.call = call,
                               .shape = c->shape,
                               .ranks = ranks,
                               .backward = backward,
                               .compute_only = true,
                               .reference = ranks == 1 && !call->options.no_check ? &c->reference : NULL,
                               .figures = figures};
    tp_status status = bench_overlap_run(job);
    int failed = status == TP_OK ? BENCH_OK : fail(call, job, status);
    free(job);
    return failed;
}

static int find_links(overlap_case *c)
{
    const bench_options *options = &c->call->options;
    for (int pass = 0; pass < 2; pass++) {
        c->link[pass] = (tp_link){options->link_latency, options->link_bandwidth};
        if (!options->link_gemm)
            continue;
        bench_overlap_figures figures = {.different = 0};
        int status = run_alone(c, c->ranks, pass == 1, &figures);
        if (status != BENCH_OK)
            return status;
        /* Without communication there is nothing to fit. */
        if (figures.moved > 0)
            c->link[pass].bytes_per_second = figures.moved / figures.compute.figure.seconds;
    }
    return BENCH_OK;
}

static int run_degree(overlap_case *c)
{
    const bench_options *options = &c->call->options;
    int status = find_links(c);
    for (int i = 0; i < options->overlaps.count; i++) {
        bool once = !bench_plan_takes_chunks(options->overlaps.value[i]);
        for (int j = 0; j < (once ? 1 : options->chunk_counts.count) && status == BENCH_OK; j++) {
            c->shape.overlap = (tp_overlap)options->overlaps.value[i];
            c->shape.chunks = once ? 0 : (int)options->chunk_counts.value[j];
            status = run_algorithm(c);
        }
    }
    return status;
}

static int run_dtype(bench_call *call, const bench_layer_shape *shape, tp_dtype dtype, bench_trace *trace)
{
    overlap_case c = {.call = call, .shape = *shape, .trace = trace};
    c.shape.dtype = dtype;
    bench_layer_shape_text(shape, c.text);
    bench_overlap_figures unused = {.different = 0};
    int status = call->options.no_check ? BENCH_OK : run_alone(&c, 1, false, &unused);
    for (int i = 0; i < call->options.ranks.count && status == BENCH_OK; i++) {
        c.ranks = (int)call->options.ranks.value[i];
        status = run_degree(&c);
    }
    bench_layer_reference_close(&c.reference);
    return status;
}

static int write_trace(bench_call *call, const bench_trace *trace)
{
    if (strcmp(call->options.trace, "-") == 0) {
        bench_trace_write(trace, stdout);
        return BENCH_OK; /* main says whether that was good */
    }
    FILE *file = fopen(call->options.trace, "wb");
    if (file == NULL)
        return bench_fail(call, "--trace %s: %s", call->options.trace, strerror(errno));
    bench_trace_write(trace, file);
    bool good = fflush(file) == 0 && !ferror(file);
    return fclose(file) == 0 && good ? BENCH_OK
                                     : bench_fail(call, "--trace %s: could not be written", call->options.trace);
}

/* Costs for the simulator: those of --machine, or measured now. */
static int calibrate(bench_call *call)
{
    const bench_list *ranks = &call->options.ranks;
    int64_t most = 0;
    for (int i = 0; i < ranks->count; i++)
        most = ranks->value[i] > most ? ranks->value[i] : most;
    if (!bench_link_modelled(call) || call->options.machine_file != NULL || most < 2)
        return BENCH_OK;
    fprintf(stderr, "tp_bench %s: calibrating, about 30 s; --machine FILE skips it\n", call->table.command);
    bench_figure samples;
    int cores = call->machine.cores > 1 ? call->machine.cores : 2;
    return bench_calibrate(call, most < cores ? (int)most : cores, &call->costs, &samples);
}

static void add_notes(bench_call *call)
{
    bench_table *table = &call->table;
    bench_note(table,
               "t_gemm: the pass's GEMMs with their fused epilogues%s, unchunked, without communication; t_comm: its "
               "transfers without adds; t_none: the "
               "pass with overlap none; all four took turns, sample by sample",
               strcmp(table->command, "attention") == 0 ? " and the attention core" : "");
    bench_note(table, "hidden = (t_gemm + t_comm - t_fused) / min(t_gemm, t_comm); share = t_gemm / t_fused; bound: "
                      "the most that two ranks can hide "
                      "where t_comm = t_gemm: 1 - 1/(2 chunks), row backward 1 - 3/(4 chunks), all where other GEMMs "
                      "are under the first and last chunk; "
                      "pipeline 1 - 1/chunks");
    if (bench_link_modelled(call))
        bench_note(
            table,
            "modelled link%s: latency %.3g us; t_comm holds sleeps' overruns, which can lift hidden above its bound",
            call->options.link_gemm ? ", as fast as makes its transfers as long as t_gemm" : "",
            call->options.link_latency * 1e6);
    if (bench_link_modelled(call))
        bench_note(
            table,
            "simulated: the plans of the pass, their GEMMs together as long as t_gemm, other costs of machine '%s'",
            call->costs.name);
    bench_note(table, "samples of t_fused are all kept: its own lanes take cores from the compute thread; of the "
                      "others the clean ones");
    if (!call->options.no_check)
        bench_note(
            table,
            "same bits: output, input gradient and all weight gradients, gathered, against none and against one rank");
}

int bench_command_overlap(bench_call *call, const bench_layer_shape *shape)
{
    bench_options *options = &call->options;
    if (options->explain && !bench_list_has(&options->overlaps, TP_OVERLAP_AUTO))
        return bench_refuse(call, "--explain tells how auto chooses: --overlap auto");
    int status = bench_check_chunks(call);
    if (status != BENCH_OK)
        return status;
    bench_trace *trace = options->trace != NULL ? calloc(1, sizeof *trace) : NULL;
    if (options->trace != NULL && trace == NULL)
        return bench_fail(call, "out of memory");
    bench_list_default(&options->chunk_counts, 1, (const int64_t[]){0});
    /* with a link the simulated column goes by the file too */
    status = bench_link_modelled(call) ? calibrate(call) : bench_check_machine(call);
    if (status != BENCH_OK) {
        free(trace);
        return status;
    }
    bench_begin(call, columns, COLUMNS);
    bench_hide_times(call, BENCH_BITS(COMPUTE, RATIO));
    call->table.plot =
        (bench_plot){.x = CHUNKS, .y = HIDDEN, .only = FITS, .groups = 4, .group = {DTYPE, RANKS, PASS, OVERLAP}};
    snprintf(call->table.title, sizeof call->table.title, "%s layer, overlap of communication%s", call->table.command,
             bench_link_modelled(call) ? " on a modelled link" : "");
    for (int i = 0; i < options->dtypes.count && status == BENCH_OK; i++)
        status = run_dtype(call, shape, (tp_dtype)options->dtypes.value[i], trace);
    if (status == BENCH_OK && trace != NULL)
        status = write_trace(call, trace);
    free(trace);
    add_notes(call);
    bench_note_kept(call, KEPT, TOTAL);
    return status;
}
