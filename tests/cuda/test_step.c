/* A step on GPUs allocates nothing and the host waits for nothing; and how steps fail: wrong ids, ranks that leave,
 * memory that runs out. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/gpus.h"
#include "cuda/step_scene.h"

/* ---- what a step costs the host ---------------------------------------------------------------------------------- */

typedef struct step_counts {
    gpusim_counts gradients, step;
} step_counts;

/* Counts are the process's: all ranks begin and end a part together. */
static tp_status counted(tp_ctx *ctx, tpt_scene *scene, tpt_actor *actor, tp_status (*part)(tp_ctx *, tpt_actor *),
                         gpusim_counts *out)
{
    tp_status status = tp_ctx_synchronize(ctx);
    pthread_barrier_wait(&scene->meeting);
    if (tp_ctx_rank(ctx) == 0)
        tpt_gpus_clear_counts();
    pthread_barrier_wait(&scene->meeting);
    if (status == TP_OK)
        status = part(ctx, actor);
    pthread_barrier_wait(&scene->meeting);
    if (tp_ctx_rank(ctx) == 0)
        *out = tpt_gpus_count();
    pthread_barrier_wait(&scene->meeting);
    return status;
}

static tp_status count_parts(tp_ctx *ctx, tpt_scene *scene, tpt_actor *actor)
{
    step_counts *counts = scene->own;
    tp_status status = TP_OK;
    for (int warm = 0; warm < 2 && status == TP_OK; warm++)
        status = tpt_scene_step(ctx, actor);
    if (status == TP_OK)
        status = counted(ctx, scene, actor, tpt_scene_gradients, &counts->gradients);
    return status == TP_OK ? counted(ctx, scene, actor, tpt_scene_step, &counts->step) : status;
}

static void check_counts(int ranks, int devices, tp_sum_order sum_order, tp_overlap overlap)
{
    step_counts counts;
    tpt_scene scene = {.ranks = ranks,
                       .devices = devices,
                       .dtype = TP_DTYPE_BF16,
                       .sum_order = sum_order,
                       .overlap = overlap,
                       .act = count_parts,
                       .own = &counts};
    if (!tpt_gpus_configure(&(gpusim_options){.schedule = GPUSIM_LAZY}))
        cr_skip_test("real GPUs count nothing");
    cr_assert_eq(tpt_scene_run(&scene), TP_OK, "%s", tp_last_message());
    tpt_gpus_clean("steps");
    cr_assert_gt(counts.gradients.kernels, 20);
    cr_assert_eq(counts.gradients.allocations, 0, "%d ranks, %s: %lld allocations", ranks, tp_overlap_name(overlap),
                 (long long)counts.gradients.allocations);
    cr_assert_eq(counts.gradients.host_synchronisations + counts.gradients.host_queries, 0,
                 "%d ranks, %s: %lld waits and %lld queries", ranks, tp_overlap_name(overlap),
                 (long long)counts.gradients.host_synchronisations, (long long)counts.gradients.host_queries);
    cr_assert_eq(counts.step.allocations, 0);
    cr_assert_eq(counts.step.host_synchronisations, 0);
    /* Norms and updates of all parameters: a clearing, two launches of sums, one of updates, and in an all-reduce of
     * two launches a rank. */
    cr_assert_leq(counts.step.kernels - counts.gradients.kernels, 6 * ranks, "%lld launches for %d ranks' optimizers",
                  (long long)(counts.step.kernels - counts.gradients.kernels), ranks);
    /* The optimizer asks how the step before ended, which is done by now: one question a rank. */
    cr_assert_leq(counts.step.host_queries, ranks, "%lld queries", (long long)counts.step.host_queries);
}

Test(cuda_step, allocates_nothing_and_never_waits, .timeout = 100)
{
    check_counts(1, 1, TP_SUM_TREE, TP_OVERLAP_NONE);
    check_counts(2, 2, TP_SUM_FAST, TP_OVERLAP_NONE);
    check_counts(4, 2, TP_SUM_TREE, TP_OVERLAP_NONE);
    check_counts(2, 2, TP_SUM_TREE, TP_OVERLAP_PULL);
    check_counts(2, 1, TP_SUM_TREE, TP_OVERLAP_RING);
    check_counts(2, 2, TP_SUM_TREE, TP_OVERLAP_PIPELINE);
    check_counts(2, 2, TP_SUM_TREE, TP_OVERLAP_DIRECT);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

static tp_status step_twice(tp_ctx *ctx, tpt_scene *scene, tpt_actor *actor)
{
    (void)scene;
    tp_status status = tpt_scene_step(ctx, actor);
    return status == TP_OK ? tpt_scene_step(ctx, actor) : status;
}

Test(cuda_step, a_wrong_id_is_told_on_all_ranks, .timeout = 100)
{
    static const int32_t wrong[] = {TPT_SCENE_VOCABULARY, -2147483647};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        for (int ranks = 1; ranks <= 2; ranks++) {
            tpt_scene scene = {.ranks = ranks,
                               .devices = ranks,
                               .dtype = TP_DTYPE_F32,
                               .wrong_id = wrong[i],
                               .act = step_twice,
                               .timeout_ms = 60000};
            char words[128];
            snprintf(words, sizeof words, "pass: ids[3] is %d, must be in [0, vocabulary %d)", wrong[i],
                     TPT_SCENE_VOCABULARY);
            tpt_gpus_turn((unsigned)ranks);
            tp_status status = tpt_scene_run(&scene);
            cr_assert_eq(status, TP_ERR_ARGUMENT, "%s", tp_status_name(status));
            for (int rank = 0; rank < ranks; rank++) {
                cr_assert(scene.status[rank] == TP_ERR_ARGUMENT || scene.status[rank] == TP_ERR_PEER, "rank %d: %s",
                          rank, tp_status_name(scene.status[rank]));
                cr_assert_not_null(strstr(scene.message[rank], words), "rank %d of %d is told \"%s\"", rank, ranks,
                                   scene.message[rank]);
            }
            tpt_gpus_clean("a wrong id");
        }
}

/* The last rank does one step less, and leaves with a failure of its own. */
static tp_status leave(tp_ctx *ctx, tpt_scene *scene, tpt_actor *actor)
{
    tp_status status = tpt_scene_step(ctx, actor);
    if (tp_ctx_rank(ctx) != scene->ranks - 1)
        return status == TP_OK ? tpt_scene_step(ctx, actor) : status;
    if (status == TP_OK) {
        status = TP_ERR_IO;
        tp_comm_abort(ctx, tp_ctx_world(ctx), status, "the data is gone");
    }
    return status;
}

Test(cuda_step, a_rank_that_leaves_frees_its_peers, .timeout = 100)
{
    for (unsigned turn = 0; turn < TPT_SCHEDULES; turn++) {
        tpt_scene scene = {.ranks = turn % 2 == 0 ? 2 : 4,
                           .devices = turn % 2 == 0 ? 2 : 1,
                           .dtype = TP_DTYPE_F32,
                           .overlap = turn < 3 ? TP_OVERLAP_NONE : TP_OVERLAP_PULL,
                           .act = leave,
                           .timeout_ms = 60000};
        tpt_gpus_turn(turn);
        cr_assert_eq(tpt_scene_run(&scene), TP_ERR_IO, "%s", tp_last_message());
        for (int rank = 0; rank < scene.ranks - 1; rank++) {
            cr_assert_eq(scene.status[rank], TP_ERR_PEER, "rank %d: %s", rank, tp_status_name(scene.status[rank]));
            cr_assert_not_null(strstr(scene.message[rank], "the data is gone"), "rank %d: %s", rank,
                               scene.message[rank]);
        }
        tpt_gpus_clean("a rank that leaves");
    }
}

/* ---- out of memory ----------------------------------------------------------------------------------------------- */

enum { DEVICE_BYTES = 32 << 20, PIECES = 64 };

/* Memory that the last rank takes away, so that `left` bytes are there for its work. */
typedef struct hog {
    size_t left, taken;
    void *piece[PIECES];
    size_t bytes[PIECES];
    int pieces;
} hog;

static tp_status take_away(tp_ctx *ctx, tpt_scene *scene)
{
    hog *h = scene->own;
    void *reserve = NULL;
    if (tp_ctx_rank(ctx) != scene->ranks - 1)
        return TP_OK;
    tp_status status = tp_ctx_allocate(ctx, TP_MEMORY_OTHER, h->left, &reserve);
    for (size_t size = DEVICE_BYTES; size >= 1024 && h->pieces < PIECES; size /= 2)
        if (tp_ctx_allocate(ctx, TP_MEMORY_OTHER, size, &h->piece[h->pieces]) == TP_OK)
            h->bytes[h->pieces++] = size;
    tp_ctx_release(ctx, TP_MEMORY_OTHER, reserve, h->left);
    return status;
}

static void give_back(tp_ctx *ctx, tpt_scene *scene)
{
    hog *h = scene->own;
    if (tp_ctx_rank(ctx) != scene->ranks - 1)
        return;
    while (h->pieces > 0) {
        h->pieces--;
        tp_ctx_release(ctx, TP_MEMORY_OTHER, h->piece[h->pieces], h->bytes[h->pieces]);
    }
}

Test(cuda_step, memory_that_runs_out_is_told_and_nothing_is_lost, .timeout = 100)
{
    bool told = false, enough = false;
    for (size_t left = 4096; left < DEVICE_BYTES && !enough; left += left / 3) {
        hog h = {.left = left};
        tpt_scene scene = {.ranks = 2,
                           .devices = 2,
                           .dtype = TP_DTYPE_F32,
                           .act = step_twice,
                           .before = take_away,
                           .after = give_back,
                           .own = &h,
                           .timeout_ms = 60000};
        if (!tpt_gpus_configure(&(gpusim_options){.devices = 2, .device_bytes = DEVICE_BYTES}))
            cr_skip_test("no simulator");
        tp_status status = tpt_scene_run(&scene);
        enough = status == TP_OK;
        told = told || !enough;
        if (!enough) {
            cr_assert_eq(scene.status[1], TP_ERR_MEMORY, "%zu bytes: rank 1: %s: %s", left,
                         tp_status_name(scene.status[1]), scene.message[1]);
            cr_assert_eq(scene.status[0], TP_ERR_PEER, "%zu bytes: rank 0: %s: %s", left,
                         tp_status_name(scene.status[0]), scene.message[0]);
            cr_assert_not_null(strstr(scene.message[0], "memory"), "%zu bytes: %s", left, scene.message[0]);
        }
        tpt_gpus_clean("out of memory");
    }
    cr_assert(told && enough);
}
