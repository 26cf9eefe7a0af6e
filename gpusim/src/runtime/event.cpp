// Events.
#include "../handles.h"
#include "capture.h"
#include "runtime.h"

#include <algorithm>
#include <set>

namespace gpusim {
namespace {

constexpr int most_threads = 64;

thread_local int this_thread; // what gpusim_thread gave it

// Of each numbered thread; [0]: of all together.
int64_t *wait_calls()
{
    static int64_t calls[most_threads + 1];
    return calls;
}

// Of each numbered thread: which of its waits ordered nothing.
std::set<int64_t> *idle_waits()
{
    static std::set<int64_t> idle[most_threads + 1];
    return idle;
}

bool usable(cudaEvent_t event, const char *call)
{
    if (!event)
        return false;
    if (event->destroyed)
        report(GPUSIM_API, "%s on an event that was destroyed", call);
    return !event->destroyed;
}

bool skip_this_wait()
{
    const int64_t all = ++wait_calls()[0];
    const int64_t own = this_thread != 0 ? ++wait_calls()[this_thread] : 0;
    const int whose = options().skip_thread;
    return options().skip_wait != 0 && (whose == 0 ? all : whose == this_thread ? own : 0) == options().skip_wait;
}

} // namespace

void event_reset()
{
    std::fill_n(wait_calls(), most_threads + 1, 0);
    std::fill_n(idle_waits(), most_threads + 1, std::set<int64_t>());
}

} // namespace gpusim

using namespace gpusim;

extern "C" {

void gpusim_thread(int number)
{
    this_thread = number > 0 && number <= most_threads ? number : 0;
}

int64_t gpusim_thread_waits(int number)
{
    Locked lock(machine_lock());
    return number > 0 && number <= most_threads ? wait_calls()[number] : 0;
}

bool gpusim_wait_orders(int number, int64_t n)
{
    Locked lock(machine_lock());
    return number <= 0 || number > most_threads || idle_waits()[number].count(n) == 0;
}

cudaError_t cudaEventCreate(cudaEvent_t *made)
{
    return cudaEventCreateWithFlags(made, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *made, unsigned flags)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    if (!made || (flags & ~unsigned(cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess)))
        return fail(cudaErrorInvalidValue);
    auto *event = new CUevent_st;
    event->device = current_device();
    event->flags = flags;
    handle_made(event, Handle::event, event->device);
    *made = event;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    Locked lock(machine_lock());
    if (!usable(event, "cudaEventDestroy"))
        return fail(cudaErrorInvalidResourceHandle);
    handle_gone(event);
    event->destroyed = true; // kept, so that later use is known as such
    event->state = nullptr;
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    Stream *stream = stream_of(handle, "cudaEventRecord");
    if (!usable(event, "cudaEventRecord"))
        return fail(cudaErrorInvalidResourceHandle);
    if (event->device != stream->device) {
        report(GPUSIM_WRONG_DEVICE, "cudaEventRecord: the event is of device %d, the stream of device %d",
               event->device, stream->device);
        return fail(cudaErrorInvalidResourceHandle);
    }
    event->state = std::make_shared<EventState>();
    event->state->capture = stream->capture;
    Task task;
    task.kind = TaskKind::record;
    task.name = "cudaEventRecord";
    task.event = event->state;
    push(*stream, std::move(task));
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    Stream *stream = stream_of(handle, "cudaStreamWaitEvent");
    if (!usable(event, "cudaStreamWaitEvent"))
        return fail(cudaErrorInvalidResourceHandle);
    counts().event_waits++;
    if (!event->state || skip_this_wait())
        return cudaSuccess; // never recorded: no effect, as in CUDA
    const cudaError_t error = capture_wait(*stream, *event->state);
    if (error != cudaSuccess)
        return fail(error);
    Task task;
    task.kind = TaskKind::wait;
    task.name = "cudaStreamWaitEvent";
    task.event = event->state;
    if (this_thread != 0)
        task.told = [thread = this_thread, call = wait_calls()[this_thread]](bool ordered) {
            if (!ordered)
                idle_waits()[thread].insert(call);
        };
    push(*stream, std::move(task));
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    if (!usable(event, "cudaEventSynchronize"))
        return fail(cudaErrorInvalidResourceHandle);
    if (!event->state)
        return cudaSuccess;
    const std::shared_ptr<EventState> state = event->state;
    if (state->capture)
        return fail(cudaErrorCapturedEvent);
    return fail(wait_for_event(state));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    Locked lock(machine_lock());
    if (const cudaError_t error = enter())
        return error;
    counts().host_queries++;
    if (!usable(event, "cudaEventQuery"))
        return fail(cudaErrorInvalidResourceHandle);
    const std::shared_ptr<EventState> state = event->state;
    if (!state)
        return cudaSuccess;
    if (state->capture)
        return fail(cudaErrorCapturedEvent);
    if (!state->done)
        poll(*state->stream, state->sequence);
    if (!state->done)
        return fail(cudaErrorNotReady);
    host_has_seen(state->clock);
    return fail(device_fault(event->device));
}

// A microsecond for each step of the machine: the same in every run of a schedule, and no measure of anything.
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    Locked lock(machine_lock());
    if (!usable(start, "cudaEventElapsedTime") || !usable(end, "cudaEventElapsedTime"))
        return fail(cudaErrorInvalidResourceHandle);
    if ((start->flags | end->flags) & cudaEventDisableTiming || !start->state || !end->state)
        return fail(cudaErrorInvalidResourceHandle);
    if (!start->state->done || !end->state->done)
        return fail(cudaErrorNotReady);
    *milliseconds = 0.001f * float(double(end->state->step) - double(start->state->step));
    return cudaSuccess;
}
}
