// What a multiplication reads and writes, line by line.
#pragma once
#include "descriptor.h"

#include <vector>

namespace gpusim {

struct OperandLine {
    const char *begin;
    size_t bytes;
};

struct Operand {
    const char *name;
    const void *memory;
    MatrixLayout layout;
    bool written;

    // Only elements that exist: the padding of a leading dimension is nobody's.
    std::vector<OperandLine> lines() const;
};

// Which of them is written and shares elements with another, in words; empty: none. D may lie where C does.
std::string operands_overlap(const std::vector<Operand> &operands);

} // namespace gpusim
