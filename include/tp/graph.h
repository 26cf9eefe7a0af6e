/* Graphs: what the ranks of a world issue between begin and end is kept instead of run; a launch then runs all of it,
 * on all ranks, as often as wanted. On GPUs that saves the host's time for each kernel. A graph holds what calls were
 * given, by value and by address: it reads the ids, parameters and activations that are in that memory when it runs,
 * has the offsets of packed sequences that were given, draws the dropout masks of the step it was captured with, and
 * needs all that memory to stay.
 *
 *     tp_graph_begin(ctx); forward, backward, tp_params_finish; tp_graph_end(ctx, &graph);
 *     for each step: upload ids; tp_graph_launch(ctx, graph); tp_optimizer_step
 *
 * Between begin and end nothing can be waited for or copied from the host: tp_ctx_synchronize, upload, download and
 * tp_optimizer_step are refused. */
#ifndef TP_GRAPH_H
#define TP_GRAPH_H

#include <tp/context.h>

typedef struct tp_graph tp_graph;

TP_BEGIN_DECLS

/* From here on this rank's calls are kept. Collective: all ranks of the world. Calls that were issued already run on.
 * Errors: TP_ERR_UNSUPPORTED (the CPU, ranks that NCCL connects), TP_ERR_STATE (begun already, a synchronous context),
 * TP_ERR_MEMORY, TP_ERR_BACKEND: refused on all ranks. A failure before the end breaks the world as any other does. */
TP_API tp_status tp_graph_begin(tp_ctx *ctx);

/* Makes a graph of them. Collective. Errors: TP_ERR_STATE (not begun); TP_ERR_BACKEND where the device found something
 * that can't be kept; *out is NULL then, and nothing has run. */
TP_API tp_status tp_graph_end(tp_ctx *ctx, tp_graph **out);

/* Runs it: after everything issued before on any rank, and before everything issued later. Collective; the host doesn't
 * wait for the graph. */
TP_API tp_status tp_graph_launch(tp_ctx *ctx, tp_graph *graph);

/* Waits for this rank's work and frees its share of the graph. Before the context goes. NULL is fine. */
TP_API void tp_graph_destroy(tp_graph *graph);

TP_END_DECLS
#endif
