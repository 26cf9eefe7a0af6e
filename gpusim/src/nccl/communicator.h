// Communicators. A team is what the ranks of one communicator share; each rank has its own ncclComm.
#pragma once
#include "../access.h"
#include "../runtime/runtime.h"

#include <deque>
#include <map>

namespace gpusim {

enum class Collective { all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, reduce, gather, scatter };

// What one rank passed to one call.
struct CollectiveArguments {
    Collective kind;
    const void *send;
    void *receive;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root;
};

struct Registration;

// Whether NCCL would take its kernel for symmetric memory for this call, and where its buffers then lie in their
// windows.
struct SymmetricPlace {
    bool symmetric = false;
    const Registration *send = nullptr, *receive = nullptr;
    size_t send_offset = 0, receive_offset = 0;
};

// One collective of a team: the ranks' arguments as they come.
struct CollectiveCall {
    std::shared_ptr<Rendezvous> rendezvous;
    std::vector<CollectiveArguments> arguments; // by rank
    int first_rank = -1;                        // whose arguments the others' are compared with
    SymmetricPlace place;                       // and whose buffers' places
    bool mismatch = false;                      // reported; no data moves
};

struct Message {
    std::shared_ptr<Rendezvous> rendezvous;
    struct Half {
        const void *memory = nullptr;
        size_t count = 0;
        ncclDataType_t type = ncclInt8;
        bool registered = false; // in a window of that rank
    };
    Half sent, received;
};

struct Split {
    struct Wish {
        ncclComm_t parent;
        ncclComm_t *made;
        int color, key;
    };
    std::vector<Wish> wishes;
    bool done = false;
};

// One registration of memory by all ranks of a team: a window of each.
struct Registration {
    struct Wish {
        ncclComm_t comm;
        void *memory;
        size_t bytes;
        int flags;
        ncclWindow_t *made;
    };
    std::vector<Wish> wishes;
    std::vector<ncclWindow_t> windows; // by rank; NULL: not any more
    bool done = false;
    ncclResult_t result = ncclSuccess;
};

struct Team {
    std::string name;
    std::vector<ncclComm_t> ranks; // NULL: not there yet
    int joined = 0;
    bool complete = false;
    ncclResult_t result = ncclSuccess; // of the initialisation
    std::map<uint64_t, std::shared_ptr<CollectiveCall>> calls;
    std::map<uint64_t, std::shared_ptr<Split>> splits;
    std::map<uint64_t, std::shared_ptr<Registration>> registrations;
    // By (sender, receiver): halves whose other half has not come.
    std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> sends, receives;
};

// A user's reduction: multiply by a scalar, then sum.
struct ScaledSum {
    ncclDataType_t type;
    ncclScalarResidence_t residence;
    const void *pointer; // device memory, read when it runs
    unsigned char value[8];
};

// Waits until all ranks of the team are there; its result.
ncclResult_t team_wait(Team &team);
enum class Planted { nothing, at_call, later };
Planted planted_failure(int device); // of the call that is made now: gpusim_fail_nccl
ncclResult_t nccl_fail(ncclResult_t result, const std::string &why); // keeps the words for ncclGetLastError

// registration.cpp
ncclResult_t registration_wait(Registration &registration); // as team_wait
void windows_close(ncclComm_t comm, bool leaked); // those that are left; leaked: reported
SymmetricPlace symmetric_place(ncclComm_t comm, const CollectiveArguments &arguments);
bool in_window(ncclComm_t comm, const void *address);

} // namespace gpusim

struct ncclComm {
    std::shared_ptr<gpusim::Team> team;
    int rank = 0;
    int device = 0;
    bool blocking = true;
    bool dead = false;
    ncclResult_t failed = ncclSuccess; // for ncclCommGetAsyncError
    uint64_t collectives = 0, splits = 0, registrations = 0;
    std::shared_ptr<gpusim::Registration> registering; // the last one
    std::vector<std::shared_ptr<gpusim::Rendezvous>> pending; // of which this rank is a member
    std::map<gpusim::Stream *, uint64_t> used;                // last task on each stream
    std::map<int, gpusim::ScaledSum> reductions;              // by ncclRedOp_t
};
