/* Storage types. Accumulation, statistics, softmax, losses and parameter gradients are f32 whatever the storage. */
#ifndef TP_DTYPE_H
#define TP_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <tp/export.h>

typedef enum tp_dtype {
    TP_DTYPE_INVALID = 0, /* a zero-filled descriptor has no dtype: it must be chosen */
    TP_DTYPE_F32,
    TP_DTYPE_BF16,
    TP_DTYPE_F16,
    TP_DTYPE_I32,
    TP_DTYPE_I64,
    TP_DTYPE_U8,
    TP_DTYPE_COUNT
} tp_dtype;

TP_BEGIN_DECLS

/* Bytes of one element; 0 for an invalid dtype. */
TP_API size_t tp_dtype_size(tp_dtype dtype);

/* "f32", "bf16", ...; "invalid" otherwise. */
TP_API const char *tp_dtype_name(tp_dtype dtype);

/* The dtype with that name, TP_DTYPE_INVALID if there is none. */
TP_API tp_dtype tp_dtype_from_name(const char *name);

/* Distance from 1 to the next larger value: 2^-23, 2^-7, 2^-10; 0 for integers. Tolerances are computed from it. */
TP_API double tp_dtype_epsilon(tp_dtype dtype);

/* Conversions round to nearest, ties to even; NaN stays NaN (quiet), values too large become infinity. */
TP_API uint16_t tp_bf16_from_f32(float value);
TP_API float tp_f32_from_bf16(uint16_t bits);
TP_API uint16_t tp_f16_from_f32(float value);
TP_API float tp_f32_from_f16(uint16_t bits);

TP_END_DECLS
#endif
