/* libtp's services under their own names, through the host table. */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "core/plugin.h"
#include "core/stream.h"

tp_status tpi_refuse(tp_ctx *ctx, tp_status status, const char *format, ...)
{
    char text[TPI_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return ctx->host->refuse(ctx, status, text);
}

tp_status tpi_fail(tp_ctx *ctx, tp_status status, const char *format, ...)
{
    char text[TPI_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return ctx->host->fail(ctx, status, text);
}

tp_status tpi_ctx_usable(tp_ctx *ctx)
{
    return ctx->host->usable(ctx);
}

tp_status tp_ctx_failure(const tp_ctx *ctx)
{
    return (tp_status)atomic_load(&ctx->failure.status);
}

tp_status tp_ctx_allocate(tp_ctx *ctx, tp_memory_kind kind, size_t bytes, void **out)
{
    return ctx->host->allocate(ctx, kind, bytes, out);
}

void tp_ctx_release(tp_ctx *ctx, tp_memory_kind kind, void *memory, size_t bytes)
{
    ctx->host->release(ctx, kind, memory, bytes);
}

void *tpi_host_allocate(tp_ctx *ctx, size_t bytes)
{
    return ctx->host->host_allocate(ctx, bytes);
}

void tpi_host_release(tp_ctx *ctx, void *memory, size_t bytes)
{
    ctx->host->host_release(ctx, memory, bytes);
}

void tpi_stream_enter(tp_ctx *ctx, tpi_stream *stream)
{
    ctx->host->stream_enter(ctx, stream);
}

void tpi_stream_leave(tpi_stream *stream)
{
    stream->ctx->host->stream_leave(stream);
}
