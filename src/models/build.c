/* GPT-2 and Llama as lists of modules. */
#include "models/build.h"

#include <math.h>
#include <stdio.h>

#include "comm/table.h"
#include "core/context.h"
#include "layers/layer.h"
#include "models/shape.h"

static const float init_std = 0.02f;

typedef struct building {
    tp_ctx *ctx;
    tp_model_desc desc; /* resolved */
    float *total;
    int capacity, count;
    tp_module *modules;
} building;

static tp_status add_embedding(building *b)
{
    const tp_model_desc *desc = &b->desc;
    tp_embedding_desc embedding = {.name = "wte",
                                   .vocabulary = desc->vocabulary,
                                   .features = desc->hidden,
                                   .positions = desc->family == TP_MODEL_GPT2 ? desc->positions : 0,
                                   .dtype = desc->dtype,
                                   .dropout = desc->dropout,
                                   .sequence_parallel = desc->sequence_parallel,
                                   .tied = desc->tied > 0,
                                   .init_std = init_std,
                                   .position_init_std = 0.01f,
                                   .site = TPI_SITE_EMBEDDING};
    TPI_TRY(tp_module_embedding(b->ctx, &embedding, &b->modules[b->count]));
    b->count++;
    return TP_OK;
}

/* Projections into the residual stream start smaller, so that its variance doesn't grow with depth (Radford et al.
 * 2019). */
static tp_block_desc block_desc(const tp_model_desc *desc, int64_t index, const char *name)
{
    bool gpt2 = desc->family == TP_MODEL_GPT2;
    float residual_std = init_std / sqrtf(2.0f * (float)desc->layers);
    return (tp_block_desc){.name = name,
                           .hidden = desc->hidden,
                           .dtype = desc->dtype,
                           .sequence_parallel = desc->sequence_parallel,
                           .overlap = desc->overlap,
                           .chunks = desc->chunks,
                           .layer = (uint32_t)index + 1, /* 0 is the embedding */
                           .place = TP_NORM_PRE,
                           .norm = gpt2 ? TP_NORM_LAYER : TP_NORM_RMS,
                           .norm_epsilon = desc->norm_epsilon,
                           .attention = {.heads = desc->heads,
                                         .kv_heads = desc->kv_heads,
                                         .head_dim = desc->head_dim,
                                         .bias = gpt2,
                                         .mask = TP_MASK_CAUSAL,
                                         .rope_theta = desc->rope_theta,
                                         .probability_dropout = desc->dropout,
                                         .output_dropout = desc->dropout,
                                         .init_std = init_std,
                                         .proj_init_std = residual_std},
                           .mlp = {.ffn = desc->ffn,
                                   .activation = desc->activation,
                                   .bias = gpt2,
                                   .output_dropout = desc->dropout,
                                   .init_std = init_std,
                                   .down_init_std = residual_std}};
}

static tp_status add_blocks(building *b)
{
    for (int64_t i = 0; i < b->desc.layers; i++) {
        char name[32];
        snprintf(name, sizeof name, "h.%d", (int)i);
        tp_block_desc block = block_desc(&b->desc, i, name);
        TPI_TRY(tp_module_block(b->ctx, &block, &b->modules[b->count]));
        b->count++;
    }
    return TP_OK;
}

static tp_status add_norm(building *b)
{
    const tp_model_desc *desc = &b->desc;
    tp_norm_desc norm = {.name = "norm",
                         .kind = desc->family == TP_MODEL_GPT2 ? TP_NORM_LAYER : TP_NORM_RMS,
                         .features = desc->hidden,
                         .dtype = desc->dtype,
                         .epsilon = desc->norm_epsilon,
                         .sequence_parallel = desc->sequence_parallel};
    TPI_TRY(tp_module_norm(b->ctx, &norm, &b->modules[b->count]));
    b->count++;
    return TP_OK;
}

static tp_status add_head(building *b)
{
    const tp_model_desc *desc = &b->desc;
    tp_linear_desc linear = {.name = "head",
                             .kind = TP_LINEAR_COLUMN,
                             .in_features = desc->hidden,
                             .out_features = desc->vocabulary,
                             .dtype = desc->dtype,
                             .sequence_parallel = desc->sequence_parallel,
                             .overlap = desc->overlap,
                             .chunks = desc->chunks,
                             .init_std = init_std,
                             .weight = desc->tied > 0 ? tp_module_param(&b->modules[0], "wte.weight") : NULL};
    tp_cross_entropy_desc loss = {
        .vocabulary = desc->vocabulary, .label_smoothing = desc->label_smoothing, .z_loss = desc->z_loss};
    TPI_TRY(tp_module_head(b->ctx, &linear, &loss, b->total, &b->modules[b->count]));
    b->count++;
    return TP_OK;
}

static tp_status add_modules(building *b)
{
    TPI_TRY(add_embedding(b));
    TPI_TRY(add_blocks(b));
    TPI_TRY(add_norm(b));
    return add_head(b);
}

/* Destroys what was made, last first: the head borrows from the embedding. */
static void undo(building *b)
{
    for (int i = b->count - 1; i >= 0; i--)
        b->modules[i].table->destroy(b->modules[i].self);
}

static tp_status build(building *b, tp_model **out)
{
    void *memory;
    TPI_TRY(tp_ctx_allocate(b->ctx, TP_MEMORY_OTHER, TPI_MODEL_TOTAL_BYTES, &memory));
    b->total = memory;
    tp_status status = add_modules(b);
    if (status != TP_OK)
        undo(b);
    else
        status = tp_model_compose(b->ctx,
                                  &(tp_compose_desc){.modules = b->modules,
                                                     .count = b->count,
                                                     .dtype = b->desc.dtype,
                                                     .sequence_parallel = b->desc.sequence_parallel,
                                                     .total = b->total},
                                  out);
    if (status != TP_OK)
        tp_ctx_release(b->ctx, TP_MEMORY_OTHER, memory, TPI_MODEL_TOTAL_BYTES);
    else
        tpi_model_adopt(*out, &b->desc);
    return status;
}

tp_status tp_model_create(tp_ctx *ctx, const tp_model_desc *desc, tp_model **out)
{
    TPI_TRY(tpi_given(ctx, "tp_model_create: out", out));
    *out = NULL;
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_model_check(ctx, desc, tp_comm_size(tp_ctx_group(ctx, TP_AXIS_TP))));
    building b = {.ctx = ctx, .desc = tpi_model_resolve(desc), .capacity = (int)desc->layers + 3};
    size_t bytes = (size_t)b.capacity * sizeof *b.modules;
    b.modules = tpi_host_allocate(ctx, bytes);
    if (b.modules == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "model: no memory for a list of %d modules", b.capacity);
    tp_status status = build(&b, out);
    tpi_host_release(ctx, b.modules, bytes);
    return status;
}
