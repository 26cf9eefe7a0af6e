/* Argument checks of gemm and reduce. */
#include "core/ops_check.h"

/* One of the strides is 1, and the other steps over a whole line. */
static tp_status check_operand(tpi_check check, const char *field, const tpi_operand *operand, int64_t outer,
                               int64_t inner)
{
    bool by_rows = operand->inner_stride == 1 && (outer <= 1 || operand->outer_stride >= inner);
    bool by_cols = operand->outer_stride == 1 && (inner <= 1 || operand->inner_stride >= outer);
    if (outer == 0 || inner == 0 || by_rows || by_cols)
        return TP_OK;
    return tpi_refuse(check.ctx, TP_ERR_SHAPE, "%s: strides of %s are %lld and %lld, which do not fit [%lld, %lld]",
                      check.op, field, (long long)operand->outer_stride, (long long)operand->inner_stride,
                      (long long)outer, (long long)inner);
}

static bool has_epilogue(const tpi_gemm_args *args)
{
    return args->bias || args->activation != TPI_ACT_NONE || args->pre || args->act_input || args->residual ||
           args->dropout != 0;
}

static tp_status check_gemm_epilogue(tpi_check check, const tpi_gemm_args *args)
{
    int64_t rows = args->rows, cols = args->cols;
    TPI_TRY(tpi_check_dropout(check, args->dropout));
    TPI_TRY(tpi_check_range(check, "activation", (int)args->activation, 0, TPI_ACT_COUNT - 1));
    TPI_TRY(tpi_check_size(check, "first_row", args->first_row));
    if (args->bias)
        TPI_TRY(tpi_check_float(check, "bias_dtype", args->bias_dtype));
    if (args->pre)
        TPI_TRY(tpi_check_rows(check, (tpi_check_matrix){"pre", args->pre, rows, cols, args->pre_stride}));
    if (args->residual)
        TPI_TRY(
            tpi_check_rows(check, (tpi_check_matrix){"residual", args->residual, rows, cols, args->residual_stride}));
    if (args->act_input) {
        TPI_TRY(tpi_check_rows(check,
                               (tpi_check_matrix){"act_input", args->act_input, rows, cols, args->act_input_stride}));
        if (args->bias || args->pre)
            return tpi_refuse(check.ctx, TP_ERR_ARGUMENT, "%s: act_input goes with neither bias nor pre", check.op);
    }
    return TP_OK;
}

/* A slice of what was packed: pairs of bf16 are not torn. */
static tp_status check_slice(tpi_check check, const tpi_gemm_args *args)
{
    const tpi_packed *packed = args->b_packed;
    int64_t end = packed->first + args->inner;
    bool whole =
        args->a.dtype != TP_DTYPE_BF16 || (packed->first % 2 == 0 && (args->inner % 2 == 0 || end == packed->inner));
    if (packed->inner == 0 || (packed->first >= 0 && end <= packed->inner && args->order == NULL && whole))
        return TP_OK;
    return tpi_refuse(check.ctx, TP_ERR_ARGUMENT, "%s: [%lld, %lld) is no slice of %lld packed inner indices%s",
                      check.op, (long long)packed->first, (long long)end, (long long)packed->inner,
                      args->order != NULL ? " in an order" : "");
}

tp_status tpi_check_gemm(tp_ctx *ctx, const tpi_gemm_args *args)
{
    tpi_check check = {ctx, "gemm"};
    int64_t rows = args->rows, cols = args->cols, inner = args->inner;
    TPI_TRY(tpi_check_size(check, "rows", rows));
    TPI_TRY(tpi_check_size(check, "cols", cols));
    TPI_TRY(tpi_check_size(check, "inner", inner));
    TPI_TRY(tpi_check_float(check, "a.dtype", args->a.dtype));
    TPI_TRY(tpi_check_dtype(check, "b.dtype", args->b.dtype, args->a.dtype));
    TPI_TRY(tpi_check_f32_or(check, "c_dtype", args->c_dtype, args->a.dtype));
    bool packed = args->b_packed && args->b_packed->data;
    bool reads_a = rows > 0 && inner > 0 && (cols > 0 || args->row_sums);
    TPI_TRY(tpi_check_pointer(check, "a.data", args->a.data, reads_a));
    TPI_TRY(tpi_check_pointer(check, "b.data", args->b.data, rows > 0 && cols > 0 && inner > 0 && !packed));
    TPI_TRY(check_operand(check, "a", &args->a, rows, inner));
    if (!packed)
        TPI_TRY(check_operand(check, "b", &args->b, cols, inner));
    if (packed)
        TPI_TRY(check_slice(check, args));
    TPI_TRY(tpi_check_rows(check, (tpi_check_matrix){"c", args->c, rows, cols, args->c_stride}));
    TPI_TRY(tpi_check_order(check, args->order, inner));
    TPI_TRY(check_gemm_epilogue(check, args));
    if (args->accumulate) {
        TPI_TRY(tpi_check_dtype(check, "c_dtype of an accumulating gemm", args->c_dtype, TP_DTYPE_F32));
        if (args->order || has_epilogue(args))
            return tpi_refuse(ctx, TP_ERR_ARGUMENT, "gemm: accumulate goes with neither order nor epilogue");
    }
    if (args->row_sums && args->order)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "gemm: row_sums do not go with order");
    return TP_OK;
}

static bool is_float(tp_dtype dtype)
{
    return dtype == TP_DTYPE_F32 || dtype == TP_DTYPE_BF16 || dtype == TP_DTYPE_F16;
}

static tp_status check_reduce_epilogue(tpi_check check, const tpi_reduce_args *args)
{
    TPI_TRY(tpi_check_dropout(check, args->dropout));
    TPI_TRY(tpi_check_size(check, "first_row", args->first_row));
    TPI_TRY(tpi_check_size(check, "first_col", args->first_col));
    if (args->total_cols != 0)
        TPI_TRY(tpi_check_range(check, "total_cols", args->total_cols, args->first_col + args->cols, INT64_MAX));
    if (!args->bias && !args->residual && args->dropout == 0)
        return TP_OK;
    TPI_TRY(tpi_check_float(check, "out_dtype with an epilogue", args->out_dtype));
    if (args->op != TP_REDUCE_SUM)
        return tpi_refuse(check.ctx, TP_ERR_ARGUMENT,
                          "%s: op is %d; bias, residual and dropout go with a sum (%d) only", check.op, (int)args->op,
                          (int)TP_REDUCE_SUM);
    return args->bias ? tpi_check_float(check, "bias_dtype", args->bias_dtype) : TP_OK;
}

tp_status tpi_check_reduce(tp_ctx *ctx, const tpi_reduce_args *args)
{
    tpi_check check = {ctx, "reduce"};
    TPI_TRY(tpi_check_size(check, "rows", args->rows));
    TPI_TRY(tpi_check_size(check, "cols", args->cols));
    TPI_TRY(tpi_check_range(check, "op", (int)args->op, TP_REDUCE_SUM, TP_REDUCE_MIN));
    const void *const *in = args->in ? args->in : args->leaf;
    void *const *out = args->out ? args->out : &args->single;
    TPI_TRY(tpi_check_range(check, "inputs", args->inputs, 1, args->in ? 64 : TP_VIRTUAL_RANKS + 1));
    TPI_TRY(tpi_check_range(check, "outputs", args->outputs, 1, args->out ? 64 : 1));
    TPI_TRY(tpi_check_range(check, "in_dtype", (int)args->in_dtype, TP_DTYPE_F32, TP_DTYPE_COUNT - 1));
    if (args->in_dtype == TP_DTYPE_F32)
        TPI_TRY(tpi_check_float(check, "out_dtype", args->out_dtype));
    else if (is_float(args->in_dtype))
        TPI_TRY(tpi_check_f32_or(check, "out_dtype", args->out_dtype, args->in_dtype));
    else
        TPI_TRY(tpi_check_dtype(check, "out_dtype", args->out_dtype, args->in_dtype));
    bool needed = args->rows > 0 && args->cols > 0;
    for (int i = 0; needed && i < args->inputs; i++)
        TPI_TRY(tpi_check_pointer(check, "in[i]", in[i], true));
    for (int i = 0; needed && i < args->outputs; i++)
        TPI_TRY(tpi_check_pointer(check, "out[i]", out[i], true));
    return check_reduce_epilogue(check, args);
}
