// What programs create and must destroy, beside memory.
#pragma once

namespace gpusim {

enum class Handle { stream, event, graph, executable, communicator, blas };

// All under machine_lock().
void handle_made(const void *handle, Handle kind, int device);
bool handle_gone(const void *handle); // false: there is none
void report_handles();                // those that are left

} // namespace gpusim
