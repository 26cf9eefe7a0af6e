// Accesses of whole ranges by the running operation: copies, library calls.
#pragma once
#include "monitor.h"

namespace gpusim {

constexpr unsigned kAnyDevice = 16; // the driver's own copies may cross devices without peer access

// False: reported, and nothing may be touched. True for everything when checks are off.
bool range_access(const void *memory, size_t bytes, unsigned flags);

} // namespace gpusim
