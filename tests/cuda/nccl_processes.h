/* Ranks that are processes, in tests. Threads stand for them: the simulated GPUs are in one. */
#ifndef TPT_NCCL_PROCESSES_H
#define TPT_NCCL_PROCESSES_H

#include <pthread.h>

#include "cuda/nccl_script.h"

typedef struct outcome {
    tp_status status[MAX_RANKS];
    char message[MAX_RANKS][256];
} outcome;

static inline tp_status note_outcome(tp_ctx *ctx, outcome *all, tp_status status)
{
    int rank = tp_ctx_rank(ctx);
    all->status[rank] = status;
    snprintf(all->message[rank], sizeof all->message[rank], "%s",
             tp_ctx_failure(ctx) ? tp_ctx_message(ctx) : tp_last_message());
    return status;
}

typedef struct process {
    tp_process_desc desc;
    tpt_rank_fn fn;
    void *arg;
    tp_status status;
    char message[256];
} process;

static inline tp_status run_context(process *own, tp_world *world)
{
    tp_ctx_desc desc = {.device = TP_DEVICE_CUDA, .plugin = TPT_CUDA_PLUGIN, .device_index = own->desc.rank,
                        .threads = 1, .world = world};
    tp_ctx *ctx;
    desc.rank = own->desc.rank;
    desc.timeout_ms = own->desc.timeout_ms;
    TPI_TRY(tp_ctx_create(&desc, &ctx));
    tp_status status = own->fn(ctx, own->arg);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    if (status != TP_OK)
        snprintf(own->message, sizeof own->message, "%s",
                 tp_ctx_failure(ctx) ? tp_ctx_message(ctx) : tp_last_message());
    tp_ctx_destroy(ctx);
    return status;
}

static inline void *run_process(void *pointer)
{
    process *own = pointer;
    tp_world *world;
    own->status = tp_world_create_processes(&own->desc, &world);
    if (own->status == TP_OK) {
        own->status = run_context(own, world);
        tp_world_destroy(world);
    }
    if (own->status != TP_OK && !own->message[0])
        snprintf(own->message, sizeof own->message, "%s", tp_last_message());
    return NULL;
}

static inline void run_processes(int ranks, tpt_rank_fn fn, void *arg, process *own)
{
    pthread_t threads[MAX_RANKS];
    int port = tpt_free_port();
    for (int rank = 0; rank < ranks; rank++) {
        own[rank] = (process){.fn = fn, .arg = arg};
        own[rank].desc =
            (tp_process_desc){.rank = rank, .ranks = ranks, .address = "127.0.0.1", .port = port, .timeout_ms = 60000};
        cr_assert_eq(pthread_create(&threads[rank], NULL, run_process, &own[rank]), 0);
    }
    for (int rank = 0; rank < ranks; rank++)
        pthread_join(threads[rank], NULL);
}

#endif
