/* Forward and backward kept in a graph: nothing of it is forbidden in a capture, launches give the numbers of the same
 * step issued, on one rank and on ranks that wait for each other; and what can't be kept is refused. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <tp/device.h>
#include <tp/graph.h>

#include "core/context.h"
#include "cuda/gpus.h"
#include "cuda/step_scene.h"
#include "support/data.h"

/* Gradients of a step and the loss so far, one after the other. */
static tp_status get_numbers(tp_ctx *ctx, const tpt_actor *actor, float *out)
{
    double loss, tokens;
    tp_status status = tp_model_loss(ctx, actor->model, &loss, &tokens);
    out[0] = (float)loss;
    out[1] = (float)tokens;
    out += 2;
    for (int i = 0; i < actor->count && status == TP_OK; i++) {
        status = tp_param_gather(ctx, actor->params[i], 1, out);
        out += tp_param_elements(actor->params[i]);
    }
    return status;
}

static int64_t count_numbers(const tpt_actor *actor)
{
    int64_t numbers = 2;
    for (int i = 0; i < actor->count; i++)
        numbers += tp_param_elements(actor->params[i]);
    return numbers;
}

static tp_status capture(tp_ctx *ctx, tpt_actor *actor, tp_graph **out)
{
    TPI_TRY(tp_graph_begin(ctx));
    TPI_TRY(tpt_scene_gradients(ctx, actor));
    return tp_graph_end(ctx, out);
}

static tp_status change_ids(tp_ctx *ctx, const tpt_actor *actor, int turn)
{
    int32_t ids[TPT_SCENE_TOKENS];
    for (int i = 0; i < TPT_SCENE_TOKENS; i++)
        ids[i] = (i * 7 + turn * 5) % TPT_SCENE_VOCABULARY;
    return tp_ctx_upload(ctx, actor->batch, ids, sizeof ids);
}

enum { LAUNCHES = 3 };

/* The same steps issued (graph NULL) and launched, each with other ids and other weights, as the optimizer leaves
 * them. */
static tp_status train(tp_ctx *ctx, tpt_actor *actor, tp_graph *graph, float *numbers, int64_t count)
{
    TPI_TRY(tp_params_init(ctx, actor->params, actor->count));
    for (int i = 0; i < LAUNCHES; i++) {
        TPI_TRY(change_ids(ctx, actor, i));
        TPI_TRY(graph != NULL ? tp_graph_launch(ctx, graph) : tpt_scene_gradients(ctx, actor));
        TPI_TRY(get_numbers(ctx, actor, numbers + i * count));
        TPI_TRY(tp_optimizer_step(ctx, actor->optimizer, 1e-2f, NULL));
    }
    return tp_ctx_synchronize(ctx);
}

static tp_status new_optimizer(tp_ctx *ctx, tpt_actor *actor)
{
    tp_optimizer_destroy(actor->optimizer);
    actor->optimizer = NULL;
    return tp_optimizer_create(ctx, &(tp_optimizer_desc){.kind = TP_OPTIMIZER_ADAMW, .clip_norm = 1}, actor->params,
                               actor->count, &actor->optimizer);
}

static tp_status compare(tp_ctx *ctx, tpt_actor *actor, tp_graph *graph, float *numbers, int64_t count)
{
    float *launched = numbers + LAUNCHES * count;
    TPI_TRY(train(ctx, actor, NULL, numbers, count));
    TPI_TRY(new_optimizer(ctx, actor));
    TPI_TRY(train(ctx, actor, graph, launched, count));
    bool same = tpt_same_bits("launched", launched, numbers, TP_DTYPE_F32, LAUNCHES * count);
    bool moved = memcmp(numbers, numbers + count, (size_t)count * sizeof *numbers) != 0;
    return same && moved ? TP_OK : TP_ERR_NUMERIC;
}

static tp_status capture_and_launch(tp_ctx *ctx, tpt_scene *scene, tpt_actor *actor)
{
    int64_t count = count_numbers(actor);
    float *numbers = tpt_array(TP_DTYPE_F32, 2 * LAUNCHES * count);
    tp_graph *graph = NULL;
    double loss, tokens;
    bool warm = scene->own != NULL;
    tp_status status = warm ? tpt_scene_gradients(ctx, actor) : TP_OK;
    if (status == TP_OK) /* what was added so far */
        status = tp_model_loss(ctx, actor->model, &loss, &tokens);
    if (status == TP_OK)
        status = capture(ctx, actor, &graph);
    if (status == TP_OK)
        status = compare(ctx, actor, graph, numbers, count);
    tp_graph_destroy(graph);
    free(numbers);
    return status;
}

static void check(tpt_scene scene, unsigned number)
{
    scene.act = capture_and_launch;
    scene.own = number % 2 == 0 ? &scene : NULL; /* every other one is captured before anything of it has run */
    tpt_gpus_turn(number);
    tp_status status = tpt_scene_run(&scene);
    cr_assert_eq(status, TP_OK, "%d ranks, case %u: %s: %s", scene.ranks, number, tp_status_name(status),
                 tp_last_message());
    tpt_gpus_clean("capture");
}

Test(cuda_capture, one_rank, .timeout = 100)
{
    check((tpt_scene){.ranks = 1, .devices = 1, .dtype = TP_DTYPE_F32}, 0);
    check((tpt_scene){.ranks = 1, .devices = 1, .dtype = TP_DTYPE_BF16}, 1);
    check((tpt_scene){.ranks = 1, .devices = 1, .dtype = TP_DTYPE_BF16, .sum_order = TP_SUM_FAST}, 2);
}

Test(cuda_capture, ranks_that_wait_for_each_other, .timeout = 200)
{
    check((tpt_scene){.ranks = 2, .devices = 1, .dtype = TP_DTYPE_F32}, 0);
    check((tpt_scene){.ranks = 2, .devices = 2, .dtype = TP_DTYPE_BF16}, 1);
    check((tpt_scene){.ranks = 4, .devices = 2, .dtype = TP_DTYPE_F32}, 2);
    check((tpt_scene){.ranks = 4, .devices = 1, .dtype = TP_DTYPE_BF16}, 3);
    check((tpt_scene){.ranks = 2, .devices = 1, .dtype = TP_DTYPE_BF16, .sum_order = TP_SUM_FAST}, 4);
}

Test(cuda_capture, layers_overlapped_by_pulls_and_rings, .timeout = 100)
{
    check((tpt_scene){.ranks = 2, .devices = 2, .dtype = TP_DTYPE_F32, .overlap = TP_OVERLAP_PULL}, 3);
    check((tpt_scene){.ranks = 2, .devices = 1, .dtype = TP_DTYPE_BF16, .overlap = TP_OVERLAP_RING}, 4);
}

Test(cuda_capture, layers_overlapped_by_collectives, .timeout = 100)
{
    check((tpt_scene){.ranks = 4, .devices = 2, .dtype = TP_DTYPE_F32, .overlap = TP_OVERLAP_PIPELINE}, 0);
    check((tpt_scene){.ranks = 2, .devices = 2, .dtype = TP_DTYPE_BF16, .overlap = TP_OVERLAP_BULK}, 2);
}

Test(cuda_capture, layers_that_read_peers_in_place, .timeout = 100)
{
    check((tpt_scene){.ranks = 2, .devices = 1, .dtype = TP_DTYPE_F32, .overlap = TP_OVERLAP_DIRECT}, 1);
}

/* ---- host arrays that are too long for a kernel's arguments ------------------------------------------------------ */

/* Most sequences are empty. */
enum { SEQUENCES = 3 * TPT_SCENE_TOKENS + 100 };

static tp_status launch_packed(tp_ctx *ctx, tpt_scene *scene, tpt_actor *actor)
{
    int64_t count = count_numbers(actor), *offsets = tpt_allocate((SEQUENCES + 1) * sizeof *offsets);
    float *numbers = tpt_array(TP_DTYPE_F32, 2 * LAUNCHES * count);
    tp_graph *graph = NULL;
    (void)scene;
    for (int i = 0; i <= SEQUENCES; i++)
        offsets[i] = i / 3 < TPT_SCENE_TOKENS ? i / 3 : TPT_SCENE_TOKENS;
    actor->pass.offsets = offsets;
    actor->pass.sequences = SEQUENCES;
    cr_assert_leq(tp_model_saved_bytes(actor->model, &actor->pass), actor->saved_bytes);
    tp_status status = capture(ctx, actor, &graph);
    if (status == TP_OK) {
        int64_t *later = tpt_allocate((SEQUENCES + 1) * sizeof *later);
        memcpy(later, offsets, (SEQUENCES + 1) * sizeof *later);
        memset(offsets, 0xff, (SEQUENCES + 1) * sizeof *offsets); /* the graph has its own */
        actor->pass.offsets = later;
        status = compare(ctx, actor, graph, numbers, count);
        free(later);
    }
    tp_graph_destroy(graph);
    free(numbers);
    free(offsets);
    return status;
}

Test(cuda_capture, many_packed_sequences, .timeout = 100)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        tpt_scene scene = {
            .ranks = ranks, .devices = 1, .dtype = ranks == 1 ? TP_DTYPE_F32 : TP_DTYPE_BF16, .act = launch_packed};
        tpt_gpus_turn((unsigned)ranks);
        cr_assert_eq(tpt_scene_run(&scene), TP_OK, "%s", tp_last_message());
        tpt_gpus_clean("packed sequences");
    }
}

/* ---- what a graph may not hold ----------------------------------------------------------------------------------- */

static void refused(tp_ctx *ctx, tp_status status, tp_status expected, const char *words)
{
    cr_assert_eq(status, expected, "%s instead of %s: %s", tp_status_name(status), tp_status_name(expected),
                 tp_ctx_message(ctx));
    cr_assert_not_null(strstr(tp_ctx_message(ctx), words), "\"%s\" is not in \"%s\"", words, tp_ctx_message(ctx));
    cr_assert_eq(tp_ctx_failure(ctx), TP_OK);
}

static tp_status misuse(tp_ctx *ctx, tpt_scene *scene, tpt_actor *actor)
{
    static const char inside[] = "not between tp_graph_begin and tp_graph_end";
    int32_t word = 0;
    float norm;
    tp_graph *graph = NULL, *empty = NULL;
    (void)scene;
    refused(ctx, tp_graph_end(ctx, &graph), TP_ERR_STATE, "tp_graph_begin was not called");
    TPI_TRY(tpt_scene_step(ctx, actor));
    TPI_TRY(tp_graph_begin(ctx));
    refused(ctx, tp_graph_begin(ctx), TP_ERR_STATE, inside);
    refused(ctx, tp_ctx_synchronize(ctx), TP_ERR_STATE, inside);
    refused(ctx, tp_ctx_upload(ctx, actor->batch, &word, sizeof word), TP_ERR_STATE, inside);
    refused(ctx, tp_ctx_download(ctx, &word, actor->batch, sizeof word), TP_ERR_STATE, inside);
    refused(ctx, tp_optimizer_step(ctx, actor->optimizer, 1, NULL), TP_ERR_STATE, inside);
    refused(ctx, tp_params_grad_norm(ctx, actor->params, actor->count, &norm), TP_ERR_STATE, inside);
    refused(ctx, tp_graph_launch(ctx, NULL), TP_ERR_ARGUMENT, "graph");
    TPI_TRY(tpt_scene_gradients(ctx, actor));
    TPI_TRY(tp_graph_end(ctx, &graph));
    TPI_TRY(tp_graph_begin(ctx));
    refused(ctx, tp_graph_launch(ctx, graph), TP_ERR_STATE, inside);
    TPI_TRY(tp_graph_end(ctx, &empty));
    for (int i = 0; i < 2; i++) {
        TPI_TRY(tp_graph_launch(ctx, empty));
        TPI_TRY(tp_graph_launch(ctx, graph));
    }
    TPI_TRY(tpt_scene_step(ctx, actor));
    tp_graph_destroy(graph);
    tp_graph_destroy(empty);
    return TP_OK;
}

Test(cuda_capture, what_waits_is_refused_and_changes_nothing, .timeout = 100)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        tpt_scene scene = {.ranks = ranks, .devices = ranks, .dtype = TP_DTYPE_F32, .act = misuse};
        tpt_gpus_turn((unsigned)ranks);
        cr_assert_eq(tpt_scene_run(&scene), TP_OK, "%s", tp_last_message());
        tpt_gpus_clean("misuse");
    }
}

/* The last rank leaves in the middle of a capture; the others are freed, and nothing is left. */
static tp_status leave(tp_ctx *ctx, tpt_scene *scene, tpt_actor *actor)
{
    tp_graph *graph = NULL;
    TPI_TRY(tpt_scene_step(ctx, actor));
    TPI_TRY(tp_graph_begin(ctx));
    if (tp_ctx_rank(ctx) == scene->ranks - 1) {
        tp_comm_abort(ctx, tp_ctx_world(ctx), TP_ERR_IO, "the data is gone");
        return TP_ERR_IO;
    }
    TPI_TRY(tpt_scene_gradients(ctx, actor));
    return tp_graph_end(ctx, &graph);
}

Test(cuda_capture, a_rank_that_leaves_frees_its_peers, .timeout = 100)
{
    for (int ranks = 2; ranks <= 4; ranks += 2) {
        tpt_scene scene = {.ranks = ranks, .devices = 2, .dtype = TP_DTYPE_F32, .act = leave, .timeout_ms = 60000};
        tpt_gpus_turn((unsigned)ranks);
        cr_assert_eq(tpt_scene_run(&scene), TP_ERR_IO, "%s", tp_last_message());
        for (int rank = 0; rank < ranks - 1; rank++)
            cr_assert_eq(scene.status[rank], TP_ERR_PEER, "rank %d: %s: %s", rank, tp_status_name(scene.status[rank]),
                         scene.message[rank]);
        tpt_gpus_clean("a rank that leaves");
    }
}

/* Ranks that NCCL connects wait in NCCL's kernels. */
static tp_status begin_refused(tp_ctx *ctx, void *arg)
{
    const char *words = arg;
    refused(ctx, tp_graph_begin(ctx), TP_ERR_UNSUPPORTED, words);
    return tp_barrier(ctx, tp_ctx_world(ctx));
}

Test(cuda_capture, the_cpu_and_nccl_are_refused)
{
    char cpu[] = "the cpu backend has no graphs", nccl[] = "connected by nccl can't be captured together";
    cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = 2, .ctx = {.threads = 1}}, begin_refused, cpu), TP_OK, "%s",
                 tp_last_message());
    tpt_gpus_turn(0);
    tp_device_info info;
    if (tp_device_describe(TP_DEVICE_CUDA, 1, TPT_CUDA_PLUGIN, &info) != TP_OK)
        cr_skip_test("needs two GPUs");
    const tp_run_options options = {.ranks = 2,
                                    .devices = 2,
                                    .transport = TP_TRANSPORT_NCCL,
                                    .ctx = {.device = TP_DEVICE_CUDA, .plugin = TPT_CUDA_PLUGIN, .threads = 1}};
    cr_assert_eq(tp_run_ranks(&options, begin_refused, nccl), TP_OK, "%s", tp_last_message());
    tpt_gpus_clean("NCCL");
}

/* A dry run does all of it without a GPU. */
Test(cuda_capture, a_dry_run)
{
    tp_ctx *ctx;
    tp_graph *graph = NULL;
    const tp_ctx_desc desc = {.device = TP_DEVICE_CUDA, .plugin = TPT_CUDA_PLUGIN, .dry_run = true, .mesh = {.tp = 4}};
    cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_OK, "%s", tp_last_message());
    cr_assert_eq(tp_graph_begin(ctx), TP_OK, "%s", tp_ctx_message(ctx));
    cr_assert_eq(tp_barrier(ctx, tp_ctx_world(ctx)), TP_OK, "%s", tp_ctx_message(ctx));
    cr_assert_eq(tp_graph_end(ctx, &graph), TP_OK, "%s", tp_ctx_message(ctx));
    cr_assert_eq(tp_graph_launch(ctx, graph), TP_OK, "%s", tp_ctx_message(ctx));
    tp_graph_destroy(graph);
    tp_ctx_destroy(ctx);
}
