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
        asm volatile("{ .reg .b64 a; mov.u64 a, %0; "
                     "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
                     " [a], [a], 128; }" ::"l"(out)
                     : "memory");
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

__device__ __noinline__ int ackermann(int m, int n)
{
    return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}

__global__ void recursion(int *out)
{
    *out = ackermann(1, out[1] + 2);
}

__global__ void asks_for_barrier(int number, int count)
{
    asm volatile("barrier.sync %0, %1;" ::"r"(number), "r"(count) : "memory");
}

__global__ void counts_differ()
{
    asm volatile("barrier.sync 1, %0;" ::"r"(threadIdx.x < 32 ? 64 : 96) : "memory");
}

// Half of a warp waits for the other half, which waits for the block.
__global__ void waits_crosswise()
{
    if (threadIdx.x < 16)
        asm volatile("bar.warp.sync 0xFFFFFFFF;" ::: "memory");
    else
        asm volatile("barrier.sync 0;" ::: "memory");
}

__global__ void branches_nowhere(int *out, int index)
{
    asm volatile("{ .reg .u32 i; mov.u32 i, %1; places: .branchtargets first, second; brx.idx i, places; first: st.u32 "
                 "[%0], 1; second: }" ::"l"(out),
                 "r"(index)
                 : "memory");
}

// Forms of opcodes that are known, but not these.
template <int form> __global__ void unknown_form(int *out)
{
    __shared__ int to[4];
    const unsigned at = unsigned(__cvta_generic_to_shared(to));
    if (form == 0)
        asm volatile("{ .reg .pred p; setp.eq.u32 p, %0, 0; cp.async.cg.shared.global [%0], [%1], 16, p; }" ::"r"(at),
                     "l"(out)
                     : "memory");
    else if (form == 1)
        asm volatile("{ .reg .b16 x; mov.b16 x, 0; min.xorsign.abs.f16 x, x, x; }");
    else if (form == 2)
        asm volatile("{ .reg .b32 x; mov.b32 x, 0; cvt.rs.f16x2.f32 x, 0f00000000, 0f00000000, x; }");
    else if (form == 3)
        asm volatile("{ .reg .s32 x; add.sat.s32 x, 1, 2; }");
    else if (form == 4)
        asm volatile("{ .reg .f32 x; mov.f32 x, 0f00000000; redux.sync.min.f32 x, x, 0xFFFFFFFF; }");
    else
        asm volatile(
            "{ .reg .b32 x; wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {x, x, x, x, x, x, x, x}, [%0]; }" ::"r"(
                at)
            : "memory");
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

GPUSIM_TEST_EVERYWHERE(an_unknown_opcode_is_named)
{
    expect(cudaErrorLaunchFailure, GPUSIM_UNSUPPORTED, "tensormap.cp_fenceproxy", [](int *memory, cudaStream_t stream) {
        unknown_opcode<<<1, 1, 0, stream>>>(memory, 0); // not executed: no error
        CHECK(cudaStreamSynchronize(stream) == cudaSuccess && gpusim_reports(-1) == 0);
        unknown_opcode<<<1, 1, 0, stream>>>(memory, 1);
    });
    CHECK(strstr(gpusim_report_text(0), "unknown_opcode") != nullptr);
}

template <int form> void expect_unknown(const char *text)
{
    expect(cudaErrorLaunchFailure, GPUSIM_UNSUPPORTED, text,
           [](int *memory, cudaStream_t stream) { unknown_form<form><<<1, 32, 0, stream>>>(memory); });
    CHECK(strstr(gpusim_report_text(0), "unknown_form") != nullptr);
    gpusim_configure(nullptr);
}

GPUSIM_TEST(unknown_forms_of_opcodes_are_named)
{
    expect_unknown<0>("ignore-src");
    expect_unknown<1>("min.xorsign.abs.f16");
    expect_unknown<2>("cvt.rs.f16x2.f32");
    expect_unknown<3>("add.sat.s32");
    expect_unknown<4>("redux.sync.min.f32");
    expect_unknown<5>("wmma.load.a");
}

GPUSIM_TEST(recursion_is_named)
{
    expect(cudaErrorLaunchFailure, GPUSIM_UNSUPPORTED, "don't call themselves",
           [](int *memory, cudaStream_t stream) { recursion<<<1, 1, 0, stream>>>(memory); });
}

GPUSIM_TEST_EVERYWHERE(barriers_are_checked)
{
    auto one = [](const char *text, auto launch) {
        expect(cudaErrorLaunchFailure, GPUSIM_DEADLOCK, text, [launch](int *, cudaStream_t stream) { launch(stream); });
        check::choose(check::chosen()); // a fault stays
    };
    one("no barrier 16", [](cudaStream_t stream) { asks_for_barrier<<<1, 64, 0, stream>>>(16, 64); });
    one("no multiple of 32", [](cudaStream_t stream) { asks_for_barrier<<<1, 64, 0, stream>>>(1, 40); });
    one("threads expect", [](cudaStream_t stream) { counts_differ<<<1, 96, 0, stream>>>(); });
}

GPUSIM_TEST_EVERYWHERE(threads_that_wait_for_each_other)
{
    expect(cudaErrorLaunchTimeout, GPUSIM_DEADLOCK, "deadlock within a block",
           [](int *, cudaStream_t stream) { waits_crosswise<<<1, 32, 0, stream>>>(); });
}

GPUSIM_TEST_EVERYWHERE(indexed_branches_are_checked)
{
    expect(cudaErrorLaunchFailure, GPUSIM_OUT_OF_BOUNDS, "brx.idx with index 2 of 2",
           [](int *memory, cudaStream_t stream) {
               for (int index : {1, 0}) {
                   branches_nowhere<<<1, 1, 0, stream>>>(memory, index);
                   CHECK(download(memory, 1, stream)[0] == 1 - index && gpusim_reports(-1) == 0);
               }
               branches_nowhere<<<1, 1, 0, stream>>>(memory, 2);
           });
}

GPUSIM_TEST_EVERYWHERE(addresses_are_checked)
{
    expect(cudaErrorMisalignedAddress, GPUSIM_OUT_OF_BOUNDS, "misaligned", [](int *memory, cudaStream_t stream) {
        misaligned<<<1, 1, 0, stream>>>(reinterpret_cast<char *>(memory));
    });
}

GPUSIM_TEST_EVERYWHERE(accesses_outside_memory_stop)
{
    expect(cudaErrorIllegalAddress, GPUSIM_OUT_OF_BOUNDS, "test_ptx_errors.cu",
           [](int *memory, cudaStream_t stream) { outside<<<1, 1, 0, stream>>>(memory); });
}

GPUSIM_TEST_EVERYWHERE(accesses_outside_shared_memory_stop)
{
    expect(cudaErrorIllegalAddress, GPUSIM_OUT_OF_BOUNDS, "shared memory",
           [](int *memory, cudaStream_t stream) { outside_shared<<<1, 8, 0, stream>>>(memory, 4); });
}

GPUSIM_TEST_EVERYWHERE(traps_stop)
{
    expect(cudaErrorLaunchFailure, GPUSIM_TRAP, "trap",
           [](int *, cudaStream_t stream) { traps<<<1, 1, 0, stream>>>(); });
}

GPUSIM_TEST_EVERYWHERE(assertions_stop)
{
    expect(cudaErrorAssert, GPUSIM_TRAP, "value == 3", [](int *, cudaStream_t stream) {
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

GPUSIM_TEST_EVERYWHERE(masks_name_their_callers)
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
