// Work of several streams that happens when all of them have come to it.
#include "guard.h"
#include "scheduler_parts.h"

#include <algorithm>

namespace gpusim {
namespace {

bool at_head(const Rendezvous::Member &member)
{
    const Stream &stream = *member.stream;
    return !stream.busy && !stream.queue.empty() && stream.queue.front().sequence == member.sequence;
}

bool has_left(const Rendezvous &part, const Stream &stream)
{
    return std::find(part.left.begin(), part.left.end(), &stream) != part.left.end();
}

void meet(Rendezvous &part)
{
    for (Rendezvous::Member &member : part.members) {
        Task &head = member.stream->queue.front();
        if (!head.operation)
            head.operation = begin_operation(*member.stream, head);
        member.operation = head.operation;
    }
    part.done = true;
    const GuardOpen open;
    const cudaError_t error = part.run(part);
    if (error != cudaSuccess)
        for (const Rendezvous::Member &member : part.members)
            set_device_fault(member.stream->device, error);
    for (Rendezvous::Member &member : part.members)
        member.stream->clock.join(member.operation->clock);
    machine().step++;
}

} // namespace

bool can_meet(const Rendezvous &part)
{
    if (part.done || part.members.size() < part.needed || !part.left.empty())
        return false;
    for (const Rendezvous::Member &member : part.members)
        if (!at_head(member) || device_fault(member.stream->device) != cudaSuccess)
            return false;
    return true;
}

bool all_done(const Stream &stream, const Task &task)
{
    for (const auto &part : task.parts)
        if (!part->done && !has_left(*part, stream))
            return false;
    return true;
}

void run_rendezvous(Stream &stream)
{
    Task &head = stream.queue.front();
    for (size_t i = 0; i < head.parts.size(); i++)
        if (can_meet(*head.parts[i]))
            meet(*head.parts[i]);
    if (all_done(stream, head))
        finish_head(stream);
    else
        machine_changed();
}

} // namespace gpusim
