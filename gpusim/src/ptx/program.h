// A kernel made ready to run: its instructions and those of all functions it calls, and the layout of a warp's
// registers.
#pragma once
#include "instruction.h"
#include "ptx.h"

#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace gpusim::ptx
{

enum class Special : uint8_t {
    none,
    tid_x,
    tid_y,
    tid_z,
    ntid_x,
    ntid_y,
    ntid_z,
    ctaid_x,
    ctaid_y,
    ctaid_z,
    nctaid_x,
    nctaid_y,
    nctaid_z,
    laneid,
    warpid,
    nwarpid,
    smid,
    nsmid,
    gridid,
    lanemask_eq,
    lanemask_lt,
    lanemask_le,
    lanemask_gt,
    lanemask_ge,
    dynamic_shared,
    total_shared,
    workspace_high,
    workspace_low,
    zero,
    one,
    local_base,  // this thread's local memory
    shared_base, // the block's shared window
    parameter_base
};

// A register that has its value before the first instruction.
struct Preset {
    uint32_t offset;
    uint8_t bytes; // 4 or 8; 0: a predicate
    Special special = Special::none;
    uint64_t value = 0;     // without special
    int symbol = -1;        // number of a module variable: its address is added
    bool per_block = false; // changes with the block
};

struct Program {
    std::string name; // readable
    std::vector<Instruction> code;
    int entry = 0; // the first instruction
    std::vector<Preset> presets;
    std::vector<std::string_view> symbols; // module variables that presets name
    uint32_t register_bytes = 0;
    size_t static_shared = 0, shared_alignment = 16;
    size_t dynamic_shared_offset = 0;
    size_t local_bytes = 0; // of each thread, with what aligns the next
    size_t local_used = 0;
    std::deque<std::vector<uint32_t>> lists;
    std::deque<std::string> strings;
    std::deque<std::shared_ptr<void>> extras;
    std::string error; // it can't run: why
};

} // namespace gpusim::ptx
