/* f32 products in TF32, where that was asked for: off by what ten bits of mantissa are, and by no more; all else is as
 * without. */
#include "cuda/gemm_case.h"
#include "cuda/layer_check.h"

/* C of one element of the case, exactly, and the sum of its terms' magnitudes. */
static double exact_element(const gemm_case *it, const tpi_gemm_args *cpu, int64_t row, int64_t col, double *magnitude)
{
    double sum = 0;

    *magnitude = 0;
    for (int64_t k = 0; k < it->inner; k++) {
        double term = tpt_get(cpu->a.data, it->dtype, row * cpu->a.outer_stride + k * cpu->a.inner_stride) *
                      tpt_get(cpu->b.data, it->dtype, col * cpu->b.outer_stride + k * cpu->b.inner_stride);

        sum += term;
        *magnitude += fabs(term);
    }
    return sum;
}

/* Each element's own bound holds; and with long sums of few terms some elements are farther off than f32 could be. */
static void check_elements(tpt_sides *sides, const gemm_case *it)
{
    gemm_arrays arrays = make_arrays(sides, it);
    tpi_gemm_args args = args_of(it, &arrays, TPT_GPU), cpu = args_of(it, &arrays, TPT_CPU);
    int64_t count = it->rows * it->cols, beyond = 0;
    double *want = tpt_allocate((size_t)count * sizeof *want), *bound = tpt_allocate((size_t)count * sizeof *bound);

    TPT_ISSUE(sides, TPT_GPU, tpi_gemm, &args);
    float *got = tpt_pair_get(sides, &arrays.c, TPT_GPU);
    for (int64_t i = 0; i < count; i++) {
        double magnitude;

        want[i] = exact_element(it, &cpu, i / it->cols, i % it->cols, &magnitude);
        bound[i] = tpt_tolerance_tf32(it->inner, magnitude);
        beyond += fabs((double)got[i] - want[i]) > tpt_tolerance(TP_DTYPE_F32, it->inner, magnitude);
    }
    cr_assert(tpt_close_each("c", got, TP_DTYPE_F32, want, bound, count));
    cr_assert_gt(4 * beyond, count, "%lld of %lld elements are farther off than f32 is: that was not TF32",
                 (long long)beyond, (long long)count);
    free(got), free(want), free(bound);
    tpt_sides_reset(sides);
}

Test(cuda_gemm_tf32, products)
{
    static const int64_t sizes[][3] = {{24, 40, 16}, {17, 19, 8}, {64, 5, 23}, {33, 34, 1}};
    tpt_sides sides;

    gemm_open_fast(&sides, true);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int layout = 0; layout < 4; layout++) {
            gemm_case it = plain(TP_DTYPE_F32, sizes[s][0], sizes[s][1], sizes[s][2]);

            it.a_columns = layout & 1;
            it.b_columns = layout & 2;
            check_elements(&sides, &it);
        }
    tpt_sides_close(&sides);
}

/* Whole numbers of eleven bits are TF32 numbers: their products are exact. */
Test(cuda_gemm_tf32, whole_numbers_are_exact)
{
    tpt_sides sides;
    gemm_case it = plain(TP_DTYPE_F32, 21, 26, 9);

    gemm_open_fast(&sides, true);
    gemm_arrays arrays = make_arrays(&sides, &it);
    float *a = tpt_array(TP_DTYPE_F32, it.rows * it.inner), *b = tpt_array(TP_DTYPE_F32, it.cols * it.inner);
    tpt_fill_integers(a, TP_DTYPE_F32, it.rows * it.inner, 1, 1023);
    tpt_fill_integers(b, TP_DTYPE_F32, it.cols * it.inner, 2, 1023);
    arrays.a = tpt_pair_array(&sides, a, TP_DTYPE_F32, it.rows * it.inner);
    arrays.b = tpt_pair_array(&sides, b, TP_DTYPE_F32, it.cols * it.inner);
    for (int side = 0; side < TPT_SIDES; side++) {
        tpi_gemm_args args = args_of(&it, &arrays, side);

        TPT_ISSUE(&sides, side, tpi_gemm, &args);
    }
    tpt_pair_same(&sides, "c", &arrays.c, TP_DTYPE_F32);
    free(a), free(b);
    tpt_sides_close(&sides);
}

/* Epilogues of the library and ours, weight gradients and the sums of rows beside them. */
Test(cuda_gemm_tf32, epilogues_and_gradients)
{
    static const unsigned with[] = {0, WITH_BIAS, WITH_BIAS | WITH_PRE, WITH_RESIDUAL, WITH_DROPOUT, WITH_ACT_INPUT};
    tpt_sides sides;

    gemm_open_fast(&sides, true);
    for (tpi_activation activation = TPI_ACT_NONE; activation < TPI_ACT_COUNT; activation++)
        for (size_t w = 0; w < sizeof with / sizeof with[0]; w++) {
            gemm_case it = plain(TP_DTYPE_F32, 9, 24, 21);

            it.tf32 = true;
            it.activation = activation;
            it.with = with[w];
            gemm_check(&sides, &it);
        }
    for (int layout = 0; layout < 4; layout++) {
        gemm_case it = plain(TP_DTYPE_F32, 21, 40, 53);

        it.tf32 = true;
        it.with = WITH_ACCUMULATE | WITH_ROW_SUMS;
        it.a_columns = layout & 1;
        it.b_columns = layout & 2;
        gemm_check(&sides, &it);
    }
    tpt_sides_close(&sides);
}

/* The product of `it` on the GPU, which is freed by free(). */
static void *product(tpt_sides *sides, const gemm_case *it)
{
    gemm_arrays arrays = make_arrays(sides, it);
    tpi_gemm_args args = args_of(it, &arrays, TPT_GPU);

    tpt_gpus_clear_counts();
    TPT_ISSUE(sides, TPT_GPU, tpi_gemm, &args);
    cr_assert(tpt_gpus_barriers() == 0 || (tpt_gpus_count().library_calls == 1 && tpt_gpus_count().kernels == 0),
              "%s: that was not the library", tp_dtype_name(it->dtype));
    void *c = tpt_pair_get(sides, &arrays.c, TPT_GPU);
    tpt_sides_reset(sides);
    return c;
}

/* What is not f32 stays as it is; f32 differs; and two contexts beside each other keep to their own, whoever asked
 * first about a shape. */
Test(cuda_gemm_tf32, contexts_and_types_by_themselves)
{
    tpt_sides plain_f32, cut;
    tp_ctx_desc desc = {.threads = 1, .device = TP_DEVICE_CUDA, .plugin = TPT_CUDA_PLUGIN, .sum_order = TP_SUM_FAST};

    gemm_open_fast(&cut, true);
    plain_f32 = (tpt_sides){0};
    cr_assert_eq(tp_ctx_create(&(tp_ctx_desc){.threads = 1}, &plain_f32.ctx[TPT_CPU]), TP_OK);
    cr_assert_eq(tp_ctx_create(&desc, &plain_f32.ctx[TPT_GPU]), TP_OK, "%s", tp_last_message());
    for (int d = 0; d < 3; d++) {
        gemm_case it = plain(tpt_floats[d], 24, 40, 16);
        void *first = product(&plain_f32, &it), *second = product(&cut, &it), *third = product(&plain_f32, &it),
             *fourth = product(&cut, &it);

        cr_assert(tpt_same_bits("f32 again", third, first, TP_DTYPE_F32, it.rows * it.cols));
        cr_assert(tpt_same_bits("TF32 again", fourth, second, TP_DTYPE_F32, it.rows * it.cols));
        bool same = memcmp(first, second, (size_t)(it.rows * it.cols) * sizeof(float)) == 0;
        cr_assert_eq(same, it.dtype != TP_DTYPE_F32, "%s with and without TF32", tp_dtype_name(it.dtype));
        it.tf32 = false;
        gemm_check(&plain_f32, &it);
        free(first), free(second), free(third), free(fourth);
    }
    tpt_sides_close(&cut);
    tpt_sides_close(&plain_f32);
}

/* A sum with indices left out is not the library's: our kernel's f32 is not cut. */
Test(cuda_gemm_tf32, what_the_library_does_not_take_is_f32)
{
    tpt_sides sides;
    tpi_inner order = {.blocks = 2, .segments = 2, .segment = {{0, 0, 7}, {1, 9, 7}}};
    gemm_case it = plain(TP_DTYPE_F32, 24, 40, 16);

    gemm_open_fast(&sides, true);
    it.order = &order;
    gemm_check(&sides, &it);
    tpt_sides_close(&sides);
}

/* ---- layers ---- */

static void check_layer(const tpt_case *c, int depth, tpt_layout layout)
{
    tpt_result cpu, cut, fast;

    tpt_case_run(c, &(tpt_layout){.tp = 1, .threads = 1}, &cpu);
    layout = tpt_gpus_layout(layout);
    layout.sum_order = TP_SUM_FAST;
    tpt_gpus_turn((unsigned)layout.tp);
    tpt_case_run(c, &layout, &fast);
    tpt_gpus_clean("f32");
    layout.tf32 = true;
    tpt_gpus_turn((unsigned)layout.tp + 1);
    tpt_case_run(c, &layout, &cut);
    tpt_gpus_clean("TF32");
    cr_assert(tpt_result_near(c, &cut, &cpu, depth), "%s: TF32 is farther from the CPU than it may be", c->name);
    cr_assert_neq(memcmp(cut.y, fast.y, (size_t)(c->pass.tokens * c->out) * sizeof(float)), 0, "%s: that was not TF32",
                  c->name);
    cr_assert_neq(memcmp(cut.dx, fast.dx, (size_t)(c->pass.tokens * c->in) * sizeof(float)), 0, "%s: that was not TF32",
                  c->name);
    tpt_result_free(&cpu), tpt_result_free(&cut), tpt_result_free(&fast);
}

/* Linear layers and a feed-forward layer, by themselves and on two ranks. */
Test(cuda_gemm_tf32, layers, .timeout = 100)
{
    for (int kind = TP_LINEAR_COLUMN; kind <= TP_LINEAR_ROW; kind++) {
        tp_linear_desc desc = {.name = "linear", .kind = (tp_linear_kind)kind, .in_features = 27, .out_features = 22,
                               .dtype = TP_DTYPE_F32, .bias = true};
        tpt_case c = {.name = kind == TP_LINEAR_ROW ? "row" : "column",
                      .table = &tpt_linear_table,
                      .desc = &desc,
                      .cut = kind == TP_LINEAR_COLUMN ? TPT_CUT_OUTPUT : TPT_CUT_INPUT,
                      .dtype = TP_DTYPE_F32,
                      .in = desc.in_features,
                      .out = desc.out_features,
                      .pass = {.tokens = 19},
                      .microbatches = 2,
                      .tf32 = true,
                      .seed = 31};
        check_layer(&c, 1, (tpt_layout){.tp = 1});
        check_layer(&c, 1, (tpt_layout){.tp = 2, .devices = 2, .sequence_parallel = true});
    }
}

Test(cuda_gemm_tf32, feed_forward, .timeout = 100)
{
    tp_mlp_desc desc = {.name = "mlp", .hidden = 24, .ffn = 32, .activation = TP_ACTIVATION_GELU_TANH,
                        .dtype = TP_DTYPE_F32, .bias = true};
    tpt_case c = {.name = "mlp",
                  .table = &tpt_mlp_table,
                  .desc = &desc,
                  .dtype = TP_DTYPE_F32,
                  .in = 24,
                  .out = 24,
                  .pass = {.tokens = 19},
                  .microbatches = 2,
                  .tf32 = true,
                  .seed = 7};
    check_layer(&c, 3, (tpt_layout){.tp = 1});
    check_layer(&c, 3, (tpt_layout){.tp = 2, .devices = 1});
}
