/* The products of attention on tiles held in a worker's memory: C[row][lane] = start + the chain over inner of A(row,
 * inner) * B[inner][lane]. A's elements are broadcast, B's and C's lie in vectors, so no product needs a transposed
 * copy of another one's result. The register block differs between instruction sets; the chain of one element does not.
 *
 * Words of A and B are f32 values, or, for bf16 on sets with vdpbf16ps, pairs of neighbours along the inner dimension,
 * the earlier one in the high half. Other sets multiply bf16 as f32 words with subnormals flushed: the same bits
 * (gemm.h). */
#ifndef TPI_ATTENTION_PRODUCT_H
#define TPI_ATTENTION_PRODUCT_H

#include <stdint.h>

#include "core/ops.h"
#include "cpu/float_mode.h"
#include "cpu/simd.h"

#define TPI_ALWAYS_INLINE static inline __attribute__((always_inline))

#if TPI_ISA_LEVEL >= 2
#define TPI_PRODUCT_VECTORS 4
#else
#define TPI_PRODUCT_VECTORS 1
#endif
#define TPI_PRODUCT_ROWS 4

typedef enum tpi_words {
    TPI_WORDS_F32,     /* f32 and f16 */
    TPI_WORDS_FLUSHED, /* bf16 as f32 */
    TPI_WORDS_PAIRS    /* of bf16 */
} tpi_words;

static inline tpi_words tpi_words_of(tp_dtype dtype)
{
    return dtype != TP_DTYPE_BF16 ? TPI_WORDS_F32 : TPI_ISA_LEVEL >= 3 ? TPI_WORDS_PAIRS : TPI_WORDS_FLUSHED;
}

typedef struct tpi_product {
    tpi_words words;
    int64_t rows, vectors, inner; /* vectors of 16 lanes; inner in words */
    const float *a;
    int64_t a_stride;
    const float *b;
    int64_t b_stride;
    float *c;
    int64_t c_stride;
    const float *rescale; /* SPREAD: one factor a lane */
    float factor;         /* DOT of pairs: the result's */
} tpi_product;

typedef enum tpi_product_form {
    TPI_PRODUCT_DOT,   /* A(row, inner) = a[row * a_stride + inner], chains from +0 */
    TPI_PRODUCT_ADD,   /* the same A, chains from C */
    TPI_PRODUCT_SPREAD /* A(row, inner) = a[inner * a_stride + row], chains from C, or from C * rescale */
} tpi_product_form;

TPI_ALWAYS_INLINE vf tpi_product_step(vf left, vf right, vf sum, const bool pairs)
{
#if TPI_ISA_LEVEL >= 3
    if (pairs) {
        return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_castps_si512(left), (__m512bh)_mm512_castps_si512(right));
    }
#else
    (void)pairs;
#endif
    return vf_fma(left, right, sum);
}

/* One register block of the product, at a row and a vector. */
TPI_ALWAYS_INLINE void tpi_product_block(const tpi_product *product, int64_t row, int64_t vector, const int rows,
                                         const int vectors, const tpi_product_form form, const bool pairs)
{
    vf sum[TPI_PRODUCT_ROWS][TPI_PRODUCT_VECTORS];
    const vf scale = vf_set1(product->factor);
    float *c = product->c + row * product->c_stride + vector * 16;
    const float *b = product->b + vector * 16;
    const int64_t a_stride = product->a_stride, b_stride = product->b_stride, c_stride = product->c_stride;
    const float *a = product->a + (form == TPI_PRODUCT_SPREAD ? row : row * a_stride);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            sum[r][v] = form == TPI_PRODUCT_DOT ? vf_zero() : vf_load(c + r * c_stride + v * 16);
        }
    }
    if (form == TPI_PRODUCT_SPREAD && product->rescale != NULL) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            const vf factor = vf_load(product->rescale + (vector + v) * 16);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                sum[r][v] = vf_mul(sum[r][v], factor);
            }
        }
    }
    for (int64_t i = 0; i < product->inner; i++) {
        vf right[TPI_PRODUCT_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            right[v] = vf_load(b + v * 16);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const vf left = vf_set1(form == TPI_PRODUCT_SPREAD ? a[r] : a[r * a_stride]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) {
                sum[r][v] = tpi_product_step(left, right[v], sum[r][v], pairs);
            }
        }
        a += form == TPI_PRODUCT_SPREAD ? a_stride : 1;
        b += b_stride;
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            const vf result = form == TPI_PRODUCT_DOT && pairs ? vf_mul(sum[r][v], scale) : sum[r][v];
            vf_store(c + r * c_stride + v * 16, result);
        }
    }
}

/* All rows of some vectors. */
TPI_ALWAYS_INLINE void tpi_product_rows(const tpi_product *product, int64_t vector, const int vectors,
                                        const tpi_product_form form, const bool pairs)
{
    int64_t row = 0;
    for (; row + TPI_PRODUCT_ROWS <= product->rows; row += TPI_PRODUCT_ROWS) {
        tpi_product_block(product, row, vector, TPI_PRODUCT_ROWS, vectors, form, pairs);
    }
    for (; row < product->rows; row++) {
        tpi_product_block(product, row, vector, 1, vectors, form, pairs);
    }
}

TPI_ALWAYS_INLINE void tpi_product_all(const tpi_product *product, const tpi_product_form form, const bool pairs)
{
    int64_t vector = 0;
#if TPI_PRODUCT_VECTORS == 4
    for (; vector + 4 <= product->vectors; vector += 4) {
        tpi_product_rows(product, vector, 4, form, pairs);
    }
    for (; vector + 2 <= product->vectors; vector += 2) {
        tpi_product_rows(product, vector, 2, form, pairs);
    }
#endif
    for (; vector < product->vectors; vector++) {
        tpi_product_rows(product, vector, 1, form, pairs);
    }
}

#if TPI_ISA_LEVEL == 0 && TPI_EXACT_FMA
#include "cpu/attention_exact.h"
#else
/* Kept out of line: one copy of each form in an object file. */
static __attribute__((noinline)) void tpi_product_of_f32(const tpi_product *product, tpi_product_form form)
{
    if (form == TPI_PRODUCT_DOT) {
        tpi_product_all(product, TPI_PRODUCT_DOT, false);
    } else if (form == TPI_PRODUCT_ADD) {
        tpi_product_all(product, TPI_PRODUCT_ADD, false);
    } else {
        tpi_product_all(product, TPI_PRODUCT_SPREAD, false);
    }
}

#endif

#if TPI_ISA_LEVEL >= 3
static __attribute__((noinline)) void tpi_product_of_pairs(const tpi_product *product, tpi_product_form form)
{
    if (form == TPI_PRODUCT_DOT) {
        tpi_product_all(product, TPI_PRODUCT_DOT, true);
    } else if (form == TPI_PRODUCT_ADD) {
        tpi_product_all(product, TPI_PRODUCT_ADD, true);
    } else {
        tpi_product_all(product, TPI_PRODUCT_SPREAD, true);
    }
}
#endif

static void tpi_product_run(const tpi_product *product, tpi_product_form form)
{
#if TPI_ISA_LEVEL >= 3
    if (product->words == TPI_WORDS_PAIRS) {
        tpi_product_of_pairs(product, form);
        return;
    }
#endif
    if (product->words == TPI_WORDS_FLUSHED) {
        const tpi_float_mode before = tpi_float_mode_flush();
        tpi_product_of_f32(product, form);
        tpi_float_mode_restore(before);
        return;
    }
    tpi_product_of_f32(product, form);
}

#endif
