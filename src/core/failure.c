/* Refusals and failures of a context: the first failure wins, from any lane, and stops the other ranks too. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "comm/table.h"
#include "core/context.h"

tp_status tpi_refuse(tp_ctx *ctx, tp_status status, const char *format, ...)
{
    char text[TPI_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    tpi_message_set(text);
    if (ctx) {
        pthread_mutex_lock(&ctx->failure.lock);
        memcpy(ctx->refused, text, sizeof text);
        pthread_mutex_unlock(&ctx->failure.lock);
    }
    return status;
}

tp_status tpi_fail(tp_ctx *ctx, tp_status status, const char *format, ...)
{
    char text[TPI_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    tpi_message_set(text);

    pthread_mutex_lock(&ctx->failure.lock);
    bool first = atomic_load(&ctx->failure.status) == TP_OK;
    if (first) {
        memcpy(ctx->failure.message, text, sizeof text);
        atomic_store(&ctx->failure.status, (int)status); /* after the message: who sees it may read the text */
    }
    pthread_mutex_unlock(&ctx->failure.lock);
    if (!first)
        return status;
    if (ctx->desc.log)
        ctx->desc.log(ctx->desc.log_user, text);
    if (ctx->world)
        ctx->world->table->abort(ctx->world, ctx->world->rank, status, text);
    return status;
}

tp_status tpi_ctx_usable(tp_ctx *ctx)
{
    if (!ctx)
        return tpi_message(TP_ERR_ARGUMENT, "ctx is NULL");
    tp_status status = tp_ctx_failure(ctx);
    if (status != TP_OK)
        tpi_message_set(ctx->failure.message);
    return status;
}

tp_status tpi_given(tp_ctx *ctx, const char *what, const void *argument)
{
    return argument ? TP_OK : tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s is NULL", what);
}

tp_status tpi_object_usable(tp_ctx *ctx, const char *what, const tp_ctx *owner)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_given(ctx, what, owner));
    return owner == ctx ? TP_OK : tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s belongs to another context", what);
}

tp_status tp_ctx_failure(const tp_ctx *ctx)
{
    return ctx != NULL ? (tp_status)atomic_load(&ctx->failure.status) : TP_ERR_ARGUMENT;
}

const char *tp_ctx_message(const tp_ctx *ctx)
{
    if (ctx == NULL)
        return "";
    return tp_ctx_failure(ctx) != TP_OK ? ctx->failure.message : ctx->refused;
}
