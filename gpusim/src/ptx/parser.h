// PTX text to syntax.
#pragma once
#include "syntax.h"

namespace gpusim::ptx
{

// Module-level declarations and the headers and extents of functions. An error is a line with its number; empty: none.
std::string parse_module(Syntax *syntax);

// A function's statements; parsed when its kernel is first needed.
std::string parse_body(const Syntax &syntax, const Function &function, std::vector<Statement> *statements);

// Opcodes that synchronise: numbered for mutation.
bool is_sync_opcode(std::string_view opcode);

// Reads a .loc directive whose first argument is tokens[at]; returns the index after it.
size_t parse_location(const std::vector<Token> &tokens, size_t at, Location *location);

} // namespace gpusim::ptx
