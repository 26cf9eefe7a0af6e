// Stream capture: what a graph replays, and what makes a step unfit for it.
#include "devices.h"

#include <functional>
#include <nccl.h>
#include <thread>

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
            CHECK(joined_before_use ? result[63] == 0x05050505 && gpusim_reports(-1) == 0
                                    : check::only_reports(GPUSIM_RACE_STREAM));
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
                                      : fault == 2
                                          ? cudaDeviceSynchronize()
                                          : cudaMemcpyAsync(host, it.first, 4, cudaMemcpyDeviceToHost, it.main);
            CHECK(error == cudaErrorStreamCaptureUnsupported);
            CHECK(check::only_reports(GPUSIM_API));
            CHECK(cudaStreamEndCapture(it.main, &graph) == cudaErrorStreamCaptureInvalidated && graph == nullptr);
        });
}

GPUSIM_TEST_EVERYWHERE(unjoined_and_isolated_work)
{
    Captured it;
    cudaGraph_t graph;
    cudaStreamBeginCapture(it.main, cudaStreamCaptureModeRelaxed);
    cudaEventRecord(it.fork, it.main);
    cudaStreamWaitEvent(it.side, it.fork, 0);
    cudaMemsetAsync(it.first, 5, 256, it.side);
    CHECK(cudaStreamEndCapture(it.main, &graph) == cudaErrorStreamCaptureUnjoined && graph == nullptr);
    CHECK(gpusim_reports(-1) == 0);
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

// One graph of two devices' streams, issued by a thread each, whose ends lead to the first; launches in one stream,
// with later work of both behind it.
GPUSIM_TEST(streams_of_two_devices_and_threads)
{
    check::in_every_schedule([] {
        cudaStream_t streams[2];
        int *sums[2], *parts[2];
        cudaEvent_t marks[2], ready[2], done[2];
        for (int r = 0; r < 2; r++) {
            cudaSetDevice(r);
            cudaDeviceEnablePeerAccess(1 - r, 0);
            cudaGetLastError(); // enabled by an earlier schedule
            streams[r] = new_stream(r);
            sums[r] = device_array<int>(64, r);
            parts[r] = device_array<int>(64, r);
            for (cudaEvent_t *event : {&marks[r], &ready[r], &done[r]})
                *event = new_event(r);
        }
        cudaSetDevice(0);
        CHECK(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeRelaxed) == cudaSuccess);
        cudaEventRecord(marks[0], streams[0]);
        cudaSetDevice(1);
        CHECK(cudaStreamWaitEvent(streams[1], marks[0], 0) == cudaSuccess);
        const auto fill = [&](int r) {
            cudaSetDevice(r);
            cudaMemsetAsync(parts[r], r + 1, 256, streams[r]);
            cudaEventRecord(ready[r], streams[r]);
        };
        const auto read = [&](int r) {
            cudaSetDevice(r);
            cudaStreamWaitEvent(streams[r], ready[1 - r], 0);
            cudaMemcpyAsync(sums[r], parts[1 - r], 256, cudaMemcpyDeviceToDevice, streams[r]);
            cudaEventRecord(done[r], streams[r]);
        };
        const auto end = [&](int r) {
            cudaSetDevice(r);
            cudaStreamWaitEvent(streams[r], done[1 - r], 0);
        };
        for (const std::function<void(int)> &part :
             {std::function<void(int)>(fill), std::function<void(int)>(read), std::function<void(int)>(end)})
            for (int r = 0; r < 2; r++)
                std::thread(part, r).join();
        cudaSetDevice(1);
        cudaEventRecord(marks[1], streams[1]);
        cudaGraph_t graph;
        cudaGraphExec_t executable;
        std::thread([&] { // not the thread that began it
            cudaSetDevice(0);
            cudaStreamWaitEvent(streams[0], marks[1], 0);
            CHECK(cudaStreamEndCapture(streams[0], &graph) == cudaSuccess);
        }).join();
        cudaSetDevice(0);
        CHECK(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess && cudaGraphDestroy(graph) == cudaSuccess);
        for (int launch = 0; launch < 3; launch++) {
            cudaSetDevice(1);
            cudaMemsetAsync(sums[1], 0, 256, streams[1]);
            cudaEventRecord(marks[1], streams[1]);
            cudaSetDevice(0);
            cudaStreamWaitEvent(streams[0], marks[1], 0);
            CHECK(cudaGraphLaunch(executable, streams[0]) == cudaSuccess);
            cudaEventRecord(marks[0], streams[0]);
            cudaSetDevice(1);
            cudaStreamWaitEvent(streams[1], marks[0], 0);
            CHECK(download(sums[1], 64, streams[1])[63] == 0x01010101);
        }
        CHECK(download(sums[0], 64, streams[0])[63] == 0x02020202);
        CHECK(gpusim_reports(-1) == 0);
        CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
    });
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
