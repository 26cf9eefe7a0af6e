// Host code that touches device memory, or pinned memory that queued operations use. Device memory is never open to it
// (backing.h). Pinned pages (pinned.h) are closed when a host thread goes on after a call that has waited, found
// something done or queued work on them, and opened when an operation runs. A touch is reported and then let through,
// so that a test can go on; of device memory host code has a copy of the page from then on, until gpusim_configure.
// GPUSIM_GUARD=0 leaves all pages open.
#pragma once
#include <cstddef>
#include <cstdint>

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

bool guard_install();                              // false: it is off
void guard_close(const VectorClock &known);        // to a thread that knows so much, unless something runs
void guard_forget(uintptr_t base, size_t bytes);   // freed
void guard_reset();

} // namespace gpusim
