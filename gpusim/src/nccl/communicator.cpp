#include "communicator.h"

#include "../handles.h"
#include "group.h"

#include <algorithm>
#include <cstring>

namespace gpusim {
namespace {

constexpr double patience = 60; // seconds that ranks wait for each other to come

thread_local std::string last_words;

std::map<std::string, std::shared_ptr<Team>> &teams()
{
    static auto &all = *new std::map<std::string, std::shared_ptr<Team>>;
    return all;
}

void complete(Team &team)
{
    for (size_t a = 0; a < team.ranks.size(); a++)
        for (size_t b = a + 1; b < team.ranks.size(); b++)
            if (team.ranks[a]->device == team.ranks[b]->device) {
                team.result = ncclInvalidUsage;
                report(GPUSIM_NCCL, "Duplicate GPU detected : rank %zu and rank %zu both on CUDA device %d", a, b,
                       team.ranks[a]->device);
            }
    team.complete = true;
    machine_changed();
}

ncclComm_t join_team(const std::shared_ptr<Team> &team, int rank, int device, bool blocking)
{
    auto *comm = new ncclComm;
    comm->team = team;
    comm->rank = rank;
    comm->device = device;
    comm->blocking = blocking;
    team->ranks[size_t(rank)] = comm;
    handle_made(comm, Handle::communicator, device);
    if (++team->joined == int(team->ranks.size()))
        complete(*team);
    return comm;
}

bool wants_blocking(const ncclConfig_t *config)
{
    return !config || config->blocking != 0; // undefined: blocking
}

ncclResult_t start_rank(ncclComm_t *made, int ranks, const std::string &name, int rank, int device,
                        const ncclConfig_t *config)
{
    if (!made || ranks < 1 || rank < 0 || rank >= ranks)
        return nccl_fail(ncclInvalidArgument, format_text("rank %d of %d", rank, ranks));
    if (const cudaError_t error = enter())
        return nccl_fail(ncclUnhandledCudaError, format_text("Cuda failure '%s'", cudaGetErrorString(error)));
    std::shared_ptr<Team> &team = teams()[name];
    if (!team) {
        team = std::make_shared<Team>();
        team->name = name;
        team->ranks.resize(size_t(ranks));
    }
    if (team->ranks.size() != size_t(ranks) || team->ranks[size_t(rank)]) {
        report(GPUSIM_NCCL,
               "ncclCommInitRank: rank %d of %d: another rank gave %zu ranks, or this rank is there already", rank,
               ranks, team->ranks.size());
        return nccl_fail(ncclInvalidArgument, "ranks disagree");
    }
    const std::shared_ptr<Team> joined = team;
    *made = join_team(joined, rank, device, wants_blocking(config));
    if (in_group())
        add_team_wait(joined);
    else if (wants_blocking(config))
        return team_wait(*joined);
    return joined->complete || in_group() ? joined->result : ncclInProgress;
}

void finish_split(Team &parent, Split &split)
{
    static int number;
    std::map<int, std::vector<Split::Wish>> colors;
    for (const Split::Wish &wish : split.wishes) {
        *wish.made = nullptr;
        if (wish.color != NCCL_SPLIT_NOCOLOR)
            colors[wish.color].push_back(wish);
    }
    for (auto &entry : colors) {
        std::vector<Split::Wish> &wishes = entry.second;
        std::sort(wishes.begin(), wishes.end(), [](const Split::Wish &a, const Split::Wish &b) {
            return std::make_pair(a.key, a.parent->rank) < std::make_pair(b.key, b.parent->rank);
        });
        auto team = std::make_shared<Team>();
        team->name = format_text("%s/%d", parent.name.c_str(), ++number);
        team->ranks.resize(wishes.size());
        for (size_t rank = 0; rank < wishes.size(); rank++)
            *wishes[rank].made = join_team(team, int(rank), wishes[rank].parent->device, wishes[rank].parent->blocking);
    }
    split.done = true;
    machine_changed();
}

struct Plan {
    int device = 0;
    int calls_left = 0; // with the one that fails; 0: none does
    Planted how = Planted::nothing;
};

Plan &plan()
{
    static Plan one;
    return one;
}

cudaError_t wait_for_used(ncclComm_t comm, const char *call)
{
    if (const size_t calls = unstarted_calls(comm))
        report(GPUSIM_NCCL, "%s of a communicator with %zu calls of a group that ncclGroupEnd has not ended", call,
               calls);
    cudaError_t error = cudaSuccess;
    for (const auto &entry : comm->used)
        if (error == cudaSuccess)
            error = wait_for_stream(*entry.first, entry.second);
    return error;
}

} // namespace

ncclResult_t nccl_fail(ncclResult_t result, const std::string &why)
{
    last_words = why;
    return result;
}

Planted planted_failure(int device)
{
    Plan &planted = plan();
    if (planted.calls_left == 0 || planted.device != device)
        return Planted::nothing;
    return --planted.calls_left == 0 ? planted.how : Planted::nothing;
}

ncclResult_t team_wait(Team &team)
{
    if (!wait_for_condition(patience, [&] { return team.complete; })) {
        report(GPUSIM_NCCL, "ncclCommInitRank: %d of %zu ranks came; several ranks of one thread need ncclGroupStart",
               team.joined, team.ranks.size());
        return nccl_fail(ncclSystemError, "not all ranks came");
    }
    return team.result == ncclSuccess ? ncclSuccess : nccl_fail(team.result, "Duplicate GPU detected");
}

} // namespace gpusim

using namespace gpusim;

extern "C" {

void gpusim_fail_nccl(int device, int n, gpusim_nccl_failure how)
{
    Locked lock(machine_lock());
    plan() = {device, n, how == GPUSIM_NCCL_LATER ? Planted::later : Planted::at_call};
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    Locked lock(machine_lock());
    static unsigned number;
    if (!id)
        return ncclInvalidArgument;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "gpusim-%u", ++number);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    Locked lock(machine_lock());
    if (config && (config->magic != 0xcafebeef || config->size > sizeof(ncclConfig_t)))
        return nccl_fail(ncclInvalidArgument, "ncclConfig_t not initialised with NCCL_CONFIG_INITIALIZER");
    const ncclResult_t result =
        start_rank(comm, ranks, std::string(id.internal, strnlen(id.internal, sizeof id.internal)), rank,
                   current_device(), config);
    return result == ncclSuccess || result == ncclInProgress ? result : group_error(result);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int ranks, int rank, int, ncclUniqueId *ids,
                                      ncclConfig_t *config)
{
    return ncclCommInitRankConfig(comm, ranks, ids[0], rank, config);
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ranks, const int *devices)
{
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    Locked lock(machine_lock());
    ncclGroupStart();
    ncclResult_t result = ncclSuccess;
    for (int rank = 0; rank < ranks && result == ncclSuccess; rank++) {
        const int device = devices ? devices[rank] : rank;
        result = device >= 0 && device < options().devices
                     ? start_rank(&comms[rank], ranks, id.internal, rank, device, nullptr)
                     : nccl_fail(ncclInvalidArgument, format_text("device %d", device));
    }
    group_error(result);
    const ncclResult_t ended = ncclGroupEnd();
    return result != ncclSuccess ? result : ended;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *)
{
    Locked lock(machine_lock());
    if (!comm || comm->dead || !made || (color < 0 && color != NCCL_SPLIT_NOCOLOR))
        return group_error(nccl_fail(ncclInvalidArgument, "ncclCommSplit"));
    Team &team = *comm->team;
    std::shared_ptr<Split> &slot = team.splits[comm->splits++];
    if (!slot)
        slot = std::make_shared<Split>();
    const std::shared_ptr<Split> split = slot;
    split->wishes.push_back({comm, made, color, key});
    if (split->wishes.size() == team.ranks.size())
        finish_split(team, *split);
    if (in_group()) {
        add_split_wait(split);
        return ncclSuccess;
    }
    if (!wait_for_condition(patience, [&] { return split->done; }))
        return nccl_fail(ncclSystemError, "ncclCommSplit: not all ranks called it");
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    Locked lock(machine_lock());
    if (!comm || comm->dead)
        return nccl_fail(ncclInvalidArgument, "ncclCommFinalize");
    return wait_for_used(comm, "ncclCommFinalize") == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    Locked lock(machine_lock());
    if (!comm)
        return ncclSuccess;
    if (comm->dead) {
        report(GPUSIM_NCCL, "ncclCommDestroy of a communicator that was destroyed or aborted");
        return nccl_fail(ncclInvalidArgument, "ncclCommDestroy");
    }
    wait_for_used(comm, "ncclCommDestroy");
    windows_close(comm, true);
    handle_gone(comm);
    comm->dead = true; // kept, so that later use is known as such
    return ncclSuccess;
}

// This rank's work ends as it is; the others' goes on waiting for it until they abort too.
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    Locked lock(machine_lock());
    if (!comm)
        return ncclSuccess;
    for (const auto &part : comm->pending)
        if (!part->done)
            for (const Rendezvous::Member &member : part->members)
                if (member.rank == comm->rank)
                    part->left.push_back(member.stream);
    windows_close(comm, false);
    handle_gone(comm);
    comm->dead = true;
    machine_changed();
    return ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t, int)
{
    report(GPUSIM_UNSUPPORTED, "ncclCommRevoke");
    return ncclInvalidUsage;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    Locked lock(machine_lock());
    if (!comm || !error)
        return ncclInvalidArgument;
    *error = !comm->team->complete ? ncclInProgress : comm->team->result;
    if (*error == ncclSuccess && comm->registering)
        *error = comm->registering->done ? comm->registering->result : ncclInProgress;
    if (comm->failed != ncclSuccess)
        *error = comm->failed;
    if (device_fault(comm->device) != cudaSuccess)
        *error = ncclUnhandledCudaError;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    if (!comm || !count)
        return ncclInvalidArgument;
    *count = int(comm->team->ranks.size());
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    if (!comm || !device)
        return ncclInvalidArgument;
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    if (!comm || !rank)
        return ncclInvalidArgument;
    *rank = comm->rank;
    return ncclSuccess;
}

const char *ncclGetLastError(ncclComm_t)
{
    return last_words.c_str();
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                                        "internal error - please report this issue to the NCCL developers",
                                        "invalid argument (run with NCCL_DEBUG=WARN for details)",
                                        "invalid usage (run with NCCL_DEBUG=WARN for details)",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return result >= 0 && result < ncclNumResults ? texts[result] : "unknown result code";
}
}
