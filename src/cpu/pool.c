/* The threads of a rank, and the memory of each. A parallel call is open while the caller works; workers that wake in
 * time enter it, take parts from a common counter and leave; workers that wake late find it closed, so nobody waits for
 * a thread that still sleeps. */
#include <string.h>

#include "cpu/float_mode.h"
#include "cpu/state.h"

typedef struct pool_job {
    tpi_cpu_part fn;
    void *arg;
    int64_t parts;
} pool_job;

typedef struct pool_worker {
    tpi_cpu_pool *pool;
    pthread_t thread;
    int number;
} pool_worker;

struct tpi_cpu_pool {
    tp_ctx *ctx;
    int workers; /* without the caller */
    int started;
    pthread_mutex_t callers; /* one parallel call at a time */
    tpi_counter calls;       /* parallel calls so far, plus one for stop */
    pthread_mutex_t lock;    /* of what follows */
    pthread_cond_t left;
    bool open, stop;
    pool_job job;
    atomic_int active; /* workers inside */
    atomic_int_fast64_t next;
    pool_worker worker[]; /* [workers] */
};

static tpi_cpu_state *state_of(const tp_ctx *ctx)
{
    return ctx->device_state;
}

static void run_parts(tpi_cpu_pool *pool, const pool_job *job, int worker)
{
    for (;;) {
        int64_t part = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (part >= job->parts)
            return;
        job->fn(job->arg, part, worker);
    }
}

static bool enter(tpi_cpu_pool *pool, pool_job *job, bool *stop)
{
    pthread_mutex_lock(&pool->lock);
    bool entered = pool->open;
    if (entered) {
        *job = pool->job;
        atomic_fetch_add(&pool->active, 1);
    }
    *stop = pool->stop;
    pthread_mutex_unlock(&pool->lock);
    return entered;
}

static void leave(tpi_cpu_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    if (atomic_fetch_sub(&pool->active, 1) == 1)
        pthread_cond_signal(&pool->left);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker_main(void *argument)
{
    const pool_worker *self = argument;
    tpi_cpu_pool *pool = self->pool;
    tpi_float_mode_default(); /* threads inherit their creator's */
    uint64_t seen = 0;
    bool stop = false;
    while (!stop) {
        tpi_counter_wait(&pool->calls, seen + 1, state_of(pool->ctx)->spin_ns, TPI_WAIT_FOREVER);
        seen = tpi_counter_get(&pool->calls);
        pool_job job;
        if (enter(pool, &job, &stop)) {
            run_parts(pool, &job, self->number);
            leave(pool);
        }
    }
    return NULL;
}

/* No worker may enter any more; waits for those inside. */
static void close_call(tpi_cpu_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->open = false;
    pthread_mutex_unlock(&pool->lock);
    double end = tpi_seconds() + 1e-9 * (double)state_of(pool->ctx)->spin_ns;
    while (atomic_load(&pool->active) > 0 && tpi_seconds() < end)
        tpi_pause();
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&pool->active) > 0)
        pthread_cond_wait(&pool->left, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

static void pool_run(tpi_cpu_pool *pool, const pool_job *job)
{
    pthread_mutex_lock(&pool->callers);
    pthread_mutex_lock(&pool->lock);
    pool->job = *job;
    atomic_store(&pool->next, 0);
    pool->open = true;
    pthread_mutex_unlock(&pool->lock);
    tpi_counter_raise(&pool->calls, tpi_counter_get(&pool->calls) + 1);
    run_parts(pool, job, 0);
    close_call(pool);
    pthread_mutex_unlock(&pool->callers);
}

void tpi_cpu_parallel(tp_ctx *ctx, int64_t parts, tpi_cpu_part fn, void *arg)
{
    tpi_cpu_pool *pool = state_of(ctx)->pool;
    if (ctx->desc.dry_run)
        return;
    if (pool && parts > 1 && !tpi_cpu_lane_slot()) {
        pool_run(pool, &(pool_job){fn, arg, parts});
        return;
    }
    for (int64_t part = 0; part < parts; part++)
        fn(arg, part, 0);
}

int tpi_cpu_workers(const tp_ctx *ctx)
{
    return tpi_cpu_lane_slot() ? 1 : ctx->desc.threads;
}

static size_t pool_bytes(int workers)
{
    return sizeof(tpi_cpu_pool) + (size_t)workers * sizeof(pool_worker);
}

tp_status tpi_cpu_pool_create(tp_ctx *ctx, int threads, tpi_cpu_pool **out)
{
    *out = NULL;
    if (threads <= 1)
        return TP_OK;
    int workers = threads - 1;
    tpi_cpu_pool *pool = tpi_host_allocate(ctx, pool_bytes(workers));
    if (!pool)
        return TP_ERR_MEMORY;
    pool->ctx = ctx;
    pool->workers = workers;
    pthread_mutex_init(&pool->callers, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    tpi_condition_init(&pool->left);
    tpi_counter_init(&pool->calls);
    int error = 0;
    for (int i = 0; i < workers && error == 0; i++) {
        pool->worker[i].pool = pool;
        pool->worker[i].number = i + 1;
        error = tpi_cpu_thread_start(&pool->worker[i].thread, worker_main, &pool->worker[i]);
        pool->started += error == 0;
    }
    if (error != 0) {
        int started = pool->started + 1;
        tpi_cpu_pool_destroy(ctx, pool);
        return tpi_refuse(ctx, TP_ERR_BACKEND, "tp_ctx_desc.threads is %d, but only %d could be started: %s", threads,
                          started, strerror(error));
    }
    *out = pool;
    return TP_OK;
}

void tpi_cpu_pool_destroy(tp_ctx *ctx, tpi_cpu_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_mutex_unlock(&pool->lock);
    tpi_counter_raise(&pool->calls, tpi_counter_get(&pool->calls) + 1);
    for (int i = 0; i < pool->started; i++)
        pthread_join(pool->worker[i].thread, NULL);
    tpi_counter_destroy(&pool->calls);
    pthread_cond_destroy(&pool->left);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->callers);
    tpi_host_release(ctx, pool, pool_bytes(pool->workers));
}

tpi_cpu_workspace_slot *tpi_cpu_slot(const tp_ctx *ctx, int worker)
{
    tpi_cpu_workspace_slot *lane = tpi_cpu_lane_slot();
    return lane ? lane : &state_of(ctx)->workspace[worker];
}

void tpi_cpu_slot_free(tp_ctx *ctx, tpi_cpu_workspace_slot *slot)
{
    tp_ctx_release(ctx, TP_MEMORY_SCRATCH, slot->memory, slot->bytes);
    *slot = (tpi_cpu_workspace_slot){NULL, 0};
}

tp_status tpi_cpu_reserve(tp_ctx *ctx, size_t bytes)
{
    int workers = tpi_cpu_workers(ctx);
    for (int worker = 0; worker < workers; worker++) {
        tpi_cpu_workspace_slot *slot = tpi_cpu_slot(ctx, worker);
        if (slot->bytes >= bytes)
            continue;
        tpi_cpu_slot_free(ctx, slot);
        void *memory;
        tp_status status = tp_ctx_allocate(ctx, TP_MEMORY_SCRATCH, bytes, &memory);
        if (status != TP_OK)
            return tpi_fail(ctx, status, "out of memory: %zu bytes of workspace for worker %d of %d", bytes, worker,
                            workers);
        *slot = (tpi_cpu_workspace_slot){memory, bytes};
    }
    return TP_OK;
}

void *tpi_cpu_workspace(tp_ctx *ctx, int worker)
{
    return tpi_cpu_slot(ctx, worker)->memory;
}
