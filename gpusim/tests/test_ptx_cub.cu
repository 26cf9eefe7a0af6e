// CUB's algorithms as the product uses them, from the toolkit's own headers, in every order of blocks.
#include "devices.h"

#include <cub/block/block_reduce.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/warp/warp_reduce.cuh>

#include <algorithm>
#include <numeric>

namespace {

const int count = 9001;

std::vector<unsigned> random_keys()
{
    std::vector<unsigned> keys(count);
    unsigned state = 5;
    for (unsigned &key : keys) {
        state = state * 1664525u + 1013904223u;
        key = state >> 8 & 0xFFFFF;
    }
    return keys;
}

// Runs an algorithm with the temporary storage that it asks for.
template <class Call> void with_storage(cudaStream_t stream, Call call)
{
    size_t bytes = 0;
    CHECK(call(nullptr, bytes) == cudaSuccess);
    char *storage = device_array<char>(bytes);
    CHECK(call(storage, bytes) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(cudaFree(storage) == cudaSuccess);
}

__global__ void block_sums(const unsigned *in, unsigned long long *out)
{
    using Block = cub::BlockReduce<unsigned long long, 128>;
    using Warp = cub::WarpReduce<unsigned>;
    __shared__ typename Block::TempStorage block_storage;
    __shared__ typename Warp::TempStorage warp_storage[4];
    unsigned value = in[threadIdx.x];
    unsigned long long sum = Block(block_storage).Sum(value);
    unsigned largest =
        Warp(warp_storage[threadIdx.x / 32]).Reduce(value, [](unsigned a, unsigned b) { return a > b ? a : b; });
    if (threadIdx.x == 0) {
        out[4] = sum;
    }
    if (threadIdx.x % 32 == 0) {
        out[threadIdx.x / 32] = largest;
    }
}

} // namespace

GPUSIM_TEST(radix_sort)
{
    check::in_every_schedule([] {
        cudaStream_t stream = new_stream();
        std::vector<unsigned> keys = random_keys();
        std::vector<int> order(count);
        std::iota(order.begin(), order.end(), 0);
        unsigned *keys_in = device_array<unsigned>(count), *keys_out = device_array<unsigned>(count);
        int *values_in = device_array<int>(count), *values_out = device_array<int>(count);
        upload(keys_in, keys, stream);
        upload(values_in, order, stream);
        with_storage(stream, [&](void *storage, size_t &bytes) {
            return cub::DeviceRadixSort::SortPairs(storage, bytes, keys_in, keys_out, values_in, values_out, count, 0,
                                                   20, stream);
        });
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return keys[a] < keys[b]; });
        CHECK(download(values_out, count, stream) == order);
        CHECK(gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST(scan_and_reduce)
{
    check::in_every_schedule([] {
        cudaStream_t stream = new_stream();
        std::vector<unsigned> keys = random_keys(), sums(count);
        unsigned *in = device_array<unsigned>(count), *out = device_array<unsigned>(count),
                 *total = device_array<unsigned>(1);
        upload(in, keys, stream);
        with_storage(stream, [&](void *storage, size_t &bytes) {
            return cub::DeviceScan::ExclusiveSum(storage, bytes, in, out, count, stream);
        });
        with_storage(stream, [&](void *storage, size_t &bytes) {
            return cub::DeviceReduce::Sum(storage, bytes, in, total, count, stream);
        });
        std::exclusive_scan(keys.begin(), keys.end(), sums.begin(), 0u);
        CHECK(download(out, count, stream) == sums);
        CHECK(download(total, 1, stream)[0] == sums.back() + keys.back());
        CHECK(gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST(block_and_warp_reduce)
{
    check::in_every_schedule([] {
        cudaStream_t stream = new_stream();
        std::vector<unsigned> keys = random_keys();
        unsigned *in = device_array<unsigned>(count);
        unsigned long long *out = device_array<unsigned long long>(5);
        upload(in, keys, stream);
        block_sums<<<1, 128, 0, stream>>>(in, out);
        std::vector<unsigned long long> result = download(out, 5, stream);
        CHECK(result[4] == std::accumulate(keys.begin(), keys.begin() + 128, 0ull));
        for (int w = 0; w < 4; w++) {
            CHECK(result[w] == *std::max_element(keys.begin() + 32 * w, keys.begin() + 32 * w + 32));
        }
        CHECK(gpusim_reports(-1) == 0);
    });
}
