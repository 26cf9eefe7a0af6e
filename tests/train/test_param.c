/* Parameters of one's own: cutting, loading with strides, gathering, partial gradients, refusals. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tp/tp.h>

#include "../support/counting.h"
#include "../support/data.h"
#include "core/context.h"

static tp_status expect(bool right)
{
    return right ? TP_OK : TP_ERR_NUMERIC;
}

/* A matrix stored the other way round ([in, out]) loads by its strides, and comes back whole with the same bits. */
static tp_status strides(tp_ctx *ctx, void *arg)
{
    enum { ROWS = 13, COLS = 7 };
    (void)arg;
    float stored[COLS][ROWS], back[ROWS][COLS];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++)
            stored[c][r] = r == 3 && c == 2 ? -0.0f : (float)(100 * r + c);
    bool right = true;
    for (int dim = 0; dim < 2; dim++) {
        tp_param *param;
        tp_param_desc desc = {
            .name = "w", .dims = 2, .shape = {ROWS, COLS}, .sharded = true, .shard_dim = dim, .dtype = TP_DTYPE_F32};
        tp_status status = tp_param_create(ctx, &desc, &param);
        if (status == TP_OK)
            status = tp_param_load(ctx, param, stored, TP_DTYPE_F32, (int64_t[]){1, ROWS});
        if (status == TP_OK)
            status = tp_param_gather(ctx, param, 0, &back[0][0]);
        if (status != TP_OK)
            return status;
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < COLS; c++)
                right = right && memcmp(&back[r][c], &stored[c][r], sizeof(float)) == 0;
        tp_param_destroy(ctx, param);
    }
    return expect(right);
}

Test(param, loads_by_strides_and_gathers_the_same_bits)
{
    static const int ranks[] = {1, 2, 3, 4, 5, 7};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++)
        cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = ranks[i]}, strides, NULL), TP_OK, "tp %d: %s", ranks[i],
                     tp_last_message());
}

/* O01: partial gradients of a replicated parameter are summed (not averaged) in the tree's order, on all ranks
 * alike. */
static tp_status partial(tp_ctx *ctx, void *arg)
{
    float *out = arg;
    tp_param *param;
    tp_param_desc desc = {.name = "gain", .dims = 1, .shape = {3}, .dtype = TP_DTYPE_F32, .flags = TP_PARAM_PARTIAL};
    tp_status status = tp_param_create(ctx, &desc, &param);
    if (status != TP_OK)
        return status;
    int64_t count;
    tp_range mine = tp_shard_virtual(tp_comm_size(tp_ctx_world(ctx)), tp_ctx_rank(ctx), &count);
    for (int64_t v = mine.begin; v < mine.end; v++)
        for (int i = 0; i < 3; i++)
            ((float *)param->grad_partial.data)[(v - mine.begin) * 3 + i] = 1.0f / (float)(3 + 5 * v + i);
    const tpi_arena_mark before = tpi_arena_get_mark(&ctx->scratch);
    status = tp_params_finish(ctx, &param, 1);
    const tpi_arena_mark after = tpi_arena_get_mark(&ctx->scratch);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    if (status == TP_OK)
        status = expect(after.chunk == before.chunk && after.used == before.used); /* scratch is free again */
    memcpy(out + 3 * tp_ctx_rank(ctx), param->grad.data, 3 * sizeof(float));
    tp_param_destroy(ctx, param);
    return status;
}

Test(param, partial_gradients_are_summed_in_the_trees_order)
{
    float want[3], got[3 * 8];
    for (int i = 0; i < 3; i++) {
        float p[8];
        for (int v = 0; v < 8; v++)
            p[v] = 1.0f / (float)(3 + 5 * v + i);
        want[i] = ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
    }
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = ranks}, partial, got), TP_OK, "%s", tp_last_message());
        for (int rank = 0; rank < ranks; rank++)
            cr_assert(tpt_same_bits("gain", got + 3 * rank, want, TP_DTYPE_F32, 3), "rank %d of %d", rank, ranks);
    }
}

/* O15: the norm counts a replicated element once, whatever the number of ranks. */
static tp_status norm_once(tp_ctx *ctx, void *arg)
{
    tp_param *params[2];
    tp_param_desc replicated = {.name = "r", .dims = 1, .shape = {5}, .dtype = TP_DTYPE_F32};
    tp_param_desc cut = {.name = "s", .dims = 2, .shape = {11, 2}, .sharded = true, .dtype = TP_DTYPE_F32};
    tp_status status = tp_param_create(ctx, &replicated, &params[0]);
    if (status == TP_OK)
        status = tp_param_create(ctx, &cut, &params[1]);
    if (status != TP_OK)
        return status;
    for (int i = 0; i < 5; i++)
        ((float *)params[0]->grad.data)[i] = 3;
    for (int64_t i = 0; i < tp_tensor_elements(params[1]->grad); i++)
        ((float *)params[1]->grad.data)[i] = 2;
    float norm;
    status = tp_params_grad_norm(ctx, params, 2, &norm);
    tp_param_destroy(ctx, params[0]);
    tp_param_destroy(ctx, params[1]);
    if (tp_ctx_rank(ctx) == 0)
        *(float *)arg = norm;
    return status;
}

Test(param, norms_count_each_element_once)
{
    for (int ranks = 1; ranks <= 8; ranks++) {
        float norm = 0;
        cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = ranks}, norm_once, &norm), TP_OK, "%s", tp_last_message());
        cr_assert_float_eq(norm, 11.532562594670797, 1e-5, "tp %d: %g", ranks, (double)norm); /* sqrt(5*9 + 22*4) */
    }
}

typedef struct refusal {
    tp_param_desc desc;
    const char *text[2];
} refusal;

Test(param, bad_descriptions_are_refused_with_both_numbers)
{
    static const refusal refusals[] = {
        {{.name = "", .dims = 1, .shape = {3}, .dtype = TP_DTYPE_F32}, {"0", "95"}},
        {{.name = "a", .dims = 3, .shape = {3, 3}, .dtype = TP_DTYPE_F32}, {"dims 3", "1 or 2"}},
        {{.name = "a", .dims = 2, .shape = {3, 0}, .dtype = TP_DTYPE_F32}, {"shape[1] is 0", "1"}},
        {{.name = "a", .dims = 1, .shape = {3}, .dtype = TP_DTYPE_I32}, {"i32", "f32"}},
        {{.name = "a", .dims = 1, .shape = {3}, .dtype = TP_DTYPE_F32, .sharded = true, .shard_dim = 1},
         {"shard_dim 1", "1 dims"}},
        {{.name = "a", .dims = 1, .shape = {9}, .dtype = TP_DTYPE_F32, .sharded = true, .parts = 1,
          .part = {{4, 2, 0}}}, {"8", "9"}},
        {{.name = "a", .dims = 1, .shape = {9}, .dtype = TP_DTYPE_F32, .sharded = true, .parts = 1,
          .part = {{9, 1, 10}}}, {"9 units", "10 readers"}},
        {{.name = "a", .dims = 1, .shape = {9}, .dtype = TP_DTYPE_F32, .sharded = true, .parts = 1,
          .part = {{INT64_MAX / 2, 4, 0}}}, {"4611686018427387903 units", "of 4"}},
        {{.name = "a", .dims = 2, .shape = {INT64_MAX / 2, 64}, .dtype = TP_DTYPE_F32}, {"64", "too large"}},
        {{.name = "a", .dims = 2, .shape = {INT64_MAX / 8, 2}, .dtype = TP_DTYPE_F32}, {"2", "too large"}},
        {{.name = "a", .dims = 1, .shape = {INT64_MAX}, .dtype = TP_DTYPE_F32}, {"9223372036854775807", "too large"}},
        {{.name = "a", .dims = 1, .shape = {9}, .dtype = TP_DTYPE_F32, .init_std = -1}, {"init_std -1", "negative"}},
        {{.name = "a", .dims = 1, .shape = {9}, .dtype = TP_DTYPE_F32, .init_std = NAN}, {"init_std nan", "NaN"}},
    };
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        tp_param *param = (tp_param *)&ctx;
        tp_status status = tp_param_create(ctx, &refusals[i].desc, &param);
        cr_assert(status == TP_ERR_ARGUMENT || status == TP_ERR_DTYPE, "case %zu: %s", i, tp_status_name(status));
        cr_assert_null(param);
        for (int t = 0; t < 2; t++)
            cr_assert(strstr(tp_ctx_message(ctx), refusals[i].text[t]), "case %zu: '%s'", i, tp_ctx_message(ctx));
    }
    cr_assert_eq(tp_ctx_memory(ctx, TP_MEMORY_PARAM).peak, 0);
    tp_ctx_destroy(ctx);
}

/* No call takes a parameter of another context, or touches it. */
Test(param, another_contexts_is_refused)
{
    const tp_param_desc desc = {.name = "w", .dims = 1, .shape = {1}, .dtype = TP_DTYPE_F32, .init = TP_INIT_ONE};
    float one = 1.0f, value = 2.0f, norm;
    tp_ctx *ctx, *other;
    tp_param *param;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &other), TP_OK);
    cr_assert_eq(tp_param_create(ctx, &desc, &param), TP_OK);
    cr_assert_eq(tp_param_load(ctx, param, &value, TP_DTYPE_F32, NULL), TP_OK);
    const tp_status status[] = {tp_param_load(other, param, &one, TP_DTYPE_F32, NULL),
                                tp_param_gather(other, param, 0, &one),
                                tp_param_touch(other, param),
                                tp_params_init(other, &param, 1),
                                tp_params_zero_grad(other, &param, 1),
                                tp_params_begin(other, &param, 1),
                                tp_params_finish(other, &param, 1),
                                tp_params_grad_norm(other, &param, 1, &norm)};
    for (size_t i = 0; i < sizeof status / sizeof status[0]; i++)
        cr_assert_eq(status[i], TP_ERR_ARGUMENT, "call %zu: %s", i, tp_status_name(status[i]));
    cr_assert_not_null(strstr(tp_ctx_message(other), "'w' belongs to another context"), "%s", tp_ctx_message(other));
    cr_assert(one == 1.0f && *(float *)param->value.data == 2.0f);
    tp_param_destroy(ctx, param);
    tp_ctx_destroy(other);
    tp_ctx_destroy(ctx);
}

/* ---- loading ---- */

enum { LONG = 10001, EVERY = 3 };

/* A vector whose elements lie apart; more of them than are collected at a time. stride[1] means nothing. */
static tp_status load_apart(tp_ctx *ctx, void *arg)
{
    (void)arg;
    tp_param *param;
    bool right = true;
    float *stored = calloc((size_t)LONG * EVERY, sizeof *stored), *back = malloc(LONG * sizeof *back);
    for (int i = 0; i < LONG; i++)
        stored[i * EVERY] = (float)i;
    const tp_param_desc desc = {.name = "v", .dims = 1, .shape = {LONG}, .sharded = true, .dtype = TP_DTYPE_F32};
    tp_status status = tp_param_create(ctx, &desc, &param);
    if (status == TP_OK)
        status = tp_param_load(ctx, param, stored, TP_DTYPE_F32, (int64_t[]){EVERY, 1000000007});
    memset(back, 0xff, LONG * sizeof *back); /* what was there before has no share in it */
    if (status == TP_OK)
        status = tp_param_gather(ctx, param, 0, back);
    for (int i = 0; i < LONG && status == TP_OK; i++)
        right = right && back[i] == (float)i;
    tp_param_destroy(ctx, param);
    free(stored);
    free(back);
    return status == TP_OK ? expect(right) : status;
}

Test(param, vectors_load_by_their_stride)
{
    for (int ranks = 1; ranks <= 3; ranks++)
        cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = ranks}, load_apart, NULL), TP_OK, "tp %d: %s", ranks,
                     tp_last_message());
}

enum { VALUES = 6 };

/* Of one dtype the bits, NaN payloads too; of another the nearest value. */
static tp_status load_dtypes(tp_ctx *ctx, void *arg)
{
    static const uint32_t wide[VALUES] = {0x7f801234, 0x7fc01234, 0x80000000, 0x3f800001, 0xc2f6e979, 0x00000001};
    /* signalling NaNs of bf16 and of f16 */
    static const uint16_t narrow[VALUES] = {0x7f83, 0x7d01, 0x8000, 0x3f81, 0xc2f7, 0x0001};
    static const tp_dtype dtypes[] = {TP_DTYPE_F32, TP_DTYPE_BF16, TP_DTYPE_F16};
    bool right = true;
    (void)arg;
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++) {
            tp_param *param;
            const void *stored = from == 0 ? (const void *)wide : narrow;
            const tp_param_desc desc = {.name = "v", .dims = 1, .shape = {VALUES}, .dtype = dtypes[to]};
            tp_status status = tp_param_create(ctx, &desc, &param);
            if (status == TP_OK)
                status = tp_param_load(ctx, param, stored, dtypes[from], NULL);
            if (status != TP_OK)
                return status;
            unsigned char want[4 * VALUES];
            for (int i = 0; i < VALUES; i++)
                tpt_set(want, dtypes[to], i, tpt_get(stored, dtypes[from], i));
            if (from == to)
                memcpy(want, stored, tp_tensor_bytes(param->value));
            int first = from != to ? 2 : 0; /* a NaN becomes some NaN */
            size_t size = tp_dtype_size(dtypes[to]);
            right = right && memcmp((char *)param->value.data + (size_t)first * size, want + (size_t)first * size,
                                    (size_t)(VALUES - first) * size) == 0;
            right = right && isnan(tpt_get(param->value.data, dtypes[to], 0));
            tp_param_destroy(ctx, param);
        }
    return expect(right);
}

Test(param, loads_from_every_dtype)
{
    for (int ranks = 1; ranks <= 2; ranks++)
        cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = ranks}, load_dtypes, NULL), TP_OK, "tp %d: %s", ranks,
                     tp_last_message());
}

/* What the stream still does to a value is done before the host writes it. */
static tp_status write_behind(tp_ctx *ctx, void *arg)
{
    enum { ROWS = 40, COLS = 25, COUNT = ROWS * COLS };
    static const float loaded[COUNT];
    float back[COUNT];
    bool right = true;
    tp_param *param;
    (void)arg;
    const tp_param_desc desc = {.name = "w", .dims = 2, .shape = {ROWS, COLS}, .sharded = true, .dtype = TP_DTYPE_F32};
    tp_status status = tp_param_create(ctx, &desc, &param);
    for (int round = 0; round < 8 && status == TP_OK; round++) {
        param->init = TP_INIT_NORMAL;
        status = tp_params_init(ctx, &param, 1);
        param->init = TP_INIT_ONE;
        if (status == TP_OK)
            status = round % 2 ? tp_params_init(ctx, &param, 1) : tp_param_load(ctx, param, loaded, TP_DTYPE_F32, NULL);
        if (status == TP_OK)
            status = tp_param_gather(ctx, param, 0, back);
        for (int i = 0; i < COUNT && status == TP_OK; i++)
            right = right && back[i] == (float)(round % 2);
    }
    tp_param_destroy(ctx, param);
    return status == TP_OK ? expect(right) : status;
}

Test(param, values_are_written_behind_the_stream)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        const tp_run_options options = {.ranks = ranks, .ctx = {.threads = 1, .lane_delay_seed = 11}};
        cr_assert_eq(tp_run_ranks(&options, write_behind, NULL), TP_OK, "tp %d: %s", ranks, tp_last_message());
    }
}

/* ---- destroying ---- */

enum { KEPT = 256, GONE = 0x5c };

/* An allocator that keeps what it is given back, marked. */
typedef struct graveyard {
    int count;
    struct {
        unsigned char *memory;
        size_t bytes;
    } block[KEPT];
} graveyard;

static void *graveyard_allocate(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void graveyard_release(void *user, void *memory, size_t bytes)
{
    graveyard *self = user;
    cr_assert_lt(self->count, KEPT);
    self->block[self->count].memory = memset(memory, GONE, bytes);
    self->block[self->count++].bytes = bytes;
}

/* Whichever of its allocations fails, nothing stays, and the message names it or what was asked for. */
Test(param, no_memory_for_one)
{
    tpt_counting counting = {.fail_at = 0};
    const tp_ctx_desc desc = {.threads = 1, .allocator = tpt_counting_allocator(&counting)};
    const tp_param_desc matrix = {
        .name = "w", .dims = 2, .shape = {3, 7}, .dtype = TP_DTYPE_F32, .flags = TP_PARAM_TIED};
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_OK);
    const long long live = atomic_load(&counting.live);
    tp_param *param = NULL;
    int failed = 0;
    do {
        counting.fail_at = atomic_load(&counting.calls) + ++failed;
        tp_status status = tp_param_create(ctx, &matrix, &param);
        const char *message = tp_last_message();
        cr_assert_eq(status, param != NULL ? TP_OK : TP_ERR_MEMORY);
        cr_assert(param != NULL || strstr(message, "parameter 'w'") || strstr(message, " bytes"), "%s", message);
        cr_assert(param != NULL || atomic_load(&counting.live) == live, "%d: %s", failed, message);
    } while (param == NULL);
    cr_assert_gt(failed, 5);
    tp_param_destroy(ctx, param);
    tp_ctx_destroy(ctx);
    cr_assert_eq(atomic_load(&counting.live), 0);
}

/* Gradients are cleared on a lane that may not have come to it. */
Test(param, what_is_destroyed_is_written_no_more)
{
    static graveyard buried;
    tp_ctx_desc desc = {.threads = 1, .lane_delay_seed = 7};
    desc.allocator = (tp_allocator){graveyard_allocate, graveyard_release, &buried};
    const tp_param_desc matrix = {.name = "w", .dims = 2, .shape = {300, 700}, .dtype = TP_DTYPE_F32};
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_OK);
    for (int i = 0; i < 16; i++) {
        tp_param *param;
        cr_assert_eq(tp_param_create(ctx, &matrix, &param), TP_OK, "%s", tp_last_message());
        tp_param_destroy(ctx, param);
    }
    tp_ctx_destroy(ctx);
    for (int i = 0; i < buried.count; i++) {
        size_t written = 0;
        for (size_t at = 0; at < buried.block[i].bytes; at++)
            written += buried.block[i].memory[at] != GONE;
        cr_expect_eq(written, 0, "%zu of %zu bytes", written, buried.block[i].bytes);
        free(buried.block[i].memory);
    }
}
