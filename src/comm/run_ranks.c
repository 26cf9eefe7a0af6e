/* tp_run_ranks: a thread with a context for every rank. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/threads.h"

typedef struct rank_job {
    const tp_run_options *options;
    tp_world *world;
    int rank;
    tp_status (*fn)(tp_ctx *ctx, void *arg);
    void *arg;
    pthread_t thread;
    tp_status status;
    char message[TPI_MESSAGE_BYTES];
} rank_job;

/* Keeps the message for the verdict, and frees who waits for this rank. */
static void failed(rank_job *job, tp_status status, const char *message)
{
    snprintf(job->message, sizeof job->message, "%s", message);
    tpi_world_abort(job->world, job->rank, status, message);
}

static tp_status run_fn(rank_job *job, tp_ctx *ctx)
{
    tp_status status = job->fn(ctx, job->arg);
    /* Work that fn didn't wait for may fail too. */
    if (status == TP_OK && tp_ctx_failure(ctx) == TP_OK)
        status = tp_ctx_synchronize(ctx);
    if (status != TP_OK)
        failed(job, status, tp_ctx_failure(ctx) != TP_OK ? tp_ctx_message(ctx) : tp_last_message());
    return status;
}

/* The thread's cores become the rank's share of them; threads that it starts inherit that. */
static void bind_to_share(int rank, int ranks)
{
    cpu_set_t all, share;
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < ranks)
        return;
    int each = CPU_COUNT(&all) / ranks, number = 0;
    CPU_ZERO(&share);
    for (size_t core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &all) && number++ / each == rank)
            CPU_SET(core, &share);
    sched_setaffinity(0, sizeof share, &share); /* if the system won't have it, nothing but time is lost */
}

static void *run_rank(void *pointer)
{
    rank_job *job = pointer;
    if (job->options->bind_cores)
        bind_to_share(job->rank, job->world->desc.ranks);
    tp_ctx_desc desc = job->options->ctx;
    desc.world = job->world;
    desc.rank = job->rank;
    if (job->options->devices > 1)
        desc.device_index += job->rank % job->options->devices;
    tp_ctx *ctx = NULL;
    job->status = tp_ctx_create(&desc, &ctx);
    if (job->status != TP_OK) {
        failed(job, job->status, tp_last_message());
        return NULL;
    }
    job->status = run_fn(job, ctx);
    tp_ctx_destroy(ctx);
    return NULL;
}

/* Starts all, joins all that started. */
static void run_jobs(rank_job *jobs, int ranks)
{
    int started = 0;
    while (started < ranks && pthread_create(&jobs[started].thread, NULL, run_rank, &jobs[started]) == 0)
        started++;
    if (started < ranks) {
        char message[64];
        snprintf(message, sizeof message, "no thread for rank %d of %d", started, ranks);
        jobs[started].status = TP_ERR_MEMORY;
        failed(&jobs[started], TP_ERR_MEMORY, message);
    }
    for (int rank = 0; rank < started; rank++)
        pthread_join(jobs[rank].thread, NULL);
}

/* A refusal for want of a peer's memory may have been the first to end a rank: the peer's own status counts. */
static const rank_job *culprit_of(const rank_job *jobs, int ranks)
{
    for (int rank = 0; rank < ranks; rank++)
        if (jobs[rank].status != TP_OK && jobs[rank].status != TP_ERR_PEER)
            return &jobs[rank];
    return NULL;
}

static tp_status verdict(const rank_job *jobs, int ranks)
{
    const tp_world *world = jobs->world;
    tp_status first = (tp_status)atomic_load(&world->failed);
    const rank_job *culprit = first == TP_ERR_PEER ? culprit_of(jobs, ranks) : NULL;
    if (culprit != NULL)
        return tpi_message(culprit->status, "rank %d: %s", culprit->rank, culprit->message);
    for (int rank = 0; rank < ranks; rank++)
        if (jobs[rank].status != TP_OK)
            return tpi_message(first, "rank %d: %s", world->failed_rank, world->message);
    return TP_OK;
}

tp_status tp_run_ranks(const tp_run_options *options, tp_status (*fn)(tp_ctx *ctx, void *arg), void *arg)
{
    const tp_run_options defaults = {.ranks = 1};
    if (!options)
        options = &defaults;
    if (!fn)
        return tpi_message(TP_ERR_ARGUMENT, "fn is NULL");
    if (options->devices < 0)
        return tpi_message(TP_ERR_ARGUMENT, "devices is %d, must not be negative", options->devices);
    const tp_world_desc desc = {
        .ranks = options->ranks == 0 ? 1 : options->ranks,
        .link = options->link,
        .check_calls = options->check_calls,
        .timeout_ms = options->ctx.timeout_ms,
        .transport = options->transport,
        .peer_kernels = options->peer_kernels,
    };
    tp_world *world = NULL;
    TPI_TRY(tp_world_create_threads(&desc, &world));
    world->single_use = true;
    rank_job *jobs = calloc((size_t)desc.ranks, sizeof *jobs);
    if (!jobs) {
        tp_world_destroy(world);
        return tpi_message(TP_ERR_MEMORY, "no memory for %d ranks", desc.ranks);
    }
    for (int rank = 0; rank < desc.ranks; rank++)
        jobs[rank] = (rank_job){.options = options, .world = world, .rank = rank, .fn = fn, .arg = arg};
    run_jobs(jobs, desc.ranks);
    tp_status status = verdict(jobs, desc.ranks);
    free(jobs);
    tp_world_destroy(world);
    return status;
}
