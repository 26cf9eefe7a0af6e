/* Issuing an op: usable, checked, counted, dispatched; nothing else. An op that has nothing to write is not dispatched.
 * In a dry run backends count what memory an op needs, and do nothing. */
#include "core/ops.h"

#include "core/ops_check.h"
#include "core/stream.h"

static void count(tp_ctx *ctx, double flops, double bytes)
{
    pthread_mutex_lock(&ctx->memory_lock);
    ctx->issued.flops += flops;
    ctx->issued.bytes += bytes;
    pthread_mutex_unlock(&ctx->memory_lock);
}

static double area(int64_t rows, int64_t cols)
{
    return (double)rows * (double)cols;
}

tp_status tpi_gemm(tpi_stream *stream, const tpi_gemm_args *args)
{
    tp_ctx *ctx = stream->ctx;
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_check_gemm(ctx, args));
    /* An empty inner sum is +0, which the epilogue still finishes. */
    if (args->rows == 0 || (args->cols == 0 && (!args->row_sums || args->inner == 0)))
        return TP_OK;
    tpi_cost cost = tpi_gemm_cost(args);
    count(ctx, cost.flops, cost.bytes);
    return ctx->backend->gemm(stream, args);
}

tp_status tpi_gemm_pack(tpi_stream *stream, const tpi_operand *b, int64_t cols, int64_t inner, const tpi_inner *order,
                        const tpi_packed *out)
{
    tp_ctx *ctx = stream->ctx;
    return out->bytes > 0 ? ctx->backend->gemm_pack(stream, b, cols, inner, order, out) : TP_OK;
}

tp_status tpi_reduce(tpi_stream *stream, const tpi_reduce_args *args)
{
    tp_ctx *ctx = stream->ctx;
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_check_reduce(ctx, args));
    double elements = area(args->rows, args->cols);
    if (elements == 0)
        return TP_OK;
    count(ctx, elements * (args->inputs - 1),
          elements * (args->inputs * (double)tp_dtype_size(args->in_dtype) +
                      (args->outputs + (args->residual ? 1 : 0)) * (double)tp_dtype_size(args->out_dtype)));
    return ctx->backend->reduce(stream, args);
}

tp_status tpi_map(tpi_stream *stream, const tpi_map_args *args)
{
    tp_ctx *ctx = stream->ctx;
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_check_map(ctx, args));
    double elements = area(args->rows, args->cols);
    if (elements == 0)
        return TP_OK;
    double read = args->in ? (double)tp_dtype_size(args->in_dtype) : 0, out_passes = args->accumulate ? 2 : 1;
    count(ctx, elements, elements * (read + out_passes * (double)tp_dtype_size(args->out_dtype)));
    return ctx->backend->map(stream, args);
}

tp_status tpi_activate(tpi_stream *stream, const tpi_activation_args *args)
{
    tp_ctx *ctx = stream->ctx;
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_check_activation(ctx, args));
    double elements = area(args->rows, args->cols);
    if (elements == 0)
        return TP_OK;
    double wide = args->gated ? 2 : 1;
    double passes = wide + (args->y ? 1 : 0) + (args->dy ? 1 + wide : 0);
    count(ctx, elements, elements * passes * (double)tp_dtype_size(args->dtype));
    return ctx->backend->activation(stream, args);
}

tp_status tpi_rope(tpi_stream *stream, const tpi_rope_args *args)
{
    tp_ctx *ctx = stream->ctx;
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_check_rope(ctx, args));
    double elements = area(args->rows, args->heads) * (double)args->dim;
    if (elements == 0)
        return TP_OK;
    count(ctx, 3 * elements, 2 * elements * (double)tp_dtype_size(args->dtype));
    return ctx->backend->rope(stream, args);
}

void tpi_norm_count(tp_ctx *ctx, const tpi_norm_args *args)
{
    double elements = area(args->rows, args->cols);
    count(ctx, 8 * elements, 2 * elements * (double)tp_dtype_size(args->dtype));
}

tp_status tpi_norm(tpi_stream *stream, const tpi_norm_args *args)
{
    tp_ctx *ctx = stream->ctx;
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_check_norm(ctx, args));
    if (area(args->rows, args->cols) == 0)
        return TP_OK;
    tpi_norm_count(ctx, args);
    return ctx->backend->norm(stream, args);
}

tp_status tpi_norm_grad(tpi_stream *stream, const tpi_norm_grad_args *args)
{
    tp_ctx *ctx = stream->ctx;
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_check_norm_grad(ctx, args));
    double elements = area(args->rows, args->cols);
    if (elements == 0)
        return TP_OK;
    double passes = 2 + (args->dx ? 1 : 0) + (args->residual ? 1 : 0); /* x and dy are read */
    count(ctx, 14 * elements, passes * elements * (double)tp_dtype_size(args->dtype));
    return ctx->backend->norm_grad(stream, args);
}

tp_status tpi_attention(tpi_stream *stream, const tpi_attention_args *args)
{
    tp_ctx *ctx = stream->ctx;
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_check_attention(ctx, args));
    if (args->rows == 0 || args->heads == 0)
        return TP_OK;
    tpi_cost cost = tpi_attention_cost(args);
    count(ctx, cost.flops, cost.bytes);
    return ctx->backend->attention(stream, args);
}

tp_status tpi_attention_grad(tpi_stream *stream, const tpi_attention_grad_args *args)
{
    tp_ctx *ctx = stream->ctx;
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_check_attention_grad(ctx, args));
    /* Slots without a head still get their zeros. */
    if (args->forward.rows == 0 || (args->forward.heads == 0 && args->slots == 0))
        return TP_OK;
    tpi_cost cost = tpi_attention_grad_cost(args);
    count(ctx, cost.flops, cost.bytes);
    return ctx->backend->attention_grad(stream, args);
}

tp_status tpi_embedding(tpi_stream *stream, const tpi_embedding_args *args)
{
    tp_ctx *ctx = stream->ctx;
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_check_embedding(ctx, args));
    double elements = area(args->rows, args->cols);
    if (args->rows == 0)
        return TP_OK; /* without columns ids are looked at all the same */
    count(ctx, 0, elements * (double)(tp_dtype_size(args->table_dtype) + tp_dtype_size(args->out_dtype)));
    return ctx->backend->embedding(stream, args);
}

tp_status tpi_embedding_grad(tpi_stream *stream, const tpi_embedding_grad_args *args)
{
    tp_ctx *ctx = stream->ctx;
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_check_embedding_grad(ctx, args));
    double elements = args->table_rows > 0 ? area(args->rows, args->cols) : 0;
    if (args->rows == 0)
        return TP_OK;
    count(ctx, elements, elements * ((double)tp_dtype_size(args->dy_dtype) + 8));
    return ctx->backend->embedding_grad(stream, args);
}

tp_status tpi_xent(tpi_stream *stream, const tpi_xent_args *args)
{
    tp_ctx *ctx = stream->ctx;
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_check_xent(ctx, args));
    if (args->rows == 0) /* a shard without columns still writes -inf and zeros */
        return TP_OK;
    double elements = args->phase == TPI_XENT_LOSS ? 0 : area(args->rows, args->cols);
    double passes = args->phase == TPI_XENT_GRAD ? 2 : 1;
    count(ctx, 4 * elements, passes * elements * (double)tp_dtype_size(args->dtype));
    return ctx->backend->xent(stream, args);
}

tp_status tpi_square_sum(tpi_stream *stream, const tpi_square_sum_args *args)
{
    return tpi_square_sum_list(stream, args, 1);
}

tp_status tpi_square_sum_list(tpi_stream *stream, const tpi_square_sum_args *args, int number)
{
    tp_ctx *ctx = stream->ctx;
    double elements = 0; /* none: the result is still 0 */
    TPI_TRY(tpi_ctx_usable(ctx));
    for (int i = 0; i < number; i++) {
        TPI_TRY(tpi_check_square_sum(ctx, &args[i]));
        elements += area(args[i].rows, args[i].cols);
    }
    count(ctx, 2 * elements, 4 * elements);
    if (ctx->backend->square_sum_list)
        return ctx->backend->square_sum_list(stream, args, number);
    for (int i = 0; i < number; i++)
        TPI_TRY(ctx->backend->square_sum(stream, &args[i]));
    return TP_OK;
}

tp_status tpi_optimizer(tpi_stream *stream, const tpi_optimizer_args *args)
{
    return tpi_optimizer_list(stream, args, 1);
}

static double optimizer_bytes(const tpi_optimizer_args *args)
{
    double moments = (args->m ? 8.0 : 0.0) + (args->v ? 8.0 : 0.0); /* read and written */
    double weights = args->master ? 8.0 + (double)tp_dtype_size(args->value_dtype) : 8.0;
    double copies = args->copies ? (double)args->copies->forward.bytes + (double)args->copies->backward.bytes : 0.0;
    return (double)args->elements * (4.0 + moments + weights) + copies;
}

tp_status tpi_optimizer_list(tpi_stream *stream, const tpi_optimizer_args *args, int number)
{
    tp_ctx *ctx = stream->ctx;
    double elements = 0, bytes = 0;
    TPI_TRY(tpi_ctx_usable(ctx));
    for (int i = 0; i < number; i++) {
        TPI_TRY(tpi_check_optimizer(ctx, &args[i]));
        elements += (double)args[i].elements;
        bytes += optimizer_bytes(&args[i]);
    }
    if (elements == 0)
        return TP_OK;
    count(ctx, 15.0 * elements, bytes);
    if (ctx->backend->optimizer_list)
        return ctx->backend->optimizer_list(stream, args, number);
    for (int i = 0; i < number; i++)
        if (args[i].elements > 0)
            TPI_TRY(ctx->backend->optimizer(stream, &args[i]));
    return TP_OK;
}

tp_status tpi_random_fill(tpi_stream *stream, const tpi_random_fill_args *args)
{
    tp_ctx *ctx = stream->ctx;
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_check_random_fill(ctx, args));
    double elements = area(args->rows, args->cols);
    if (elements == 0)
        return TP_OK;
    count(ctx, 0, elements * (double)tp_dtype_size(args->dtype));
    return ctx->backend->random_fill(stream, args);
}
