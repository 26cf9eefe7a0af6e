// Declarations of variables, registers and parameters, and operands: what modules and bodies have in common.
#pragma once
#include "cursor.h"
#include "syntax.h"

namespace gpusim::ptx
{

Operand parse_operand(Cursor &cursor);

// ".global .align 4 .b8 name[4] = {1, 2}" up to, not including, what follows: one variable or, for registers, several.
std::vector<Variable> parse_declaration(Cursor &cursor);

// "( .param .b32 a, .param .b64 b )"
std::vector<Variable> parse_parameters(Cursor &cursor);

} // namespace gpusim::ptx
