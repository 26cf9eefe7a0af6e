/* Checks shared by layers. */
#include "layers/check.h"

#include <inttypes.h>

static tp_status check_offsets(tp_ctx *ctx, const tp_pass *pass)
{
    int64_t sequences = pass->sequences > 0 ? pass->sequences : 1;
    if (pass->offsets[0] != 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "pass: offsets[0] is %" PRId64 ", must be 0", pass->offsets[0]);
    for (int64_t s = 0; s < sequences; s++)
        if (pass->offsets[s + 1] < pass->offsets[s])
            return tpi_refuse(ctx, TP_ERR_ARGUMENT, "pass: offsets[%" PRId64 "] is %" PRId64 ", less than the %" PRId64 " before it",
                              s + 1, pass->offsets[s + 1], pass->offsets[s]);
    if (pass->offsets[sequences] != pass->tokens)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "pass: last offset is %" PRId64 ", tokens are %" PRId64, pass->offsets[sequences],
                          pass->tokens);
    return TP_OK;
}

tp_status tpi_check_pass(tp_ctx *ctx, const tp_pass *pass)
{
    if (pass == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "pass is NULL");
    if (pass->tokens < 0 || pass->sequences < 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "pass: tokens %" PRId64 " and sequences %" PRId64 " must not be negative", pass->tokens,
                          pass->sequences);
    if (pass->offsets != NULL)
        return check_offsets(ctx, pass);
    if (pass->sequences > 0 && pass->tokens % pass->sequences != 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "pass: tokens %" PRId64 " are no multiple of sequences %" PRId64, pass->tokens,
                          pass->sequences);
    return TP_OK;
}

int64_t tpi_longest_sequence(const tp_pass *pass)
{
    int64_t sequences = pass->sequences > 0 ? pass->sequences : 1;
    if (pass->offsets == NULL)
        return pass->tokens / sequences;
    int64_t longest = 0;
    for (int64_t s = 0; s < sequences; s++) {
        int64_t length = pass->offsets[s + 1] - pass->offsets[s];
        longest = length > longest ? length : longest;
    }
    return longest;
}

tp_status tpi_check_ids(tp_ctx *ctx, const tpi_check_ids_args *args)
{
    if (args->ids == NULL && args->count > 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "pass: %s is NULL, %" PRId64 " are needed", args->what, args->count);
    if (ctx->desc.device != TP_DEVICE_CPU)
        return TP_OK;
    for (int64_t i = 0; i < args->count; i++)
        if (args->ids[i] < args->low || args->ids[i] >= args->limit)
            return tpi_refuse(ctx, TP_ERR_ARGUMENT, "pass: %s[%" PRId64 "] is %" PRId32 ", must be in [0, %s %" PRId64 ")", args->what, i,
                              args->ids[i], args->limit_name, args->limit);
    return TP_OK;
}

tp_status tpi_check_real(tp_ctx *ctx, const char *field, double value, double low, double high)
{
    if (value >= low && value < high)
        return TP_OK;
    return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s is %g, must be in [%g, %g)", field, value, low, high);
}

tp_status tpi_check_matrix(tp_ctx *ctx, const char *what, tp_tensor tensor, int64_t rows, int64_t cols, tp_dtype dtype)
{
    if (tensor.dims != 2 || tensor.shape[0] != rows || tensor.shape[1] != cols)
        return tpi_refuse(ctx, TP_ERR_SHAPE, "%s is [%" PRId64 ", %" PRId64 "] in %d dims, expected [%" PRId64 ", %" PRId64 "]", what,
                          tensor.shape[0], tensor.shape[1], tensor.dims, rows, cols);
    if (tensor.dtype != dtype)
        return tpi_refuse(ctx, TP_ERR_DTYPE, "%s is %s, expected %s", what, tp_dtype_name(tensor.dtype), tp_dtype_name(dtype));
    if (tensor.data == NULL && rows > 0 && cols > 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s has no data", what);
    return TP_OK;
}

bool tpi_is_float(tp_dtype dtype)
{
    return dtype == TP_DTYPE_F32 || dtype == TP_DTYPE_BF16 || dtype == TP_DTYPE_F16;
}
