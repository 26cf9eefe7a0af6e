// Sends and receives: the n-th send of a rank to another meets the other's n-th receive from it.
#include "group.h"

#include "../backing.h"

#include <algorithm>
#include <cstring>

namespace gpusim {
namespace {

size_t bytes_of(const Message::Half &half)
{
    return half.count * nccl_type_bytes(half.type);
}

cudaError_t run_message(const Message &message, Rendezvous &meeting, int sender)
{
    Rendezvous::Member *from = &meeting.members[0], *to = &meeting.members[1];
    if (from->rank != sender)
        std::swap(from, to);
    const size_t bytes = bytes_of(message.sent);
    if (bytes != bytes_of(message.received))
        return cudaSuccess; // reported when it was matched; no data moves
    {
        const OperationScope scope(from->operation.get());
        if (!range_access(message.sent.memory, bytes, kRead))
            return cudaErrorIllegalAddress;
    }
    to->operation->clock.join(from->operation->clock);
    const OperationScope scope(to->operation.get());
    if (!range_access(message.received.memory, bytes, kWrite))
        return cudaErrorIllegalAddress;
    memmove(const_cast<void *>(backing(message.received.memory)), backing(message.sent.memory), bytes);
    return cudaSuccess;
}

void check_match(const Message &message, int sender, int receiver)
{
    const Message::Half &sent = message.sent, &received = message.received;
    if (sent.count != received.count || sent.type != received.type)
        report(GPUSIM_NCCL, "rank %d sends %zu elements of type %d to rank %d, which receives %zu of type %d", sender,
               sent.count, int(sent.type), receiver, received.count, int(received.type));
    // A window is a registered buffer, whose other end NCCL takes to be one too.
    if (sent.registered != received.registered && sender != receiver)
        report(GPUSIM_NCCL, "a message of rank %d to rank %d lies in a window of the %s only", sender, receiver,
               sent.registered ? "sender" : "receiver");
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
    const void *memory = job.sends ? job.arguments.send : job.arguments.receive;
    (job.sends ? message->sent : message->received) = {memory, job.arguments.count, job.arguments.type,
                                                       in_window(job.comm, memory)};
    message->rendezvous->members.push_back({job.stream, 0, job.comm->rank, nullptr});
    if (message->rendezvous->members.size() == 2) {
        check_match(*message, sender, receiver);
        Message halves = *message;
        halves.rendezvous = nullptr; // it holds this function
        message->rendezvous->run = [halves, sender](Rendezvous &meeting) {
            return run_message(halves, meeting, sender);
        };
    }
    return message->rendezvous;
}

} // namespace gpusim
