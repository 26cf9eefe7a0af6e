/* Graphs of what all ranks issue. Ranks wait for each other's events, so their work is one graph: it is begun on rank
 * 0's stream, the other ranks' streams and all lanes join it by waiting for events of it, and at the end rank 0's waits
 * for all of them. A launch is ordered the same way, but for lanes: between plans, a lane has nothing under way that
 * compute hasn't waited for, and what it does next begins behind something of compute. */
#include "comm/graph.h"

#include <string.h>

#include "comm/threads.h"
#include "core/stream.h"

/* What a rank shows of itself at the beginning. */
typedef struct graph_show {
    tpi_event *mark, *order;
    uint64_t captures; /* that it has taken part in */
    bool ready;
} graph_show;

struct tp_graph {
    tp_ctx *ctx;
    tpi_graph_body *body;
    tpi_event *mark;  /* in the capture: rank 0's beginning, the others' ends */
    tpi_event *order; /* around a launch: what the others issued before, and rank 0's launch */
    tpi_event *lane;
    int held; /* ranks whose events are shared */
    graph_show all[TPI_MAX_RANKS];
};

static const tpi_backend *backend_of(const tp_graph *graph)
{
    return graph->ctx->backend;
}

/* A dry run stands for all ranks and meets nobody. */
static int ranks_of(const tp_ctx *ctx)
{
    return ctx->desc.dry_run ? 1 : ctx->world->size;
}

static bool is_first(const tp_ctx *ctx)
{
    return ranks_of(ctx) == 1 || ctx->world->rank == 0;
}

static tp_status exchange(tp_ctx *ctx, const void *mine, void *all, size_t bytes)
{
    if (ranks_of(ctx) > 1)
        return ctx->world->table->exchange(ctx, ctx->world, mine, all, bytes);
    memcpy(all, mine, bytes);
    return TP_OK;
}

/* ---- making and freeing ------------------------------------------------------------------------------------------ */

static void free_graph(tp_graph *graph)
{
    tp_ctx *ctx = graph->ctx;
    for (int rank = 0; rank < graph->held; rank++) {
        backend_of(graph)->event_destroy(graph->all[rank].mark);
        backend_of(graph)->event_destroy(graph->all[rank].order);
    }
    tpi_event *const own[] = {graph->mark, graph->order, graph->lane};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (own[i] != NULL)
            backend_of(graph)->event_destroy(own[i]);
    if (graph->body != NULL)
        ctx->backend->graphs->release(ctx, graph->body);
    tpi_host_release(ctx, graph, sizeof *graph);
}

static tp_graph *make_graph(tp_ctx *ctx)
{
    tp_graph *graph = tpi_host_allocate(ctx, sizeof *graph);
    if (graph == NULL)
        return NULL;
    graph->ctx = ctx;
    tpi_event **const own[] = {&graph->mark, &graph->order, &graph->lane};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (ctx->backend->event_create(ctx, own[i]) != TP_OK) {
            free_graph(graph);
            return NULL;
        }
    return graph;
}

static tp_status check_supported(tp_ctx *ctx)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_not_capturing(ctx, "tp_graph_begin"));
    if (ctx->backend->graphs == NULL)
        return tpi_refuse(ctx, TP_ERR_UNSUPPORTED, "tp_graph_begin: the %s backend has no graphs", ctx->backend->name);
    if (ctx->desc.synchronous)
        return tpi_refuse(ctx, TP_ERR_STATE,
                          "tp_graph_begin: a synchronous context waits for each op, which can't be captured");
    if (ranks_of(ctx) > 1 && ctx->world->table != &tpi_comm_threads)
        return tpi_refuse(ctx, TP_ERR_UNSUPPORTED,
                          "tp_graph_begin: ranks connected by %s can't be captured together, only thread ranks whose "
                          "transport is threads",
                          ctx->world->table->name);
    return TP_OK;
}

/* ---- beginning --------------------------------------------------------------------------------------------------- */

/* A rank that leaves with a failure waits for the end of this stretch. */
static tp_status hold_events(tp_graph *graph, const graph_show *shown)
{
    tp_ctx *ctx = graph->ctx;
    bool alone = ranks_of(ctx) == 1;
    tpi_call call = alone ? (tpi_call){.ctx = ctx} : tpi_call_begin(ctx->world, "graph", 0);
    if (!alone && !tpi_touch_begin(&call))
        return tpi_call_peer_failed(&call);
    for (int rank = 0; rank < ranks_of(ctx); rank++) {
        graph->all[rank] = shown[rank];
        backend_of(graph)->event_share(shown[rank].mark);
        backend_of(graph)->event_share(shown[rank].order);
    }
    graph->held = ranks_of(ctx);
    if (!alone)
        tpi_touch_end(&call);
    return TP_OK;
}

/* Everybody's events, and a number that no capture of any of them had. */
static tp_status meet(tp_ctx *ctx, tp_graph *graph, uint64_t *number)
{
    static const graph_show nothing;
    graph_show mine = nothing, shown[TPI_MAX_RANKS];
    mine.captures = ctx->captures;
    if (graph != NULL) {
        mine.mark = graph->mark;
        mine.order = graph->order;
        mine.ready = true;
    }
    TPI_TRY(exchange(ctx, &mine, shown, sizeof mine));
    *number = 0;
    for (int rank = 0; rank < ranks_of(ctx); rank++) {
        if (!shown[rank].ready)
            return graph == NULL
                       ? TP_ERR_MEMORY
                       : tpi_refuse(ctx, TP_ERR_PEER, "tp_graph_begin: rank %d has no memory for a graph", rank);
        *number = shown[rank].captures > *number ? shown[rank].captures : *number;
    }
    *number += 1;
    return hold_events(graph, shown);
}

static tp_status fork_lanes(tp_graph *graph)
{
    tp_ctx *ctx = graph->ctx;
    TPI_TRY(backend_of(graph)->event_record(graph->lane, ctx->compute));
    for (tpi_stream *stream = ctx->streams; stream != NULL; stream = stream->next)
        if (stream != ctx->compute)
            TPI_TRY(backend_of(graph)->event_wait(graph->lane, stream));
    return TP_OK;
}

static tp_status join_lanes(tp_graph *graph)
{
    tp_ctx *ctx = graph->ctx;
    for (tpi_stream *stream = ctx->streams; stream != NULL; stream = stream->next)
        if (stream != ctx->compute) {
            TPI_TRY(backend_of(graph)->event_record(graph->lane, stream));
            TPI_TRY(backend_of(graph)->event_wait(graph->lane, ctx->compute));
        }
    return TP_OK;
}

/* Rank 0 begins, and all join what it has begun. */
static tp_status enter(tp_graph *graph, uint64_t number)
{
    tp_ctx *ctx = graph->ctx;
    const tpi_graph_table *table = ctx->backend->graphs;
    tpi_graph_body *mine = NULL, *bodies[TPI_MAX_RANKS];
    tp_status status = TP_OK;
    if (is_first(ctx)) {
        status = table->begin(ctx, number, ranks_of(ctx), &mine);
        if (status == TP_OK)
            status = backend_of(graph)->event_record(graph->mark, ctx->compute);
    }
    graph->body = mine;
    TPI_TRY(exchange(ctx, &mine, bodies, sizeof mine));
    if (bodies[0] == NULL)
        return status != TP_OK ? status
                               : tpi_refuse(ctx, TP_ERR_PEER, "tp_graph_begin: rank 0 could not begin a capture");
    TPI_TRY(status);
    graph->body = bodies[0];
    if (!is_first(ctx)) {
        table->enter(ctx, number, graph->body);
        TPI_TRY(backend_of(graph)->event_wait(graph->all[0].mark, ctx->compute));
    }
    return fork_lanes(graph);
}

tp_status tp_graph_begin(tp_ctx *ctx)
{
    TPI_TRY(check_supported(ctx));
    tp_graph *graph = make_graph(ctx);
    uint64_t number;
    tp_status status = meet(ctx, graph, &number);
    if (status == TP_OK) {
        ctx->captures = number;
        ctx->capturing = graph;
        status = enter(graph, number);
    }
    if (status == TP_OK)
        return TP_OK;
    if (ctx->capturing != NULL)
        tpi_graph_drop(ctx);
    else if (graph != NULL)
        free_graph(graph);
    return status;
}

void tpi_graph_drop(tp_ctx *ctx)
{
    tp_graph *graph = ctx->capturing;
    if (graph == NULL)
        return;
    ctx->capturing = NULL;
    ctx->backend->graphs->drop(ctx);
    free_graph(graph);
}

/* ---- ending ------------------------------------------------------------------------------------------------------ */

/* All lanes and ranks lead to rank 0's stream again, whose rank ends the capture. */
static tp_status leave(tp_graph *graph)
{
    tp_ctx *ctx = graph->ctx;
    char done = 1, all[TPI_MAX_RANKS];
    TPI_TRY(join_lanes(graph));
    if (!is_first(ctx))
        TPI_TRY(backend_of(graph)->event_record(graph->mark, ctx->compute));
    TPI_TRY(exchange(ctx, &done, all, sizeof done));
    tp_status status = TP_OK;
    for (int rank = 1; rank < ranks_of(ctx) && is_first(ctx); rank++)
        TPI_TRY(backend_of(graph)->event_wait(graph->all[rank].mark, ctx->compute));
    if (is_first(ctx))
        status = ctx->backend->graphs->end(ctx, graph->body);
    done = status == TP_OK;
    TPI_TRY(exchange(ctx, &done, all, sizeof done));
    if (all[0])
        return TP_OK;
    return status != TP_OK
               ? status
               : tpi_refuse(ctx, TP_ERR_BACKEND, "tp_graph_end: rank 0 could not make a graph of the capture");
}

tp_status tp_graph_end(tp_ctx *ctx, tp_graph **out)
{
    TPI_TRY(tpi_given(ctx, "tp_graph_end: out", out));
    *out = NULL;
    tp_graph *graph = ctx->capturing;
    if (graph == NULL) {
        TPI_TRY(tpi_ctx_usable(ctx));
        return tpi_refuse(ctx, TP_ERR_STATE, "tp_graph_end: tp_graph_begin was not called");
    }
    tp_status status = tpi_ctx_usable(ctx);
    if (status == TP_OK)
        status = leave(graph);
    if (status != TP_OK) {
        tpi_graph_drop(ctx);
        return status;
    }
    ctx->capturing = NULL;
    ctx->backend->graphs->leave(ctx);
    *out = graph;
    return TP_OK;
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

static tp_status launch(tp_graph *graph)
{
    tp_ctx *ctx = graph->ctx;
    for (int rank = 1; rank < ranks_of(ctx); rank++)
        TPI_TRY(backend_of(graph)->event_wait(graph->all[rank].order, ctx->compute));
    TPI_TRY(ctx->backend->graphs->launch(ctx, graph->body));
    return backend_of(graph)->event_record(graph->order, ctx->compute);
}

tp_status tp_graph_launch(tp_ctx *ctx, tp_graph *graph)
{
    char here = 1, all[TPI_MAX_RANKS];
    TPI_TRY_OBJECT(ctx, "tp_graph_launch: graph", graph);
    TPI_TRY(tpi_not_capturing(ctx, "tp_graph_launch"));
    if (!is_first(ctx))
        TPI_TRY(backend_of(graph)->event_record(graph->order, ctx->compute));
    TPI_TRY(exchange(ctx, &here, all, sizeof here));
    if (is_first(ctx))
        TPI_TRY(launch(graph));
    TPI_TRY(exchange(ctx, &here, all, sizeof here));
    if (!is_first(ctx))
        TPI_TRY(backend_of(graph)->event_wait(graph->all[0].order, ctx->compute));
    return TP_OK;
}

void tp_graph_destroy(tp_graph *graph)
{
    if (graph == NULL)
        return;
    tp_ctx_synchronize(graph->ctx);
    free_graph(graph);
}
