/* GEMM on the GPU: the CPU's results within tolerance. */
#include "cuda/gemm_case.h"
#include "cuda/gpus.h"

/* Sizes with both kinds of tiles (large ones where four fill the simulated device), aligned and not. */
static const int64_t sizes[][4] = {{1, 1, 1, 0},     {5, 3, 7, 0},      {64, 64, 32, 0},   {65, 130, 33, 1},
                                   {130, 70, 100, 4}, {136, 136, 40, 0}, {131, 129, 35, 2}, {2, 3, 0, 0},
                                   {126, 70, 40, 2},  {248, 506, 40, 0}};

Test(cuda_gemm, layouts_and_sizes)
{
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int d = 0; d < 3; d++)
            for (int layout = 0; layout < 4; layout++) {
                gemm_case it = plain(tpt_floats[d], sizes[s][0], sizes[s][1], sizes[s][2]);

                it.gap = sizes[s][3];
                it.a_columns = layout & 1;
                it.b_columns = layout & 2;
                it.c_dtype = layout % 3 == 0 ? tpt_floats[d] : TP_DTYPE_F32;
                gemm_check(&sides, &it);
            }
    tpt_sides_close(&sides);
}

static void check_large_tiles(int blocks, int compute_capability)
{
    tpt_sides sides;

    tpt_sides_open_on(&sides, &(gpusim_options){.compute_capability = compute_capability});
    for (int d = 0; d < 3; d++)
        for (int layout = 0; layout < 4; layout++) {
            gemm_case it = filling(tpt_floats[d], blocks ? 8 * (d == 1 ? 32 : d ? 40 : 8) : d ? 200 : 72);
            tpi_inner order = eight_blocks(it.inner);

            it.a_columns = layout & 1;
            it.b_columns = layout & 2;
            it.order = blocks ? &order : NULL;
            it.with = blocks ? WITH_BIAS | WITH_RESIDUAL : WITH_ACCUMULATE;
            it.c_dtype = blocks ? tpt_floats[d] : TP_DTYPE_F32;
            gemm_check(&sides, &it);
        }
    tpt_sides_close(&sides);
}

/* Large tiles, and more steps than fit into shared memory at a time. A tree waits in shared memory where a block may
 * have 227 KiB of it. */
Test(cuda_gemm, large_tiles)
{
    check_large_tiles(0, 0);
    check_large_tiles(8, 0);
    if (tpt_gpus_barriers() > 0) /* simulated */
        check_large_tiles(8, 90);
}

/* Every activation, with each of what may go with it, alone and together. */
static void check_epilogues(tpt_sides *sides, tp_dtype dtype)
{
    static const unsigned with[] = {0,
                                    WITH_BIAS,
                                    WITH_PRE,
                                    WITH_BIAS | WITH_PRE,
                                    WITH_RESIDUAL,
                                    WITH_DROPOUT,
                                    WITH_BIAS | WITH_PRE | WITH_RESIDUAL | WITH_DROPOUT,
                                    WITH_ACT_INPUT,
                                    WITH_ACT_INPUT | WITH_RESIDUAL | WITH_DROPOUT};

    for (tpi_activation activation = TPI_ACT_NONE; activation < TPI_ACT_COUNT; activation++)
        for (size_t w = 0; w < sizeof with / sizeof with[0]; w++) {
            gemm_case it = plain(dtype, 9, w % 2 ? 24 : 13, 21);
            tpi_inner order = eight_blocks(it.inner);

            it.c_dtype = (w + (size_t)activation) % 2 ? dtype : TP_DTYPE_F32;
            it.bias_dtype = w % 3 == 0 ? TP_DTYPE_F32 : it.c_dtype;
            it.with = with[w];
            it.activation = activation;
            it.order = w % 4 == 3 ? &order : NULL;
            gemm_check(sides, &it);
        }
}

Test(cuda_gemm, epilogues)
{
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int d = 0; d < 3; d++)
        check_epilogues(&sides, tpt_floats[d]);
    tpt_sides_close(&sides);
}

/* An empty inner sum is +0, and is finished like any other. */
Test(cuda_gemm, empty_sums)
{
    tpt_sides sides;
    tpi_inner nobody = {.blocks = 3};

    tpt_sides_open(&sides);
    for (int d = 0; d < 3; d++) {
        gemm_case it = plain(tpt_floats[d], 5, 6, 0);

        it.with = WITH_BIAS | WITH_PRE | WITH_RESIDUAL;
        it.activation = TPI_ACT_GELU;
        gemm_check(&sides, &it);
        it = plain(tpt_floats[d], 5, 6, 9);
        it.order = &nobody;
        it.with = WITH_RESIDUAL;
        gemm_arrays arrays = make_arrays(&sides, &it);
        for (int side = 0; side < TPT_SIDES; side++) {
            tpi_gemm_args args = args_of(&it, &arrays, side);

            TPT_ISSUE(&sides, side, tpi_gemm, &args);
        }
        tpt_pair_same(&sides, "c", &arrays.c, it.c_dtype);
        tpt_sides_reset(&sides);
    }
    tpt_sides_close(&sides);
}

/* Blocks of several segments out of order, blocks without any, indices in none. */
Test(cuda_gemm, orders)
{
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int blocks = 1; blocks <= 8; blocks++) {
        tpi_inner order = {.blocks = blocks};

        for (int v = 0; v < blocks; v++) {
            if (v % 3 == 1)
                continue;
            for (int part = 2; part > 0; part--) {
                order.segment[order.segments].block = v;
                order.segment[order.segments].begin = part * 70 + 8 * v;
                order.segment[order.segments++].length = part == 2 ? 8 : 5 + v % 2 * 3;
            }
        }
        for (int d = 0; d < 3; d++) {
            gemm_case it = plain(tpt_floats[d], 17, 20, 210);
            gemm_case used = it;

            it.order = &order;
            it.a_columns = blocks & 1;
            used.inner = 0;
            for (int i = 0; i < order.segments; i++)
                used.inner += order.segment[i].length;
            gemm_arrays arrays = make_arrays(&sides, &it);
            for (int side = 0; side < TPT_SIDES; side++) {
                tpi_gemm_args args = args_of(&it, &arrays, side);

                TPT_ISSUE(&sides, side, tpi_gemm, &args);
            }
            tpt_pair_near(&sides, "c", &arrays.c, it.c_dtype,
                          2 * tpt_tolerance(TP_DTYPE_F32, used.inner, (double)used.inner));
            tpt_sides_reset(&sides);
        }
    }
    tpt_sides_close(&sides);
}

/* Weight gradients, and sums of rows beside them. */
Test(cuda_gemm, gradients_of_weights)
{
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int d = 0; d < 3; d++)
        for (int layout = 0; layout < 4; layout++) {
            gemm_case it = plain(tpt_floats[d], 34, 40, 53);

            it.with = WITH_ACCUMULATE | WITH_ROW_SUMS;
            it.a_columns = layout & 1;
            it.b_columns = layout & 2;
            gemm_check(&sides, &it);
        }
    tpt_sides_close(&sides);
}

/* Sums of rows are wanted without columns too. */
Test(cuda_gemm, row_sums_without_columns)
{
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int d = 0; d < 3; d++) {
        gemm_case it = plain(tpt_floats[d], 37, 0, 70);

        it.with = WITH_ACCUMULATE | WITH_ROW_SUMS;
        it.a_columns = d == 1;
        gemm_arrays arrays = make_arrays(&sides, &it);
        for (int side = 0; side < TPT_SIDES; side++) {
            tpi_gemm_args args = args_of(&it, &arrays, side);

            TPT_ISSUE(&sides, side, tpi_gemm, &args);
        }
        tpt_pair_near(&sides, "row_sums", &arrays.row_sums, TP_DTYPE_F32,
                      2 * tpt_tolerance(TP_DTYPE_F32, it.inner, (double)it.inner + 1));
        tpt_sides_reset(&sides);
    }
    tpt_sides_close(&sides);
}

/* Low-precision gradients are summed in f32: 1 and then 256 times 2^-9 is 1.5. */
Test(cuda_gemm, sums_of_bf16_are_f32)
{
    tpt_sides sides;
    float start = 1, small = 0x1p-9f, one = 1, end;
    uint16_t a = tp_bf16_from_f32(small), b = tp_bf16_from_f32(one);

    tpt_sides_open(&sides);
    tpt_pair c = tpt_pair_of(&sides, &start, sizeof start), left = tpt_pair_of(&sides, &a, sizeof a),
             right = tpt_pair_of(&sides, &b, sizeof b);
    tpi_gemm_args args = {.rows = 1,
                          .cols = 1,
                          .inner = 1,
                          .a = {left.at[TPT_GPU], TP_DTYPE_BF16, 1, 1},
                          .b = {right.at[TPT_GPU], TP_DTYPE_BF16, 1, 1},
                          .c = c.at[TPT_GPU],
                          .c_dtype = TP_DTYPE_F32,
                          .c_stride = 1,
                          .accumulate = true};
    for (int i = 0; i < 256; i++)
        TPT_ISSUE(&sides, TPT_GPU, tpi_gemm, &args);
    cr_assert_eq(tp_ctx_download(sides.ctx[TPT_GPU], &end, c.at[TPT_GPU], sizeof end), TP_OK);
    cr_assert_eq(end, 1.5f);
    tpt_sides_close(&sides);
}

/* ---- the library ---- */

Test(cuda_gemm, fast_sums)
{
    tpt_sides sides;

    gemm_open_fast(&sides, false);
    for (int d = 0; d < 3; d++) {
        check_epilogues(&sides, tpt_floats[d]);
        for (int layout = 0; layout < 4; layout++) {
            gemm_case it = plain(tpt_floats[d], 21, 40, 53);

            it.with = WITH_ACCUMULATE | WITH_ROW_SUMS;
            it.a_columns = layout & 1;
            it.b_columns = layout & 2;
            gemm_check(&sides, &it);
        }
    }
    tpt_sides_close(&sides);
}
