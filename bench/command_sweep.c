/* tp_bench sweep: one model trained at several tensor-parallel degrees, strong and weak scaling. */
#include "sweep_party.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SCALING, RANKS, THREADS, DTYPE, BATCH, STEPS, LOSS, STEP, TOKENS, SPEEDUP, EFFICIENCY, SHARE, COMM, SAME_LOSSES,
    SAME_WEIGHTS, ISA, ON, KEPT, TOTAL,
    FITS, COLUMNS
};

static const bench_column columns[COLUMNS] = {
    {"scaling", "", 0, true},         {"ranks", "", 0, false},            {"threads", "each", 0, false},
    {"dtype", "", 0, true},           {"batch", "sequences", 0, false},   {"steps", "", 0, false},
    {"loss", "last step", -6, false}, {"step", "ms", 4, false},           {"tokens/s", "", 4, false},
    {"speed-up", "", -2, false},      {"efficiency", "", -2, false},      {"share", "of peak", -3, false},
    {"comm", "of time", -3, false},   {"same losses", "", 0, true},       {"same weights", "", 0, true},
    {"isa", "", 0, true},             {"on", "", 0, true},                {"kept", "steps", 0, false},
    {"of", "steps", 0, false},        {"threads <= cores", "", 0, false},
};

/* All parties of one dtype and one kind of scaling. */
typedef struct sweep_run {
    bench_call *call;
    const bench_training *training;
    bench_turns turns;
    int parties;
    bench_sweep_party party[BENCH_PARTIES];
    bench_sweep_reference reference[BENCH_PARTIES];
} sweep_run;

static bench_sweep_party *add_party(sweep_run *run, bench_scaling scaling, tp_dtype dtype, int ranks, int threads)
{
    const bench_options *options = &run->call->options;
    bench_sweep_party *party = &run->party[run->parties];
    int64_t microbatch = run->training->trainer.microbatch;
    *party = (bench_sweep_party){.call = run->call, .training = run->training, .scaling = scaling,
                                 .index = run->parties, .ranks = ranks,
                                 .threads = threads, .dtype = dtype, .batch = run->training->trainer.batch,
                                 .microbatch = microbatch,
                                 .steps = scaling == BENCH_WEAK ? options->weak_steps : options->steps, .shown = true};
    bench_team_begin(run->call, &party->team, ranks);
    run->parties++;
    return party;
}

/* The same batch on all degrees: the first one is the reference. */
static void add_strong(sweep_run *run, tp_dtype dtype)
{
    const bench_options *options = &run->call->options;
    for (int t = 0; t < options->thread_counts.count; t++)
        for (int r = 0; r < options->ranks.count; r++) {
            bench_sweep_party *party =
                add_party(run, BENCH_STRONG, dtype, (int)options->ranks.value[r], (int)options->thread_counts.value[t]);
            party->defines = party->index == 0;
            party->reference = &run->reference[0];
        }
}

/* The same work a rank: every batch has its own reference, which the first degree makes, not shown. */
static void add_weak(sweep_run *run, tp_dtype dtype)
{
    const bench_options *options = &run->call->options;
    int threads = (int)options->thread_counts.value[0], first = (int)options->ranks.value[0];
    for (int r = 0; r < options->ranks.count; r++) {
        int ranks = (int)options->ranks.value[r];
        int64_t batch = run->training->trainer.batch * ranks;
        if (r > 0 && !options->no_check) {
            bench_sweep_party *hidden = add_party(run, BENCH_WEAK, dtype, first, threads);
            hidden->batch = batch;
            hidden->shown = false;
            hidden->defines = true;
            hidden->reference = &run->reference[r];
        }
        bench_sweep_party *party = add_party(run, BENCH_WEAK, dtype, ranks, threads);
        party->batch = batch;
        party->defines = r == 0;
        party->reference = &run->reference[r];
    }
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void party_main(void *arg, int index)
{
    sweep_run *run = arg;
    bench_sweep_party_run(&run->party[index]);
}

/* All at once, in turns, if memory allows; else one after the other. */
static int run_parties(bench_call *call, sweep_run *run)
{
    double all = 0;
    for (int i = 0; i < run->parties; i++) {
        double bytes;
        tp_status status = bench_sweep_party_bytes(&run->party[i], &bytes);
        if (status != TP_OK)
            return bench_fail(call, "dry run of %d ranks: %.300s", run->party[i].ranks, tp_last_message());
        all += bytes;
    }
    bool together = !call->options.one_by_one && all < 0.7 * (double)call->machine.available;
    bench_note(&call->table,
               together ? "degrees took turns, step by step" : "degrees were trained one after the other");
    if (!together) {
        for (int i = 0; i < run->parties && (i == 0 || run->party[i - 1].status == TP_OK); i++)
            bench_sweep_party_run(&run->party[i]);
        return BENCH_OK;
    }
    bench_turns_init(&run->turns, run->parties);
    for (int i = 0; i < run->parties; i++) {
        run->party[i].team.turns = &run->turns;
        run->party[i].team.party = i;
    }
    bool started = bench_turns_run(&run->turns, party_main, run);
    bench_turns_free(&run->turns);
    return started ? BENCH_OK : bench_fail(call, "threads could not be started");
}

static double tokens_per_second(const bench_sweep_party *party)
{
    return (double)(party->batch * party->training->trainer.sequence) / party->figure.figure.seconds;
}

static int cores_used(const bench_call *call, const bench_sweep_party *party)
{
    int threads = party->ranks * party->threads;
    return threads < call->machine.cores ? threads : call->machine.cores;
}

static void add_sameness(bench_call *call, const bench_sweep_party *party, int first_ranks)
{
    if (!party->compared) {
        bench_word(&call->table, "%s", party->defines ? "reference" : "-");
        bench_word(&call->table, "%s", party->defines ? "reference" : "-");
        return;
    }
    bool promised = bench_bits_promised(call, first_ranks, party->ranks);
    char what[160];
    snprintf(what, sizeof what, "losses of %d ranks (%s, batch %lld) differ from those of %d", party->ranks,
             tp_dtype_name(party->dtype), (long long)party->batch, first_ranks);
    bench_same_cell(call, party->same_losses, promised, what);
    snprintf(what, sizeof what, "weights of %d ranks (%s, batch %lld) differ from those of %d", party->ranks,
             tp_dtype_name(party->dtype), (long long)party->batch, first_ranks);
    bench_same_cell(call, party->same_weights, promised, what);
}

static void add_row(bench_call *call, const bench_sweep_party *party, const bench_sweep_party *first,
                    bench_peaks *peaks)
{
    bench_table *table = &call->table;
    double tokens = tokens_per_second(party), speedup = tokens / tokens_per_second(first);
    double flops = tp_model_flops(&party->training->model, party->batch * party->training->trainer.sequence,
                                  party->training->trainer.sequence);
    bench_row(table);
    bench_word(table, "%s", party->scaling == BENCH_WEAK ? "weak" : "strong");
    bench_integer(table, party->ranks);
    bench_integer(table, party->threads);
    bench_word(table, "%s", tp_dtype_name(party->dtype));
    bench_integer(table, party->batch);
    bench_integer(table, party->steps);
    bench_real(table, party->losses[party->steps - 1]);
    bench_real(table, party->figure.figure.seconds * 1e3);
    bench_real(table, tokens);
    bench_real(table, speedup);
    bench_real(table, speedup * cores_used(call, first) / cores_used(call, party));
    bench_real(table, flops / party->figure.figure.seconds /
                          bench_peak_for(call, peaks, party->dtype, party->ranks * party->threads));
    bench_real(table, bench_team_comm_share(&party->team));
    add_sameness(call, party, first->ranks);
    bench_isa_cell(call);
    bench_on_cell(call, "threads");
    bench_integer(table, party->figure.figure.kept);
    bench_integer(table, party->figure.figure.total);
    bench_truth(table, bench_fits(call, party->ranks, party->threads));
    if (!isfinite(party->losses[party->steps - 1]))
        bench_check_failed(call, "the loss of %d ranks is not finite", party->ranks);
}

static int run_scaling(bench_call *call, const bench_training *training, bench_scaling scaling, tp_dtype dtype,
                       bench_peaks *peaks)
{
    sweep_run *run = calloc(1, sizeof *run);
    if (run == NULL)
        return bench_fail(call, "out of memory");
    run->call = call;
    run->training = training;
    if (scaling == BENCH_STRONG)
        add_strong(run, dtype);
    else
        add_weak(run, dtype);
    int status = run_parties(call, run);
    for (int i = 0; i < run->parties && status == BENCH_OK; i++) {
        const bench_sweep_party *party = &run->party[i];
        if (party->status != TP_OK)
            status =
                bench_fail(call, "%d ranks: %s: %.300s", party->ranks, tp_status_name(party->status), party->message);
        else if (party->shown)
            add_row(call, party, &run->party[0], peaks);
    }
    for (int i = 0; i < run->parties; i++)
        free(run->party[i].losses);
    for (int i = 0; i < BENCH_PARTIES; i++)
        bench_sweep_reference_close(&run->reference[i]);
    free(run);
    return status;
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static int check_options(bench_call *call)
{
    bench_options *options = &call->options;
    bench_list_default(&options->ranks, 4, (const int64_t[]){1, 2, 4, 8});
    bench_list_default(&options->dtypes, 1, (const int64_t[]){TP_DTYPE_F32});
    bench_list_default(&options->thread_counts, 1, (const int64_t[]){1});
    options->steps = options->steps > 0 ? options->steps : 20;
    options->weak_steps = options->weak_steps > 0 ? options->weak_steps : 5;
    options->warmup = options->warmup > 0 ? options->warmup : 1;
    options->scaling = options->scaling > 0 ? options->scaling : BENCH_BOTH;
    int parties = options->ranks.count * options->thread_counts.count;
    if (parties > BENCH_PARTIES / 2 || options->ranks.count > BENCH_PARTIES / 2)
        return bench_refuse(call, "--ranks and --threads: %d combinations, at most %d", parties, BENCH_PARTIES / 2);
    if (options->warmup >= options->steps)
        return bench_refuse(call, "--warmup %lld leaves nothing of --steps %lld to be timed",
                            (long long)options->warmup, (long long)options->steps);
    return BENCH_OK;
}

/* The largest party alone must fit. */
static int check_memory(bench_call *call, const bench_training *training)
{
    const bench_options *options = &call->options;
    for (int r = 0; r < options->ranks.count; r++)
        for (int d = 0; d < options->dtypes.count; d++) {
            int ranks = (int)options->ranks.value[r];
            bool weak = (options->scaling & BENCH_WEAK) != 0;
            bench_sweep_party party = {.call = call,
                                       .training = training,
                                       .ranks = ranks,
                                       .dtype = (tp_dtype)options->dtypes.value[d],
                                       .threads = (int)options->thread_counts.value[0],
                                       .batch = training->trainer.batch * (weak ? ranks : 1),
                                       .microbatch = training->trainer.microbatch};
            double need;
            if (bench_sweep_party_bytes(&party, &need) != TP_OK)
                return bench_refuse(call, "%d ranks: %.300s", ranks, tp_last_message());
            if (need > (double)call->machine.available)
                return bench_refuse(call,
                                    "%d ranks, batch %lld: about %.3g GB are needed, %.3g are free (--layers cuts the "
                                    "depth, --microbatch "
                                    "the activations)",
                                    ranks, (long long)party.batch, need / 1e9, (double)call->machine.available / 1e9);
        }
    return BENCH_OK;
}

static void add_notes(bench_call *call)
{
    const bench_options *options = &call->options;
    bench_note(&call->table,
               "speed-up: tokens/s against the first row of the same scaling; efficiency: speed-up / min(ranks x "
               "threads, %d cores)",
               call->machine.cores);
    if (!options->no_check)
        bench_note(
            &call->table,
            "same: loss of every step and all weights, gathered, bit for bit those of degree %lld on the same batch",
            (long long)options->ranks.value[0]);
    for (int row = 0; row < call->table.rows; row++)
        if (!bench_table_cell(&call->table, row, FITS)->truth)
            bench_note(&call->table, "rows with threads <= cores NO have more threads than cores: they show that the "
                                     "bits hold, not how it scales, and "
                                     "are not plotted");
    bench_note_kept(call, KEPT, TOTAL);
}

int bench_command_sweep(bench_call *call)
{
    bench_options *options = &call->options;
    bench_training training;
    int status = check_options(call);
    if (status == BENCH_OK)
        status = bench_training_open(call, &training);
    if (status != BENCH_OK)
        return status;
    status = check_memory(call, &training);
    if (status == BENCH_OK) {
        bench_begin(call, columns, COLUMNS);
        bench_hide_times(call, BENCH_BITS(STEP, EFFICIENCY) | BENCH_BITS(SHARE, COMM));
        call->table.plot =
            (bench_plot){.x = RANKS, .y = TOKENS, .only = FITS, .groups = 3, .group = {SCALING, DTYPE, THREADS}};
        bench_training_describe(&training, call->table.title, sizeof call->table.title);
        bench_peaks peaks = {{0}};
        for (int d = 0; d < options->dtypes.count; d++)
            for (int s = BENCH_STRONG; s <= BENCH_WEAK && status == BENCH_OK; s++)
                if ((options->scaling & s) != 0)
                    status = run_scaling(call, &training, (bench_scaling)s, (tp_dtype)options->dtypes.value[d], &peaks);
        add_notes(call);
    }
    bench_training_close(&training);
    return status;
}
