/* A layer on one rank with its buffers: forward, backward, and comparison of everything it makes with what another
 * degree made. */
#ifndef BENCH_LAYER_CASE_H
#define BENCH_LAYER_CASE_H

#include "options.h"
#include "table.h"

typedef struct bench_layer_shape {
    unsigned command; /* BENCH_LINEAR, ... */
    tp_linear_kind kind;
    tp_model_family family; /* norms, biases and positions of a block */
    int64_t hidden, ffn, heads, kv_heads, head_dim, window;
    tp_activation activation;
    bool bias, sequence_parallel;
    tp_overlap overlap;
    int chunks;
    double rope_theta;
    float dropout;
    tp_dtype dtype;
    int64_t batch, sequence;
    bool any_values; /* for timing only: weights and inputs are a short pattern, not random numbers, which take longer
                      * to make */
} bench_layer_shape;

struct bench_layer;

/* One kind of layer. */
typedef struct bench_layer_table {
    unsigned command;
    tp_status (*create)(tp_ctx *ctx, const bench_layer_shape *shape, void **out);
    void (*destroy)(void *layer);
    int (*params)(void *layer, tp_param **out, int capacity);
    size_t (*saved_bytes)(const void *layer, const tp_pass *pass);
    tp_status (*forward)(struct bench_layer *layer);
    tp_status (*backward)(struct bench_layer *layer);
} bench_layer_table;

extern const bench_layer_table bench_layer_tables[];

/* A rank's part of a global [tokens, cols] matrix. */
typedef struct bench_part_of {
    tp_tensor tensor;
    size_t bytes;
    tp_range rows, cols;
    int64_t all_cols;
    bool replicated; /* every rank holds the same */
} bench_part_of;

#define BENCH_LAYER_PARAMS 16

typedef struct bench_layer {
    const bench_layer_table *table;
    bench_layer_shape shape;
    tp_ctx *ctx;
    void *object;
    tp_pass pass;
    bench_part_of x, y, dy, dx;
    tp_param *param[BENCH_LAYER_PARAMS];
    int params;
    void *memory;
    size_t bytes;
    union {
        tp_linear_saved linear;
        tp_mlp_saved mlp;
        tp_attention_saved attention;
        tp_norm_saved norm;
        tp_block_saved block;
    } saved;
} bench_layer;

/* What the first degree made, as f32; later ones are compared with it. */
typedef struct bench_layer_reference {
    bool ready;
    float *y, *dx;
    float *grad[BENCH_LAYER_PARAMS];
} bench_layer_reference;

tp_status bench_layer_open(bench_layer *layer, tp_ctx *ctx, const bench_layer_shape *shape);
void bench_layer_close(bench_layer *layer);

/* The same layer on another number of tokens, with new buffers. */
tp_status bench_layer_reshape(bench_layer *layer, int64_t batch, int64_t sequence);

/* For bench_team_measure. */
tp_status bench_layer_forward(void *layer);
tp_status bench_layer_backward(void *layer);

/* Collective. One clean forward and backward; becomes the reference (allocated by bench_layer_reference_open), or is
 * compared with it: how many values of this rank differ. */
bool bench_layer_reference_open(bench_layer_reference *reference, const bench_layer *layer);
void bench_layer_reference_close(bench_layer_reference *reference);
tp_status bench_layer_compare(bench_layer *layer, bench_layer_reference *reference, int64_t *different);
/* The same, and the worst difference of a tensor from the reference's, by norms: of what another device made. */
tp_status bench_layer_hold(bench_layer *layer, bench_layer_reference *reference, int64_t *different, double *worst);

/* "4x128 tokens, column 512x2048", at most BENCH_CELL_TEXT bytes. */
void bench_layer_shape_text(const bench_layer_shape *shape, char text[BENCH_CELL_TEXT]);

/* Operations of matrix products and attention (halved where causal), of the whole layer: forward; backward is twice
 * that. */
double bench_layer_flops(const bench_layer_shape *shape);

#endif
