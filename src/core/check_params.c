/* Argument checks of the ops on parameters. */
#include <math.h>

#include "core/ops_check.h"

tp_status tpi_check_square_sum(tp_ctx *ctx, const tpi_square_sum_args *args)
{
    tpi_check check = {ctx, "square_sum"};
    TPI_TRY(tpi_check_size(check, "rows", args->rows));
    TPI_TRY(tpi_check_size(check, "cols", args->cols));
    TPI_TRY(tpi_check_range(check, "dim", args->dim, 0, 1));
    TPI_TRY(tpi_check_pointer(check, "result", args->result, true));
    TPI_TRY(tpi_check_order(check, args->order, args->dim == 0 ? args->rows : args->cols));
    return tpi_check_rows(check, (tpi_check_matrix){"x", args->x, args->rows, args->cols, args->stride});
}

static tp_status check_adamw(tpi_check check, const tpi_optimizer_args *args)
{
    bool some = args->elements > 0;
    TPI_TRY(tpi_check_pointer(check, "m", args->m, some));
    TPI_TRY(tpi_check_pointer(check, "v", args->v, some));
    TPI_TRY(tpi_check_range(check, "step", args->step, 1, INT64_MAX));
    TPI_TRY(tpi_check_number(check, "beta1", (double)args->beta1, 0, 1));
    TPI_TRY(tpi_check_number(check, "beta2", (double)args->beta2, 0, 1));
    return tpi_check_number(check, "epsilon", (double)args->epsilon, 0, INFINITY);
}

static tp_status check_copies(tpi_check check, const tpi_optimizer_args *args)
{
    const tpi_weight_copies *copies = args->copies;
    TPI_TRY(tpi_check_size(check, "copies->rows", copies->rows));
    TPI_TRY(tpi_check_size(check, "copies->cols", copies->cols));
    if (copies->rows > 0 && (copies->cols != args->elements / copies->rows || args->elements % copies->rows != 0))
        return tpi_refuse(check.ctx, TP_ERR_SHAPE, "%s: copies of %lld rows of %lld, elements are %lld", check.op,
                          (long long)copies->rows, (long long)copies->cols, (long long)args->elements);
    TPI_TRY(tpi_check_order(check, copies->forward_order, copies->cols));
    TPI_TRY(tpi_check_order(check, copies->backward_order, copies->rows));
    TPI_TRY(tpi_check_pointer(check, "copies->forward", copies->forward.data, args->elements > 0));
    return tpi_check_pointer(check, "copies->backward", copies->backward.data, args->elements > 0);
}

tp_status tpi_check_optimizer(tp_ctx *ctx, const tpi_optimizer_args *args)
{
    tpi_check check = {ctx, "optimizer"};
    bool some = args->elements > 0;
    TPI_TRY(tpi_check_range(check, "kind", (int)args->kind, TPI_OPTIMIZER_SGD, TPI_OPTIMIZER_ADAMW));
    TPI_TRY(tpi_check_size(check, "elements", args->elements));
    TPI_TRY(tpi_check_float(check, "value_dtype", args->value_dtype));
    if (!args->master)
        TPI_TRY(tpi_check_dtype(check, "value_dtype without a master", args->value_dtype, TP_DTYPE_F32));
    TPI_TRY(tpi_check_pointer(check, "value", args->value, some));
    TPI_TRY(tpi_check_pointer(check, "grad", args->grad, some));
    TPI_TRY(tpi_check_pointer(check, "grad_scale", args->grad_scale, some));
    TPI_TRY(tpi_check_number(check, "lr", (double)args->lr, -INFINITY, INFINITY));
    TPI_TRY(tpi_check_number(check, "decay", (double)args->decay, 0, INFINITY));
    if (args->copies)
        TPI_TRY(check_copies(check, args));
    if (args->kind == TPI_OPTIMIZER_ADAMW)
        return check_adamw(check, args);
    TPI_TRY(tpi_check_number(check, "momentum", (double)args->momentum, 0, 1));
    return tpi_check_pointer(check, "m", args->m, some && args->momentum > 0);
}

tp_status tpi_check_random_fill(tp_ctx *ctx, const tpi_random_fill_args *args)
{
    tpi_check check = {ctx, "random_fill"};
    TPI_TRY(tpi_check_size(check, "rows", args->rows));
    TPI_TRY(tpi_check_size(check, "cols", args->cols));
    TPI_TRY(tpi_check_float(check, "dtype", args->dtype));
    TPI_TRY(tpi_check_number(check, "std", (double)args->std, -INFINITY, INFINITY));
    TPI_TRY(tpi_check_size(check, "first_row", args->first_row));
    TPI_TRY(tpi_check_size(check, "first_col", args->first_col));
    if (args->rows > 0 && args->cols > 0)
        TPI_TRY(tpi_check_range(check, "total_cols", args->total_cols, args->first_col + args->cols, INT64_MAX));
    return tpi_check_rows(check, (tpi_check_matrix){"out", args->out, args->rows, args->cols, args->stride});
}
