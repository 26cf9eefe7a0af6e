/* The products of attention where a fused multiply-add is emulated: operands are widened to panels, and tiles of C run
 * through the chains of exact_chain.h. Included by attention_product.h only. */
#ifndef TPI_ATTENTION_EXACT_H
#define TPI_ATTENTION_EXACT_H

#include "cpu/exact_chain.h"

#define TPI_PRODUCT_STEPS 64  /* of the inner dimension at a time */
#define TPI_PRODUCT_PANELS 4  /* of B at a time */

/* A panel of one operand, and the least exponent in it. */
typedef struct tpi_product_b {
    double wide[TPI_PRODUCT_STEPS * TPI_EXACT_COLS] __attribute__((aligned(16)));
    int least;
} tpi_product_b;

typedef struct tpi_product_a {
    double wide[TPI_PRODUCT_STEPS * TPI_EXACT_ROWS * 2] __attribute__((aligned(16)));
    int least;
} tpi_product_a;

static void tpi_product_widen_b(const float *from, int64_t stride, int steps, tpi_product_b *to)
{
    float panel[TPI_PRODUCT_STEPS * TPI_EXACT_COLS];
    for (int k = 0; k < steps; k++)
        memcpy(panel + k * TPI_EXACT_COLS, from + k * stride, TPI_EXACT_COLS * sizeof(float));
    to->least = tpi_exact_least(panel, steps * TPI_EXACT_COLS);
    tpi_exact_widen(panel, steps * TPI_EXACT_COLS, to->wide);
}

/* Rows after the last are zeros. */
static void tpi_product_widen_a(const float *from, const int64_t strides[2], int rows, int steps, tpi_product_a *to)
{
    float panel[TPI_PRODUCT_STEPS * TPI_EXACT_ROWS] = {0};
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < steps; k++)
            panel[k * TPI_EXACT_ROWS + r] = from[r * strides[0] + k * strides[1]];
    to->least = tpi_exact_least(panel, steps * TPI_EXACT_ROWS);
    tpi_exact_widen_twice(panel, steps * TPI_EXACT_ROWS, to->wide);
}

/* Adds one panel of A times one of B to a tile of C. */
static void tpi_product_add(const tpi_product *product, const tpi_product_a *a, const tpi_product_b *b, int steps,
                            int rows, float *c)
{
    const tpi_exact_stretch panels = {.steps = steps, .a = (const tpi_pair *)a->wide, .b = (const tpi_pair *)b->wide};
    double tile[TPI_EXACT_TILE] __attribute__((aligned(16))) = {0};
    for (int r = 0; r < rows; r++)
        tpi_exact_widen(c + r * product->c_stride, TPI_EXACT_COLS, tile + r * TPI_EXACT_COLS);
    tpi_exact_way way = TPI_EXACT_NARROW;
    if (product->words != TPI_WORDS_FLUSHED)
        way = tpi_exact_fits(a->least, b->least) && tpi_exact_sums_fit(tile) ? TPI_EXACT_MIDDLE : TPI_EXACT_ODD;
    tpi_exact_run(&panels, way, rows, tile);
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < TPI_EXACT_COLS; j++)
            c[r * product->c_stride + j] = (float)tile[r * TPI_EXACT_COLS + j];
}

/* All rows and some vectors, over some of the inner dimension. */
static void tpi_product_part(const tpi_product *product, tpi_product_form form, int64_t vector, int vectors,
                             int64_t inner, int steps)
{
    const bool spread = form == TPI_PRODUCT_SPREAD;
    const int64_t strides[2] = {spread ? 1 : product->a_stride, spread ? product->a_stride : 1};
    tpi_product_b b[TPI_PRODUCT_PANELS];
    tpi_product_a a;
    for (int v = 0; v < vectors; v++)
        tpi_product_widen_b(product->b + inner * product->b_stride + (vector + v) * TPI_EXACT_COLS, product->b_stride,
                            steps, &b[v]);
    for (int64_t row = 0; row < product->rows; row += TPI_EXACT_ROWS) {
        const int rows = product->rows - row < TPI_EXACT_ROWS ? (int)(product->rows - row) : TPI_EXACT_ROWS;
        tpi_product_widen_a(product->a + row * strides[0] + inner * strides[1], strides, rows, steps, &a);
        for (int v = 0; v < vectors; v++)
            tpi_product_add(product, &a, &b[v], steps, rows,
                            product->c + row * product->c_stride + (vector + v) * TPI_EXACT_COLS);
    }
}

/* What the chains start from: C, +0, or C times a factor. */
static void tpi_product_start(const tpi_product *product, tpi_product_form form)
{
    for (int64_t r = 0; r < product->rows; r++) {
        float *c = product->c + r * product->c_stride;
        for (int64_t v = 0; v < product->vectors; v++, c += TPI_LANES) {
            if (form == TPI_PRODUCT_DOT)
                vf_store(c, vf_zero());
            else if (form == TPI_PRODUCT_SPREAD && product->rescale != NULL)
                vf_store(c, vf_mul(vf_load(c), vf_load(product->rescale + v * TPI_LANES)));
        }
    }
}

static __attribute__((noinline)) void tpi_product_of_f32(const tpi_product *product, tpi_product_form form)
{
    tpi_product_start(product, form);
    for (int64_t vector = 0; vector < product->vectors; vector += TPI_PRODUCT_PANELS) {
        const int64_t vectors = product->vectors - vector;
        for (int64_t inner = 0; inner < product->inner; inner += TPI_PRODUCT_STEPS) {
            const int64_t steps = product->inner - inner;
            tpi_product_part(product, form, vector, vectors < TPI_PRODUCT_PANELS ? (int)vectors : TPI_PRODUCT_PANELS,
                             inner, steps < TPI_PRODUCT_STEPS ? (int)steps : TPI_PRODUCT_STEPS);
        }
    }
}

#endif
