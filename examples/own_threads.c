/* Without tp_run_ranks: the caller's own threads, buffers and allocator run a feed-forward layer on two ranks, forward
 * and backward. The result is compared, bit for bit, with that of one rank. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/tp.h>

enum { TOKENS = 5, HIDDEN = 16, FFN = 24, RANKS = 2, MESSAGE = 300 };

/* The caller's allocator: counts what is out. */
typedef struct pool {
    atomic_long blocks;
} pool;

static void *pool_allocate(void *user, size_t bytes, size_t alignment)
{
    pool *p = user;
    void *memory = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (memory != NULL)
        atomic_fetch_add(&p->blocks, 1);
    return memory;
}

static void pool_release(void *user, void *memory, size_t bytes)
{
    pool *p = user;
    (void)bytes;
    if (memory != NULL)
        atomic_fetch_sub(&p->blocks, 1);
    free(memory);
}

/* One rank's thread, with the caller's buffers. */
typedef struct worker {
    tp_world *world; /* NULL: alone */
    int rank;
    pool memory;
    float x[TOKENS][HIDDEN], y[TOKENS][HIDDEN], dy[TOKENS][HIDDEN], dx[TOKENS][HIDDEN];
    tp_status status;
    char message[MESSAGE];
} worker;

static tp_tensor matrix(void *data)
{
    return tp_tensor_2d(data, TP_DTYPE_F32, TOKENS, HIDDEN);
}

/* Forward and backward; what forward keeps lies in the caller's memory too. */
static tp_status run_layer(tp_ctx *ctx, tp_mlp *mlp, worker *w)
{
    tp_pass pass = {.tokens = TOKENS};
    size_t bytes = tp_mlp_saved_bytes(mlp, &pass);
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory == NULL)
        return TP_ERR_MEMORY;
    tp_mlp_saved saved = {.memory = memory, .bytes = bytes};
    tp_io forward = {.in = matrix(w->x), .out = matrix(w->y)}, backward = {.in = matrix(w->dy), .out = matrix(w->dx)};
    tp_param *params[4];
    int count = tp_mlp_params(mlp, params, 4);
    tp_status status = tp_params_init(ctx, params, count);
    if (status == TP_OK)
        status = tp_params_begin(ctx, params, count);
    if (status == TP_OK)
        status = tp_mlp_forward(ctx, mlp, &pass, &forward, &saved);
    if (status == TP_OK)
        status = tp_mlp_backward(ctx, mlp, &pass, &backward, &saved);
    if (status == TP_OK)
        status = tp_params_finish(ctx, params, count);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    free(memory);
    return status;
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    tp_ctx_desc desc = {.version = TP_VERSION, .world = w->world, .rank = w->rank, .seed = 7,
                        .allocator = {pool_allocate, pool_release, &w->memory}};
    tp_ctx *ctx;
    w->status = tp_ctx_create(&desc, &ctx);
    if (w->status != TP_OK) {
        snprintf(w->message, sizeof w->message, "%s", tp_last_message());
        return NULL;
    }
    tp_mlp *mlp;
    tp_mlp_desc shape = {.name = "mlp", .hidden = HIDDEN, .ffn = FFN, .activation = TP_ACTIVATION_SWIGLU,
                         .dtype = TP_DTYPE_F32, .bias = true};
    w->status = tp_mlp_create(ctx, &shape, &mlp);
    if (w->status == TP_OK)
        w->status = run_layer(ctx, mlp, w);
    if (w->status != TP_OK)
        snprintf(w->message, sizeof w->message, "%s", tp_ctx_message(ctx));
    tp_mlp_destroy(mlp);
    tp_ctx_destroy(ctx);
    return NULL;
}

static worker new_worker(tp_world *world, int rank)
{
    worker w = {.world = world, .rank = rank};
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < HIDDEN; i++) {
            w.x[t][i] = (float)((t * 7 + i * 3) % 11) / 4 - 1;
            w.dy[t][i] = (float)((t * 5 + i * 2) % 13) / 8 - 0.75f;
        }
    return w;
}

static int report(const worker *w, const char *who)
{
    if (w->status == TP_OK && atomic_load(&w->memory.blocks) == 0)
        return 0;
    fprintf(stderr, "own_threads: %s, rank %d: %s %s (%ld blocks not given back)\n", who, w->rank,
            tp_status_name(w->status), w->message, atomic_load(&w->memory.blocks));
    return 1;
}

int main(void)
{
    static worker alone, pair[RANKS];
    alone = new_worker(NULL, 0);
    worker_main(&alone);

    tp_world *world;
    if (tp_world_create_threads(&(tp_world_desc){.ranks = RANKS}, &world) != TP_OK) {
        fprintf(stderr, "own_threads: %s\n", tp_last_message());
        return 1;
    }
    pthread_t threads[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        pair[rank] = new_worker(world, rank);
        if (pthread_create(&threads[rank], NULL, worker_main, &pair[rank]) != 0)
            return 1;
    }
    int failures = report(&alone, "alone");
    for (int rank = 0; rank < RANKS; rank++) {
        pthread_join(threads[rank], NULL);
        failures += report(&pair[rank], "pair");
        failures += memcmp(pair[rank].y, alone.y, sizeof alone.y) != 0;
        failures += memcmp(pair[rank].dx, alone.dx, sizeof alone.dx) != 0;
    }
    tp_world_destroy(world);
    printf("own_threads: y[0][0] = %.6f, dx[0][0] = %.6f; two ranks %s one\n", (double)alone.y[0][0],
           (double)alone.dx[0][0], failures == 0 ? "equal" : "DIFFER FROM");
    return failures != 0;
}
