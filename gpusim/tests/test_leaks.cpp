// What a program has not given back: memory, work, and what it must destroy.
#include "devices.h"

#include <cublasLt.h>
#include <nccl.h>

GPUSIM_TEST_EVERYWHERE(memory)
{
    char *kept = device_array<char>(100), *freed = device_array<char>(100);
    cudaFree(freed);
    CHECK(gpusim_report_leaks() == 1 && gpusim_reports(GPUSIM_LEAK) == 1);
    gpusim_clear_reports();
    cudaFree(kept);
    CHECK(gpusim_report_leaks() == 0);
}

namespace {

constexpr int kinds = 6;

// One of each kind, and all destroyed but the kind `left` (kinds: none).
struct All {
    cudaStream_t stream = new_stream(1), lane = new_stream(1);
    cudaEvent_t event = new_event(1), joined = new_event(1);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    ncclComm_t comm = nullptr;
    cublasLtHandle_t blas = nullptr;

    All()
    {
        const int device = 1;
        int *word = device_array<int>(1, 1);
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
        cudaEventRecord(event, stream);
        cudaStreamWaitEvent(lane, event, 0);
        cudaMemsetAsync(word, 0, 4, lane);
        cudaEventRecord(joined, lane);
        cudaStreamWaitEvent(stream, joined, 0);
        CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
        CHECK(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
        CHECK(cudaGraphLaunch(executable, stream) == cudaSuccess && cudaStreamSynchronize(stream) == cudaSuccess);
        CHECK(ncclCommInitAll(&comm, 1, &device) == ncclSuccess && cublasLtCreate(&blas) == CUBLAS_STATUS_SUCCESS);
        CHECK(cudaFree(word) == cudaSuccess);
    }
    void destroy(int kind)
    {
        CHECK(kind != 0 || (cudaStreamDestroy(stream) == cudaSuccess && cudaStreamDestroy(lane) == cudaSuccess));
        CHECK(kind != 1 || (cudaEventDestroy(event) == cudaSuccess && cudaEventDestroy(joined) == cudaSuccess));
        CHECK(kind != 2 || cudaGraphDestroy(graph) == cudaSuccess);
        CHECK(kind != 3 || cudaGraphExecDestroy(executable) == cudaSuccess);
        CHECK(kind != 4 || ncclCommDestroy(comm) == ncclSuccess);
        CHECK(kind != 5 || cublasLtDestroy(blas) == CUBLAS_STATUS_SUCCESS);
    }
};

} // namespace

GPUSIM_TEST_EVERYWHERE(what_must_be_destroyed)
{
    for (int left = 0; left <= kinds; left++) {
        All all;
        for (int kind = 0; kind < kinds; kind++)
            if (kind != left)
                all.destroy(kind);
        CHECK(gpusim_report_leaks() == (left < kinds) && gpusim_reports(GPUSIM_LEAK) == gpusim_reports(-1));
        gpusim_clear_reports();
        if (left < kinds)
            all.destroy(left);
        CHECK(gpusim_report_leaks() == 0);
    }
}

GPUSIM_TEST_EVERYWHERE(destroyed_twice)
{
    for (int kind = 0; kind < kinds; kind++) {
        All all;
        for (int each = 0; each < kinds; each++)
            all.destroy(each);
        CHECK(gpusim_reports(-1) == 0);
        const bool refused = kind == 0   ? cudaStreamDestroy(all.stream) != cudaSuccess
                             : kind == 1 ? cudaEventDestroy(all.event) != cudaSuccess
                             : kind == 2 ? cudaGraphDestroy(all.graph) != cudaSuccess
                             : kind == 3 ? cudaGraphExecDestroy(all.executable) != cudaSuccess
                             : kind == 4 ? ncclCommDestroy(all.comm) != ncclSuccess
                                         : cublasLtDestroy(all.blas) != CUBLAS_STATUS_SUCCESS;
        CHECK(refused || kind == 0);
        CHECK(check::only_reports(kind == 4   ? GPUSIM_NCCL
                                  : kind == 5 ? GPUSIM_BLAS
                                              : GPUSIM_API));
        gpusim_clear_reports();
    }
}
