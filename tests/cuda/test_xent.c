/* Cross-entropy over a vocabulary shard, all four phases: the CPU's bits. */
#include "cuda/cuda_support.h"

typedef struct xent_case {
    int64_t rows, cols, stride, first_id, vocabulary;
    tp_dtype dtype;
    float smoothing, z_loss;
    int blocks; /* 0: no order */
    bool cut;   /* a block has two segments */
    double low, high;
} xent_case;

typedef struct xent_memory {
    tpt_pair logits, targets, max, sums, loss, lse, total;
} xent_memory;

static void run_phases(tpt_sides *sides, const xent_memory *memory, tpi_xent_args args)
{
    for (int side = 0; side < TPT_SIDES; side++) {
        args.logits = memory->logits.at[side];
        args.targets = (int32_t *)(void *)memory->targets.at[side];
        args.max = (float *)(void *)memory->max.at[side];
        args.sums = (float *)(void *)memory->sums.at[side];
        args.loss = (float *)(void *)memory->loss.at[side];
        args.lse = (float *)(void *)memory->lse.at[side];
        args.total = (float *)(void *)memory->total.at[side];
        for (int phase = TPI_XENT_MAX; phase <= TPI_XENT_GRAD; phase++) {
            args.phase = (tpi_xent_phase)phase;
            TPT_ISSUE(sides, side, tpi_xent, &args);
        }
    }
    tpt_pair_same(sides, "max", &memory->max, TP_DTYPE_F32);
    tpt_pair_same(sides, "sums", &memory->sums, TP_DTYPE_F32);
    tpt_pair_same(sides, "loss", &memory->loss, TP_DTYPE_F32);
    tpt_pair_same(sides, "lse", &memory->lse, TP_DTYPE_F32);
    tpt_pair_same(sides, "total", &memory->total, TP_DTYPE_F32);
    tpt_pair_same(sides, "gradient", &memory->logits, args.dtype);
}

/* Targets: ignored ones, some here, some of other shards. */
static void fill_targets(int32_t *targets, const xent_case *test)
{
    for (int64_t row = 0; row < test->rows; row++) {
        int64_t target = row % 5 == 4 ? -100 : (row * 7919 + 3) % test->vocabulary;

        if (row % 3 == 1 && test->cols > 0)
            target = test->first_id + row % test->cols;
        targets[row] = (int32_t)target;
    }
}

static xent_memory make_memory(tpt_sides *sides, const xent_case *test, const void *logits)
{
    float before[2] = {1.25f, 3};
    int32_t *targets = tpt_array(TP_DTYPE_I32, test->rows);
    xent_memory memory;

    fill_targets(targets, test);
    memory.logits = logits ? tpt_pair_array(sides, logits, test->dtype, test->rows * test->stride)
                           : tpt_pair_uniform(sides, test->dtype, test->rows * test->stride, 1, test->low, test->high);
    memory.targets = tpt_pair_array(sides, targets, TP_DTYPE_I32, test->rows);
    memory.max = tpt_pair_array(sides, NULL, TP_DTYPE_F32, test->rows);
    memory.sums = tpt_pair_array(sides, NULL, TP_DTYPE_F32, 3 * test->rows);
    memory.loss = tpt_pair_array(sides, NULL, TP_DTYPE_F32, test->rows);
    memory.lse = tpt_pair_array(sides, NULL, TP_DTYPE_F32, test->rows);
    memory.total = tpt_pair_of(sides, before, sizeof before);
    free(targets);
    return memory;
}

static void check_xent(tpt_sides *sides, const xent_case *test, const void *logits)
{
    xent_memory memory = make_memory(sides, test, logits);
    tpi_inner order = {.blocks = test->blocks};
    tpi_xent_args args = {.rows = test->rows,
                          .cols = test->cols,
                          .first_id = test->first_id,
                          .vocabulary = test->vocabulary,
                          .dtype = test->dtype,
                          .stride = test->stride,
                          .label_smoothing = test->smoothing,
                          .z_loss = test->z_loss,
                          .loss_scale = 0.125f};

    for (int b = 0; b < test->blocks; b++) {
        tp_range range = tp_shard_range(test->cols, test->blocks, b);

        int64_t middle = test->cut ? range.begin + (range.end - range.begin) / 3 : range.end;

        order.segment[order.segments].block = b;
        order.segment[order.segments].begin = range.begin;
        order.segment[order.segments++].length = middle - range.begin;
        if (!test->cut)
            continue;
        order.segment[order.segments].block = b;
        order.segment[order.segments].begin = middle;
        order.segment[order.segments++].length = range.end - middle;
    }
    if (test->blocks)
        args.order = &order;
    run_phases(sides, &memory, args);
    tpt_sides_reset(sides);
}

Test(cuda_xent, all)
{
    static const int64_t shapes[][5] = {/* rows, cols, stride, first_id, vocabulary */
                                        {0, 8, 8, 0, 8},           {1, 1, 1, 0, 1},    {3, 0, 4, 4, 9},
                                        {4, 7, 7, 2, 11},          {6, 64, 64, 0, 64}, {5, 129, 131, 0, 129},
                                        {2, 1003, 1003, 50, 3000}, {1030, 3, 3, 0, 3}};
    static const int blocks[] = {0, 8, 1, 4, 5};
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int mode = 0; mode < 6; mode++) {
            xent_case test = {.rows = shapes[s][0],
                              .cols = shapes[s][1],
                              .stride = shapes[s][2],
                              .first_id = shapes[s][3],
                              .vocabulary = shapes[s][4],
                              .dtype = tpt_floats[(s + (size_t)mode) % 3],
                              .smoothing = mode & 1 ? 0.1f : 0,
                              .z_loss = mode & 2 ? 1e-3f : 0,
                              .blocks = blocks[(s + (size_t)mode) % 5],
                              .cut = mode > 2,
                              .low = mode == 4 ? 60 : -8,
                              .high = mode == 4 ? 640 : 8};

            if (test.rows > 1000 && mode > 2)
                continue;
            check_xent(&sides, &test, NULL);
        }
    tpt_sides_close(&sides);
}

/* Rows of -inf alone, of one finite logit, of huge equal ones, with a NaN, and with infinity. */
Test(cuda_xent, special_rows)
{
    enum { ROWS = 6, COLS = 70 };
    static float logits[ROWS][COLS];
    tpt_sides sides;
    xent_case test = {
        .rows = ROWS, .cols = COLS, .stride = COLS, .vocabulary = COLS, .dtype = TP_DTYPE_F32, .blocks = 8};

    for (int c = 0; c < COLS; c++) {
        logits[0][c] = -INFINITY;
        logits[1][c] = c == 69 ? 3 : -INFINITY;
        logits[2][c] = 1e8f;
        logits[3][c] = c == 5 ? NAN : 1;
        logits[4][c] = c == 6 ? INFINITY : 1;
        logits[5][c] = -1e30f;
    }
    tpt_sides_open(&sides);
    check_xent(&sides, &test, logits);
    test.smoothing = 0.1f;
    check_xent(&sides, &test, logits);
    tpt_sides_close(&sides);
}

Test(cuda_xent, wrong_target)
{
    tpt_sides sides;
    int32_t targets[3] = {0, 9, 1};
    xent_case test = {.rows = 3, .cols = 9, .stride = 9, .vocabulary = 9, .dtype = TP_DTYPE_F32, .high = 1};
    xent_memory memory;
    tpi_xent_args args = {
        .phase = TPI_XENT_SUMS, .rows = 3, .cols = 9, .stride = 9, .vocabulary = 9, .dtype = TP_DTYPE_F32};

    tpt_sides_open(&sides);
    memory = make_memory(&sides, &test, NULL);
    cr_assert_eq(tp_ctx_upload(sides.ctx[TPT_GPU], memory.targets.at[TPT_GPU], targets, sizeof targets), TP_OK);
    args.logits = memory.logits.at[TPT_GPU];
    args.targets = (int32_t *)(void *)memory.targets.at[TPT_GPU];
    args.max = (float *)(void *)memory.max.at[TPT_GPU];
    args.sums = (float *)(void *)memory.sums.at[TPT_GPU];
    TPT_ISSUE(&sides, TPT_GPU, tpi_xent, &args);
    cr_assert_eq(tp_ctx_synchronize(sides.ctx[TPT_GPU]), TP_ERR_ARGUMENT);
    cr_assert_str_eq(tp_ctx_message(sides.ctx[TPT_GPU]), "target 9 of row 1 is outside the vocabulary of 9");
    cr_assert_eq(tpt_simulator_reports(), 0);
    for (int side = 0; side < TPT_SIDES; side++) {
        for (int i = 0; i < sides.pairs; i++)
            tp_ctx_release(sides.ctx[side], TP_MEMORY_OTHER, sides.pair[i].at[side], sides.pair[i].bytes);
        tp_ctx_destroy(sides.ctx[side]);
    }
}
