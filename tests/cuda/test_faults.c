/* Faults that trainers of the field have had in their kernels: the right values on a GPU, as numbers. Large distances
 * in memory are in test_distances.c. */
#include "cuda/cuda_ranks.h"
#include "support/training.h"

/* ---- O05: the loss keeps its digits ------------------------------------------------------------------------------ */

typedef struct loss_of_row {
    float loss, gradient[128];
} loss_of_row;

/* One row of logits, target the last, cut into shards as ranks would. */
static loss_of_row row_loss(tp_ctx *ctx, const void *logits, tp_dtype dtype, int64_t cols, int shards)
{
    enum { FLOATS = 16 };
    char *memory;
    size_t size = tp_dtype_size(dtype), row = (size_t)cols * size,
           bytes = (size_t)cols * 4 + 64 + FLOATS * sizeof(float);
    int32_t target = (int32_t)(cols - 1);
    float start[FLOATS] = {0}, max = -INFINITY, sums[3] = {0};
    void *allocated;
    loss_of_row result;

    cr_assert_eq(tp_ctx_allocate(ctx, TP_MEMORY_OTHER, bytes, &allocated), TP_OK);
    memory = allocated;
    /* max, 3 sums, loss, lse, 2 totals, target */
    float *numbers = (float *)(void *)(memory + bytes - FLOATS * sizeof(float));
    memcpy(&start[8], &target, sizeof target);
    cr_assert_eq(tp_ctx_upload(ctx, memory, logits, row), TP_OK);
    cr_assert_eq(tp_ctx_upload(ctx, numbers, start, sizeof start), TP_OK);
    for (int phase = TPI_XENT_MAX; phase <= TPI_XENT_GRAD; phase++)
        for (int shard = 0; shard < shards; shard++) {
            tp_range mine = tp_shard_range(cols, shards, shard);
            tpi_xent_args args = {.phase = (tpi_xent_phase)phase,
                                  .rows = 1,
                                  .cols = mine.end - mine.begin,
                                  .first_id = mine.begin,
                                  .vocabulary = cols,
                                  .logits = memory + (size_t)mine.begin * size,
                                  .dtype = dtype,
                                  .stride = cols,
                                  .targets = (int32_t *)(void *)(numbers + 8),
                                  .max = numbers,
                                  .sums = numbers + 1,
                                  .loss = numbers + 4,
                                  .lse = numbers + 5,
                                  .total = numbers + 6,
                                  .loss_scale = 1};
            float got[4];

            if (phase == TPI_XENT_LOSS && shard > 0)
                continue;
            cr_assert_eq(tpi_xent(ctx->compute, &args), TP_OK);
            if (phase > TPI_XENT_SUMS)
                continue;
            /* What ranks agree on: the largest maximum, and the sums added. */
            cr_assert_eq(tp_ctx_download(ctx, got, numbers, sizeof got), TP_OK);
            max = phase == TPI_XENT_MAX ? fmaxf(max, got[0]) : max;
            for (int i = 0; i < 3 && phase == TPI_XENT_SUMS; i++)
                sums[i] += got[1 + i];
            if (shard == shards - 1)
                cr_assert_eq(tp_ctx_upload(ctx, phase == TPI_XENT_MAX ? numbers : numbers + 1,
                                           phase == TPI_XENT_MAX ? &max : sums,
                                           phase == TPI_XENT_MAX ? sizeof max : sizeof sums),
                             TP_OK);
        }
    cr_assert_eq(tp_ctx_download(ctx, &result.loss, numbers + 4, sizeof result.loss), TP_OK);
    uint16_t halves[128];
    cr_assert_eq(tp_ctx_download(ctx, dtype == TP_DTYPE_F32 ? (void *)result.gradient : halves, memory, row), TP_OK);
    for (int64_t i = 0; i < cols && dtype == TP_DTYPE_BF16; i++)
        result.gradient[i] = tp_f32_from_bf16(halves[i]);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, allocated, bytes);
    return result;
}

Test(cuda_faults, the_loss_keeps_its_digits)
{
    enum { V = 71 };
    tpt_sides sides;
    float huge[2] = {1e8f, 1e8f}, wide[V];
    uint16_t narrow[V];

    tpt_sides_open(&sides);
    for (int i = 0; i < V; i++) {
        narrow[i] = tp_bf16_from_f32((float)(80 + 8 * i));
        wide[i] = tp_f32_from_bf16(narrow[i]);
    }
    for (int shards = 1; shards <= 4; shards *= 2) {
        if (shards <= 2) {
            loss_of_row two = row_loss(sides.ctx[TPT_GPU], huge, TP_DTYPE_F32, 2, shards);
            cr_assert_float_eq(two.loss, 0.693147, 1e-6);
            cr_assert_eq(two.gradient[0], 0.5f);
            cr_assert_eq(two.gradient[1], -0.5f);
        }
        loss_of_row of_wide = row_loss(sides.ctx[TPT_GPU], wide, TP_DTYPE_F32, V, shards);
        loss_of_row of_narrow = row_loss(sides.ctx[TPT_GPU], narrow, TP_DTYPE_BF16, V, shards);
        cr_assert_float_eq(of_wide.loss, 3.3546e-4, 1e-6, "log(1 + exp(-8) + ...): %g", (double)of_wide.loss);
        cr_assert_eq(of_narrow.loss, of_wide.loss);
        for (int i = 0; i < V; i++)
            cr_assert_eq(of_narrow.gradient[i], tp_f32_from_bf16(tp_bf16_from_f32(of_wide.gradient[i])));
    }
    tpt_sides_close(&sides);
}

/* ---- O06: norms -------------------------------------------------------------------------------------------------- */

static void norm_of_row(tp_ctx *ctx, bool rms, const float *x, int64_t cols, tp_dtype dtype, float *y)
{
    tpt_device in = {0}, gain = {0}, out = {0};
    float ones[16];
    uint16_t halves[16];
    const bool half = dtype != TP_DTYPE_F32;

    for (int i = 0; i < 16; i++)
        ones[i] = 1;
    for (int i = 0; i < cols && half; i++)
        halves[i] = dtype == TP_DTYPE_BF16 ? tp_bf16_from_f32(x[i]) : tp_f16_from_f32(x[i]);
    cr_assert_eq(tpt_up(ctx, half ? (const void *)halves : x, dtype, 1, cols, &in), TP_OK);
    for (int i = 0; i < cols && half; i++)
        halves[i] = dtype == TP_DTYPE_BF16 ? tp_bf16_from_f32(1) : tp_f16_from_f32(1);
    cr_assert_eq(tpt_up(ctx, half ? (const void *)halves : ones, dtype, 1, cols, &gain), TP_OK);
    cr_assert_eq(tpt_up(ctx, half ? (const void *)halves : ones, dtype, 1, cols, &out), TP_OK);
    tpi_norm_args args = {.rms = rms,
                          .rows = 1,
                          .cols = cols,
                          .dtype = dtype,
                          .x = in.tensor.data,
                          .x_stride = cols,
                          .gain = gain.tensor.data,
                          .epsilon = 1e-5f,
                          .y = out.tensor.data,
                          .y_stride = cols};
    cr_assert_eq(tpi_norm(ctx->compute, &args), TP_OK);
    cr_assert_eq(tp_ctx_download(ctx, half ? (void *)halves : y, out.tensor.data, out.bytes), TP_OK);
    for (int i = 0; i < cols && half; i++)
        y[i] = dtype == TP_DTYPE_BF16 ? tp_f32_from_bf16(halves[i]) : tp_f32_from_f16(halves[i]);
    tpt_device *all[] = {&in, &gain, &out};
    for (int i = 0; i < 3; i++)
        tp_ctx_release(ctx, TP_MEMORY_OTHER, all[i]->tensor.data, all[i]->bytes);
}

Test(cuda_faults, norms_of_large_means_tiny_values_and_zeros)
{
    static const double means[] = {0, 100, 1000, 10000}, first[] = {-1.34164, -1.34153, -1.34151, -1.33133};
    tpt_sides sides;
    float x[16], y[16];

    tpt_sides_open(&sides);
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 16; i++)
            x[i] = (float)(means[k] + 0.001 * i);
        norm_of_row(sides.ctx[TPT_GPU], false, x, 16, TP_DTYPE_F32, y);
        cr_assert_float_eq(y[0], first[k], 1e-4, "mean %g: %g", means[k], (double)y[0]);
    }
    for (int i = 0; i < 8; i++)
        x[i] = 1e-3f;
    norm_of_row(sides.ctx[TPT_GPU], true, x, 8, TP_DTYPE_F32, y);
    cr_assert_float_eq(y[7], 0.301511, 1e-6, "epsilon is inside the root: %g", (double)y[7]);
    memset(x, 0, sizeof x);
    for (int d = 0; d < 3; d++)
        for (int rms = 0; rms < 2; rms++) {
            norm_of_row(sides.ctx[TPT_GPU], rms, x, 16, tpt_floats[d], y);
            for (int i = 0; i < 16; i++)
                cr_assert_eq(y[i], 0.0f);
        }
    tpt_sides_close(&sides);
}

/* ---- O07: far positions ------------------------------------------------------------------------------------------ */

/* q.k depends on the distance alone, also far out. */
Test(cuda_faults, far_positions_keep_their_angle)
{
    static const int32_t positions[4] = {4095, 4094, 1, 0};
    tpt_sides sides;

    tpt_sides_open(&sides);
    tp_ctx *ctx = sides.ctx[TPT_GPU];
    for (int64_t hot = 0; hot < 32; hot += 5) {
        float x[4][64] = {{0}};
        tpt_device rows = {0}, places = {0};
        double far = 0, near = 0;

        for (int row = 0; row < 4; row++)
            x[row][hot] = 1;
        cr_assert_eq(tpt_up(ctx, x, TP_DTYPE_F32, 4, 64, &rows), TP_OK);
        cr_assert_eq(tpt_up(ctx, positions, TP_DTYPE_I32, 1, 4, &places), TP_OK);
        tpi_rope_args args = {.rows = 4,
                              .heads = 1,
                              .head_dim = 64,
                              .dim = 64,
                              .x = rows.tensor.data,
                              .dtype = TP_DTYPE_F32,
                              .stride = 64,
                              .positions = places.tensor.data,
                              .theta = 10000};
        cr_assert_eq(tpi_rope(ctx->compute, &args), TP_OK);
        cr_assert_eq(tp_ctx_download(ctx, x, rows.tensor.data, sizeof x), TP_OK);
        for (int i = 0; i < 64; i++) {
            far += (double)x[0][i] * (double)x[1][i];
            near += (double)x[2][i] * (double)x[3][i];
        }
        cr_assert_float_eq(far, near, 1e-4);
        if (hot == 0)
            cr_assert_float_eq(x[0][0], -0.0660, 1e-4, "cos(4095)");
        tp_ctx_release(ctx, TP_MEMORY_OTHER, rows.tensor.data, rows.bytes);
        tp_ctx_release(ctx, TP_MEMORY_OTHER, places.tensor.data, places.bytes);
    }
    tpt_sides_close(&sides);
}

/* ---- O08, O12: microbatches -------------------------------------------------------------------------------------- */

enum { SEQUENCES = 4, SEQUENCE = 4, TOKENS = SEQUENCES * SEQUENCE };

static void train(int64_t microbatch, int ranks, const int32_t *ids, const int32_t *targets, tpt_trained *out)
{
    tpt_training training = {.model = {.family = TP_MODEL_GPT2,
                                       .layers = 1,
                                       .hidden = 16,
                                       .heads = 4,
                                       .ffn = 20,
                                       .vocabulary = 19,
                                       .positions = 5,
                                       .dtype = TP_DTYPE_F32,
                                       .sequence_parallel = ranks > 1},
                             .ranks = ranks,
                             .sequences = SEQUENCES,
                             .sequence = SEQUENCE,
                             .microbatch = microbatch,
                             .ids = ids,
                             .targets = targets,
                             .steps = 2, /* without a change: the second's gradient is the first's, or something was
                                          * left over */
                             .lr = 0,
                             .optimizer = {.kind = TP_OPTIMIZER_SGD},
                             .seed = 17,
                             .device = TP_DEVICE_CUDA,
                             .plugin = TPT_CUDA_PLUGIN,
                             .devices = ranks};
    cr_assert_eq(tpt_train(&training, out), TP_OK);
    cr_assert_eq(out->norm[0], out->norm[1]);
}

static void check_gradients(const char *what, const tpt_trained *got, const tpt_trained *want)
{
    for (int i = 0; i < want->params; i++) {
        int64_t at = want->param[i].at, count = want->param[i].elements;
        double *exact = tpt_allocate((size_t)count * sizeof *exact);

        tpt_to_f64(exact, want->grads + at, TP_DTYPE_F32, count);
        cr_assert(tpt_close_norm(want->param[i].name, got->grads + at, TP_DTYPE_F32, exact, count,
                                 tpt_tolerance_chain(TP_DTYPE_F32, 20, 18, 1.0)),
                  "%s", what);
        free(exact);
    }
}

/* The gradient of microbatches is the whole batch's, gains and tables included; one of them has no targets at all. */
Test(cuda_faults, microbatches_add_up, .timeout = 100)
{
    int32_t ids[TOKENS], targets[TOKENS];

    tpt_make_batch(ids, targets, TOKENS, 19, 3);
    for (int t = 0; t < SEQUENCE; t++)
        targets[t] = -1;
    for (int ranks = 1; ranks <= 2; ranks++) {
        tpt_trained whole, parts;

        tpt_schedule((unsigned)ranks);
        train(SEQUENCES, ranks, ids, targets, &whole);
        for (int64_t microbatch = 1; microbatch < SEQUENCES; microbatch++) {
            if (SEQUENCES % microbatch != 0)
                continue;
            train(microbatch, ranks, ids, targets, &parts);
            check_gradients("microbatches", &parts, &whole);
            tpt_trained_free(&parts);
        }
        tpt_trained_free(&whole);
        tpt_no_reports("microbatches");
    }
}

/* No token has a target: nothing to learn, and nothing that isn't a number. */
Test(cuda_faults, nothing_to_learn, .timeout = 100)
{
    int32_t ids[TOKENS], targets[TOKENS];

    tpt_make_batch(ids, targets, TOKENS, 19, 0);
    for (int t = 0; t < TOKENS; t++)
        targets[t] = -1;
    for (int ranks = 1; ranks <= 2; ranks++) {
        tpt_trained trained;

        tpt_schedule((unsigned)ranks);
        train(2, ranks, ids, targets, &trained);
        cr_assert_eq(trained.loss[0], 0.0);
        cr_assert_eq(trained.norm[0], 0.0f);
        for (int64_t i = 0; i < trained.elements; i++)
            cr_assert_eq(trained.grads[i], 0.0f);
        tpt_trained_free(&trained);
        tpt_no_reports("nothing to learn");
    }
}
