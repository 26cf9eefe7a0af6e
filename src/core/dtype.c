/* Storage types and their conversions. */
#include <string.h>
#include <tp/dtype.h>

typedef struct dtype_info {
    const char *name;
    size_t size;
    double epsilon;
} dtype_info;

static const dtype_info infos[TP_DTYPE_COUNT] = {
    [TP_DTYPE_INVALID] = {"invalid", 0, 0}, [TP_DTYPE_F32] = {"f32", 4, 0x1p-23}, [TP_DTYPE_BF16] = {"bf16", 2, 0x1p-7},
    [TP_DTYPE_F16] = {"f16", 2, 0x1p-10},   [TP_DTYPE_I32] = {"i32", 4, 0},       [TP_DTYPE_I64] = {"i64", 8, 0},
    [TP_DTYPE_U8] = {"u8", 1, 0},
};

static const dtype_info *info_of(tp_dtype dtype)
{
    return (int)dtype > 0 && (int)dtype < TP_DTYPE_COUNT ? &infos[dtype] : &infos[TP_DTYPE_INVALID];
}

size_t tp_dtype_size(tp_dtype dtype)
{
    return info_of(dtype)->size;
}

const char *tp_dtype_name(tp_dtype dtype)
{
    return info_of(dtype)->name;
}

tp_dtype tp_dtype_from_name(const char *name)
{
    for (int dtype = TP_DTYPE_INVALID + 1; name && dtype < TP_DTYPE_COUNT; dtype++) {
        if (strcmp(name, infos[dtype].name) == 0)
            return (tp_dtype)dtype;
    }
    return TP_DTYPE_INVALID;
}

double tp_dtype_epsilon(tp_dtype dtype)
{
    return info_of(dtype)->epsilon;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

uint16_t tp_bf16_from_f32(float value)
{
    uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u); /* quiet; truncation alone could make an infinity of it */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float tp_f32_from_bf16(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

/* value * 2^-shift, to nearest, ties to even; 1 <= shift <= 31. */
static uint32_t shift_rounded(uint32_t value, uint32_t shift)
{
    uint32_t half = 1u << (shift - 1);
    uint32_t kept = value >> shift;
    uint32_t rest = value & ((1u << shift) - 1u);
    return kept + (rest > half || (rest == half && (kept & 1u)) ? 1u : 0u);
}

uint16_t tp_f16_from_f32(float value)
{
    uint32_t bits = bits_of(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x47800000u) /* 65536 */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude >=
        0x38800000u) /* normal from 2^-14; a carry into the exponent, even to infinity, is right as it stands */
        return (uint16_t)(sign | shift_rounded(magnitude - 0x38000000u, 13));
    if (magnitude < 0x33000000u) /* below 2^-25: nearer to zero than to the least subnormal */
        return (uint16_t)sign;
    uint32_t exponent = magnitude >> 23;
    uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    return (uint16_t)(sign | shift_rounded(mantissa, 126u - exponent));
}

float tp_f32_from_f16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    uint32_t exponent = bits >> 10 & 0x1fu;
    uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 0x1f)
        return float_of(sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0));
    if (exponent == 0) {
        float magnitude = (float)mantissa * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return float_of(sign | (exponent + 112u) << 23 | mantissa << 13);
}
