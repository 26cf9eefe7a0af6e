// Stream capture: what a graph replays, and what makes a step unfit for it.
#include "devices.h"

#include <nccl.h>

namespace {

struct Captured {
    cudaStream_t main = new_stream(), side = new_stream();
    int *first = device_array<int>(64), *second = device_array<int>(64);
    cudaEvent_t fork = new_event(), join = new_event();

    Captured()
    {
        cudaMemsetAsync(first, 0, 256, main);
        cudaMemsetAsync(second, 0, 256, main);
        cudaStreamSynchronize(main);
    }
};

} // namespace

GPUSIM_TEST(replay_of_two_streams)
{
    for (bool joined_before_use : {true, false})
        check::in_every_schedule([joined_before_use] {
            Captured it;
            cudaGraph_t graph;
            cudaGraphExec_t executable;
            CHECK(cudaStreamBeginCapture(it.main, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
            cudaEventRecord(it.fork, it.main);
            cudaStreamWaitEvent(it.side, it.fork, 0);
            cudaMemsetAsync(it.first, 5, 256, it.side);
            if (!joined_before_use)
                cudaMemcpyAsync(it.second, it.first, 256, cudaMemcpyDeviceToDevice, it.main);
            cudaEventRecord(it.join, it.side);
            cudaStreamWaitEvent(it.main, it.join, 0);
            if (joined_before_use)
                cudaMemcpyAsync(it.second, it.first, 256, cudaMemcpyDeviceToDevice, it.main);
            cudaStreamCaptureStatus status;
            CHECK(cudaStreamIsCapturing(it.side, &status) == cudaSuccess && status == cudaStreamCaptureStatusActive);
            CHECK(cudaStreamEndCapture(it.main, &graph) == cudaSuccess);
            CHECK(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess && cudaGraphDestroy(graph) == cudaSuccess);
            CHECK(download(it.second, 64, it.main)[0] == 0); // nothing has run yet
            for (int launch = 0; launch < 3; launch++)
                CHECK(cudaGraphLaunch(executable, it.main) == cudaSuccess);
            const std::vector<int> result = download(it.second, 64, it.main);
            CHECK(joined_before_use ? result[63] == 0x05050505 && gpusim_reports(-1) == 0 : check::only_reports(GPUSIM_RACE_STREAM));
            CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
        });
}

GPUSIM_TEST(forbidden_calls_lose_the_capture)
{
    for (int fault = 0; fault < 4; fault++)
        check::in_every_schedule([fault] {
            Captured it;
            cudaGraph_t graph;
            void *memory;
            char host[4];
            CHECK(cudaStreamBeginCapture(it.main, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
            const cudaError_t error = fault == 0   ? cudaMalloc(&memory, 16)
                                      : fault == 1 ? cudaStreamSynchronize(it.main)
                                      : fault == 2 ? cudaDeviceSynchronize()
                                                   : cudaMemcpyAsync(host, it.first, 4, cudaMemcpyDeviceToHost, it.main);
            CHECK(error == cudaErrorStreamCaptureUnsupported);
            CHECK(check::only_reports(GPUSIM_API));
            CHECK(cudaStreamEndCapture(it.main, &graph) == cudaErrorStreamCaptureInvalidated && graph == nullptr);
        });
}

GPUSIM_TEST(unjoined_and_isolated_work)
{
    Captured it;
    cudaGraph_t graph;
    cudaStreamBeginCapture(it.main, cudaStreamCaptureModeRelaxed);
    cudaEventRecord(it.fork, it.main);
    cudaStreamWaitEvent(it.side, it.fork, 0);
    cudaMemsetAsync(it.first, 5, 256, it.side);
    CHECK(cudaStreamEndCapture(it.main, &graph) == cudaErrorStreamCaptureUnjoined);
    CHECK(check::only_reports(GPUSIM_API));
    gpusim_clear_reports();
    cudaEventRecord(it.join, it.side);
    cudaStreamBeginCapture(it.main, cudaStreamCaptureModeRelaxed);
    CHECK(cudaStreamWaitEvent(it.main, it.join, 0) == cudaErrorStreamCaptureIsolation);
    CHECK(cudaStreamEndCapture(it.main, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(check::only_reports(GPUSIM_API));
}

GPUSIM_TEST(relaxed_capture_allows_allocation)
{
    Captured it;
    cudaGraph_t graph;
    void *memory;
    cudaStreamBeginCapture(it.main, cudaStreamCaptureModeRelaxed);
    CHECK(cudaMalloc(&memory, 16) == cudaSuccess);
    CHECK(cudaStreamEndCapture(it.main, &graph) == cudaSuccess && gpusim_reports(-1) == 0);
}

GPUSIM_TEST(collectives_in_graphs)
{
    check::in_every_schedule([] {
        ncclComm_t comms[2];
        cudaStream_t streams[2];
        cudaGraphExec_t executables[2];
        float *buffers[2];
        CHECK(ncclCommInitAll(comms, 2, nullptr) == ncclSuccess);
        for (int r = 0; r < 2; r++) {
            streams[r] = new_stream(r);
            buffers[r] = device_array<float>(32, r);
            upload(buffers[r], std::vector<float>(32, float(r + 1)), streams[r]);
            cudaStreamSynchronize(streams[r]);
            cudaGraph_t graph;
            CHECK(cudaStreamBeginCapture(streams[r], cudaStreamCaptureModeThreadLocal) == cudaSuccess);
            CHECK(ncclAllReduce(buffers[r], buffers[r], 32, ncclFloat32, ncclSum, comms[r], streams[r]) == ncclSuccess);
            CHECK(cudaStreamEndCapture(streams[r], &graph) == cudaSuccess);
            CHECK(cudaGraphInstantiate(&executables[r], graph, 0) == cudaSuccess);
        }
        for (int launch = 0; launch < 3; launch++)
            for (int r = 0; r < 2; r++) {
                cudaSetDevice(r);
                CHECK(cudaGraphLaunch(executables[r], streams[r]) == cudaSuccess);
            }
        CHECK(download(buffers[0], 32, streams[0])[31] == 12 && download(buffers[1], 32, streams[1])[0] == 12);
        CHECK(gpusim_reports(-1) == 0);
    });
}
