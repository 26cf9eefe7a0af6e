/* Transposes of 32-bit elements in AVX-512 registers, for packing rows that are contiguous along the inner dimension.
 */
#ifndef TPI_GEMM_TRANSPOSE_H
#define TPI_GEMM_TRANSPOSE_H

#include <immintrin.h>

/* 16 rows of 16 become 16 columns. */
static inline void tpi_gemm_transpose16(__m512i r[16])
{
    __m512i t[16];
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
        r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
        r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
        r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
    }
}

/* Three streams of eight 64-bit elements, interleaved. */
static inline void tpi_gemm_interleave3(__m512i a, __m512i b, __m512i c, __m512i out[3])
{
    out[0] = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 8, 0, 1, 9, 0, 2, 10), b);
    out[1] = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 3, 11, 0, 4, 12, 0, 5), b);
    out[2] = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(13, 0, 6, 14, 0, 7, 15, 0), b);
    out[0] = _mm512_permutex2var_epi64(out[0], _mm512_setr_epi64(0, 1, 8, 3, 4, 9, 6, 7), c);
    out[1] = _mm512_permutex2var_epi64(out[1], _mm512_setr_epi64(10, 1, 2, 11, 4, 5, 12, 7), c);
    out[2] = _mm512_permutex2var_epi64(out[2], _mm512_setr_epi64(0, 13, 2, 3, 14, 5, 6, 15), c);
}

/* 6 rows of 16 become 16 columns of 6, one after the other in 6 registers: pairs of rows first, then the three pairs.
 */
static inline void tpi_gemm_transpose6(const __m512i r[6], __m512i out[6])
{
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    __m512i pair[2][3];
    for (int i = 0; i < 3; i++) {
        pair[0][i] = _mm512_permutex2var_epi32(r[2 * i], low, r[2 * i + 1]);
        pair[1][i] = _mm512_permutex2var_epi32(r[2 * i], high, r[2 * i + 1]);
    }
    tpi_gemm_interleave3(pair[0][0], pair[0][1], pair[0][2], out);
    tpi_gemm_interleave3(pair[1][0], pair[1][1], pair[1][2], out + 3);
}

#endif
