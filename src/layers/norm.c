#include <stdio.h>

#include <tp/norm.h>

#include "layers/layer.h"

struct tp_norm {
    tp_ctx *ctx;
    tp_norm_desc desc;
    char name[TP_PARAM_NAME];
    tp_param *gain, *bias;
};

static tp_status create_params(tp_ctx *ctx, tp_norm *layer)
{
    tpi_param_desc param = {.layer = layer->name,
                            .suffix = "weight",
                            .dims = 1,
                            .shape = {layer->desc.features, 0},
                            .shard_dim = -1,
                            .dtype = layer->desc.dtype,
                            .flags = TP_PARAM_PARTIAL,
                            .init = TP_INIT_ONE};
    TPI_TRY(tpi_param_create(ctx, &param, &layer->gain));
    if (layer->desc.kind == TP_NORM_RMS || layer->desc.no_bias)
        return TP_OK;
    param.suffix = "bias";
    param.init = TP_INIT_ZERO;
    return tpi_param_create(ctx, &param, &layer->bias);
}

static tp_status check_desc(tp_ctx *ctx, const tp_norm_desc *desc)
{
    const char *name = desc->name ? desc->name : "norm";
    if ((int)desc->kind < 0 || desc->kind > TP_NORM_RMS)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: kind %d is not one of 0 to %d", name, (int)desc->kind,
                          TP_NORM_RMS);
    if (desc->features < 1)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: features %lld, must be at least 1", name,
                          (long long)desc->features);
    if (!(desc->epsilon >= 0 && desc->epsilon < 1)) /* NaN too */
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: epsilon %g is not in [0, 1)", name, (double)desc->epsilon);
    return tpi_layer_check_dtype(ctx, name, desc->dtype);
}

tp_status tp_norm_create(tp_ctx *ctx, const tp_norm_desc *desc, tp_norm **out)
{
    if (out == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_norm_create: out is NULL");
    *out = NULL;
    TPI_TRY(tpi_ctx_usable(ctx));
    if (desc == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_norm_create: desc is NULL");
    TPI_TRY(check_desc(ctx, desc));
    tp_norm *layer = tpi_host_allocate(ctx, sizeof *layer);
    if (layer == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "tp_norm_create: out of memory");
    layer->ctx = ctx;
    layer->desc = *desc;
    if (desc->epsilon == 0)
        layer->desc.epsilon = 1e-5f;
    snprintf(layer->name, sizeof layer->name, "%s", desc->name ? desc->name : "norm");
    layer->desc.name = layer->name;
    tp_status status = create_params(ctx, layer);
    if (status != TP_OK) {
        tp_norm_destroy(layer);
        return status;
    }
    *out = layer;
    return TP_OK;
}

void tp_norm_destroy(tp_norm *layer)
{
    if (layer == NULL)
        return;
    tpi_param_destroy(layer->ctx, layer->gain);
    tpi_param_destroy(layer->ctx, layer->bias);
    tpi_host_release(layer->ctx, layer, sizeof *layer);
}

int tp_norm_params(tp_norm *layer, tp_param **out, int capacity)
{
    return layer == NULL
               ? 0
               : tpi_params_append(out, capacity, tpi_params_append(out, capacity, 0, layer->gain), layer->bias);
}

static tp_tensor stats_view(void *memory, int64_t rows)
{
    return tp_tensor_2d(memory, TP_DTYPE_F32, rows, 2);
}

size_t tp_norm_saved_bytes(const tp_norm *layer, const tp_pass *pass)
{
    if (layer == NULL || pass == NULL)
        return 0;
    tp_range rows = tp_pass_rows(layer->ctx, pass, layer->desc.sequence_parallel);
    return tp_tensor_bytes(stats_view(NULL, rows.end - rows.begin));
}

static tp_status begin_call(tp_ctx *ctx, const tp_norm *layer, const tp_pass *pass, tp_tensor in, tp_pass *resolved)
{
    TPI_TRY_OBJECT(ctx, "norm", layer);
    tpi_pass_need need = {layer->name, layer->desc.sequence_parallel, 0, layer->ctx};
    TPI_TRY(tpi_layer_pass(ctx, &need, pass, in.shape[0], resolved));
    tp_range rows = tp_pass_rows(ctx, resolved, layer->desc.sequence_parallel);
    tp_tensor expected = tp_tensor_2d(NULL, layer->desc.dtype, rows.end - rows.begin, layer->desc.features);
    return tpi_layer_check_matrix(ctx, layer->name, "input", in, &expected);
}

tp_status tpi_norm_prepare(tp_ctx *ctx, const tp_norm *layer, const tp_pass *pass, const tp_io *io,
                           tp_norm_saved *saved, tpi_norm_args *out)
{
    tp_pass resolved;
    TPI_TRY(tpi_given(ctx, "tp_norm_forward: io", io));
    TPI_TRY(begin_call(ctx, layer, pass, io->in, &resolved));
    tp_tensor expected = io->in;
    TPI_TRY(tpi_layer_check_matrix(ctx, layer->name, "output", io->out, &expected));
    if (!tp_tensor_is_none(io->residual))
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: a norm's output takes no residual", layer->name);
    TPI_TRY(tpi_layer_check_apart(ctx, layer->name, io));
    if (saved != NULL) {
        TPI_TRY(tpi_layer_check_memory(ctx, layer->name, saved->memory, saved->bytes,
                                       tp_norm_saved_bytes(layer, &resolved)));
        saved->x = io->in;
        saved->stats = stats_view(saved->memory, io->in.shape[0]);
    }
    *out = (tpi_norm_args){.rms = layer->desc.kind == TP_NORM_RMS,
                           .rows = io->in.shape[0],
                           .cols = layer->desc.features,
                           .dtype = layer->desc.dtype,
                           .x = io->in.data,
                           .x_stride = io->in.stride[0],
                           .gain = layer->gain->value.data,
                           .bias = layer->bias ? layer->bias->value.data : NULL,
                           .epsilon = layer->desc.epsilon,
                           .y = io->out.data,
                           .y_stride = io->out.stride[0],
                           .stats = saved ? saved->stats.data : NULL};
    return TP_OK;
}

tp_status tp_norm_forward(tp_ctx *ctx, const tp_norm *layer, const tp_pass *pass, const tp_io *io, tp_norm_saved *saved)
{
    tpi_norm_args args;
    TPI_TRY(tpi_norm_prepare(ctx, layer, pass, io, saved, &args));
    return tpi_norm(ctx->compute, &args);
}

static tpi_norm_grad_args gradient_args(const tp_norm *layer, tp_tensor dy, const tp_norm_saved *saved)
{
    return (tpi_norm_grad_args){.rms = layer->desc.kind == TP_NORM_RMS,
                                .rows = dy.shape[0],
                                .cols = layer->desc.features,
                                .dtype = layer->desc.dtype,
                                .x = saved->x.data,
                                .x_stride = saved->x.stride[0],
                                .gain = layer->gain->value.data,
                                .stats = saved->stats.data,
                                .dy = dy.data,
                                .dy_stride = dy.stride[0]};
}

static void want_input(const tp_io *io, tpi_norm_grad_args *args)
{
    args->dx = io->out.data;
    args->dx_stride = io->out.stride[0];
    args->residual = io->residual.data;
    args->residual_stride = io->residual.data ? io->residual.stride[0] : 0;
}

static const void *row_of(const void *base, tp_dtype dtype, int64_t elements)
{
    return (const char *)base + (size_t)elements * tp_dtype_size(dtype);
}

/* Asks for the gain's and bias's gradient over the rows that this rank's virtual ranks own: all of its rows under
 * sequence parallelism, its share of them otherwise. */
static void want_weight(tp_ctx *ctx, const tp_norm *layer, const tp_pass *pass, tpi_norm_grad_args *args)
{
    tp_comm *group = tp_ctx_group(ctx, TP_AXIS_TP);
    int64_t count;
    tp_range mine = tp_shard_virtual(tp_comm_size(group), tp_comm_rank(group), &count);
    tp_range own = {tp_shard_range(pass->tokens, count, mine.begin).begin,
                    tp_shard_range(pass->tokens, count, mine.end - 1).end};
    int64_t skip = own.begin - tp_pass_rows(ctx, pass, layer->desc.sequence_parallel).begin;
    args->x = row_of(args->x, args->dtype, skip * args->x_stride);
    args->dy = row_of(args->dy, args->dtype, skip * args->dy_stride);
    args->stats += 2 * skip;
    args->rows = own.end - own.begin;
    args->first_row = own.begin;
    args->total_rows = pass->tokens;
    args->virtual_first = mine.begin;
    args->virtual_count = count;
    args->gain_grad = layer->gain->grad_partial.data;
    args->bias_grad = layer->bias ? layer->bias->grad_partial.data : NULL;
}

static tp_status check_backward(tp_ctx *ctx, const tp_norm *layer, const tp_io *io)
{
    tp_tensor expected = io->in;
    TPI_TRY(tpi_layer_check_matrix(ctx, layer->name, "input gradient", io->out, &expected));
    if (!tp_tensor_is_none(io->residual))
        TPI_TRY(tpi_layer_check_matrix(ctx, layer->name, "residual gradient", io->residual, &expected));
    return tpi_layer_check_apart(ctx, layer->name, io);
}

/* What forward has filled, for as many rows as dy has. */
static tp_status check_saved(tp_ctx *ctx, const tp_norm *layer, tp_tensor dy, const tp_norm_saved *saved)
{
    TPI_TRY(tpi_given(ctx, "norm: saved", saved));
    tp_tensor stats = stats_view(NULL, dy.shape[0]);
    TPI_TRY(tpi_layer_check_matrix(ctx, layer->name, "saved input", saved->x, &dy));
    return tpi_layer_check_matrix(ctx, layer->name, "saved statistics", saved->stats, &stats);
}

tp_status tp_norm_backward_input(tp_ctx *ctx, const tp_norm *layer, const tp_pass *pass, const tp_io *io,
                                 const tp_norm_saved *saved, tp_norm_delayed *delayed)
{
    tp_pass resolved;
    TPI_TRY(tpi_given(ctx, "tp_norm_backward_input: io", io));
    TPI_TRY(begin_call(ctx, layer, pass, io->in, &resolved));
    TPI_TRY(check_backward(ctx, layer, io));
    TPI_TRY(check_saved(ctx, layer, io->in, saved));
    tpi_norm_grad_args args = gradient_args(layer, io->in, saved);
    want_input(io, &args);
    if (delayed != NULL)
        delayed->dy = io->in;
    return tpi_norm_grad(ctx->compute, &args);
}

tp_status tp_norm_backward_weight(tp_ctx *ctx, const tp_norm *layer, const tp_pass *pass, const tp_norm_saved *saved,
                                  const tp_norm_delayed *delayed)
{
    tp_pass resolved;
    TPI_TRY(tpi_given(ctx, "tp_norm_backward_weight: delayed", delayed));
    TPI_TRY(begin_call(ctx, layer, pass, delayed->dy, &resolved));
    TPI_TRY(check_saved(ctx, layer, delayed->dy, saved));
    tpi_norm_grad_args args = gradient_args(layer, delayed->dy, saved);
    want_weight(ctx, layer, &resolved, &args);
    return tpi_norm_grad(ctx->compute, &args);
}

tp_status tp_norm_backward(tp_ctx *ctx, const tp_norm *layer, const tp_pass *pass, const tp_io *io,
                           const tp_norm_saved *saved)
{
    tp_pass resolved;
    TPI_TRY(tpi_given(ctx, "tp_norm_backward: io", io));
    TPI_TRY(begin_call(ctx, layer, pass, io->in, &resolved));
    TPI_TRY(check_backward(ctx, layer, io));
    TPI_TRY(check_saved(ctx, layer, io->in, saved));
    tpi_norm_grad_args args = gradient_args(layer, io->in, saved);
    int64_t rows = args.rows;
    want_weight(ctx, layer, &resolved, &args);
    if (args.rows == rows) { /* all rows are this rank's: one pass over them does both */
        want_input(io, &args);
        return tpi_norm_grad(ctx->compute, &args);
    }
    TPI_TRY(tpi_norm_grad(ctx->compute, &args)); /* before dx, which may overwrite dy */
    tpi_norm_grad_args input = gradient_args(layer, io->in, saved);
    want_input(io, &input);
    return tpi_norm_grad(ctx->compute, &input);
}
