/* Work for mutants of waits: whole steps of a model, with their optimizer's, and in a graph. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/graph.h>

#include "core/context.h"
#include "cuda/gpus.h"
#include "cuda/step_scene.h"
#include "cuda/sync_mutants.h"
#include "cuda/sync_sites.h"
#include "support/data.h"

typedef struct step_program {
    int ranks, devices;
    tp_overlap overlap;
    tp_transport transport;
    bool in_graph;
} step_program;

static const step_program programs[] = {
    {2, 2, TP_OVERLAP_NONE, TP_TRANSPORT_AUTO, false},
    {2, 2, TP_OVERLAP_PULL, TP_TRANSPORT_AUTO, false},
    {2, 1, TP_OVERLAP_RING, TP_TRANSPORT_AUTO, false},
    {2, 2, TP_OVERLAP_PIPELINE, TP_TRANSPORT_NCCL, false},
    {2, 2, TP_OVERLAP_PULL, TP_TRANSPORT_AUTO, true},
    {2, 1, TP_OVERLAP_RING, TP_TRANSPORT_AUTO, true},
};

typedef struct step_run {
    tpt_outcome *outcome;
    bool in_graph;
    uint64_t hash[TPT_SCENE_RANKS];
} step_run;

static tp_status step(tp_ctx *ctx, tpt_actor *actor, tpt_parts *parts)
{
    TPI_TRY(tp_params_zero_grad(ctx, actor->params, actor->count));
    tpt_part(parts, "forward");
    TPI_TRY(tp_model_forward(ctx, actor->model, &actor->pass, actor->saved));
    tpt_part(parts, "backward");
    TPI_TRY(tp_model_backward(ctx, actor->model, &actor->pass, actor->saved));
    tpt_part(parts, "finish");
    TPI_TRY(tp_params_finish(ctx, actor->params, actor->count));
    tpt_part(parts, "optimizer");
    TPI_TRY(tp_optimizer_step(ctx, actor->optimizer, 1e-2f, NULL));
    tpt_part(parts, NULL);
    return TP_OK;
}

static tp_status steps(tp_ctx *ctx, tpt_actor *actor, tpt_parts *parts)
{
    for (int turn = 0; turn < 3; turn++) {
        parts->counts = turn == 1;
        TPI_TRY(step(ctx, actor, parts));
    }
    return TP_OK;
}

/* The waits of the body are those of a step. The optimizer writes what the next launch reads on all ranks, and reads
 * what it wrote. */
static tp_status graph_steps(tp_ctx *ctx, tpt_actor *actor, tpt_parts *parts, tp_graph **out)
{
    TPI_TRY(step(ctx, actor, parts));
    parts->counts = true;
    tpt_part(parts, "graph begin");
    TPI_TRY(tp_graph_begin(ctx));
    tpt_part(parts, NULL);
    TPI_TRY(tpt_scene_gradients(ctx, actor));
    tpt_part(parts, "graph end");
    TPI_TRY(tp_graph_end(ctx, out));
    tpt_part(parts, NULL);
    for (int turn = 0; turn < 3; turn++) {
        parts->counts = turn == 1;
        tpt_part(parts, "graph launch");
        TPI_TRY(tp_graph_launch(ctx, *out));
        tpt_part(parts, NULL);
        TPI_TRY(tp_optimizer_step(ctx, actor->optimizer, 1e-2f, NULL));
    }
    return TP_OK;
}

static tp_status graphs(tp_ctx *ctx, tpt_actor *actor, tpt_parts *parts)
{
    tp_graph *graph = NULL;
    tp_status status = graph_steps(ctx, actor, parts, &graph);
    tp_graph_destroy(graph);
    return status;
}

static tp_status hash_values(tp_ctx *ctx, const tpt_actor *actor, uint64_t *hash)
{
    for (int i = 0; i < actor->count; i++) {
        int64_t elements = tp_param_elements(actor->params[i]);
        for (int gradient = 0; gradient < 2; gradient++) {
            float *whole = tpt_array(TP_DTYPE_F32, elements);
            tp_status status = tp_param_gather(ctx, actor->params[i], gradient, whole);
            for (int64_t k = 0; k < elements && status == TP_OK; k++) {
                uint32_t bits;
                memcpy(&bits, &whole[k], sizeof bits);
                *hash = (*hash ^ bits) * 0x100000001B3u;
            }
            free(whole);
            TPI_TRY(status);
        }
    }
    return TP_OK;
}

static tp_status act(tp_ctx *ctx, tpt_scene *scene, tpt_actor *actor)
{
    step_run *run = scene->own;
    int rank = tp_ctx_rank(ctx);
    tpt_parts parts = {.outcome = run->outcome, .rank = rank};
    tpt_gpus_thread(rank + 1);
    TPI_TRY(tp_ctx_synchronize(ctx));
    tpt_sites_watch(ctx, &parts);
    tp_status status = run->in_graph ? graphs(ctx, actor, &parts) : steps(ctx, actor, &parts);
    tpt_sites_leave(ctx);
    TPI_TRY(status);
    if (rank == 0)
        run->outcome->parts = parts.count;
    run->hash[rank] = 0xCBF29CE484222325u;
    TPI_TRY(hash_values(ctx, actor, &run->hash[rank]));
    tpt_work_end_if_reported(run->outcome);
    return TP_OK;
}

static void run_steps(const tpt_work *work, tpt_outcome *outcome)
{
    const step_program *program = work->arg;
    step_run run = {.outcome = outcome, .in_graph = program->in_graph};
    tpt_scene scene = {.ranks = program->ranks,
                       .devices = program->devices,
                       .dtype = TP_DTYPE_F32,
                       .overlap = program->overlap,
                       .chunks = 2, /* the plans of sync_waits.c */
                       .transport = program->transport,
                       .timeout_ms = 20000,
                       .act = act,
                       .own = &run};
    outcome->status = tpt_scene_run(&scene);
    for (int rank = 0; rank < program->ranks; rank++)
        outcome->hash = (outcome->hash ^ run.hash[rank]) * 0x100000001B3u;
}

bool tpt_step_work(int number, tpt_work *out)
{
    if (number < 0 || (size_t)number >= sizeof programs / sizeof programs[0])
        return false;
    const step_program *program = &programs[number];
    *out = (tpt_work){.run = run_steps, .number = number, .threads = program->ranks, .arg = program};
    snprintf(out->name, sizeof out->name, "model step with %s on %d ranks%s%s", tp_overlap_name(program->overlap),
             program->ranks, program->transport == TP_TRANSPORT_NCCL ? " over NCCL" : "",
             program->in_graph ? ", in a graph" : "");
    return true;
}
