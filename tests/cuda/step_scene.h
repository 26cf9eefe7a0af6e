/* A small model on GPUs, one step at a time: what tests of allocations, captures and failures have in common. */
#ifndef TPT_CUDA_STEP_SCENE_H
#define TPT_CUDA_STEP_SCENE_H

#include <pthread.h>
#include <tp/comm.h>
#include <tp/model.h>
#include <tp/optimizer.h>

enum { TPT_SCENE_SEQUENCES = 2, TPT_SCENE_SEQUENCE = 5, TPT_SCENE_TOKENS = 10, TPT_SCENE_VOCABULARY = 23,
      TPT_SCENE_RANKS = 4 };

/* A rank's objects. */
typedef struct tpt_actor {
    tp_model *model;
    tp_optimizer *optimizer;
    tp_param *const *params;
    int count;
    void *saved, *batch;
    size_t saved_bytes;
    tp_pass pass;
} tpt_actor;

typedef struct tpt_scene {
    int ranks, devices; /* devices 0: the CPU */
    tp_dtype dtype;
    tp_sum_order sum_order;
    tp_overlap overlap;
    int chunks; /* of overlapped layers; 0: the algorithm's default */
    tp_transport transport;
    int32_t wrong_id; /* of the fourth token; 0: none */
    int64_t timeout_ms;
    /* What a rank does with its objects; before: what it does before it has them, or NULL; after: when they are
     * gone. */
    tp_status (*act)(tp_ctx *ctx, struct tpt_scene *scene, tpt_actor *actor);
    tp_status (*before)(tp_ctx *ctx, struct tpt_scene *scene);
    void (*after)(tp_ctx *ctx, struct tpt_scene *scene);
    void *own; /* the test's */
    pthread_barrier_t meeting; /* of all ranks */
    tp_status status[TPT_SCENE_RANKS]; /* how each rank ended, and what it was told */
    char message[TPT_SCENE_RANKS][256];
} tpt_scene;

/* Runs the scene on all ranks. */
tp_status tpt_scene_run(tpt_scene *scene);

/* The parts of a step. */
tp_status tpt_scene_gradients(tp_ctx *ctx, tpt_actor *actor); /* zeroes them, forward, backward, finish */
tp_status tpt_scene_step(tp_ctx *ctx, tpt_actor *actor);      /* those, and the optimizer's, without a report */

#endif
