/* The products of attention on tiles held in a worker's memory: C[row][lane] = start + the chain over inner of A(row,
 * inner) * B[inner][lane]. A's elements are broadcast, B's and C's lie in vectors, so no product needs a transposed
 * copy of another one's result. The register block differs between instruction sets; the chain of one element does not.
 */
#ifndef TPI_ATTENTION_PRODUCT_H
#define TPI_ATTENTION_PRODUCT_H

#include <stdint.h>

#include "cpu/simd.h"

#define TPI_ALWAYS_INLINE static inline __attribute__((always_inline))

#if TPI_ISA_LEVEL >= 2
#define TPI_PRODUCT_VECTORS 4
#else
#define TPI_PRODUCT_VECTORS 1
#endif
#define TPI_PRODUCT_ROWS 4

typedef struct tpi_product {
    int64_t rows, vectors, inner; /* vectors of 16 lanes */
    const float *a;
    int64_t a_stride;
    const float *b;
    int64_t b_stride;
    float *c;
    int64_t c_stride;
    const float *rescale; /* one factor a lane */
} tpi_product;

typedef enum tpi_product_form {
    TPI_PRODUCT_DOT,   /* A(row, inner) = a[row * a_stride + inner], chains from +0 */
    TPI_PRODUCT_ADD,   /* the same A, chains from C */
    TPI_PRODUCT_SPREAD /* A(row, inner) = a[inner * a_stride + row], chains from C, or from C * rescale */
} tpi_product_form;

/* One register block of the product, at a row and a vector. */
TPI_ALWAYS_INLINE void tpi_product_block(const tpi_product *product, int64_t row, int64_t vector, const int rows,
                                         const int vectors, const tpi_product_form form)
{
    vf sum[TPI_PRODUCT_ROWS][TPI_PRODUCT_VECTORS];
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
                sum[r][v] = vf_fma(left, right[v], sum[r][v]);
            }
        }
        a += form == TPI_PRODUCT_SPREAD ? a_stride : 1;
        b += b_stride;
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            vf_store(c + r * c_stride + v * 16, sum[r][v]);
        }
    }
}

/* All rows of some vectors. */
TPI_ALWAYS_INLINE void tpi_product_rows(const tpi_product *product, int64_t vector, const int vectors,
                                        const tpi_product_form form)
{
    int64_t row = 0;
    for (; row + TPI_PRODUCT_ROWS <= product->rows; row += TPI_PRODUCT_ROWS) {
        tpi_product_block(product, row, vector, TPI_PRODUCT_ROWS, vectors, form);
    }
    for (; row < product->rows; row++) {
        tpi_product_block(product, row, vector, 1, vectors, form);
    }
}

TPI_ALWAYS_INLINE void tpi_product_all(const tpi_product *product, const tpi_product_form form)
{
    int64_t vector = 0;
#if TPI_PRODUCT_VECTORS == 4
    for (; vector + 4 <= product->vectors; vector += 4) {
        tpi_product_rows(product, vector, 4, form);
    }
    for (; vector + 2 <= product->vectors; vector += 2) {
        tpi_product_rows(product, vector, 2, form);
    }
#endif
    for (; vector < product->vectors; vector++) {
        tpi_product_rows(product, vector, 1, form);
    }
}

/* Kept out of line: one copy of each form in an object file. */
static __attribute__((noinline)) void tpi_product_dot(const tpi_product *product)
{
    tpi_product_all(product, TPI_PRODUCT_DOT);
}

static __attribute__((noinline, unused)) void tpi_product_add(const tpi_product *product)
{
    tpi_product_all(product, TPI_PRODUCT_ADD);
}

static __attribute__((noinline)) void tpi_product_spread(const tpi_product *product)
{
    tpi_product_all(product, TPI_PRODUCT_SPREAD);
}

#endif
