// A decoded instruction: what to call and where its operands are in a warp's register file.
#pragma once
#include "monitor.h"
#include "syntax.h"

#include <cstdint>

namespace gpusim::ptx
{

struct Instruction;
struct Warp;

// Does an instruction for the given lanes of a warp.
using Handler = void (*)(Warp &warp, const Instruction &instruction, uint32_t lanes);

// How the warp's loop goes on after an instruction.
enum class Flow : uint8_t {
    next,       // to the next instruction
    memory,     // the same, unless it faulted
    branch,     // lanes that it is executed for go to `target`
    rendezvous, // lanes wait for the others that their mask names
    control,    // the handler sets the program counters of its lanes itself
};

const uint32_t kNoGuard = UINT32_MAX;
const uint32_t kAllLanes = UINT32_MAX;

struct Instruction {
    Handler handler = nullptr;
    // Byte offsets of registers in the warp's register file; for operations with lists see `list`.
    uint32_t d = 0, a = 0, b = 0, c = 0;
    uint32_t guard = kNoGuard;     // a predicate register
    uint32_t guard_flip = 0;       // all ones for @!%p
    uint32_t lane_mask = kNoGuard; // of a rendezvous: the register that names the lanes; without: all
    Flow flow = Flow::next;
    Space space = Space::generic;
    Type type = Type::none;
    uint8_t mode = 0;            // meaning belongs to the handler
    uint8_t count = 0;           // length of `list`
    uint16_t flags = 0;          // memory: AccessFlags
    bool wide_address = true;    // 64-bit register
    bool polls = false;          // a spin loop may wait here
    bool meets_anywhere = false; // a rendezvous without operands: lanes may wait at different ones
    bool releases = false;       // orders what came before it, as a fence does
    int32_t target = -1;         // of a branch or call; a barrier's number
    int32_t sync_site = -1;
    int64_t immediate = 0;          // address offset, group count, ...
    const uint32_t *list = nullptr; // more registers: vectors, matrix fragments
    const void *extra = nullptr;    // what else the handler needs
    const Site *site = nullptr;
};

} // namespace gpusim::ptx
