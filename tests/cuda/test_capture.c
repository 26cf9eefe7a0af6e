/* Forward and backward captured in a CUDA graph: nothing of it is forbidden in a capture, and replays give the numbers of the same step issued. The
 * stream is the plugin's own, and the calls are those that the plugin itself makes: the simulator's, or CUDA's. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "cuda/gpus.h"
#include "cuda/state.h"
#include "cuda/step_scene.h"
#include "support/data.h"

typedef struct capture_calls {
    cudaError_t (*begin)(cudaStream_t, enum cudaStreamCaptureMode);
    cudaError_t (*end)(cudaStream_t, cudaGraph_t *);
    cudaError_t (*instantiate)(cudaGraphExec_t *, cudaGraph_t, unsigned long long);
    cudaError_t (*launch)(cudaGraphExec_t, cudaStream_t);
    cudaError_t (*destroy_exec)(cudaGraphExec_t);
    cudaError_t (*destroy)(cudaGraph_t);
} capture_calls;

static bool find_calls(capture_calls *calls)
{
    const struct {
        const char *name;
        void *to;
    } wanted[] = {{"cudaStreamBeginCapture", &calls->begin}, {"cudaStreamEndCapture", &calls->end},      {"cudaGraphInstantiate", &calls->instantiate},
                  {"cudaGraphLaunch", &calls->launch},       {"cudaGraphExecDestroy", &calls->destroy_exec}, {"cudaGraphDestroy", &calls->destroy}};
    void *plugin = dlopen(TPT_CUDA_PLUGIN, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *symbol = plugin != NULL ? dlsym(plugin, wanted[i].name) : NULL;
        if (symbol == NULL)
            return false;
        memcpy(wanted[i].to, &symbol, sizeof symbol);
    }
    return true;
}

/* Gradients of a step and the loss so far, one after the other. */
static tp_status get_numbers(tp_ctx *ctx, const tpt_actor *actor, float *out)
{
    double loss, tokens;
    tp_status status = tp_model_loss(ctx, actor->model, &loss, &tokens);
    out[0] = (float)loss;
    out[1] = (float)tokens;
    out += 2;
    for (int i = 0; i < actor->count && status == TP_OK; i++) {
        status = tp_param_gather(ctx, actor->params[i], 1, out);
        out += tp_param_elements(actor->params[i]);
    }
    return status;
}

static int64_t count_numbers(const tpt_actor *actor)
{
    int64_t numbers = 2;
    for (int i = 0; i < actor->count; i++)
        numbers += tp_param_elements(actor->params[i]);
    return numbers;
}

static tp_status capture(tp_ctx *ctx, tpt_actor *actor, const capture_calls *calls, cudaGraphExec_t *exec)
{
    cudaStream_t stream = ((tpi_cuda_stream *)(void *)ctx->compute)->handle;
    cudaGraph_t graph = NULL;
    bool captured = calls->begin(stream, cudaStreamCaptureModeGlobal) == cudaSuccess;
    tp_status status = captured ? tpt_scene_gradients(ctx, actor) : TP_ERR_BACKEND;
    captured = calls->end(stream, &graph) == cudaSuccess && captured && graph != NULL;
    captured = captured && calls->instantiate(exec, graph, 0) == cudaSuccess;
    if (graph != NULL)
        calls->destroy(graph);
    return status != TP_OK ? status : captured ? TP_OK : TP_ERR_BACKEND;
}

static tp_status replay(tp_ctx *ctx, tpt_actor *actor, const capture_calls *calls, cudaGraphExec_t exec, const float *issued, int64_t count)
{
    float *replayed = tpt_array(TP_DTYPE_F32, count);
    cudaStream_t stream = ((tpi_cuda_stream *)(void *)ctx->compute)->handle;
    tp_status status = TP_OK;
    for (int i = 0; i < 3 && status == TP_OK; i++) {
        status = calls->launch(exec, stream) == cudaSuccess ? get_numbers(ctx, actor, replayed) : TP_ERR_BACKEND;
        if (status == TP_OK && !tpt_same_bits("replayed", replayed, issued, TP_DTYPE_F32, count))
            status = TP_ERR_NUMERIC;
    }
    free(replayed);
    return status;
}

static tp_status capture_and_replay(tp_ctx *ctx, tpt_scene *scene, tpt_actor *actor)
{
    const capture_calls *calls = scene->own;
    int64_t count = count_numbers(actor);
    float *issued = tpt_array(TP_DTYPE_F32, count);
    cudaGraphExec_t exec = NULL;
    tp_status status = tpt_scene_gradients(ctx, actor);
    if (status == TP_OK)
        status = get_numbers(ctx, actor, issued);
    if (status == TP_OK)
        status = tp_ctx_synchronize(ctx);
    if (status == TP_OK)
        status = capture(ctx, actor, calls, &exec);
    if (status == TP_OK)
        status = replay(ctx, actor, calls, exec, issued, count);
    tp_ctx_synchronize(ctx);
    if (exec != NULL)
        calls->destroy_exec(exec);
    free(issued);
    return status;
}

static void check(tp_dtype dtype, tp_sum_order sum_order, unsigned number)
{
    capture_calls calls;
    tpt_scene scene = {.ranks = 1, .devices = 1, .dtype = dtype, .sum_order = sum_order, .act = capture_and_replay, .own = &calls};
    tpt_gpus_turn(number, 0);
    cr_assert(find_calls(&calls), "%s", dlerror());
    cr_assert_eq(tpt_scene_run(&scene), TP_OK, "%s: %s", tp_status_name(scene.status[0]), tp_last_message());
    tpt_gpus_clean("capture");
}

Test(cuda_capture, forward_and_backward, .timeout = 100)
{
    check(TP_DTYPE_F32, TP_SUM_TREE, 0);
    check(TP_DTYPE_BF16, TP_SUM_TREE, 1);
    check(TP_DTYPE_BF16, TP_SUM_FAST, 2);
}
