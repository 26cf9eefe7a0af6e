/* The layers behind one table. */
#include "layer_case.h"

#include <stddef.h>

static tp_pass *pass_of(bench_layer *layer)
{
    return &layer->pass;
}

static tp_io forward_io(const bench_layer *layer)
{
    return (tp_io){.in = layer->x.tensor, .out = layer->y.tensor};
}

static tp_io backward_io(const bench_layer *layer)
{
    return (tp_io){.in = layer->dy.tensor, .out = layer->dx.tensor};
}

/* ---- linear ------------------------------------------------------------------------------------------------------ */

static tp_status linear_create(tp_ctx *ctx, const bench_layer_shape *shape, void **out)
{
    tp_linear_desc desc = {.name = "linear",
                           .kind = shape->kind,
                           .in_features = shape->kind == TP_LINEAR_ROW ? shape->ffn : shape->hidden,
                           .out_features = shape->kind == TP_LINEAR_ROW ? shape->hidden : shape->ffn,
                           .dtype = shape->dtype,
                           .bias = shape->bias,
                           .sequence_parallel = shape->sequence_parallel,
                           .overlap = shape->overlap,
                           .chunks = shape->chunks,
                           .dropout = shape->kind == TP_LINEAR_COLUMN ? 0 : shape->dropout};
    tp_linear *layer = NULL;
    tp_status status = tp_linear_create(ctx, &desc, &layer);
    *out = layer;
    return status;
}

static void linear_destroy(void *layer)
{
    tp_linear_destroy(layer);
}

static int linear_params(void *layer, tp_param **out, int capacity)
{
    return tp_linear_params(layer, out, capacity);
}

static size_t linear_saved_bytes(const void *layer, const tp_pass *pass)
{
    (void)layer;
    (void)pass;
    return 0;
}

static tp_status linear_forward(bench_layer *layer)
{
    tp_io io = forward_io(layer);
    return tp_linear_forward(layer->ctx, layer->object, pass_of(layer), &io, &layer->saved.linear);
}

static tp_status linear_backward(bench_layer *layer)
{
    tp_io io = backward_io(layer);
    return tp_linear_backward(layer->ctx, layer->object, pass_of(layer), &io, &layer->saved.linear);
}

/* ---- mlp --------------------------------------------------------------------------------------------------------- */

static tp_mlp_desc mlp_desc(const bench_layer_shape *shape)
{
    return (tp_mlp_desc){.name = "mlp",
                         .hidden = shape->hidden,
                         .ffn = shape->ffn,
                         .activation = shape->activation,
                         .dtype = shape->dtype,
                         .bias = shape->bias,
                         .output_dropout = shape->dropout,
                         .sequence_parallel = shape->sequence_parallel,
                         .overlap = shape->overlap,
                         .chunks = shape->chunks};
}

static tp_status mlp_create(tp_ctx *ctx, const bench_layer_shape *shape, void **out)
{
    tp_mlp_desc desc = mlp_desc(shape);
    tp_mlp *layer = NULL;
    tp_status status = tp_mlp_create(ctx, &desc, &layer);
    *out = layer;
    return status;
}

static void mlp_destroy(void *layer)
{
    tp_mlp_destroy(layer);
}

static int mlp_params(void *layer, tp_param **out, int capacity)
{
    return tp_mlp_params(layer, out, capacity);
}

static size_t mlp_saved_bytes(const void *layer, const tp_pass *pass)
{
    return tp_mlp_saved_bytes(layer, pass);
}

static tp_status mlp_forward(bench_layer *layer)
{
    tp_io io = forward_io(layer);
    layer->saved.mlp = (tp_mlp_saved){.memory = layer->memory, .bytes = layer->bytes};
    return tp_mlp_forward(layer->ctx, layer->object, pass_of(layer), &io, &layer->saved.mlp);
}

static tp_status mlp_backward(bench_layer *layer)
{
    tp_io io = backward_io(layer);
    return tp_mlp_backward(layer->ctx, layer->object, pass_of(layer), &io, &layer->saved.mlp);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

static tp_attention_desc attention_desc(const bench_layer_shape *shape)
{
    return (tp_attention_desc){.name = "attention",
                               .hidden = shape->hidden,
                               .heads = shape->heads,
                               .kv_heads = shape->kv_heads,
                               .head_dim = shape->head_dim,
                               .dtype = shape->dtype,
                               .bias = shape->bias,
                               .window = shape->window,
                               .rope_theta = shape->rope_theta,
                               .probability_dropout = shape->dropout,
                               .output_dropout = shape->dropout,
                               .sequence_parallel = shape->sequence_parallel,
                         .overlap = shape->overlap,
                         .chunks = shape->chunks};
}

static tp_status attention_create(tp_ctx *ctx, const bench_layer_shape *shape, void **out)
{
    tp_attention_desc desc = attention_desc(shape);
    tp_attention *layer = NULL;
    tp_status status = tp_attention_create(ctx, &desc, &layer);
    *out = layer;
    return status;
}

static void attention_destroy(void *layer)
{
    tp_attention_destroy(layer);
}

static int attention_params(void *layer, tp_param **out, int capacity)
{
    return tp_attention_params(layer, out, capacity);
}

static size_t attention_saved_bytes(const void *layer, const tp_pass *pass)
{
    return tp_attention_saved_bytes(layer, pass);
}

static tp_status attention_forward(bench_layer *layer)
{
    tp_io io = forward_io(layer);
    layer->saved.attention = (tp_attention_saved){.memory = layer->memory, .bytes = layer->bytes};
    return tp_attention_forward(layer->ctx, layer->object, pass_of(layer), &io, &layer->saved.attention);
}

static tp_status attention_backward(bench_layer *layer)
{
    tp_io io = backward_io(layer);
    return tp_attention_backward(layer->ctx, layer->object, pass_of(layer), &io, &layer->saved.attention);
}

/* ---- norm -------------------------------------------------------------------------------------------------------- */

static tp_status norm_create(tp_ctx *ctx, const bench_layer_shape *shape, void **out)
{
    tp_norm_desc desc = {.name = "norm",
                         .kind = shape->family == TP_MODEL_LLAMA ? TP_NORM_RMS : TP_NORM_LAYER,
                         .features = shape->hidden,
                         .dtype = shape->dtype,
                         .sequence_parallel = shape->sequence_parallel};
    tp_norm *layer = NULL;
    tp_status status = tp_norm_create(ctx, &desc, &layer);
    *out = layer;
    return status;
}

static void norm_destroy(void *layer)
{
    tp_norm_destroy(layer);
}

static int norm_params(void *layer, tp_param **out, int capacity)
{
    return tp_norm_params(layer, out, capacity);
}

static size_t norm_saved_bytes(const void *layer, const tp_pass *pass)
{
    return tp_norm_saved_bytes(layer, pass);
}

static tp_status norm_forward(bench_layer *layer)
{
    tp_io io = forward_io(layer);
    layer->saved.norm = (tp_norm_saved){.memory = layer->memory, .bytes = layer->bytes};
    return tp_norm_forward(layer->ctx, layer->object, pass_of(layer), &io, &layer->saved.norm);
}

static tp_status norm_backward(bench_layer *layer)
{
    tp_io io = backward_io(layer);
    return tp_norm_backward(layer->ctx, layer->object, pass_of(layer), &io, &layer->saved.norm);
}

/* ---- block ------------------------------------------------------------------------------------------------------- */

static tp_status block_create(tp_ctx *ctx, const bench_layer_shape *shape, void **out)
{
    tp_block_desc desc = {.name = "block",
                          .hidden = shape->hidden,
                          .dtype = shape->dtype,
                          .sequence_parallel = shape->sequence_parallel,
                          .overlap = shape->overlap,
                          .chunks = shape->chunks,
                          .norm = shape->family == TP_MODEL_LLAMA ? TP_NORM_RMS : TP_NORM_LAYER,
                          .attention = attention_desc(shape),
                          .mlp = mlp_desc(shape)};
    desc.attention.name = NULL;
    desc.mlp.name = NULL;
    tp_block *layer = NULL;
    tp_status status = tp_block_create(ctx, &desc, &layer);
    *out = layer;
    return status;
}

static void block_destroy(void *layer)
{
    tp_block_destroy(layer);
}

static int block_params(void *layer, tp_param **out, int capacity)
{
    return tp_block_params(layer, out, capacity);
}

static size_t block_saved_bytes(const void *layer, const tp_pass *pass)
{
    return tp_block_saved_bytes(layer, pass);
}

static tp_status block_forward(bench_layer *layer)
{
    tp_io io = forward_io(layer);
    layer->saved.block = (tp_block_saved){.memory = layer->memory, .bytes = layer->bytes};
    return tp_block_forward(layer->ctx, layer->object, pass_of(layer), &io, &layer->saved.block);
}

static tp_status block_backward(bench_layer *layer)
{
    tp_io io = backward_io(layer);
    return tp_block_backward(layer->ctx, layer->object, pass_of(layer), &io, &layer->saved.block);
}

const bench_layer_table bench_layer_tables[] = {
    {BENCH_LINEAR, linear_create, linear_destroy, linear_params, linear_saved_bytes, linear_forward, linear_backward},
    {BENCH_MLP, mlp_create, mlp_destroy, mlp_params, mlp_saved_bytes, mlp_forward, mlp_backward},
    {BENCH_ATTENTION, attention_create, attention_destroy, attention_params, attention_saved_bytes, attention_forward,
     attention_backward},
    {BENCH_NORM, norm_create, norm_destroy, norm_params, norm_saved_bytes, norm_forward, norm_backward},
    {BENCH_BLOCK, block_create, block_destroy, block_params, block_saved_bytes, block_forward, block_backward},
    {0, NULL, NULL, NULL, NULL, NULL, NULL},
};
