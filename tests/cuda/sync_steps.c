/* Work for mutants of waits: whole steps of a model, with their optimizer's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "cuda/gpus.h"
#include "cuda/step_scene.h"
#include "cuda/sync_mutants.h"
#include "support/data.h"

typedef struct step_program {
    int ranks, devices;
    tp_overlap overlap;
    tp_transport transport;
} step_program;

static const step_program programs[] = {
    {2, 2, TP_OVERLAP_NONE, TP_TRANSPORT_AUTO},
    {2, 2, TP_OVERLAP_PULL, TP_TRANSPORT_AUTO},
    {2, 1, TP_OVERLAP_RING, TP_TRANSPORT_AUTO},
    {2, 2, TP_OVERLAP_PIPELINE, TP_TRANSPORT_NCCL},
};

typedef struct step_run {
    tpt_outcome *outcome;
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
    for (int turn = 0; turn < 3; turn++) {
        parts.counts = turn == 1;
        TPI_TRY(step(ctx, actor, &parts));
    }
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
    step_run run = {.outcome = outcome};
    tpt_scene scene = {.ranks = program->ranks,
                       .devices = program->devices,
                       .dtype = TP_DTYPE_F32,
                       .overlap = program->overlap,
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
    snprintf(out->name, sizeof out->name, "model step with %s on %d ranks%s", tp_overlap_name(program->overlap), program->ranks,
             program->transport == TP_TRANSPORT_NCCL ? " over NCCL" : "");
    return true;
}
