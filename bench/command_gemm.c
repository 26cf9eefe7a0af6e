/* tp_bench gemm: products of layers against the measured peak, by one caller and by several at once. */
#include "command.h"
#include "gemm_case.h"
#include "gpu_time.h"
#include "peer.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYER, VARIANT, SHAPE, SUMS, DTYPE, ISA, CALLERS, THREADS, RATE, PEAK, SHARE, KEPT, TOTAL, WRONG, PEER, RATIO,
      COLUMNS };

static const bench_column columns[COLUMNS] = {
    {"layer", "", 0, true},       {"variant", "", 0, true},     {"shape", "rows x cols x inner", 0, true},
    {"sums", "", 0, true},        {"dtype", "", 0, true},       {"isa", "", 0, true},
    {"callers", "", 0, false},    {"threads", "each", 0, false}, {"rate", "GFLOP/s", 4, false},
    {"peak", "GFLOP/s", 4, false}, {"share", "of peak", -3, false}, {"kept", "samples", 0, false},
    {"of", "samples", 0, false},  {"#wrong", "", 0, false},
    {"peer", "GFLOP/s", 4, false}, {"ours", "/ peer", -3, false},
};

#define MAX_CALLERS 64
#define CHECKED 512
#define HIGH_SHARE 1.03

/* One product by some callers at once. */
typedef struct gemm_run {
    const bench_call *call;
    double gpu_peak; /* FLOP/s */
    const bench_product *product;
    tp_dtype dtype;
    bench_peak peak;
    const bench_peer *peer; /* NULL: alone */
    bench_plan plan;
    pthread_barrier_t ready;
    struct {
        tp_status status;
        char message[BENCH_CELL_TEXT * 4], peer_message[200];
        double rate, peak, peer; /* peer 0: not measured */
        int kept, total;
        int64_t wrong;
    } caller[MAX_CALLERS];
} gemm_run;

typedef struct peak_part {
    const bench_peak *peak;
    long rounds;
    double flops;
} peak_part;

static void run_peak(void *arg)
{
    peak_part *part = arg;
    part->flops = part->peak->run(part->rounds);
}

/* Peak, ours, and the peer's, in turns. */
static void time_product(gemm_run *run, int index, bench_gemm *gemm, bench_peer_gemm *peer)
{
    bench_samples *samples = calloc(3, sizeof *samples);
    if (samples == NULL) {
        run->caller[index].status = TP_ERR_MEMORY;
        return;
    }
    peak_part peak = {.peak = &run->peak, .rounds = bench_peak_rounds(&run->peak)};
    bench_part parts[3] = {
        {run_peak, &peak, &samples[0]}, {bench_gemm_run, gemm, &samples[1]}, {bench_peer_gemm_run, peer, &samples[2]}};
    bench_measure(parts, peer->product != NULL ? 3 : 2, &run->plan);
    if (peer->product != NULL && peer->status == 0)
        run->caller[index].peer = bench_product_flops(run->product) / bench_sample_figure(&samples[2]).seconds;
    bench_figure figure = bench_sample_figure(&samples[1]);
    run->caller[index].status = gemm->status;
    run->caller[index].rate = bench_product_flops(run->product) / figure.seconds;
    int threads = tp_ctx_threads(gemm->ctx), cores = run->call->machine.cores;
    run->caller[index].peak =
        peak.flops / bench_sample_figure(&samples[0]).seconds * (threads < cores ? threads : cores);
    run->caller[index].kept = figure.kept;
    run->caller[index].total = figure.total;
    free(samples);
}

static tp_status run_once(void *arg)
{
    bench_gemm *gemm = arg;
    bench_gemm_run(gemm);
    return gemm->status;
}

static void time_on_gpu(gemm_run *run, int index, bench_gemm *gemm)
{
    static const bench_plan once = {.least = 1, .most = 1};
    bench_samples *samples = calloc(1, sizeof *samples);
    tp_status status = samples != NULL ? TP_OK : TP_ERR_MEMORY;
    if (status == TP_OK)
        status = bench_gpu_measure(gemm->ctx, run->call->gpu.simulated ? &once : &run->plan, run_once, gemm, samples);
    run->caller[index].status = status;
    if (status == TP_OK) {
        bench_figure figure = bench_sample_figure(samples);
        run->caller[index].rate = bench_product_flops(run->product) / figure.seconds;
        run->caller[index].peak = run->gpu_peak;
        run->caller[index].kept = figure.kept;
        run->caller[index].total = figure.total;
    }
    free(samples);
}

static void caller_thread(void *arg, int index)
{
    gemm_run *run = arg;
    const bench_options *options = &run->call->options;
    tp_ctx_desc desc = bench_ctx_desc(run->call, (int)options->threads);
    tp_ctx *ctx = NULL;
    bench_gemm gemm = {0};
    bench_peer_gemm peer = {0};
    tp_status status = tp_ctx_create(&desc, &ctx);
    if (status == TP_OK)
        status = bench_gemm_open(&gemm, ctx, run->product, run->dtype, options->pack_in_call);
    if (status == TP_OK && !options->no_check)
        run->caller[index].wrong = bench_gemm_wrong(&gemm, CHECKED);
    if (status == TP_OK)
        status = gemm.status;
    if (status == TP_OK && run->peer != NULL)
        bench_peer_gemm_open(&peer, run->peer, &gemm, run->product->variant != BENCH_TN && !options->pack_in_call,
                             run->caller[index].peer_message);
    /* All callers begin together, also when one can't. */
    pthread_barrier_wait(&run->ready);
    run->caller[index].status = status;
    if (status == TP_OK && bench_on_gpu(run->call))
        time_on_gpu(run, index, &gemm);
    else if (status == TP_OK)
        time_product(run, index, &gemm, &peer);
    if (run->caller[index].status != TP_OK)
        snprintf(run->caller[index].message, sizeof run->caller[index].message, "%s", tp_last_message());
    bench_peer_gemm_close(&peer);
    if (gemm.ctx != NULL)
        bench_gemm_close(&gemm);
    tp_ctx_destroy(ctx);
}

/* Sums of a series of products for the geometric mean. */
typedef struct series {
    int rows; /* count of them have a turn that nothing disturbed */
    double rate[BENCH_PRODUCTS], share[BENCH_PRODUCTS], peer[BENCH_PRODUCTS], ratio[BENCH_PRODUCTS];
    int count, peers;
} series;

static void add_row(bench_call *call, const gemm_run *run, int callers, series *all)
{
    bench_table *table = &call->table;
    double rate = 0, peak = 0, peer = 0;
    bool compared = run->peer != NULL;
    int64_t wrong = 0;
    int fewest = 0;
    for (int i = 0; i < callers; i++) {
        rate += run->caller[i].rate;
        peak += run->caller[i].peak;
        peer += run->caller[i].peer;
        compared = compared && run->caller[i].peer > 0;
        if (run->caller[i].peer_message[0] != '\0')
            bench_note(table, "%s %s is not compared: %s", tp_dtype_name(run->dtype), run->product->layer,
                       run->caller[i].peer_message);
        fewest = run->caller[i].kept < run->caller[fewest].kept ? i : fewest;
        wrong += run->caller[i].wrong;
    }
    char shape[48];
    bench_product_shape(run->product, shape);
    bench_row(table);
    bench_word(table, "%s", run->product->layer);
    bench_word(table, "%s", bench_variant_names[run->product->variant]);
    bench_word(table, "%s", shape);
    bool cut = call->options.tf32 && run->dtype == TP_DTYPE_F32;
    bool fast = call->options.sums == TP_SUM_FAST;
    bench_word(table, "%s", cut ? "fast, TF32" : fast ? "fast" : run->product->tree ? "8 chains, tree" : "1 chain");
    bench_word(table, "%s", tp_dtype_name(run->dtype));
    bench_isa_cell(call);
    bench_integer(table, callers);
    bench_integer(table, call->options.threads);
    bench_real(table, rate / 1e9);
    bench_real(table, peak / 1e9);
    /* Without a turn that is clean for a caller there is nothing to compare. */
    bool clean = run->caller[fewest].kept > 0;
    bench_real(table, clean ? rate / peak : NAN);
    bench_integer(table, run->caller[fewest].kept);
    bench_integer(table, run->caller[fewest].total);
    if (call->options.no_check)
        bench_empty(table);
    else
        bench_integer(table, wrong);
    bench_real(table, compared ? peer / 1e9 : NAN);
    bench_real(table, compared && clean ? rate / peer : NAN);
    if (compared && clean) {
        all->peer[all->peers] = peer;
        all->ratio[all->peers++] = rate / peer;
    }
    if (wrong > 0)
        bench_check_failed(call, "%s %s %s: %lld wrong elements", run->product->layer, shape, tp_dtype_name(run->dtype),
                           (long long)wrong);
    all->rows++;
    if (!clean)
        return;
    all->rate[all->count] = rate;
    all->share[all->count++] = rate / peak;
}

static void add_mean(bench_call *call, tp_dtype dtype, int callers, const series *all)
{
    bench_table *table = &call->table;
    bench_row(table);
    bench_word(table, "geometric mean");
    bench_word(table, "of %d", all->count);
    bench_empty(table);
    bench_empty(table);
    bench_word(table, "%s", tp_dtype_name(dtype));
    bench_isa_cell(call);
    bench_integer(table, callers);
    bench_integer(table, call->options.threads);
    bench_real(table, bench_geometric_mean(all->rate, all->count) / 1e9);
    bench_empty(table);
    bench_real(table, bench_geometric_mean(all->share, all->count));
    for (int column = KEPT; column < PEER; column++)
        bench_empty(table);
    bench_real(table, bench_geometric_mean(all->peer, all->peers) / 1e9);
    bench_real(table, bench_geometric_mean(all->ratio, all->peers));
    if (all->count < all->rows)
        bench_note(table,
                   "%s, callers: %d: %d of %d products had no turn that nothing disturbed: they have no share and are "
                   "in no mean",
                   tp_dtype_name(dtype), callers, all->rows - all->count, all->rows);
}

/* No product is faster than the peak. */
static void note_high_shares(bench_call *call)
{
    int high = 0;
    for (int row = 0; row < call->table.rows; row++) {
        const bench_cell *cell = bench_table_cell(&call->table, row, SHARE);
        high += cell->kind == BENCH_CELL_REAL && cell->real > HIGH_SHARE;
    }
    if (high > 0)
        bench_note(&call->table, "%d shares are above %.2f, which can't be: the peak was disturbed; measure again",
                   high, HIGH_SHARE);
}

static int run_product(bench_call *call, gemm_run *run, int callers)
{
    if (pthread_barrier_init(&run->ready, NULL, (unsigned)callers) != 0)
        return bench_fail(call, "a barrier could not be made");
    bool started = bench_together(callers, run->call->options.threads == 1 && !bench_on_gpu(call), caller_thread, run);
    pthread_barrier_destroy(&run->ready);
    if (!started)
        return bench_fail(call, "%d threads could not be started", callers);
    for (int i = 0; i < callers; i++)
        if (run->caller[i].status != TP_OK)
            return bench_fail(call, "%s: %s", tp_status_name(run->caller[i].status), run->caller[i].message);
    return BENCH_OK;
}

static int run_series(bench_call *call, const bench_peer *peer, const bench_product *products, int count,
                      tp_dtype dtype, int callers)
{
    series *all = calloc(1, sizeof *all);
    gemm_run *run = calloc(1, sizeof *run);
    int status = all != NULL && run != NULL ? BENCH_OK : bench_fail(call, "out of memory");
    double gpu_peak = 0;
    if (status == BENCH_OK && bench_on_gpu(call) && bench_gpu_peak(call, dtype, call->options.tf32, &gpu_peak) != TP_OK)
        status = bench_fail(call, "peak of %s: %.300s", tp_dtype_name(dtype), tp_last_message());
    for (int i = 0; i < count && status == BENCH_OK; i++) {
        const bench_options *options = &call->options;
        *run = (gemm_run){.call = call, .gpu_peak = gpu_peak, .product = &products[i], .dtype = dtype,
                          .peak = bench_peak_of((tp_isa)options->isa, dtype)};
        run->peer = peer->module != NULL ? peer : NULL;
        run->plan = (bench_plan){.warmup = (int)options->warmup,
                                 .least = 3,
                                 .most = (int)options->samples,
                                 .seconds = options->seconds,
                                 .whole_process = options->threads > 1};
        bench_progress("gemm: %s, %d caller%s, product %d of %d", tp_dtype_name(dtype), callers,
                       callers == 1 ? "" : "s", i + 1, count);
        status = run_product(call, run, callers);
        if (status == BENCH_OK)
            add_row(call, run, callers, all);
    }
    if (status == BENCH_OK && count > 1)
        add_mean(call, dtype, callers, all);
    free(run);
    free(all);
    return status;
}

static int choose_products(bench_call *call, bench_product *products, int *count)
{
    bench_options *options = &call->options;
    unsigned variants = 0;
    bench_list_default(&options->variants, BENCH_VARIANTS, (const int64_t[]){BENCH_NT, BENCH_NN, BENCH_TN});
    for (int i = 0; i < options->variants.count; i++)
        variants |= 1u << options->variants.value[i];
    if (options->shapes != NULL) {
        *count = bench_products_parse(options->shapes, variants, products, call->message);
        if (*count == 0)
            return BENCH_USAGE;
    } else {
        int kept = 0, all = bench_products_preset(products);
        for (int i = 0; i < all; i++)
            if ((variants & 1u << products[i].variant) != 0)
                products[kept++] = products[i];
        *count = kept;
    }
    for (int i = 0; i < *count && options->order - 1 > BENCH_ORDER_LAYER; i++)
        products[i].tree = options->order - 1 == BENCH_ORDER_TREE && products[i].variant != BENCH_TN;
    return BENCH_OK;
}

static int check_options(bench_call *call)
{
    bench_options *options = &call->options;
    bench_list_default(&options->dtypes, 2, (const int64_t[]){TP_DTYPE_F32, TP_DTYPE_BF16});
    bench_list_default(&options->callers, bench_on_gpu(call) ? 1 : 2, (const int64_t[]){1, 2});
    for (int i = 0; i < options->callers.count && bench_on_gpu(call); i++)
        if (options->callers.value[i] != 1)
            return bench_refuse(call, "--callers %lld: on a GPU there is 1", (long long)options->callers.value[i]);
    options->threads = options->threads == 0 ? 1 : options->threads;
    if (options->peer != 0 && options->threads > 1)
        return bench_refuse(call, "--threads %lld: --peer onednn has 1 a caller (--callers says how many there are)",
                            (long long)options->threads);
    options->samples = options->samples == 0 ? 64 : options->samples;
    options->warmup = options->warmup == 0 ? 1 : options->warmup;
    options->seconds = options->seconds <= 0 ? 0.1 : options->seconds;
    for (int i = 0; i < options->dtypes.count; i++)
        if (options->dtypes.value[i] > TP_DTYPE_F16)
            return bench_refuse(call, "--dtype %s: products are of f32, bf16 or f16",
                                tp_dtype_name((tp_dtype)options->dtypes.value[i]));
    if (options->isa != 0 && !tp_isa_available((tp_isa)options->isa))
        return bench_refuse(call, "--isa %s: this machine does not have it; its best is %s",
                            tp_isa_name((tp_isa)options->isa), tp_isa_name(call->machine.isa));
    return BENCH_OK;
}

int bench_command_gemm(bench_call *call)
{
    bench_options *options = &call->options;
    bench_product products[BENCH_PRODUCTS];
    int count = 0, status = bench_take_device(call);
    if (status == BENCH_OK)
        status = check_options(call);
    if (status == BENCH_OK)
        status = choose_products(call, products, &count);
    if (status != BENCH_OK)
        return status;
    bench_peer peer = {0};
    char reason[BENCH_MESSAGE];
    bench_begin(call, columns, COLUMNS);
    bench_hide_times(call, BENCH_BITS(RATE, SHARE));
    if (options->peer != 0 && !bench_peer_load(&peer, reason))
        bench_note(&call->table, "onednn is skipped: %s", reason);
    call->table.plot = (bench_plot){.x = CALLERS, .y = SHARE, .only = -1, .groups = 3, .group = {LAYER, SHAPE, DTYPE}};
    snprintf(call->table.title, sizeof call->table.title, "%d matrix products, %s", count,
             options->pack_in_call ? "weights packed in every call" : "weights packed once, outside the timing");
    for (int d = 0; d < options->dtypes.count; d++)
        for (int c = 0; c < options->callers.count && status == BENCH_OK; c++)
            status = run_series(call, &peer, products, count, (tp_dtype)options->dtypes.value[d],
                                (int)options->callers.value[c]);
    if (peer.module != NULL)
        bench_note(&call->table, "peer: %s, one thread a caller, on the same operands, sampled in turns%s", peer.name,
                   options->pack_in_call ? "" : "; weights laid out beforehand on both sides");
    bench_peer_unload(&peer);
    bench_note_kept(call, KEPT, TOTAL);
    note_high_shares(call);
    for (int d = 0; d < options->dtypes.count && bench_on_gpu(call) && !call->gpu.simulated; d++)
        bench_note(&call->table, "peak of %s: %s; times are those of the GPU's events",
                   tp_dtype_name((tp_dtype)options->dtypes.value[d]),
                   bench_gpu_peak_text((tp_dtype)options->dtypes.value[d], options->tf32));
    if (!bench_on_gpu(call))
        bench_note(&call->table, "peak: a loop of multiply-adds in registers, sampled in turns with the product");
    if (!options->no_check)
        bench_note(&call->table,
                   "#wrong: of up to %d elements a caller that were compared with exact sums, in a pass of its own",
                   CHECKED);
    return status;
}
