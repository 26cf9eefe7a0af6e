/* CUDA graphs of what the contexts of one process issue between two calls (comm/graph.c). One capture has all their
 * streams. CUDA's graphs must not be used by two threads at once, and ranks issue from threads of their own: whatever
 * adds to a capture holds the body's lock. */
#include <pthread.h>
#include <stdlib.h>

#include "core/context.h"
#include "cuda/state.h"

/* Shared by the contexts, so it lies in nobody's memory. */
struct tpi_graph_body {
    atomic_int holders;
    pthread_mutex_t lock;
    int device;
    cudaStream_t origin;  /* the capture began there; NULL in a dry run */
    bool open;            /* the capture is under way */
    cudaGraphExec_t exec; /* then; NULL before */
};

static void enter(tp_ctx *ctx, uint64_t number, tpi_graph_body *body)
{
    tpi_cuda_state *state = tpi_cuda_state_of(ctx);
    state->capture = body;
    state->capture_number = number;
    state->graphs++;
}

static void leave(tp_ctx *ctx)
{
    tpi_cuda_state_of(ctx)->capture = NULL;
    tpi_cuda_state_of(ctx)->capture_number = 0;
}

/* With the lock held. NULL: nothing came of it, and the context was told why unless `silent`. */
static cudaGraph_t close_capture(tp_ctx *ctx, tpi_graph_body *body, bool silent)
{
    cudaGraph_t graph = NULL;
    body->open = false;
    if (body->origin == NULL)
        return NULL;
    cudaSetDevice(body->device);
    cudaError_t error = cudaStreamEndCapture(body->origin, &graph);
    if (error == cudaSuccess && graph != NULL)
        return graph;
    cudaGetLastError(); /* the next launch's check must not find it */
    if (!silent)
        tpi_refuse(ctx, TP_ERR_BACKEND, "CUDA: cudaStreamEndCapture: %s (%s)", cudaGetErrorString(error),
                   cudaGetErrorName(error));
    return NULL;
}

/* cudaStreamCaptureModeRelaxed: any rank may end it, and no thread is kept from calls that don't touch the captured
 * streams, such as allocations. */
static tp_status begin(tp_ctx *ctx, uint64_t number, int holders, tpi_graph_body **out)
{
    tpi_graph_body *body = calloc(1, sizeof *body);
    *out = NULL;
    if (body == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "out of host memory: %zu bytes asked for", sizeof *body);
    atomic_init(&body->holders, holders);
    pthread_mutex_init(&body->lock, NULL);
    body->device = ctx->desc.device_index;
    body->open = true;
    cudaError_t error = cudaSuccess;
    if (!ctx->desc.dry_run) {
        body->origin = tpi_cuda_handle(ctx->compute);
        error = cudaStreamBeginCapture(body->origin, cudaStreamCaptureModeRelaxed);
    }
    if (error != cudaSuccess) {
        cudaGetLastError();
        pthread_mutex_destroy(&body->lock);
        free(body);
        return tpi_refuse(ctx, TP_ERR_BACKEND, "CUDA: cudaStreamBeginCapture: %s (%s)", cudaGetErrorString(error),
                          cudaGetErrorName(error));
    }
    enter(ctx, number, body);
    *out = body;
    return TP_OK;
}

static tp_status end(tp_ctx *ctx, tpi_graph_body *body)
{
    pthread_mutex_lock(&body->lock);
    cudaGraph_t graph = close_capture(ctx, body, false);
    pthread_mutex_unlock(&body->lock);
    if (body->origin == NULL)
        return TP_OK;
    if (graph == NULL)
        return TP_ERR_BACKEND;
    cudaError_t error = cudaGraphInstantiate(&body->exec, graph, 0);
    cudaGraphDestroy(graph);
    if (error == cudaSuccess)
        return TP_OK;
    cudaGetLastError();
    body->exec = NULL;
    return tpi_refuse(ctx, TP_ERR_BACKEND, "CUDA: cudaGraphInstantiate: %s (%s)", cudaGetErrorString(error),
                      cudaGetErrorName(error));
}

static void drop(tp_ctx *ctx)
{
    tpi_graph_body *body = tpi_cuda_state_of(ctx)->capture;
    if (body == NULL)
        return;
    pthread_mutex_lock(&body->lock);
    cudaGraph_t graph = body->open ? close_capture(ctx, body, true) : NULL;
    pthread_mutex_unlock(&body->lock);
    if (graph != NULL)
        cudaGraphDestroy(graph);
    leave(ctx);
}

static tp_status launch(tp_ctx *ctx, tpi_graph_body *body)
{
    return body->exec != NULL
               ? tpi_cuda_call(ctx, cudaGraphLaunch(body->exec, tpi_cuda_handle(ctx->compute)), "cudaGraphLaunch")
               : TP_OK;
}

/* With the last graph goes what was kept for graphs; after a failure it goes with the streams. */
static void forget(tp_ctx *ctx)
{
    for (tpi_stream *stream = ctx->streams; stream; stream = stream->next) {
        tpi_cuda_stream *own = (tpi_cuda_stream *)stream;
        if (own->retired && tpi_cuda_stream_synchronize(stream) == TP_OK)
            tpi_cuda_stream_forget(own);
    }
}

static void release(tp_ctx *ctx, tpi_graph_body *body)
{
    if (--tpi_cuda_state_of(ctx)->graphs == 0)
        forget(ctx);
    if (atomic_fetch_sub(&body->holders, 1) != 1)
        return;
    if (body->exec != NULL)
        cudaGraphExecDestroy(body->exec);
    pthread_mutex_destroy(&body->lock);
    free(body);
}

const tpi_graph_table tpi_graph_table_cuda = {
    .begin = begin, .enter = enter, .leave = leave, .end = end, .drop = drop, .launch = launch, .release = release};

tp_status tpi_cuda_issue_begin(tp_ctx *ctx)
{
    tpi_graph_body *body = tpi_cuda_state_of(ctx)->capture;
    if (body == NULL)
        return TP_OK;
    pthread_mutex_lock(&body->lock);
    if (body->open)
        return TP_OK;
    pthread_mutex_unlock(&body->lock);
    return tpi_fail(ctx, TP_ERR_PEER, "CUDA: another rank gave up the capture of a graph");
}

void tpi_cuda_issue_end(tp_ctx *ctx)
{
    tpi_graph_body *body = tpi_cuda_state_of(ctx)->capture;
    if (body != NULL)
        pthread_mutex_unlock(&body->lock);
}

tp_status tpi_cuda_leave_capture(tp_ctx *ctx, const char *what)
{
    if (tpi_cuda_state_of(ctx)->capture == NULL)
        return TP_OK;
    if (tp_ctx_failure(ctx) == TP_OK)
        return tpi_refuse(ctx, TP_ERR_STATE, "CUDA: %s while a graph is captured, where nothing runs", what);
    drop(ctx);
    return TP_OK;
}
