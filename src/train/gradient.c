/* Gradients from the beginning of a step to its end. Between tp_params_begin and tp_params_finish what is known to be
 * zero is neither written nor added: a weight's gradient is overwritten by its first product, and of the gradient that
 * an embedding leaves to a tied head only rows of the step's tokens are touched. On devices tp_params_begin clears,
 * like tp_params_zero_grad: recorded graphs replay what was issued, not what the host knew. */
#include <string.h>

#include "train/param.h"

static tp_status clear(tp_ctx *ctx, float *data, int64_t elements)
{
    return tpi_map(ctx->compute, &(tpi_map_args){.rows = 1,
                                                .cols = elements,
                                                .out = data,
                                                .in_dtype = TP_DTYPE_F32,
                                                .out_dtype = TP_DTYPE_F32,
                                                .in_stride = elements,
                                                .out_stride = elements});
}

static tp_status clear_all(tp_ctx *ctx, tp_tensor view)
{
    return view.data != NULL ? clear(ctx, view.data, tp_tensor_elements(view)) : TP_OK;
}

tp_status tpi_param_move(tp_ctx *ctx, const float *from, float *to, int64_t elements, bool accumulate)
{
    return tpi_map(ctx->compute, &(tpi_map_args){.rows = 1,
                                                .cols = elements,
                                                .in = from,
                                                .in_dtype = TP_DTYPE_F32,
                                                .in_stride = elements,
                                                .out = to,
                                                .out_dtype = TP_DTYPE_F32,
                                                .out_stride = elements,
                                                .accumulate = accumulate});
}

tp_status tp_params_zero_grad(tp_ctx *ctx, tp_param *const *params, int count)
{
    TPI_TRY(tpi_params_check(ctx, "tp_params_zero_grad", params, count));
    for (int i = 0; i < count; i++) {
        tpi_param_internal *internal = params[i]->internal;
        TPI_TRY(clear_all(ctx, params[i]->grad));
        TPI_TRY(clear_all(ctx, params[i]->grad_tied));
        TPI_TRY(clear_all(ctx, params[i]->grad_partial));
        internal->unset = false;
        internal->rows_known = false; /* the caller may write where it likes */
    }
    return TP_OK;
}

/* ---- rows of a tied gradient ---- */

static tp_status clear_tied(tp_ctx *ctx, tp_param *param)
{
    tpi_param_internal *internal = param->internal;
    const int64_t rows = param->grad_tied.shape[0], cols = param->grad_tied.shape[1];
    if (internal->touched == NULL)
        return clear_all(ctx, param->grad_tied);
    if (!internal->rows_known)
        TPI_TRY(clear_all(ctx, param->grad_tied));
    for (int64_t row = 0; internal->rows_known && row < rows; row++)
        if (internal->touched[row])
            TPI_TRY(clear(ctx, (float *)param->grad_tied.data + row * cols, cols));
    memset(internal->touched, 0, (size_t)rows);
    internal->rows_known = true;
    return TP_OK;
}

void tpi_param_touch_rows(tp_param *param, const int32_t *ids, int64_t count, int64_t first)
{
    tpi_param_internal *internal = param->internal;
    if (internal->touched == NULL || !internal->rows_known)
        return;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = ids[i] - first;
        if (row >= 0 && row < param->grad_tied.shape[0])
            internal->touched[row] = 1;
    }
}

tp_status tpi_param_add_tied(tp_ctx *ctx, tp_param *param)
{
    const tpi_param_internal *internal = param->internal;
    const float *from = param->grad_tied.data;
    float *to = param->grad.data;
    const int64_t rows = param->grad_tied.shape[0], cols = param->grad_tied.shape[1];
    if (from == NULL)
        return TP_OK;
    if (!internal->rows_known)
        return tpi_param_move(ctx, from, to, rows * cols, true);
    for (int64_t row = 0; row < rows; row++)
        if (internal->touched[row])
            TPI_TRY(tpi_param_move(ctx, from + row * cols, to + row * cols, cols, true));
    return TP_OK;
}

/* ---- a step ---- */

bool tpi_param_unset(const tp_param *param)
{
    return tpi_param_internal_of(param)->unset;
}

void tpi_param_was_set(tp_param *param)
{
    tpi_param_internal *internal = param->internal;
    internal->unset = false;
}

tp_status tp_params_begin(tp_ctx *ctx, tp_param *const *params, int count)
{
    TPI_TRY(tpi_params_check(ctx, "tp_params_begin", params, count));
    if (!ctx->backend->host_memory)
        return tp_params_zero_grad(ctx, params, count);
    for (int i = 0; i < count; i++) {
        tpi_param_internal *internal = params[i]->internal;
        if (!internal->packed) /* only linear layers overwrite, and keep packed copies */
            TPI_TRY(clear_all(ctx, params[i]->grad));
        TPI_TRY(clear_tied(ctx, params[i]));
        TPI_TRY(clear_all(ctx, params[i]->grad_partial));
        internal->unset = internal->packed;
    }
    return TP_OK;
}

tp_status tpi_params_settle(tp_ctx *ctx, tp_param *const *params, int count)
{
    for (int i = 0; i < count; i++) {
        if (!tpi_param_unset(params[i]))
            continue;
        TPI_TRY(clear_all(ctx, params[i]->grad));
        tpi_param_was_set(params[i]);
    }
    return TP_OK;
}
