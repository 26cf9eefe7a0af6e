#include "waiting.h"

#include "scheduler.h"

#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <thread>

namespace gpusim {
namespace {

struct Waiters {
    std::condition_variable_any changed;
    int known = 0;   // host threads that use the simulator
    int waiting = 0; // of these
};

Waiters &waiters()
{
    static auto &all = *new Waiters;
    return all;
}

int threads_of_process()
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    int threads = 2;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "Threads: %d", &threads) == 1)
            break;
    if (file)
        fclose(file);
    return threads;
}

} // namespace

bool only_thread()
{
    return threads_of_process() == 1;
}

void host_thread_begins()
{
    Locked lock(machine_lock());
    waiters().known++;
}

void host_thread_ends()
{
    Locked lock(machine_lock());
    waiters().known--;
    machine_changed();
}

void machine_changed()
{
    waiters().changed.notify_all();
}

Unlocked::Unlocked()
{
    machine_lock().unlock();
}

Unlocked::~Unlocked()
{
    machine_lock().lock();
}

void give_way()
{
    constexpr int most_naps = 400;
    const uint64_t taken = machine_lock().taken();
    if (!machine_lock().wanted())
        return;
    const Unlocked unlocked;
    for (int nap = 0; nap < most_naps && machine_lock().taken() == taken; nap++)
        std::this_thread::sleep_for(std::chrono::microseconds(50));
}

bool QuietTime::over(uint64_t step)
{
    const auto now = std::chrono::steady_clock::now();
    if (step != step_) {
        step_ = step;
        since_ = now;
    }
    const bool others_wait_too = waiters().waiting + 1 >= waiters().known;
    if (others_wait_too && only_thread())
        return true;
    return now - since_ > std::chrono::seconds(others_wait_too ? 5 : 30);
}

void QuietTime::wait()
{
    waiters().waiting++;
    waiters().changed.wait_for(machine_lock(), std::chrono::milliseconds(20));
    waiters().waiting--;
}

bool wait_for_condition(double seconds, const std::function<bool()> &met)
{
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (!met()) {
        if (std::chrono::steady_clock::now() > end)
            return false;
        waiters().changed.wait_for(machine_lock(), std::chrono::milliseconds(20));
    }
    return true;
}

} // namespace gpusim
