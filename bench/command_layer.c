/* tp_bench linear, mlp, attention, block: one layer, forward and backward, at several degrees in turns. */
#include "overlap.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPERATION, SHAPE, DTYPE, ISA, RANKS, THREADS, PARALLEL, ON, FORWARD, BACKWARD, TOKENS, RATE, SHARE, BANDWIDTH,
      COMM, SPEEDUP, SAME, KEPT, TOTAL, OFF, FITS, COLUMNS };

static const bench_column columns[COLUMNS] = {
    {"layer", "", 0, true},              {"shape", "", 0, true},          {"dtype", "", 0, true},
    {"isa", "", 0, true},                {"ranks", "", 0, false},         {"threads", "each", 0, false},
    {"sequence parallel", "", 0, false}, {"on", "", 0, true},             {"forward", "us", 4, false},
    {"backward", "us", 4, false},        {"tokens/s", "", 4, false},      {"rate", "GFLOP/s", 4, false},
    {"share", "of peak", -3, false},     {"bandwidth", "GB/s", 4, false}, {"comm", "of time", -3, false},
    {"speed-up", "", -2, false},         {"same bits", "", 0, false},     {"kept", "samples", 0, false},
    {"of", "samples", 0, false},         {"off the CPU", "", 2, false},   {"ranks <= cores", "", 0, false},
};

/* One degree. */
typedef struct layer_party {
    struct layer_run *run;
    int index, ranks;
    bench_team team;
    tp_status status;
    char message[BENCH_MESSAGE];
    bench_team_figure forward, backward;
    bool compared;
    double different;
    bool held; /* against the CPU's results */
    double off;
} layer_party;

/* All degrees of one dtype. */
typedef struct layer_run {
    bench_call *call;
    bench_layer_shape shape;
    bench_turns turns;
    bench_layer_reference reference;
    bench_layer_reference cpu; /* with --check */
    int parties;
    layer_party party[BENCH_LIST];
} layer_run;

/* The first degree's results become the reference; it has the first turn. */
static tp_status compare(layer_party *party, tp_ctx *ctx, bench_layer *layer)
{
    layer_run *run = party->run;
    bench_layer_reference *reference = &run->reference;
    bool first = party->index == 0, root = tp_ctx_rank(ctx) == 0;
    double unused;
    if (first && root && !bench_layer_reference_open(reference, layer))
        return TP_ERR_MEMORY;
    tp_status status = bench_team_sum(&party->team, ctx, 0, &unused);
    int64_t different = 0;
    double all_different = 0;
    bool compared = first || reference->ready;
    if (status == TP_OK && compared)
        status = bench_layer_compare(layer, reference, &different);
    if (status == TP_OK)
        status = bench_team_sum(&party->team, ctx, (double)different, &all_different);
    if (status == TP_OK && root) {
        party->compared = compared && !first;
        party->different = all_different;
        reference->ready = compared;
    }
    return status;
}

/* What the CPU makes of the layer: one rank's world, before the others. */
static tp_status cpu_main(tp_ctx *ctx, void *arg)
{
    layer_run *run = arg;
    bench_layer layer = {0};
    int64_t unused;
    bench_progress("%s: %s on the CPU", run->call->table.command, tp_dtype_name(run->shape.dtype));
    tp_status status = bench_layer_open(&layer, ctx, &run->shape);
    if (status == TP_OK)
        status = bench_layer_reference_open(&run->cpu, &layer) ? bench_layer_compare(&layer, &run->cpu, &unused)
                                                               : TP_ERR_MEMORY;
    run->cpu.ready = status == TP_OK;
    bench_layer_close(&layer);
    return status;
}

static tp_status run_on_cpu(layer_run *run)
{
    tp_run_options options = {.ranks = 1, .ctx = {.version = TP_VERSION, .seed = (uint64_t)run->call->options.seed}};
    return tp_run_ranks(&options, cpu_main, run);
}

static tp_status hold_against_cpu(layer_party *party, tp_ctx *ctx, bench_layer *layer)
{
    int64_t different;
    double mine, worst;
    tp_status status = bench_layer_hold(layer, &party->run->cpu, &different, &mine);
    if (status == TP_OK)
        status = bench_team_most(&party->team, ctx, mine, &worst);
    if (status == TP_OK && tp_ctx_rank(ctx) == 0) {
        party->held = true;
        party->off = worst;
    }
    return status;
}

static tp_status time_layer(layer_party *party, tp_ctx *ctx, bench_layer *layer)
{
    const bench_options *options = &party->run->call->options;
    bench_team_plan plan = {
        .warmup = (int)options->warmup, .least = 3, .most = (int)options->samples, .seconds = options->seconds};
    tp_status status = bench_team_measure(&party->team, ctx, &plan, bench_layer_forward, layer, &party->forward);
    if (status == TP_OK)
        status = bench_team_measure(&party->team, ctx, &plan, bench_layer_backward, layer, &party->backward);
    return status;
}

static tp_status rank_main(tp_ctx *ctx, void *arg)
{
    layer_party *party = arg;
    layer_run *run = party->run;
    bench_layer layer = {0};
    bench_turns_take(&run->turns, party->index);
    if (tp_ctx_rank(ctx) == 0)
        bench_progress("%s: %s, %d ranks", run->call->table.command, tp_dtype_name(run->shape.dtype), party->ranks);
    tp_status status = bench_layer_open(&layer, ctx, &run->shape);
    if (status == TP_OK && !run->call->options.no_check)
        status = compare(party, ctx, &layer);
    if (status == TP_OK && run->cpu.ready)
        status = hold_against_cpu(party, ctx, &layer);
    if (status == TP_OK && tp_ctx_rank(ctx) == 0)
        bench_turns_pass(&run->turns, party->index);
    if (status == TP_OK)
        status = time_layer(party, ctx, &layer);
    bench_layer_close(&layer);
    return status;
}

static void party_main(void *arg, int index)
{
    layer_run *run = arg;
    layer_party *party = &run->party[index];
    tp_run_options options = bench_run_options(run->call, party->ranks, bench_threads_for(run->call, party->ranks));
    party->status = tp_run_ranks(&options, rank_main, party);
    if (party->status != TP_OK)
        snprintf(party->message, sizeof party->message, "%s", tp_last_message());
}

static void add_row(bench_call *call, const layer_run *run, const layer_party *party, bench_peaks *peaks)
{
    bench_table *table = &call->table;
    double forward = party->forward.figure.seconds, backward = party->backward.figure.seconds,
           both = forward + backward;
    int threads = bench_threads_for(call, party->ranks);
    double flops = 3 * bench_layer_flops(&run->shape) / both;
    char shape[BENCH_CELL_TEXT];
    bench_layer_shape_text(&run->shape, shape);
    bench_row(table);
    bench_word(table, "%s", table->command);
    bench_word(table, "%s", shape);
    bench_word(table, "%s", tp_dtype_name(run->shape.dtype));
    bench_isa_cell(call);
    bench_integer(table, party->ranks);
    bench_integer(table, threads);
    bench_truth(table, run->shape.sequence_parallel);
    bench_on_cell(call, "threads");
    bench_real(table, forward * 1e6);
    bench_real(table, backward * 1e6);
    bench_real(table, (double)(run->shape.batch * run->shape.sequence) / both);
    bench_real(table, flops / 1e9);
    bench_real(table, flops / bench_peak_for(call, peaks, run->shape.dtype, party->ranks * threads));
    double traffic = 5.0 * (double)(run->shape.batch * run->shape.sequence * run->shape.hidden) *
                     (double)tp_dtype_size(run->shape.dtype);
    bench_real(table, run->shape.command == BENCH_NORM ? traffic / both / 1e9 : NAN);
    bench_real(table, bench_team_comm_share(&party->team));
    const layer_party *first = &run->party[0];
    bench_real(table, (first->forward.figure.seconds + first->backward.figure.seconds) / both);
    if (!party->compared)
        bench_word(table, "%s", party->index == 0 ? "reference" : "-");
    else {
        char what[160];
        snprintf(what, sizeof what, "%s %s: %.0f values of %d ranks differ from those of %d", table->command,
                 tp_dtype_name(run->shape.dtype), party->different, party->ranks, first->ranks);
        bench_same_cell(call, party->different == 0, bench_bits_promised(call, first->ranks, party->ranks), what);
    }
    bench_figure fewer = bench_figure_fewer(party->forward.figure, party->backward.figure);
    bench_integer(table, fewer.kept);
    bench_integer(table, fewer.total);
    if (party->held)
        bench_real(table, party->off);
    else
        bench_empty(table);
    bench_truth(table, bench_fits(call, party->ranks, 1));
    if (party->held && !(party->off <= bench_cpu_tolerance(run->shape.dtype, call->options.tf32)))
        bench_check_failed(call, "%d ranks, %s: a tensor is %.3g of its norm off the CPU's, at most %.3g is right",
                           party->ranks, tp_dtype_name(run->shape.dtype), party->off,
                           bench_cpu_tolerance(run->shape.dtype, call->options.tf32));
}

static int run_dtype(bench_call *call, const bench_layer_shape *shape, tp_dtype dtype, bench_peaks *peaks)
{
    layer_run *run = calloc(1, sizeof *run);
    if (run == NULL)
        return bench_fail(call, "out of memory");
    run->call = call;
    run->shape = *shape;
    run->shape.dtype = dtype;
    run->parties = call->options.ranks.count;
    bench_turns_init(&run->turns, run->parties);
    for (int i = 0; i < run->parties; i++) {
        layer_party *party = &run->party[i];
        party->run = run;
        party->index = i;
        party->ranks = (int)call->options.ranks.value[i];
        bench_team_begin(call, &party->team, party->ranks);
        party->team.turns = &run->turns;
        party->team.party = i;
    }
    int status = call->options.check && run_on_cpu(run) != TP_OK
                     ? bench_fail(call, "on the CPU: %.300s", tp_last_message())
                     : BENCH_OK;
    if (status == BENCH_OK && !bench_turns_run(&run->turns, party_main, run))
        status = bench_fail(call, "threads could not be started");
    for (int i = 0; i < run->parties && status == BENCH_OK; i++) {
        layer_party *party = &run->party[i];
        if (party->status != TP_OK)
            status =
                bench_fail(call, "%d ranks: %s: %.300s", party->ranks, tp_status_name(party->status), party->message);
        else
            add_row(call, run, party, peaks);
    }
    bench_layer_reference_close(&run->reference);
    bench_layer_reference_close(&run->cpu);
    bench_turns_free(&run->turns);
    free(run);
    return status;
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static int take_preset(bench_call *call, bench_layer_shape *shape)
{
    bench_options *options = &call->options;
    tp_model_desc desc = {.family = (tp_model_family)(options->family > 0 ? options->family - 1 : TP_MODEL_GPT2),
                          .hidden = 512,
                          .heads = 8};
    if (options->model != NULL && tp_model_preset(options->model, &desc) != TP_OK)
        return bench_refuse(call, "--model: %s", tp_last_message());
    bool llama = desc.family == TP_MODEL_LLAMA;
    shape->family = desc.family;
    shape->hidden = options->hidden > 0 ? options->hidden : desc.hidden;
    shape->heads = options->heads > 0 ? options->heads : desc.heads;
    shape->kv_heads = options->kv_heads > 0                      ? options->kv_heads
                      : desc.kv_heads > 0 && options->heads == 0 ? desc.kv_heads
                                                                 : shape->heads;
    bool own_width = desc.head_dim > 0 && options->hidden == 0 && options->heads == 0;
    shape->head_dim = own_width ? desc.head_dim : shape->hidden / shape->heads;
    shape->ffn = options->ffn > 0 ? options->ffn : desc.ffn > 0 ? desc.ffn : 4 * shape->hidden;
    shape->activation = options->activation > 0 ? (tp_activation)(options->activation - 1)
                        : desc.activation_set   ? desc.activation
                        : llama                 ? TP_ACTIVATION_SWIGLU
                                                : TP_ACTIVATION_GELU_TANH;
    shape->bias = !llama;
    shape->rope_theta = !llama ? 0 : desc.rope_theta > 0 ? desc.rope_theta : 10000;
    return BENCH_OK;
}

static int take_shape(bench_call *call, bench_layer_shape *shape)
{
    bench_options *options = &call->options;
    const char *name = call->table.command;
    for (const bench_command *command = bench_command_table; command->name != NULL; command++)
        if (strcmp(command->name, name) == 0)
            shape->command = command->bit;
    int status = take_preset(call, shape);
    if (status != BENCH_OK)
        return status;
    shape->kind = options->kind > 0 ? (tp_linear_kind)(options->kind - 1) : TP_LINEAR_COLUMN;
    shape->window = options->window;
    shape->dropout = (float)options->dropout;
    shape->sequence_parallel = options->sequence_parallel;
    shape->batch = options->batch > 0 ? options->batch : 4;
    shape->sequence = options->sequence > 0 ? options->sequence : 128;
    return BENCH_OK;
}

/* Buffers and results of all degrees together, roughly: the sum must fit. */
static double memory_needed(const bench_layer_shape *s, const bench_list *ranks)
{
    double tokens = (double)(s->batch * s->sequence), wide = (double)(s->ffn > s->hidden ? s->ffn : s->hidden);
    double weights = 4 * (double)s->hidden * (double)s->hidden + 3 * (double)s->hidden * wide;
    double all = 4 * (tokens * (double)s->hidden * 2 + weights);
    for (int i = 0; i < ranks->count; i++)
        all += 4 * (tokens * 8 * wide + weights * 3) + 4 * (double)ranks->value[i] * tokens * (double)s->hidden * 6;
    return all;
}

static int check_shape(bench_call *call, const bench_layer_shape *s)
{
    const bench_list *ranks = &call->options.ranks;
    if (s->command == BENCH_LINEAR && s->kind == TP_LINEAR_REPLICATED && s->sequence_parallel)
        return bench_refuse(call, "--kind replicated has nothing that --sequence-parallel could shard");
    if (s->command == BENCH_LINEAR && s->kind == TP_LINEAR_REPLICATED && call->options.overlaps.count > 0)
        return bench_refuse(call, "--kind replicated has no communication that --overlap could hide");
    if (s->command == BENCH_LINEAR && s->kind == TP_LINEAR_COLUMN && s->dropout > 0)
        return bench_refuse(call, "--dropout %g: --kind column has none, --kind row and replicated have",
                            call->options.dropout);
    for (int i = 0; i < ranks->count; i++) {
        int degree = (int)ranks->value[i];
        bool cut = s->command != BENCH_LINEAR || s->kind != TP_LINEAR_REPLICATED;
        if ((s->command == BENCH_LINEAR || s->command == BENCH_MLP) && cut && s->ffn < degree)
            return bench_refuse(call, "--ffn %lld is less than %d ranks", (long long)s->ffn, degree);
        tp_model_desc desc = {.family = s->family,
                              .layers = 1,
                              .hidden = s->hidden,
                              .heads = s->heads,
                              .kv_heads = s->kv_heads,
                              .head_dim = s->head_dim * s->heads == s->hidden ? 0 : s->head_dim,
                              .ffn = s->ffn,
                              .vocabulary = 65536,
                              .positions = s->sequence,
                              .dtype = TP_DTYPE_F32};
        if ((s->command == BENCH_ATTENTION || s->command == BENCH_BLOCK) && s->head_dim * s->heads != s->hidden &&
            call->options.model == NULL)
            return bench_refuse(call, "--hidden %lld is no multiple of --heads %lld", (long long)s->hidden,
                                (long long)s->heads);
        if ((s->command == BENCH_ATTENTION || s->command == BENCH_BLOCK) && tp_model_check(&desc, degree) != TP_OK)
            return bench_refuse(call, "%s", tp_last_message());
    }
    double need = memory_needed(s, ranks);
    if (need > (double)call->machine.available)
        return bench_refuse(call, "%lld tokens of this shape need about %.0f bytes, %zu are free",
                            (long long)(s->batch * s->sequence), need, call->machine.available);
    return BENCH_OK;
}

/* Without --overlap, or of a block: passed on. */
static int take_overlap(bench_call *call, bench_layer_shape *shape)
{
    if (call->options.trace != NULL)
        return bench_refuse(call, "--trace %s: of what? --overlap says it", call->options.trace);
    if (call->options.explain)
        return bench_refuse(call, "--explain tells how auto chooses: --overlap auto");
    return bench_take_overlap(call, &shape->overlap, &shape->chunks);
}

int bench_command_layer(bench_call *call)
{
    bench_options *options = &call->options;
    bench_layer_shape shape = {0};
    int status = take_shape(call, &shape);
    bool overlap = options->overlaps.count > 0 && shape.command != BENCH_BLOCK; /* norm has none */
    if (overlap)
        bench_list_default(&options->ranks, 1, (const int64_t[]){2});
    bench_list_default(&options->ranks, 2, (const int64_t[]){1, 2});
    bench_list_default(&options->dtypes, 2, (const int64_t[]){TP_DTYPE_F32, TP_DTYPE_BF16});
    options->samples = options->samples > 0 ? options->samples : 200;
    options->warmup = options->warmup > 0 ? options->warmup : 2;
    options->seconds = options->seconds > 0 ? options->seconds : 0.5;
    if (status == BENCH_OK)
        status = bench_check_parallel(call);
    if (status == BENCH_OK)
        status = check_shape(call, &shape);
    if (status == BENCH_OK)
        status = bench_check_link(call, (double)(shape.batch * shape.sequence) * (double)shape.hidden * 4);
    if (status == BENCH_OK && overlap)
        return bench_command_overlap(call, &shape);
    if (status == BENCH_OK)
        status = take_overlap(call, &shape);
    if (status != BENCH_OK)
        return status;
    bench_begin(call, columns, COLUMNS);
    bench_hide_times(call, BENCH_BITS(FORWARD, SPEEDUP));
    call->table.plot = (bench_plot){.x = RANKS, .y = TOKENS, .only = FITS, .groups = 1, .group = {DTYPE}};
    snprintf(call->table.title, sizeof call->table.title, "%s layer, forward and backward (input and weight gradients)",
             call->table.command);
    bench_peaks peaks = {{0}};
    for (int i = 0; i < options->dtypes.count && status == BENCH_OK; i++)
        status = run_dtype(call, &shape, (tp_dtype)options->dtypes.value[i], &peaks);
    bench_note(&call->table, "degrees took turns, sample by sample; speed-up is against %lld ranks",
               (long long)options->ranks.value[0]);
    if (!options->no_check)
        bench_note(&call->table,
                   "same bits: output, input gradient and all weight gradients, gathered, against %lld ranks",
                   (long long)options->ranks.value[0]);
    if (options->check)
        bench_note(
            &call->table,
            "off the CPU: the worst tensor's distance from what one rank on the CPU makes, as a part of its norm");
    bench_note_kept(call, KEPT, TOTAL);
    return status;
}
