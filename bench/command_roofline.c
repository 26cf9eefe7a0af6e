/* tp_bench roofline: every op of a training step, and every phase, as a share of its own limit. */
#include "gpu_time.h"
#include "parallel.h"
#include "probe.h"
#include "stepper.h"

#include "core/context.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DTYPE, RANKS, THREADS, PHASE, OP, SHAPE, CALLS, TIME, LIMIT, SHARE, OF_STEP, BOUND, INTENSITY, RATE, BANDWIDTH,
    IS_OP, KEPT, TOTAL, COLUMNS
};

static const bench_column columns[COLUMNS] = {
    {"dtype", "", 0, true},               {"ranks", "", 0, false},         {"threads", "each", 0, false},
    {"phase", "", 0, true},               {"op", "", 0, true},             {"shape", "a rank", 0, true},
    {"calls", "a step", 0, false},        {"time", "ms a step", 4, false}, {"limit", "ms a step", 4, false},
    {"share", "of limit", -3, false},     {"of", "step", -3, false},       {"bound by", "", 0, true},
    {"intensity", "FLOP/byte", 3, false}, {"rate", "GFLOP/s", 4, false},   {"bandwidth", "GB/s", 3, false},
    {"op?", "", 0, true},                 {"kept", "samples", 0, false},   {"of", "samples", 0, false},
};

static const char *const phase_names[BENCH_PHASES] = {"forward", "backward", "finish", "optimizer"};

/* How fast one rank's cores can be at most, while the other ranks' work too. */
typedef enum bandwidth_level { IN_L2 = 0, IN_L3, IN_MEMORY, LEVELS } bandwidth_level;
static const char *const level_names[LEVELS] = {"L2 cache", "L3 cache", "memory"};

#define HIGH_SHARE 1.03

typedef struct rank_limits {
    double peak[TP_DTYPE_COUNT]; /* FLOP/s of products; f32 and the run's */
    double plain;                /* FLOP/s of what is no product and computes in f32, never TF32 */
    double bandwidth[LEVELS];    /* bytes/s */
    double holds[LEVELS];        /* bytes of an op that the level holds beside what others need */
} rank_limits;

typedef struct roofline_run {
    bench_call *call;
    const bench_training *training;
    tp_dtype dtype;
    int ranks, threads;
    rank_limits limits;
    bench_probe *probe;
    bench_team team;
    bench_team_figure figure, stream; /* of a step; of one run of bench_streamer_run, on all ranks at once */
    bench_samples phase[BENCH_PHASES], comm[BENCH_PHASES];
    int64_t steps; /* recorded */
} roofline_run;

typedef struct walker {
    roofline_run *run;
    bench_stepper stepper;
    bool root;
    int64_t steps;
} walker;

/* Phases one by one, so that ops are entered under theirs. */
static tp_status walk(void *arg)
{
    walker *w = arg;
    roofline_run *run = w->run;
    bench_probe *probe = run->probe;
    bool recording = w->root && w->steps >= run->call->options.warmup;
    if (w->root)
        probe->recording = recording;
    TPI_TRY(bench_stepper_begin(&w->stepper));
    for (int phase = 0; phase < BENCH_PHASES; phase++) {
        double before, after, compute;
        bool clean;
        if (w->root)
            probe->phase = phase;
        tp_ctx_times(w->stepper.ctx, &compute, &before);
        const bench_watch watch = bench_watch_start(bench_watched_of(w->stepper.ctx));
        TPI_TRY(bench_stepper_phase(&w->stepper, (bench_phase)phase));
        bench_watch_stop(&watch, &clean);
        tp_ctx_times(w->stepper.ctx, &compute, &after);
        if (w->root)
            TPI_TRY(bench_probe_collect(probe));
        if (!recording)
            continue;
        clean = clean || run->team.on_gpu; /* its own time doesn't stop for the host */
        bench_sample_add(&run->phase[phase], w->stepper.phase[phase], clean);
        bench_sample_add(&run->comm[phase], after - before, clean);
    }
    if (w->root)
        probe->recording = false;
    w->steps++;
    if (recording)
        run->steps++;
    TPI_TRY(bench_stepper_end(&w->stepper));
    return w->root ? bench_probe_collect(probe) : TP_OK; /* what belongs to no phase is not recorded */
}

static tp_status stream(void *arg)
{
    bench_streamer_run(arg);
    return TP_OK;
}

/* Steps, and memory's bandwidth in turns with them: from one minute to the next it is another. */
static tp_status measure_steps(roofline_run *run, tp_ctx *ctx, walker *w, const bench_team_plan *plan)
{
    bench_streamer streamer;
    if (run->team.on_gpu) /* its memory is measured before */
        return bench_team_measure(&run->team, ctx, plan, walk, w, &run->figure);
    double missing = bench_streamer_open(&streamer) ? 0 : 1;
    const bench_team_part parts[] = {{.fn = walk, .arg = w, .figure = &run->figure},
                                     {.fn = stream, .arg = &streamer, .figure = &run->stream}};
    /* The other threads of ranks that have some would not stream. */
    tp_status status = bench_team_sum(&run->team, ctx, missing, &missing);
    if (status == TP_OK)
        status = bench_team_compare(&run->team, ctx, plan, parts, run->threads == 1 && missing == 0 ? 2 : 1);
    bench_streamer_close(&streamer);
    return status;
}

static tp_status rank_main(tp_ctx *ctx, void *arg)
{
    roofline_run *run = arg;
    const bench_options *options = &run->call->options;
    walker w = {.run = run, .root = tp_ctx_rank(ctx) == 0};
    int timed = (int)(options->steps - options->warmup);
    const bench_team_plan plan = {.warmup = (int)options->warmup, .least = timed, .most = timed, .repeats = 1};
    tp_status status = bench_stepper_open(&w.stepper, ctx, run->training, run->dtype);
    if (w.root)
        bench_probe_begin(run->probe, ctx);
    if (status == TP_OK)
        status = measure_steps(run, ctx, &w, &plan);
    if (w.root)
        bench_probe_end(run->probe);
    bench_stepper_close(&w.stepper);
    return status;
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */

/* The arrays of the two streams are half of what the level holds. */
static size_t stream_bytes(double holds)
{
    size_t bytes = 4096;
    while ((double)bytes * 4 <= holds)
        bytes *= 2;
    return bytes;
}

/* A GPU's share of one rank: products as fast as its best, and all bytes as fast as it copies. What its cache holds may
 * be faster. */
static void measure_gpu_limits(roofline_run *run, bench_peaks *peaks)
{
    bench_call *call = run->call;
    rank_limits *limits = &run->limits;
    int devices = call->options.devices > 1 ? (int)call->options.devices : 1;
    double share = (double)((run->ranks + devices - 1) / devices), rate;
    limits->peak[TP_DTYPE_F32] = bench_peak_for(call, peaks, TP_DTYPE_F32, 1) / share;
    limits->peak[run->dtype] = bench_peak_for(call, peaks, run->dtype, 1) / share;
    limits->plain = limits->peak[TP_DTYPE_F32];
    if (call->options.tf32)
        limits->plain = bench_gpu_peak(call, TP_DTYPE_F32, false, &rate) == TP_OK ? rate / share : NAN;
    if (bench_gpu_copy_rate(call, &rate) != TP_OK) {
        bench_note(&call->table, "the rate of memory could not be measured: %.200s", tp_last_message());
        rate = NAN;
    }
    limits->bandwidth[IN_L2] = limits->bandwidth[IN_L3] = limits->bandwidth[IN_MEMORY] = rate / share;
    limits->holds[IN_MEMORY] = INFINITY;
}

static void measure_limits(roofline_run *run, bench_peaks *peaks)
{
    if (bench_on_gpu(run->call)) {
        measure_gpu_limits(run, peaks);
        return;
    }
    const bench_machine *machine = &run->call->machine;
    int threads = run->ranks * run->threads, used = threads < machine->cores ? threads : machine->cores;
    rank_limits *limits = &run->limits;
    double share = (double)run->ranks;
    limits->peak[TP_DTYPE_F32] = bench_peak_for(run->call, peaks, TP_DTYPE_F32, threads) / share;
    limits->peak[run->dtype] = bench_peak_for(run->call, peaks, run->dtype, threads) / share;
    limits->plain = limits->peak[TP_DTYPE_F32];
    limits->holds[IN_L2] = machine->cache[2] > 0 ? (double)machine->cache[2] / 2 * run->threads : 0;
    limits->holds[IN_L3] = machine->cache[3] > 0 ? (double)machine->cache[3] / 2 / run->ranks : 0;
    limits->holds[IN_MEMORY] = INFINITY;
    for (int level = 0; level < LEVELS; level++) {
        bench_progress("roofline: bandwidth of %s", level_names[level]);
        size_t bytes = level == IN_MEMORY ? bench_stream_memory : stream_bytes(limits->holds[level] / run->threads);
        limits->bandwidth[level] = bench_stream_measure(BENCH_STREAM_ADD, used, bytes, 0.1) / share;
    }
}

/* Seconds that all calls need at least, and by what. */
static double limit_of(const rank_limits *limits, const bench_probed *op, const char **bound)
{
    int level = IN_L2;
    while (level < IN_MEMORY && op->bytes > limits->holds[level] * (double)op->samples->calls)
        level++;
    double compute = op->flops / (op->matrix ? limits->peak[op->dtype] : limits->plain),
           bytes = op->bytes / limits->bandwidth[level];
    if (isnan(compute) || isnan(bytes)) { /* not measured */
        *bound = "";
        return NAN;
    }
    *bound = compute > bytes ? op->matrix ? "compute" : "f32 compute" : level_names[level];
    return compute > bytes ? compute : bytes;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* One line of the table; NaN: an empty cell. */
typedef struct table_line {
    const char *phase, *op, *bound;
    char shape[48];
    double calls, seconds, limit, flops, bytes; /* a step */
    bool is_op;
    int kept, total; /* samples; of a sum: of the op that has fewest clean ones */
} table_line;

static void add_line(bench_call *call, const roofline_run *run, const table_line *line)
{
    bench_table *table = &call->table;
    bench_row(table);
    bench_word(table, "%s", tp_dtype_name(run->dtype));
    bench_integer(table, run->ranks);
    bench_integer(table, run->threads);
    bench_word(table, "%s", line->phase);
    bench_word(table, "%s", line->op);
    bench_word(table, "%s", line->shape);
    if (line->calls > 0)
        bench_integer(table, llround(line->calls));
    else
        bench_empty(table);
    bench_real(table, line->seconds * 1e3);
    bench_real(table, line->limit > 0 ? line->limit * 1e3 : NAN);
    bench_real(table, line->limit > 0 ? line->limit / line->seconds : NAN);
    bench_real(table, line->seconds / run->figure.figure.seconds);
    bench_word(table, "%s", line->bound);
    bench_real(table, line->flops > 0 && line->bytes > 0 ? line->flops / line->bytes : NAN);
    bench_real(table, line->flops > 0 ? line->flops / line->seconds / 1e9 : NAN);
    bench_real(table, line->bytes > 0 ? line->bytes / line->seconds / 1e9 : NAN);
    bench_truth(table, line->is_op);
    if (line->total == 0) { /* a phase without ops */
        bench_empty(table);
        return;
    }
    bench_integer(table, line->kept);
    bench_integer(table, line->total);
}

static void write_shape(const int64_t size[3], char text[48])
{
    int used = snprintf(text, 48, "%lld", (long long)size[0]);
    for (int i = 1; i < 3 && size[i] > 0 && used < 47; i++)
        used += snprintf(text + used, (size_t)(48 - used), "x%lld", (long long)size[i]);
}

static table_line line_of(const roofline_run *run, const bench_probed *op)
{
    bench_figure figure = bench_sample_figure(op->samples);
    table_line line = {
        .phase = phase_names[op->phase], .op = op->op, .is_op = true, .kept = figure.kept, .total = figure.total};
    line.calls = (double)op->samples->calls / (double)run->steps;
    line.seconds = line.calls * figure.seconds;
    line.limit = limit_of(&run->limits, op, &line.bound) / (double)run->steps;
    line.flops = op->flops / (double)run->steps;
    line.bytes = op->bytes / (double)run->steps;
    write_shape(op->size, line.shape);
    return line;
}

static void add_to(table_line *sum, const table_line *one)
{
    if (one->total > 0 && (sum->total == 0 || one->kept < sum->kept)) {
        sum->kept = one->kept;
        sum->total = one->total;
    }
    sum->seconds += one->seconds;
    sum->limit += one->limit;
    sum->flops += one->flops;
    sum->bytes += one->bytes;
}

/* A phase: its ops, what it spends in communication, and all of it. The rest is issuing. */
static void add_phase(bench_call *call, const roofline_run *run, int phase, table_line *step)
{
    bench_probe *probe = run->probe;
    table_line ops = {.phase = phase_names[phase], .op = "all ops", .bound = ""};
    for (int i = 0; i < probe->count; i++) {
        if (probe->op[i].phase != phase)
            continue;
        table_line one = line_of(run, &probe->op[i]);
        add_line(call, run, &one);
        add_to(&ops, &one);
    }
    add_line(call, run, &ops);
    bench_figure whole = bench_sample_figure(&run->phase[phase]), comm = bench_sample_figure(&run->comm[phase]);
    if (run->ranks > 1 && !run->team.on_gpu) { /* a GPU's collectives wait in its streams: they are part of the phase */
        const table_line waiting = {.phase = phase_names[phase],
                                    .op = "collectives, waiting",
                                    .bound = "",
                                    .seconds = comm.seconds,
                                    .kept = comm.kept,
                                    .total = comm.total};
        add_line(call, run, &waiting);
    }
    table_line all = ops;
    all.op = "phase";
    all.seconds = whole.seconds;
    all.kept = whole.kept;
    all.total = whole.total;
    add_line(call, run, &all);
    add_to(step, &ops);
}

/* Compute of the step's products over peak, and the optimizer's bytes at the bandwidth of memory: what no
 * implementation can beat. */
static double physical_limit(const roofline_run *run)
{
    const bench_training *training = run->training;
    double tokens = (double)(training->trainer.batch * training->trainer.sequence);
    double flops = tp_model_flops(&training->model, (int64_t)tokens, training->trainer.sequence) / run->ranks,
           bytes = 0;
    for (int i = 0; i < run->probe->count; i++) {
        const bench_probed *op = &run->probe->op[i];
        double calls = (double)op->samples->calls, elements = (double)op->size[0] * (double)op->size[1];
        if (strcmp(op->op, "optimizer") == 0)
            bytes += op->bytes;
        if (strcmp(op->op, BENCH_OPTIMIZER_PACKING) == 0) /* it could do without copies */
            bytes += op->bytes - BENCH_WEIGHT_COPIES * elements * (double)tp_dtype_size(op->dtype) * calls;
    }
    return flops / run->limits.peak[run->dtype] + bytes / (double)run->steps / run->limits.bandwidth[IN_MEMORY];
}

static void add_rows(bench_call *call, const roofline_run *run)
{
    table_line step = {.phase = "step", .op = "limits of all ops", .bound = ""};
    for (int phase = 0; phase < BENCH_PHASES; phase++)
        add_phase(call, run, phase, &step);
    step.seconds = run->figure.figure.seconds;
    step.kept = run->figure.figure.kept;
    step.total = run->figure.figure.total;
    add_line(call, run, &step);
    step.op = "peak and optimizer's bytes";
    step.limit = physical_limit(run);
    add_line(call, run, &step);
    if (step.limit > HIGH_SHARE * step.seconds)
        bench_note(&call->table,
                   "%s, %d ranks: a step beats its limit, which can't be: the limits were disturbed; measure again",
                   tp_dtype_name(run->dtype), run->ranks);
    const rank_limits *limits = &run->limits;
    if (run->team.on_gpu && !run->team.untimed)
        bench_note(
            &call->table,
            "%s, %d ranks: limits of one rank: %.4g GFLOP/s f32, %.4g %s (%s), %.4g GB/s (read and written by a copy)",
            tp_dtype_name(run->dtype), run->ranks, limits->plain / 1e9, limits->peak[run->dtype] / 1e9,
            tp_dtype_name(run->dtype), bench_gpu_peak_text(run->dtype, call->options.tf32),
            limits->bandwidth[IN_MEMORY] / 1e9);
    else if (!run->team.on_gpu)
        bench_note(&call->table,
                   "%s, %d ranks: limits of one rank: %.4g GFLOP/s f32, %.4g %s; %.3g GB/s in L2 (to %.3g MB an op), "
                   "%.3g in L3 (to %.3g MB), %.3g in memory",
                   tp_dtype_name(run->dtype), run->ranks, limits->plain / 1e9, limits->peak[run->dtype] / 1e9,
                   tp_dtype_name(run->dtype), limits->bandwidth[IN_L2] / 1e9, limits->holds[IN_L2] / 1e6,
                   limits->bandwidth[IN_L3] / 1e9, limits->holds[IN_L3] / 1e6, limits->bandwidth[IN_MEMORY] / 1e9);
    if (run->stream.figure.total > 0)
        bench_note(&call->table,
                   "memory: adding in place on all ranks at once, between the steps: median of %d of %d samples%s",
                   run->stream.figure.kept, run->stream.figure.total,
                   run->stream.figure.kept > 0 ? "" : ": taken before the steps instead");
    if (run->probe->lost > 0)
        bench_note(&call->table, "%d calls of ops had no place in the table", run->probe->lost);
}

static int run_one(bench_call *call, const bench_training *training, tp_dtype dtype, int ranks, bench_peaks *peaks)
{
    roofline_run *run = calloc(1, sizeof *run);
    bench_probe *probe = calloc(1, sizeof *probe);
    int status = run != NULL && probe != NULL ? BENCH_OK : bench_fail(call, "out of memory");
    if (status == BENCH_OK) {
        *run = (roofline_run){.call = call, .training = training, .dtype = dtype, .ranks = ranks, .probe = probe};
        run->threads = bench_threads_for(call, ranks);
        measure_limits(run, peaks);
        bench_progress("roofline: %s, %d ranks", tp_dtype_name(dtype), ranks);
        bench_team_begin(call, &run->team, ranks);
        tp_run_options options = bench_run_options(call, ranks, run->threads);
        bool good = tp_run_ranks(&options, rank_main, run) == TP_OK;
        if (good && run->stream.figure.total > 0)
            run->limits.bandwidth[IN_MEMORY] =
                bench_streamer_rate(&run->stream.figure, run->limits.bandwidth[IN_MEMORY]);
        if (good)
            add_rows(call, run);
        else
            status = bench_fail(call, "%d ranks: %.300s", ranks, tp_last_message());
        bench_probe_free(probe);
    }
    free(probe);
    free(run);
    return status;
}

int bench_command_roofline(bench_call *call)
{
    bench_options *options = &call->options;
    int64_t most = bench_on_gpu(call) ? options->devices : call->machine.cores > 1 ? 2 : 1;
    bench_list_default(&options->ranks, 1, (const int64_t[]){most > 1 ? most : 1});
    bench_list_default(&options->dtypes, 2, (const int64_t[]){TP_DTYPE_F32, TP_DTYPE_BF16});
    bench_training training;
    int status = bench_training_steps(call, 10);
    if (status == BENCH_OK)
        status = bench_training_open(call, &training);
    if (status != BENCH_OK)
        return status;
    bench_begin(call, columns, COLUMNS);
    bench_hide_times(call, BENCH_BITS(TIME, OF_STEP) | BENCH_BITS(RATE, BANDWIDTH));
    call->table.plot = (bench_plot){.x = INTENSITY, .y = RATE, .only = IS_OP, .log_x = true, .log_y = true,
                                    .points = true, .groups = 2, .group = {DTYPE, OP}};
    bench_training_describe(&training, call->table.title, sizeof call->table.title);
    bench_peaks peaks = {{0}};
    for (int i = 0; i < options->dtypes.count; i++)
        for (int r = 0; r < options->ranks.count && status == BENCH_OK; r++)
            status = run_one(call, &training, (tp_dtype)options->dtypes.value[i], (int)options->ranks.value[r], &peaks);
    bench_note(&call->table, "of rank 0; an op's limit is its FLOPs at the measured peak or its bytes, each operand "
                             "once, at the measured bandwidth of the "
                             "level that they fit in (a GPU: of its memory), whichever takes longer");
    if (bench_on_gpu(call))
        bench_note(&call->table, "by the GPU's events, around each op and each phase; an op that is shorter than its "
                                 "launch takes as long as that, and one whose operands are "
                                 "in the GPU's cache may be faster than the limit of memory");
    bench_note_kept(call, KEPT, TOTAL);
    bench_training_close(&training);
    return status;
}
