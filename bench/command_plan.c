/* tp_bench plan: makes, proves, prices and draws plans without running them. */
#include "command.h"
#include "output.h"
#include "overlap.h"
#include "plan_file.h"
#include "plan_options.h"
#include "plan_run.h"

#include "plan/fold.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALGORITHM, PATTERN, RANKS, CHUNKS, OPS, SENT, WORKSPACE, LARGEST, PROVEN, PEAK, TIME, COMPUTE, GEMMS, COMM,
      EXPOSED, HIDDEN, CRITICAL, MEASURED, MEASURED_HIDDEN, RATIO, COLUMNS };

static const bench_column columns[COLUMNS] = {
    {"algorithm", "", 0, true},         {"pattern", "", 0, true},       {"ranks", "", 0, false},
    {"chunks", "", 0, false},           {"ops", "a rank", 0, false},    {"sent", "bytes", 0, false},
    {"workspace", "bytes", 0, false},   {"largest", "bytes", 0, false}, {"proven", "", 0, false},
    {"peak", "bytes", 0, false},        {"time", "ms", 5, false},       {"compute", "ms", 5, false},
    {"gemm", "ms", 5, false},           {"comm", "ms", 5, false},       {"exposed", "ms", 4, false},
    {"hidden", "", -3, false},          {"critical", "ops", 0, false},  {"measured", "ms", 5, false},
    {"hidden there", "", -3, false},    {"measured / time", "", -3, false},
};

/* Runs of one plan, whose median counts. */
#define RUNS 15
#define DEFAULT_BYTES 16000000
#define DEFAULT_LATENCY 5e-6
#define DEFAULT_BANDWIDTH 8e8

/* What all plans of this call are priced with. */
typedef struct pricing {
    bool shaped; /* costs are those of a shape on a machine */
    tp_machine machine;
    tp_overlap_shape shape; /* ranks and pattern are filled in */
    tp_plan_costs fixed;
} pricing;

static void fixed_costs(const bench_options *options, const tp_link *link, tp_plan_costs *costs)
{
    double gemm = (options->gemm_ms > 0 ? options->gemm_ms : 10) / 1e3;
    *costs = (tp_plan_costs){.gemm_seconds = {gemm, gemm, gemm, gemm},
                             .compute_seconds = (options->compute_ms > 0 ? options->compute_ms : 1) / 1e3};
    costs->link = link != NULL ? *link : (tp_link){DEFAULT_LATENCY, DEFAULT_BANDWIDTH};
    for (int i = 0; i < TP_BUFFERS; i++)
        costs->bytes[i] = options->plan_bytes > 0 ? (double)options->plan_bytes : DEFAULT_BYTES;
}

static int read_machine(bench_call *call, const tp_link *link, pricing *prices)
{
    const bench_options *options = &call->options;
    tp_machine_default(&call->costs);
    int status = bench_load_costs(call);
    if (status != BENCH_OK)
        return status;
    prices->machine = call->costs;
    if (link != NULL)
        prices->machine.link = *link;
    tp_dtype dtype = options->dtypes.count > 0 ? (tp_dtype)options->dtypes.value[0] : TP_DTYPE_F32;
    prices->shape = (tp_overlap_shape){.dtype = dtype,
                                       .rows = options->rows,
                                       .cols = {options->cols},
                                       .inner = {options->inner},
                                       .compute_bytes = 2.0 * (double)options->rows * (double)options->cols *
                                                        (double)tp_dtype_size(dtype)};
    return BENCH_OK;
}

static int choose_prices(bench_call *call, pricing *prices)
{
    const bench_options *options = &call->options;
    tp_link link;
    if (options->link != NULL && !bench_parse_link(options->link, &link))
        return bench_refuse(call, "--link: '%s' is not LATENCY,BANDWIDTH in seconds and bytes/s, like 5e-6,1e9",
                            options->link);
    const tp_link *given = options->link != NULL ? &link : NULL;
    prices->shaped = bench_plan_shaped(options);
    fixed_costs(options, given, &prices->fixed);
    return prices->shaped ? read_machine(call, given, prices) : BENCH_OK;
}

/* The shape as this pattern has it. A chain goes back; the two GEMMs of a backward have the same weight. */
static tp_overlap_shape shape_for(const pricing *prices, const tp_plan_desc *desc)
{
    tp_overlap_shape shape = prices->shape;
    shape.pattern = desc->pattern;
    shape.ranks = desc->ranks;
    if (desc->pattern >= TP_PATTERN_CHAIN) {
        shape.cols[1] = shape.inner[0];
        shape.inner[1] = shape.cols[0];
    } else if (desc->pattern == TP_PATTERN_BACKWARD || desc->pattern == TP_PATTERN_BACKWARD_REDUCE ||
               desc->pattern == TP_PATTERN_ROW_BACKWARD) {
        shape.cols[1] = shape.cols[0];
        shape.inner[1] = shape.inner[0];
    }
    return shape;
}

/* Replaces AUTO by what it chooses, and says why. */
static int resolve(bench_call *call, const pricing *prices, tp_plan_desc *desc)
{
    if (desc->algorithm != TP_OVERLAP_AUTO)
        return BENCH_OK;
    tp_overlap_shape shape = shape_for(prices, desc);
    tp_overlap_choice choice;
    if (tp_overlap_choose(&prices->machine, &shape, &choice) != TP_OK)
        return bench_fail(call, "%s", tp_last_message());
    size_t length = tp_overlap_explain(&shape, &choice, NULL, 0);
    char *text = malloc(length + 1);
    if (text == NULL)
        return bench_fail(call, "out of memory");
    tp_overlap_explain(&shape, &choice, text, length + 1);
    bool elsewhere = bench_output_taken(&call->options) != NULL;
    if (!elsewhere || call->options.explain)
        fprintf(elsewhere ? stderr : stdout, "%s\n", text);
    free(text);
    desc->algorithm = choice.algorithm;
    desc->chunks = choice.chunks;
    return BENCH_OK;
}

typedef size_t (*writer)(const void *what, char *text, size_t bytes);

/* What was found out about one plan. */
typedef struct finding {
    tp_timeline *simulated, *measured; /* measured: NULL if it was not run */
    double measured_hidden;
    tp_plan_traffic traffic;
    tp_proof proof;
    double peak; /* bytes; of a plan that is proven */
} finding;

static size_t write_svg(const void *what, char *text, size_t bytes)
{
    const finding *found = what;
    return tp_timeline_svg(found->simulated, found->measured, text, bytes);
}

static size_t write_trace(const void *what, char *text, size_t bytes)
{
    const finding *found = what;
    return tp_timeline_trace(found->measured != NULL ? found->measured : found->simulated, text, bytes);
}

static size_t write_plan(const void *plan, char *text, size_t bytes)
{
    return tp_plan_print(plan, text, bytes);
}

/* Writes a text into a file; path "-": to standard output, of which main says whether it was good. */
static int put_text(bench_call *call, const char *path, writer write, const void *what)
{
    size_t length = write(what, NULL, 0);
    char *text = malloc(length + 1);
    if (text == NULL)
        return bench_fail(call, "out of memory");
    write(what, text, length + 1);
    bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdout : fopen(path, "wb");
    bool good = file != NULL && (fwrite(text, 1, length, file) == length || standard);
    if (file != NULL && !standard)
        good = fclose(file) == 0 && good;
    free(text);
    return good ? BENCH_OK : bench_fail(call, "%s: %s", path, strerror(errno));
}

static int prove(bench_call *call, const tp_plan *plan, tp_proof *proof)
{
    if (tp_plan_verify(plan, proof) != TP_OK)
        return bench_fail(call, "%s", tp_last_message());
    if (proof->proven)
        return BENCH_OK;
    bench_check_failed(call, "%s %s, %d ranks, %d chunks: %s", tp_overlap_name((tp_overlap)plan->algorithm),
                       tp_pattern_name((tp_pattern)plan->pattern), plan->ranks, plan->chunks, proof->message);
    size_t length = tp_plan_explain(plan, proof, NULL, 0);
    char *text = malloc(length + 1);
    if (text == NULL)
        return bench_fail(call, "out of memory");
    tp_plan_explain(plan, proof, text, length + 1);
    fprintf(bench_output_taken(&call->options) != NULL ? stderr : stdout, "%s\n", text);
    free(text);
    return BENCH_OK;
}

static void add_row(bench_call *call, const finding *found)
{
    const tp_timeline *timeline = found->simulated;
    const tp_plan *plan = timeline->plan;
    bench_table *table = &call->table;
    int ops = 0;
    double sent = 0, workspace = 0;
    for (int rank = 0; rank < plan->ranks; rank++) {
        ops = plan->rank[rank].count > ops ? plan->rank[rank].count : ops;
        sent = found->traffic.sent[rank] > sent ? found->traffic.sent[rank] : sent;
        workspace = found->traffic.workspace[rank] > workspace ? found->traffic.workspace[rank] : workspace;
    }
    bench_row(table);
    bench_word(table, "%s", tp_overlap_name((tp_overlap)plan->algorithm));
    bench_word(table, "%s", tp_pattern_name((tp_pattern)plan->pattern));
    bench_integer(table, plan->ranks);
    bench_integer(table, plan->chunks);
    bench_integer(table, ops);
    bench_integer(table, (int64_t)(sent + 0.5));
    bench_integer(table, (int64_t)(workspace + 0.5));
    bench_integer(table, (int64_t)(found->traffic.largest_piece + 0.5));
    if (call->options.verify) {
        bench_truth(table, found->proof.proven);
        bench_integer(table, (int64_t)(found->peak + 0.5));
    } else {
        bench_empty(table);
        bench_empty(table);
    }
    bench_real(table, timeline->seconds * 1e3);
    bench_real(table, timeline->compute_seconds * 1e3);
    bench_real(table, timeline->gemm_seconds * 1e3);
    bench_real(table, timeline->comm_seconds * 1e3);
    bench_real(table, timeline->exposed_seconds * 1e3);
    bench_real(table, bench_hidden(timeline->gemm_seconds, timeline->comm_seconds, timeline->seconds));
    bench_integer(table, timeline->critical_ops);
    if (found->measured == NULL)
        return;
    bench_real(table, found->measured->seconds * 1e3);
    bench_real(table, found->measured_hidden);
    bench_real(table, found->measured->seconds / timeline->seconds);
}

static int show(bench_call *call, const finding *found)
{
    const bench_options *options = &call->options;
    int status = BENCH_OK;
    if (options->print_text)
        status = put_text(call, "-", write_plan, found->simulated->plan);
    if (status == BENCH_OK && options->svg != NULL)
        status = put_text(call, options->svg, write_svg, found);
    if (status == BENCH_OK && options->trace != NULL)
        status = put_text(call, options->trace, write_trace, found);
    return status;
}

/* Seconds that ops of a kind and part took on the slowest rank of a run. */
static double spent(const tp_timeline *timeline, tp_op_kind kind, int part)
{
    const tp_plan_rank *list = &timeline->plan->rank[timeline->rank];
    double seconds = 0;
    for (int i = 0; i < list->count; i++)
        if (list->op[i].kind == kind && list->op[i].part == part)
            seconds += timeline->span[timeline->rank][i].end - timeline->span[timeline->rank][i].begin;
    return seconds;
}

/* GEMMs and computes as they are alone: whole, without a link. */
static int measure_alone(bench_call *call, bench_plan_case one, tp_plan_costs *costs)
{
    tp_plan *plan = NULL;
    tp_timeline *alone = NULL;
    one.desc.algorithm = bench_plan_has_layer(TP_OVERLAP_NONE, one.desc.pattern) ? TP_OVERLAP_NONE : TP_OVERLAP_BULK;
    one.desc.chunks = 1;
    one.link = (tp_link){0, 0};
    if (tp_plan_create(&one.desc, &plan) != TP_OK)
        return bench_fail(call, "%s", tp_last_message());
    int status = bench_plan_run(&one, plan, &alone, call->message) ? BENCH_OK : BENCH_FAILED;
    for (int part = 0; part < TP_PLAN_PARTS && status == BENCH_OK; part++) {
        double seconds = spent(alone, TP_OP_GEMM, part);
        /* What small GEMMs lose is a share of what GEMMs take. */
        if (costs->gemm_seconds[part] > 0)
            costs->gemm_overhead[part] *= seconds / costs->gemm_seconds[part];
        costs->gemm_seconds[part] = seconds;
    }
    if (status == BENCH_OK)
        costs->compute_seconds = spent(alone, TP_OP_COMPUTE, 0);
    tp_timeline_destroy(alone);
    tp_plan_destroy(plan);
    return status;
}

static int run_for_real(bench_call *call, const pricing *prices, const tp_plan *plan, tp_plan_costs *costs,
                        finding *found)
{
    const tp_overlap_shape *shape = &prices->shape;
    bench_plan_case one = {.desc = {.algorithm = (tp_overlap)plan->algorithm,
                                    .pattern = (tp_pattern)plan->pattern,
                                    .ranks = plan->ranks,
                                    .chunks = plan->chunks},
                           .dtype = shape->dtype,
                           .rows = shape->rows,
                           .cols = shape->cols[0],
                           .inner = shape->inner[0],
                           .link = prices->machine.link,
                           .runs = RUNS};
    if (!bench_plan_has_layer(one.desc.algorithm, one.desc.pattern))
        return bench_refuse(call, "--run: linear and feed-forward layers run no plan of %s on %s",
                            tp_overlap_name(one.desc.algorithm), tp_pattern_name(one.desc.pattern));
    int status = measure_alone(call, one, costs);
    if (status == BENCH_OK && !bench_plan_run(&one, plan, &found->measured, call->message))
        status = BENCH_FAILED;
    return status;
}

static int price(bench_call *call, const pricing *prices, const tp_plan_desc *desc, const tp_plan *plan)
{
    tp_plan_costs costs = prices->fixed;
    tp_overlap_shape shape = shape_for(prices, desc);
    finding *found = calloc(1, sizeof *found);
    if (found == NULL)
        return bench_fail(call, "out of memory");
    int status = call->options.verify ? prove(call, plan, &found->proof) : BENCH_OK;
    if (call->options.verify && !found->proof.proven) {
        free(found); /* what is wrong has no price */
        return status;
    }
    if (status == BENCH_OK && prices->shaped && tp_overlap_costs(&prices->machine, &shape, plan, &costs) != TP_OK)
        status = bench_fail(call, "%s", tp_last_message());
    if (status == BENCH_OK && call->options.run)
        status = run_for_real(call, prices, plan, &costs, found);
    if (status == BENCH_OK && (tp_plan_count_traffic(plan, &costs, &found->traffic) != TP_OK ||
                               (call->options.verify && tp_plan_count_peak(plan, &costs, &found->peak) != TP_OK) ||
                               tp_plan_simulate(plan, &costs, &found->simulated) != TP_OK))
        status = bench_fail(call, "%s", tp_last_message());
    if (status == BENCH_OK && found->measured != NULL) {
        const tp_timeline *timeline = found->simulated;
        found->measured_hidden = bench_hidden(timeline->gemm_seconds, timeline->comm_seconds, found->measured->seconds);
        found->measured->hidden = found->measured_hidden; /* for the picture: of its own spans, which hold waits for
                                                           * peers, it would be another */
    }
    if (status == BENCH_OK) {
        add_row(call, found);
        status = show(call, found);
    }
    tp_timeline_destroy(found->simulated);
    tp_timeline_destroy(found->measured);
    free(found);
    return status;
}

static int run_plan(bench_call *call, const pricing *prices, tp_plan_desc desc)
{
    tp_plan *plan = NULL;
    int status = resolve(call, prices, &desc);
    /* As layers run it on this machine, or would on the one that is priced. */
    bool shares = call->options.run ? tpi_lanes_share_cores(call->machine.cores, desc.ranks)
                                    : prices->shaped && prices->machine.lanes_share_cores;
    desc.one_lane = call->options.one_lane || (desc.algorithm == TP_OVERLAP_PULL && shares);
    if (status == BENCH_OK && tp_plan_create(&desc, &plan) != TP_OK)
        status = bench_fail(call, "%s", tp_last_message());
    if (status == BENCH_OK)
        status = price(call, prices, &desc, plan);
    tp_plan_destroy(plan);
    return status;
}

static int run_file(bench_call *call, const pricing *prices)
{
    tp_plan *plan = NULL;
    int status = bench_plan_read(call, call->options.plan_file, &plan);
    if (status != BENCH_OK)
        return status;
    const tp_plan_desc desc = {.algorithm = (tp_overlap)plan->algorithm,
                               .pattern = (tp_pattern)plan->pattern,
                               .ranks = plan->ranks,
                               .chunks = plan->chunks};
    status = price(call, prices, &desc, plan);
    tp_plan_destroy(plan);
    return status;
}

static int run_chunks(bench_call *call, const pricing *prices, tp_plan_desc desc)
{
    const bench_list *chunks = &call->options.chunk_counts;
    bool once = !bench_plan_takes_chunks(desc.algorithm);
    int status = BENCH_OK;
    for (int i = 0; i < (once ? 1 : chunks->count) && status == BENCH_OK; i++) {
        desc.chunks = once ? 1 : (int)chunks->value[i];
        status = run_plan(call, prices, desc);
    }
    return status;
}

/* Every plan that the options name. */
static int run_all(bench_call *call, const pricing *prices)
{
    const bench_options *options = &call->options;
    int status = BENCH_OK;
    if (options->plan_file != NULL)
        return run_file(call, prices);
    for (int p = 0; p < options->patterns.count; p++)
        for (int r = 0; r < options->ranks.count; r++)
            for (int a = 0; a < options->overlaps.count && status == BENCH_OK; a++)
                status = run_chunks(call, prices,
                                    (tp_plan_desc){.algorithm = (tp_overlap)options->overlaps.value[a],
                                                   .pattern = (tp_pattern)options->patterns.value[p],
                                                   .ranks = (int)options->ranks.value[r]});
    return status;
}

int bench_command_plan(bench_call *call)
{
    const bench_options *options = &call->options;
    pricing *prices = calloc(1, sizeof *prices);
    int status = prices == NULL ? bench_fail(call, "out of memory") : bench_plan_check_options(call);
    if (status == BENCH_OK)
        status = choose_prices(call, prices);
    if (status != BENCH_OK) {
        free(prices);
        return status;
    }
    bench_begin(call, columns, COLUMNS);
    call->table.plot =
        (bench_plot){.x = CHUNKS, .y = HIDDEN, .only = -1, .groups = 3, .group = {ALGORITHM, PATTERN, RANKS}};
    snprintf(call->table.title, sizeof call->table.title, "%s",
             options->run ? "plans, simulated and run" : "plans, simulated: nothing was run");
    status = run_all(call, prices);
    const tp_link *link = prices->shaped ? &prices->machine.link : &prices->fixed.link;
    if (link->bytes_per_second > 0)
        bench_note(&call->table, "modelled link: %g us, %.4g GB/s in each direction of each rank",
                   link->latency_seconds * 1e6, link->bytes_per_second / 1e9);
    if (options->run)
        bench_note(
            &call->table,
            "measured: median of %d runs of the layer; the simulation takes GEMMs as they are whole and without a link",
            RUNS);
    if (prices->shaped)
        bench_note(&call->table, "costs of machine '%s'; adds, copies and fixed costs included", prices->machine.name);
    if (prices->shaped && prices->machine.lanes_share_cores && bench_list_has(&options->overlaps, TP_OVERLAP_AUTO))
        bench_note(&call->table, "auto's predictions above the table hold what lanes without a core of their own take "
                                 "from compute; the table's times don't");
    if (!prices->shaped)
        bench_note(&call->table, "GEMMs %g ms each, buffers %.0f bytes; adds and fixed costs are taken as 0",
                   prices->fixed.gemm_seconds[0] * 1e3, prices->fixed.bytes[0]);
    bench_note(&call->table, "gemm: GEMMs and computes uncut; hidden = (gemm + comm - time) / min(gemm, comm), - where "
                             "comm is under 1 us or 1 %% of time");
    bench_note(&call->table, "the best for one collective and its GEMM on two ranks, if they are as long as each "
                             "other: hidden = 1 - 1/(2 chunks)");
    free(prices);
    return status;
}
