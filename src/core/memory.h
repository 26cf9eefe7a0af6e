/* Counting memory that somebody else than the backend gave. */
#ifndef TPI_MEMORY_H
#define TPI_MEMORY_H

#include "core/context.h"

void tpi_memory_taken(tp_ctx *ctx, tp_memory_kind kind, size_t bytes);
void tpi_memory_given_back(tp_ctx *ctx, tp_memory_kind kind, size_t bytes);

#endif
