// Host threads that wait for each other's work, and when waiting has become a deadlock.
#pragma once
#include <chrono>
#include <cstdint>

namespace gpusim {

void host_thread_begins(); // a thread uses the simulator for the first time
void host_thread_ends();

bool only_thread(); // of the process: nobody else could still issue work

// While it lives the calling thread, which held machine_lock() once, doesn't.
class Unlocked {
public:
    Unlocked();
    ~Unlocked();
    Unlocked(const Unlocked &) = delete;
    Unlocked &operator=(const Unlocked &) = delete;
};

// For a query that found nothing new, with machine_lock() held once: a program that asks again at once would keep the
// lock from threads that have work to issue, and a kernel that polls would wait for them in vain.
void give_way();

// A wait that can't go on is a deadlock at once if nobody else could still issue work; else after a quiet time.
class QuietTime {
public:
    bool over(uint64_t step);
    void wait(); // for a change of the machine, a little while at most

private:
    uint64_t step_ = UINT64_MAX;
    std::chrono::steady_clock::time_point since_;
};

} // namespace gpusim
