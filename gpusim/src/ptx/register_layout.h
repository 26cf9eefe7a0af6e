// Where registers are: PTX has one for each value, thousands of them; those whose values are never needed at the same
// time share a place, so that a warp's registers fit the host's caches.
#pragma once
#include "program.h"

#include <vector>

namespace gpusim::ptx
{

struct RegisterUnit {
    uint32_t offset, bytes; // of all lanes
    bool pinned;            // has its value from the beginning, or is shared by several names
};

// What an instruction reads and writes.
struct RegisterAccess {
    std::vector<uint32_t> uses, definitions; // offsets
};

struct BranchTable {
    size_t position;
    const std::vector<int> *targets;
};

// Gives all registers of a program without calls new places. `accesses` has an entry for each instruction.
void compact_registers(Program *program, const std::vector<RegisterUnit> &units,
                       const std::vector<RegisterAccess> &accesses, const std::vector<BranchTable> &tables);

} // namespace gpusim::ptx
