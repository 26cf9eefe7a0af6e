/* The vector of the GEMM kernel: as wide as the instruction set. */
#ifndef TPI_GEMM_VECTOR_H
#define TPI_GEMM_VECTOR_H

#include "cpu/gemm.h"

#define TPI_INLINE static inline __attribute__((always_inline))

#if TPI_ISA_LEVEL >= 2
#include <immintrin.h>
#define GEMM_LANES 16
typedef __m512 gemm_vector;
TPI_INLINE gemm_vector gemm_zero(void)
{
    return _mm512_setzero_ps();
}
TPI_INLINE gemm_vector gemm_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
TPI_INLINE void gemm_store(float *p, gemm_vector x)
{
    _mm512_storeu_ps(p, x);
}
TPI_INLINE void gemm_stream(float *p, gemm_vector x)
{
    _mm512_stream_ps(p, x);
}
TPI_INLINE gemm_vector gemm_broadcast(const float *p)
{
    return _mm512_set1_ps(*p);
}
TPI_INLINE gemm_vector gemm_add(gemm_vector x, gemm_vector y)
{
    return _mm512_add_ps(x, y);
}
TPI_INLINE gemm_vector gemm_fma(gemm_vector a, gemm_vector b, gemm_vector x)
{
    return _mm512_fmadd_ps(a, b, x);
}
#elif TPI_ISA_LEVEL == 1
#include <immintrin.h>
#define GEMM_LANES 8
typedef __m256 gemm_vector;
TPI_INLINE gemm_vector gemm_zero(void)
{
    return _mm256_setzero_ps();
}
TPI_INLINE gemm_vector gemm_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
TPI_INLINE void gemm_store(float *p, gemm_vector x)
{
    _mm256_storeu_ps(p, x);
}
TPI_INLINE void gemm_stream(float *p, gemm_vector x)
{
    _mm256_stream_ps(p, x);
}
TPI_INLINE gemm_vector gemm_broadcast(const float *p)
{
    return _mm256_broadcast_ss(p);
}
TPI_INLINE gemm_vector gemm_add(gemm_vector x, gemm_vector y)
{
    return _mm256_add_ps(x, y);
}
TPI_INLINE gemm_vector gemm_fma(gemm_vector a, gemm_vector b, gemm_vector x)
{
    return _mm256_fmadd_ps(a, b, x);
}
#else
#include <math.h>
#include <string.h>
#define GEMM_LANES 16
typedef struct gemm_vector {
    float lane[GEMM_LANES];
} gemm_vector;
TPI_INLINE gemm_vector gemm_zero(void)
{
    return (gemm_vector){{0}};
}
TPI_INLINE gemm_vector gemm_load(const float *p)
{
    gemm_vector x;
    memcpy(&x, p, sizeof x);
    return x;
}
TPI_INLINE void gemm_store(float *p, gemm_vector x)
{
    memcpy(p, &x, sizeof x);
}
TPI_INLINE void gemm_stream(float *p, gemm_vector x)
{
    gemm_store(p, x);
}
TPI_INLINE gemm_vector gemm_broadcast(const float *p)
{
    gemm_vector x;
    for (int i = 0; i < GEMM_LANES; i++)
        x.lane[i] = *p;
    return x;
}
TPI_INLINE gemm_vector gemm_add(gemm_vector x, gemm_vector y)
{
    for (int i = 0; i < GEMM_LANES; i++)
        x.lane[i] = x.lane[i] + y.lane[i];
    return x;
}
TPI_INLINE gemm_vector gemm_fma(gemm_vector a, gemm_vector b, gemm_vector x)
{
    for (int i = 0; i < GEMM_LANES; i++)
        x.lane[i] = fmaf(a.lane[i], b.lane[i], x.lane[i]);
    return x;
}
#endif

/* One step of a chain; dot: of bf16 pairs. */
TPI_INLINE gemm_vector gemm_step(gemm_vector a, gemm_vector b, gemm_vector x, const bool dot)
{
#if TPI_ISA_LEVEL >= 3
    if (dot)
        return _mm512_dpbf16_ps(x, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
#else
    (void)dot;
#endif
    return gemm_fma(a, b, x);
}

#endif
