// Pinned memory that the host must not touch yet: what queued operations name stays closed to host code until the
// thread knows that they are over. A touch of a closed page runs what is queued there, checks the byte against its
// cells, and opens the page until the next call.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpusim {

struct Allocation;
struct Stream;
struct Task;
class VectorClock;

// What a task uses of pinned memory: a copy its ends, a kernel all allocations that its parameters point into.
struct PinnedRange {
    uintptr_t begin, end;
};
void pinned_add(std::vector<PinnedRange> &ranges, const void *memory, size_t bytes); // nothing if it isn't pinned
void pinned_add_parameters(std::vector<PinnedRange> &ranges, const std::vector<unsigned char> &parameters);

// All under machine_lock().
void pinned_issued(Stream &stream, const Task &task);
void pinned_begins(Stream &stream, const Task &task); // its operation has its time now
void pinned_open();                                   // for operations
void pinned_close(const VectorClock &known);          // to a host thread that knows so much
void pinned_forget(uintptr_t begin, uintptr_t end);   // freed, with a report if it was too early
void pinned_reset();
bool pinned_touched(uintptr_t address, bool writes);  // by host code. False: not closed

} // namespace gpusim
