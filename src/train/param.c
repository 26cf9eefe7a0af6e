#include "train/param.h"

#include <stdio.h>
#include <string.h>

#include "core/inner.h"

static int group_rank(const tp_ctx *ctx)
{
    return tp_comm_rank(tp_ctx_group(ctx, TP_AXIS_TP));
}

static int group_size(const tp_ctx *ctx)
{
    return tp_comm_size(tp_ctx_group(ctx, TP_AXIS_TP));
}

static tp_tensor local_view(const tpi_param_desc *desc, tp_dtype dtype, int64_t local)
{
    int64_t shape[2] = {desc->shape[0], desc->dims == 2 ? desc->shape[1] : 1};
    if (desc->shard_dim >= 0)
        shape[desc->shard_dim] = local;
    return desc->dims == 2 ? tp_tensor_2d(NULL, dtype, shape[0], shape[1]) : tp_tensor_1d(NULL, dtype, shape[0]);
}

static tp_status allocate_view(tp_ctx *ctx, tp_tensor *view)
{
    return tp_ctx_allocate(ctx, TP_MEMORY_PARAM, tp_tensor_bytes(*view), &view->data);
}

static void release_view(tp_ctx *ctx, tp_tensor *view)
{
    if (view->data != NULL)
        tp_ctx_release(ctx, TP_MEMORY_PARAM, view->data, tp_tensor_bytes(*view));
}

static tp_status allocate_copy(tp_ctx *ctx, tpi_packed *copy)
{
    if (copy->bytes == 0 && !ctx->backend->host_memory)
        return TP_OK;
    return tp_ctx_allocate(ctx, TP_MEMORY_PARAM, copy->bytes, &copy->data);
}

static tp_status allocate_packed(tp_ctx *ctx, tp_param *param, tpi_param_internal *internal)
{
    const tpi_backend *backend = ctx->backend;
    tpi_weight_copies *copies = &internal->copies;
    int64_t rows = param->value.shape[0], cols = param->value.shape[1];
    *copies = (tpi_weight_copies){.rows = rows, .cols = cols, .forward_order = tpi_param_order(param, 1),
                                  .backward_order = tpi_param_order(param, 0)};
    copies->forward.bytes = backend->gemm_packed_bytes(ctx, param->value.dtype, rows, cols, copies->forward_order);
    copies->backward.bytes = backend->gemm_packed_bytes(ctx, param->value.dtype, cols, rows, copies->backward_order);
    TPI_TRY(allocate_copy(ctx, &copies->forward));
    return allocate_copy(ctx, &copies->backward);
}

/* Nothing is kept on devices, whose ids the host doesn't read. */
static tp_status allocate_touched(tp_ctx *ctx, tp_param *param)
{
    tpi_param_internal *internal = param->internal;
    if (!ctx->backend->host_memory || param->grad_tied.shape[0] == 0)
        return TP_OK;
    internal->touched = tpi_host_allocate(ctx, (size_t)param->grad_tied.shape[0]);
    return internal->touched != NULL ? TP_OK
                                     : tpi_refuse(ctx, TP_ERR_MEMORY, "parameter '%s': out of memory", param->name);
}

static tp_status allocate_gradients(tp_ctx *ctx, const tpi_param_desc *desc, int64_t local, tp_param *param)
{
    if (desc->flags & TP_PARAM_FROZEN)
        return TP_OK;
    param->grad = local_view(desc, TP_DTYPE_F32, local);
    TPI_TRY(allocate_view(ctx, &param->grad));
    if (desc->flags & TP_PARAM_TIED) {
        param->grad_tied = param->grad;
        param->grad_tied.data = NULL;
        TPI_TRY(allocate_view(ctx, &param->grad_tied));
        TPI_TRY(allocate_touched(ctx, param));
    }
    if (desc->flags & TP_PARAM_PARTIAL) {
        int64_t count;
        tp_range mine = tp_shard_virtual(group_size(ctx), group_rank(ctx), &count);
        param->grad_partial = tp_tensor_2d(NULL, TP_DTYPE_F32, mine.end - mine.begin, tp_tensor_elements(param->grad));
        TPI_TRY(allocate_view(ctx, &param->grad_partial));
    }
    return TP_OK;
}

/* Whether sums over the cut dimension follow the order: always in the tree, else only if it leaves out what a neighbour
 * owns. */
static bool needs_order(const tp_ctx *ctx, const tpi_inner *order, int64_t local)
{
    int64_t owned = 0;
    for (int i = 0; i < order->segments; i++)
        owned += order->segment[i].length;
    return ctx->desc.sum_order == TP_SUM_TREE || owned < local;
}

static tp_status fill_param(tp_ctx *ctx, const tpi_param_desc *desc, tp_param *param)
{
    int ranks = group_size(ctx), rank = group_rank(ctx);
    int written = desc->layer ? snprintf(param->name, sizeof param->name, "%s.%s", desc->layer, desc->suffix)
                              : snprintf(param->name, sizeof param->name, "%s", desc->suffix);
    if (written >= (int)sizeof param->name)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "parameter name of %d characters, at most %d", written,
                          TP_PARAM_NAME - 1);
    param->flags = desc->flags;
    param->init = desc->init;
    param->init_std = desc->init_std;
    param->dims = desc->dims;
    memcpy(param->shape, desc->shape, sizeof param->shape);
    param->shard_dim = desc->shard_dim;
    param->parts = desc->parts;
    memcpy(param->part, desc->part, sizeof param->part);

    tpi_param_internal *internal = tpi_host_allocate(ctx, sizeof *internal);
    if (internal == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "parameter '%s': out of memory", param->name);
    param->internal = internal;
    internal->ctx = ctx;
    internal->packed = desc->packed;
    int64_t local = desc->shard_dim >= 0 ? tpi_parts_local(desc->part, desc->parts, ranks, rank) : 0;
    if (desc->shard_dim >= 0) {
        tpi_inner_from_parts(desc->part, desc->parts, ranks, rank, &internal->order);
        internal->ordered = needs_order(ctx, &internal->order, local);
    }
    param->value = local_view(desc, desc->dtype, local);
    TPI_TRY(allocate_view(ctx, &param->value));
    TPI_TRY(allocate_gradients(ctx, desc, local, param));
    return desc->packed ? allocate_packed(ctx, param, internal) : TP_OK;
}

tp_status tpi_param_create(tp_ctx *ctx, const tpi_param_desc *desc, tp_param **out)
{
    *out = NULL;
    tp_param *param = tpi_host_allocate(ctx, sizeof *param);
    if (param == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "parameter '%s%s%s': out of memory", desc->layer ? desc->layer : "",
                          desc->layer ? "." : "", desc->suffix);
    tp_status status = fill_param(ctx, desc, param);
    if (status == TP_OK)
        status = tp_params_zero_grad(ctx, &param, 1);
    if (status != TP_OK) {
        tpi_param_destroy(ctx, param);
        return status;
    }
    *out = param;
    return TP_OK;
}

const tpi_param_internal *tpi_param_internal_of(const tp_param *param)
{
    return param->internal;
}

void tpi_param_listen(tp_param *param, tpi_param_listener *listener)
{
    tpi_param_internal *internal = param->internal;
    listener->next = internal->listeners;
    internal->listeners = listener;
}

void tpi_param_ignore(tp_param *param, const tpi_param_listener *listener)
{
    tpi_param_internal *internal = param->internal;
    for (tpi_param_listener **at = &internal->listeners; *at != NULL; at = &(*at)->next)
        if (*at == listener) {
            *at = listener->next;
            return;
        }
}

bool tpi_param_has_master(const tp_param *param)
{
    const tpi_param_internal *internal = param->internal;
    for (const tpi_param_listener *listener = internal->listeners; listener != NULL; listener = listener->next)
        if (listener->master)
            return true;
    return false;
}

static void tell_listeners(tp_ctx *ctx, const tp_param *param, bool gone)
{
    const tpi_param_internal *internal = param->internal;
    for (tpi_param_listener *listener = internal->listeners, *next; listener != NULL; listener = next) {
        next = listener->next;
        listener->tell(listener, ctx, gone);
    }
}

void tpi_param_destroy(tp_ctx *ctx, tp_param *param)
{
    if (param == NULL)
        return;
    tp_ctx_synchronize(ctx); /* what was issued may still write there */
    release_view(ctx, &param->value);
    release_view(ctx, &param->grad);
    release_view(ctx, &param->grad_tied);
    release_view(ctx, &param->grad_partial);
    tpi_param_internal *internal = param->internal;
    if (internal != NULL) {
        tell_listeners(ctx, param, true);
        tpi_packed *const copies[] = {&internal->copies.forward, &internal->copies.backward};
        for (int i = 0; i < 2; i++)
            if (copies[i]->data != NULL)
                tp_ctx_release(ctx, TP_MEMORY_PARAM, copies[i]->data, copies[i]->bytes);
        if (internal->touched != NULL)
            tpi_host_release(ctx, internal->touched, (size_t)param->grad_tied.shape[0]);
        tpi_host_release(ctx, internal, sizeof *internal);
    }
    tpi_host_release(ctx, param, sizeof *param);
}

tp_status tpi_param_check(tp_ctx *ctx, const char *call, const tp_param *param)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (param == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: parameter is NULL", call);
    if (tpi_param_internal_of(param)->ctx != ctx)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: parameter '%s' belongs to another context", call, param->name);
    return TP_OK;
}

tp_status tpi_params_check(tp_ctx *ctx, const char *call, tp_param *const *params, int count)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (count < 0 || (count > 0 && params == NULL))
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: count is %d, params is %s", call, count,
                          params == NULL ? "NULL" : "set");
    uint64_t list = ++ctx->param_lists;
    for (int i = 0; i < count; i++) {
        TPI_TRY(tpi_param_check(ctx, call, params[i]));
        tpi_param_internal *internal = params[i]->internal;
        if (internal->list == list)
            return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: params[%d] and params[%d] are both '%s'", call,
                              internal->place, i, params[i]->name);
        internal->list = list;
        internal->place = i;
    }
    return TP_OK;
}

const tpi_inner *tpi_param_order(const tp_param *param, int dim)
{
    const tpi_param_internal *internal = param->internal;
    return dim == param->shard_dim && internal->ordered ? &internal->order : NULL;
}

void tpi_param_norm_order(tp_ctx *ctx, const tp_param *param, int *dim, tpi_inner *out)
{
    const tpi_param_internal *internal = param->internal;
    if (param->shard_dim >= 0) {
        *dim = param->shard_dim;
        *out = internal->order;
        return;
    }
    *dim = 0;
    tpi_inner_from_share(param->shape[0], group_size(ctx), group_rank(ctx), false, out);
}

int64_t tp_param_elements(const tp_param *param)
{
    if (param == NULL)
        return 0;
    return param->dims == 2 ? param->shape[0] * param->shape[1] : param->shape[0];
}

const tpi_weight_copies *tpi_param_copies(const tp_param *param)
{
    const tpi_param_internal *internal = param->internal;
    return internal->copies.forward.bytes > 0 && internal->copies.backward.bytes > 0 ? &internal->copies : NULL;
}

tp_status tpi_param_repack(tp_ctx *ctx, tp_param *param)
{
    const tpi_param_internal *internal = param->internal;
    const tpi_weight_copies *copies = &internal->copies;
    if (!internal->packed)
        return TP_OK;
    int64_t rows = copies->rows, cols = copies->cols;
    tpi_operand forward = {param->value.data, param->value.dtype, cols, 1};
    tpi_operand backward = {param->value.data, param->value.dtype, 1, cols};
    TPI_TRY(tpi_gemm_pack(ctx->compute, &forward, rows, cols, copies->forward_order, &copies->forward));
    return tpi_gemm_pack(ctx->compute, &backward, cols, rows, copies->backward_order, &copies->backward);
}

tp_status tp_param_touch(tp_ctx *ctx, tp_param *param)
{
    TPI_TRY(tpi_param_check(ctx, "tp_param_touch", param));
    TPI_TRY(tpi_param_repack(ctx, param));
    tell_listeners(ctx, param, false);
    return tpi_ctx_usable(ctx);
}
