/* Elements of f32, bf16 and f16 arrays as floats: single, and in vectors of 16 bytes; sums over the lanes of a warp in
 * a fixed order. */
#ifndef TPI_CUDA_VEC_CUH
#define TPI_CUDA_VEC_CUH

#include "cuda/launch.cuh"

namespace tpi
{

/* ---- single elements; stores round to nearest, ties to even ---- */

static __device__ __forceinline__ float to_float(float x)
{
    return x;
}

static __device__ __forceinline__ float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

static __device__ __forceinline__ float to_float(__half x)
{
    return __half2float(x);
}

template <typename T> __device__ __forceinline__ T from_float(float x);

template <> __device__ __forceinline__ float from_float<float>(float x)
{
    return x;
}

template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

template <> __device__ __forceinline__ __half from_float<__half>(float x)
{
    return __float2half_rn(x);
}

/* x as a reader of its stored form sees it. */
template <typename T> __device__ __forceinline__ float rounded(float x)
{
    return to_float(from_float<T>(x));
}

/* ---- N consecutive elements; n of them exist (n >= N: all), the others load 0 ---- */

/* 16 bytes of elements. */
template <typename T> union Vector {
    uint4 words;
    T at[16 / sizeof(T)];

    __device__ __forceinline__ Vector()
    {
    }
};

/* Aligned: `data` is a multiple of 16 bytes wherever n >= N. N elements must fill whole vectors then. */
template <bool Aligned, int N, typename T> __device__ __forceinline__ void load(float (&x)[N], const T *data, int64_t n)
{
    constexpr int WIDTH = 16 / sizeof(T);

    if (Aligned && n >= N) {
        static_assert(!Aligned || N % WIDTH == 0, "whole vectors");
#pragma unroll
        for (int i = 0; i < N; i += WIDTH) {
            Vector<T> vector;

            vector.words = *reinterpret_cast<const uint4 *>(data + i);
#pragma unroll
            for (int j = 0; j < WIDTH && i + j < N; j++)
                x[i + j] = to_float(vector.at[j]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = i < n ? to_float(data[i]) : 0.0f;
}

template <bool Aligned, int N, typename T>
__device__ __forceinline__ void store(T *data, const float (&x)[N], int64_t n)
{
    constexpr int WIDTH = 16 / sizeof(T);

    if (Aligned && n >= N) {
        static_assert(!Aligned || N % WIDTH == 0, "whole vectors");
#pragma unroll
        for (int i = 0; i < N; i += WIDTH) {
            Vector<T> vector;

#pragma unroll
            for (int j = 0; j < WIDTH && i + j < N; j++)
                vector.at[j] = from_float<T>(x[i + j]);
            *reinterpret_cast<uint4 *>(data + i) = vector.words;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i < n)
            data[i] = from_float<T>(x[i]);
}

/* Arrays whose dtype is known at run time only (a bias, a residual). */
template <bool Aligned, int N>
__device__ __forceinline__ void load_any(float (&x)[N], const void *data, tp_dtype dtype, int64_t at, int64_t n)
{
    switch (dtype) {
    case TP_DTYPE_BF16: load<false>(x, static_cast<const __nv_bfloat16 *>(data) + at, n); return;
    case TP_DTYPE_F16: load<false>(x, static_cast<const __half *>(data) + at, n); return;
    default: load<Aligned>(x, static_cast<const float *>(data) + at, n);
    }
}

/* ---- sums over a warp ---- */

constexpr unsigned ALL_LANES = 0xffffffffu;

/* The sum of `width` neighbouring lanes (a power of 2), in each of them: lanes i and i + width/2 first, then width/4,
 * ... All lanes of the warp take part. Both partners add the same two numbers, so all lanes get the same bits. */
template <int Width> __device__ __forceinline__ float lanes_sum(float x)
{
#pragma unroll
    for (int distance = Width / 2; distance > 0; distance /= 2)
        x = __fadd_rn(x, __shfl_xor_sync(ALL_LANES, x, distance));
    return x;
}

/* Largest of the lanes; NaN if one is. */
template <int Width> __device__ __forceinline__ float lanes_max(float x)
{
#pragma unroll
    for (int distance = Width / 2; distance > 0; distance /= 2) {
        float other = __shfl_xor_sync(ALL_LANES, x, distance);

        x = x > other || x != x ? x : other;
    }
    return x;
}

/* A row's sum in the CPU's order (cpu/norm_math.h): column c belongs to chain c mod 64; the chains are combined as four
 * accumulators of sixteen lanes, (0+1)+(2+3), and the lanes by i and i+8, then 4, 2, 1. Here a row has 64/N
 * neighbouring threads, and thread t has the chains t*N .. t*N+N-1. All lanes of the warp take part; each thread of the
 * row gets the sum. */
constexpr int ROW_CHAINS = 64;

template <int N> __device__ __forceinline__ void row_fold(float (&chain)[N], int distance)
{
    if (distance >= N) {
#pragma unroll
        for (int i = 0; i < N; i++)
            chain[i] = __fadd_rn(chain[i], __shfl_xor_sync(ALL_LANES, chain[i], distance / N));
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i < distance && i + distance < N)
            chain[i] = __fadd_rn(chain[i], chain[i + distance]);
}

template <int N> __device__ __forceinline__ float row_total(float (&chain)[N])
{
    row_fold(chain, 16);
    row_fold(chain, 32);
    row_fold(chain, 8);
    row_fold(chain, 4);
    row_fold(chain, 2);
    row_fold(chain, 1);
    return chain[0];
}

} // namespace tpi

#endif
