// A multiplication for tests of cuBLASLt: D, all that a call needs, and its error against sums in double.
#pragma once
#include "devices.h"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

inline float number(size_t i)
{
    return float(int(i * 2654435761u >> 20) % 64 - 32) / 32;
}

inline float as_float(float value) { return value; }
inline float as_float(__half value) { return __half2float(value); }
inline float as_float(__nv_bfloat16 value) { return __bfloat162float(value); }
inline void assign(float &to, float value) { to = value; }
inline void assign(__half &to, float value) { to = __float2half(value); }
inline void assign(__nv_bfloat16 &to, float value) { to = __float2bfloat16(value); }

template <class T> constexpr cudaDataType_t type_of();
template <> constexpr cudaDataType_t type_of<float>() { return CUDA_R_32F; }
template <> constexpr cudaDataType_t type_of<__half>() { return CUDA_R_16F; }
template <> constexpr cudaDataType_t type_of<__nv_bfloat16>() { return CUDA_R_16BF; }

inline double gelu(double x)
{
    return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

inline double gelu_slope(double x)
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

inline double plain(size_t, size_t, double sum)
{
    return sum;
}
