/* Checks shared by layers. */
#include "layers/pass_check.h"

#include <inttypes.h>

#include "core/ops.h"

static tp_status check_offsets(tp_ctx *ctx, const tp_pass *pass)
{
    int64_t sequences = pass->sequences > 0 ? pass->sequences : 1;
    if (pass->offsets[0] != 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "pass: offsets[0] is %" PRId64 ", must be 0", pass->offsets[0]);
    for (int64_t s = 0; s < sequences; s++)
        if (pass->offsets[s + 1] < pass->offsets[s])
            return tpi_refuse(ctx, TP_ERR_ARGUMENT,
                              "pass: offsets[%" PRId64 "] is %" PRId64 ", less than the %" PRId64 " before it", s + 1,
                              pass->offsets[s + 1], pass->offsets[s]);
    if (pass->offsets[sequences] != pass->tokens)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "pass: last offset is %" PRId64 ", tokens are %" PRId64,
                          pass->offsets[sequences], pass->tokens);
    return TP_OK;
}

tp_status tpi_pass_check(tp_ctx *ctx, const tp_pass *pass)
{
    if (pass == NULL)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "pass is NULL");
    if (pass->tokens < 0 || pass->sequences < 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT,
                          "pass: tokens %" PRId64 " and sequences %" PRId64 " must not be negative", pass->tokens,
                          pass->sequences);
    if (pass->offsets != NULL)
        return check_offsets(ctx, pass);
    if (pass->sequences > 0 && pass->tokens % pass->sequences != 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "pass: tokens %" PRId64 " are no multiple of sequences %" PRId64,
                          pass->tokens, pass->sequences);
    return TP_OK;
}

int64_t tpi_pass_longest(const tp_pass *pass)
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

tp_status tpi_pass_check_ids(tp_ctx *ctx, const tpi_pass_ids *args)
{
    if (args->ids == NULL && args->count > 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "pass: %s is NULL, %" PRId64 " are needed", args->what, args->count);
    if (ctx->desc.device != TP_DEVICE_CPU)
        return TP_OK;
    for (int64_t i = 0; i < args->count; i++)
        if (args->ids[i] < args->low || args->ids[i] >= args->limit)
            return tpi_refuse(ctx, TP_ERR_ARGUMENT, TPI_WRONG_ID, args->what, (long long)i, (long long)args->ids[i],
                              args->limit_name, (long long)args->limit);
    return TP_OK;
}

tp_status tpi_layer_check_real(tp_ctx *ctx, const char *field, double value, double low, double high)
{
    if (value >= low && value < high)
        return TP_OK;
    return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s is %g, must be in [%g, %g)", field, value, low, high);
}
