#include "declaration.h"

#include <cctype>
#include <cstring>

namespace gpusim::ptx
{

namespace
{

uint64_t bits_of_double(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

Operand parse_literal(std::string_view text)
{
    Operand operand;
    std::string word(text);
    if (word.size() > 2 && word[0] == '0' && (word[1] == 'f' || word[1] == 'F')) {
        operand.kind = Operand::Kind::single_bits;
        operand.bits = strtoull(word.c_str() + 2, nullptr, 16);
    } else if (word.size() > 2 && word[0] == '0' && (word[1] == 'd' || word[1] == 'D')) {
        operand.kind = Operand::Kind::double_bits;
        operand.bits = strtoull(word.c_str() + 2, nullptr, 16);
    } else if (word.find('.') != std::string::npos) {
        operand.kind = Operand::Kind::double_bits;
        operand.bits = bits_of_double(strtod(word.c_str(), nullptr));
    } else {
        operand.kind = Operand::Kind::integer;
        bool negative = word[0] == '-';
        uint64_t magnitude = strtoull(word.c_str() + negative, nullptr, 0);
        operand.bits = negative ? 0 - magnitude : magnitude;
    }
    return operand;
}

std::vector<Operand> parse_list(Cursor &cursor, std::string_view close)
{
    std::vector<Operand> parts;
    while (!cursor.done() && !cursor.accept(close)) {
        parts.push_back(parse_operand(cursor));
        cursor.accept(",");
    }
    return parts;
}

bool is_number(std::string_view text)
{
    return !text.empty() && (isdigit(static_cast<unsigned char>(text[0])) || (text[0] == '-' && text.size() > 1));
}

void parse_offset(Cursor &cursor, Operand *operand)
{
    if (cursor.accept("+")) {
        operand->offset = cursor.integer();
    } else if (is_number(cursor.peek()) && cursor.peek()[0] == '-') {
        operand->offset = cursor.integer();
    }
}

void parse_space(std::string_view word, Variable *variable)
{
    static const struct {
        const char *name;
        Space space;
    } kSpaces[] = {{".reg", Space::registers}, {".global", Space::global},   {".shared", Space::shared},
                   {".local", Space::local},   {".param", Space::parameter}, {".const", Space::constant}};
    for (const auto &entry : kSpaces) {
        if (word == entry.name) {
            variable->space = entry.space;
        }
    }
}

// Dimensions, and for registers the range; then the initial value.
void parse_declarator(Cursor &cursor, Variable *variable)
{
    variable->name = cursor.next();
    if (cursor.accept("<")) {
        variable->range = cursor.integer();
        cursor.expect(">");
    }
    while (cursor.accept("[")) {
        variable->elements *= cursor.peek() == "]" ? 0 : static_cast<size_t>(cursor.integer());
        cursor.expect("]");
    }
    if (cursor.accept("=")) {
        variable->initial.push_back(parse_operand(cursor));
    }
}

} // namespace

Operand parse_operand(Cursor &cursor)
{
    Operand operand;
    if (cursor.accept("{")) {
        operand.kind = Operand::Kind::vector;
        operand.parts = parse_list(cursor, "}");
    } else if (cursor.accept("(")) {
        operand.kind = Operand::Kind::list;
        operand.parts = parse_list(cursor, ")");
    } else if (cursor.accept("[")) {
        if (is_number(cursor.peek())) {
            operand = parse_literal(cursor.next());
            operand.offset = static_cast<int64_t>(operand.bits);
        } else {
            operand.name = cursor.next();
            parse_offset(cursor, &operand);
        }
        operand.kind = Operand::Kind::memory;
        cursor.expect("]");
    } else if (cursor.accept("!")) {
        operand = parse_operand(cursor);
        operand.negated = true;
    } else if (is_number(cursor.peek())) {
        operand = parse_literal(cursor.next());
    } else {
        operand.name = cursor.next();
        if (operand.name == "generic" && cursor.accept("(")) { // generic(symbol): all addresses here are generic
            operand.name = cursor.next();
            cursor.expect(")");
        }
        parse_offset(cursor, &operand);
    }
    if (cursor.accept("|")) {
        Operand pair;
        pair.kind = Operand::Kind::pair;
        pair.parts = {operand, parse_operand(cursor)};
        return pair;
    }
    return operand;
}

std::vector<Variable> parse_declaration(Cursor &cursor)
{
    Variable common;
    for (;;) {
        std::string_view word = cursor.peek();
        if (word.empty() || word[0] != '.') {
            break;
        }
        cursor.next();
        parse_space(word, &common);
        if (word == ".align") {
            common.alignment = static_cast<size_t>(cursor.integer());
        } else if (word == ".v2" || word == ".v4") {
            common.elements = static_cast<size_t>(word[2] - '0');
        } else if (word == ".extern") {
            common.external = true;
        } else if (word == ".ptr") {
            while (cursor.peek() == ".global" || cursor.peek() == ".const" || cursor.peek() == ".shared" ||
                   cursor.peek() == ".local") {
                cursor.next();
            }
            if (cursor.accept(".align")) { // of what it points to
                cursor.next();
            }
        } else if (parse_type(word.substr(1)) != Type::none) {
            common.type = parse_type(word.substr(1));
        }
    }
    std::vector<Variable> variables;
    do {
        Variable variable = common;
        parse_declarator(cursor, &variable);
        variables.push_back(std::move(variable));
    } while (common.space == Space::registers && cursor.accept(","));
    return variables;
}

std::vector<Variable> parse_parameters(Cursor &cursor)
{
    std::vector<Variable> parameters;
    cursor.expect("(");
    while (!cursor.done() && !cursor.accept(")")) {
        for (Variable &variable : parse_declaration(cursor)) {
            parameters.push_back(std::move(variable));
        }
        cursor.accept(",");
    }
    return parameters;
}

} // namespace gpusim::ptx
