#include "auto_case.h"

#include "core/context.h"
#include "plan/auto.h"
#include "plan/execute_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const bench_auto_choice bench_auto_choices[BENCH_AUTO_CHOICES] = {
    {TP_OVERLAP_NONE, 1},     {TP_OVERLAP_BULK, 1},     {TP_OVERLAP_DIRECT, 1},   {TP_OVERLAP_PULL, 1},
    {TP_OVERLAP_PULL, 2},     {TP_OVERLAP_PULL, 4},     {TP_OVERLAP_PULL, 8},     {TP_OVERLAP_PULL, 16},
    {TP_OVERLAP_RING, 2},     {TP_OVERLAP_RING, 4},     {TP_OVERLAP_RING, 8},     {TP_OVERLAP_RING, 16},
    {TP_OVERLAP_PIPELINE, 2}, {TP_OVERLAP_PIPELINE, 4}, {TP_OVERLAP_PIPELINE, 8}, {TP_OVERLAP_PIPELINE, 16},
};

/* The layers of one rank: of each choice, of none again, of AUTO. */
enum { AGAIN = BENCH_AUTO_CHOICES, AUTOMATIC, LAYERS };

#define RUN_NOTES 256

/* At least so many of each: where lanes share cores, some take half as long again, and a few such move the median of
 * few. */
enum { FIRST_SAMPLES = 5, SECOND_SAMPLES = 21 };

typedef struct auto_rank {
    bench_layer layer[LAYERS];
    tpi_run_note note[RUN_NOTES];
} auto_rank;

static tp_status open_layers(const bench_auto_job *job, tp_ctx *ctx, auto_rank *r)
{
    for (int i = 0; i < LAYERS; i++) {
        bench_layer_shape shape = job->shape;
        shape.batch = 1;
        shape.sequence = 1;
        shape.any_values = true;
        shape.overlap = i < AGAIN ? bench_auto_choices[i].overlap : i == AUTOMATIC ? TP_OVERLAP_AUTO : TP_OVERLAP_NONE;
        shape.chunks = i < AGAIN ? bench_auto_choices[i].chunks : 0;
        TPI_TRY(bench_layer_open(&r->layer[i], ctx, &shape));
    }
    return TP_OK;
}

/* New buffers, and a forward pass for the backward ones. */
static tp_status set_tokens(auto_rank *r, int layer, int64_t tokens)
{
    TPI_TRY(bench_layer_reshape(&r->layer[layer], 1, tokens));
    return bench_layer_forward(&r->layer[layer]);
}

/* Appends "pull 8", after a semicolon if there is something. Bulk overlaps nothing in forward: its plan is none's. */
static void add_name(char text[BENCH_CELL_TEXT], const tp_plan *plan, bool backward)
{
    size_t used = strlen(text);
    bool nothing = plan->algorithm == TP_OVERLAP_BULK && !backward;
    const char *name = tp_overlap_name(nothing ? TP_OVERLAP_NONE : (tp_overlap)plan->algorithm);
    if (plan->algorithm == TP_OVERLAP_NONE || plan->algorithm == TP_OVERLAP_BULK)
        snprintf(text + used, BENCH_CELL_TEXT - used, "%s%s", used > 0 ? "; " : "", name);
    else
        snprintf(text + used, BENCH_CELL_TEXT - used, "%s%s %d", used > 0 ? "; " : "", name, plan->chunks);
}

/* The prediction for a fixed choice; an algorithm that is no candidate runs as none. */
static double predicted_for(const tp_overlap_choice *made, const bench_auto_choice *fixed)
{
    for (int i = 0; i < made->candidates; i++)
        if (made->candidate[i].algorithm == fixed->overlap && made->candidate[i].chunks == fixed->chunks)
            return made->candidate[i].seconds;
    return made->candidate[0].seconds;
}

/* Adds the predictions for the place in the layer that ran this plan. */
static tp_status predict(const bench_auto_job *job, tp_ctx *ctx, const tp_plan *plan, bench_auto_point *point)
{
    for (const tpi_auto *place = ctx->executor->autos; place != NULL; place = place->next)
        for (int i = 0; i < place->table.classes; i++) {
            if (tpi_prepared_plan(place->plan[i]) != plan || place->table.entry[i].rows < point->tokens)
                continue;
            tp_overlap_shape shape = place->shape;
            tp_overlap_choice made;
            shape.rows = point->tokens;
            TPI_TRY(tp_overlap_choose(&job->machine, &shape, &made));
            for (int c = 0; c < BENCH_AUTO_CHOICES; c++)
                point->predicted[c] += predicted_for(&made, &bench_auto_choices[c]);
            point->predicted_auto +=
                predicted_for(&made, &(bench_auto_choice){(tp_overlap)plan->algorithm, plan->chunks});
            return TP_OK;
        }
    return TP_OK;
}

/* What a layer runs, noted in one pass: its plans with peers, in order, runs of the same one once; whether they have
 * lanes; and what is predicted for them, if it is AUTO's. */
static tp_status name_plans(const bench_auto_job *job, auto_rank *r, tp_ctx *ctx, int layer, bench_auto_point *point,
                            char text[BENCH_CELL_TEXT])
{
    struct tpi_executor *executor = ctx->executor;
    executor->notes = r->note;
    executor->note_capacity = RUN_NOTES;
    tp_status status = point->backward ? bench_layer_backward(&r->layer[layer]) : bench_layer_forward(&r->layer[layer]);
    int count = executor->noted;
    executor->notes = NULL;
    executor->noted = 0;
    TPI_TRY(status);
    TPI_TRY(tp_ctx_synchronize(ctx));
    if (tp_ctx_rank(ctx) > 0)
        return TP_OK;
    bool *lanes = &point->lanes[layer == AUTOMATIC ? BENCH_AUTO_AUTO : BENCH_AUTO_FIXED];
    const tp_plan *last = NULL;
    for (int i = 0; i < count; i++)
        *lanes = *lanes || tpi_plan_uses_lanes(r->note[i].plan);
    for (int i = 0; i < count; i++) {
        if (r->note[i].plan == last || r->note[i].plan->ranks == 1)
            continue;
        last = r->note[i].plan;
        add_name(text, last, point->backward);
        if (layer == AUTOMATIC)
            TPI_TRY(predict(job, ctx, last, point));
    }
    return TP_OK;
}

static int find_best(const bench_auto_point *point)
{
    int best = 0;
    for (int i = 1; i < BENCH_AUTO_CHOICES; i++)
        if (point->first_round[i] < point->first_round[best])
            best = i;
    return best;
}

static int layer_of(const bench_auto_point *point, int part)
{
    static const int layers[BENCH_AUTO_PARTS] = {0, AUTOMATIC, AGAIN};
    return part == BENCH_AUTO_FIXED ? point->best : layers[part];
}

/* No layer twice: it would find its weights in the cache when it comes after itself. And no plan twice: two runs of one
 * differ by noise alone. */
static int count_parts(const bench_auto_point *point)
{
    return point->best == 0 || point->same ? BENCH_AUTO_FIXED : BENCH_AUTO_PARTS;
}

/* The part whose samples are those of the best fixed choice. */
static int measured_as_fixed(const bench_auto_point *point)
{
    if (count_parts(point) == BENCH_AUTO_PARTS)
        return BENCH_AUTO_FIXED;
    return point->same ? BENCH_AUTO_AUTO : BENCH_AUTO_NONE;
}

static tp_status first_round(bench_auto_job *job, tp_ctx *ctx, auto_rank *r, bench_auto_point *point)
{
    const bench_options *options = &job->call->options;
    const bench_team_plan plan = {.warmup = (int)options->warmup,
                                  .least = FIRST_SAMPLES,
                                  .most = (int)options->samples,
                                  .seconds = options->seconds / 4};
    bench_team_figure figure[BENCH_AUTO_CHOICES];
    bench_team_part parts[BENCH_AUTO_CHOICES];
    for (int i = 0; i < BENCH_AUTO_CHOICES; i++)
        parts[i] = (bench_team_part){point->backward ? bench_layer_backward : bench_layer_forward, &r->layer[i],
                                     &figure[i], true};
    TPI_TRY(bench_team_compare(&job->team, ctx, &plan, parts, BENCH_AUTO_CHOICES));
    if (tp_ctx_rank(ctx) == 0) {
        for (int i = 0; i < BENCH_AUTO_CHOICES; i++)
            point->first_round[i] = figure[i].figure.seconds;
        point->best = find_best(point);
    }
    TPI_TRY(tp_barrier(ctx, tp_ctx_world(ctx))); /* all ranks see the best */
    char best[BENCH_CELL_TEXT] = "";
    TPI_TRY(name_plans(job, r, ctx, point->best, point, best));
    if (tp_ctx_rank(ctx) == 0)
        point->same = strcmp(best, point->chosen) == 0;
    return tp_barrier(ctx, tp_ctx_world(ctx));
}

/* One more pass of the second round: its samples join those of the passes before it. */
static tp_status second_round(bench_auto_job *job, tp_ctx *ctx, auto_rank *r, bench_auto_point *point, int pass)
{
    const bench_options *options = &job->call->options;
    const double share = (double)BENCH_AUTO_LONGER * (pass + 1) / BENCH_AUTO_PASSES;
    bench_figure alone[BENCH_AUTO_PARTS];
    const bench_team_plan plan = {.warmup = (int)options->warmup,
                                  .least = SECOND_SAMPLES * (pass + 1) / BENCH_AUTO_PASSES,
                                  .most = (int)(share * (double)options->samples),
                                  .seconds = share * options->seconds,
                                  .notes = point->notes,
                                  .alone = alone,
                                  .together = true};
    bench_team_figure *figures[BENCH_AUTO_PARTS] = {&point->none, &point->automatic, &point->again, &point->fixed};
    bench_team_part parts[BENCH_AUTO_PARTS];
    for (int i = 0; i < BENCH_AUTO_PARTS; i++)
        parts[i] = (bench_team_part){point->backward ? bench_layer_backward : bench_layer_forward,
                                     &r->layer[layer_of(point, i)], figures[i], point->lanes[i]};
    TPI_TRY(bench_team_compare(&job->team, ctx, &plan, parts, count_parts(point)));
    if (tp_ctx_rank(ctx) > 0)
        return TP_OK;
    point->to_fixed[pass] = alone[BENCH_AUTO_AUTO].seconds / alone[measured_as_fixed(point)].seconds;
    point->to_none[pass] = alone[BENCH_AUTO_AUTO].seconds / alone[BENCH_AUTO_NONE].seconds;
    return TP_OK;
}

/* What was measured once counts twice. */
static void share_figures(bench_auto_point *point)
{
    int part = measured_as_fixed(point);
    if (part != BENCH_AUTO_FIXED)
        point->fixed = part == BENCH_AUTO_AUTO ? point->automatic : point->none;
}

static void tell(const bench_auto_job *job, const tp_ctx *ctx, const bench_auto_point *point)
{
    if (tp_ctx_rank(ctx) == 0)
        bench_progress("auto: %s, %lld tokens, %s", tp_dtype_name(job->shape.dtype), (long long)point->tokens,
                       point->backward ? "backward" : "forward");
}

static tp_status find_all(bench_auto_job *job, tp_ctx *ctx, auto_rank *r)
{
    for (int i = 0; i < job->count; i++) {
        bench_auto_point *point = &job->points[i];
        tell(job, ctx, point);
        for (int layer = 0; layer < LAYERS && (i == 0 || point->tokens != job->points[i - 1].tokens); layer++)
            TPI_TRY(set_tokens(r, layer, point->tokens));
        TPI_TRY(name_plans(job, r, ctx, AUTOMATIC, point, point->chosen));
        TPI_TRY(first_round(job, ctx, r, point));
    }
    return TP_OK;
}

/* All points once, then all again: what the machine does for some seconds falls on no point alone. */
static tp_status compare_all(bench_auto_job *job, tp_ctx *ctx, auto_rank *r)
{
    for (int pass = 0; pass < (job->team.untimed ? 1 : BENCH_AUTO_PASSES); pass++)
        for (int i = 0; i < job->count; i++) {
            bench_auto_point *point = &job->points[i];
            tell(job, ctx, point);
            for (int part = 0; part < count_parts(point); part++)
                TPI_TRY(set_tokens(r, layer_of(point, part), point->tokens));
            TPI_TRY(second_round(job, ctx, r, point, pass));
        }
    for (int i = 0; i < job->count && tp_ctx_rank(ctx) == 0; i++)
        share_figures(&job->points[i]);
    return TP_OK;
}

static tp_status rank_main(tp_ctx *ctx, void *arg)
{
    bench_auto_job *job = arg;
    auto_rank *r = calloc(1, sizeof *r);
    double missing = r == NULL;
    tp_status status = bench_team_sum(&job->team, ctx, missing, &missing);
    if (status == TP_OK && missing > 0)
        status = TP_ERR_MEMORY;
    if (status == TP_OK)
        status = open_layers(job, ctx, r);
    if (status == TP_OK)
        status = find_all(job, ctx, r);
    if (status == TP_OK)
        status = compare_all(job, ctx, r);
    for (int i = 0; i < LAYERS && r != NULL; i++)
        bench_layer_close(&r->layer[i]);
    free(r);
    return status;
}

tp_status bench_auto_run(bench_auto_job *job)
{
    tp_run_options start = bench_run_options(job->call, job->ranks, bench_threads_for(job->call, job->ranks));
    start.link = job->link;
    start.ctx.machine = &job->machine;
    bench_team_notes *notes = calloc((size_t)job->count * BENCH_AUTO_PARTS, sizeof *notes);
    if (notes == NULL)
        return TP_ERR_MEMORY;
    for (int i = 0; i < job->count; i++)
        job->points[i].notes = &notes[i * BENCH_AUTO_PARTS];
    bench_team_begin(job->call, &job->team, job->ranks);
    tp_status status = tp_run_ranks(&start, rank_main, job);
    free(notes);
    return status;
}
