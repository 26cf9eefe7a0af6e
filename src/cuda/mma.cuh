/* Tensor-core products and asynchronous copies, sm_80 and up: one source serves all architectures that the library is
 * built for. */
#ifndef TPI_CUDA_MMA_CUH
#define TPI_CUDA_MMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

namespace tpi {

static __device__ __forceinline__ uint32_t shared_address(const void *pointer)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/* ---- asynchronous copies from global to shared memory ---- */

/* 16 bytes to `to`, of which the first `bytes` come from memory and the rest are 0. Both addresses are multiples of
 * 16. */
static __device__ __forceinline__ void copy_async_16(void *to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
}

/* 4 bytes, or 0 instead. */
static __device__ __forceinline__ void copy_async_4(void *to, const void *from, bool exists)
{
    int bytes = exists ? 4 : 0;

    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
}

/* Closes a group of this thread's copies. */
static __device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

/* Waits until at most N of this thread's groups are under way. Other threads see the data after a barrier. */
template <int N> __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

/* Eight neighbouring 16-bit elements, of which the first `exist`; the others are 0. One by one: `from` may have any
 * address. */
static __device__ __forceinline__ void load_eight(uint16_t *to, const uint16_t *from, int exist)
{
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t low = 2 * i < exist ? from[2 * i] : 0, high = 2 * i + 1 < exist ? from[2 * i + 1] : 0;

        word[i] = low | high << 16;
    }
    *reinterpret_cast<uint4 *>(to) = make_uint4(word[0], word[1], word[2], word[3]);
}

/* ---- fragments ---- */

/* Four 8x8 matrices of 16-bit elements; lane 8 i + r gives the address of row r of matrix i. Lane l gets elements 2 (l
 * mod 4) and the next of row l / 4 of each; transposed: of column l / 4. */
static __device__ __forceinline__ void load_matrices(uint32_t (&fragment)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(shared_address(row))
                 : "memory");
}

static __device__ __forceinline__ void load_matrices_transposed(uint32_t (&fragment)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* A 16x16 left operand at (row 0, inner 0) of a tile: rows are lines of `line` elements, inner along them; transposed:
 * the other way. */
static __device__ __forceinline__ void load_left(uint32_t (&fragment)[4], const uint16_t *tile, int line)
{
    int lane = threadIdx.x & 31;

    load_matrices(fragment, tile + (lane & 15) * line + (lane >> 4) * 8);
}

static __device__ __forceinline__ void load_left_transposed(uint32_t (&fragment)[4], const uint16_t *tile, int line)
{
    int lane = threadIdx.x & 31;

    load_matrices_transposed(fragment, tile + ((lane & 7) + (lane >> 4) * 8) * line + ((lane >> 3) & 1) * 8);
}

/* Two right operands, columns 0-7 in fragment[0..1] and 8-15 in fragment[2..3], inner 0-15. Columns are lines, inner
 * along them; transposed: inner indices are lines. */
static __device__ __forceinline__ void load_right(uint32_t (&fragment)[4], const uint16_t *tile, int line)
{
    int lane = threadIdx.x & 31;

    load_matrices(fragment, tile + ((lane & 7) + (lane >> 4) * 8) * line + ((lane >> 3) & 1) * 8);
}

static __device__ __forceinline__ void load_right_transposed(uint32_t (&fragment)[4], const uint16_t *tile, int line)
{
    int lane = threadIdx.x & 31;

    load_matrices_transposed(fragment, tile + (lane & 15) * line + (lane >> 4) * 8);
}

/* sum += left * right, 16x8 over an inner dimension of 16. Lane l holds rows l / 4 and l / 4 + 8 (sum[2], sum[3]),
 * columns 2 (l mod 4) and the next. */
template <typename T>
__device__ __forceinline__ void multiply_add(float (&sum)[4], const uint32_t (&left)[4], uint32_t right0,
                                             uint32_t right1);

template <>
__device__ __forceinline__ void multiply_add<__nv_bfloat16>(float (&sum)[4], const uint32_t (&left)[4], uint32_t right0,
                                                            uint32_t right1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

template <>
__device__ __forceinline__ void multiply_add<__half>(float (&sum)[4], const uint32_t (&left)[4], uint32_t right0,
                                                     uint32_t right1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

/* Two sums rounded to 16 bits, as they lie in a fragment: `low` comes first. */
template <typename T> __device__ __forceinline__ uint32_t packed_pair(float low, float high);

template <> __device__ __forceinline__ uint32_t packed_pair<__nv_bfloat16>(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;

    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

template <> __device__ __forceinline__ uint32_t packed_pair<__half>(float low, float high)
{
    __half2 pair = __floats2half2_rn(low, high);
    uint32_t bits;

    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

} // namespace tpi

#endif
