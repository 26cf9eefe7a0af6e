/* Argument checks of the ops that layers are made of: map, activation, RoPE, norm, attention, embedding, cross-entropy.
 */
#include <math.h>

#include "core/ops_check.h"

/* Integers are only filled with zeros and copied. */
static tp_status check_integer_map(tpi_check check, const tpi_map_args *args)
{
    if (args->in)
        TPI_TRY(tpi_check_dtype(check, "in_dtype", args->in_dtype, args->out_dtype));
    if (args->accumulate || args->dropout != 0 || (args->scale != 0 && args->scale != 1))
        return tpi_refuse(check.ctx, TP_ERR_DTYPE, "%s: %s is copied only; scale %g, dropout %g", check.op,
                          tp_dtype_name(args->out_dtype), (double)args->scale, (double)args->dropout);
    return TP_OK;
}

tp_status tpi_check_map(tp_ctx *ctx, const tpi_map_args *args)
{
    tpi_check check = {ctx, "map"};
    int64_t rows = args->rows, cols = args->cols;
    TPI_TRY(tpi_check_size(check, "rows", rows));
    TPI_TRY(tpi_check_size(check, "cols", cols));
    TPI_TRY(tpi_check_size(check, "first_row", args->first_row));
    TPI_TRY(tpi_check_range(check, "out_dtype", (int)args->out_dtype, TP_DTYPE_F32, TP_DTYPE_COUNT - 1));
    TPI_TRY(tpi_check_dropout(check, args->dropout));
    TPI_TRY(tpi_check_rows(check, (tpi_check_matrix){"out", args->out, rows, cols, args->out_stride}));
    if (args->in)
        TPI_TRY(tpi_check_rows(check, (tpi_check_matrix){"in", args->in, rows, cols, args->in_stride}));
    if (tp_dtype_epsilon(args->out_dtype) == 0)
        return check_integer_map(check, args);
    if (args->accumulate) {
        TPI_TRY(tpi_check_dtype(check, "out_dtype of an accumulating map", args->out_dtype, TP_DTYPE_F32));
        TPI_TRY(tpi_check_pointer(check, "in of an accumulating map", args->in, rows > 0 && cols > 0));
    }
    return args->in ? tpi_check_float(check, "in_dtype", args->in_dtype) : TP_OK;
}

tp_status tpi_check_activation(tp_ctx *ctx, const tpi_activation_args *args)
{
    tpi_check check = {ctx, "activation"};
    int64_t rows = args->rows, cols = args->cols;
    TPI_TRY(tpi_check_size(check, "rows", rows));
    TPI_TRY(tpi_check_range(check, "cols", cols, 0, INT64_MAX / 2));
    TPI_TRY(tpi_check_range(check, "activation", (int)args->activation, 0, TPI_ACT_COUNT - 1));
    TPI_TRY(tpi_check_float(check, "dtype", args->dtype));
    int64_t wide = args->gated ? 2 * cols : cols;
    TPI_TRY(tpi_check_rows(check, (tpi_check_matrix){"x", args->x, rows, wide, args->x_stride}));
    if (args->y || !args->dy)
        TPI_TRY(tpi_check_rows(check, (tpi_check_matrix){"y", args->y, rows, cols, args->y_stride}));
    if (!args->dy)
        return TP_OK;
    TPI_TRY(tpi_check_rows(check, (tpi_check_matrix){"dy", args->dy, rows, cols, args->dy_stride}));
    return tpi_check_rows(check, (tpi_check_matrix){"dx", args->dx, rows, wide, args->dx_stride});
}

tp_status tpi_check_rope(tp_ctx *ctx, const tpi_rope_args *args)
{
    tpi_check check = {ctx, "rope"};
    TPI_TRY(tpi_check_size(check, "rows", args->rows));
    TPI_TRY(tpi_check_size(check, "heads", args->heads));
    TPI_TRY(tpi_check_range(check, "head_dim", args->head_dim, 1, INT32_MAX));
    TPI_TRY(tpi_check_range(check, "dim", args->dim, 0, args->head_dim));
    if (args->dim % 2 != 0)
        return tpi_refuse(ctx, TP_ERR_SHAPE, "rope: dim is %lld, not divisible by 2", (long long)args->dim);
    TPI_TRY(tpi_check_float(check, "dtype", args->dtype));
    TPI_TRY(tpi_check_rows(check,
                           (tpi_check_matrix){"x", args->x, args->rows, args->heads * args->head_dim, args->stride}));
    if (!(args->theta > 0))
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "rope: theta is %g, not more than 0", args->theta);
    return args->positions ? TP_OK : tpi_check_sequences(check, args->rows, args->sequences, args->offsets);
}

tp_status tpi_check_norm(tp_ctx *ctx, const tpi_norm_args *args)
{
    tpi_check check = {ctx, "norm"};
    int64_t rows = args->rows, cols = args->cols;
    TPI_TRY(tpi_check_size(check, "rows", rows));
    TPI_TRY(tpi_check_size(check, "cols", cols));
    TPI_TRY(tpi_check_float(check, "dtype", args->dtype));
    TPI_TRY(tpi_check_number(check, "epsilon", (double)args->epsilon, 0, INFINITY));
    TPI_TRY(tpi_check_rows(check, (tpi_check_matrix){"x", args->x, rows, cols, args->x_stride}));
    TPI_TRY(tpi_check_rows(check, (tpi_check_matrix){"y", args->y, rows, cols, args->y_stride}));
    TPI_TRY(tpi_check_pointer(check, "gain", args->gain, rows > 0 && cols > 0));
    if (args->rms && args->bias)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "norm: an RMSNorm has no bias");
    return TP_OK;
}

static tp_status check_norm_params(tpi_check check, const tpi_norm_grad_args *args)
{
    if (!args->gain_grad && !args->bias_grad)
        return TP_OK;
    if (args->rms && args->bias_grad)
        return tpi_refuse(check.ctx, TP_ERR_ARGUMENT, "%s: an RMSNorm has no bias", check.op);
    TPI_TRY(tpi_check_size(check, "total_rows", args->total_rows));
    TPI_TRY(tpi_check_range(check, "first_row", args->first_row, 0, args->total_rows));
    TPI_TRY(tpi_check_range(check, "rows", args->rows, 0, args->total_rows - args->first_row));
    TPI_TRY(tpi_check_range(check, "virtual_count", args->virtual_count, 1, INT32_MAX));
    return tpi_check_range(check, "virtual_first", args->virtual_first, 0, args->virtual_count - 1);
}

tp_status tpi_check_norm_grad(tp_ctx *ctx, const tpi_norm_grad_args *args)
{
    tpi_check check = {ctx, "norm_grad"};
    int64_t rows = args->rows, cols = args->cols;
    TPI_TRY(tpi_check_size(check, "rows", rows));
    TPI_TRY(tpi_check_size(check, "cols", cols));
    TPI_TRY(tpi_check_float(check, "dtype", args->dtype));
    TPI_TRY(tpi_check_rows(check, (tpi_check_matrix){"x", args->x, rows, cols, args->x_stride}));
    TPI_TRY(tpi_check_rows(check, (tpi_check_matrix){"dy", args->dy, rows, cols, args->dy_stride}));
    TPI_TRY(tpi_check_pointer(check, "stats", args->stats, rows > 0 && cols > 0));
    if (args->dx) {
        TPI_TRY(tpi_check_pointer(check, "gain", args->gain, rows > 0 && cols > 0));
        TPI_TRY(tpi_check_rows(check, (tpi_check_matrix){"dx", args->dx, rows, cols, args->dx_stride}));
    }
    if (args->residual)
        TPI_TRY(
            tpi_check_rows(check, (tpi_check_matrix){"residual", args->residual, rows, cols, args->residual_stride}));
    return check_norm_params(check, args);
}

static tp_status check_heads(tpi_check check, const tpi_attention_args *args)
{
    TPI_TRY(tpi_check_pointer(check, "kv_of_head", args->kv_of_head, args->heads > 0 && args->rows > 0));
    if (check.ctx->desc.device != TP_DEVICE_CPU || args->rows == 0)
        return TP_OK;
    for (int64_t head = 0; head < args->heads; head++)
        TPI_TRY(tpi_check_range(check, "kv_of_head[head]", args->kv_of_head[head], 0, args->kv_heads - 1));
    return TP_OK;
}

static tp_status check_attention(tpi_check check, const tpi_attention_args *args)
{
    int64_t rows = args->rows;
    TPI_TRY(tpi_check_size(check, "rows", rows));
    TPI_TRY(tpi_check_range(check, "heads", args->heads, 0, INT32_MAX));
    TPI_TRY(tpi_check_range(check, "kv_heads", args->kv_heads, 0, INT32_MAX));
    TPI_TRY(tpi_check_range(check, "head_dim", args->head_dim, 1, INT32_MAX));
    TPI_TRY(tpi_check_float(check, "dtype", args->dtype));
    int64_t q_cols = args->heads * args->head_dim, kv_cols = args->kv_heads * args->head_dim;
    TPI_TRY(tpi_check_rows(check, (tpi_check_matrix){"q", args->q, rows, q_cols, args->q_stride}));
    TPI_TRY(tpi_check_rows(check, (tpi_check_matrix){"k", args->k, rows, kv_cols, args->k_stride}));
    TPI_TRY(tpi_check_rows(check, (tpi_check_matrix){"v", args->v, rows, kv_cols, args->v_stride}));
    TPI_TRY(tpi_check_rows(check, (tpi_check_matrix){"out", args->out, rows, q_cols, args->out_stride}));
    TPI_TRY(check_heads(check, args));
    TPI_TRY(tpi_check_sequences(check, rows, args->sequences, args->offsets));
    TPI_TRY(tpi_check_number(check, "scale", (double)args->scale, -INFINITY, INFINITY));
    TPI_TRY(tpi_check_size(check, "window", args->window));
    TPI_TRY(tpi_check_dropout(check, args->dropout));
    if (args->dropout == 0)
        return TP_OK;
    /* Masks are drawn on the global head. */
    TPI_TRY(tpi_check_size(check, "first_token", args->first_token));
    TPI_TRY(tpi_check_size(check, "first_head", args->first_head));
    return tpi_check_range(check, "total_heads", args->total_heads, args->first_head + args->heads, INT32_MAX);
}

tp_status tpi_check_attention(tp_ctx *ctx, const tpi_attention_args *args)
{
    return check_attention((tpi_check){ctx, "attention"}, args);
}

tp_status tpi_check_attention_grad(tp_ctx *ctx, const tpi_attention_grad_args *args)
{
    tpi_check check = {ctx, "attention_grad"};
    const tpi_attention_args *forward = &args->forward;
    TPI_TRY(check_attention(check, forward));
    int64_t rows = forward->rows, cols = forward->heads * forward->head_dim;
    TPI_TRY(tpi_check_pointer(check, "lse", forward->lse, rows > 0 && forward->heads > 0));
    TPI_TRY(tpi_check_rows(check, (tpi_check_matrix){"dout", args->dout, rows, cols, args->dout_stride}));
    TPI_TRY(tpi_check_rows(check, (tpi_check_matrix){"dq", args->dq, rows, cols, args->dq_stride}));
    TPI_TRY(tpi_check_range(check, "slots", args->slots, 0, INT32_MAX));
    TPI_TRY(tpi_check_pointer(check, "dk", args->dk, rows > 0 && args->slots > 0));
    TPI_TRY(tpi_check_pointer(check, "dv", args->dv, rows > 0 && args->slots > 0));
    TPI_TRY(tpi_check_pointer(check, "slot_of_head", args->slot_of_head, rows > 0 && forward->heads > 0));
    int32_t slot = 0;
    for (int64_t head = 0; ctx->desc.device == TP_DEVICE_CPU && rows > 0 && head < forward->heads; head++) {
        TPI_TRY(tpi_check_range(check, "slot_of_head[head]", args->slot_of_head[head], slot, args->slots - 1));
        slot = args->slot_of_head[head];
    }
    return TP_OK;
}

/* first_id, table_rows: this rank's part of `vocabulary`. */
static tp_status check_vocabulary(tpi_check check, int64_t first_id, int64_t table_rows, int64_t vocabulary)
{
    TPI_TRY(tpi_check_size(check, "vocabulary", vocabulary));
    TPI_TRY(tpi_check_range(check, "first_id", first_id, 0, vocabulary));
    return tpi_check_range(check, "rows of the table", table_rows, 0, vocabulary - first_id);
}

tp_status tpi_check_embedding(tp_ctx *ctx, const tpi_embedding_args *args)
{
    tpi_check check = {ctx, "embedding"};
    TPI_TRY(tpi_check_size(check, "rows", args->rows));
    TPI_TRY(tpi_check_size(check, "cols", args->cols));
    TPI_TRY(check_vocabulary(check, args->first_id, args->table_rows, args->vocabulary));
    TPI_TRY(tpi_check_float(check, "table_dtype", args->table_dtype));
    TPI_TRY(tpi_check_f32_or(check, "out_dtype", args->out_dtype, args->table_dtype));
    bool written = args->rows > 0 && args->cols > 0;
    TPI_TRY(tpi_check_pointer(check, "table", args->table, written && args->table_rows > 0));
    TPI_TRY(tpi_check_pointer(check, "out", args->out, written));
    return args->ids ? TP_OK : tpi_check_sequences(check, args->rows, args->sequences, args->offsets);
}

tp_status tpi_check_embedding_grad(tp_ctx *ctx, const tpi_embedding_grad_args *args)
{
    tpi_check check = {ctx, "embedding_grad"};
    TPI_TRY(tpi_check_size(check, "rows", args->rows));
    TPI_TRY(tpi_check_size(check, "cols", args->cols));
    TPI_TRY(check_vocabulary(check, args->first_id, args->table_rows, args->vocabulary));
    TPI_TRY(tpi_check_float(check, "dy_dtype", args->dy_dtype));
    bool read = args->rows > 0 && args->cols > 0;
    TPI_TRY(tpi_check_pointer(check, "dy", args->dy, read));
    TPI_TRY(tpi_check_pointer(check, "grad", args->grad, read && args->table_rows > 0));
    return args->ids ? TP_OK : tpi_check_sequences(check, args->rows, args->sequences, args->offsets);
}

static tp_status check_xent_buffers(tpi_check check, const tpi_xent_args *args)
{
    bool loss = args->phase == TPI_XENT_LOSS, grad = args->phase == TPI_XENT_GRAD, rows = args->rows > 0;
    TPI_TRY(tpi_check_pointer(check, "max", args->max, rows));
    TPI_TRY(tpi_check_pointer(check, "sums", args->sums, rows && args->phase != TPI_XENT_MAX));
    TPI_TRY(tpi_check_pointer(check, "targets", args->targets, rows && args->phase != TPI_XENT_MAX));
    TPI_TRY(tpi_check_pointer(check, "lse", args->lse, rows && (loss || grad)));
    if (loss)
        return tpi_check_pointer(check, "loss", args->loss, rows);
    return tpi_check_rows(check, (tpi_check_matrix){"logits", args->logits, args->rows, args->cols, args->stride});
}

tp_status tpi_check_xent(tp_ctx *ctx, const tpi_xent_args *args)
{
    tpi_check check = {ctx, "xent"};
    TPI_TRY(tpi_check_range(check, "phase", (int)args->phase, TPI_XENT_MAX, TPI_XENT_GRAD));
    TPI_TRY(tpi_check_size(check, "rows", args->rows));
    TPI_TRY(tpi_check_size(check, "cols", args->cols));
    TPI_TRY(check_vocabulary(check, args->first_id, args->cols, args->vocabulary));
    TPI_TRY(tpi_check_float(check, "dtype", args->dtype));
    TPI_TRY(tpi_check_number(check, "label_smoothing", (double)args->label_smoothing, 0, 1));
    TPI_TRY(tpi_check_number(check, "z_loss", (double)args->z_loss, 0, INFINITY));
    TPI_TRY(tpi_check_order(check, args->order, args->cols));
    return check_xent_buffers(check, args);
}
