/* Captures under way. */
#ifndef TPI_COMM_GRAPH_H
#define TPI_COMM_GRAPH_H

#include <tp/graph.h>

/* Gives up a capture that the context is in, if it is in one: before its streams are waited for and freed. */
void tpi_graph_drop(tp_ctx *ctx);

#endif
