/* Adapters: one set of functions a layer, all of one shape. The saved struct of the last forward is kept beside the
 * layer. */
#include "layer_tables.h"

#include <stdlib.h>

#include "data.h"

typedef struct linear_object {
    tp_linear *layer;
    tp_linear_saved saved;
} linear_object;

static tp_status linear_create(tp_ctx *ctx, const void *desc, const tpt_layout *layout, void **out)
{
    tp_linear_desc own = *(const tp_linear_desc *)desc;
    own.sequence_parallel = layout->sequence_parallel;
    own.overlap = layout->overlap;
    own.chunks = layout->chunks;
    linear_object *object = calloc(1, sizeof *object);
    *out = object;
    return tp_linear_create(ctx, &own, &object->layer);
}

static void linear_destroy(void *object)
{
    tp_linear_destroy(((linear_object *)object)->layer);
    free(object);
}

static int linear_params(void *object, tp_param **out, int capacity)
{
    return tp_linear_params(((linear_object *)object)->layer, out, capacity);
}

static size_t linear_saved_bytes(void *object, const tp_pass *pass)
{
    (void)object;
    (void)pass;
    return 0;
}

static tp_status linear_forward(tp_ctx *ctx, void *object, const tp_pass *pass, const tp_io *io, void *memory,
                                size_t bytes, bool save)
{
    linear_object *o = object;
    (void)memory;
    (void)bytes;
    return tp_linear_forward(ctx, o->layer, pass, io, save ? &o->saved : NULL);
}

static tp_status linear_backward(tp_ctx *ctx, void *object, const tp_pass *pass, const tp_io *io)
{
    linear_object *o = object;
    return tp_linear_backward(ctx, o->layer, pass, io, &o->saved);
}

static tp_status linear_backward_split(tp_ctx *ctx, void *object, const tp_pass *pass, const tp_io *io)
{
    linear_object *o = object;
    tp_linear_delayed delayed = {.bytes = tp_linear_delayed_bytes(o->layer, pass)};
    tp_status status = tp_ctx_allocate(ctx, TP_MEMORY_OTHER, delayed.bytes, &delayed.memory);
    if (status != TP_OK)
        return status;
    void *memory = delayed.memory;
    status = tp_linear_backward_input(ctx, o->layer, pass, io, &delayed);
    if (status == TP_OK)
        status = tp_linear_backward_weight(ctx, o->layer, pass, &o->saved, &delayed);
    tp_status waited = tp_ctx_synchronize(ctx);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, memory, delayed.bytes);
    return status != TP_OK ? status : waited;
}

const tpt_layer_table tpt_linear_table = {
    .create = linear_create,
    .destroy = linear_destroy,
    .params = linear_params,
    .saved_bytes = linear_saved_bytes,
    .forward = linear_forward,
    .backward = linear_backward,
    .backward_split = linear_backward_split,
};

typedef struct norm_object {
    tp_norm *layer;
    tp_norm_saved saved;
} norm_object;

static tp_status norm_create(tp_ctx *ctx, const void *desc, const tpt_layout *layout, void **out)
{
    tp_norm_desc own = *(const tp_norm_desc *)desc;
    own.sequence_parallel = layout->sequence_parallel;
    norm_object *object = calloc(1, sizeof *object);
    *out = object;
    return tp_norm_create(ctx, &own, &object->layer);
}

static void norm_destroy(void *object)
{
    tp_norm_destroy(((norm_object *)object)->layer);
    free(object);
}

static int norm_params(void *object, tp_param **out, int capacity)
{
    return tp_norm_params(((norm_object *)object)->layer, out, capacity);
}

static size_t norm_saved_bytes(void *object, const tp_pass *pass)
{
    return tp_norm_saved_bytes(((norm_object *)object)->layer, pass);
}

static tp_status norm_forward(tp_ctx *ctx, void *object, const tp_pass *pass, const tp_io *io, void *memory,
                              size_t bytes, bool save)
{
    norm_object *o = object;
    o->saved = (tp_norm_saved){.memory = memory, .bytes = bytes};
    return tp_norm_forward(ctx, o->layer, pass, io, save ? &o->saved : NULL);
}

static tp_status norm_backward(tp_ctx *ctx, void *object, const tp_pass *pass, const tp_io *io)
{
    norm_object *o = object;
    return tp_norm_backward(ctx, o->layer, pass, io, &o->saved);
}

static tp_status norm_backward_split(tp_ctx *ctx, void *object, const tp_pass *pass, const tp_io *io)
{
    norm_object *o = object;
    tp_norm_delayed delayed;
    tp_status status = tp_norm_backward_input(ctx, o->layer, pass, io, &o->saved, &delayed);
    return status != TP_OK ? status : tp_norm_backward_weight(ctx, o->layer, pass, &o->saved, &delayed);
}

const tpt_layer_table tpt_norm_table = {
    .create = norm_create,
    .destroy = norm_destroy,
    .params = norm_params,
    .saved_bytes = norm_saved_bytes,
    .forward = norm_forward,
    .backward = norm_backward,
    .backward_split = norm_backward_split,
};

typedef struct mlp_object {
    tp_mlp *layer;
    tp_mlp_saved saved;
} mlp_object;

static tp_status mlp_create(tp_ctx *ctx, const void *desc, const tpt_layout *layout, void **out)
{
    tp_mlp_desc own = *(const tp_mlp_desc *)desc;
    own.sequence_parallel = layout->sequence_parallel;
    own.overlap = layout->overlap;
    own.chunks = layout->chunks;
    mlp_object *object = calloc(1, sizeof *object);
    *out = object;
    return tp_mlp_create(ctx, &own, &object->layer);
}

static void mlp_destroy(void *object)
{
    tp_mlp_destroy(((mlp_object *)object)->layer);
    free(object);
}

static int mlp_params(void *object, tp_param **out, int capacity)
{
    return tp_mlp_params(((mlp_object *)object)->layer, out, capacity);
}

static size_t mlp_saved_bytes(void *object, const tp_pass *pass)
{
    return tp_mlp_saved_bytes(((mlp_object *)object)->layer, pass);
}

static tp_status mlp_forward(tp_ctx *ctx, void *object, const tp_pass *pass, const tp_io *io, void *memory,
                             size_t bytes, bool save)
{
    mlp_object *o = object;
    o->saved = (tp_mlp_saved){.memory = memory, .bytes = bytes};
    return tp_mlp_forward(ctx, o->layer, pass, io, save ? &o->saved : NULL);
}

static tp_status mlp_backward(tp_ctx *ctx, void *object, const tp_pass *pass, const tp_io *io)
{
    mlp_object *o = object;
    return tp_mlp_backward(ctx, o->layer, pass, io, &o->saved);
}

static tp_status mlp_backward_split(tp_ctx *ctx, void *object, const tp_pass *pass, const tp_io *io)
{
    mlp_object *o = object;
    tp_mlp_delayed delayed = {.bytes = tp_mlp_delayed_bytes(o->layer, pass)};
    tp_status status = tp_ctx_allocate(ctx, TP_MEMORY_OTHER, delayed.bytes, &delayed.memory);
    if (status != TP_OK)
        return status;
    void *memory = delayed.memory;
    status = tp_mlp_backward_input(ctx, o->layer, pass, io, &o->saved, &delayed);
    if (status == TP_OK)
        status = tp_mlp_backward_weight(ctx, o->layer, pass, &o->saved, &delayed);
    tp_status waited = tp_ctx_synchronize(ctx);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, memory, delayed.bytes);
    return status != TP_OK ? status : waited;
}

const tpt_layer_table tpt_mlp_table = {
    .create = mlp_create,
    .destroy = mlp_destroy,
    .params = mlp_params,
    .saved_bytes = mlp_saved_bytes,
    .forward = mlp_forward,
    .backward = mlp_backward,
    .backward_split = mlp_backward_split,
};

typedef struct attention_object {
    tp_attention *layer;
    tp_attention_saved saved;
} attention_object;

static tp_status attention_create(tp_ctx *ctx, const void *desc, const tpt_layout *layout, void **out)
{
    tp_attention_desc own = *(const tp_attention_desc *)desc;
    own.sequence_parallel = layout->sequence_parallel;
    own.overlap = layout->overlap;
    own.chunks = layout->chunks;
    attention_object *object = calloc(1, sizeof *object);
    *out = object;
    return tp_attention_create(ctx, &own, &object->layer);
}

static void attention_destroy(void *object)
{
    tp_attention_destroy(((attention_object *)object)->layer);
    free(object);
}

static int attention_params(void *object, tp_param **out, int capacity)
{
    return tp_attention_params(((attention_object *)object)->layer, out, capacity);
}

static size_t attention_saved_bytes(void *object, const tp_pass *pass)
{
    return tp_attention_saved_bytes(((attention_object *)object)->layer, pass);
}

static tp_status attention_forward(tp_ctx *ctx, void *object, const tp_pass *pass, const tp_io *io, void *memory,
                                   size_t bytes, bool save)
{
    attention_object *o = object;
    o->saved = (tp_attention_saved){.memory = memory, .bytes = bytes};
    return tp_attention_forward(ctx, o->layer, pass, io, save ? &o->saved : NULL);
}

static tp_status attention_backward(tp_ctx *ctx, void *object, const tp_pass *pass, const tp_io *io)
{
    attention_object *o = object;
    return tp_attention_backward(ctx, o->layer, pass, io, &o->saved);
}

static tp_status attention_backward_split(tp_ctx *ctx, void *object, const tp_pass *pass, const tp_io *io)
{
    attention_object *o = object;
    tp_attention_delayed delayed = {.bytes = tp_attention_delayed_bytes(o->layer, pass)};
    tp_status status = tp_ctx_allocate(ctx, TP_MEMORY_OTHER, delayed.bytes, &delayed.memory);
    if (status != TP_OK)
        return status;
    void *memory = delayed.memory;
    status = tp_attention_backward_input(ctx, o->layer, pass, io, &o->saved, &delayed);
    if (status == TP_OK)
        status = tp_attention_backward_weight(ctx, o->layer, pass, &o->saved, &delayed);
    tp_status waited = tp_ctx_synchronize(ctx);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, memory, delayed.bytes);
    return status != TP_OK ? status : waited;
}

const tpt_layer_table tpt_attention_table = {
    .create = attention_create,
    .destroy = attention_destroy,
    .params = attention_params,
    .saved_bytes = attention_saved_bytes,
    .forward = attention_forward,
    .backward = attention_backward,
    .backward_split = attention_backward_split,
};

typedef struct block_object {
    tp_block *layer;
    tp_block_saved saved;
} block_object;

static tp_status block_create(tp_ctx *ctx, const void *desc, const tpt_layout *layout, void **out)
{
    tp_block_desc own = *(const tp_block_desc *)desc;
    own.sequence_parallel = layout->sequence_parallel;
    own.overlap = layout->overlap;
    own.chunks = layout->chunks;
    block_object *object = calloc(1, sizeof *object);
    *out = object;
    return tp_block_create(ctx, &own, &object->layer);
}

static void block_destroy(void *object)
{
    tp_block_destroy(((block_object *)object)->layer);
    free(object);
}

static int block_params(void *object, tp_param **out, int capacity)
{
    return tp_block_params(((block_object *)object)->layer, out, capacity);
}

static size_t block_saved_bytes(void *object, const tp_pass *pass)
{
    return tp_block_saved_bytes(((block_object *)object)->layer, pass);
}

static tp_status block_forward(tp_ctx *ctx, void *object, const tp_pass *pass, const tp_io *io, void *memory,
                               size_t bytes, bool save)
{
    block_object *o = object;
    o->saved = (tp_block_saved){.memory = memory, .bytes = bytes};
    return tp_block_forward(ctx, o->layer, pass, io, save ? &o->saved : NULL);
}

static tp_status block_backward(tp_ctx *ctx, void *object, const tp_pass *pass, const tp_io *io)
{
    block_object *o = object;
    return tp_block_backward(ctx, o->layer, pass, io, &o->saved);
}

static tp_status block_backward_split(tp_ctx *ctx, void *object, const tp_pass *pass, const tp_io *io)
{
    block_object *o = object;
    tp_block_delayed delayed = {.bytes = tp_block_delayed_bytes(o->layer, pass)};
    tp_status status = tp_ctx_allocate(ctx, TP_MEMORY_OTHER, delayed.bytes, &delayed.memory);
    if (status != TP_OK)
        return status;
    void *memory = delayed.memory;
    status = tp_block_backward_input(ctx, o->layer, pass, io, &o->saved, &delayed);
    if (status == TP_OK)
        status = tp_block_backward_weight(ctx, o->layer, pass, &o->saved, &delayed);
    tp_status waited = tp_ctx_synchronize(ctx);
    tp_ctx_release(ctx, TP_MEMORY_OTHER, memory, delayed.bytes);
    return status != TP_OK ? status : waited;
}

const tpt_layer_table tpt_block_table = {
    .create = block_create,
    .destroy = block_destroy,
    .params = block_params,
    .saved_bytes = block_saved_bytes,
    .forward = block_forward,
    .backward = block_backward,
    .backward_split = block_backward_split,
};
