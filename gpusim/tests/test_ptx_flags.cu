// Kernels that wait for each other's writes while both run: flags with release and acquire between streams and devices,
// in every schedule; and faults of that kind, each of which is found in every schedule.
#include "devices.h"

#include <chrono>
#include <cstdint>

namespace {

constexpr int threads = 64, count = 300, rounds = 5;
constexpr int most_ranks = 3;

enum Fault {
    none,
    relaxed_store,       // the flag is written without a release
    release_elsewhere,   // or behind the release of another word, which is no fence
    relaxed_load,        // or read without an acquire
    device_scope,        // a release for readers on the same device, and the reader is on another
    no_barrier_after,    // one thread waits, and others don't wait for it
    no_barrier_before,   // one thread releases, and others have not written yet
    flag_without_epoch,  // the second round finds the first one's flag
    one_buffer,          // the second round overwrites what the first one's readers may still read
    late_write           // a write after the release
};

__device__ void store_release(unsigned *flag, unsigned value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

__device__ void store_release_device(unsigned *flag, unsigned value)
{
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

__device__ unsigned load_acquire(const unsigned *flag)
{
    unsigned value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

__device__ unsigned load_relaxed(const unsigned *flag)
{
    unsigned value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

__global__ void produce(int *data, unsigned *flag, int value, Fault fault)
{
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        data[i] = value + i;
    }
    if (fault != no_barrier_before) {
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        if (fault == release_elsewhere) {
            store_release(flag + 1, 1);
        }
        if (fault == relaxed_store || fault == release_elsewhere) {
            *reinterpret_cast<volatile unsigned *>(flag) = 1;
        } else if (fault == device_scope) {
            store_release_device(flag, 1);
        } else {
            store_release(flag, 1);
        }
        if (fault == late_write) {
            data[0] = value;
        }
    }
}

__global__ void consume(const int *data, const unsigned *flag, int *out, Fault fault)
{
    if (threadIdx.x == 0) {
        while ((fault == relaxed_load ? load_relaxed(flag) : load_acquire(flag)) == 0) {
        }
    }
    if (fault != no_barrier_after) {
        __syncthreads();
    }
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        out[i] = data[i];
    }
}

// The same with fences: every thread's, then one writes; one reads, then every thread's.
__global__ void produce_by_fence(int *data, unsigned *counter, int value)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        data[i] = value + i;
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd_system(counter, 1u);
    }
}

__global__ void consume_by_fence(const int *data, const unsigned *counter, unsigned blocks, int *out)
{
    if (threadIdx.x == 0) {
        while (*reinterpret_cast<const volatile unsigned *>(counter) < blocks) {
            __nanosleep(100);
        }
    }
    __syncthreads();
    __threadfence_system();
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        out[i] = data[i];
    }
}

__global__ void copy_all(const int *data, int *out)
{
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        out[i] = data[i];
    }
}

struct Ranks {
    int *buffer[most_ranks]; // [2][count]
    unsigned *flags[most_ranks]; // [blocks][most_ranks], by writer
};

// Rank `own` hands its values to all and adds everybody's: one barrier a call, buffers in turn.
__global__ void exchange(Ranks ranks, int own, int size, unsigned epoch, const int *in, int *out, Fault fault)
{
    int *mine = ranks.buffer[own] + (fault == one_buffer ? 0 : epoch % 2) * count;
    int first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    for (int i = first; i < count; i += step) {
        mine[i] = in[i];
    }
    __syncthreads();
    if (threadIdx.x < size) {
        unsigned *from = &ranks.flags[own][blockIdx.x * most_ranks + threadIdx.x];
        unsigned wanted = fault == flag_without_epoch ? 1 : epoch;
        store_release(&ranks.flags[threadIdx.x][blockIdx.x * most_ranks + own], wanted);
        while (static_cast<int>(load_acquire(from) - wanted) < 0) {
        }
    }
    __syncthreads();
    for (int i = first; i < count; i += step) {
        int sum = 0;
        for (int r = 0; r < size; r++) {
            sum += ranks.buffer[r][(mine - ranks.buffer[own]) + i];
        }
        out[i] = sum;
    }
}

__global__ void wait_for_time(const unsigned *flag, unsigned long long nanoseconds, unsigned *waited)
{
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (load_acquire(flag) == 0 && now - begin < nanoseconds);
    *waited = 1;
}

// Wide blocks, as many as fill a device of one multiprocessor.
__global__ void fill_device(const unsigned *flag, int *out)
{
    if (threadIdx.x == 0) {
        while (load_acquire(flag) == 0) {
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        out[blockIdx.x] = 1;
    }
}

// A look that is an update which leaves the word as it is.
template <int kind> __device__ int look_by_atomic(int *flag)
{
    return kind == 0   ? atomicAdd(flag, 0)
           : kind == 1 ? atomicOr(flag, 0)
           : kind == 2 ? atomicMax(flag, 0)
           : kind == 3 ? atomicCAS(flag, 1, 1)
           : kind == 4 ? atomicAnd(flag, -1)
                       : atomicXor(flag, 0);
}

template <int kind> __global__ void wait_by_atomic(int *flag)
{
    while (look_by_atomic<kind>(flag) == 0 || look_by_atomic<kind>(flag + 1) == 0) {
    }
}

__global__ void raise_by_atomic(int *flag)
{
    atomicAdd(flag, 1);
}

// All blocks, started in any order, each after all others; and sums of zeros, which wait for nobody.
__global__ void meet_by_atomic(int *counter, float *sum)
{
    if (threadIdx.x == 0) {
        atomicAdd(counter, 1);
        while (atomicAdd(counter, 0) < static_cast<int>(gridDim.x)) {
        }
    }
    __syncthreads();
    for (int i = 0; i < 2000; i++) {
        sum[1 + blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(sum, 0.0f);
    }
}

__global__ void raise_flag(unsigned *flag)
{
    store_release(flag, 1);
}

template <class T> T *cleared(size_t n, int device, cudaStream_t stream)
{
    T *memory = device_array<T>(n, device);
    CHECK(cudaMemsetAsync(memory, 0, n * sizeof(T), stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    return memory;
}

void reach_all(int devices)
{
    for (int a = 0; a < devices; a++) {
        for (int b = 0; b < devices; b++) {
            if (a != b) {
                cudaSetDevice(a);
                cudaDeviceEnablePeerAccess(b, 0);
            }
        }
    }
}

// One writes on device 0, the other reads on `device`. Either may be launched first. True: the reader got what was
// written.
bool pass_on(int device, bool reader_first, Fault fault)
{
    reach_all(2);
    cudaStream_t writer = new_stream(0), reader = new_stream(device);
    cudaSetDevice(0);
    int *data = device_array<int>(count, 0);
    unsigned *flag = cleared<unsigned>(2, 0, writer);
    int *out = device_array<int>(count, device);
    for (int i = 0; i < 2; i++) {
        if ((i == 0) == reader_first) {
            cudaSetDevice(device);
            consume<<<1, threads, 0, reader>>>(data, flag, out, fault);
        } else {
            cudaSetDevice(0);
            produce<<<1, threads, 0, writer>>>(data, flag, 1000, fault);
        }
    }
    std::vector<int> got = download(out, count, reader);
    bool right = cudaStreamSynchronize(writer) == cudaSuccess;
    for (int i = 0; i < count; i++) {
        right = right && got[static_cast<size_t>(i)] == 1000 + i;
    }
    cudaFree(data);
    cudaFree(flag);
    cudaFree(out);
    return right;
}

// `size` ranks exchange `rounds` times without the host between. True: all sums are right.
bool exchange_all(int size, int blocks, Fault fault)
{
    reach_all(size);
    Ranks ranks = {};
    cudaStream_t stream[most_ranks];
    int *in[most_ranks], *out[most_ranks];
    for (int r = 0; r < size; r++) {
        stream[r] = new_stream(r);
        ranks.buffer[r] = device_array<int>(2 * count, r);
        ranks.flags[r] = cleared<unsigned>(static_cast<size_t>(blocks * most_ranks), r, stream[r]);
        in[r] = device_array<int>(rounds * count, r);
        out[r] = device_array<int>(rounds * count, r);
        std::vector<int> values;
        for (int i = 0; i < rounds * count; i++) {
            values.push_back(i * (r + 1));
        }
        upload(in[r], values, stream[r]);
        CHECK(cudaStreamSynchronize(stream[r]) == cudaSuccess);
    }
    for (int round = 0; round < rounds; round++) {
        for (int r = 0; r < size; r++) {
            cudaSetDevice(r);
            exchange<<<blocks, threads, 0, stream[r]>>>(ranks, r, size, 1 + round, in[r] + round * count,
                                                        out[r] + round * count, fault);
        }
    }
    bool right = true;
    for (int r = 0; r < size; r++) {
        std::vector<int> sums = download(out[r], rounds * count, stream[r]);
        for (int i = 0; i < rounds * count; i++) {
            right = right && sums[static_cast<size_t>(i)] == i * size * (size + 1) / 2;
        }
    }
    for (int r = 0; r < size; r++) {
        for (void *memory : {static_cast<void *>(ranks.buffer[r]), static_cast<void *>(ranks.flags[r]),
                             static_cast<void *>(in[r]), static_cast<void *>(out[r])}) {
            cudaFree(memory);
        }
    }
    return right;
}

// True: the waiting kernel has ended by itself.
template <int kind> bool waits_by_atomic(bool raised)
{
    cudaStream_t waits = new_stream(), writes = new_stream();
    int *flags = cleared<int>(2, 0, waits);
    wait_by_atomic<kind><<<1, 1, 0, waits>>>(flags);
    for (int i = 0; raised && i < 2; i++) {
        raise_by_atomic<<<1, 1, 0, writes>>>(flags + i);
    }
    const bool ended = cudaStreamSynchronize(waits) == cudaSuccess && cudaStreamSynchronize(writes) == cudaSuccess;
    cudaFree(flags);
    return ended;
}

double seconds_since(std::chrono::steady_clock::time_point begin)
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

} // namespace

GPUSIM_TEST(flags_pass_data_between_running_kernels)
{
    check::in_every_schedule([] {
        for (int device = 0; device < 2; device++) {
            CHECK(pass_on(device, true, none));
            CHECK(pass_on(device, false, none));
        }
        CHECK(gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST(a_missing_release_is_found)
{
    check::in_every_schedule([] {
        pass_on(0, true, relaxed_store);
        CHECK(check::only_reports(GPUSIM_RACE_STREAM));
    });
    check::in_every_schedule([] {
        pass_on(1, false, relaxed_store);
        CHECK(check::only_reports(GPUSIM_RACE_STREAM));
    });
}

GPUSIM_TEST(a_release_is_no_fence_for_what_comes_after_it)
{
    for (int device = 0; device < 2; device++) {
        check::in_every_schedule([device] {
            pass_on(device, device == 0, release_elsewhere);
            CHECK(check::only_reports(GPUSIM_RACE_STREAM));
        });
    }
}

GPUSIM_TEST(a_missing_acquire_is_found)
{
    check::in_every_schedule([] {
        pass_on(0, false, relaxed_load);
        CHECK(check::only_reports(GPUSIM_RACE_STREAM));
    });
    check::in_every_schedule([] {
        pass_on(1, true, relaxed_load);
        CHECK(check::only_reports(GPUSIM_RACE_STREAM));
    });
}

GPUSIM_TEST(a_release_of_device_scope_orders_one_device)
{
    check::in_every_schedule([] {
        CHECK(pass_on(0, true, device_scope));
        CHECK(gpusim_reports(-1) == 0);
        pass_on(1, true, device_scope);
        CHECK(check::only_reports(GPUSIM_RACE_STREAM));
    });
}

GPUSIM_TEST(missing_block_barriers_around_a_flag_are_found)
{
    check::in_every_schedule([] {
        pass_on(1, false, no_barrier_after);
        CHECK(gpusim_reports(GPUSIM_RACE_STREAM) > 0);
    });
    check::in_every_schedule([] {
        pass_on(1, true, no_barrier_before);
        CHECK(gpusim_reports(GPUSIM_RACE_STREAM) > 0);
    });
}

GPUSIM_TEST(a_write_after_the_release_is_found)
{
    check::in_every_schedule([] {
        pass_on(1, true, late_write);
        CHECK(check::only_reports(GPUSIM_RACE_STREAM));
    });
    check::in_every_schedule([] {
        pass_on(0, false, late_write);
        CHECK(check::only_reports(GPUSIM_RACE_STREAM));
    });
}

GPUSIM_TEST(fences_and_counters_order_too)
{
    check::in_every_schedule([] {
        reach_all(2);
        cudaStream_t writer = new_stream(0), reader = new_stream(1);
        int *data = device_array<int>(count, 0);
        unsigned *counter = cleared<unsigned>(1, 0, writer);
        int *out = device_array<int>(count, 1);
        consume_by_fence<<<1, threads, 0, reader>>>(data, counter, 3, out);
        cudaSetDevice(0);
        produce_by_fence<<<3, threads, 0, writer>>>(data, counter, 7);
        std::vector<int> got = download(out, count, reader);
        CHECK(got[0] == 7 && got[count - 1] == 7 + count - 1);
        CHECK(gpusim_reports(-1) == 0);
    });
}

// A kernel, or another stream behind an event, may use what the one before it has acquired.
GPUSIM_TEST(what_was_acquired_holds_for_what_follows)
{
    check::in_every_schedule([] {
        cudaStream_t writer = new_stream(0), reader = new_stream(0), third = new_stream(0);
        int *data = device_array<int>(count);
        unsigned *flag = cleared<unsigned>(1, 0, writer);
        int *out = device_array<int>(count), *again = device_array<int>(count);
        consume<<<1, threads, 0, reader>>>(data, flag, out, none);
        copy_all<<<1, threads, 0, reader>>>(data, again);
        order(reader, third);
        produce<<<1, threads, 0, writer>>>(data, flag, 5, none);
        CHECK(cudaMemcpyAsync(out, data, count * sizeof(int), cudaMemcpyDeviceToDevice, third) == cudaSuccess);
        std::vector<int> got = download(again, count, reader), copied = download(out, count, third);
        CHECK(got[3] == 8 && copied[3] == 8);
        CHECK(cudaStreamSynchronize(writer) == cudaSuccess);
        CHECK(gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST(ranks_exchange_with_one_barrier_a_call)
{
    check::in_every_schedule([] {
        for (int size = 1; size <= most_ranks; size++) {
            CHECK(exchange_all(size, size, none));
        }
        CHECK(gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST(a_flag_without_epoch_is_found)
{
    check::in_every_schedule([] {
        exchange_all(2, 2, flag_without_epoch);
        CHECK(gpusim_reports(GPUSIM_RACE_STREAM) > 0);
    });
}

GPUSIM_TEST(a_buffer_used_again_too_early_is_found)
{
    check::in_every_schedule([] {
        exchange_all(3, 1, one_buffer);
        CHECK(check::only_reports(GPUSIM_RACE_STREAM));
    });
}

GPUSIM_TEST(an_endless_wait_is_told)
{
    check::in_every_schedule([] {
        const auto begin = std::chrono::steady_clock::now();
        cudaStream_t reader = new_stream(0), other = new_stream(1);
        int *data = device_array<int>(count, 0);
        unsigned *flag = cleared<unsigned>(1, 0, reader);
        cudaSetDevice(0);
        consume<<<2, threads, 0, reader>>>(data, flag, data, none);
        CHECK(cudaStreamSynchronize(other) == cudaSuccess);
        CHECK(cudaStreamSynchronize(reader) == cudaErrorLaunchTimeout);
        CHECK(check::only_reports(GPUSIM_DEADLOCK));
        CHECK(strstr(gpusim_report_text(0), "endless polling") != nullptr);
        CHECK(seconds_since(begin) < 10);
    });
}

GPUSIM_TEST(atomics_that_change_nothing_are_looks)
{
    check::in_every_schedule([] {
        CHECK(waits_by_atomic<0>(true) && waits_by_atomic<1>(true) && waits_by_atomic<2>(true));
        CHECK(waits_by_atomic<3>(true) && waits_by_atomic<4>(true) && waits_by_atomic<5>(true));
        cudaStream_t stream = new_stream();
        int *counter = cleared<int>(1, 0, stream);
        float *sum = cleared<float>(1 + 5 * 64, 0, stream);
        meet_by_atomic<<<5, 64, 0, stream>>>(counter, sum);
        CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
        CHECK(gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST(an_endless_wait_by_atomics_is_told)
{
    bool (*const waits[])(bool) = {waits_by_atomic<0>, waits_by_atomic<1>, waits_by_atomic<2>,
                                   waits_by_atomic<3>, waits_by_atomic<4>, waits_by_atomic<5>};
    for (auto wait : waits) {
        check::in_every_schedule([wait] {
            CHECK(!wait(false));
            CHECK(check::only_reports(GPUSIM_DEADLOCK));
        });
    }
}

GPUSIM_TEST(a_wait_with_a_limit_ends_by_itself)
{
    check::in_every_schedule([] {
        cudaStream_t stream = new_stream();
        unsigned *flag = cleared<unsigned>(2, 0, stream);
        wait_for_time<<<1, 1, 0, stream>>>(flag, 2000000, flag + 1);
        CHECK(download(flag, 2, stream)[1] == 1);
        CHECK(gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST(a_kernel_needs_room_beside_one_that_waits)
{
    for (gpusim_options options : check::schedules()) {
        for (int blocks = 1; blocks <= 2; blocks++) { // of 1024 threads: two fill a multiprocessor
            options.multiprocessors = 1;
            gpusim_configure(&options);
            cudaStream_t waits = new_stream(), writes = new_stream();
            unsigned *flag = cleared<unsigned>(1, 0, waits);
            int *out = device_array<int>(2);
            fill_device<<<blocks, 1024, 0, waits>>>(flag, out);
            if (options.schedule != GPUSIM_EAGER) {
                cudaStreamQuery(waits);
            }
            raise_flag<<<1, 1, 0, writes>>>(flag);
            const cudaError_t status = cudaStreamSynchronize(waits);
            if (blocks == 1) {
                CHECK(status == cudaSuccess && gpusim_reports(-1) == 0);
            } else if (options.schedule == GPUSIM_EAGER) {
                CHECK(status == cudaErrorLaunchTimeout && check::only_reports(GPUSIM_DEADLOCK));
            }
        }
    }
}
