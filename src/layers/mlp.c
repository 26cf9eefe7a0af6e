#include <stdio.h>

#include <tp/mlp.h>

#include "layers/chain.h"

struct tp_mlp {
    tp_ctx *ctx;
    tp_mlp_desc desc;
    char name[TP_PARAM_NAME];
    tpi_activation activation;
    bool gated;
    tp_linear *up, *down;
    tpi_site chain, backward; /* both layers in one plan; empty: one after the other */
    int64_t ffn_local;
};

typedef struct tpi_activation_entry {
    tpi_activation op;
    bool gated;
} tpi_activation_entry;

static const tpi_activation_entry activation_table[TP_ACTIVATION_COUNT] = {
    [TP_ACTIVATION_GELU] = {TPI_ACT_GELU, false},   [TP_ACTIVATION_GELU_TANH] = {TPI_ACT_GELU_TANH, false},
    [TP_ACTIVATION_RELU] = {TPI_ACT_RELU, false},   [TP_ACTIVATION_RELU2] = {TPI_ACT_RELU2, false},
    [TP_ACTIVATION_SWIGLU] = {TPI_ACT_SILU, true},  [TP_ACTIVATION_GEGLU] = {TPI_ACT_GELU, true},
};

static tp_status check_desc(tp_ctx *ctx, const tp_mlp_desc *desc)
{
    const char *name = desc->name ? desc->name : "mlp";
    if ((int)desc->activation < 0 || desc->activation >= TP_ACTIVATION_COUNT)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: activation %d is not one of 0 to %d", name, (int)desc->activation,
                          TP_ACTIVATION_COUNT - 1);
    if (desc->hidden < 1 || desc->ffn < 1)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: hidden %lld, ffn %lld, both must be at least 1", name,
                          (long long)desc->hidden, (long long)desc->ffn);
    if (desc->ffn > INT64_MAX / 2) /* gated: twice as many */
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: ffn %lld, at most %lld", name, (long long)desc->ffn,
                          (long long)(INT64_MAX / 2));
    TPI_TRY(tpi_layer_check_number(ctx, name, desc->layer));
    int ranks = tp_comm_size(tp_ctx_group(ctx, TP_AXIS_TP));
    if (desc->ffn < ranks)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: ffn %lld < tp %d", name, (long long)desc->ffn, ranks);
    TPI_TRY(tpi_layer_check_std(ctx, name, "down_init_std", desc->down_init_std));
    return tpi_layer_check_dropout(ctx, name, "output_dropout", desc->output_dropout);
}

static tp_status create_linears(tp_ctx *ctx, tp_mlp *layer)
{
    const tp_mlp_desc *desc = &layer->desc;
    char name[2 * TP_PARAM_NAME];
    snprintf(name, sizeof name, "%s.up", layer->name);
    tp_linear_desc linear = {.name = name,
                             .kind = TP_LINEAR_COLUMN,
                             .in_features = desc->hidden,
                             .out_features = layer->gated ? 2 * desc->ffn : desc->ffn,
                             .dtype = desc->dtype,
                             .bias = desc->bias,
                             .sequence_parallel = desc->sequence_parallel,
                             .overlap = desc->overlap,
                             .chunks = desc->chunks,
                             .parts = layer->gated ? 2 : 1,
                             .part = {{.units = desc->ffn, .unit_size = 1}, {.units = desc->ffn, .unit_size = 1}},
                             .init_std = desc->init_std};
    TPI_TRY(tp_linear_create(ctx, &linear, &layer->up));
    snprintf(name, sizeof name, "%s.down", layer->name);
    linear.kind = TP_LINEAR_ROW;
    linear.in_features = desc->ffn;
    linear.out_features = desc->hidden;
    linear.parts = 1;
    linear.init_std = desc->down_init_std > 0 ? desc->down_init_std : desc->init_std;
    linear.dropout = desc->output_dropout;
    linear.site = desc->layer << 8 | TPI_SITE_MLP_OUTPUT;
    TPI_TRY(tp_linear_create(ctx, &linear, &layer->down));
    layer->ffn_local = tp_linear_local_features(layer->down);
    TPI_TRY(tpi_chain_prepare(layer->up, layer->down, false, &layer->chain));
    return tpi_chain_prepare_backward(layer->down, layer->up, false, &layer->backward);
}

tp_status tp_mlp_create(tp_ctx *ctx, const tp_mlp_desc *desc, tp_mlp **out)
{
    if (out == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_mlp_create: out is NULL");
    *out = NULL;
    TPI_TRY(tpi_ctx_usable(ctx));
    if (desc == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_mlp_create: desc is NULL");
    TPI_TRY(check_desc(ctx, desc));
    tp_mlp *layer = tpi_host_allocate(ctx, sizeof *layer);
    if (layer == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "tp_mlp_create: out of memory");
    layer->ctx = ctx;
    layer->desc = *desc;
    layer->activation = activation_table[desc->activation].op;
    layer->gated = activation_table[desc->activation].gated;
    snprintf(layer->name, sizeof layer->name, "%s", desc->name ? desc->name : "mlp");
    layer->desc.name = layer->name;
    tp_status status = create_linears(ctx, layer);
    if (status != TP_OK) {
        tp_mlp_destroy(layer);
        return status;
    }
    *out = layer;
    return TP_OK;
}

void tp_mlp_destroy(tp_mlp *layer)
{
    if (layer == NULL)
        return;
    tp_linear_destroy(layer->up);
    tp_linear_destroy(layer->down);
    tpi_host_release(layer->ctx, layer, sizeof *layer);
}

int tp_mlp_params(tp_mlp *layer, tp_param **out, int capacity)
{
    return layer == NULL ? 0 : tpi_params_of_linears(layer->up, layer->down, out, capacity);
}

/* The activations between the projections, carved out of `memory` (NULL: only counted). */
typedef struct tpi_mlp_buffers {
    tp_tensor pre, act;
    size_t bytes;
} tpi_mlp_buffers;

static tpi_mlp_buffers carve_buffers(const tp_mlp *layer, const tp_pass *pass, void *memory)
{
    tpi_carve carve = {memory, 0};
    tpi_mlp_buffers buffers;
    buffers.pre =
        tp_tensor_2d(NULL, layer->desc.dtype, pass->tokens, layer->gated ? 2 * layer->ffn_local : layer->ffn_local);
    buffers.act = tp_tensor_2d(NULL, layer->desc.dtype, pass->tokens, layer->ffn_local);
    buffers.pre.data = tpi_carve_take(&carve, tp_tensor_bytes(buffers.pre));
    buffers.act.data = tpi_carve_take(&carve, tp_tensor_bytes(buffers.act));
    buffers.bytes = carve.used;
    return buffers;
}

size_t tp_mlp_saved_bytes(const tp_mlp *layer, const tp_pass *pass)
{
    if (layer == NULL || pass == NULL)
        return 0;
    return carve_buffers(layer, pass, NULL).bytes;
}

static tp_status resolve_pass(tp_ctx *ctx, const tp_mlp *layer, const tp_pass *pass, int64_t rows, tp_pass *out)
{
    tpi_pass_need need = {layer->name, layer->desc.sequence_parallel, layer->desc.output_dropout, layer->ctx};
    return tpi_layer_pass(ctx, &need, pass, rows, out);
}

static tp_status apply_gate(tpi_stream *stream, const tp_mlp *layer, const tp_tensor *pre, const tp_tensor *act)
{
    return tpi_activate(stream, &(tpi_activation_args){.activation = layer->activation,
                                                            .gated = true,
                                                            .rows = act->shape[0],
                                                            .cols = layer->ffn_local,
                                                            .dtype = layer->desc.dtype,
                                                            .x = pre->data,
                                                            .x_stride = pre->stride[0],
                                                            .y = act->data,
                                                            .y_stride = act->stride[0]});
}

/* The gate between the chain's GEMMs, on some rows. */
static tp_status gate_rows(const tpi_chain_call *call, tpi_stream *stream, tp_range rows)
{
    tp_tensor pre = tp_tensor_rows(call->middle, rows.begin, rows.end),
              act = tp_tensor_rows(call->core, rows.begin, rows.end);
    return apply_gate(stream, call->layer, &pre, &act);
}

static tp_status forward_chain(tp_ctx *ctx, const tp_mlp *layer, const tp_pass *pass, const tp_io *io,
                               const tpi_linear_fusion *fusion, const tpi_norm_args *norm, tp_mlp_saved *saved)
{
    tpi_chain_call call;
    TPI_TRY(tpi_chain_begin(ctx, layer->up, layer->down, pass, &call));
    call.first.fusion = *fusion;
    call.second.fusion.norm = norm;
    call.middle = layer->gated ? saved->pre : saved->act;
    call.core = saved->act;
    call.compute = layer->gated ? gate_rows : NULL;
    call.layer = layer;
    saved->up_input.x = io->in;
    saved->down_input.x = saved->act;
    return tpi_chain_forward(&call, &layer->chain, io);
}

static tp_status forward_in(tp_ctx *ctx, const tp_mlp *layer, const tp_pass *pass, const tp_io *io,
                            const tpi_norm_args *norm, tp_mlp_saved *saved)
{
    tp_tensor first = layer->gated ? saved->pre : saved->act;
    tp_io up = {.in = io->in, .out = first};
    tpi_linear_fusion fusion = {0};
    const tpi_linear_fusion last = {.norm = norm};
    if (!layer->gated) {
        fusion.activation = layer->activation;
        fusion.pre = saved->pre;
    }
    if (tpi_site_at(&layer->chain, pass->tokens) != NULL)
        return forward_chain(ctx, layer, pass, io, &fusion, norm, saved);
    TPI_TRY(tpi_linear_forward(ctx, layer->up, pass, &up, &fusion, &saved->up_input));
    if (layer->gated)
        TPI_TRY(apply_gate(ctx->compute, layer, &saved->pre, &saved->act));
    tp_io down = {.in = saved->act, .out = io->out, .residual = io->residual};
    return tpi_linear_forward(ctx, layer->down, pass, &down, &last, &saved->down_input);
}

tp_status tpi_mlp_forward(tp_ctx *ctx, const tp_mlp *layer, const tp_pass *pass, const tp_io *io,
                          const tpi_norm_args *norm, tp_mlp_saved *saved)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (layer == NULL || io == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_mlp_forward: %s is NULL", layer == NULL ? "layer" : "io");
    tp_pass resolved;
    TPI_TRY(resolve_pass(ctx, layer, pass, io->in.shape[0], &resolved));
    TPI_TRY(tpi_chain_check(layer->up, layer->down, &resolved, io));
    TPI_TRY(tpi_layer_check_apart(ctx, layer->name, io));
    tp_mlp_saved unsaved = {0};
    tp_mlp_saved *keep = saved != NULL ? saved : &unsaved;
    size_t bytes = tp_mlp_saved_bytes(layer, &resolved);
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status = TP_OK;
    if (saved == NULL) {
        status = tpi_scratch(ctx, bytes, &unsaved.memory);
        unsaved.bytes = bytes;
    }
    if (status == TP_OK)
        status = tpi_layer_check_memory(ctx, layer->name, keep->memory, keep->bytes, bytes);
    if (status == TP_OK) {
        tpi_mlp_buffers buffers = carve_buffers(layer, &resolved, keep->memory);
        keep->pre = buffers.pre;
        keep->act = buffers.act;
        if (saved == NULL && !layer->gated)
            keep->pre = tp_tensor_none();
        status = forward_in(ctx, layer, &resolved, io, norm, keep);
    }
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}

tp_status tp_mlp_forward(tp_ctx *ctx, const tp_mlp *layer, const tp_pass *pass, const tp_io *io, tp_mlp_saved *saved)
{
    return tpi_mlp_forward(ctx, layer, pass, io, NULL, saved);
}

typedef struct tpi_mlp_gradients {
    tp_tensor dpre;
    void *down, *up;
    size_t down_bytes, up_bytes, bytes;
} tpi_mlp_gradients;

static tpi_mlp_gradients carve_gradients(const tp_mlp *layer, const tp_pass *pass, void *memory)
{
    tpi_carve carve = {memory, 0};
    tpi_mlp_gradients gradients;
    gradients.dpre =
        tp_tensor_2d(NULL, layer->desc.dtype, pass->tokens, layer->gated ? 2 * layer->ffn_local : layer->ffn_local);
    gradients.dpre.data = tpi_carve_take(&carve, tp_tensor_bytes(gradients.dpre));
    gradients.down_bytes = tp_linear_delayed_bytes(layer->down, pass);
    gradients.down = tpi_carve_take(&carve, gradients.down_bytes);
    gradients.up_bytes = tp_linear_delayed_bytes(layer->up, pass);
    gradients.up = tpi_carve_take(&carve, gradients.up_bytes);
    gradients.bytes = carve.used;
    return gradients;
}

size_t tp_mlp_delayed_bytes(const tp_mlp *layer, const tp_pass *pass)
{
    if (layer == NULL || pass == NULL)
        return 0;
    return carve_gradients(layer, pass, NULL).bytes;
}

static tp_status gate_gradient(tpi_stream *stream, const tp_mlp *layer, const tp_tensor *pre, const tp_tensor *dact,
                               const tp_tensor *dpre)
{
    return tpi_activate(stream, &(tpi_activation_args){.activation = layer->activation,
                                                       .gated = true,
                                                       .rows = dact->shape[0],
                                                       .cols = layer->ffn_local,
                                                       .dtype = layer->desc.dtype,
                                                       .x = pre->data,
                                                       .x_stride = pre->stride[0],
                                                       .dy = dact->data,
                                                       .dy_stride = dact->stride[0],
                                                       .dx = dpre->data,
                                                       .dx_stride = dpre->stride[0]});
}

/* The gate's gradient between the GEMMs of the backward chain, on some rows. */
static tp_status gate_gradient_rows(const tpi_chain_backward *call, tpi_stream *stream, tp_range rows)
{
    const tp_mlp_saved *saved = call->saved;
    tp_tensor pre = tp_tensor_rows(saved->pre, rows.begin, rows.end),
              dact = tp_tensor_rows(call->middle, rows.begin, rows.end);
    tp_tensor dpre = tp_tensor_rows(call->core, rows.begin, rows.end);
    return gate_gradient(stream, call->layer, &pre, &dact, &dpre);
}

/* What forward has filled, for this number of tokens. */
static tp_status check_saved(tp_ctx *ctx, const tp_mlp *layer, const tp_pass *pass, const tp_mlp_saved *saved)
{
    tpi_mlp_buffers buffers = carve_buffers(layer, pass, NULL);
    TPI_TRY(tpi_layer_check_matrix(ctx, layer->name, "saved pre-activation", saved->pre, &buffers.pre));
    TPI_TRY(tpi_layer_check_matrix(ctx, layer->name, "saved activation", saved->act, &buffers.act));
    TPI_TRY(tpi_linear_check_saved(layer->down, pass, &saved->down_input));
    return tpi_linear_check_saved(layer->up, pass, &saved->up_input);
}

/* Both gradients of both layers in one plan. */
static tp_status backward_chain(tp_ctx *ctx, const tp_mlp *layer, const tp_pass *pass, const tp_io *io,
                                const tp_mlp_saved *saved)
{
    tpi_chain_backward call;
    TPI_TRY(tpi_chain_begin_backward(ctx, layer->down, layer->up, pass, &call));
    int64_t width = layer->gated ? 2 * layer->ffn_local : layer->ffn_local;
    TPI_TRY(tpi_scratch_tensor(ctx, layer->desc.dtype, pass->tokens, width, &call.core));
    call.middle = call.core;
    if (layer->gated)
        TPI_TRY(tpi_scratch_tensor(ctx, layer->desc.dtype, pass->tokens, layer->ffn_local, &call.middle));
    else
        call.first.fusion = (tpi_linear_fusion){.activation = layer->activation, .act_input = saved->pre};
    call.compute = layer->gated ? gate_gradient_rows : NULL;
    call.row_input = saved->act;
    call.column_input = saved->up_input.x;
    call.layer = layer;
    call.saved = saved;
    return tpi_chain_run_backward(&call, &layer->backward, io);
}

/* dy -> dpre, through the down projection and the activation. */
static tp_status backward_down(tp_ctx *ctx, const tp_mlp *layer, const tp_pass *pass, tp_tensor dy,
                               const tp_mlp_saved *saved, tp_mlp_delayed *delayed)
{
    if (!layer->gated) {
        tpi_linear_fusion fusion = {.activation = layer->activation, .act_input = saved->pre};
        tp_io down = {.in = dy, .out = delayed->dpre};
        return tpi_linear_backward_input(ctx, layer->down, pass, &down, &fusion, &delayed->down);
    }
    tp_tensor dact;
    TPI_TRY(tpi_scratch_tensor(ctx, layer->desc.dtype, pass->tokens, layer->ffn_local, &dact));
    tp_io down = {.in = dy, .out = dact};
    TPI_TRY(tp_linear_backward_input(ctx, layer->down, pass, &down, &delayed->down));
    return gate_gradient(ctx->compute, layer, &saved->pre, &dact, &delayed->dpre);
}

/* Carves the delayed memory and fills all of it but up's part. */
static tp_status backward_to_up(tp_ctx *ctx, const tp_mlp *layer, const tp_pass *pass, tp_tensor dy,
                                const tp_mlp_saved *saved, tp_mlp_delayed *delayed)
{
    TPI_TRY(
        tpi_layer_check_memory(ctx, layer->name, delayed->memory, delayed->bytes, tp_mlp_delayed_bytes(layer, pass)));
    tpi_mlp_gradients gradients = carve_gradients(layer, pass, delayed->memory);
    delayed->dpre = gradients.dpre;
    delayed->down = (tp_linear_delayed){.memory = gradients.down, .bytes = gradients.down_bytes};
    delayed->up = (tp_linear_delayed){.memory = gradients.up, .bytes = gradients.up_bytes};
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status = backward_down(ctx, layer, pass, dy, saved, delayed);
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}

tp_status tp_mlp_backward_input(tp_ctx *ctx, const tp_mlp *layer, const tp_pass *pass, const tp_io *io,
                                const tp_mlp_saved *saved, tp_mlp_delayed *delayed)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (layer == NULL || io == NULL || saved == NULL || delayed == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_mlp_backward_input: an argument is NULL");
    tp_pass resolved;
    TPI_TRY(resolve_pass(ctx, layer, pass, io->in.shape[0], &resolved));
    TPI_TRY(check_saved(ctx, layer, &resolved, saved));
    TPI_TRY(tpi_chain_check_backward(layer->down, layer->up, &resolved, io));
    TPI_TRY(backward_to_up(ctx, layer, &resolved, io->in, saved, delayed));
    tp_io up = {.in = delayed->dpre, .out = io->out, .residual = io->residual};
    return tp_linear_backward_input(ctx, layer->up, &resolved, &up, &delayed->up);
}

tp_status tp_mlp_backward_weight(tp_ctx *ctx, const tp_mlp *layer, const tp_pass *pass, const tp_mlp_saved *saved,
                                 const tp_mlp_delayed *delayed)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (layer == NULL || saved == NULL || delayed == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_mlp_backward_weight: an argument is NULL");
    tp_pass resolved;
    TPI_TRY(resolve_pass(ctx, layer, pass, saved->act.shape[0], &resolved));
    TPI_TRY(check_saved(ctx, layer, &resolved, saved));
    TPI_TRY(tpi_linear_check_delayed(layer->up, &resolved, &delayed->up));
    TPI_TRY(tp_linear_backward_weight(ctx, layer->down, pass, &saved->down_input, &delayed->down));
    return tp_linear_backward_weight(ctx, layer->up, pass, &saved->up_input, &delayed->up);
}

static tp_status backward_in_turn(tp_ctx *ctx, const tp_mlp *layer, const tp_pass *pass, const tp_io *io,
                                  const tp_mlp_saved *saved)
{
    tp_mlp_delayed delayed = {.bytes = tp_mlp_delayed_bytes(layer, pass)};
    TPI_TRY(tpi_scratch(ctx, delayed.bytes, &delayed.memory));
    TPI_TRY(backward_to_up(ctx, layer, pass, io->in, saved, &delayed));
    tp_io up = {.in = delayed.dpre, .out = io->out, .residual = io->residual};
    TPI_TRY(tp_linear_backward(ctx, layer->up, pass, &up, &saved->up_input));
    return tp_linear_backward_weight(ctx, layer->down, pass, &saved->down_input, &delayed.down);
}

tp_status tp_mlp_backward(tp_ctx *ctx, const tp_mlp *layer, const tp_pass *pass, const tp_io *io,
                          const tp_mlp_saved *saved)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (layer == NULL || io == NULL || saved == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_mlp_backward: an argument is NULL");
    tp_pass resolved;
    TPI_TRY(resolve_pass(ctx, layer, pass, io->in.shape[0], &resolved));
    TPI_TRY(check_saved(ctx, layer, &resolved, saved));
    TPI_TRY(tpi_chain_check_backward(layer->down, layer->up, &resolved, io));
    bool chain = tpi_chain_runs_backward(layer->down, layer->up, &layer->backward, &resolved, io);
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status =
        chain ? backward_chain(ctx, layer, &resolved, io, saved) : backward_in_turn(ctx, layer, &resolved, io, saved);
    tpi_arena_release(&ctx->scratch, mark);
    return status;
}
