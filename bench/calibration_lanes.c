/* What a lane's start, its ops and its collectives cost where lanes share cores with compute. */
#include "calibration_worker.h"

#include "core/context.h"

#include <math.h>

enum { OUT = BENCH_CALIBRATION_OUT, IN = BENCH_CALIBRATION_IN };

#ifdef BENCH_SANITIZED /* its times mean nothing */
#define LANE_REPEATS 2
#define LANE_MOST 3
#define LANE_LEAST 1
#else
#define LANE_REPEATS 9
#define LANE_MOST 45
#define LANE_LEAST 3
#endif
#define INTERRUPTS 0.5 /* of its product's time, that a collective takes at most where its lane interrupts compute */
enum { LINK_CHUNKS = 4, LINK_GEMM_ROWS = 32 };
/* Of a product's time, a chunk on the link: it arrives when it is about to be waited for, as with the chunk counts that
 * are worth it. A lane that runs far ahead does several ops each time it has the core. */
#define LINK_SHARE 0.9

static tp_status issue_gemm(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    (void)stream;
    (void)op;
    return bench_calibration_run_gemm(tpi_run_job(run)->user);
}

/* A plan whose chunks cross the link while products run, one a chunk. */
static tp_status run_plan(void *arg)
{
    static const tpi_plan_table table = {.issue = {[TP_OP_GEMM] = issue_gemm}};
    bench_cpu_worker *w = arg;
    int64_t own = w->chunks * LINK_ROWS;
    tpi_job job = {.table = &table, .user = w, .tokens = own * w->base.ranks};
    job.view[TP_BUFFER_INPUT] = (tpi_view){w->base.in, TP_DTYPE_F32, w->cols, w->cols, own * w->base.rank};
    job.view[TP_BUFFER_GATHERED] = (tpi_view){w->base.out, TP_DTYPE_F32, w->cols, w->cols, 0};
    job.view[TP_BUFFER_OUTPUT] = job.view[TP_BUFFER_GATHERED];
    return tpi_plan_run(w->plan, &job);
}

static tp_status run_pull(void *arg)
{
    bench_cpu_worker *w = arg;
    w->plan = w->pull;
    return run_plan(w);
}

static tp_status run_direct(void *arg)
{
    bench_cpu_worker *w = arg;
    w->plan = w->direct;
    return run_plan(w);
}

static tp_status run_pipeline(void *arg)
{
    bench_cpu_worker *w = arg;
    w->plan = w->pipeline;
    return run_plan(w);
}

/* What collectives of chunks take longer than their products: the first one crosses alone, the rest beside products. */
static tp_status time_pipeline(bench_cpu_worker *w, int chunks, double *more, double *one_product)
{
    const tp_plan_desc desc = {
        .algorithm = TP_OVERLAP_PIPELINE, .pattern = TP_PATTERN_GATHER_GEMM, .ranks = w->base.ranks, .chunks = chunks};
    bench_team_figure with = {.figure = {0}}, product = {.figure = {0}};
    const bench_team_part parts[] = {{run_pipeline, w, &with, true}, {bench_calibration_run_gemm, w, &product, true}};
    const bench_team_plan plan = {.warmup = 2, .least = 15, .most = 201, .seconds = 0.1};
    w->chunks = chunks;
    tp_status status = tpi_plan_get(w->base.ctx, tp_ctx_world(w->base.ctx), &desc, &w->pipeline);
    if (status == TP_OK)
        status = bench_team_compare(&w->base.all->team, w->base.ctx, &plan, parts, 2);
    *one_product = product.figure.seconds;
    *more = with.figure.seconds - chunks * product.figure.seconds;
    return status;
}

/* What pulling chunks takes longer than reading them in place: the same products and waits for peers, without lanes. */
static tp_status time_pull(bench_cpu_worker *w, int chunks, double *more)
{
    tp_plan_desc desc = {
        .algorithm = TP_OVERLAP_PULL, .pattern = TP_PATTERN_GATHER_GEMM, .ranks = w->base.ranks, .chunks = chunks};
    bench_team_figure with = {.figure = {0}}, without = {.figure = {0}};
    const bench_team_part parts[] = {{run_pull, w, &with, true}, {run_direct, w, &without, true}};
    const bench_team_plan plan = {.warmup = 2, .least = 15, .most = 201, .seconds = 0.2};
    w->chunks = chunks;
    tp_status status = tpi_plan_get(w->base.ctx, tp_ctx_world(w->base.ctx), &desc, &w->pull);
    desc.algorithm = TP_OVERLAP_DIRECT;
    if (status == TP_OK)
        status = tpi_plan_get(w->base.ctx, tp_ctx_world(w->base.ctx), &desc, &w->direct);
    if (status == TP_OK)
        status = bench_team_compare(&w->base.all->team, w->base.ctx, &plan, parts, 2);
    *more = with.figure.seconds - without.figure.seconds;
    return status;
}

/* What lanes took in repeats of time_lanes. */
typedef struct lane_times {
    double one[LANE_MOST], many[LANE_MOST], meet[LANE_MOST];
    int count;
} lane_times;

/* One chunk: a lane's start and end, and one op; many: that and as many. interrupts: the kernel let lanes run when they
 * woke, on rank 0. */
static tp_status time_lanes_once(bench_cpu_worker *w, lane_times *to, bool *interrupts)
{
    double one = 0, many = 0, pull_one = 0, pull_many = 0, product = 0, slow = 0;
    TPI_TRY(time_pull(w, 1, &pull_one));
    TPI_TRY(time_pull(w, LINK_CHUNKS, &pull_many));
    TPI_TRY(time_pipeline(w, 1, &one, &product));
    TPI_TRY(time_pipeline(w, LINK_CHUNKS, &many, &product));
    to->one[to->count] = pull_one;
    to->many[to->count] = pull_many;
    to->meet[to->count] = (many - one) / (LINK_CHUNKS - 1);
    bool waited = to->meet[to->count] > INTERRUPTS * product;
    TPI_TRY(bench_team_most(&w->base.all->team, w->base.ctx, w->base.rank == 0 && waited ? 1 : 0, &slow));
    to->count++;
    *interrupts = slow == 0;
    return TP_OK;
}

/* Differences of times that are much longer, so they are taken a few times. For seconds the kernel may not let a lane
 * that wakes interrupt compute: lanes then seem to cost nothing, and a collective about as much as the product beside
 * it. Such repeats count only if there are hardly any others. */
static tp_status time_lanes(bench_cpu_worker *w)
{
    lane_times usual = {.count = 0}, all = {.count = 0};
    while (all.count < LANE_MOST && usual.count < LANE_REPEATS) {
        bool interrupts;
        TPI_TRY(time_lanes_once(w, &all, &interrupts));
        if (interrupts) {
            usual.one[usual.count] = all.one[all.count - 1];
            usual.many[usual.count] = all.many[all.count - 1];
            usual.meet[usual.count++] = all.meet[all.count - 1];
        }
    }
    lane_times *from = usual.count >= LANE_LEAST ? &usual : &all;
    double one = bench_median(from->one, from->count), many = bench_median(from->many, from->count);
    if (w->base.rank > 0)
        return TP_OK;
    tp_machine *machine = &w->base.all->machine;
    machine->lane_seconds = fmax(many - one, 0) / ((w->base.ranks - 1) * (LINK_CHUNKS - 1));
    machine->meet_seconds = fmax(bench_median(from->meet, from->count), machine->lane_seconds);
    machine->start_seconds = fmax(one - (w->base.ranks - 1) * machine->lane_seconds, 0);
    return TP_OK;
}

/* Columns of a chunk, so that it crosses in a share of the product's time, and fits into the buffers. */
static tp_status fit_chunks(bench_cpu_worker *w)
{
    double seconds = 0, longest = 0;
    int64_t most = LARGE / (int64_t)sizeof(float) / ((int64_t)LINK_CHUNKS * LINK_ROWS * w->base.ranks);
    tp_status status = bench_calibration_measure(&w->base, bench_calibration_run_gemm, &seconds);
    if (status == TP_OK)
        status = bench_team_most(&w->base.all->team, w->base.ctx, w->base.rank == 0 ? seconds : 0, &longest);
    double cols = LINK_COLS * LINK_SHARE * longest / LINK_SECONDS;
    w->cols = cols < 1 ? 1 : cols < (double)most ? (int64_t)cols : most;
    return status;
}

tp_status bench_calibration_of_lanes(bench_cpu_worker *w)
{
    const bench_product product = {
        .layer = "calibrate", .tokens = LINK_GEMM_ROWS, .out = OUT, .in = IN, .variant = BENCH_NT};
    double gather[LANE_REPEATS] = {0};
    /* A chunk's bytes arrive. */
    w->base.count = (int64_t)(LINK_CHUNK_BYTES / sizeof(float)) * w->base.ranks / (w->base.ranks - 1);
    tp_status status = TP_OK;
    w->base.ctx->pulling = TPI_PULL_ON_LANE; /* what compute pulls itself says nothing of lanes */
    for (int i = 0; i < LANE_REPEATS && status == TP_OK; i++)
        status = bench_calibration_measure(&w->base, bench_calibration_run_gather, &gather[i]);
    if (status == TP_OK && w->base.rank == 0)
        w->base.all->machine.wake_seconds = fmax(bench_median(gather, LANE_REPEATS) - LINK_SECONDS, 0);
    if (status == TP_OK)
        status = bench_gemm_open(&w->gemm, w->base.ctx, &product, TP_DTYPE_F32, false);
    if (status == TP_OK)
        status = fit_chunks(w);
    if (status == TP_OK)
        status = time_lanes(w);
    bench_gemm_close(&w->gemm);
    return status;
}
