#include "layers/linear.h"

#include <stdio.h>

static tp_status check_desc(tp_ctx *ctx, const tp_linear_desc *desc)
{
    const char *name = desc->name ? desc->name : "linear";
    if ((int)desc->kind < 0 || desc->kind > TP_LINEAR_REPLICATED)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: kind %d is not one of 0 to %d", name, (int)desc->kind,
                          TP_LINEAR_REPLICATED);
    if (desc->in_features < 1 || desc->out_features < 1)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: in_features %lld, out_features %lld, both must be at least 1",
                          name, (long long)desc->in_features, (long long)desc->out_features);
    if (desc->in_features > INT64_MAX / 8 / desc->out_features)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: in_features %lld times out_features %lld is too large", name,
                          (long long)desc->in_features, (long long)desc->out_features);
    TPI_TRY(tpi_layer_check_dtype(ctx, name, desc->dtype));
    TPI_TRY(tpi_layer_check_dropout(ctx, name, "dropout", desc->dropout));
    if (desc->kind == TP_LINEAR_COLUMN && desc->dropout > 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: dropout %g, but column-parallel outputs take none", name,
                          (double)desc->dropout);
    TPI_TRY(tpi_layer_check_overlap(ctx, name, desc->overlap, desc->chunks));
    if (desc->parts < 0 || desc->parts > TP_PARAM_PARTS)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: %d parts, at most %d", name, desc->parts, TP_PARAM_PARTS);
    TPI_TRY(tpi_layer_check_std(ctx, name, "init_std", desc->init_std));
    return TP_OK;
}

/* The cut dimension's parts, checked against its extent and the number of ranks. */
static tp_status resolve_parts(tp_ctx *ctx, tp_linear_desc *desc, int ranks)
{
    int64_t cut = desc->kind == TP_LINEAR_COLUMN ? desc->out_features : desc->in_features;
    if (desc->parts == 0) {
        desc->parts = 1;
        desc->part[0] = (tp_shard_part){.units = cut, .unit_size = 1};
    }
    for (int p = 0; p < desc->parts; p++) {
        const tp_shard_part *part = &desc->part[p];
        int64_t dealt = part->readers > 0 ? part->readers : part->units;
        if (part->units < 1 || part->unit_size < 1 || dealt % part->units != 0)
            return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: part %d has %lld units of %lld with %lld readers", desc->name,
                              p, (long long)part->units, (long long)part->unit_size, (long long)part->readers);
        if (desc->kind != TP_LINEAR_REPLICATED && dealt < ranks)
            return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: %lld units of part %d < tp %d", desc->name, (long long)dealt,
                              p, ranks);
    }
    int64_t parts = tpi_parts_global(desc->part, desc->parts);
    return parts == cut ? TP_OK
                        : tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: parts add up to %lld, features to %lld", desc->name,
                                     (long long)parts, (long long)cut);
}

static tp_status check_borrowed(tp_ctx *ctx, const tp_linear_desc *desc)
{
    const tp_param *weight = desc->weight;
    TPI_TRY(tpi_param_check(ctx, desc->name, weight));
    if (weight->dims != 2 || weight->shape[0] != desc->out_features || weight->shape[1] != desc->in_features)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: borrowed weight '%s' is [%lld, %lld], expected [%lld, %lld]",
                          desc->name, weight->name, (long long)weight->shape[0], (long long)weight->shape[1],
                          (long long)desc->out_features, (long long)desc->in_features);
    if (weight->value.dtype != desc->dtype)
        return tpi_refuse(ctx, TP_ERR_DTYPE, "%s: borrowed weight '%s' is %s, expected %s", desc->name, weight->name,
                          tp_dtype_name(weight->value.dtype), tp_dtype_name(desc->dtype));
    bool same = weight->shard_dim == (desc->kind == TP_LINEAR_COLUMN ? 0 : desc->kind == TP_LINEAR_ROW ? 1 : -1);
    if (desc->kind != TP_LINEAR_REPLICATED && same) {
        same = weight->parts == desc->parts;
        for (int p = 0; same && p < desc->parts; p++)
            same = weight->part[p].units == desc->part[p].units &&
                   weight->part[p].unit_size == desc->part[p].unit_size &&
                   weight->part[p].readers == desc->part[p].readers;
    }
    return same ? TP_OK
                : tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: borrowed weight '%s' is cut in another way", desc->name,
                             weight->name);
}

static tp_status create_params(tp_ctx *ctx, tp_linear *layer)
{
    const tp_linear_desc *desc = &layer->desc;
    tpi_param_desc param = {.layer = desc->name,
                            .suffix = "weight",
                            .dims = 2,
                            .shape = {desc->out_features, desc->in_features},
                            .shard_dim = desc->kind == TP_LINEAR_COLUMN ? 0 : desc->kind == TP_LINEAR_ROW ? 1 : -1,
                            .parts = desc->parts,
                            .part = {desc->part[0], desc->part[1], desc->part[2]},
                            .dtype = desc->dtype,
                            .flags = TP_PARAM_DECAY,
                            .init = TP_INIT_NORMAL,
                            .init_std = desc->init_std > 0 ? desc->init_std : 0.02f,
                            .packed = true};
    if (desc->weight != NULL)
        layer->weight = desc->weight;
    else
        TPI_TRY(tpi_param_create(ctx, &param, &layer->weight));
    if (!desc->bias)
        return TP_OK;
    param.suffix = "bias";
    param.dims = 1;
    param.shape[0] = desc->out_features;
    param.shape[1] = 0;
    param.shard_dim = desc->kind == TP_LINEAR_COLUMN ? 0 : -1;
    param.flags = 0;
    param.init = TP_INIT_ZERO;
    param.packed = false;
    return tpi_param_create(ctx, &param, &layer->bias);
}

/* What AUTO goes by: the same on all ranks, so features of this rank are an equal share. */
static tp_overlap_shape shape_of(const tp_linear *layer, tp_pattern pattern)
{
    bool column = layer->desc.kind == TP_LINEAR_COLUMN, ranks_share = layer->desc.kind != TP_LINEAR_REPLICATED;
    int64_t share = ranks_share ? layer->ranks : 1;
    int64_t in = column ? layer->desc.in_features : (layer->desc.in_features + share - 1) / share;
    int64_t out = column ? (layer->desc.out_features + share - 1) / share : layer->desc.out_features;
    tp_overlap_shape shape = {.dtype = layer->desc.dtype, .cols = {out, in}, .inner = {in, out}};
    bool forward = column ? pattern == TP_PATTERN_GATHER_GEMM
                          : pattern == TP_PATTERN_GEMM_SCATTER || pattern == TP_PATTERN_GEMM_REDUCE;
    if (!forward) {
        shape.cols[0] = in;
        shape.inner[0] = out;
    }
    if (pattern == TP_PATTERN_GATHER_WEIGHT && !column) { /* dy is gathered */
        shape.cols[0] = out;
        shape.inner[0] = in;
    }
    return shape;
}

static tp_status make_site(const tp_linear *layer, tp_pattern pattern, tpi_site *out)
{
    bool alone = pattern == TP_PATTERN_GEMM;
    const tp_plan_desc plan = {.algorithm = alone ? TP_OVERLAP_NONE : layer->desc.overlap,
                               .pattern = pattern,
                               .ranks = alone ? 1 : layer->ranks,
                               .chunks = alone ? 1 : layer->desc.chunks};
    const tp_overlap_shape shape = shape_of(layer, pattern);
    return tpi_site_make(layer->ctx, layer->group, &plan, &shape, out);
}

static tp_status make_sites(tp_linear *layer)
{
    bool many = layer->ranks > 1, split = layer->gather_input || layer->gather_gradient;
    tp_pattern reduction = split ? TP_PATTERN_GEMM_SCATTER : TP_PATTERN_GEMM_REDUCE;
    tp_pattern forward = layer->desc.kind == TP_LINEAR_ROW && many ? reduction : TP_PATTERN_GEMM;
    tp_pattern input = layer->desc.kind == TP_LINEAR_COLUMN && many ? reduction : TP_PATTERN_GEMM;
    TPI_TRY(make_site(layer, layer->gather_input ? TP_PATTERN_GATHER_GEMM : forward, &layer->forward));
    TPI_TRY(make_site(layer, layer->gather_gradient ? TP_PATTERN_GATHER_GEMM : input, &layer->input));
    if (layer->desc.kind == TP_LINEAR_COLUMN && many && layer->desc.overlap != TP_OVERLAP_NONE)
        TPI_TRY(make_site(layer, split ? TP_PATTERN_BACKWARD : TP_PATTERN_BACKWARD_REDUCE, &layer->both));
    /* `pipeline` has no slices of columns, but chunks of rows for the input gradient. */
    if (layer->gather_gradient && layer->desc.overlap != TP_OVERLAP_NONE && layer->desc.overlap != TP_OVERLAP_PIPELINE)
        TPI_TRY(make_site(layer, TP_PATTERN_ROW_BACKWARD, &layer->both));
    if (layer->gather_gradient && tpi_site_may_run(&layer->input, TP_OVERLAP_DIRECT))
        TPI_TRY(make_site(layer, TP_PATTERN_GATHER_WEIGHT, &layer->weight_direct));
    return make_site(layer, layer->gather_input ? TP_PATTERN_GATHER_WEIGHT : TP_PATTERN_GEMM, &layer->weight_site);
}

static tp_status fill(tp_ctx *ctx, const tp_linear_desc *desc, tp_linear *layer)
{
    layer->ctx = ctx;
    layer->desc = *desc;
    snprintf(layer->name, sizeof layer->name, "%s", desc->name ? desc->name : "linear");
    layer->desc.name = layer->name;
    layer->group = tp_ctx_group(ctx, TP_AXIS_TP);
    layer->ranks = tp_comm_size(layer->group);
    if (desc->kind == TP_LINEAR_REPLICATED && desc->sequence_parallel && layer->ranks > 1)
        return tpi_refuse(ctx, TP_ERR_UNSUPPORTED,
                          "%s: a replicated layer (kind %d) sees all tokens, but sequence_parallel would give each of "
                          "%d ranks its own",
                          layer->name, (int)desc->kind, layer->ranks);
    TPI_TRY(resolve_parts(ctx, &layer->desc, layer->ranks));
    if (desc->weight != NULL)
        TPI_TRY(check_borrowed(ctx, &layer->desc));
    bool split = desc->sequence_parallel && layer->ranks > 1;
    layer->gather_input = split && desc->kind == TP_LINEAR_COLUMN;
    layer->gather_gradient = split && desc->kind == TP_LINEAR_ROW;
    int64_t local = tpi_parts_local(layer->desc.part, layer->desc.parts, layer->ranks, tp_comm_rank(layer->group));
    layer->out_local = desc->kind == TP_LINEAR_COLUMN ? local : desc->out_features;
    layer->in_local = desc->kind == TP_LINEAR_ROW ? local : desc->in_features;
    TPI_TRY(make_sites(layer));
    return create_params(ctx, layer);
}

tp_status tp_linear_create(tp_ctx *ctx, const tp_linear_desc *desc, tp_linear **out)
{
    if (out == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_linear_create: out is NULL");
    *out = NULL;
    TPI_TRY(tpi_ctx_usable(ctx));
    if (desc == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_linear_create: desc is NULL");
    TPI_TRY(check_desc(ctx, desc));
    tp_linear *layer = tpi_host_allocate(ctx, sizeof *layer);
    if (layer == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "tp_linear_create: out of memory");
    tp_status status = fill(ctx, desc, layer);
    if (status != TP_OK) {
        tp_linear_destroy(layer);
        return status;
    }
    *out = layer;
    return TP_OK;
}

void tp_linear_destroy(tp_linear *layer)
{
    if (layer == NULL)
        return;
    tp_ctx_synchronize(layer->ctx); /* as tpi_param_destroy, which one with a borrowed weight may not come to */
    if (layer->desc.weight == NULL)
        tpi_param_destroy(layer->ctx, layer->weight);
    tpi_param_destroy(layer->ctx, layer->bias);
    tpi_host_release(layer->ctx, layer, sizeof *layer);
}

int tp_linear_params(tp_linear *layer, tp_param **out, int capacity)
{
    if (layer == NULL)
        return 0;
    int count = layer->desc.weight == NULL ? tpi_params_append(out, capacity, 0, layer->weight) : 0;
    return tpi_params_append(out, capacity, count, layer->bias);
}

int64_t tp_linear_local_features(const tp_linear *layer)
{
    return layer == NULL ? 0 : layer->desc.kind == TP_LINEAR_ROW ? layer->in_local : layer->out_local;
}
