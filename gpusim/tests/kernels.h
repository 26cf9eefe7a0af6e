// Kernels with faults that can be planted, as ordinary CUDA code launches them.
#pragma once
#include <cuda_runtime_api.h>

extern "C" {
cudaError_t launch_fill(float *out, float value, int count, int beyond, cudaStream_t stream);
cudaError_t launch_axpy(float *y, const float *x, float factor, int count, cudaStream_t stream);

// Blocks of 128 threads turn their part of `in` around, through shared memory. fault 1: no barrier. 2: reads one
// element too far.
cudaError_t launch_reverse(const int *in, int *out, int blocks, int fault, cudaStream_t stream);

// Sums tiles that cp.async fetches into two buffers. fault 1: no wait. 2: no barrier after the wait. 3: no barrier
// before a buffer is filled again.
cudaError_t launch_tiles(const float *in, float *out, int tiles, int fault, cudaStream_t stream);

// Each warp passes values between lanes through shared memory. fault 1: no __syncwarp.
cudaError_t launch_warp_exchange(const int *in, int *out, int warps, int fault, cudaStream_t stream);

// Every block adds to one total. fault 1: without atomics.
cudaError_t launch_total(const int *in, int *total, int blocks, int fault, cudaStream_t stream);

// The last block adds up all blocks' partial sums. fault 1: no fence. 2: no barrier before the counter.
cudaError_t launch_last_block(const int *in, int *partial, unsigned *counter, int *total, int blocks, int fault,
                              cudaStream_t stream);

// Copies bytes, one a thread.
cudaError_t launch_bytes(const unsigned char *in, unsigned char *out, int count, cudaStream_t stream);

// All blocks wait for each other. Cooperative.
cudaError_t launch_grid(int *values, int blocks, cudaStream_t stream);

// Threads past a limit never come to the barrier, in a block whose others wait.
cudaError_t launch_stray(int *values, cudaStream_t stream);

cudaError_t launch_shared_bytes(int *out, int bytes, bool ask, cudaStream_t stream);
cudaError_t set_table(const int *values, cudaStream_t stream);
cudaError_t launch_table(int *out, cudaStream_t stream);
}
