/* Refusals of op files, which don't see contexts. */
#include <stdarg.h>
#include <stdio.h>

#include "core/context.h"
#include "core/stream.h"
#include "cuda/stream.h"

tp_status tpi_cuda_refuse(tpi_stream *stream, tp_status status, const char *format, ...)
{
    char text[256];
    va_list values;

    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    return tpi_refuse(stream->ctx, status, "%s", text);
}
