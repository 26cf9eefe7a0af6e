/* Test data and comparison: deterministic random arrays, conversion of dtypes, closeness to a double-precision
 * reference. */
#ifndef TPT_DATA_H
#define TPT_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tp/dtype.h>

/* Zeroed, 64-byte aligned, ends the test if there is no memory. Freed by free(). count 0 gives a pointer too. */
void *tpt_allocate(size_t bytes);
void *tpt_array(tp_dtype dtype, int64_t count);

/* Element i as a number (integers too), and back with the library's rounding. */
double tpt_get(const void *data, tp_dtype dtype, int64_t index);
void tpt_set(void *data, tp_dtype dtype, int64_t index, double value);

/* Conversion of whole arrays: f32 to dtype (rounded) and dtype to f32 or double (exact). */
void tpt_from_f32(void *out, tp_dtype dtype, const float *in, int64_t count);
void tpt_to_f32(float *out, const void *in, tp_dtype dtype, int64_t count);
void tpt_to_f64(double *out, const void *in, tp_dtype dtype, int64_t count);

/* Values uniform in [low, high), rounded to dtype; the same for the same seed. */
void tpt_fill_uniform(void *out, tp_dtype dtype, int64_t count, uint64_t seed, double low, double high);
/* Normal with this deviation. */
void tpt_fill_normal(void *out, tp_dtype dtype, int64_t count, uint64_t seed, double deviation);
/* Small integers in [-bound, bound], so that sums of products are exact in f32 whatever their order. */
void tpt_fill_integers(void *out, tp_dtype dtype, int64_t count, uint64_t seed, int bound);
/* New arrays, filled. */
void *tpt_new_uniform(tp_dtype dtype, int64_t count, uint64_t seed, double low, double high);
void *tpt_new_normal(tp_dtype dtype, int64_t count, uint64_t seed, double deviation);

/* True if every |got - want| <= tolerance and NaN and infinity stand at the same places. Prints the worst element
 * otherwise. */
bool tpt_close(const char *what, const void *got, tp_dtype dtype, const double *want, int64_t count, double tolerance);

/* The same with a bound for each element: tolerance[i]. For sums, compute it from each element's own sum of
 * |products|. */
bool tpt_close_each(const char *what, const void *got, tp_dtype dtype, const double *want, const double *tolerance,
                    int64_t count);

/* True if |got - want| <= relative * |want| in the Euclidean norm over all elements; prints both otherwise. */
bool tpt_close_norm(const char *what, const void *got, tp_dtype dtype, const double *want, int64_t count,
                    double relative);

/* memcmp that says where the first difference is. */
bool tpt_same_bits(const char *what, const void *got, const void *want, tp_dtype dtype, int64_t count);

#endif
