// cuBLASLt: numbers against sums in double, and every epilogue.
#include "matmul.h"

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
