#include "cuda/step_scene.h"

#include <stdio.h>
#include <string.h>

#include "core/context.h"
#include "support/training.h"
#include "support/devices.h"

static tp_status make(tp_ctx *ctx, tpt_scene *scene, tpt_actor *actor)
{
    const tp_model_desc shape = {.family = TP_MODEL_LLAMA,
                                 .layers = 1,
                                 .hidden = 16,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .ffn = 21,
                                 .vocabulary = TPT_SCENE_VOCABULARY,
                                 .positions = 6,
                                 .overlap = scene->overlap,
                                 .chunks = scene->chunks,
                                 .sequence_parallel = true,
                                 .dtype = scene->dtype};
    const size_t bytes = TPT_SCENE_TOKENS * sizeof(int32_t);
    int32_t ids[TPT_SCENE_TOKENS], targets[TPT_SCENE_TOKENS];
    tpt_make_batch(ids, targets, TPT_SCENE_TOKENS, TPT_SCENE_VOCABULARY, 0);
    if (scene->wrong_id != 0)
        ids[3] = scene->wrong_id;
    TPI_TRY(tp_model_create(ctx, &shape, &actor->model));
    actor->params = tp_model_params(actor->model, &actor->count);
    TPI_TRY(tp_params_init(ctx, actor->params, actor->count));
    TPI_TRY(tp_optimizer_create(ctx, &(tp_optimizer_desc){.kind = TP_OPTIMIZER_ADAMW, .clip_norm = 1}, actor->params,
                                actor->count, &actor->optimizer));
    actor->pass =
        (tp_pass){.tokens = TPT_SCENE_TOKENS, .sequences = TPT_SCENE_SEQUENCES, .loss_scale = 1.0f / TPT_SCENE_TOKENS};
    actor->saved_bytes = tp_model_saved_bytes(actor->model, &actor->pass);
    TPI_TRY(tp_ctx_allocate(ctx, TP_MEMORY_SAVED, actor->saved_bytes, &actor->saved));
    TPI_TRY(tp_ctx_allocate(ctx, TP_MEMORY_OTHER, 2 * bytes, &actor->batch));
    actor->pass.ids = actor->batch;
    actor->pass.targets = (int32_t *)actor->batch + TPT_SCENE_TOKENS;
    TPI_TRY(tp_ctx_upload(ctx, actor->batch, ids, bytes));
    return tp_ctx_upload(ctx, (int32_t *)actor->batch + TPT_SCENE_TOKENS, targets, bytes);
}

static void unmake(tp_ctx *ctx, tpt_actor *actor)
{
    tp_ctx_synchronize(ctx);
    tp_optimizer_destroy(actor->optimizer);
    tp_model_destroy(actor->model);
    if (actor->saved != NULL)
        tp_ctx_release(ctx, TP_MEMORY_SAVED, actor->saved, actor->saved_bytes);
    if (actor->batch != NULL)
        tp_ctx_release(ctx, TP_MEMORY_OTHER, actor->batch, 2 * TPT_SCENE_TOKENS * sizeof(int32_t));
}

static tp_status play(tp_ctx *ctx, void *arg)
{
    tpt_scene *scene = arg;
    tpt_actor actor = {0};
    int rank = tp_ctx_rank(ctx);
    tp_status status = scene->before != NULL ? scene->before(ctx, scene) : TP_OK;
    if (status == TP_OK)
        status = make(ctx, scene, &actor);
    if (status == TP_OK)
        status = scene->act(ctx, scene, &actor);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    scene->status[rank] = status;
    snprintf(scene->message[rank], sizeof scene->message[rank], "%s", status != TP_OK ? tp_ctx_message(ctx) : "");
    if (status != TP_OK) /* as tp_run_ranks does when this returns; freeing may wait for peers before that */
        tp_comm_abort(ctx, tp_ctx_world(ctx), status, scene->message[rank]);
    unmake(ctx, &actor);
    if (scene->after != NULL)
        scene->after(ctx, scene);
    return status;
}

tp_status tpt_scene_run(tpt_scene *scene)
{
    tp_run_options options = {
        .ranks = scene->ranks,
        .devices = scene->devices,
        .transport = scene->transport,
        .ctx = {.threads = 1, .seed = 9, .sum_order = scene->sum_order, .timeout_ms = scene->timeout_ms}};
    if (scene->devices > 0) {
        options.ctx.device = TP_DEVICE_CUDA;
        options.ctx.plugin = TPT_CUDA_PLUGIN;
    }
    for (int rank = 0; rank < TPT_SCENE_RANKS; rank++)
        scene->status[rank] = TP_ERR_INTERNAL;
    pthread_barrier_init(&scene->meeting, NULL, (unsigned)scene->ranks);
    tp_status status = tpt_run_ranks(&options, play, scene);
    pthread_barrier_destroy(&scene->meeting);
    return status;
}

tp_status tpt_scene_gradients(tp_ctx *ctx, tpt_actor *actor)
{
    TPI_TRY(tp_params_zero_grad(ctx, actor->params, actor->count));
    TPI_TRY(tp_model_forward(ctx, actor->model, &actor->pass, actor->saved));
    TPI_TRY(tp_model_backward(ctx, actor->model, &actor->pass, actor->saved));
    return tp_params_finish(ctx, actor->params, actor->count);
}

tp_status tpt_scene_step(tp_ctx *ctx, tpt_actor *actor)
{
    TPI_TRY(tpt_scene_gradients(ctx, actor));
    return tp_optimizer_step(ctx, actor->optimizer, 1e-2f, NULL);
}
