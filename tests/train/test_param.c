/* Parameters of one's own: cutting, loading with strides, gathering, partial gradients, refusals. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <tp/tp.h>

#include "../support/data.h"

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
        tp_param_desc desc = {.name = "w", .dims = 2, .shape = {ROWS, COLS}, .sharded = true, .shard_dim = dim, .dtype = TP_DTYPE_F32};
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
        cr_assert_eq(tp_run_ranks(&(tp_run_options){.ranks = ranks[i]}, strides, NULL), TP_OK, "tp %d: %s", ranks[i], tp_last_message());
}

/* O01: partial gradients of a replicated parameter are summed (not averaged) in the tree's order, on all ranks alike. */
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
    status = tp_params_finish(ctx, &param, 1);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
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
        {{.name = "a", .dims = 1, .shape = {3}, .dtype = TP_DTYPE_F32, .sharded = true, .shard_dim = 1}, {"shard_dim 1", "1 dims"}},
        {{.name = "a", .dims = 1, .shape = {9}, .dtype = TP_DTYPE_F32, .sharded = true, .parts = 1, .part = {{4, 2, 0}}}, {"8", "9"}},
        {{.name = "a", .dims = 1, .shape = {9}, .dtype = TP_DTYPE_F32, .sharded = true, .parts = 1, .part = {{9, 1, 10}}}, {"9 units", "10 readers"}},
        {{.name = "a", .dims = 2, .shape = {INT64_MAX / 2, 64}, .dtype = TP_DTYPE_F32}, {"64", "too large"}},
        {{.name = "a", .dims = 1, .shape = {9}, .dtype = TP_DTYPE_F32, .init_std = -1}, {"init_std -1", "negative"}},
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
