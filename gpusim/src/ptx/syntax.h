// A PTX module as written: what the parser makes of the text and the decoder makes instructions of.
#pragma once
#include "lexer.h"
#include "types.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gpusim::ptx
{

enum class Space : uint8_t { generic, global, shared, local, parameter, constant, registers };

struct Operand {
    enum class Kind : uint8_t { name, integer, single_bits, double_bits, vector, memory, list, pair };
    Kind kind = Kind::name;
    bool negated = false;       // !%p
    std::string_view name;      // also of a memory operand's base; empty: an absolute address
    uint64_t bits = 0;          // a literal
    int64_t offset = 0;         // [name+offset], name+offset
    std::vector<Operand> parts; // {a, b}, (a, b), a|b
};

struct Variable {
    Space space = Space::registers;
    Type type = Type::none;
    std::string_view name;
    size_t alignment = 0; // 0: the type's
    size_t elements = 1;
    int64_t range = -1; // of %r<10>
    bool external = false;
    std::vector<Operand> initial;

    size_t bytes() const
    {
        return elements * bytes_of(type);
    }
    size_t align() const
    {
        return alignment ? alignment : bytes_of(type);
    }
};

// A .loc directive: where an instruction was written, and where that was inlined.
struct Location {
    int file = 0, line = 0, column = 0;
    int caller_file = 0, caller_line = 0, caller_column = 0;
};

struct Statement {
    enum class Kind : uint8_t { instruction, label, declaration, open, close, targets };
    Kind kind = Kind::instruction;
    std::string_view label;
    Variable variable;
    std::string_view guard; // @%p
    bool guard_negated = false;
    std::string_view opcode;             // whole
    std::vector<std::string_view> words; // cut at its dots
    std::vector<Operand> operands;
    Location location;
    int line = 0;
    int sync_site = -1; // number among barrier_sites()

    bool has(std::string_view word) const;
};

struct Function {
    std::string_view name;
    bool is_entry = false;
    std::vector<Variable> parameters, results;
    int max_threads = 1024;
    size_t body_begin = 0, body_end = 0; // tokens between the braces; equal: a declaration only
    int first_sync_site = 0;
    int main_file = 0; // where it was written
    std::map<std::pair<std::pair<int, int>, int>, Location>
        inlined; // (file, line), column -> the location that was inlined there
};

struct Syntax {
    std::string text;
    std::vector<Token> tokens;
    std::map<int, std::string> files;
    std::vector<Variable> variables;
    std::map<std::string_view, Function> functions;
    std::vector<std::string_view> function_order;
    std::vector<std::string_view> warnings;
};

} // namespace gpusim::ptx
