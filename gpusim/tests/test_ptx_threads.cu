// How threads run: divergence, warp operations under masks, spin locks, barriers, calls; in every order of blocks and
// warps.
#include "devices.h"

#include <cstdint>

namespace {

struct Buffers {
    cudaStream_t stream = new_stream();
    int *in, *out;
    size_t count;
    std::vector<int> values;

    explicit Buffers(size_t n, bool zero = false)
        : in(device_array<int>(n)), out(device_array<int>(n)), count(n), values(n)
    {
        uint32_t state = 9;
        for (int &value : values) {
            state = state * 1664525u + 1013904223u;
            value = zero ? 0 : static_cast<int>(state >> 16);
        }
        upload(in, values, stream);
        CHECK(cudaMemsetAsync(out, 0, n * sizeof(int), stream) == cudaSuccess);
    }
    ~Buffers()
    {
        cudaFree(in);
        cudaFree(out);
        cudaStreamDestroy(stream);
    }
    std::vector<int> result()
    {
        return download(out, count, stream);
    }
};

__host__ __device__ int wander(int x)
{
    int sum = 0;
    for (int a = 0; a < (x & 7) + 1; a++) {
        int y = x ^ (a * 0x9E37), steps = 0;
        while (y != 1 && steps < 40) {
            if (y & 1) {
                y = (3 * y + 1) & 0xFFFF;
                if ((y & 0x70) == 0x30) {
                    continue;
                }
                sum += 3;
            } else {
                y >>= 1;
                if (y == 0) {
                    break;
                }
                sum ^= y;
            }
            switch (y & 3) {
            case 0: sum += 7; break;
            case 1: sum -= 2; // and on
            case 2: sum *= 3; break;
            default: sum ^= 0x55;
            }
            steps++;
        }
        if (sum < 0 && (x & 64)) {
            break;
        }
    }
    return sum;
}

__global__ void diverge(const int *in, int *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        out[i] = wander(in[i]);
    }
}

// Half-warps and quads on different paths, then all together.
__global__ void sub_masks(const int *in, int *out)
{
    int lane = threadIdx.x & 31, v = in[threadIdx.x];
    if (lane < 16) {
        for (int distance = 8; distance; distance >>= 1) {
            v += __shfl_xor_sync(0x0000FFFFu, v, distance, 16);
        }
    } else {
        for (int k = 0; k < (lane >> 3); k++) {
            v = v * 3 + k;
        }
        unsigned mask = 0xFu << (lane & 28);
        v += __shfl_sync(mask, v, 2, 4);
        v += 1000 * __popc(__ballot_sync(mask, v & 1));
    }
    __syncwarp();
    out[threadIdx.x] = v + __shfl_down_sync(0xFFFFFFFFu, v, 3);
}

// Lanes at one instruction name different masks; masks that overlap wait at once; lanes of one mask wait at different
// places.
__global__ void overlapping(const int *in, int *out)
{
    int lane = threadIdx.x;
    unsigned mine = lane < 8 ? 0x000000FFu : lane < 16 ? 0x0000FF00u : 0xFFFF0000u;
    out[lane] = __reduce_add_sync(mine, lane);
    unsigned ballot = 0;
    if (lane < 8) {
        if (lane < 4) { // these meet each other before they meet lanes 4 to 7, which wait already
            int steps = 0;
            for (int y = in[lane] & 63; y < 1000; y = 2 * y + 1) {
                steps++;
            }
            ballot = __ballot_sync(0x0000000Fu, steps > 0 && (lane & 1));
        }
        ballot += __ballot_sync(0x000000FFu, true);
    }
    out[32 + lane] = ballot;
    out[64 + lane] = __popc(__match_any_sync(0xFFFFFFFFu, lane / 5));
    int same = 0;
    out[96 + lane] = __match_all_sync(mine, lane < 16 ? 7 : lane, &same) + same;
    __shared__ int values[32];
    values[lane] = lane;
    if (in[lane] & 1) {
        __syncwarp();
        ballot = values[lane ^ 5] + 1;
    } else {
        __syncwarp();
        ballot = values[lane ^ 5] + 2;
    }
    out[128 + lane] = ballot;
}

__global__ void exits(int *out)
{
    if (threadIdx.x < 20) {
        out[threadIdx.x] = __ballot_sync(0xFFFFFFFFu, threadIdx.x % 2 == 0);
        return;
    }
    for (unsigned x = threadIdx.x; x > 1; x = x & 1 ? 3 * x + 1 : x / 2) {
        __nanosleep(1);
    }
}

__global__ void spin_lock(int *lock, int *sum)
{
    bool done = false;
    while (!done) {
        if (atomicCAS(lock, 0, 1) == 0) {
            *reinterpret_cast<volatile int *>(sum) += static_cast<int>(threadIdx.x);
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
    }
}

// Blocks wait for the one before: in every order of blocks.
__global__ void chain(volatile int *flags, int *out)
{
    if (threadIdx.x == 0) {
        int before = blockIdx.x == 0 ? 1 : 0;
        while (blockIdx.x > 0 && (before = flags[blockIdx.x - 1]) == 0) {
        }
        __threadfence();
        flags[blockIdx.x] = before + 1;
        out[blockIdx.x] = before;
    }
}

// 0: all threads meet. 1: some leave early. 2: threads of one warp meet at another place.
template <int Which> __global__ void barriers(int *out)
{
    __shared__ int values[64];
    values[threadIdx.x] = threadIdx.x;
    if (Which == 0) {
        __syncthreads();
    } else if (Which == 1) {
        if (threadIdx.x >= 48) {
            return;
        }
        __syncthreads();
    } else if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        values[threadIdx.x] = threadIdx.x;
        __syncthreads();
    }
    out[threadIdx.x] = values[threadIdx.x ^ 1];
}

// Two pairs of warps, each with a barrier of its own; then a producer that only arrives; then reductions.
__global__ void named_barriers(int *out)
{
    __shared__ int values[128];
    int pair = threadIdx.x / 64, number = pair + 1;
    values[threadIdx.x] = threadIdx.x;
    asm volatile("bar.sync %0, 64;" ::"r"(number) : "memory");
    int v = values[threadIdx.x ^ 33];
    asm volatile("bar.sync %0, 64;" ::"r"(number) : "memory");
    if (pair == 0) {
        values[threadIdx.x] = 1000 + v;
        asm volatile("bar.arrive 3, 128;" ::: "memory");
    } else {
        asm volatile("bar.sync 3, 128;" ::: "memory");
        v += values[threadIdx.x - 64];
    }
    int odd = __syncthreads_count(v & 1);
    int any = __syncthreads_or(threadIdx.x == 77), all = __syncthreads_and(threadIdx.x != 77);
    out[threadIdx.x] = v + 10000 * odd + 10000000 * (any + 2 * all);
}

__noinline__ __device__ int collatz_steps(int x, int depth)
{
    int local[4] = {x, depth, x + depth, 0};
    while (local[0] > 1 && local[3] < depth) {
        local[0] = local[0] & 1 ? 3 * local[0] + 1 : local[0] / 2;
        local[3]++;
    }
    return local[3] + local[x & 1];
}
__noinline__ __device__ long long twice(int x, int y)
{
    return x > 0 ? 2ll * collatz_steps(x & 1023, y) : -1;
}
__host__ __device__ int reference_steps(int x, int depth)
{
    int value = x, steps = 0;
    while (value > 1 && steps < depth) {
        value = value & 1 ? 3 * value + 1 : value / 2;
        steps++;
    }
    return steps + (x & 1 ? depth : value);
}
__global__ void calls(const int *in, int *out)
{
    int x = in[threadIdx.x];
    out[threadIdx.x] = x % 3 == 0 ? collatz_steps(x & 255, 30) : static_cast<int>(twice(x & 511, 20));
}

__constant__ int factors[4] = {3, 5, 7, 11};
__device__ int counter = 42;
__device__ const int *pointer = &counter;
__global__ void variables(int *out)
{
    out[threadIdx.x] = factors[threadIdx.x & 3] * *pointer;
    __syncthreads();
    if (threadIdx.x == 0) {
        counter = 7;
    }
}

} // namespace

GPUSIM_TEST(divergence)
{
    check::in_every_schedule([] {
        Buffers data(1000);
        diverge<<<8, 128, 0, data.stream>>>(data.in, data.out, 1000);
        std::vector<int> result = data.result();
        for (size_t i = 0; i < 1000; i++) {
            CHECK(result[i] == wander(data.values[i]));
        }
        CHECK(gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST_EVERYWHERE(warp_operations_under_masks)
{
    Buffers data(64);
    sub_masks<<<1, 64, 0, data.stream>>>(data.in, data.out);
    std::vector<int> result = data.result(), v = data.values, middle(64);
    for (int w = 0; w < 64; w += 32) {
        int sum = 0;
        for (int l = 0; l < 16; l++) {
            sum += v[w + l];
        }
        for (int l = 16; l < 32; l++) {
            for (int k = 0; k < (l >> 3); k++) {
                v[w + l] = v[w + l] * 3 + k;
            }
        }
        for (int l = 0; l < 32; l++) {
            middle[w + l] = l < 16 ? sum : v[w + l] + v[w + (l & 28) + 2];
        }
        for (int quad = 16; quad < 32; quad += 4) {
            int odd = 0;
            for (int l = quad; l < quad + 4; l++) {
                odd += middle[w + l] & 1;
            }
            for (int l = quad; l < quad + 4; l++) {
                middle[w + l] += 1000 * odd;
            }
        }
        for (int l = 0; l < 32; l++) {
            CHECK(result[w + l] == middle[w + l] + middle[w + (l + 3 < 32 ? l + 3 : l)]);
        }
    }
    CHECK(gpusim_reports(-1) == 0);
}

GPUSIM_TEST_EVERYWHERE(overlapping_masks)
{
    Buffers data(160);
    overlapping<<<1, 32, 0, data.stream>>>(data.in, data.out);
    std::vector<int> result = data.result();
    for (int l = 0; l < 32; l++) {
        CHECK(result[l] == (l < 8 ? 28 : l < 16 ? 92 : 376));
        CHECK(result[32 + l] == (l < 4 ? 0xA + 0xFF : l < 8 ? 0xFF : 0));
        CHECK(result[64 + l] == (l < 30 ? 5 : 2));
        CHECK(result[96 + l] == (l < 8 ? 0xFF + 1 : l < 16 ? 0xFF00 + 1 : 0));
        CHECK(result[128 + l] == (l ^ 5) + (data.values[l] & 1 ? 1 : 2));
    }
    CHECK(gpusim_reports(-1) == 0);
}

// Lanes wait for others that a mask names; these exit instead.
GPUSIM_TEST_EVERYWHERE(lanes_that_have_exited_are_not_waited_for)
{
    Buffers data(32);
    exits<<<1, 32, 0, data.stream>>>(data.out);
    std::vector<int> result = data.result();
    for (int l = 0; l < 32; l++) {
        CHECK(result[l] == (l < 20 ? 0x55555 : 0));
    }
    CHECK(gpusim_reports(-1) == 0);
}

GPUSIM_TEST(locks_make_progress)
{
    check::in_every_schedule([] {
        Buffers data(2, true);
        spin_lock<<<2, 64, 0, data.stream>>>(data.in, data.out);
        CHECK(data.result()[0] == 2 * 63 * 32);
    });
}

GPUSIM_TEST(blocks_wait_for_earlier_ones)
{
    check::in_every_schedule([] {
        Buffers data(40, true);
        chain<<<40, 32, 0, data.stream>>>(data.in, data.out);
        std::vector<int> result = data.result();
        for (int i = 0; i < 40; i++) {
            CHECK(result[i] == i + 1);
        }
        CHECK(gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST(block_barriers)
{
    check::in_every_schedule([] {
        Buffers data(64);
        barriers<0><<<1, 64, 0, data.stream>>>(data.out);
        CHECK(data.result()[10] == 11);
        barriers<2><<<1, 64, 0, data.stream>>>(data.out);
        CHECK(data.result()[10] == 11);
        CHECK(gpusim_reports(-1) == 0);
        barriers<1><<<1, 64, 0, data.stream>>>(data.out);
        CHECK(cudaStreamSynchronize(data.stream) == cudaErrorLaunchTimeout);
        CHECK(gpusim_reports(GPUSIM_DEADLOCK) == 1);
    });
}

GPUSIM_TEST(barriers_of_some_warps)
{
    check::in_every_schedule([] {
        Buffers data(128);
        named_barriers<<<1, 128, 0, data.stream>>>(data.out);
        std::vector<int> result = data.result(), v(128);
        int odd = 0;
        for (int t = 0; t < 128; t++) {
            v[t] = t < 64 ? t ^ 33 : (t ^ 33) + 1000 + ((t - 64) ^ 33);
            odd += v[t] & 1;
        }
        for (int t = 0; t < 128; t++) {
            CHECK(result[t] == v[t] + 10000 * odd + 10000000);
        }
        CHECK(gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST_EVERYWHERE(functions_that_are_not_inlined)
{
    Buffers data(256);
    calls<<<1, 256, 0, data.stream>>>(data.in, data.out);
    std::vector<int> result = data.result();
    for (int i = 0; i < 256; i++) {
        int x = data.values[i], y = x & 511;
        int expected = x % 3 == 0 ? reference_steps(x & 255, 30) : y > 0 ? 2 * reference_steps(y & 1023, 20) : -1;
        CHECK(result[i] == expected);
    }
    CHECK(gpusim_reports(-1) == 0);
}

GPUSIM_TEST(variables_of_modules)
{
    Buffers data(32);
    variables<<<1, 32, 0, data.stream>>>(data.out);
    std::vector<int> result = data.result();
    static const int expected[] = {3, 5, 7, 11};
    for (int i = 0; i < 32; i++) {
        CHECK(result[i] == expected[i & 3] * 42);
    }
    variables<<<1, 32, 0, data.stream>>>(data.out);
    CHECK(data.result()[2] == 7 * 7);
    CHECK(gpusim_reports(-1) == 0);
}
