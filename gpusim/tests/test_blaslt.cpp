// cuBLASLt: numbers against sums in double, every epilogue, and what must be refused.
#include "devices.h"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

namespace {

float number(size_t i)
{
    return float(int(i * 2654435761u >> 20) % 64 - 32) / 32;
}

float as_float(float value) { return value; }
float as_float(__half value) { return __half2float(value); }
float as_float(__nv_bfloat16 value) { return __bfloat162float(value); }
void assign(float &to, float value) { to = value; }
void assign(__half &to, float value) { to = __float2half(value); }
void assign(__nv_bfloat16 &to, float value) { to = __float2bfloat16(value); }

template <class T> constexpr cudaDataType_t type_of();
template <> constexpr cudaDataType_t type_of<float>() { return CUDA_R_32F; }
template <> constexpr cudaDataType_t type_of<__half>() { return CUDA_R_16F; }
template <> constexpr cudaDataType_t type_of<__nv_bfloat16>() { return CUDA_R_16BF; }

double gelu(double x)
{
    return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

double gelu_slope(double x)
{
    const double step = 1e-5;
    return (gelu(x + step) - gelu(x - step)) / (2 * step);
}

// D[m x n] = epilogue(alpha op(A) op(B) + beta C), column order, and all that a call needs.
template <class In, class Out> struct Matmul {
    size_t m = 24, n = 17, k = 33;
    bool turn_a = false, turn_b = false;
    float alpha = 1, beta = 0;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    int64_t aux_ld = 24;
    size_t workspace_limit = 1 << 20;
    int batch = 1;

    cudaStream_t stream = new_stream();
    cublasLtHandle_t handle = nullptr;
    cublasLtMatmulDesc_t description = nullptr;
    cublasLtMatrixLayout_t layout_a = nullptr, layout_b = nullptr, layout_d = nullptr;
    std::vector<In> a, b;
    std::vector<Out> c, d, bias, aux;
    In *device_a = nullptr, *device_b = nullptr;
    Out *device_c = nullptr, *device_d = nullptr, *device_bias = nullptr, *device_aux = nullptr;
    void *workspace = nullptr;

    template <class T> static void fill(std::vector<T> &values, size_t count, size_t seed)
    {
        values.resize(count);
        for (size_t i = 0; i < count; i++)
            assign(values[i], number(i + seed));
    }

    void prepare()
    {
        CHECK(cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS);
        const size_t batches = size_t(batch);
        fill(a, m * k * batches, 1), fill(b, k * n * batches, 1000), fill(c, m * n * batches, 2000),
            fill(bias, std::max(m, n), 3000);
        fill(aux, size_t(aux_ld) * n, 4000);
        device_a = device_array<In>(a.size()), device_b = device_array<In>(b.size()),
        device_c = device_array<Out>(c.size());
        device_d = device_array<Out>(c.size()), device_bias = device_array<Out>(bias.size()),
        device_aux = device_array<Out>(aux.size());
        workspace = device_array<char>(1 << 16);
        upload(device_a, a, stream), upload(device_b, b, stream), upload(device_c, c, stream),
            upload(device_bias, bias, stream);
        upload(device_aux, aux, stream);
        describe();
    }

    void describe()
    {
        cublasLtMatmulDescCreate(&description, compute, CUDA_R_32F);
        const cublasOperation_t turned = CUBLAS_OP_T;
        if (turn_a)
            cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned);
        if (turn_b)
            cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSB, &turned, sizeof turned);
        cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
        cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &device_bias,
                                       sizeof device_bias);
        cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &device_aux,
                                       sizeof device_aux);
        cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_ld, sizeof aux_ld);
        make_layout(&layout_a, type_of<In>(), turn_a ? k : m, turn_a ? m : k);
        make_layout(&layout_b, type_of<In>(), turn_b ? n : k, turn_b ? k : n);
        make_layout(&layout_d, type_of<Out>(), m, n);
    }

    void make_layout(cublasLtMatrixLayout_t *made, cudaDataType_t type, size_t rows, size_t cols)
    {
        cublasLtMatrixLayoutCreate(made, type, rows, cols, int64_t(rows));
        const int64_t stride = int64_t(rows * cols);
        cublasLtMatrixLayoutSetAttribute(*made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
        cublasLtMatrixLayoutSetAttribute(*made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
    }

    cublasStatus_t heuristic(cublasLtMatmulHeuristicResult_t *result, int *found)
    {
        cublasLtMatmulPreference_t preference;
        cublasLtMatmulPreferenceCreate(&preference);
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_limit,
                                             sizeof workspace_limit);
        const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, description, layout_a, layout_b, layout_d,
                                                                     layout_d, preference, 1, result, found);
        cublasLtMatmulPreferenceDestroy(preference);
        return status;
    }

    cublasStatus_t run(size_t workspace_bytes = 1 << 16)
    {
        cublasLtMatmulHeuristicResult_t result;
        int found = 0;
        const cublasStatus_t status = heuristic(&result, &found);
        if (status != CUBLAS_STATUS_SUCCESS)
            return status;
        CHECK(found == 1 && result.workspaceSize <= workspace_limit);
        return cublasLtMatmul(handle, description, &alpha, device_a, layout_a, device_b, layout_b, &beta, device_c,
                              layout_d, device_d, layout_d, &result.algo, workspace, workspace_bytes, stream);
    }

    double accumulated(size_t row, size_t col, size_t which = 0) const
    {
        double sum = 0;
        const In *left = &a[which * m * k], *right = &b[which * k * n];
        for (size_t i = 0; i < k; i++)
            sum += double(as_float(turn_a ? left[i + row * k] : left[row + i * m])) *
                   as_float(turn_b ? right[col + i * n] : right[i + col * k]);
        return alpha * sum + beta * double(as_float(c[which * m * n + row + col * m]));
    }

    // The largest error of D against value(row, col, accumulated).
    double error(const std::function<double(size_t, size_t, double)> &value)
    {
        d = download(device_d, c.size(), stream);
        double worst = 0;
        for (size_t which = 0; which < size_t(batch); which++)
            for (size_t col = 0; col < n; col++)
                for (size_t row = 0; row < m; row++) {
                    const double difference =
                        as_float(d[which * m * n + row + col * m]) - value(row, col, accumulated(row, col, which));
                    worst = std::fabs(difference) <= worst ? worst : std::fabs(difference);
                }
        return worst;
    }
};

double plain(size_t, size_t, double sum)
{
    return sum;
}

} // namespace

GPUSIM_TEST(products)
{
    for (int turned = 0; turned < 4; turned++) {
        Matmul<float, float> it;
        it.turn_a = turned & 1, it.turn_b = turned & 2;
        it.alpha = 0.5f, it.beta = 2;
        it.batch = 3;
        it.prepare();
        CHECK(it.run() == CUBLAS_STATUS_SUCCESS);
        CHECK(it.error(plain) < 1e-5);
    }
    Matmul<__nv_bfloat16, float> wide;
    wide.beta = 1;
    wide.prepare();
    CHECK(wide.run() == CUBLAS_STATUS_SUCCESS && wide.error(plain) < 1e-5);
    Matmul<__nv_bfloat16, __nv_bfloat16> narrow;
    narrow.prepare();
    CHECK(narrow.run() == CUBLAS_STATUS_SUCCESS && narrow.error(plain) < 0.07);
    Matmul<__half, __half> halves;
    halves.prepare();
    CHECK(halves.run() == CUBLAS_STATUS_SUCCESS && halves.error(plain) < 0.01);
    Matmul<float, float> fast;
    fast.compute = CUBLAS_COMPUTE_32F_FAST_TF32;
    fast.prepare();
    CHECK(fast.run() == CUBLAS_STATUS_SUCCESS && fast.error(plain) < 1e-5); // these inputs are exact in TF32
    CHECK(gpusim_reports(-1) == 0);
}

// Each operand is rounded to ten explicit bits of mantissa, halves away from zero; sums are not.
GPUSIM_TEST(tf32_rounds_operands)
{
    const struct {
        float value, rounded;
    } cases[] = {{1 + 0x1p-10f, 1 + 0x1p-10f},
                 {1 + 0x1p-11f, 1 + 0x1p-10f},
                 {-1 - 0x1p-11f, -1 - 0x1p-10f},
                 {1 + 0x1.FFEp-12f, 1},
                 {2 - 0x1p-23f, 2},
                 {0x1.004p10f, 0x1.004p10f},
                 {0, 0}};
    for (const auto &one : cases)
        for (int left = 0; left < 2; left++) {
            Matmul<float, float> it;
            it.m = it.n = 1, it.k = 2, it.aux_ld = 8;
            it.compute = CUBLAS_COMPUTE_32F_FAST_TF32;
            it.prepare();
            it.a = {left ? one.value : 1, 1}, it.b = {left ? 1 : one.value, 0x1p-20f};
            upload(it.device_a, it.a, it.stream), upload(it.device_b, it.b, it.stream);
            CHECK(it.run() == CUBLAS_STATUS_SUCCESS);
            CHECK(download(it.device_d, 1, it.stream)[0] == one.rounded + 0x1p-20f);
        }
    CHECK(gpusim_reports(-1) == 0);
}

// Only f32 is cut.
template <class In> static cublasStatus_t status_of(cublasComputeType_t compute)
{
    Matmul<In, float> it;
    it.compute = compute;
    it.prepare();
    return it.run();
}

GPUSIM_TEST(types_of_computation)
{
    for (const cublasComputeType_t compute : {CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_PEDANTIC,
                                              CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_32F_FAST_16BF}) {
        const bool fast = compute == CUBLAS_COMPUTE_32F_FAST_TF32 || compute == CUBLAS_COMPUTE_32F_FAST_16BF;
        const cublasStatus_t of_halves = fast ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
        CHECK(status_of<float>(compute) == CUBLAS_STATUS_SUCCESS);
        CHECK(status_of<__half>(compute) == of_halves && status_of<__nv_bfloat16>(compute) == of_halves);
    }
    CHECK(gpusim_reports(-1) == 0);
}

GPUSIM_TEST(epilogues)
{
    struct Case {
        cublasLtEpilogue_t epilogue;
        std::function<double(double sum, double bias, double aux)> value;
    };
    const Case cases[] = {
        {CUBLASLT_EPILOGUE_BIAS, [](double s, double b, double) { return s + b; }},
        {CUBLASLT_EPILOGUE_RELU, [](double s, double, double) { return s > 0 ? s : 0; }},
        {CUBLASLT_EPILOGUE_RELU_BIAS, [](double s, double b, double) { return s + b > 0 ? s + b : 0; }},
        {CUBLASLT_EPILOGUE_GELU, [](double s, double, double) { return gelu(s); }},
        {CUBLASLT_EPILOGUE_GELU_BIAS, [](double s, double b, double) { return gelu(s + b); }},
        {CUBLASLT_EPILOGUE_GELU_AUX, [](double s, double, double) { return gelu(s); }},
        {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, [](double s, double b, double) { return gelu(s + b); }},
        {CUBLASLT_EPILOGUE_DGELU, [](double s, double, double x) { return s * gelu_slope(x); }},
        {CUBLASLT_EPILOGUE_DGELU_BGRAD, [](double s, double, double x) { return s * gelu_slope(x); }},
        {CUBLASLT_EPILOGUE_BGRADA, [](double s, double, double) { return s; }},
        {CUBLASLT_EPILOGUE_BGRADB, [](double s, double, double) { return s; }},
    };
    for (const Case &one : cases) {
        Matmul<float, float> it;
        it.epilogue = one.epilogue;
        it.prepare();
        CHECK(it.run() == CUBLAS_STATUS_SUCCESS);
        auto aux_at = [&](size_t row, size_t col) { return double(it.aux[row + col * size_t(it.aux_ld)]); };
        CHECK(it.error([&](size_t row, size_t col, double sum) {
            return one.value(sum, it.bias[row], aux_at(row, col));
        }) < 2e-5);
        const std::vector<float> aux = download(it.device_aux, it.aux.size(), it.stream);
        if (one.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
            CHECK(std::fabs(aux[3 + 2 * 24] - (it.accumulated(3, 2) + it.bias[3])) < 1e-5);
        const std::vector<float> bias = download(it.device_bias, it.bias.size(), it.stream);
        double expected = 0;
        if (one.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD) {
            for (size_t col = 0; col < it.n; col++)
                expected += it.accumulated(5, col) * gelu_slope(aux_at(5, col));
            CHECK(std::fabs(bias[5] - expected) < 1e-4);
        } else if (one.epilogue == CUBLASLT_EPILOGUE_BGRADA) {
            for (size_t i = 0; i < it.k; i++)
                expected += it.a[5 + i * it.m];
            CHECK(std::fabs(bias[5] - expected) < 1e-5);
        } else if (one.epilogue == CUBLASLT_EPILOGUE_BGRADB) {
            for (size_t i = 0; i < it.k; i++)
                expected += it.b[i + 5 * it.k];
            CHECK(std::fabs(bias[5] - expected) < 1e-5);
        } else {
            CHECK(bias == it.bias);
        }
        CHECK(gpusim_reports(-1) == 0);
    }
}

GPUSIM_TEST_EVERYWHERE(workspace)
{
    Matmul<float, float> none;
    none.workspace_limit = 0;
    none.prepare();
    CHECK(none.run(0) == CUBLAS_STATUS_SUCCESS && none.error(plain) < 1e-5 && gpusim_reports(-1) == 0);
    Matmul<float, float> small;
    small.prepare();
    CHECK(small.run(16) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(check::only_reports(GPUSIM_BLAS));
    gpusim_clear_reports();
    Matmul<float, float> crooked;
    crooked.prepare();
    crooked.workspace = static_cast<char *>(crooked.workspace) + 64;
    CHECK(crooked.run((1 << 16) - 64) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(check::only_reports(GPUSIM_BLAS));
}

// One workspace for two streams: each multiplication writes it.
GPUSIM_TEST(shared_workspace_is_a_race)
{
    check::in_every_schedule([] {
        Matmul<float, float> one, two;
        one.prepare();
        two.prepare();
        two.workspace = one.workspace;
        CHECK(one.run() == CUBLAS_STATUS_SUCCESS && two.run() == CUBLAS_STATUS_SUCCESS);
        cudaDeviceSynchronize();
        CHECK(check::only_reports(GPUSIM_RACE_STREAM));
    });
}

GPUSIM_TEST_EVERYWHERE(alignment_is_as_promised)
{
    Matmul<float, float> it;
    it.prepare();
    it.device_a += 1;
    CHECK(it.run() == CUBLAS_STATUS_NOT_SUPPORTED); // the preference promised 256 bytes
    CHECK(check::only_reports(GPUSIM_BLAS));
}

// No preference is about what epilogues read and write beside D.
GPUSIM_TEST_EVERYWHERE(alignment_beside_d)
{
    for (int fault = 0; fault < 3; fault++) {
        gpusim_clear_reports();
        Matmul<float, float> it;
        it.epilogue = fault == 0   ? CUBLASLT_EPILOGUE_BIAS
                      : fault == 1 ? CUBLASLT_EPILOGUE_GELU_AUX
                                   : CUBLASLT_EPILOGUE_DGELU;
        it.prepare();
        CHECK(it.run() == CUBLAS_STATUS_SUCCESS && gpusim_reports(-1) == 0);
        const float *crooked = (fault == 0 ? it.device_bias : it.device_aux) + 2;
        const cublasLtMatmulDescAttributes_t which =
            fault == 0 ? CUBLASLT_MATMUL_DESC_BIAS_POINTER : CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER;
        cublasLtMatmulDescSetAttribute(it.description, which, &crooked, sizeof crooked);
        CHECK(it.run() == CUBLAS_STATUS_INVALID_VALUE && check::only_reports(GPUSIM_BLAS));
    }
}

// An algorithm is for the problem that was asked about: computation, layouts, epilogue.
GPUSIM_TEST_EVERYWHERE(algorithms_of_other_problems)
{
    for (int change = 0; change < 6; change++) {
        gpusim_clear_reports();
        gpusim_clear_counts();
        Matmul<float, float> it;
        it.prepare();
        cublasLtMatmulHeuristicResult_t result;
        int found = 0;
        CHECK(it.heuristic(&result, &found) == CUBLAS_STATUS_SUCCESS && found == 1);
        const int32_t compute = CUBLAS_COMPUTE_32F_FAST_TF32, turned = CUBLAS_OP_T;
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_RELU;
        const int64_t ld = 40;
        const uint64_t fewer = 12;
        if (change == 1)
            cublasLtMatmulDescSetAttribute(it.description, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, &compute, sizeof compute);
        if (change == 2)
            cublasLtMatmulDescSetAttribute(it.description, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
        if (change == 3)
            cublasLtMatrixLayoutSetAttribute(it.layout_b, CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof ld);
        if (change == 4) {
            cublasLtMatrixLayoutSetAttribute(it.layout_a, CUBLASLT_MATRIX_LAYOUT_ROWS, &fewer, sizeof fewer);
            cublasLtMatrixLayoutSetAttribute(it.layout_d, CUBLASLT_MATRIX_LAYOUT_ROWS, &fewer, sizeof fewer);
        }
        if (change == 5) {
            cublasLtMatrixLayoutDestroy(it.layout_a);
            it.make_layout(&it.layout_a, CUDA_R_32F, it.k, it.m);
            cublasLtMatmulDescSetAttribute(it.description, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned);
        }
        if (change == 3)
            it.device_b = device_array<float>(size_t(ld) * it.n);
        const cublasStatus_t status = cublasLtMatmul(
            it.handle, it.description, &it.alpha, it.device_a, it.layout_a, it.device_b, it.layout_b, &it.beta,
            it.device_c, it.layout_d, it.device_d, it.layout_d, &result.algo, it.workspace, 1 << 16, it.stream);
        CHECK(status == (change == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED));
        CHECK(change == 0 ? gpusim_reports(-1) == 0 : check::only_reports(GPUSIM_BLAS));
        CHECK(gpusim_count().heuristics == 1 && gpusim_count().library_calls == (change == 0));
    }
}

GPUSIM_TEST(planted_failures)
{
    Matmul<float, float> it;
    it.prepare();
    gpusim_fail_blas(2, GPUSIM_BLAS_MATMUL);
    CHECK(it.run() == CUBLAS_STATUS_SUCCESS && it.run() == CUBLAS_STATUS_EXECUTION_FAILED &&
          it.run() == CUBLAS_STATUS_SUCCESS);
    gpusim_fail_blas(-1, GPUSIM_BLAS_HEURISTIC);
    CHECK(it.run() == CUBLAS_STATUS_NOT_SUPPORTED && it.run() == CUBLAS_STATUS_NOT_SUPPORTED);
    gpusim_fail_blas(0, GPUSIM_BLAS_HEURISTIC);
    CHECK(it.run() == CUBLAS_STATUS_SUCCESS && gpusim_reports(-1) == 0);
}

GPUSIM_TEST_EVERYWHERE(problems_that_are_refused)
{
    for (int fault = 0; fault < 7; fault++) {
        gpusim_clear_reports();
        Matmul<float, float> it;
        if (fault == 0)
            it.epilogue = CUBLASLT_EPILOGUE_GELU_AUX, it.aux_ld = 25;
        if (fault == 1)
            it.epilogue = cublasLtEpilogue_t(4096);
        if (fault == 2)
            it.compute = CUBLAS_COMPUTE_32I;
        it.prepare();
        const uint64_t wrong = 9;
        const int64_t ld = 3;
        const uint32_t type = CUDA_R_8I;
        const int32_t bias_type = CUDA_R_16BF;
        if (fault == 3)
            cublasLtMatrixLayoutSetAttribute(it.layout_b, CUBLASLT_MATRIX_LAYOUT_ROWS, &wrong, sizeof wrong);
        if (fault == 4)
            cublasLtMatrixLayoutSetAttribute(it.layout_a, CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof ld);
        if (fault == 5)
            cublasLtMatrixLayoutSetAttribute(it.layout_d, CUBLASLT_MATRIX_LAYOUT_TYPE, &type, sizeof type);
        if (fault == 6) {
            const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
            cublasLtMatmulDescSetAttribute(it.description, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
            cublasLtMatmulDescSetAttribute(it.description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type,
                                           sizeof bias_type);
        }
        const bool contradiction = fault == 0 || fault == 3 || fault == 4;
        CHECK(it.run() == (contradiction ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_NOT_SUPPORTED));
        CHECK(gpusim_reports(-1) == 0); // asking is no fault
        CHECK(cublasLtMatmul(it.handle, it.description, &it.alpha, it.device_a, it.layout_a, it.device_b, it.layout_b,
                             &it.beta, it.device_c, it.layout_d, it.device_d, it.layout_d, nullptr, nullptr, 0,
                             it.stream) != CUBLAS_STATUS_SUCCESS);
        CHECK(check::only_reports(GPUSIM_BLAS));
    }
}

GPUSIM_TEST_EVERYWHERE(padding_is_not_touched)
{
    Matmul<float, float> it;
    it.prepare();
    float *padded = device_array<float>(32 * it.n);
    const int64_t ld = 32;
    cublasLtMatrixLayoutSetAttribute(it.layout_d, CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof ld);
    cudaStream_t other = new_stream();
    cudaMemset2DAsync(padded + 24, 128, 0, 32, it.n, other); // another stream's, at the same time
    it.device_c = it.device_d = padded;
    CHECK(it.run() == CUBLAS_STATUS_SUCCESS && cudaDeviceSynchronize() == cudaSuccess);
    CHECK(gpusim_reports(-1) == 0);
}

GPUSIM_TEST_EVERYWHERE(handle_of_another_device)
{
    Matmul<float, float> it;
    it.prepare();
    it.stream = new_stream(1);
    CHECK(it.run() == CUBLAS_STATUS_INVALID_VALUE && check::only_reports(GPUSIM_BLAS));
}
