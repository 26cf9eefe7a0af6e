// Order that threads make by fences, atomics, releases and acquires, within a block and between blocks: a fault planted
// in each is found in every schedule, and the correct program is silent.
#include "devices.h"

namespace {

__device__ unsigned poll(const unsigned *flag)
{
    return *static_cast<const volatile unsigned *>(flag);
}

__device__ void raise(unsigned *flag)
{
    *static_cast<volatile unsigned *>(flag) = 1;
}

// The last block writes what the others have read. fault 1: one in the middle doesn't say so.
template <int fault> __global__ void readers_first(int *data, unsigned *count, int *out)
{
    if (threadIdx.x != 0)
        return;
    const unsigned readers = gridDim.x - 1;
    if (blockIdx.x < readers) {
        out[blockIdx.x] = *data;
        if (fault == 1 && blockIdx.x == readers / 2)
            return;
        __threadfence();
        atomicAdd(count, 1u);
        return;
    }
    while (poll(count) < readers - (fault == 1 ? 1 : 0)) {
    }
    __threadfence();
    *data = 9;
}

// A lock that warps of all blocks take. fault 1: no fence after it is taken. 2: none before it is given back.
template <int fault> __global__ void locked(int *lock, int *value)
{
    if (threadIdx.x % 32 != 0)
        return;
    while (atomicCAS(lock, 0, 1) != 0) {
    }
    if (fault != 1)
        __threadfence();
    *value += 1;
    if (fault != 2)
        __threadfence();
    atomicExch(lock, 0);
}

// fault 1: the fence stands before the data. 2: data is written after the ticket. 3: the last block has no fence.
template <int fault> __global__ void tickets(int *partial, unsigned *count, int *total)
{
    if (threadIdx.x != 0)
        return;
    if (fault == 1)
        __threadfence();
    partial[blockIdx.x] = 1;
    if (fault != 1)
        __threadfence();
    const unsigned ticket = atomicAdd(count, 1u);
    if (fault == 2)
        partial[blockIdx.x] += 1;
    if (ticket != gridDim.x - 1)
        return;
    if (fault != 3)
        __threadfence();
    int sum = 0;
    for (unsigned i = 0; i < gridDim.x; i++)
        sum += partial[i];
    *total = sum;
}

// The CUDA guide's last block: its reads are volatile, without a fence after the ticket.
__global__ void volatile_reads(int *partial, unsigned *count, int *total)
{
    __shared__ bool last;
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = 1;
        __threadfence();
        last = atomicAdd(count, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last || threadIdx.x != 0)
        return;
    int sum = 0;
    for (unsigned i = 0; i < gridDim.x; i++)
        sum += static_cast<volatile int *>(partial)[i];
    *total = sum;
}

// Lanes of block 0 write, lane 0 raises a flag for block 1. fault 1: no __syncwarp. 2: the consumer's fence stands
// before its wait. 3: a write after the flag.
template <int fault> __global__ void flagged(int *data, unsigned *flag, int *out)
{
    if (blockIdx.x == 0) {
        data[threadIdx.x] = 5;
        if (fault != 1)
            __syncwarp();
        if (threadIdx.x == 0) {
            __threadfence();
            raise(flag);
        }
        if (fault == 3)
            data[threadIdx.x] = 6;
        return;
    }
    if (fault == 2)
        __threadfence();
    while (poll(flag) == 0) {
    }
    if (fault != 2)
        __threadfence();
    out[threadIdx.x] = data[threadIdx.x];
}

// Blocks write, meet, and read what their neighbours have written, round by round. With one buffer the next round's
// write comes too early.
template <int buffers> __global__ void rounds(int *data, unsigned *count, int *out)
{
    for (unsigned i = 1; i <= 6; i++) {
        int *at = data + i % buffers * 128;
        at[blockIdx.x * 64 + threadIdx.x] = int(i);
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(count, 1u);
            while (poll(count) < gridDim.x * i) {
            }
            __threadfence();
        }
        __syncthreads();
        out[blockIdx.x * 64 + threadIdx.x] += at[(blockIdx.x + 1) % gridDim.x * 64 + threadIdx.x];
    }
}

// Two warps of a block, by a flag of the block's scope in global or in shared memory. fault 1: it isn't released. 2: it
// isn't acquired.
template <int fault, bool shared> __global__ void within_block(int *data, unsigned *flag, int *out)
{
    __shared__ int own_data;
    __shared__ unsigned own_flag;
    int *value = shared ? &own_data : data;
    unsigned *at = shared ? &own_flag : flag;
    if (threadIdx.x == 0)
        *at = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        *value = 7; // named below so that the compiler stores it
        if (fault == 1)
            asm volatile("st.relaxed.cta.u32 [%0], 1;" ::"l"(at), "l"(value) : "memory");
        else
            asm volatile("st.release.cta.u32 [%0], 1;" ::"l"(at), "l"(value) : "memory");
    } else if (threadIdx.x == 32) {
        unsigned seen;
        do {
            if (fault == 2)
                asm volatile("ld.relaxed.cta.u32 %0, [%1];" : "=r"(seen) : "l"(at) : "memory");
            else
                asm volatile("ld.acquire.cta.u32 %0, [%1];" : "=r"(seen) : "l"(at) : "memory");
        } while (seen == 0);
        *out = *value;
    }
}

// One thread of each block waits for a word, the others for it.
__global__ void wait_for_word(const unsigned *word, int *out)
{
    if (threadIdx.x == 0)
        while (poll(word) == 0) {
        }
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = 3;
}

__global__ void write_word(unsigned *word)
{
    raise(word);
}

template <class T> T *zeros(size_t count)
{
    T *made = device_array<T>(count);
    cudaMemset(made, 0, count * sizeof(T));
    return made;
}

// What a correct program leaves there.
struct Result {
    const int *at;
    int value;
};

void expect(bool fault, gpusim_report_kind kind, const Result &result)
{
    cudaDeviceSynchronize();
    CHECK(fault ? gpusim_reports(kind) > 0 : gpusim_reports(-1) == 0);
    int value = 0;
    CHECK(cudaMemcpy(&value, result.at, sizeof value, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(fault || value == result.value);
    gpusim_clear_reports();
}

// `launch` starts the kernel with or without its fault.
template <class Launch> void run_case(bool fault, gpusim_report_kind kind, Launch launch)
{
    check::in_every_schedule([&] { expect(fault, kind, launch(new_stream())); });
}

template <int fault> void readers_case(unsigned blocks)
{
    run_case(fault, GPUSIM_RACE_GLOBAL, [blocks](cudaStream_t stream) {
        int *data = zeros<int>(1);
        readers_first<fault><<<blocks, 32, 0, stream>>>(data, zeros<unsigned>(1), zeros<int>(16));
        return Result{data, 9};
    });
}

template <int fault> void lock_case()
{
    run_case(fault, GPUSIM_RACE_GLOBAL, [](cudaStream_t stream) {
        int *value = zeros<int>(1);
        locked<fault><<<4, 64, 0, stream>>>(zeros<int>(1), value);
        return Result{value, 8};
    });
}

template <int fault> void ticket_case()
{
    run_case(fault, GPUSIM_RACE_GLOBAL, [](cudaStream_t stream) {
        int *total = zeros<int>(1);
        tickets<fault><<<8, 32, 0, stream>>>(zeros<int>(8), zeros<unsigned>(1), total);
        return Result{total, 8};
    });
}

template <int fault> void flag_case()
{
    run_case(fault, GPUSIM_RACE_GLOBAL, [](cudaStream_t stream) {
        int *out = zeros<int>(32);
        flagged<fault><<<2, 32, 0, stream>>>(zeros<int>(32), zeros<unsigned>(1), out);
        return Result{out + 31, 5};
    });
}

template <int fault, bool shared> void block_case()
{
    run_case(fault, shared ? GPUSIM_RACE_SHARED : GPUSIM_RACE_GLOBAL, [](cudaStream_t stream) {
        int *out = zeros<int>(1);
        within_block<fault, shared><<<1, 64, 0, stream>>>(zeros<int>(1), zeros<unsigned>(1), out);
        return Result{out, 7};
    });
}

template <int buffers> void rounds_case(uint64_t seed)
{
    gpusim_options options = {};
    options.order = GPUSIM_SHUFFLED; // in other orders chance makes it right
    options.seed = seed;
    gpusim_configure(&options);
    int *out = zeros<int>(128);
    rounds<buffers><<<2, 64, 0, new_stream()>>>(zeros<int>(256), zeros<unsigned>(1), out);
    expect(buffers == 1, GPUSIM_RACE_GLOBAL, {out, 21});
}

} // namespace

GPUSIM_TEST(all_readers_are_remembered)
{
    for (unsigned blocks : {3u, 4u, 9u}) {
        readers_case<0>(blocks);
        readers_case<1>(blocks);
    }
}

GPUSIM_TEST(locks)
{
    lock_case<0>();
    lock_case<1>();
    lock_case<2>();
}

GPUSIM_TEST(last_block)
{
    ticket_case<0>();
    ticket_case<1>();
    ticket_case<2>();
    ticket_case<3>();
    run_case(false, GPUSIM_RACE_GLOBAL, [](cudaStream_t stream) {
        int *total = zeros<int>(1);
        volatile_reads<<<8, 64, 0, stream>>>(zeros<int>(8), zeros<unsigned>(1), total);
        return Result{total, 8};
    });
}

GPUSIM_TEST(flags)
{
    flag_case<0>();
    flag_case<1>();
    flag_case<2>();
    flag_case<3>();
}

GPUSIM_TEST(a_buffer_for_every_second_round)
{
    for (uint64_t seed = 1; seed <= 5; seed++) {
        rounds_case<1>(seed);
        rounds_case<2>(seed);
    }
}

GPUSIM_TEST(scope_of_the_block)
{
    block_case<0, false>();
    block_case<1, false>();
    block_case<2, false>();
    block_case<0, true>();
    block_case<1, true>();
    block_case<2, true>();
}

// Blocks of which none can do anything but look are known to poll before long, however many they are and whichever of
// their warps chance picks: what they wait for is issued only then.
GPUSIM_TEST(many_blocks_that_wait_for_the_host)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        gpusim_options options = {};
        options.schedule = GPUSIM_EAGER;
        options.order = GPUSIM_SHUFFLED;
        options.seed = seed;
        gpusim_configure(&options);
        unsigned *word = zeros<unsigned>(1);
        int *out = zeros<int>(24 * 256);
        int64_t before = gpusim_count().instructions;
        wait_for_word<<<24, 256, 0, new_stream()>>>(word, out);
        CHECK(gpusim_count().instructions - before < 24 * 256 * 1000);
        write_word<<<1, 1, 0, new_stream()>>>(word);
        expect(false, GPUSIM_RACE_GLOBAL, {out + 24 * 256 - 1, 3});
    }
}
