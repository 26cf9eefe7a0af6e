/* The helpers that other tests rest on: they must fail when they should. */
#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>

#include "support/data.h"
#include "support/tolerance.h"

Test(support, tolerance_grows_with_length_and_dtype)
{
    double one = tpt_tolerance(TP_DTYPE_F32, 1, 1.0);
    cr_assert(one >= 0x1p-23 && one < 0x1p-21);
    cr_assert_gt(tpt_tolerance(TP_DTYPE_F32, 1000, 1.0), 100 * one);
    cr_assert(tpt_tolerance(TP_DTYPE_BF16, 1, 1.0) > 0x1p-8 && tpt_tolerance(TP_DTYPE_BF16, 1, 1.0) < 0x1p-6);
    cr_assert_gt(tpt_tolerance(TP_DTYPE_F32, 1, 8.0), 7 * one);
    cr_assert_gt(tpt_tolerance_chain(TP_DTYPE_F32, 1, 3, 1.0), 2 * one);
}

Test(support, close_finds_what_differs)
{
    double want[4] = {1.0, -2.0, 0.0, INFINITY};
    float got[4] = {1.0f, -2.0f, 0.0f, INFINITY};
    double each[4] = {0.0, 0.2, 0.0, 0.0};
    cr_assert(tpt_close("equal", got, TP_DTYPE_F32, want, 4, 0.0));
    got[1] = -2.1f;
    cr_assert(tpt_close("near", got, TP_DTYPE_F32, want, 4, 0.2));
    cr_assert(tpt_close_each("near", got, TP_DTYPE_F32, want, each, 4));
    cr_assert_not(tpt_close("must differ", got, TP_DTYPE_F32, want, 4, 0.05));
    got[1] = NAN;
    cr_assert_not(tpt_close("must differ", got, TP_DTYPE_F32, want, 4, 1e9));
    got[1] = -2.0f;
    got[3] = 1.0f;
    cr_assert_not(tpt_close("must differ", got, TP_DTYPE_F32, want, 4, 1e9));
}

Test(support, close_norm_finds_what_differs)
{
    double want[2] = {3.0, 4.0};
    float got[2] = {3.0f, 4.4f};
    cr_assert(tpt_close_norm("near", got, TP_DTYPE_F32, want, 2, 0.081));
    cr_assert_not(tpt_close_norm("must differ", got, TP_DTYPE_F32, want, 2, 0.079));
    got[0] = NAN;
    cr_assert_not(tpt_close_norm("must differ", got, TP_DTYPE_F32, want, 2, 1e9));
}

Test(support, same_bits_tells_zeros_apart)
{
    float positive[2] = {1.0f, 0.0f}, negative[2] = {1.0f, -0.0f};
    cr_assert(tpt_same_bits("same", positive, positive, TP_DTYPE_F32, 2));
    cr_assert_not(tpt_same_bits("must differ", positive, negative, TP_DTYPE_F32, 2));
}

Test(support, data_is_deterministic_and_in_range)
{
    float *a = tpt_new_uniform(TP_DTYPE_F32, 1000, 7, -1.0, 1.0),
          *b = tpt_new_uniform(TP_DTYPE_F32, 1000, 7, -1.0, 1.0);
    float *other = tpt_new_uniform(TP_DTYPE_F32, 1000, 8, -1.0, 1.0);
    cr_assert(tpt_same_bits("same seed", a, b, TP_DTYPE_F32, 1000));
    cr_assert_not(tpt_same_bits("must differ", a, other, TP_DTYPE_F32, 1000));
    int32_t *integers = tpt_array(TP_DTYPE_I32, 1000);
    tpt_fill_integers(integers, TP_DTYPE_I32, 1000, 3, 4);
    for (int i = 0; i < 1000; i++) {
        cr_assert(a[i] >= -1.0f && a[i] < 1.0f);
        cr_assert(integers[i] >= -4 && integers[i] <= 4);
    }
    free(a);
    free(b);
    free(other);
    free(integers);
}

Test(support, conversions_of_arrays_round_trip)
{
    const float values[3] = {1.5f, -0.25f, 96.0f};
    const tp_dtype dtypes[3] = {TP_DTYPE_F32, TP_DTYPE_BF16, TP_DTYPE_F16};
    for (int d = 0; d < 3; d++) {
        void *stored = tpt_array(dtypes[d], 3);
        float back[3];
        double wide[3];
        tpt_from_f32(stored, dtypes[d], values, 3);
        tpt_to_f32(back, stored, dtypes[d], 3);
        tpt_to_f64(wide, stored, dtypes[d], 3);
        cr_assert(tpt_same_bits("exact values", back, values, TP_DTYPE_F32, 3));
        cr_assert(tpt_close("exact values", stored, dtypes[d], wide, 3, 0.0));
        free(stored);
    }
}
