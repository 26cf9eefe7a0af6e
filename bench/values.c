#include "values.h"

void bench_store(void *data, tp_dtype dtype, int64_t i, int64_t value)
{
    switch (dtype) {
    case TP_DTYPE_F32: ((float *)data)[i] = (float)value; break;
    case TP_DTYPE_BF16: ((uint16_t *)data)[i] = tp_bf16_from_f32((float)value); break;
    case TP_DTYPE_F16: ((uint16_t *)data)[i] = tp_f16_from_f32((float)value); break;
    case TP_DTYPE_I32: ((int32_t *)data)[i] = (int32_t)value; break;
    case TP_DTYPE_I64: ((int64_t *)data)[i] = value; break;
    case TP_DTYPE_U8: ((uint8_t *)data)[i] = (uint8_t)value; break;
    case TP_DTYPE_INVALID:
    case TP_DTYPE_COUNT: break;
    }
}

void bench_store_real(void *data, tp_dtype dtype, int64_t i, float value)
{
    if (dtype == TP_DTYPE_F32)
        ((float *)data)[i] = value;
    else
        ((uint16_t *)data)[i] = dtype == TP_DTYPE_BF16 ? tp_bf16_from_f32(value) : tp_f16_from_f32(value);
}

double bench_load(const void *data, tp_dtype dtype, int64_t i)
{
    switch (dtype) {
    case TP_DTYPE_F32: return ((const float *)data)[i];
    case TP_DTYPE_BF16: return tp_f32_from_bf16(((const uint16_t *)data)[i]);
    case TP_DTYPE_F16: return tp_f32_from_f16(((const uint16_t *)data)[i]);
    case TP_DTYPE_I32: return ((const int32_t *)data)[i];
    case TP_DTYPE_I64: return (double)((const int64_t *)data)[i];
    case TP_DTYPE_U8: return ((const uint8_t *)data)[i];
    case TP_DTYPE_INVALID:
    case TP_DTYPE_COUNT: break;
    }
    return 0;
}

double bench_rounded(tp_dtype dtype, int64_t value)
{
    switch (dtype) {
    case TP_DTYPE_F32: return (float)value;
    case TP_DTYPE_BF16: return tp_f32_from_bf16(tp_bf16_from_f32((float)value));
    case TP_DTYPE_F16: return tp_f32_from_f16(tp_f16_from_f32((float)value));
    case TP_DTYPE_I32: return (int32_t)value;
    case TP_DTYPE_I64: return (double)value;
    case TP_DTYPE_U8: return (uint8_t)value;
    case TP_DTYPE_INVALID:
    case TP_DTYPE_COUNT: break;
    }
    return 0;
}
