#include "layers/layer.h"

#include "layers/pass_check.h"

tp_status tpi_layer_pass(tp_ctx *ctx, const tpi_pass_need *need, const tp_pass *pass, int64_t rows, tp_pass *out)
{
    TPI_TRY(tpi_object_usable(ctx, need->layer, need->owner));
    if (pass != NULL) {
        TPI_TRY(tpi_pass_check(ctx, pass));
        *out = *pass;
        return TP_OK;
    }
    bool split = need->sequence_parallel && tp_comm_size(tp_ctx_group(ctx, TP_AXIS_TP)) > 1;
    if (split || need->dropout > 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: pass is NULL, but %s needs it", need->layer,
                          split ? "sequence parallelism" : "dropout");
    *out = (tp_pass){.tokens = rows};
    return TP_OK;
}

tp_status tpi_layer_check_matrix(tp_ctx *ctx, const char *layer, const char *tensor, tp_tensor given,
                                 const tp_tensor *expected)
{
    int64_t rows = expected->shape[0], cols = expected->shape[1];
    if (given.dims != 2)
        return tpi_refuse(ctx, TP_ERR_SHAPE, "%s: %s has %d dims, 2 expected", layer, tensor, given.dims);
    if (given.shape[0] != rows || given.shape[1] != cols)
        return tpi_refuse(ctx, TP_ERR_SHAPE, "%s: %s is [%lld, %lld], expected [%lld, %lld]", layer, tensor,
                          (long long)given.shape[0], (long long)given.shape[1], (long long)rows, (long long)cols);
    if (given.dtype != expected->dtype)
        return tpi_refuse(ctx, TP_ERR_DTYPE, "%s: %s is %s, expected %s", layer, tensor, tp_dtype_name(given.dtype),
                          tp_dtype_name(expected->dtype));
    if (given.stride[1] != 1 || given.stride[0] < cols)
        return tpi_refuse(ctx, TP_ERR_SHAPE, "%s: %s has row stride %lld for %lld columns", layer, tensor,
                          (long long)given.stride[0], (long long)cols);
    int64_t elements;
    if (__builtin_mul_overflow(rows, given.stride[0], &elements) ||
        elements > INT64_MAX / (int64_t)tp_dtype_size(given.dtype))
        return tpi_refuse(ctx, TP_ERR_SHAPE, "%s: %s of %lld rows, %lld elements apart, is larger than memory", layer,
                          tensor, (long long)rows, (long long)given.stride[0]);
    if ((uintptr_t)given.data % tp_dtype_size(given.dtype) != 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: %s at %p is not aligned to the %zu bytes of %s", layer, tensor,
                          given.data, tp_dtype_size(given.dtype), tp_dtype_name(given.dtype));
    if (given.data == NULL && rows > 0 && cols > 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: %s has no memory", layer, tensor);
    return TP_OK;
}

/* Where a checked matrix lies: rows of `width` bytes, `pitch` bytes apart. */
typedef struct place {
    uintptr_t begin, end;
    size_t pitch, width; /* pitch 0: one row */
} place;

static place place_of(const tp_tensor *matrix)
{
    size_t size = tp_dtype_size(matrix->dtype), width = (size_t)matrix->shape[1] * size;
    if (matrix->data == NULL || matrix->dims != 2 || matrix->shape[0] < 1 || width == 0)
        return (place){0, 0, 0, 0};
    size_t pitch = (size_t)matrix->stride[0] * size;
    uintptr_t begin = (uintptr_t)matrix->data;
    uintptr_t end = begin + (size_t)(matrix->shape[0] - 1) * pitch + width;
    return (place){begin, end, matrix->shape[0] > 1 ? pitch : 0, width};
}

/* Columns of one matrix lie between each other's rows without touching; rows of different pitch are not taken apart. */
static bool overlap(const tp_tensor *first, const tp_tensor *second)
{
    place a = place_of(first), b = place_of(second);
    if (a.begin >= b.end || b.begin >= a.end)
        return false;
    size_t pitch = a.pitch ? a.pitch : b.pitch;
    if (pitch == 0 || (b.pitch != 0 && b.pitch != pitch))
        return true;
    size_t away = b.begin >= a.begin ? (b.begin - a.begin) % pitch : (pitch - (a.begin - b.begin) % pitch) % pitch;
    return away < a.width || away + b.width > pitch;
}

static bool same_place(const tp_tensor *a, const tp_tensor *b)
{
    return a->data == b->data && (a->stride[0] == b->stride[0] || a->shape[0] <= 1);
}

tp_status tpi_layer_check_apart(tp_ctx *ctx, const char *layer, const tp_io *io)
{
    if (overlap(&io->in, &io->out))
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: output at %p and input at %p overlap", layer, io->out.data,
                          io->in.data);
    if (overlap(&io->residual, &io->out) && !same_place(&io->residual, &io->out))
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: output at %p and residual at %p overlap, but are not the same",
                          layer, io->out.data, io->residual.data);
    return TP_OK;
}

tp_status tpi_layer_check_memory(tp_ctx *ctx, const char *layer, const void *memory, size_t given, size_t needed)
{
    if (given < needed || (memory == NULL && needed > 0))
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: saved or delayed memory of %zu bytes, %zu needed", layer,
                          memory ? given : (size_t)0, needed);
    if ((uintptr_t)memory % 64 != 0)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: saved or delayed memory at %p is not aligned to 64 bytes", layer,
                          memory);
    return TP_OK;
}

tp_random_key tpi_dropout_key(const tp_ctx *ctx, uint32_t site, const tp_pass *pass)
{
    return (tp_random_key){tp_ctx_seed(ctx), tp_random_stream_step(site, pass->step)};
}

float tpi_pass_dropout(const tp_pass *pass, float probability)
{
    return pass->no_dropout ? 0.0f : probability;
}

tp_status tpi_layer_check_dropout(tp_ctx *ctx, const char *layer, const char *field, float probability)
{
    if (!(probability >= 0 && probability < 1)) /* NaN too */
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: %s %g is not in [0, 1)", layer, field, (double)probability);
    return TP_OK;
}

tp_status tpi_layer_check_std(tp_ctx *ctx, const char *layer, const char *field, float std)
{
    if (!(std >= 0)) /* NaN too */
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: %s %g is negative or NaN", layer, field, (double)std);
    return TP_OK;
}

tp_status tpi_layer_check_number(tp_ctx *ctx, const char *layer, uint32_t number)
{
    const uint32_t limit = 1u << 24;
    if (number >= limit)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: layer %u, must be below %u", layer, number, limit);
    return TP_OK;
}

tp_status tpi_layer_check_overlap(tp_ctx *ctx, const char *layer, tp_overlap overlap, int chunks)
{
    if ((int)overlap < 0 || overlap >= TP_OVERLAP_COUNT)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: overlap %d is not one of 0 to %d", layer, (int)overlap,
                          TP_OVERLAP_COUNT - 1);
    if (chunks < 0 || chunks > TP_PLAN_MAX_CHUNKS)
        return tpi_refuse(ctx, TP_ERR_ARGUMENT, "%s: chunks %d, must be 0 to %d", layer, chunks, TP_PLAN_MAX_CHUNKS);
    return TP_OK;
}

tp_status tpi_layer_check_dtype(tp_ctx *ctx, const char *layer, tp_dtype dtype)
{
    if (dtype != TP_DTYPE_F32 && dtype != TP_DTYPE_BF16 && dtype != TP_DTYPE_F16)
        return tpi_refuse(ctx, TP_ERR_DTYPE, "%s: dtype %s, expected f32, bf16 or f16", layer, tp_dtype_name(dtype));
    return TP_OK;
}

int tpi_params_append(tp_param **out, int capacity, int at, tp_param *param)
{
    if (param == NULL)
        return at;
    if (out != NULL && at < capacity)
        out[at] = param;
    return at + 1;
}

int tpi_params_of_linears(tp_linear *first, tp_linear *second, tp_param **out, int capacity)
{
    tp_param *own[4];
    int count = tp_linear_params(first, own, 4);
    count += tp_linear_params(second, own + count, 4 - count);
    for (int i = 0; out != NULL && i < count && i < capacity; i++)
        out[i] = own[i];
    return count;
}
