#include "plan/execute.h"

/* Ops of one plan that other lanes wait for, at most. */
#define EVENTS 1024

/* Lanes and events of one context, made by its first plan that leaves the compute lane. */
struct tpi_executor {
    tpi_stream *lane[TP_LANES]; /* COMPUTE: the context's */
    tpi_event *done[EVENTS];
    tpi_event *fork, *join[TP_LANES];
};

static void executor_free(tp_ctx *ctx)
{
    struct tpi_executor *executor = ctx->executor;
    const tpi_backend *backend = ctx->backend;
    for (int lane = TP_LANE_COMM; lane < TP_LANES; lane++) {
        if (executor->lane[lane] != NULL)
            backend->stream_destroy(executor->lane[lane]);
        if (executor->join[lane] != NULL)
            backend->event_destroy(executor->join[lane]);
    }
    for (int i = 0; i < EVENTS; i++)
        if (executor->done[i] != NULL)
            backend->event_destroy(executor->done[i]);
    if (executor->fork != NULL)
        backend->event_destroy(executor->fork);
    tpi_host_release(ctx, executor, sizeof *executor);
    ctx->executor = NULL;
    ctx->executor_free = NULL;
}

static tp_status executor_fill(tp_ctx *ctx, struct tpi_executor *executor)
{
    const tpi_backend *backend = ctx->backend;
    executor->lane[TP_LANE_COMPUTE] = ctx->compute;
    for (int lane = TP_LANE_COMM; lane < TP_LANES; lane++) {
        TPI_TRY(backend->stream_create(ctx, tp_lane_name((tp_lane)lane), false, &executor->lane[lane]));
        TPI_TRY(backend->event_create(ctx, &executor->join[lane]));
    }
    for (int i = 0; i < EVENTS; i++)
        TPI_TRY(backend->event_create(ctx, &executor->done[i]));
    return backend->event_create(ctx, &executor->fork);
}

static tp_status executor_get(tp_ctx *ctx, struct tpi_executor **out)
{
    if (ctx->executor == NULL) {
        struct tpi_executor *executor = tpi_host_allocate(ctx, sizeof *executor);
        if (executor == NULL)
            return tpi_refuse(ctx, TP_ERR_MEMORY, "plan executor: out of memory");
        ctx->executor = executor;
        ctx->executor_free = executor_free;
        tp_status status = executor_fill(ctx, executor);
        if (status != TP_OK) {
            executor_free(ctx);
            return status;
        }
    }
    *out = ctx->executor;
    return TP_OK;
}

static bool one_lane(const tp_plan_rank *plan)
{
    for (int i = 0; i < plan->count; i++)
        if (plan->op[i].lane != TP_LANE_COMPUTE)
            return false;
    return true;
}

static tp_status execute_inline(tp_ctx *ctx, const tp_plan_rank *plan, const tpi_plan_table *table, void *user)
{
    for (int i = 0; i < plan->count; i++)
        if (table->issue[plan->op[i].kind] != NULL)
            TPI_TRY(table->issue[plan->op[i].kind](user, ctx->compute, &plan->op[i]));
    return TP_OK;
}

static bool waited_for(const tp_plan_rank *plan, int index)
{
    for (int i = index + 1; i < plan->count; i++)
        for (int w = 0; w < plan->op[i].waits; w++)
            if (plan->op[i].wait[w].op == index && plan->op[i].lane != plan->op[index].lane)
                return true;
    return false;
}

static tp_status issue_op(tp_ctx *ctx, struct tpi_executor *executor, const tp_plan_rank *plan, int index, const tpi_plan_table *table, void *user)
{
    const tp_plan_op *op = &plan->op[index];
    tpi_stream *stream = executor->lane[op->lane];
    for (int w = 0; w < op->waits; w++)
        TPI_TRY(ctx->backend->event_wait(executor->done[op->wait[w].op], stream));
    if (table->issue[op->kind] != NULL)
        TPI_TRY(table->issue[op->kind](user, stream, op));
    return waited_for(plan, index) ? ctx->backend->event_record(executor->done[index], stream) : TP_OK;
}

static tp_status join_lanes(tp_ctx *ctx, struct tpi_executor *executor)
{
    for (int lane = TP_LANE_COMM; lane < TP_LANES; lane++) {
        TPI_TRY(ctx->backend->event_record(executor->join[lane], executor->lane[lane]));
        TPI_TRY(ctx->backend->event_wait(executor->join[lane], ctx->compute));
    }
    return TP_OK;
}

tp_status tpi_plan_execute(tp_ctx *ctx, const tp_plan *whole, const tpi_plan_table *table, void *user)
{
    const tp_plan_rank *plan = &whole->rank[tp_comm_rank(tp_ctx_group(ctx, TP_AXIS_TP))];
    if (one_lane(plan))
        return execute_inline(ctx, plan, table, user);
    struct tpi_executor *executor = NULL;
    TPI_TRY(executor_get(ctx, &executor));
    TPI_TRY(ctx->backend->event_record(executor->fork, ctx->compute));
    for (int lane = TP_LANE_COMM; lane < TP_LANES; lane++)
        TPI_TRY(ctx->backend->event_wait(executor->fork, executor->lane[lane]));
    tp_status status = TP_OK;
    for (int i = 0; i < plan->count && status == TP_OK; i++)
        status = issue_op(ctx, executor, plan, i, table, user);
    tp_status joined = join_lanes(ctx, executor); /* also after a failure: no lane may run on in memory that is released */
    return status != TP_OK ? status : joined;
}
