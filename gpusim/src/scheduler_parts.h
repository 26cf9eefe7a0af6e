// What the parts of the scheduler share: scheduler.cpp (queues and policies), kernel_turns.cpp (kernels beside each
// other) and rendezvous.cpp (work of several streams). All under machine_lock().
#pragma once
#include "scheduler.h"

namespace gpusim {

struct Machine {
    std::vector<Stream *> streams;
    cudaError_t faults[16] = {};
    uint64_t step = 0; // counts what happens
    uint64_t look = 0; // counts when somebody wants to see something happen: kernels that poll look again
    VectorClock published; // what some host thread has waited for: see publish()
};

Machine &machine();
std::shared_ptr<Operation> begin_operation(Stream &stream, const Task &task);
void finish_head(Stream &stream);
bool ready(const Stream &stream); // whether its first task can do something

bool kernel_can_run(const Stream &stream, const Task &kernel);
void run_kernel(Stream &stream); // a turn
void end_kernel(Stream &stream, cudaError_t error);
bool kernels_poll(); // some have begun and not ended

bool can_meet(const Rendezvous &part);
bool all_done(const Stream &stream, const Task &task);
void run_rendezvous(Stream &stream);

} // namespace gpusim
