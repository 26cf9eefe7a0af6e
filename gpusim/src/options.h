// What gpusim_configure or the environment chose, and the seeded random numbers behind every choice of the simulator.
#pragma once
#include "api.h"

#include <atomic>
#include <mutex>
#include <string>

namespace gpusim {

struct Options {
    int devices = 4;
    int compute_capability = 80;
    gpusim_schedule schedule = GPUSIM_EAGER;
    gpusim_order order = GPUSIM_UP;
    uint64_t seed = 0;
    bool check = true;
    int skip_barrier = 0; // 1 + number; 0: none
    int skip_wait = 0;
    int skip_thread = 0;
    int multiprocessors = 4;
    size_t device_bytes = size_t(4) << 30;
    std::string wrong; // a variable whose value means nothing: every call fails
};

const Options &options();
uint32_t random_number(); // under machine_lock()

// One lock for the whole machine: work runs one operation at a time, so that a schedule is a matter of the seed.
// Recursive; knows whether other threads want it.
class MachineLock {
public:
    void lock();
    void unlock() { mutex_.unlock(); }
    bool wanted() const { return waiting_ > 0; }
    uint64_t taken() const { return taken_; } // so many times

private:
    std::recursive_mutex mutex_;
    std::atomic<int> waiting_{0};
    std::atomic<uint64_t> taken_{0};
};

MachineLock &machine_lock();
using Locked = std::lock_guard<MachineLock>;

gpusim_counts &counts(); // under machine_lock()

} // namespace gpusim
