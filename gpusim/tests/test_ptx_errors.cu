// What stops a kernel, and how it is told: unknown opcodes, bad addresses, traps, assertions, locks that nobody opens.
#undef NDEBUG // a kernel's assertion is to be there in every build
#include "devices.h"

#include <cassert>
#include <cstdio>
#include <string>

namespace {

__global__ void unknown_opcode(int *out, int really)
{
    if (really) {
        asm volatile("{ .reg .b64 a; mov.u64 a, %0; tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
                     " [a], [a], 128; }" ::"l"(out) : "memory");
    }
    *out = 5;
}

__global__ void misaligned(char *memory)
{
    *reinterpret_cast<int *>(memory + 2) = 1;
}

__global__ void outside(int *memory)
{
    memory[1000] = 1;
}

__global__ void outside_shared(int *out, int index)
{
    __shared__ int values[8];
    values[threadIdx.x + index] = 1;
    __syncthreads();
    out[threadIdx.x] = values[threadIdx.x];
}

__global__ void traps()
{
    asm volatile("trap;");
}

__global__ void asserts(int value)
{
    assert(value == 3);
}

__global__ void polls_forever(volatile int *flag)
{
    while (*flag == 0) {
    }
}

__global__ void wrong_mask(int *out)
{
    *out = __shfl_sync(0x0000FFFFu, threadIdx.x, 0);
}

__global__ void prints(int *out)
{
    printf("%s %d of %.2f, %c, %llx%%\n", "thread", threadIdx.x, 1.5, 'x', 0x123456789ABCull);
    out[threadIdx.x] = 1;
}

template <class Kernel> void expect(cudaError_t error, gpusim_report_kind kind, const char *text, Kernel launch)
{
    cudaStream_t stream = new_stream();
    int *memory = device_array<int>(16);
    CHECK(cudaMemsetAsync(memory, 0, 64, stream) == cudaSuccess);
    launch(memory, stream);
    CHECK(cudaStreamSynchronize(stream) == error);
    CHECK(gpusim_reports(kind) == 1);
    CHECK(gpusim_report_text(0) && strstr(gpusim_report_text(0), text));
}

} // namespace

GPUSIM_TEST(an_unknown_opcode_is_named)
{
    expect(cudaErrorLaunchFailure, GPUSIM_UNSUPPORTED, "tensormap.cp_fenceproxy", [](int *memory, cudaStream_t stream) {
        unknown_opcode<<<1, 1, 0, stream>>>(memory, 0); // not executed: no error
        CHECK(cudaStreamSynchronize(stream) == cudaSuccess && gpusim_reports(-1) == 0);
        unknown_opcode<<<1, 1, 0, stream>>>(memory, 1);
    });
    CHECK(strstr(gpusim_report_text(0), "unknown_opcode") != nullptr);
}

GPUSIM_TEST(addresses_are_checked)
{
    expect(cudaErrorMisalignedAddress, GPUSIM_OUT_OF_BOUNDS, "misaligned", [](int *memory, cudaStream_t stream) {
        misaligned<<<1, 1, 0, stream>>>(reinterpret_cast<char *>(memory));
    });
}

GPUSIM_TEST(accesses_outside_memory_stop)
{
    expect(cudaErrorIllegalAddress, GPUSIM_OUT_OF_BOUNDS, "test_ptx_errors.cu",
           [](int *memory, cudaStream_t stream) { outside<<<1, 1, 0, stream>>>(memory); });
}

GPUSIM_TEST(accesses_outside_shared_memory_stop)
{
    expect(cudaErrorIllegalAddress, GPUSIM_OUT_OF_BOUNDS, "shared memory",
           [](int *memory, cudaStream_t stream) { outside_shared<<<1, 8, 0, stream>>>(memory, 4); });
}

GPUSIM_TEST(traps_stop)
{
    expect(cudaErrorLaunchFailure, GPUSIM_OUT_OF_BOUNDS, "trap", [](int *, cudaStream_t stream) { traps<<<1, 1, 0, stream>>>(); });
}

GPUSIM_TEST(assertions_stop)
{
    expect(cudaErrorAssert, GPUSIM_OUT_OF_BOUNDS, "value == 3", [](int *, cudaStream_t stream) {
        asserts<<<1, 32, 0, stream>>>(3);
        CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
        asserts<<<1, 32, 0, stream>>>(4);
    });
}

GPUSIM_TEST(endless_polling_stops)
{
    expect(cudaErrorLaunchTimeout, GPUSIM_DEADLOCK, "polling",
           [](int *memory, cudaStream_t stream) { polls_forever<<<3, 64, 0, stream>>>(memory); });
}

GPUSIM_TEST(masks_name_their_callers)
{
    expect(cudaErrorLaunchFailure, GPUSIM_DEADLOCK, "mask 0000ffff",
           [](int *memory, cudaStream_t stream) { wrong_mask<<<1, 32, 0, stream>>>(memory); });
}

GPUSIM_TEST(threads_print)
{
    cudaStream_t stream = new_stream();
    int *memory = device_array<int>(2);
    int ends[2];
    CHECK(pipe(ends) == 0);
    const int before = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    prints<<<1, 2, 0, stream>>>(memory);
    const cudaError_t status = cudaStreamSynchronize(stream);
    fflush(stderr);
    dup2(before, STDERR_FILENO);
    close(ends[1]);
    char text[256] = {};
    CHECK(read(ends[0], text, sizeof text - 1) > 0);
    CHECK(status == cudaSuccess);
    CHECK(std::string(text) == "thread 0 of 1.50, x, 123456789abc%\nthread 1 of 1.50, x, 123456789abc%\n");
}
