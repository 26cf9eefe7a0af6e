// mbarrier: not simulated yet.
#include "opcodes.h"

namespace gpusim::ptx
{

void decode_mbarrier(Decoder &decoder, const Statement &statement)
{
    decoder.unsupported(statement);
}

} // namespace gpusim::ptx
