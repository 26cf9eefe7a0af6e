// Memory operations: vectors, sub-word types, atomics of every kind, asynchronous copies, matrices in shared memory and
// their products.
#include "devices.h"

#include <cmath>
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

float value_of(int i)
{
    return static_cast<float>((i * 37 + 11) % 61 - 30) / 16;
}

// ------------------------------------------------------------------ loads and stores

__global__ void move_types(const int8_t *bytes, const uint16_t *shorts, const float4 *quads, int *out,
                           float4 *out_quads)
{
    int i = threadIdx.x;
    int local[8];
    for (int k = 0; k < 8; k++) {
        local[k] = bytes[i] * k + shorts[i];
    }
    out[i] = local[i & 7];
    float4 quad = __ldcs(quads + i);
    __stcg(out_quads + i, make_float4(quad.w, quad.z, quad.y, quad.x));
}

// ------------------------------------------------------------------ atomics

struct Sums {
    unsigned add, minimum, maximum, bits, toggled, wrapped;
    int signed_minimum;
    float single_sum;
    double double_sum;
    unsigned long long wide, swapped;
    __half2 halves;
    __nv_bfloat162 bfloats;
    unsigned short small;
};

__global__ void atomics(Sums *sums)
{
    unsigned t = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&sums->add, t);
    atomicMin(&sums->minimum, 1000 - t);
    atomicMax(&sums->maximum, t * 3);
    atomicOr(&sums->bits, 1u << (t & 31));
    atomicXor(&sums->toggled, t);
    atomicInc(&sums->wrapped, 6);
    atomicMin(&sums->signed_minimum, static_cast<int>(t) - 50);
    atomicAdd(&sums->single_sum, 0.5f);
    atomicAdd(&sums->double_sum, 0.25);
    atomicAdd(&sums->wide, 1ull << 33);
    atomicAdd(&sums->halves, __floats2half2_rn(1, 0.5f));
    // The header's atomicAdd reads the old value plainly before it compares and swaps: a race, strictly.
    asm volatile("{ .reg .b32 v; mov.b32 v, 0x3F003F80; red.global.add.noftz.bf16x2 [%0], v; }" ::"l"(&sums->bfloats)
                 : "memory");
    unsigned long long seen = 0, expected;
    do {
        expected = seen;
        seen = atomicCAS(&sums->swapped, expected, expected + t);
    } while (seen != expected);
    unsigned short old = 0, before;
    do {
        before = old;
        old = atomicCAS(&sums->small, before, static_cast<unsigned short>(before + 3));
    } while (old != before);
}

// ------------------------------------------------------------------ asynchronous copies

__device__ unsigned shared_address(const void *pointer)
{
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Waits for all but `pending` of two groups, then reads both.
template <int Pending> __global__ void copy_async(const float4 *in, float4 *out, int valid_bytes)
{
    __shared__ float4 tiles[2][32];
    for (int k = 0; k < 2; k++) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(&tiles[k][threadIdx.x])),
                     "l"(in + 32 * k + threadIdx.x), "r"(k == 0 ? valid_bytes : 16));
        asm volatile("cp.async.commit_group;");
    }
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
    __syncthreads();
    out[threadIdx.x] = tiles[0][threadIdx.x ^ 1];
    out[32 + threadIdx.x] = tiles[1][threadIdx.x ^ 1];
}

enum class Over { nothing, copied_twice, stored, stored_by_another, source_stored, source_stored_by_another };

// A copy whose target or source is written before its wait, by the thread itself or after a barrier by another.
__global__ void copy_and_write(float4 *in, float4 *out, Over over)
{
    __shared__ float4 tile[64];
    const unsigned own = threadIdx.x, other = threadIdx.x ^ 33;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&tile[own])), "l"(in + own)
                 : "memory");
    if (over == Over::copied_twice) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&tile[own])), "l"(in + 64 + own)
                     : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    __syncthreads();
    if (over == Over::stored) {
        tile[own].x = 1;
    } else if (over == Over::stored_by_another) {
        tile[other].x = 1;
    } else if (over == Over::source_stored) {
        in[own].x = 1;
    } else if (over == Over::source_stored_by_another) {
        in[other].x = 1;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    tile[other].y += 1; // all of them are free again
    in[other].y = 2;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&tile[other])), "l"(in + 64 + own)
                 : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    out[own] = tile[own];
}

// ------------------------------------------------------------------ matrices

template <class H> __device__ unsigned pair(H low, H high)
{
    unsigned short l, h;
    memcpy(&l, &low, 2);
    memcpy(&h, &high, 2);
    return l | static_cast<unsigned>(h) << 16;
}

// D = A B + C for A [16, 16] and B [16, 8] through ldmatrix; A by rows, B by rows and transposed on the way.
__global__ void product_bf16(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *d)
{
    __shared__ __align__(16) __nv_bfloat16 rows_a[16][16], rows_b[16][8];
    int lane = threadIdx.x;
    for (int i = lane; i < 256; i += 32) {
        rows_a[i / 16][i % 16] = a[i];
    }
    for (int i = lane; i < 128; i += 32) {
        rows_b[i / 8][i % 8] = b[i];
    }
    __syncwarp();
    unsigned fragment_a[4], fragment_b[2];
    float sum[4] = {1, 2, 3, 4};
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment_a[0]), "=r"(fragment_a[1]), "=r"(fragment_a[2]), "=r"(fragment_a[3])
                 : "r"(shared_address(&rows_a[lane & 15][lane / 16 * 8])));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(fragment_b[0]), "=r"(fragment_b[1])
                 : "r"(shared_address(&rows_b[lane & 15][0])));
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(fragment_a[0]), "r"(fragment_a[1]), "r"(fragment_a[2]), "r"(fragment_a[3]), "r"(fragment_b[0]),
                   "r"(fragment_b[1]));
    for (int i = 0; i < 4; i++) {
        d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sum[i];
    }
}

__global__ void product_f16(const __half *a, const __half *b, __half *d)
{
    int group = threadIdx.x / 4, member = threadIdx.x % 4 * 2;
    unsigned fragment_a[2], fragment_b, sum[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        fragment_a[i] = pair(a[(group + 8 * i) * 8 + member], a[(group + 8 * i) * 8 + member + 1]);
    }
    fragment_b = pair(b[member * 8 + group], b[(member + 1) * 8 + group]);
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%0, %1};"
                 : "+r"(sum[0]), "+r"(sum[1])
                 : "r"(fragment_a[0]), "r"(fragment_a[1]), "r"(fragment_b));
    for (int i = 0; i < 2; i++) {
        memcpy(d + (group + 8 * i) * 8 + member, &sum[i], 4);
    }
}

__global__ void product_tf32(const float *a, const float *b, float *d)
{
    int group = threadIdx.x / 4, member = threadIdx.x % 4;
    float sum[4] = {};
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(__float_as_uint(a[group * 8 + member])), "r"(__float_as_uint(a[(group + 8) * 8 + member])),
                   "r"(__float_as_uint(a[group * 8 + member + 4])),
                   "r"(__float_as_uint(a[(group + 8) * 8 + member + 4])), "r"(__float_as_uint(b[member * 8 + group])),
                   "r"(__float_as_uint(b[(member + 4) * 8 + group])));
    for (int i = 0; i < 4; i++) {
        d[(group + i / 2 * 8) * 8 + member * 2 + i % 2] = sum[i];
    }
}

// Inputs of one shape: values that all formats hold.
template <class T, class Kernel, class Result>
void check_product(int inner, Kernel kernel, Result *, float first)
{
    cudaStream_t stream = new_stream();
    std::vector<T> a(16 * inner), b(inner * 8);
    for (size_t i = 0; i < a.size(); i++) {
        a[i] = T(value_of(static_cast<int>(i)));
    }
    for (size_t i = 0; i < b.size(); i++) {
        b[i] = T(value_of(static_cast<int>(i) + 1000));
    }
    T *device_a = device_array<T>(a.size()), *device_b = device_array<T>(b.size());
    Result *device_d = device_array<Result>(128);
    upload(device_a, a, stream);
    upload(device_b, b, stream);
    kernel<<<1, 32, 0, stream>>>(device_a, device_b, device_d);
    std::vector<Result> d = download(device_d, 128, stream);
    for (int row = 0; row < 16; row++) {
        for (int column = 0; column < 8; column++) {
            float sum = first == 0 ? 0 : first + static_cast<float>(row / 8 * 2 + column % 2);
            for (int k = 0; k < inner; k++) {
                sum += static_cast<float>(a[row * inner + k]) * static_cast<float>(b[k * 8 + column]);
            }
            CHECK(static_cast<float>(d[row * 8 + column]) == static_cast<float>(Result(sum)));
        }
    }
    CHECK(gpusim_reports(-1) == 0);
}

} // namespace

GPUSIM_TEST(writes_over_pending_copies)
{
    for (Over over : {Over::nothing, Over::copied_twice, Over::stored, Over::stored_by_another, Over::source_stored,
                      Over::source_stored_by_another}) {
        check::in_every_schedule([over] {
            cudaStream_t stream = new_stream();
            float4 *in = device_array<float4>(128), *out = device_array<float4>(64);
            CHECK(cudaMemsetAsync(in, 0, 128 * sizeof(float4), stream) == cudaSuccess);
            copy_and_write<<<1, 64, 0, stream>>>(in, out, over);
            CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
            CHECK(over == Over::nothing             ? gpusim_reports(-1) == 0
                  : over == Over::stored_by_another ? gpusim_reports(GPUSIM_PENDING_COPY) > 0 // and a race
                                                    : check::only_reports(GPUSIM_PENDING_COPY));
            CHECK(cudaFree(in) == cudaSuccess && cudaFree(out) == cudaSuccess);
        });
    }
}

GPUSIM_TEST_EVERYWHERE(types_and_vectors)
{
    cudaStream_t stream = new_stream();
    std::vector<int8_t> bytes(32);
    std::vector<uint16_t> shorts(32);
    std::vector<float4> quads(32);
    for (int i = 0; i < 32; i++) {
        bytes[i] = static_cast<int8_t>(i * 17);
        shorts[i] = static_cast<uint16_t>(65000 + i * 31);
        quads[i] = make_float4(4.0f * i, 4.0f * i + 1, 4.0f * i + 2, 4.0f * i + 3);
    }
    int8_t *device_bytes = device_array<int8_t>(32);
    uint16_t *device_shorts = device_array<uint16_t>(32);
    float4 *device_quads = device_array<float4>(32), *out_quads = device_array<float4>(32);
    int *out = device_array<int>(32);
    upload(device_bytes, bytes, stream);
    upload(device_shorts, shorts, stream);
    upload(device_quads, quads, stream);
    move_types<<<1, 32, 0, stream>>>(device_bytes, device_shorts, device_quads, out, out_quads);
    std::vector<int> result = download(out, 32, stream);
    std::vector<float4> result_quads = download(out_quads, 32, stream);
    for (int i = 0; i < 32; i++) {
        CHECK(result[i] == bytes[i] * (i & 7) + shorts[i]);
        CHECK(result_quads[i].x == quads[i].w && result_quads[i].z == quads[i].y);
    }
    CHECK(gpusim_reports(-1) == 0);
}

GPUSIM_TEST(atomic_operations)
{
    check::in_every_schedule([] {
        cudaStream_t stream = new_stream();
        std::vector<Sums> sums(1);
        memset(static_cast<void *>(sums.data()), 0, sizeof(Sums));
        sums[0].minimum = ~0u;
        Sums *device = device_array<Sums>(1);
        upload(device, sums, stream);
        atomics<<<2, 48, 0, stream>>>(device);
        Sums result = download(device, 1, stream)[0];
        const unsigned n = 96;
        unsigned toggled = 0;
        for (unsigned t = 0; t < n; t++) {
            toggled ^= t;
        }
        CHECK(result.add == n * (n - 1) / 2 && result.minimum == 1000 - (n - 1) && result.maximum == 3 * (n - 1));
        CHECK(result.bits == ~0u && result.toggled == toggled && result.wrapped == n % 7);
        CHECK(result.signed_minimum == -50 && result.single_sum == 0.5f * n && result.double_sum == 0.25 * n);
        CHECK(result.wide == static_cast<unsigned long long>(n) << 33 && result.swapped == n * (n - 1) / 2);
        CHECK(__half2float(result.halves.x) == n && __half2float(result.halves.y) == n / 2);
        CHECK(__bfloat162float(result.bfloats.x) == n && __bfloat162float(result.bfloats.y) == n / 2);
        CHECK(result.small == 3 * n);
        CHECK(gpusim_reports(-1) == 0);
    });
}

GPUSIM_TEST_EVERYWHERE(asynchronous_copies)
{
    cudaStream_t stream = new_stream();
    std::vector<float4> in(64);
    for (int i = 0; i < 64; i++) {
        in[i] = make_float4(i, i + 0.25f, i + 0.5f, i + 0.75f);
    }
    float4 *device = device_array<float4>(64), *out = device_array<float4>(64);
    upload(device, in, stream);
    copy_async<0><<<1, 32, 0, stream>>>(device, out, 8);
    std::vector<float4> result = download(out, 64, stream);
    for (int i = 0; i < 32; i++) {
        CHECK(result[i].x == in[i ^ 1].x && result[i].y == in[i ^ 1].y && result[i].z == 0 && result[i].w == 0);
        CHECK(result[32 + i].w == in[32 + (i ^ 1)].w);
    }
    CHECK(gpusim_reports(-1) == 0);
    copy_async<1><<<1, 32, 0, stream>>>(device, out, 16); // the second group is read too early
    result = download(out, 64, stream);
    CHECK(result[5].w == in[4].w && std::isnan(result[37].x));
    CHECK(gpusim_reports(GPUSIM_PENDING_COPY) > 0);
}

GPUSIM_TEST_EVERYWHERE(matrix_products)
{
    check_product<__nv_bfloat16>(16, product_bf16, static_cast<float *>(nullptr), 1);
    check_product<float>(8, product_tf32, static_cast<float *>(nullptr), 0);
    check_product<__half>(8, product_f16, static_cast<__half *>(nullptr), 0);
}
