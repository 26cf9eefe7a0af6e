/* GEMM on the GPU: its own promises of equal bits. */
#include "cuda/gemm_case.h"

static void same_as(tpt_sides *sides, const char *what, const tpt_pair *got, const tpt_pair *want, tp_dtype dtype)
{
    void *a = tpt_pair_get(sides, got, TPT_GPU), *b = tpt_pair_get(sides, want, TPT_GPU);

    cr_assert(tpt_same_bits(what, a, b, dtype, (int64_t)(want->bytes / tp_dtype_size(dtype))));
    free(a);
    free(b);
}

/* The share of `rank` of `ranks`: a part of the inner dimension and its virtual ranks. */
static void issue_share(tpt_sides *sides, const gemm_case *it, const gemm_arrays *arrays, int64_t ranks, int64_t rank,
                        char *c)
{
    tpi_gemm_args args = args_of(it, arrays, TPT_GPU);
    tp_range mine = tp_shard_range(it->inner, ranks, rank);
    tpi_inner order = {.blocks = (int)(8 / ranks), .segments = (int)(8 / ranks)};

    for (int v = 0; v < order.blocks; v++) {
        tp_range range = tp_shard_range(it->inner, 8, rank * order.blocks + v);

        order.segment[v].block = v;
        order.segment[v].begin = range.begin - mine.begin;
        order.segment[v].length = range.end - range.begin;
    }
    args.inner = mine.end - mine.begin;
    args.a.data = (const char *)args.a.data + (size_t)(mine.begin * args.a.inner_stride) * tp_dtype_size(it->dtype);
    args.b.data = (const char *)args.b.data + (size_t)(mine.begin * args.b.inner_stride) * tp_dtype_size(it->dtype);
    args.order = &order;
    args.c = c;
    TPT_ISSUE(sides, TPT_GPU, tpi_gemm, &args);
}

static void check_ranks(tpt_sides *sides, tp_dtype dtype, int64_t inner)
{
    gemm_case it = plain(dtype, 33, 40, inner);
    gemm_arrays arrays = make_arrays(sides, &it);
    int64_t elements = it.rows * it.cols;
    tpt_pair whole = tpt_pair_array(sides, NULL, TP_DTYPE_F32, elements),
             partial = tpt_pair_array(sides, NULL, TP_DTYPE_F32, 8 * elements),
             sum = tpt_pair_array(sides, NULL, TP_DTYPE_F32, elements);

    issue_share(sides, &it, &arrays, 1, 0, whole.at[TPT_GPU]);
    for (int64_t ranks = 2; ranks <= 8; ranks *= 2) {
        tpi_reduce_args reduce = {.inputs = (int)ranks,
                                  .in_dtype = TP_DTYPE_F32,
                                  .outputs = 1,
                                  .single = sum.at[TPT_GPU],
                                  .out_dtype = TP_DTYPE_F32,
                                  .rows = it.rows,
                                  .cols = it.cols};

        for (int64_t rank = 0; rank < ranks; rank++) {
            char *c = partial.at[TPT_GPU] + (size_t)(rank * elements) * sizeof(float);

            issue_share(sides, &it, &arrays, ranks, rank, c);
            reduce.leaf[rank] = c;
        }
        TPT_ISSUE(sides, TPT_GPU, tpi_reduce, &reduce);
        same_as(sides, "sum over ranks", &sum, &whole, TP_DTYPE_F32);
    }
    tpt_sides_reset(sides);
}

/* Row-parallel: partial sums of 2, 4 and 8 ranks, put together by the tree, are one rank's sums. Shares of whole steps,
 * and of others. */
Test(cuda_gemm_bits, ranks_give_the_same_bits)
{
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int d = 0; d < 3; d++) {
        check_ranks(&sides, tpt_floats[d], 203);
        check_ranks(&sides, tpt_floats[d], 8 * 32);
    }
    tpt_sides_close(&sides);
}

/* The product in 3 x 3 pieces has the bits of the whole. */
static void check_cuts(tpt_sides *sides, const gemm_case *it, const int64_t *row_cut, const int64_t *col_cut)
{
    gemm_arrays arrays = make_arrays(sides, it);
    tpt_pair cut = tpt_pair_array(sides, NULL, TP_DTYPE_F32, it->rows * it->cols);
    tpi_gemm_args whole = args_of(it, &arrays, TPT_GPU);
    size_t size = tp_dtype_size(it->dtype);

    TPT_ISSUE(sides, TPT_GPU, tpi_gemm, &whole);
    for (int r = 0; r < 3; r++)
        for (int c = 0; c < 3; c++) {
            tpi_gemm_args part = whole;

            part.rows = row_cut[r + 1] - row_cut[r];
            part.cols = col_cut[c + 1] - col_cut[c];
            part.a.data = arrays.a.at[TPT_GPU] + (size_t)(row_cut[r] * part.a.outer_stride) * size;
            part.b.data = arrays.b.at[TPT_GPU] + (size_t)(col_cut[c] * part.b.outer_stride) * size;
            part.c = cut.at[TPT_GPU] + (size_t)(row_cut[r] * it->cols + col_cut[c]) * sizeof(float);
            TPT_ISSUE(sides, TPT_GPU, tpi_gemm, &part);
        }
    same_as(sides, "cut", &cut, &arrays.c, TP_DTYPE_F32);
    tpt_sides_reset(sides);
}

/* Column-parallel, overlap by rows, any tile: a cut of rows and columns changes no bit. */
Test(cuda_gemm_bits, cuts_of_rows_and_columns_give_the_same_bits)
{
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int d = 0; d < 3; d++) {
        gemm_case it = plain(tpt_floats[d], 130, 132, 50);
        tpi_inner order = eight_blocks(it.inner);

        it.order = d == 1 ? NULL : &order;
        it.b_columns = d == 2;
        check_cuts(&sides, &it, (const int64_t[]){0, 1, 64, 130}, (const int64_t[]){0, 3, 67, 132});
        for (int blocks = 0; blocks < 2; blocks++) {
            it = filling(tpt_floats[d], blocks ? 8 * (d ? 40 : 8) : d ? 168 : 72);
            order = eight_blocks(it.inner);
            it.order = blocks ? &order : NULL;
            check_cuts(&sides, &it, (const int64_t[]){0, 5, 128, it.rows}, (const int64_t[]){0, 8, 264, it.cols});
        }
    }
    tpt_sides_close(&sides);
}

/* Weight and bias gradients continue what is stored: microbatches may be cut anywhere in f32, at multiples of 16
 * else. */
Test(cuda_gemm_bits, gradients_go_on_across_microbatches)
{
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int d = 0; d < 3; d++)
        for (int layout = 0; layout < 4; layout++) {
            gemm_case it = plain(tpt_floats[d], 34, 40, 53);
            int64_t cut = d == 0 ? 19 : 32;

            it.with = WITH_ACCUMULATE | WITH_ROW_SUMS;
            it.a_columns = layout & 1;
            it.b_columns = layout & 2;
            gemm_arrays one = make_arrays(&sides, &it), two = make_arrays(&sides, &it);
            tpi_gemm_args args = args_of(&it, &one, TPT_GPU), part = args_of(&it, &two, TPT_GPU);

            TPT_ISSUE(&sides, TPT_GPU, tpi_gemm, &args);
            part.inner = cut;
            TPT_ISSUE(&sides, TPT_GPU, tpi_gemm, &part);
            part.inner = it.inner - cut;
            part.a.data = (const char *)part.a.data + (size_t)(cut * part.a.inner_stride) * tp_dtype_size(it.dtype);
            part.b.data = (const char *)part.b.data + (size_t)(cut * part.b.inner_stride) * tp_dtype_size(it.dtype);
            TPT_ISSUE(&sides, TPT_GPU, tpi_gemm, &part);
            same_as(&sides, "c", &two.c, &one.c, TP_DTYPE_F32);
            same_as(&sides, "row_sums", &two.row_sums, &one.row_sums, TP_DTYPE_F32);
            tpt_sides_reset(&sides);
        }
    tpt_sides_close(&sides);
}
