/* What every backend's stream begins with. */
#ifndef TPI_STREAM_H
#define TPI_STREAM_H

#include "core/context.h"

struct tpi_stream {
    tp_ctx *ctx;
    const char *name;
    tpi_stream *next; /* of the context's streams */
    bool at_once;     /* what is issued has run when the call returns */
};

/* Backends enter their streams here, so that tp_ctx_synchronize reaches all of them. */
void tpi_stream_enter(tp_ctx *ctx, tpi_stream *stream);
void tpi_stream_leave(tpi_stream *stream);

#endif
