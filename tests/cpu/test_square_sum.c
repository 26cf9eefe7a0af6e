/* Sums of squares by virtual ranks. */
#include "cpu/machines.h"
#include "core/inner.h"

static tp_status run_square_sum(tp_ctx *ctx, const void *test, void *out)
{
    tpi_square_sum_args args = *(const tpi_square_sum_args *)test;

    args.result = out;
    return tpi_square_sum(ctx->compute, &args);
}

static float run_one(const machines *all, const tpi_square_sum_args *args)
{
    float *got = machines_run(all, run_square_sum, args, NULL, sizeof(float)), result = *got;

    free(got);
    return result;
}

/* The result of `ranks` ranks, each with its own columns or rows, joined by the tree. */
static float run_ranks(const machines *all, tpi_square_sum_args args, int ranks)
{
    tp_shard_part part = {.units = args.dim == 0 ? args.rows : args.cols, .unit_size = 1};
    const float *x = args.x;
    float node[8];

    for (int i = 0; i < ranks; i++) {
        tp_range range = tp_shard_range(part.units, ranks, i);
        tpi_square_sum_args local = args;
        tpi_inner order;

        tpi_inner_from_parts(&part, 1, ranks, i, &order);
        local.order = &order;
        local.x = x + (args.dim == 0 ? range.begin * args.stride : range.begin);
        *(args.dim == 0 ? &local.rows : &local.cols) = range.end - range.begin;
        node[i] = run_one(all, &local);
    }
    for (int distance = 1; distance < ranks; distance *= 2) {
        for (int i = 0; i + distance < ranks; i += 2 * distance)
            node[i] += node[i + distance];
    }
    return node[0];
}

Test(square_sum, value_and_bits_do_not_depend_on_the_layout)
{
    static const int64_t sizes[][2] = {{1, 1}, {3, 5}, {8, 16}, {1, 1009}, {131, 67}, {1009, 1}};
    machines all = machines_open();

    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (int dim = 0; dim < 2; dim++) {
            tpi_square_sum_args args = {
                .rows = sizes[s][0], .cols = sizes[s][1], .stride = sizes[s][1] + 3, .dim = dim};
            float *x = tpt_new_normal(TP_DTYPE_F32, args.rows * args.stride, 1, 2), whole;
            double want = 0;

            for (int64_t e = 0; e < args.rows * args.stride; e++)
                want += e % args.stride < args.cols ? (double)x[e] * (double)x[e] : 0;
            args.x = x;
            whole = run_ranks(&all, args, 1);
            cr_assert_float_eq(whole, want, tpt_tolerance(TP_DTYPE_F32, args.cols, want));
            for (int ranks = 2; ranks <= 8; ranks *= 2)
                cr_assert_eq(run_ranks(&all, args, ranks), whole, "%d ranks, dim %d", ranks, dim);
            cr_assert_float_eq(run_one(&all, &args), want, tpt_tolerance(TP_DTYPE_F32, args.cols, want));
            free(x);
        }
    }
    machines_close(&all);
}

Test(square_sum, empty_is_zero_and_overflow_is_infinite)
{
    machines all = machines_open();
    float x[3] = {1e30f, 2, 3};
    tpi_square_sum_args args = {.rows = 0, .cols = 3, .stride = 3, .x = x};

    cr_assert_eq(run_one(&all, &args), 0.0f);
    args.rows = 1;
    cr_assert_eq(run_one(&all, &args), INFINITY);
    machines_close(&all);
}

/* An element of a replica that another rank counts: its value does not matter as long as it is finite. */
Test(square_sum, what_is_not_counted_must_be_finite)
{
    enum { ROWS = 21, COLS = 19 };
    machines all = machines_open();
    float *x = tpt_new_normal(TP_DTYPE_F32, ROWS * COLS, 1, 2);

    for (int dim = 0; dim < 2; dim++) {
        for (int rank = 0; rank < 4; rank++) {
            tpi_inner order;
            tpi_square_sum_args args = {
                .rows = ROWS, .cols = COLS, .stride = COLS, .x = x, .dim = dim, .order = &order};

            tpi_inner_from_share(dim == 0 ? ROWS : COLS, 4, rank, false, &order);
            float good = run_one(&all, &args);
            for (int e = 0; e < ROWS * COLS; e += 7) {
                tp_range mine = tp_shard_range(dim == 0 ? ROWS : COLS, 4, rank);
                int64_t index = dim == 0 ? e / COLS : e % COLS;
                float keep = x[e], infinite = index >= mine.begin && index < mine.end ? INFINITY : NAN;

                x[e] = NAN;
                cr_assert(isnan(run_one(&all, &args)));
                x[e] = -INFINITY;
                cr_assert(isnan(infinite) ? isnan(run_one(&all, &args)) : run_one(&all, &args) == infinite);
                x[e] = keep;
                if (isnan(infinite)) {
                    x[e] = 1e30f; /* finite: nothing to see */
                    cr_assert_eq(run_one(&all, &args), good);
                    x[e] = keep;
                }
            }
        }
    }
    free(x);
    machines_close(&all);
}

/* Blocks of a fused matrix have a stretch in each of its parts, so stretches don't come in the order of their
 * beginnings: all are counted, and an infinite sum is no NaN. */
Test(square_sum, stretches_may_come_in_any_order)
{
    const tpi_inner order = {.blocks = 2, .segments = 4, .segment = {{0, 0, 4}, {0, 8, 4}, {1, 4, 4}, {1, 12, 4}}};
    machines all = machines_open();
    float x[16];
    for (int dim = 0; dim < 2; dim++)
        for (int e = 0; e < 16; e++) {
            tpi_square_sum_args args = {.rows = dim == 0 ? 16 : 1, .cols = dim == 0 ? 1 : 16, .x = x, .dim = dim,
                                        .stride = dim == 0 ? 1 : 16, .order = &order};
            for (int i = 0; i < 16; i++)
                x[i] = 0.5f;
            cr_assert_eq(run_one(&all, &args), 4.0f);
            x[e] = INFINITY;
            cr_assert_eq(run_one(&all, &args), INFINITY, "element %d along %d", e, dim);
        }
    machines_close(&all);
}
