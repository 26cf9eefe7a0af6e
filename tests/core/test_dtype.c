/* Storage types: all 65536 patterns of the 16-bit ones, and rounding to nearest even against exact arithmetic. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <tp/dtype.h>

Test(dtype, table)
{
    static const size_t sizes[TP_DTYPE_COUNT] = {0, 4, 2, 2, 4, 8, 1};
    for (int dtype = 0; dtype < TP_DTYPE_COUNT; dtype++) {
        cr_assert_eq(tp_dtype_size((tp_dtype)dtype), sizes[dtype]);
        cr_assert_eq(tp_dtype_from_name(tp_dtype_name((tp_dtype)dtype)), (tp_dtype)dtype);
    }
    cr_assert_str_eq(tp_dtype_name(TP_DTYPE_BF16), "bf16");
    cr_assert_str_eq(tp_dtype_name(TP_DTYPE_INVALID), "invalid");
    cr_assert_str_eq(tp_dtype_name((tp_dtype)99), "invalid");
    cr_assert_eq(tp_dtype_size((tp_dtype)-1), 0u);
    cr_assert_eq(tp_dtype_from_name("f64"), TP_DTYPE_INVALID);
    cr_assert_eq(tp_dtype_from_name(NULL), TP_DTYPE_INVALID);
    cr_assert_eq(tp_dtype_epsilon(TP_DTYPE_F32), 0x1p-23);
    cr_assert_eq(tp_dtype_epsilon(TP_DTYPE_BF16), 0x1p-7);
    cr_assert_eq(tp_dtype_epsilon(TP_DTYPE_F16), 0x1p-10);
    cr_assert_eq(tp_dtype_epsilon(TP_DTYPE_I32), 0.0);
}

/* The value of a 16-bit pattern with this many exponent and mantissa bits, from the definition of the format. */
static double value_of(uint32_t bits, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double mantissa = (double)(bits & ((1u << mantissa_bits) - 1u));
    double magnitude;
    if (exponent == (1 << exponent_bits) - 1)
        magnitude = mantissa == 0 ? INFINITY : NAN;
    else if (exponent == 0)
        magnitude = ldexp(mantissa, 1 - bias - mantissa_bits);
    else
        magnitude = ldexp(mantissa + ldexp(1, mantissa_bits), exponent - bias - mantissa_bits);
    return bits & 0x8000u ? -magnitude : magnitude;
}

typedef struct format {
    int exponent_bits, mantissa_bits;
    uint16_t (*from)(float);
    float (*to)(uint16_t);
} format;

static const format formats[] = {{8, 7, tp_bf16_from_f32, tp_f32_from_bf16}, {5, 10, tp_f16_from_f32, tp_f32_from_f16}};

static void check_pattern(const format *f, uint32_t bits)
{
    double value = value_of(bits, f->exponent_bits, f->mantissa_bits);
    float read = f->to((uint16_t)bits);
    if (isnan(value)) {
        cr_assert(isnan(read));
        cr_assert(isnan(f->to(f->from(read))));
        return;
    }
    cr_assert_eq((double)read, value, "pattern %04x reads %g, not %g", bits, (double)read, value);
    cr_assert_eq(!signbit(read), !(bits & 0x8000u));
    cr_assert_eq(f->from(read), bits, "pattern %04x comes back as %04x", bits, f->from(read));
}

Test(dtype, every_pattern_round_trips)
{
    for (size_t i = 0; i < 2; i++) {
        for (uint32_t bits = 0; bits < 0x10000u; bits++)
            check_pattern(&formats[i], bits);
    }
}

/* Between each value and the next: the middle goes to the even one, a little less down, a little more up. */
static void check_between(const format *f, uint32_t bits)
{
    double low = value_of(bits, f->exponent_bits, f->mantissa_bits);
    bool last = (bits & 0x7fffu) + 1 == (((1u << f->exponent_bits) - 1u) << f->mantissa_bits);
    /* Above the largest one stands what would follow if the exponent went on. */
    double high = last ? 2 * low - value_of(bits - 1, f->exponent_bits, f->mantissa_bits)
                       : value_of(bits + 1, f->exponent_bits, f->mantissa_bits);
    double middle = (low + high) / 2;
    if (isinf((float)middle) || (double)(float)middle != middle)
        return; /* f32 itself has nothing there */
    float exact = (float)middle, outward = copysignf(INFINITY, exact);
    uint16_t even = (uint16_t)(bits & 1u ? bits + 1 : bits);
    cr_assert_eq(f->from(exact), even, "tie above %04x", bits);
    cr_assert_eq(f->from(nextafterf(exact, 0)), bits, "below the tie above %04x", bits);
    if (!isinf(nextafterf(exact, outward)))
        cr_assert_eq(f->from(nextafterf(exact, outward)), bits + 1, "above the tie above %04x", bits);
}

Test(dtype, ties_go_to_even)
{
    for (size_t i = 0; i < 2; i++) {
        uint32_t infinity = ((1u << formats[i].exponent_bits) - 1u) << formats[i].mantissa_bits;
        for (uint32_t bits = 0; bits < infinity; bits++) {
            check_between(&formats[i], bits);
            check_between(&formats[i], bits | 0x8000u);
        }
    }
}

Test(dtype, special_values)
{
    for (size_t i = 0; i < 2; i++) {
        const format *f = &formats[i];
        cr_assert(isnan(f->to(f->from(NAN))));
        cr_assert_eq(f->to(f->from(INFINITY)), INFINITY);
        cr_assert_eq(f->to(f->from(-INFINITY)), -INFINITY);
        cr_assert_eq(f->to(f->from(3.4028235e38f)), INFINITY);
        cr_assert_eq(f->from(-0.0f), 0x8000u);
        cr_assert_eq(f->from(1e-45f), 0u);
        /* A NaN whose payload sits in the low bits only must not become infinity. */
        uint32_t bits = 0x7f800001u;
        float signalling;
        memcpy(&signalling, &bits, sizeof signalling);
        cr_assert(isnan(f->to(f->from(signalling))));
    }
    cr_assert_eq(tp_f32_from_f16(tp_f16_from_f32(65519.0f)), 65504.0f);
    cr_assert_eq(tp_f32_from_f16(tp_f16_from_f32(65520.0f)), INFINITY);
}
