/* Ranks that are processes, in tests. Threads stand for them: the simulated GPUs are in one. */
#ifndef TPT_NCCL_PROCESSES_H
#define TPT_NCCL_PROCESSES_H

#include <pthread.h>

#include "cuda/nccl_script.h"

/* Calls of a context before its first operation, by the simulator's count: memory, and a window of it, for its two
 * communicators. */
enum { CREATION = 4 };

/* How it ended on each rank. */
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

static inline void all_well(const outcome *all, int ranks, const char *what)
{
    for (int rank = 0; rank < ranks; rank++)
        cr_assert_eq(all->status[rank], TP_OK, "%s: rank %d of %d: %s", what, rank, ranks, all->message[rank]);
    tpt_gpus_clean(what);
}

/* Rank 1 failed this way, the others heard of it, and all say so. */
static inline void one_failed(const outcome *all, int ranks, tp_status status, const char *says)
{
    for (int rank = 0; rank < ranks; rank++) {
        const char *message = all->message[rank];
        cr_assert_eq(all->status[rank], rank == 1 ? status : TP_ERR_PEER, "%s: rank %d: %s", says, rank, message);
        cr_assert_not_null(strstr(message, says), "%s: rank %d: %s", says, rank, message);
    }
}

typedef struct process {
    tp_process_desc desc;
    tpt_rank_fn fn;
    void *arg;
    outcome *ends;
} process;

static inline void note_end(const process *own, const char *message)
{
    char *to = own->ends->message[own->desc.rank];
    if (!to[0])
        snprintf(to, sizeof own->ends->message[0], "%s", message);
}

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
        note_end(own, tp_ctx_failure(ctx) ? tp_ctx_message(ctx) : tp_last_message());
    tp_ctx_destroy(ctx);
    return status;
}

static inline void *run_process(void *pointer)
{
    process *own = pointer;
    tp_world *world;
    tp_status status = tp_world_create_processes(&own->desc, &world);
    if (status == TP_OK) {
        status = run_context(own, world);
        tp_world_destroy(world);
    }
    if (status != TP_OK)
        note_end(own, tp_last_message());
    own->ends->status[own->desc.rank] = status;
    return NULL;
}

static inline void run_processes(int ranks, tpt_rank_fn fn, void *arg, outcome *ends)
{
    pthread_t threads[MAX_RANKS];
    process own[MAX_RANKS];
    int port = tpt_free_port();
    *ends = (outcome){.status = {TP_OK}};
    for (int rank = 0; rank < ranks; rank++) {
        own[rank] = (process){.fn = fn, .arg = arg, .ends = ends};
        own[rank].desc =
            (tp_process_desc){.rank = rank, .ranks = ranks, .address = "127.0.0.1", .port = port, .timeout_ms = 60000};
        cr_assert_eq(pthread_create(&threads[rank], NULL, run_process, &own[rank]), 0);
    }
    for (int rank = 0; rank < ranks; rank++)
        pthread_join(threads[rank], NULL);
}

#endif
