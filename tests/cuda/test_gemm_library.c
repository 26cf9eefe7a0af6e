/* GEMM by cuBLASLt: what goes into its epilogues and what doesn't, what is promised to it, and how often it is
 * asked. */
#include <stdio.h>

#include "cuda/gemm_case.h"

static bool simulated(void)
{
    return tpt_gpus_barriers() > 0;
}

/* What one product of a case does on the GPU. */
typedef struct work {
    int64_t heuristics, library_calls, kernels;
} work;

static work count_work(void)
{
    gpusim_counts counts = tpt_gpus_count();

    return (work){counts.heuristics, counts.library_calls, counts.kernels};
}

/* ---- ways ---- */

/* What a case is moved by: elements that lie before its arrays, whose memory begins at a multiple of 256 bytes. */
typedef struct shift {
    int64_t a, b, c, bias, pre, act_input, residual;
} shift;

typedef struct way {
    const char *name;
    unsigned with;
    tpi_activation activation;
    int other_bias; /* bias of another dtype than C */
    int64_t gap;
    shift moved;
    work first; /* what it does when the shape is new */
} way;

static void move(const gemm_case *it, const shift *moved, tpi_gemm_args *args)
{
    const size_t operand = tp_dtype_size(it->dtype), c = tp_dtype_size(it->c_dtype);

    args->a.data = (const char *)args->a.data + (size_t)moved->a * operand;
    args->b.data = (const char *)args->b.data + (size_t)moved->b * operand;
    args->c = (char *)args->c + (size_t)moved->c * c;
    args->bias = args->bias ? (const char *)args->bias + (size_t)moved->bias * tp_dtype_size(it->bias_dtype) : NULL;
    args->pre = args->pre ? (char *)args->pre + (size_t)moved->pre * c : NULL;
    args->act_input = args->act_input ? (const char *)args->act_input + (size_t)moved->act_input * c : NULL;
    args->residual = args->residual ? (const char *)args->residual + (size_t)moved->residual * c : NULL;
}

/* Issues a case on both sides, in arrays that are longer than it is, and compares. What the GPU did is returned. */
static work run_moved(tpt_sides *sides, const gemm_case *it, const shift *moved)
{
    gemm_case room = *it;
    tpi_gemm_args args[TPT_SIDES];

    room.rows += 8; /* enough for all shifts */
    room.cols += 8;
    room.inner += 8;
    room.gap = 0;
    gemm_arrays arrays = make_arrays(sides, &room);
    for (int side = 0; side < TPT_SIDES; side++) {
        args[side] = args_of(it, &arrays, side);
        move(it, moved, &args[side]);
    }
    TPT_ISSUE(sides, TPT_CPU, tpi_gemm, &args[TPT_CPU]);
    cr_assert_eq(tp_ctx_synchronize(sides->ctx[TPT_GPU]), TP_OK);
    tpt_gpus_clear_counts();
    TPT_ISSUE(sides, TPT_GPU, tpi_gemm, &args[TPT_GPU]);
    cr_assert_eq(tp_ctx_synchronize(sides->ctx[TPT_GPU]), TP_OK, "%s", tp_ctx_message(sides->ctx[TPT_GPU]));
    work done = count_work();
    gemm_compare(sides, it, &arrays, &args[TPT_CPU]);
    tpt_sides_reset(sides);
    return done;
}

static void expect_work(const char *name, tp_dtype dtype, work got, work want)
{
    if (simulated())
        cr_expect(got.heuristics == want.heuristics && got.library_calls == want.library_calls &&
                      got.kernels == want.kernels,
                  "%s of %s: asked %lld times, %lld calls of the library, %lld kernels; not %lld, %lld, %lld", name,
                  tp_dtype_name(dtype), (long long)got.heuristics, (long long)got.library_calls, (long long)got.kernels,
                  (long long)want.heuristics, (long long)want.library_calls, (long long)want.kernels);
}

/* The library's epilogues, alone; what it has none for is finished by a kernel; what lies beside C must begin at whole
 * vectors, and lines of the auxiliary matrix be eight elements long. */
static const way ways[] = {
    {"plain", 0, TPI_ACT_NONE, 0, 0, {0}, {1, 1, 0}},
    {"bias", WITH_BIAS, TPI_ACT_NONE, 0, 0, {0}, {1, 1, 0}},
    {"relu", 0, TPI_ACT_RELU, 0, 0, {0}, {1, 1, 0}},
    {"relu, bias", WITH_BIAS, TPI_ACT_RELU, 0, 0, {0}, {1, 1, 0}},
    {"gelu", 0, TPI_ACT_GELU_TANH, 0, 0, {0}, {1, 1, 0}},
    {"gelu, bias", WITH_BIAS, TPI_ACT_GELU_TANH, 0, 0, {0}, {1, 1, 0}},
    {"gelu, pre", WITH_PRE, TPI_ACT_GELU_TANH, 0, 0, {0}, {1, 1, 0}},
    {"gelu, bias, pre", WITH_PRE | WITH_BIAS, TPI_ACT_GELU_TANH, 0, 8, {0}, {1, 1, 0}},
    {"gelu gradient", WITH_ACT_INPUT, TPI_ACT_GELU_TANH, 0, 0, {0}, {1, 1, 0}},
    {"residual", WITH_RESIDUAL, TPI_ACT_NONE, 0, 0, {0}, {1, 1, 0}},
    {"residual, bias", WITH_RESIDUAL | WITH_BIAS, TPI_ACT_NONE, 0, 0, {0}, {1, 1, 0}},
    {"exact gelu", 0, TPI_ACT_GELU, 0, 0, {0}, {1, 1, 1}},
    {"silu, bias", WITH_BIAS, TPI_ACT_SILU, 0, 0, {0}, {1, 1, 1}},
    {"relu squared", 0, TPI_ACT_RELU2, 0, 0, {0}, {1, 1, 1}},
    {"pre without activation", WITH_PRE, TPI_ACT_NONE, 0, 0, {0}, {1, 1, 1}},
    {"relu, pre", WITH_PRE, TPI_ACT_RELU, 0, 0, {0}, {1, 1, 1}},
    {"relu, residual", WITH_RESIDUAL, TPI_ACT_RELU, 0, 0, {0}, {1, 1, 1}},
    {"gelu, residual", WITH_RESIDUAL, TPI_ACT_GELU_TANH, 0, 0, {0}, {1, 1, 1}},
    {"relu gradient", WITH_ACT_INPUT, TPI_ACT_RELU, 0, 0, {0}, {1, 1, 1}},
    {"gelu gradient, residual", WITH_ACT_INPUT | WITH_RESIDUAL, TPI_ACT_GELU_TANH, 0, 0, {0}, {1, 1, 1}},
    {"dropout", WITH_DROPOUT, TPI_ACT_NONE, 0, 0, {0}, {1, 1, 1}},
    {"sums of rows", WITH_ROW_SUMS, TPI_ACT_NONE, 0, 0, {0}, {1, 1, 1}},
    {"gelu, sums of rows", WITH_ROW_SUMS, TPI_ACT_GELU_TANH, 0, 0, {0}, {1, 1, 1}},
    {"exact gelu, sums of rows", WITH_ROW_SUMS, TPI_ACT_GELU, 0, 0, {0}, {1, 1, 2}},
    {"pre at half a vector", WITH_PRE, TPI_ACT_GELU_TANH, 0, 0, {.pre = 2}, {1, 1, 1}},
    {"pre at an element", WITH_PRE, TPI_ACT_GELU_TANH, 0, 0, {.pre = 1}, {1, 1, 1}},
    {"pre at the second vector", WITH_PRE, TPI_ACT_GELU_TANH, 0, 0, {.pre = 8}, {1, 1, 0}},
    {"lines of pre", WITH_PRE, TPI_ACT_GELU_TANH, 0, 4, {0}, {1, 1, 1}},
    {"gradient at half a vector", WITH_ACT_INPUT, TPI_ACT_GELU_TANH, 0, 0, {.act_input = 2}, {1, 1, 1}},
    {"gradient at an element", WITH_ACT_INPUT, TPI_ACT_GELU_TANH, 0, 0, {.act_input = 1}, {1, 1, 1}},
    {"gradient at the second vector", WITH_ACT_INPUT, TPI_ACT_GELU_TANH, 0, 0, {.act_input = 8}, {1, 1, 0}},
    {"lines of the gradient's input", WITH_ACT_INPUT, TPI_ACT_GELU_TANH, 0, 4, {0}, {1, 1, 1}},
    {"bias at an element", WITH_BIAS, TPI_ACT_NONE, 0, 0, {.bias = 1}, {1, 1, 1}},
    {"bias at half a vector", WITH_BIAS, TPI_ACT_GELU_TANH, 0, 0, {.bias = 2}, {1, 1, 1}},
    {"operands at odd places", WITH_BIAS, TPI_ACT_NONE, 0, 0, {.a = 3, .b = 5}, {1, 1, 0}},
    {"C at an odd place", WITH_BIAS, TPI_ACT_NONE, 0, 0, {.c = 3}, {1, 1, 0}},
    {"residual at an odd place", WITH_RESIDUAL, TPI_ACT_NONE, 0, 0, {.residual = 1}, {1, 1, 0}},
    {"weight gradient", WITH_ACCUMULATE, TPI_ACT_NONE, 0, 0, {0}, {1, 1, 0}},
    {"weight gradient, sums of rows", WITH_ACCUMULATE | WITH_ROW_SUMS, TPI_ACT_NONE, 0, 0, {0}, {1, 1, 1}},
    {"bias of another dtype", WITH_BIAS, TPI_ACT_NONE, 1, 0, {0}, {1, 1, 1}},
};

/* C and what goes with it in the operands' type, or f32. */
static void check_ways(tpt_sides *sides, tp_dtype dtype, tp_dtype c_dtype)
{
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        const way *it = &ways[i];
        gemm_case one = plain(dtype, 24, 40, 48);
        work want = it->first;

        if ((it->with & WITH_ACCUMULATE && c_dtype != TP_DTYPE_F32) || (it->other_bias && dtype == TP_DTYPE_F32))
            continue;
        one.with = it->with;
        one.activation = it->activation;
        one.gap = it->gap;
        one.c_dtype = c_dtype;
        one.bias_dtype = !it->other_bias ? c_dtype : c_dtype == TP_DTYPE_F32 ? dtype : TP_DTYPE_F32;
        /* Sums of rows come with a plain product into f32 only. Else: one kernel of ours, as many as the table says for
         * it. */
        work got = run_moved(sides, &one, &it->moved);
        if (simulated() && i > 0)
            got.heuristics = want.heuristics; /* another way may have had the shape: see the cache's tests */
        expect_work(it->name, dtype, got, want);
        got = run_moved(sides, &one, &it->moved);
        want.heuristics = 0;
        expect_work(it->name, dtype, got, want);
    }
}

Test(cuda_gemm_library, ways, .timeout = 100)
{
    for (int d = 0; d < 3; d++)
        for (int wide = 0; wide < 2; wide++) {
            tpt_sides sides;

            if (d == 0 && wide)
                continue;
            gemm_open_fast(&sides, false);
            check_ways(&sides, tpt_floats[d], wide ? TP_DTYPE_F32 : tpt_floats[d]);
            tpt_sides_close(&sides);
        }
}

/* Sums over a range are the library's, whatever their order; over several ranges they are our kernel's. */
Test(cuda_gemm_library, orders)
{
    static const tpi_inner whole = {.blocks = 2, .segments = 2, .segment = {{0, 20, 28}, {1, 0, 20}}},
                           inside = {.blocks = 1, .segments = 1, .segment = {{0, 8, 30}}},
                           none = {.blocks = 2, .segments = 2, .segment = {{0, 8, 0}, {1, 12, 0}}},
                           holes = {.blocks = 2, .segments = 2, .segment = {{0, 0, 20}, {1, 21, 27}}},
                           empty_between = {
                               .blocks = 2, .segments = 3, .segment = {{0, 0, 20}, {0, 45, 0}, {1, 20, 10}}};
    static const struct {
        const char *name;
        const tpi_inner *order;
        int64_t calls;
    } cases[] = {{"all of it", &whole, 1}, {"a part", &inside, 1}, {"nothing", &none, 0}, {"a hole", &holes, 0},
    {"an empty segment", &empty_between, 1}};
    tpt_sides sides;

    gemm_open_fast(&sides, false);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int layout = 0; layout < 4; layout++) {
            gemm_case it = plain(TP_DTYPE_F32, 24, 40, 48);

            it.order = cases[i].order;
            it.a_columns = layout & 1;
            it.b_columns = layout & 2;
            work got = run_moved(&sides, &it, &(shift){0});
            if (simulated())
                cr_expect(got.library_calls == cases[i].calls && got.kernels == 1 - cases[i].calls,
                          "%s: %lld calls, %lld kernels", cases[i].name, (long long)got.library_calls,
                          (long long)got.kernels);
        }
    tpt_sides_close(&sides);
}

/* Where there is one line only nobody steps to the next: strides may be anything. */
Test(cuda_gemm_library, strides_of_single_lines)
{
    static const int64_t sizes[][3] = {{1, 40, 48}, {24, 1, 48}, {24, 40, 1}, {1, 1, 1}};
    tpt_sides sides;

    gemm_open_fast(&sides, false);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int layout = 0; layout < 4; layout++)
            for (int with = 0; with < 3; with++) {
                gemm_case it = plain(TP_DTYPE_F32, sizes[s][0], sizes[s][1], sizes[s][2]);
                tpi_gemm_args args[TPT_SIDES];

                it.a_columns = layout & 1;
                it.b_columns = layout & 2;
                it.with = with == 1 ? WITH_RESIDUAL : with == 2 ? WITH_PRE : 0;
                it.activation = with == 2 ? TPI_ACT_GELU_TANH : TPI_ACT_NONE;
                gemm_arrays arrays = make_arrays(&sides, &it);
                for (int side = 0; side < TPT_SIDES; side++) {
                    tpi_gemm_args *one = &args[side];

                    *one = args_of(&it, &arrays, side);
                    if (it.rows == 1)
                        one->c_stride = one->residual_stride = one->pre_stride = 0;
                    if (it.rows == 1 && !it.a_columns)
                        one->a.outer_stride = 0;
                    if (it.cols == 1 && !it.b_columns)
                        one->b.outer_stride = 0;
                    if (it.inner == 1 && it.a_columns)
                        one->a.inner_stride = 0;
                    if (it.inner == 1 && it.b_columns)
                        one->b.inner_stride = 0;
                    tpt_gpus_clear_counts();
                    TPT_ISSUE(&sides, side, tpi_gemm, one);
                }
                /* Lines of pre that are shorter than its columns are not what the library takes for one. */
                work done = count_work();
                bool direct = with != 2 || (it.cols % 8 == 0 && it.rows > 1);
                done.heuristics = 1;
                expect_work("single lines", it.dtype, done, (work){1, 1, !direct});
                gemm_compare(&sides, &it, &arrays, &args[TPT_CPU]);
                tpt_sides_reset(&sides);
            }
    tpt_sides_close(&sides);
}

/* C, and what goes with it, each with lines of its own length. */
Test(cuda_gemm_library, strides_of_their_own)
{
    static const struct {
        unsigned with;
        tpi_activation activation;
    } cases[] = {{WITH_RESIDUAL, TPI_ACT_NONE},
                 {WITH_BIAS | WITH_RESIDUAL, TPI_ACT_NONE},
                 {WITH_PRE, TPI_ACT_GELU_TANH},
                 {WITH_ACT_INPUT, TPI_ACT_GELU_TANH}};
    tpt_sides sides;

    gemm_open_fast(&sides, false);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int longer = 0; longer < 2; longer++) {
            gemm_case it = plain(TP_DTYPE_F32, 24, 40, 48), room = it;
            tpi_gemm_args args[TPT_SIDES];

            it.with = room.with = cases[i].with;
            it.activation = room.activation = cases[i].activation;
            room.gap = 24;
            gemm_arrays arrays = make_arrays(&sides, &room);
            for (int side = 0; side < TPT_SIDES; side++) {
                args[side] = args_of(&it, &arrays, side);
                args[side].c_stride += longer ? 3 : 16;
                args[side].residual_stride = args[side].pre_stride = args[side].act_input_stride =
                    it.cols + (longer ? 24 : 8);
                tpt_gpus_clear_counts();
                TPT_ISSUE(&sides, side, tpi_gemm, &args[side]);
            }
            expect_work("strides", it.dtype, count_work(), (work){1, 1, 0});
            gemm_compare(&sides, &it, &arrays, &args[TPT_CPU]);
            tpt_sides_reset(&sides);
        }
    tpt_sides_close(&sides);
}

/* Nothing to add up, or nowhere to put it: nobody is asked. */
Test(cuda_gemm_library, empty_products)
{
    static const struct {
        int64_t rows, cols, inner;
        unsigned with;
        int64_t kernels;
    } cases[] = {{0, 4, 5, 0, 0}, {4, 0, 5, 0, 0}, {4, 5, 0, 0, 1}, {4, 0, 5, WITH_ACCUMULATE | WITH_ROW_SUMS, 1},
    {4, 5, 0, WITH_ACCUMULATE | WITH_ROW_SUMS, 0}};
    tpt_sides sides;

    gemm_open_fast(&sides, false);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gemm_case it = plain(TP_DTYPE_F32, cases[i].rows, cases[i].cols, cases[i].inner);
        tpi_gemm_args args[TPT_SIDES];

        it.with = cases[i].with;
        gemm_arrays arrays = make_arrays(&sides, &it);
        for (int side = 0; side < TPT_SIDES; side++) {
            args[side] = args_of(&it, &arrays, side);
            tpt_gpus_clear_counts();
            TPT_ISSUE(&sides, side, tpi_gemm, &args[side]);
        }
        expect_work("empty", it.dtype, count_work(), (work){0, 0, cases[i].kernels});
        gemm_compare(&sides, &it, &arrays, &args[TPT_CPU]);
        tpt_sides_reset(&sides);
    }
    tpt_sides_close(&sides);
}

/* ---- the cache ---- */

/* Cases that differ in one thing each: none gets another's algorithm, whichever came first. */
Test(cuda_gemm_library, shapes_are_told_apart, .timeout = 100)
{
    tpt_sides sides;
    gemm_case base = plain(TP_DTYPE_BF16, 24, 40, 48), cases[17];
    shift moved[17] = {{0}};
    int count = 0;

    base.c_dtype = TP_DTYPE_BF16;
    base.bias_dtype = TP_DTYPE_BF16;
    for (int i = 0; i < 17; i++)
        cases[i] = base;
    count++;
    cases[count++].rows = 32;
    cases[count++].cols = 32;
    cases[count++].inner = 32;
    cases[count++].a_columns = true;
    cases[count++].b_columns = true;
    cases[count++].gap = 8;
    cases[count++].c_dtype = TP_DTYPE_F32;
    cases[count].dtype = cases[count].c_dtype = TP_DTYPE_F16, cases[count].bias_dtype = TP_DTYPE_F16, count++;
    cases[count++].with = WITH_BIAS;
    cases[count++].activation = TPI_ACT_RELU;
    moved[count++].a = 1;
    moved[count++].b = 1;
    moved[count++].c = 1;
    cases[count++].with = WITH_RESIDUAL;
    cases[count].with = WITH_RESIDUAL, moved[count++].residual = 1;
    cases[count].with = WITH_RESIDUAL, moved[count++].c = 1;
    cr_assert_eq(count, 17);
    for (int backwards = 0; backwards < 2; backwards++) {
        gemm_open_fast(&sides, false);
        int64_t asked = 0;
        for (int turn = 0; turn < 2; turn++)
            for (int i = 0; i < count; i++) {
                int one = backwards ? count - 1 - i : i;

                asked += run_moved(&sides, &cases[one], &moved[one]).heuristics;
            }
        if (simulated()) /* "residual" is "plain" to the library, but for what it adds; and that is not part of the
                          * shape */
            cr_expect_eq(asked, count - 1, "asked %lld times about %d shapes", (long long)asked, count - 1);
        tpt_sides_close(&sides);
    }
}

/* It keeps 256 shapes, and the oldest makes room. */
Test(cuda_gemm_library, the_oldest_shape_makes_room, .timeout = 100)
{
    enum { KEPT = 256 };
    tpt_sides sides;

    gemm_open_fast(&sides, false);
    for (int64_t rows = 1; rows <= KEPT; rows++) {
        gemm_case it = plain(TP_DTYPE_F32, rows, 2, 3);

        expect_work("a new shape", it.dtype, run_moved(&sides, &it, &(shift){0}), (work){1, 1, 0});
    }
    static const struct {
        int64_t rows, asked;
    } then[] = {{1, 0}, {KEPT, 0}, {KEPT + 1, 1}, {2, 0}, {1, 1}, {KEPT, 0}, {2, 1}, {KEPT + 1, 0}, {3, 1}};
    for (size_t i = 0; i < sizeof then / sizeof then[0]; i++) {
        gemm_case it = plain(TP_DTYPE_F32, then[i].rows, 2, 3);
        char name[32];

        snprintf(name, sizeof name, "question %zu, rows %lld", i, (long long)it.rows);
        expect_work(name, it.dtype, run_moved(&sides, &it, &(shift){0}), (work){then[i].asked, 1, 0});
    }
    tpt_sides_close(&sides);
}

/* ---- memory and failures ---- */

/* The algorithm's workspace, our sums and the sums of rows are scratch of the context, which grows once. */
Test(cuda_gemm_library, workspace_is_scratch_of_the_context)
{
    tpt_sides sides;
    gemm_case it = plain(TP_DTYPE_F32, 24, 40, 48);

    gemm_open_fast(&sides, false);
    it.activation = TPI_ACT_SILU;
    it.with = WITH_ROW_SUMS;
    size_t before = tp_ctx_memory(sides.ctx[TPT_GPU], TP_MEMORY_SCRATCH).bytes;
    run_moved(&sides, &it, &(shift){0});
    size_t grown = tp_ctx_memory(sides.ctx[TPT_GPU], TP_MEMORY_SCRATCH).bytes;
    cr_assert_geq(grown - before, (size_t)(it.rows * it.cols + it.rows) * sizeof(float));
    gemm_arrays arrays = make_arrays(&sides, &it);
    tpi_gemm_args args = args_of(&it, &arrays, TPT_GPU);
    tpt_gpus_clear_counts();
    for (int i = 0; i < 3; i++)
        TPT_ISSUE(&sides, TPT_GPU, tpi_gemm, &args);
    cr_assert_eq(tp_ctx_memory(sides.ctx[TPT_GPU], TP_MEMORY_SCRATCH).bytes, grown);
    gpusim_counts counts = tpt_gpus_count();
    cr_assert(counts.allocations == 0 && counts.host_synchronisations == 0 && counts.host_queries == 0 &&
              counts.heuristics == 0);
    tpt_sides_close(&sides);
}

/* What the library says when it can't is the context's failure. */
Test(cuda_gemm_library, a_failing_call_breaks_the_context)
{
    tpt_sides sides;
    gemm_case it = plain(TP_DTYPE_F32, 24, 40, 48);

    gemm_open_fast(&sides, false);
    gemm_arrays arrays = make_arrays(&sides, &it);
    tpi_gemm_args args = args_of(&it, &arrays, TPT_GPU);
    if (!tpt_gpus_fail_blas(2, GPUSIM_BLAS_MATMUL))
        cr_skip_test("nothing can be planted in a real library");
    TPT_ISSUE(&sides, TPT_GPU, tpi_gemm, &args);
    cr_assert_eq(tpi_gemm(sides.ctx[TPT_GPU]->compute, &args), TP_ERR_BACKEND);
    cr_assert_str_eq(tp_ctx_message(sides.ctx[TPT_GPU]), "gemm: cublasLtMatmul returned 13 for [24, 40] over 48");
    cr_assert_eq(tp_ctx_failure(sides.ctx[TPT_GPU]), TP_ERR_BACKEND);
    for (int i = 0; i < sides.pairs; i++)
        for (int side = 0; side < TPT_SIDES; side++)
            tp_ctx_release(sides.ctx[side], TP_MEMORY_OTHER, sides.pair[i].at[side], sides.pair[i].bytes);
    tp_ctx_destroy(sides.ctx[TPT_CPU]), tp_ctx_destroy(sides.ctx[TPT_GPU]);
}

/* What it has no algorithm for: with sums of rows it is asked for the product alone, with an epilogue for sums, and at
 * last our kernel does everything. Each answer is kept. */
Test(cuda_gemm_library, what_it_has_no_algorithm_for)
{
    static const struct {
        const char *name;
        unsigned with;
        tpi_activation activation;
        int failing; /* question; less than 0: all of them */
        work first;
        int64_t gap; /* of lines */
    } cases[] = {
        {"sums of rows", WITH_ACCUMULATE | WITH_ROW_SUMS, TPI_ACT_NONE, 1, {2, 1, 1}, 0},
        {"sums of rows, nothing", WITH_ACCUMULATE | WITH_ROW_SUMS, TPI_ACT_NONE, -1, {2, 0, 2}, 0},
        {"weight gradient, nothing", WITH_ACCUMULATE, TPI_ACT_NONE, -1, {1, 0, 1}, 0},
        /* Sums of a product would be another shape, which it has an algorithm for, but they overwrite. */
        {"weight gradient with longer lines", WITH_ACCUMULATE, TPI_ACT_NONE, 1, {1, 0, 1}, 8},
        {"epilogue", WITH_BIAS | WITH_PRE, TPI_ACT_GELU_TANH, 1, {2, 1, 1}, 0},
        {"epilogue, nothing", WITH_BIAS | WITH_PRE, TPI_ACT_GELU_TANH, -1, {2, 0, 1}, 0},
        {"sums for our epilogue, nothing", WITH_BIAS, TPI_ACT_SILU, -1, {1, 0, 1}, 0},
        {"epilogue and sums of rows", WITH_ROW_SUMS, TPI_ACT_GELU_TANH, 1, {2, 1, 2}, 0},
    };
    tpt_sides sides;

    if (!simulated())
        cr_skip_test("nothing can be planted in a real library");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int d = 0; d < 3; d++) {
            gemm_case it = plain(tpt_floats[d], 24, 40, 48);
            work want = cases[i].first;

            it.with = cases[i].with;
            it.activation = cases[i].activation;
            it.gap = cases[i].gap;
            gemm_open_fast(&sides, false);
            tpt_gpus_fail_blas(cases[i].failing, GPUSIM_BLAS_HEURISTIC);
            expect_work(cases[i].name, it.dtype, run_moved(&sides, &it, &(shift){0}), want);
            tpt_gpus_fail_blas(0, GPUSIM_BLAS_HEURISTIC);
            want.heuristics = 0;
            expect_work(cases[i].name, it.dtype, run_moved(&sides, &it, &(shift){0}), want);
            tpt_sides_close(&sides);
        }
}
