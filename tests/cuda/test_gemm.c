/* GEMM on the GPU: the CPU's results within tolerance, and its own promises of equal bits. */
#include "cuda/cuda_support.h"

enum {
    WITH_BIAS = 1,
    WITH_PRE = 2,
    WITH_ACT_INPUT = 4,
    WITH_RESIDUAL = 8,
    WITH_ACCUMULATE = 16,
    WITH_ROW_SUMS = 32,
    WITH_DROPOUT = 64
};

typedef struct gemm_case {
    tp_dtype dtype, c_dtype, bias_dtype;
    int64_t rows, cols, inner;
    bool a_columns, b_columns; /* the outer stride is 1 */
    int64_t gap;               /* between lines */
    unsigned with;
    tpi_activation activation;
    const tpi_inner *order;
} gemm_case;

typedef struct gemm_arrays {
    tpt_pair a, b, c, bias, pre, act_input, residual, row_sums;
} gemm_arrays;

static int64_t line_of(const gemm_case *it, int64_t outer, bool columns)
{
    return (columns ? outer : it->inner) + it->gap;
}

static gemm_arrays make_arrays(tpt_sides *sides, const gemm_case *it)
{
    int64_t a = line_of(it, it->rows, it->a_columns) * (it->a_columns ? it->inner : it->rows);
    int64_t b = line_of(it, it->cols, it->b_columns) * (it->b_columns ? it->inner : it->cols);
    int64_t c = it->rows * (it->cols + it->gap);
    gemm_arrays arrays = {.a = tpt_pair_uniform(sides, it->dtype, a, 1, -1, 1),
                          .b = tpt_pair_uniform(sides, it->dtype, b, 2, -1, 1),
                          .bias = tpt_pair_uniform(sides, it->bias_dtype, it->cols, 3, -1, 1),
                          .pre = tpt_pair_array(sides, NULL, it->c_dtype, c),
                          .act_input = tpt_pair_uniform(sides, it->c_dtype, c, 4, -2, 2),
                          .residual = tpt_pair_uniform(sides, it->c_dtype, c, 5, -2, 2),
                          .row_sums = tpt_pair_uniform(sides, TP_DTYPE_F32, it->rows, 6, -1, 1)};

    arrays.c = it->with & WITH_ACCUMULATE ? tpt_pair_uniform(sides, it->c_dtype, c, 7, -1, 1)
                                          : tpt_pair_array(sides, NULL, it->c_dtype, c);
    return arrays;
}

static tpi_operand operand(const gemm_case *it, const char *data, int64_t outer, bool columns)
{
    int64_t line = line_of(it, outer, columns);

    return (tpi_operand){data, it->dtype, columns ? 1 : line, columns ? line : 1};
}

static tpi_gemm_args args_of(const gemm_case *it, const gemm_arrays *arrays, int side)
{
    int64_t line = it->cols + it->gap;
    tpi_gemm_args args = {.rows = it->rows,
                          .cols = it->cols,
                          .inner = it->inner,
                          .a = operand(it, arrays->a.at[side], it->rows, it->a_columns),
                          .b = operand(it, arrays->b.at[side], it->cols, it->b_columns),
                          .order = it->order,
                          .c = arrays->c.at[side],
                          .c_dtype = it->c_dtype,
                          .c_stride = line,
                          .accumulate = it->with & WITH_ACCUMULATE,
                          .activation = it->activation,
                          .first_row = 3};

    if (it->with & WITH_BIAS) {
        args.bias = arrays->bias.at[side];
        args.bias_dtype = it->bias_dtype;
    }
    if (it->with & WITH_PRE) {
        args.pre = arrays->pre.at[side];
        args.pre_stride = line;
    }
    if (it->with & WITH_ACT_INPUT) {
        args.act_input = arrays->act_input.at[side];
        args.act_input_stride = line;
    }
    if (it->with & WITH_RESIDUAL) {
        args.residual = arrays->residual.at[side];
        args.residual_stride = line;
    }
    if (it->with & WITH_ROW_SUMS)
        args.row_sums = (float *)arrays->row_sums.at[side];
    if (it->with & WITH_DROPOUT) {
        args.dropout = 0.25f;
        args.dropout_key = (tp_random_key){11, 0x123456789abcdefu};
    }
    return args;
}

/* Largest sum of |a b| of an element. */
static double magnitude_of(const gemm_case *it, const tpi_gemm_args *cpu)
{
    double largest = 0;

    for (int64_t r = 0; r < it->rows; r++)
        for (int64_t c = 0; c < it->cols; c++) {
            double sum = 0;

            for (int64_t k = 0; k < it->inner; k++)
                sum += fabs(tpt_get(cpu->a.data, it->dtype, r * cpu->a.outer_stride + k * cpu->a.inner_stride) *
                            tpt_get(cpu->b.data, it->dtype, c * cpu->b.outer_stride + k * cpu->b.inner_stride));
            largest = fmax(largest, sum);
        }
    return largest;
}

/* How far two results may lie apart: each is off by a bound that grows with the steepest slope of the epilogue. */
static void compare(tpt_sides *sides, const gemm_case *it, const gemm_arrays *arrays, const tpi_gemm_args *cpu)
{
    double sum = magnitude_of(it, cpu) + 1, slope = it->activation == TPI_ACT_RELU2 ? 2 * sum : 1.2;
    double value = sum * (it->with & WITH_ACT_INPUT ? 4 : slope);

    if (it->with & WITH_DROPOUT)
        value /= 0.75;
    if (it->with & WITH_PRE)
        tpt_pair_near(sides, "pre", &arrays->pre, it->c_dtype, 2 * tpt_tolerance(it->c_dtype, it->inner + 8, sum));
    if (it->with & WITH_ROW_SUMS)
        tpt_pair_near(sides, "row_sums", &arrays->row_sums, TP_DTYPE_F32,
                      2 * tpt_tolerance(TP_DTYPE_F32, it->inner, (double)it->inner + 1));
    tpt_pair_near(sides, "c", &arrays->c, it->c_dtype, 2 * tpt_tolerance(it->c_dtype, it->inner + 8, value + 2));
}

static void check_case(tpt_sides *sides, const gemm_case *it)
{
    gemm_arrays arrays = make_arrays(sides, it);
    tpi_gemm_args args[TPT_SIDES];

    for (int side = 0; side < TPT_SIDES; side++) {
        args[side] = args_of(it, &arrays, side);
        TPT_ISSUE(sides, side, tpi_gemm, &args[side]);
    }
    compare(sides, it, &arrays, &args[TPT_CPU]);
    tpt_sides_reset(sides);
}

static gemm_case plain(tp_dtype dtype, int64_t rows, int64_t cols, int64_t inner)
{
    return (gemm_case){
        .dtype = dtype, .c_dtype = TP_DTYPE_F32, .bias_dtype = TP_DTYPE_F32, .rows = rows, .cols = cols, .inner = inner};
}

static tpi_inner eight_blocks(int64_t inner)
{
    tpi_inner order = {.blocks = 8};

    for (int v = 0; v < 8; v++) {
        tp_range range = tp_shard_range(inner, 8, v);

        if (range.end > range.begin) {
            order.segment[order.segments].block = v;
            order.segment[order.segments].begin = range.begin;
            order.segment[order.segments++].length = range.end - range.begin;
        }
    }
    return order;
}

/* Sizes with both kinds of tiles (large ones where four fill the simulated device), aligned and not. */
static const int64_t sizes[][4] = {{1, 1, 1, 0},     {5, 3, 7, 0},      {64, 64, 32, 0},   {65, 130, 33, 1},
                                   {130, 70, 100, 4}, {136, 136, 40, 0}, {131, 129, 35, 2}, {2, 3, 0, 0}};

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
                check_case(&sides, &it);
            }
    tpt_sides_close(&sides);
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
            check_case(sides, &it);
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
        check_case(&sides, &it);
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

/* ---- equal bits on the GPU ---- */

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

/* Row-parallel: partial sums of 2, 4 and 8 ranks, put together by the tree, are one rank's sums. */
Test(cuda_gemm, ranks_give_the_same_bits)
{
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int d = 0; d < 3; d++) {
        gemm_case it = plain(tpt_floats[d], 33, 40, 203);
        gemm_arrays arrays = make_arrays(&sides, &it);
        int64_t elements = it.rows * it.cols;
        tpt_pair whole = tpt_pair_array(&sides, NULL, TP_DTYPE_F32, elements),
                 partial = tpt_pair_array(&sides, NULL, TP_DTYPE_F32, 8 * elements),
                 sum = tpt_pair_array(&sides, NULL, TP_DTYPE_F32, elements);

        issue_share(&sides, &it, &arrays, 1, 0, whole.at[TPT_GPU]);
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

                issue_share(&sides, &it, &arrays, ranks, rank, c);
                reduce.leaf[rank] = c;
            }
            TPT_ISSUE(&sides, TPT_GPU, tpi_reduce, &reduce);
            same_as(&sides, "sum over ranks", &sum, &whole, TP_DTYPE_F32);
        }
        tpt_sides_reset(&sides);
    }
    tpt_sides_close(&sides);
}

/* Column-parallel, overlap by rows, any tile: a cut of rows and columns changes no bit. */
Test(cuda_gemm, cuts_of_rows_and_columns_give_the_same_bits)
{
    static const int64_t row_cut[] = {0, 1, 64, 130}, col_cut[] = {0, 3, 67, 132};
    tpt_sides sides;

    tpt_sides_open(&sides);
    for (int d = 0; d < 3; d++) {
        gemm_case it = plain(tpt_floats[d], 130, 132, 50);
        tpi_inner order = eight_blocks(it.inner);
        it.order = d == 1 ? NULL : &order;
        it.b_columns = d == 2;
        gemm_arrays arrays = make_arrays(&sides, &it);
        tpt_pair cut = tpt_pair_array(&sides, NULL, TP_DTYPE_F32, it.rows * it.cols);
        tpi_gemm_args whole = args_of(&it, &arrays, TPT_GPU);
        size_t size = tp_dtype_size(it.dtype);

        TPT_ISSUE(&sides, TPT_GPU, tpi_gemm, &whole);
        for (int r = 0; r < 3; r++)
            for (int c = 0; c < 3; c++) {
                tpi_gemm_args part = whole;

                part.rows = row_cut[r + 1] - row_cut[r];
                part.cols = col_cut[c + 1] - col_cut[c];
                part.a.data = arrays.a.at[TPT_GPU] + (size_t)(row_cut[r] * part.a.outer_stride) * size;
                part.b.data = arrays.b.at[TPT_GPU] + (size_t)(col_cut[c] * part.b.outer_stride) * size;
                part.c = cut.at[TPT_GPU] + (size_t)(row_cut[r] * it.cols + col_cut[c]) * sizeof(float);
                TPT_ISSUE(&sides, TPT_GPU, tpi_gemm, &part);
            }
        same_as(&sides, "cut", &cut, &arrays.c, TP_DTYPE_F32);
        tpt_sides_reset(&sides);
    }
    tpt_sides_close(&sides);
}

/* Weight and bias gradients continue what is stored: microbatches may be cut anywhere in f32, at multiples of 16 else. */
Test(cuda_gemm, gradients_go_on_across_microbatches)
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
            check_case(&sides, &it);
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

static void open_fast(tpt_sides *sides)
{
    tp_ctx_desc desc = {
        .threads = 1, .device = TP_DEVICE_CUDA, .plugin = TPT_CUDA_PLUGIN, .sum_order = TP_SUM_FAST};

    tpt_sides_open(sides);
    tp_ctx_destroy(sides->ctx[TPT_GPU]);
    cr_assert_eq(tp_ctx_create(&desc, &sides->ctx[TPT_GPU]), TP_OK, "%s", tp_last_message());
}

Test(cuda_gemm, fast_sums)
{
    tpt_sides sides;

    open_fast(&sides);
    for (int d = 0; d < 3; d++) {
        check_epilogues(&sides, tpt_floats[d]);
        for (int layout = 0; layout < 4; layout++) {
            gemm_case it = plain(tpt_floats[d], 21, 40, 53);

            it.with = WITH_ACCUMULATE | WITH_ROW_SUMS;
            it.a_columns = layout & 1;
            it.b_columns = layout & 2;
            check_case(&sides, &it);
        }
    }
    tpt_sides_close(&sides);
}
