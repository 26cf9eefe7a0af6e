// Device memory can't be touched by host code: its pages are closed when a host thread has waited for something or has
// allocated, and opened when an operation runs. A touch is reported and then let through, with the pages open from then on, so
// that a test can go on. GPUSIM_GUARD=0 leaves the pages open.
#pragma once

namespace gpusim {

// Under machine_lock().
class GuardOpen {
public:
    GuardOpen();
    ~GuardOpen();
    GuardOpen(const GuardOpen &) = delete;
    GuardOpen &operator=(const GuardOpen &) = delete;
};

void guard_close(); // unless something runs

} // namespace gpusim
