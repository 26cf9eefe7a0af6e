#include "group.h"

#include "../runtime/capture.h"

#include <algorithm>
#include <set>

namespace gpusim {
namespace {

struct Group {
    int depth = 0;
    std::vector<Job> jobs;
    std::vector<std::shared_ptr<Team>> teams;  // to be complete at the end
    std::vector<std::shared_ptr<Split>> splits;
    std::vector<std::shared_ptr<Registration>> registrations;
    ncclResult_t error = ncclSuccess; // of a call within the group: nothing of it starts

    ~Group(); // with the thread
};

thread_local Group group;

// Those that have begun and not ended, of all threads. Under machine_lock().
std::set<const Group *> &open_groups()
{
    static auto &all = *new std::set<const Group *>;
    return all;
}

void report_open(const Group &open)
{
    report(GPUSIM_NCCL, "ncclGroupStart without ncclGroupEnd: %zu calls were given and never started",
           open.jobs.size());
}

Group::~Group()
{
    Locked lock(machine_lock());
    if (open_groups().erase(this))
        report_open(*this);
}

std::string jobs_text(const std::vector<Job> &jobs)
{
    if (jobs.size() == 1)
        return jobs[0].message ? (jobs[0].sends ? "ncclSend" : "ncclRecv") : collective_name(jobs[0].arguments.kind);
    bool messages = true;
    for (const Job &job : jobs)
        messages &= job.message;
    return messages ? "ncclSend/ncclRecv group" : "NCCL group";
}

// A call that fails while it runs: its stream waits until the communicator is aborted, and the other ranks' for it.
std::shared_ptr<Rendezvous> endless(const Job &job)
{
    auto part = std::make_shared<Rendezvous>();
    part->name = "a failed call";
    part->needed = SIZE_MAX;
    part->members.push_back({job.stream, 0, job.comm->rank, nullptr});
    job.comm->failed = ncclRemoteError;
    return part;
}

// All calls of one rank on one stream are one task: its parts go on together.
void start_jobs(const std::vector<Job> &jobs, Stream &stream)
{
    Task task;
    task.kind = TaskKind::rendezvous;
    task.name = jobs_text(jobs);
    ncclComm_t comm = jobs[0].comm;
    for (Job job : jobs) {
        job.stream = &stream;
        task.parts.push_back(job.never_ends ? endless(job) : job.message ? message_join(job) : collective_join(job));
    }
    auto &pending = comm->pending;
    pending.erase(std::remove_if(pending.begin(), pending.end(), [](const auto &part) { return part->done; }),
                  pending.end());
    pending.insert(pending.end(), task.parts.begin(), task.parts.end());
    comm->used[&stream] = push(stream, std::move(task));
}

void capture_jobs(const std::vector<Job> &jobs, Stream &stream)
{
    Task task;
    task.kind = TaskKind::rendezvous;
    task.name = jobs_text(jobs);
    task.issue = [jobs](Stream &lane, Task &) { start_jobs(jobs, lane); };
    push(stream, std::move(task));
}

void start_all(const std::vector<Job> &jobs)
{
    std::vector<bool> started(jobs.size());
    for (size_t i = 0; i < jobs.size(); i++) {
        if (started[i])
            continue;
        std::vector<Job> together;
        for (size_t k = i; k < jobs.size(); k++)
            if (jobs[k].comm == jobs[i].comm && jobs[k].stream == jobs[i].stream) {
                together.push_back(jobs[k]);
                started[k] = true;
            }
        if (jobs[i].stream->capture)
            capture_jobs(together, *jobs[i].stream);
        else
            start_jobs(together, *jobs[i].stream);
    }
}

ncclResult_t end_group()
{
    open_groups().erase(&group);
    Group ended;
    std::swap(ended, group);
    if (ended.error != ncclSuccess)
        return ended.error;
    ncclResult_t result = ncclSuccess;
    for (const auto &team : ended.teams)
        if (result == ncclSuccess)
            result = team_wait(*team);
    for (const auto &split : ended.splits)
        if (result == ncclSuccess && !wait_for_condition(60, [&] { return split->done; }))
            result = nccl_fail(ncclSystemError, "ncclCommSplit: not all ranks called it");
    for (const auto &registration : ended.registrations)
        if (result == ncclSuccess)
            result = registration_wait(*registration);
    if (result == ncclSuccess)
        start_all(ended.jobs);
    return result;
}

} // namespace

bool in_group()
{
    return group.depth > 0;
}

size_t unstarted_calls(const ncclComm *comm)
{
    size_t calls = 0;
    for (const Group *open : open_groups())
        for (const Job &job : open->jobs)
            calls += job.comm == comm;
    return calls;
}

bool waits_for_own_group(const Stream &stream)
{
    for (const Job &job : group.jobs)
        if (job.stream == &stream)
            return true;
    return false;
}

void report_open_groups()
{
    for (const Group *open : open_groups())
        report_open(*open);
}

ncclResult_t add_job(const Job &job)
{
    group.jobs.push_back(job);
    return in_group() ? ncclSuccess : end_group();
}

void add_team_wait(const std::shared_ptr<Team> &team)
{
    group.teams.push_back(team);
}

void add_split_wait(const std::shared_ptr<Split> &split)
{
    group.splits.push_back(split);
}

void add_registration_wait(const std::shared_ptr<Registration> &registration)
{
    group.registrations.push_back(registration);
}

ncclResult_t group_error(ncclResult_t result)
{
    if (in_group() && group.error == ncclSuccess)
        group.error = result;
    return result;
}

} // namespace gpusim

using namespace gpusim;

extern "C" {

ncclResult_t ncclGroupStart()
{
    Locked lock(machine_lock());
    if (group.depth++ == 0)
        open_groups().insert(&group);
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd()
{
    Locked lock(machine_lock());
    if (group.depth == 0)
        return nccl_fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    return --group.depth ? ncclSuccess : end_group();
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *)
{
    report(GPUSIM_UNSUPPORTED, "ncclGroupSimulateEnd");
    return ncclInvalidUsage;
}
}
