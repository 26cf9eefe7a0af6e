#include "parser.h"

#include "declaration.h"

namespace gpusim::ptx
{

bool Statement::has(std::string_view word) const
{
    for (size_t i = 1; i < words.size(); i++) {
        if (words[i] == word) {
            return true;
        }
    }
    return false;
}

bool is_sync_opcode(std::string_view opcode)
{
    static const char *const kPrefixes[] = {"bar.", "barrier.", "cp.async.wait", "fence", "membar"};
    for (std::string_view prefix : kPrefixes) {
        if (opcode.substr(0, prefix.size()) == prefix) {
            return true;
        }
    }
    return false;
}

size_t parse_location(const std::vector<Token> &tokens, size_t at, Location *location)
{
    int line = tokens[at].line;
    auto number = [&](size_t i) {
        return i < tokens.size() && tokens[i].line == line ? atoi(std::string(tokens[i].text).c_str()) : 0;
    };
    *location = Location();
    location->file = number(at);
    location->line = number(at + 1);
    location->column = number(at + 2);
    size_t i = at + 3;
    for (; i < tokens.size() && tokens[i].line == line; i++) {
        if (tokens[i].text == "inlined_at") {
            location->caller_file = number(i + 1);
            location->caller_line = number(i + 2);
            location->caller_column = number(i + 3);
        }
    }
    return i;
}

namespace
{

// Remembers where things were inlined and where the function itself was written.
void scan_locations(const Syntax &syntax, Function *function)
{
    for (size_t i = function->body_begin; i < function->body_end; i++) {
        if (syntax.tokens[i].text != ".loc") {
            continue;
        }
        Location location;
        i = parse_location(syntax.tokens, i + 1, &location) - 1;
        if (location.caller_file != 0) {
            function->inlined[{{location.file, location.line}, location.column}] = location;
        } else if (function->main_file == 0) {
            function->main_file = location.file;
        }
    }
}

void parse_function(Cursor &cursor, Syntax *syntax, bool is_entry)
{
    Function function;
    function.is_entry = is_entry;
    if (cursor.peek() == "(") {
        function.results = parse_parameters(cursor);
    }
    function.name = cursor.next();
    if (cursor.peek() == "(") {
        function.parameters = parse_parameters(cursor);
    }
    while (!cursor.done() && cursor.peek() != "{" && cursor.peek() != ";") {
        std::string_view word = cursor.next();
        if (word == ".maxntid" || word == ".reqntid") {
            function.max_threads = static_cast<int>(cursor.integer());
            while (cursor.accept(",")) {
                function.max_threads *= static_cast<int>(cursor.integer());
            }
        }
    }
    if (cursor.next() == "{") {
        function.body_begin = cursor.position();
        cursor.skip_braces();
        function.body_end = cursor.position() - 1;
        scan_locations(*syntax, &function);
    }
    auto found = syntax->functions.find(function.name);
    if (found == syntax->functions.end()) {
        syntax->function_order.push_back(function.name);
        syntax->functions.emplace(function.name, std::move(function));
    } else if (function.body_end > function.body_begin) {
        found->second = std::move(function);
    }
}

void split_opcode(Statement *statement)
{
    std::string_view rest = statement->opcode;
    for (;;) {
        size_t dot = rest.find('.');
        statement->words.push_back(rest.substr(0, dot));
        if (dot == std::string_view::npos) {
            return;
        }
        rest = rest.substr(dot + 1);
    }
}

class BodyParser
{
  public:
    BodyParser(const Syntax &syntax, const Function &function, std::vector<Statement> *statements)
        : cursor_(syntax.tokens, function.body_begin, function.body_end), sync_site_(function.first_sync_site),
          statements_(statements)
    {
    }

    std::string parse()
    {
        while (!cursor_.done()) {
            parse_statement();
        }
        return cursor_.error();
    }

  private:
    Statement &add(Statement::Kind kind)
    {
        statements_->emplace_back();
        Statement &statement = statements_->back();
        statement.kind = kind;
        statement.location = location_;
        statement.line = cursor_.line();
        return statement;
    }

    void parse_statement()
    {
        std::string_view word = cursor_.peek();
        if (word == "{" || word == "}") {
            add(word == "{" ? Statement::Kind::open : Statement::Kind::close);
            cursor_.next();
        } else if (word == ";") {
            cursor_.next();
        } else if (word == ".loc") {
            cursor_.seek(parse_location(cursor_.tokens(), cursor_.position() + 1, &location_));
        } else if (word[0] == '.') {
            parse_directive(word);
        } else if (cursor_.peek(1) == ":") {
            parse_label(word);
        } else {
            parse_instruction();
        }
    }

    void parse_label(std::string_view word)
    {
        cursor_.next();
        cursor_.next();
        if (cursor_.peek() == ".branchtargets") {
            cursor_.next();
            Statement &statement = add(Statement::Kind::targets);
            statement.label = word;
            while (!cursor_.done() && !cursor_.accept(";")) {
                statement.operands.push_back(parse_operand(cursor_));
                cursor_.accept(",");
            }
        } else if (cursor_.peek() == ".callprototype" || cursor_.peek() == ".calltargets") {
            cursor_.skip_past(";");
        } else {
            add(Statement::Kind::label).label = word;
        }
    }

    void parse_directive(std::string_view word)
    {
        if (word == ".reg" || word == ".local" || word == ".shared" || word == ".param") {
            for (Variable &variable : parse_declaration(cursor_)) {
                add(Statement::Kind::declaration).variable = std::move(variable);
            }
        }
        cursor_.skip_past(";");
    }

    void parse_instruction()
    {
        Statement &statement = add(Statement::Kind::instruction);
        if (cursor_.accept("@")) {
            statement.guard_negated = cursor_.accept("!");
            statement.guard = cursor_.next();
        }
        statement.opcode = cursor_.next();
        split_opcode(&statement);
        while (!cursor_.done() && !cursor_.accept(";")) {
            statement.operands.push_back(parse_operand(cursor_));
            if (!cursor_.accept(",") && cursor_.peek() != ";") {
                cursor_.fail("';' expected after an operand of " + std::string(statement.opcode));
            }
        }
        if (is_sync_opcode(statement.opcode)) {
            statement.sync_site = sync_site_++;
        }
    }

    Cursor cursor_;
    Location location_;
    int sync_site_;
    std::vector<Statement> *statements_;
};

} // namespace

std::string parse_module(Syntax *syntax)
{
    syntax->tokens = tokenize(syntax->text);
    Cursor cursor(syntax->tokens, 0, syntax->tokens.size());
    while (!cursor.done()) {
        std::string_view word = cursor.peek();
        if (word == ".version" || word == ".target" || word == ".address_size") {
            int line = cursor.line();
            while (!cursor.done() && cursor.line() == line) {
                cursor.next();
            }
        } else if (word == ".file") {
            cursor.next();
            int number = static_cast<int>(cursor.integer());
            std::string_view name = cursor.next();
            syntax->files[number] = name.size() > 2 ? std::string(name.substr(1, name.size() - 2)) : std::string();
        } else if (word == ".section") {
            cursor.skip_past("{");
            cursor.skip_braces();
        } else if (word == ".entry" || word == ".func") {
            cursor.next();
            parse_function(cursor, syntax, word == ".entry");
        } else if (word == ".global" || word == ".const" || word == ".shared") {
            bool external = cursor.position() > 0 && syntax->tokens[cursor.position() - 1].text == ".extern";
            for (Variable &variable : parse_declaration(cursor)) {
                variable.external = external;
                syntax->variables.push_back(std::move(variable));
            }
            cursor.accept(";");
        } else {
            cursor.next();
        }
    }
    return cursor.error();
}

std::string parse_body(const Syntax &syntax, const Function &function, std::vector<Statement> *statements)
{
    return BodyParser(syntax, function, statements).parse();
}

} // namespace gpusim::ptx
