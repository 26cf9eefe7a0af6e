/* simd.h, vector_math.h and random_math.h in their portable form, against double precision. That the other instruction
 * sets give the same bits is shown by the tests of the ops. */
#define TPI_ISA_LEVEL 0
#include "cpu/random_math.h"
#include "cpu/vector_math.h"

#include <criterion/criterion.h>
#include <float.h>
#include <stdlib.h>

typedef struct function {
    const char *name;
    vf (*vector)(vf x);
    double (*exact)(double x);
    double ulps; /* documented bound */
} function;

static double exact_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double exact_exp2_minus_size(double x)
{
    return exp2(-fabs(x));
}

static vf exp2_minus_size(vf x)
{
    return tpi_exp2_falling(tpi_minus_size(x));
}

static double exact_exp_minus_size(double x)
{
    return exp(-fabs(x));
}

static vf exp_minus_size(vf x)
{
    return tpi_exp_falling(tpi_minus_size(x));
}

static const function functions[] = {
    {"exp2 of -|x|", exp2_minus_size, exact_exp2_minus_size, 2},
    {"exp of -|x|", exp_minus_size, exact_exp_minus_size, 1},
    {"exp", vf_exp, exp, 1},
    {"log", vf_log, log, 1},
    {"tanh", vf_tanh, tanh, 2},
    {"erf", vf_erf, erf, 2},
    {"sigmoid", vf_sigmoid, exact_sigmoid, 3},
};

/* Distance between neighbouring floats at x. */
static double unit_at(double x)
{
    int exponent;

    frexp(fabs(x) < FLT_MIN ? FLT_MIN : fabs(x), &exponent);
    return ldexp(1, exponent - 24);
}

static void check_value(const function *f, float x, float got)
{
    double want = f->exact((double)x);

    if (isnan(want)) {
        cr_assert(isnan(got), "%s(%a) = %a", f->name, (double)x, (double)got);
        return;
    }
    if (isinf((float)want) || isinf(got)) {
        /* Beyond the last float, either side of the rounding border will do. */
        cr_assert((double)got == (double)(float)want || fabs(want) > (double)FLT_MAX * (1 - 1e-7), "%s(%a) = %a",
                  f->name, (double)x, (double)got);
        return;
    }
    cr_assert(fabs((double)got - want) <= f->ulps * unit_at(want), "%s(%a) = %a, exactly %a", f->name, (double)x,
              (double)got, want);
}

Test(vector_math, functions_hold_their_bounds_on_the_whole_range)
{
    for (size_t k = 0; k < sizeof functions / sizeof functions[0]; k++) {
        for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 16 * 24593) {
            float in[16], out[16];

            for (int i = 0; i < 16; i++)
                in[i] = tpi_float_of((uint32_t)(bits + (uint64_t)i * 24593));
            vf_store(out, functions[k].vector(vf_load(in)));
            for (int i = 0; i < 16; i++)
                check_value(&functions[k], in[i], out[i]);
        }
    }
}

static float of_one(vf (*f)(vf), float x)
{
    float out[16];

    vf_store(out, f(vf_set1(x)));
    return out[7];
}

Test(vector_math, special_values)
{
    cr_assert_eq(of_one(vf_exp, -INFINITY), 0.0f);
    cr_assert_eq(of_one(vf_exp, INFINITY), INFINITY);
    cr_assert_eq(of_one(vf_exp, 0.0f), 1.0f);
    cr_assert_eq(of_one(vf_exp, -104.5f), 0.0f);
    cr_assert_eq(of_one(vf_exp, 89.0f), INFINITY);
    cr_assert(isnan(of_one(vf_exp, NAN)));
    cr_assert_eq(of_one(vf_log, 0.0f), -INFINITY);
    cr_assert_eq(of_one(vf_log, -0.0f), -INFINITY);
    cr_assert_eq(of_one(vf_log, 1.0f), 0.0f);
    cr_assert_eq(of_one(vf_log, INFINITY), INFINITY);
    cr_assert(isnan(of_one(vf_log, -1.0f)));
    cr_assert_eq(of_one(vf_tanh, -INFINITY), -1.0f);
    cr_assert_eq(of_one(vf_erf, INFINITY), 1.0f);
    cr_assert_eq(of_one(vf_sigmoid, -INFINITY), 0.0f);
    cr_assert_eq(of_one(vf_sigmoid, INFINITY), 1.0f);
}

Test(vector_math, halves_round_as_the_public_conversions_do)
{
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 16 * 4099) {
        float in[16];
        uint16_t bf16[16], f16[16];

        for (int i = 0; i < 16; i++)
            in[i] = tpi_float_of((uint32_t)(bits + (uint64_t)i * 4099));
        vf_store_bf16(bf16, vf_load(in));
        vf_store_f16(f16, vf_load(in));
        for (int i = 0; i < 16; i++) {
            cr_assert_eq(bf16[i], tp_bf16_from_f32(in[i]), "%a", (double)in[i]);
            cr_assert_eq(f16[i], tp_f16_from_f32(in[i]), "%a", (double)in[i]);
        }
    }
    for (uint32_t bits = 0; bits < 65536; bits++) {
        uint16_t half = (uint16_t)bits;

        cr_assert_eq(tpi_bits_of(tpi_float_of_f16(half)), tpi_bits_of(tp_f32_from_f16(half)));
        cr_assert_eq(tpi_bits_of(tpi_float_of_bf16(half)), tpi_bits_of(tp_f32_from_bf16(half)));
    }
}

Test(vector_math, partial_loads_and_stores_stay_inside)
{
    for (int n = 0; n <= 16; n++) {
        /* Heap blocks of the exact size: a sanitizer sees one byte too many. */
        float *floats = malloc((size_t)n * sizeof(float) + 1), lane[16];
        uint16_t *halves = malloc((size_t)n * sizeof(uint16_t) + 1);

        vf_store_n(floats, vf_set1(3), n);
        vf_store(lane, vf_load_n(floats, n));
        for (int i = 0; i < 16; i++)
            cr_assert_eq(lane[i], i < n ? 3.0f : 0.0f);
        vf_store_bf16_n(halves, vf_set1(5), n);
        vf_store(lane, vf_load_bf16_n(halves, n));
        for (int i = 0; i < 16; i++)
            cr_assert_eq(lane[i], i < n ? 5.0f : 0.0f);
        vf_store_f16_n(halves, vf_set1(7), n);
        vf_store(lane, vf_load_f16_n(halves, n));
        for (int i = 0; i < 16; i++)
            cr_assert_eq(lane[i], i < n ? 7.0f : 0.0f);
        cr_assert_eq(vm_bits(vm_first(n)), (1u << n) - 1);
        free(floats);
        free(halves);
    }
}

Test(vector_math, sum_is_the_lane_tree)
{
    float x[16], eight[8], four[4];

    for (int i = 0; i < 16; i++)
        x[i] = 1.0f / (float)(i + 3);
    for (int i = 0; i < 8; i++)
        eight[i] = x[i] + x[i + 8];
    for (int i = 0; i < 4; i++)
        four[i] = eight[i] + eight[i + 4];
    cr_assert_eq(vf_sum(vf_load(x)), (four[0] + four[2]) + (four[1] + four[3]));
    x[5] = NAN;
    cr_assert(isnan(vf_max_lane(vf_load(x))));
    x[5] = 8;
    cr_assert_eq(vf_max_lane(vf_load(x)), 8.0f);
}

Test(vector_math, random_words_are_the_public_ones)
{
    static const uint64_t first[] = {0, 1, 2, 7, (UINT64_C(1) << 34) - 6, UINT64_MAX - 200};
    const tp_random_key key = {UINT64_C(0x123456789abcdef0), UINT64_C(0xfedcba9876543210)};
    tpi_random_source source;

    tpi_random_source_init(&source, key);
    for (size_t k = 0; k < sizeof first / sizeof first[0]; k++) {
        for (uint64_t at = first[k]; at - first[k] < 160; at += 16) {
            uint32_t word[16];

            vi_store(word, tpi_random_words16(&source, at));
            for (uint64_t i = 0; i < 16; i++)
                cr_assert_eq(word[i], tp_random_u32(key, at + i), "element %llu", (unsigned long long)(at + i));
        }
    }
}
