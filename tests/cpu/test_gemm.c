/* GEMM: the same bits as scalar code that follows the definition, on every instruction set, for any threads, layout,
 * packing and split. */
#include "gemm_case.h"

typedef enum sum_kind { SUM_CHAIN, SUM_ACCUMULATE, SUM_TREE, SUM_KINDS } sum_kind;

static const struct shape {
    int64_t rows, cols, inner;
} shapes[] = {
    {48, 192, 768}, {53, 131, 777}, {3, 67, 3072}, {1, 131, 1001}, {53, 5, 1000}, {48, 67, 8},  {7, 192, 5},
    {1, 5, 4099},   {7, 66, 4099},  {53, 131, 1},  {6, 64, 2},     {12, 1, 300},  {2, 3, 9001},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Half of the cases are near underflow, where flushing shows. */
static double scale_of(tp_dtype dtype, int index)
{
    if (index % 2 == 0)
        return 1;
    return dtype == TP_DTYPE_F16 ? 1e-5 : 3e-20;
}

typedef struct problem {
    gemm_matrix a, b;
    const tpi_inner *order;
    float *start, *want; /* start NULL: nothing to accumulate to */
} problem;

static bool result_is_right(tp_ctx *ctx, const problem *p, int layout, bool packed)
{
    const int64_t rows = p->a.outer, cols = p->b.outer, stride = cols + 3;
    float *c = tpt_array(TP_DTYPE_F32, rows * stride);
    for (int64_t i = 0; i < rows * stride; i++)
        c[i] = -7;
    for (int64_t i = 0; p->start && i < rows; i++)
        memcpy(c + i * stride, p->start + i * cols, (size_t)cols * sizeof *c);
    const tpi_gemm_args args = {.rows = rows,
                                .cols = cols,
                                .inner = p->a.inner,
                                .a = gemm_operand(&p->a, layout & 1),
                                .b = gemm_operand(&p->b, layout & 2),
                                .order = p->order,
                                .c = c,
                                .c_dtype = TP_DTYPE_F32,
                                .c_stride = stride,
                                .accumulate = p->start != NULL};
    bool right = (packed ? gemm_call_packed(ctx, &args) : gemm_call(ctx, &args)) == TP_OK;
    for (int64_t i = 0; i < rows && right; i++) {
        right = tpt_same_bits("row of C", c + i * stride, p->want + i * cols, TP_DTYPE_F32, cols);
        for (int64_t j = cols; j < stride; j++)
            right = right && c[i * stride + j] == -7;
    }
    free(c);
    return right;
}

static void check_shape(tp_ctx **ctx, int contexts, tp_dtype dtype, int index, sum_kind kind)
{
    const struct shape s = shapes[index];
    const tpi_inner chain = gemm_one_chain(s.inner), tree = gemm_eight_blocks(s.inner);
    const double scale = scale_of(dtype, index + (int)kind);
    problem p = {.a = gemm_matrix_new(dtype, s.rows, s.inner, 1 + (uint64_t)index, scale),
                 .b = gemm_matrix_new(dtype, s.cols, s.inner, 100 + (uint64_t)index, scale),
                 .order = kind == SUM_TREE ? &tree : NULL,
                 .want = tpt_array(TP_DTYPE_F32, s.rows * s.cols)};
    if (kind == SUM_ACCUMULATE)
        p.start = tpt_new_normal(TP_DTYPE_F32, s.rows * s.cols, 200, scale * scale);
    gemm_reference(&p.a, &p.b, kind == SUM_TREE ? &tree : &chain, p.start, p.want);
    for (int i = 0; i < contexts; i++) {
        const bool slow = tp_ctx_isa(ctx[i]) == TP_ISA_PORTABLE;
        for (int layout = 0; layout < 4; layout++) {
            if (slow && layout != index % 4)
                continue;
            for (int packed = 0; packed < 2; packed++)
                cr_assert(result_is_right(ctx[i], &p, layout, packed),
                          "%s, %s, %d threads, %lld x %lld x %lld, sum %d, layout %d, packed %d",
                          tp_isa_name(tp_ctx_isa(ctx[i])), tp_dtype_name(dtype), tp_ctx_threads(ctx[i]),
                          (long long)s.rows, (long long)s.cols, (long long)s.inner, (int)kind, layout, packed);
        }
    }
    gemm_matrix_free(&p.a);
    gemm_matrix_free(&p.b);
    free(p.start);
    free(p.want);
}

static void check_isa(tp_isa isa)
{
    if (!tp_isa_available(isa))
        cr_skip_test("this machine does not have %s", tp_isa_name(isa));
    tp_ctx *ctx[2] = {gemm_context(isa, 1), gemm_context(isa, isa == TP_ISA_AVX2 ? 2 : 3)};
    for (int d = 0; d < 3; d++)
        for (int index = 0; index < SHAPES; index++)
            for (int kind = 0; kind < SUM_KINDS; kind++)
                check_shape(ctx, isa == TP_ISA_PORTABLE ? 1 : 2, gemm_dtypes[d], index, (sum_kind)kind);
    tp_ctx_destroy(ctx[0]);
    tp_ctx_destroy(ctx[1]);
}

Test(gemm, bits_portable)
{
    check_isa(TP_ISA_PORTABLE);
}

Test(gemm, bits_avx2)
{
    check_isa(TP_ISA_AVX2);
}

Test(gemm, bits_avx512)
{
    check_isa(TP_ISA_AVX512);
}

Test(gemm, bits_avx512_bf16)
{
    check_isa(TP_ISA_AVX512_BF16);
}

/* Two threads, and more rows and columns than one block and one batch of packed columns: against one thread and against
 * packed. */
Test(gemm, large_shapes_do_not_depend_on_threads)
{
    const int64_t rows = 190, cols = 1100, inner = 4500;
    const tpi_inner tree = gemm_eight_blocks(inner);
    for (int d = 0; d < 2; d++) {
        gemm_matrix a = gemm_matrix_new(gemm_dtypes[d], rows, inner, 1, 1),
                    b = gemm_matrix_new(gemm_dtypes[d], cols, inner, 2, 1);
        float *c[4];
        for (int i = 0; i < 4; i++) {
            tp_ctx *ctx = gemm_context(TP_ISA_AUTO, 1 + i % 3);
            c[i] = tpt_array(TP_DTYPE_F32, rows * cols);
            const tpi_gemm_args args = {.rows = rows,
                                        .cols = cols,
                                        .inner = inner,
                                        .a = gemm_operand(&a, false),
                                        .b = gemm_operand(&b, false),
                                        .order = &tree,
                                        .c = c[i],
                                        .c_dtype = TP_DTYPE_F32,
                                        .c_stride = cols};
            cr_assert_eq(i == 3 ? gemm_call_packed(ctx, &args) : gemm_call(ctx, &args), TP_OK);
            cr_assert(tpt_same_bits("C", c[i], c[0], TP_DTYPE_F32, rows * cols), "variant %d", i);
            tp_ctx_destroy(ctx);
        }
        float want;
        gemm_matrix last_a = a, last_b = b;
        last_a.value += (rows - 1) * inner;
        last_b.value += (cols - 1) * inner;
        last_a.outer = last_b.outer = 1;
        gemm_reference(&last_a, &last_b, &tree, NULL, &want);
        cr_assert(tpt_same_bits("last element", &c[0][rows * cols - 1], &want, TP_DTYPE_F32, 1));
        for (int i = 0; i < 4; i++)
            free(c[i]);
        gemm_matrix_free(&a);
        gemm_matrix_free(&b);
    }
}

/* ---- orders with several segments, skipped indices and empty blocks ---- */

static int64_t cut(int64_t total, int v)
{
    return total * v / 8;
}

/* What virtual ranks [first, end) hold of three parts [q; k; v], one after the other; the odd virtual ranks' k and v
 * are held but do not take part, as when kv heads are shared. to_global: global index of each held one. Returns how
 * many are held. */
static int64_t shard_order(const int64_t part[3], int first, int end, tpi_inner *order, int64_t *to_global)
{
    int64_t local_begin[3], held = 0, total = 0;
    for (int q = 0; q < 3; q++) {
        local_begin[q] = held - cut(part[q], first);
        for (int64_t k = cut(part[q], first); k < cut(part[q], end); k++)
            to_global[held++] = total + k;
        total += part[q];
    }
    *order = (tpi_inner){.blocks = end - first};
    for (int v = first; v < end; v++) {
        for (int q = 0; q < 3; q++) {
            int64_t length = cut(part[q], v + 1) - cut(part[q], v);
            if (length == 0 || (q > 0 && v % 2 != 0))
                continue;
            order->segment[order->segments].block = v - first;
            order->segment[order->segments].begin = local_begin[q] + cut(part[q], v);
            order->segment[order->segments++].length = length;
        }
    }
    return held;
}

static gemm_matrix gather_columns(const gemm_matrix *x, const int64_t *to_global, int64_t held)
{
    float *value = tpt_array(TP_DTYPE_F32, x->outer * held);
    for (int64_t i = 0; i < x->outer; i++)
        for (int64_t k = 0; k < held; k++)
            value[i * held + k] = x->value[i * x->inner + to_global[k]];
    gemm_matrix shard = gemm_matrix_from(x->dtype, x->outer, held, value);
    free(value);
    return shard;
}

/* C as `ranks` ranks compute it, each with its shard, finished by the tree; or added in rank order, which is wrong. */
static void split_gemm(tp_ctx *ctx, const gemm_matrix *a, const gemm_matrix *b, const int64_t part[3], int ranks,
                       bool in_rank_order, float *c)
{
    const int64_t count = a->outer * b->outer;
    int64_t *to_global = tpt_array(TP_DTYPE_I64, a->inner);
    float *partial = tpt_array(TP_DTYPE_F32, ranks * count);
    for (int r = 0; r < ranks; r++) {
        tpi_inner order;
        int64_t held = shard_order(part, 8 * r / ranks, 8 * (r + 1) / ranks, &order, to_global);
        gemm_matrix a_shard = gather_columns(a, to_global, held), b_shard = gather_columns(b, to_global, held);
        const tpi_gemm_args args = {.rows = a->outer,
                                    .cols = b->outer,
                                    .inner = held,
                                    .a = gemm_operand(&a_shard, r & 1),
                                    .b = gemm_operand(&b_shard, r & 2),
                                    .order = &order,
                                    .c = partial + r * count,
                                    .c_dtype = TP_DTYPE_F32,
                                    .c_stride = b->outer};
        cr_assert_eq(r & 1 ? gemm_call_packed(ctx, &args) : gemm_call(ctx, &args), TP_OK);
        gemm_matrix_free(&a_shard);
        gemm_matrix_free(&b_shard);
    }
    if (in_rank_order)
        for (int r = 1; r < ranks; r++)
            for (int64_t i = 0; i < count; i++)
                partial[i] += partial[r * count + i];
    else
        gemm_tree(partial, ranks, count, count);
    memcpy(c, partial, (size_t)count * sizeof *c);
    free(partial);
    free(to_global);
}

static void check_splits(tp_ctx *ctx, tp_dtype dtype, const int64_t part[3])
{
    const int64_t inner = part[0] + part[1] + part[2], rows = 19, cols = 67, count = rows * cols;
    gemm_matrix a = gemm_matrix_new(dtype, rows, inner, 5, 1), b = gemm_matrix_new(dtype, cols, inner, 6, 1);
    float *want = tpt_array(TP_DTYPE_F32, count), *got = tpt_array(TP_DTYPE_F32, count);
    int64_t *to_global = tpt_array(TP_DTYPE_I64, inner);
    tpi_inner order;
    shard_order(part, 0, 8, &order, to_global);
    gemm_reference(&a, &b, &order, NULL, want);
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        split_gemm(ctx, &a, &b, part, ranks, false, got);
        cr_assert(tpt_same_bits("split", got, want, TP_DTYPE_F32, count), "%s, %s, %d ranks, parts %lld %lld %lld",
                  tp_isa_name(tp_ctx_isa(ctx)), tp_dtype_name(dtype), ranks, (long long)part[0], (long long)part[1],
                  (long long)part[2]);
    }
    if (part[0] >= 768) { /* the test can fail: another order gives other bits */
        for (int ranks = 4; ranks <= 8; ranks *= 2) {
            split_gemm(ctx, &a, &b, part, ranks, true, got);
            cr_assert(memcmp(got, want, (size_t)count * sizeof *got) != 0, "%d ranks", ranks);
        }
    }
    gemm_matrix_free(&a);
    gemm_matrix_free(&b);
    free(want);
    free(got);
    free(to_global);
}

Test(gemm, tensor_parallel_splits_give_the_same_bits)
{
    static const int64_t parts[][3] = {{768, 0, 0},   {768, 256, 256}, {13, 0, 0}, {5, 0, 0},
                                       {331, 77, 77}, {12, 4, 4},      {3, 5, 2},  {4600, 33, 0}};
    for (int isa = TP_ISA_PORTABLE; isa < TP_ISA_COUNT; isa++) {
        if (!tp_isa_available((tp_isa)isa))
            continue;
        tp_ctx *ctx = gemm_context((tp_isa)isa, 1);
        for (int d = 0; d < 3; d++)
            for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
                check_splits(ctx, gemm_dtypes[d], parts[i]);
        tp_ctx_destroy(ctx);
    }
}

/* A number of blocks that is no power of two: the left-over node goes up unchanged. */
Test(gemm, uneven_trees)
{
    const int64_t rows = 9, cols = 70, inner = 203;
    for (int isa = TP_ISA_PORTABLE; isa < TP_ISA_COUNT; isa++) {
        if (!tp_isa_available((tp_isa)isa))
            continue;
        tp_ctx *ctx = gemm_context((tp_isa)isa, 1);
        for (int blocks = 1; blocks <= 8; blocks++) {
            const tp_dtype dtype = gemm_dtypes[blocks % 2];
            problem p = {.a = gemm_matrix_new(dtype, rows, inner, 7, 1),
                         .b = gemm_matrix_new(dtype, cols, inner, 8, 1),
                         .want = tpt_array(TP_DTYPE_F32, rows * cols)};
            tpi_inner order = {.blocks = blocks, .segments = blocks};
            for (int v = 0; v < blocks; v++) {
                order.segment[v].block = v;
                order.segment[v].begin = inner * v / blocks;
                order.segment[v].length = inner * (v + 1) / blocks - inner * v / blocks;
            }
            p.order = &order;
            gemm_reference(&p.a, &p.b, &order, NULL, p.want);
            cr_assert(result_is_right(ctx, &p, blocks % 4, blocks % 2), "%d blocks", blocks);
            gemm_matrix_free(&p.a);
            gemm_matrix_free(&p.b);
            free(p.want);
        }
        tp_ctx_destroy(ctx);
    }
}

/* ---- values ---- */

Test(gemm, close_to_double_precision)
{
    const int64_t rows = 37, cols = 83, inner = 911, count = rows * cols;
    const tpi_inner tree = gemm_eight_blocks(inner);
    tp_ctx *ctx = gemm_context(TP_ISA_AUTO, 2);
    double *want = tpt_allocate((size_t)count * sizeof *want), *tolerance = tpt_allocate((size_t)count * sizeof *want);
    for (int d = 0; d < 3; d++) {
        const tp_dtype dtype = gemm_dtypes[d];
        gemm_matrix a = gemm_matrix_new(dtype, rows, inner, 11, 1), b = gemm_matrix_new(dtype, cols, inner, 12, 1);
        void *c = tpt_array(dtype, count);
        for (int64_t i = 0; i < count; i++) {
            double sum = 0, magnitude = 0;
            for (int64_t k = 0; k < inner; k++) {
                double product = (double)a.value[i / cols * inner + k] * (double)b.value[i % cols * inner + k];
                sum += product;
                magnitude += fabs(product);
            }
            want[i] = sum;
            tolerance[i] = tpt_tolerance(dtype, inner, magnitude);
        }
        for (int ordered = 0; ordered < 2; ordered++) {
            const tpi_gemm_args args = {.rows = rows,
                                        .cols = cols,
                                        .inner = inner,
                                        .a = gemm_operand(&a, false),
                                        .b = gemm_operand(&b, true),
                                        .order = ordered ? &tree : NULL,
                                        .c = c,
                                        .c_dtype = dtype,
                                        .c_stride = cols};
            cr_assert_eq(gemm_call(ctx, &args), TP_OK);
            cr_assert(tpt_close_each("C", c, dtype, want, tolerance, count), "%s, ordered %d", tp_dtype_name(dtype),
                      ordered);
        }
        free(c);
        gemm_matrix_free(&a);
        gemm_matrix_free(&b);
    }
    free(want);
    free(tolerance);
    tp_ctx_destroy(ctx);
}

Test(gemm, empty_shapes)
{
    tp_ctx *ctx = gemm_context(TP_ISA_AUTO, 2);
    float a[8] = {1, 2, 3, 4, 5, 6, 7, 8}, c[4] = {-0.0f, 5, 6, 7}, sums[2] = {-0.0f, 3};
    tpi_gemm_args args = {.rows = 2,
                          .cols = 2,
                          .inner = 0,
                          .a = {a, TP_DTYPE_F32, 4, 1},
                          .b = {a, TP_DTYPE_F32, 4, 1},
                          .c = c,
                          .c_dtype = TP_DTYPE_F32,
                          .c_stride = 2,
                          .accumulate = true,
                          .row_sums = sums};
    cr_assert_eq(gemm_call(ctx, &args), TP_OK);
    cr_assert(signbit(c[0]) && c[1] == 5 && signbit(sums[0]) && sums[1] == 3,
              "nothing accumulated leaves what is there");
    args.rows = 0;
    args.inner = 4;
    cr_assert_eq(gemm_call(ctx, &args), TP_OK);
    args.rows = 2;
    args.cols = 0;
    cr_assert_eq(gemm_call(ctx, &args), TP_OK);
    cr_assert_eq(c[1], 5);
    args.cols = 2;
    args.inner = 0;
    args.accumulate = false;
    cr_assert_eq(gemm_call(ctx, &args), TP_OK);
    for (int i = 0; i < 4; i++)
        cr_assert(c[i] == 0 && !signbit(c[i]), "an empty sum is +0");
    cr_assert_eq(ctx->backend->gemm_packed_bytes(ctx, TP_DTYPE_F32, 0, 4, NULL), 0);
    tp_ctx_destroy(ctx);
}

/* NaN and infinity stay in their row and column, and rows beyond the matrix don't make any. */
Test(gemm, not_finite_values_stay_where_they_are)
{
    const int64_t rows = 8, cols = 70, inner = 33;
    for (int isa = TP_ISA_PORTABLE; isa < TP_ISA_COUNT; isa++) {
        if (!tp_isa_available((tp_isa)isa))
            continue;
        tp_ctx *ctx = gemm_context((tp_isa)isa, 1);
        for (int d = 0; d < 3; d++) {
            gemm_matrix a = gemm_matrix_new(gemm_dtypes[d], rows, inner, 1, 1),
                        b = gemm_matrix_new(gemm_dtypes[d], cols, inner, 2, 1);
            float *c = tpt_array(TP_DTYPE_F32, rows * cols);
            tpt_set(a.rows, gemm_dtypes[d], 7 * inner + 32, NAN);
            tpt_set(b.rows, gemm_dtypes[d], 69 * inner + 3, INFINITY);
            const tpi_gemm_args args = {.rows = rows,
                                        .cols = cols,
                                        .inner = inner,
                                        .a = gemm_operand(&a, false),
                                        .b = gemm_operand(&b, false),
                                        .c = c,
                                        .c_dtype = TP_DTYPE_F32,
                                        .c_stride = cols};
            cr_assert_eq(gemm_call(ctx, &args), TP_OK);
            for (int64_t i = 0; i < rows * cols; i++)
                cr_assert(i / cols == 7    ? isnan(c[i])
                          : i % cols == 69 ? isinf(c[i])
                                           : isfinite(c[i]),
                          "element %lld is %g", (long long)i, (double)c[i]);
            free(c);
            gemm_matrix_free(&a);
            gemm_matrix_free(&b);
        }
        tp_ctx_destroy(ctx);
    }
}

/* The bias gradient inside a weight gradient: chains of plain additions, whatever layout A has. */
Test(gemm, row_sums)
{
    static const int64_t inners[] = {1, 2, 37, 512, 4500};
    const int64_t rows = 55;
    for (int isa = TP_ISA_PORTABLE; isa < TP_ISA_COUNT; isa++) {
        if (!tp_isa_available((tp_isa)isa))
            continue;
        tp_ctx *ctx = gemm_context((tp_isa)isa, 2);
        for (int n = 0; n < 5 * 3 * 4; n++) {
            const int64_t inner = inners[n % 5], cols = n < 30 ? 66 : 0;
            const tp_dtype dtype = gemm_dtypes[n / 5 % 3];
            if (isa == TP_ISA_PORTABLE && inner > 600)
                continue;
            gemm_matrix a = gemm_matrix_new(dtype, rows, inner, 1, 1), b = gemm_matrix_new(dtype, cols, inner, 2, 1);
            float *c = tpt_array(TP_DTYPE_F32, rows * cols), *sums = tpt_new_normal(TP_DTYPE_F32, rows, 3, 1);
            float *want = tpt_array(TP_DTYPE_F32, rows);
            for (int64_t i = 0; i < rows; i++) {
                want[i] = sums[i];
                for (int64_t k = 0; k < inner; k++)
                    want[i] = want[i] + a.value[i * inner + k];
            }
            const tpi_gemm_args args = {.rows = rows,
                                        .cols = cols,
                                        .inner = inner,
                                        .a = gemm_operand(&a, n / 15 % 2),
                                        .b = gemm_operand(&b, true),
                                        .c = c,
                                        .c_dtype = TP_DTYPE_F32,
                                        .c_stride = cols,
                                        .accumulate = true,
                                        .row_sums = sums};
            cr_assert_eq(gemm_call(ctx, &args), TP_OK);
            cr_assert(tpt_same_bits("row sums", sums, want, TP_DTYPE_F32, rows), "%s, %s, inner %lld",
                      tp_isa_name((tp_isa)isa), tp_dtype_name(dtype), (long long)inner);
            free(c);
            free(sums);
            free(want);
            gemm_matrix_free(&a);
            gemm_matrix_free(&b);
        }
        tp_ctx_destroy(ctx);
    }
}
