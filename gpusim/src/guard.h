// Device memory can't be touched by host code: its pages are open only while operations run. A touch is reported, and then
// let through (with the pages open from then on), so that a test can go on. GPUSIM_GUARD=0 leaves the pages open.
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

// To stop for a while within a GuardOpen: a host function runs.
void guard_reset();

} // namespace gpusim
