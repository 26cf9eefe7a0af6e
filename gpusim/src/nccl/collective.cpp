// Collectives: the ranks' calls are matched and compared, and run when all streams have come to theirs.
#include "group.h"

#include "../backing.h"

#include <cstring>

namespace gpusim {
namespace {

using Bytes = std::vector<unsigned char>;

const char *const names[] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather", "ncclAlltoAll",
                             "ncclBroadcast", "ncclReduce",        "ncclGather",    "ncclScatter"};

bool reduces(Collective kind)
{
    return kind == Collective::all_reduce || kind == Collective::reduce_scatter || kind == Collective::reduce;
}

bool has_root(Collective kind)
{
    return kind == Collective::broadcast || kind == Collective::reduce || kind == Collective::gather ||
           kind == Collective::scatter;
}

std::string call_text(int rank, const CollectiveArguments &call)
{
    std::string text = format_text("rank %d calls %s of %zu elements of type %d", rank, collective_name(call.kind),
                                   call.count, int(call.type));
    if (reduces(call.kind))
        text += format_text(", operation %d", int(call.op));
    if (has_root(call.kind))
        text += format_text(", root %d", call.root);
    return text;
}

bool same_op(ncclRedOp_t a, ncclRedOp_t b)
{
    return a == b || (a >= ncclNumOps && b >= ncclNumOps); // handles of user's operations are each rank's own
}

bool same_call(const CollectiveArguments &a, const CollectiveArguments &b)
{
    return a.kind == b.kind && a.count == b.count && a.type == b.type && (!reduces(a.kind) || same_op(a.op, b.op)) &&
           a.root == b.root;
}

// What NCCL's kernels for symmetric memory take for granted: all ranks run them, and find the others' data where their
// own lies.
void check_places(int rank, const SymmetricPlace &own, const CollectiveCall &call, Collective kind)
{
    const SymmetricPlace &first = call.place;
    const bool reads = kind == Collective::all_reduce || kind == Collective::reduce_scatter;
    const bool writes = kind == Collective::all_reduce || kind == Collective::all_gather;
    const char *name = collective_name(kind);
    if (!reads && !writes)
        return;
    if (own.symmetric != first.symmetric)
        report(GPUSIM_NCCL,
               "%s: one of the ranks %d and %d has its buffers in symmetric windows, the other has not: they run "
               "different kernels",
               name, call.first_rank, rank);
    else if (own.symmetric &&
             ((reads && (own.send != first.send || own.send_offset != first.send_offset)) ||
              (writes && (own.receive != first.receive || own.receive_offset != first.receive_offset))))
        report(GPUSIM_NCCL, "%s: the ranks %d and %d have their buffers at different places in their windows", name,
               call.first_rank, rank);
}

// Elements that a rank sends and receives, in counts.
struct Volume {
    size_t send, receive;
};

Volume volume_of(Collective kind, size_t ranks, bool root)
{
    switch (kind) {
    case Collective::all_reduce:
        return {1, 1};
    case Collective::reduce_scatter:
        return {ranks, 1};
    case Collective::all_gather:
        return {1, ranks};
    case Collective::all_to_all:
        return {ranks, ranks};
    case Collective::broadcast:
        return {root ? 1u : 0u, 1};
    case Collective::reduce:
        return {1, root ? 1u : 0u};
    case Collective::gather:
        return {1, root ? ranks : 0u};
    case Collective::scatter:
        return {root ? ranks : 0u, 1};
    }
    return {0, 0};
}

// One run of a collective: data in host copies first, so that in-place calls need no care.
class Run {
public:
    Run(Team &team, CollectiveCall &call, Rendezvous &meeting) : team_(team), call_(call), meeting_(meeting)
    {
        const CollectiveArguments &first = call.arguments[size_t(call.first_rank)];
        kind_ = first.kind;
        root_ = first.root;
        ranks_ = team.ranks.size();
        element_ = nccl_type_bytes(first.type);
        piece_ = first.count * element_;
    }

    cudaError_t go()
    {
        if (!access_all(false))
            return cudaErrorIllegalAddress;
        join_clocks();
        if (!access_all(true))
            return cudaErrorIllegalAddress;
        if (reduces(kind_))
            reduce_all();
        for (size_t rank = 0; rank < ranks_; rank++)
            deliver(rank);
        return cudaSuccess;
    }

private:
    const CollectiveArguments &arguments(size_t rank) const { return call_.arguments[rank]; }
    bool is_root(size_t rank) const { return has_root(kind_) && int(rank) == root_; }

    // Reads or writes of all ranks, each by its own operation. Keeps what is read.
    bool access_all(bool writes)
    {
        bool fine = true;
        sent_.resize(ranks_);
        for (Rendezvous::Member &member : meeting_.members) {
            const size_t rank = size_t(member.rank);
            const Volume volume = volume_of(kind_, ranks_, is_root(rank));
            const size_t bytes = (writes ? volume.receive : volume.send) * piece_;
            const void *memory = writes ? arguments(rank).receive : arguments(rank).send;
            const OperationScope scope(member.operation.get());
            if (!range_access(memory, bytes, writes ? kWrite : kRead))
                fine = false;
            else if (!writes && bytes)
                sent_[rank].assign(static_cast<const unsigned char *>(backing(memory)),
                                   static_cast<const unsigned char *>(backing(memory)) + bytes);
        }
        return fine;
    }

    // Who has data of whom afterwards comes after it.
    void join_clocks()
    {
        VectorClock all, root;
        for (const Rendezvous::Member &member : meeting_.members) {
            all.join(member.operation->clock);
            if (is_root(size_t(member.rank)))
                root = member.operation->clock;
        }
        for (Rendezvous::Member &member : meeting_.members) {
            if (!has_root(kind_))
                member.operation->clock.join(all);
            else if (kind_ == Collective::broadcast || kind_ == Collective::scatter)
                member.operation->clock.join(root);
            else if (is_root(size_t(member.rank)))
                member.operation->clock.join(all);
        }
    }

    double scale_of(size_t rank) const
    {
        const CollectiveArguments &call = arguments(rank);
        const bool integer = call.type < ncclFloat16;
        if (call.op == ncclAvg)
            return integer ? 1.0 : 1.0 / double(ranks_);
        if (call.op < ncclNumOps)
            return 1.0;
        const auto found = team_.ranks[rank]->reductions.find(int(call.op));
        if (found == team_.ranks[rank]->reductions.end())
            return 1.0;
        const ScaledSum &sum = found->second;
        return nccl_scalar(sum.residence == ncclScalarDevice ? backing(sum.pointer) : sum.value, sum.type);
    }

    // As a ring does: each of n chunks starts at another rank, and every hop rounds.
    void reduce_all()
    {
        const CollectiveArguments &first = arguments(size_t(call_.first_rank));
        for (size_t rank = 0; rank < ranks_; rank++)
            if (scale_of(rank) != 1.0)
                nccl_scale(sent_[rank].data(), sent_[rank].size() / element_, first.type, scale_of(rank));
        const size_t total = sent_[0].size() / element_;
        const size_t turn = options().order == GPUSIM_SHUFFLED ? random_number() % ranks_ : 0;
        reduced_.resize(sent_[0].size());
        for (size_t chunk = 0; chunk < ranks_; chunk++) {
            const size_t begin = total * chunk / ranks_, end = total * (chunk + 1) / ranks_;
            reduce_chunk(begin, end - begin, (chunk + turn) % ranks_);
        }
        if (first.op == ncclAvg && first.type < ncclFloat16)
            nccl_divide(reduced_.data(), total, first.type, int(ranks_));
    }

    void reduce_chunk(size_t begin, size_t count, size_t start)
    {
        const CollectiveArguments &first = arguments(size_t(call_.first_rank));
        unsigned char *into = reduced_.data() + begin * element_;
        for (size_t step = 0; step < ranks_ && count; step++) {
            const size_t rank = (start + (options().order == GPUSIM_DOWN ? ranks_ - step : step)) % ranks_;
            const unsigned char *from = sent_[rank].data() + begin * element_;
            if (step == 0)
                memcpy(into, from, count * element_);
            else
                nccl_combine(into, from, count, first.type, first.op);
        }
    }

    void deliver(size_t rank)
    {
        unsigned char *out = static_cast<unsigned char *>(backing(arguments(rank).receive));
        const size_t bytes = volume_of(kind_, ranks_, is_root(rank)).receive * piece_;
        if (bytes == 0)
            return;
        switch (kind_) {
        case Collective::all_reduce:
        case Collective::reduce:
            memcpy(out, reduced_.data(), bytes);
            break;
        case Collective::reduce_scatter:
            memcpy(out, reduced_.data() + rank * piece_, bytes);
            break;
        case Collective::all_gather:
        case Collective::gather:
            for (size_t from = 0; from < ranks_; from++)
                memcpy(out + from * piece_, sent_[from].data(), piece_);
            break;
        case Collective::all_to_all:
            for (size_t from = 0; from < ranks_; from++)
                memcpy(out + from * piece_, sent_[from].data() + rank * piece_, piece_);
            break;
        case Collective::broadcast:
            memcpy(out, sent_[size_t(root_)].data(), bytes);
            break;
        case Collective::scatter:
            memcpy(out, sent_[size_t(root_)].data() + rank * piece_, bytes);
            break;
        }
    }

    Team &team_;
    CollectiveCall &call_;
    Rendezvous &meeting_;
    Collective kind_;
    int root_ = 0;
    size_t ranks_ = 0, element_ = 0, piece_ = 0;
    std::vector<Bytes> sent_;
    Bytes reduced_;
};

std::shared_ptr<CollectiveCall> call_number(const std::shared_ptr<Team> &team, uint64_t number,
                                            const CollectiveArguments &arguments)
{
    std::shared_ptr<CollectiveCall> &call = team->calls[number];
    if (call)
        return call;
    call = std::make_shared<CollectiveCall>();
    call->arguments.resize(team->ranks.size());
    call->rendezvous = std::make_shared<Rendezvous>();
    call->rendezvous->name = collective_name(arguments.kind);
    call->rendezvous->needed = team->ranks.size();
    call->rendezvous->run = [team, number](Rendezvous &meeting) {
        const std::shared_ptr<CollectiveCall> running = team->calls[number];
        team->calls.erase(number);
        return running->mismatch ? cudaSuccess : Run(*team, *running, meeting).go();
    };
    return call;
}

} // namespace

const char *collective_name(Collective kind)
{
    return names[int(kind)];
}

std::shared_ptr<Rendezvous> collective_join(const Job &job)
{
    const std::shared_ptr<Team> &team = job.comm->team;
    const std::shared_ptr<CollectiveCall> call = call_number(team, job.comm->collectives++, job.arguments);
    const int rank = job.comm->rank;
    const SymmetricPlace place = symmetric_place(job.comm, job.arguments);
    if (call->first_rank < 0) {
        call->first_rank = rank;
        call->place = place;
    } else if (!same_call(call->arguments[size_t(call->first_rank)], job.arguments)) {
        report(GPUSIM_NCCL, "%s where %s: real NCCL hangs or corrupts memory", call_text(rank, job.arguments).c_str(),
               call_text(call->first_rank, call->arguments[size_t(call->first_rank)]).c_str());
        call->mismatch = true;
    } else {
        check_places(rank, place, *call, job.arguments.kind);
    }
    call->arguments[size_t(rank)] = job.arguments;
    call->rendezvous->members.push_back({job.stream, 0, rank, nullptr});
    counts().collectives += rank == 0;
    return call->rendezvous;
}

} // namespace gpusim
