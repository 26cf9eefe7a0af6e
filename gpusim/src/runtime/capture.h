// Stream capture: what a capturing stream is given becomes a graph's list of tasks, kept in the order of issue.
#pragma once
#include "runtime.h"

#include <thread>

namespace gpusim {

struct CapturedTask {
    size_t lane; // 0: the stream that began the capture (and that launches go to); others in order of joining
    Task task;
};

struct CapturedGraph {
    std::vector<int> devices; // of each lane
    std::vector<CapturedTask> tasks;
};

struct Capture {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    std::thread::id thread;
    unsigned long long id = 0;
    bool lost = false; // something forbidden was called
    std::vector<Stream *> lanes;
    CapturedGraph graph;
};

uint64_t capture_task(Stream &stream, Task task); // for push()
cudaError_t capture_wait(Stream &stream, const EventState &event); // may `stream` wait for it? Joins the capture
cudaError_t capture_forbids(Capture &capture, const char *call);   // reports, and loses the capture

} // namespace gpusim
