// Functions that the driver provides: printf and assert.
#pragma once
#include "decoder.h"
#include "machine.h"

namespace gpusim::ptx
{

// The local memory of a lane's thread, as its own.
unsigned char *local_memory(const Warp &warp, int lane);
void local_is_written(Warp &warp, int lane, size_t offset, size_t bytes);

// A call of a driver's function; false if it is none that is simulated.
bool decode_builtin(Decoder &decoder, std::string_view name, const std::vector<Operand> &results,
                    const std::vector<Operand> &parameters);

} // namespace gpusim::ptx
