/* Cross-entropy over a vocabulary that is whole or cut into shards, against double precision. */
#include "cpu/machines.h"
#include "core/inner.h"

/* All phases on `shards` ranks, one after the other, joined as the tree over ranks would. */
typedef struct xent_case {
    int64_t rows, vocabulary;
    int shards;
    const void *logits; /* [rows, vocabulary] */
    tp_dtype dtype;
    const int32_t *targets;
    float smoothing, z_loss, loss_scale;
} xent_case;

/* What comes out, in floats: loss [rows], lse [rows], total [2], then dlogits [rows, vocabulary] in dtype. */
static size_t head_bytes(const xent_case *c)
{
    return (size_t)(2 * c->rows + 2) * sizeof(float);
}

typedef struct xent_shard {
    tpi_xent_args args;
    tpi_inner order;
    void *logits;
} xent_shard;

static void shard_open(const xent_case *c, int index, xent_shard *shard)
{
    tp_shard_part part = {.units = c->vocabulary, .unit_size = 1};
    tp_range range = tp_shard_range(c->vocabulary, c->shards, index);
    int64_t cols = range.end - range.begin, stride = cols + 3;

    tpi_inner_from_parts(&part, 1, c->shards, index, &shard->order);
    shard->logits = tpt_array(c->dtype, c->rows * stride);
    for (int64_t row = 0; row < c->rows; row++) {
        for (int64_t col = 0; col < cols; col++)
            tpt_set(shard->logits, c->dtype, row * stride + col,
                    tpt_get(c->logits, c->dtype, row * c->vocabulary + range.begin + col));
    }
    shard->args = (tpi_xent_args){.rows = c->rows,
                                  .cols = cols,
                                  .first_id = range.begin,
                                  .vocabulary = c->vocabulary,
                                  .logits = shard->logits,
                                  .dtype = c->dtype,
                                  .stride = stride,
                                  .targets = c->targets,
                                  .max = tpt_array(TP_DTYPE_F32, c->rows),
                                  .sums = tpt_array(TP_DTYPE_F32, 3 * c->rows),
                                  .loss = tpt_array(TP_DTYPE_F32, c->rows),
                                  .lse = tpt_array(TP_DTYPE_F32, c->rows),
                                  .label_smoothing = c->smoothing,
                                  .z_loss = c->z_loss,
                                  .loss_scale = c->loss_scale,
                                  .order = &shard->order};
}

static void shard_close(xent_shard *shard)
{
    free(shard->logits);
    free(shard->args.max);
    free(shard->args.sums);
    free(shard->args.loss);
    free(shard->args.lse);
}

static tp_status run_phase(tp_ctx *ctx, xent_shard *shard, int shards, tpi_xent_phase phase)
{
    for (int i = 0; i < shards; i++) {
        tp_status status;

        shard[i].args.phase = phase;
        status = tpi_xent(ctx->compute, &shard[i].args);
        if (status == TP_OK)
            status = tp_ctx_synchronize(ctx);
        if (status != TP_OK)
            return status;
    }
    return TP_OK;
}

/* The reductions between the phases. */
static void join_max(xent_shard *shard, int shards, int64_t rows)
{
    for (int64_t row = 0; row < rows; row++) {
        float max = shard[0].args.max[row];

        for (int i = 1; i < shards; i++)
            max = shard[i].args.max[row] > max ? shard[i].args.max[row] : max;
        for (int i = 0; i < shards; i++)
            shard[i].args.max[row] = max;
    }
}

static void join_sums(xent_shard *shard, int shards, int64_t values)
{
    for (int64_t k = 0; k < values; k++) {
        float node[8];

        for (int i = 0; i < shards; i++)
            node[i] = shard[i].args.sums[k];
        for (int distance = 1; distance < shards; distance *= 2) {
            for (int i = 0; i + distance < shards; i += 2 * distance)
                node[i] += node[i + distance];
        }
        for (int i = 0; i < shards; i++)
            shard[i].args.sums[k] = node[0];
    }
}

static tp_status run_xent(tp_ctx *ctx, const void *test, void *out)
{
    const xent_case *c = test;
    xent_shard shard[8];
    char *grad = (char *)out + head_bytes(c);
    float *floats = out, totals[8][2] = {{0}};
    tp_status status;

    for (int i = 0; i < c->shards; i++) {
        shard_open(c, i, &shard[i]);
        shard[i].args.total = totals[i];
    }
    status = run_phase(ctx, shard, c->shards, TPI_XENT_MAX);
    join_max(shard, c->shards, c->rows);
    status = status != TP_OK ? status : run_phase(ctx, shard, c->shards, TPI_XENT_SUMS);
    join_sums(shard, c->shards, 3 * c->rows);
    status = status != TP_OK ? status : run_phase(ctx, shard, c->shards, TPI_XENT_LOSS);
    status = status != TP_OK ? status : run_phase(ctx, shard, c->shards, TPI_XENT_GRAD);
    memcpy(floats, shard[0].args.loss, (size_t)c->rows * sizeof(float));
    memcpy(floats + c->rows, shard[0].args.lse, (size_t)c->rows * sizeof(float));
    memcpy(floats + 2 * c->rows, totals[0], sizeof totals[0]);
    for (int i = 0; i < c->shards; i++) {
        for (int64_t e = 0; e < c->rows * shard[i].args.cols; e++) {
            int64_t row = e / shard[i].args.cols, col = e % shard[i].args.cols;

            tpt_set(grad, c->dtype, row * c->vocabulary + shard[i].args.first_id + col,
                    tpt_get(shard[i].logits, c->dtype, row * shard[i].args.stride + col));
        }
        shard_close(&shard[i]);
    }
    return status;
}

static void *run_all(const machines *all, const xent_case *c)
{
    return machines_run(all, run_xent, c, NULL,
                        head_bytes(c) + (size_t)(c->rows * c->vocabulary) * tp_dtype_size(c->dtype));
}

/* One row in double. */
static void check_row(const xent_case *c, const void *got, int64_t row)
{
    const float *floats = got;
    const char *grad = (const char *)got + head_bytes(c);
    double max = -INFINITY, sum = 0, mean = 0, lse, loss, size, e = (double)c->smoothing;
    int32_t target = c->targets[row];

    for (int64_t k = 0; k < c->vocabulary; k++)
        max = fmax(max, tpt_get(c->logits, c->dtype, row * c->vocabulary + k));
    for (int64_t k = 0; k < c->vocabulary; k++) {
        double x = tpt_get(c->logits, c->dtype, row * c->vocabulary + k);

        sum += exp(x - max);
        mean += x / (double)c->vocabulary;
    }
    lse = max + log(sum);
    size = fabs(max) + 8 + log(sum); /* of the logits and differences that are added up */
    loss = 0;
    if (target >= 0) {
        loss = lse - (1 - e) * tpt_get(c->logits, c->dtype, row * c->vocabulary + target) - e * mean +
               (double)c->z_loss * lse * lse;
        cr_assert_float_eq(floats[c->rows + row], lse, tpt_tolerance(TP_DTYPE_F32, c->vocabulary, size));
    }
    cr_assert_float_eq(floats[row], loss,
                       tpt_tolerance(TP_DTYPE_F32, c->vocabulary, size * (1 + (double)c->z_loss * size)), "row %lld",
                       (long long)row);
    for (int64_t k = 0; k < c->vocabulary; k++) {
        double p = exp(tpt_get(c->logits, c->dtype, row * c->vocabulary + k) - lse), scale = (double)c->loss_scale;
        double want = target < 0 ? 0
                                 : scale * (p * (1 + 2 * (double)c->z_loss * lse) - (k == target ? 1 - e : 0) -
                                            e / (double)c->vocabulary);
        double wide = scale * (p * (1 + 2 * (double)c->z_loss * size) + (k == target) + e / (double)c->vocabulary);

        /* exp's argument, up to 16 in size here, is rounded too; f16 has steps of 2^-24 next to 0 */
        double tolerance = tpt_tolerance(TP_DTYPE_F32, c->vocabulary + 16, wide) +
                           tpt_tolerance(c->dtype, 1, fabs(want)) + (c->dtype == TP_DTYPE_F16 ? 0x1p-25 : 0);

        cr_assert_float_eq(tpt_get(grad, c->dtype, row * c->vocabulary + k), want, tolerance);
    }
}

static void check_xent(const machines *all, xent_case c)
{
    void *logits = tpt_new_normal(c.dtype, c.rows * c.vocabulary, 1, 3), *got, *other;
    int32_t *targets = tpt_allocate((size_t)c.rows * sizeof(int32_t));
    float *floats, total = 0;
    int valid = 0;

    for (int64_t row = 0; row < c.rows; row++)
        targets[row] = row % 4 == 3 ? -100 : (int32_t)(row * 7919 % c.vocabulary);
    c.logits = logits;
    c.targets = targets;
    c.shards = 1;
    floats = got = run_all(all, &c);
    for (int64_t row = 0; row < c.rows; row++) {
        check_row(&c, got, row);
        total += targets[row] < 0 ? 0 : floats[row];
        valid += targets[row] >= 0;
    }
    cr_assert_eq(floats[2 * c.rows], total, "a chain over tokens");
    cr_assert_eq(floats[2 * c.rows + 1], (float)valid);
    for (c.shards = 2; c.shards <= 8; c.shards *= 2) {
        other = run_all(all, &c);
        cr_assert(memcmp(got, other, head_bytes(&c) + (size_t)(c.rows * c.vocabulary) * tp_dtype_size(c.dtype)) == 0,
                  "%d shards give other bits", c.shards);
        free(other);
    }
    free(logits);
    free(targets);
    free(got);
}

Test(xent, loss_and_gradient)
{
    static const int64_t sizes[][2] = {{0, 9}, {1, 1}, {5, 5}, {4, 8}, {9, 131}, {3, 1031}};
    machines all = machines_open();

    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (int d = 0; d < 3; d++) {
            xent_case c = {
                .rows = sizes[s][0], .vocabulary = sizes[s][1], .dtype = machine_floats[d], .loss_scale = 0.25f};

            check_xent(&all, c);
            c.smoothing = 0.1f;
            c.z_loss = 1e-2f;
            check_xent(&all, c);
        }
    }
    machines_close(&all);
}

Test(xent, smoothing_is_over_the_whole_vocabulary)
{
    machines all = machines_open();
    float logits[8];
    int32_t target = 2;
    xent_case c = {.rows = 1,
                   .vocabulary = 8,
                   .logits = logits,
                   .dtype = TP_DTYPE_F32,
                   .targets = &target,
                   .smoothing = 0.1f,
                   .loss_scale = 1};

    for (int i = 0; i < 8; i++)
        logits[i] = 0.1f * (float)(i * i);
    for (c.shards = 1; c.shards <= 8; c.shards *= 2) {
        float *got = run_all(&all, &c);

        cr_assert_float_eq(got[0], 4.733271, 1e-5);
        free(got);
    }
    machines_close(&all);
}

Test(xent, large_logits_keep_their_digits)
{
    machines all = machines_open();
    float logits[2] = {1e8f, 1e8f};
    int32_t target = 1;
    xent_case c = {
        .rows = 1, .vocabulary = 2, .logits = logits, .dtype = TP_DTYPE_F32, .targets = &target, .loss_scale = 1};

    for (c.shards = 1; c.shards <= 2; c.shards++) {
        float *got = run_all(&all, &c);

        cr_assert_float_eq(got[0], 0.693147, 1e-6);
        cr_assert_eq(got[4], 0.5f);
        cr_assert_eq(got[5], -0.5f);
        free(got);
    }
    machines_close(&all);
}

/* 80, 88, ... 640 in bf16: the same values in f32 give the same loss; the largest is in the last shard. */
Test(xent, bf16_logits_lose_nothing)
{
    enum { V = 71 };
    machines all = machines_open();
    float logits[V];
    uint16_t halves[V];
    int32_t target = 70;
    xent_case c = {.rows = 1, .vocabulary = V, .targets = &target, .loss_scale = 1};

    for (int i = 0; i < V; i++) {
        halves[i] = tp_bf16_from_f32((float)(80 + 8 * i));
        logits[i] = tp_f32_from_bf16(halves[i]);
    }
    for (c.shards = 1; c.shards <= 4; c.shards *= 2) {
        float *wide, *narrow;

        c.logits = logits;
        c.dtype = TP_DTYPE_F32;
        wide = run_all(&all, &c);
        c.logits = halves;
        c.dtype = TP_DTYPE_BF16;
        narrow = run_all(&all, &c);
        cr_assert_eq(wide[0], narrow[0]);
        cr_assert_float_eq(wide[0], log1p(exp(-8) * (1 + exp(-8))), 1e-6);
        free(wide);
        free(narrow);
    }
    machines_close(&all);
}

Test(xent, padded_columns_do_not_count)
{
    machines all = machines_open();
    float logits[8] = {0, 0, 0, 0, 0, -INFINITY, -INFINITY, -INFINITY};
    int32_t target = 4;
    xent_case c = {
        .rows = 1, .vocabulary = 8, .logits = logits, .dtype = TP_DTYPE_F32, .targets = &target, .loss_scale = 1};

    for (c.shards = 1; c.shards <= 8; c.shards *= 2) {
        float *got = run_all(&all, &c);

        cr_assert_float_eq(got[0], 1.609438, 1e-6);
        for (int i = 5; i < 8; i++)
            cr_assert_eq(got[4 + i], 0.0f);
        free(got);
    }
    machines_close(&all);
}

Test(xent, nothing_to_learn_is_zero_not_nan)
{
    machines all = machines_open();
    float logits[2][4] = {{1, 2, NAN, INFINITY}, {-INFINITY, -INFINITY, -INFINITY, -INFINITY}}, *got;
    int32_t targets[2] = {-1, -1};
    xent_case c = {.rows = 2,
                   .vocabulary = 4,
                   .logits = logits,
                   .dtype = TP_DTYPE_F32,
                   .targets = targets,
                   .shards = 1,
                   .z_loss = 0.1f,
                   .smoothing = 0.1f,
                   .loss_scale = 1};

    for (int i = 0; i < all.count; i++) {
        float out[6 + 8];

        cr_assert_eq(run_xent(all.ctx[i], &c, out), TP_OK);
        cr_assert(out[0] == 0 && out[1] == 0 && out[4] == 0 && out[5] == 0, "loss, total and count");
        for (int k = 6; k < 14; k++)
            cr_assert_eq(out[k], 0.0f);
    }
    /* A row without any finite logit and with a target: no distribution, infinite loss, no gradient. */
    c = (xent_case){.rows = 1,
                    .vocabulary = 4,
                    .logits = logits[1],
                    .dtype = TP_DTYPE_F32,
                    .targets = (int32_t[]){2},
                    .shards = 1,
                    .loss_scale = 1};
    got = run_all(&all, &c);
    cr_assert_eq(got[0], INFINITY);
    for (int k = 4; k < 8; k++)
        cr_assert_eq(got[k], 0.0f);
    free(got);
    machines_close(&all);
}

Test(xent, overflowed_logits_show)
{
    machines all = machines_open();
    float logits[4] = {1, INFINITY, 0, NAN}, out[4 + 4];
    int32_t target = 0;
    xent_case c = {.rows = 1,
                   .vocabulary = 4,
                   .logits = logits,
                   .dtype = TP_DTYPE_F32,
                   .targets = &target,
                   .shards = 1,
                   .loss_scale = 1};

    for (int i = 0; i < all.count; i++) {
        cr_assert_eq(run_xent(all.ctx[i], &c, out), TP_OK);
        cr_assert(isnan(out[0]) && isnan(out[4]));
    }
    machines_close(&all);
}

Test(xent, targets_beyond_the_vocabulary_are_refused)
{
    tp_ctx_desc desc = {0};
    tp_ctx *ctx;
    float logits[8] = {0}, out[6 + 8];
    int32_t targets[2] = {0, 4};
    xent_case c = {.rows = 2,
                   .vocabulary = 4,
                   .logits = logits,
                   .dtype = TP_DTYPE_F32,
                   .targets = targets,
                   .shards = 1,
                   .loss_scale = 1};

    cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_OK);
    cr_assert_eq(run_xent(ctx, &c, out), TP_ERR_ARGUMENT);
    cr_assert(strstr(tp_ctx_message(ctx), "target 4 of row 1") != NULL, "%s", tp_ctx_message(ctx));
    tp_ctx_destroy(ctx);
}
