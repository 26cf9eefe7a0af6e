/* Whole numbers in memory of any dtype: sums of small ones are exact, so results can be compared exactly. */
#ifndef BENCH_VALUES_H
#define BENCH_VALUES_H

#include <tp/tp.h>

/* Element i of data becomes value, rounded to the dtype (integers wrap). */
void bench_store(void *data, tp_dtype dtype, int64_t i, int64_t value);
/* The same for a real number into f32, bf16 or f16. */
void bench_store_real(void *data, tp_dtype dtype, int64_t i, float value);

/* What the dtype makes of a whole number. */
double bench_rounded(tp_dtype dtype, int64_t value);

double bench_load(const void *data, tp_dtype dtype, int64_t i);

#endif
