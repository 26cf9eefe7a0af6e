/* The last levels of the lane tree on a 256-bit register: lanes i and i+4, then i+2, i+1. */
#ifndef TPI_CPU_SIMD_SUM8_H
#define TPI_CPU_SIMD_SUM8_H

#include <immintrin.h>

static inline float tpi_sum8(__m256 x)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));

    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

#endif
