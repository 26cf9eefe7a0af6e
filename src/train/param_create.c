/* Parameters of the caller's own modules: checks before anything is made. */
#include <string.h>

#include "core/inner.h"
#include "train/param.h"

static tp_status check_shape(tp_ctx *ctx, const tp_param_desc *desc)
{
    if (desc->name == NULL || desc->name[0] == '\0' || strlen(desc->name) >= TP_PARAM_NAME)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_param_desc.name has %zu characters, must have 1 to %d",
                          desc->name ? strlen(desc->name) : (size_t)0, TP_PARAM_NAME - 1);
    if (desc->dims < 1 || desc->dims > 2)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: dims %d, must be 1 or 2", desc->name, desc->dims);
    for (int dim = 0; dim < desc->dims; dim++)
        if (desc->shape[dim] < 1)
            return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: shape[%d] is %lld, must be at least 1", desc->name, dim,
                              (long long)desc->shape[dim]);
    int64_t cols = desc->dims == 2 ? desc->shape[1] : 1;
    if (desc->shape[0] > INT64_MAX / 8 / cols)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: shape %lld times %lld is too large", desc->name,
                          (long long)desc->shape[0], (long long)cols);
    if (desc->dtype != TP_DTYPE_F32 && desc->dtype != TP_DTYPE_BF16 && desc->dtype != TP_DTYPE_F16)
        return tpi_refuse(ctx, TP_ERR_DTYPE, "%s: dtype %s, expected f32, bf16 or f16", desc->name,
                          tp_dtype_name(desc->dtype));
    return TP_OK;
}

static tp_status check_rest(tp_ctx *ctx, const tp_param_desc *desc)
{
    const unsigned known = TP_PARAM_DECAY | TP_PARAM_TIED | TP_PARAM_FROZEN | TP_PARAM_PARTIAL;
    if (desc->flags & ~known)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: flags %#x, known ones are %#x", desc->name, desc->flags, known);
    if (desc->sharded && (desc->flags & TP_PARAM_PARTIAL))
        return tpi_refuse(ctx, TP_ERR_ARGUMENT,
                          "%s: sharded %d, but a PARTIAL gradient (flags %#x) is of a replicated parameter", desc->name,
                          desc->sharded, desc->flags);
    if ((int)desc->init < 0 || desc->init > TP_INIT_NORMAL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: init %d is not one of 0 to %d", desc->name, (int)desc->init,
                          TP_INIT_NORMAL);
    if (!(desc->init_std >= 0)) /* NaN too */
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: init_std %g is negative or NaN", desc->name,
                          (double)desc->init_std);
    return TP_OK;
}

/* The parts of a cut parameter: as given, or all of it in single indices. */
static tp_status resolve_parts(tp_ctx *ctx, const tp_param_desc *desc, tpi_param_desc *out)
{
    if (desc->shard_dim < 0 || desc->shard_dim >= desc->dims)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: shard_dim %d of %d dims", desc->name, desc->shard_dim, desc->dims);
    if (desc->parts < 0 || desc->parts > TP_PARAM_PARTS)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: %d parts, at most %d", desc->name, desc->parts, TP_PARAM_PARTS);
    int64_t extent = desc->shape[desc->shard_dim];
    out->parts = desc->parts > 0 ? desc->parts : 1;
    if (desc->parts == 0)
        out->part[0] = (tp_shard_part){.units = extent, .unit_size = 1};
    for (int p = 0; p < out->parts; p++) {
        const tp_shard_part *part = &out->part[p];
        bool right =
            part->units >= 1 && part->unit_size >= 1 && part->readers >= 0 && part->units <= extent / part->unit_size;
        if (!right || (part->readers > 0 && part->readers % part->units != 0))
            return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: part %d has %lld units of %lld with %lld readers", desc->name,
                              p, (long long)part->units, (long long)part->unit_size, (long long)part->readers);
    }
    if (tpi_parts_global(out->part, out->parts) != extent)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: parts add up to %lld, shape[%d] is %lld", desc->name,
                          (long long)tpi_parts_global(out->part, out->parts), desc->shard_dim, (long long)extent);
    return TP_OK;
}

tp_status tp_param_create(tp_ctx *ctx, const tp_param_desc *desc, tp_param **out)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (desc == NULL || out == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_param_create: %s is NULL", desc == NULL ? "desc" : "out");
    *out = NULL;
    TPI_TRY(check_shape(ctx, desc));
    TPI_TRY(check_rest(ctx, desc));
    tpi_param_desc full = {.suffix = desc->name,
                           .dims = desc->dims,
                           .shape = {desc->shape[0], desc->dims == 2 ? desc->shape[1] : 0},
                           .shard_dim = desc->sharded ? desc->shard_dim : -1,
                           .part = {desc->part[0], desc->part[1], desc->part[2]},
                           .dtype = desc->dtype,
                           .flags = desc->flags,
                           .init = desc->init,
                           .init_std = desc->init_std > 0 ? desc->init_std : 0.02f};
    if (desc->sharded)
        TPI_TRY(resolve_parts(ctx, desc, &full));
    return tpi_param_create(ctx, &full, out);
}

void tp_param_destroy(tp_ctx *ctx, tp_param *param)
{
    tpi_param_destroy(ctx, param);
}
