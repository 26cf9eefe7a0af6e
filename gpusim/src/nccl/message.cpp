// Sends and receives: the n-th send of a rank to another meets the other's n-th receive from it.
#include "group.h"

#include "../backing.h"

#include <algorithm>
#include <cstring>

namespace gpusim {
namespace {

cudaError_t run_message(const Message &message, Rendezvous &meeting, int sender)
{
    Rendezvous::Member *from = &meeting.members[0], *to = &meeting.members[1];
    if (from->rank != sender)
        std::swap(from, to);
    if (message.send_bytes != message.receive_bytes)
        return cudaSuccess; // reported when it was matched; no data moves
    {
        const OperationScope scope(from->operation.get());
        if (!range_access(message.send, message.send_bytes, kRead))
            return cudaErrorIllegalAddress;
    }
    to->operation->clock.join(from->operation->clock);
    const OperationScope scope(to->operation.get());
    if (!range_access(message.receive, message.receive_bytes, kWrite))
        return cudaErrorIllegalAddress;
    memmove(backing(message.receive), backing(message.send), message.send_bytes);
    return cudaSuccess;
}

} // namespace

std::shared_ptr<Rendezvous> message_join(const Job &job)
{
    Team &team = *job.comm->team;
    const int sender = job.sends ? job.comm->rank : job.peer, receiver = job.sends ? job.peer : job.comm->rank;
    auto &mine = (job.sends ? team.sends : team.receives)[{sender, receiver}];
    auto &others = (job.sends ? team.receives : team.sends)[{sender, receiver}];
    std::shared_ptr<Message> message;
    if (others.empty()) {
        message = std::make_shared<Message>();
        message->rendezvous = std::make_shared<Rendezvous>();
        message->rendezvous->name = format_text("message of rank %d to rank %d", sender, receiver);
        message->rendezvous->needed = 2;
        mine.push_back(message);
    } else {
        message = others.front();
        others.pop_front();
    }
    const size_t bytes = job.arguments.count * nccl_type_bytes(job.arguments.type);
    if (job.sends) {
        message->send = job.arguments.send;
        message->send_bytes = bytes;
        message->send_registered = in_window(job.comm, message->send);
    } else {
        message->receive = job.arguments.receive;
        message->receive_bytes = bytes;
        message->receive_registered = in_window(job.comm, message->receive);
    }
    message->rendezvous->members.push_back({job.stream, 0, job.comm->rank, nullptr});
    if (message->rendezvous->members.size() == 2) {
        if (message->send_bytes != message->receive_bytes)
            report(GPUSIM_NCCL, "rank %d sends %zu bytes to rank %d, which receives %zu", sender, message->send_bytes,
                   receiver, message->receive_bytes);
        // A window is a registered buffer, whose other end NCCL takes to be one too.
        if (message->send_registered != message->receive_registered && sender != receiver)
            report(GPUSIM_NCCL, "a message of rank %d to rank %d lies in a window of the %s only", sender, receiver,
                   message->send_registered ? "sender" : "receiver");
        Message halves = *message;
        halves.rendezvous = nullptr; // it holds this function
        message->rendezvous->run = [halves, sender](Rendezvous &meeting) {
            return run_message(halves, meeting, sender);
        };
    }
    return message->rendezvous;
}

} // namespace gpusim
