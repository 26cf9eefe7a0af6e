// Streams, what is queued on them, and the order it runs in. Everything here under machine_lock(); work runs one
// operation at a time on whichever host thread gave it or waits for it. Kernels run in turns: one that waits for what
// another writes lets others go on.
#pragma once
#include "api.h"
#include "operation.h"
#include "options.h"
#include "pinned.h"

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace gpusim {

struct Stream;
struct Capture;

// One cudaEventRecord: what it stands for once the stream has got there.
struct EventState {
    bool done = false;
    VectorClock clock;
    Stream *stream = nullptr;
    uint64_t sequence = 0; // of the record in its stream
    uint64_t step = 0;     // of the machine, when done: stands for the time
    Capture *capture = nullptr;
};

// Work of several streams that happens when all of them have come to it: a collective, or one send and its receive.
struct Rendezvous {
    struct Member {
        Stream *stream;
        uint64_t sequence;
        int rank;
        std::shared_ptr<Operation> operation; // once its stream has come to it
    };
    std::string name;
    size_t needed = 0;
    std::vector<Member> members;
    bool done = false;
    std::vector<const Stream *> left; // members that gave up: it can't happen any more, and the others wait on
    std::function<cudaError_t(Rendezvous &)> run; // sets the members' clocks and does the work
};

// A kernel under way.
enum class Turn { ended, goes_on, polls };
struct Running {
    virtual ~Running() = default;
    virtual Turn turn(uint64_t steps) = 0; // for about so many steps; sooner if it only polls
    virtual cudaError_t result() const = 0;
    virtual double load() const = 0;       // multiprocessors that what is left of it would fill
    virtual void report_stuck() = 0;       // it polls for ever
};

enum class TaskKind { work, kernel, record, wait, host_function, rendezvous };

struct Task {
    TaskKind kind = TaskKind::work;
    std::string name;
    std::function<cudaError_t()> run; // work, host_function
    std::function<std::unique_ptr<Running>()> start; // kernel
    double share = 0;                                // of a multiprocessor that one of its blocks takes
    std::shared_ptr<Running> running;
    uint64_t idle_step = UINT64_MAX, idle_look = UINT64_MAX; // of the machine, when the kernel had nothing to do but
                                                             // poll
    std::shared_ptr<EventState> event;
    std::function<void(bool)> told; // a wait: whether it ordered anything; may be empty
    std::vector<std::shared_ptr<Rendezvous>> parts; // all must be done for the task to be
    std::function<void(Stream &, Task &)> issue; // a captured rendezvous: finds its partners anew at each launch
    std::vector<PinnedRange> pinned;             // pinned memory that it uses
    VectorClock issued;                          // what the issuing host thread knew
    uint64_t sequence = 0;
    std::shared_ptr<Operation> operation; // a rendezvous or kernel that its stream has come to
};

struct Stream {
    int device = 0;
    int number = 0;
    int priority = 0;
    unsigned flags = 0;
    bool legacy = false;
    bool destroyed = false;
    bool busy = false; // a host function runs, with the lock released
    uint32_t component = 0;
    VectorClock clock;
    std::deque<Task> queue;
    uint64_t issued = 0, done = 0; // sequence numbers
    Capture *capture = nullptr;
};

} // namespace gpusim

struct CUstream_st : gpusim::Stream {};

namespace gpusim {

CUstream_st *stream_new(int device);
const std::vector<Stream *> &streams();

// Queues the task (or adds it to the capture that the stream is in) and runs what the schedule says. Returns its
// number.
uint64_t push(Stream &stream, Task task);
uint64_t push_work(Stream &stream, const std::string &name, std::function<cudaError_t()> run,
                   std::vector<PinnedRange> pinned = {});
void run_until(Stream &stream, uint64_t sequence); // as far as it goes now

// Waits of host threads. The host thread comes after the stream (or the event) then.
cudaError_t wait_for_stream(Stream &stream, uint64_t sequence);
cudaError_t wait_for_event(const std::shared_ptr<EventState> &event);
void poll(Stream &stream, uint64_t sequence); // one step towards it: for queries
// of other host threads; machine_lock() held once
bool wait_for_condition(double seconds, const std::function<bool()> &met);

void close_to_host();                 // at the end of a call: guard.h
void host_has_seen(const VectorClock &clock); // the calling thread has found, by a query, that this is done
const Operation &host_operation();     // of the calling thread, as of now
void machine_changed();                // wakes waiting host threads

// A fault of a device stays: its work is dropped and every call returns the error.
cudaError_t device_fault(int device);
void set_device_fault(int device, cudaError_t error);

void scheduler_reset();              // drops everything queued and all faults
uint64_t machine_step();

} // namespace gpusim
