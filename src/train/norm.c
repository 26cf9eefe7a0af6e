#include "train/norm.h"

#include <math.h>
#include <tp/comm.h>

#include "core/context.h"
#include "train/param.h"

void tpi_norm_orders(tp_ctx *ctx, tp_param *const *params, int count, tpi_norm_order *orders)
{
    for (int i = 0; i < count; i++)
        tpi_param_norm_order(ctx, params[i], &orders[i].dim, &orders[i].inner);
}

/* Sums that are issued together. */
#define SUMS 128

static tpi_square_sum_args square_sum(const tp_param *param, const tpi_norm_order *order, float *result)
{
    tpi_square_sum_args args = {.rows = param->grad.shape[0],
                                .cols = param->grad.shape[1],
                                .x = param->grad.data,
                                .stride = param->grad.stride[0],
                                .dim = order->dim,
                                .order = &order->inner,
                                .result = result};
    if (param->dims == 1) { /* one row, whose elements are dealt out */
        args.rows = 1;
        args.cols = args.stride = param->grad.shape[0];
        args.dim = 1;
    }
    return args;
}

tp_status tpi_norm_squares(tp_ctx *ctx, tp_param *const *params, int count, const tpi_norm_order *orders,
                           float *squares)
{
    TPI_TRY(tpi_params_settle(ctx, params, count));
    TPI_TRY(tpi_map(ctx->compute, &(tpi_map_args){.rows = 1,
                                                  .cols = count,
                                                  .in_dtype = TP_DTYPE_F32,
                                                  .in_stride = count,
                                                  .out = squares,
                                                  .out_dtype = TP_DTYPE_F32,
                                                  .out_stride = count}));
    tpi_square_sum_args sums[SUMS];
    int waiting = 0;
    for (int i = 0; i < count; i++) {
        if (params[i]->grad.data != NULL && !(params[i]->flags & TP_PARAM_FROZEN))
            sums[waiting++] = square_sum(params[i], &orders[i], &squares[i]);
        if (waiting == SUMS || i == count - 1) {
            TPI_TRY(tpi_square_sum_list(ctx->compute, sums, waiting));
            waiting = 0;
        }
    }
    tp_tensor all = tp_tensor_1d(squares, TP_DTYPE_F32, count);
    return tp_all_reduce(ctx, tp_ctx_group(ctx, TP_AXIS_TP), all, all, NULL);
}

float tpi_norm_root(const float *squares, int count)
{
    double sum = 0.0;
    for (int i = 0; i < count; i++)
        sum += squares[i];
    return (float)sqrt(sum);
}

/* What the norm works with: the orders that ops read, and the squares when the host has them. */
typedef struct norm_work {
    tpi_norm_order *orders;
    float *squares;
} norm_work;

static tp_status norm_into(tp_ctx *ctx, tp_param *const *params, int count, const norm_work *work, float *norm)
{
    void *squares;
    size_t bytes = (size_t)count * sizeof(float);
    TPI_TRY(tpi_scratch(ctx, bytes, &squares));
    tpi_norm_orders(ctx, params, count, work->orders);
    TPI_TRY(tpi_norm_squares(ctx, params, count, work->orders, squares));
    TPI_TRY(tp_ctx_download(ctx, work->squares, squares, bytes));
    TPI_TRY(tp_ctx_synchronize(ctx));
    *norm = tpi_norm_root(work->squares, count);
    return TP_OK;
}

tp_status tp_params_grad_norm(tp_ctx *ctx, tp_param *const *params, int count, float *norm)
{
    TPI_TRY(tpi_ctx_usable(ctx));
    TPI_TRY(tpi_not_capturing(ctx, "tp_params_grad_norm"));
    if (count < 0 || norm == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "tp_params_grad_norm: count is %d, norm is %s", count,
                          norm == NULL ? "NULL" : "set");
    TPI_TRY(tpi_params_check(ctx, "tp_params_grad_norm", params, count));
    *norm = 0.0f;
    if (count == 0)
        return TP_OK;
    tpi_carve carve = {NULL, 0};
    tpi_carve_take(&carve, (size_t)count * sizeof(tpi_norm_order));
    tpi_carve_take(&carve, (size_t)count * sizeof(float));
    size_t bytes = carve.used;
    void *memory = tpi_host_allocate(ctx, bytes);
    if (memory == NULL)
        return tpi_refuse(ctx, TP_ERR_MEMORY, "tp_params_grad_norm: no memory for %d orders", count);
    carve = (tpi_carve){memory, 0};
    norm_work work = {.orders = tpi_carve_take(&carve, (size_t)count * sizeof(tpi_norm_order))};
    work.squares = tpi_carve_take(&carve, (size_t)count * sizeof(float));
    tpi_arena_mark mark = tpi_arena_get_mark(&ctx->scratch);
    tp_status status = norm_into(ctx, params, count, &work, norm);
    if (status != TP_OK)
        tp_ctx_synchronize(ctx); /* nothing may still read the orders */
    tpi_arena_release(&ctx->scratch, mark);
    tpi_host_release(ctx, memory, bytes);
    return status;
}
