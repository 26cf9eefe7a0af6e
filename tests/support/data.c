#include "data.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tp/random.h>

void *tpt_allocate(size_t bytes)
{
    size_t rounded = (bytes + 63) / 64 * 64;
    void *memory = aligned_alloc(64, rounded ? rounded : 64);
    if (memory == NULL) {
        fprintf(stderr, "test data: no memory for %zu bytes\n", bytes);
        exit(99);
    }
    return memset(memory, 0, rounded ? rounded : 64);
}

void *tpt_array(tp_dtype dtype, int64_t count)
{
    return tpt_allocate((size_t)count * tp_dtype_size(dtype));
}

double tpt_get(const void *data, tp_dtype dtype, int64_t index)
{
    switch (dtype) {
    case TP_DTYPE_F32: return ((const float *)data)[index];
    case TP_DTYPE_BF16: return tp_f32_from_bf16(((const uint16_t *)data)[index]);
    case TP_DTYPE_F16: return tp_f32_from_f16(((const uint16_t *)data)[index]);
    case TP_DTYPE_I32: return ((const int32_t *)data)[index];
    case TP_DTYPE_I64: return (double)((const int64_t *)data)[index];
    case TP_DTYPE_U8: return ((const uint8_t *)data)[index];
    default: return NAN;
    }
}

void tpt_set(void *data, tp_dtype dtype, int64_t index, double value)
{
    switch (dtype) {
    case TP_DTYPE_F32: ((float *)data)[index] = (float)value; break;
    case TP_DTYPE_BF16: ((uint16_t *)data)[index] = tp_bf16_from_f32((float)value); break;
    case TP_DTYPE_F16: ((uint16_t *)data)[index] = tp_f16_from_f32((float)value); break;
    case TP_DTYPE_I32: ((int32_t *)data)[index] = (int32_t)value; break;
    case TP_DTYPE_I64: ((int64_t *)data)[index] = (int64_t)value; break;
    case TP_DTYPE_U8: ((uint8_t *)data)[index] = (uint8_t)value; break;
    default: break;
    }
}

void tpt_from_f32(void *out, tp_dtype dtype, const float *in, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        tpt_set(out, dtype, i, in[i]);
}

void tpt_to_f32(float *out, const void *in, tp_dtype dtype, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = (float)tpt_get(in, dtype, i);
}

void tpt_to_f64(double *out, const void *in, tp_dtype dtype, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = tpt_get(in, dtype, i);
}

void tpt_fill_uniform(void *out, tp_dtype dtype, int64_t count, uint64_t seed, double low, double high)
{
    tp_random_key key = {seed, 1};
    for (int64_t i = 0; i < count; i++)
        tpt_set(out, dtype, i, low + (high - low) * tp_random_uniform(key, (uint64_t)i));
}

void tpt_fill_normal(void *out, tp_dtype dtype, int64_t count, uint64_t seed, double deviation)
{
    tp_random_key key = {seed, 2};
    for (int64_t i = 0; i < count; i++)
        tpt_set(out, dtype, i, deviation * tp_random_normal(key, (uint64_t)i));
}

void tpt_fill_integers(void *out, tp_dtype dtype, int64_t count, uint64_t seed, int bound)
{
    tp_random_key key = {seed, 3};
    for (int64_t i = 0; i < count; i++) {
        uint32_t word = tp_random_u32(key, (uint64_t)i);
        tpt_set(out, dtype, i, (double)(word % (2 * (uint32_t)bound + 1)) - bound);
    }
}

void *tpt_new_uniform(tp_dtype dtype, int64_t count, uint64_t seed, double low, double high)
{
    void *data = tpt_array(dtype, count);
    tpt_fill_uniform(data, dtype, count, seed, low, high);
    return data;
}

void *tpt_new_normal(tp_dtype dtype, int64_t count, uint64_t seed, double deviation)
{
    void *data = tpt_array(dtype, count);
    tpt_fill_normal(data, dtype, count, seed, deviation);
    return data;
}

/* How far apart, as a share of the tolerance: > 1 fails. NaN meets only NaN, an infinity only itself. */
static double excess(double got, double want, double tolerance)
{
    if (isnan(got) || isnan(want))
        return isnan(got) && isnan(want) ? 0.0 : INFINITY;
    if (got == want)
        return 0.0;
    if (isinf(got) || isinf(want))
        return INFINITY;
    double difference = fabs(got - want);
    return difference <= tolerance ? 0.0 : tolerance > 0.0 ? difference / tolerance : INFINITY;
}

/* stride 0: one tolerance for all elements. */
static bool close_strided(const char *what, const void *got, tp_dtype dtype, const double *want,
                          const double *tolerance, int stride, int64_t count)
{
    int64_t worst = -1, wrong = 0;
    double worst_excess = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double factor = excess(tpt_get(got, dtype, i), want[i], tolerance[i * stride]);
        if (factor > 0.0)
            wrong++;
        if (factor > worst_excess) {
            worst_excess = factor;
            worst = i;
        }
    }
    if (wrong == 0)
        return true;
    fprintf(stderr,
            "%s (%s): %" PRId64 " of %" PRId64 " elements wrong, worst [%" PRId64
            "]: got %.9g, want %.9g, tolerance %.3g\n",
            what, tp_dtype_name(dtype), wrong, count, worst, tpt_get(got, dtype, worst), want[worst],
            tolerance[worst * stride]);
    return false;
}

bool tpt_close(const char *what, const void *got, tp_dtype dtype, const double *want, int64_t count, double tolerance)
{
    return close_strided(what, got, dtype, want, &tolerance, 0, count);
}

bool tpt_close_each(const char *what, const void *got, tp_dtype dtype, const double *want, const double *tolerance,
                    int64_t count)
{
    return close_strided(what, got, dtype, want, tolerance, 1, count);
}

bool tpt_close_norm(const char *what, const void *got, tp_dtype dtype, const double *want, int64_t count,
                    double relative)
{
    double difference = 0.0, norm = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double error = tpt_get(got, dtype, i) - want[i];
        difference += error * error;
        norm += want[i] * want[i];
    }
    difference = sqrt(difference);
    norm = sqrt(norm);
    /* Written so that NaN fails. */
    if (difference <= relative * norm)
        return true;
    fprintf(stderr, "%s (%s): norm of the difference %.6g, of the reference %.6g, relative %.3g, allowed %.3g\n", what,
            tp_dtype_name(dtype), difference, norm, difference / norm, relative);
    return false;
}

bool tpt_same_bits(const char *what, const void *got, const void *want, tp_dtype dtype, int64_t count)
{
    size_t size = tp_dtype_size(dtype);
    const char *a = got, *b = want;
    for (int64_t i = 0; i < count; i++) {
        size_t at = (size_t)i * size;
        if (memcmp(a + at, b + at, size) == 0)
            continue;
        fprintf(stderr, "%s (%s): bits differ first at [%" PRId64 "] of %" PRId64 ": %.9g and %.9g\n", what,
                tp_dtype_name(dtype), i, count, tpt_get(got, dtype, i), tpt_get(want, dtype, i));
        return false;
    }
    return true;
}
