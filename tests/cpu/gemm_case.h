/* What the GEMM tests share: contexts of every instruction set, operands in both layouts, and the sum as the definition
 * has it, in scalar code. */
#ifndef TPT_GEMM_CASE_H
#define TPT_GEMM_CASE_H

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "core/context.h"
#include "support/data.h"
#include "support/tolerance.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

static const tp_dtype gemm_dtypes[3] = {TP_DTYPE_F32, TP_DTYPE_BF16, TP_DTYPE_F16};

static inline tp_ctx *gemm_context(tp_isa isa, int threads)
{
    tp_ctx *ctx;
    tp_ctx_desc desc = {.isa = isa, .threads = threads};
    cr_assert_eq(tp_ctx_create(&desc, &ctx), TP_OK, "%s", tp_last_message());
    return ctx;
}

/* A matrix [outer, inner] stored row by row, also column by column, and its values. */
typedef struct gemm_matrix {
    tp_dtype dtype;
    int64_t outer, inner;
    void *rows, *columns;
    float *value;
} gemm_matrix;

static inline gemm_matrix gemm_matrix_from(tp_dtype dtype, int64_t outer, int64_t inner, const float *value)
{
    gemm_matrix x = {.dtype = dtype, .outer = outer, .inner = inner};
    x.rows = tpt_array(dtype, outer * inner);
    x.columns = tpt_array(dtype, outer * inner);
    x.value = tpt_array(TP_DTYPE_F32, outer * inner);
    tpt_from_f32(x.rows, dtype, value, outer * inner);
    tpt_to_f32(x.value, x.rows, dtype, outer * inner);
    for (int64_t i = 0; i < outer; i++)
        for (int64_t k = 0; k < inner; k++)
            tpt_set(x.columns, dtype, k * outer + i, (double)x.value[i * inner + k]);
    return x;
}

static inline gemm_matrix gemm_matrix_new(tp_dtype dtype, int64_t outer, int64_t inner, uint64_t seed, double scale)
{
    float *value = tpt_new_uniform(TP_DTYPE_F32, outer * inner, seed, -2 * scale, 2 * scale);
    gemm_matrix x = gemm_matrix_from(dtype, outer, inner, value);
    free(value);
    return x;
}

static inline void gemm_matrix_free(gemm_matrix *x)
{
    free(x->rows);
    free(x->columns);
    free(x->value);
}

static inline tpi_operand gemm_operand(const gemm_matrix *x, bool columns)
{
    if (columns)
        return (tpi_operand){.data = x->columns, .dtype = x->dtype, .outer_stride = 1, .inner_stride = x->outer};
    return (tpi_operand){.data = x->rows, .dtype = x->dtype, .outer_stride = x->inner, .inner_stride = 1};
}

/* ---- the definition ---- */

static inline tpi_inner gemm_one_chain(int64_t inner)
{
    tpi_inner order = {.blocks = 1, .segments = 1};
    order.segment[0].length = inner;
    return order;
}

/* The order of one rank that holds everything: eight virtual ranks. */
static inline tpi_inner gemm_eight_blocks(int64_t inner)
{
    tpi_inner order = {.blocks = 8, .segments = 8};
    for (int v = 0; v < 8; v++) {
        order.segment[v].block = v;
        order.segment[v].begin = inner * v / 8;
        order.segment[v].length = inner * (v + 1) / 8 - inner * v / 8;
    }
    return order;
}

/* One block's chain. bf16 is summed as vdpbf16ps does: subnormals are flushed, and an odd block is padded with a
 * product that changes nothing. */
static __attribute__((noinline)) float gemm_chain(float start, const float *a, const float *b, const tpi_inner *order,
                                                  int block, bool bf16)
{
#if defined(__SSE__)
    unsigned mode = _mm_getcsr();
    if (bf16)
        _mm_setcsr(mode | 0x8040u);
#endif
    volatile float result = start;
    float x = result;
    for (int s = 0; s < order->segments; s++) {
        if (order->segment[s].block != block)
            continue;
        int64_t begin = order->segment[s].begin, end = begin + order->segment[s].length;
        for (int64_t k = begin; k < end; k++)
            x = fmaf(a[k], b[k], x);
    }
    result = x;
#if defined(__SSE__)
    _mm_setcsr(mode);
#endif
    return result;
}

static inline void gemm_tree(float *node, int nodes, int64_t stride, int64_t count)
{
    for (int s = 1; s < nodes; s *= 2)
        for (int r = 0; r + s < nodes; r += 2 * s)
            for (int64_t i = 0; i < count; i++)
                node[r * stride + i] = node[r * stride + i] + node[(r + s) * stride + i];
}

/* c = sum by the definition; start (may be NULL): what one chain starts from. */
static inline void gemm_reference(const gemm_matrix *a, const gemm_matrix *b, const tpi_inner *order,
                                  const float *start, float *c)
{
    for (int64_t i = 0; i < a->outer; i++) {
        for (int64_t j = 0; j < b->outer; j++) {
            float block[8] = {0};
            for (int v = 0; v < order->blocks; v++)
                block[v] = gemm_chain(start ? start[i * b->outer + j] : 0, a->value + i * a->inner,
                                      b->value + j * b->inner, order, v, a->dtype == TP_DTYPE_BF16);
            gemm_tree(block, order->blocks, 1, 1);
            c[i * b->outer + j] = block[0];
        }
    }
}

/* ---- the call ---- */

static inline tp_status gemm_call(tp_ctx *ctx, const tpi_gemm_args *args)
{
    tp_status status = ctx->backend->gemm(ctx->compute, args);
    return status == TP_OK ? ctx->backend->stream_synchronize(ctx->compute) : status;
}

/* The same with b packed beforehand. */
static inline tp_status gemm_call_packed(tp_ctx *ctx, const tpi_gemm_args *args)
{
    tpi_gemm_args packed = *args;
    tpi_packed copy = {.bytes =
                           ctx->backend->gemm_packed_bytes(ctx, args->b.dtype, args->cols, args->inner, args->order)};
    copy.data = tpt_allocate(copy.bytes);
    packed.b_packed = &copy;
    packed.b.data = NULL;
    tp_status status = ctx->backend->gemm_pack(ctx->compute, &args->b, args->cols, args->inner, args->order, &copy);
    if (status == TP_OK)
        status = gemm_call(ctx, &packed);
    free(copy.data);
    return status;
}

#endif
