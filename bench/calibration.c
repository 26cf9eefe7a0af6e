/* The figures that the choice of an overlap needs, measured while all ranks work. */
#include "calibration.h"

#include "gemm_case.h"
#include "plan/execute.h"
#include "team.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Rows of the curve; bytes of large and small messages. */
enum { OUT = BENCH_CALIBRATION_OUT, IN = BENCH_CALIBRATION_IN, POINTS = 8, LARGE = 4 << 20, SMALL = 64, DIRECT_ROWS = 384 };
/* Products in turns, so that none finds in a cache what it works on: each rank's are 64 MB. */
enum { COLD_ROWS = 96, COLD_PRODUCTS = 22 };
enum { GRADIENT_TOKENS = 8 }; /* of a weight gradient that takes as long as it is to be read and written */
static const int64_t curve_rows[POINTS] = {1, 4, 16, 48, 96, 192, 384, 768};
static const tp_dtype curve_dtypes[] = {TP_DTYPE_F32, TP_DTYPE_BF16};

#define SAMPLE_SECONDS 0.04
#define REPEATS 3
#define ROUNDS 2 /* of the curves, some seconds apart */
#define FASTEST_MEMORY 1e12 /* more bytes a second is noise */

/* A link whose transfers are waited for asleep: bytes of a chunk, seconds that it takes, and a product that is longer. */
#define LANE_REPEATS 9
enum { LINK_CHUNKS = 4, LINK_COLS = 64, LINK_ROWS = 16, LINK_GEMM_ROWS = 32 };
/* Of a product's time, a chunk on the link: it arrives when it is about to be waited for, as with the chunk counts that are worth it. A lane that runs far ahead
 * does several ops each time it has the core. */
#define LINK_SHARE 0.9
#define LINK_SECONDS 2e-4
#define LINK_CHUNK_BYTES ((double)LINK_COLS * LINK_ROWS * sizeof(float))

typedef struct calibration {
    bench_team team;
    tp_machine machine; /* rank 0 fills them */
    bench_figure samples; /* of all measurements together */
} calibration;

/* One rank at work. */
typedef struct worker {
    calibration *all;
    tp_ctx *ctx;
    int rank, ranks;
    float *in, *out; /* LARGE bytes each */
    int64_t count;   /* of floats, in all */
    bench_gemm gemm;
    bench_gemm *cold; /* [COLD_PRODUCTS] */
    int turn;         /* of them */
    tp_symmetric inputs;
    int reads; /* whose input the product reads */
    int chunks;
    int64_t cols; /* of a chunk, on a link */
    tpi_prepared *plan; /* that is run: */
    tpi_prepared *pull, *direct, *pipeline;
} worker;

static tp_status measure(worker *w, tp_status (*fn)(void *arg), double *seconds)
{
    bench_team_plan plan = {.warmup = 2, .least = 5, .most = 256, .seconds = SAMPLE_SECONDS};
    bench_team_figure figure;
    tp_status status = bench_team_measure(&w->all->team, w->ctx, &plan, fn, w, &figure);
    if (status == TP_OK && w->rank == 0) {
        w->all->samples.kept += figure.figure.kept;
        w->all->samples.total += figure.figure.total;
    }
    *seconds = figure.figure.seconds;
    return status;
}

static tp_status run_gemm(void *arg)
{
    worker *w = arg;
    bench_gemm_run(&w->gemm);
    return w->gemm.status;
}

static tp_status time_gemm(worker *w, const bench_product *product, tp_dtype dtype, double *seconds)
{
    tp_status status = bench_gemm_open(&w->gemm, w->ctx, product, dtype, false);
    if (status == TP_OK)
        status = measure(w, run_gemm, seconds);
    bench_gemm_close(&w->gemm);
    return status;
}

/* The faster of all rounds counts: other work makes a product slower, never faster. */
static tp_status calibrate_curve(worker *w, bench_variant variant, tp_dtype dtype, tp_machine_curve *curve)
{
    for (int i = 0; i < POINTS; i++) {
        bench_product product = {.layer = "calibrate", .tokens = curve_rows[i], .out = OUT, .in = IN, .variant = variant};
        double seconds;
        tp_status status = time_gemm(w, &product, dtype, &seconds);
        if (status != TP_OK)
            return status;
        if (w->rank > 0)
            continue;
        curve->points = POINTS;
        curve->rows[i] = (double)curve_rows[i];
        curve->flops[i] = fmax(curve->flops[i], bench_product_flops(&product) / seconds);
        if (i > 0) /* more rows are not slower either, since they could be cut */
            curve->flops[i] = fmax(curve->flops[i], curve->flops[i - 1]);
    }
    return TP_OK;
}

static tp_status calibrate_gemm(worker *w)
{
    tp_machine *machine = &w->all->machine;
    for (int round = 0; round < ROUNDS; round++)
        for (size_t d = 0; d < sizeof curve_dtypes / sizeof *curve_dtypes; d++) {
            tp_dtype dtype = curve_dtypes[d];
            tp_status status = calibrate_curve(w, BENCH_NT, dtype, &machine->gemm[dtype]);
            if (status == TP_OK)
                status = calibrate_curve(w, BENCH_TN, dtype, &machine->weight[dtype]);
            if (status != TP_OK)
                return status;
        }
    bench_product tiny = {.layer = "calibrate", .tokens = 1, .out = 8, .in = 8, .variant = BENCH_NT};
    double seconds;
    tp_status status = time_gemm(w, &tiny, TP_DTYPE_F32, &seconds);
    if (status == TP_OK && w->rank == 0)
        w->all->machine.call_seconds = seconds;
    return status;
}

/* What a product takes longer for the activation of what it makes. */
static tp_status calibrate_activation(worker *w)
{
    const bench_product product = {.layer = "calibrate", .tokens = COLD_ROWS, .out = OUT, .in = IN, .variant = BENCH_NT};
    double more[REPEATS] = {0}, with = 0, without = 0;
    tp_status status = bench_gemm_open(&w->gemm, w->ctx, &product, TP_DTYPE_F32, false);
    for (int i = 0; i < REPEATS && status == TP_OK; i++) {
        w->gemm.args.activation = TPI_ACT_GELU_TANH;
        status = measure(w, run_gemm, &with);
        w->gemm.args.activation = TPI_ACT_NONE;
        if (status == TP_OK)
            status = measure(w, run_gemm, &without);
        more[i] = with - without;
    }
    bench_gemm_close(&w->gemm);
    if (status == TP_OK && w->rank == 0)
        w->all->machine.activation_seconds = fmax(bench_median(more, REPEATS), 0) / ((double)COLD_ROWS * OUT);
    return status;
}

static tp_status run_cold(void *arg)
{
    worker *w = arg;
    bench_gemm *gemm = &w->cold[w->turn++ % COLD_PRODUCTS];
    bench_gemm_run(gemm);
    return gemm->status;
}

static tp_status run_warm(void *arg)
{
    worker *w = arg;
    bench_gemm_run(w->cold);
    return w->cold->status;
}

static void close_cold(worker *w)
{
    for (int i = 0; i < COLD_PRODUCTS; i++)
        if (w->cold[i].ctx != NULL)
            bench_gemm_close(&w->cold[i]);
}

static tp_status open_cold(worker *w, const bench_product *product)
{
    tp_status status = TP_OK;
    for (int i = 0; i < COLD_PRODUCTS && status == TP_OK; i++)
        status = bench_gemm_open(&w->cold[i], w->ctx, product, TP_DTYPE_F32, false);
    return status;
}

/* What a product takes longer when its weights and rows come out of memory. What it writes is fetched first. */
static tp_status time_cold(worker *w)
{
    const bench_product product = {.layer = "calibrate", .tokens = COLD_ROWS, .out = OUT, .in = IN, .variant = BENCH_NT};
    double more[REPEATS] = {0}, cold = 0, warm = 0, bytes = sizeof(float) * ((double)OUT * IN + COLD_ROWS * (IN + 2.0 * OUT));
    tp_status status = open_cold(w, &product);
    for (int i = 0; i < REPEATS && status == TP_OK; i++) {
        status = measure(w, run_cold, &cold);
        if (status == TP_OK)
            status = measure(w, run_warm, &warm);
        more[i] = cold - warm;
    }
    close_cold(w);
    if (status == TP_OK && w->rank == 0)
        w->all->machine.memory_bytes_per_second = bytes / fmax(bench_median(more, REPEATS), bytes / FASTEST_MEMORY);
    return status;
}

/* The fastest counts, as with the curves. */
static tp_status time_gradients(worker *w)
{
    const bench_product product = {.layer = "calibrate", .tokens = GRADIENT_TOKENS, .out = OUT, .in = IN, .variant = BENCH_TN};
    double best = INFINITY, cold = 0;
    tp_status status = open_cold(w, &product);
    for (int i = 0; i < REPEATS && status == TP_OK; i++) {
        status = measure(w, run_cold, &cold);
        best = fmin(best, cold);
    }
    close_cold(w);
    if (status == TP_OK && w->rank == 0)
        w->all->machine.gradient_bytes_per_second = sizeof(float) * (double)OUT * IN / best;
    return status;
}

static tp_status calibrate_memory(worker *w)
{
    w->cold = calloc(COLD_PRODUCTS, sizeof *w->cold);
    tp_status status = w->cold != NULL ? time_cold(w) : TP_ERR_MEMORY;
    if (status == TP_OK)
        status = time_gradients(w);
    free(w->cold);
    return status;
}

static tp_status run_gather(void *arg)
{
    worker *w = arg;
    tp_range mine = tp_shard_range(w->count, w->ranks, w->rank);
    return tp_all_gather(w->ctx, tp_ctx_world(w->ctx), tp_tensor_1d(w->in, TP_DTYPE_F32, mine.end - mine.begin),
                         tp_tensor_1d(w->out, TP_DTYPE_F32, w->count), NULL);
}

static tp_status run_scatter(void *arg)
{
    worker *w = arg;
    tp_range mine = tp_shard_range(w->count, w->ranks, w->rank);
    return tp_reduce_scatter(w->ctx, tp_ctx_world(w->ctx), tp_tensor_1d(w->in, TP_DTYPE_F32, w->count),
                             tp_tensor_1d(w->out, TP_DTYPE_F32, mine.end - mine.begin), NULL, NULL);
}

static tp_status run_barrier(void *arg)
{
    worker *w = arg;
    return tp_barrier(w->ctx, tp_ctx_world(w->ctx));
}

/* Seconds of a large and a small message. */
static tp_status time_sizes(worker *w, tp_status (*fn)(void *arg), double *large, double *small)
{
    w->count = SMALL / (int64_t)sizeof(float) * w->ranks;
    tp_status status = measure(w, fn, small);
    w->count = LARGE / (int64_t)sizeof(float);
    return status == TP_OK ? measure(w, fn, large) : status;
}

static tp_status calibrate_transfers(worker *w)
{
    double large = 0, small = 0, added = 0, added_small = 0, barrier = 0;
    tp_status status = time_sizes(w, run_gather, &large, &small);
    if (status == TP_OK)
        status = time_sizes(w, run_scatter, &added, &added_small);
    if (status == TP_OK)
        status = measure(w, run_barrier, &barrier);
    if (status != TP_OK || w->rank > 0)
        return status;
    tp_machine *machine = &w->all->machine;
    machine->copy_bytes_per_second = LARGE / fmax(large - small, 1e-9);
    machine->reduce_bytes_per_second = LARGE * (1 + 1.0 / w->ranks) / fmax(added - added_small, 1e-9);
    machine->transfer_seconds = small;
    machine->wait_seconds = barrier / 2;
    return TP_OK;
}

/* Every rank writes its input anew, then multiplies the one that `reads` says. */
static tp_status run_fresh(void *arg)
{
    worker *w = arg;
    float *own = w->inputs.local;
    for (int64_t i = 0; i < (int64_t)DIRECT_ROWS * IN; i++)
        own[i] += 1;
    tp_status status = tp_barrier(w->ctx, tp_ctx_world(w->ctx));
    if (status != TP_OK)
        return status;
    w->gemm.args.a.data = w->inputs.peer[w->reads];
    bench_gemm_run(&w->gemm);
    return w->gemm.status == TP_OK ? tp_barrier(w->ctx, tp_ctx_world(w->ctx)) : w->gemm.status;
}

static tp_status calibrate_direct(worker *w)
{
    bench_product product = {.layer = "calibrate", .tokens = DIRECT_ROWS, .out = OUT, .in = IN, .variant = BENCH_NT};
    double own = 0, peer = 0, alone = 0, slower[REPEATS] = {0};
    tp_status status = tp_symmetric_create(w->ctx, tp_ctx_world(w->ctx), sizeof(float) * DIRECT_ROWS * IN, &w->inputs);
    if (status != TP_OK)
        return status;
    status = bench_gemm_open(&w->gemm, w->ctx, &product, TP_DTYPE_F32, false);
    const void *data = w->gemm.args.a.data;
    for (int i = 0; i < REPEATS && status == TP_OK; i++) {
        w->reads = w->rank;
        status = measure(w, run_fresh, &own);
        w->reads = (w->rank + 1) % w->ranks;
        if (status == TP_OK)
            status = measure(w, run_fresh, &peer);
        w->gemm.args.a.data = data;
        if (status == TP_OK)
            status = measure(w, run_gemm, &alone);
        slower[i] = (peer - own) / alone;
    }
    bench_gemm_close(&w->gemm);
    if (status == TP_OK && w->rank == 0)
        w->all->machine.direct_slowdown = fmax(1 + bench_median(slower, REPEATS), 1);
    tp_symmetric_destroy(w->ctx, tp_ctx_world(w->ctx), &w->inputs);
    return status;
}

/* ---- lanes, on a modelled link ------------------------------------------------------------------------------------------------------------------ */

static tp_status issue_gemm(const tpi_run *run, tpi_stream *stream, const tp_plan_op *op)
{
    (void)stream;
    (void)op;
    return run_gemm(tpi_run_job(run)->user);
}

/* A plan whose chunks cross the link while products run, one a chunk. */
static tp_status run_plan(void *arg)
{
    static const tpi_plan_table table = {.issue = {[TP_OP_GEMM] = issue_gemm}};
    worker *w = arg;
    int64_t own = w->chunks * LINK_ROWS;
    tpi_job job = {.table = &table, .user = w, .tokens = own * w->ranks};
    job.view[TP_BUFFER_INPUT] = (tpi_view){w->in, TP_DTYPE_F32, w->cols, w->cols, own * w->rank};
    job.view[TP_BUFFER_GATHERED] = job.view[TP_BUFFER_OUTPUT] = (tpi_view){w->out, TP_DTYPE_F32, w->cols, w->cols, 0};
    return tpi_plan_run(w->plan, &job);
}

static tp_status run_pull(void *arg)
{
    worker *w = arg;
    w->plan = w->pull;
    return run_plan(w);
}

static tp_status run_direct(void *arg)
{
    worker *w = arg;
    w->plan = w->direct;
    return run_plan(w);
}

static tp_status run_pipeline(void *arg)
{
    worker *w = arg;
    w->plan = w->pipeline;
    return run_plan(w);
}

/* What collectives of chunks take longer than their products: the first one crosses alone, the rest beside products. */
static tp_status time_pipeline(worker *w, int chunks, double *more)
{
    const tp_plan_desc desc = {.algorithm = TP_OVERLAP_PIPELINE, .pattern = TP_PATTERN_GATHER_GEMM, .ranks = w->ranks, .chunks = chunks};
    bench_team_figure with, product;
    const bench_team_part parts[] = {{run_pipeline, w, &with, true}, {run_gemm, w, &product, true}};
    const bench_team_plan plan = {.warmup = 2, .least = 15, .most = 201, .seconds = 0.1};
    w->chunks = chunks;
    tp_status status = tpi_plan_get(w->ctx, tp_ctx_world(w->ctx), &desc, &w->pipeline);
    if (status == TP_OK)
        status = bench_team_compare(&w->all->team, w->ctx, &plan, parts, 2);
    *more = with.figure.seconds - chunks * product.figure.seconds;
    return status;
}

/* What pulling chunks takes longer than reading them in place: the same products and waits for peers, without lanes. */
static tp_status time_pull(worker *w, int chunks, double *more)
{
    tp_plan_desc desc = {.algorithm = TP_OVERLAP_PULL, .pattern = TP_PATTERN_GATHER_GEMM, .ranks = w->ranks, .chunks = chunks};
    bench_team_figure with, without;
    const bench_team_part parts[] = {{run_pull, w, &with, true}, {run_direct, w, &without, true}};
    const bench_team_plan plan = {.warmup = 2, .least = 15, .most = 201, .seconds = 0.2};
    w->chunks = chunks;
    tp_status status = tpi_plan_get(w->ctx, tp_ctx_world(w->ctx), &desc, &w->pull);
    desc.algorithm = TP_OVERLAP_DIRECT;
    if (status == TP_OK)
        status = tpi_plan_get(w->ctx, tp_ctx_world(w->ctx), &desc, &w->direct);
    if (status == TP_OK)
        status = bench_team_compare(&w->all->team, w->ctx, &plan, parts, 2);
    *more = with.figure.seconds - without.figure.seconds;
    return status;
}

/* One chunk: a lane's start and end, and one op; many: that and as many. These are differences of times that are much longer, so they are taken a few times. */
static tp_status time_lanes(worker *w)
{
    double ones[LANE_REPEATS] = {0}, manies[LANE_REPEATS] = {0}, meets[LANE_REPEATS] = {0};
    tp_status status = TP_OK;
    for (int i = 0; i < LANE_REPEATS && status == TP_OK; i++) {
        double one = 0, many = 0;
        status = time_pull(w, 1, &ones[i]);
        if (status == TP_OK)
            status = time_pull(w, LINK_CHUNKS, &manies[i]);
        if (status == TP_OK)
            status = time_pipeline(w, 1, &one);
        if (status == TP_OK)
            status = time_pipeline(w, LINK_CHUNKS, &many);
        meets[i] = (many - one) / (LINK_CHUNKS - 1);
    }
    if (status != TP_OK || w->rank > 0)
        return status;
    double one = bench_median(ones, LANE_REPEATS), many = bench_median(manies, LANE_REPEATS);
    tp_machine *machine = &w->all->machine;
    machine->lane_seconds = fmax(many - one, 0) / ((w->ranks - 1) * (LINK_CHUNKS - 1));
    machine->meet_seconds = fmax(bench_median(meets, LANE_REPEATS), machine->lane_seconds);
    machine->start_seconds = fmax(one - (w->ranks - 1) * machine->lane_seconds, 0);
    return TP_OK;
}

/* Columns of a chunk, so that it crosses in a share of the product's time, and fits into the buffers. */
static tp_status fit_chunks(worker *w)
{
    double seconds = 0, longest = 0;
    int64_t most = LARGE / (int64_t)sizeof(float) / ((int64_t)LINK_CHUNKS * LINK_ROWS * w->ranks);
    tp_status status = measure(w, run_gemm, &seconds);
    if (status == TP_OK)
        status = bench_team_most(&w->all->team, w->ctx, w->rank == 0 ? seconds : 0, &longest);
    double cols = LINK_COLS * LINK_SHARE * longest / LINK_SECONDS;
    w->cols = cols < 1 ? 1 : cols < (double)most ? (int64_t)cols : most;
    return status;
}

static tp_status calibrate_lanes(worker *w)
{
    const bench_product product = {.layer = "calibrate", .tokens = LINK_GEMM_ROWS, .out = OUT, .in = IN, .variant = BENCH_NT};
    double gather[LANE_REPEATS] = {0};
    w->count = (int64_t)(LINK_CHUNK_BYTES / sizeof(float)) * w->ranks / (w->ranks - 1); /* a chunk's bytes arrive */
    tp_status status = TP_OK;
    for (int i = 0; i < LANE_REPEATS && status == TP_OK; i++)
        status = measure(w, run_gather, &gather[i]);
    if (status == TP_OK && w->rank == 0)
        w->all->machine.wake_seconds = fmax(bench_median(gather, LANE_REPEATS) - LINK_SECONDS, 0);
    if (status == TP_OK)
        status = bench_gemm_open(&w->gemm, w->ctx, &product, TP_DTYPE_F32, false);
    if (status == TP_OK)
        status = fit_chunks(w);
    if (status == TP_OK)
        status = time_lanes(w);
    bench_gemm_close(&w->gemm);
    return status;
}

static tp_status with_worker(tp_ctx *ctx, calibration *all, tp_status (*fn)(worker *w))
{
    worker w = {.all = all, .ctx = ctx, .rank = tp_ctx_rank(ctx), .ranks = all->team.ranks};
    w.in = calloc(1, LARGE);
    w.out = calloc(1, LARGE);
    tp_status status = w.in != NULL && w.out != NULL ? fn(&w) : TP_ERR_MEMORY;
    free(w.in);
    free(w.out);
    return status;
}

static tp_status calibrate_all(worker *w)
{
    static tp_status (*const all[])(worker *w) = {calibrate_gemm, calibrate_activation, calibrate_memory, calibrate_transfers, calibrate_direct};
    tp_status status = TP_OK;
    for (size_t i = 0; i < sizeof all / sizeof *all && status == TP_OK; i++) {
        if (w->rank == 0)
            bench_progress("calibrate: %s", i == 0 ? "products" : "transfers");
        status = all[i](w);
    }
    return status;
}

static tp_status plain_main(tp_ctx *ctx, void *arg)
{
    return with_worker(ctx, arg, calibrate_all);
}

static tp_status link_main(tp_ctx *ctx, void *arg)
{
    return with_worker(ctx, arg, calibrate_lanes);
}

int bench_calibrate(bench_call *call, int ranks, tp_machine *out, bench_figure *samples)
{
    *samples = (bench_figure){.kept = 0};
    if (bench_on_gpu(call))
        return bench_calibrate_gpu(call, ranks, out);
    calibration *all = calloc(1, sizeof *all);
    if (all == NULL)
        return bench_fail(call, "out of memory");
    bench_team_init(&all->team, ranks, call->machine.cores);
    all->machine.threads = 1;
    all->machine.lanes_share_cores = call->machine.cores < 2 * ranks;
    bench_machine_name(&call->machine, all->machine.name, sizeof all->machine.name);
    tp_run_options start = {.ranks = ranks, .bind_cores = true, .ctx = {.version = TP_VERSION, .threads = 1, .sum_order = (tp_sum_order)call->options.sums}};
    tp_status status = tp_run_ranks(&start, plain_main, all);
    start.link = (tp_link){0, LINK_CHUNK_BYTES / LINK_SECONDS};
    if (status == TP_OK)
        status = tp_run_ranks(&start, link_main, all);
    *out = all->machine;
    *samples = all->samples;
    free(all);
    return status == TP_OK ? BENCH_OK : bench_fail(call, "calibration: %s", tp_last_message());
}
