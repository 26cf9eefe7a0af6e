// A whole program: a tensor-parallel MLP on two ranks, y = x + AllReduce(gelu(x W1 + b1) W2), where the all-reduce of
// one half of the tokens runs beside the GEMMs of the other. It is ordinary CUDA; each planted fault is one line that
// is missing.
#include "devices.h"
#include "kernels.h"

#include <cublasLt.h>
#include <nccl.h>

#include <cmath>

namespace {

enum Fault {
    none,
    no_wait_before_collective,
    no_wait_after_collective,
    different_counts,
    ungrouped_sends,
    freed_on_wrong_stream,
    workspace_of_both_streams,
    faults
};

constexpr int ranks = 2, tokens = 24, hidden = 32, inner = 64, half_tokens = tokens / 2, part = inner / ranks;
constexpr size_t workspace_bytes = 1 << 16;

struct Rank {
    cudaStream_t compute, communication;
    cudaEvent_t multiplied[2], reduced[2];
    cublasLtHandle_t blas;
    ncclComm_t comm;
    float *x, *w1, *b1, *w2, *h, *y;
    void *workspace;
};

float number(int &state)
{
    state = int(unsigned(state) * 1664525u + 1013904223u);
    return float(state >> 9) / 8388608.0f;
}

struct Inputs {
    std::vector<float> x, w1, b1, w2;
    Inputs() : x(tokens * hidden), w1(hidden * inner), b1(inner), w2(inner * hidden)
    {
        int state = 777;
        for (std::vector<float> *one : {&x, &w1, &b1, &w2})
            for (float &value : *one)
                value = number(state);
    }
    double expected(int token, int column) const
    {
        double sum = x[size_t(token * hidden + column)];
        for (int j = 0; j < inner; j++) {
            double a = b1[size_t(j)];
            for (int i = 0; i < hidden; i++)
                a += double(x[size_t(token * hidden + i)]) * w1[size_t(i * inner + j)];
            sum += 0.5 * a * (1 + std::tanh(0.7978845608028654 * (a + 0.044715 * a * a * a))) *
                   w2[size_t(j * hidden + column)];
        }
        return sum;
    }
};

// Row-major C[m, n] = A[m, k] B[k, n]: column-major it is C' = B' A'.
void gemm(Rank &rank, const float *a, const float *b, float *c, int m, int n, int k, const float *bias,
          cudaStream_t stream)
{
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t left, right, result;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t chosen;
    cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasLtEpilogue_t epilogue = bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    cublasLtMatrixLayoutCreate(&left, CUDA_R_32F, uint64_t(n), uint64_t(k), n);
    cublasLtMatrixLayoutCreate(&right, CUDA_R_32F, uint64_t(k), uint64_t(m), k);
    cublasLtMatrixLayoutCreate(&result, CUDA_R_32F, uint64_t(n), uint64_t(m), n);
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                         sizeof workspace_bytes);
    int found = 0;
    const float one = 1, zero = 0;
    CHECK(cublasLtMatmulAlgoGetHeuristic(rank.blas, description, left, right, result, result, preference, 1, &chosen,
                                         &found) == CUBLAS_STATUS_SUCCESS &&
          found == 1);
    CHECK(cublasLtMatmul(rank.blas, description, &one, b, left, a, right, &zero, c, result, c, result, &chosen.algo,
                         rank.workspace, chosen.workspaceSize, stream) == CUBLAS_STATUS_SUCCESS);
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatrixLayoutDestroy(left);
    cublasLtMatrixLayoutDestroy(right);
    cublasLtMatrixLayoutDestroy(result);
    cublasLtMatmulDescDestroy(description);
}

template <class T> T *allocated(size_t count, cudaStream_t stream)
{
    void *memory = nullptr;
    CHECK(cudaMallocAsync(&memory, count * sizeof(T), stream) == cudaSuccess);
    return static_cast<T *>(memory);
}

void open_rank(Rank &rank, int number, const Inputs &inputs)
{
    cudaSetDevice(number);
    rank.compute = new_stream(number);
    rank.communication = new_stream(number);
    for (int i = 0; i < 2; i++) {
        rank.multiplied[i] = new_event(number);
        rank.reduced[i] = new_event(number);
    }
    CHECK(cublasLtCreate(&rank.blas) == CUBLAS_STATUS_SUCCESS);
    rank.x = allocated<float>(tokens * hidden, rank.compute);
    rank.w1 = allocated<float>(hidden * part, rank.compute);
    rank.b1 = allocated<float>(part, rank.compute);
    rank.w2 = allocated<float>(part * hidden, rank.compute);
    rank.h = allocated<float>(tokens * part, rank.compute);
    rank.y = allocated<float>(tokens * hidden, rank.compute);
    rank.workspace = allocated<char>(workspace_bytes, rank.compute);
    std::vector<float> w1;
    for (int i = 0; i < hidden; i++)
        w1.insert(w1.end(), &inputs.w1[size_t(i * inner + number * part)],
                  &inputs.w1[size_t(i * inner + number * part)] + part);
    upload(rank.x, inputs.x, rank.compute);
    upload(rank.w1, w1, rank.compute);
    upload(rank.b1, std::vector<float>(&inputs.b1[size_t(number * part)], &inputs.b1[size_t(number * part)] + part),
           rank.compute);
    const float *rows = &inputs.w2[size_t(number * part * hidden)];
    upload(rank.w2, std::vector<float>(rows, rows + part * hidden), rank.compute);
}

void close_rank(Rank &rank, int number, Fault fault)
{
    cudaSetDevice(number);
    cudaDeviceSynchronize();
    for (void *memory : {static_cast<void *>(rank.x), static_cast<void *>(rank.w1), static_cast<void *>(rank.b1),
                         static_cast<void *>(rank.w2), static_cast<void *>(rank.h), rank.workspace,
                         static_cast<void *>(fault == freed_on_wrong_stream ? nullptr : rank.y)})
        cudaFreeAsync(memory, rank.compute);
    cudaStreamSynchronize(rank.compute);
    ncclCommDestroy(rank.comm);
    cublasLtDestroy(rank.blas);
    for (cudaEvent_t event : {rank.multiplied[0], rank.multiplied[1], rank.reduced[0], rank.reduced[1]})
        cudaEventDestroy(event);
    cudaStreamDestroy(rank.compute);
    cudaStreamDestroy(rank.communication);
}

void multiply_half(Rank *all, int half, Fault fault)
{
    const size_t x_offset = size_t(half) * half_tokens * hidden, h_offset = size_t(half) * half_tokens * part;
    for (int r = 0; r < ranks; r++) {
        Rank &rank = all[r];
        cudaSetDevice(r);
        gemm(rank, rank.x + x_offset, rank.w1, rank.h + h_offset, half_tokens, part, hidden, rank.b1, rank.compute);
        gemm(rank, rank.h + h_offset, rank.w2, rank.y + x_offset, half_tokens, hidden, part, nullptr, rank.compute);
        cudaEventRecord(rank.multiplied[half], rank.compute);
        if (fault != no_wait_before_collective || half != 1 || r != 1)
            cudaStreamWaitEvent(rank.communication, rank.multiplied[half], 0);
        if (fault == workspace_of_both_streams && half == 0) // the same workspace beside the compute stream's next half
            gemm(rank, rank.x, rank.w1, rank.h, half_tokens, part, hidden, rank.b1, rank.communication);
    }
    CHECK(ncclGroupStart() == ncclSuccess);
    for (int r = 0; r < ranks; r++) {
        const size_t count = half_tokens * hidden - (fault == different_counts && r == 1 ? 4 : 0);
        float *y = all[r].y + x_offset;
        CHECK(ncclAllReduce(y, y, count, ncclFloat32, ncclSum, all[r].comm, all[r].communication) == ncclSuccess);
    }
    CHECK(ncclGroupEnd() == ncclSuccess);
    for (int r = 0; r < ranks; r++) {
        cudaSetDevice(r);
        cudaEventRecord(all[r].reduced[half], all[r].communication);
    }
}

void add_residual(Rank *all, int half, Fault fault)
{
    const size_t offset = size_t(half) * half_tokens * hidden;
    for (int r = 0; r < ranks; r++) {
        cudaSetDevice(r);
        if (fault != no_wait_after_collective || half != 1 || r != 0)
            cudaStreamWaitEvent(all[r].compute, all[r].reduced[half], 0);
        launch_axpy(all[r].y + offset, all[r].x + offset, 1, half_tokens * hidden, all[r].compute);
    }
}

void exchange(Rank *all, bool grouped)
{
    if (grouped)
        ncclGroupStart();
    for (int r = 0; r < ranks; r++) {
        ncclSend(all[r].y, 128, ncclFloat32, 1 - r, all[r].comm, all[r].compute);
        ncclRecv(all[r].h, 128, ncclFloat32, 1 - r, all[r].comm, all[r].compute);
    }
    if (grouped)
        ncclGroupEnd();
}

// The largest error of both ranks' outputs.
double run(Fault fault)
{
    const Inputs inputs;
    Rank all[ranks];
    ncclComm_t comms[ranks];
    CHECK(ncclCommInitAll(comms, ranks, nullptr) == ncclSuccess);
    for (int r = 0; r < ranks; r++) {
        all[r].comm = comms[r];
        open_rank(all[r], r, inputs);
    }
    for (int half = 0; half < 2; half++)
        multiply_half(all, half, fault);
    for (int half = 0; half < 2; half++)
        add_residual(all, half, fault);
    exchange(all, fault != ungrouped_sends);
    if (fault == freed_on_wrong_stream)
        for (int r = 0; r < ranks; r++) {
            cudaSetDevice(r);
            cudaFreeAsync(all[r].y, all[r].communication);
        }
    double worst = 0;
    for (int r = 0; r < ranks; r++) {
        cudaSetDevice(r);
        std::vector<float> y(tokens * hidden);
        cudaMemcpyAsync(y.data(), all[r].y, y.size() * sizeof(float), cudaMemcpyDeviceToHost, all[r].compute);
        if (cudaStreamSynchronize(all[r].compute) != cudaSuccess)
            break;
        for (int i = 0; i < tokens * hidden; i++) {
            const double error = std::fabs(inputs.expected(i / hidden, i % hidden) - y[size_t(i)]);
            worst = error <= worst ? worst : error;
        }
    }
    for (int r = 0; r < ranks; r++)
        close_rank(all[r], r, fault);
    return worst;
}

} // namespace

GPUSIM_TEST(clean_program)
{
    check::in_every_schedule([] {
        CHECK(run(none) < 1e-4);
        CHECK(gpusim_reports(-1) == 0);
        CHECK(gpusim_report_leaks() == 0);
    });
}

GPUSIM_TEST(planted_faults)
{
    for (int fault = none + 1; fault < faults; fault++)
        check::in_every_schedule([fault] {
            run(Fault(fault));
            const gpusim_report_kind expected = fault == different_counts  ? GPUSIM_NCCL
                                                : fault == ungrouped_sends ? GPUSIM_DEADLOCK
                                                                           : GPUSIM_RACE_STREAM;
            const int found =
                gpusim_reports(expected) + (fault == freed_on_wrong_stream ? gpusim_reports(GPUSIM_USE_AFTER_FREE) : 0);
            CHECK(found > 0);
            if (found == 0)
                fprintf(stderr, "    fault %d\n", fault);
        });
}

// Every wait of the program is needed: each run without one is found, in each schedule.
GPUSIM_TEST(every_wait_is_needed)
{
    gpusim_options options = {};
    gpusim_configure(&options);
    run(none);
    const int waits = int(gpusim_count().event_waits);
    CHECK(waits == 8);
    for (int wait = 1; wait <= waits; wait++)
        for (gpusim_options chosen : check::schedules()) {
            chosen.skip_wait = wait;
            gpusim_configure(&chosen);
            run(none);
            CHECK(gpusim_reports(GPUSIM_RACE_STREAM) > 0);
        }
}
