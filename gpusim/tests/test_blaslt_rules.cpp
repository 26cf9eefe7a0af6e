// cuBLASLt: workspaces, alignment, algorithms, and what must be refused or told.
#include "matmul.h"

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

// What is written may share no element with what else is read or written, but D with C where their layouts agree.
GPUSIM_TEST_EVERYWHERE(operands_that_overlap)
{
    for (int fault = 0; fault < 7; fault++) { // from 4 on: none
        gpusim_clear_reports();
        Matmul<float, float> it;
        it.m = it.k = it.n = 16, it.aux_ld = 16, it.beta = 1;
        it.epilogue = fault == 3 ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_DEFAULT;
        it.prepare();
        const int64_t ld = 32;
        float *both = device_array<float>(32 * 16);
        if (fault == 0)
            it.device_d = it.device_a;
        if (fault == 1) // its last column is B's first
            it.device_b = both + 15 * 16, it.device_d = both;
        if (fault == 2)
            it.device_c = both, it.device_d = both + 64; // 256 bytes on
        if (fault == 3)
            cublasLtMatmulDescSetAttribute(it.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &it.device_b,
                                           sizeof it.device_b);
        if (fault == 5)
            it.device_d = it.device_c;
        if (fault == 6) { // columns of A and D in turns
            cublasLtMatrixLayoutSetAttribute(it.layout_a, CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof ld);
            cublasLtMatrixLayoutSetAttribute(it.layout_d, CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof ld);
            it.device_a = both, it.device_d = both + 16;
            it.device_c = it.device_d;
        }
        upload(both, std::vector<float>(32 * 16, 1.0f), it.stream);
        cublasLtMatmul(it.handle, it.description, &it.alpha, it.device_a, it.layout_a, it.device_b, it.layout_b,
                       &it.beta, it.device_c, it.layout_d, it.device_d, it.layout_d, nullptr, nullptr, 0, it.stream);
        CHECK(cudaStreamSynchronize(it.stream) == cudaSuccess);
        CHECK(fault < 4 ? check::only_reports(GPUSIM_BLAS) : gpusim_reports(-1) == 0);
    }
}

GPUSIM_TEST_EVERYWHERE(a_workspace_that_overlaps)
{
    Matmul<float, float> it;
    it.prepare();
    float *large = device_array<float>(1 << 14);
    upload(large, std::vector<float>(1 << 14, 1.0f), it.stream);
    it.device_a = large, it.workspace = large;
    CHECK(it.run() == CUBLAS_STATUS_SUCCESS && cudaStreamSynchronize(it.stream) == cudaSuccess);
    CHECK(check::only_reports(GPUSIM_BLAS));
}

GPUSIM_TEST_EVERYWHERE(handle_of_another_device)
{
    Matmul<float, float> it;
    it.prepare();
    it.stream = new_stream(1);
    CHECK(it.run() == CUBLAS_STATUS_INVALID_VALUE && check::only_reports(GPUSIM_BLAS));
}
