/* One algorithm in one pass of one layer: checked, then measured in turns with its parts alone and with `none`. */
#include "alone_case.h"
#include "overlap.h"

#include "core/context.h"

#include <math.h>

double bench_hidden(double compute, double comm, double fused)
{
    double shorter = compute < comm ? compute : comm;
    if (comm < 1e-6 || comm < 0.01 * fused)
        return NAN; /* of next to nothing no share can be told */
    return shorter > 0 ? (compute + comm - fused) / shorter : NAN;
}

double bench_hidden_bound(tp_overlap overlap, tp_pattern pattern, int chunks)
{
    bool pipeline = overlap == TP_OVERLAP_PIPELINE,
         chunked = overlap == TP_OVERLAP_RING || overlap == TP_OVERLAP_PULL || pipeline;
    if (!chunked || chunks < 1)
        return NAN;
    switch (pattern) {
    case TP_PATTERN_GATHER_GEMM:
    case TP_PATTERN_GEMM_SCATTER: return pipeline ? 1 - 1.0 / chunks : 1 - 0.5 / chunks;
    case TP_PATTERN_ROW_BACKWARD:
        return pipeline ? 0.5 - 0.5 / chunks : 1 - 0.75 / chunks; /* the former: one GEMM of two */
    case TP_PATTERN_CHAIN: return pipeline ? 1 - 1.0 / chunks : chunks > 1 ? 1 : 0.5;
    case TP_PATTERN_BACKWARD:
    case TP_PATTERN_CHAIN_BACKWARD: return 1;
    default: return NAN;
    }
}

int bench_chunks_of(tp_overlap overlap, int ranks, int chunks)
{
    const tp_plan_desc desc = {.algorithm = overlap, .pattern = TP_PATTERN_CHAIN, .ranks = ranks, .chunks = chunks};
    tp_plan *plan = NULL;
    if (overlap == TP_OVERLAP_AUTO || tp_plan_create(&desc, &plan) != TP_OK)
        return chunks;
    int made = plan->chunks;
    tp_plan_destroy(plan);
    return made;
}

/* One rank's layers. */
typedef struct rank_case {
    bench_layer plain, fused; /* with `none`, and with the algorithm */
    /* What GEMMs and transfers alone work on: whose weights were used by the part before has them in the cache. */
    bench_layer lone;
    bench_alone alone;
} rank_case;

static tp_status open_case(const bench_overlap_job *job, tp_ctx *ctx, rank_case *c)
{
    bench_layer_shape plain = job->shape;
    plain.overlap = TP_OVERLAP_NONE;
    plain.chunks = 0;
    TPI_TRY(bench_layer_open(&c->plain, ctx, &plain));
    if (!job->compute_only)
        TPI_TRY(bench_layer_open(&c->fused, ctx, &job->shape));
    TPI_TRY(bench_layer_open(&c->lone, ctx, &plain));
    TPI_TRY(bench_layer_forward(&c->lone));
    return bench_alone_open(&c->alone, &c->lone, job->backward);
}

static void close_case(rank_case *c)
{
    bench_alone_close(&c->alone);
    bench_layer_close(&c->lone);
    bench_layer_close(&c->fused);
    bench_layer_close(&c->plain);
}

/* Compares a layer's results with a reference, or makes them the reference if there is none yet; different: on all
 * ranks. */
static tp_status meet_reference(bench_overlap_job *job, tp_ctx *ctx, bench_layer *layer,
                                bench_layer_reference *reference, double *different)
{
    bool root = tp_ctx_rank(ctx) == 0;
    double missing = 0;
    if (root && reference->y == NULL && !bench_layer_reference_open(reference, layer))
        missing = 1;
    TPI_TRY(bench_team_sum(&job->team, ctx, missing, &missing));
    if (missing > 0)
        return TP_ERR_MEMORY;
    int64_t here = 0;
    double all = 0;
    TPI_TRY(bench_layer_compare(layer, reference, &here));
    TPI_TRY(bench_team_sum(&job->team, ctx, (double)here, &all));
    if (root) {
        *different = all;
        reference->ready = true;
    }
    return bench_team_sum(&job->team, ctx, 0, &all);
}

static tp_status check(bench_overlap_job *job, tp_ctx *ctx, rank_case *c)
{
    if (job->reference == NULL)
        return TP_OK;
    TPI_TRY(meet_reference(job, ctx, &c->plain, job->reference, &job->figures->from_first));
    if (job->compute_only)
        return TP_OK;
    double unused;
    TPI_TRY(meet_reference(job, ctx, &c->plain, &job->plain, &unused));
    return meet_reference(job, ctx, &c->fused, &job->plain, &job->figures->different);
}

/* One more pass, of which rank 0 notes what its plans work on, to simulate them. */
static tp_status simulate(bench_overlap_job *job, tp_ctx *ctx, tp_status (*pass)(void *), bench_layer *layer)
{
    struct tpi_executor *executor = ctx->executor;
    bool root = tp_ctx_rank(ctx) == 0 && executor != NULL;
    if (root) {
        job->figures->simulated = NAN;
        executor->notes = job->notes;
        executor->note_capacity = BENCH_OVERLAP_NOTES;
    }
    tp_status status = pass(layer);
    if (!root)
        return status;
    job->noted = executor->noted;
    executor->notes = NULL;
    executor->noted = 0;
    return status == TP_OK ? bench_overlap_simulate(job, &job->figures->simulated) : status;
}

static tp_status measure(bench_overlap_job *job, tp_ctx *ctx, rank_case *c)
{
    const bench_options *options = &job->call->options;
    bench_team_plan plan = {
        .warmup = (int)options->warmup, .least = 3, .most = (int)options->samples, .seconds = options->seconds};
    tp_status (*pass)(void *) = job->backward ? bench_layer_backward : bench_layer_forward;
    const bench_team_part parts[] = {{bench_alone_compute, &c->alone, &job->figures->compute, false},
                                     {bench_alone_comm, &c->alone, &job->figures->comm, false},
                                     {pass, &c->plain, &job->figures->none, false},
                                     {pass, &c->fused, &job->figures->fused, job->shape.overlap != TP_OVERLAP_NONE}};
    TPI_TRY(bench_layer_forward(&c->plain));
    TPI_TRY(bench_alone_comm(&c->alone));
    if (tp_ctx_rank(ctx) == 0)
        job->figures->moved = c->alone.moved;
    if (job->compute_only)
        return bench_team_compare(&job->team, ctx, &plan, parts, 1);
    TPI_TRY(bench_layer_forward(&c->fused));
    TPI_TRY(bench_team_compare(&job->team, ctx, &plan, parts, 4));
    if (job->machine.gemm[TP_DTYPE_F32].points > 0)
        TPI_TRY(simulate(job, ctx, pass, &c->fused));
    return job->trace != NULL ? bench_trace_run(job->trace, ctx, pass, &c->fused) : TP_OK;
}

static tp_status rank_main(tp_ctx *ctx, void *arg)
{
    bench_overlap_job *job = arg;
    rank_case c = {0};
    tp_status status = open_case(job, ctx, &c);
    if (status == TP_OK)
        status = check(job, ctx, &c);
    bool explains =
        job->call->options.explain && job->shape.overlap == TP_OVERLAP_AUTO && !job->backward && !job->compute_only;
    if (status == TP_OK && explains && tp_ctx_rank(ctx) == 0) /* the layers' choices for both passes are made when they
                                                               * are */
        status = bench_overlap_explain(job, ctx);
    if (status == TP_OK)
        status = measure(job, ctx, &c);
    close_case(&c);
    return status;
}

tp_status bench_overlap_run(bench_overlap_job *job)
{
    tp_run_options start = bench_run_options(job->call, job->ranks, bench_threads_for(job->call, job->ranks));
    start.link = job->link;
    bench_team_begin(job->call, &job->team, job->ranks);
    if (job->trace != NULL)
        job->trace->ranks = job->ranks;
    tp_status status = tp_run_ranks(&start, rank_main, job);
    bench_layer_reference_close(&job->plain);
    return status;
}
