/* The CUDA backend's table. */
#include <nvtx3/nvToolsExt.h>

#include "cuda/state.h"

static void push(const char *name)
{
    nvtxRangePushA(name);
}

static void pop(void)
{
    nvtxRangePop();
}

/* What an op issues has its name in a profiler; without one both calls are a jump to nothing. */
#define ISSUE(ctx, op, call)                        \
    tp_status status = tpi_cuda_issue_begin(ctx);   \
    if (status != TP_OK)                            \
        return status;                              \
    push(#op);                                      \
    status = call;                                  \
    pop();                                          \
    tpi_cuda_issue_end(ctx);                        \
    return status

/* A dry run issues nothing, whoever asks. */
#define NAMED(op)                                                        \
    static tp_status op(tpi_stream *stream, const tpi_##op##_args *args) \
    {                                                                    \
        if (tpi_cuda_dry(stream))                                        \
            return TP_OK;                                                \
        ISSUE(stream->ctx, op, tpi_cuda_##op(stream, args));             \
    }

/* Those that need memory ask for it in a dry run too, and end then. */
#define COUNTED(op)                                                      \
    static tp_status op(tpi_stream *stream, const tpi_##op##_args *args) \
    {                                                                    \
        ISSUE(stream->ctx, op, tpi_cuda_##op(stream, args));             \
    }

#define COUNTED_LIST(op)                                                                   \
    static tp_status op##_list(tpi_stream *stream, const tpi_##op##_args *args, int count) \
    {                                                                                      \
        ISSUE(stream->ctx, op, tpi_cuda_##op##_list(stream, args, count));                 \
    }

COUNTED(gemm)
NAMED(reduce)
NAMED(peer_reduce)
NAMED(map)
NAMED(activation)
COUNTED(rope)
NAMED(norm)
COUNTED(norm_grad)
COUNTED(attention)
COUNTED(attention_grad)
COUNTED(embedding)
COUNTED(embedding_grad)
NAMED(xent)
COUNTED(square_sum)
COUNTED_LIST(square_sum)
NAMED(optimizer)
NAMED(random_fill)

static tp_status optimizer_list(tpi_stream *stream, const tpi_optimizer_args *args, int count)
{
    if (tpi_cuda_dry(stream))
        return TP_OK;
    ISSUE(stream->ctx, optimizer, tpi_cuda_optimizer_list(stream, args, count));
}

const tpi_backend tpi_backend_cuda = {
    .name = "cuda",
    .open = tpi_cuda_open,
    .close = tpi_cuda_close,
    .allocate = tpi_cuda_allocate,
    .release = tpi_cuda_release,
    .allocate_shared = tpi_cuda_allocate_shared,
    .release_shared = tpi_cuda_release_shared,
    .reach = tpi_cuda_reach,
    .stream_create = tpi_cuda_stream_create,
    .stream_destroy = tpi_cuda_stream_destroy,
    .stream_synchronize = tpi_cuda_stream_synchronize,
    .event_create = tpi_cuda_event_create,
    .event_destroy = tpi_cuda_event_destroy,
    .event_record = tpi_cuda_event_record,
    .event_wait = tpi_cuda_event_wait,
    .event_synchronize = tpi_cuda_event_synchronize,
    .event_share = tpi_cuda_event_share,
    .copy = tpi_cuda_copy,
    .run = tpi_cuda_run,
    .run_anyway = tpi_cuda_run_anyway,
    .timer_create = tpi_cuda_timer_create,
    .timer_destroy = tpi_cuda_timer_destroy,
    .timer_mark = tpi_cuda_timer_mark,
    .timer_read = tpi_cuda_timer_read,
    .range_push = push,
    .range_pop = pop,
    .gemm_packed_bytes = tpi_cuda_gemm_packed_bytes,
    .gemm_pack = tpi_cuda_gemm_pack,
    .gemm = gemm,
    .reduce = reduce,
    .map = map,
    .activation = activation,
    .rope = rope,
    .norm = norm,
    .norm_grad = norm_grad,
    .attention = attention,
    .attention_grad = attention_grad,
    .embedding = embedding,
    .embedding_grad = embedding_grad,
    .xent = xent,
    .square_sum = square_sum,
    .optimizer = optimizer,
    .random_fill = random_fill,
    .square_sum_list = square_sum_list,
    .optimizer_list = optimizer_list,
    .behind = true,
    .host_memory = false,
    .fabric = &tpi_fabric_nccl,
    .graphs = &tpi_graph_table_cuda,
    .peer_reduce = peer_reduce,
};
