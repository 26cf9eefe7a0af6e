/* All-reduces in one kernel a rank, whose kernels wait for each other over peer memory: the bits of thread ranks on the
 * CPU, alone and with a norm, in place and apart, many calls without a wait of the host, in every schedule of the
 * simulator without reports; ranks that don't come; in a graph. Where there are fewer GPUs than ranks they share one
 * (TP_PEER_KERNELS_ALWAYS), which works as long as it has room for all. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <tp/tp.h>

#include "core/context.h"
#include "cuda/cuda_ranks.h"
#include "cuda/gpus.h"
#include "cuda/graphs.h"

enum { MOST_RANKS = 4 };

typedef struct scene {
    tpt_record log[MOST_RANKS];
    tp_all_reduce_algorithm algorithm;
} scene;

typedef struct side {
    tp_ctx *ctx;
    tp_comm *comm;
    int rank;
    scene *scene;
} side;

static tp_status up(const side *s, tp_dtype dtype, int64_t rows, int64_t cols, uint64_t seed, tpt_device *out)
{
    void *host = tpt_new_normal(dtype, rows * cols, seed, 1.0);
    tp_status status = tpt_up(s->ctx, host, dtype, rows, cols, out);
    free(host);
    return status;
}

static tp_status down(const side *s, tpt_device *device)
{
    return tpt_down(s->ctx, device, &s->scene->log[s->rank]);
}

/* One element, odd numbers, more than a block's, more than all blocks', and all that staging holds; several calls in a
 * row with the same buffers. */
static tp_status plain_sums(const side *s, tp_dtype dtype)
{
    static const int64_t counts[] = {0, 1, 7, 1000, 4099, 20011};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        tpt_device in, out;
        TPI_TRY(up(s, dtype, 1, counts[i], 10 + (uint64_t)s->rank, &in));
        TPI_TRY(up(s, dtype, 1, counts[i], 1, &out));
        const tp_reduce_desc sum = {.algorithm = s->scene->algorithm},
                             most = {.algorithm = s->scene->algorithm, .op = TP_REDUCE_MAX};
        TPI_TRY(tp_all_reduce(s->ctx, s->comm, in.tensor, out.tensor, &sum));
        TPI_TRY(tp_all_reduce(s->ctx, s->comm, in.tensor, in.tensor, &sum));
        TPI_TRY(tp_all_reduce(s->ctx, s->comm, in.tensor, in.tensor, &sum));
        TPI_TRY(tp_all_reduce(s->ctx, s->comm, out.tensor, out.tensor, &most));
        TPI_TRY(down(s, &in));
        TPI_TRY(down(s, &out));
    }
    return TP_OK;
}

/* f32 sums with all of a row-parallel layer's finish, and beyond staging, where there are other ways. */
static tp_status finished_sums(const side *s, tp_dtype dtype, int64_t rows, int64_t cols)
{
    tpt_device in, out, residual, bias;
    TPI_TRY(up(s, TP_DTYPE_F32, rows, cols, 20 + (uint64_t)s->rank, &in));
    TPI_TRY(up(s, dtype, rows, cols, 30, &out));
    TPI_TRY(up(s, dtype, rows, cols, 31, &residual));
    TPI_TRY(up(s, TP_DTYPE_F32, 1, cols, 32, &bias));
    const tp_reduce_desc finish = {.algorithm = s->scene->algorithm,
                                   .bias = tp_tensor_1d(bias.tensor.data, TP_DTYPE_F32, cols),
                                   .residual = residual.tensor,
                                   .dropout = 0.25f,
                                   .dropout_key = {3, 4},
                                   .first_row = 5};
    for (int i = 0; i < 2; i++)
        TPI_TRY(tp_all_reduce(s->ctx, s->comm, in.tensor, out.tensor, &finish));
    TPI_TRY(tp_all_reduce(s->ctx, s->comm, in.tensor, residual.tensor, &finish));
    TPI_TRY(down(s, &in));
    TPI_TRY(down(s, &out));
    TPI_TRY(down(s, &residual));
    return down(s, &bias);
}

typedef struct norm_case {
    tp_dtype in, out;
    int64_t rows, cols;
    bool rms, stats, in_place;
} norm_case;

static tp_status normed_sums(const side *s, norm_case c)
{
    tpt_device in, sum, y, gain, bias, stats;
    TPI_TRY(up(s, c.in, c.rows, c.cols, 40 + (uint64_t)s->rank, &in));
    TPI_TRY(up(s, c.out, c.rows, c.cols, 50, &sum));
    TPI_TRY(up(s, c.out, c.rows, c.cols, 51, &y));
    TPI_TRY(up(s, c.out, 1, c.cols, 52, &gain));
    TPI_TRY(up(s, c.out, 1, c.cols, 53, &bias));
    TPI_TRY(up(s, TP_DTYPE_F32, c.rows, 2, 54, &stats));
    const tp_reduce_norm norm = {.rms = c.rms,
                                 .epsilon = 1e-5f,
                                 .gain = tp_tensor_1d(gain.tensor.data, c.out, c.cols),
                                 .bias = c.rms ? tp_tensor_none() : tp_tensor_1d(bias.tensor.data, c.out, c.cols),
                                 .out = y.tensor,
                                 .stats = c.stats ? stats.tensor : tp_tensor_none()};
    const tp_reduce_desc add = {.algorithm = s->scene->algorithm, .residual = sum.tensor};
    tp_tensor to = c.in_place && c.in == c.out ? in.tensor : sum.tensor;
    for (int i = 0; i < 3; i++)
        TPI_TRY(tp_all_reduce_norm(s->ctx, s->comm, in.tensor, to, &add, &norm));
    TPI_TRY(down(s, &in));
    TPI_TRY(down(s, &sum));
    TPI_TRY(down(s, &y));
    TPI_TRY(down(s, &gain));
    TPI_TRY(down(s, &bias));
    return down(s, &stats);
}

static tp_status all_cases(tp_ctx *ctx, void *arg)
{
    static const norm_case norms[] = {
        {TP_DTYPE_F32, TP_DTYPE_F32, 3, 64, true, true, false},
        {TP_DTYPE_F32, TP_DTYPE_BF16, 17, 200, true, false, false},
        {TP_DTYPE_BF16, TP_DTYPE_BF16, 5, 1000, true, true, true},
        {TP_DTYPE_F16, TP_DTYPE_F16, 9, 37, true, true, false},
        {TP_DTYPE_F32, TP_DTYPE_F16, 1, 513, false, true, false},
        {TP_DTYPE_F32, TP_DTYPE_F32, 40, 130, false, false, true},
        {TP_DTYPE_F32, TP_DTYPE_F32, 0, 8, true, true, false}, {TP_DTYPE_F32, TP_DTYPE_BF16, 1, 1, true, true, false},
        {TP_DTYPE_BF16, TP_DTYPE_BF16, 2, 4096, true, true, false},
    };
    const side s = {ctx, tp_ctx_world(ctx), tp_ctx_rank(ctx), arg};
    for (int i = 0; i < 3; i++)
        TPI_TRY(plain_sums(&s, tpt_floats[i]));
    TPI_TRY(finished_sums(&s, TP_DTYPE_F32, 13, 37));
    TPI_TRY(finished_sums(&s, TP_DTYPE_BF16, 40, 64));
    TPI_TRY(finished_sums(&s, TP_DTYPE_F16, 1, 1));
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        TPI_TRY(normed_sums(&s, norms[i]));
    return TP_OK;
}

static tp_run_options on_gpus(int ranks)
{
    tp_run_options options = {.ranks = ranks,
                              .devices = ranks,
                              .ctx = {.device = TP_DEVICE_CUDA, .plugin = TPT_CUDA_PLUGIN, .timeout_ms = 60000}};
    if (!tpt_have_gpus(ranks)) {
        options.devices = 1;
        options.peer_kernels = TP_PEER_KERNELS_ALWAYS;
    }
    return options;
}

static void compare(int ranks, scene *cpu, scene *gpu)
{
    char what[32];
    snprintf(what, sizeof what, "algorithm %d", (int)cpu->algorithm);
    tpt_records_same(what, gpu->log, cpu->log, ranks);
    tpt_records_free(gpu->log, ranks);
    tpt_records_free(cpu->log, ranks);
}

static void check(int ranks, tp_all_reduce_algorithm algorithm, tp_run_options options)
{
    scene cpu = {.algorithm = algorithm}, gpu = {.algorithm = algorithm};
    cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = ranks, .ctx = {.threads = 1}}, all_cases, &cpu), TP_OK, "%s",
                 tp_last_message());
    cr_assert_eq(tp_run_ranks(&options, all_cases, &gpu), TP_OK, "%s", tp_last_message());
    compare(ranks, &cpu, &gpu);
    tpt_gpus_clean("peer");
}

Test(cuda_peer, two_ranks, .timeout = 200)
{
    for (unsigned i = 0; i < TPT_SCHEDULES; i++) {
        tpt_gpus_turn(i);
        check(2, i % 2 ? TP_ALL_REDUCE_TWO_SHOT : TP_ALL_REDUCE_ONE_SHOT, on_gpus(2));
    }
}

Test(cuda_peer, three_ranks, .timeout = 200)
{
    for (unsigned i = 0; i < 2; i++) {
        tpt_gpus_turn(1 + i);
        check(3, i % 2 ? TP_ALL_REDUCE_ONE_SHOT : TP_ALL_REDUCE_TWO_SHOT, on_gpus(3));
    }
}

Test(cuda_peer, four_ranks, .timeout = 200)
{
    for (unsigned i = 0; i < 2; i++) {
        tpt_gpus_turn(1 + 2 * i);
        check(4, TP_ALL_REDUCE_AUTO, on_gpus(4));
    }
}

/* A device with room for all ranks' kernels may be shared, if that is asked for. */
Test(cuda_peer, ranks_on_one_device, .timeout = 100)
{
    for (int ranks = 2; ranks <= 4; ranks += 2) {
        tp_run_options options = on_gpus(ranks);
        options.devices = 1;
        options.peer_kernels = TP_PEER_KERNELS_ALWAYS;
        tpt_gpus_turn((unsigned)ranks);
        check(ranks, TP_ALL_REDUCE_AUTO, options);
    }
}

Test(cuda_peer, not_where_it_is_not_wanted, .timeout = 100)
{
    tp_run_options options = on_gpus(2);
    options.peer_kernels = TP_PEER_KERNELS_NEVER;
    tpt_gpus_turn(0);
    check(2, TP_ALL_REDUCE_AUTO, options);
}

/* ---- one launch a call ------------------------------------------------------------------------------------------- */

enum { CALLS = 6 };

static tp_status count_calls(tp_ctx *ctx, void *arg)
{
    const side s = {ctx, tp_ctx_world(ctx), tp_ctx_rank(ctx), NULL};
    gpusim_counts *counts = arg;
    tpt_device x, y, gain;
    TPI_TRY(up(&s, TP_DTYPE_F32, 4, 64, 1, &x));
    TPI_TRY(up(&s, TP_DTYPE_F32, 4, 64, 2, &y));
    TPI_TRY(up(&s, TP_DTYPE_F32, 1, 64, 3, &gain));
    const tp_reduce_norm norm = {
        .rms = true, .gain = tp_tensor_1d(gain.tensor.data, TP_DTYPE_F32, 64), .out = y.tensor};
    for (int turn = 0; turn < 2; turn++) { /* the first one makes what is needed */
        TPI_TRY(tp_ctx_synchronize(ctx));
        TPI_TRY(tp_barrier(ctx, s.comm));
        if (s.rank == 0)
            tpt_gpus_clear_counts();
        TPI_TRY(tp_barrier(ctx, s.comm));
        for (int i = 0; i < CALLS / 2; i++) {
            TPI_TRY(tp_all_reduce(ctx, s.comm, x.tensor, x.tensor, NULL));
            TPI_TRY(tp_all_reduce_norm(ctx, s.comm, x.tensor, x.tensor, NULL, &norm));
        }
        TPI_TRY(tp_barrier(ctx, s.comm));
        if (s.rank == 0)
            *counts = tpt_gpus_count();
        TPI_TRY(tp_barrier(ctx, s.comm));
    }
    TPI_TRY(tpt_down(ctx, &x, NULL));
    TPI_TRY(tpt_down(ctx, &y, NULL));
    return tpt_down(ctx, &gain, NULL);
}

Test(cuda_peer, one_launch_a_call, .timeout = 100)
{
    gpusim_counts counts = {0};
    gpusim_options options = tpt_gpus_schedule(0);
    if (!tpt_gpus_configure(&options))
        cr_skip("nothing is counted on a real GPU");
    tp_run_options run = on_gpus(2);
    cr_assert_eq(tp_run_ranks(&run, count_calls, &counts), TP_OK, "%s", tp_last_message());
    cr_assert_eq(counts.kernels, 2 * CALLS);
    cr_assert_eq(counts.copies + counts.allocations + counts.host_synchronisations, 0);
    tpt_gpus_clean("one launch a call");
}

/* ---- ranks that don't come --------------------------------------------------------------------------------------- */

typedef struct failing {
    tp_status status[MOST_RANKS];
    char message[MOST_RANKS][256];
} failing;

/* Rank 1 sums once less than the others. */
static tp_status leave_early(tp_ctx *ctx, void *arg)
{
    failing *seen = arg;
    int rank = tp_ctx_rank(ctx);
    const side s = {ctx, tp_ctx_world(ctx), rank, NULL};
    tpt_device x;
    TPI_TRY(up(&s, TP_DTYPE_F32, 3, 100, 1, &x));
    tp_status status = tp_all_reduce(ctx, s.comm, x.tensor, x.tensor, NULL);
    if (rank != 1 && status == TP_OK)
        status = tp_all_reduce(ctx, s.comm, x.tensor, x.tensor, NULL);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    seen->status[rank] = status;
    snprintf(seen->message[rank], sizeof seen->message[rank], "%s", tp_ctx_message(ctx));
    tp_ctx_release(ctx, TP_MEMORY_OTHER, x.tensor.data, x.bytes);
    return status;
}

Test(cuda_peer, a_rank_that_leaves_frees_the_others, .timeout = 100)
{
    for (unsigned i = 0; i < 3; i++) {
        failing seen = {0};
        tp_run_options options = on_gpus(3);
        tpt_gpus_turn(i);
        cr_assert_neq(tp_run_ranks(&options, leave_early, &seen), TP_OK);
        cr_assert_eq(seen.status[1], TP_OK);
        for (int rank = 0; rank < 3; rank += 2)
            cr_assert_eq(seen.status[rank], TP_ERR_PEER, "%s: %s", tp_status_name(seen.status[rank]),
                         seen.message[rank]);
        tpt_gpus_clean("a rank that leaves");
    }
}

/* Rank 1 calls something else. */
static tp_status differ(tp_ctx *ctx, void *arg)
{
    failing *seen = arg;
    int rank = tp_ctx_rank(ctx);
    const side s = {ctx, tp_ctx_world(ctx), rank, NULL};
    tpt_device x, y, gain;
    TPI_TRY(up(&s, TP_DTYPE_F32, 3, 100, 1, &x));
    TPI_TRY(up(&s, TP_DTYPE_F32, 3, 100, 1, &y));
    TPI_TRY(up(&s, TP_DTYPE_F32, 1, 100, 1, &gain));
    const tp_reduce_norm norm = {
        .rms = true, .gain = tp_tensor_1d(gain.tensor.data, TP_DTYPE_F32, 100), .out = y.tensor};
    seen->status[rank] = rank == 1 ? tp_all_reduce_norm(ctx, s.comm, x.tensor, x.tensor, NULL, &norm)
                                   : tp_all_reduce(ctx, s.comm, x.tensor, x.tensor, NULL);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, x.tensor.data, x.bytes);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, y.tensor.data, y.bytes);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, gain.tensor.data, gain.bytes);
    return seen->status[rank];
}

Test(cuda_peer, calls_that_differ_are_told_before_a_kernel_waits, .timeout = 100)
{
    failing seen = {0};
    tp_run_options options = on_gpus(3);
    tpt_gpus_turn(1);
    cr_assert_eq(tp_run_ranks(&options, differ, &seen), TP_ERR_MISMATCH, "%s", tp_last_message());
    for (int rank = 0; rank < 3; rank++)
        cr_assert_eq(seen.status[rank], TP_ERR_MISMATCH);
    tpt_gpus_clean("calls that differ");
}

/* ---- in a graph -------------------------------------------------------------------------------------------------- */

typedef struct replay {
    tpt_graphs calls;
    scene scene;
    int alone; /* the rank that launches once more than the others, or -1 */
    atomic_int ended; /* ranks that have run the graph: while a kernel may wait for a rank, that one's memory must
                       * stay */
    failing seen;
} replay;

/* x = sum, y = norm(x); captured, then replayed between calls that are issued. */
static tp_status issue(const side *s, const tpt_device *x, const tpt_device *y, const tp_reduce_norm *norm)
{
    TPI_TRY(tp_all_reduce(s->ctx, s->comm, y->tensor, y->tensor, NULL));
    return tp_all_reduce_norm(s->ctx, s->comm, x->tensor, x->tensor, NULL, norm);
}

static tp_status run_graph(const side *s, replay *r, const tpt_device *x, const tpt_device *y,
                           const tp_reduce_norm *norm)
{
    enum { REPLAYS = 3 };
    cudaStream_t stream = tpt_graphs_stream(s->ctx);
    cudaGraphExec_t exec = NULL;
    TPI_TRY(issue(s, x, y, norm));
    TPI_TRY(tp_ctx_synchronize(s->ctx));
    if (!tpt_graphs_begin(&r->calls, stream))
        return TP_ERR_BACKEND;
    tp_status status = issue(s, x, y, norm);
    if (!tpt_graphs_end(&r->calls, stream, &exec) || status != TP_OK)
        return status != TP_OK ? status : TP_ERR_BACKEND;
    for (int i = 0; i < REPLAYS + (r->alone == s->rank) && status == TP_OK; i++) {
        status = r->calls.launch(exec, stream) == cudaSuccess ? TP_OK : TP_ERR_BACKEND;
        if (i == 1 && status == TP_OK)
            status = issue(s, x, y, norm);
    }
    if (status == TP_OK)
        status = tp_ctx_synchronize(s->ctx);
    atomic_fetch_add(&r->ended, 1);
    while (atomic_load(&r->ended) < tp_comm_size(s->comm))
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    r->calls.destroy_exec(exec);
    return status;
}

static tp_status graph_rank(tp_ctx *ctx, void *arg)
{
    replay *r = arg;
    const side s = {ctx, tp_ctx_world(ctx), tp_ctx_rank(ctx), &r->scene};
    tpt_device x, y, gain;
    TPI_TRY(up(&s, TP_DTYPE_BF16, 6, 96, 1 + (uint64_t)s.rank, &x));
    TPI_TRY(up(&s, TP_DTYPE_BF16, 6, 96, 7 + (uint64_t)s.rank, &y));
    TPI_TRY(up(&s, TP_DTYPE_BF16, 1, 96, 9, &gain));
    const tp_reduce_norm norm = {
        .rms = true, .gain = tp_tensor_1d(gain.tensor.data, TP_DTYPE_BF16, 96), .out = y.tensor};
    tp_status status = TP_OK;
    if (r->calls.launch)
        status = run_graph(&s, r, &x, &y, &norm);
    for (int i = 0; !r->calls.launch && i < 5 && status == TP_OK; i++)
        status = issue(&s, &x, &y, &norm);
    r->seen.status[s.rank] = status;
    snprintf(r->seen.message[s.rank], sizeof r->seen.message[s.rank], "%s", tp_ctx_message(ctx));
    if (status == TP_OK && r->alone < 0) {
        TPI_TRY(down(&s, &x));
        TPI_TRY(down(&s, &y));
        return down(&s, &gain);
    }
    tp_ctx_release(ctx, TP_MEMORY_OTHER, x.tensor.data, x.bytes);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, y.tensor.data, y.bytes);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, gain.tensor.data, gain.bytes);
    return status;
}

Test(cuda_peer, graphs_of_several_ranks_are_replayed, .timeout = 100)
{
    for (unsigned i = 0; i < TPT_SCHEDULES; i++) {
        replay cpu = {.alone = -1}, gpu = {.alone = -1};
        tp_run_options options = on_gpus(2);
        tpt_gpus_turn(i);
        cr_assert(tpt_graphs_find(&gpu.calls));
        cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = 2, .ctx = {.threads = 1}}, graph_rank, &cpu), TP_OK);
        cr_assert_eq(tp_run_ranks(&options, graph_rank, &gpu), TP_OK, "%s", tp_last_message());
        compare(2, &cpu.scene, &gpu.scene);
        tpt_gpus_clean("graphs");
    }
}

/* Nothing but the kernel itself can find out that a rank doesn't replay: it gives up in time and says who didn't
 * come. */
Test(cuda_peer, a_rank_that_does_not_replay_is_named, .timeout = 100)
{
    for (unsigned i = 0; i < 3; i++) {
        replay r = {.alone = 1};
        tp_run_options options = on_gpus(2);
        options.ctx.timeout_ms = 500;
        tpt_gpus_turn(i);
        cr_assert(tpt_graphs_find(&r.calls));
        cr_assert_neq(tp_run_ranks(&options, graph_rank, &r), TP_OK);
        cr_assert_eq(r.seen.status[1], TP_ERR_TIMEOUT, "%s: %s", tp_status_name(r.seen.status[1]), r.seen.message[1]);
        tpt_gpus_clean("a rank that does not replay");
    }
}
