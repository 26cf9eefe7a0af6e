/* Recording of spans. */
#include "plan/execute_state.h"

tp_status tp_trace_begin(tp_ctx *ctx, tp_trace_span *span, int64_t capacity)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    if (span == NULL || capacity < 1)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_trace_begin: span is %s, capacity %lld", span ? "given" : "NULL",
                          (long long)capacity);
    struct tpi_executor *executor = NULL;
    TPI_TRY(tpi_executor_get(ctx, &executor));
    if (executor->trace != NULL)
        return tpi_refuse(ctx, TP_ERR_STATE, "tp_trace_begin: recording is on already");
    executor->trace_capacity = capacity;
    atomic_store(&executor->traced, 0);
    executor->trace = span;
    return TP_OK;
}

tp_status tp_trace_end(tp_ctx *ctx, int64_t *count)
{
    if (ctx == NULL || count == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_trace_end: %s is NULL", ctx == NULL ? "ctx" : "count");
    if (ctx->executor == NULL || ctx->executor->trace == NULL)
        return tpi_refuse(ctx, TP_ERR_STATE, "tp_trace_end: recording is not on");
    tp_status status = tp_ctx_synchronize(ctx);
    ctx->executor->trace = NULL;
    *count = atomic_load(&ctx->executor->traced);
    return status;
}
