/* tp_bench auto: what AUTO chooses, against every fixed choice and against none, over a grid of layers, tokens, dtypes
 * and links. */
#include "auto_case.h"
#include "calibration.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYER, SHAPE, DTYPE, RANKS, PARALLEL, ON, LINK, PASS, NONE, BEST, BEST_CHUNKS, BEST_SECONDS, CHOSEN, AUTO,
    PREDICTED, TO_BEST, TO_NONE, NOISE, SURE_TO_BEST, SURE_TO_NONE, KEPT, TOTAL, FITS, COLUMNS
};

static const bench_column columns[COLUMNS] = {
    {"layer", "", 0, true},         {"shape", "", 0, true},              {"dtype", "", 0, true},
    {"ranks", "", 0, false},        {"sequence parallel", "", 0, false}, {"on", "", 0, true},
    {"link", "GB/s", 3, false},     {"pass", "", 0, true},               {"t_none", "us", 5, false},
    {"best", "fixed", 0, true},     {"chunks", "of best", 0, false},     {"t_best", "us", 5, false},
    {"auto", "chose", 0, true},     {"t_auto", "us", 5, false},          {"predicted", "us", 5, false},
    {"auto / best", "", -3, false}, {"auto / none", "", -3, false},      {"none / none", "", -3, false},
    {"surely / best", "", -3, false}, {"surely / none", "", -3, false},  {"kept", "samples", 0, false},
    {"of", "samples", 0, false},    {"ranks <= cores", "", 0, false},
};

/* None of them is what calibration multiplies. */
static const bench_layer_shape grid[] = {
    {.command = BENCH_LINEAR, .kind = TP_LINEAR_COLUMN, .hidden = 512, .ffn = 1536, .sequence_parallel = true,
     .bias = true},
    {.command = BENCH_LINEAR, .kind = TP_LINEAR_ROW, .hidden = 640, .ffn = 1280, .sequence_parallel = true,
     .bias = true},
    {.command = BENCH_LINEAR, .kind = TP_LINEAR_ROW, .hidden = 448, .ffn = 1792, .bias = true},
    {.command = BENCH_MLP, .hidden = 384, .ffn = 1536, .activation = TP_ACTIVATION_GELU_TANH, .sequence_parallel = true,
     .bias = true},
    {.command = BENCH_MLP, .hidden = 320, .ffn = 896, .activation = TP_ACTIVATION_SWIGLU},
    {.command = BENCH_ATTENTION, .hidden = 512, .heads = 8, .kv_heads = 8, .head_dim = 64, .sequence_parallel = true,
     .bias = true},
};

static const bench_layer_shape gpu_grid[] = {
    {.command = BENCH_LINEAR, .kind = TP_LINEAR_COLUMN, .hidden = 4096, .ffn = 12288, .sequence_parallel = true,
     .bias = true},
    {.command = BENCH_LINEAR, .kind = TP_LINEAR_ROW, .hidden = 5120, .ffn = 10240, .sequence_parallel = true,
     .bias = true},
    {.command = BENCH_LINEAR, .kind = TP_LINEAR_ROW, .hidden = 4096, .ffn = 14336, .bias = true},
    {.command = BENCH_MLP, .hidden = 3072, .ffn = 12288, .activation = TP_ACTIVATION_GELU_TANH,
     .sequence_parallel = true, .bias = true},
    {.command = BENCH_MLP, .hidden = 2048, .ffn = 5632, .activation = TP_ACTIVATION_SWIGLU},
    {.command = BENCH_ATTENTION, .hidden = 5120, .heads = 40, .kv_heads = 40, .head_dim = 128,
     .sequence_parallel = true, .bias = true},
};

/* To see that it runs. */
static const bench_layer_shape simulated_grid[] = {
    {.command = BENCH_LINEAR, .kind = TP_LINEAR_COLUMN, .hidden = 32, .ffn = 48, .sequence_parallel = true,
     .bias = true},
    {.command = BENCH_LINEAR, .kind = TP_LINEAR_ROW, .hidden = 40, .ffn = 32, .bias = true},
    {.command = BENCH_MLP, .hidden = 32, .ffn = 48, .activation = TP_ACTIVATION_SWIGLU},
    {.command = BENCH_ATTENTION, .hidden = 32, .heads = 4, .kv_heads = 4, .head_dim = 8, .sequence_parallel = true,
     .bias = true},
};

enum { MOST_POINTS = 2 * BENCH_LIST };

typedef struct layer_list {
    const bench_layer_shape *shape;
    int count;
} layer_list;

static layer_list layers_of(const bench_call *call)
{
    if (!bench_on_gpu(call))
        return (layer_list){grid, sizeof grid / sizeof *grid};
    if (call->gpu.simulated)
        return (layer_list){simulated_grid, sizeof simulated_grid / sizeof *simulated_grid};
    return (layer_list){gpu_grid, sizeof gpu_grid / sizeof *gpu_grid};
}

/* No link, a quick one and a slow one. */
static const tp_link default_links[] = {{0, 0}, {10e-6, 1e9}, {10e-6, 2e8}};

static const char *command_name(unsigned bit)
{
    const bench_command *command = bench_command_table;
    while (command->bit != bit)
        command++;
    return command->name;
}

/* "linear column 512x1536" */
static void name_layer(const bench_layer_shape *shape, char text[2 * BENCH_CELL_TEXT])
{
    char features[BENCH_CELL_TEXT];
    bench_layer_shape_text(shape, features);
    /* after the tokens */
    snprintf(text, 2 * BENCH_CELL_TEXT, "%s %s", command_name(shape->command), strchr(features, ',') + 2);
}

static bool is_wanted(const bench_call *call, const bench_layer_shape *shape)
{
    char name[2 * BENCH_CELL_TEXT];
    name_layer(shape, name);
    return call->options.only == NULL || strstr(name, call->options.only) != NULL;
}

static bool any_wanted(const bench_call *call)
{
    layer_list layers = layers_of(call);
    int wanted = 0;
    for (int layer = 0; layer < layers.count; layer++)
        wanted += is_wanted(call, &layers.shape[layer]);
    return wanted > 0;
}

/* Of the passes that were made and had samples of both. */
static double least_of(const double passes[BENCH_AUTO_PASSES])
{
    double least = NAN;
    for (int i = 0; i < BENCH_AUTO_PASSES; i++)
        least = passes[i] > 0 ? fmin(least, passes[i]) : least;
    return least;
}

static void add_row(bench_call *call, const bench_auto_job *job, const bench_auto_point *point)
{
    bench_table *table = &call->table;
    bench_layer_shape shape = job->shape;
    char text[BENCH_CELL_TEXT];
    shape.batch = 1;
    shape.sequence = point->tokens;
    bench_layer_shape_text(&shape, text);
    bool modelled = job->link.bytes_per_second > 0;
    double none = point->none.figure.seconds, best = point->fixed.figure.seconds,
           automatic = point->automatic.figure.seconds;
    bench_row(table);
    bench_word(table, "%s", command_name(shape.command));
    bench_word(table, "%s", text);
    bench_word(table, "%s", tp_dtype_name(shape.dtype));
    bench_integer(table, job->ranks);
    bench_truth(table, shape.sequence_parallel);
    if (bench_on_gpu(call))
        bench_on_cell(call, "threads");
    else
        bench_word(table, "threads%s", modelled ? ", modelled link" : "");
    bench_real(table, modelled ? job->link.bytes_per_second / 1e9 : NAN);
    bench_word(table, "%s", point->backward ? "backward" : "forward");
    bench_real(table, none * 1e6);
    if (call->gpu.simulated) { /* which one is best is made of times */
        bench_empty(table);
        bench_empty(table);
    } else {
        bench_word(table, "%s", bench_overlap_names[bench_auto_choices[point->best].overlap]);
        bench_integer(table, bench_auto_choices[point->best].chunks);
    }
    bench_real(table, best * 1e6);
    bench_word(table, "%s", point->chosen);
    bench_real(table, automatic * 1e6);
    bench_real(table, point->predicted_auto > 0 ? point->predicted_auto * 1e6 : NAN);
    bench_real(table, automatic / best);
    bench_real(table, automatic / none);
    bench_real(table, point->again.figure.seconds / none);
    bench_real(table, least_of(point->to_fixed));
    bench_real(table, least_of(point->to_none));
    bench_figure fewest =
        bench_figure_fewer(point->none.figure, bench_figure_fewer(point->fixed.figure, point->automatic.figure));
    bench_integer(table, fewest.kept);
    bench_integer(table, fewest.total);
    bench_truth(table, bench_fits(call, job->ranks, 1));
}

/* All first-round figures of a point, on standard error. */
static void explain(const bench_auto_job *job, const bench_auto_point *point)
{
    char name[2 * BENCH_CELL_TEXT];
    name_layer(&job->shape, name);
    fprintf(stderr, "%s, %s, %lld tokens, %s, %g GB/s: auto chose %s\n", name, tp_dtype_name(job->shape.dtype),
            (long long)point->tokens, point->backward ? "backward" : "forward", job->link.bytes_per_second / 1e9,
            point->chosen);
    for (int i = 0; i < BENCH_AUTO_CHOICES; i++)
        fprintf(stderr, "  %-8s %2d %10.1f us, predicted %10.1f us%s\n",
                bench_overlap_names[bench_auto_choices[i].overlap], bench_auto_choices[i].chunks,
                point->first_round[i] * 1e6, point->predicted[i] * 1e6, i == point->best ? "  best" : "");
}

/* One layer, dtype and link: all tokens, both passes. */
static int run_case(bench_call *call, const bench_layer_shape *shape, tp_dtype dtype, const tp_link *link)
{
    const bench_list *tokens = &call->options.token_counts;
    bench_auto_point *points = calloc(MOST_POINTS, sizeof *points);
    if (points == NULL)
        return bench_fail(call, "out of memory");
    bench_auto_job job = {.call = call, .shape = *shape, .ranks = (int)call->options.ranks.value[0], .link = *link,
                          .machine = call->costs, .points = points};
    job.shape.dtype = dtype;
    if (!bench_on_gpu(call)) /* a GPU's is what was measured */
        job.machine.link = *link;
    for (int i = 0; i < tokens->count; i++)
        for (int backward = 0; backward < 2; backward++)
            points[job.count++] = (bench_auto_point){.tokens = tokens->value[i], .backward = backward == 1};
    int status = BENCH_OK;
    if (bench_auto_run(&job) != TP_OK)
        status =
            bench_fail(call, "%s, %s: %.300s", command_name(shape->command), tp_dtype_name(dtype), tp_last_message());
    for (int i = 0; i < job.count && status == BENCH_OK; i++) {
        add_row(call, &job, &points[i]);
        if (call->options.explain)
            explain(&job, &points[i]);
    }
    free(points);
    return status;
}

static int run_links(bench_call *call, const bench_layer_shape *shape, tp_dtype dtype)
{
    const bench_options *options = &call->options;
    const tp_link own = {options->link_latency, options->link_bandwidth};
    int status = BENCH_OK,
        count = options->link != NULL || bench_on_gpu(call) ? 1 : (int)(sizeof default_links / sizeof *default_links);
    for (int i = 0; i < count && status == BENCH_OK; i++)
        status = run_case(call, shape, dtype, options->link != NULL ? &own : &default_links[i]);
    return status;
}

/* Worst and median of a column's ratios; the worst of noise is the one farthest from 1. */
static void note_ratio(bench_call *call, int column, const char *what)
{
    bench_table *table = &call->table;
    double *values = calloc((size_t)table->rows + 1, sizeof *values);
    int worst = 0, within = 0;
    if (values == NULL)
        return;
    for (int row = 0; row < table->rows; row++) {
        values[row] = bench_table_cell(table, row, column)->real;
        within += values[row] <= 1.1;
        if (values[row] > bench_table_cell(table, worst, column)->real)
            worst = row;
    }
    if (table->rows > 0)
        bench_note(table, "%s: worst %.3f (row %d), median %.3f, %d of %d within 1.1", what,
                   bench_table_cell(table, worst, column)->real, worst + 1, bench_median(values, table->rows), within,
                   table->rows);
    free(values);
}

static void add_notes(bench_call *call)
{
    bench_table *table = &call->table;
    bench_note(table, "auto went by the costs of machine '%s'", call->costs.name);
    if (call->gpu.simulated)
        return;
    note_ratio(call, TO_BEST, "auto / best fixed choice");
    note_ratio(call, TO_NONE, "auto / none");
    note_ratio(call, NOISE, "noise, a second none / none");
    note_ratio(call, SURE_TO_BEST, "surely / best, the least of the passes, each by its own samples");
    note_ratio(call, SURE_TO_NONE, "surely / none, the same");
    bench_note(table,
               "every fixed choice took turns with the others, sample by sample; the best of them took turns with "
               "none, a second none and auto, in %d passes some seconds apart",
               BENCH_AUTO_PASSES);
    if (bench_on_gpu(call))
        return;
    bench_note_kept(call, KEPT, TOTAL);
    bench_note(table, "a turn is clean for all that are compared or for none; of plans whose lanes take the cores from "
                      "compute threads a switch says nothing");
}

/* The name of the second layer. */
static const char *example(const bench_call *call, char name[2 * BENCH_CELL_TEXT])
{
    name_layer(&layers_of(call).shape[1], name);
    return name;
}

/* What auto is to go by, where no file says it. */
static int find_costs(bench_call *call)
{
    bench_figure samples;
    if (call->options.machine_file != NULL)
        return BENCH_OK;
    if (call->gpu.simulated) {
        tp_machine_default_of(TP_DEVICE_CUDA, &call->costs);
        return BENCH_OK;
    }
    fputs("tp_bench auto: calibrating, about 30 s; --machine FILE skips it\n", stderr);
    return bench_calibrate(call, (int)call->options.ranks.value[0], &call->costs, &samples);
}

static int check_options(bench_call *call)
{
    bench_options *options = &call->options;
    int status = bench_check_parallel(call);
    if (status != BENCH_OK)
        return status;
    bool gpu = bench_on_gpu(call);
    bench_list_default(&options->ranks, 1, (const int64_t[]){gpu && options->devices > 2 ? options->devices : 2});
    bench_list_default(&options->dtypes, 2, (const int64_t[]){TP_DTYPE_F32, TP_DTYPE_BF16});
    if (call->gpu.simulated)
        bench_list_default(&options->token_counts, 1, (const int64_t[]){9});
    else if (gpu)
        bench_list_default(&options->token_counts, 3, (const int64_t[]){256, 1024, 4096});
    else
        bench_list_default(&options->token_counts, 3, (const int64_t[]){40, 200, 520});
    options->samples = options->samples > 0 ? options->samples : 100;
    options->warmup = options->warmup > 0 ? options->warmup : 1;
    options->seconds = options->seconds > 0 ? options->seconds : 0.08;
    char name[2 * BENCH_CELL_TEXT];
    if (options->ranks.count != 1 || options->ranks.value[0] < 2 || options->ranks.value[0] > 8)
        return bench_refuse(call, "--ranks: auto is measured on one number of ranks, 2 to 8");
    if (!any_wanted(call))
        return bench_refuse(call, "--only: '%.80s' is in no layer's name; one of them is '%s'", options->only,
                            example(call, name));
    if (call->gpu.simulated && options->explain)
        return bench_refuse(call, "--explain: shows times, and a simulated GPU's time is no speed");
    return BENCH_OK;
}

int bench_command_auto(bench_call *call)
{
    const bench_options *options = &call->options;
    int status = check_options(call);
    if (status == BENCH_OK)
        status = find_costs(call);
    if (status != BENCH_OK)
        return status;
    bench_begin(call, columns, COLUMNS);
    bench_hide_times(call, BENCH_BITS(NONE, SURE_TO_NONE));
    const layer_list layers = layers_of(call);
    snprintf(call->table.title, sizeof call->table.title,
             "the overlap that auto chooses against the best fixed choice and against none");
    for (int i = 0; i < options->dtypes.count; i++)
        for (int layer = 0; layer < layers.count && status == BENCH_OK; layer++)
            if (is_wanted(call, &layers.shape[layer]))
                status = run_links(call, &layers.shape[layer], (tp_dtype)options->dtypes.value[i]);
    add_notes(call);
    return status;
}
