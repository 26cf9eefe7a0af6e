// Local arrays of threads: bounds, and elements that were not written.
#include "devices.h"

namespace {

struct Pair {
    double value;
    char tag; // and seven bytes of padding
};

__global__ void element(int *out, int index)
{
    int values[8];
    for (int i = 0; i < 8; i++)
        values[i] = i * i;
    out[threadIdx.x] = values[(index + threadIdx.x) & 15];
}

// Thread t writes elements 0 to t and reads one. fault: one further on.
__global__ void partly_written(int *out, int fault)
{
    volatile int values[64];
    for (unsigned i = 0; i <= threadIdx.x; i++)
        values[i] = int(i);
    out[threadIdx.x] = values[threadIdx.x + fault];
}

// Each block's threads find their arrays new, although the memory is that of the block before.
__global__ void once(int *out, int fault)
{
    volatile int values[4];
    if (!fault || blockIdx.x != 2) // two blocks are resident: this one comes after others
        values[threadIdx.x & 3] = 7;
    out[blockIdx.x] = values[threadIdx.x & 3];
}

__device__ __noinline__ int sum_of(const volatile int *values, int count)
{
    int sum = 0;
    for (int i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

__device__ __noinline__ int remembered(int index, int write)
{
    volatile int values[4];
    if (write)
        values[index & 3] = index + 1;
    return sum_of(values + (index & 3), 1);
}

// The second call's array is a new one. fault: it isn't written.
__global__ void calls(int *out, int fault)
{
    const int first = remembered(threadIdx.x, 1);
    out[threadIdx.x] = first + remembered(threadIdx.x, !fault);
}

// A pointer to a local array is an address like others. fault: one element more than there is.
__global__ void by_pointer(int *out, int fault)
{
    volatile int values[8];
    for (int i = 0; i < 5; i++)
        values[i] = i;
    out[threadIdx.x] = sum_of(values, 5 + fault);
}

__device__ __noinline__ Pair turned(Pair pair)
{
    return Pair{-pair.value, char(pair.tag + 1)};
}

// Padding is copied with what it pads.
__global__ void padded(int *out, int index)
{
    Pair pairs[4];
    for (int i = 0; i < 4; i++)
        pairs[i] = turned(Pair{double(i), char(i)});
    Pair other[4];
    for (int i = 0; i < 4; i++)
        other[(i + index) & 3] = pairs[i];
    out[threadIdx.x] = int(other[(threadIdx.x + index) & 3].value) + other[(threadIdx.x + index) & 3].tag;
}

// Four elements at once, one of them not written.
__global__ void vector(int *out, int fault)
{
    __align__(16) volatile int values[4];
    for (int i = 0; i < 4 - fault; i++)
        values[i] = i;
    int a, b, c, d;
    asm volatile("ld.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(&values[0]) : "memory");
    out[threadIdx.x] = a + b + c;
    if (d == 12345)
        out[0] = d;
}

using Kernel = void (*)(int *, int);

} // namespace

GPUSIM_TEST(local_arrays_have_bounds)
{
    check::in_every_schedule([] {
        for (int index : {0, 7, 8}) {
            cudaStream_t stream = new_stream();
            int *out = device_array<int>(1);
            element<<<1, 1, 0, stream>>>(out, index);
            const bool fault = index > 7;
            CHECK(cudaStreamSynchronize(stream) == (fault ? cudaErrorIllegalAddress : cudaSuccess));
            CHECK(fault ? check::only_reports(GPUSIM_OUT_OF_BOUNDS) : gpusim_reports(-1) == 0);
        }
    });
}

GPUSIM_TEST(elements_of_local_arrays_that_were_not_written)
{
    for (Kernel kernel : {partly_written, once, calls, by_pointer, vector})
        for (int fault : {0, 1})
            check::in_every_schedule([kernel, fault] {
                cudaStream_t stream = new_stream();
                int *out = device_array<int>(64);
                kernel<<<kernel == once ? 5 : 1, kernel == once ? 1 : 32, 0, stream>>>(out, fault);
                CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
                CHECK(fault ? check::only_reports(GPUSIM_UNINITIALISED) : gpusim_reports(-1) == 0);
            });
}

GPUSIM_TEST_EVERYWHERE(padding_in_local_arrays)
{
    cudaStream_t stream = new_stream();
    int *out = device_array<int>(32);
    padded<<<1, 32, 0, stream>>>(out, 1);
    const std::vector<int> got = download(out, 32, stream);
    for (int i = 0; i < 32; i++)
        CHECK(got[size_t(i)] == 1);
    CHECK(gpusim_reports(-1) == 0);
}
