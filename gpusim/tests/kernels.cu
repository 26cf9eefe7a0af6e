#include "kernels.h"

#include <cooperative_groups.h>
#include <cuda_pipeline.h>

namespace {

constexpr int block_threads = 128;

__global__ void fill(float *out, float value, int limit)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < limit)
        out[i] = value + i;
}

__global__ void axpy(float *y, const float *x, float factor, int count)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        y[i] += factor * x[i];
}

template <int fault> __global__ void reverse(const int *in, int *out)
{
    __shared__ int part[block_threads];
    const int start = blockIdx.x * block_threads;
    part[threadIdx.x] = in[start + threadIdx.x];
    if (fault != 1)
        __syncthreads();
    out[start + threadIdx.x] = part[block_threads - 1 - int(threadIdx.x) + (fault == 2)];
}

template <int fault> __global__ void tiles(const float *in, float *out, int count)
{
    __shared__ __align__(16) float buffer[2][4 * block_threads];
    const int thread = threadIdx.x;
    float sum = 0;
    __pipeline_memcpy_async(&buffer[0][4 * thread], in + 4 * thread, 16);
    __pipeline_commit();
    for (int tile = 0; tile < count; tile++) {
        if (tile + 1 < count)
            __pipeline_memcpy_async(&buffer[(tile + 1) % 2][4 * thread],
                                    in + (tile + 1) * 4 * block_threads + 4 * thread, 16);
        __pipeline_commit();
        if (fault != 1)
            __pipeline_wait_prior(1);
        if (fault != 2)
            __syncthreads();
        for (int i = 0; i < 4; i++)
            sum += buffer[tile % 2][(4 * thread + 16 + i) % (4 * block_threads)];
        if (fault != 3 && tile + 2 < count) // what is filled next is what was just read
            __syncthreads();
    }
    out[thread] = sum;
}

template <int fault> __global__ void warp_exchange(const int *in, int *out)
{
    __shared__ int part[block_threads];
    part[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
    if (fault != 1)
        __syncwarp();
    out[blockIdx.x * blockDim.x + threadIdx.x] = part[threadIdx.x ^ 5];
}

template <int fault> __global__ void total_of(const int *in, int *total)
{
    const int value = in[blockIdx.x];
    if (fault == 1)
        *total += value;
    else
        atomicAdd(total, value);
}

template <int fault> __global__ void last_block(const int *in, int *partial, unsigned *counter, int *total)
{
    __shared__ bool last;
    // Each block's partial sums: one a warp.
    const int value = __reduce_add_sync(0xffffffffu, in[blockIdx.x * blockDim.x + threadIdx.x]);
    const int warps = blockDim.x / 32;
    if (threadIdx.x % 32 == 0) {
        partial[blockIdx.x * warps + threadIdx.x / 32] = value;
        if (fault != 1)
            __threadfence();
    }
    if (fault != 2)
        __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(counter, 1u) == gridDim.x - 1;
    __syncthreads();
    if (last && threadIdx.x == 0) {
        __threadfence();
        int sum = 0;
        for (int i = 0; i < int(gridDim.x) * warps; i++)
            sum += partial[i];
        *total = sum;
    }
}

__global__ void bytes_copied(const unsigned char *in, unsigned char *out, int count)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        out[i] = in[i];
}

__global__ void grid_wide(int *values)
{
    const int blocks = gridDim.x;
    if (threadIdx.x == 0)
        values[blockIdx.x] = blockIdx.x + 1;
    cooperative_groups::this_grid().sync();
    if (threadIdx.x == 1)
        values[blocks + blockIdx.x] = values[(blockIdx.x + 1) % blocks];
}

__global__ void stray(int *values)
{
    if (threadIdx.x < 32) {
        while (atomicAdd(values, 0) == 0) {
        }
    }
    __syncthreads();
}

__global__ void shared_bytes(int *out)
{
    extern __shared__ int values[];
    values[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}

__constant__ int table[4] = {1, 2, 3, 4};

__global__ void table_values(int *out)
{
    out[threadIdx.x] = table[threadIdx.x % 4];
}

} // namespace

extern "C" {

cudaError_t launch_fill(float *out, float value, int count, int beyond, cudaStream_t stream)
{
    fill<<<(count + beyond + block_threads - 1) / block_threads, block_threads, 0, stream>>>(out, value,
                                                                                             count + beyond);
    return cudaGetLastError();
}

cudaError_t launch_axpy(float *y, const float *x, float factor, int count, cudaStream_t stream)
{
    axpy<<<(count + block_threads - 1) / block_threads, block_threads, 0, stream>>>(y, x, factor, count);
    return cudaGetLastError();
}

cudaError_t launch_reverse(const int *in, int *out, int blocks, int fault, cudaStream_t stream)
{
    auto kernel = fault == 1 ? reverse<1> : fault == 2 ? reverse<2> : reverse<0>;
    kernel<<<blocks, block_threads, 0, stream>>>(in, out);
    return cudaGetLastError();
}

cudaError_t launch_tiles(const float *in, float *out, int count, int fault, cudaStream_t stream)
{
    auto kernel = fault == 1 ? tiles<1> : fault == 2 ? tiles<2> : fault == 3 ? tiles<3> : tiles<0>;
    kernel<<<1, block_threads, 0, stream>>>(in, out, count);
    return cudaGetLastError();
}

cudaError_t launch_warp_exchange(const int *in, int *out, int warps, int fault, cudaStream_t stream)
{
    auto kernel = fault == 1 ? warp_exchange<1> : warp_exchange<0>;
    kernel<<<1, 32 * warps, 0, stream>>>(in, out);
    return cudaGetLastError();
}

cudaError_t launch_total(const int *in, int *total, int blocks, int fault, cudaStream_t stream)
{
    auto kernel = fault == 1 ? total_of<1> : total_of<0>;
    kernel<<<blocks, 1, 0, stream>>>(in, total);
    return cudaGetLastError();
}

cudaError_t launch_last_block(const int *in, int *partial, unsigned *counter, int *total, int blocks, int fault,
                              cudaStream_t stream)
{
    auto kernel = fault == 1 ? last_block<1> : fault == 2 ? last_block<2> : last_block<0>;
    kernel<<<blocks, block_threads, 0, stream>>>(in, partial, counter, total);
    return cudaGetLastError();
}

cudaError_t launch_bytes(const unsigned char *in, unsigned char *out, int count, cudaStream_t stream)
{
    bytes_copied<<<(count + block_threads - 1) / block_threads, block_threads, 0, stream>>>(in, out, count);
    return cudaGetLastError();
}

cudaError_t launch_grid(int *values, int blocks, cudaStream_t stream)
{
    void *arguments[] = {&values};
    return cudaLaunchCooperativeKernel(reinterpret_cast<const void *>(grid_wide), dim3(blocks), dim3(64), arguments, 0,
                                       stream);
}

cudaError_t launch_stray(int *values, cudaStream_t stream)
{
    stray<<<1, 64, 0, stream>>>(values);
    return cudaGetLastError();
}

cudaError_t launch_shared_bytes(int *out, int bytes, bool ask, cudaStream_t stream)
{
    if (ask) {
        const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void *>(shared_bytes),
                                                       cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        if (error != cudaSuccess)
            return error;
    }
    shared_bytes<<<1, block_threads, bytes, stream>>>(out);
    return cudaGetLastError();
}

cudaError_t set_table(const int *values, cudaStream_t stream)
{
    return cudaMemcpyToSymbolAsync(reinterpret_cast<const void *>(table), values, sizeof table, 0,
                                   cudaMemcpyHostToDevice, stream);
}

cudaError_t launch_table(int *out, cudaStream_t stream)
{
    table_values<<<1, 8, 0, stream>>>(out);
    return cudaGetLastError();
}
}
