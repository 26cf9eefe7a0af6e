/* Vocabulary-parallel embedding: exact rows on every layout, gradients against double precision, refusals. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/comm.h>
#include <tp/embedding.h>

#include "support/data.h"
#include "support/tolerance.h"

enum { TOKENS = 23, VOCABULARY = 61, FEATURES = 19, POSITIONS = 16, SEQUENCES = 3, PASSES = 2 };

static const int64_t offsets[SEQUENCES + 1] = {0, 4, 7, TOKENS};
static const int all_ranks[] = {1, 2, 3, 4, 5, 7, 8};
enum { LAYOUTS = sizeof all_ranks / sizeof all_ranks[0] };

/* Whole tensors: what goes in, and what every rank must bring. */
typedef struct embedding_case {
    tp_embedding_desc desc;
    tp_pass pass;
    const float *table, *position; /* rounded to the dtype */
    const void *dy;                /* [TOKENS, FEATURES] of the dtype */
    void *y;
    float *table_grad, *position_grad;
    atomic_bool replicas_differ;
} embedding_case;

static int32_t ids[TOKENS], given_positions[TOKENS];

static void make_ids(void)
{
    for (int t = 0; t < TOKENS; t++) {
        ids[t] = t % 5 == 0 ? VOCABULARY - 1 : t * t * 13 % VOCABULARY; /* repeats, and both ends */
        given_positions[t] = (t * 7 + 3) % POSITIONS;
    }
    ids[1] = 0;
}

static tp_status load_tables(tp_ctx *ctx, tp_embedding *layer, const embedding_case *c, tp_param *params[2])
{
    int count = tp_embedding_params(layer, params, 2);
    tp_status status = tp_param_load(ctx, params[0], c->table, TP_DTYPE_F32, NULL);
    if (status == TP_OK && count == 2)
        status = tp_param_load(ctx, params[1], c->position, TP_DTYPE_F32, NULL);
    return status != TP_OK ? status : tp_params_zero_grad(ctx, params, count);
}

/* Puts this rank's rows into the whole; what several ranks have must be the same. */
static void keep_rows(tp_ctx *ctx, embedding_case *c, const char *y, tp_range mine)
{
    size_t row = FEATURES * tp_dtype_size(c->desc.dtype);
    if (c->desc.sequence_parallel || tp_ctx_rank(ctx) == 0)
        memcpy((char *)c->y + (size_t)mine.begin * row, y, (size_t)(mine.end - mine.begin) * row);
}

static tp_status forward_backward(tp_ctx *ctx, tp_embedding *layer, embedding_case *c)
{
    tp_param *params[2] = {NULL, NULL};
    tp_status status = load_tables(ctx, layer, c, params);
    tp_range mine = tp_pass_rows(ctx, &c->pass, c->desc.sequence_parallel);
    size_t row = FEATURES * tp_dtype_size(c->desc.dtype);
    char *y = tpt_allocate((size_t)(mine.end - mine.begin) * row);
    tp_tensor local = tp_tensor_2d(y, c->desc.dtype, mine.end - mine.begin, FEATURES);
    if (status == TP_OK)
        status = tp_embedding_forward(ctx, layer, &c->pass, local);
    keep_rows(ctx, c, y, mine);
    local.data = (char *)c->dy + (size_t)mine.begin * row;
    for (int i = 0; i < PASSES && status == TP_OK; i++) /* gradients are added up */
        status = tp_embedding_backward(ctx, layer, &c->pass, local);
    if (status == TP_OK)
        status = tp_params_finish(ctx, params, params[1] != NULL ? 2 : 1);
    float *table = tpt_array(TP_DTYPE_F32, VOCABULARY * FEATURES),
          *position = tpt_array(TP_DTYPE_F32, POSITIONS * FEATURES);
    if (status == TP_OK)
        status = tp_param_gather(ctx, params[0], 1, table);
    if (status == TP_OK && params[1] != NULL) {
        status = tp_param_gather(ctx, params[1], 1, position);
        if (memcmp(position, params[1]->grad.data, POSITIONS * FEATURES * sizeof(float)) != 0)
            atomic_store(&c->replicas_differ, true);
    }
    if (tp_ctx_rank(ctx) == 0) {
        memcpy(c->table_grad, table, VOCABULARY * FEATURES * sizeof(float));
        memcpy(c->position_grad, position, POSITIONS * FEATURES * sizeof(float));
    }
    free(table);
    free(position);
    free(y);
    return status;
}

static tp_status run_case(tp_ctx *ctx, void *arg)
{
    embedding_case *c = arg;
    tp_embedding *layer;
    tp_status status = tp_embedding_create(ctx, &c->desc, &layer);
    if (status == TP_OK)
        status = forward_backward(ctx, layer, c);
    tp_embedding_destroy(layer);
    return status;
}

static int place_of(const tp_pass *pass, int t)
{
    if (pass->positions != NULL)
        return pass->positions[t];
    int place = 0;
    for (int s = 0; s < SEQUENCES; s++)
        if (t >= offsets[s])
            place = t - (int)offsets[s];
    return place;
}

static double kept(const embedding_case *c, int64_t element)
{
    tp_random_key key = {5, tp_random_stream_step(c->desc.site, c->pass.step)};
    uint64_t index = (uint64_t)(c->pass.first_token * FEATURES + element);
    if (c->desc.dropout == 0.0f)
        return 1.0;
    return tp_random_u32(key, index) >= tp_random_threshold(c->desc.dropout) ? 1.0 / (1.0 - (double)c->desc.dropout)
                                                                             : 0.0;
}

/* One rank holds an id's row and the others add zeros, so rows are exact on every number of ranks. */
static void check_rows(const embedding_case *c)
{
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < FEATURES; i++) {
            float sum = c->table[ids[t] * FEATURES + i];
            if (c->desc.positions > 0)
                sum += c->position[place_of(&c->pass, t) * FEATURES + i];
            int64_t element = t * FEATURES + i;
            double got = tpt_get(c->y, c->desc.dtype, element), want = sum * kept(c, element);
            if (c->desc.dropout == 0.0f) {
                uint8_t exact[4];
                tpt_set(exact, c->desc.dtype, 0, sum);
                cr_assert_eq(got, tpt_get(exact, c->desc.dtype, 0), "row %d, column %d: %g, expected %g", t, i, got,
                             (double)sum);
            } else {
                cr_assert_leq(fabs(got - want), tpt_tolerance(c->desc.dtype, 1, fabs(want)),
                              "row %d, column %d: %g, expected %g", t, i, got, want);
                cr_assert(want != 0.0 || got == 0.0);
            }
        }
}

static void check_gradients(const embedding_case *c)
{
    double table[VOCABULARY * FEATURES] = {0}, position[POSITIONS * FEATURES] = {0};
    double table_size[VOCABULARY * FEATURES] = {0}, position_size[POSITIONS * FEATURES] = {0};
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < FEATURES; i++) {
            double d = PASSES * tpt_get(c->dy, c->desc.dtype, t * FEATURES + i) * kept(c, t * FEATURES + i);
            table[ids[t] * FEATURES + i] += d;
            table_size[ids[t] * FEATURES + i] += tpt_tolerance(TP_DTYPE_F32, PASSES * TOKENS, fabs(d));
            position[place_of(&c->pass, t) * FEATURES + i] += d;
            position_size[place_of(&c->pass, t) * FEATURES + i] +=
                tpt_tolerance(TP_DTYPE_F32, PASSES * TOKENS, fabs(d));
        }
    cr_assert(tpt_close_each("table gradient", c->table_grad, TP_DTYPE_F32, table, table_size, VOCABULARY * FEATURES));
    if (c->desc.positions > 0)
        cr_assert(tpt_close_each("position gradient", c->position_grad, TP_DTYPE_F32, position, position_size,
                                 POSITIONS * FEATURES));
}

static void run_layouts(embedding_case *c)
{
    tp_dtype dtype = c->desc.dtype;
    float *table = tpt_new_normal(TP_DTYPE_F32, VOCABULARY * FEATURES, 1, 1.0);
    float *position = tpt_new_normal(TP_DTYPE_F32, POSITIONS * FEATURES, 2, 1.0);
    for (int i = 0; i < VOCABULARY * FEATURES; i++) {
        uint8_t rounded[4];
        tpt_set(rounded, dtype, 0, table[i]);
        table[i] = (float)tpt_get(rounded, dtype, 0);
        if (i < POSITIONS * FEATURES) {
            tpt_set(rounded, dtype, 0, position[i]);
            position[i] = (float)tpt_get(rounded, dtype, 0);
        }
    }
    void *dy = tpt_new_normal(dtype, TOKENS * FEATURES, 3, 1.0);
    float *first_table = NULL, *first_position = NULL;
    void *first_y = NULL;
    c->table = table;
    c->position = position;
    c->dy = dy;
    for (int layout = 0; layout < 2 * LAYOUTS; layout++) {
        c->desc.sequence_parallel = layout % 2 != 0;
        c->y = tpt_array(dtype, TOKENS * FEATURES);
        c->table_grad = tpt_array(TP_DTYPE_F32, VOCABULARY * FEATURES);
        c->position_grad = tpt_array(TP_DTYPE_F32, POSITIONS * FEATURES);
        tp_run_options options = {.ranks = all_ranks[layout / 2], .ctx = {.threads = 1, .seed = 5}};
        cr_assert_eq(tp_run_ranks(&options, run_case, c), TP_OK, "%s", tp_last_message());
        cr_assert(!atomic_load(&c->replicas_differ));
        check_rows(c);
        check_gradients(c);
        if (layout == 0) {
            first_y = c->y;
            first_table = c->table_grad;
            first_position = c->position_grad;
            continue;
        }
        cr_assert(tpt_same_bits("y", c->y, first_y, dtype, TOKENS * FEATURES));
        cr_assert(tpt_same_bits("table gradient", c->table_grad, first_table, TP_DTYPE_F32, VOCABULARY * FEATURES));
        cr_assert(
            tpt_same_bits("position gradient", c->position_grad, first_position, TP_DTYPE_F32, POSITIONS * FEATURES));
        free(c->y);
        free(c->table_grad);
        free(c->position_grad);
    }
    free(first_y);
    free(first_table);
    free(first_position);
    free(dy);
    free(table);
    free(position);
}

static embedding_case plain_case(tp_dtype dtype)
{
    make_ids();
    return (embedding_case){
        .desc = {.name = "wte", .vocabulary = VOCABULARY, .features = FEATURES, .positions = POSITIONS, .dtype = dtype,
                 .site = 9},
        .pass = {.tokens = TOKENS, .sequences = SEQUENCES, .offsets = offsets, .ids = ids, .step = 3}};
}

Test(embedding, with_positions)
{
    for (tp_dtype dtype = TP_DTYPE_F32; dtype <= TP_DTYPE_F16; dtype++) {
        embedding_case c = plain_case(dtype);
        run_layouts(&c);
    }
}

Test(embedding, without_positions)
{
    embedding_case c = plain_case(TP_DTYPE_BF16);
    c.desc.positions = 0;
    run_layouts(&c);
}

Test(embedding, given_positions)
{
    embedding_case c = plain_case(TP_DTYPE_F32);
    make_ids();
    c.pass.positions = given_positions;
    run_layouts(&c);
}

Test(embedding, dropout_masks_are_global)
{
    for (tp_dtype dtype = TP_DTYPE_F32; dtype <= TP_DTYPE_BF16; dtype++) {
        embedding_case c = plain_case(dtype);
        c.desc.dropout = 0.3f;
        c.pass.first_token = 1000;
        run_layouts(&c);
    }
}

/* The head's gradient is in grad, the table's own in grad_tied, and tp_params_finish adds them. */
Test(embedding, tied_gradient)
{
    embedding_case c = plain_case(TP_DTYPE_F32);
    c.desc.tied = true;
    run_layouts(&c);
}

/* Dropout 0.5 on a million ones. */
static tp_status count_kept(tp_ctx *ctx, void *arg)
{
    enum { SIDE = 1000 };
    int32_t *zeros = tpt_array(TP_DTYPE_I32, SIDE);
    float *ones = tpt_array(TP_DTYPE_F32, 2 * SIDE), *y = tpt_array(TP_DTYPE_F32, (int64_t)SIDE * SIDE);
    for (int i = 0; i < 2 * SIDE; i++)
        ones[i] = 1.0f;
    tp_embedding_desc desc = {.name = "e", .vocabulary = 2, .features = SIDE, .dtype = TP_DTYPE_F32, .dropout = 0.5f};
    tp_embedding *layer;
    tp_param *param;
    tp_status status = tp_embedding_create(ctx, &desc, &layer);
    tp_embedding_params(layer, &param, 1);
    if (status == TP_OK)
        status = tp_param_load(ctx, param, ones, TP_DTYPE_F32, NULL);
    tp_pass pass = {.tokens = SIDE, .ids = zeros};
    if (status == TP_OK)
        status = tp_embedding_forward(ctx, layer, &pass, tp_tensor_2d(y, TP_DTYPE_F32, SIDE, SIDE));
    int64_t kept_count = 0;
    for (int i = 0; i < SIDE * SIDE; i++) {
        kept_count += y[i] == 2.0f;
        if (y[i] != 2.0f && y[i] != 0.0f)
            status = TP_ERR_NUMERIC;
    }
    ((double *)arg)[tp_ctx_rank(ctx)] = (double)kept_count / (SIDE * SIDE);
    tp_embedding_destroy(layer);
    free(zeros);
    free(ones);
    free(y);
    return status;
}

Test(embedding, keep_rate)
{
    double rate[2];
    tp_run_options options = {.ranks = 2, .ctx = {.threads = 1, .seed = 1}};
    cr_assert_eq(tp_run_ranks(&options, count_kept, rate), TP_OK, "%s", tp_last_message());
    cr_assert_leq(fabs(rate[0] - 0.5), 0.002);
    cr_assert_eq(rate[0], rate[1]);
}

typedef struct refusal {
    tp_pass pass;
    const char *pieces[2];
    bool sequence_parallel;
    atomic_int refused;
} refusal;

static tp_status expect_refusal(tp_ctx *ctx, void *arg)
{
    refusal *r = arg;
    tp_embedding_desc desc = {.name = "e",
                              .vocabulary = VOCABULARY,
                              .features = 4,
                              .positions = POSITIONS,
                              .dtype = TP_DTYPE_F32,
                              .sequence_parallel = r->sequence_parallel};
    tp_embedding *layer;
    tp_status status = tp_embedding_create(ctx, &desc, &layer);
    if (status != TP_OK)
        return status;
    tp_range mine = tp_pass_rows(ctx, &r->pass, r->sequence_parallel);
    float y[TOKENS * 4];
    for (int i = 0; i < TOKENS * 4; i++)
        y[i] = 7.0f;
    status = tp_embedding_forward(ctx, layer, &r->pass, tp_tensor_2d(y, TP_DTYPE_F32, mine.end - mine.begin, 4));
    bool named = strstr(tp_last_message(), r->pieces[0]) != NULL && strstr(tp_last_message(), r->pieces[1]) != NULL;
    for (int i = 0; i < TOKENS * 4; i++)
        named &= y[i] == 7.0f;
    if (status == TP_ERR_ARGUMENT && named)
        atomic_fetch_add(&r->refused, 1);
    else
        fprintf(stderr, "%s: %s\n", tp_status_name(status), tp_last_message());
    tp_embedding_destroy(layer);
    return TP_OK;
}

static void check_refused(tp_pass pass, const char *first, const char *second)
{
    for (int ranks = 1; ranks <= 4; ranks *= 2)
        for (int parallel = 0; parallel < 2; parallel++) {
            refusal r = {.pass = pass, .pieces = {first, second}, .sequence_parallel = parallel != 0};
            tp_run_options options = {.ranks = ranks, .ctx = {.threads = 1}};
            cr_assert_eq(tp_run_ranks(&options, expect_refusal, &r), TP_OK, "%s", tp_last_message());
            cr_assert_eq(atomic_load(&r.refused), ranks);
        }
}

Test(embedding, bad_ids_are_refused_everywhere)
{
    make_ids();
    tp_pass pass = {.tokens = TOKENS, .sequences = SEQUENCES, .offsets = offsets, .ids = ids};
    ids[17] = VOCABULARY;
    check_refused(pass, "ids[17] is 61", "61)");
    ids[17] = -1;
    check_refused(pass, "ids[17] is -1", "61)");
    ids[17] = 0;
    given_positions[22] = POSITIONS;
    pass.positions = given_positions;
    check_refused(pass, "positions[22] is 16", "16)");
    given_positions[22] = -5;
    check_refused(pass, "positions[22] is -5", "16)");
    pass.positions = NULL;
    pass.offsets = NULL;
    pass.sequences = 1;
    check_refused(pass, "23 tokens", "positions 16");
    pass.sequences = 2;
    check_refused(pass, "tokens 23", "sequences 2");
    static const int64_t crossed[SEQUENCES + 1] = {0, 9, 5, TOKENS}, short_of[SEQUENCES + 1] = {0, 4, 7, TOKENS - 1};
    pass.sequences = SEQUENCES;
    pass.offsets = crossed;
    check_refused(pass, "offsets[2] is 5", "9");
    pass.offsets = short_of;
    check_refused(pass, "22", "23");
    pass.offsets = offsets;
    pass.ids = NULL;
    check_refused(pass, "ids", "23");
}

static tp_status create_bad(tp_ctx *ctx, void *arg)
{
    tp_embedding *layer;
    tp_status status = tp_embedding_create(ctx, arg, &layer);
    if (layer != NULL) {
        tp_embedding_destroy(layer);
        return TP_ERR_INTERNAL;
    }
    return status;
}

Test(embedding, bad_descriptions_are_refused)
{
    tp_embedding_desc good = {.name = "e", .vocabulary = 4, .features = 4, .dtype = TP_DTYPE_F32};
    tp_embedding_desc bad[6];
    for (int i = 0; i < 6; i++)
        bad[i] = good;
    bad[0].vocabulary = 3; /* on 4 ranks */
    bad[1].features = 0;
    bad[2].positions = -1;
    bad[3].dropout = 1.0f;
    bad[4].dropout = NAN;
    bad[5].dtype = TP_DTYPE_I32;
    static const char *const field[6] = {"vocabulary", "features", "positions", "dropout", "dropout", "dtype"};
    for (int i = 0; i < 6; i++) {
        tp_run_options options = {.ranks = 4, .ctx = {.threads = 1}};
        cr_assert_eq(tp_run_ranks(&options, create_bad, &bad[i]), i == 5 ? TP_ERR_DTYPE : TP_ERR_ARGUMENT);
        cr_assert_not_null(strstr(tp_last_message(), field[i]), "%s", tp_last_message());
    }
}
