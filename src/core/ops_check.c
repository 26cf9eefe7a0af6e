/* The pieces that argument checks are made of. */
#include "core/ops_check.h"

#include <math.h>

tp_status tpi_check_range(tpi_check check, const char *field, int64_t value, int64_t low, int64_t high)
{
    if (value >= low && value <= high)
        return TP_OK;
    return tpi_refuse(check.ctx, TP_ERR_ARGUMENT, "%s: %s is %lld, not within %lld and %lld", check.op, field,
                      (long long)value, (long long)low, (long long)high);
}

tp_status tpi_check_size(tpi_check check, const char *field, int64_t value)
{
    if (value >= 0)
        return TP_OK;
    return tpi_refuse(check.ctx, TP_ERR_SHAPE, "%s: %s is %lld, less than 0", check.op, field, (long long)value);
}

tp_status tpi_check_number(tpi_check check, const char *field, double value, double low, double high)
{
    if (isfinite(value) && value >= low && value < high) /* NaN is refused too */
        return TP_OK;
    return tpi_refuse(check.ctx, TP_ERR_ARGUMENT, "%s: %s is %g, not in [%g, %g)", check.op, field, value, low, high);
}

tp_status tpi_check_dropout(tpi_check check, float probability)
{
    return tpi_check_number(check, "dropout", (double)probability, 0, 1);
}

tp_status tpi_check_pointer(tpi_check check, const char *field, const void *pointer, bool needed)
{
    if (pointer || !needed)
        return TP_OK;
    return tpi_refuse(check.ctx, TP_ERR_ARGUMENT, "%s: %s is NULL", check.op, field);
}

tp_status tpi_check_float(tpi_check check, const char *field, tp_dtype dtype)
{
    if (dtype == TP_DTYPE_F32 || dtype == TP_DTYPE_BF16 || dtype == TP_DTYPE_F16)
        return TP_OK;
    return tpi_refuse(check.ctx, TP_ERR_DTYPE, "%s: %s is %s, not f32, bf16 or f16", check.op, field,
                      tp_dtype_name(dtype));
}

tp_status tpi_check_dtype(tpi_check check, const char *field, tp_dtype dtype, tp_dtype want)
{
    if (dtype == want)
        return TP_OK;
    return tpi_refuse(check.ctx, TP_ERR_DTYPE, "%s: %s is %s, not %s", check.op, field, tp_dtype_name(dtype),
                      tp_dtype_name(want));
}

tp_status tpi_check_f32_or(tpi_check check, const char *field, tp_dtype dtype, tp_dtype other)
{
    if (dtype == TP_DTYPE_F32 || dtype == other)
        return TP_OK;
    return tpi_refuse(check.ctx, TP_ERR_DTYPE, "%s: %s is %s, not f32 or %s", check.op, field, tp_dtype_name(dtype),
                      tp_dtype_name(other));
}

tp_status tpi_check_rows(tpi_check check, tpi_check_matrix matrix)
{
    TPI_TRY(tpi_check_pointer(check, matrix.field, matrix.data, matrix.rows > 0 && matrix.cols > 0));
    if (matrix.rows <= 1 || matrix.cols == 0 || matrix.stride >= matrix.cols)
        return TP_OK;
    return tpi_refuse(check.ctx, TP_ERR_SHAPE, "%s: stride of %s is %lld, less than its %lld columns", check.op,
                      matrix.field, (long long)matrix.stride, (long long)matrix.cols);
}

tp_status tpi_check_order(tpi_check check, const tpi_inner *order, int64_t inner)
{
    if (!order)
        return TP_OK;
    TPI_TRY(tpi_check_range(check, "order.blocks", order->blocks, 1, TPI_MAX_BLOCKS));
    TPI_TRY(tpi_check_range(check, "order.segments", order->segments, 0, TPI_MAX_SEGMENTS));
    int block = 0;
    for (int i = 0; i < order->segments; i++) {
        TPI_TRY(tpi_check_range(check, "order.segment.block", order->segment[i].block, block, order->blocks - 1));
        block = order->segment[i].block;
        TPI_TRY(tpi_check_range(check, "order.segment.begin", order->segment[i].begin, 0, inner));
        TPI_TRY(tpi_check_range(check, "order.segment.length", order->segment[i].length, 0,
                                inner - order->segment[i].begin));
    }
    return TP_OK;
}

tp_status tpi_check_sequences(tpi_check check, int64_t rows, int64_t sequences, const int64_t *offsets)
{
    TPI_TRY(tpi_check_size(check, "sequences", sequences));
    if (!offsets) {
        if (sequences > 0 && rows % sequences != 0)
            return tpi_refuse(check.ctx, TP_ERR_SHAPE, "%s: %lld rows are not divisible by %lld sequences", check.op,
                              (long long)rows, (long long)sequences);
        return TP_OK;
    }
    TPI_TRY(tpi_check_range(check, "offsets[0]", offsets[0], 0, 0));
    int64_t last = 0;
    for (int64_t i = 1; i <= sequences; i++) {
        if (offsets[i] < last)
            return tpi_refuse(check.ctx, TP_ERR_SHAPE, "%s: offsets[%lld] is %lld, less than %lld before it", check.op,
                              (long long)i, (long long)offsets[i], (long long)last);
        last = offsets[i];
    }
    if (last != rows)
        return tpi_refuse(check.ctx, TP_ERR_SHAPE, "%s: offsets[%lld] is %lld, but there are %lld rows", check.op,
                          (long long)sequences, (long long)last, (long long)rows);
    return TP_OK;
}
