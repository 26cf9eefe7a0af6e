/* The layers whose vocabulary is cut over ranks, embedding and cross-entropy, on GPUs: the bits of the CPU at TP 1, 2
 * and 4. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/comm.h>
#include <tp/embedding.h>
#include <tp/loss.h>

#include "core/context.h"
#include "cuda/gpus.h"
#include "support/data.h"
#include "support/devices.h"

enum { TOKENS = 23, VOCABULARY = 61, FEATURES = 19, POSITIONS = 16, SEQUENCES = 3 };

static const int64_t offsets[SEQUENCES + 1] = {0, 4, 7, TOKENS};

/* What goes in, and what comes out as whole tensors. */
typedef struct words {
    tp_dtype dtype;
    bool sequence_parallel;
    const void *dy, *logits;
    const float *table, *position;
    char y[TOKENS * FEATURES * 4], dlogits[TOKENS * VOCABULARY * 4];
    float table_grad[VOCABULARY * FEATURES], position_grad[POSITIONS * FEATURES], total[2];
    pthread_mutex_t lock;
} words;

static void make_ids(int32_t *ids, int32_t *targets)
{
    for (int t = 0; t < TOKENS; t++) {
        ids[t] = t % 5 == 0 ? VOCABULARY - 1 : t * t * 13 % VOCABULARY; /* repeats, and both ends */
        targets[t] = t % 4 == 3 ? -1 - t : t * t * 5 % VOCABULARY;
    }
    ids[1] = 0;
}

static tp_status up(tp_ctx *ctx, const void *host, size_t bytes, void **out)
{
    TPI_TRY(tp_ctx_allocate(ctx, TP_MEMORY_OTHER, bytes, out));
    return host != NULL ? tp_ctx_upload(ctx, *out, host, bytes) : TP_OK;
}

static tp_status embed(tp_ctx *ctx, words *w, tp_embedding *layer, const tp_pass *pass)
{
    tp_param *params[2];
    int count = tp_embedding_params(layer, params, 2);
    tp_range mine = tp_pass_rows(ctx, pass, w->sequence_parallel);
    size_t row = FEATURES * tp_dtype_size(w->dtype), bytes = (size_t)(mine.end - mine.begin) * row,
           begin = (size_t)mine.begin * row;
    tp_tensor y = tp_tensor_2d(NULL, w->dtype, mine.end - mine.begin, FEATURES), dy = y;
    TPI_TRY(tp_param_load(ctx, params[0], w->table, TP_DTYPE_F32, NULL));
    TPI_TRY(tp_param_load(ctx, params[1], w->position, TP_DTYPE_F32, NULL));
    TPI_TRY(up(ctx, NULL, bytes, &y.data));
    TPI_TRY(up(ctx, (const char *)w->dy + begin, bytes, &dy.data));
    TPI_TRY(tp_embedding_forward(ctx, layer, pass, y));
    for (int i = 0; i < 2; i++) /* gradients are added up */
        TPI_TRY(tp_embedding_backward(ctx, layer, pass, dy));
    TPI_TRY(tp_params_finish(ctx, params, count));
    char host[sizeof w->y];
    TPI_TRY(tp_ctx_download(ctx, host, y.data, bytes));
    float table[VOCABULARY * FEATURES], position[POSITIONS * FEATURES];
    TPI_TRY(tp_param_gather(ctx, params[0], 1, table));
    TPI_TRY(tp_param_gather(ctx, params[1], 1, position));
    pthread_mutex_lock(&w->lock);
    memcpy(w->y + begin, host, bytes);
    memcpy(w->table_grad, table, sizeof table);
    memcpy(w->position_grad, position, sizeof position);
    pthread_mutex_unlock(&w->lock);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, y.data, bytes);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, dy.data, bytes);
    return TP_OK;
}

/* This rank's columns of the logits, in or out. */
static void copy_columns(words *w, tp_range mine, char *local, char *global, bool out)
{
    size_t size = tp_dtype_size(w->dtype), bytes = (size_t)(mine.end - mine.begin) * size;
    for (size_t r = 0; r < TOKENS; r++) {
        char *there = global + (r * VOCABULARY + (size_t)mine.begin) * size, *here = local + r * bytes;
        memcpy(out ? there : here, out ? here : there, bytes);
    }
}

static tp_status lose(tp_ctx *ctx, words *w, const tp_pass *pass)
{
    const tp_cross_entropy_desc desc = {.vocabulary = VOCABULARY, .label_smoothing = 0.1f, .z_loss = 1e-3f};
    tp_comm *group = tp_ctx_group(ctx, TP_AXIS_TP);
    tp_range mine = tp_shard_range(VOCABULARY, tp_comm_size(group), tp_comm_rank(group));
    tp_tensor logits = tp_tensor_2d(NULL, w->dtype, TOKENS, mine.end - mine.begin);
    size_t bytes = tp_tensor_bytes(logits);
    char local[sizeof w->dlogits];
    const float zeros[2] = {0, 0};
    float total[2];
    void *sums;
    tp_cross_entropy_saved saved = {.bytes = tp_cross_entropy_saved_bytes(pass)};
    copy_columns(w, mine, local, (char *)(uintptr_t)w->logits, false);
    TPI_TRY(up(ctx, local, bytes, &logits.data));
    TPI_TRY(up(ctx, zeros, sizeof zeros, &sums));
    TPI_TRY(up(ctx, NULL, saved.bytes, &saved.memory));
    void *memory = saved.memory;
    TPI_TRY(tp_cross_entropy_forward(ctx, &desc, pass, logits, sums, &saved));
    TPI_TRY(tp_cross_entropy_backward(ctx, &desc, pass, &saved));
    TPI_TRY(tp_ctx_download(ctx, local, logits.data, bytes));
    TPI_TRY(tp_ctx_download(ctx, total, sums, sizeof total));
    pthread_mutex_lock(&w->lock);
    copy_columns(w, mine, local, w->dlogits, true);
    memcpy(w->total, total, sizeof total);
    pthread_mutex_unlock(&w->lock);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, logits.data, bytes);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, sums, sizeof zeros);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, memory, saved.bytes);
    return TP_OK;
}

static tp_status run_rank(tp_ctx *ctx, void *arg)
{
    words *w = arg;
    tp_embedding_desc desc = {.name = "wte",
                              .vocabulary = VOCABULARY,
                              .features = FEATURES,
                              .positions = POSITIONS,
                              .dtype = w->dtype,
                              .dropout = 0.25f,
                              .sequence_parallel = w->sequence_parallel,
                              .site = 3};
    int32_t words_in[2][TOKENS];
    void *memory;
    tp_embedding *layer;
    make_ids(words_in[0], words_in[1]);
    TPI_TRY(up(ctx, words_in, sizeof words_in, &memory));
    tp_pass pass = {.tokens = TOKENS,
                    .sequences = SEQUENCES,
                    .offsets = offsets,
                    .ids = memory,
                    .targets = (int32_t *)memory + TOKENS,
                    .loss_scale = 0.5f,
                    .step = 3,
                    .first_token = 11};
    TPI_TRY(tp_embedding_create(ctx, &desc, &layer));
    tp_status status = embed(ctx, w, layer, &pass);
    tp_embedding_destroy(layer);
    if (status == TP_OK)
        status = lose(ctx, w, &pass);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, memory, sizeof words_in);
    return status;
}

static void run(words *w, int ranks, int devices)
{
    tp_run_options options = {
        .ranks = ranks, .devices = devices, .ctx = {.threads = 1, .seed = 5, .timeout_ms = 60000}};
    if (devices > 0) {
        options.ctx.device = TP_DEVICE_CUDA;
        options.ctx.plugin = TPT_CUDA_PLUGIN;
    }
    pthread_mutex_init(&w->lock, NULL);
    cr_assert_eq(tpt_run_ranks(&options, run_rank, w), TP_OK, "%s", tp_last_message());
    pthread_mutex_destroy(&w->lock);
}

static void check_same(const words *got, const words *want, const char *name)
{
    cr_assert(tpt_same_bits("rows", got->y, want->y, want->dtype, TOKENS * FEATURES), "%s", name);
    cr_assert(tpt_same_bits("table's gradient", got->table_grad, want->table_grad, TP_DTYPE_F32, VOCABULARY * FEATURES),
              "%s", name);
    cr_assert(tpt_same_bits("positions' gradient", got->position_grad, want->position_grad, TP_DTYPE_F32,
                            POSITIONS * FEATURES),
              "%s", name);
    cr_assert(tpt_same_bits("loss", got->total, want->total, TP_DTYPE_F32, 2), "%s", name);
    cr_assert(tpt_same_bits("logits' gradient", got->dlogits, want->dlogits, want->dtype, TOKENS * VOCABULARY), "%s",
              name);
}

static void check(tp_dtype dtype, unsigned number)
{
    static const int layouts[][3] = {{1, 1, 0}, {2, 1, 0}, {2, 2, 1}, {4, 4, 1}, {4, 2, 0}};
    float *table = tpt_new_normal(TP_DTYPE_F32, VOCABULARY * FEATURES, 1, 1),
          *position = tpt_new_normal(TP_DTYPE_F32, POSITIONS * FEATURES, 2, 1);
    void *dy = tpt_new_normal(dtype, TOKENS * FEATURES, 3, 1),
         *logits = tpt_new_normal(dtype, TOKENS * VOCABULARY, 4, 3);
    words cpu = {.dtype = dtype, .dy = dy, .logits = logits, .table = table, .position = position};
    run(&cpu, 1, 0);
    for (unsigned i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        words gpu = {.dtype = dtype, .dy = dy, .logits = logits, .table = table, .position = position,
                     .sequence_parallel = layouts[i][2] != 0};
        char name[64];
        snprintf(name, sizeof name, "%d ranks on %d GPUs", layouts[i][0], layouts[i][1]);
        tpt_gpus_turn(number + i);
        run(&gpu, layouts[i][0], layouts[i][1]);
        tpt_gpus_clean(name);
        check_same(&gpu, &cpu, name);
    }
    free(table), free(position), free(dy), free(logits);
}

Test(cuda_vocabulary, embedding_and_loss, .timeout = 100)
{
    check(TP_DTYPE_F32, 0);
    check(TP_DTYPE_BF16, 2);
}

/* ---- wrong ids ---- */

typedef struct wrong {
    int32_t id, position; /* of the fifth token */
    bool sequence_parallel, backward;
    tp_status status[2];
    char message[2][512];
} wrong;

/* One pass through the layer, and what the rank is told. */
static tp_status pass_wrong(tp_ctx *ctx, const wrong *w, tp_embedding *layer)
{
    int32_t host[2][TOKENS];
    void *memory;
    for (int t = 0; t < TOKENS; t++) {
        host[0][t] = t;
        host[1][t] = t % POSITIONS;
    }
    host[0][4] = w->id;
    host[1][4] = w->position;
    TPI_TRY(up(ctx, host, sizeof host, &memory));
    tp_pass pass = {.tokens = TOKENS, .ids = memory, .positions = (int32_t *)memory + TOKENS};
    static const float zeros[TOKENS * FEATURES];
    tp_range mine = tp_pass_rows(ctx, &pass, w->sequence_parallel);
    tp_tensor y = tp_tensor_2d(NULL, TP_DTYPE_F32, mine.end - mine.begin, FEATURES);
    size_t bytes = tp_tensor_bytes(y);
    TPI_TRY(up(ctx, zeros, bytes, &y.data));
    tp_status status =
        w->backward ? tp_embedding_backward(ctx, layer, &pass, y) : tp_embedding_forward(ctx, layer, &pass, y);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, y.data, bytes);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, memory, sizeof host);
    return status;
}

static tp_status run_wrong(tp_ctx *ctx, void *arg)
{
    wrong *w = arg;
    const tp_embedding_desc desc = {.name = "wte",
                                    .vocabulary = VOCABULARY,
                                    .features = FEATURES,
                                    .positions = POSITIONS,
                                    .dtype = TP_DTYPE_F32,
                                    .sequence_parallel = w->sequence_parallel};
    tp_embedding *layer;
    int rank = tp_ctx_rank(ctx);
    tp_param *params[2];
    TPI_TRY(tp_embedding_create(ctx, &desc, &layer));
    tp_embedding_params(layer, params, 2);
    TPI_TRY(tp_params_init(ctx, params, 2));
    TPI_TRY(tp_params_zero_grad(ctx, params, 2));
    w->status[rank] = pass_wrong(ctx, w, layer);
    snprintf(w->message[rank], sizeof w->message[rank], "%s", tp_ctx_message(ctx));
    tp_embedding_destroy(layer);
    return TP_OK;
}

/* All ranks of both backends are told the same words: on the CPU as a refusal of the call, on GPUs, in the order in
 * which they notice, as their own failure or a peer's. */
static void check_wrong(wrong w, int ranks, const char *told)
{
    for (int gpu = 0; gpu < 2; gpu++) {
        tp_run_options options = {
            .ranks = ranks, .devices = gpu ? ranks : 0, .ctx = {.threads = 1, .timeout_ms = 60000}};
        if (gpu) {
            options.ctx.device = TP_DEVICE_CUDA;
            options.ctx.plugin = TPT_CUDA_PLUGIN;
            tpt_gpus_turn((unsigned)(ranks + w.backward));
        }
        tpt_run_ranks(&options, run_wrong, &w);
        for (int rank = 0; rank < ranks; rank++) {
            cr_assert(w.status[rank] == TP_ERR_ARGUMENT || (gpu && w.status[rank] == TP_ERR_PEER), "rank %d: %s", rank,
                      tp_status_name(w.status[rank]));
            if (w.status[rank] == TP_ERR_ARGUMENT)
                cr_assert_str_eq(w.message[rank], told, "%s, rank %d of %d: %s", gpu ? "GPU" : "CPU", rank, ranks,
                                 w.message[rank]);
            cr_assert_not_null(strstr(w.message[rank], told), "%s, rank %d of %d: %s", gpu ? "GPU" : "CPU", rank, ranks,
                               w.message[rank]);
        }
        if (gpu)
            tpt_gpus_clean(told);
    }
}

Test(cuda_vocabulary, wrong_ids_are_told_alike, .timeout = 100)
{
    for (int ranks = 1; ranks <= 2; ranks++)
        for (int backward = 0; backward < 2; backward++)
            for (int parallel = 0; parallel < ranks; parallel++) {
                const wrong base = {
                    .id = 4, .position = 4, .sequence_parallel = parallel != 0, .backward = backward != 0};
                wrong w = base;
                w.id = VOCABULARY;
                check_wrong(w, ranks, "pass: ids[4] is 61, must be in [0, vocabulary 61)");
                w.id = -1;
                check_wrong(w, ranks, "pass: ids[4] is -1, must be in [0, vocabulary 61)");
                w = base;
                w.position = POSITIONS;
                check_wrong(w, ranks, "pass: positions[4] is 16, must be in [0, positions 16)");
                w.position = -7;
                check_wrong(w, ranks, "pass: positions[4] is -7, must be in [0, positions 16)");
            }
}
