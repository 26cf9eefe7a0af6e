// Device memory can't be touched by host code, nor pinned memory that queued operations use (pinned.h): these pages are closed when a host thread
// goes on after a call that has waited, found something done or allocated (pinned memory: that has queued work on it), and opened when an operation runs. A touch is reported and then let through, so that a
// test can go on: device memory stays open then until gpusim_configure. GPUSIM_GUARD=0 leaves all pages open.
#pragma once

namespace gpusim {

class VectorClock;

// Under machine_lock().
class GuardOpen {
public:
    GuardOpen();
    ~GuardOpen();
    GuardOpen(const GuardOpen &) = delete;
    GuardOpen &operator=(const GuardOpen &) = delete;
};

void guard_close(const VectorClock &known, bool pinned_only); // to a thread that knows so much, unless something runs
void guard_new_memory();                    // device memory was allocated
void guard_reset();

} // namespace gpusim
