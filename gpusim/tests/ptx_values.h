// Checks one operation of the PTX machine on many values: the device's results against a host function's, bit for bit.
#pragma once
#include "devices.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace ptx_values {

inline uint64_t next(uint64_t &state)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return state >> 16 ^ state << 40;
}

// Bit patterns: special ones of each format, small numbers, and random bits.
template <class T> std::vector<T> patterns(size_t count, uint64_t seed)
{
    static const uint64_t kSpecial[] = {
        0, 1, 2, 3, 31, 32, 33, 63, 64, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF,
        0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF,
        0x4F000000,
        0xCF000000, 0x5F000000, 0x3F000000, 0x3FC00000, 0x40200000, 0x3C00, 0x7C00, 0xFC00, 0x7E00, 0x7BFF, 0x0400,
        0x03FF, 0x8001,
        0x7F80, 0xFF80, 0x7FC0, 0x3F80, 0x3FF0000000000000, 0x7FF0000000000000, 0x7FF8000000000000, 0x0000000000000001,
        0x8000000000000000, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0x43E0000000000000, 0xC1E0000000000000,
        0x00000000FFFFFFFF};
    const size_t specials = sizeof kSpecial / sizeof *kSpecial;
    std::vector<T> values(count);
    uint64_t state = seed;
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = next(state);
        switch (next(state) % 4) {
        case 0: bits = kSpecial[bits % specials]; break;
        case 1: bits = bits % 70; break;
        default: break;
        }
        memcpy(&values[i], &bits, sizeof(T));
    }
    return values;
}

template <class T> T from_bits(uint64_t bits)
{
    T value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <class T> uint64_t bits_of(T value)
{
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class Out> bool is_nan_of(Out value)
{
    if constexpr (std::is_floating_point_v<Out>) {
        return value != value;
    }
    return false;
}

template <class Operation>
__global__ void apply(const typename Operation::In *a, const typename Operation::In *b, const typename Operation::In *c,
                      typename Operation::Out *d, int count)
{
    int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) {
        d[i] = Operation::device(a[i], b[i], c[i]);
    }
}

template <class Operation> void check(const char *name)
{
    using In = typename Operation::In;
    using Out = typename Operation::Out;
    const int count = 2000;
    std::vector<In> a = patterns<In>(count, 1), b = patterns<In>(count, 2), c = patterns<In>(count, 3);
    cudaStream_t stream = new_stream();
    In *inputs[3];
    const std::vector<In> *sources[3] = {&a, &b, &c};
    for (int i = 0; i < 3; i++) {
        inputs[i] = device_array<In>(count);
        upload(inputs[i], *sources[i], stream);
    }
    Out *output = device_array<Out>(count);
    apply<Operation><<<(count + 127) / 128, 128, 0, stream>>>(inputs[0], inputs[1], inputs[2], output, count);
    CHECK(cudaGetLastError() == cudaSuccess);
    std::vector<Out> results = download(output, count, stream);
    int wrong = 0;
    for (int i = 0; i < count; i++) {
        Out expected = Operation::host(a[i], b[i], c[i]);
        bool same =
            memcmp(&expected, &results[i], sizeof expected) == 0 || (is_nan_of(expected) && is_nan_of(results[i]));
        if (!same && wrong++ < 3) {
            fprintf(stderr, "%s(%#llx, %#llx, %#llx) is %#llx, not %#llx\n", name, (unsigned long long)bits_of(a[i]),
                    (unsigned long long)bits_of(b[i]), (unsigned long long)bits_of(c[i]),
                    (unsigned long long)bits_of(results[i]), (unsigned long long)bits_of(expected));
        }
    }
    CHECK(wrong == 0);
    CHECK(gpusim_reports(-1) == 0);
    for (In *input : inputs) {
        cudaFree(input);
    }
    cudaFree(output);
    cudaStreamDestroy(stream);
}

} // namespace ptx_values

// An operation given as PTX with the operands %0 (result), %1, %2, %3, and as host code of a, b, c.
#define PTX_OPERATION(name, In_, Out_, ptx, out, in, ...)                         \
    struct name {                                                                 \
        using In = In_;                                                           \
        using Out = Out_;                                                         \
        static __device__ Out device(In a, In b, In c)                            \
        {                                                                         \
            Out d;                                                                \
            asm volatile(ptx : "=" out(d) : in(a), in(b), in(c));                 \
            return d;                                                             \
        }                                                                         \
        static Out host([[maybe_unused]] In a, [[maybe_unused]] In b, [[maybe_unused]] In c) \
        {                                                                         \
            __VA_ARGS__                                                           \
        }                                                                         \
    }
#define CHECK_OPERATION(name) ptx_values::check<name>(#name)
