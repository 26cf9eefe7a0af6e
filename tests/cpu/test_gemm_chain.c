/* Weight gradients: that go on from call to call, and that are written past the caches. */
#include <stdlib.h>

#include "gemm_case.h"

/* A chain cut into calls of any length, odd ones too, has the bits of one call: also where sums underflow to -0. */
Test(gemm, continued_chains)
{
    static const int64_t cuts[] = {0, 1, 4, 5, 5, 8, 37};
    const int64_t rows = 13, cols = 20, inner = 37;
    for (int n = 0; n < TP_ISA_COUNT * 3; n++) {
        const tp_isa isa = (tp_isa)(n / 3);
        const tp_dtype dtype = gemm_dtypes[n % 3];
        if (isa == TP_ISA_AUTO || !tp_isa_available(isa))
            continue;
        tp_ctx *ctx = gemm_context(isa, 1);
        float *values = tpt_new_uniform(TP_DTYPE_F32, rows * inner, 5, -1, 1);
        for (int64_t i = 0; i < rows * inner; i++)
            values[i] = i % inner < 1 ? -1e-30f : i / inner % 2 ? 0.0f : values[i];
        gemm_matrix a = gemm_matrix_from(dtype, rows, inner, values);
        free(values);
        values = tpt_new_uniform(TP_DTYPE_F32, cols * inner, 6, -1, 1);
        for (int64_t i = 0; i < cols * inner; i++)
            values[i] = i % inner < 1 ? 1e-30f : i / inner % 2 ? -fabsf(values[i]) : values[i];
        gemm_matrix b = gemm_matrix_from(dtype, cols, inner, values);
        free(values);
        float *whole = tpt_array(TP_DTYPE_F32, rows * cols), *parts = tpt_array(TP_DTYPE_F32, rows * cols);
        tpi_gemm_args args = {.rows = rows,
                              .cols = cols,
                              .inner = inner,
                              .a = gemm_operand(&a, true),
                              .b = gemm_operand(&b, true),
                              .c = whole,
                              .c_dtype = TP_DTYPE_F32,
                              .c_stride = cols,
                              .accumulate = true};
        memset(whole, 0, (size_t)(rows * cols) * sizeof(float));
        memset(parts, 0, (size_t)(rows * cols) * sizeof(float));
        cr_assert_eq(gemm_call(ctx, &args), TP_OK);
        args.c = parts;
        for (size_t i = 0; i + 1 < sizeof cuts / sizeof cuts[0]; i++) {
            args.inner = cuts[i + 1] - cuts[i];
            args.a.data = (const char *)a.columns + (size_t)(cuts[i] * rows) * tp_dtype_size(dtype);
            args.b.data = (const char *)b.columns + (size_t)(cuts[i] * cols) * tp_dtype_size(dtype);
            cr_assert_eq(gemm_call(ctx, &args), TP_OK);
        }
        cr_assert(tpt_same_bits("continued", parts, whole, TP_DTYPE_F32, rows * cols), "%s, %s", tp_isa_name(isa),
                  tp_dtype_name(dtype));
        free(whole);
        free(parts);
        gemm_matrix_free(&a);
        gemm_matrix_free(&b);
        tp_ctx_destroy(ctx);
    }
}

/* The same over slices of what was packed once: pairs of bf16 stay together. */
Test(gemm, slices_of_what_is_packed)
{
    static const int64_t cuts[] = {0, 2, 2, 8, 26, 37};
    const int64_t rows = 13, cols = 150, inner = 37;
    for (int n = 0; n < TP_ISA_COUNT * 3; n++) {
        const tp_isa isa = (tp_isa)(n / 3);
        const tp_dtype dtype = gemm_dtypes[n % 3];
        if (isa == TP_ISA_AUTO || !tp_isa_available(isa))
            continue;
        tp_ctx *ctx = gemm_context(isa, 1);
        gemm_matrix a = gemm_matrix_new(dtype, rows, inner, 7, 1), b = gemm_matrix_new(dtype, cols, inner, 8, 1);
        float *whole = tpt_array(TP_DTYPE_F32, rows * cols), *parts = tpt_array(TP_DTYPE_F32, rows * cols);
        tpi_gemm_args args = {.rows = rows,
                              .cols = cols,
                              .inner = inner,
                              .a = gemm_operand(&a, false),
                              .b = gemm_operand(&b, true),
                              .c = whole,
                              .c_dtype = TP_DTYPE_F32,
                              .c_stride = cols};
        cr_assert_eq(gemm_call(ctx, &args), TP_OK);
        tpi_packed packed = {.bytes = ctx->backend->gemm_packed_bytes(ctx, dtype, cols, inner, NULL), .inner = inner};
        packed.data = tpt_allocate(packed.bytes);
        cr_assert_eq(ctx->backend->gemm_pack(ctx->compute, &args.b, cols, inner, NULL, &packed), TP_OK);
        args.c = parts;
        args.b.data = NULL;
        args.b_packed = &packed;
        for (size_t i = 0; i + 1 < sizeof cuts / sizeof cuts[0]; i++) {
            packed.first = cuts[i];
            args.inner = cuts[i + 1] - cuts[i];
            args.a.data = (const char *)a.rows + (size_t)cuts[i] * tp_dtype_size(dtype);
            args.accumulate = i > 0;
            cr_assert_eq(gemm_call(ctx, &args), TP_OK);
        }
        cr_assert(tpt_same_bits("sliced", parts, whole, TP_DTYPE_F32, rows * cols), "%s, %s", tp_isa_name(isa),
                  tp_dtype_name(dtype));
        free(packed.data);
        free(whole);
        free(parts);
        gemm_matrix_free(&a);
        gemm_matrix_free(&b);
        tp_ctx_destroy(ctx);
    }
}

/* A large C, wherever it begins and however its rows lie: a result that goes past the caches has the same bits, and
 * nothing beside it is written. */
Test(gemm, results_that_go_past_the_caches)
{
    static const struct {
        int64_t stride, offset; /* in floats */
    } places[] = {{528, 0}, {528, 16}, {528, 1}, {528, 8}, {520, 0}, {519, 3}};
    const int64_t rows = 521, cols = 515, inner = 11, room = rows * 528 + 16;
    float *ways[2] = {tpt_array(TP_DTYPE_F32, room + 16), tpt_array(TP_DTYPE_F32, room + 16)};
    for (int n = 0; n < TP_ISA_COUNT * 3; n++) {
        const tp_isa isa = (tp_isa)(n / 3);
        const tp_dtype dtype = gemm_dtypes[n % 3];
        if (isa == TP_ISA_AUTO || !tp_isa_available(isa))
            continue;
        tp_ctx *ctx = gemm_context(isa, 1 + n % 2);
        gemm_matrix a = gemm_matrix_new(dtype, rows, inner, 7, 1), b = gemm_matrix_new(dtype, cols, inner, 8, 1);
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            for (int past = 0; past < 2; past++) {
                float *line = (float *)(((uintptr_t)ways[past] + 63) / 64 * 64);
                for (int64_t j = 0; j < room; j++)
                    line[j] = -7;
                const tpi_gemm_args args = {.rows = rows,
                                            .cols = cols,
                                            .inner = inner,
                                            .a = gemm_operand(&a, true),
                                            .b = gemm_operand(&b, true),
                                            .c = line + places[i].offset,
                                            .c_dtype = TP_DTYPE_F32,
                                            .c_stride = places[i].stride,
                                            .past_caches = past == 1};
                cr_assert_eq(gemm_call(ctx, &args), TP_OK);
            }
            const float *first = (const float *)(((uintptr_t)ways[0] + 63) / 64 * 64),
                        *second = (const float *)(((uintptr_t)ways[1] + 63) / 64 * 64);
            cr_assert(tpt_same_bits("C and what is beside it", second, first, TP_DTYPE_F32, room), "%s, %s, place %zu",
                      tp_isa_name(isa), tp_dtype_name(dtype), i);
        }
        gemm_matrix_free(&a);
        gemm_matrix_free(&b);
        tp_ctx_destroy(ctx);
    }
    free(ways[0]);
    free(ways[1]);
}
