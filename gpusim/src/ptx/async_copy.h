// The landing of cp.async data.
#pragma once
#include "machine.h"

namespace gpusim::ptx
{

// Copies of groups before `end` land. False after a fault.
bool land_copies(Warp &warp, int lane, uint32_t end);

} // namespace gpusim::ptx
