/* tp_bench model: one training step of a whole model: phases, share of peak, memory predicted and used. */
#include "model_peer.h"
#include "parallel.h"
#include "stepper.h"

#include "core/context.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DTYPE, RANKS, THREADS, BATCH, ISA, ON, STEP, FORWARD, TOKENS = FORWARD + BENCH_PHASES, RATE, SHARE, COMM, PREDICTED,
    TOTAL = PREDICTED + TP_MEMORY_KINDS, USED, KEPT, OF, FITS, RATIO, COLUMNS
};

static const bench_column columns[COLUMNS] = {
    {"dtype", "", 0, true},           {"ranks", "", 0, false},             {"threads", "each", 0, false},
    {"batch", "sequences", 0, false}, {"isa", "", 0, true},                {"on", "", 0, true},
    {"step", "ms", 4, false},         {"forward", "ms", 4, false},         {"backward", "ms", 4, false},
    {"finish", "ms", 4, false},       {"optimizer", "ms", 4, false},       {"tokens/s", "", 4, false},
    {"rate", "GFLOP/s", 4, false},    {"share", "of peak", -3, false},     {"comm", "of time", -3, false},
    {"param", "MB", 4, false},        {"optimizer state", "MB", 4, false}, {"saved", "MB", 4, false},
    {"scratch", "MB", 4, false},      {"comm buffers", "MB", 4, false},    {"other", "MB", 4, false},
    {"all", "MB", 5, false},          {"used", "MB", 5, false},            {"kept", "steps", 0, false},
    {"of", "steps", 0, false},        {"threads <= cores", "", 0, false},  {"torch / step", "x", 3, false},
};

static const char *const kind_names[TP_MEMORY_KINDS] = {"param", "optimizer", "saved", "scratch", "comm", "other"};

typedef struct model_party {
    struct model_run *run;
    int index, ranks, threads;
    bench_team team;
    bench_team_figure figure;
    bench_samples step, phase[BENCH_PHASES]; /* step: turn by turn, as the peer's */
    bench_model_results results;
    double used[BENCH_RANKS][TP_MEMORY_KINDS];
    tp_status status;
    char message[BENCH_MESSAGE];
} model_party;

typedef struct model_run {
    bench_call *call;
    const bench_training *training;
    tp_dtype dtype;
    bench_turns turns;
    int parties;
    model_party *party;
    bench_model_peer *peer; /* the party after these; NULL: none */
} model_run;

/* One rank's steps. */
typedef struct walker {
    model_party *party;
    bench_stepper stepper;
    int64_t steps;
} walker;

static tp_status walk(void *arg)
{
    walker *w = arg;
    model_party *party = w->party;
    if (party->run->peer != NULL && atomic_load(&party->run->peer->failed))
        return tpi_fail(w->stepper.ctx, TP_ERR_COMM, "the peer has failed");
    bool clean;
    const bench_watch watch = bench_watch_start(bench_watched_of(w->stepper.ctx));
    tp_status status = bench_stepper_step(&w->stepper);
    bench_watch_stop(&watch, &clean);
    bool root = tp_ctx_rank(w->stepper.ctx) == 0;
    if (root) {
        party->results.loss[w->steps] = w->stepper.loss;
        party->results.norm[w->steps] = w->stepper.norm;
    }
    if (status == TP_OK && root && w->steps >= party->run->call->options.warmup) {
        for (int phase = 0; phase < BENCH_PHASES; phase++)
            bench_sample_add(&party->phase[phase], w->stepper.phase[phase], clean);
        bench_progress("model: %s, %d ranks, step %lld", tp_dtype_name(party->run->dtype), party->ranks,
                       (long long)w->steps + 1);
    }
    w->steps++;
    return status;
}

static tp_status measure(model_party *party, walker *w, tp_ctx *ctx)
{
    const bench_options *options = &party->run->call->options;
    int timed = (int)(options->steps - options->warmup);
    bench_team_plan plan = {
        .warmup = (int)options->warmup, .least = timed, .most = timed, .repeats = 1, .taken = &party->step};
    tp_status status = bench_team_measure(&party->team, ctx, &plan, walk, w, &party->figure);
    for (int kind = 0; kind < TP_MEMORY_KINDS; kind++)
        party->used[tp_ctx_rank(ctx)][kind] = (double)tp_ctx_memory(ctx, (tp_memory_kind)kind).peak;
    return status;
}

static tp_status rank_main(tp_ctx *ctx, void *arg)
{
    model_party *party = arg;
    walker w = {.party = party};
    bench_turns_take(&party->run->turns, party->index);
    tp_status status = bench_stepper_open(&w.stepper, ctx, party->run->training, party->run->dtype);
    double unused;
    if (status == TP_OK)
        status = bench_team_sum(&party->team, ctx, 0, &unused);
    if (status == TP_OK && tp_ctx_rank(ctx) == 0)
        bench_turns_pass(&party->run->turns, party->index);
    if (status == TP_OK)
        status = measure(party, &w, ctx);
    bench_stepper_close(&w.stepper);
    return status;
}

static void party_main(void *arg, int index)
{
    model_run *run = arg;
    if (index == run->parties) {
        bench_model_peer_run(run->peer, &run->turns, index);
        return;
    }
    model_party *party = &run->party[index];
    tp_run_options options = bench_run_options(run->call, party->ranks, party->threads);
    party->status = tp_run_ranks(&options, rank_main, party);
    if (party->status != TP_OK)
        snprintf(party->message, sizeof party->message, "%s", tp_last_message());
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void begin_row(bench_call *call, const bench_training *training, tp_dtype dtype, int ranks, int threads)
{
    bench_table *table = &call->table;
    const bench_options *options = &call->options;
    bench_row(table);
    bench_word(table, "%s", tp_dtype_name(dtype));
    bench_integer(table, ranks);
    bench_integer(table, threads);
    bench_integer(table, training->trainer.batch);
    bench_isa_cell(call);
    bench_on_cell(call, options->dry_run ? "dry run" : "threads");
}

static void add_memory(bench_call *call, const bench_prediction *predicted)
{
    for (int kind = 0; kind < TP_MEMORY_KINDS; kind++)
        bench_real(&call->table, predicted->bytes[kind] / 1e6);
    bench_real(&call->table, bench_prediction_total(predicted) / 1e6);
}

static void check_memory_used(bench_call *call, const model_party *party, const bench_prediction *predicted)
{
    double used[TP_MEMORY_KINDS] = {0}, total = 0;
    for (int kind = 0; kind < TP_MEMORY_KINDS; kind++) {
        for (int rank = 0; rank < party->ranks; rank++)
            used[kind] += party->used[rank][kind];
        total += used[kind];
    }
    bench_real(&call->table, total / 1e6);
    double off = total / bench_prediction_total(predicted) - 1;
    if (fabs(off) <= 0.05)
        return;
    for (int kind = 0; kind < TP_MEMORY_KINDS; kind++)
        bench_note(&call->table, "%d ranks, %s: %.0f bytes predicted, %.0f used", party->ranks, kind_names[kind],
                   predicted->bytes[kind], used[kind]);
    if (bench_on_gpu(call)) /* kernels' workspaces are not issued in a dry run */
        bench_note(&call->table, "%d ranks: memory used is %+.1f %% off the prediction", party->ranks, 100 * off);
    else
        bench_check_failed(call, "%d ranks: memory used is %+.1f %% off the prediction, more than 5 %%", party->ranks,
                           100 * off);
}

/* What a step took, from "step" to "share of peak"; `threads` in all. */
static void add_speed(bench_call *call, const model_run *run, double seconds, const bench_samples phase[BENCH_PHASES],
                      int threads, bench_peaks *peaks)
{
    bench_table *table = &call->table;
    const bench_training *training = run->training;
    double tokens = (double)(training->trainer.batch * training->trainer.sequence);
    double rate = tp_model_flops(&training->model, (int64_t)tokens, training->trainer.sequence) / seconds;
    bench_real(table, seconds * 1e3);
    for (int i = 0; i < BENCH_PHASES; i++)
        bench_real(table, bench_sample_figure(&phase[i]).seconds * 1e3);
    bench_real(table, tokens / seconds);
    bench_real(table, rate / 1e9);
    bench_real(table, rate / bench_peak_for(call, peaks, run->dtype, threads));
}

static int cores_of(const bench_call *call, const model_party *party)
{
    int threads = party->ranks * party->threads;
    return threads < call->machine.cores ? threads : call->machine.cores;
}

/* PyTorch's time over ours, both of the steps that were clean on both sides. NaN where there is none, or where it has
 * more cores. */
static double ratio_to_peer(bench_call *call, const model_run *run, const model_party *party)
{
    if (cores_of(call, party) != run->peer->threads) {
        bench_note(&call->table, "%s, %d ranks: no torch / step: they use %d cores, PyTorch %d",
                   tp_dtype_name(run->dtype), party->ranks, cores_of(call, party), run->peer->threads);
        return NAN;
    }
    bench_samples *ours = malloc(2 * sizeof *ours);
    if (ours == NULL)
        return NAN;
    bench_samples *theirs = ours + 1;
    *ours = party->step;
    *theirs = run->peer->step;
    int clean = bench_sample_pair(ours, theirs);
    double ratio = clean > 0 ? bench_sample_figure(theirs).seconds / bench_sample_figure(ours).seconds : NAN;
    bench_note(&call->table, "%s, %d ranks: torch / step is of the %d of %d steps that were clean on both sides",
               tp_dtype_name(run->dtype), party->ranks, clean, ours->count);
    free(ours);
    return ratio;
}

static void add_row(bench_call *call, const model_run *run, const model_party *party, const bench_prediction *predicted,
                    bench_peaks *peaks)
{
    bench_table *table = &call->table;
    const bench_figure *figure = &party->figure.figure;
    begin_row(call, run->training, run->dtype, party->ranks, party->threads);
    add_speed(call, run, figure->seconds, party->phase, party->ranks * party->threads, peaks);
    bench_real(table, bench_team_comm_share(&party->team));
    add_memory(call, predicted);
    check_memory_used(call, party, predicted);
    bench_integer(table, figure->kept);
    bench_integer(table, figure->total);
    bench_truth(table, bench_fits(call, party->ranks, party->threads));
    bench_real(table, run->peer != NULL ? ratio_to_peer(call, run, party) : NAN);
    if (!isfinite(party->results.loss[call->options.steps - 1]))
        bench_check_failed(call, "the loss of %d ranks is not finite", party->ranks);
    if (run->peer != NULL && !call->options.no_check)
        bench_model_peer_compare(run->peer, &party->results, party->ranks);
}

/* PyTorch's row: the same columns as far as they say something of it. */
static void add_peer_row(bench_call *call, const model_run *run, bench_peaks *peaks)
{
    bench_table *table = &call->table;
    const bench_model_peer *peer = run->peer;
    bench_figure figure = bench_sample_figure(&peer->step);
    bench_row(table);
    bench_word(table, "%s", tp_dtype_name(run->dtype));
    bench_empty(table);
    bench_integer(table, peer->threads);
    bench_integer(table, run->training->trainer.batch);
    bench_empty(table);
    bench_word(table, "PyTorch %.*s", (int)strcspn(peer->torch.name, ";"), peer->torch.name);
    add_speed(call, run, figure.seconds, peer->phase, peer->threads, peaks);
    for (int column = COMM; column < KEPT; column++)
        bench_empty(table);
    bench_integer(table, figure.kept);
    bench_integer(table, figure.total);
    bench_truth(table, bench_fits(call, 1, peer->threads));
}

static int predict(bench_call *call, const bench_training *training, tp_dtype dtype, int ranks, int threads,
                   bench_prediction *out)
{
    tp_status status = bench_predict(call, training, dtype, ranks, threads, out);
    if (status != TP_OK)
        return bench_fail(call, "dry run of %d ranks: %s: %.300s", ranks, tp_status_name(status), tp_last_message());
    double need = bench_prediction_total(out);
    if (!call->options.dry_run && need > 0.9 * (double)call->machine.available)
        return bench_refuse(call,
                            "%d ranks need %.4g GB, %.4g are free (--layers cuts the depth, --batch the activations; "
                            "--dry-run only predicts)",
                            ranks, need / 1e9, (double)call->machine.available / 1e9);
    return BENCH_OK;
}

static int dry_row(bench_call *call, const bench_training *training, tp_dtype dtype, int ranks, int threads)
{
    bench_prediction predicted;
    int status = predict(call, training, dtype, ranks, threads, &predicted);
    if (status != BENCH_OK)
        return status;
    begin_row(call, training, dtype, ranks, threads);
    for (int column = STEP; column < PREDICTED; column++)
        bench_empty(&call->table);
    add_memory(call, &predicted);
    bench_note(&call->table, "%s, %d ranks: one step issues %.6g GFLOP in all ops; the model's own count is %.6g",
               tp_dtype_name(dtype), ranks, predicted.flops / 1e9,
               tp_model_flops(&training->model, training->trainer.batch * training->trainer.sequence,
                              training->trainer.sequence) /
                   1e9);
    return BENCH_OK;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static int add_rows(bench_call *call, model_run *run, const bench_prediction *predicted, bench_peaks *peaks)
{
    for (int i = 0; i < run->parties; i++) {
        const model_party *party = &run->party[i];
        if (party->status != TP_OK)
            return bench_fail(call, "%d ranks: %s: %.300s", party->ranks, tp_status_name(party->status),
                              party->message);
        add_row(call, run, party, &predicted[i], peaks);
    }
    if (run->peer != NULL)
        add_peer_row(call, run, peaks);
    return BENCH_OK;
}

static int run_parties(bench_call *call, model_run *run, const bench_prediction *predicted, bench_peaks *peaks)
{
    double all = 0;
    for (int i = 0; i < run->parties; i++)
        all += bench_prediction_total(&predicted[i]);
    /* A peer needs about as much as one of ours, and what it does not free while it goes on. */
    all += run->peer != NULL ? 2 * bench_prediction_total(&predicted[0]) : 0;
    bool together = all < 0.8 * (double)call->machine.available;
    if (!together && run->peer != NULL)
        return bench_refuse(
            call,
            "--peer torch: both sides together need about %.4g GB, %.4g are free (fewer --ranks, --layers or --batch)",
            all / 1e9, (double)call->machine.available / 1e9);
    bench_turns_init(&run->turns, run->parties + (run->peer != NULL));
    for (int i = 0; i < run->parties && together; i++)
        run->party[i].team.turns = &run->turns;
    bool started = true;
    if (together)
        started = bench_turns_run(&run->turns, party_main, run);
    for (int i = 0; i < run->parties && !together; i++) {
        run->turns.current = i;
        party_main(run, i);
    }
    bench_turns_free(&run->turns);
    if (!started)
        return bench_fail(call, "threads could not be started");
    if (run->peer != NULL && atomic_load(&run->peer->failed))
        return bench_fail(call, "%.480s", run->peer->message);
    bench_note(&call->table, together ? "degrees took turns, step by step" : "degrees ran one after the other");
    return add_rows(call, run, predicted, peaks);
}

/* ---- against the CPU --------------------------------------------------------------------------------------------- */

/* As many steps as the parties took, on one rank. */
typedef struct cpu_run {
    const bench_training *training;
    tp_dtype dtype;
    int64_t steps;
    double loss;
} cpu_run;

static tp_status cpu_main(tp_ctx *ctx, void *arg)
{
    cpu_run *run = arg;
    bench_stepper stepper;
    tp_status status = bench_stepper_open(&stepper, ctx, run->training, run->dtype);
    for (int64_t step = 0; step < run->steps && status == TP_OK; step++) {
        bench_progress("model: %s on the CPU, step %lld", tp_dtype_name(run->dtype), (long long)step + 1);
        status = bench_stepper_step(&stepper);
    }
    run->loss = stepper.loss;
    bench_stepper_close(&stepper);
    return status;
}

/* Losses of the last step: what rounding adds up to after some steps of the optimizer is far below these. */
static int check_losses(bench_call *call, const model_run *run, int64_t steps)
{
    double most = run->dtype == TP_DTYPE_F32 ? 1e-4 : 2e-2;
    cpu_run cpu = {.training = run->training, .dtype = run->dtype, .steps = steps};
    tp_run_options options = {.ranks = 1, .ctx = {.version = TP_VERSION, .seed = (uint64_t)call->options.seed}};
    if (tp_run_ranks(&options, cpu_main, &cpu) != TP_OK)
        return bench_fail(call, "on the CPU: %.300s", tp_last_message());
    for (int i = 0; i < run->parties; i++) {
        const model_party *party = &run->party[i];
        double loss = party->results.loss[steps - 1], off = fabs(loss - cpu.loss) / fabs(cpu.loss);
        bench_note(&call->table, "%s, %d ranks: loss %.6f after %lld steps, on the CPU %.6f", tp_dtype_name(run->dtype),
                   party->ranks, loss, (long long)steps, cpu.loss);
        if (!(off <= most))
            bench_check_failed(call, "%s, %d ranks: the loss is %.3g of it off the CPU's, at most %.3g is right",
                               tp_dtype_name(run->dtype), party->ranks, off, most);
    }
    return BENCH_OK;
}

/* With the peer as one more party, on as many cores as ours use at most. */
static int run_beside(bench_call *call, model_run *run, const bench_prediction *predicted, bench_peaks *peaks)
{
    int threads = 1;
    for (int i = 0; i < run->parties; i++) {
        int cores = cores_of(call, &run->party[i]);
        threads = cores > threads ? cores : threads;
    }
    run->peer = malloc(sizeof *run->peer);
    if (run->peer == NULL)
        return bench_fail(call, "out of memory");
    int status = bench_model_peer_open(run->peer, call, run->training, run->dtype, threads);
    if (status == BENCH_OK)
        status = run_parties(call, run, predicted, peaks);
    if (status != BENCH_OK && call->table.rows == 0)
        call->table.columns = NULL; /* the message says all there is: no table without rows */
    bench_model_peer_close(run->peer);
    free(run->peer);
    return status;
}

static int run_dtype(bench_call *call, const bench_training *training, tp_dtype dtype, bench_peaks *peaks)
{
    const bench_list *ranks = &call->options.ranks;
    bench_prediction predicted[BENCH_LIST];
    model_run run = {.call = call, .training = training, .dtype = dtype, .parties = ranks->count};
    int status = BENCH_OK;
    for (int i = 0; i < ranks->count && status == BENCH_OK; i++) {
        int threads = bench_threads_for(call, (int)ranks->value[i]);
        if (call->options.dry_run)
            status = dry_row(call, training, dtype, (int)ranks->value[i], threads);
        else
            status = predict(call, training, dtype, (int)ranks->value[i], threads, &predicted[i]);
    }
    if (status != BENCH_OK || call->options.dry_run)
        return status;
    run.party = calloc((size_t)run.parties, sizeof *run.party);
    if (run.party == NULL)
        return bench_fail(call, "out of memory");
    for (int i = 0; i < run.parties; i++) {
        model_party *party = &run.party[i];
        party->run = &run;
        party->index = i;
        party->ranks = (int)ranks->value[i];
        party->threads = bench_threads_for(call, party->ranks);
        bench_team_begin(call, &party->team, party->ranks);
        party->team.party = i;
    }
    status =
        call->options.peer > 0 ? run_beside(call, &run, predicted, peaks) : run_parties(call, &run, predicted, peaks);
    if (status == BENCH_OK && call->options.check)
        status = check_losses(call, &run, call->options.steps);
    free(run.party);
    return status;
}

static int check_peer(bench_call *call, const bench_training *training)
{
    const bench_options *options = &call->options;
    if (options->peer > 0)
        return bench_model_peer_check(call, training);
    const char *given = options->python != NULL          ? "python"
                        : options->peer_settings != NULL ? "peer-settings"
                        : options->patience > 0          ? "patience"
                                                         : NULL;
    return given == NULL ? BENCH_OK : bench_refuse(call, "--%s: of what? --peer torch says it", given);
}

int bench_command_model(bench_call *call)
{
    bench_options *options = &call->options;
    bench_list_default(&options->ranks, 2, (const int64_t[]){1, 2});
    bench_list_default(&options->dtypes, 1, (const int64_t[]){TP_DTYPE_F32});
    bench_training training;
    int status = bench_training_steps(call, 10);
    if (status == BENCH_OK)
        status = bench_training_open(call, &training);
    if (status == BENCH_OK && (status = check_peer(call, &training)) != BENCH_OK)
        bench_training_close(&training);
    if (status != BENCH_OK)
        return status;
    bench_begin(call, columns, COLUMNS);
    bench_hide_times(call, BENCH_BITS(STEP, COMM));
    call->table.plot = (bench_plot){.x = RANKS,
                                    .y = options->dry_run ? TOTAL : TOKENS,
                                    .only = options->dry_run ? -1 : FITS,
                                    .groups = 1,
                                    .group = {DTYPE}};
    bench_training_describe(&training, call->table.title, sizeof call->table.title);
    bench_peaks peaks = {{0}};
    for (int i = 0; i < options->dtypes.count && status == BENCH_OK; i++)
        status = run_dtype(call, &training, (tp_dtype)options->dtypes.value[i], &peaks);
    bench_note(&call->table, "param ... all: bytes of all ranks together that a dry run of the same step predicts%s",
               options->dry_run ? "" : "; used: peaks of the run");
    if (!options->dry_run)
        bench_note_kept(call, KEPT, OF);
    if (options->peer > 0 && status == BENCH_OK)
        bench_note(&call->table, "torch / step: medians, PyTorch's by ours, of steps that were clean on both sides; "
                                 "its process slept while ours ran, and ours while it did");
    bench_training_close(&training);
    return status;
}
