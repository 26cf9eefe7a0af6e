#include "capture.h"

#include "../handles.h"

#include <algorithm>
#include <map>
#include <set>

namespace gpusim {
namespace {

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

// Captures under way, of all threads.
std::set<Capture *> &captures()
{
    static auto &all = *new std::set<Capture *>;
    return all;
}

size_t lane_of(const Capture &capture, const Stream &stream)
{
    return size_t(std::find(capture.lanes.begin(), capture.lanes.end(), &stream) - capture.lanes.begin());
}

void join_capture(Capture &capture, Stream &stream)
{
    stream.capture = &capture;
    capture.lanes.push_back(&stream);
    capture.graph.devices.push_back(stream.device);
}

// Lanes whose last task no path of waits leads from to the first lane.
bool all_joined(const Capture &capture)
{
    const std::vector<CapturedTask> &tasks = capture.graph.tasks;
    std::vector<bool> reached(capture.lanes.size());
    reached[0] = true;
    std::set<const EventState *> awaited;
    for (size_t i = tasks.size(); i-- > 0;) {
        const CapturedTask &one = tasks[i];
        if (one.task.kind == TaskKind::record && awaited.count(one.task.event.get()))
            reached[one.lane] = true;
        if (!reached[one.lane])
            return false;
        if (one.task.kind == TaskKind::wait)
            awaited.insert(one.task.event.get());
    }
    return true;
}

void end_capture(Capture *capture)
{
    for (Stream *stream : capture->lanes)
        stream->capture = nullptr;
    captures().erase(capture);
}

} // namespace

uint64_t capture_task(Stream &stream, Task task)
{
    Capture &capture = *stream.capture;
    capture.graph.tasks.push_back({lane_of(capture, stream), std::move(task)});
    return stream.issued;
}

cudaError_t capture_forbids(Capture &capture, const char *call)
{
    report(GPUSIM_API, "%s during a stream capture", call);
    capture.lost = true;
    return fail(cudaErrorStreamCaptureUnsupported);
}

cudaError_t capture_wait(Stream &stream, const EventState &event)
{
    if (!stream.capture && !event.capture)
        return cudaSuccess;
    if (stream.capture && !event.capture) {
        report(GPUSIM_API, "cudaStreamWaitEvent: a capturing stream waits for an event recorded outside the capture");
        stream.capture->lost = true;
        return cudaErrorStreamCaptureIsolation;
    }
    if (!captures().count(event.capture))
        return cudaErrorCapturedEvent;
    if (!stream.capture)
        join_capture(*event.capture, stream);
    return stream.capture == event.capture ? cudaSuccess : cudaErrorStreamCaptureMerge;
}

cudaError_t refuse_in_capture(const char *call)
{
    for (Capture *capture : captures()) {
        const bool mine = capture->thread == std::this_thread::get_id();
        const bool all_relaxed =
            capture->mode == cudaStreamCaptureModeRelaxed || thread_mode == cudaStreamCaptureModeRelaxed;
        if (!all_relaxed && (mine || capture->mode == cudaStreamCaptureModeGlobal))
            return capture_forbids(*capture, call);
    }
    return cudaSuccess;
}

} // namespace gpusim

using namespace gpusim;

struct CUgraph_st {
    CapturedGraph graph;
};

struct CUgraphExec_st {
    CapturedGraph graph;
    std::vector<Stream *> lanes; // [0] is the stream of the launch
    bool destroyed = false;
};

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode)
{
    std::swap(*mode, thread_mode);
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    if (handle == nullptr)
        return fail(cudaErrorStreamCaptureUnsupported);
    Stream *stream = stream_of(handle, "cudaStreamBeginCapture");
    if (stream->capture)
        return fail(cudaErrorIllegalState);
    static unsigned long long next_id;
    auto *capture = new Capture; // kept: events may still name it
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->id = ++next_id;
    captures().insert(capture);
    join_capture(*capture, *stream);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph)
{
    Locked lock(machine_lock());
    Stream *stream = stream_of(handle, "cudaStreamEndCapture");
    Capture *capture = stream->capture;
    if (!capture)
        return fail(cudaErrorIllegalState);
    *graph = nullptr;
    if (capture->lanes[0] != stream)
        return fail(cudaErrorStreamCaptureUnmatched);
    if (capture->thread != std::this_thread::get_id() && capture->mode != cudaStreamCaptureModeRelaxed)
        return fail(cudaErrorStreamCaptureWrongThread);
    const bool joined = all_joined(*capture);
    end_capture(capture);
    if (capture->lost)
        return fail(cudaErrorStreamCaptureInvalidated);
    if (!joined) // not reported: who gives up a capture ends it so, and the program is told
        return fail(cudaErrorStreamCaptureUnjoined);
    *graph = new CUgraph_st{capture->graph};
    handle_made(*graph, Handle::graph, stream->device);
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus *status)
{
    Locked lock(machine_lock());
    const Capture *capture = handle ? handle->capture : nullptr;
    *status = !capture ? cudaStreamCaptureStatusNone
                       : capture->lost ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *count)
{
    Locked lock(machine_lock());
    const Capture *capture = handle ? handle->capture : nullptr;
    cudaStreamIsCapturing(handle, status);
    if (id)
        *id = capture ? capture->id : 0;
    if (graph || dependencies || edges || count) {
        report(GPUSIM_UNSUPPORTED, "cudaStreamGetCaptureInfo: nodes of a graph being captured");
        return fail(cudaErrorNotSupported);
    }
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    Locked lock(machine_lock());
    if (nodes)
        return fail(cudaErrorNotSupported);
    *count = 0;
    for (const CapturedTask &one : graph->graph.tasks)
        *count += one.task.kind != TaskKind::record && one.task.kind != TaskKind::wait;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    if (!executable || !graph)
        return fail(cudaErrorInvalidValue);
    auto *made = new CUgraphExec_st{graph->graph, {nullptr}, false};
    for (size_t lane = 1; lane < made->graph.devices.size(); lane++)
        made->lanes.push_back(stream_new(made->graph.devices[lane]));
    handle_made(made, Handle::executable, current_device());
    *executable = made;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags)
{
    return cudaGraphInstantiate(executable, graph, flags);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    Stream *stream = stream_of(handle, "cudaGraphLaunch");
    if (!executable || executable->destroyed)
        return fail(cudaErrorInvalidValue);
    if (!executable->graph.devices.empty() && executable->graph.devices[0] != stream->device)
        return fail(cudaErrorInvalidValue);
    std::map<const EventState *, std::shared_ptr<EventState>> events; // each launch has its own
    executable->lanes[0] = stream;
    for (const CapturedTask &one : executable->graph.tasks) {
        Stream &lane = *executable->lanes[one.lane];
        Task task = one.task;
        if (task.event) {
            std::shared_ptr<EventState> &event = events[task.event.get()];
            if (!event)
                event = std::make_shared<EventState>();
            task.event = event;
        }
        if (task.issue)
            task.issue(lane, task);
        else
            push(lane, std::move(task));
    }
    return fail(device_fault(stream->device));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable)
{
    Locked lock(machine_lock());
    if (!executable)
        return fail(cudaErrorInvalidValue);
    if (executable->destroyed) {
        report(GPUSIM_API, "cudaGraphExecDestroy of a graph that was destroyed");
        return fail(cudaErrorInvalidValue);
    }
    handle_gone(executable);
    executable->destroyed = true; // launches under way go on
    executable->graph = CapturedGraph{};
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    Locked lock(machine_lock());
    if (!handle_gone(graph)) {
        report(GPUSIM_API, "cudaGraphDestroy of what is no graph, or of one that was destroyed");
        return fail(cudaErrorInvalidValue);
    }
    delete graph;
    return cudaSuccess;
}
}
