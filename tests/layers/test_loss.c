/* Vocabulary-parallel cross-entropy against double precision, and the values that wrong ones miss. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/comm.h>
#include <tp/loss.h>

#include "core/context.h"
#include "support/data.h"
#include "support/tolerance.h"

/* Whole logits in, total and whole gradient out. */
typedef struct loss_case {
    tp_cross_entropy_desc desc;
    tp_pass pass;
    tp_dtype dtype;
    const void *logits; /* [tokens, vocabulary] */
    bool forward_only;
    uint64_t lane_delay_seed; /* not 0: ops run late */
    float total[2];
    float total_before[2];
    void *gradient; /* [tokens, vocabulary] of the dtype */
    atomic_bool ranks_differ;
} loss_case;

static void copy_columns(char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t rows, size_t bytes)
{
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + r * to_stride, from + r * from_stride, bytes);
}

static tp_status run_loss(tp_ctx *ctx, loss_case *c, tp_tensor logits, float *total)
{
    tp_cross_entropy_saved saved = {.bytes = tp_cross_entropy_saved_bytes(&c->pass)};
    saved.memory = tpt_allocate(saved.bytes);
    tp_status status =
        tp_cross_entropy_forward(ctx, &c->desc, &c->pass, logits, total, c->forward_only ? NULL : &saved);
    if (status == TP_OK && !c->forward_only)
        status = tp_cross_entropy_backward(ctx, &c->desc, &c->pass, &saved);
    tp_status done = tp_ctx_synchronize(ctx);
    free(saved.memory);
    return status == TP_OK ? done : status;
}

static tp_status run_case(tp_ctx *ctx, void *arg)
{
    loss_case *c = arg;
    int ranks = tp_comm_size(tp_ctx_world(ctx)), rank = tp_ctx_rank(ctx);
    tp_range mine = tp_shard_range(c->desc.vocabulary, ranks, rank);
    int64_t cols = mine.end - mine.begin, rows = c->pass.tokens, size = (int64_t)tp_dtype_size(c->dtype);
    char *local = tpt_array(c->dtype, rows * cols);
    int64_t stride = c->desc.vocabulary * size;
    copy_columns(local, cols * size, (const char *)c->logits + mine.begin * size, stride, rows, (size_t)(cols * size));
    float total[2] = {c->total_before[0], c->total_before[1]};
    tp_status status = run_loss(ctx, c, tp_tensor_2d(local, c->dtype, rows, cols), total);
    if (status == TP_OK && !c->forward_only)
        copy_columns((char *)c->gradient + mine.begin * size, stride, local, cols * size, rows, (size_t)(cols * size));
    /* All ranks must have the same totals: rank 0 tells, the others compare. */
    float theirs[2] = {total[0], total[1]};
    tp_tensor told = tp_tensor_1d(theirs, TP_DTYPE_F32, 2);
    if (status == TP_OK)
        status = tp_broadcast(ctx, tp_ctx_world(ctx), told, 0);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    if (status == TP_OK && memcmp(theirs, total, sizeof total) != 0)
        atomic_store(&c->ranks_differ, true);
    if (rank == 0)
        memcpy(c->total, total, sizeof total);
    free(local);
    return status;
}

static tp_status run_on(loss_case *c, int ranks)
{
    tp_run_options options = {.ranks = ranks, .ctx = {.threads = 1, .lane_delay_seed = c->lane_delay_seed}};
    tp_status status = tp_run_ranks(&options, run_case, c);
    cr_assert(!atomic_load(&c->ranks_differ), "ranks have different totals");
    return status;
}

/* Loss of a row in double precision; gradient too. */
static double row_loss(const loss_case *c, int64_t row, double *gradient, double *largest)
{
    int64_t n = c->desc.vocabulary;
    int32_t target = c->pass.targets[row];
    double e = c->desc.label_smoothing, z = c->desc.z_loss, most = -INFINITY, sum = 0.0, mean = 0.0;
    double scale = c->pass.loss_scale != 0.0f ? (double)c->pass.loss_scale : 1.0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, tpt_get(c->logits, c->dtype, row * n + i));
    for (int64_t i = 0; i < n; i++) {
        sum += exp(tpt_get(c->logits, c->dtype, row * n + i) - most);
        mean += tpt_get(c->logits, c->dtype, row * n + i) / (double)n;
    }
    double lse = most + log(sum);
    *largest = fmax(fabs(most), fabs(lse)) + z * lse * lse;
    for (int64_t i = 0; i < n; i++) {
        double softmax = exp(tpt_get(c->logits, c->dtype, row * n + i) - lse);
        double d = softmax * (1.0 + 2.0 * z * lse) - (i == target ? 1.0 - e : 0.0) - e / (double)n;
        gradient[i] = target < 0 ? 0.0 : scale * d;
    }
    return target < 0 ? 0.0
                      : lse - (1.0 - e) * tpt_get(c->logits, c->dtype, row * n + target) - e * mean + z * lse * lse;
}

static void check_case(const loss_case *c)
{
    int64_t n = c->desc.vocabulary, rows = c->pass.tokens;
    double *gradient = tpt_allocate((size_t)(rows * n) * sizeof(double));
    double sum = 0.0, size = 0.0, valid = 0.0, scale = c->pass.loss_scale != 0.0f ? (double)c->pass.loss_scale : 1.0;
    for (int64_t r = 0; r < rows; r++) {
        double largest;
        sum += row_loss(c, r, gradient + r * n, &largest);
        size += largest;
        valid += c->pass.targets[r] >= 0;
    }
    cr_assert_eq(c->total[1], (float)valid);
    /* Row sums of n terms, then a chain over the rows. */
    double tolerance = tpt_tolerance(TP_DTYPE_F32, n + rows, size);
    cr_assert_leq(fabs(c->total[0] - sum), tolerance, "loss %.9g, expected %.9g, tolerance %g", (double)c->total[0],
                  sum, tolerance);
    if (!c->forward_only)
        cr_assert(
            tpt_close("gradient", c->gradient, c->dtype, gradient, rows * n, tpt_tolerance(c->dtype, n, 2.0 * scale)));
    free(gradient);
}

static int32_t *make_targets(int64_t tokens, int64_t vocabulary)
{
    int32_t *targets = tpt_array(TP_DTYPE_I32, tokens);
    for (int64_t t = 0; t < tokens; t++)
        targets[t] = t % 4 == 3 ? (int32_t)-1 - (int32_t)t : (int32_t)(t * t * 5 % vocabulary);
    return targets;
}

/* All layouts; those that divide eight must agree in every bit. */
static void check_layouts(loss_case c)
{
    static const int ranks[] = {1, 2, 4, 8, 3, 5, 7};
    int64_t elements = c.pass.tokens * c.desc.vocabulary;
    void *first = tpt_array(c.dtype, elements);
    float first_total[2] = {0};
    for (int i = 0; i < 7; i++) {
        c.gradient = tpt_array(c.dtype, elements);
        c.lane_delay_seed = i % 2 ? 0 : 3;
        cr_assert_eq(run_on(&c, ranks[i]), TP_OK, "%s", tp_last_message());
        check_case(&c);
        if (i == 0) {
            memcpy(first, c.gradient, (size_t)elements * tp_dtype_size(c.dtype));
            memcpy(first_total, c.total, sizeof first_total);
        } else if (8 % ranks[i] == 0) {
            cr_assert(tpt_same_bits("gradient", c.gradient, first, c.dtype, elements));
            cr_assert(tpt_same_bits("total", c.total, first_total, TP_DTYPE_F32, 2));
        }
        c.forward_only = true;
        float with_saved[2] = {c.total[0], c.total[1]};
        cr_assert_eq(run_on(&c, ranks[i]), TP_OK);
        cr_assert(tpt_same_bits("total without saved", c.total, with_saved, TP_DTYPE_F32, 2));
        c.forward_only = false;
        free(c.gradient);
    }
    free(first);
}

Test(loss, against_double_precision)
{
    static const tp_cross_entropy_desc kinds[] = {
        {.vocabulary = 61}, {.vocabulary = 61, .label_smoothing = 0.1f}, {.vocabulary = 8, .z_loss = 1e-2f},
        {.vocabulary = 131, .label_smoothing = 0.3f, .z_loss = 1e-3f}};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (tp_dtype dtype = TP_DTYPE_F32; dtype <= TP_DTYPE_F16; dtype++)
            for (int64_t tokens = 0; tokens <= 17; tokens = tokens * 8 + 1) {
                int32_t *targets = make_targets(tokens, kinds[k].vocabulary);
                loss_case c = {.desc = kinds[k],
                               .pass = {.tokens = tokens, .targets = targets, .loss_scale = 0.25f},
                               .dtype = dtype,
                               .logits = tpt_new_normal(dtype, tokens * kinds[k].vocabulary, 3, 4.0)};
                check_layouts(c);
                free((void *)c.logits);
                free(targets);
            }
}

Test(loss, totals_are_added_to)
{
    static const int32_t targets[2] = {1, -1};
    static const float logits[4] = {0};
    float gradient[4];
    loss_case c = {.desc = {.vocabulary = 2},
                   .pass = {.tokens = 2, .targets = targets},
                   .dtype = TP_DTYPE_F32,
                   .logits = logits,
                   .gradient = gradient,
                   .total_before = {10.0f, 3.0f}};
    cr_assert_eq(run_on(&c, 2), TP_OK);
    cr_assert_leq(fabs(c.total[0] - 10.0 - log(2.0)), tpt_tolerance(TP_DTYPE_F32, 2, 11.0));
    cr_assert_eq(c.total[1], 4.0f);
}

/* Smoothing over the whole vocabulary, not over a shard of it. */
Test(loss, smoothing_uses_the_whole_vocabulary)
{
    static const int32_t targets[1] = {2};
    float logits[8], gradient[8];
    for (int i = 0; i < 8; i++)
        logits[i] = 0.1f * (float)(i * i);
    loss_case c = {.desc = {.vocabulary = 8, .label_smoothing = 0.1f},
                   .pass = {.tokens = 1, .targets = targets},
                   .dtype = TP_DTYPE_F32,
                   .logits = logits,
                   .gradient = gradient};
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        cr_assert_eq(run_on(&c, ranks), TP_OK);
        cr_assert_leq(fabs((double)c.total[0] - 4.733271), 1e-6 + tpt_tolerance(TP_DTYPE_F32, 8, 5.0), "%g",
                      (double)c.total[0]);
    }
}

static tp_status give_whole_rows(tp_ctx *ctx, void *arg)
{
    int32_t targets[1] = {2};
    float logits[8] = {0}, total[2] = {5.0f, 6.0f};
    tp_pass pass = {.tokens = 1, .targets = targets};
    tp_cross_entropy_desc desc = {.vocabulary = 8};
    tp_status status =
        tp_cross_entropy_forward(ctx, &desc, &pass, tp_tensor_2d(logits, TP_DTYPE_F32, 1, 8), total, NULL);
    bool named = strstr(tp_last_message(), "8 columns") != NULL && strstr(tp_last_message(), "is 4") != NULL;
    if (status == TP_ERR_SHAPE && named && total[0] == 5.0f && total[1] == 6.0f)
        atomic_fetch_add((atomic_int *)arg, 1);
    return TP_OK;
}

Test(loss, whole_rows_on_two_ranks_are_refused)
{
    atomic_int refused = 0;
    tp_run_options options = {.ranks = 2, .ctx = {.threads = 1}};
    cr_assert_eq(tp_run_ranks(&options, give_whole_rows, &refused), TP_OK);
    cr_assert_eq(atomic_load(&refused), 2);
}

Test(loss, huge_logits)
{
    int32_t targets[2] = {1, 1};
    float logits[16], gradient[16];
    for (int classes = 2; classes <= 8; classes *= 2)
        for (int ranks = 1; ranks <= classes; ranks *= 2) {
            for (int sign = -1; sign <= 1; sign += 2) {
                for (int i = 0; i < 16; i++)
                    logits[i] = (float)sign * 1e8f;
                loss_case c = {.desc = {.vocabulary = classes},
                               .pass = {.tokens = 1, .targets = targets},
                               .dtype = TP_DTYPE_F32,
                               .logits = logits,
                               .gradient = gradient};
                cr_assert_eq(run_on(&c, ranks), TP_OK);
                cr_assert_leq(fabs(c.total[0] - log((double)classes)), tpt_tolerance(TP_DTYPE_F32, classes, 2.1), "%g",
                              (double)c.total[0]);
            }
        }
}

/* Logits 80 to 640 in bf16 and the same values in f32; the maximum is on the last shard, where a local one would
 * overflow. */
Test(loss, bf16_logits_lose_nothing)
{
    enum { CLASSES = 8 };
    int32_t targets[1] = {6};
    float wide[CLASSES], wide_gradient[CLASSES];
    uint16_t narrow[CLASSES], narrow_gradient[CLASSES];
    for (int i = 0; i < CLASSES; i++) {
        wide[i] = 80.0f * (float)(i + 1) - (i == CLASSES - 1 ? 79.0f : 0.0f);
        narrow[i] = tp_bf16_from_f32(wide[i]);
        wide[i] = tp_f32_from_bf16(narrow[i]);
    }
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        loss_case c = {.desc = {.vocabulary = CLASSES},
                       .pass = {.tokens = 1, .targets = targets},
                       .dtype = TP_DTYPE_F32,
                       .logits = wide,
                       .gradient = wide_gradient};
        cr_assert_eq(run_on(&c, ranks), TP_OK);
        float wide_total = c.total[0];
        check_case(&c);
        c.dtype = TP_DTYPE_BF16;
        c.logits = narrow;
        c.gradient = narrow_gradient;
        cr_assert_eq(run_on(&c, ranks), TP_OK);
        cr_assert_leq(fabsf(c.total[0] - wide_total), 1e-6f * wide_total);
        for (int i = 0; i < CLASSES; i++)
            cr_assert_eq(narrow_gradient[i], tp_bf16_from_f32(wide_gradient[i]), "class %d", i);
    }
}

Test(loss, nothing_to_learn_is_exactly_zero)
{
    int32_t targets[6] = {-1, -100, -1, -2, -1, -1};
    float *logits = tpt_new_normal(TP_DTYPE_F32, 6 * 13, 1, 50.0), *gradient = tpt_array(TP_DTYPE_F32, 6 * 13);
    loss_case c = {.desc = {.vocabulary = 13, .label_smoothing = 0.1f, .z_loss = 0.1f},
                   .pass = {.tokens = 6, .targets = targets},
                   .dtype = TP_DTYPE_F32,
                   .logits = logits,
                   .gradient = gradient};
    for (int ranks = 1; ranks <= 4; ranks++) {
        cr_assert_eq(run_on(&c, ranks), TP_OK);
        cr_assert(c.total[0] == 0.0f && c.total[1] == 0.0f);
        for (int i = 0; i < 6 * 13; i++)
            cr_assert_eq(gradient[i], 0.0f);
    }
    free(logits);
    free(gradient);
}

/* Two microbatches with 1 and 3 valid tokens, losses 4 and 1: (4 + 3) / 4, not (4 + 1) / 2. Gradients are weighted
 * alike. */
Test(loss, every_token_weighs_the_same)
{
    float hard[2] = {0.0f, (float)log(exp(4.0) - 1.0)}, easy[8], gradient[8];
    int32_t hard_target[1] = {0}, easy_targets[4] = {0, 0, -1, 0};
    for (int t = 0; t < 4; t++) {
        easy[2 * t] = 0.0f;
        easy[2 * t + 1] = (float)log(exp(1.0) - 1.0);
    }
    loss_case c = {.desc = {.vocabulary = 2},
                   .pass = {.tokens = 1, .targets = hard_target, .loss_scale = 0.25f},
                   .dtype = TP_DTYPE_F32,
                   .logits = hard,
                   .gradient = gradient};
    for (int ranks = 1; ranks <= 2; ranks++) {
        c.pass.tokens = 1;
        c.pass.targets = hard_target;
        c.logits = hard;
        memset(c.total_before, 0, sizeof c.total_before);
        cr_assert_eq(run_on(&c, ranks), TP_OK);
        check_case(&c);
        cr_assert_leq(fabs(gradient[0] + 0.25 * (1.0 - exp(-4.0))), tpt_tolerance(TP_DTYPE_F32, 4, 1.0));
        memcpy(c.total_before, c.total, sizeof c.total);
        c.pass.tokens = 4;
        c.pass.targets = easy_targets;
        c.logits = easy;
        cr_assert_eq(run_on(&c, ranks), TP_OK);
        cr_assert_leq(fabs(c.total[0] / c.total[1] - 1.75), tpt_tolerance(TP_DTYPE_F32, 8, 2.0));
        for (int t = 0; t < 4; t++)
            cr_assert_leq(fabs(gradient[2 * t] + (t == 2 ? 0.0 : 0.25 * (1.0 - exp(-1.0)))),
                          tpt_tolerance(TP_DTYPE_F32, 4, 1.0));
    }
}

/* The call must be refused on all ranks, with total as it was. */
static void check_refused(tp_cross_entropy_desc desc, int32_t target, const char *first, const char *second)
{
    int32_t targets[3] = {0, target, -1};
    float logits[3 * 7] = {0}, gradient[3 * 7];
    loss_case c = {.desc = desc,
                   .pass = {.tokens = 3, .targets = targets},
                   .dtype = TP_DTYPE_F32,
                   .logits = logits,
                   .gradient = gradient};
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        cr_assert_eq(run_on(&c, ranks), TP_ERR_ARGUMENT);
        cr_assert_not_null(strstr(tp_last_message(), first), "%s", tp_last_message());
        cr_assert_not_null(strstr(tp_last_message(), second), "%s", tp_last_message());
        cr_assert_eq(c.total[0], 0.0f);
    }
}

/* Every rank has a share of the vocabulary. */
Test(loss, more_ranks_than_classes_are_refused)
{
    static const int32_t targets[1] = {2};
    static const float logits[3] = {1, 2, 3};
    float gradient[3];
    loss_case c = {.desc = {.vocabulary = 3}, .pass = {.tokens = 1, .targets = targets}, .dtype = TP_DTYPE_F32,
                   .logits = logits, .gradient = gradient};
    cr_assert_eq(run_on(&c, 3), TP_OK, "%s", tp_last_message());
    cr_assert_eq(run_on(&c, 4), TP_ERR_ARGUMENT);
    cr_assert(strstr(tp_last_message(), "vocabulary is 3") != NULL && strstr(tp_last_message(), "ranks 4") != NULL,
              "%s", tp_last_message());
}

Test(loss, bad_arguments_are_refused)
{
    tp_ctx *ctx;
    float logits[6] = {0}, total[3];
    const int32_t targets[] = {1, 2};
    const tp_pass pass = {.tokens = 2, .targets = targets};
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    cr_assert_eq(tp_cross_entropy_forward(ctx, &(tp_cross_entropy_desc){.vocabulary = 3}, &pass,
                                          tp_tensor_2d(logits, TP_DTYPE_F32, 2, 3), (float *)((char *)total + 2), NULL),
                 TP_ERR_ARGUMENT);
    cr_assert_not_null(strstr(tp_ctx_message(ctx), "not aligned"), "%s", tp_ctx_message(ctx));
    tp_ctx_destroy(ctx);
    check_refused((tp_cross_entropy_desc){.vocabulary = 7}, 7, "targets[1] is 7", "vocabulary 7");
    check_refused((tp_cross_entropy_desc){.vocabulary = 7}, INT32_MAX, "targets[1] is 2147483647", "vocabulary 7");
    check_refused((tp_cross_entropy_desc){.vocabulary = 7, .label_smoothing = 1.0f}, 0, "label_smoothing", "1");
    check_refused((tp_cross_entropy_desc){.vocabulary = 7, .label_smoothing = -0.5f}, 0, "label_smoothing", "-0.5");
    check_refused((tp_cross_entropy_desc){.vocabulary = 7, .label_smoothing = NAN}, 0, "label_smoothing", "nan");
    check_refused((tp_cross_entropy_desc){.vocabulary = 7, .z_loss = INFINITY}, 0, "z_loss", "inf");
}

/* What backward reads must have room, and be of its pass: refused before the logits become a gradient. */
Test(loss, what_forward_saved_is_checked)
{
    enum { CLASSES = 5, ROWS = 2 };
    static const tp_cross_entropy_desc desc = {.vocabulary = CLASSES};
    float logits[3 * CLASSES] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, kept[3 * CLASSES], total[2] = {0};
    int32_t targets[3] = {4, -1, 0};
    tp_ctx *ctx;
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &ctx), TP_OK);
    const tp_pass pass = {.tokens = ROWS, .targets = targets};
    const size_t bytes = tp_cross_entropy_saved_bytes(&pass);
    tp_cross_entropy_saved saved = {.memory = tpt_allocate(2 * bytes), .bytes = bytes};
    const tp_tensor whole = tp_tensor_2d(logits, TP_DTYPE_F32, ROWS, CLASSES);
    const tpi_arena_mark before = tpi_arena_get_mark(&ctx->scratch);
    tp_cross_entropy_saved little = {.memory = saved.memory, .bytes = bytes - 1};
    cr_assert_eq(tp_cross_entropy_forward(ctx, &desc, &pass, whole, total, &little), TP_ERR_ARGUMENT);
    cr_assert(total[0] == 0.0f && total[1] == 0.0f);
    for (int i = 0; i < 2; i++) /* what scratch was used is free again */
        cr_assert_eq(tp_cross_entropy_forward(ctx, &desc, &pass, whole, total, i == 0 ? NULL : &saved), TP_OK, "%s",
                     tp_ctx_message(ctx));
    const tpi_arena_mark after = tpi_arena_get_mark(&ctx->scratch);
    cr_assert(after.chunk == before.chunk && after.used == before.used);
    cr_assert_eq(saved.lse.shape[0], ROWS);
    for (int r = 0; r < ROWS; r++) {
        double sum = 0;
        for (int i = 0; i < CLASSES; i++)
            sum += exp((double)logits[r * CLASSES + i]);
        cr_assert_leq(fabs((double)((const float *)saved.lse.data)[r] - log(sum)),
                      tpt_tolerance(TP_DTYPE_F32, CLASSES, 10.0));
    }
    memcpy(kept, logits, sizeof kept);
    tp_cross_entropy_saved less = saved, nowhere = saved, narrow = saved;
    less.bytes--;
    nowhere.memory = NULL;
    narrow.logits = tp_tensor_2d(logits, TP_DTYPE_F32, ROWS, CLASSES - 1);
    const tp_pass longer = {.tokens = 3, .targets = targets};
    cr_assert_eq(tp_cross_entropy_backward(ctx, &desc, &pass, NULL), TP_ERR_ARGUMENT);
    cr_assert_eq(tp_cross_entropy_backward(ctx, &desc, &pass, &less), TP_ERR_ARGUMENT);
    cr_assert_eq(tp_cross_entropy_backward(ctx, &desc, &pass, &nowhere), TP_ERR_ARGUMENT);
    cr_assert_eq(tp_cross_entropy_backward(ctx, &desc, &pass, &narrow), TP_ERR_SHAPE);
    saved.bytes *= 2; /* enough for both passes */
    cr_assert_eq(tp_cross_entropy_backward(ctx, &desc, &longer, &saved), TP_ERR_SHAPE);
    targets[0] = CLASSES;
    cr_assert_eq(tp_cross_entropy_backward(ctx, &desc, &pass, &saved), TP_ERR_ARGUMENT);
    cr_assert_not_null(strstr(tp_ctx_message(ctx), "targets[0] is 5"), "%s", tp_ctx_message(ctx));
    cr_assert_eq(tp_ctx_failure(ctx), TP_OK);
    cr_assert_eq(memcmp(kept, logits, sizeof kept), 0);
    free(saved.memory);
    tp_ctx_destroy(ctx);
}
