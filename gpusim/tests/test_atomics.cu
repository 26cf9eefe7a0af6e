// Atomics are no race with each other, but with plain accesses of the same word, however many atomics of others lie
// between: each fault is found in every schedule, and the correct program is silent.
#include "devices.h"

namespace {

constexpr int count = 96;

__global__ void add_to_all(int *p)
{
    atomicAdd(p + blockIdx.x * blockDim.x + threadIdx.x, 1);
}

__global__ void add_to_one(int *p)
{
    atomicAdd(p, 1);
}

__global__ void store(int *p)
{
    p[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}

__global__ void load(const int *p, int *out)
{
    out[blockIdx.x * blockDim.x + threadIdx.x] = p[blockIdx.x * blockDim.x + threadIdx.x];
}

__global__ void poll(const int *p)
{
    while (*static_cast<const volatile int *>(p) < 0) {
    }
}

enum class First { cleared, stored, loaded };

// `first` on one stream, atomics behind it on the same one, and atomics on another. True: nothing was found.
bool after_plain(First first, bool ordered, bool polled)
{
    cudaStream_t one = new_stream(), two = new_stream();
    int *p = device_array<int>(count), *out = device_array<int>(count);
    if (first != First::stored) {
        CHECK(cudaMemsetAsync(p, 0, count * sizeof(int), one) == cudaSuccess);
    }
    if (first == First::loaded) {
        CHECK(cudaStreamSynchronize(one) == cudaSuccess);
        load<<<3, 32, 0, one>>>(p, out);
    } else if (first == First::stored) {
        store<<<3, 32, 0, one>>>(p);
    }
    if (ordered) {
        order(one, two);
    }
    if (polled) {
        poll<<<1, 1, 0, one>>>(p);
    }
    add_to_all<<<3, 32, 0, one>>>(p);
    add_to_all<<<3, 32, 0, two>>>(p);
    order(two, one);
    std::vector<int> got = download(p, count, one);
    CHECK(!ordered || got[count - 1] == 2 + (first == First::stored));
    CHECK(cudaFree(p) == cudaSuccess && cudaFree(out) == cudaSuccess);
    return gpusim_reports(-1) == 0;
}

// Block 0 stores before all add. `flag`: the others wait until it has.
__global__ void store_then_add(int *p, int *flag)
{
    if (blockIdx.x == 0) {
        p[threadIdx.x] = 5;
        __threadfence();
        __syncthreads();
        if (flag && threadIdx.x == 0) {
            atomicExch(flag, 1);
        }
    } else if (flag) {
        if (threadIdx.x == 0) {
            while (atomicAdd(flag, 0) == 0) {
            }
        }
        __syncthreads();
        __threadfence();
    }
    atomicAdd(p + threadIdx.x, 1);
}

// Thread `first` clears a counter that all add to.
__global__ void count_in_shared(int *out, int first, bool barrier)
{
    __shared__ int counter;
    if (threadIdx.x == first) {
        counter = 0;
    }
    if (barrier) {
        __syncthreads();
    }
    atomicAdd(&counter, 1);
    __syncthreads();
    out[threadIdx.x] = counter;
}

bool counts_in_shared(int threads, int first, bool barrier)
{
    cudaStream_t stream = new_stream();
    int *out = device_array<int>(64);
    count_in_shared<<<1, threads, 0, stream>>>(out, first, barrier);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(cudaFree(out) == cudaSuccess);
    return gpusim_reports(-1) == 0;
}

bool stores_then_adds(bool waits)
{
    cudaStream_t stream = new_stream();
    int *p = device_array<int>(33);
    CHECK(cudaMemsetAsync(p, 0, 33 * sizeof(int), stream) == cudaSuccess);
    store_then_add<<<3, 32, 0, stream>>>(p, waits ? p + 32 : nullptr);
    std::vector<int> got = download(p, 32, stream);
    CHECK(!waits || got[31] == 8);
    CHECK(cudaFree(p) == cudaSuccess);
    return gpusim_reports(-1) == 0;
}

} // namespace

GPUSIM_TEST_EVERYWHERE(atomics_after_a_plain_access_that_all_come_after)
{
    for (First first : {First::cleared, First::stored, First::loaded}) {
        CHECK(after_plain(first, true, false) && after_plain(first, true, true));
    }
    CHECK(stores_then_adds(true));
    CHECK(counts_in_shared(32, 0, true) && counts_in_shared(64, 0, true) && counts_in_shared(64, 63, true));
}

GPUSIM_TEST(a_plain_access_is_not_forgotten_behind_an_atomic)
{
    for (First first : {First::cleared, First::stored, First::loaded}) {
        for (bool polled : {false, true}) {
            check::in_every_schedule([=] {
                after_plain(first, false, polled);
                CHECK(gpusim_reports(GPUSIM_RACE_STREAM) > 0);
            });
        }
    }
}

GPUSIM_TEST(a_plain_store_of_another_block_is_not_forgotten)
{
    check::in_every_schedule([] {
        CHECK(!stores_then_adds(false) && check::only_reports(GPUSIM_RACE_GLOBAL));
    });
}

GPUSIM_TEST(a_counter_in_shared_memory_is_cleared_before_a_barrier)
{
    for (int threads : {32, 64}) {
        for (int first : {0, threads - 1}) {
            check::in_every_schedule([=] {
                CHECK(!counts_in_shared(threads, first, false) && gpusim_reports(GPUSIM_RACE_SHARED) > 0);
            });
        }
    }
}

// Many streams add to one word: correct, and no set of accesses grows.
GPUSIM_TEST_EVERYWHERE(many_streams_add_to_one_word)
{
    cudaStream_t streams[8];
    for (cudaStream_t &stream : streams) {
        stream = new_stream();
    }
    int *p = device_array<int>(1);
    CHECK(cudaMemsetAsync(p, 0, sizeof(int), streams[0]) == cudaSuccess);
    for (int i = 1; i < 8; i++) {
        order(streams[0], streams[i]);
    }
    for (int round = 0; round < 20; round++) {
        for (cudaStream_t stream : streams) {
            add_to_one<<<2, 32, 0, stream>>>(p);
        }
    }
    for (int i = 1; i < 8; i++) {
        order(streams[i], streams[0]);
    }
    CHECK(download(p, 1, streams[0])[0] == 20 * 8 * 64);
    CHECK(gpusim_reports(-1) == 0);
}
