/* A matrix product as a layer does it: operands, sum order, packed weights, and a check against exact sums. */
#ifndef BENCH_GEMM_CASE_H
#define BENCH_GEMM_CASE_H

#include "options.h"

#include "core/ops.h"

/* By the names in bench_variant_names: what a linear layer's forward, input gradient and weight gradient are. */
typedef enum bench_variant { BENCH_NT = 0, BENCH_NN, BENCH_TN, BENCH_VARIANTS } bench_variant;

typedef struct bench_product {
    char layer[24];
    int64_t tokens, out, in; /* of the layer */
    bench_variant variant;
    bool tree; /* eight virtual ranks and their tree; else one chain */
    tp_shard_part part[3]; /* how the cut dimension is dealt out */
    int parts;
} bench_product;

/* The products of the GPT-2 layers, each in its layer's sum order: 30 of them. */
#define BENCH_PRODUCTS 64
int bench_products_preset(bench_product out[BENCH_PRODUCTS]);

/* "MxNxK,..." as products of column layers in the given variants (bits). 0 with a message if the text is wrong. */
int bench_products_parse(const char *text, unsigned variants, bench_product out[BENCH_PRODUCTS],
                         char message[BENCH_MESSAGE]);

double bench_product_flops(const bench_product *product);

/* "512x2304x768": rows, columns and inner length of the product. */
void bench_product_shape(const bench_product *product, char text[48]);

/* One product with memory of its own in one context. Operands are small whole numbers, so every sum is exact. */
typedef struct bench_gemm {
    tp_ctx *ctx;
    bench_product product;
    tp_dtype dtype;
    tpi_gemm_args args;
    tpi_inner order;
    tpi_packed packed;
    void *a, *b, *c;
    size_t a_bytes, b_bytes, c_bytes;
    tp_status status; /* of the last run */
} bench_gemm;

tp_status bench_gemm_open(bench_gemm *gemm, tp_ctx *ctx, const bench_product *product, tp_dtype dtype,
                          bool pack_in_call);
void bench_gemm_close(bench_gemm *gemm);

/* For bench_part. */
void bench_gemm_run(void *gemm);

/* Runs once from zero and compares elements, chosen by number, with their exact values: how many are wrong. */
int64_t bench_gemm_wrong(bench_gemm *gemm, int64_t elements);

#endif
