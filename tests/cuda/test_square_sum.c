/* Sums of squares by virtual ranks: the CPU's bits. */
#include "cuda/cuda_support.h"

static void check_square_sum(tpt_sides *sides, tpi_square_sum_args args, float special, int64_t special_at)
{
    int64_t count = args.rows * args.stride;
    float *host = tpt_new_normal(TP_DTYPE_F32, count, 9, 3);
    tpt_pair x, result;

    if (special_at >= 0 && special_at < count)
        host[special_at] = special;
    x = tpt_pair_array(sides, host, TP_DTYPE_F32, count);
    result = tpt_pair_array(sides, NULL, TP_DTYPE_F32, 1);
    free(host);
    for (int side = 0; side < TPT_SIDES; side++) {
        args.x = (float *)(void *)x.at[side];
        args.result = (float *)(void *)result.at[side];
        TPT_ISSUE(sides, side, tpi_square_sum, &args);
    }
    tpt_pair_same(sides, "result", &result, TP_DTYPE_F32);
    tpt_sides_reset(sides);
}

/* Segments of `blocks` virtual ranks; with holes, each leaves its last element to others. */
static tpi_inner order_of(int64_t inner, int blocks, bool holes)
{
    tpi_inner order = {.blocks = blocks, .segments = blocks};

    for (int b = 0; b < blocks; b++) {
        tp_range range = tp_shard_range(inner, blocks, b);

        order.segment[b].block = b;
        order.segment[b].begin = range.begin;
        order.segment[b].length = range.end - range.begin;
        if (holes && order.segment[b].length > 0)
            order.segment[b].length--;
    }
    return order;
}

Test(cuda_square_sum, all)
{
    static const int64_t shapes[][3] = {{0, 4, 4},    {4, 0, 1},       {1, 1, 1},    {5, 7, 9},
                                        {40, 24, 24}, {1, 1000, 1000}, {700, 17, 18}};
    static const float specials[] = {1, INFINITY, NAN};
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int mode = 0; mode < 12; mode++) {
            tpi_square_sum_args args = {
                .rows = shapes[s][0], .cols = shapes[s][1], .stride = shapes[s][2], .dim = mode % 2};
            int64_t inner = args.dim == 0 ? args.rows : args.cols;
            tpi_inner order = order_of(inner, 1 + (mode * 5 + (int)s) % 8, mode & 2);

            args.order = mode < 10 ? &order : NULL;
            /* The last element is in a hole where there are some. */
            check_square_sum(&sides, args, specials[mode % 3], args.rows * args.stride - 1 - (args.stride - args.cols));
        }
    tpt_sides_close(&sides);
}

/* Matrices of many shapes and orders, more than one launch can take: the sums of each by itself. */
Test(cuda_square_sum, a_list_has_the_bits_of_single_matrices)
{
    enum { LIST = 300, MOST = 400 };
    static tpi_square_sum_args list[LIST];
    static tpi_inner orders[LIST];
    tpt_sides sides;

    tpt_sides_open(&sides);
    tpt_pair x = tpt_pair_normal(&sides, TP_DTYPE_F32, LIST + MOST, 9, 3),
             result = tpt_pair_array(&sides, NULL, TP_DTYPE_F32, LIST);
    for (int side = 0; side < TPT_SIDES; side++) {
        for (int i = 0; i < LIST; i++) {
            int64_t rows = i * 5 % 19, cols = i % 7 == 0 ? 0 : 1 + i * 3 % 18;

            orders[i] = order_of(i % 2 == 0 ? rows : cols, 1 + i % 8, i % 3 == 0);
            list[i] = (tpi_square_sum_args){.rows = rows,
                                            .cols = cols,
                                            .x = (float *)(void *)x.at[side] + i,
                                            .stride = cols + 1,
                                            .dim = i % 2,
                                            .order = i % 11 == 0 ? NULL : &orders[i],
                                            .result = (float *)(void *)result.at[side] + i};
            if (side == TPT_CPU)
                TPT_ISSUE(&sides, side, tpi_square_sum, &list[i]);
        }
        if (side == TPT_GPU)
            cr_assert_eq(tpi_square_sum_list(sides.ctx[side]->compute, list, LIST), TP_OK, "%s", tp_last_message());
        cr_assert_eq(tp_ctx_synchronize(sides.ctx[side]), TP_OK); /* the CPU may still read the orders */
    }
    tpt_pair_same(&sides, "result", &result, TP_DTYPE_F32);
    tpt_sides_close(&sides);
}
