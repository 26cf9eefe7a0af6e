// What the PTX manual says of corners that the other tests don't come to.
#include "ptx_values.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using ptx_values::from_bits;

u32 bits_of(float x)
{
    return u32(ptx_values::bits_of(x));
}

// ------------------------------------------------------------------ conversions

u32 finite(u32 bits, u32 infinity)
{
    return (bits & 0x7FFF) == infinity ? bits - 1 : bits;
}
u32 half_of(float x)
{
    return x != x ? 0x7FFF : __half_as_ushort(__float2half_rn(x));
}
u32 bfloat_of(float x)
{
    return x != x ? 0x7FFF : __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
u32 toward_zero(float x) // bf16
{
    return x != x ? 0x7FFF : bits_of(x) >> 16;
}
u32 tf32_of(float x, u32 half)
{
    const u32 bits = bits_of(x);
    return x != x ? 0x7FFFFFFF : std::isinf(x) ? bits : (bits + half) & 0xFFFFE000u;
}
u32 tf32_even(float x)
{
    return tf32_of(x, 0xFFF + (bits_of(x) >> 13 & 1));
}

PTX_OPERATION(half_satfinite, float, u32, "{ .reg .b16 t; cvt.rn.satfinite.f16.f32 t, %1; cvt.u32.u16 %0, t; }", "r",
              "f", return finite(half_of(a), 0x7C00););
PTX_OPERATION(half_pair_satfinite, float, u32, "cvt.rn.satfinite.f16x2.f32 %0, %1, %2;", "r", "f",
              return finite(half_of(b), 0x7C00) | finite(half_of(a), 0x7C00) << 16;);
PTX_OPERATION(bfloat_relu, float, u32, "{ .reg .b16 t; cvt.rn.relu.bf16.f32 t, %1; cvt.u32.u16 %0, t; }", "r", "f",
              return a != a ? 0x7FFF : a > 0 ? bfloat_of(a) : 0;);
PTX_OPERATION(bfloat_pair_rz, float, u32, "cvt.rz.bf16x2.f32 %0, %1, %2;", "r", "f",
              return toward_zero(b) | toward_zero(a) << 16;);
PTX_OPERATION(tf32_rn, float, u32, "cvt.rn.tf32.f32 %0, %1;", "r", "f", return tf32_even(a););
PTX_OPERATION(tf32_rz, float, u32, "cvt.rz.tf32.f32 %0, %1;", "r", "f", return tf32_of(a, 0););
PTX_OPERATION(tf32_relu, float, u32, "cvt.rn.relu.tf32.f32 %0, %1;", "r", "f",
              return a != a             ? 0x7FFFFFFF
                     : bits_of(a) >> 31 ? 0
                                        : tf32_even(a););
PTX_OPERATION(tf32_satfinite, float, u32, "cvt.rn.satfinite.tf32.f32 %0, %1;", "r", "f", const u32 bits = tf32_even(a);
              return (bits & 0x7FFFFFFF) == 0x7F800000 ? bits - 0x2000 : bits;);
PTX_OPERATION(floor_f32, float, float, "cvt.rmi.ftz.f32.f32 %0, %1;", "f", "f",
              return std::floor(std::fpclassify(a) == FP_SUBNORMAL ? std::copysign(0.0f, a) : a););
PTX_OPERATION(to_s8, float, int32_t, "{ .reg .s16 t; cvt.rzi.s8.f32 t, %1; cvt.s32.s8 %0, t; }", "r", "f",
              return a != a ? 0 : a <= -128 ? -128 : a >= 127 ? 127 : int32_t(a););
PTX_OPERATION(saturate_u8, int32_t, int32_t, "{ .reg .u16 t; cvt.sat.u8.s32 t, %1; cvt.u32.u8 %0, t; }", "r", "r",
              return a < 0 ? 0 : a > 255 ? 255 : a;);
PTX_OPERATION(from_s64_down, int64_t, float, "cvt.rm.f32.s64 %0, %1;", "f", "l", float x = float(a);
              return __int128(x) > a ? std::nextafter(x, -INFINITY) : x;);

// ------------------------------------------------------------------ arithmetic

float half_value(u32 bits)
{
    return __half2float(__ushort_as_half(u16(bits)));
}
float bfloat_value(u32 bits)
{
    return from_bits<float>(u64(bits & 0xFFFF) << 16);
}
u32 half_least(u32 a, u32 b, bool nan)
{
    const float x = half_value(a), y = half_value(b);
    if (x != x || y != y)
        return nan || (x != x && y != y) ? 0x7FFF : x != x ? b : a;
    return x < y || (x == y && std::signbit(x)) ? a : b;
}
u32 bfloat_greatest(u32 a, u32 b)
{
    const float x = bfloat_value(a), y = bfloat_value(b);
    if (x != x || y != y)
        return x != x && y != y ? 0x7FFF : x != x ? b : a;
    return x > y || (x == y && !std::signbit(x)) ? a : b;
}
u32 each_half(u32 a, u32 b, u32 (*function)(u32, u32))
{
    return function(a & 0xFFFF, b & 0xFFFF) | function(a >> 16, b >> 16) << 16;
}
u32 half_relu_fma(u32 a, u32 b, u32 c)
{
    const float product = half_value(a) * half_value(b); // exact
    if (product + half_value(c) != product + half_value(c))
        return 0x7FFF;
    double sum = double(product) + half_value(c);
    const long double longer = (long double)product + half_value(c);
    const bool away = (longer < sum) == (sum > 0); // rounded to odd, so that the rounding to f16 is the only one
    if (longer != sum && std::isfinite(sum))
        sum = from_bits<double>((ptx_values::bits_of(sum) - (away ? 1 : 0)) | 1);
    return std::signbit(sum) ? 0 : __half_as_ushort(__double2half(sum));
}
u32 low24(u32 a)
{
    return a & 0xFFFFFF;
}
u32 signed24(u32 a)
{
    return u32(int32_t(a << 8) >> 8);
}

PTX_OPERATION(half_minimum_pair, u32, u32, "min.f16x2 %0, %1, %2;", "r", "r",
              return each_half(a, b, [](u32 x, u32 y) { return half_least(x, y, false); }););
PTX_OPERATION(half_minimum_nan_pair, u32, u32, "min.NaN.f16x2 %0, %1, %2;", "r", "r",
              return each_half(a, b, [](u32 x, u32 y) { return half_least(x, y, true); }););
PTX_OPERATION(bfloat_maximum_pair, u32, u32, "max.bf16x2 %0, %1, %2;", "r", "r",
              return each_half(a, b, bfloat_greatest););
PTX_OPERATION(half_fma_relu, u32, u32,
              "{ .reg .b16 x, y, z, t; cvt.u16.u32 x, %1; cvt.u16.u32 y, %2; cvt.u16.u32 z, %3; fma.rn.relu.f16 t, x, "
              "y, z; cvt.u32.u16 %0, t; }",
              "r", "r", const u32 got = half_relu_fma(a & 0xFFFF, b & 0xFFFF, c & 0xFFFF);
              return got;);
PTX_OPERATION(half_subtract_pair, u32, u32, "sub.f16x2 %0, %1, %2;", "r", "r",
              return each_half(a, b, [](u32 x, u32 y) { return half_of(half_value(x) - half_value(y)); }););
PTX_OPERATION(half_add_ftz, u32, u32, "add.ftz.f16x2 %0, %1, %2;", "r", "r", return each_half(a, b, [](u32 x, u32 y) {
    auto flush = [](u32 h) { return h & 0x7C00 ? h : h & 0x8000; };
    return flush(half_of(half_value(flush(x)) + half_value(flush(y))));
}););
PTX_OPERATION(half_absolute, u32, u32, "abs.f16x2 %0, %1;", "r", "r", return a & 0x7FFF7FFF;);
PTX_OPERATION(mul24_unsigned, u32, u32, "mul24.lo.u32 %0, %1, %2;", "r", "r", return low24(a) * low24(b););
PTX_OPERATION(mul24_signed, u32, u32, "mul24.lo.s32 %0, %1, %2;", "r", "r", return signed24(a) * signed24(b););
PTX_OPERATION(mad24_signed, u32, u32, "mad24.lo.s32 %0, %1, %2, %3;", "r", "r", return signed24(a) * signed24(b) + c;);
PTX_OPERATION(div_s64, u64, u64, "div.s64 %0, %1, %2;", "l", "l",
              return b == 0 ? ~0ull : b == ~0ull ? 0 - a : u64(int64_t(a) / int64_t(b)););
PTX_OPERATION(rem_u32, u32, u32, "rem.u32 %0, %1, %2;", "r", "r", return b ? a % b : a;);
PTX_OPERATION(min_f64, double, double, "min.f64 %0, %1, %2;", "d", "d",
              return a != a ? b : b != b ? a : a < b || (a == b && std::signbit(a)) ? a : b;);
PTX_OPERATION(mul_up, float, float, "mul.rp.f32 %0, %1, %2;", "f", "f", const double exact = double(a) * b;
              float near = float(exact);
              return exact == exact && double(near) < exact ? std::nextafter(near, INFINITY) : near;);

// Products of bf16 that round to subnormals: a first rounding to f32 would show.
__global__ void products(const u32 *a, const u32 *b, u32 *d, int count)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        asm volatile("mul.bf16x2 %0, %1, %2;" : "=r"(d[i]) : "r"(a[i]), "r"(b[i]));
}

// ------------------------------------------------------------------ atomics

__global__ void add_subnormal(float *sums)
{
    __shared__ float shared;
    if (threadIdx.x == 0)
        shared = 0;
    __syncthreads();
    atomicAdd(&shared, 0x1p-140f);
    atomicAdd(&sums[0], 0x1p-140f);
    __syncthreads();
    if (threadIdx.x == 0)
        sums[1] = shared;
}

// ------------------------------------------------------------------ warps

__global__ void reductions(const int *in, int *out)
{
    const int lane = threadIdx.x, value = in[lane];
    const unsigned mask = lane < 20 ? 0xFFFFFu : 0xFFF00000u;
    out[lane] = __reduce_min_sync(mask, value);
    out[32 + lane] = __reduce_max_sync(mask, value);
    out[64 + lane] = int(__reduce_min_sync(mask, unsigned(value)));
    out[96 + lane] = int(__reduce_max_sync(mask, unsigned(value)));
    out[128 + lane] = int(__reduce_and_sync(mask, unsigned(value)));
    out[160 + lane] = int(__reduce_or_sync(mask, unsigned(value)));
    out[192 + lane] = int(__reduce_xor_sync(mask, unsigned(value)));
    out[224 + lane] =
        __any_sync(mask, value == 5) + 2 * __all_sync(mask, value < 100) + 4 * __uni_sync(mask, value < 0);
    out[256 + lane] = int(__match_any_sync(mask, (long long)(value & 1) << 40));
    int all;
    out[288 + lane] = int(__match_all_sync(mask, lane < 20 ? 1 : value, &all)) ^ all;
}

// Each kind of shuffle, with the predicate that says whether its source was within the segment of 8 lanes.
template <int kind> __device__ void shuffle(int *out, int lane)
{
    int value = 100 + lane, got, inside;
    if (kind == 0)
        asm volatile("{ .reg .pred p; shfl.sync.up.b32 %0|p, %2, 3, 0x1800, -1; selp.s32 %1, 1, 0, p; }"
                     : "=r"(got), "=r"(inside)
                     : "r"(value));
    else if (kind == 1)
        asm volatile("{ .reg .pred p; shfl.sync.down.b32 %0|p, %2, 3, 0x181F, -1; selp.s32 %1, 1, 0, p; }"
                     : "=r"(got), "=r"(inside)
                     : "r"(value));
    else if (kind == 2)
        asm volatile("{ .reg .pred p; shfl.sync.bfly.b32 %0|p, %2, 12, 0x181F, -1; selp.s32 %1, 1, 0, p; }"
                     : "=r"(got), "=r"(inside)
                     : "r"(value));
    else
        asm volatile("{ .reg .pred p; shfl.sync.idx.b32 %0|p, %2, 13, 0x181F, -1; selp.s32 %1, 1, 0, p; }"
                     : "=r"(got), "=r"(inside)
                     : "r"(value));
    out[kind * 64 + lane] = got;
    out[kind * 64 + 32 + lane] = inside;
}

__global__ void shuffles(int *out)
{
    shuffle<0>(out, threadIdx.x);
    shuffle<1>(out, threadIdx.x);
    shuffle<2>(out, threadIdx.x);
    shuffle<3>(out, threadIdx.x);
    if (threadIdx.x < 16) // a lane that takes no part gives nothing
        out[256 + threadIdx.x] = __shfl_sync(0xFFFF, int(threadIdx.x), 20);
}

// ------------------------------------------------------------------ barriers and memory

// 48 threads: the second warp has sixteen, and counts as 32.
__global__ void partial_warp(int *out)
{
    __shared__ int values[48];
    values[threadIdx.x] = threadIdx.x;
    asm volatile("bar.sync 3, 64;" ::: "memory");
    out[threadIdx.x] = values[47 - threadIdx.x];
}

// 1024 threads; lanes of a warp come to the barrier by different ways and at different times.
__global__ void full_block(int *out)
{
    __shared__ int values[1024];
    int steps = 0;
    for (int x = threadIdx.x * 2654435761u >> 24; x > 1; x = x & 1 ? 3 * x + 1 : x / 2)
        steps++;
    values[threadIdx.x] = steps - steps + threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = values[1023 - threadIdx.x];
}

// Lanes of a warp at two barriers of the block. fault: aligned ones, which a warp must come to as one.
template <int fault> __global__ void two_barriers(int *out)
{
    if (threadIdx.x & 1) {
        if (fault)
            asm volatile("bar.sync 0;" ::: "memory");
        else
            asm volatile("barrier.sync 0;" ::: "memory");
        out[threadIdx.x] = 1;
    } else {
        if (fault)
            asm volatile("bar.sync 0;" ::: "memory");
        else
            asm volatile("barrier.sync 0;" ::: "memory");
        out[threadIdx.x] = 2;
    }
}

// fault: the load is one of memory that nobody writes.
template <int fault> __global__ void read_only(int *memory)
{
    memory[threadIdx.x] = threadIdx.x;
    __syncthreads();
    int value;
    if (fault)
        asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(value) : "l"(memory + (threadIdx.x ^ 1)) : "memory");
    else
        asm volatile("ld.global.s32 %0, [%1];" : "=r"(value) : "l"(memory + (threadIdx.x ^ 1)) : "memory");
    memory[64 + threadIdx.x] = value;
}

__global__ void read_only_input(const int *in, int *out)
{
    int value;
    asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(value) : "l"(in + threadIdx.x) : "memory");
    out[threadIdx.x] = value;
}

// Lane 0's copies take `taken` bytes of 16, or nothing from an address that is nowhere.
__global__ void zero_fill(const float4 *in, float4 *out, int taken)
{
    __shared__ float4 tile[2];
    tile[0] = tile[1] = make_float4(9, 9, 9, 9);
    const unsigned at = unsigned(__cvta_generic_to_shared(tile));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(in), "r"(taken));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, 0;" ::"r"(at + 16), "l"(0ull));
    asm volatile("cp.async.wait_all;" ::: "memory");
    out[0] = tile[0];
    out[1] = tile[1];
}

__global__ void transposed(int *out)
{
    __shared__ __align__(16) unsigned short rows[8][8];
    for (int i = threadIdx.x; i < 64; i += 32)
        rows[i / 8][i % 8] = (unsigned short)(i);
    __syncwarp();
    const unsigned at = unsigned(__cvta_generic_to_shared(&rows[threadIdx.x % 8][0]));
    int plain, turned;
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(plain) : "r"(at));
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(turned) : "r"(at));
    out[threadIdx.x] = plain;
    out[32 + threadIdx.x] = turned;
}

} // namespace

GPUSIM_TEST(conversions_at_the_edges)
{
    CHECK_OPERATION(half_satfinite);
    CHECK_OPERATION(half_pair_satfinite);
    CHECK_OPERATION(bfloat_relu);
    CHECK_OPERATION(bfloat_pair_rz);
    CHECK_OPERATION(tf32_rn);
    CHECK_OPERATION(tf32_rz);
    CHECK_OPERATION(tf32_relu);
    CHECK_OPERATION(tf32_satfinite);
    CHECK_OPERATION(floor_f32);
    CHECK_OPERATION(to_s8);
    CHECK_OPERATION(saturate_u8);
    CHECK_OPERATION(from_s64_down);
}

GPUSIM_TEST(arithmetic_at_the_edges)
{
    CHECK_OPERATION(half_minimum_pair);
    CHECK_OPERATION(half_minimum_nan_pair);
    CHECK_OPERATION(bfloat_maximum_pair);
    CHECK_OPERATION(half_fma_relu);
    CHECK_OPERATION(half_subtract_pair);
    CHECK_OPERATION(half_add_ftz);
    CHECK_OPERATION(half_absolute);
    CHECK_OPERATION(mul24_unsigned);
    CHECK_OPERATION(mul24_signed);
    CHECK_OPERATION(mad24_signed);
    CHECK_OPERATION(div_s64);
    CHECK_OPERATION(rem_u32);
    CHECK_OPERATION(min_f64);
    CHECK_OPERATION(mul_up);
}

GPUSIM_TEST(subnormal_products_round_once)
{
    const int count = 20000;
    std::vector<u32> a(count), b(count);
    u64 state = 5;
    for (int i = 0; i < count; i++) { // exponents that add up to about -130
        const u32 exponent = u32(ptx_values::next(state) % 80) + 20,
                  other = 127 + 127 - 126 - exponent + u32(ptx_values::next(state) % 12) - 10;
        a[i] = exponent << 7 | u32(ptx_values::next(state) & 0x7F) | 0x3F800000;
        b[i] = other << 7 | u32(ptx_values::next(state) & 0x7F) | 0xBF800000;
    }
    cudaStream_t stream = new_stream();
    u32 *in_a = device_array<u32>(count), *in_b = device_array<u32>(count), *out = device_array<u32>(count);
    upload(in_a, a, stream);
    upload(in_b, b, stream);
    products<<<(count + 127) / 128, 128, 0, stream>>>(in_a, in_b, out, count);
    const std::vector<u32> got = download(out, count, stream);
    int wrong = 0;
    for (int i = 0; i < count; i++) {
        const double exact = double(bfloat_value(a[i])) * bfloat_value(b[i]);
        const double steps = std::nearbyint(std::ldexp(exact, 133)); // of a subnormal; what is larger is compared below
        if (std::fabs(exact) < 0x1p-126)
            wrong += (got[i] & 0xFFFF) != u32(steps);
        wrong += got[i] >> 16 != 0xBF80;
    }
    CHECK(wrong == 0);
}

GPUSIM_TEST_EVERYWHERE(atomic_sums_of_subnormals)
{
    cudaStream_t stream = new_stream();
    float *sums = device_array<float>(2);
    cudaMemsetAsync(sums, 0, 8, stream);
    add_subnormal<<<1, 4, 0, stream>>>(sums);
    const std::vector<float> got = download(sums, 2, stream);
    CHECK(got[0] == 0 && got[1] == 0x1p-138f && gpusim_reports(-1) == 0);
}

GPUSIM_TEST_EVERYWHERE(reductions_of_lanes)
{
    cudaStream_t stream = new_stream();
    std::vector<int> in(32);
    for (int i = 0; i < 32; i++)
        in[size_t(i)] = i < 20 ? i * 7 % 20 - 6 : i + 100;
    int *device = device_array<int>(32), *out = device_array<int>(320);
    upload(device, in, stream);
    reductions<<<1, 32, 0, stream>>>(device, out);
    const std::vector<int> got = download(out, 320, stream);
    for (int lane = 0; lane < 32; lane++) {
        const int begin = lane < 20 ? 0 : 20, end = lane < 20 ? 20 : 32;
        int least = in[begin], most = in[begin], all_bits = -1, any_bits = 0, odd_bits = 0, equal = 0;
        unsigned low = unsigned(in[begin]), high = low;
        bool any = false, all = true;
        for (int i = begin; i < end; i++) {
            least = std::min(least, in[i]);
            most = std::max(most, in[i]);
            low = std::min(low, unsigned(in[i]));
            high = std::max(high, unsigned(in[i]));
            all_bits &= in[i];
            any_bits |= in[i];
            odd_bits ^= in[i];
            any = any || in[i] == 5;
            all = all && in[i] < 100;
            equal |= ((in[i] & 1) == (in[lane] & 1)) << i;
        }
        CHECK(got[lane] == least && got[32 + lane] == most && unsigned(got[64 + lane]) == low &&
              unsigned(got[96 + lane]) == high);
        CHECK(got[128 + lane] == all_bits && got[160 + lane] == any_bits && got[192 + lane] == odd_bits);
        CHECK(got[224 + lane] == any + 2 * all + (lane < 20 ? 0 : 4));
        CHECK(got[256 + lane] == equal);
        CHECK(got[288 + lane] == (lane < 20 ? 0xFFFFF ^ 1 : 0));
    }
    CHECK(gpusim_reports(-1) == 0);
}

GPUSIM_TEST_EVERYWHERE(shuffles_within_segments)
{
    cudaStream_t stream = new_stream();
    int *out = device_array<int>(272);
    shuffles<<<1, 32, 0, stream>>>(out);
    const std::vector<int> got = download(out, 272, stream);
    for (int lane = 0; lane < 32; lane++) {
        const int segment = lane & 24, from[4] = {lane - 3, lane + 3, lane ^ 12, segment | 5};
        for (int kind = 0; kind < 4; kind++) {
            const bool inside = kind == 0 ? from[0] >= segment : from[kind] <= segment + 7;
            CHECK(got[kind * 64 + lane] == 100 + (inside ? from[kind] : lane));
            CHECK(got[kind * 64 + 32 + lane] == inside);
        }
    }
    CHECK(got[256 + 3] == -1 && gpusim_reports(-1) == 0);
}

GPUSIM_TEST_EVERYWHERE(barriers_of_large_and_uneven_blocks)
{
    cudaStream_t stream = new_stream();
    int *out = device_array<int>(1024);
    partial_warp<<<1, 48, 0, stream>>>(out);
    CHECK(download(out, 48, stream)[1] == 46);
    full_block<<<1, 1024, 0, stream>>>(out);
    CHECK(download(out, 1024, stream)[1000] == 23);
    two_barriers<0><<<1, 64, 0, stream>>>(out);
    const std::vector<int> got = download(out, 64, stream);
    CHECK(got[62] == 2 && got[63] == 1 && gpusim_reports(-1) == 0);
    two_barriers<1><<<1, 64, 0, stream>>>(out);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure && check::only_reports(GPUSIM_DEADLOCK));
}

GPUSIM_TEST(read_only_loads)
{
    for (bool fault : {false, true})
        check::in_every_schedule([fault] {
            cudaStream_t stream = new_stream();
            int *memory = device_array<int>(128), *out = device_array<int>(128);
            (fault ? read_only<1> : read_only<0>)<<<1, 64, 0, stream>>>(memory);
            read_only_input<<<1, 128, 0, stream>>>(memory, out); // written by an earlier kernel: as it should be
            CHECK(download(out, 128, stream)[64] == 1);
            CHECK(fault ? check::only_reports(GPUSIM_RACE_GLOBAL) : gpusim_reports(-1) == 0);
        });
}

GPUSIM_TEST_EVERYWHERE(copies_that_fill_with_zeros)
{
    for (int taken : {0, 1, 7, 16, 17}) {
        cudaStream_t stream = new_stream();
        float4 *in = device_array<float4>(1), *out = device_array<float4>(2);
        upload(in, std::vector<float4>(1, make_float4(1, 2, 3, 4)), stream);
        zero_fill<<<1, 1, 0, stream>>>(in, out, taken);
        if (taken > 16) {
            CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure && check::only_reports(GPUSIM_OUT_OF_BOUNDS));
            continue;
        }
        const std::vector<float4> got = download(out, 2, stream);
        float expected[4] = {};
        const float source[4] = {1, 2, 3, 4};
        memcpy(expected, source, size_t(taken));
        CHECK(memcmp(&got[0], expected, 16) == 0 && got[1].x == 0 && got[1].w == 0 && gpusim_reports(-1) == 0);
    }
}

GPUSIM_TEST(matrices_are_turned_round)
{
    cudaStream_t stream = new_stream();
    int *out = device_array<int>(64);
    transposed<<<1, 32, 0, stream>>>(out);
    const std::vector<int> got = download(out, 64, stream);
    for (int lane = 0; lane < 32; lane++) {
        const int row = lane / 4, column = lane % 4 * 2;
        CHECK(got[lane] == (row * 8 + column | (row * 8 + column + 1) << 16));
        CHECK(got[32 + lane] == (column * 8 + row | ((column + 1) * 8 + row) << 16));
    }
    CHECK(gpusim_reports(-1) == 0);
}
