#include "plan_run.h"

#include "core/context.h"
#include "plan/auto.h"

#include <stdlib.h>
#include <string.h>

#define WARMUP 2
#define MAX_RUNS 64

/* What all ranks of a run share. */
typedef struct shared_run {
    const bench_plan_case *c;
    const tp_plan *plan;
    tp_timeline *timeline; /* rank 0 makes it */
    int64_t capacity;      /* spans a rank */
    tp_trace_span *span[TP_PLAN_MAX_RANKS];
    int64_t count[TP_PLAN_MAX_RANKS];
} shared_run;

/* One rank's layer and tensors. */
typedef struct rank_run {
    tp_ctx *ctx;
    const bench_plan_case *c;
    tp_linear *linear;
    tp_mlp *mlp;
    tp_pass pass;
    tp_io io, back;
    tp_linear_saved saved;
    tp_mlp_saved mlp_saved;
    void *memory;
    size_t bytes;
} rank_run;

/* Of a linear layer. */
static bool is_backward(tp_pattern pattern)
{
    return pattern == TP_PATTERN_BACKWARD || pattern == TP_PATTERN_BACKWARD_REDUCE ||
           pattern == TP_PATTERN_ROW_BACKWARD;
}

static bool is_chain_backward(tp_pattern pattern)
{
    return pattern == TP_PATTERN_CHAIN_BACKWARD || pattern == TP_PATTERN_CHAIN_BACKWARD_REDUCE;
}

static bool is_sequence_parallel(tp_pattern pattern)
{
    return pattern == TP_PATTERN_GATHER_GEMM || pattern == TP_PATTERN_GEMM_SCATTER || pattern == TP_PATTERN_BACKWARD ||
           pattern == TP_PATTERN_ROW_BACKWARD || pattern == TP_PATTERN_CHAIN || pattern == TP_PATTERN_CHAIN_BACKWARD;
}

static bool is_feed_forward(tp_pattern pattern)
{
    return pattern == TP_PATTERN_CHAIN || pattern == TP_PATTERN_CHAIN_REDUCE || is_chain_backward(pattern);
}

static bool is_column(tp_pattern pattern)
{
    return pattern == TP_PATTERN_GATHER_GEMM || pattern == TP_PATTERN_BACKWARD || pattern == TP_PATTERN_BACKWARD_REDUCE;
}

bool bench_plan_has_layer(tp_overlap algorithm, tp_pattern pattern)
{
    bool several = is_backward(pattern) || is_feed_forward(pattern);
    if (pattern == TP_PATTERN_ROW_BACKWARD && algorithm == TP_OVERLAP_PIPELINE)
        return false; /* the layer has its rows cut then, one gradient after the other */
    return several ? algorithm != TP_OVERLAP_NONE
                   : pattern == TP_PATTERN_GATHER_GEMM || pattern == TP_PATTERN_GEMM_SCATTER ||
                         pattern == TP_PATTERN_GEMM_REDUCE;
}

/* A backward GEMM of rows x cols x inner is that of a layer with cols features in and inner out, of which each rank has
 * all or its share. */
static tp_status make_layer(rank_run *r)
{
    const bench_plan_case *c = r->c;
    tp_pattern pattern = c->desc.pattern;
    int64_t ranks = c->desc.ranks;
    if (is_feed_forward(pattern)) {
        tp_mlp_desc mlp = {.name = "run", .hidden = c->inner, .ffn = c->cols * ranks, .activation = TP_ACTIVATION_RELU,
                           .dtype = c->dtype};
        mlp.sequence_parallel = is_sequence_parallel(pattern);
        mlp.overlap = c->desc.algorithm;
        mlp.chunks = c->desc.chunks;
        return tp_mlp_create(r->ctx, &mlp, &r->mlp);
    }
    bool column = is_column(pattern);
    int64_t in = is_backward(pattern) ? c->cols : c->inner, out = is_backward(pattern) ? c->inner : c->cols;
    tp_linear_desc linear = {.name = "run", .kind = column ? TP_LINEAR_COLUMN : TP_LINEAR_ROW, .dtype = c->dtype};
    linear.in_features = column ? in : in * ranks;
    linear.out_features = column ? out * ranks : out;
    linear.sequence_parallel = is_sequence_parallel(pattern);
    linear.overlap = c->desc.algorithm;
    linear.chunks = c->desc.chunks;
    return tp_linear_create(r->ctx, &linear, &r->linear);
}

static tp_tensor take(rank_run *r, size_t *used, int64_t rows, int64_t cols)
{
    tp_tensor tensor = tp_tensor_2d(r->memory != NULL ? (char *)r->memory + *used : NULL, r->c->dtype, rows, cols);
    *used += (tp_tensor_bytes(tensor) + 63) / 64 * 64;
    return tensor;
}

static size_t take_saved(rank_run *r, size_t used)
{
    r->mlp_saved.bytes = tp_mlp_saved_bytes(r->mlp, &r->pass);
    r->mlp_saved.memory = r->memory != NULL ? (char *)r->memory + used : NULL;
    return used + r->mlp_saved.bytes;
}

/* Rows of the side that is cut by tokens under sequence parallelism, or all. */
static size_t place_tensors(rank_run *r)
{
    const bench_plan_case *c = r->c;
    tp_pattern pattern = c->desc.pattern;
    tp_range mine = tp_pass_rows(r->ctx, &r->pass, is_sequence_parallel(pattern));
    int64_t own = mine.end - mine.begin, all = c->rows, before = is_column(pattern) ? own : all,
            after = is_column(pattern) ? all : own;
    size_t used = 0;
    if (is_feed_forward(pattern)) {
        r->io = (tp_io){.in = take(r, &used, own, c->inner), .out = take(r, &used, own, c->inner)};
        r->back = (tp_io){.in = take(r, &used, own, c->inner), .out = take(r, &used, own, c->inner)};
        return take_saved(r, used);
    }
    if (is_backward(pattern)) {
        r->io = (tp_io){.in = take(r, &used, before, c->cols), .out = take(r, &used, after, c->inner)};
        r->back = (tp_io){.in = take(r, &used, after, c->inner), .out = take(r, &used, before, c->cols)};
    } else {
        r->io = (tp_io){.in = take(r, &used, before, c->inner), .out = take(r, &used, after, c->cols)};
    }
    return used;
}

static tp_status forward_once(rank_run *r, bool saves)
{
    if (r->mlp != NULL)
        return tp_mlp_forward(r->ctx, r->mlp, &r->pass, &r->io, saves ? &r->mlp_saved : NULL);
    return tp_linear_forward(r->ctx, r->linear, &r->pass, &r->io, saves ? &r->saved : NULL);
}

static tp_status run_once(rank_run *r)
{
    tp_status status = tp_barrier(r->ctx, tp_ctx_world(r->ctx));
    if (status != TP_OK)
        return status;
    bool backward = is_backward(r->c->desc.pattern) || is_chain_backward(r->c->desc.pattern);
    status = forward_once(r, backward);
    if (status != TP_OK || !backward)
        return status;
    status = tp_barrier(r->ctx, tp_ctx_world(r->ctx));
    if (status != TP_OK)
        return status;
    return r->mlp != NULL ? tp_mlp_backward(r->ctx, r->mlp, &r->pass, &r->back, &r->mlp_saved)
                          : tp_linear_backward(r->ctx, r->linear, &r->pass, &r->back, &r->saved);
}

static tp_status run_all(rank_run *r, shared_run *shared)
{
    int rank = tp_ctx_rank(r->ctx);
    tp_status status = make_layer(r);
    if (status != TP_OK)
        return status;
    r->bytes = place_tensors(r) + 64;
    status = tp_ctx_allocate(r->ctx, TP_MEMORY_OTHER, r->bytes, &r->memory);
    if (status != TP_OK)
        return status;
    memset(r->memory, 0, r->bytes);
    place_tensors(r);
    status = tp_trace_begin(r->ctx, shared->span[rank], shared->capacity);
    for (int i = 0; i < WARMUP + r->c->runs && status == TP_OK; i++)
        status = run_once(r);
    tp_status ended = tp_trace_end(r->ctx, &shared->count[rank]);
    return status == TP_OK ? ended : status;
}

static int by_seconds(const void *a, const void *b)
{
    double left = (*(tp_timeline *const *)a)->seconds, right = (*(tp_timeline *const *)b)->seconds;
    return (left > right) - (left < right);
}

/* Timelines of all runs; the median one stays. */
static tp_status pick_median(const shared_run *shared, tp_timeline **out)
{
    tp_timeline *timeline[MAX_RUNS];
    int count = 0;
    tp_status status = TP_OK;
    for (int i = 0; i < shared->c->runs && status == TP_OK; i++) {
        status = tp_timeline_from_trace(shared->plan, (const tp_trace_span *const *)shared->span, shared->count,
                                        WARMUP + i, &timeline[count]);
        count += status == TP_OK;
    }
    if (count > 1)
        qsort(timeline, (size_t)count, sizeof *timeline, by_seconds);
    for (int i = 0; i < count; i++)
        if (status != TP_OK || i != count / 2)
            tp_timeline_destroy(timeline[i]);
    if (status == TP_OK)
        *out = timeline[count / 2];
    return status;
}

static tp_status rank_main(tp_ctx *ctx, void *arg)
{
    shared_run *shared = arg;
    rank_run r = {.ctx = ctx, .c = shared->c, .pass = {.tokens = shared->c->rows}};
    ctx->pulling = tpi_plan_uses_lanes(shared->plan) ? TPI_PULL_ON_LANE : TPI_PULL_INLINE; /* the plan as it is */
    tp_status status = run_all(&r, shared);
    /* What was recorded names plans that live as long as their contexts. */
    if (status == TP_OK)
        status = tp_barrier(ctx, tp_ctx_world(ctx));
    if (status == TP_OK && tp_ctx_rank(ctx) == 0)
        status = pick_median(shared, &shared->timeline);
    if (status == TP_OK)
        status = tp_barrier(ctx, tp_ctx_world(ctx));
    if (r.memory != NULL)
        tp_ctx_release(ctx, TP_MEMORY_OTHER, r.memory, r.bytes);
    tp_linear_destroy(r.linear);
    tp_mlp_destroy(r.mlp);
    return status;
}

bool bench_plan_run(const bench_plan_case *c, const tp_plan *plan, tp_timeline **out, char message[BENCH_MESSAGE])
{
    shared_run shared = {.c = c, .plan = plan};
    int ops = 0;
    for (int rank = 0; rank < plan->ranks; rank++)
        ops = plan->rank[rank].count > ops ? plan->rank[rank].count : ops;
    shared.capacity = (int64_t)(WARMUP + c->runs) * (2 * ops + 64);
    tp_trace_span *spans = calloc((size_t)(shared.capacity * plan->ranks), sizeof *spans);
    if (spans == NULL || c->runs < 1 || c->runs > MAX_RUNS) {
        free(spans);
        return bench_say(message, "%d runs can't be recorded", c->runs);
    }
    for (int rank = 0; rank < plan->ranks; rank++)
        shared.span[rank] = spans + shared.capacity * rank;
    tp_run_options start = {
        .ranks = plan->ranks, .bind_cores = true, .ctx = {.version = TP_VERSION, .threads = 1}, .link = c->link};
    tp_status status = tp_run_ranks(&start, rank_main, &shared);
    free(spans);
    *out = shared.timeline;
    return status == TP_OK || bench_say(message, "%s: %s", tp_status_name(status), tp_last_message());
}
