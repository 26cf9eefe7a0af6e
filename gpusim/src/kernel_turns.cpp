// Kernels run beside each other, in turns: which may start, for how long one goes on, and when it only polls.
#include "guard.h"
#include "kernel_order.h"
#include "scheduler_parts.h"

namespace gpusim {
namespace {

// Steps of a kernel's turn in random schedules, if others could run instead.
constexpr uint32_t shortest_turn = 50, longest_turn = 5000;

uint64_t steps_of_turn(const Stream &stream)
{
    if (options().schedule != GPUSIM_RANDOM)
        return UINT64_MAX;
    for (const Stream *other : machine().streams)
        if (other != &stream && ready(*other))
            return shortest_turn + random_number() % (longest_turn - shortest_turn);
    return UINT64_MAX;
}

// Kernels start in the order of their launches where blocks of others leave room: what is left of those takes it first.
bool has_room(int device, double share)
{
    double load = 0;
    bool any = false;
    for (const Stream *stream : machine().streams)
        if (stream->device == device && !stream->queue.empty() && stream->queue.front().running) {
            load += stream->queue.front().running->load();
            any = true;
        }
    return !any || load + share <= options().multiprocessors;
}

} // namespace

bool kernel_can_run(const Stream &stream, const Task &kernel)
{
    if (!kernel.running)
        return has_room(stream.device, kernel.share);
    return kernel.idle_step != machine().step || kernel.idle_look != machine().look;
}

void end_kernel(Stream &stream, cudaError_t error)
{
    Task &head = stream.queue.front();
    monitor_kernel_end();
    stream.clock.join(head.operation->clock);
    if (error != cudaSuccess)
        set_device_fault(stream.device, error);
    finish_head(stream);
}

void run_kernel(Stream &stream)
{
    Task &head = stream.queue.front();
    if (!head.running) {
        head.operation = begin_operation(stream, head);
        head.running = head.start();
    }
    const auto operation = head.operation;
    const GuardOpen open;
    const OperationScope scope(operation.get());
    switch (head.running->turn(steps_of_turn(stream))) {
    case Turn::ended:
        return end_kernel(stream, head.running->result());
    case Turn::goes_on:
        machine().step++;
        return machine_changed();
    case Turn::polls:
        head.idle_step = machine().step;
        head.idle_look = machine().look;
    }
}

bool kernels_poll()
{
    for (const Stream *stream : machine().streams)
        if (!stream->queue.empty() && stream->queue.front().running)
            return true;
    return false;
}

} // namespace gpusim
