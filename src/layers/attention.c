#include "layers/attention.h"

#include <math.h>
#include <stdio.h>

static tp_status check_heads(tp_ctx *ctx, const char *name, const tp_attention_desc *desc)
{
    if (desc->hidden < 1 || desc->heads < 1 || desc->kv_heads < 0 || desc->head_dim < 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT,
                          "%s: hidden %lld, heads %lld, kv_heads %lld, head_dim %lld: sizes must be positive", name,
                          (long long)desc->hidden, (long long)desc->heads, (long long)desc->kv_heads,
                          (long long)desc->head_dim);
    if (desc->kv_heads > 0 && desc->heads % desc->kv_heads != 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: heads %lld is not a multiple of kv_heads %lld", name,
                          (long long)desc->heads, (long long)desc->kv_heads);
    if (desc->head_dim == 0 && desc->hidden % desc->heads != 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: hidden %lld is not a multiple of heads %lld", name,
                          (long long)desc->hidden, (long long)desc->heads);
    int64_t head_dim = desc->head_dim > 0 ? desc->head_dim : desc->hidden / desc->heads;
    if (desc->heads > INT64_MAX / 3 / head_dim) /* q, and as many of k and v */
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: heads %lld times head_dim %lld is too large", name,
                          (long long)desc->heads, (long long)head_dim);
    int ranks = tp_comm_size(tp_ctx_group(ctx, TP_AXIS_TP));
    if (desc->heads < ranks)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: heads %lld < tp %d", name, (long long)desc->heads, ranks);
    return TP_OK;
}

static tp_status check_desc(tp_ctx *ctx, const tp_attention_desc *desc)
{
    const char *name = desc->name ? desc->name : "attention";
    TPI_TRY(check_heads(ctx, name, desc));
    if ((int)desc->mask < 0 || desc->mask > TP_MASK_FULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: mask %d is not one of 0 to %d", name, (int)desc->mask,
                          TP_MASK_FULL);
    if (desc->window < 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: window %lld < 0", name, (long long)desc->window);
    int64_t head_dim = desc->head_dim > 0 ? desc->head_dim : desc->hidden / desc->heads;
    int64_t rope_dim = desc->rope_dim != 0 ? desc->rope_dim : head_dim;
    if (!(desc->rope_theta == 0 || (desc->rope_theta > 1 && isfinite(desc->rope_theta)))) /* NaN too */
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: rope_theta %g must be above 1 and finite, or 0 for none", name,
                          desc->rope_theta);
    if (desc->rope_theta != 0 && (rope_dim < 2 || rope_dim % 2 != 0 || rope_dim > head_dim))
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: rope_dim %lld must be even and at most head_dim %lld", name,
                          (long long)rope_dim, (long long)head_dim);
    TPI_TRY(tpi_layer_check_number(ctx, name, desc->layer));
    TPI_TRY(tpi_layer_check_std(ctx, name, "proj_init_std", desc->proj_init_std));
    TPI_TRY(tpi_layer_check_dropout(ctx, name, "probability_dropout", desc->probability_dropout));
    return tpi_layer_check_dropout(ctx, name, "output_dropout", desc->output_dropout);
}

/* What a GPU has kernels for, its backend says of an op on no rows. */
static tp_status check_backend(tp_ctx *ctx, const tp_attention_desc *desc)
{
    const tpi_attention_args nothing = {.head_dim = desc->head_dim > 0 ? desc->head_dim : desc->hidden / desc->heads,
                                        .dtype = desc->dtype};
    return ctx->desc.device == TP_DEVICE_CPU ? TP_OK : ctx->backend->attention(ctx->compute, &nothing);
}

static tp_status create_linears(tp_ctx *ctx, tp_attention *layer)
{
    const tp_attention_desc *desc = &layer->desc;
    char name[2 * TP_PARAM_NAME];
    snprintf(name, sizeof name, "%s.qkv", layer->name);
    tp_shard_part query = {.units = desc->heads, .unit_size = desc->head_dim};
    tp_shard_part key = {.units = desc->kv_heads, .unit_size = desc->head_dim, .readers = desc->heads};
    tp_linear_desc linear = {.name = name,
                             .kind = TP_LINEAR_COLUMN,
                             .in_features = desc->hidden,
                             .out_features = (desc->heads + 2 * desc->kv_heads) * desc->head_dim,
                             .dtype = desc->dtype,
                             .bias = desc->bias,
                             .sequence_parallel = desc->sequence_parallel,
                             .overlap = desc->overlap,
                             .chunks = desc->chunks,
                             .parts = 3,
                             .part = {query, key, key},
                             .init_std = desc->init_std};
    TPI_TRY(tp_linear_create(ctx, &linear, &layer->qkv));
    snprintf(name, sizeof name, "%s.proj", layer->name);
    linear.kind = TP_LINEAR_ROW;
    linear.in_features = desc->heads * desc->head_dim;
    linear.out_features = desc->hidden;
    linear.parts = 1;
    linear.init_std = desc->proj_init_std > 0 ? desc->proj_init_std : desc->init_std;
    linear.dropout = desc->output_dropout;
    linear.site = desc->layer << 8 | TPI_SITE_ATTENTION_OUTPUT;
    TPI_TRY(tp_linear_create(ctx, &linear, &layer->proj));
    TPI_TRY(tpi_chain_prepare(layer->qkv, layer->proj, true, &layer->chain));
    return tpi_chain_prepare_backward(layer->proj, layer->qkv, true, &layer->backward);
}

static tp_status fill(tp_ctx *ctx, const tp_attention_desc *desc, tp_attention *layer)
{
    layer->ctx = ctx;
    layer->desc = *desc;
    snprintf(layer->name, sizeof layer->name, "%s", desc->name ? desc->name : "attention");
    layer->desc.name = layer->name;
    if (desc->kv_heads == 0)
        layer->desc.kv_heads = desc->heads;
    if (desc->head_dim == 0)
        layer->desc.head_dim = desc->hidden / desc->heads;
    if (desc->rope_dim == 0)
        layer->desc.rope_dim = layer->desc.head_dim;
    TPI_TRY(tpi_head_map_create(ctx, layer->desc.heads, layer->desc.kv_heads, &layer->map));
    layer->q_width = (layer->map.heads.end - layer->map.heads.begin) * layer->desc.head_dim;
    layer->kv_width = (layer->map.kv_heads.end - layer->map.kv_heads.begin) * layer->desc.head_dim;
    return create_linears(ctx, layer);
}

tp_status tp_attention_create(tp_ctx *ctx, const tp_attention_desc *desc, tp_attention **out)
{
    if (out == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_attention_create: out is NULL");
    *out = NULL;
    TPI_TRY(tpi_ctx_usable(ctx));
    if (desc == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_attention_create: desc is NULL");
    TPI_TRY(check_desc(ctx, desc));
    TPI_TRY(check_backend(ctx, desc));
    tp_attention *layer = tpi_host_allocate(ctx, sizeof *layer);
    if (layer == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "tp_attention_create: out of memory");
    tp_status status = fill(ctx, desc, layer);
    if (status != TP_OK) {
        tp_attention_destroy(layer);
        return status;
    }
    *out = layer;
    return TP_OK;
}

void tp_attention_destroy(tp_attention *layer)
{
    if (layer == NULL)
        return;
    tp_linear_destroy(layer->qkv);
    tp_linear_destroy(layer->proj);
    tpi_head_map_destroy(layer->ctx, &layer->map);
    tpi_host_release(layer->ctx, layer, sizeof *layer);
}

int tp_attention_params(tp_attention *layer, tp_param **out, int capacity)
{
    return layer == NULL ? 0 : tpi_params_of_linears(layer->qkv, layer->proj, out, capacity);
}

typedef struct tpi_attention_buffers {
    tp_tensor qkv, core, lse;
    size_t bytes;
} tpi_attention_buffers;

static tpi_attention_buffers carve_buffers(const tp_attention *layer, const tp_pass *pass, void *memory)
{
    tpi_carve carve = {memory, 0};
    tpi_attention_buffers buffers;
    buffers.qkv = tp_tensor_2d(NULL, layer->desc.dtype, pass->tokens, layer->q_width + 2 * layer->kv_width);
    buffers.core = tp_tensor_2d(NULL, layer->desc.dtype, pass->tokens, layer->q_width);
    buffers.lse = tp_tensor_2d(NULL, TP_DTYPE_F32, layer->q_width / layer->desc.head_dim, pass->tokens);
    buffers.qkv.data = tpi_carve_take(&carve, tp_tensor_bytes(buffers.qkv));
    buffers.core.data = tpi_carve_take(&carve, tp_tensor_bytes(buffers.core));
    buffers.lse.data = tpi_carve_take(&carve, tp_tensor_bytes(buffers.lse));
    buffers.bytes = carve.used;
    return buffers;
}

size_t tp_attention_saved_bytes(const tp_attention *layer, const tp_pass *pass)
{
    if (layer == NULL || pass == NULL)
        return 0;
    return carve_buffers(layer, pass, NULL).bytes;
}

static tp_status resolve_pass(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass, int64_t rows, tp_pass *out)
{
    float dropout = layer->desc.output_dropout > 0 ? layer->desc.output_dropout : layer->desc.probability_dropout;
    tpi_pass_need need = {layer->name, layer->desc.sequence_parallel, dropout, layer->ctx};
    return tpi_layer_pass(ctx, &need, pass, rows, out);
}

/* Rotary embedding and attention between the chain's GEMMs, over all tokens. */
static tp_status compute_core(const tpi_chain_call *call, tpi_stream *stream, tp_range rows)
{
    const tp_attention *layer = call->layer;
    (void)rows;
    TPI_TRY(tpi_attention_rotate(layer->ctx, layer, &call->first.pass, &call->middle, false));
    tpi_attention_args core = tpi_attention_core_args(layer, &call->first.pass, call->saved);
    return tpi_attention(stream, &core);
}

static tp_status forward_chain(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass, const tp_io *io,
                               const tpi_norm_args *norm, tp_attention_saved *saved)
{
    tpi_chain_call call;
    TPI_TRY(tpi_chain_begin(ctx, layer->qkv, layer->proj, pass, &call));
    call.middle = saved->qkv;
    call.core = saved->core;
    call.compute = compute_core;
    call.layer = layer;
    call.saved = saved;
    saved->qkv_input.x = io->in;
    saved->proj_input.x = saved->core;
    call.second.fusion.norm = norm;
    return tpi_chain_forward(&call, &layer->chain, io);
}

static tp_status forward_in(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass, const tp_io *io,
                            const tpi_norm_args *norm, tp_attention_saved *saved)
{
    const tpi_linear_fusion last = {.norm = norm};
    tp_io qkv = {.in = io->in, .out = saved->qkv};
    if (tpi_site_at(&layer->chain, pass->tokens) != NULL)
        return forward_chain(ctx, layer, pass, io, norm, saved);
    TPI_TRY(tp_linear_forward(ctx, layer->qkv, pass, &qkv, &saved->qkv_input));
    TPI_TRY(tpi_attention_rotate(ctx, layer, pass, &saved->qkv, false));
    tpi_attention_args core = tpi_attention_core_args(layer, pass, saved);
    TPI_TRY(tpi_attention(ctx->compute, &core));
    tp_io proj = {.in = saved->core, .out = io->out, .residual = io->residual};
    return tpi_linear_forward(ctx, layer->proj, pass, &proj, &last, &saved->proj_input);
}

tp_status tpi_attention_forward(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass, const tp_io *io,
                                const tpi_norm_args *norm, tp_attention_saved *saved)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (layer == NULL || io == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_attention_forward: %s is NULL", layer == NULL ? "layer" : "io");
    tp_pass resolved;
    TPI_TRY(resolve_pass(ctx, layer, pass, io->in.shape[0], &resolved));
    TPI_TRY(tpi_chain_check(layer->qkv, layer->proj, &resolved, io));
    TPI_TRY(tpi_layer_check_apart(ctx, layer->name, io));
    tp_attention_saved unsaved = {.bytes = tp_attention_saved_bytes(layer, &resolved)};
    tp_attention_saved *keep = saved != NULL ? saved : &unsaved;
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status = saved == NULL ? tpi_scratch(ctx, unsaved.bytes, &unsaved.memory) : TP_OK;
    if (status == TP_OK)
        status = tpi_layer_check_memory(ctx, layer->name, keep->memory, keep->bytes, unsaved.bytes);
    if (status == TP_OK) {
        tpi_attention_buffers buffers = carve_buffers(layer, &resolved, keep->memory);
        keep->qkv = buffers.qkv;
        keep->core = buffers.core;
        keep->lse = buffers.lse;
        status = forward_in(ctx, layer, &resolved, io, norm, keep);
    }
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}

tp_status tp_attention_forward(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass, const tp_io *io,
                               tp_attention_saved *saved)
{
    return tpi_attention_forward(ctx, layer, pass, io, NULL, saved);
}

typedef struct tpi_attention_gradients {
    tp_tensor dqkv;
    void *proj, *qkv;
    size_t proj_bytes, qkv_bytes, bytes;
} tpi_attention_gradients;

static tpi_attention_gradients carve_gradients(const tp_attention *layer, const tp_pass *pass, void *memory)
{
    tpi_carve carve = {memory, 0};
    tpi_attention_gradients gradients;
    gradients.dqkv = tp_tensor_2d(NULL, layer->desc.dtype, pass->tokens, layer->q_width + 2 * layer->kv_width);
    gradients.dqkv.data = tpi_carve_take(&carve, tp_tensor_bytes(gradients.dqkv));
    gradients.proj_bytes = tp_linear_delayed_bytes(layer->proj, pass);
    gradients.proj = tpi_carve_take(&carve, gradients.proj_bytes);
    gradients.qkv_bytes = tp_linear_delayed_bytes(layer->qkv, pass);
    gradients.qkv = tpi_carve_take(&carve, gradients.qkv_bytes);
    gradients.bytes = carve.used;
    return gradients;
}

size_t tp_attention_delayed_bytes(const tp_attention *layer, const tp_pass *pass)
{
    if (layer == NULL || pass == NULL)
        return 0;
    return carve_gradients(layer, pass, NULL).bytes;
}

/* dy -> dcore -> dqkv; dcore lives in scratch. */
static tp_status backward_core(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass, tp_tensor dy,
                               const tp_attention_saved *saved, tp_attention_delayed *delayed)
{
    tp_tensor dcore;
    TPI_TRY(tpi_scratch_tensor(ctx, layer->desc.dtype, pass->tokens, layer->q_width, &dcore));
    tp_io proj = {.in = dy, .out = dcore};
    TPI_TRY(tp_linear_backward_input(ctx, layer->proj, pass, &proj, &delayed->proj));
    return tpi_attention_core_backward(ctx, layer, pass, &dcore, saved, &delayed->dqkv);
}

/* What forward has filled, for this number of tokens. */
static tp_status check_saved(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass,
                             const tp_attention_saved *saved)
{
    tpi_attention_buffers buffers = carve_buffers(layer, pass, NULL);
    TPI_TRY(tpi_layer_check_matrix(ctx, layer->name, "saved queries, keys and values", saved->qkv, &buffers.qkv));
    TPI_TRY(tpi_layer_check_matrix(ctx, layer->name, "saved attention", saved->core, &buffers.core));
    TPI_TRY(tpi_layer_check_matrix(ctx, layer->name, "saved logarithms of sums", saved->lse, &buffers.lse));
    TPI_TRY(tpi_linear_check_saved(layer->proj, pass, &saved->proj_input));
    return tpi_linear_check_saved(layer->qkv, pass, &saved->qkv_input);
}

/* Carves the delayed memory and fills all of it but qkv's part. */
static tp_status backward_to_qkv(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass, tp_tensor dy,
                                 const tp_attention_saved *saved, tp_attention_delayed *delayed)
{
    TPI_TRY(tpi_layer_check_memory(ctx, layer->name, delayed->memory, delayed->bytes,
                                   tp_attention_delayed_bytes(layer, pass)));
    tpi_attention_gradients gradients = carve_gradients(layer, pass, delayed->memory);
    delayed->dqkv = gradients.dqkv;
    delayed->proj = (tp_linear_delayed){.memory = gradients.proj, .bytes = gradients.proj_bytes};
    delayed->qkv = (tp_linear_delayed){.memory = gradients.qkv, .bytes = gradients.qkv_bytes};
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status = backward_core(ctx, layer, pass, dy, saved, delayed);
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}

tp_status tp_attention_backward_input(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass, const tp_io *io,
                                      const tp_attention_saved *saved, tp_attention_delayed *delayed)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (layer == NULL || io == NULL || saved == NULL || delayed == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_attention_backward_input: an argument is NULL");
    tp_pass resolved;
    TPI_TRY(resolve_pass(ctx, layer, pass, io->in.shape[0], &resolved));
    TPI_TRY(check_saved(ctx, layer, &resolved, saved));
    TPI_TRY(tpi_chain_check_backward(layer->proj, layer->qkv, &resolved, io));
    TPI_TRY(backward_to_qkv(ctx, layer, &resolved, io->in, saved, delayed));
    tp_io qkv = {.in = delayed->dqkv, .out = io->out, .residual = io->residual};
    return tp_linear_backward_input(ctx, layer->qkv, &resolved, &qkv, &delayed->qkv);
}

tp_status tp_attention_backward_weight(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass,
                                       const tp_attention_saved *saved, const tp_attention_delayed *delayed)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (layer == NULL || saved == NULL || delayed == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_attention_backward_weight: an argument is NULL");
    tp_pass resolved;
    TPI_TRY(resolve_pass(ctx, layer, pass, saved->core.shape[0], &resolved));
    TPI_TRY(check_saved(ctx, layer, &resolved, saved));
    TPI_TRY(tpi_linear_check_delayed(layer->qkv, &resolved, &delayed->qkv));
    TPI_TRY(tp_linear_backward_weight(ctx, layer->proj, pass, &saved->proj_input, &delayed->proj));
    return tp_linear_backward_weight(ctx, layer->qkv, pass, &saved->qkv_input, &delayed->qkv);
}

/* Attention and rotary embedding backwards between the chain's GEMMs, over all tokens. */
static tp_status core_gradient(const tpi_chain_backward *call, tpi_stream *stream, tp_range rows)
{
    const tp_attention *layer = call->layer;
    (void)stream; /* the compute stream */
    (void)rows;
    return tpi_attention_core_backward(layer->ctx, layer, &call->first.pass, &call->middle, call->saved, &call->core);
}

/* Both gradients of both layers in one plan. */
static tp_status backward_chain(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass, const tp_io *io,
                                const tp_attention_saved *saved)
{
    tpi_chain_backward call;
    TPI_TRY(tpi_chain_begin_backward(ctx, layer->proj, layer->qkv, pass, &call));
    TPI_TRY(tpi_scratch_tensor(ctx, layer->desc.dtype, pass->tokens, layer->q_width, &call.middle));
    TPI_TRY(tpi_scratch_tensor(ctx, layer->desc.dtype, pass->tokens, layer->q_width + 2 * layer->kv_width, &call.core));
    call.compute = core_gradient;
    call.row_input = saved->core;
    call.column_input = saved->qkv_input.x;
    call.layer = layer;
    call.saved = saved;
    return tpi_chain_run_backward(&call, &layer->backward, io);
}

static tp_status backward_in_turn(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass, const tp_io *io,
                                  const tp_attention_saved *saved)
{
    tp_attention_delayed delayed = {.bytes = tp_attention_delayed_bytes(layer, pass)};
    TPI_TRY(tpi_scratch(ctx, delayed.bytes, &delayed.memory));
    TPI_TRY(backward_to_qkv(ctx, layer, pass, io->in, saved, &delayed));
    tp_io qkv = {.in = delayed.dqkv, .out = io->out, .residual = io->residual};
    TPI_TRY(tp_linear_backward(ctx, layer->qkv, pass, &qkv, &saved->qkv_input));
    return tp_linear_backward_weight(ctx, layer->proj, pass, &saved->proj_input, &delayed.proj);
}

tp_status tp_attention_backward(tp_ctx *ctx, const tp_attention *layer, const tp_pass *pass, const tp_io *io,
                                const tp_attention_saved *saved)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (layer == NULL || io == NULL || saved == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_attention_backward: an argument is NULL");
    tp_pass resolved;
    TPI_TRY(resolve_pass(ctx, layer, pass, io->in.shape[0], &resolved));
    TPI_TRY(check_saved(ctx, layer, &resolved, saved));
    TPI_TRY(tpi_chain_check_backward(layer->proj, layer->qkv, &resolved, io));
    bool chain = tpi_chain_runs_backward(layer->proj, layer->qkv, &layer->backward, &resolved, io);
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status =
        chain ? backward_chain(ctx, layer, &resolved, io, saved) : backward_in_turn(ctx, layer, &resolved, io, saved);
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}
