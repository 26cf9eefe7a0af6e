#include "scheduler_parts.h"

#include "guard.h"
#include "kernel_order.h"
#include "report.h"
#include "runtime/capture.h"
#include "waiting.h"

#include <algorithm>
#include <set>

namespace gpusim {
namespace {

// Looks of polling kernels in which nothing happens: then host threads get their turn; then, if there are no others, it
// is a deadlock.
constexpr int looks_at_once = 20, looks_in_all = 5000;

struct Host {
    uint32_t component = 0;
    VectorClock clock;
    Operation operation;
    uint32_t operation_time = 0;

    Host()
    {
        component = component_new();
        clock.advance(component);
        host_thread_begins();
    }
    ~Host() { host_thread_ends(); }
};

Host &host()
{
    static thread_local Host one;
    return one;
}

// Host threads order each other by means that the simulator can't see (mutexes, atomics). What one has waited for is
// therefore taken as known to all that issue later.
void publish()
{
    machine().published.join(host().clock);
    close_to_host();
}

void run_work(Stream &stream)
{
    Task &head = stream.queue.front();
    const auto operation = begin_operation(stream, head);
    const GuardOpen open;
    const OperationScope scope(operation.get());
    const cudaError_t error = head.run();
    if (error != cudaSuccess)
        set_device_fault(stream.device, error);
    finish_head(stream);
}

// Host functions run without the lock: they may wait for what other threads do.
void run_host_function(Stream &stream)
{
    const auto operation = begin_operation(stream, stream.queue.front());
    const auto function = stream.queue.front().run;
    stream.busy = true;
    {
        const Unlocked unlocked;
        const OperationScope scope(operation.get());
        function();
    }
    stream.busy = false;
    finish_head(stream);
}

void run_head(Stream &stream)
{
    Task &head = stream.queue.front();
    if (device_fault(stream.device) != cudaSuccess) {
        if (head.running) {
            const auto operation = head.operation;
            const OperationScope scope(operation.get());
            return end_kernel(stream, cudaSuccess);
        }
        if (head.event && head.kind == TaskKind::record)
            head.event->done = true;
        finish_head(stream);
        return;
    }
    switch (head.kind) {
    case TaskKind::wait:
        stream.clock.join(head.issued);
        if (head.told)
            head.told(operation_between(stream.clock, head.event->clock));
        stream.clock.join(head.event->clock);
        return finish_head(stream);
    case TaskKind::record:
        stream.clock.join(head.issued);
        head.event->clock = stream.clock;
        head.event->done = true;
        head.event->step = machine().step;
        stream.clock.advance(stream.component);
        return finish_head(stream);
    case TaskKind::work:
        return run_work(stream);
    case TaskKind::kernel:
        return run_kernel(stream);
    case TaskKind::host_function:
        return run_host_function(stream);
    case TaskKind::rendezvous:
        return run_rendezvous(stream);
    }
}

void run_all_ready()
{
    for (bool any = true; any;) {
        any = false;
        for (size_t i = 0; i < machine().streams.size(); i++)
            while (ready(*machine().streams[i])) {
                run_head(*machine().streams[i]);
                any = true;
            }
    }
}

bool run_any_ready()
{
    std::vector<Stream *> found;
    for (Stream *stream : machine().streams)
        if (ready(*stream))
            found.push_back(stream);
    if (found.empty())
        return false;
    run_head(*found[random_number() % found.size()]);
    return true;
}

using Path = std::set<std::pair<const Stream *, uint64_t>>;
bool run_needed(Stream &stream, uint64_t sequence, Path &path);

// For a kernel that polls, or has no room: who will write what it waits for can't be known. One operation of any other
// stream.
bool run_another(Stream &stream)
{
    const std::vector<Stream *> &all = machine().streams;
    const size_t first = random_number() % all.size();
    for (size_t i = 0; i < all.size(); i++) {
        Stream &other = *all[(first + i) % all.size()];
        const uint64_t step = machine().step;
        if (&other != &stream && ready(other))
            run_head(other);
        if (machine().step != step)
            return true;
    }
    return false;
}

// What the first task of the stream waits for in other streams. False: it can't be had now.
bool run_partners(Stream &stream, Path &path)
{
    const Task &head = stream.queue.front();
    if (head.kind == TaskKind::kernel)
        return run_another(stream);
    if (head.kind == TaskKind::wait)
        return head.event->stream && run_needed(*head.event->stream, head.event->sequence, path);
    if (head.kind != TaskKind::rendezvous)
        return false;
    const auto parts = head.parts;
    bool progress = false;
    for (const auto &part : parts) {
        if (part->done || part->members.size() < part->needed)
            continue;
        bool here = true;
        const auto members = part->members;
        for (const Rendezvous::Member &member : members)
            if (member.stream != &stream)
                here = run_needed(*member.stream, member.sequence - 1, path) && here;
        progress |= here && can_meet(*part);
    }
    return progress;
}

// Runs only what the stream needs to get to `sequence`: all else stays as late as it can be.
bool run_needed(Stream &stream, uint64_t sequence, Path &path)
{
    while (stream.done < sequence) {
        if (ready(stream)) {
            run_head(stream);
            continue;
        }
        if (stream.queue.empty() || stream.busy)
            return false;
        const auto key = std::make_pair(&stream, stream.queue.front().sequence);
        if (!path.insert(key).second)
            return false;
        const bool progress = run_partners(stream, path);
        path.erase(key);
        if (!progress)
            return false;
    }
    return true;
}

bool advance_to(Stream &stream, uint64_t sequence)
{
    Path path;
    machine().look++;
    switch (options().schedule) {
    case GPUSIM_LAZY:
        return run_needed(stream, sequence, path);
    case GPUSIM_RANDOM:
        while (stream.done < sequence && run_any_ready()) {
        }
        return stream.done >= sequence;
    case GPUSIM_EAGER:
        break;
    }
    run_all_ready();
    return stream.done >= sequence;
}

std::string head_text(const Stream &stream)
{
    const Task &head = stream.queue.front();
    std::string text = format_text("device %d stream %d at '%s'", stream.device, stream.number, head.name.c_str());
    for (const auto &part : head.parts)
        if (!part->done && part->members.size() < part->needed)
            text += format_text(" (%s: %zu of %zu ranks came)", part->name.c_str(), part->members.size(), part->needed);
    return text;
}

void report_deadlock(const Stream &waited)
{
    std::string stuck;
    bool kernels = false;
    for (const Stream *stream : machine().streams)
        if (!stream->queue.empty())
            stuck += (stuck.empty() ? "" : "; ") + head_text(*stream);
    for (Stream *stream : machine().streams)
        if (!stream->queue.empty() && stream->queue.front().running) {
            stream->queue.front().running->report_stuck();
            kernels = true;
        }
    if (!kernels) // they say where they poll
        report(GPUSIM_DEADLOCK, "the host waits for device %d stream %d for ever. Stuck: %s", waited.device,
               waited.number, stuck.c_str());
    for (Stream *stream : machine().streams)
        if (!stream->queue.empty() && !stream->busy)
            set_device_fault(stream->device, cudaErrorLaunchTimeout);
    run_all_ready(); // ends all work of the faulted devices
}

// Whether kernels that poll are to look again before anything else is done about it.
bool look_again(uint64_t *step, int *looks)
{
    if (*step != machine().step) {
        *step = machine().step;
        *looks = 0;
    }
    ++*looks;
    return kernels_poll() && (*looks <= looks_at_once || (*looks <= looks_in_all && only_thread()));
}

cudaError_t wait_until_done(Stream &stream, uint64_t sequence)
{
    QuietTime quiet;
    uint64_t step = machine().step;
    int looks = 0;
    while (!advance_to(stream, sequence)) {
        if (stream.done >= sequence)
            break;
        if (look_again(&step, &looks))
            continue;
        if (!stream.busy && quiet.over(machine().step)) {
            report_deadlock(stream);
            break;
        }
        quiet.wait();
    }
    counts().host_synchronisations++;
    return device_fault(stream.device);
}

} // namespace

Machine &machine()
{
    static auto &one = *new Machine;
    return one;
}

std::shared_ptr<Operation> begin_operation(Stream &stream, const Task &task)
{
    stream.clock.join(task.issued);
    stream.clock.advance(stream.component);
    auto operation = std::make_shared<Operation>();
    operation->clock = stream.clock;
    operation->device = stream.device;
    operation->name = interned(task.name);
    operation->id = operation_register(stream.component, stream.clock.at(stream.component), operation->name);
    pinned_begins(stream, task);
    return operation;
}

void finish_head(Stream &stream)
{
    stream.queue.front().running.reset();
    stream.done = stream.queue.front().sequence;
    stream.queue.pop_front();
    machine().step++;
    machine_changed();
}

bool ready(const Stream &stream)
{
    if (stream.busy || stream.queue.empty())
        return false;
    const Task &head = stream.queue.front();
    if (device_fault(stream.device) != cudaSuccess)
        return true;
    if (head.kind == TaskKind::kernel)
        return kernel_can_run(stream, head);
    if (head.kind == TaskKind::wait)
        return head.event->done;
    if (head.kind != TaskKind::rendezvous || all_done(stream, head))
        return true;
    for (const auto &part : head.parts)
        if (can_meet(*part))
            return true;
    return false;
}

// Host code runs until the next call.
void close_to_host()
{
    VectorClock known = host().clock;
    known.join(machine().published);
    guard_close(known);
}

CUstream_st *stream_new(int device)
{
    auto *stream = new CUstream_st;
    stream->device = device;
    stream->number = int(machine().streams.size());
    stream->component = component_new();
    machine().streams.push_back(stream);
    return stream;
}

const std::vector<Stream *> &streams()
{
    return machine().streams;
}

uint64_t push(Stream &stream, Task task)
{
    if (stream.capture)
        return capture_task(stream, std::move(task));
    if (stream.destroyed) {
        report(GPUSIM_API, "'%s' is given to a stream that was destroyed", task.name.c_str());
        return stream.issued;
    }
    host().clock.join(machine().published);
    task.issued = host().clock;
    host().clock.advance(host().component);
    task.sequence = ++stream.issued;
    if (task.kind == TaskKind::record) {
        task.event->stream = &stream;
        task.event->sequence = task.sequence;
    }
    for (const auto &part : task.parts)
        for (Rendezvous::Member &member : part->members)
            if (member.stream == &stream && member.sequence == 0)
                member.sequence = task.sequence;
    const bool uses_pinned = !task.pinned.empty();
    pinned_issued(stream, task);
    stream.queue.push_back(std::move(task));
    const uint64_t sequence = stream.issued;
    machine().step++;
    machine().look++;
    if (options().schedule == GPUSIM_EAGER)
        run_all_ready();
    else if (options().schedule == GPUSIM_RANDOM)
        while (random_number() % 4 == 0 && run_any_ready()) {
        }
    if (uses_pinned)
        close_to_host();
    machine_changed();
    return sequence;
}

void run_until(Stream &stream, uint64_t sequence)
{
    Path path;
    machine().look++;
    run_needed(stream, sequence, path);
}

uint64_t push_work(Stream &stream, const std::string &name, std::function<cudaError_t()> run,
                   std::vector<PinnedRange> pinned)
{
    Task task;
    task.name = name;
    task.run = std::move(run);
    task.pinned = std::move(pinned);
    return push(stream, std::move(task));
}

cudaError_t wait_for_stream(Stream &stream, uint64_t sequence)
{
    const cudaError_t error = wait_until_done(stream, sequence);
    host().clock.join(stream.clock);
    publish();
    return error;
}

cudaError_t wait_for_event(const std::shared_ptr<EventState> &event)
{
    cudaError_t error = cudaSuccess;
    if (!event->done)
        error = wait_until_done(*event->stream, event->sequence);
    else if (event->stream)
        error = device_fault(event->stream->device);
    host().clock.join(event->clock);
    publish();
    return error;
}

void poll(Stream &stream, uint64_t sequence)
{
    if (stream.done >= sequence)
        return;
    Path path;
    machine().look++;
    if (options().schedule == GPUSIM_LAZY && random_number() % 4 == 0)
        run_needed(stream, sequence, path);
    else if (options().schedule != GPUSIM_LAZY)
        run_any_ready();
    if (stream.done < sequence)
        give_way();
}

void host_has_seen(const VectorClock &clock)
{
    host().clock.join(clock);
    publish();
}

const Operation &host_operation()
{
    Host &thread = host();
    thread.clock.join(machine().published);
    const uint32_t time = thread.clock.at(thread.component);
    if (thread.operation_time != time) {
        thread.operation_time = time;
        thread.operation.name = interned("host thread " + std::to_string(thread.component));
        thread.operation.id = operation_register(thread.component, time, thread.operation.name);
    }
    thread.operation.clock = thread.clock;
    return thread.operation;
}

cudaError_t device_fault(int device)
{
    return machine().faults[device];
}

void set_device_fault(int device, cudaError_t error)
{
    if (machine().faults[device] == cudaSuccess)
        machine().faults[device] = error;
}

void scheduler_reset()
{
    for (Stream *stream : machine().streams) {
        for (Task &task : stream->queue)
            if (task.event && task.kind == TaskKind::record)
                task.event->done = true;
        stream->queue.clear(); // kernels under way are dropped
        stream->done = stream->issued;
        stream->capture = nullptr;
    }
    for (cudaError_t &fault : machine().faults)
        fault = cudaSuccess;
    kernel_order().clear();
    pinned_reset();
    machine_changed();
}

uint64_t machine_step()
{
    return machine().step;
}

} // namespace gpusim
