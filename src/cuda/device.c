/* A context's GPU: opening, memory, and the record of what kernels found wrong. */
#include <cublasLt.h>
#include <string.h>
#include <sys/mman.h>

#include "core/context.h"
#include "cuda/gemm.h"
#include "cuda/state.h"

#define ALIGNMENT ((size_t)64)

tpi_cuda_state *tpi_cuda_state_of(const tp_ctx *ctx)
{
    return ctx->device_state;
}

tp_status tpi_cuda_enter(tp_ctx *ctx)
{
    if (ctx->desc.dry_run)
        return TP_OK;
    return tpi_cuda_call(ctx, cudaSetDevice(ctx->desc.device_index), "cudaSetDevice");
}

tp_status tpi_cuda_call(tp_ctx *ctx, cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return TP_OK;
    tp_status status = error == cudaErrorMemoryAllocation ? TP_ERR_MEMORY : TP_ERR_BACKEND;
    return tpi_fail(ctx, status, "CUDA: %s: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

static tp_status look_at_device(tp_ctx *ctx, tpi_cuda_device *device)
{
    int shared = 0;
    const struct {
        enum cudaDeviceAttr attribute;
        int *value;
    } wanted[] = {
        {cudaDevAttrComputeCapabilityMajor, &device->major},
        {cudaDevAttrComputeCapabilityMinor, &device->minor},
        {cudaDevAttrMultiProcessorCount, &device->multiprocessors},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        TPI_TRY(tpi_cuda_call(ctx, cudaDeviceGetAttribute(wanted[i].value, wanted[i].attribute, device->index),
                              "cudaDeviceGetAttribute"));
    device->shared_bytes = (size_t)shared;
    return TP_OK;
}

/* A dry run is for the device that it names; where there is none, for one like an A100. */
static tp_status look_dry(tp_ctx *ctx, tpi_cuda_device *device)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess && device->index < count)
        return look_at_device(ctx, device);
    cudaGetLastError();
    device->major = 8;
    device->multiprocessors = 108;
    device->shared_bytes = 166912;
    return TP_OK;
}

static tp_status open_library(tp_ctx *ctx, tpi_cuda_device *device)
{
    cublasLtHandle_t handle;
    cublasStatus_t status = cublasLtCreate(&handle);
    if (status != CUBLAS_STATUS_SUCCESS)
        return tpi_refuse(ctx, TP_ERR_BACKEND, "CUDA: cublasLtCreate returned %d", (int)status);
    device->blaslt = handle;
    return TP_OK;
}

static tp_status make_fault_record(tp_ctx *ctx, tpi_cuda_state *state)
{
    void *host, *device;
    TPI_TRY(tpi_cuda_call(ctx, cudaHostAlloc(&host, sizeof *state->fault, cudaHostAllocMapped), "cudaHostAlloc"));
    memset(host, 0, sizeof *state->fault);
    state->fault = host;
    TPI_TRY(tpi_cuda_call(ctx, cudaHostGetDevicePointer(&device, host, 0), "cudaHostGetDevicePointer"));
    state->device.fault = device;
    return TP_OK;
}

tp_status tpi_cuda_open(tp_ctx *ctx)
{
    tpi_cuda_state *state = tpi_host_allocate(ctx, sizeof *state);
    if (!state)
        return TP_ERR_MEMORY;
    ctx->device_state = state;
    state->device.index = ctx->desc.device_index;
    state->device.fast_sums = ctx->desc.sum_order == TP_SUM_FAST;
    state->device.tf32 = ctx->desc.tf32;
    if (ctx->desc.dry_run)
        return look_dry(ctx, &state->device);
    TPI_TRY(tpi_cuda_enter(ctx));
    TPI_TRY(look_at_device(ctx, &state->device));
    TPI_TRY(make_fault_record(ctx, state));
    return state->device.fast_sums ? open_library(ctx, &state->device) : TP_OK;
}

void tpi_cuda_close(tp_ctx *ctx)
{
    tpi_cuda_state *state = ctx->device_state;
    if (!state)
        return;
    if (!ctx->desc.dry_run)
        cudaSetDevice(ctx->desc.device_index);
    tpi_cuda_gemm_cache_free(ctx, state->gemm_cache);
    if (state->device.blaslt)
        cublasLtDestroy(state->device.blaslt);
    if (state->fault)
        cudaFreeHost(state->fault);
    tpi_host_release(ctx, state, sizeof *state);
    ctx->device_state = NULL;
}

/* A multiple of the alignment, as aligned_alloc of a caller's allocator may want it. SIZE_MAX: too much. */
static size_t rounded_up(size_t bytes)
{
    if (bytes > SIZE_MAX - ALIGNMENT)
        return SIZE_MAX;
    return bytes == 0 ? ALIGNMENT : (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Called under the context's memory lock: no failure may be told from here. cudaMalloc is asked for the very bytes, so
 * that tools see what goes past their end. */
void *tpi_cuda_allocate(tp_ctx *ctx, size_t bytes)
{
    size_t size = rounded_up(bytes);
    if (size == SIZE_MAX)
        return NULL;
    if (ctx->desc.dry_run) {
        void *space = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        return space == MAP_FAILED ? NULL : space;
    }
    const tp_allocator *allocator = &ctx->desc.allocator;
    if (allocator->allocate)
        return allocator->allocate(allocator->user, size, ALIGNMENT);
    void *memory = NULL;
    if (cudaSetDevice(ctx->desc.device_index) != cudaSuccess ||
        cudaMalloc(&memory, bytes > 0 ? bytes : 1) != cudaSuccess) {
        cudaGetLastError(); /* running out of memory is a refusal: the next call must not see it */
        return NULL;
    }
    return memory;
}

void tpi_cuda_release(tp_ctx *ctx, void *memory, size_t bytes)
{
    if (ctx->desc.dry_run) {
        munmap(memory, rounded_up(bytes));
        return;
    }
    const tp_allocator *allocator = &ctx->desc.allocator;
    if (allocator->release) {
        allocator->release(allocator->user, memory, rounded_up(bytes));
        return;
    }
    cudaSetDevice(ctx->desc.device_index);
    cudaFree(memory);
}

void *tpi_cuda_allocate_shared(tp_ctx *ctx, size_t bytes)
{
    if (ctx->desc.dry_run)
        return tpi_host_allocate(ctx, bytes);
    void *memory = NULL;
    if (tpi_cuda_enter(ctx) != TP_OK ||
        cudaHostAlloc(&memory, bytes > 0 ? bytes : 1, cudaHostAllocDefault) != cudaSuccess) {
        cudaGetLastError();
        tpi_refuse(ctx, TP_ERR_MEMORY, "out of pinned memory: %zu bytes asked for", bytes);
        return NULL;
    }
    memset(memory, 0, bytes);
    return memory;
}

void tpi_cuda_release_shared(tp_ctx *ctx, void *memory, size_t bytes)
{
    if (ctx->desc.dry_run)
        tpi_host_release(ctx, memory, bytes);
    else if (memory)
        cudaFreeHost(memory);
}

tp_status tpi_cuda_reach(tp_ctx *ctx, int device_index)
{
    if (ctx->desc.dry_run || device_index == ctx->desc.device_index)
        return TP_OK;
    TPI_TRY(tpi_cuda_enter(ctx));
    int able = 0;
    TPI_TRY(tpi_cuda_call(ctx, cudaDeviceCanAccessPeer(&able, ctx->desc.device_index, device_index),
                          "cudaDeviceCanAccessPeer"));
    if (!able)
        return tpi_refuse(ctx, TP_ERR_BACKEND, "CUDA: device %d can't access the memory of device %d",
                          ctx->desc.device_index, device_index);
    cudaError_t error = cudaDeviceEnablePeerAccess(device_index, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError(); /* by another context of this process */
        return TP_OK;
    }
    return tpi_cuda_call(ctx, error, "cudaDeviceEnablePeerAccess");
}

/* Whoever failed first says why. */
static tp_status see_peers(tp_ctx *ctx, const tpi_cuda_fault *fault)
{
    if (ctx->watch)
        ctx->watch(ctx);
    TPI_TRY(tpi_ctx_usable(ctx));
    if (fault->kind == TPI_CUDA_FAULT_HALT)
        return tpi_fail(ctx, TP_ERR_PEER, "an all-reduce was broken off because another rank failed");
    return tpi_fail(ctx, TP_ERR_TIMEOUT,
                    "all_reduce: waited %lld ms in a kernel, rank %d of the communicator did not come to meeting %lld",
                    fault->vocabulary, fault->value, fault->place);
}

tp_status tpi_cuda_see_fault(tp_ctx *ctx)
{
    const tpi_cuda_fault *fault = tpi_cuda_state_of(ctx)->fault;
    if (!fault || fault->kind == TPI_CUDA_FAULT_NONE)
        return TP_OK;
    if (fault->kind >= TPI_CUDA_FAULT_PEER)
        return see_peers(ctx, fault);
    if (fault->kind == TPI_CUDA_FAULT_ID || fault->kind == TPI_CUDA_FAULT_POSITION) {
        const bool id = fault->kind == TPI_CUDA_FAULT_ID;
        return tpi_fail(ctx, TP_ERR_ARGUMENT, TPI_WRONG_ID, id ? "ids" : "positions", fault->place,
                        (long long)fault->value, id ? "vocabulary" : "positions", fault->vocabulary);
    }
    return tpi_fail(ctx, TP_ERR_ARGUMENT, "target %d of row %lld is outside the vocabulary of %lld", fault->value,
                    fault->place, fault->vocabulary);
}
