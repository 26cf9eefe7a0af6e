/* Stream captures on the streams of contexts: by the calls that the plugin itself makes, the simulator's or CUDA's. */
#ifndef TPT_CUDA_GRAPHS_H
#define TPT_CUDA_GRAPHS_H

#include <dlfcn.h>
#include <string.h>

#include "core/context.h"
#include "cuda/state.h"

typedef struct tpt_graphs {
    cudaError_t (*begin)(cudaStream_t, enum cudaStreamCaptureMode);
    cudaError_t (*end)(cudaStream_t, cudaGraph_t *);
    cudaError_t (*instantiate)(cudaGraphExec_t *, cudaGraph_t, unsigned long long);
    cudaError_t (*launch)(cudaGraphExec_t, cudaStream_t);
    cudaError_t (*destroy_exec)(cudaGraphExec_t);
    cudaError_t (*destroy)(cudaGraph_t);
} tpt_graphs;

static inline bool tpt_graphs_find(tpt_graphs *calls)
{
    const struct {
        const char *name;
        void *to;
    } wanted[] = {{"cudaStreamBeginCapture", &calls->begin},      {"cudaStreamEndCapture", &calls->end},
                  {"cudaGraphInstantiate", &calls->instantiate},  {"cudaGraphLaunch", &calls->launch},
                  {"cudaGraphExecDestroy", &calls->destroy_exec}, {"cudaGraphDestroy", &calls->destroy}};
    void *plugin = dlopen(TPT_CUDA_PLUGIN, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *symbol = plugin != NULL ? dlsym(plugin, wanted[i].name) : NULL;
        if (symbol == NULL)
            return false;
        memcpy(wanted[i].to, &symbol, sizeof symbol);
    }
    return true;
}

static inline cudaStream_t tpt_graphs_stream(const tp_ctx *ctx)
{
    return ((tpi_cuda_stream *)(void *)ctx->compute)->handle;
}

/* Captures what this thread issues on the stream until the end; other threads go on meanwhile. */
static inline bool tpt_graphs_begin(const tpt_graphs *calls, cudaStream_t stream)
{
    return calls->begin(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
}

static inline bool tpt_graphs_end(const tpt_graphs *calls, cudaStream_t stream, cudaGraphExec_t *exec)
{
    cudaGraph_t graph = NULL;
    bool made =
        calls->end(stream, &graph) == cudaSuccess && graph != NULL && calls->instantiate(exec, graph, 0) == cudaSuccess;
    if (graph != NULL)
        calls->destroy(graph);
    return made;
}

#endif
