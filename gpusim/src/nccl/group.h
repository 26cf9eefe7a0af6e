// ncclGroupStart to ncclGroupEnd: what a thread asks for in between starts together at the end.
#pragma once
#include "communicator.h"

namespace gpusim {

// One call of one rank, waiting for the group's end: a collective, or one half of a message.
struct Job {
    ncclComm_t comm;
    Stream *stream;
    bool message; // send or receive
    bool sends;
    int peer;
    CollectiveArguments arguments;
    bool never_ends; // a planted failure
};

bool in_group();
ncclResult_t group_error(ncclResult_t result); // within a group: the whole of it fails with this
size_t unstarted_calls(const ncclComm *comm); // given to groups, of any thread, that have not ended
ncclResult_t add_job(const Job &job); // starts it at once outside a group
void add_team_wait(const std::shared_ptr<Team> &team);
void add_split_wait(const std::shared_ptr<Split> &split);
void add_registration_wait(const std::shared_ptr<Registration> &registration);

// collective.cpp, message.cpp: this rank's share of a call, found or made in its team.
std::shared_ptr<Rendezvous> collective_join(const Job &job);
std::shared_ptr<Rendezvous> message_join(const Job &job);

// arithmetic.cpp
size_t nccl_type_bytes(ncclDataType_t type); // 0: not simulated
// acc[i] = acc[i] op (scale * in[i]), each rounded to the type.
void nccl_scale(void *values, size_t count, ncclDataType_t type, double scale);
void nccl_combine(void *accumulated, const void *values, size_t count, ncclDataType_t type, ncclRedOp_t op);
void nccl_divide(void *values, size_t count, ncclDataType_t type, int divisor);
double nccl_scalar(const void *value, ncclDataType_t type);

const char *collective_name(Collective kind);

} // namespace gpusim
