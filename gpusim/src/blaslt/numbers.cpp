#include "numbers.h"

#include "../backing.h"

#include <cmath>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector>

namespace gpusim {
namespace {

float load(const void *values, int type, size_t i)
{
    switch (type) {
    case CUDA_R_32F:
        return static_cast<const float *>(values)[i];
    case CUDA_R_16F:
        return __half2float(static_cast<const __half *>(values)[i]);
    default:
        return __bfloat162float(static_cast<const __nv_bfloat16 *>(values)[i]);
    }
}

void store(void *values, int type, size_t i, float value)
{
    switch (type) {
    case CUDA_R_32F:
        static_cast<float *>(values)[i] = value;
        break;
    case CUDA_R_16F:
        static_cast<__half *>(values)[i] = __float2half(value);
        break;
    default:
        static_cast<__nv_bfloat16 *>(values)[i] = __float2bfloat16(value);
    }
}

// Ten bits of mantissa, halves away from zero as cvt.rna does.
float to_tf32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7F800000u) != 0x7F800000u)
        bits = (bits + 0x1000u) & ~0x1FFFu;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

float rounded_input(float value, int compute)
{
    if (compute == CUBLAS_COMPUTE_32F_FAST_TF32)
        return to_tf32(value);
    return compute == CUBLAS_COMPUTE_32F_FAST_16BF ? __bfloat162float(__float2bfloat16(value)) : value;
}

size_t element(const MatrixLayout &layout, size_t row, size_t col)
{
    return layout.order == CUBLASLT_ORDER_ROW ? row * size_t(layout.ld) + col : row + col * size_t(layout.ld);
}

const char *batch_of(const void *matrix, const MatrixLayout &layout, int batch)
{
    return static_cast<const char *>(backing(matrix)) +
           int64_t(batch) * layout.stride * int64_t(blas_type_bytes(int(layout.type)));
}

// op(matrix) as rows x cols floats, row by row.
std::vector<float> unpacked(const void *matrix, const MatrixLayout &layout, bool turned, int compute)
{
    const size_t rows = turned ? layout.cols : layout.rows, cols = turned ? layout.rows : layout.cols;
    std::vector<float> values(rows * cols);
    for (size_t row = 0; row < rows; row++)
        for (size_t col = 0; col < cols; col++) {
            const size_t at = turned ? element(layout, col, row) : element(layout, row, col);
            values[row * cols + col] = rounded_input(load(matrix, int(layout.type), at), compute);
        }
    return values;
}

constexpr float gelu_scale = 0.7978845608028654f, gelu_cubic = 0.044715f;

float gelu(float x)
{
    return 0.5f * x * (1.0f + std::tanh(gelu_scale * (x + gelu_cubic * x * x * x)));
}

float gelu_slope(float x)
{
    const float t = std::tanh(gelu_scale * (x + gelu_cubic * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * gelu_scale * (1.0f + 3.0f * gelu_cubic * x * x);
}

// One element on its way from the accumulator to D.
class Epilogue {
public:
    Epilogue(const MatmulProblem &problem, const EpilogueParts &parts, int batch) : problem_(problem), parts_(parts)
    {
        const MatmulDescription &given = problem.description;
        bias_ = static_cast<const char *>(backing(given.bias)) +
                int64_t(batch) * given.bias_stride * int64_t(blas_type_bytes(problem.bias_type()));
        aux_ = static_cast<char *>(backing(given.aux)) +
               int64_t(batch) * given.aux_stride * int64_t(blas_type_bytes(problem.aux_type()));
    }

    float apply(float value, size_t row, size_t col) const
    {
        const size_t aux_at = row + col * size_t(problem_.description.aux_ld);
        if (parts_.bias)
            value += load(bias_, problem_.bias_type(), row);
        if (parts_.aux_written)
            store(aux_, problem_.aux_type(), aux_at, value);
        if (parts_.gelu_backward)
            value *= gelu_slope(load(aux_, problem_.aux_type(), aux_at));
        if (parts_.gelu)
            value = gelu(value);
        if (parts_.relu)
            value = value > 0 ? value : 0;
        return value;
    }

    void store_bias_gradient(const std::vector<float> &sums) const
    {
        for (size_t i = 0; i < sums.size(); i++)
            store(const_cast<char *>(bias_), problem_.bias_type(), i, sums[i]);
    }

private:
    const MatmulProblem &problem_;
    const EpilogueParts &parts_;
    const char *bias_;
    char *aux_;
};

std::vector<float> row_sums(const std::vector<float> &values, size_t rows, size_t cols)
{
    std::vector<float> sums(rows);
    for (size_t row = 0; row < rows; row++)
        for (size_t col = 0; col < cols; col++)
            sums[row] += values[row * cols + col];
    return sums;
}

std::vector<float> column_sums(const std::vector<float> &values, size_t rows, size_t cols)
{
    std::vector<float> sums(cols);
    for (size_t row = 0; row < rows; row++)
        for (size_t col = 0; col < cols; col++)
            sums[col] += values[row * cols + col];
    return sums;
}

} // namespace

void multiply(const MatmulProblem &problem, const EpilogueParts &parts, const MatmulOperands &operands)
{
    const size_t m = problem.m(), n = problem.n(), k = problem.k();
    const int compute = problem.description.compute, batch = operands.batch;
    const std::vector<float> a =
        unpacked(batch_of(operands.a, problem.a, batch), problem.a, problem.description.transpose[0], compute);
    const std::vector<float> b =
        unpacked(batch_of(operands.b, problem.b, batch), problem.b, problem.description.transpose[1], compute);
    const char *c = batch_of(operands.c, problem.c, batch);
    char *d = const_cast<char *>(batch_of(operands.d, problem.d, batch));
    const Epilogue epilogue(problem, parts, batch);
    std::vector<float> sums(n), bias_gradient(parts.bias_gradient_d ? m : 0);
    for (size_t row = 0; row < m; row++) {
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (size_t inner = 0; inner < k; inner++) {
            const float left = a[row * k + inner];
            const float *right = &b[inner * n];
            for (size_t col = 0; col < n; col++)
                sums[col] += left * right[col];
        }
        for (size_t col = 0; col < n; col++) {
            float value = operands.alpha * sums[col];
            if (operands.beta != 0)
                value += operands.beta * load(c, int(problem.c.type), element(problem.c, row, col));
            value = epilogue.apply(value, row, col);
            if (parts.bias_gradient_d)
                bias_gradient[row] += value;
            store(d, int(problem.d.type), element(problem.d, row, col), value);
        }
    }
    if (parts.bias_gradient_d)
        epilogue.store_bias_gradient(bias_gradient);
    if (parts.bias_gradient_a)
        epilogue.store_bias_gradient(row_sums(a, m, k));
    if (parts.bias_gradient_b)
        epilogue.store_bias_gradient(column_sums(b, k, n));
}

} // namespace gpusim
